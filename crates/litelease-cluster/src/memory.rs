//! An engine in memory, for tests: of Litelease, and of programs that use it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::engine::{
    Change, Changes, Commit, Committed, Condition, Engine, EngineFacts, Listener, Loaded,
    LoadedRow, Part, Result, RowChange, SideKind, SideRow, Stored, StoredRow, TokenFloor,
};

/// Rows in memory. Clones share them, as clients of one engine do.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_cluster::{ClaimResult, Cluster, MemoryEngine};
/// let engine = MemoryEngine::new();
/// let (one, other) = (Cluster::on(engine.clone()), Cluster::on(engine));
/// one.claim("scheduler", "a", Duration::from_secs(30))?;
/// let busy = other.claim("scheduler", "b", Duration::from_secs(30))?;
/// assert!(matches!(busy, ClaimResult::Busy(lease) if lease.owner == "a"));
/// # Ok::<(), litelease_cluster::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryEngine {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    rows: Mutex<MemoryRows>,
    changed: Condvar,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// The rows of an engine in memory.
///
/// ```
/// # use litelease_cluster::MemoryRows;
/// let rows = MemoryRows::new(7);
/// assert_eq!(rows.load(&["scheduler"]).incarnation, 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MemoryRows {
    /// The incarnation.
    pub incarnation: i64,
    /// The engine's clock, if it is to have one.
    pub server_ms: Option<i64>,
    /// The version of the newest change.
    pub version: i64,
    /// The floor of all tokens.
    pub floor: TokenFloor,
    /// The rows by name, each with its version.
    pub rows: BTreeMap<String, (i64, StoredRow)>,
    /// The rows beside them, by name.
    pub sides: BTreeMap<(String, SideKind), SideRow>,
    service: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Default for MemoryRows {
    fn default() -> Self {
        MemoryRows::new(1)
    }
}

impl MemoryRows {
    /// Returns an empty engine of this incarnation.
    pub fn new(incarnation: i64) -> Self {
        MemoryRows {
            incarnation,
            server_ms: None,
            version: 0,
            floor: TokenFloor::default(),
            rows: BTreeMap::new(),
            sides: BTreeMap::new(),
            service: BTreeMap::new(),
        }
    }

    /// Reads rows.
    pub fn load(&self, names: &[&str]) -> Loaded {
        let rows = names.iter().map(|name| self.row(name)).collect();
        Loaded { floor: self.floor, incarnation: self.incarnation, server_ms: self.server_ms, rows }
    }

    /// Reads all rows.
    pub fn list(&self) -> Loaded {
        let names: Vec<&str> = self.rows.keys().map(String::as_str).collect();
        self.load(&names)
    }

    /// Compares and stores.
    pub fn store(&mut self, seen: &Loaded, change: &Change) -> Stored {
        let is_known = (seen.incarnation, seen.floor) == (self.incarnation, self.floor);
        if !is_known || !self.is_same(seen, change) {
            return Stored::Conflict;
        }
        self.write(change)
    }

    /// Stores without comparing.
    pub fn write(&mut self, change: &Change) -> Stored {
        self.version += 1;
        let version = self.version;
        if let Some(epoch) = change.floor {
            self.floor = TokenFloor { epoch, version };
        }
        let clock = self.server_ms.zip(change.lasts_ms);
        for (name, row) in &change.rows {
            let row = match clock {
                Some((server_ms, lasts_ms)) => row.as_of(server_ms, lasts_ms),
                None => row.clone(),
            };
            self.rows.insert(name.clone(), (version, row));
        }
        for (name, side) in &change.sides {
            self.sides.insert((name.clone(), side.kind), SideRow { version, ..side.clone() });
        }
        match clock {
            Some((server_ms, _)) => Stored::DoneAt { version, server_ms },
            None => Stored::Done { version },
        }
    }

    /// Deletes rows that are still the same.
    pub fn forget(&mut self, seen: &[LoadedRow]) -> u64 {
        let before = self.rows.len();
        for row in seen {
            if self.row(&row.name).is_same_row(row) && self.rows.remove(&row.name).is_some() {
                self.version += 1;
                self.sides.remove(&(row.name.clone(), SideKind::Payload));
            }
        }
        (before - self.rows.len()) as u64
    }

    /// Stores a commit of the service.
    pub fn commit(&mut self, commit: &Commit<'_>) -> Committed {
        let (writer, token) = commit.writer;
        let is_newest = self.rows.get(writer).is_some_and(|(_, row)| row.token == token);
        if !is_newest || self.incarnation != commit.incarnation {
            return Committed::Replaced;
        }
        if self.floor.version != commit.floor_version {
            return Committed::FloorChanged;
        }
        self.put_service(commit.rows);
        Committed::Parts(commit.parts.iter().map(|part| self.store_part(part)).collect())
    }

    fn store_part(&mut self, part: &Part) -> Stored {
        let before = &part.before;
        let tenure = before.row.as_ref().and_then(|row| row.tenure.as_ref());
        let is_live = tenure
            .zip(self.server_ms)
            .map(|(tenure, now_ms)| litelease_core::is_live(tenure.until_ms, now_ms));
        let is_so = match part.condition {
            Condition::None => true,
            Condition::Live => is_live != Some(false),
            Condition::Ended => is_live != Some(true),
        };
        if !self.row(&before.name).is_same_row(before) || !is_so {
            return Stored::Conflict;
        }
        self.put_service(&part.rows);
        let Some(row) = &part.row else { return Stored::Done { version: before.version } };
        let clock = self.server_ms.filter(|_| part.condition != Condition::None);
        let row = clock.and_then(|now_ms| part.row_at(now_ms)).unwrap_or_else(|| row.clone());
        let rows = vec![(before.name.clone(), row)];
        match (self.write(&Change { rows, ..Change::default() }), clock) {
            (Stored::Done { version }, Some(server_ms)) => Stored::DoneAt { version, server_ms },
            (stored, _) => stored,
        }
    }

    fn put_service(&mut self, changes: &[RowChange]) {
        for (key, value) in changes {
            match value {
                Some(value) => self.service.insert(key.clone(), value.clone()),
                None => self.service.remove(key),
            };
        }
        self.version += i64::from(!changes.is_empty());
    }

    fn row(&self, name: &str) -> LoadedRow {
        let (version, row) = match self.rows.get(name) {
            Some((version, row)) => (*version, Some(row.clone())),
            None => (0, None),
        };
        let side = |kind| self.sides.get(&(name.to_owned(), kind)).cloned();
        let sides = SideKind::ALL.into_iter().filter_map(side).collect();
        LoadedRow { name: name.to_owned(), version, row, sides }
    }

    fn is_same(&self, seen: &Loaded, change: &Change) -> bool {
        change.names().all(|name| {
            let is_live = |row: &StoredRow| match (&row.tenure, self.server_ms) {
                (Some(tenure), Some(now_ms)) => litelease_core::is_live(tenure.until_ms, now_ms),
                _ => true,
            };
            let live = |row: &LoadedRow| row.row.as_ref().is_some_and(is_live);
            let same = |row: &&LoadedRow| {
                let now = self.row(name);
                let is_beside = !change.beside || row.payload_version() == now.payload_version();
                row.is_same_row(&now) && is_beside
            };
            seen.row(name).filter(same).is_some_and(|row| !change.while_live || live(row))
        })
    }
}

impl MemoryEngine {
    /// Returns an empty engine.
    pub fn new() -> Self {
        MemoryEngine::default()
    }

    /// Changes its rows, in a test that plays an accident.
    pub fn edit<T>(&self, edit: impl FnOnce(&mut MemoryRows) -> T) -> T {
        let edited = edit(&mut self.rows());
        self.inner.changed.notify_all();
        self.notify(&[(None, None)]);
        edited
    }

    fn notify(&self, changes: &[(Option<&str>, Option<i64>)]) {
        let listeners = {
            let mut listeners = self.listeners();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.clone()
        };
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            changes.iter().for_each(|(name, token)| listener.changed(*name, *token));
        }
    }

    fn stored(&self, store: impl FnOnce(&mut MemoryRows), names: &[&str]) {
        let tokens: Vec<Option<i64>> = {
            let mut rows = self.rows();
            store(&mut rows);
            names.iter().map(|name| rows.rows.get(*name).map(|(_, row)| row.token)).collect()
        };
        self.inner.changed.notify_all();
        let changes = names.iter().zip(tokens).map(|(name, token)| (Some(*name), token));
        self.notify(&changes.collect::<Vec<_>>());
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.inner.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rows(&self) -> MutexGuard<'_, MemoryRows> {
        self.inner.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for MemoryEngine {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        Ok(self.rows().load(names))
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        let names: Vec<&str> = change.names().collect();
        let mut stored = Stored::Conflict;
        self.stored(|rows| stored = rows.store(seen, change), &names);
        // The token is the same, and the holder is to look all the same.
        change.sides.iter().for_each(|(name, _)| self.notify(&[(Some(name), None)]));
        Ok(stored)
    }

    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], _: Duration) -> Result<Vec<Stored>> {
        let names: Vec<&str> = seen.rows.iter().map(|row| row.name.as_str()).collect();
        let mut stored = Vec::new();
        let store = |memory: &mut MemoryRows| {
            for (before, row) in seen.rows.iter().zip(rows) {
                let seen = Loaded { rows: vec![before.clone()], ..seen.without_rows() };
                let rows = vec![(before.name.clone(), row.clone())];
                let lasts_ms = row.tenure.as_ref().map(|tenure| tenure.ttl_ms);
                let change = Change { rows, while_live: true, lasts_ms, ..Change::default() };
                let change = Change { beside: true, ..change };
                stored.push(memory.store(&seen, &change));
            }
        };
        self.stored(store, &names);
        Ok(stored)
    }

    fn listen(&self, _: Changes, listener: Weak<dyn Listener>) {
        self.listeners().push(listener);
    }

    fn list(&self) -> Result<Loaded> {
        Ok(self.rows().list())
    }

    fn list_beside(&self, kind: SideKind) -> Result<Vec<(String, SideRow)>> {
        let rows = self.rows();
        let of_kind = rows.sides.iter().filter(|((_, found), _)| *found == kind);
        Ok(of_kind.map(|((name, _), side)| (name.clone(), side.clone())).collect())
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        Ok(self.edit(|rows| rows.forget(seen)))
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        let is_same = |rows: &mut MemoryRows| rows.row(name).version == version;
        let _ = self.inner.changed.wait_timeout_while(self.rows(), time, is_same);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let rows = self.rows();
        let found = rows.service.iter().filter(|(key, _)| key.starts_with(prefix));
        Ok(found.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn commit_rows(&self, name: &str, token: i64, changes: &[RowChange]) -> Result<Stored> {
        Ok(self.edit(|rows| {
            if rows.rows.get(name).is_none_or(|(_, row)| row.token != token) {
                return Stored::Conflict;
            }
            rows.put_service(changes);
            Stored::Done { version: rows.version }
        }))
    }

    fn commit_rows_of(
        &self,
        incarnation: i64,
        name: &str,
        token: i64,
        changes: &[RowChange],
    ) -> Result<Stored> {
        let is_same = self.rows().incarnation == incarnation;
        match is_same {
            true => self.commit_rows(name, token, changes),
            false => Ok(Stored::Conflict),
        }
    }

    fn commit_parts(&self, commit: &Commit<'_>) -> Result<Committed> {
        let written = commit.parts.iter().filter(|part| part.row.is_some());
        let names: Vec<&str> = written.map(|part| part.before.name.as_str()).collect();
        let mut committed = Committed::Replaced;
        self.stored(|rows| committed = rows.commit(commit), &names);
        Ok(committed)
    }

    fn most_rows(&self, _: bool) -> usize {
        127
    }

    fn facts(&self) -> Result<EngineFacts> {
        let rows = self.rows().rows.len().to_string();
        let facts = vec![("engine".into(), "memory".into()), ("rows".into(), rows)];
        Ok(EngineFacts { facts, warnings: Vec::new() })
    }
}
