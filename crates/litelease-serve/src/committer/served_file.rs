//! The file as the committer sees it: transactions, the high-water mark, the lock against other
//! servers, and changes made by other processes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use litelease::rusqlite::Connection;
use litelease::{Error, Litelease, PoolInfo, SlotRow};

use super::batch::Served;
use super::bounds::Bounds;
use crate::access::Keys;
use crate::failure::Failure;
use crate::file;
use crate::high_water::{HighWater, NameGrant};
use crate::job::JobError;
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::options::Options;
use crate::server_lock::ServerLock;

/// How often to check whether another process has changed the file, while a client waits or
/// watches.
pub(super) const CHANGE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long the outcome of the last write answers the question whether the file can be written.
const WRITE_OUTCOME_VALID_FOR: Duration = Duration::from_secs(1);

/// How old a list of the names on an engine may be.
const LIST_VALID_FOR: Duration = Duration::from_millis(500);

/// A commit that is done.
pub(super) struct Committed {
    pub(super) took: Duration,
    /// The names whose row on the engine was another one, or locked: nothing of what was decided
    /// about them is stored.
    pub(super) refused: BTreeSet<String>,
}

/// A pool, and its slots if the request wants them.
type Snapshot = (PoolInfo, Option<Vec<SlotRow>>);

pub(super) struct ServedFile {
    pub(super) db: Litelease,
    /// The engine, if the database is a copy in memory of its rows.
    mirror: Option<Mirror>,
    high_water: Option<HighWater>,
    /// Held until the database is closed. Tests have none.
    lock: Option<ServerLock>,
    /// When the file was last written, or the reason why it could not be.
    last_write: Option<(Instant, Result<(), &'static str>)>,
    /// SQLite's count of rows changed by this connection, when the transaction began.
    changes_at_begin: u64,
    /// SQLite's `data_version`, which other processes change by committing.
    version: i64,
    polled_at: Instant,
    names_polled_at: Instant,
    poll_interval: Duration,
    /// The access keys, and the `data_version` at which they were read.
    keys: Keys,
    keys_version: Option<i64>,
    bounds: Bounds,
    /// Where the leases of the file went, and the `data_version` at which that was read.
    moved_to: Option<&'static str>,
    moved_version: Option<i64>,
    /// Counts how often the access keys may have changed.
    metrics: Arc<Metrics>,
}

impl ServedFile {
    pub(super) fn new(
        db: Litelease,
        high_water: Option<HighWater>,
        lock: Option<ServerLock>,
        options: &Options,
        metrics: Arc<Metrics>,
    ) -> Self {
        ServedFile {
            db,
            mirror: None,
            high_water,
            lock,
            last_write: None,
            changes_at_begin: 0,
            version: 0,
            polled_at: Instant::now(),
            names_polled_at: Instant::now(),
            poll_interval: CHANGE_POLL_INTERVAL,
            keys: if options.open { Keys::Open } else { Keys::Unreadable },
            keys_version: None,
            bounds: Bounds::new(options),
            moved_to: None,
            moved_version: None,
            metrics,
        }
    }

    /// Returns the file, and the access keys that were read last.
    pub(super) fn served(&self) -> Served<'_> {
        let mirror = self.mirror.as_ref();
        Served { db: &self.db, keys: &self.keys, bounds: &self.bounds, mirror }
    }

    /// Begins a write transaction. Fails if this server has lost its lock, or the file was moved.
    pub(super) fn begin(&mut self) -> Result<(), Failure> {
        self.changes_at_begin = self.db.conn().total_changes();
        self.check()?;
        self.db.begin_batch()?;
        self.refresh_retirement()
    }

    /// Finds out whether another process has retired the file since the last time. Inside a
    /// transaction none can.
    pub(super) fn refresh_retirement(&mut self) -> Result<(), Failure> {
        if self.mirror.is_some() || self.moved_to.is_some() {
            return Ok(());
        }
        let version = Some(self.data_version()?);
        if self.moved_version != version {
            // The text is needed until this process ends.
            self.moved_to = self.db.retirement()?.map(|found| &*found.moved_to.leak());
            self.moved_version = version;
        }
        Ok(())
    }

    /// Returns the error for what would begin something, if the leases of the file went elsewhere.
    pub(super) fn moved(&self) -> Option<JobError> {
        self.moved_to.map(JobError::Moved)
    }

    /// Commits if `done` is `Ok`, otherwise rolls back. `answered` are the names that something is
    /// about to be answered about.
    pub(super) fn end(
        &mut self,
        done: Result<(), Failure>,
        answered: &BTreeSet<Arc<str>>,
    ) -> Result<Committed, Failure> {
        let started = Instant::now();
        let stored = done.and_then(|()| self.store(answered));
        let ended = stored.and_then(|()| Ok(self.db.commit_batch()?));
        if ended.is_err() {
            self.distrust();
            // If this fails, the next transaction rolls back before it begins.
            let _ = self.db.rollback_batch();
        }
        // An empty commit succeeds on any disk, so it does not show that the file is writable.
        if ended.is_err() || self.db.conn().total_changes() > self.changes_at_begin {
            self.remember(&ended);
        }
        ended.map(|()| {
            let took = started.elapsed();
            let settled = self.mirror.as_mut().map(|mirror| mirror.settle(&self.db));
            let refused = settled.into_iter().flatten().map(|refused| refused.name).collect();
            Committed { took, refused }
        })
    }

    /// Checks whether the file can be written: by the last write if it was a moment ago, otherwise
    /// by writing. Returns the reason if it cannot.
    pub(super) fn check_writable(&mut self) -> Result<(), &'static str> {
        self.check().map_err(|error| error.reason())?;
        if self.moved_to.is_some() {
            return Err("the leases of this server went to another place");
        }
        match self.last_write {
            Some((at, outcome)) if at.elapsed() < WRITE_OUTCOME_VALID_FOR => outcome,
            _ => self.probe(),
        }
    }

    fn probe(&mut self) -> Result<(), &'static str> {
        // Jobs that arrive meanwhile wait for the probe, so it does not wait long for the write
        // lock.
        let shorter = file::set_timeout(&self.db, file::PROBE_TIMEOUT).map_err(Failure::from);
        let begun = shorter.and_then(|()| self.begin());
        let restored = file::set_timeout(&self.db, file::TIMEOUT);
        let written = begun.and_then(|()| Ok(restored.and_then(|()| file::touch(&self.db))?));
        let probed = self.end(written, &BTreeSet::new()).map(|_| ());
        if let Err(error) = &probed {
            tracing::error!(error = %error, "the database cannot be written");
        }
        self.remember(&probed);
        probed.map_err(|error| error.reason())
    }

    fn remember(&mut self, outcome: &Result<(), Failure>) {
        let outcome = outcome.as_ref().map_err(Failure::reason).copied();
        self.last_write = Some((Instant::now(), outcome));
    }

    /// Checks that this is still the only server of the file, and that the file is where it was.
    fn check(&mut self) -> Result<(), Failure> {
        self.lock.as_mut().map_or(Ok(()), ServerLock::ensure)?;
        self.check_mirror()?;
        file::check_place(&self.db)
    }

    /// Returns a pool, and its slots if the request wants them. `None` if there is no such pool.
    pub(super) fn snapshot(
        &self,
        id: &str,
        with_slots: bool,
        now_ms: i64,
    ) -> Result<Option<Snapshot>, Failure> {
        file::check_place(&self.db)?;
        self.check_mirror()?;
        let pools = self.db.pools().at(now_ms);
        let Some(info) = pools.info(id)? else { return Ok(None) };
        let slots = with_slots.then(|| pools.slots(id)).transpose()?;
        Ok(Some((info, slots)))
    }

    /// Reads the access keys, if another process may have changed them. That changes the
    /// `data_version`, and cannot happen inside a transaction of ours.
    pub(super) fn refresh_keys(&mut self) {
        if matches!(self.keys, Keys::Open) {
            return;
        }
        let mirrored = self.mirror.as_ref().map(Mirror::access);
        match mirrored.map_or_else(|| self.data_version(), |(_, version)| Ok(version)) {
            Ok(version) if self.keys_version == Some(version) => return,
            version => self.keys_version = version.ok(),
        }
        self.metrics.keys_changed();
        if let Some((rows, _)) = mirrored {
            self.keys = Keys::from_rows(rows);
            self.metrics.name_keys(self.keys.names());
            return;
        }
        self.keys = match crate::FileAccess::new(&self.db).list() {
            Ok(rows) => Keys::from_rows(&rows.unwrap_or_default()),
            Err(error) => {
                tracing::error!(error = %error, "the access keys cannot be read");
                self.keys_version = None;
                Keys::Unreadable
            }
        };
        self.metrics.name_keys(self.keys.names());
    }

    fn data_version(&self) -> Result<i64, Error> {
        Ok(self.db.conn().query_row("PRAGMA data_version", [], |row| row.get(0))?)
    }

    /// Checks whether another process has changed the file since the last time. Does nothing and
    /// returns false until the poll interval is over.
    pub(super) fn poll_for_changes(&mut self) -> bool {
        if self.polled_at.elapsed() < self.poll_interval {
            return false;
        }
        self.polled_at = Instant::now();
        // A lost lock is reported by the next write.
        let _ = self.lock.as_mut().map(ServerLock::ensure);
        let before = self.version;
        self.version = self.data_version().unwrap_or(before);
        self.version != before
    }

    /// Checks whether it is time to look for changes of names on an engine.
    pub(super) fn is_poll_due(&mut self) -> bool {
        let is_due = self.names_polled_at.elapsed() >= self.poll_interval;
        if is_due {
            self.names_polled_at = Instant::now();
        }
        is_due
    }

    /// Sets the poll interval by how long it took to act on the last change: with waiters in
    /// thousands of pools that takes a while, and new requests come first.
    pub(super) fn adapt_poll_interval(&mut self, took: Duration) {
        self.poll_interval = CHANGE_POLL_INTERVAL.max(took * 10);
    }

    /// Raises the high-water mark to the token of a slot and the grant of a name that are about to
    /// be answered.
    pub(super) fn raise_high_water(&mut self, token: i64, name: Option<NameGrant>) {
        // On failure the grants are stored; only a restored backup might go unnoticed.
        warn_about_high_water(
            self.high_water.as_mut().map_or(Ok(()), |high_water| high_water.rise(token, name)),
        );
    }

    /// Returns how long until the high-water mark must be synced, if it has changed.
    pub(super) fn high_water_due_in(&self) -> Option<Duration> {
        self.high_water.as_ref().and_then(HighWater::due)
    }

    pub(super) fn sync_high_water(&mut self) {
        warn_about_high_water(self.high_water.as_mut().map_or(Ok(()), HighWater::sync));
    }
}

/// The parts that a copy of an engine needs, and a file does not.
impl ServedFile {
    /// Returns the database of a server on an engine. The first turn loads it.
    pub(super) fn mirrored(
        mirror: Mirror,
        options: &Options,
        metrics: Arc<Metrics>,
    ) -> Result<Self, Error> {
        let db = Litelease::from_connection(Connection::open_in_memory()?);
        let file = ServedFile::new(db, None, None, options, metrics);
        Ok(ServedFile { mirror: Some(mirror), ..file })
    }

    /// Loads the database again if it may differ from the engine. Returns whether it did, or the
    /// clock was set.
    pub(super) fn refresh(&mut self) -> bool {
        let Some(mirror) = &mut self.mirror else { return false };
        mirror.refresh_access();
        let was_set = mirror.follow_clock(&self.db);
        if !mirror.is_stale() {
            return was_set;
        }
        let Ok(db) = mirror.load() else { return false };
        self.db = db;
        true
    }

    /// Returns the error that clients get if the database fails.
    pub(super) fn failure(&self) -> JobError {
        match self.mirror {
            Some(_) => JobError::Engine,
            None => JobError::Database,
        }
    }

    /// Checks whether this server no longer writes to its engine. Failing is no error then.
    pub(super) fn is_given_up(&self) -> bool {
        self.mirror.as_ref().is_some_and(|mirror| !mirror.is_trusted())
    }

    /// Checks that answers from the copy of an engine count.
    pub(super) fn check_mirror(&self) -> Result<(), Failure> {
        self.mirror.as_ref().map_or(Ok(()), Mirror::check)
    }

    /// Checks whether names are rows of an engine, which others change, too.
    pub(super) fn is_on_engine(&self) -> bool {
        self.mirror.is_some()
    }

    /// Reads names again before they are reported, or all of them. Nothing is reported of names
    /// that cannot be read.
    pub(super) fn refresh_names(
        &mut self,
        names: &BTreeSet<Arc<str>>,
        are_all: bool,
    ) -> Result<Vec<String>, Failure> {
        let Some(mirror) = &mut self.mirror else { return Ok(Vec::new()) };
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        let mut changed = match are_all {
            true => mirror.refresh_all(&self.db, LIST_VALID_FOR)?,
            false => Vec::new(),
        };
        if !names.is_empty() {
            changed.extend(mirror.refresh(&self.db, &names)?);
        }
        Ok(changed)
    }

    /// Reads names again that others may have changed, if clients wait for them or watch. Does
    /// nothing until the poll interval is over. Returns the names that have changed.
    pub(super) fn poll_names(
        &mut self,
        is_awaited: impl Fn(&str) -> bool,
        awaited: impl FnOnce() -> Vec<String>,
        is_watched: bool,
    ) -> Vec<String> {
        let Some(mirror) = &mut self.mirror else { return Vec::new() };
        if mirror.check().is_err() {
            return Vec::new();
        }
        let polled = match mirror.hinted() {
            None if is_watched => mirror.refresh_all(&self.db, Duration::ZERO),
            Some(_) if is_watched && !mirror.hears_all() => {
                mirror.refresh_all(&self.db, LIST_VALID_FOR)
            }
            hinted => {
                let names = match hinted {
                    None => awaited(),
                    Some(names) => {
                        names.into_iter().filter(|name| is_watched || is_awaited(name)).collect()
                    }
                };
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                match names.is_empty() {
                    true => Ok(Vec::new()),
                    false => mirror.refresh(&self.db, &names),
                }
            }
        };
        polled.unwrap_or_else(|error| {
            tracing::warn!(error = %error, "names cannot be read from the engine");
            Vec::new()
        })
    }

    /// Stores on the engine what the open transaction has changed.
    fn store(&mut self, answered: &BTreeSet<Arc<str>>) -> Result<(), Failure> {
        self.mirror.as_mut().map_or(Ok(()), |mirror| mirror.commit(&self.db, answered))
    }

    fn distrust(&mut self) {
        self.mirror.iter_mut().for_each(Mirror::distrust);
    }
}

fn warn_about_high_water(written: Result<(), litelease_sys::Error>) {
    if let Err(error) = written {
        tracing::warn!(error = %error, "the high-water mark cannot be written");
    }
}

#[cfg(test)]
impl ServedFile {
    /// Returns how many names of the engine are in memory.
    pub(super) fn names_known(&self) -> usize {
        self.mirror.as_ref().map_or(0, Mirror::names_known)
    }
}
