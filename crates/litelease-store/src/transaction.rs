//! Transactions: a verb's own, or the caller's, which is joined and never ended.

use std::cell::Cell;

use crate::sqlite::{TxnState, Value, code};
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
    /// Checks whether looking before asking for the write lock does no harm. In a transaction that
    /// has not read yet it would: reading takes a snapshot, and upgrading that fails at once where
    /// asking for the write lock first would have waited for the caller's busy timeout.
    pub(crate) fn may_look_first(self) -> bool {
        matches!(self, Boundary::Own | Boundary::Joined(TxnState::Read))
    }
}

/// The state of the transactions that one store has opened.
#[derive(Default)]
pub(crate) struct TransactionState {
    /// A transaction that [`begin`](Store::begin) opened has not been ended by us yet.
    in_transaction: Cell<bool>,
    /// How many savepoints of ours are open.
    savepoints: Cell<u32>,
    /// A transaction is open that was to be rolled back and could not be.
    is_left_open: Cell<bool>,
    /// The caller's `synchronous`, while it is raised.
    pub(crate) raised_from: Cell<Option<i64>>,
}

/// Transactions and savepoints for callers whose transactions the store owns.
impl Store {
    /// Opens a transaction that holds the write lock (BEGIN IMMEDIATE).
    pub fn begin(&self) -> Result<(), Error> {
        self.with_context("begin a transaction", None, || {
            self.settle()?;
            self.open_recorded(|| self.open())
        })?;
        self.transaction_state.in_transaction.set(true);
        Ok(())
    }

    /// Opens such a transaction for statements of the caller's that a host runs, which may change
    /// the schema.
    pub(crate) fn begin_for_caller(&self) -> Result<(), Error> {
        // Not the text of our own transactions, in which only we change the schema.
        let begin = || execute_once(self.connection, "BEGIN IMMEDIATE TRANSACTION", &[]);
        self.with_context("begin a transaction", None, || {
            self.settle()?;
            self.open_recorded(|| self.open_by(begin))?;
            // It is what the transaction is known by.
            self.at_savepoint("SAVEPOINT", 0).inspect_err(|_| drop(self.rollback()))
        })?;
        self.transaction_state.in_transaction.set(true);
        Ok(())
    }

    /// Makes sure that the transaction that [`begin_for_caller`](Store::begin_for_caller) opened is
    /// the one that is open now: the caller may have ended it, and even begun another one.
    pub(crate) fn check_same_transaction(&self) -> Result<(), Error> {
        self.boundary()?;
        let released = self.at_savepoint("RELEASE", 0);
        released.and_then(|()| self.at_savepoint("SAVEPOINT", 0)).map_err(|error| match error {
            Error::Sqlite(failure) if failure.code & 0xff == code::ERROR => Error::TransactionEnded,
            error => error,
        })
    }

    /// Checks whether a transaction that the store has opened for its caller was not ended through
    /// the store yet.
    pub fn has_begun(&self) -> bool {
        self.transaction_state.in_transaction.get()
    }

    /// Commits. Whatever happens, no transaction is open afterwards.
    ///
    /// [`Error::CommitUnknown`] means that it is not known whether the changes were stored. Any
    /// other error means that they were not.
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
        self.with_context("roll back", None, || self.undo())
    }

    /// Makes sure that nothing of the open transaction is ever committed.
    pub(crate) fn undo(&self) -> Result<(), Error> {
        let undone = match self.connection.is_autocommit() {
            true => Ok(()),
            false => self.statements.rollback.execute(self.connection),
        };
        let undone = undone.or_else(|refused| match self.undo_by_force() {
            true => Ok(()),
            false => Err(refused),
        });
        self.transaction_state.is_left_open.set(undone.is_err());
        undone
    }

    /// Rolls the open transaction back where SQLite refuses ROLLBACK. Checks whether it is over.
    ///
    /// `sqlite3_interrupt` stops every statement until all that are running have ended, and a read
    /// of the caller's may be one of them. An authorizer can forbid ROLLBACK. But SQLite rolls back
    /// by itself when it stops a statement that could write. VACUUM is such a statement:
    /// authorizers are not asked about it, and its text has no white space, where an interrupt
    /// stops the compiler. Inside a transaction, SQLite refuses to run it.
    #[cold]
    fn undo_by_force(&self) -> bool {
        let (connection, vacuum) = (self.connection, "VACUUM;");
        // A progress handler that has stopped the first ROLLBACK may let another one pass.
        for sql in [vacuum, "ROLLBACK;"] {
            if !connection.is_autocommit() {
                let _ = execute_once(connection, sql, &[]);
            }
        }
        if !connection.is_autocommit() && !connection.is_hosted() {
            // An interrupt lasts only while some statement is running. This one answers rows.
            let running = connection.prepare("EXPLAIN VACUUM;");
            let _running = running.inspect(|running| _ = running.advance());
            connection.interrupt();
            let _ = execute_once(connection, vacuum, &[]);
        }
        connection.is_autocommit()
    }

    /// Opens a savepoint inside the open transaction, and answers its number.
    pub fn savepoint(&self) -> Result<u32, Error> {
        self.boundary()?;
        let number = self.transaction_state.savepoints.get() + 1;
        self.at_savepoint("SAVEPOINT", number)?;
        self.transaction_state.savepoints.set(number);
        Ok(number)
    }

    /// Keeps the changes since a savepoint, as part of what encloses it.
    pub fn release_savepoint(&self, number: u32) -> Result<(), Error> {
        self.boundary()?;
        self.at_savepoint("RELEASE", number)?;
        self.transaction_state.savepoints.set(number - 1);
        Ok(())
    }

    /// Undoes the changes since a savepoint, and closes it. Succeeds if SQLite has already rolled
    /// everything back by itself.
    pub fn rollback_savepoint(&self, number: u32) -> Result<(), Error> {
        if self.connection.is_autocommit() {
            return Ok(());
        }
        self.at_savepoint("ROLLBACK TO", number)?;
        self.release_savepoint(number)
    }

    /// Runs a verb at a savepoint. Its number is part of its name: a savepoint that was forgotten
    /// must not be taken for the one that encloses it.
    fn at_savepoint(&self, verb: &str, number: u32) -> Result<(), Error> {
        let sql = format!("{verb} litelease_savepoint_{number}");
        self.with_context(&sql, None, || {
            match self.statements.outermost.iter().find(|kept| kept.is(&sql)) {
                Some(kept) => kept.execute(self.connection),
                None => execute_once(self.connection, &sql, &[]),
            }
        })
    }

    fn open(&self) -> Result<(), Error> {
        self.open_by(|| self.statements.begin.execute(self.connection))
    }

    fn open_by(&self, begin: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        // Statements that are needed after an interrupt are compiled before: an interrupt stops the
        // compiler, too.
        self.statements.rollback.with(self.connection, |_| Ok(()))?;
        let was_open = !self.connection.is_autocommit();
        let opened = begin();
        // A BEGIN that was interrupted may have begun all the same. One that is refused because the
        // caller has a transaction open has not.
        if opened.is_err() && !was_open {
            let _ = self.rollback();
        }
        self.transaction_state.savepoints.set(0);
        opened
    }

    /// Undoes what an earlier call could not undo, before a verb uses the open transaction.
    #[inline]
    pub fn settle(&self) -> Result<(), Error> {
        match self.is_settled() {
            true => Ok(()),
            false => self.make_up(),
        }
    }

    /// Checks whether nothing is left over from a call: no transaction of ours, and no other
    /// `synchronous` than before, because undoing that was refused. Otherwise the next verb tries.
    #[inline]
    pub fn is_settled(&self) -> bool {
        let TransactionState { is_left_open, raised_from, .. } = &self.transaction_state;
        !is_left_open.get() && raised_from.get().is_none()
    }

    /// Ends a transaction that was left open, with what the caller has written in it since.
    /// They get an error, once.
    #[cold]
    fn make_up(&self) -> Result<(), Error> {
        let is_left_open = self.transaction_state.is_left_open.get();
        let was_open = is_left_open && !self.connection.is_autocommit();
        if is_left_open {
            self.undo()?;
        }
        if self.connection.is_autocommit() {
            self.put_back_synchronous();
        }
        if was_open { Err(Error::TransactionEnded) } else { Ok(()) }
    }

    fn end(&self) -> Result<(), Error> {
        match self.statements.commit.execute(self.connection) {
            Err(Error::Sqlite(failure)) => {
                // SQLite keeps the transaction open when a lock was in the way: then nothing was
                // stored.
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

    /// Finds out whose transaction a call is in.
    ///
    /// SQLite ends a transaction by itself after some errors, and a caller can do it with a
    /// statement of their own. Writes that belong to a transaction of ours must not be stored
    /// without it then.
    pub(crate) fn boundary(&self) -> Result<Boundary, Error> {
        self.settle()?;
        let is_autocommit = self.connection.is_autocommit();
        if self.transaction_state.in_transaction.get() && is_autocommit {
            return Err(Error::TransactionEnded);
        }
        if is_autocommit && !self.is_inside_write() {
            return Ok(Boundary::Own);
        }
        Ok(Boundary::Joined(self.connection.txn_state()))
    }

    /// Checks whether a verb would take part in a transaction of the caller's.
    pub fn joins_transaction(&self) -> bool {
        !self.connection.is_autocommit() || self.is_inside_write()
    }

    /// Inside a writing statement of the caller's, on any database, autocommit is on but the
    /// transaction is the caller's.
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

    /// Does `work` like [`within`](Store::within), with another way to take the write lock in the
    /// caller's transaction.
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

    /// Runs `work` as a whole inside an open transaction: if it fails, its changes are undone if
    /// that is possible.
    pub(crate) fn all_or_nothing<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.connection.is_autocommit() {
            // A statement of the caller's is writing, and SQLite opens no savepoint meanwhile.
            return work();
        }
        let number = match self.savepoint() {
            Err(error) if is_inside_statement(&error) => return self.all_or_rollback(work),
            opened => opened?,
        };
        let done = work().and_then(|done| self.release_savepoint(number).map(|()| done));
        if done.is_err() && self.rollback_savepoint(number).is_err() {
            let _ = self.undo();
        }
        done
    }

    /// Does all of `work` inside a statement of the caller's that is writing in their transaction,
    /// where SQLite opens no savepoint. What fails halfway rolls back their transaction, as SQLite
    /// does after a full disk.
    pub(crate) fn all_or_rollback<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let state = || Ok::<_, Error>((self.connection.total_changes(), self.schema_version()?));
        let before = state()?;
        let done = work();
        if done.is_err() && !self.connection.is_autocommit() && state().ok() != Some(before) {
            let _ = self.undo();
        }
        done
    }

    fn schema_version(&self) -> Result<Option<i64>, Error> {
        let mut statement = self.connection.prepare("PRAGMA main.schema_version")?;
        let mut run = statement.run(&[])?;
        Ok(if run.step()? { run.column(0).and_then(Value::integer) } else { None })
    }

    /// Does `work`, which reads by more than one statement, in one snapshot. In a store of its own
    /// SQLite, the statement that is running holds it; a host's statements are over before the next
    /// one runs.
    pub(crate) fn in_snapshot<T>(
        &self,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        if !self.connection.is_hosted() || self.boundary()? != Boundary::Own {
            return work();
        }
        self.open_by(|| execute_once(self.connection, "BEGIN", &[]))?;
        let done = work();
        self.rollback().and(done)
    }

    /// Takes the write lock in the caller's transaction.
    pub(crate) fn lock(&self) -> Result<(), Error> {
        self.statements.lock.execute(self.connection).or_else(|error| self.explain(error))
    }
}

/// Checks whether SQLite has opened no savepoint because a statement of the caller's is writing.
/// Inside a transaction it has no other reason to be busy.
fn is_inside_statement(refused: &Error) -> bool {
    matches!(refused, Error::Sqlite(failure) if failure.code & 0xff == code::BUSY)
}
