//! Who owns the transaction: a verb's own, or the caller's, which is joined and never ended.

use crate::sqlite::TxnState;
use crate::statements::execute_once;
use crate::{Error, Store};

/// The transaction that a change is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// One of our own, from BEGIN IMMEDIATE to COMMIT.
    Own,
    /// The caller's, which has come this far.
    Joined(TxnState),
}

impl Boundary {
    /// Whether looking before asking for the write lock does no harm. In a transaction that has not read
    /// yet it would: reading takes a snapshot, and upgrading that fails at once where asking for the write
    /// lock first would have waited for the caller's busy timeout.
    pub(crate) fn may_look_first(self) -> bool {
        matches!(self, Boundary::Own | Boundary::Joined(TxnState::Read))
    }
}

/// Transactions and savepoints for callers who let the store own them.
impl Store {
    /// Opens a transaction that holds the write lock (BEGIN IMMEDIATE).
    pub fn begin(&self) -> Result<(), Error> {
        self.statements.begin.execute(self.connection)
    }

    /// Commits. Whatever happens, no transaction is open afterwards.
    ///
    /// [`Error::CommitUnknown`] means that it is not known whether the changes were stored. Any other error
    /// means that they were not.
    pub fn commit(&self) -> Result<(), Error> {
        match self.statements.commit.execute(self.connection) {
            Err(Error::Sqlite(failure)) => {
                // SQLite keeps the transaction open when a lock was in the way: then nothing was stored.
                let still_open = !self.connection.is_autocommit();
                self.rollback()?;
                if still_open || failure.means_nothing_stored() {
                    Err(Error::Sqlite(failure))
                } else {
                    Err(Error::CommitUnknown(failure))
                }
            }
            done => done,
        }
    }

    /// Rolls the open transaction back. That SQLite has already done so by itself is fine.
    pub fn rollback(&self) -> Result<(), Error> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.statements.rollback.execute(self.connection)
    }

    /// Opens a savepoint inside the open transaction.
    pub fn savepoint(&self) -> Result<(), Error> {
        Ok(execute_once(self.connection, "SAVEPOINT litelease_savepoint", &[])?)
    }

    /// Keeps what was done since the innermost [`savepoint`](Store::savepoint), as part of what encloses it.
    pub fn release_savepoint(&self) -> Result<(), Error> {
        Ok(execute_once(self.connection, "RELEASE litelease_savepoint", &[])?)
    }

    /// Undoes what was done since the innermost [`savepoint`](Store::savepoint), and closes it.
    pub fn rollback_savepoint(&self) -> Result<(), Error> {
        execute_once(self.connection, "ROLLBACK TO litelease_savepoint", &[])?;
        self.release_savepoint()
    }

    pub(crate) fn boundary(&self) -> Boundary {
        let state = self.connection.txn_state();
        // Inside a writing statement of the caller's, autocommit is on but the transaction is the caller's.
        if self.connection.is_autocommit() && state != TxnState::Write {
            Boundary::Own
        } else {
            Boundary::Joined(state)
        }
    }

    /// Does `work` with the write lock held, and commits it if the transaction is ours.
    pub(crate) fn within<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match boundary {
            Boundary::Own => {
                self.begin()?;
                match work() {
                    Ok(done) => self.commit().map(|()| done),
                    Err(error) => {
                        self.rollback()?;
                        Err(error)
                    }
                }
            }
            Boundary::Joined(TxnState::Write) => work(),
            Boundary::Joined(_) => {
                self.lock()?;
                work()
            }
        }
    }

    /// Takes the write lock in the caller's transaction.
    pub(crate) fn lock(&self) -> Result<(), Error> {
        self.statements.lock.execute(self.connection).or_else(|error| self.explain(error))
    }
}
