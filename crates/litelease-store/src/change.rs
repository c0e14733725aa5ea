//! Changes a row: the rule decides inside the statement that stores the result.

use litelease_core::{Epoch, Lease, Row, State, Step};

use crate::error::Undecided;
use crate::grant::{Attempt, check_arrival};
use crate::rule_fn::{Columns, Ran, RuleAnswer};
use crate::sqlite::{TxnState, Value};
use crate::statements::{ADD, CachedStatement, execute_once, stored_row};
use crate::transaction::Boundary;
use crate::{Error, Failure, Store, When, code};

/// The kinds of change that a verb may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A larger token. It must exceed the file's floor, and the file's epoch must cover it. The
    /// verb may also decide to prolong the present lease.
    Grant,
    /// A later expiry in an existing row, and nothing else.
    Prolong,
    /// The end of a tenure in an existing row, and nothing else.
    Free,
}

/// A change to make, and where and when.
#[derive(Clone, Copy)]
struct ChangeRequest<'a> {
    boundary: Boundary,
    name: &'a str,
    when: When,
    change: Change,
}

/// Which of the two statements asks the rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    /// The one that updates an existing row.
    Row,
    /// The one that inserts a row.
    NewRow,
}

/// The outcome of running a statement that asks the rule.
enum RuleOutcome<'q, T> {
    /// The rule has decided.
    Attempted(Attempt<Step<'q, T>>),
    /// There is no such row; or, for an insertion, there is one already.
    NoSuchRow,
    /// The schema may have changed, so the rule was not called. The schema was checked since; run
    /// the statement again.
    Stale,
}

impl Store {
    /// Lets the rule decide about a row and stores the result, in one statement under the write
    /// lock.
    ///
    /// `decide` gets the row, the file's token floor and the time.
    pub(crate) fn change<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        change: Change,
        mut decide: impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Undecided>,
    ) -> Result<T, Error> {
        let mut decide = |row: Row<'_>, floor, now_ms| {
            decide(row, floor, now_ms).map_err(|undecided| undecided.about(name))
        };
        let request = ChangeRequest { boundary, name, when, change };
        let step = self.with_epoch(boundary, || self.try_change(request, &mut decide))?;
        if let Some(state) = step.write
            && let Some(tenure) = state.tenure()
        {
            let (owner, expires_at_ms) = (tenure.owner, tenure.expires_at_ms);
            let lease = Lease { name, owner, token: state.token(), expires_at_ms };
            check_arrival(when, lease)?;
        }
        Ok(step.answer)
    }

    /// Changes the row, or inserts it where there is none and the rule wants one.
    fn try_change<'q, T>(
        &self,
        request: ChangeRequest<'_>,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Error>,
    ) -> Result<Attempt<Step<'q, T>>, Error> {
        if self.connection.is_hosted() {
            return self.change_in_steps(request, decide);
        }
        let ChangeRequest { name, when, .. } = request;
        let mut insertions = 0;
        loop {
            match self.run_rule(request, Target::Row, decide)? {
                RuleOutcome::Attempted(attempt) => return Ok(attempt),
                RuleOutcome::Stale => continue,
                RuleOutcome::NoSuchRow => {}
            }
            // This name was never granted. Most verbs have their answer now; a claim inserts the
            // row.
            let step = decide(Row::new(name, None), 0, when.now_ms())?;
            if step.write.is_none() {
                return Ok(Attempt::Decided(step));
            }
            let insert = || self.run_rule(request, Target::NewRow, decide);
            match self.connection.keeping_last_insert_rowid(insert)? {
                RuleOutcome::Attempted(attempt) => return Ok(attempt),
                // Another connection was faster, so the row exists now; unless a trigger swallows
                // it.
                RuleOutcome::NoSuchRow if insertions < 2 => insertions += 1,
                RuleOutcome::NoSuchRow => return Err(Error::unexpected_change(name, 0)),
                RuleOutcome::Stale => {}
            }
        }
    }

    /// Loads, decides and saves in a transaction, where no statement can ask the rule.
    #[cold]
    fn change_in_steps<'q, T>(
        &self,
        request: ChangeRequest<'_>,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Error>,
    ) -> Result<Attempt<Step<'q, T>>, Error> {
        let ChangeRequest { boundary, name, .. } = request;
        self.within(boundary, || {
            let (target, asked) = self.read_row(name, |row| {
                let target = if row.state().is_some() { Target::Row } else { Target::NewRow };
                let columns = Columns { state: row.state(), floor: None, is_unverified: false };
                Ok((target, self.ask(request, target, columns, decide)))
            })?;
            let (step, now_ms, begins_grant) = match asked? {
                RuleAnswer::Decided { step, now_ms, begins_grant } => (step, now_ms, begins_grant),
                RuleAnswer::EpochNeeded { token } => return Ok(Attempt::EpochNeeded { token }),
                RuleAnswer::Unverified => return Err(Error::unexpected_change(name, 0)),
            };
            if let Some(state) = step.write {
                let since_ms = begins_grant.then_some(now_ms);
                self.save_row(name, target == Target::Row, state, now_ms, since_ms)?;
            }
            Ok(Attempt::Decided(step))
        })
    }

    /// Stores a state that the rule has decided on, inside a transaction. `since_ms` is the
    /// beginning of its grant, if that is a new one.
    #[cold]
    pub(crate) fn save_row(
        &self,
        name: &str,
        has_row: bool,
        state: State<'_>,
        now_ms: i64,
        since_ms: Option<i64>,
    ) -> Result<(), Error> {
        let tenure = state.tenure();
        let values = [
            Value::Text(name),
            tenure.map_or(Value::Null, |tenure| Value::Text(tenure.owner)),
            Value::Integer(state.token()),
            tenure.map_or(Value::Null, |tenure| Value::Integer(tenure.expires_at_ms)),
            Value::Integer(now_ms),
            since_ms.map_or(Value::Null, Value::Integer),
        ];
        match has_row {
            true => self.statements.save.execute_with(self.connection, &values)?,
            false => {
                let add = || execute_once(self.connection, ADD, &values[..5]);
                self.connection.keeping_last_insert_rowid(add)?;
            }
        }
        match self.connection.changes() {
            1 => Ok(()),
            changed => Err(Error::unexpected_change(name, changed)),
        }
    }

    /// Runs one of the statements that ask the rule.
    fn run_rule<'q, T>(
        &self,
        request: ChangeRequest<'_>,
        target: Target,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Error>,
    ) -> Result<RuleOutcome<'q, T>, Error> {
        let ChangeRequest { boundary, name, change, .. } = request;
        let has_epoch = self.epoch_state.has_epoch.get();
        let statement = self.statement_for(change, target, has_epoch);
        let outcome = statement.with(self.connection, |statement| {
            let Ran { asked, ended } = statement
                .run_rule(name, |columns| self.ask(request, target, columns, &mut *decide));
            let step = match asked? {
                Some(RuleAnswer::Decided { step, .. }) => step,
                Some(RuleAnswer::EpochNeeded { token }) => {
                    ended?;
                    return Ok(RuleOutcome::Attempted(Attempt::EpochNeeded { token }));
                }
                Some(RuleAnswer::Unverified) | None => {
                    ended?;
                    if !statement.is_unverified() {
                        return Ok(RuleOutcome::NoSuchRow);
                    }
                    self.verify()?;
                    statement.mark_verified();
                    return Ok(RuleOutcome::Stale);
                }
            };
            if step.write.is_none() {
                ended?;
                return Ok(RuleOutcome::Attempted(Attempt::Decided(step)));
            }
            let changed = self.connection.changes();
            if ended.is_err() && changed != 0 && boundary != Boundary::Own {
                // A progress handler can stop a statement after its last change. In the caller's
                // transaction that change would be committed, although the verb failed.
                let _ = self.undo();
            }
            ended.map_err(|failure| {
                // The statement was a transaction of its own, so this may have been its commit. If
                // it counts a change, the error even came after the commit, from a hook.
                let is_known = failure.means_nothing_stored() && changed == 0;
                match boundary {
                    Boundary::Own if !is_known => Error::CommitUnknown(failure),
                    _ => Error::Sqlite(failure),
                }
            })?;
            match changed {
                1 => {
                    if boundary == Boundary::Own {
                        self.check_committed()?;
                    }
                    Ok(RuleOutcome::Attempted(Attempt::Decided(step)))
                }
                0 if target == Target::NewRow => Ok(RuleOutcome::NoSuchRow),
                changed => Err(Error::unexpected_change(name, changed)),
            }
        });
        outcome.or_else(|error| {
            let explained = self.explain(error);
            // If the table of the epoch came or went meanwhile, the other form of the statement is
            // right.
            if self.epoch_state.has_epoch.get() == has_epoch {
                explained
            } else {
                Ok(RuleOutcome::Stale)
            }
        })
    }

    fn statement_for(&self, change: Change, target: Target, has_epoch: bool) -> &CachedStatement {
        match (change, target) {
            (Change::Prolong, _) => &self.statements.prolong,
            (Change::Free, _) => &self.statements.free,
            (Change::Grant, Target::Row) => self.statements.update.form(has_epoch),
            (Change::Grant, Target::NewRow) => self.statements.insert.form(has_epoch),
        }
    }

    /// Asks the rule about the row that a statement has reached, with the write lock held.
    #[inline]
    fn ask<'q, T>(
        &self,
        request: ChangeRequest<'_>,
        target: Target,
        columns: Columns<'_>,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Error>,
    ) -> Result<RuleAnswer<'q, T>, Error> {
        // The rows that were read count only if the schema is right.
        if columns.is_unverified {
            return Ok(RuleAnswer::Unverified);
        }
        let ChangeRequest { boundary, name, when, change } = request;
        // Read the clock here, under the write lock: waiting for the lock takes time too.
        let now_ms = when.now_ms();
        let epoch = match change {
            // The file's floor does not matter.
            Change::Prolong | Change::Free => Epoch::default(),
            Change::Grant => self.found_epoch(columns.floor)?,
        };
        let row = match target {
            Target::NewRow => Row::new(name, None),
            Target::Row => stored_row(name, columns.state)?,
        };
        let step = decide(row, epoch.floor, now_ms)?;
        match step.write.map(|state| state.token()) {
            Some(token)
                // A token that is stored already is not granted: a prolonged lease needs no epoch.
                if change == Change::Grant
                    && row.token() != Some(token)
                    && !self.may_grant(boundary, epoch, token)? =>
            {
                Ok(RuleAnswer::EpochNeeded { token })
            }
            _ => {
                let begins_grant = step.write.is_some_and(|state| row.begins_grant(state));
                Ok(RuleAnswer::Decided { step, now_ms, begins_grant })
            }
        }
    }

    /// Checks that a statement which was a transaction of its own is committed.
    ///
    /// SQLite commits nothing while another statement of the connection that is not read-only is
    /// running; and not every such statement holds a transaction beforehand: `PRAGMA journal_mode`
    /// does not.
    fn check_committed(&self) -> Result<(), Error> {
        if self.connection.txn_state_anywhere() != TxnState::Write {
            return Ok(());
        }
        // Pending changes would be committed when the other statement ends, whatever was answered
        // before.
        let undone = execute_once(self.connection, "BEGIN", &[]).and_then(|()| self.rollback());
        undone.map_err(Error::into_unknown)?;
        let message = "cannot commit, because another statement of this connection is running";
        Err(Error::Sqlite(Failure { code: code::BUSY, message: message.into() }))
    }

    /// Returns the epoch that the statement found. Where it found none of this boot, reads it.
    fn found_epoch(&self, floor: Option<i64>) -> Result<Epoch, Error> {
        match floor {
            Some(floor @ 0..) => Ok(Epoch { floor, boot: self.epoch_state.boot.get() }),
            _ => self.epoch_record(),
        }
    }
}
