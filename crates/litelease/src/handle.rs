//! The two handles: one that owns its connection, and one on a connection of the caller's.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use litelease_hold::file::write_lock_pid;
use litelease_sys::create_private;
use rusqlite::Connection;

use crate::connection_cache::{CachedHandle, Kind};
use crate::error::into_rusqlite;
use crate::linked_sqlite::view;
use crate::{Leases, Result, Transaction};

/// Leases in a SQLite database, with a connection of their own.
///
/// The verbs are those of [`Leases`]. Outside a transaction each is one atomic step with the
/// strength of `BEGIN IMMEDIATE`. The handle may move between threads; threads that work at the
/// same time open one each.
///
/// ```
/// use std::time::Duration;
/// use litelease::{ClaimResult, Litelease};
///
/// # fn main() -> litelease::Result<()> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open(&path)?;
/// db.bootstrap()?;
/// let ClaimResult::Acquired(lease) = db.claim("scheduler", "a", Duration::from_secs(30))? else {
///     return Ok(()); // another process schedules
/// };
/// assert_eq!(lease.token, 1);
/// # Ok(())
/// # }
/// ```
pub struct Litelease {
    // Fields are dropped in this order: the statements must go before their connection.
    leases: Leases,
    connection: Connection,
}

// SAFETY: `Leases` is not `Send` only because of the counter of its `Rc`. The handle and its
// `LeasesAt` views use that counter; the views borrow the handle, so it cannot move while one is
// alive, and they are not `Send` themselves.
unsafe impl Send for Litelease {}

/// The verbs on a connection or transaction that belongs to the caller.
///
/// It joins an open transaction and never ends it; use a token that was granted in it only after
/// COMMIT. Inside transactions use [`joining`](LiteleaseRef::joining), whose verbs fail once the
/// transaction has ended. Handles are cheap: statements are compiled at the first use on a
/// connection and stay with it until it closes.
///
/// ```
/// use std::time::Duration;
/// use litelease::LiteleaseRef;
/// use litelease::rusqlite::{Connection, TransactionBehavior};
///
/// # fn main() -> litelease::Result<()> {
/// let mut conn = Connection::open_in_memory()?;
/// LiteleaseRef::new(&conn).bootstrap()?;
///
/// let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// let lease = LiteleaseRef::joining(&tx).claim("scheduler", "a", Duration::from_secs(30))?.acquired();
/// tx.rollback()?;
///
/// assert_eq!(LiteleaseRef::new(&conn).inspect("scheduler")?, None);
/// # Ok(())
/// # }
/// ```
pub struct LiteleaseRef<'c> {
    leases: BorrowedHandle<'c>,
    connection: &'c Connection,
}

/// The verbs of a borrowed handle: those of its connection, or of the owner it was borrowed from.
enum BorrowedHandle<'c> {
    Connection(CachedHandle<'c>),
    Owner(&'c Leases),
}

impl Litelease {
    /// Opens a database file, and creates it if it is missing. Sets no pragma and creates no table.
    ///
    /// The connection's busy timeout is the default of `rusqlite`, 5 seconds. To choose another,
    /// open the connection yourself and hand it to [`from_connection`](Litelease::from_connection).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Litelease::from_connection(Connection::open(path)?))
    }

    /// Takes over a connection that the caller opened and set up.
    pub fn from_connection(connection: Connection) -> Self {
        // SAFETY: the connection is dropped after the verbs, or given away once they are gone.
        let leases = unsafe { Leases::on(view(&connection), Kind::Plain) };
        Litelease { leases, connection }
    }

    /// Opens a file that belongs to the program and makes it ready for leases: creates it if it is
    /// missing, in WAL mode, creates the lease table, and sets `synchronous` so that a power cut
    /// loses no grant.
    ///
    /// Only its owner can read a new file (0600). To share it, create it empty beforehand with the
    /// mode and group of your choice, or change those later: the files beside it follow. An
    /// existing file keeps its mode and its journal mode. The busy timeout is 10 seconds.
    pub fn open_own(path: impl AsRef<Path>) -> Result<Self> {
        create_private(path.as_ref());
        let db = Litelease::open(path)?;
        db.connection.busy_timeout(Duration::from_secs(10))?;
        into_rusqlite(db.leases.store().own())?;
        db.bootstrap()?;
        Ok(db)
    }

    /// Begins a transaction that holds the write lock (`BEGIN IMMEDIATE`), so that a claim and the
    /// work it allows are committed together or not at all.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let tx = db.transaction()?;
    /// let lease = tx.claim("import", "a", Duration::from_secs(30))?.acquired();
    /// tx.conn().execute_batch("CREATE TABLE imported (id)")?;
    /// tx.commit()?;
    /// # assert!(db.inspect("import")?.is_some());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transaction(&mut self) -> Result<Transaction<'_>> {
        Transaction::begin(&self.leases, &self.connection)
    }

    /// Returns the same verbs as a borrowed handle, for code that takes a [`LiteleaseRef`].
    ///
    /// ```
    /// fn is_free(leases: &LiteleaseRef<'_>, name: &str) -> litelease::Result<bool> {
    ///     Ok(leases.inspect(name)?.is_none())
    /// }
    /// # litelease_doctest::memory!(db);
    /// assert!(is_free(&db.borrowed(), "scheduler")?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn borrowed(&self) -> LiteleaseRef<'_> {
        LiteleaseRef { leases: BorrowedHandle::Owner(&self.leases), connection: &self.connection }
    }

    /// Returns the connection, for the caller's own statements.
    ///
    /// Set what needs `&mut Connection`, such as hooks, before handing the connection to
    /// [`from_connection`](Litelease::from_connection).
    pub fn conn(&self) -> &Connection {
        &self.connection
    }

    /// Checks whether the file was moved, deleted or replaced since it was opened. SQLite still
    /// uses the old file, where no other process sees what is granted.
    pub fn has_moved(&self) -> bool {
        self.leases.store().connection().has_moved()
    }

    /// Returns the process that holds the file's write lock right now, if the system tells.
    pub fn write_lock_pid(&self) -> Option<u32> {
        write_lock_pid(&self.leases.store().file()?)
    }

    /// Returns the connection, unchanged.
    pub fn into_connection(self) -> Connection {
        self.connection
    }
}

impl<'c> LiteleaseRef<'c> {
    /// Returns the verbs on a connection. They join an open transaction; if none is open, each runs
    /// in one of its own.
    pub fn new(connection: &'c Connection) -> Self {
        LiteleaseRef::borrowing(connection, Kind::Plain)
    }

    /// Returns the verbs inside a transaction or savepoint of the caller's. If none is open, each
    /// fails with [`Error::NotInTransaction`](crate::Error::NotInTransaction) and writes nothing.
    ///
    /// SQLite rolls a transaction back by itself after some errors, such as a constraint that is
    /// declared `ON CONFLICT ROLLBACK`. With [`new`](LiteleaseRef::new) a claim after that would be
    /// committed alone.
    ///
    /// ```
    /// use std::time::Duration;
    /// use litelease::{Error, LiteleaseRef};
    /// # use litelease::rusqlite::{Connection, TransactionBehavior};
    ///
    /// # let mut conn = Connection::open_in_memory()?;
    /// # LiteleaseRef::new(&conn).bootstrap()?;
    /// # conn.execute_batch("CREATE TABLE jobs (id INTEGER PRIMARY KEY); INSERT INTO jobs VALUES (7)")?;
    /// let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// let taken = tx.execute("INSERT OR ROLLBACK INTO jobs VALUES (7)", []);
    /// assert!(taken.is_err()); // and the transaction is gone
    /// let claimed = LiteleaseRef::joining(&tx).claim("job 7", "a", Duration::from_secs(30));
    /// assert!(matches!(claimed, Err(Error::NotInTransaction)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn joining(transaction: &'c Connection) -> Self {
        LiteleaseRef::borrowing(transaction, Kind::Joining)
    }

    fn borrowing(connection: &'c Connection, kind: Kind) -> Self {
        // SAFETY: `rusqlite` links the library. The connection stays open and with this thread
        // while it is borrowed.
        let cached = unsafe { CachedHandle::new(view(connection), kind) };
        LiteleaseRef { leases: BorrowedHandle::Connection(cached), connection }
    }

    /// Returns the connection, for the caller's own statements.
    pub fn conn(&self) -> &'c Connection {
        self.connection
    }
}

impl Deref for Litelease {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.leases
    }
}

impl Deref for LiteleaseRef<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        match &self.leases {
            BorrowedHandle::Connection(cached) => cached.leases(),
            BorrowedHandle::Owner(leases) => leases,
        }
    }
}

impl std::fmt::Debug for Litelease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Litelease").field(&self.connection).finish()
    }
}

impl std::fmt::Debug for LiteleaseRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LiteleaseRef").field(self.connection).finish()
    }
}
