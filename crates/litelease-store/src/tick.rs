//! Ticks: the newest one of each name, stored beside its lease and changed in the same commit.

use std::cell::RefCell;

use litelease_core::{
    self as rule, ClaimTickResult, Claimant, Epoch, FinishTickResult, Lease, NewestTick, Refusal,
    Row, State, Step, Term, Tick, TickChange, TickInfo, TickOutcome, TickRequest, TickResult,
    TickState, TickStep, carry_tick,
};

use crate::change::Change;
use crate::error::Undecided;
use crate::grant::{Attempt, check_arrival};
use crate::history::Event;
use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::{Run, Value};
use crate::statements::execute_once;
use crate::transaction::Boundary;
use crate::{Error, Store, When};

/// The newest tick of each name. It is made by the first one, and no row ends with a grant.
pub(crate) const TICKS: Table = Table {
    name: "litelease_newest_ticks",
    definition: "(
  name TEXT PRIMARY KEY,
  tick_ms INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (state IN ('open', 'done', 'failed', 'skipped')),
  token INTEGER NOT NULL CHECK (token >= 0),
  attempt INTEGER NOT NULL CHECK (attempt >= 0),
  attempts INTEGER NOT NULL CHECK (attempts >= 1),
  began_ms INTEGER NOT NULL,
  ended_ms INTEGER,
  previous_ms INTEGER,
  skipped_ms INTEGER,
  owner TEXT,
  schedule TEXT
)",
};

/// Reads the tick of a name.
pub(crate) const TICK_OF: &str = "SELECT tick_ms, state, token, attempt, attempts, began_ms,
ended_ms, previous_ms, skipped_ms, owner, schedule FROM main.litelease_newest_ticks WHERE name = ?1";

/// Stores a tick in the place of the one before. The schedule stays where none is given.
pub(crate) const KEEP_TICK: &str = "INSERT INTO main.litelease_newest_ticks (name, tick_ms, state,
token, attempt, attempts, began_ms, ended_ms, previous_ms, skipped_ms, owner, schedule)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
ON CONFLICT (name) DO UPDATE SET tick_ms = excluded.tick_ms, state = excluded.state,
token = excluded.token, attempt = excluded.attempt, attempts = excluded.attempts,
began_ms = excluded.began_ms, ended_ms = excluded.ended_ms, previous_ms = excluded.previous_ms,
skipped_ms = excluded.skipped_ms, owner = excluded.owner,
schedule = coalesce(excluded.schedule, schedule)";

const FORGET_TICK: &str = "DELETE FROM main.litelease_newest_ticks WHERE name = ?1";

const NAMES: &str =
    "SELECT name FROM main.litelease_newest_ticks WHERE ?1 IS NULL OR name > ?1 ORDER BY name";

pub(crate) const COUNT: &str = "SELECT count(*) FROM main.litelease_newest_ticks";

/// A tick that a caller asks for, and by which schedule.
#[derive(Clone, Copy, Debug)]
pub struct TickClaim<'a> {
    /// The tick, and how often it may be granted.
    pub asked: TickRequest,
    /// The schedule that planned it, for `ticks` to show.
    pub schedule: Option<&'a str>,
}

/// The kind of a change of a tick in the history, and the schedule that planned the tick.
type Noted<'a> = (Option<&'a str>, Option<&'a str>);

/// The stored row of a tick, with its texts.
struct StoredTick {
    tick: Tick,
    owner: Option<String>,
    schedule: Option<String>,
}

impl Store {
    /// Grants a tick, as [`rule::claim_tick`] decides. `dead` is a grant whose holder the caller
    /// has found to have ended.
    ///
    /// A refusal is returned without taking the write lock where [`claim`](Store::claim) does so.
    #[allow(clippy::too_many_arguments)]
    pub fn claim_tick<'q, T>(
        &self,
        name: &'q str,
        owner: &'q str,
        ttl_ms: i64,
        claim: TickClaim<'_>,
        when: When,
        dead: Option<Claimant<'_>>,
        keep: impl Fn(ClaimTickResult<&str>) -> T,
    ) -> Result<T, Error> {
        let TickClaim { asked, schedule } = claim;
        self.with_context("claim a tick of", Some(name), || {
            let boundary = self.boundary()?;
            if boundary.may_look_first() {
                let refused = self.in_snapshot(|| {
                    self.read_row(name, |row| {
                        let stored = self.tick_of(name)?.map(|stored| stored.tick);
                        let term = Term::new(ttl_ms, when.now_ms())?;
                        let step = rule::claim_tick(row, stored, owner, asked, term, 0, dead)?;
                        Ok(step.lease.is_none().then(|| keep(step.answer)))
                    })
                })?;
                if let Some(refused) = refused {
                    return Ok(refused);
                }
            }
            let kind = Some("tick_claimed");
            self.change_with_tick(
                boundary,
                name,
                when,
                (kind, schedule),
                |row, stored, floor, now_ms| {
                    let term = Term::new(ttl_ms, now_ms)?;
                    let step = rule::claim_tick(row, stored, owner, asked, term, floor, dead)?;
                    let TickStep { lease, tick, answer } = step;
                    Ok(TickStep { lease, tick, answer: keep(answer) })
                },
            )
        })
    }

    /// Begins and finishes a tick in one step, in the caller's transaction if there is one.
    pub fn tick(&self, name: &str, tick_ms: i64, when: When) -> Result<TickResult, Error> {
        self.with_context("do a tick of", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let step = self.read_row(name, |row| {
                    let stored = self.tick_of(name)?;
                    if stored.is_none() && self.epoch_record()?.is_retired() {
                        // Its schedules go on elsewhere.
                        return Err(Refusal::TokenExhausted.into());
                    }
                    Ok(rule::tick(row, stored.map(|stored| stored.tick), tick_ms, now_ms)?)
                })?;
                if let Some(tick) = step.tick {
                    let event = tick_event("tick_done", name, tick, None);
                    self.recording(now_ms, event, || self.keep_tick(name, tick, None, None))?;
                }
                Ok(step.answer)
            })
        })
    }

    /// Finishes the tick of a grant and ends the grant.
    pub fn finish_tick(
        &self,
        name: &str,
        token: i64,
        outcome: TickOutcome,
        when: When,
    ) -> Result<FinishTickResult, Error> {
        self.with_context("finish a tick of", Some(name), || {
            let boundary = self.boundary()?;
            let kind = match outcome {
                TickOutcome::Done => "tick_done",
                TickOutcome::Failed => "tick_failed",
            };
            self.change_with_tick(
                boundary,
                name,
                when,
                (Some(kind), None),
                |row, stored, _, now_ms| Ok(rule::finish_tick(row, stored, token, outcome, now_ms)),
            )
        })
    }

    /// Checks whether a grant can finish its tick, with the write lock held: before an effect.
    pub fn check_tick(&self, name: &str, token: i64) -> Result<FinishTickResult, Error> {
        self.with_context("finish a tick of", Some(name), || {
            self.within(self.boundary()?, || {
                self.read_row(name, |row| {
                    let stored = self.tick_of(name)?.map(|stored| stored.tick);
                    let step = rule::finish_tick(row, stored, token, TickOutcome::Done, 0);
                    Ok(step.answer)
                })
            })
        })
    }

    /// Skips every tick up to now, or up to `until_ms`. With `breaks` it ends the lease of a holder
    /// that is at work on such a tick.
    pub fn skip_ticks<T>(
        &self,
        name: &str,
        until_ms: Option<i64>,
        breaks: bool,
        when: When,
        keep: impl Fn(TickChange<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("skip ticks of", Some(name), || {
            let boundary = self.boundary()?;
            let kind = Some("tick_skipped");
            self.change_with_tick(
                boundary,
                name,
                when,
                (kind, None),
                |row, stored, floor, now_ms| {
                    let step = rule::skip(row, stored, until_ms, breaks, now_ms, floor)?;
                    let TickStep { lease, tick, answer } = step;
                    Ok(TickStep { lease, tick, answer: keep(answer) })
                },
            )
        })
    }

    /// Opens the newest tick once more.
    pub fn tick_again<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(TickChange<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("open the tick of", Some(name), || {
            let boundary = self.boundary()?;
            let kind = Some("tick_again");
            self.change_with_tick(boundary, name, when, (kind, None), |row, stored, _, now_ms| {
                let TickStep { lease, tick, answer } = rule::again(row, stored, now_ms)?;
                Ok(TickStep { lease, tick, answer: keep(answer) })
            })
        })
    }

    /// Deletes the row of a schedule that is no more.
    pub fn forget_tick<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(TickChange<&str>) -> T,
    ) -> Result<T, Error> {
        self.with_context("forget the ticks of", Some(name), || {
            self.within(self.boundary()?, || {
                let now_ms = when.now_ms();
                let (forgotten, answer) = self.read_row(name, |row| {
                    let stored = self.tick_of(name)?.map(|stored| stored.tick);
                    let answer = rule::forget_tick(row, stored, now_ms);
                    let is_done = matches!(answer, TickChange::Changed(_));
                    Ok((stored.filter(|_| is_done), keep(answer)))
                })?;
                if let Some(tick) = forgotten {
                    let event = tick_event("tick_forgotten", name, tick, None);
                    let of_name = [Value::Text(name)];
                    let forget = || execute_once(self.connection, FORGET_TICK, &of_name);
                    self.recording(now_ms, event, forget)?;
                }
                Ok(answer)
            })
        })
    }

    /// Stores the newest past tick of a schedule as skipped if the name has no tick yet, so that
    /// installing a schedule runs nothing. Answers the newest tick.
    pub fn install_tick(
        &self,
        name: &str,
        tick_ms: i64,
        schedule: Option<&str>,
        when: When,
    ) -> Result<NewestTick, Error> {
        self.with_context("install the schedule", Some(name), || {
            let boundary = self.boundary()?;
            self.change_with_tick(boundary, name, when, (None, schedule), |_, stored, _, now_ms| {
                let new = rule::installed(tick_ms, now_ms);
                let newest = stored.unwrap_or(new).newest();
                let tick = stored.is_none().then_some(new);
                Ok(TickStep { lease: None, tick, answer: newest })
            })
        })
    }

    /// Returns the newest tick of a name, if it has one. Needs no write lock.
    pub fn newest_tick(&self, name: &str, when: When) -> Result<Option<TickInfo>, Error> {
        self.with_context("read the tick of", Some(name), || {
            self.settle()?;
            self.in_snapshot(|| {
                self.read_row(name, |row| {
                    Ok(self.tick_of(name)?.map(|stored| TickInfo {
                        name: name.into(),
                        tick: stored.tick,
                        owner: stored.owner,
                        schedule: stored.schedule,
                        holder: stored.tick.holder(row, when.now_ms()).map(Lease::into_owned),
                    }))
                })
            })
        })
    }

    /// Returns the newest tick of every name, by name. Needs no write lock.
    pub fn ticks(&self, when: When) -> Result<Vec<TickInfo>, Error> {
        self.ticks_under("", None, usize::MAX, when)
    }

    /// Returns the newest ticks of the names that begin with `prefix` and come after `after`: at
    /// most `limit`.
    pub fn ticks_under(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        when: When,
    ) -> Result<Vec<TickInfo>, Error> {
        // SQLite compares, because its order depends on the encoding of the file.
        let after = [after.map_or(Value::Null, Value::Text)];
        let is_wanted = |name: &str| name.starts_with(prefix);
        let mut names: Vec<String> = Vec::new();
        self.with_context("list ticks", None, || {
            self.verify()?;
            if self.has(Side::Ticks)? {
                let mut statement = self.connection.prepare(NAMES)?;
                let mut run = statement.run(&after)?;
                while names.len() < limit && run.step()? {
                    let name = run.column(0).and_then(Value::text);
                    let name = name.ok_or_else(|| damaged("?"))?;
                    names.extend(is_wanted(name).then(|| name.to_owned()));
                }
            }
            Ok(())
        })?;
        // One that is forgotten meanwhile is left out.
        let found = names.iter().map(|name| self.newest_tick(name, when));
        found.filter_map(Result::transpose).collect()
    }

    /// Makes a grant by `decide`, and carries the tick of the grant before along.
    pub(crate) fn change_carrying_tick<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        decide: impl FnMut(Row<'_>, i64, i64) -> Result<Step<'q, T>, Undecided>,
    ) -> Result<T, Error> {
        let decide = RefCell::new(decide);
        let changed = self.change(boundary, name, when, Change::Grant, |row, floor, now_ms| {
            let step = (decide.borrow_mut())(row, floor, now_ms)?;
            Ok(match self.carried(row, step.write)? {
                Some(_) => Step { write: None, answer: None },
                None => step.map(Some),
            })
        })?;
        if let Some(answer) = changed {
            return Ok(answer);
        }
        self.change_with_tick(boundary, name, when, (None, None), |row, stored, floor, now_ms| {
            let Step { write, answer } = (decide.borrow_mut())(row, floor, now_ms)?;
            let tokens = row.token().zip(write);
            let tick = tokens.and_then(|(from, state)| carry_tick(stored, from, state.token()));
            Ok(TickStep { lease: write, tick, answer })
        })
    }

    /// Returns the tick that a transfer of the row has to carry along.
    fn carried(&self, row: Row<'_>, write: Option<State<'_>>) -> Result<Option<Tick>, Undecided> {
        let Some((from, state)) = row.token().zip(write) else { return Ok(None) };
        let stored = self.tick_of(row.name())?.map(|stored| stored.tick);
        Ok(carry_tick(stored, from, state.token()))
    }

    /// Lets the rule decide about a row and its tick, and stores both in one commit.
    fn change_with_tick<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        noted: Noted<'_>,
        mut decide: impl FnMut(Row<'_>, Option<Tick>, i64, i64) -> Result<TickStep<'q, T>, Undecided>,
    ) -> Result<T, Error> {
        let step = self.with_epoch(boundary, || {
            self.within(boundary, || self.attempt_tick(boundary, name, when, noted, &mut decide))
        })?;
        if let Some(state) = step.lease
            && let Some(tenure) = state.tenure()
        {
            let (owner, expires_at_ms) = (tenure.owner, tenure.expires_at_ms);
            let lease = Lease { name, owner, token: state.token(), expires_at_ms };
            check_arrival(when, lease)?;
        }
        Ok(step.answer)
    }

    fn attempt_tick<'q, T>(
        &self,
        boundary: Boundary,
        name: &str,
        when: When,
        (kind, schedule): Noted<'_>,
        decide: &mut impl FnMut(Row<'_>, Option<Tick>, i64, i64) -> Result<TickStep<'q, T>, Undecided>,
    ) -> Result<Attempt<TickStep<'q, T>>, Error> {
        let now_ms = when.now_ms();
        let (step, before, begins_grant, owner, epoch) = self.read_row(name, |row| {
            let epoch: Epoch = self.epoch_record()?;
            let stored = self.tick_of(name)?;
            let tick = stored.as_ref().map(|stored| stored.tick);
            let step = decide(row, tick, epoch.floor, now_ms)?;
            let begins_grant = step.lease.is_some_and(|state| row.begins_grant(state));
            let owner = stored.and_then(|stored| stored.owner);
            Ok((step, row.token(), begins_grant, owner, epoch))
        })?;
        if let Some(token) = step.lease.map(|state| state.token())
            && before != Some(token)
            && !self.may_grant(boundary, epoch, token)?
        {
            return Ok(Attempt::EpochNeeded { token });
        }
        let tenure = step.lease.and_then(|state| state.tenure());
        let owner = tenure.map(|tenure| tenure.owner).or(owner.as_deref());
        self.all_or_nothing(|| {
            if let Some(state) = step.lease {
                let since_ms = begins_grant.then_some(now_ms);
                self.save_row(name, before.is_some(), state, now_ms, since_ms)?;
            }
            let Some(tick) = step.tick else { return Ok(()) };
            self.keep_tick(name, tick, owner, schedule)?;
            let event = kind.map(|kind| tick_event(kind, name, tick, owner));
            event.map_or(Ok(()), |event| self.record_event(now_ms, event))
        })?;
        Ok(Attempt::Decided(step))
    }

    /// Reads the tick that is stored for `name`, in the snapshot of a statement on its row.
    fn tick_of(&self, name: &str) -> Result<Option<StoredTick>, Error> {
        if !self.has(Side::Ticks)? {
            return Ok(None);
        }
        self.statements.tick.with(self.connection, |statement| {
            let mut run = statement.run(&[Value::Text(name)])?;
            match run.step()? {
                true => stored_tick(&run).map(Some).ok_or_else(|| damaged(name)),
                false => Ok(None),
            }
        })
    }

    fn keep_tick(
        &self,
        name: &str,
        tick: Tick,
        owner: Option<&str>,
        schedule: Option<&str>,
    ) -> Result<(), Error> {
        let number = |number: Option<i64>| number.map_or(Value::Null, Value::Integer);
        let values = [
            Value::Text(name),
            Value::Integer(tick.tick_ms),
            Value::Text(tick.state.word()),
            Value::Integer(tick.token),
            Value::Integer(tick.attempt),
            Value::Integer(tick.attempts),
            Value::Integer(tick.began_ms),
            number(tick.ended_ms),
            number(tick.previous_ms),
            number(tick.skipped_ms),
            owner.map_or(Value::Null, Value::Text),
            schedule.map_or(Value::Null, Value::Text),
        ];
        if !self.has(Side::Ticks)? {
            return self.write_side(Side::Ticks, KEEP_TICK, &values);
        }
        self.connection.keeping_last_insert_rowid(|| {
            self.statements.keep_tick.execute_with(self.connection, &values)
        })
    }
}

fn damaged(name: &str) -> Error {
    TICKS.mismatch(format!("the row of {name:?} is damaged"))
}

fn stored_tick(run: &Run<'_, '_>) -> Option<StoredTick> {
    let number = |index| run.column(index).and_then(Value::integer);
    let optional = |index| match run.column(index) {
        Some(Value::Null) => Some(None),
        value => value.and_then(Value::integer).map(Some),
    };
    let text = |index| match run.column(index) {
        Some(Value::Null) => Some(None),
        value => value.and_then(Value::text).map(|text| Some(text.to_owned())),
    };
    let tick = Tick {
        tick_ms: number(0)?,
        state: run.column(1).and_then(Value::text).and_then(TickState::from_word)?,
        token: number(2)?,
        attempt: number(3)?,
        attempts: number(4)?,
        began_ms: number(5)?,
        ended_ms: optional(6)?,
        previous_ms: optional(7)?,
        skipped_ms: optional(8)?,
    };
    tick.is_valid().then_some(StoredTick { tick, owner: text(9)?, schedule: text(10)? })
}

/// Returns what became of a tick, for the history.
fn tick_event<'a>(kind: &'a str, name: &'a str, tick: Tick, owner: Option<&'a str>) -> Event<'a> {
    let token = Some(tick.token).filter(|token| *token > 0);
    Event { owner, token, number: Some(tick.tick_ms), ..Event::new(kind, "name", name) }
}
