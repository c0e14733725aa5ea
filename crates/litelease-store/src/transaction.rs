//! Who owns the transaction: a verb's own, or the caller's, which is joined and never ended.

use std::cell::Cell;

use crate::sqlite::{TxnState, code};
use crate::statements::execute_once;
use crate::{Error, Store};

/// The transaction that a change is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boundary {
    /// One of our own: a single statement, or from BEGIN IMMEDIATE to COMMIT.
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

/// What one store knows of the transactions that it has opened.
#[derive(Default)]
pub(crate) struct TransactionState {
    /// Whether a transaction that [`begin`](Store::begin) opened has not been ended by us yet.
    in_transaction: Cell<bool>,
    /// Whether a transaction of ours is still open because its rollback failed.
    owes_rollback: Cell<bool>,
    /// Whether the last transaction of ours got as far as its savepoint.
    has_savepoint: Cell<bool>,
    /// How many savepoints of ours are open.
    savepoints: Cell<u32>,
    /// The caller's `synchronous`, while it is raised.
    pub(crate) owes_synchronous: Cell<Option<i64>>,
}

/// Transactions and savepoints for callers who let the store own them.
impl Store {
    /// Opens a transaction that holds the write lock (BEGIN IMMEDIATE).
    pub fn begin(&self) -> Result<(), Error> {
        self.with_context("begin a transaction", None, || self.open_recorded(|| self.open()))?;
        self.transaction_state.in_transaction.set(true);
        Ok(())
    }

    /// Commits. Whatever happens, no transaction is open afterwards.
    ///
    /// [`Error::CommitUnknown`] means that it is not known whether the changes were stored. Any other error
    /// means that they were not.
    pub fn commit(&self) -> Result<(), Error> {
        self.with_context("commit", None, || {
            let ready = self.boundary().and_then(|_| self.store_counts());
            self.transaction_state.in_transaction.set(false);
            self.batch.take();
            match ready {
                Ok(()) => self.end(),
                Err(error) => {
                    let _ = self.rollback();
                    Err(error)
                }
            }
        })
    }

    /// Rolls the open transaction back. That SQLite has already done so by itself is fine.
    pub fn rollback(&self) -> Result<(), Error> {
        self.transaction_state.in_transaction.set(false);
        self.batch.take();
        self.transaction_state.owes_rollback.set(!self.connection.is_autocommit());
        if !self.transaction_state.owes_rollback.get() {
            return Ok(());
        }
        // If it fails all the same, it is still owed, and nothing may join what is open.
        self.with_context("roll back", None, || {
            match self.statements.rollback.execute(self.connection) {
                Err(Error::Sqlite(failure)) if failure.code == code::INTERRUPT => {
                    self.roll_back_while_interrupted().map_err(|_| Error::Sqlite(failure))
                }
                done => done,
            }
        })?;
        self.transaction_state.owes_rollback.set(false);
        Ok(())
    }

    /// Rolls the open transaction back where an interrupt stops every statement, ROLLBACK too.
    ///
    /// `sqlite3_interrupt` lasts until all running statements have ended, and a read of the caller's may be one of
    /// them. But SQLite rolls back by itself when it stops a statement that could write, and it stops each of these
    /// before it does anything. Where the interrupt is over, they do no harm: inside a transaction BEGIN is refused,
    /// and the pragma only reads. The pragma helps where BEGIN would have to be compiled again, which an interrupt
    /// stops at white space.
    fn roll_back_while_interrupted(&self) -> Result<(), Error> {
        if !self.connection.is_autocommit() {
            let _ = self.statements.begin.execute(self.connection);
        }
        if !self.connection.is_autocommit() {
            let _ = execute_once(self.connection, "PRAGMA\"main\".\"journal_mode\";", &[]);
        }
        match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.statements.rollback.execute(self.connection),
        }
    }

    /// Opens a savepoint inside the open transaction, and answers its number.
    pub fn savepoint(&self) -> Result<u32, Error> {
        self.boundary()?;
        let number = self.transaction_state.savepoints.get() + 1;
        self.at_savepoint("SAVEPOINT", number)?;
        self.transaction_state.savepoints.set(number);
        Ok(number)
    }

    /// Keeps what was done since a savepoint, as part of what encloses it.
    pub fn release_savepoint(&self, number: u32) -> Result<(), Error> {
        self.boundary()?;
        self.at_savepoint("RELEASE", number)?;
        self.transaction_state.savepoints.set(number - 1);
        Ok(())
    }

    /// Undoes what was done since a savepoint, and closes it. That SQLite has already rolled everything back by
    /// itself is fine.
    pub fn rollback_savepoint(&self, number: u32) -> Result<(), Error> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.at_savepoint("ROLLBACK TO", number)?;
        self.release_savepoint(number)
    }

    /// The number is part of the name: one that was forgotten must not be taken for the one that encloses it.
    fn at_savepoint(&self, verb: &str, number: u32) -> Result<(), Error> {
        let sql = format!("{verb} litelease_savepoint_{number}");
        self.with_context(&sql, None, || execute_once(self.connection, &sql, &[]))
    }

    fn open(&self) -> Result<(), Error> {
        // What may be needed in haste is compiled before: an interrupt can stop that, too.
        self.statements.rollback.with(self.connection, |_| Ok(()))?;
        let was_open = !self.connection.is_autocommit();
        let opened = self.statements.begin.execute(self.connection);
        // A BEGIN that was interrupted may have begun all the same. One that is refused because the caller has
        // a transaction open has not.
        let opened = opened.and_then(|()| self.at_savepoint("SAVEPOINT", 0));
        self.transaction_state.has_savepoint.set(opened.is_ok());
        if opened.is_err() && !was_open {
            let _ = self.rollback();
        }
        self.transaction_state.savepoints.set(0);
        opened
    }

    /// Makes up for what an interrupt has stopped, as far as that is possible now. The rest is tried again before
    /// the next verb.
    pub fn pay_debts_silently(&self) {
        if self.has_debts() {
            let _ = self.pay_debts();
        }
    }

    /// Forgets what an interrupt has stopped: the connection is about to close, which undoes it too.
    pub fn forget_debts(&self) {
        self.transaction_state.owes_rollback.set(false);
        self.transaction_state.owes_synchronous.set(None);
    }

    fn has_debts(&self) -> bool {
        self.transaction_state.owes_rollback.get()
            || self.transaction_state.owes_synchronous.get().is_some()
    }

    /// Makes up for what an interrupt has stopped.
    fn pay_debts(&self) -> Result<(), Error> {
        let settled =
            if self.transaction_state.owes_rollback.get() { self.settle() } else { Ok(()) };
        self.put_back_synchronous();
        settled
    }

    /// Pays the debt of a rollback that failed, if the transaction that is open now is still the one it was
    /// meant for: then it has the savepoint that `open` has set.
    ///
    /// One that was interrupted even before its savepoint is taken for ours, and what the caller is doing now
    /// is refused: they may have begun another one since.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        if self.connection.is_autocommit() {
            self.transaction_state.owes_rollback.set(false);
            return Ok(());
        }
        if !self.transaction_state.has_savepoint.get() {
            self.rollback()?;
            return Err(Error::TransactionEnded);
        }
        match self.at_savepoint("ROLLBACK TO", 0) {
            Ok(()) => self.rollback(),
            Err(Error::Sqlite(failure)) if failure.code == code::ERROR => {
                self.transaction_state.owes_rollback.set(false);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn end(&self) -> Result<(), Error> {
        match self.statements.commit.execute(self.connection) {
            Err(Error::Sqlite(failure)) => {
                // SQLite keeps the transaction open when a lock was in the way: then nothing was stored.
                let still_open = !self.connection.is_autocommit();
                let _ = self.rollback();
                match still_open || failure.code == code::CONSTRAINT_COMMITHOOK {
                    true => Err(Error::Sqlite(failure)),
                    // Any other error may even come from a hook that runs after the commit.
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
        self.settle_debts()?;
        let is_autocommit = self.connection.is_autocommit();
        if self.transaction_state.in_transaction.get() && is_autocommit {
            return Err(Error::TransactionEnded);
        }
        if is_autocommit && !self.is_inside_write() {
            return Ok(Boundary::Own);
        }
        Ok(Boundary::Joined(self.connection.txn_state()))
    }

    /// Makes up for what an interrupt has stopped, before a verb looks at the transaction that is open.
    pub fn settle_debts(&self) -> Result<(), Error> {
        match self.has_debts() {
            true => self.pay_debts(),
            false => Ok(()),
        }
    }

    /// Whether a verb would take part in a transaction of the caller's.
    pub fn joins_transaction(&self) -> bool {
        !self.connection.is_autocommit() || self.is_inside_write()
    }

    /// Inside a writing statement of the caller's, on any database, autocommit is on but the transaction is the
    /// caller's.
    fn is_inside_write(&self) -> bool {
        self.connection.txn_state_anywhere() == TxnState::Write
    }

    /// Does `work` with the write lock held, and commits it if the transaction is ours.
    pub(crate) fn within<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.within_locked(boundary, || self.lock(), work)
    }

    /// The same, with another way to take the write lock in the caller's transaction.
    pub(crate) fn within_locked<T>(
        &self,
        boundary: Boundary,
        lock: impl FnOnce() -> Result<(), Error>,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        match boundary {
            Boundary::Own => {
                self.open()?;
                match work() {
                    Ok(done) => self.end().map(|()| done),
                    Err(error) => {
                        let _ = self.rollback();
                        Err(error)
                    }
                }
            }
            Boundary::Joined(TxnState::Write) => work(),
            Boundary::Joined(_) => {
                lock()?;
                work()
            }
        }
    }

    /// Does all of `work` or, as far as it can be undone, nothing of it, inside a transaction that is open.
    pub(crate) fn all_or_nothing<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.connection.is_autocommit() {
            // A statement of the caller's is writing, and SQLite opens no savepoint meanwhile.
            return work();
        }
        let number = self.savepoint()?;
        match work() {
            Ok(done) => self.release_savepoint(number).map(|()| done),
            Err(error) => {
                let _ = self.rollback_savepoint(number);
                Err(error)
            }
        }
    }

    /// Takes the write lock in the caller's transaction.
    pub(crate) fn lock(&self) -> Result<(), Error> {
        self.statements.lock.execute(self.connection).or_else(|error| self.explain(error))
    }
}
