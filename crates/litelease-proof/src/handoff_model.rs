//! A model of holders that trust their leases, with limits and requests, searched exhaustively:
//! keepers that renew when they like or never, holders that make progress or are stuck, requesters
//! that wait, hand-overs, and requesters that die.
//!
//! The rule is the real one; the keeper is reduced to its trust window. The properties: no two
//! holders trust the name at a time, a stuck holder is out in time, an end is one, and a requester
//! that dies evicts no holder. Each holds in every state, and without any one protection one of
//! them does not.

use litelease_core::{
    ClaimResult, Claimant, Conditions, Limits, REQUEST_LAPSES_MS, RenewResult, Request,
    RequestResult, Row, State, Term, TransferResult, claim, hand_over, renew, request,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// One tick is a fifth of the time in which a request lapses.
const TICK_MS: i64 = REQUEST_LAPSES_MS / 5;
/// The clock ends here, in ticks.
const LAST: i64 = 11;
const TTL: i64 = 3;
const PROGRESS_WITHIN: i64 = 2;
const MAX_TIME: i64 = 5;
const WITHIN: i64 = 6;

/// What keeps the promises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protection {
    /// The keeper trusts a renewal by what was granted, not by the ttl that it asked for.
    TrustByGrant,
    /// A renewal does not prolong past the end.
    End,
    /// A renewal asks for progress.
    Progress,
    /// A request refuses renewals from its time on, and leaves the lease as it is.
    RequestCutsNothing,
    /// A request lapses when its requester does not repeat it.
    Lapse,
    /// A lease is handed over by its holder, who stops before.
    StopBeforeHandOver,
    /// What was handed over is trusted from its own first renewal.
    TrustFromFirstRenewal,
}

/// All of them.
pub const PROTECTIONS: [Protection; 7] = [
    Protection::TrustByGrant,
    Protection::End,
    Protection::Progress,
    Protection::RequestCutsNothing,
    Protection::Lapse,
    Protection::StopBeforeHandOver,
    Protection::TrustFromFirstRenewal,
];

struct World {
    missing: Option<Protection>,
}

/// What the search has found.
pub struct Found {
    /// How many different states there are.
    pub states: usize,
    /// Whether all of them were looked at.
    pub is_all: bool,
    /// How a promise was broken, if one can be.
    pub violation: Option<String>,
    /// Whether leases were handed over, and ended by every limit: otherwise nothing was tried.
    pub is_eventful: bool,
}

/// Searches all that can happen.
pub fn search(missing: Option<Protection>) -> Found {
    let wanted = match missing {
        Some(_) => HasDiscoveries::AnyFailures,
        None => HasDiscoveries::All,
    };
    let checker = World { missing }.checker().threads(2).finish_when(wanted).spawn_bfs().join();
    let broken = PROMISES.iter().find_map(|promise| Some((promise, checker.discovery(promise)?)));
    Found {
        states: checker.unique_state_count(),
        is_all: checker.is_done(),
        violation: broken.map(|(promise, path)| format!("{promise}: {:?}", path.into_actions())),
        is_eventful: EVENTS.iter().all(|event| checker.discovery(event).is_some()),
    }
}

const ONE_HOLDER: &str = "no two holders trust the name at a time";
const STUCK_IS_OUT: &str = "a stuck holder is out within its time and one ttl";
const AN_END: &str = "no lease outlives its end";
const DEAD_ASKER: &str = "a requester that dies evicts nobody";
const PROMISES: [&str; 4] = [ONE_HOLDER, STUCK_IS_OUT, AN_END, DEAD_ASKER];

const IS_HANDED: &str = "a lease is handed over and renewed";
const IS_REFUSED: &str = "a request refuses a renewal";
const IS_CUT: &str = "a renewal is cut";
const EVENTS: [&str; 3] = [IS_HANDED, IS_REFUSED, IS_CUT];

/// Two processes: 0 is the first holder, 1 asks for the name. Times are in ticks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Moment {
    clock: i64,
    token: i64,
    /// Owner and expiry.
    tenure: Option<(usize, i64)>,
    limits: Option<Limits>,
    request: Option<Request>,
    /// Until when each of them trusts the name.
    trusted: [i64; 2],
    /// When the first holder must be out, once it has an end: that, or what was granted before,
    /// which is not cut.
    end: Option<i64>,
    /// When the first holder last made progress.
    progress_at: i64,
    asker_is_dead: bool,
    /// When it was last heard of.
    asked_at: i64,
    /// A renewal of the first holder was refused although the requester had died long before.
    was_evicted: bool,
    handed: bool,
    refused: bool,
    cut: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    Tick,
    LimitProgress,
    LimitEnd,
    Progress,
    Renew(usize),
    Request,
    HandOver,
    Claim,
    Die,
}

const NAMES: [&str; 2] = ["a", "b"];

impl World {
    fn has(&self, protection: Protection) -> bool {
        self.missing != Some(protection)
    }

    fn trusts(moment: &Moment, who: usize) -> bool {
        moment.clock < moment.trusted[who]
    }

    fn conditions(&self, moment: &Moment) -> Conditions {
        let limits = moment.limits.map(|limits| Limits {
            progress_within_ms: limits
                .progress_within_ms
                .filter(|_| self.has(Protection::Progress)),
            not_after_ms: limits.not_after_ms.filter(|_| self.has(Protection::End)),
            ..limits
        });
        let request = moment.request.map(|request| match self.has(Protection::Lapse) {
            true => request,
            false => Request { repeated_at_ms: moment.clock * TICK_MS, ..request },
        });
        Conditions { limits, request }
    }

    fn renew(&self, moment: &mut Moment, who: usize) -> Option<()> {
        let term = Term::new(TTL * TICK_MS, moment.clock * TICK_MS).ok()?;
        let owner = moment.tenure.map(|(owner, _)| NAMES[owner]);
        let expiry = moment.tenure.map(|(_, expiry)| expiry * TICK_MS);
        let row = Row::new("x", State::stored(moment.token, owner, expiry));
        let claimant = Claimant { owner: NAMES[who], token: None };
        match renew(row, claimant, term, self.conditions(moment)).answer {
            RenewResult::Renewed(lease) => {
                let expiry = lease.expires_at_ms / TICK_MS;
                let asked = moment.clock + TTL;
                moment.cut |= expiry < asked;
                moment.tenure = Some((who, expiry));
                let granted = if self.has(Protection::TrustByGrant) { expiry } else { asked };
                moment.trusted[who] = moment.trusted[who].max(granted.min(asked));
                moment.handed |= who == 1;
            }
            RenewResult::Rejected { reason, .. } => {
                let is_requested = reason == litelease_core::Reason::Requested;
                moment.refused |= is_requested;
                let lapsed_at = moment.asked_at + REQUEST_LAPSES_MS / TICK_MS;
                moment.was_evicted |=
                    is_requested && moment.asker_is_dead && lapsed_at <= moment.clock;
            }
        }
        Some(())
    }
}

impl Model for World {
    type State = Moment;
    type Action = Action;

    fn init_states(&self) -> Vec<Moment> {
        vec![Moment {
            clock: 0,
            token: 1,
            tenure: Some((0, TTL)),
            limits: None,
            request: None,
            trusted: [TTL, 0],
            end: None,
            progress_at: 0,
            asker_is_dead: false,
            asked_at: 0,
            was_evicted: false,
            handed: false,
            refused: false,
            cut: false,
        }]
    }

    fn actions(&self, moment: &Moment, actions: &mut Vec<Action>) {
        if moment.clock < LAST {
            actions.push(Action::Tick);
        }
        if World::trusts(moment, 0) {
            actions.extend([Action::Renew(0), Action::Progress, Action::HandOver]);
            if moment.limits.is_none() {
                actions.extend([Action::LimitProgress, Action::LimitEnd]);
            }
        }
        if !moment.asker_is_dead {
            actions.extend([Action::Request, Action::Claim, Action::Die, Action::Renew(1)]);
        }
    }

    fn next_state(&self, last: &Moment, action: Action) -> Option<Moment> {
        let mut moment = last.clone();
        let now_ms = moment.clock * TICK_MS;
        let owner = moment.tenure.map(|(owner, _)| NAMES[owner]);
        let expiry = moment.tenure.map(|(_, expiry)| expiry * TICK_MS);
        let row = Row::new("x", State::stored(moment.token, owner, expiry));
        let term = Term::new(TTL * TICK_MS, now_ms).ok()?;
        match action {
            Action::Tick => moment.clock += 1,
            Action::Die => moment.asker_is_dead = true,
            Action::LimitProgress => {
                let within = Some(PROGRESS_WITHIN * TICK_MS);
                moment.limits = Limits::new(moment.token, within, None, now_ms).ok();
                moment.progress_at = moment.clock;
            }
            Action::LimitEnd => {
                let end = Some(MAX_TIME * TICK_MS);
                moment.limits = Limits::new(moment.token, None, end, now_ms).ok();
                moment.end = moment.tenure.map(|(_, expiry)| expiry.max(MAX_TIME));
            }
            Action::Progress => {
                let limits = moment.limits.as_mut().filter(|limits| limits.token == last.token);
                limits?.progress_at_ms = now_ms;
                moment.progress_at = moment.clock;
            }
            Action::Renew(who) => {
                moment.tenure.filter(|(owner, expiry)| *owner == who && moment.clock < *expiry)?;
                self.renew(&mut moment, who)?;
            }
            Action::Request => {
                let found = moment.request.map(|found| (NAMES[1], found));
                let step = request(row, found, NAMES[1], WITHIN * TICK_MS, now_ms).ok()?;
                moment.request = step.write.or(moment.request);
                let RequestResult::Requested { .. } = step.answer else { return None };
                if moment.tenure.is_some_and(|(owner, _)| owner == 1) {
                    return None;
                }
                moment.asked_at = moment.clock;
                if !self.has(Protection::RequestCutsNothing) {
                    moment.tenure = Some((0, moment.clock + 1));
                }
            }
            Action::HandOver => {
                let found = moment.request.map(|found| (NAMES[1], found));
                let who = Claimant { owner: NAMES[0], token: Some(moment.token) };
                let step = hand_over(row, who, found, term, 0).ok()?;
                let TransferResult::Transferred(lease) = step.answer else { return None };
                moment.token = lease.token;
                moment.tenure = Some((1, lease.expires_at_ms / TICK_MS));
                if self.has(Protection::StopBeforeHandOver) {
                    moment.trusted[0] = 0;
                }
                if !self.has(Protection::TrustFromFirstRenewal) {
                    // As if the row had been granted when it is first seen, however late that is.
                    moment.trusted[1] = moment.clock + 2 * TTL;
                }
            }
            Action::Claim => {
                let step = claim(row, NAMES[1], term, 0).ok()?;
                let ClaimResult::Acquired(lease) = step.answer else { return None };
                let expiry = lease.expires_at_ms / TICK_MS;
                (moment.token, moment.tenure) = (lease.token, Some((1, expiry)));
                moment.trusted[1] = expiry;
            }
        }
        (moment != *last).then_some(moment)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, moment: &Moment| {
                let both = World::trusts(moment, 0) && World::trusts(moment, 1);
                // What a holder trusts is what the row says, too.
                let says = |who: usize| {
                    let is_named = |(owner, expiry)| owner == who && moment.clock < expiry;
                    !World::trusts(moment, who) || moment.tenure.is_some_and(is_named)
                };
                !both && says(0) && says(1)
            }),
            Property::always(STUCK_IS_OUT, |_, moment: &Moment| {
                let limits = moment.limits.filter(|limits| limits.token == moment.token);
                let is_limited = limits.is_some_and(|limits| limits.progress_within_ms.is_some());
                let out_at = moment.progress_at + PROGRESS_WITHIN + TTL;
                !is_limited || !World::trusts(moment, 0) || moment.clock < out_at
            }),
            Property::always(AN_END, |_, moment: &Moment| {
                moment.end.is_none_or(|end| moment.trusted[0] <= end)
            }),
            Property::always(DEAD_ASKER, |_, moment: &Moment| !moment.was_evicted),
            Property::sometimes(IS_HANDED, |_, moment: &Moment| moment.handed),
            Property::sometimes(IS_REFUSED, |_, moment: &Moment| moment.refused),
            Property::sometimes(IS_CUT, |_, moment: &Moment| moment.cut),
        ]
    }
}
