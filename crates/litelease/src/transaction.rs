//! Transactions and savepoints that the crate owns, for the verbs and the caller's own statements.

use std::cell::RefCell;
use std::ops::Deref;

use rusqlite::Connection;

use crate::error::into_rusqlite;
use crate::hold::PendingRenewal;
use crate::{Leases, Result};

/// A transaction that holds the write lock. It rolls back unless it is committed.
///
/// Use a token that was granted in it only after [`commit`](Transaction::commit) has succeeded:
/// after a rollback the same number is granted again.
///
/// The present boot is durably recorded before it begins, so its tokens stay in order after a power
/// cut. A file without a lease table has no place for the record: call
/// [`bootstrap`](Leases::bootstrap) before the transaction, not in it.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let tx = db.transaction()?;
/// let lease = tx.claim("import", "a", Duration::from_secs(30))?.acquired();
/// drop(tx); // rolled back, the claim with it
/// assert_eq!(db.inspect("import")?, None);
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Debug)]
pub struct Transaction<'t> {
    leases: &'t Leases,
    connection: &'t Connection,
    open: bool,
    /// Renewals of held leases that wait for the COMMIT.
    renewals: RefCell<Vec<PendingRenewal>>,
}

/// A part of a transaction that can be undone by itself. It is undone unless it is committed.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let mut tx = db.transaction()?;
/// let first = tx.claim("first", "a", Duration::from_secs(30))?.acquired();
/// let savepoint = tx.savepoint()?;
/// let lease = savepoint.claim("second", "a", Duration::from_secs(30))?.acquired();
/// savepoint.rollback()?;
/// tx.commit()?;
/// assert!(db.inspect("first")?.is_some());
/// assert!(db.inspect("second")?.is_none());
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Debug)]
pub struct Savepoint<'s> {
    leases: &'s Leases,
    connection: &'s Connection,
    number: u32,
    open: bool,
}

impl<'t> Transaction<'t> {
    pub(crate) fn begin(leases: &'t Leases, connection: &'t Connection) -> Result<Self> {
        into_rusqlite(leases.store().begin())?;
        Ok(Transaction { leases, connection, open: true, renewals: RefCell::default() })
    }

    /// Returns the connection, for the caller's own statements in this transaction.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let tx = db.transaction()?;
    /// tx.conn().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    /// tx.commit()?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn conn(&self) -> &Connection {
        self.connection
    }

    /// Opens a savepoint.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let mut tx = db.transaction()?;
    /// let savepoint = tx.savepoint()?;
    /// savepoint.commit()?;
    /// tx.commit()?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint<'_>> {
        Savepoint::begin(self.leases, self.connection)
    }

    /// Commits the transaction.
    ///
    /// [`Error::CommitUnknown`](crate::Error::CommitUnknown) means that the outcome is unknown. Any
    /// other error means that everything was rolled back, such as
    /// [`Error::TransactionEnded`](crate::Error::TransactionEnded) if SQLite had already ended the
    /// transaction by itself.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let tx = db.transaction()?;
    /// let lease = tx.claim("import", "a", Duration::from_secs(30))?.acquired();
    /// tx.commit()?;
    /// assert!(db.inspect("import")?.is_some());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn commit(mut self) -> Result<()> {
        let mut renewals = self.renewals.take();
        // A savepoint that was rolled back may have taken a renewal with it.
        renewals.retain(|renewal| renewal.is_still_in(self.leases));
        self.open = false;
        into_rusqlite(self.leases.store().commit())?;
        self.leases.committed();
        renewals.into_iter().for_each(PendingRenewal::committed);
        Ok(())
    }

    /// Registers a held lease that learns of the COMMIT or of the rollback.
    pub(crate) fn with_renewal(&self, renewal: PendingRenewal) {
        self.renewals.borrow_mut().push(renewal);
    }

    /// Undoes everything done in this transaction.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let tx = db.transaction()?;
    /// let lease = tx.claim("import", "a", Duration::from_secs(30))?.acquired();
    /// tx.rollback()?;
    /// assert!(db.inspect("import")?.is_none());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn rollback(mut self) -> Result<()> {
        self.open = false;
        into_rusqlite(self.leases.store().rollback())
    }
}

impl<'s> Savepoint<'s> {
    fn begin(leases: &'s Leases, connection: &'s Connection) -> Result<Self> {
        let number = into_rusqlite(leases.store().savepoint())?;
        Ok(Savepoint { leases, connection, number, open: true })
    }

    /// Returns the connection, for the caller's own statements in this savepoint.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let mut tx = db.transaction()?;
    /// let savepoint = tx.savepoint()?;
    /// savepoint.conn().execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY)")?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn conn(&self) -> &Connection {
        self.connection
    }

    /// Opens a savepoint inside this one.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let mut tx = db.transaction()?;
    /// let mut outer = tx.savepoint()?;
    /// let inner = outer.savepoint()?;
    /// inner.rollback()?;
    /// outer.commit()?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint<'_>> {
        Savepoint::begin(self.leases, self.connection)
    }

    /// Keeps what was done in this savepoint, as part of what encloses it.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let mut tx = db.transaction()?;
    /// let savepoint = tx.savepoint()?;
    /// let lease = savepoint.claim("import", "a", Duration::from_secs(30))?.acquired();
    /// savepoint.commit()?;
    /// tx.commit()?;
    /// assert!(db.inspect("import")?.is_some());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn commit(mut self) -> Result<()> {
        into_rusqlite(self.leases.store().release_savepoint(self.number))?;
        self.open = false;
        Ok(())
    }

    /// Undoes what was done in this savepoint.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let mut tx = db.transaction()?;
    /// let savepoint = tx.savepoint()?;
    /// let lease = savepoint.claim("import", "a", Duration::from_secs(30))?.acquired();
    /// savepoint.rollback()?;
    /// assert!(tx.inspect("import")?.is_none());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn rollback(mut self) -> Result<()> {
        self.open = false;
        into_rusqlite(self.leases.store().rollback_savepoint(self.number))
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.open {
            // A drop returns no error. A savepoint that stays open ends with the connection.
            let _ = self.leases.store().rollback();
        }
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if self.open {
            // Fails only if the whole transaction was already rolled back.
            let _ = self.leases.store().rollback_savepoint(self.number);
        }
    }
}

impl Deref for Transaction<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        self.leases
    }
}

impl Deref for Savepoint<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        self.leases
    }
}
