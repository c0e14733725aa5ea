//! Every short history of the pure rule, with the promises as assertions.
//!
//! Not a sample: all sequences of verbs by two owners, with the clock standing still, advancing and
//! going back between them. The same walk over rules with planted bugs must find each of them.

use std::thread;
use std::time::Instant;

use litelease_core::{
    BreakResult, ClaimResult, Claimant, Conditions, Lease, ReleaseResult, RenewResult, Row, State,
    Tenure, Term, TransferResult, has_ended, purge_limit,
};
use litelease_proof::mutant::*;
use litelease_proof::rig::report;

/// What can happen in a step. `Newest` forms name the newest grant's token, `First` forms the first
/// one's.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Claim(&'static str),
    ClaimAbove(&'static str),
    /// A claim from the first grant, whose holder is found dead.
    ClaimFromFirst(&'static str),
    Renew(&'static str),
    RenewFirst(&'static str),
    RenewNewest(&'static str),
    Release(&'static str),
    ReleaseFirst(&'static str),
    Transfer(&'static str, &'static str),
    TransferFirst(&'static str, &'static str),
    Break,
    Purge,
    Ensure(&'static str),
}

const VERBS: [Verb; 16] = [
    Verb::Claim("a"),
    Verb::Claim("b"),
    Verb::ClaimAbove("a"),
    Verb::ClaimFromFirst("b"),
    Verb::Renew("a"),
    Verb::Renew("b"),
    Verb::RenewFirst("a"),
    Verb::RenewNewest("b"),
    Verb::Release("a"),
    Verb::Release("b"),
    Verb::ReleaseFirst("a"),
    Verb::Transfer("a", "b"),
    Verb::TransferFirst("a", "b"),
    Verb::Break,
    Verb::Purge,
    Verb::Ensure("a"),
];

/// How many steps the longest histories have.
const LENGTH: usize = 5;

/// How the clock moves before a step.
const TICKS: [i64; 4] = [-1, 0, 1, 2];

/// A lease of 2 ms expires within a short history, and one tick before, at and after its end are
/// all met.
const TTL_MS: i64 = 2;

/// A grant as its holder knows it.
#[derive(Clone, Copy)]
struct Grant {
    owner: &'static str,
    token: i64,
    until_ms: i64,
    given_up: bool,
}

/// The file and what everybody believes, after some steps.
#[derive(Clone, Copy)]
struct World {
    now_ms: i64,
    clock_went_back: bool,
    state: Option<State<'static>>,
    updated_at_ms: i64,
    floor: i64,
    /// The largest token that was ever in the row.
    highest: i64,
    grants: [Option<Grant>; 8],
    granted: usize,
}

type Broken = &'static str;

const ONE_OWNER: Broken = "at any instant a name has at most one live owner";
const TOKENS_GROW: Broken = "a token strictly grows with every grant and is never reused";
const NO_MEANS_NO: Broken = "an answer of no changes nothing";
const ONLY_THE_DEAD: Broken = "only the grant that was examined is taken over";
const FREE_IS_GRANTED: Broken = "a claim is granted exactly when nobody has a live lease";
const ONLY_THE_HOLDER: Broken = "only the live holder renews, releases and transfers";
const RENEW_PROLONGS: Broken = "a renewal keeps the token and never shortens";
const STORED_AS_ANSWERED: Broken = "what is answered is what is stored";
const LIVE_IS_KEPT: Broken = "what is live is never purged";

fn demand(holds: bool, promise: Broken) -> Result<(), Broken> {
    if holds { Ok(()) } else { Err(promise) }
}

impl World {
    fn new() -> Self {
        World {
            now_ms: 100,
            clock_went_back: false,
            state: None,
            updated_at_ms: 0,
            floor: 0,
            highest: 0,
            grants: [None; 8],
            granted: 0,
        }
    }

    /// The live lease, by the definition and not by the rule's own code.
    fn live(&self) -> Option<(Tenure<'static>, i64)> {
        let state = self.state?;
        let tenure = state.tenure().filter(|tenure| self.now_ms < tenure.expires_at_ms)?;
        Some((tenure, state.token()))
    }

    fn step(&mut self, rules: &impl Rules, verb: Verb) -> Result<(), Broken> {
        let before = *self;
        let row = Row::new("x", self.state);
        let term = Term::new(TTL_MS, self.now_ms).map_err(|_| "small times are never refused")?;
        let refused = |_| "small tokens are never refused";
        let first = self.grants[0].map_or(1, |grant| grant.token);
        let newest = self.highest.max(1);
        match verb {
            Verb::Claim(owner) | Verb::ClaimAbove(owner) => {
                let above = if matches!(verb, Verb::ClaimAbove(_)) { self.highest + 1 } else { 0 };
                let floor = self.floor.max(above);
                let step = rules.claim(row, owner, term, floor).map_err(refused)?;
                self.write(step.write);
                self.after_claim(&before, owner, above, step.answer)
            }
            Verb::ClaimFromFirst(owner) => {
                let dead = self.grants[0].map_or(("a", 1), |grant| (grant.owner, grant.token));
                let dead = Claimant { owner: dead.0, token: Some(dead.1) };
                let step =
                    rules.claim_from_dead(row, owner, term, self.floor, dead).map_err(refused)?;
                self.write(step.write);
                self.after_claim_from_dead(&before, owner, dead, step.answer)
            }
            Verb::Renew(owner) | Verb::RenewFirst(owner) | Verb::RenewNewest(owner) => {
                let token = match verb {
                    Verb::RenewFirst(_) => Some(first),
                    Verb::RenewNewest(_) => Some(newest),
                    _ => None,
                };
                let who = Claimant { owner, token };
                let step = rules.renew(row, who, term, Conditions::default());
                self.write(step.write);
                self.after_renew(&before, who, step.answer)
            }
            Verb::Release(owner) | Verb::ReleaseFirst(owner) => {
                let exact = matches!(verb, Verb::ReleaseFirst(_));
                let who = Claimant { owner, token: exact.then_some(first) };
                let step = rules.release(row, who, self.now_ms);
                self.write(step.write);
                self.after_release(&before, who, step.answer)
            }
            Verb::Transfer(owner, to) | Verb::TransferFirst(owner, to) => {
                let exact = matches!(verb, Verb::TransferFirst(..));
                let who = Claimant { owner, token: exact.then_some(first) };
                let step = rules.transfer(row, who, to, term, self.floor).map_err(refused)?;
                self.write(step.write);
                self.after_transfer(&before, who, to, step.answer)
            }
            Verb::Break => {
                let step = rules.break_lease(row, self.now_ms, self.floor).map_err(refused)?;
                self.write(step.write);
                self.after_break(&before, step.answer)
            }
            Verb::Purge => self.purge(),
            Verb::Ensure(owner) => {
                let step = rules
                    .ensure(row, owner, term, self.floor, Conditions::default())
                    .map_err(refused)?;
                self.write(step.write);
                self.after_ensure(&before, owner, step.answer)
            }
        }?;
        self.highest = self.highest.max(self.token());
        demand(self.token() == 0 || self.token() == self.highest, TOKENS_GROW)?;
        self.check_one_owner()
    }

    fn write(&mut self, state: Option<State<'static>>) {
        if state.is_some() {
            self.state = state;
            self.updated_at_ms = self.now_ms;
        }
    }

    fn token(&self) -> i64 {
        self.state.map_or(0, |state| state.token())
    }

    fn after_claim(
        &mut self,
        before: &World,
        owner: &'static str,
        above: i64,
        answer: ClaimResult<&str>,
    ) -> Result<(), Broken> {
        match answer {
            ClaimResult::Acquired(lease) => {
                demand(before.live().is_none(), FREE_IS_GRANTED)?;
                demand(lease.token > above, TOKENS_GROW)?;
                self.granted(before, owner, lease)
            }
            ClaimResult::Busy(current) => {
                demand(before.live().is_some(), FREE_IS_GRANTED)?;
                self.unchanged(before, Some(current))
            }
        }
    }

    fn after_claim_from_dead(
        &mut self,
        before: &World,
        owner: &'static str,
        dead: Claimant<'_>,
        answer: ClaimResult<&str>,
    ) -> Result<(), Broken> {
        if !before.is_held_by(dead) {
            let busy = before.live().is_some();
            demand(!busy || matches!(answer, ClaimResult::Busy(_)), ONLY_THE_DEAD)?;
            return self.after_claim(before, owner, 0, answer);
        }
        let ClaimResult::Acquired(lease) = answer else { return Err(ONLY_THE_DEAD) };
        self.on_newest(|grant| grant.given_up = true);
        self.granted(before, owner, lease)
    }

    fn after_ensure(
        &mut self,
        before: &World,
        owner: &'static str,
        answer: ClaimResult<&str>,
    ) -> Result<(), Broken> {
        let who = Claimant { owner, token: None };
        match answer {
            ClaimResult::Acquired(lease) if before.live().is_some() => {
                self.after_renew(before, who, RenewResult::Renewed(lease))
            }
            ClaimResult::Busy(_) if before.is_held_by(who) => Err(ONLY_THE_HOLDER),
            answer => self.after_claim(before, owner, 0, answer),
        }
    }

    fn after_renew(
        &mut self,
        before: &World,
        who: Claimant<'_>,
        answer: RenewResult<&str>,
    ) -> Result<(), Broken> {
        match answer {
            RenewResult::Renewed(lease) => {
                demand(before.is_held_by(who), ONLY_THE_HOLDER)?;
                let old_until_ms = before.live().map_or(0, |(tenure, _)| tenure.expires_at_ms);
                let until_ms = old_until_ms.max(self.now_ms + TTL_MS);
                demand(lease.token == before.token(), RENEW_PROLONGS)?;
                demand(lease.expires_at_ms == until_ms, RENEW_PROLONGS)?;
                demand(self.stores(lease), STORED_AS_ANSWERED)?;
                self.on_newest(|grant| grant.until_ms = until_ms);
                Ok(())
            }
            RenewResult::Rejected { current, .. } => {
                demand(!before.is_held_by(who), ONLY_THE_HOLDER)?;
                self.unchanged(before, current)
            }
        }
    }

    fn after_release(
        &mut self,
        before: &World,
        who: Claimant<'_>,
        answer: ReleaseResult<&str>,
    ) -> Result<(), Broken> {
        match answer {
            ReleaseResult::Released { token, .. } => {
                demand(before.is_held_by(who), ONLY_THE_HOLDER)?;
                demand(token == before.token(), STORED_AS_ANSWERED)?;
                demand(self.token() == token && self.live().is_none(), STORED_AS_ANSWERED)?;
                self.on_newest(|grant| grant.given_up = true);
                Ok(())
            }
            ReleaseResult::Rejected { current, .. } => {
                demand(!before.is_held_by(who), ONLY_THE_HOLDER)?;
                self.unchanged(before, current)
            }
        }
    }

    fn after_transfer(
        &mut self,
        before: &World,
        who: Claimant<'_>,
        to: &'static str,
        answer: TransferResult<&str>,
    ) -> Result<(), Broken> {
        match answer {
            TransferResult::Transferred(lease) => {
                demand(before.is_held_by(who), ONLY_THE_HOLDER)?;
                self.on_newest(|grant| grant.given_up = true);
                self.granted(before, to, lease)
            }
            TransferResult::Rejected { current, .. } => {
                demand(!before.is_held_by(who), ONLY_THE_HOLDER)?;
                self.unchanged(before, current)
            }
        }
    }

    fn after_break(&mut self, before: &World, answer: BreakResult<&str>) -> Result<(), Broken> {
        match answer {
            BreakResult::Broken { owner, token } => {
                let was = before.live().map(|(tenure, token)| (tenure.owner, token));
                demand(was == Some((owner, token)), STORED_AS_ANSWERED)?;
                demand(self.token() > before.highest, TOKENS_GROW)?;
                demand(self.live().is_none(), STORED_AS_ANSWERED)?;
                self.on_newest(|grant| grant.given_up = true);
                Ok(())
            }
            BreakResult::Rejected { current, .. } => {
                demand(before.live().is_none(), ONLY_THE_HOLDER)?;
                self.unchanged(before, current)
            }
        }
    }

    /// Deletes the row if its last lease has ended by now, as a store does.
    fn purge(&mut self) -> Result<(), Broken> {
        let Some(state) = self.state else { return Ok(()) };
        if has_ended(state, self.updated_at_ms, purge_limit(i64::MAX, self.now_ms)) {
            demand(self.live().is_none(), LIVE_IS_KEPT)?;
            self.floor = self.floor.max(state.token());
            self.state = None;
        }
        Ok(())
    }

    fn granted(
        &mut self,
        before: &World,
        owner: &'static str,
        lease: Lease<&str>,
    ) -> Result<(), Broken> {
        demand(lease.token > before.highest, TOKENS_GROW)?;
        demand(lease.owner == owner, STORED_AS_ANSWERED)?;
        demand(lease.expires_at_ms == self.now_ms + TTL_MS, STORED_AS_ANSWERED)?;
        demand(self.stores(lease), STORED_AS_ANSWERED)?;
        let until_ms = lease.expires_at_ms;
        self.grants[self.granted] =
            Some(Grant { owner, token: lease.token, until_ms, given_up: false });
        self.granted += 1;
        Ok(())
    }

    /// After a no: the row is as it was, and the answer tells who has it.
    fn unchanged(&self, before: &World, told: Option<Lease<&str>>) -> Result<(), Broken> {
        demand(self.state == before.state && self.floor == before.floor, NO_MEANS_NO)?;
        let told = told.map(|lease| (lease.owner, lease.token, lease.expires_at_ms));
        let live = before.live().map(|(tenure, token)| (tenure.owner, token, tenure.expires_at_ms));
        demand(told == live, STORED_AS_ANSWERED)
    }

    fn stores(&self, lease: Lease<&str>) -> bool {
        self.state == State::stored(lease.token, Some(lease.owner), Some(lease.expires_at_ms))
    }

    fn is_held_by(&self, who: Claimant<'_>) -> bool {
        self.live().is_some_and(|(tenure, token)| {
            tenure.owner == who.owner && who.token.unwrap_or(token) == token
        })
    }

    fn on_newest(&mut self, change: impl FnOnce(&mut Grant)) {
        let newest = self.granted.checked_sub(1).and_then(|at| self.grants[at].as_mut());
        if let Some(grant) = newest {
            change(grant);
        }
    }

    /// Asks the holders instead of the row: how many believe that the name is theirs now? A clock
    /// that was set back makes old beliefs look fresh; what is promised then is the order of
    /// tokens.
    fn check_one_owner(&self) -> Result<(), Broken> {
        if self.clock_went_back {
            return Ok(());
        }
        let believes = |grant: &&Grant| !grant.given_up && self.now_ms < grant.until_ms;
        let mut believers = self.grants.iter().flatten().filter(believes);
        match (believers.next(), believers.next()) {
            (Some(_), Some(_)) => Err(ONE_OWNER),
            (Some(grant), None) => {
                let row = self.live().map(|(tenure, token)| (tenure.owner, token));
                demand(row == Some((grant.owner, grant.token)), ONE_OWNER)
            }
            _ => Ok(()),
        }
    }
}

/// Walks all histories of up to `depth` more steps, and stops at the first broken promise.
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
            next.clock_went_back |= tick < 0;
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
fn every_short_history_keeps_every_promise() {
    let start = Instant::now();
    // A first step that moves the clock is the same as one that does not: the start is arbitrary.
    let firsts = VERBS.map(|verb| {
        let mut world = World::new();
        world.step(&TheRule, verb).unwrap();
        world
    });
    let walk_from = |world: &World| {
        let mut steps = 1;
        assert_eq!(walk(&TheRule, world, LENGTH - 1, &mut steps), Ok(()));
        steps
    };
    let steps: u64 = thread::scope(|scope| {
        let walks = firsts.each_ref().map(|world| scope.spawn(|| walk_from(world)));
        walks.into_iter().map(|walk| walk.join().unwrap()).sum()
    });
    let seconds = start.elapsed().as_secs_f32();
    report(&format!("histories: all of up to {LENGTH} steps, {steps} steps in {seconds:.1} s"));
    let branches = (VERBS.len() * TICKS.len()) as u64;
    let all: u64 = (0..LENGTH as u32).map(|step| VERBS.len() as u64 * branches.pow(step)).sum();
    assert_eq!(steps, all);
}

#[track_caller]
fn check_finds(rules: impl Rules, promise: Broken) {
    // Shorter histories first: the first one found is the simplest.
    let mut found =
        (1..=LENGTH).filter_map(|depth| walk(&rules, &World::new(), depth, &mut 0).err());
    let (broken, history) = found.next().expect("the planted bug was not found");
    report(&format!("histories: {broken}: broken by {history:?}"));
    assert_eq!(broken, promise);
}

#[test]
fn a_lease_that_lives_at_its_expiry_is_found() {
    check_finds(LiveAtExpiry, FREE_IS_GRANTED);
}

#[test]
fn a_token_that_is_not_raised_is_found() {
    check_finds(TokenNotRaised, TOKENS_GROW);
}

#[test]
fn a_renewal_that_revives_is_found() {
    check_finds(RenewRevives, ONLY_THE_HOLDER);
}

#[test]
fn a_release_by_the_wrong_owner_is_found() {
    check_finds(ReleaseByAnyone, ONLY_THE_HOLDER);
}

#[test]
fn a_busy_answer_that_writes_is_found() {
    check_finds(BusyWrites, NO_MEANS_NO);
}

#[test]
fn a_transfer_that_keeps_the_token_is_found() {
    check_finds(TransferKeepsToken, TOKENS_GROW);
}

#[test]
fn a_break_that_keeps_the_token_is_found() {
    check_finds(BreakKeepsToken, TOKENS_GROW);
}

#[test]
fn an_exact_form_that_ignores_the_token_is_found() {
    check_finds(ExactIgnored, ONLY_THE_HOLDER);
}

#[test]
fn a_takeover_of_another_grant_than_was_examined_is_found() {
    check_finds(TakesOverAnyGrant, ONLY_THE_DEAD);
}

#[test]
fn a_takeover_by_the_owner_text_alone_is_found() {
    check_finds(TakesOverSameOwner, ONLY_THE_DEAD);
}

#[test]
fn a_takeover_that_keeps_the_token_is_found() {
    check_finds(TakeoverKeepsToken, TOKENS_GROW);
}

#[test]
fn an_ensure_that_renews_a_strangers_lease_is_found() {
    check_finds(EnsureRenewsAnyones, ONLY_THE_HOLDER);
}

#[test]
fn an_ensure_that_makes_a_new_token_is_found() {
    check_finds(EnsureRaisesToken, RENEW_PROLONGS);
}

#[test]
fn an_ensure_that_shortens_is_found() {
    check_finds(EnsureShortens, RENEW_PROLONGS);
}

#[test]
fn a_floor_that_is_ignored_is_found() {
    check_finds(FloorIgnored, TOKENS_GROW);
}
