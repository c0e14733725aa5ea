//! A value in memory that is not answered once another process has written a newer one.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use litelease_hold::file::{CachedReader, DatabaseFile, Drain, OwnConnection};
use litelease_hold::{Clock, SystemClock, Waiter};
use rusqlite::Connection;

use crate::error::into_rusqlite;
use crate::file::{file_of, open_existing};
use crate::session::caller;
use crate::{HoldError, HoldOptions, Litelease, Transaction};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// A writer keeps the name alive with this ttl. While it has the name, readers read the file.
const WRITER_TTL: Duration = Duration::from_secs(30);

/// How long loading and writing wait for a lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A value that is read from the file once and then answered from memory, until a writer claims its
/// name. Made by [`Litelease::cached`].
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
    reader: CachedReader,
    file: DatabaseFile,
    load: Load<T>,
    /// The connection that loads values.
    loads: OwnConnection<Litelease>,
    /// Locked by the thread that loads.
    loading: Mutex<()>,
    /// The value, and the version of the read under which it was loaded.
    value: Mutex<Option<(i64, Arc<T>)>>,
}

type Load<T> = Box<dyn Fn(&Connection) -> crate::Result<T> + Send + Sync>;

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
        let file = file_of(self)?;
        let reader = CachedReader::new(&caller(&file), name, ttl)?;
        let loads = OwnConnection::open(&file, BUSY_TIMEOUT)?;
        let (load, loading) = (Box::new(load), Mutex::default());
        Ok(Cached { reader, file, load, loads, loading, value: Mutex::default() })
    }
}

impl<T> Cached<T> {
    /// Returns the value: from memory while it can be trusted, which does not touch the file;
    /// otherwise from the file.
    ///
    /// While a writer has the name, every call reads the file. It waits for no writer.
    pub fn get(&self) -> Result<Arc<T>> {
        if self.reader.is_forked() {
            return Err(HoldError::Forked);
        }
        if let Some(value) = self.in_memory() {
            return Ok(value);
        }
        let _loading = lock(&self.loading);
        // Another thread may have been faster.
        if let Some(value) = self.in_memory() {
            return Ok(value);
        }
        let granted = self.reader.acquire()?;
        // No writer has had the name since the value was loaded.
        if let Some(value) = self.in_memory() {
            return Ok(value);
        }
        let value = Arc::new(self.load()?);
        if let Some(version) = granted {
            // If the read was ended meanwhile, the writer has changed the version.
            *lock(&self.value) = Some((version, value.clone()));
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
        let (name, file) = (self.reader.name(), &self.file);
        if self.reader.is_forked() {
            return Err(HoldError::Forked);
        }
        let begin = SystemClock.now();
        let mut db = open_existing(file, BUSY_TIMEOUT)?;
        let held = db.hold(name, HoldOptions::new(WRITER_TTL).wait(patience))?;
        let drain = into_rusqlite(Drain::new(db.store(), name))?;
        let waiter = Waiter::at(Path::new(&**file));
        // A claim notifies no waiter by itself.
        db.notify();
        self.reader.give_way();
        loop {
            let generation = waiter.generation();
            held.check()?;
            let (left, sleep) = into_rusqlite(drain.readers_left(db.store()))?;
            if left.is_empty() {
                let tx = db.transaction()?;
                if tx.drained((name, held.token()))? {
                    into_rusqlite(tx.store().forget_readers(name))?;
                    let done = work(&tx)?;
                    tx.commit()?;
                    return Ok(done);
                }
            }
            let time = patience.saturating_sub(SystemClock.now() - begin);
            if time.is_zero() {
                return Err(HoldError::ReadersLeft { name: name.into(), readers: left });
            }
            waiter.wait_for_change(generation, sleep.min(time));
        }
    }

    /// Returns how long [`get`](Cached::get) will answer from memory if no writer comes: zero if
    /// there is nothing in memory.
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
        let value = lock(&self.value);
        value.as_ref().map_or(Duration::ZERO, |(version, _)| self.reader.trusted_for(*version))
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
        self.reader.reader()
    }

    fn in_memory(&self) -> Option<Arc<T>> {
        let value = lock(&self.value);
        let (version, value) = value.as_ref()?;
        (!self.reader.trusted_for(*version).is_zero()).then(|| value.clone())
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
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> fmt::Debug for Cached<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("name", &self.reader.name()).finish_non_exhaustive()
    }
}
