//! Many processes, one SQLite file, one writer at a time, in a fair queue.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use litelease_sys::write_lock::{Error as LockError, LockState, Locked, Waiting, WriteLock};
use rusqlite::{Connection, OpenFlags, ffi};

use crate::{Error, LiteleaseRef};

/// A connection that writes under a lock which all writers of the file share.
///
/// SQLite lets one writer in at a time; concurrent writers get SQLITE_BUSY or starve. This lock is
/// a file next to the database (`data.db.lock`) with a queue (`data.db.lock.queue`). The system
/// frees it when its process dies. Readers need no lock, because the file is in WAL mode.
///
/// Threads may share a handle; they are served one after the other. All writers should use the
/// lock. SQLite itself still excludes a writer that does not, and the busy timeout bounds the wait
/// for it.
///
/// If the file has leases, opening it records the present boot in a commit of its own, and each
/// write checks the record and makes it durable anew if it is not. So leases that are claimed
/// inside its writes stay in order after a power cut. The exception is the write that creates the
/// lease table: before it there is no place for the record, so claim nothing in it.
///
/// ```
/// use litelease::SingleWriter;
///
/// # litelease_doctest::path!(path);
/// let writer = SingleWriter::open(&path)?; // WAL, busy_timeout 500 ms, synchronous NORMAL
/// writer.write(|tx| tx.execute_batch("CREATE TABLE IF NOT EXISTS notes (text)"))?;
/// let rows = writer.write(|tx| tx.execute("INSERT INTO notes VALUES ('a')", []))?;
/// assert_eq!(rows, 1);
/// # Ok::<(), litelease::WriteError>(())
/// ```
#[derive(Debug)]
pub struct SingleWriter {
    lock: WriteLock,
    connection: Mutex<Connection>,
    path: PathBuf,
    options: WriterOptions,
    /// The present boot is recorded for the leases in the file.
    has_recorded: AtomicBool,
}

/// Options of a [`SingleWriter`].
///
/// ```
/// use std::time::Duration;
/// use litelease::{SingleWriter, WriterOptions};
///
/// # litelease_doctest::path!(path);
/// let patient = WriterOptions { timeout: Duration::from_secs(30), ..WriterOptions::default() };
/// let writer = SingleWriter::open_with(&path, patient)?;
/// # Ok::<(), litelease::WriteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// How long to wait for the lock. Default: 500 ms.
    pub timeout: Duration,
    /// How to wait for it. Default: fairly.
    pub waiting: Waiting,
    /// The lock file, if it is not the path of the database with `.lock` at its end. All writers
    /// must use the same.
    pub lock_path: Option<PathBuf>,
    /// How long SQLite waits for programs that write without the lock. Default: 500 ms.
    pub busy_timeout: Duration,
    /// `PRAGMA synchronous`: normal.
    pub synchronous: Synchronous,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            timeout: Duration::from_millis(500),
            waiting: Waiting::Fair,
            lock_path: None,
            busy_timeout: Duration::from_millis(500),
            synchronous: Synchronous::Normal,
        }
    }
}

/// How much of a power cut a commit survives.
///
/// ```
/// # use litelease::Synchronous;
/// assert!(Synchronous::Full > Synchronous::Normal);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Synchronous {
    /// Nothing is certain, not even that the file stays whole.
    Off = 0,
    /// The file stays whole; the last commits may be lost.
    Normal = 1,
    /// Every commit stays.
    Full = 2,
    /// As full, for a file in WAL mode.
    Extra = 3,
}

/// A write transaction under the lock. It is rolled back and unlocked when it is dropped, unless it
/// is committed.
///
/// It is the connection too, for the statements of the transaction.
///
/// ```
/// # litelease_doctest::path!(path);
/// # let writer = SingleWriter::open(&path)?;
/// let tx = writer.begin()?;
/// tx.execute_batch("CREATE TABLE notes (text); INSERT INTO notes VALUES ('a')")?;
/// tx.commit()?;
/// # Ok::<(), litelease::WriteError>(())
/// ```
#[derive(Debug)]
#[must_use = "it is rolled back when it is dropped"]
pub struct WriteGuard<'w> {
    // Dropped in this order: the connection is idle before another writer has the lock.
    connection: MutexGuard<'w, Connection>,
    _held: Locked<'w>,
    pid: u32,
}

/// Why a write failed. Nothing of it was stored, except that after a disk error during COMMIT the
/// outcome is unknown.
///
/// ```
/// use std::time::Duration;
/// use litelease::{LockError, SingleWriter, WriteError, WriterOptions};
///
/// # litelease_doctest::path!(path);
/// let impatient = WriterOptions { timeout: Duration::ZERO, ..WriterOptions::default() };
/// let (one, other) = (SingleWriter::open(&path)?, SingleWriter::open_with(&path, impatient)?);
/// let tx = one.begin()?;
/// match other.begin() {
///     Err(WriteError::Lock(LockError::Timeout { holder: Some(holder), .. })) => {
///         println!("process {} has it since {}", holder.pid, holder.since);
///     }
///     other => unreachable!("{other:?}"),
/// }
/// # Ok::<(), litelease::WriteError>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// The lock could not be taken; a timeout names its holder.
    Lock(LockError),
    /// An error of SQLite, or of the closure.
    Sqlite(rusqlite::Error),
    /// SQLite silently refused a setting that concurrent writers need.
    Setting {
        /// The pragma.
        pragma: &'static str,
        /// The value that was asked for.
        wanted: String,
        /// The value that it has.
        found: String,
    },
    /// The database is in memory or temporary, so there is no place for a lock file.
    NoFile,
    /// The path of the database cannot be resolved.
    Io(io::Error),
}

impl SingleWriter {
    /// Opens a database with the default options, and creates it if it is missing.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        SingleWriter::open_with(path, WriterOptions::default())
    }

    /// Opens a database with options of the caller's.
    pub fn open_with(path: impl AsRef<Path>, options: WriterOptions) -> Result<Self, WriteError> {
        let connection = Connection::open(path.as_ref())?;
        if connection.path().is_none_or(str::is_empty) {
            return Err(WriteError::NoFile);
        }
        let path = path.as_ref().canonicalize().map_err(WriteError::Io)?;
        let lock = match &options.lock_path {
            Some(lock) => WriteLock::new(lock).like(&path),
            None => WriteLock::of_database(&path)?,
        };
        set_up(&connection, &lock, &options)?;
        let connection = Mutex::new(connection);
        let has_recorded = AtomicBool::new(false);
        let writer = SingleWriter { lock, connection, path, options, has_recorded };
        writer.record_boot()?;
        Ok(writer)
    }

    /// Waits for the lock, runs `work` in a transaction (`BEGIN IMMEDIATE`), commits and unlocks.
    ///
    /// An error or a panic in `work` rolls everything back and unlocks. A second `write` inside
    /// `work` through the same handle is [`LockError::Nested`]: use the transaction that `work`
    /// has. In async code, call this from a thread that may block.
    ///
    /// ```
    /// # litelease_doctest::path!(path);
    /// # let writer = SingleWriter::open(&path)?;
    /// # writer.write(|tx| tx.execute_batch("CREATE TABLE notes (text)"))?;
    /// let last = writer.write(|tx| {
    ///     tx.execute("INSERT INTO notes VALUES (?1)", ["a"])?;
    ///     Ok(tx.last_insert_rowid())
    /// })?;
    /// assert_eq!(last, 1);
    /// # Ok::<(), litelease::WriteError>(())
    /// ```
    pub fn write<T>(
        &self,
        work: impl FnOnce(&WriteGuard<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, WriteError> {
        let tx = self.begin()?;
        let done = work(&tx)?;
        tx.commit()?;
        Ok(done)
    }

    /// Waits for the lock and begins a transaction, for work that does not fit into a closure.
    ///
    /// ```
    /// # litelease_doctest::path!(path);
    /// # let writer = SingleWriter::open(&path)?;
    /// let tx = writer.begin()?;
    /// tx.execute_batch("CREATE TABLE notes (text)")?;
    /// drop(tx); // rolled back
    /// # Ok::<(), litelease::WriteError>(())
    /// ```
    pub fn begin(&self) -> Result<WriteGuard<'_>, WriteError> {
        let held = self.lock.acquire(self.options.timeout, self.options.waiting)?;
        // Only the holder of the lock comes here. A panic has rolled back already.
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        self.begin_recorded(&connection)?;
        Ok(WriteGuard { connection, _held: held, pid: std::process::id() })
    }

    /// Begins a transaction with the boot durably recorded. It reads the record under SQLite's
    /// write lock, each time: a program that writes without the lock file can put it at risk.
    fn begin_recorded(&self, connection: &Connection) -> Result<(), WriteError> {
        for _ in 0..RECORDS {
            if !self.has_recorded.load(Ordering::Relaxed) && has_leases(connection)? {
                self.record(connection)?;
            }
            run(connection, "BEGIN IMMEDIATE")?;
            if !self.has_recorded.load(Ordering::Relaxed) {
                return Ok(());
            }
            let looked = answer(LiteleaseRef::new(connection).has_recorded_boot());
            if let Ok(Some(true)) = looked {
                return Ok(());
            }
            run(connection, "ROLLBACK")?;
            looked?;
            self.has_recorded.store(false, Ordering::Relaxed);
        }
        let busy = "other programs put the record of this boot at risk again and again".to_owned();
        Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), Some(busy)).into())
    }

    /// Records the present boot of the machine where the file has leases: what is claimed inside
    /// the transactions of this writer can get lost in a power cut, and within them nothing can be
    /// made durable first.
    fn record_boot(&self) -> Result<(), WriteError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if !has_leases(&connection)? {
            return Ok(());
        }
        if answer(LiteleaseRef::new(&connection).has_recorded_boot())? == Some(true) {
            self.has_recorded.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let _held = self.lock.acquire(self.options.timeout, self.options.waiting)?;
        self.record(&connection)
    }

    fn record(&self, connection: &Connection) -> Result<(), WriteError> {
        let is_recorded = answer(LiteleaseRef::new(connection).record_boot())?;
        self.has_recorded.store(is_recorded == Some(true), Ordering::Relaxed);
        Ok(())
    }

    /// Opens another connection to the database, for reading. It sees what was committed and does
    /// not wait for writers.
    pub fn reader(&self) -> Result<Connection, WriteError> {
        let flags = OpenFlags::default() & !OpenFlags::SQLITE_OPEN_CREATE;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(self.options.busy_timeout)?;
        connection.execute_batch("PRAGMA query_only = ON")?;
        Ok(connection)
    }

    /// Returns whether the lock is held now, and by which process.
    pub fn lock_state(&self) -> Result<LockState, WriteError> {
        Ok(self.lock.state()?)
    }

    /// Returns the path of the lock file.
    pub fn lock_path(&self) -> &Path {
        self.lock.path()
    }
}

impl WriteGuard<'_> {
    /// Commits the transaction and unlocks.
    pub fn commit(self) -> Result<(), WriteError> {
        if self.pid != std::process::id() {
            return Err(LockError::Forked.into());
        }
        Ok(run(&self.connection, "COMMIT")?)
    }
}

impl Deref for WriteGuard<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // A forked child must not touch its parent's transaction.
        if self.pid == std::process::id() && !self.connection.is_autocommit() {
            // If even that fails, SQLite keeps the transaction, and the next BEGIN tells.
            let _ = run(&self.connection, "ROLLBACK");
        }
    }
}

/// How often one write may record the boot. Another program may put it at risk meanwhile, but not
/// again and again.
const RECORDS: u32 = 3;

/// Passes on what SQLite refused. Leases that cannot be used are no concern of other writes: the
/// verbs tell.
fn answer<T>(asked: crate::Result<T>) -> Result<Option<T>, WriteError> {
    match asked {
        Ok(answer) => Ok(Some(answer)),
        Err(Error::Sqlite(error) | Error::CommitUnknown(error)) => Err(error.into()),
        Err(_) => Ok(None),
    }
}

/// Checks whether the file has a lease table.
fn has_leases(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE name = 'litelease_resources')";
    connection.prepare(sql)?.query_row([], |row| row.get(0))
}

/// Runs a statement that is needed again and again.
fn run(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.execute(sql, []).map(drop)
}

/// Sets the pragmas and reads them back, because SQLite ignores what it cannot set.
fn set_up(
    connection: &Connection,
    lock: &WriteLock,
    options: &WriterOptions,
) -> Result<(), WriteError> {
    connection.busy_timeout(options.busy_timeout)?;
    let mode = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0));
    if mode("PRAGMA journal_mode")? != "wal" {
        // Switching wants the file for itself, so it is a write like any other.
        let _held = lock.acquire(options.timeout, options.waiting)?;
        let found = mode("PRAGMA journal_mode = WAL")?;
        if found != "wal" {
            return Err(WriteError::Setting {
                pragma: "journal_mode",
                wanted: "wal".into(),
                found,
            });
        }
    }
    let wanted = options.synchronous as i64;
    connection.pragma_update(None, "synchronous", wanted)?;
    let found: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0))?;
    if wanted != found {
        let (wanted, found) = (wanted.to_string(), found.to_string());
        return Err(WriteError::Setting { pragma: "synchronous", wanted, found });
    }
    Ok(())
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Lock(error) => error.fmt(f),
            WriteError::Sqlite(error) => error.fmt(f),
            WriteError::Setting { pragma, wanted, found } => write!(
                f,
                "PRAGMA {pragma} stays {found} and cannot be set to {wanted}: another program has the file open \
                 in a way that forbids it, or the file system does"
            ),
            WriteError::NoFile => f.write_str(
                "a database in memory has no other writers: a single writer needs a file",
            ),
            WriteError::Io(error) => {
                write!(f, "the path of the database cannot be resolved: {error}")
            }
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WriteError::Lock(error) => std::error::Error::source(error),
            WriteError::Sqlite(error) => std::error::Error::source(error),
            WriteError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<LockError> for WriteError {
    fn from(error: LockError) -> Self {
        WriteError::Lock(error)
    }
}

impl From<rusqlite::Error> for WriteError {
    fn from(error: rusqlite::Error) -> Self {
        WriteError::Sqlite(error)
    }
}
