//! Changing a row: the rule decides inside the statement that stores what it says.

use litelease_core::{Epoch, LeaseInfo, Refusal, Row, State, Step, Tenure};

use crate::rule_fn::Write;
use crate::schema::damaged_meta;
use crate::sqlite::TxnState;
use crate::statements::{execute_once, stored_row};
use crate::transaction::Boundary;
use crate::{Error, Failure, Store, When, code};

/// What a verb may write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// A larger token: it must exceed the file's floor, and the file's epoch must be right before.
    Grant,
    /// A later expiry in a row that is there, and nothing else.
    Prolong,
    /// The end of a tenure in a row that is there, and nothing else.
    Free,
}

/// Whether a row is changed or made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Row,
    NewRow,
}

/// What came of asking the rule about a row.
enum RuleOutcome<'q, T> {
    /// The rule decided, and what it wants stored is stored.
    Decided(Step<'q, T>),
    /// There is no such row; or, for an insertion, there is one already.
    NoSuchRow,
    /// The schema may have changed: what was read does not count before it was looked at. Ask again.
    Stale,
    /// The file's epoch is not right for this token: it comes first.
    EpochNeeded { token: i64 },
}

impl Store {
    /// Lets the rule decide about a row and stores what it says, in one statement under the write lock.
    ///
    /// `decide` gets the row, the file's token floor and the time.
    pub(crate) fn change<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        change: Change,
        mut decide: impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Refusal>,
    ) -> Result<T, Error> {
        let mut decide = |row: Row<'_>, floor, now_ms| {
            decide(row, floor, now_ms).map_err(|refusal| Error::refused(name, refusal))
        };
        let (mut insertions, mut records) = (0, 0);
        let mut epoch = |token| {
            records += 1;
            match records {
                ..4 => self.record_epoch(boundary, token),
                // Others may have raised the floor meanwhile, but not again and again.
                _ => Err(damaged_meta()),
            }
        };
        let step = loop {
            match self.ask_rule(Target::Row, boundary, name, when, change, &mut decide)? {
                RuleOutcome::Decided(step) => break step,
                RuleOutcome::Stale => continue,
                RuleOutcome::EpochNeeded { token } => {
                    epoch(token)?;
                    continue;
                }
                RuleOutcome::NoSuchRow => {}
            }
            // Nobody was ever granted this name. Most verbs have their answer now; a claim inserts the row.
            let step = decide(Row::new(name, None), 0, when.now_ms())?;
            if step.write.is_none() {
                break step;
            }
            let insert =
                || self.ask_rule(Target::NewRow, boundary, name, when, change, &mut decide);
            match self.connection.keeping_last_insert_rowid(insert)? {
                RuleOutcome::Decided(step) => break step,
                // Somebody else was faster, and so the row is there now; unless something swallows it.
                RuleOutcome::NoSuchRow if insertions < 2 => insertions += 1,
                RuleOutcome::NoSuchRow => return Err(Error::unexpected_change(name, 0)),
                RuleOutcome::EpochNeeded { token } => epoch(token)?,
                RuleOutcome::Stale => {}
            }
        };
        match step.write {
            Some(state) if when == When::Now => arrived(name, state)?,
            _ => {}
        }
        Ok(step.answer)
    }

    /// Runs one of the statements that ask the rule.
    fn ask_rule<'q, T>(
        &self,
        target: Target,
        boundary: Boundary,
        name: &str,
        when: When,
        change: Change,
        decide: &mut impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Error>,
    ) -> Result<RuleOutcome<'q, T>, Error> {
        let has_epoch = self.has_epoch.get();
        let reads_epoch = has_epoch && change == Change::Grant;
        let statement = match (change, target) {
            (Change::Prolong, _) => &self.statements.prolong,
            (Change::Free, _) => &self.statements.free,
            (Change::Grant, Target::Row) => self.statements.update.form(reads_epoch),
            (Change::Grant, Target::NewRow) => self.statements.insert.form(reads_epoch),
        };
        let outcome = statement.with(self.connection, |statement| {
            let mut outcome = None;
            let mut epoch_needed = None;
            let ran = statement.run_rule(name, &mut |columns| {
                // What was read counts only if the schema is known to be right.
                if columns.is_unverified {
                    return None;
                }
                // Read the clock here, under the write lock: waiting for the lock takes time too.
                let now_ms = when.now_ms();
                let row = match target {
                    Target::NewRow => Ok(Row::new(name, None)),
                    Target::Row => stored_row(name, columns.state),
                };
                let epoch = match change {
                    // The file's floor does not matter.
                    Change::Prolong | Change::Free => Epoch::default(),
                    Change::Grant => match self.found_epoch(columns.floor) {
                        Ok(epoch) => epoch,
                        Err(error) => {
                            outcome = Some(Err(error));
                            return None;
                        }
                    },
                };
                let step = outcome.insert(row.and_then(|row| decide(row, epoch.floor, now_ms)));
                let state = step.as_ref().ok()?.write?;
                if change == Change::Grant && !self.epoch_covers(epoch, state.token()) {
                    match self.needed(boundary, epoch, state.token()) {
                        Ok(None) => {}
                        Ok(Some(_)) => {
                            (epoch_needed, outcome) = (Some(state.token()), None);
                            return None;
                        }
                        Err(error) => {
                            outcome = Some(Err(error));
                            return None;
                        }
                    }
                }
                Some(Write { state, now_ms })
            });
            let Some(step) = outcome.transpose()? else {
                ran?;
                if statement.is_unverified() {
                    self.verify()?;
                    statement.mark_verified();
                    return Ok(RuleOutcome::Stale);
                }
                return Ok(match epoch_needed {
                    Some(token) => RuleOutcome::EpochNeeded { token },
                    None => RuleOutcome::NoSuchRow,
                });
            };
            if step.write.is_none() {
                ran?;
                return Ok(RuleOutcome::Decided(step));
            }
            let changed = self.connection.changes();
            ran.map_err(|failure| {
                // The statement was a transaction of its own, so this may have been its commit. If it counts
                // a change, the error even came after the commit, from a hook.
                let is_known = failure.means_nothing_stored() && changed == 0;
                match boundary {
                    Boundary::Own if !is_known => Error::CommitUnknown(failure),
                    _ => Error::Sqlite(failure),
                }
            })?;
            match changed {
                1 if boundary == Boundary::Own => {
                    self.check_committed().map(|()| RuleOutcome::Decided(step))
                }
                1 => Ok(RuleOutcome::Decided(step)),
                0 if target == Target::NewRow => Ok(RuleOutcome::NoSuchRow),
                changed => Err(Error::unexpected_change(name, changed)),
            }
        });
        outcome.or_else(|error| {
            let explained = self.explain(error);
            // Unless the table of the epoch came or went: then ask the other way.
            if self.has_epoch.get() == has_epoch { explained } else { Ok(RuleOutcome::Stale) }
        })
    }

    /// Makes sure that a statement which was a transaction of its own is committed.
    ///
    /// SQLite commits nothing while another statement of the connection that is not read-only is running; and not
    /// every such statement holds a transaction beforehand: `PRAGMA journal_mode` does not.
    fn check_committed(&self) -> Result<(), Error> {
        if self.connection.txn_state_anywhere() != TxnState::Write {
            return Ok(());
        }
        // What is pending would be committed when the other statement ends, whatever was answered before.
        let undone = execute_once(self.connection, "BEGIN", &[]).and_then(|()| self.rollback());
        undone.map_err(Error::into_unknown)?;
        let message = "cannot commit, because another statement of this connection is running";
        Err(Error::Sqlite(Failure { code: code::BUSY, message: message.into() }))
    }

    /// The epoch as the statement found it; where it found none of this boot, as it is.
    fn found_epoch(&self, floor: Option<i64>) -> Result<Epoch, Error> {
        match floor {
            Some(floor @ 0..) => Ok(Epoch { floor, boot: self.boot.get() }),
            _ => self.epoch_record(),
        }
    }

    /// Whether a token may be granted with the epoch as it is, as far as can be told without asking anybody.
    pub(crate) fn epoch_covers(&self, epoch: Epoch, token: i64) -> bool {
        epoch.boot == self.boot.get() && epoch.is_enough_for(token)
    }
}

/// Makes sure that a lease which was just stored is not over already: committing takes time too.
fn arrived(name: &str, state: State<'_>) -> Result<(), Error> {
    let Some(Tenure { owner, expires_at_ms }) = state.tenure() else { return Ok(()) };
    if When::Now.now_ms() < expires_at_ms {
        return Ok(());
    }
    Err(Error::ExpiredOnArrival(LeaseInfo {
        name: name.into(),
        owner: owner.into(),
        token: state.token(),
        lease_expires_at_ms: expires_at_ms,
    }))
}
