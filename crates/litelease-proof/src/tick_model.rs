//! Every short history of ticks: two processes, an operator, and one clock that stands still, goes
//! on and is set back.
//!
//! The rule is the real one, or one with a planted bug. Histories that lead to one state are walked
//! once. Processes act on what they believe, however old: each verb of theirs may come from one
//! that was stopped.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use litelease_core::{
    BreakResult, ClaimResult, ClaimTickResult, Claimant, FinishTickResult, MAX_AHEAD_MS, Refusal,
    ReleaseResult, Row, State, Term, Tick, TickChange, TickOutcome, TickRequest, TickResult,
    TickState, TransferResult,
};

use crate::mutant::Rules;

/// A step of the clock. A tick may lie two of them ahead.
const STEP_MS: i64 = MAX_AHEAD_MS / 2;
/// The ttl of every lease, in steps.
const TTL: i64 = 2;
const OWNERS: [&str; 2] = ["a", "b"];

/// What can happen. A number is a tick, in steps from now; a process is 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Event {
    /// The clock moves by so many steps.
    Clock(i64),
    /// A process claims a tick, at most so many times.
    Claim { process: usize, tick: i64, attempts: i64 },
    /// A process claims the tick of this instant from the other one, which it has found dead.
    ClaimFromDead(usize),
    /// A process claims the name, and no tick.
    ClaimName(usize),
    /// A process finishes the tick that it was granted last.
    Finish(usize, TickOutcome),
    /// A process does the tick of this instant in one step.
    Tick(usize),
    /// A process releases what it was granted last.
    Release(usize),
    /// The first process transfers its lease to the second one.
    Transfer,
    /// An operator breaks the lease.
    Break,
    /// An operator purges what has ended.
    Purge,
    /// An operator skips what is due.
    Skip,
    /// The same, and breaks the lease of a holder at work.
    SkipAndBreak,
    /// An operator pauses the schedule for four steps.
    Pause,
    /// An operator opens the newest tick once more.
    Again,
}

const EVENTS: [Event; 24] = [
    Event::Clock(1),
    Event::Clock(TTL),
    Event::Clock(-4),
    Event::Claim { process: 0, tick: 0, attempts: 2 },
    Event::Claim { process: 0, tick: 1, attempts: 2 },
    Event::Claim { process: 0, tick: 3, attempts: 2 },
    Event::Claim { process: 1, tick: 0, attempts: 2 },
    Event::Claim { process: 1, tick: -1, attempts: 2 },
    Event::Claim { process: 1, tick: 0, attempts: 1 },
    Event::ClaimFromDead(1),
    Event::ClaimName(1),
    Event::Finish(0, TickOutcome::Done),
    Event::Finish(1, TickOutcome::Done),
    Event::Finish(1, TickOutcome::Failed),
    Event::Tick(1),
    Event::Release(0),
    Event::Release(1),
    Event::Transfer,
    Event::Break,
    Event::Purge,
    Event::Skip,
    Event::SkipAndBreak,
    Event::Pause,
    Event::Again,
];

/// A promise that a history has broken.
pub type Broken = &'static str;

/// No tick has its effect twice.
pub const ONCE: Broken = "a tick has its effect at most once, unless an operator opens it again";
/// Attempts are counted for all claimants together.
pub const ATTEMPTS: Broken = "no tick is granted more often than any of its claimants allows";
/// Ticks move forward.
pub const FORWARD: Broken = "no tick is granted that is final, or older than one that was begun";
/// A pause is one.
pub const SKIPPED: Broken = "no tick is granted that an operator has skipped";
/// The clock that judges bounds what is taken.
pub const NEAR: Broken = "no tick is granted that is more than a minute ahead";
/// Waiting leads somewhere.
pub const BUSY_HELPS: Broken = "a claimant is told to wait only for a tick that it may still get";
/// A holder that was lost loses no tick.
pub const NOT_LOST: Broken = "a tick whose holder is gone, and a new one, are granted when claimed";
/// Tokens decide.
pub const HOLDER_FINISHES: Broken = "exactly the holder of the newest token finishes its tick";
/// Nothing else is refused.
pub const NO_ERROR: Broken =
    "a verb fails only where a holder is at work or the clock was set back";

/// What a process was granted last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Belief {
    token: i64,
    tick: Option<i64>,
}

/// What became of a tick that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Run {
    tick: i64,
    effects: u8,
    grants: i64,
    /// The smallest number of attempts of those that were granted it.
    least: i64,
    is_final: bool,
    /// The token under which it may be finished.
    token: i64,
}

/// The file, the clock, what the processes believe, and what has happened. Ticks are in steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: i64,
    owner: Option<(usize, i64)>,
    token: Option<i64>,
    updated: i64,
    floor: i64,
    tick: Option<Tick>,
    beliefs: [Option<Belief>; 2],
    /// The ticks that were begun, by tick.
    runs: Vec<Run>,
    /// The tick up to which everything is skipped.
    skipped: Option<i64>,
    /// The part of that which stands in the place of a tick, and is not lowered.
    installed: Option<i64>,
}

/// The result of a search.
pub struct Found {
    /// How many different states were reached.
    pub states: usize,
    /// The promise that was broken, and by which history.
    pub broken: Option<(Broken, Vec<Event>)>,
}

/// Walks all histories of up to `length` events, shorter ones first.
pub fn search(rules: &impl Rules, length: usize) -> Found {
    // 64 bits tell the states of a search apart, with a chance of one in a hundred thousand that
    // two of them look alike and one is not walked.
    let hasher = RandomState::new();
    let mut seen = HashSet::from([hasher.hash_one(World::new())]);
    // Each world with the number of its predecessor and the event between them.
    let mut walked: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut front = vec![(0, World::new())];
    for _ in 0..length {
        let mut next = Vec::new();
        for (number, world) in front {
            for event in EVENTS {
                let mut after = world.clone();
                if let Err(broken) = after.step(rules, event) {
                    let history = history(&walked, number, event);
                    return Found { states: seen.len(), broken: Some((broken, history)) };
                }
                if seen.insert(hasher.hash_one(&after)) {
                    walked.push((number, Some(event)));
                    next.push((walked.len() - 1, after));
                }
            }
        }
        front = next;
    }
    Found { states: seen.len(), broken: None }
}

fn history(walked: &[(usize, Option<Event>)], mut number: usize, last: Event) -> Vec<Event> {
    let mut history = vec![last];
    while let (before, Some(event)) = walked[number] {
        history.push(event);
        number = before;
    }
    history.reverse();
    history
}

fn demand(holds: bool, promise: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(promise) }
}

impl World {
    fn new() -> Self {
        World {
            now: 10,
            owner: None,
            token: None,
            updated: 10,
            floor: 0,
            tick: None,
            beliefs: [None; 2],
            runs: Vec::new(),
            skipped: None,
            installed: None,
        }
    }

    fn row(&self) -> Row<'static> {
        let state = self.token.and_then(|token| {
            let owner = self.owner.map(|(owner, _)| OWNERS[owner]);
            State::stored(token, owner, self.owner.map(|(_, until)| until * STEP_MS))
        });
        Row::new("x", state)
    }

    /// The process with the live lease, by the definition and not by the rule's own code.
    fn live(&self) -> Option<usize> {
        self.owner.filter(|(_, until)| self.now < *until).map(|(owner, _)| owner)
    }

    fn term(&self) -> Result<Term, Broken> {
        Term::new(TTL * STEP_MS, self.now * STEP_MS).map_err(|_| NO_ERROR)
    }

    fn store(&mut self, state: Option<State<'_>>) {
        let Some(state) = state else { return };
        self.token = Some(state.token());
        self.updated = self.now;
        self.owner = state
            .tenure()
            .map(|tenure| (usize::from(tenure.owner == OWNERS[1]), tenure.expires_at_ms / STEP_MS));
    }

    fn step(&mut self, rules: &impl Rules, event: Event) -> Result<(), Broken> {
        let now_ms = self.now * STEP_MS;
        match event {
            Event::Clock(steps) => self.now += steps,
            Event::Claim { process, tick, attempts } => {
                self.claim(rules, process, self.now + tick, attempts, None)?;
            }
            Event::ClaimFromDead(process) => {
                let dead = self.beliefs[1 - process].map(|belief| belief.token);
                self.claim(rules, process, self.now, 2, dead)?;
            }
            Event::ClaimName(process) => {
                let (row, term) = (self.row(), self.term()?);
                let step = rules.claim(row, OWNERS[process], term, self.floor);
                let step = step.map_err(|_| NO_ERROR)?;
                if let ClaimResult::Acquired(lease) = step.answer {
                    self.beliefs[process] = Some(Belief { token: lease.token, tick: None });
                }
                self.store(step.write);
            }
            Event::Finish(process, outcome) => self.finish(rules, process, outcome)?,
            Event::Tick(_) => self.do_tick(rules)?,
            Event::Release(process) => {
                let Some(Belief { token, .. }) = self.beliefs[process] else { return Ok(()) };
                let who = Claimant { owner: OWNERS[process], token: Some(token) };
                let step = rules.release(self.row(), who, now_ms);
                if matches!(step.answer, ReleaseResult::Released { .. }) {
                    self.store(step.write);
                }
            }
            Event::Transfer => self.transfer(rules)?,
            Event::Break => {
                let step = rules.break_lease(self.row(), now_ms, self.floor);
                let step = step.map_err(|_| NO_ERROR)?;
                if matches!(step.answer, BreakResult::Broken { .. }) {
                    self.store(step.write);
                }
            }
            Event::Purge => {
                let end = self.owner.map_or(self.updated, |(_, until)| until);
                if let Some(token) = self.token.filter(|_| end <= self.now) {
                    self.floor = self.floor.max(token);
                    (self.token, self.owner) = (None, None);
                    self.tick = rules.tick_after_purge(self.tick);
                }
            }
            Event::Skip => self.skip(rules, None, false)?,
            Event::SkipAndBreak => self.skip(rules, None, true)?,
            Event::Pause => self.skip(rules, Some(self.now + 4), false)?,
            Event::Again => self.again(rules)?,
        }
        self.check_nothing_is_lost(rules)
    }

    fn run(&mut self, tick: i64) -> &mut Run {
        let at = self.runs.partition_point(|run| run.tick < tick);
        if self.runs.get(at).is_none_or(|run| run.tick != tick) {
            let least = i64::MAX;
            let run = Run { tick, effects: 0, grants: 0, least, is_final: false, token: 0 };
            self.runs.insert(at, run);
        }
        &mut self.runs[at]
    }

    /// The promises about a tick that is granted, or done in one step.
    fn begin(&mut self, tick: i64) -> Result<(), Broken> {
        demand(tick <= self.now + 2, NEAR)?;
        demand(self.skipped.is_none_or(|skipped| tick > skipped), SKIPPED)?;
        let is_newest = self.runs.last().is_none_or(|run| run.tick <= tick);
        demand(is_newest && !self.run(tick).is_final, FORWARD)
    }

    fn claim(
        &mut self,
        rules: &impl Rules,
        process: usize,
        tick: i64,
        attempts: i64,
        dead: Option<i64>,
    ) -> Result<(), Broken> {
        let asked = TickRequest { tick_ms: tick * STEP_MS, attempts };
        let dead = dead.map(|token| Claimant { owner: OWNERS[1 - process], token: Some(token) });
        let (row, term) = (self.row(), self.term()?);
        let step = rules.claim_tick(row, self.tick, OWNERS[process], asked, term, self.floor, dead);
        let step = match step {
            Err(Refusal::TickAhead { .. }) => return demand(self.is_ahead(), NO_ERROR),
            step => step.map_err(|_| NO_ERROR)?,
        };
        match step.answer {
            ClaimTickResult::Acquired { lease, .. } => {
                let is_free =
                    self.live().is_none() || dead.is_some_and(|dead| dead.token == row.token());
                demand(is_free, "a claim is granted exactly when nobody has a live lease")?;
                self.begin(tick)?;
                let run = self.run(tick);
                run.grants += 1;
                run.least = run.least.min(attempts);
                run.token = lease.token;
                demand(run.grants <= run.least, ATTEMPTS)?;
                self.beliefs[process] = Some(Belief { token: lease.token, tick: Some(tick) });
            }
            ClaimTickResult::Busy { .. } => {
                demand(self.live().is_some(), BUSY_HELPS)?;
                let was_begun = self
                    .runs
                    .iter()
                    .any(|run| run.tick > tick || (run.tick == tick && run.is_final));
                let is_skipped = self.skipped.is_some_and(|skipped| tick <= skipped);
                demand(!was_begun && !is_skipped, BUSY_HELPS)?;
            }
            ClaimTickResult::AlreadyTaken(_) | ClaimTickResult::InFuture { .. } => {}
        }
        self.store(step.lease);
        self.tick = step.tick.or(self.tick);
        Ok(())
    }

    fn finish(
        &mut self,
        rules: &impl Rules,
        process: usize,
        outcome: TickOutcome,
    ) -> Result<(), Broken> {
        let Some(Belief { token, tick }) = self.beliefs[process] else { return Ok(()) };
        let row = self.row();
        let step = rules.finish_tick(row, self.tick, token, outcome, self.now * STEP_MS);
        // A tick that was passed is over, also where no lease was needed for that.
        let newest = self.runs.last().filter(|run| Some(run.tick) == tick);
        let may = newest
            .is_some_and(|run| row.token() == Some(token) && run.token == token && !run.is_final);
        demand((step.answer == FinishTickResult::Finished) == may, HOLDER_FINISHES)?;
        if let Some(tick) = tick.filter(|_| may) {
            let run = self.run(tick);
            run.is_final = true;
            run.effects += u8::from(outcome == TickOutcome::Done);
            demand(run.effects <= 1, ONCE)?;
        }
        self.store(step.lease);
        self.tick = step.tick.or(self.tick);
        Ok(())
    }

    fn do_tick(&mut self, rules: &impl Rules) -> Result<(), Broken> {
        let step = match rules.tick(self.row(), self.tick, self.now * STEP_MS, self.now * STEP_MS) {
            Err(Refusal::TickAhead { .. }) => return demand(self.is_ahead(), NO_ERROR),
            Err(Refusal::TickHeld { .. }) => return demand(self.is_at_work(), NO_ERROR),
            step => step.map_err(|_| NO_ERROR)?,
        };
        if step.answer == TickResult::First {
            demand(!self.is_at_work(), HOLDER_FINISHES)?;
            let now = self.now;
            self.begin(now)?;
            let run = self.run(now);
            *run = Run { effects: run.effects + 1, is_final: true, ..*run };
            demand(run.effects <= 1, ONCE)?;
        }
        self.tick = step.tick.or(self.tick);
        Ok(())
    }

    fn transfer(&mut self, rules: &impl Rules) -> Result<(), Broken> {
        let Some(Belief { token, tick }) = self.beliefs[0] else { return Ok(()) };
        let who = Claimant { owner: OWNERS[0], token: Some(token) };
        let step = rules.transfer(self.row(), who, OWNERS[1], self.term()?, self.floor);
        let step = step.map_err(|_| NO_ERROR)?;
        if let TransferResult::Transferred(lease) = step.answer {
            self.tick = rules.carry_tick(self.tick, token, lease.token).or(self.tick);
            self.beliefs[1] = Some(Belief { token: lease.token, tick });
            for run in self.runs.iter_mut().filter(|run| run.token == token) {
                run.token = lease.token;
            }
            self.store(step.write);
        }
        Ok(())
    }

    fn skip(&mut self, rules: &impl Rules, until: Option<i64>, breaks: bool) -> Result<(), Broken> {
        let (row, until_ms) = (self.row(), until.map(|until| until * STEP_MS));
        let now_ms = self.now * STEP_MS;
        let step = rules.skip(row, self.tick, until_ms, breaks, now_ms, self.floor);
        let step = step.map_err(|_| NO_ERROR)?;
        let is_at_work = self.is_at_work();
        match step.answer {
            TickChange::Busy(_) => return demand(is_at_work && !breaks, NO_ERROR),
            TickChange::Unknown => return Err(NO_ERROR),
            TickChange::Changed(_) => {}
        }
        let now = self.now;
        let mark = until.unwrap_or(now);
        // The cure for a clock that was set back: what was taken in the future is free.
        let is_ahead = self.installed.is_some_and(|installed| installed > now + 2);
        if self.is_ahead() || is_ahead {
            self.runs.retain(|run| run.tick <= now);
            self.installed = Some(now);
        } else if self.runs.is_empty() && self.installed.is_none() {
            self.installed = Some(mark.min(now));
        }
        let lowest = match self.skipped {
            Some(skipped) if skipped > now => now,
            skipped => skipped.unwrap_or(mark),
        };
        self.skipped = Some(mark.max(lowest)).max(self.installed);
        for run in self.runs.iter_mut().filter(|run| run.tick <= mark) {
            run.is_final = true;
        }
        self.store(step.lease);
        self.tick = step.tick.or(self.tick);
        Ok(())
    }

    fn again(&mut self, rules: &impl Rules) -> Result<(), Broken> {
        let step = match rules.again(self.row(), self.tick, self.now * STEP_MS) {
            Err(Refusal::TickAhead { .. }) => return Ok(()),
            step => step.map_err(|_| NO_ERROR)?,
        };
        match step.answer {
            TickChange::Busy(_) => return demand(self.is_at_work(), NO_ERROR),
            TickChange::Unknown => return demand(self.tick.is_none(), NO_ERROR),
            TickChange::Changed(newest) => {
                let tick = newest.tick_ms / STEP_MS;
                let run = self.run(tick);
                let least = run.least;
                *run = Run { tick, effects: 0, grants: 0, least, is_final: false, token: 0 };
                self.skipped = self.skipped.map(|skipped| skipped.min(tick - 1));
                self.installed = self.installed.filter(|installed| *installed < tick);
            }
        }
        self.tick = step.tick.or(self.tick);
        Ok(())
    }

    /// Whether a holder is at work on a tick, by what has happened.
    fn is_at_work(&self) -> bool {
        let newest = self.runs.last();
        let run = newest.filter(|run| !run.is_final && run.token != 0);
        self.live().is_some() && run.is_some_and(|run| Some(run.token) == self.token)
    }

    /// Whether the newest tick that was begun is too far ahead of the clock.
    fn is_ahead(&self) -> bool {
        self.runs.last().is_some_and(|run| run.tick > self.now + 2)
    }

    /// Asks for what must be granted, and forgets the answer.
    fn check_nothing_is_lost(&self, rules: &impl Rules) -> Result<(), Broken> {
        if self.live().is_some() || self.is_ahead() {
            return Ok(());
        }
        let newest = self.runs.last();
        let past = newest.map(|run| run.tick).max(self.skipped);
        let open = newest.filter(|run| {
            !run.is_final && run.grants < run.least.min(2) && run.tick <= self.now + 2
        });
        let open = open.filter(|run| self.skipped.is_none_or(|skipped| run.tick > skipped));
        let new = Some(self.now).filter(|now| past.is_none_or(|past| *now > past));
        for tick in open.map(|run| run.tick).into_iter().chain(new) {
            let asked = TickRequest { tick_ms: tick * STEP_MS, attempts: 2 };
            let (row, term) = (self.row(), self.term()?);
            let step = rules.claim_tick(row, self.tick, "b", asked, term, self.floor, None);
            let answer = step.map_err(|_| NO_ERROR)?.answer;
            demand(matches!(answer, ClaimTickResult::Acquired { .. }), NOT_LOST)?;
        }
        Ok(())
    }
}

/// Whether a tick of a file that is loaded is what every writer promises.
pub fn is_sound(tick: Tick) -> bool {
    tick.is_valid() && (tick.state != TickState::Open || tick.skipped_ms.is_none())
}
