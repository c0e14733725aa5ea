//! Ticks: the instants that a schedule plans, each run once, although every process has the
//! schedule.
//!
//! ```text
//!               claim_tick              finish
//!   (newer) ───────────────▶ open ──────────────────▶ done, failed
//!                            │  ▲                        │
//!        release, break,     │  │ claim_tick: next       │ again: attempt 0
//!        expiry: open still  └──┘ attempt, new token ◀───┘
//! ```
//!
//! A name has one row: the newest tick that was begun. A tick is a number that only moves forward,
//! so a claimant whose clock is late, or that comes after the first one has finished, finds its
//! tick taken. The row does not end with a grant: without it the tick would run again.
//!
//! A skip of an operator is a mark beside that tick. Lowering the mark, which ends a pause,
//! therefore frees no tick that was ever begun.

use alloc::string::String;
use core::fmt;

use crate::rule::grant;
use crate::{Claimant, Lease, Refusal, Row, State, Term};

/// The most that a tick may lie ahead of the clock that judges it. One wrong clock must not make
/// the ticks of the future taken.
pub const MAX_AHEAD_MS: i64 = 60_000;

/// The number of grants that one tick may have, unless a claimant says otherwise.
pub const DEFAULT_TICK_ATTEMPTS: i64 = 5;

/// The state of a tick. Every state but the first is final.
///
/// ```
/// # use litelease_core::TickState;
/// assert_eq!(TickState::Done.word(), "done");
/// assert_eq!(TickState::from_word("done"), Some(TickState::Done));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TickState {
    /// It was begun and not finished. Its holder may be at work, or gone.
    Open,
    /// Its holder has finished it.
    Done,
    /// Its holder has reported a failure.
    Failed,
    /// An operator has skipped it, or it came before its schedule was installed.
    Skipped,
}

impl TickState {
    const ALL: [TickState; 4] =
        [TickState::Open, TickState::Done, TickState::Failed, TickState::Skipped];

    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            TickState::Open => "open",
            TickState::Done => "done",
            TickState::Failed => "failed",
            TickState::Skipped => "skipped",
        }
    }

    /// Returns the state of this word.
    pub fn from_word(word: &str) -> Option<Self> {
        TickState::ALL.into_iter().find(|state| state.word() == word)
    }
}

impl fmt::Display for TickState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// The outcome that a holder reports.
///
/// ```
/// # use litelease_core::{TickOutcome, TickState};
/// assert_eq!(TickOutcome::Failed.state(), TickState::Failed);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TickOutcome {
    /// The job was done.
    Done,
    /// The job has failed, and is not to be repeated.
    Failed,
}

impl TickOutcome {
    /// Returns the state that it gives the tick.
    pub fn state(self) -> TickState {
        match self {
            TickOutcome::Done => TickState::Done,
            TickOutcome::Failed => TickState::Failed,
        }
    }
}

/// The stored row of a name, without its texts.
///
/// ```
/// # use litelease_core::{Row, Term, TickRequest, claim_tick};
/// let asked = TickRequest { tick_ms: 60, attempts: 5 };
/// let step = claim_tick(Row::new("nightly", None), None, "a", asked, Term::new(50, 100)?, 0, None)?;
/// let tick = step.tick.unwrap();
/// assert_eq!((tick.tick_ms, tick.token, tick.attempt), (60, 1, 1));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tick {
    /// The newest tick that was begun; or, if none was, the newest that was skipped.
    pub tick_ms: i64,
    /// Its state.
    pub state: TickState,
    /// The token of its newest grant; 0 if no grant may finish it.
    pub token: i64,
    /// The number of grants it has had.
    pub attempt: i64,
    /// The number of grants it may have.
    pub attempts: i64,
    /// The time of its newest grant.
    pub began_ms: i64,
    /// The time at which it became final.
    pub ended_ms: Option<i64>,
    /// The newest tick before it that was done.
    pub previous_ms: Option<i64>,
    /// The time up to which later ticks are skipped, if that is later than the tick.
    pub skipped_ms: Option<i64>,
}

/// The newest tick of a name, as it is listed.
///
/// ```
/// # use litelease_core::{TickInfo, installed};
/// let (name, tick) = ("nightly".into(), installed(60, 100));
/// let info = TickInfo { name, tick, owner: None, schedule: None, holder: None };
/// assert_eq!(info.tick.newest().tick_ms, 60);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TickInfo {
    /// The name.
    pub name: String,
    /// The newest tick.
    pub tick: Tick,
    /// The owner of its newest grant.
    pub owner: Option<String>,
    /// The schedule that planned it, as its claimant wrote it.
    pub schedule: Option<String>,
    /// The live lease of a holder that is at work on it.
    pub holder: Option<Lease>,
}

/// The newest tick of a name that is taken, and its state.
///
/// ```
/// # use litelease_core::{NewestTick, TickState};
/// let newest = NewestTick { tick_ms: 60, state: TickState::Done };
/// assert_eq!(newest.to_string(), "60 is done");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NewestTick {
    /// The tick.
    pub tick_ms: i64,
    /// Its state.
    pub state: TickState,
}

impl fmt::Display for NewestTick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.tick_ms, self.state)
    }
}

/// A tick that is asked for.
///
/// ```
/// # use litelease_core::{DEFAULT_TICK_ATTEMPTS, TickRequest};
/// assert_eq!(TickRequest::from(60).attempts, DEFAULT_TICK_ATTEMPTS);
/// let at_most_once = TickRequest { tick_ms: 60, attempts: 1 };
/// # assert_eq!(at_most_once.tick_ms, 60);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TickRequest {
    /// The tick.
    pub tick_ms: i64,
    /// The number of grants it may have. The smallest number that any claimant gave counts; 1 means
    /// at most once.
    pub attempts: i64,
}

impl From<i64> for TickRequest {
    fn from(tick_ms: i64) -> Self {
        TickRequest { tick_ms, attempts: DEFAULT_TICK_ATTEMPTS }
    }
}

/// The answer to a claim of a tick.
///
/// ```
/// # use litelease_core::{ClaimTickResult, Row, Term, TickRequest, claim_tick};
/// let asked = TickRequest { tick_ms: 60, attempts: 5 };
/// let step = claim_tick(Row::new("nightly", None), None, "a", asked, Term::new(50, 100)?, 0, None)?;
/// assert!(matches!(step.answer, ClaimTickResult::Acquired { attempt: 1, .. }));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the tick may be taken"]
pub enum ClaimTickResult<S = String> {
    /// The caller has the tick, under this grant.
    Acquired {
        /// The grant.
        lease: Lease<S>,
        /// The number of this grant among those of the tick, from 1.
        attempt: i64,
        /// The newest tick before that was done.
        previous_ms: Option<i64>,
        /// An older tick that was open, and is not run any more.
        passed_ms: Option<i64>,
    },
    /// The name has a live lease.
    Busy {
        /// The lease.
        current: Lease<S>,
        /// The tick that it runs, if it runs one.
        tick_ms: Option<i64>,
    },
    /// The tick is taken: it, or a newer one, is final; or it has had all its grants.
    AlreadyTaken(NewestTick),
    /// The tick is more than a minute ahead of the clock that judges it.
    InFuture {
        /// That clock.
        now_ms: i64,
    },
}

/// The answer to `tick`, which begins and finishes a tick in one step.
///
/// ```
/// # use litelease_core::{Row, TickResult, tick};
/// let step = tick(Row::new("digest", None), None, 60, 100)?;
/// assert_eq!(step.answer, TickResult::First);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the tick may be taken"]
pub enum TickResult {
    /// The tick is the caller's, and done.
    First,
    /// The tick is taken.
    AlreadyTaken(NewestTick),
    /// The tick is more than a minute ahead of the clock that judges it.
    InFuture {
        /// That clock.
        now_ms: i64,
    },
}

/// The answer to a holder that finishes its tick.
///
/// ```
/// # use litelease_core::FinishTickResult;
/// assert!(FinishTickResult::Repeated.is_finished());
/// assert!(!FinishTickResult::Stale { newest: None }.is_finished());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "another grant may have the tick"]
pub enum FinishTickResult {
    /// The tick is final, and its grant has ended.
    Finished,
    /// The same grant has finished it before, with the same outcome. No effect may be repeated.
    Repeated,
    /// The grant does not have the tick any more.
    Stale {
        /// The newest tick that is taken.
        newest: Option<NewestTick>,
    },
}

impl FinishTickResult {
    /// Checks whether the tick is finished by this grant, now or before.
    pub fn is_finished(self) -> bool {
        matches!(self, FinishTickResult::Finished | FinishTickResult::Repeated)
    }
}

/// The answer to an operator.
///
/// ```
/// # use litelease_core::{Row, TickChange, skip};
/// let step = skip(Row::new("nightly", None), None, None, false, 100, 0)?;
/// assert!(matches!(step.answer, TickChange::Changed(newest) if newest.tick_ms == 100));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a tick under way is not changed"]
pub enum TickChange<S = String> {
    /// It is done, and this is the newest tick now.
    Changed(NewestTick),
    /// A holder is at work on the tick.
    Busy(Lease<S>),
    /// The name never had a tick.
    Unknown,
}

/// The decision of a verb on ticks: what to store, if anything, and the answer.
///
/// ```
/// # use litelease_core::{Row, tick};
/// let step = tick(Row::new("digest", None), None, 60, 100)?;
/// assert_eq!(step.lease, None, "no lease is needed");
/// assert_eq!(step.tick.map(|tick| tick.tick_ms), Some(60));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision does nothing until it is stored"]
pub struct TickStep<'q, A> {
    /// The state of the lease to store.
    pub lease: Option<State<'q>>,
    /// The tick to store.
    pub tick: Option<Tick>,
    /// The answer.
    pub answer: A,
}

impl<A> TickStep<'_, A> {
    fn keep(answer: A) -> Self {
        TickStep { lease: None, tick: None, answer }
    }

    fn write(tick: Tick, answer: A) -> Self {
        TickStep { lease: None, tick: Some(tick), answer }
    }
}

/// The answer to a caller whose tick cannot be granted, with or without a live lease.
enum Refused {
    AlreadyTaken(NewestTick),
    InFuture { now_ms: i64 },
}

impl Tick {
    /// Checks what every writer promises of a stored row.
    pub fn is_valid(&self) -> bool {
        self.token >= 0 && self.attempt >= 0 && self.attempts >= 1
    }

    /// Returns the newest tick that is taken.
    pub fn newest(&self) -> NewestTick {
        match self.skipped_ms.filter(|skipped_ms| *skipped_ms > self.tick_ms) {
            Some(tick_ms) => NewestTick { tick_ms, state: TickState::Skipped },
            None => NewestTick { tick_ms: self.tick_ms, state: self.state },
        }
    }

    /// Returns the newest tick that was done.
    pub fn newest_done_ms(&self) -> Option<i64> {
        if self.state == TickState::Done { Some(self.tick_ms) } else { self.previous_ms }
    }

    /// Returns the live lease whose holder is at work on the tick.
    pub fn holder<'a>(&self, row: Row<'a>, now_ms: i64) -> Option<Lease<&'a str>> {
        let is_open = self.state == TickState::Open;
        row.live(now_ms).filter(|lease| is_open && lease.token == self.token)
    }

    /// Checks whether a claimant gets nothing by waiting: its tick, or a newer one, is final; or it
    /// has had all its grants, and no holder is at work on it.
    ///
    /// ```
    /// # use litelease_core::installed;
    /// let newest = installed(60, 100);
    /// assert!(newest.is_taken_for(60.into(), false));
    /// assert!(!newest.is_taken_for(61.into(), false));
    /// ```
    pub fn is_taken_for(&self, asked: TickRequest, has_holder: bool) -> bool {
        let (TickRequest { tick_ms, attempts }, newest) = (asked, self.newest());
        let is_final = newest.state != TickState::Open;
        // The smaller number counts, or one process undoes "at most once" for all.
        let is_exhausted = self.attempt >= self.attempts.min(attempts) && !has_holder;
        tick_ms < newest.tick_ms || (tick_ms == newest.tick_ms && (is_final || is_exhausted))
    }

    fn is_ahead(&self, now_ms: i64) -> bool {
        self.tick_ms > now_ms.saturating_add(MAX_AHEAD_MS)
    }
}

/// Grants a tick: under a live lease it is busy, and a tick that was taken is not granted again.
///
/// A tick that is open although its holder is gone is granted again, as its next attempt. `dead` is
/// a grant whose holder the caller has found to have ended, as for
/// [`claim_from_dead`](crate::claim_from_dead).
///
/// ```
/// # use litelease_core::{ClaimTickResult, Row, Term, TickRequest, claim_tick};
/// let asked = TickRequest { tick_ms: 60, attempts: 5 };
/// let first = claim_tick(Row::new("nightly", None), None, "a", asked, Term::new(50, 100)?, 0, None)?;
/// let row = Row::new("nightly", first.lease);
/// let second = claim_tick(row, first.tick, "b", asked, Term::new(50, 120)?, 0, None)?;
/// assert!(matches!(second.answer, ClaimTickResult::Busy { tick_ms: Some(60), .. }));
/// let later = claim_tick(row, first.tick, "b", asked, Term::new(50, 150)?, 0, None)?;
/// assert!(matches!(later.answer, ClaimTickResult::Acquired { attempt: 2, .. }));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn claim_tick<'a, 'q: 'a>(
    row: Row<'a>,
    stored: Option<Tick>,
    owner: &'q str,
    asked: TickRequest,
    term: Term,
    floor: i64,
    dead: Option<Claimant<'_>>,
) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
    let TickRequest { tick_ms, attempts } = asked;
    if attempts < 1 {
        return Err(Refusal::InvalidAttempts { attempts });
    }
    let now_ms = term.now_ms();
    let dead = dead.filter(|dead| dead.token.is_some());
    let live = row.live(now_ms).filter(|lease| dead.is_none_or(|dead| !dead.is(lease)));
    match refused(stored, tick_ms, attempts, live, now_ms)? {
        Some(Refused::AlreadyTaken(newest)) => {
            return Ok(TickStep::keep(ClaimTickResult::AlreadyTaken(newest)));
        }
        Some(Refused::InFuture { now_ms }) => {
            return Ok(TickStep::keep(ClaimTickResult::InFuture { now_ms }));
        }
        None => {}
    }
    let open = stored.filter(|stored| stored.state == TickState::Open);
    if let Some(current) = live {
        let running = open.filter(|open| open.token == current.token);
        let tick_ms = running.map(|running| running.tick_ms);
        return Ok(TickStep::keep(ClaimTickResult::Busy { current, tick_ms }));
    }
    let (same, passed) =
        (open.filter(|open| open.tick_ms == tick_ms), open.filter(|open| open.tick_ms < tick_ms));
    let previous_ms = stored.and_then(|stored| stored.newest_done_ms());
    let attempt = same.map_or(1, |same| same.attempt.saturating_add(1));
    let passed_ms = passed.map(|passed| passed.tick_ms);
    let step = grant(row, owner, term, floor, |lease| lease)?;
    let tick = Tick {
        tick_ms,
        state: TickState::Open,
        token: step.answer.token,
        attempt,
        attempts: same.map_or(attempts, |same| same.attempts.min(attempts)),
        began_ms: now_ms,
        ended_ms: None,
        previous_ms,
        skipped_ms: None,
    };
    let answer = ClaimTickResult::Acquired { lease: step.answer, attempt, previous_ms, passed_ms };
    Ok(TickStep { lease: step.write, tick: Some(tick), answer })
}

/// Begins and finishes a tick in one step, for a caller whose effect is in the same transaction.
///
/// ```
/// # use litelease_core::{Row, TickResult, tick};
/// let row = Row::new("digest", None);
/// let first = tick(row, None, 60, 100)?;
/// assert_eq!(first.answer, TickResult::First);
/// let second = tick(row, first.tick, 60, 100)?;
/// assert!(matches!(second.answer, TickResult::AlreadyTaken(newest) if newest.tick_ms == 60));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn tick(
    row: Row<'_>,
    stored: Option<Tick>,
    tick_ms: i64,
    now_ms: i64,
) -> Result<TickStep<'static, TickResult>, Refusal> {
    match refused(stored, tick_ms, i64::MAX, row.live(now_ms), now_ms)? {
        Some(Refused::AlreadyTaken(newest)) => {
            return Ok(TickStep::keep(TickResult::AlreadyTaken(newest)));
        }
        Some(Refused::InFuture { now_ms }) => {
            return Ok(TickStep::keep(TickResult::InFuture { now_ms }));
        }
        None => {}
    }
    if let Some(stored) = stored.filter(|stored| stored.holder(row, now_ms).is_some()) {
        return Err(Refusal::TickHeld { tick_ms: stored.tick_ms });
    }
    let same = stored.filter(|stored| stored.tick_ms == tick_ms);
    let tick = Tick {
        tick_ms,
        state: TickState::Done,
        token: 0,
        attempt: same.map_or(1, |same| same.attempt.saturating_add(1)),
        attempts: same.map_or(DEFAULT_TICK_ATTEMPTS, |same| same.attempts),
        began_ms: now_ms,
        ended_ms: Some(now_ms),
        previous_ms: stored.and_then(|stored| stored.newest_done_ms()),
        skipped_ms: None,
    };
    Ok(TickStep::write(tick, TickResult::First))
}

/// Finishes the tick of a grant and ends the grant. It passes as long as no newer token of the name
/// exists, expired or not: tokens decide, not clocks.
///
/// ```
/// # use litelease_core::{FinishTickResult, Row, Term, TickOutcome, TickRequest};
/// # use litelease_core::{claim_tick, finish_tick};
/// let asked = TickRequest { tick_ms: 60, attempts: 5 };
/// let begun = claim_tick(Row::new("nightly", None), None, "a", asked, Term::new(50, 100)?, 0, None)?;
/// let row = Row::new("nightly", begun.lease);
/// let finished = finish_tick(row, begun.tick, 1, TickOutcome::Done, 900);
/// assert_eq!(finished.answer, FinishTickResult::Finished);
/// let late = finish_tick(row, begun.tick, 2, TickOutcome::Done, 900);
/// assert!(matches!(late.answer, FinishTickResult::Stale { .. }));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn finish_tick(
    row: Row<'_>,
    stored: Option<Tick>,
    token: i64,
    outcome: TickOutcome,
    now_ms: i64,
) -> TickStep<'static, FinishTickResult> {
    let newest = stored.map(|stored| stored.newest());
    let own = stored.filter(|stored| stored.token == token && token > 0);
    match own {
        Some(own) if own.state == TickState::Open && row.token() == Some(token) => {
            let has_tenure = row.state().is_some_and(|state| state.tenure().is_some());
            let tick = Tick { state: outcome.state(), ended_ms: Some(now_ms), ..own };
            TickStep {
                lease: has_tenure.then(|| State::free(token)),
                tick: Some(tick),
                answer: FinishTickResult::Finished,
            }
        }
        Some(own) if own.state == outcome.state() => TickStep::keep(FinishTickResult::Repeated),
        _ => TickStep::keep(FinishTickResult::Stale { newest }),
    }
}

/// Returns the tick as it goes over to a new grant, when its holder hands its lease to another
/// owner. Without this the new holder could not finish it, and it would run again.
///
/// ```
/// # use litelease_core::{Row, Term, TickRequest, carry_tick, claim_tick};
/// let asked = TickRequest { tick_ms: 60, attempts: 5 };
/// let begun = claim_tick(Row::new("nightly", None), None, "a", asked, Term::new(50, 100)?, 0, None)?;
/// assert_eq!(carry_tick(begun.tick, 1, 2).map(|tick| tick.token), Some(2));
/// assert_eq!(carry_tick(begun.tick, 7, 8), None, "of another grant");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn carry_tick(stored: Option<Tick>, from: i64, to: i64) -> Option<Tick> {
    let own = stored.filter(|tick| tick.state == TickState::Open && tick.token == from);
    own.map(|tick| Tick { token: to, ..tick })
}

/// Skips every tick up to now, or up to a time: it pauses a schedule, ends a pause, and cures a
/// stored tick that is ahead of the clock. While a holder is at work on a tick it would skip, it is
/// busy, or with `breaks` ends that holder's lease.
///
/// ```
/// # use litelease_core::{Row, skip};
/// let row = Row::new("nightly", None);
/// let paused = skip(row, None, Some(900), false, 100, 0)?.tick;
/// assert_eq!(paused.map(|tick| tick.newest().tick_ms), Some(900));
/// let resumed = skip(row, paused, None, false, 300, 0)?.tick;
/// assert_eq!(resumed.map(|tick| tick.newest().tick_ms), Some(300));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn skip(
    row: Row<'_>,
    stored: Option<Tick>,
    until_ms: Option<i64>,
    breaks: bool,
    now_ms: i64,
    floor: i64,
) -> Result<TickStep<'static, TickChange<&str>>, Refusal> {
    let asked_ms = until_ms.unwrap_or(now_ms);
    // A mark that lies in the past only rises; one in the future may sink as far as to now.
    let mark_ms = match stored.and_then(|stored| stored.skipped_ms) {
        Some(skipped_ms) if skipped_ms > now_ms => asked_ms.max(now_ms),
        Some(skipped_ms) => asked_ms.max(skipped_ms),
        None => asked_ms,
    };
    let ahead = stored.filter(|stored| stored.is_ahead(now_ms));
    let closed = ahead
        .or(stored.filter(|stored| stored.state == TickState::Open && stored.tick_ms <= mark_ms));
    let lease = match closed.and_then(|closed| closed.holder(row, now_ms)) {
        Some(current) if !breaks => return Ok(TickStep::keep(TickChange::Busy(current))),
        Some(_) => Some(State::free(row.ungranted_token(floor)?)),
        None => None,
    };
    let tick = match (ahead, closed, stored) {
        // It may run again when its time comes: the operator has set the clock back.
        (Some(ahead), ..) => Tick {
            previous_ms: ahead.previous_ms.filter(|previous_ms| *previous_ms <= now_ms),
            ..installed(now_ms, now_ms)
        },
        (_, Some(closed), _) => {
            Tick { state: TickState::Skipped, token: 0, ended_ms: Some(now_ms), ..closed }
        }
        (_, _, Some(stored)) => stored,
        (_, _, None) => installed(asked_ms.min(now_ms), now_ms),
    };
    let tick = Tick { skipped_ms: Some(mark_ms).filter(|ms| *ms > tick.tick_ms), ..tick };
    Ok(TickStep { lease, tick: Some(tick), answer: TickChange::Changed(tick.newest()) })
}

/// Returns the row of a schedule that is installed: its newest past tick counts as skipped, so that
/// installing it runs nothing.
///
/// ```
/// # use litelease_core::{TickState, installed};
/// assert_eq!(installed(60, 100).state, TickState::Skipped);
/// ```
pub fn installed(tick_ms: i64, now_ms: i64) -> Tick {
    Tick {
        tick_ms,
        state: TickState::Skipped,
        token: 0,
        attempt: 0,
        attempts: DEFAULT_TICK_ATTEMPTS,
        began_ms: now_ms,
        ended_ms: Some(now_ms),
        previous_ms: None,
        skipped_ms: None,
    }
}

/// Opens the newest tick once more, with all its attempts. No grant from before can finish it.
///
/// ```
/// # use litelease_core::{Row, TickChange, TickState, again, tick};
/// let row = Row::new("digest", None);
/// let done = tick(row, None, 60, 100)?.tick;
/// let opened = again(row, done, 200)?;
/// assert!(matches!(opened.answer, TickChange::Changed(newest) if newest.state == TickState::Open));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn again(
    row: Row<'_>,
    stored: Option<Tick>,
    now_ms: i64,
) -> Result<TickStep<'static, TickChange<&str>>, Refusal> {
    let Some(stored) = stored else { return Ok(TickStep::keep(TickChange::Unknown)) };
    if let Some(current) = stored.holder(row, now_ms) {
        return Ok(TickStep::keep(TickChange::Busy(current)));
    }
    let NewestTick { tick_ms, .. } = stored.newest();
    if tick_ms > now_ms.saturating_add(MAX_AHEAD_MS) {
        return Err(Refusal::TickAhead { tick_ms, now_ms });
    }
    let opened = Tick { state: TickState::Open, ended_ms: None, ..installed(tick_ms, now_ms) };
    let tick = match tick_ms == stored.tick_ms {
        true => Tick { attempts: stored.attempts, previous_ms: stored.previous_ms, ..opened },
        // What an operator has skipped had no claimants yet.
        false => Tick { previous_ms: stored.newest_done_ms(), ..opened },
    };
    Ok(TickStep::write(tick, TickChange::Changed(tick.newest())))
}

/// Decides whether the row of a schedule that is no more may be deleted: not while a holder is at
/// work on its tick.
///
/// ```
/// # use litelease_core::{Row, TickChange, forget_tick, installed};
/// let row = Row::new("digest", None);
/// assert!(matches!(forget_tick(row, Some(installed(60, 100)), 100), TickChange::Changed(_)));
/// assert_eq!(forget_tick(row, None, 100), TickChange::Unknown);
/// ```
pub fn forget_tick(row: Row<'_>, stored: Option<Tick>, now_ms: i64) -> TickChange<&str> {
    match stored {
        None => TickChange::Unknown,
        Some(stored) => match stored.holder(row, now_ms) {
            Some(current) => TickChange::Busy(current),
            None => TickChange::Changed(stored.newest()),
        },
    }
}

/// Looks, in one order for every verb, at what refuses a tick whether its name is free or not. So
/// no claimant waits for a tick that it will not get.
fn refused(
    stored: Option<Tick>,
    tick_ms: i64,
    attempts: i64,
    live: Option<Lease<&str>>,
    now_ms: i64,
) -> Result<Option<Refused>, Refusal> {
    let latest_ms = now_ms.saturating_add(MAX_AHEAD_MS);
    if tick_ms > latest_ms {
        return Ok(Some(Refused::InFuture { now_ms }));
    }
    let Some(stored) = stored else { return Ok(None) };
    let newest = stored.newest();
    if newest.tick_ms > latest_ms && newest.state != TickState::Skipped {
        return Err(Refusal::TickAhead { tick_ms: newest.tick_ms, now_ms });
    }
    let has_holder = live.is_some_and(|lease| lease.token == stored.token);
    let is_taken = stored.is_taken_for(TickRequest { tick_ms, attempts }, has_holder);
    Ok(is_taken.then_some(Refused::AlreadyTaken(newest)))
}

impl ClaimTickResult<&str> {
    /// Returns the answer with text of its own.
    pub fn into_owned(self) -> ClaimTickResult {
        match self {
            ClaimTickResult::Acquired { lease, attempt, previous_ms, passed_ms } => {
                let lease = lease.into_owned();
                ClaimTickResult::Acquired { lease, attempt, previous_ms, passed_ms }
            }
            ClaimTickResult::Busy { current, tick_ms } => {
                ClaimTickResult::Busy { current: current.into_owned(), tick_ms }
            }
            ClaimTickResult::AlreadyTaken(newest) => ClaimTickResult::AlreadyTaken(newest),
            ClaimTickResult::InFuture { now_ms } => ClaimTickResult::InFuture { now_ms },
        }
    }
}

impl TickChange<&str> {
    /// Returns the answer with text of its own.
    pub fn into_owned(self) -> TickChange {
        match self {
            TickChange::Changed(newest) => TickChange::Changed(newest),
            TickChange::Busy(current) => TickChange::Busy(current.into_owned()),
            TickChange::Unknown => TickChange::Unknown,
        }
    }
}
