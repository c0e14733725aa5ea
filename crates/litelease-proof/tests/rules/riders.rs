//! Every short history of what rides on a grant: values, limits and requests, mixed with the verbs
//! that begin and end grants. The same walk over rules with planted bugs must find each of them.

use std::thread;
use std::time::Instant;

use litelease_core::{
    Claimant, Conditions, Limits, REQUEST_LAPSES_MS, Reason, RenewResult, Request, RequestResult,
    Row, State, Term, TransferResult, limit,
};
use litelease_proof::mutant::*;
use litelease_proof::rig::report;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Claim(&'static str),
    Renew(&'static str),
    Release(&'static str),
    Transfer(&'static str, &'static str),
    Break,
    TakeOver(&'static str),
    HandOver(&'static str),
    /// By the newest token, with progress within 2 ms.
    LimitProgress,
    /// By the newest token, with an end in 1 ms.
    LimitEnd,
    Progress,
    /// By the token before the newest.
    ProgressOfZombie,
    Request(&'static str),
    Attach,
}

const VERBS: [Verb; 17] = [
    Verb::Claim("a"),
    Verb::Claim("b"),
    Verb::Renew("a"),
    Verb::Renew("b"),
    Verb::Release("a"),
    Verb::Transfer("a", "b"),
    Verb::Break,
    Verb::TakeOver("b"),
    Verb::HandOver("a"),
    Verb::HandOver("b"),
    Verb::LimitProgress,
    Verb::LimitEnd,
    Verb::Progress,
    Verb::ProgressOfZombie,
    Verb::Request("b"),
    Verb::Request("c"),
    Verb::Attach,
];

/// How many steps the longest histories have, after a first claim.
const LENGTH: usize = 4;

/// How the clock moves before a step. The last one makes a request lapse.
const TICKS: [i64; 4] = [0, 1, 2, REQUEST_LAPSES_MS];

/// A lease lasts longer than a request that is not repeated.
const TTL_MS: i64 = REQUEST_LAPSES_MS + 3;
const PROGRESS_MS: i64 = 2;
const WITHIN_MS: i64 = 1;

#[derive(Clone, Copy)]
struct World {
    now_ms: i64,
    state: Option<State<'static>>,
    limits: Option<Limits>,
    request: Option<(&'static str, Request)>,
    /// The token under which the value was attached.
    value: Option<i64>,
    /// What the newest grant knows, told by hand and not by the rule.
    newest: NewestGrant,
}

/// The newest grant, by the definition: what was set on it, and nothing of the grants before.
#[derive(Clone, Copy, Default)]
struct NewestGrant {
    /// When progress was last made, if it is demanded.
    progress_at_ms: Option<i64>,
    end_ms: Option<i64>,
    requested: Option<OpenRequest>,
    has_value: bool,
    /// Until when its holder may trust it.
    trusted_ms: i64,
}

#[derive(Clone, Copy)]
struct OpenRequest {
    by: &'static str,
    until_ms: i64,
    repeated_at_ms: i64,
}

type Broken = &'static str;

const NOTHING_IS_CUT: Broken = "nobody's trust window is cut";
const NO_PROGRESS: Broken = "a renewal needs progress where that is demanded, and only there";
const THE_END: Broken = "no renewal prolongs past the end, and none comes after it";
const REQUESTED: Broken = "an open request refuses renewals from its time on, and only then";
const ONE_REQUEST: Broken = "there is one open request per grant, and its time stays";
const HANDED: Broken = "only the holder hands over, and only to who asks";
const VALUES: Broken = "a value is shown exactly as long as its grant is live";
const TOKENS_GROW: Broken = "a token grows with every grant";

fn demand(holds: bool, promise: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(promise) }
}

impl World {
    fn new() -> Self {
        let mut world = World {
            now_ms: 100,
            state: None,
            limits: None,
            request: None,
            value: None,
            newest: NewestGrant::default(),
        };
        world.step(&TheRule, Verb::Claim("a")).expect("a first claim");
        world
    }

    fn live(&self) -> Option<(&'static str, i64, i64)> {
        let state = self.state?;
        let tenure = state.tenure().filter(|tenure| self.now_ms < tenure.expires_at_ms)?;
        Some((tenure.owner, state.token(), tenure.expires_at_ms))
    }

    fn token(&self) -> i64 {
        self.state.map_or(0, |state| state.token())
    }

    /// The open request for the newest grant, by the definition.
    fn open(&self) -> Option<OpenRequest> {
        let is_open = |heard: &OpenRequest| self.now_ms < heard.repeated_at_ms + REQUEST_LAPSES_MS;
        self.live().and(self.newest.requested).filter(is_open)
    }

    fn step(&mut self, rules: &impl Rules, verb: Verb) -> Result<(), Broken> {
        let before = *self;
        let row = Row::new("x", self.state);
        let term = Term::new(TTL_MS, self.now_ms).map_err(|_| "small times are never refused")?;
        let refused = |_| "small numbers are never refused";
        let now_ms = self.now_ms;
        match verb {
            Verb::Claim(owner) => {
                let step = rules.claim(row, owner, term, 0).map_err(refused)?;
                self.granted(step.write)?;
            }
            Verb::TakeOver(owner) => {
                let step = rules.take_over(row, owner, term, 0).map_err(refused)?;
                self.granted(step.write)?;
            }
            Verb::Transfer(owner, to) => {
                let who = Claimant { owner, token: None };
                let step = rules.transfer(row, who, to, term, 0).map_err(refused)?;
                self.granted(step.write)?;
            }
            Verb::HandOver(owner) => {
                let who = Claimant { owner, token: None };
                let step = rules.hand_over(row, who, self.request, term, 0).map_err(refused)?;
                let open = before.open();
                let is_holder = before.live().is_some_and(|(holder, ..)| holder == owner);
                match step.answer {
                    TransferResult::Transferred(lease) => {
                        demand(
                            is_holder && open.is_some_and(|open| open.by == lease.owner),
                            HANDED,
                        )?;
                    }
                    TransferResult::Rejected { reason, .. } => {
                        demand(!is_holder || open.is_none(), HANDED)?;
                        let is_unasked = reason == Reason::NotRequested;
                        demand(is_unasked == (is_holder && open.is_none()), HANDED)?;
                    }
                }
                self.granted(step.write)?;
            }
            Verb::Release(owner) => {
                let step = rules.release(row, Claimant { owner, token: None }, now_ms);
                self.state = step.write.or(self.state);
            }
            Verb::Break => {
                let step = rules.break_lease(row, now_ms, 0).map_err(refused)?;
                self.state = step.write.or(self.state);
                if step.write.is_some() {
                    self.newest = NewestGrant::default();
                }
            }
            Verb::Renew(owner) => {
                let request = self.request.map(|(_, request)| request);
                let conditions = Conditions { limits: self.limits, request };
                let who = Claimant { owner, token: None };
                let step = rules.renew(row, who, term, conditions);
                self.state = step.write.or(self.state);
                let is_holder = before.live().is_some_and(|(holder, ..)| holder == owner);
                if is_holder {
                    self.after_renewal(&before, step.answer)?;
                }
            }
            Verb::LimitProgress | Verb::LimitEnd => {
                let (within, end) = match verb {
                    Verb::LimitEnd => (None, Some(now_ms + 1)),
                    _ => (Some(PROGRESS_MS), None),
                };
                if limit(row, self.token(), now_ms).is_done() {
                    let limits = Limits::new(self.token(), within, end, now_ms);
                    self.limits = Some(limits.map_err(|_| "small times are never refused")?);
                    self.newest.progress_at_ms = within.map(|_| now_ms);
                    self.newest.end_ms = end;
                }
            }
            Verb::Progress | Verb::ProgressOfZombie => {
                let token = self.token() - i64::from(verb == Verb::ProgressOfZombie);
                let is_live = before.live().is_some() && verb == Verb::Progress;
                let noted = rules.progress(row, token, now_ms).is_done();
                demand(noted == is_live, NO_PROGRESS)?;
                if noted && let Some(limits) = &mut self.limits {
                    limits.progress_at_ms =
                        if limits.token == token { now_ms } else { limits.progress_at_ms };
                    self.newest.progress_at_ms = self.newest.progress_at_ms.map(|_| now_ms);
                }
            }
            Verb::Request(requester) => {
                let step = rules.request(row, self.request, requester, WITHIN_MS, now_ms);
                let step = step.map_err(refused)?;
                self.request = step.write.map(|request| (requester, request)).or(self.request);
                self.after_request(&before, requester, step.answer)?;
            }
            Verb::Attach => {
                if rules.attach(row, self.token(), now_ms).is_done() {
                    demand(before.live().is_some(), VALUES)?;
                    self.value = Some(self.token());
                    self.newest.has_value = true;
                } else {
                    demand(before.live().is_none(), VALUES)?;
                }
            }
        }
        self.check(&before, rules, verb)
    }

    /// Stores a new grant, which begins without anything.
    fn granted(&mut self, write: Option<State<'static>>) -> Result<(), Broken> {
        let Some(state) = write else { return Ok(()) };
        demand(state.token() > self.token(), TOKENS_GROW)?;
        self.state = write;
        let trusted_ms = state.tenure().map_or(0, |tenure| tenure.expires_at_ms);
        self.newest = NewestGrant { trusted_ms, ..NewestGrant::default() };
        Ok(())
    }

    fn after_renewal(&mut self, before: &World, answer: RenewResult<&str>) -> Result<(), Broken> {
        let NewestGrant { progress_at_ms, end_ms, .. } = before.newest;
        let is_over = end_ms.is_some_and(|end_ms| end_ms <= self.now_ms);
        let is_stuck = progress_at_ms.is_some_and(|at_ms| at_ms + PROGRESS_MS <= self.now_ms);
        let is_asked = before.open().is_some_and(|open| open.until_ms <= self.now_ms);
        match answer {
            RenewResult::Renewed(lease) => {
                demand(!is_over, THE_END)?;
                demand(!is_stuck, NO_PROGRESS)?;
                demand(!is_asked, REQUESTED)?;
                let until_ms = self.now_ms + TTL_MS;
                let until_ms = end_ms.map_or(until_ms, |end_ms| until_ms.min(end_ms));
                let old_ms = before.newest.trusted_ms;
                demand(lease.expires_at_ms >= old_ms, NOTHING_IS_CUT)?;
                demand(lease.expires_at_ms == old_ms.max(until_ms), THE_END)?;
                self.newest.trusted_ms = lease.expires_at_ms;
                Ok(())
            }
            RenewResult::Rejected { reason, .. } => {
                demand((reason == Reason::TimeIsUp) == is_over, THE_END)?;
                demand((reason == Reason::NoProgress) == (is_stuck && !is_over), NO_PROGRESS)?;
                let is_requested = is_asked && !is_stuck && !is_over;
                demand((reason == Reason::Requested) == is_requested, REQUESTED)?;
                demand(is_over || is_stuck || is_asked, REQUESTED)
            }
        }
    }

    fn after_request(
        &mut self,
        before: &World,
        requester: &'static str,
        answer: RequestResult<&str>,
    ) -> Result<(), Broken> {
        let now_ms = self.now_ms;
        let (is_live, open) = (before.live().is_some(), before.open());
        match answer {
            RequestResult::Requested { until_ms, .. } => {
                demand(is_live && open.is_none_or(|open| open.by == requester), ONE_REQUEST)?;
                let right_ms = open.map_or(now_ms + WITHIN_MS, |open| open.until_ms);
                demand(until_ms == right_ms, ONE_REQUEST)?;
                let heard = OpenRequest { by: requester, until_ms, repeated_at_ms: now_ms };
                self.newest.requested = Some(heard);
                Ok(())
            }
            RequestResult::RequestedBy { requester: by, until_ms } => {
                let told = open.map(|open| (open.by, open.until_ms));
                demand(told == Some((by, until_ms)) && by != requester, ONE_REQUEST)
            }
            RequestResult::Rejected { .. } => demand(!is_live, ONE_REQUEST),
        }
    }

    /// What holds after every step.
    fn check(&self, before: &World, rules: &impl Rules, verb: Verb) -> Result<(), Broken> {
        let row = Row::new("x", self.state);
        // Only what ends or replaces a grant may take a lease from who trusts it.
        let ends = matches!(
            verb,
            Verb::Release(_)
                | Verb::Transfer(..)
                | Verb::Break
                | Verb::TakeOver(_)
                | Verb::HandOver(_)
        );
        if let (Some((_, token, until_ms)), false) = (before.live(), ends) {
            let now = self.live().map(|(_, token, until_ms)| (token, until_ms));
            demand(now.is_some_and(|now| now.0 == token && now.1 >= until_ms), NOTHING_IS_CUT)?;
        }
        let shown = self.value.is_some_and(|token| rules.is_shown(row, token, self.now_ms));
        demand(shown == (self.live().is_some() && self.newest.has_value), VALUES)?;
        let is_open = self.request.is_some_and(|(_, found)| rules.is_open(found, row, self.now_ms));
        demand(is_open == self.open().is_some(), ONE_REQUEST)
    }
}

fn walk(
    rules: &impl Rules,
    world: &World,
    depth: usize,
    steps: &mut u64,
) -> Result<(), (Broken, Vec<(i64, Verb)>)> {
    if depth == 0 {
        return Ok(());
    }
    for tick in TICKS {
        for verb in VERBS {
            let mut next = *world;
            next.now_ms += tick;
            *steps += 1;
            let done = match next.step(rules, verb) {
                Ok(()) => walk(rules, &next, depth - 1, steps),
                Err(promise) => Err((promise, Vec::new())),
            };
            done.map_err(|(promise, mut history)| {
                history.insert(0, (next.now_ms, verb));
                (promise, history)
            })?;
        }
    }
    Ok(())
}

#[test]
fn every_short_history_of_values_limits_and_requests_keeps_every_promise() {
    let start = Instant::now();
    let walk_from = |verb: Verb| {
        let mut steps = 0;
        for tick in TICKS {
            let mut world = World::new();
            world.now_ms += tick;
            world.step(&TheRule, verb).unwrap();
            steps += 1;
            assert_eq!(walk(&TheRule, &world, LENGTH - 1, &mut steps), Ok(()));
        }
        steps
    };
    let steps: u64 = thread::scope(|scope| {
        let walks = VERBS.map(|verb| scope.spawn(move || walk_from(verb)));
        walks.into_iter().map(|walk| walk.join().unwrap()).sum()
    });
    let seconds = start.elapsed().as_secs_f32();
    report(&format!("riders: all histories of {LENGTH} steps, {steps} steps in {seconds:.1} s"));
    let branches = (VERBS.len() * TICKS.len()) as u64;
    assert_eq!(steps, (1..=LENGTH as u32).map(|step| branches.pow(step)).sum::<u64>());
}

#[track_caller]
fn check_finds(rules: impl Rules, promise: Broken) {
    let mut found =
        (1..=LENGTH).filter_map(|depth| walk(&rules, &World::new(), depth, &mut 0).err());
    let (broken, history) = found.next().expect("the planted bug was not found");
    report(&format!("riders: {broken}: broken by {history:?}"));
    assert_eq!(broken, promise);
}

#[test]
fn every_planted_bug_of_values_limits_and_requests_is_found() {
    check_finds(RenewPastTheEnd, THE_END);
    check_finds(RenewWithoutProgress, NO_PROGRESS);
    check_finds(LimitsOutliveGrant, NO_PROGRESS);
    check_finds(EndCutsLease, NOTHING_IS_CUT);
    check_finds(ProgressOfZombie, NO_PROGRESS);
    check_finds(RequestIgnored, REQUESTED);
    check_finds(RequestNeverLapses, REQUESTED);
    check_finds(RequestOutlivesGrant, REQUESTED);
    check_finds(RequestCutsLease, NOTHING_IS_CUT);
    check_finds(SecondRequestWins, ONE_REQUEST);
    check_finds(RepeatProlongs, ONE_REQUEST);
    check_finds(HandsOverToLapsed, HANDED);
    check_finds(HandOverByAnyone, HANDED);
    check_finds(TakeOverKeepsToken, TOKENS_GROW);
    check_finds(ValueOutlivesGrant, VALUES);
    check_finds(ValueOfPredecessor, VALUES);
    check_finds(AttachAfterTheEnd, VALUES);
}
