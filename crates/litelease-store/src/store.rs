//! The verbs on the stored row, each as a call of the rule.

use std::cell::RefCell;

use litelease_core::{
    self as rule, BreakResult, ClaimResult, Claimant, Lease, LeaseRow, ReleaseResult, RenewResult,
    Row, Term, TransferResult,
};

use crate::batch::BatchCache;
use crate::change::Change;
use crate::epoch::EpochState;
use crate::error::Undecided;
use crate::side_tables::SideTables;
use crate::sqlite::{Connection, Run, Value, code};
use crate::statements::{CachedStatement, Statements, stored_row, stored_state};
use crate::transaction::TransactionState;
use crate::{Error, When};

/// The leases in one SQLite database, reached through one connection.
///
/// Statements are compiled at first use and kept until the store is dropped. Each verb passes its
/// answer, which borrows from the row, to a function of the caller's that keeps what it needs of
/// it.
pub struct Store {
    pub(crate) connection: Connection,
    pub(crate) statements: Statements,
    pub(crate) epoch_state: EpochState,
    pub(crate) side_tables: SideTables,
    pub(crate) transaction_state: TransactionState,
    /// The open batch, if there is one.
    pub(crate) batch: RefCell<Option<BatchCache>>,
}

impl Store {
    /// Returns the leases in the main database of `connection`.
    pub fn new(connection: Connection) -> Self {
        Store {
            connection,
            statements: Statements::new(),
            epoch_state: EpochState::default(),
            side_tables: SideTables::default(),
            transaction_state: TransactionState::default(),
            batch: RefCell::new(None),
        }
    }

    /// Checks whether this store has statements that are worth keeping, compiled against a schema
    /// that SQLite has read.
    pub fn has_statements(&self) -> bool {
        self.statements.know_schema()
    }

    /// Grants `name` to `owner` if it is free, under a token larger than `min_token`.
    ///
    /// Returns `Busy` without taking the write lock, except in a transaction of the caller's that
    /// has not read yet.
    pub fn claim<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        when: When,
        min_token: i64,
        keep: impl Fn(ClaimResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("claim", Some(name), || {
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(busy) = self.read_row(name, |row| {
                    let now_ms = when.now_ms();
                    Term::new(ttl_ms, now_ms)?;
                    Ok(rule::busy(row, now_ms).map(&keep))
                })?
            {
                return Ok(busy);
            }
            self.change(boundary, name, when, Change::Grant, |row, floor, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                Ok(rule::claim(row, owner, term, floor.max(min_token))?.map(&keep))
            })
        })
    }

    /// Grants `name` to `owner` although it has a live lease, if that is exactly the grant `dead`,
    /// whose holder the caller has found to have ended. Otherwise as [`claim`](Store::claim).
    pub fn claim_from_dead<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        when: When,
        dead: Claimant<'_>,
        keep: impl Fn(ClaimResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("claim", Some(name), || {
            self.ending("died", self.boundary()?, |boundary| {
                self.change(boundary, name, when, Change::Grant, |row, floor, now_ms| {
                    let term = Term::new(ttl_ms, now_ms)?;
                    Ok(rule::claim_from_dead(row, owner, term, floor, dead)?.map(&keep))
                })
            })
        })
    }

    /// Claims `name`, or prolongs the live lease that `owner` already has on it, under the same
    /// token.
    ///
    /// Returns `Busy` without taking the write lock where [`claim`](Store::claim) does.
    pub fn ensure<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(ClaimResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("ensure", Some(name), || {
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(busy) = self.read_row(name, |row| {
                    let now_ms = when.now_ms();
                    Term::new(ttl_ms, now_ms)?;
                    Ok(rule::busy_for(row, owner, now_ms).map(&keep))
                })?
            {
                return Ok(busy);
            }
            self.change(boundary, name, when, Change::Grant, |row, floor, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                let conditions = self.conditions(name)?;
                Ok(rule::ensure(row, owner, term, floor, conditions)?.map(&keep))
            })
        })
    }

    /// Prolongs a live lease.
    pub fn renew<'q, T>(
        &self,
        name: &'q str,
        who: Claimant<'q>,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(RenewResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("renew", Some(name), || {
            self.change(self.boundary()?, name, when, Change::Prolong, |row, _, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                Ok(rule::renew(row, who, term, self.conditions(name)?).map(&keep))
            })
        })
    }

    /// Ends a live lease early.
    pub fn release<T>(
        &self,
        name: &str,
        who: Claimant<'_>,
        when: When,
        keep: impl Fn(ReleaseResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("release", Some(name), || {
            self.change(self.boundary()?, name, when, Change::Free, |row, _, now_ms| {
                Ok(rule::release(row, who, now_ms).map(&keep))
            })
        })
    }

    /// Hands a live lease to a new owner under a new token.
    pub fn transfer<'q, T>(
        &self,
        name: &'q str,
        who: Claimant<'_>,
        new_owner: &'q str,
        ttl_ms: i64,
        when: When,
        keep: impl Fn(TransferResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("transfer", Some(name), || {
            self.change_carrying_tick(self.boundary()?, name, when, |row, floor, now_ms| {
                let term = Term::new(ttl_ms, now_ms)?;
                Ok(rule::transfer(row, who, new_owner, term, floor)?.map(&keep))
            })
        })
    }

    /// Ends any owner's live lease and raises its token.
    pub fn break_lease<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(BreakResult<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("break", Some(name), || {
            self.change(self.boundary()?, name, when, Change::Grant, |row, floor, now_ms| {
                Ok(rule::break_lease(row, now_ms, floor)?.map(&keep))
            })
        })
    }

    /// Returns the live lease on `name`, if there is one. Needs no write lock.
    pub fn inspect<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(Lease<&str>) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("inspect", Some(name), || {
            self.settle()?;
            self.read_row(name, |row| Ok(rule::inspect(row, when.now_ms()).map(&keep)))
        })
    }

    /// Returns the newest token of `name`, live or not. Needs no write lock.
    pub fn token(&self, name: &str) -> Result<Option<i64>, Error> {
        self.with_context("read the token of", Some(name), || {
            self.settle()?;
            self.read_row(name, |row| Ok(row.token()))
        })
    }

    /// Returns the row of `name`, live or not, with when its newest grant began. Needs no write
    /// lock.
    pub fn row(&self, name: &str) -> Result<Option<LeaseRow>, Error> {
        self.with_context("inspect", Some(name), || {
            self.settle()?;
            let verify = || self.verify().map(|()| true);
            self.read_row_with(&self.statements.show, verify, name, |row, run| {
                let since_ms = || run.column(3).and_then(Value::integer);
                Ok(row.state().map(|_| LeaseRow::new(row, since_ms())))
            })
        })
    }

    /// Reads a row and changes nothing.
    pub(crate) fn read_row<T>(
        &self,
        name: &str,
        mut answer: impl FnMut(Row<'_>) -> Result<T, Undecided>,
    ) -> Result<T, Error> {
        let verify = || self.verify().map(|()| true);
        self.read_row_with(&self.statements.load, verify, name, |row, _| answer(row))
    }

    /// Reads a row for a caller that depends on the guards by `name`. Fails if one is missing.
    pub(crate) fn read_fenced_row<T>(
        &self,
        name: &str,
        mut answer: impl FnMut(Row<'_>) -> Result<T, Undecided>,
    ) -> Result<T, Error> {
        let verify = || {
            self.verify()?;
            let mut missing = self.missing_guards()?;
            // Unguarding a table that is gone does not change the schema, so the next call checks
            // again.
            let is_final = missing.is_empty();
            missing.retain(|(guarding, _)| guarding == name);
            match missing.pop() {
                Some((_, table)) => Err(Error::GuardMissing { table }),
                None => Ok(is_final),
            }
        };
        self.read_row_with(&self.statements.fenced, verify, name, |row, _| answer(row))
    }

    /// Reads a row with this statement. `verify` returns whether its finding holds until the schema
    /// changes.
    fn read_row_with<T>(
        &self,
        load: &CachedStatement,
        verify: impl Fn() -> Result<bool, Error>,
        name: &str,
        mut answer: impl FnMut(Row<'_>, &Run<'_, '_>) -> Result<T, Undecided>,
    ) -> Result<T, Error> {
        let looked = load.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            let has_row = run.step()?;
            // SQLite compiles a statement anew when the schema has changed: then check the schema
            // again, in the same snapshot, which this run holds.
            if run.is_unverified() && verify()? {
                run.mark_verified();
            }
            let row = match has_row {
                true => {
                    stored_row(name, stored_state([run.column(0), run.column(1), run.column(2)]))?
                }
                false => Row::new(name, None),
            };
            answer(row, &run).map_err(|undecided| undecided.about(name))
        });
        looked.or_else(|error| self.explain(error))
    }

    /// Checks whether an error is about our tables: if they are missing or not ours, that is the
    /// better error.
    pub(crate) fn explain<T>(&self, error: Error) -> Result<T, Error> {
        match &error {
            Error::Sqlite(failure) if failure.code & 0xff == code::ERROR => self.verify()?,
            _ => {}
        }
        Err(error)
    }

    /// Adds the action and the table or name to an error of SQLite.
    pub(crate) fn with_context<T>(
        &self,
        verb: &str,
        name: Option<&str>,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        work().map_err(|error| error.with_context(verb, name, self.connection.filename()))
    }
}
