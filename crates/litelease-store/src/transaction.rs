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
        self.naming("begin a transaction", None, || {
            self.statements.begin.execute(self.connection)
        })?;
        self.in_transaction.set(true);
        Ok(())
    }

    /// Commits. Whatever happens, no transaction is open afterwards.
    ///
    /// [`Error::CommitUnknown`] means that it is not known whether the changes were stored. Any other error
    /// means that they were not.
    pub fn commit(&self) -> Result<(), Error> {
        self.naming("commit", None, || {
            self.boundary()?;
            self.in_transaction.set(false);
            self.end()
        })
    }

    /// Rolls the open transaction back. That SQLite has already done so by itself is fine.
    pub fn rollback(&self) -> Result<(), Error> {
        self.in_transaction.set(false);
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.naming("roll back", None, || self.statements.rollback.execute(self.connection))
    }

    /// Opens a savepoint inside the open transaction.
    pub fn savepoint(&self) -> Result<(), Error> {
        self.boundary()?;
        self.at_savepoint("SAVEPOINT")
    }

    /// Keeps what was done since the innermost [`savepoint`](Store::savepoint), as part of what encloses it.
    pub fn release_savepoint(&self) -> Result<(), Error> {
        self.boundary()?;
        self.at_savepoint("RELEASE")
    }

    /// Undoes what was done since the innermost [`savepoint`](Store::savepoint), and closes it. That SQLite has
    /// already rolled everything back by itself is fine.
    pub fn rollback_savepoint(&self) -> Result<(), Error> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.at_savepoint("ROLLBACK TO")?;
        self.at_savepoint("RELEASE")
    }

    fn at_savepoint(&self, verb: &str) -> Result<(), Error> {
        let sql = format!("{verb} litelease_savepoint");
        self.naming(&sql, None, || Ok(execute_once(self.connection, &sql, &[])?))
    }

    fn end(&self) -> Result<(), Error> {
        match self.statements.commit.execute(self.connection) {
            Err(Error::Sqlite(failure)) => {
                // SQLite keeps the transaction open when a lock was in the way: then nothing was stored.
                let still_open = !self.connection.is_autocommit();
                self.rollback()?;
                match still_open || failure.means_nothing_stored() {
                    true => Err(Error::Sqlite(failure)),
                    false => Err(Error::CommitUnknown(failure)),
                }
            }
            done => done,
        }
    }

    /// Whose transaction a call is in.
    ///
    /// SQLite ends a transaction by itself after some errors, and a caller can do it with a statement of their
    /// own. What was meant for a transaction of ours must not be stored without it then.
    pub(crate) fn boundary(&self) -> Result<Boundary, Error> {
        let state = self.connection.txn_state();
        if self.in_transaction.get() && self.connection.is_autocommit() {
            return Err(Error::TransactionEnded);
        }
        // Inside a writing statement of the caller's, autocommit is on but the transaction is the caller's.
        if self.connection.is_autocommit() && state != TxnState::Write {
            Ok(Boundary::Own)
        } else {
            Ok(Boundary::Joined(state))
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
                self.statements.begin.execute(self.connection)?;
                match work() {
                    Ok(done) => self.end().map(|()| done),
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
