//! A value in memory that is not answered any more once another process has written a newer one.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use litelease_core::{MAX_READ_TTL_MS, is_live};
use litelease_hold::file::{DatabaseFile, OwnConnection};
use litelease_hold::{Clock, HolderKind, Identity, SystemClock, Waiter, Window};
use rusqlite::Connection;

use crate::error::is_locked;
use crate::error::lift;
use crate::file::{file_of, open_existing};
use crate::leases::in_ms;
use crate::{Error, HoldError, HoldOptions, Litelease, Reader, Transaction, now_ms};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// A writer keeps the name alive with this ttl. While it has the name, readers read the file.
const WRITER_TTL: Duration = Duration::from_secs(30);

/// How long a read waits for the write lock. After that it is answered from the file.
const GRANT_PATIENCE: Duration = Duration::from_millis(100);

/// How long loading and writing wait for a lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest sleep between two looks, since a wake-up is only a hint.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// The shortest time between two looks of a reader, however often the file is written.
const LOOK_PAUSE: Duration = Duration::from_millis(2);

/// How long a read that could not be given up stays, before that is tried again.
const LEAVE_PAUSE: Duration = Duration::from_millis(5);

/// A value that is read from the file once and then answered from memory, until somebody wants to
/// write it. Made by [`Litelease::cached`].
///
/// [`get`](Cached::get) never answers a value that was overwritten before the call began, if all
/// writers go through [`write`](Cached::write) or do what it does. A thread watches the file, and
/// gives the value up when a writer has claimed the name. A process that is stopped or suspended
/// gives nothing up: the writer waits until its ttl is over, and from a tenth of the ttl before
/// that on, `get` reads the file again.
///
/// ```
/// use std::time::Duration;
/// use litelease::{Cached, Litelease};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// db.conn().execute_batch("CREATE TABLE config (rate INTEGER); INSERT INTO config VALUES (5)")?;
///
/// let rate: Cached<i64> = db.cached("config", Duration::from_secs(60), |conn| {
///     Ok(conn.query_row("SELECT rate FROM config", [], |row| row.get(0))?)
/// })?;
/// assert_eq!(*rate.get()?, 5); // from the file
/// assert_eq!(*rate.get()?, 5); // from memory
///
/// rate.write(Duration::from_secs(90), |tx| {
///     tx.conn().execute("UPDATE config SET rate = 7", [])?;
///     Ok(())
/// })?;
/// assert_eq!(*rate.get()?, 7);
/// # Ok(())
/// # }
/// ```
pub struct Cached<T> {
    shared: Arc<Shared<T>>,
    watching: Option<JoinHandle<()>>,
}

type Load<T> = Box<dyn Fn(&Connection) -> crate::Result<T> + Send + Sync>;

struct Shared<T> {
    name: String,
    /// Unique to this value.
    reader: String,
    file: DatabaseFile,
    ttl: Duration,
    window: Window,
    pid: u32,
    load: Load<T>,
    /// Where values are loaded.
    loads: OwnConnection<Litelease>,
    /// Held by the thread that loads. Locked before `rows`.
    loading: Mutex<()>,
    /// Where the read is granted, prolonged and given up. Locked before `state`.
    rows: OwnConnection<Litelease>,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    /// The value, and the version that it was read under.
    value: Option<Arc<T>>,
    version: i64,
    /// Until when the value may be answered from memory.
    trusted_until: Duration,
    /// Until when a writer may wait for us, if it may.
    granted_until: Option<Duration>,
    stopped: bool,
}

impl Litelease {
    /// Caches a value of the file in memory, under `name`.
    ///
    /// `load` reads the value, in a transaction of its own; it must not write. `ttl` is at least
    /// 101 ms and at most an hour: a writer waits that long for a process that is stopped. Fails
    /// for a database in memory.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let version = db.cached("schema", Duration::from_secs(60), |conn| {
    ///     Ok(conn.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))?)
    /// })?;
    /// assert_eq!(*version.get()?, 0);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn cached<T: Send + Sync + 'static>(
        &self,
        name: &str,
        ttl: Duration,
        load: impl Fn(&Connection) -> crate::Result<T> + Send + Sync + 'static,
    ) -> Result<Cached<T>> {
        let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        let (ttl_ms, most_ms) = (in_ms(ttl), MAX_READ_TTL_MS);
        if ttl_ms > most_ms {
            return Err(Error::TtlTooLong { name: name.into(), ttl_ms, most_ms }.into());
        }
        let file = file_of(self)?;
        let loads = OwnConnection::open(&file, BUSY_TIMEOUT)?;
        let rows = OwnConnection::open(&file, GRANT_PATIENCE)?;
        let shared = Arc::new(Shared {
            name: name.into(),
            reader: Identity::new(HolderKind::Hold).to_string(),
            ttl,
            window,
            pid: std::process::id(),
            load: Box::new(load),
            loads,
            loading: Mutex::default(),
            rows,
            file,
            state: Mutex::new(State {
                value: None,
                version: 0,
                trusted_until: Duration::ZERO,
                granted_until: None,
                stopped: false,
            }),
            changed: Condvar::new(),
        });
        let watching = shared.clone();
        let thread = std::thread::Builder::new().name("litelease cached".into());
        let watching = thread.spawn(move || watching.watch()).map_err(HoldError::NoThread)?;
        Ok(Cached { shared, watching: Some(watching) })
    }
}

impl<T> Cached<T> {
    /// Returns the value: from memory while it can be trusted, which does not touch the file;
    /// otherwise from the file.
    ///
    /// While a writer has the name, every call reads the file. It waits for no writer.
    pub fn get(&self) -> Result<Arc<T>> {
        let shared = &self.shared;
        if shared.pid != std::process::id() {
            return Err(HoldError::Forked);
        }
        if let Some(value) = shared.in_memory() {
            return Ok(value);
        }
        let _loading = lock(&shared.loading);
        // Another thread may have been faster.
        if let Some(value) = shared.in_memory() {
            return Ok(value);
        }
        let granted = shared.acquire()?;
        // No writer had the name since it was loaded.
        if let Some(value) = shared.in_memory() {
            return Ok(value);
        }
        let value = Arc::new(shared.load()?);
        if granted {
            // If it was given up meanwhile, it is not trusted; and the writer has changed the
            // version.
            lock(&shared.state).value = Some(value.clone());
        }
        Ok(value)
    }

    /// Waits until no reader in any process answers from memory, and then writes in one
    /// transaction.
    ///
    /// Claims the name, so that no read is granted from then on, and waits until every reader has
    /// given up, has died or has expired, measured by elapsed time too. All of that takes at most
    /// `patience`: then it fails with [`HoldError::Busy`] if another writer has the name, or with
    /// [`HoldError::ReadersLeft`]. If `work` fails, nothing is written.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let version = db.cached("schema", Duration::from_secs(60), |conn| {
    ///     Ok(conn.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))?)
    /// })?;
    /// version.write(Duration::from_secs(90), |tx| Ok(tx.conn().execute_batch("PRAGMA user_version = 3")?))?;
    /// assert_eq!(*version.get()?, 3);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn write<R>(
        &self,
        patience: Duration,
        work: impl FnOnce(&Transaction<'_>) -> crate::Result<R>,
    ) -> Result<R> {
        let Shared { name, file, .. } = &*self.shared;
        if self.shared.pid != std::process::id() {
            return Err(HoldError::Forked);
        }
        let begin = SystemClock.now();
        let mut db = open_existing(file, BUSY_TIMEOUT)?;
        let held = db.hold(name, HoldOptions::new(WRITER_TTL).wait(patience))?;
        let drain = Drain::new(&db, name)?;
        let waiter = Waiter::at(Path::new(&**file));
        // A claim rings no bell by itself.
        db.notify();
        self.shared.look();
        loop {
            let heard = waiter.heard();
            held.check()?;
            let left = drain.readers_left(&db)?;
            if left.is_empty() {
                let tx = db.transaction()?;
                if tx.drained((name, held.token()))? {
                    lift(tx.store().forget_readers(name))?;
                    let done = work(&tx)?;
                    tx.commit()?;
                    return Ok(done);
                }
            }
            let time = patience.saturating_sub(SystemClock.now() - begin);
            if time.is_zero() {
                return Err(HoldError::ReadersLeft { name: name.clone(), readers: left });
            }
            waiter.nap(heard, drain.nap(&left).min(time));
        }
    }

    /// Returns for how long [`get`](Cached::get) will answer from memory if no writer comes: zero
    /// if there is nothing in memory.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let value = db.cached("answer", Duration::from_secs(60), |_| Ok(42))?;
    /// assert!(value.trusted_for().is_zero());
    /// value.get()?;
    /// assert!(value.trusted_for() <= Duration::from_secs(54));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn trusted_for(&self) -> Duration {
        let state = lock(&self.shared.state);
        let trusted_until = state.value.as_ref().map_or(Duration::ZERO, |_| state.trusted_until);
        trusted_until.saturating_sub(SystemClock.now())
    }

    /// Returns the reader text, which is unique to this value: host, process and a random part.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let value = db.cached("answer", Duration::from_secs(60), |_| Ok(42))?;
    /// value.get()?;
    /// assert_eq!(db.readers("answer")?[0].reader, value.reader());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn reader(&self) -> &str {
        &self.shared.reader
    }
}

impl<T> Drop for Cached<T> {
    fn drop(&mut self) {
        let shared = &self.shared;
        if shared.pid != std::process::id() {
            return; // the thread and its connection are the other process's
        }
        let given_up = shared.rows.with(|rows| {
            lock(&shared.state).stopped = true;
            shared.changed.notify_all();
            let given_up = rows.unread(&shared.name, &shared.reader);
            if given_up.is_ok() {
                lock(&shared.state).granted_until = None;
            }
            // Wakes the thread, too.
            rows.notify();
            given_up
        });
        // If the file is locked, the thread goes on trying, and nobody waits for it.
        let watching = self.watching.take().filter(|_| given_up.is_ok());
        if let Some(watching) = watching {
            let _ = watching.join();
        }
    }
}

impl<T> Shared<T> {
    fn in_memory(&self) -> Option<Arc<T>> {
        let state = lock(&self.state);
        let is_trusted = SystemClock.now() < state.trusted_until;
        state.value.as_ref().filter(|_| is_trusted).cloned()
    }

    /// Asks for a read. Returns whether it is granted: not while a writer has the name, or the file
    /// is locked.
    fn acquire(&self) -> Result<bool> {
        self.rows.with(|rows| {
            if rows.has_moved() {
                return Err(HoldError::FileMoved(self.file.path.clone()));
            }
            let start = SystemClock.now();
            let version = match rows.read(&self.name, &self.reader, self.ttl) {
                Ok(Some(version)) => version,
                Ok(None) | Err(Error::ExpiredOnArrival(_)) => return Ok(false),
                Err(error) if is_locked(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            };
            // Asked again: what was just granted may be in a file that nobody else opens any more.
            if rows.has_moved() {
                return Err(HoldError::FileMoved(self.file.path.clone()));
            }
            let mut state = lock(&self.state);
            if state.version != version {
                (state.version, state.value) = (version, None);
            }
            state.trusted_until = self.window.end(start);
            state.granted_until = Some(SystemClock.now() + self.ttl);
            self.changed.notify_all();
            Ok(true)
        })
    }

    /// Loads the value in one snapshot.
    fn load(&self) -> Result<T> {
        self.loads.lend(|loads| {
            if loads.has_moved() {
                return Err(HoldError::FileMoved(self.file.path.clone()));
            }
            let snapshot = loads.conn().unchecked_transaction()?;
            Ok((self.load)(&snapshot)?)
        })
    }

    /// Watches the file as long as a writer may wait for us.
    fn watch(&self) {
        let waiter = Waiter::at(Path::new(&*self.file));
        while let Some(granted_until) = self.wait_until_granted() {
            let heard = waiter.heard();
            self.look();
            let left = granted_until.saturating_sub(SystemClock.now());
            waiter.nap(heard, left.min(SLOW_POLL));
            std::thread::sleep(LOOK_PAUSE.min(left));
        }
        self.leave();
    }

    /// Gives the read up after the last use of the value, unless that is done. Tries until a writer
    /// waits for us no longer.
    fn leave(&self) {
        loop {
            let left =
                lock(&self.state).granted_until.map(|until| until.checked_sub(SystemClock.now()));
            let Some(Some(_)) = left else { return };
            let given_up = self.rows.with(|rows| {
                let given_up = rows.unread(&self.name, &self.reader);
                rows.notify();
                given_up
            });
            if given_up.is_ok() || self.rows.is_moved() {
                return;
            }
            std::thread::sleep(LEAVE_PAUSE);
        }
    }

    /// Returns until when a writer may wait for us, or `None` once nobody uses the value any more.
    fn wait_until_granted(&self) -> Option<Duration> {
        let mut state = lock(&self.state);
        loop {
            match state.granted_until {
                _ if state.stopped => return None,
                Some(until) if SystemClock.now() < until => return Some(until),
                _ => state.granted_until = None,
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives the read up if a writer has the name.
    fn look(&self) {
        let looked: crate::Result<()> = self.rows.with(|rows| {
            if lock(&self.state).granted_until.is_none() {
                return Ok(());
            }
            // What cannot be read now is left to the trust window.
            let is_written = rows.inspect(&self.name).is_ok_and(|writer| writer.is_some());
            if !is_written && !rows.has_moved() {
                return Ok(());
            }
            self.distrust();
            // Only now: a writer that finds no reader writes. If it fails, it is tried again.
            if rows.unread(&self.name, &self.reader).is_ok() {
                lock(&self.state).granted_until = None;
            }
            Ok(())
        });
        if looked.is_err() && self.rows.is_moved() {
            self.distrust();
        }
    }

    fn distrust(&self) {
        let mut state = lock(&self.state);
        (state.value, state.trusted_until) = (None, Duration::ZERO);
    }
}

/// The readers that a writer waits for.
struct Drain<'n> {
    name: &'n str,
    /// Until when each reader that was live when the name was claimed may answer from memory, by
    /// elapsed time: the wall clock may be set forward meanwhile.
    until: HashMap<String, Duration>,
}

impl<'n> Drain<'n> {
    /// Begins to wait, after the name was claimed: from then on no reader is added.
    fn new(db: &Litelease, name: &'n str) -> Result<Self> {
        let (now, wall_ms) = (SystemClock.now(), now_ms());
        let until = db.at(wall_ms).readers(name)?.into_iter().map(|reader| {
            let left_ms = reader.expires_at_ms.saturating_sub(wall_ms).min(MAX_READ_TTL_MS);
            (reader.reader, now + Duration::from_millis(left_ms.max(0).unsigned_abs()))
        });
        Ok(Drain { name, until: until.collect() })
    }

    /// Returns the readers that may still answer from memory. Gives up for those whose process has
    /// ended.
    fn readers_left(&self, db: &Litelease) -> Result<Vec<Reader>> {
        let (now, wall_ms) = (SystemClock.now(), now_ms());
        // Those that have expired by the row, too.
        let mut readers = db.at(i64::MIN).readers(self.name)?;
        readers.retain(|reader| {
            let is_trusted = self.until.get(&reader.reader).is_some_and(|until| now < *until);
            is_trusted || is_live(reader.expires_at_ms, wall_ms)
        });
        let mut left = Vec::new();
        for reader in readers {
            let is_dead = Identity::parse(&reader.reader).is_some_and(|who| who.is_dead());
            match is_dead {
                true => _ = db.unread(self.name, &reader.reader)?,
                false => left.push(reader),
            }
        }
        Ok(left)
    }

    /// Returns how long to sleep at most: until the last reader has expired.
    fn nap(&self, left: &[Reader]) -> Duration {
        let now = SystemClock.now();
        let until = left.iter().filter_map(|reader| self.until.get(&reader.reader)).max();
        let until = until.map_or(SLOW_POLL, |until| until.saturating_sub(now));
        until.clamp(Duration::from_millis(1), SLOW_POLL)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Cached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
