//! The database of a writer that serves an engine: SQLite in memory, and every row of it on the
//! engine.
//!
//! A commit stores its changed rows on the engine first, and only if the writer's token is still
//! the newest. Then it commits in memory. After any error the database in memory is dropped and
//! loaded again. So every answer is about stored rows, which a server that takes over loads.
//!
//! Times are stored as service time, which does not advance while no server writes. A server that
//! takes over shifts it to its own clock: the time that a lease had left at the last commit begins
//! anew, and the clocks of two machines are never compared.

pub(crate) mod encoding;
mod journal;
mod table;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use litelease::rusqlite::Connection;
use litelease::{Error, Litelease};
use litelease_cluster::engine::Engine;
use litelease_store::AccessRow;

use self::encoding::{ACCESS, META, Meta, SCHEMA};
use self::journal::Destination;
use self::table::Table;
use crate::failure::Failure;
use crate::replica::WRITER_LEASE;
use crate::replica::writer_lease::{AccessRows, WriterLease};

/// A row of the engine: its key, and its new value or none.
pub(crate) type RowChange = (Vec<u8>, Option<Vec<u8>>);

/// The rows of a service on an engine, as one writer sees them.
pub(crate) struct Mirror {
    engine: Arc<dyn Engine>,
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
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        lease: Arc<WriterLease>,
        clock: fn() -> i64,
    ) -> Self {
        Mirror {
            engine,
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
        let loaded = self.engine.load(&[WRITER_LEASE])?;
        let floor = loaded.floor.epoch.floor;
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
        let tables = table::read_all(&connection)?;
        connection.execute_batch("BEGIN")?;
        for table in tables.values() {
            self.unwanted.extend(table.fill(&connection, &rows, offset_ms)?);
        }
        connection.execute_batch("COMMIT")?;

        watch::begin(&connection);
        let db = Litelease::from_connection(connection);
        db.bootstrap()?;
        self.set_access(access_rows(&rows))?;
        // Tokens go on above what the engine may have lost, such as by a failover.
        match db.raise(floor) {
            Ok(()) | Err(Error::FloorTooLow { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.at_ms = at_ms;
        self.offset_ms = Some(offset_ms);
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

    /// Stores what the open transaction has changed. The caller commits it in memory afterwards,
    /// and calls [`distrust`](Mirror::distrust) if anything fails.
    pub(crate) fn commit(&mut self, db: &Litelease) -> Result<(), Failure> {
        // A batch writes its counts last.
        db.with_store(|store| store.store_counts())?;
        self.check()?;
        let connection = db.conn();
        let mut rows = self.changed_schema(connection)?;
        rows.extend(self.changed_rows(connection)?);
        if rows.is_empty() {
            return Ok(());
        }
        let now_ms = (self.clock)().saturating_sub(self.offset_ms.unwrap_or(0));
        let at_ms = self.at_ms.max(now_ms);
        rows.push((META.to_vec(), Some(Meta { at_ms }.write())));
        // A row that is written now is wanted again.
        let written: BTreeSet<&[u8]> = rows.iter().map(|(key, _)| key.as_slice()).collect();
        self.unwanted.retain(|(key, _)| !written.contains(key.as_slice()));
        rows.append(&mut self.unwanted);
        let stored = journal::store(self.destination(), &rows);
        self.needs_fence = stored.is_err();
        stored?;
        self.at_ms = at_ms;
        Ok(())
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
        self.tables = table::read_all(connection)?;
        let mut rows = Vec::new();
        for (name, table) in &self.tables {
            if self.schema.get(name) != Some(&table.sql) {
                let key = [SCHEMA, name.as_bytes()].concat();
                rows.push((key, Some(table.sql.clone().into_bytes())));
                self.schema.insert(name.clone(), table.sql.clone());
            }
        }
        self.schema_version = Some(version);
        Ok(rows)
    }

    fn changed_rows(&self, connection: &Connection) -> Result<Vec<RowChange>, Failure> {
        let offset_ms = self.offset_ms.unwrap_or(0);
        let mut rows = Vec::new();
        for (name, numbers) in watch::take() {
            if let Some(table) = self.tables.get(&name) {
                table.read(connection, &numbers, offset_ms, &mut rows)?;
            }
        }
        Ok(rows)
    }
}

/// Returns the access keys among all rows.
fn access_rows(rows: &BTreeMap<Vec<u8>, Vec<u8>>) -> AccessRows {
    let keys = rows.range(ACCESS.to_vec()..).take_while(|(key, _)| encoding::is_access(key));
    keys.map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests;
