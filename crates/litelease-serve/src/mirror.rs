//! The database of a writer that serves an engine: SQLite in memory, and every row of it on the
//! engine.
//!
//! A commit stores its changed rows on the engine first, and only if the writer's token is still
//! the newest. Then it commits in memory. After any error the database in memory is dropped and
//! loaded again. So every answer is about stored rows, which a server that takes over loads.
//!
//! Pools, queues and keys are rows of the service alone. Names are the rows that programs claim
//! beside it, and the memory has copies of them: a name is stored only if its row is still the one
//! that was decided on. What was decided on an older one is decided again.
//!
//! Times are stored as service time, which does not advance while no server writes. A server that
//! takes over shifts it to its own clock: the time that a lease had left at the last commit begins
//! anew, and the clocks of two machines are never compared.

pub(crate) mod encoding;
mod hints;
mod journal;
mod names;
mod parts;
mod table;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{Error, Lease, Litelease};
use litelease_cluster::Cluster;
use litelease_cluster::engine::{Changes, Engine, Listener, Loaded};
use litelease_store::AccessRow;

use self::encoding::{ACCESS, META, Meta, SCHEMA};
use self::hints::Hints;
use self::journal::Destination;
use self::names::{Names, Now};
use self::parts::{Refused, Wanted};
use self::table::{ChangedRow, Table};
use crate::failure::Failure;
use crate::replica::writer_lease::{AccessRows, WriterLease};

/// The share of the time that reading all names may take is one by so many.
const LISTING_SHARE: u32 = 20;

/// How many rows of a table are read one by one. With more, the whole table is read.
const MOST_LOADS: usize = 4;

/// How far a clock that was set is off at least. Less may be the time between reading two clocks.
const LEAST_STEP_MS: u64 = 500;

/// A row of the engine: its key, and its new value or none.
pub(crate) type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// The rows of a service on an engine, as one writer sees them.
pub(crate) struct Mirror {
    cluster: Cluster,
    engine: Arc<dyn Engine>,
    names: Names,
    /// The names of the last commit that met a conflict.
    refused: Vec<Refused>,
    /// The changes by others that the engine has told of.
    hints: Arc<Hints>,
    /// When all names were read last, on the clock that is never set.
    listed: Duration,
    listing_took: Duration,
    /// The clock of the service less the one that is never set, when they were compared last.
    ahead_ms: Option<i64>,
    lease: Arc<WriterLease>,
    clock: fn() -> i64,
    /// The clock of this machine less the service time. Set by the first load.
    offset_ms: Option<i64>,
    /// The service time of the last commit.
    at_ms: i64,
    /// The tables in memory, and SQLite's number of the schema they were read from.
    tables: BTreeMap<String, Table>,
    schema_version: Option<i64>,
    /// The definitions that the engine has.
    schema: BTreeMap<String, String>,
    /// Rows that mean nothing. They are deleted with the next commit.
    unwanted: Vec<RowChange>,
    /// The access keys, which other programs change.
    access: Vec<AccessRow>,
    access_version: i64,
    is_access_old: bool,
    /// The memory is not what the engine has, or was never loaded.
    is_stale: bool,
    /// True if the engine may still store a request from before the last error.
    needs_fence: bool,
    /// The incarnation of the engine that was loaded.
    boot: i64,
}

impl Mirror {
    /// With `is_one_clock`, the engine's times are those of `clock`: tests set both.
    pub(crate) fn new(
        cluster: Cluster,
        lease: Arc<WriterLease>,
        clock: fn() -> i64,
        is_one_clock: bool,
    ) -> Self {
        let engine = Arc::clone(cluster.engine());
        let hints = Arc::<Hints>::default();
        let listener: Arc<dyn Listener> = hints.clone();
        engine.listen(Changes::Rows, Arc::downgrade(&listener));
        Mirror {
            cluster,
            engine,
            names: Names::new(is_one_clock),
            refused: Vec::new(),
            hints,
            listed: Duration::ZERO,
            listing_took: Duration::ZERO,
            ahead_ms: None,
            lease,
            clock,
            offset_ms: None,
            at_ms: i64::MIN,
            tables: BTreeMap::new(),
            schema_version: None,
            schema: BTreeMap::new(),
            unwanted: Vec::new(),
            access: Vec::new(),
            access_version: 0,
            is_access_old: false,
            is_stale: true,
            needs_fence: false,
            boot: 0,
        }
    }

    /// Checks whether the memory has to be loaded before it is used.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Throws the memory away: it may differ from what the engine has.
    pub(crate) fn distrust(&mut self) {
        self.is_stale = true;
    }

    /// Checks whether no other server can have taken over.
    pub(crate) fn is_trusted(&self) -> bool {
        self.lease.is_trusted()
    }

    /// Checks whether answers from memory count: it is loaded, and no other server can have taken
    /// over.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match (self.is_stale, self.lease.is_trusted()) {
            (_, false) => Err(Failure::NotWriter(
                "this server no longer writes: another one may have taken over".into(),
            )),
            (true, true) => {
                Err(Failure::NotWriter("the rows could not be loaded from the engine".into()))
            }
            (false, true) => Ok(()),
        }
    }

    /// Loads all rows into a new database in memory.
    pub(crate) fn load(&mut self) -> Result<Litelease, Failure> {
        let loaded = self.try_load();
        if let Err(error) = &loaded
            && self.lease.is_trusted()
        {
            tracing::error!(error = %error, "the rows cannot be loaded from the engine");
            if !error.is_of_engine() {
                // Another server may be able to. This one tries again later.
                self.lease.give_up();
            }
        }
        loaded
    }

    fn try_load(&mut self) -> Result<Litelease, Failure> {
        if !self.lease.is_trusted() {
            return self.check().and(Err(Failure::NotWriter("this server does not write".into())));
        }
        if self.needs_fence {
            // A request whose answer was lost may be carried out after this load. Then the memory
            // would not have it, and later commits would be mixed with it.
            self.lease.fence()?;
            self.needs_fence = false;
        }
        let loaded = self.cluster.rows()?;
        self.boot = loaded.incarnation;
        let stored = self.engine.load_rows(b"")?;
        let mut rows: BTreeMap<Vec<u8>, Vec<u8>> = stored.into_iter().collect();
        let now_ms = (self.clock)();
        let recovered = journal::recover(self.destination(), &mut rows);
        self.needs_fence = recovered.is_err();
        recovered?;
        self.unwanted.clear();
        let meta = rows.get(META).map(|meta| Meta::read(meta)).transpose()?;
        let at_ms = meta.map_or(now_ms, |meta| meta.at_ms);
        let first_ms = if meta.is_some() { now_ms.saturating_sub(at_ms) } else { 0 };
        let offset_ms = self.offset_ms.unwrap_or(first_ms);

        let connection = Connection::open_in_memory()?;
        self.schema.clear();
        for (key, sql) in
            rows.range(SCHEMA.to_vec()..).take_while(|(key, _)| key.starts_with(SCHEMA))
        {
            let (name, sql) = (encoding::text(&key[SCHEMA.len()..])?, encoding::text(sql)?);
            table::create(&connection, &name, &sql)?;
            self.schema.insert(name, sql);
        }
        let mut tables = table::read_all(&connection)?;
        connection.execute_batch("BEGIN")?;
        for table in tables.values_mut() {
            self.unwanted.extend(table.fill(&connection, &rows, offset_ms)?);
            table.read_names(&connection)?;
        }
        connection.execute_batch("COMMIT")?;

        watch::begin(&connection);
        let db = Litelease::from_connection(connection);
        db.bootstrap()?;
        self.set_access(access_rows(&rows))?;
        // Whatever was seen before, a server that takes over counts anew.
        self.names = self.names.emptied();
        self.take_in(&db, loaded, true)?;
        self.at_ms = at_ms;
        self.offset_ms = Some(offset_ms);
        self.tables = tables;
        self.schema_version = None;
        self.is_stale = false;
        Ok(db)
    }

    /// Reads the access keys again if another program has changed them. A failure is tried again by
    /// the next call.
    pub(crate) fn refresh_access(&mut self) {
        if self.lease.is_access_outdated() || self.is_access_old {
            let rows = self.engine.load_rows(ACCESS).map_err(Failure::from);
            if let Err(error) = rows.and_then(|rows| self.set_access(rows.into_iter().collect())) {
                if !self.is_access_old {
                    tracing::error!(error = %error, "the access keys cannot be read");
                }
                self.is_access_old = true;
            }
        }
    }

    fn set_access(&mut self, rows: AccessRows) -> Result<(), Failure> {
        let access = rows.iter().map(|(key, value)| encoding::read_access(key, value));
        self.access = access.collect::<Result<_, _>>()?;
        self.lease.use_access(rows);
        self.access_version += 1;
        self.is_access_old = false;
        Ok(())
    }

    /// Returns the access keys, and another number after every change of them.
    pub(crate) fn access(&self) -> (&[AccessRow], i64) {
        (&self.access, self.access_version)
    }

    /// Stores what the open transaction has changed, and checks that the rows of the names in
    /// `answered` are still those that were decided on. The caller commits it in memory afterwards,
    /// calls [`settle`](Mirror::settle) for the names that others have changed, and
    /// [`distrust`](Mirror::distrust) if anything fails.
    pub(crate) fn commit(
        &mut self,
        db: &Litelease,
        answered: &BTreeSet<Arc<str>>,
    ) -> Result<(), Failure> {
        // A batch writes its counts last.
        db.with_store(|store| store.store_counts())?;
        self.check()?;
        let connection = db.conn();
        let mut rows = self.changed_schema(connection)?;
        let mut wanted = Wanted::from_names(answered);
        self.changed_rows(connection, &mut rows, &mut wanted)?;
        if rows.is_empty() && wanted.is_empty() {
            return Ok(());
        }
        let now_ms = (self.clock)().saturating_sub(self.offset_ms.unwrap_or(0));
        let at_ms = self.at_ms.max(now_ms);
        if !rows.is_empty() || wanted.has_rows() || !self.unwanted.is_empty() {
            rows.push((META.to_vec(), Some(Meta { at_ms }.write())));
            // A row that is written now is wanted again.
            let written: BTreeSet<&[u8]> = rows.iter().map(|(key, _)| key.as_slice()).collect();
            self.unwanted.retain(|(key, _)| !written.contains(key.as_slice()));
            rows.append(&mut self.unwanted);
        }
        let stored = self.store(wanted, &rows);
        self.needs_fence = stored.is_err();
        self.refused = stored?;
        self.at_ms = at_ms;
        Ok(())
    }

    /// Makes the memory what the engine has, where the last commit met a conflict. Returns the
    /// names, which are to be decided on again.
    pub(crate) fn settle(&mut self, db: &Litelease) -> Vec<Refused> {
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() {
            return refused;
        }
        if let Err(error) = self.read_again(db, &refused) {
            tracing::warn!(error = %error, "names that others have changed cannot be read");
            self.distrust();
        }
        refused
    }

    fn read_again(&mut self, db: &Litelease, refused: &[Refused]) -> Result<(), Failure> {
        let mut places: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (table, number) in refused.iter().flat_map(|one| &one.rows) {
            places.entry(table).or_default().push(*number);
        }
        for (name, numbers) in places {
            let Some(table) = self.tables.get_mut(name) else { continue };
            let keys = numbers.iter().map(|number| encoding::row_key(name, *number));
            let asked: Vec<Vec<u8>> = match numbers.len() > MOST_LOADS {
                true => vec![encoding::row_prefix(name)],
                false => keys.collect(),
            };
            let mut found = BTreeMap::new();
            for prefix in asked {
                found.extend(self.engine.load_rows(&prefix)?);
            }
            for number in numbers {
                let stored = found.get(&encoding::row_key(name, number)).map(Vec::as_slice);
                table.put_back(db.conn(), number, stored, self.offset_ms.unwrap_or(0))?;
                watch::forget(name, Some(number));
            }
        }
        let names: Vec<&str> = refused.iter().map(|one| one.name.as_str()).collect();
        self.refresh(db, &names).map(drop)?;
        // What was decided in vain is in memory, also where the row is the same.
        self.names.copy(db.conn(), names.into_iter())?;
        watch::forget(names::TABLE, None);
        Ok(())
    }

    /// Reads names again. Returns those that have changed.
    pub(crate) fn refresh(
        &mut self,
        db: &Litelease,
        names: &[&str],
    ) -> Result<Vec<String>, Failure> {
        let loaded = self.engine.load(names)?;
        self.take_in(db, loaded, false)
    }

    /// Reads all names again, unless that was done within `age`, or so lately that it would take
    /// too much of the time. Returns those that have changed.
    pub(crate) fn refresh_all(
        &mut self,
        db: &Litelease,
        age: Duration,
    ) -> Result<Vec<String>, Failure> {
        let begun = self.now().monotonic;
        if begun.saturating_sub(self.listed) < age.max(self.listing_took * LISTING_SHARE) {
            return Ok(Vec::new());
        }
        let loaded = self.engine.list()?;
        let changed = self.take_in(db, loaded, true);
        self.listing_took = self.listed.saturating_sub(begun);
        changed
    }

    /// Moves the ends of leases in memory along if the clock of the service was set: the rows
    /// decide when a lease is over, and not that clock. Returns whether it was.
    pub(crate) fn follow_clock(&mut self, db: &Litelease) -> bool {
        let ahead_ms = self.ahead_ms();
        let before_ms = self.ahead_ms.unwrap_or(ahead_ms);
        let is_step = |ahead_ms: i64| before_ms.abs_diff(ahead_ms) >= LEAST_STEP_MS;
        // This thread may have paused between reading one clock and the other.
        let ahead_ms = if is_step(ahead_ms) { self.ahead_ms() } else { ahead_ms };
        self.ahead_ms = Some(ahead_ms);
        if !is_step(ahead_ms) || self.names.is_one_clock() {
            return false;
        }
        tracing::warn!(by_ms = ahead_ms.saturating_sub(before_ms), "the clock was set");
        if let Err(error) = self.names.shift(db.conn(), ahead_ms.saturating_sub(before_ms)) {
            tracing::error!(error = %error, "the ends of leases cannot be moved");
            self.distrust();
        }
        watch::forget(names::TABLE, None);
        true
    }

    /// Checks whether a program has handed this lease over to its owner, who did not renew it yet.
    pub(crate) fn was_handed_over(&self, lease: &Lease) -> bool {
        self.names.was_handed_over(lease)
    }

    /// Returns the names that others may have changed since the last call, or `None` if any may.
    pub(crate) fn hinted(&self) -> Option<BTreeSet<String>> {
        self.hints.take()
    }

    /// Checks whether the engine tells of every change.
    pub(crate) fn hears_all(&self) -> bool {
        !self.names.has_clock()
    }

    fn take_in(
        &mut self,
        db: &Litelease,
        loaded: Loaded,
        are_all: bool,
    ) -> Result<Vec<String>, Failure> {
        let now = self.now();
        if are_all {
            self.listed = now.monotonic;
        }
        if loaded.incarnation != self.boot {
            let text = "the engine may have lost commits: it must be loaded again";
            return Err(Failure::NotWriter(text.into()));
        }
        let floor = loaded.floor.epoch.floor;
        let changed = self.names.take_in(loaded, now, are_all);
        if !changed.is_empty() {
            self.names.copy(db.conn(), changed.iter().map(String::as_str))?;
        }
        watch::forget(names::TABLE, None);
        // There is one floor: that of the engine.
        match db.raise(floor) {
            Ok(()) | Err(Error::FloorTooLow { .. }) => Ok(changed),
            Err(error) => Err(error.into()),
        }
    }

    #[cfg(test)]
    pub(crate) fn names_known(&self) -> usize {
        self.names.len()
    }

    fn now(&self) -> Now {
        Now { at_ms: (self.clock)(), monotonic: self.cluster.host().monotonic() }
    }

    fn ahead_ms(&self) -> i64 {
        let Now { at_ms, monotonic } = self.now();
        at_ms.saturating_sub(i64::try_from(monotonic.as_millis()).unwrap_or(i64::MAX))
    }

    fn destination(&self) -> Destination<'_> {
        Destination { engine: &*self.engine, lease: &self.lease, boot: self.boot }
    }

    /// Returns the definitions of tables that the engine does not have yet.
    fn changed_schema(&mut self, connection: &Connection) -> Result<Vec<RowChange>, Failure> {
        let version = connection.query_row("PRAGMA schema_version", [], |row| row.get(0))?;
        if self.schema_version == Some(version) {
            return Ok(Vec::new());
        }
        let mut before = std::mem::replace(&mut self.tables, table::read_all(connection)?);
        let mut rows = Vec::new();
        for (name, table) in &mut self.tables {
            table.keep_names(before.remove(name));
            if self.schema.get(name) != Some(&table.sql) {
                let key = [SCHEMA, name.as_bytes()].concat();
                rows.push((key, Some(table.sql.clone().into_bytes())));
                self.schema.insert(name.clone(), table.sql.clone());
            }
        }
        self.schema_version = Some(version);
        Ok(rows)
    }

    /// Reads what the open transaction has changed: names and what belongs to them, and other rows.
    fn changed_rows(
        &mut self,
        connection: &Connection,
        rows: &mut Vec<RowChange>,
        wanted: &mut Wanted,
    ) -> Result<(), Failure> {
        let offset_ms = self.offset_ms.unwrap_or(0);
        for (name, numbers) in watch::take() {
            if name == names::TABLE {
                names::read(connection, &numbers)?
                    .into_iter()
                    .for_each(|copied| wanted.write(copied));
            } else if let Some(table) = self.tables.get_mut(&name) {
                let mut changed = Vec::new();
                table.read(connection, &numbers, offset_ms, &mut changed)?;
                for ChangedRow { number, name: of, before, change } in changed {
                    let place = (name.clone(), number);
                    match (of, before) {
                        // The number of a row that belonged to another name. That one is deleted
                        // now, and this one is stored with the next commit.
                        (Some(of), Some(before)) if of != before => {
                            wanted.add(before, place.clone(), (change.0, None));
                            wanted.put_off(of, place);
                        }
                        (Some(of), _) | (None, Some(of)) => wanted.add(of, place, change),
                        (None, None) => rows.push(change),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the access keys among all rows.
fn access_rows(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> AccessRows {
    let keys = rows.range(ACCESS.to_vec()..).take_while(|(key, _)| encoding::is_access(key));
    keys.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests;
