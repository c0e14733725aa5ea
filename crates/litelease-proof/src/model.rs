//! A model of everything that can go wrong with a token, searched exhaustively: holders that pause
//! for as long as they like, clocks that step both ways, commits that a power cut takes, backups
//! that come back, transactions that are rolled back.
//!
//! The rule and the epoch are the real ones. The property: no older grant's write is accepted after
//! a newer one's. With all protections on it holds in every state; without any one of them it does
//! not.

use std::time::{Duration, Instant};

use litelease_core::{
    ClaimResult, Claimant, CommitContext, Epoch, Row, State, Step, Tenure, Term, claim,
    claim_from_dead,
};
use stateright::{Checker, HasDiscoveries, Model, Property};

/// How much of everything there is, besides grants.
const CUTS: u8 = 2;
const CLOCK: i64 = 2;
const TTL: i64 = 1;

/// What keeps writes in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Protection {
    /// Tokens are compared at all.
    Fence,
    /// Tokens are compared, and not clocks.
    NoClocks,
    /// A token leaves its transaction after COMMIT.
    AfterCommit,
    /// A new boot begins a new epoch.
    Epoch,
    /// The epoch is stored so that no power cut takes it.
    DurableEpoch,
    /// `bootstrap` stores it on a strong connection, too.
    MarkOfStrong,
    /// A restored file is fenced before it is used.
    RestoreFence,
    /// A token above the epoch raises it.
    EpochOfToken,
    /// A claim from a holder that is taken for dead gets a new token.
    NewTokenOnTakeover,
}

/// All of them.
pub const PROTECTIONS: [Protection; 9] = [
    Protection::Fence,
    Protection::NoClocks,
    Protection::AfterCommit,
    Protection::Epoch,
    Protection::DurableEpoch,
    Protection::MarkOfStrong,
    Protection::RestoreFence,
    Protection::EpochOfToken,
    Protection::NewTokenOnTakeover,
];

/// The world, with one protection missing or none.
struct World {
    missing: Option<Protection>,
    grants: usize,
}

/// What the search has found.
pub struct Found {
    /// How many different states there are.
    pub states: usize,
    /// Whether all of them were looked at.
    pub is_all: bool,
    /// How an older grant came to write after a newer one, if one can.
    pub violation: Option<String>,
    /// Whether grants did get lost and restored files did go on: otherwise nothing was tried.
    pub is_eventful: bool,
}

/// Searches all that can happen with so many grants, for at most so long.
pub fn search(missing: Option<Protection>, grants: usize, limit: Duration) -> Found {
    let wanted = match missing {
        Some(_) => HasDiscoveries::AnyFailures,
        None => HasDiscoveries::All,
    };
    let start = Instant::now();
    let world = World { missing, grants }.checker().threads(2).timeout(limit).finish_when(wanted);
    let checker = world.spawn_bfs().join();
    let violation = checker.discovery(IN_ORDER);
    Found {
        states: checker.unique_state_count(),
        // A search whose time is up counts as done, too.
        is_all: checker.is_done() && start.elapsed() < limit,
        violation: violation.map(|path| format!("{:?}", path.into_actions())),
        is_eventful: [GETS_LOST, GOES_ON].iter().all(|event| checker.discovery(event).is_some()),
    }
}

const IN_ORDER: &str = "no older grant writes after a newer one";
const GETS_LOST: &str = "a grant gets lost";
const GOES_ON: &str = "a restored file goes on";

/// The file: the row of one name, the epoch, and the data that the lease protects in the same file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct File {
    token: i64,
    expires_at_ms: Option<i64>,
    epoch: Epoch,
    /// The newest grant that has written to a table of this file.
    written_by: usize,
}

/// A grant that was returned to its owner, who may write at any time from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    token: i64,
    expires_at_ms: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Moment {
    /// As processes see it, and as a power cut would leave it.
    now: File,
    safe: File,
    backup: Option<File>,
    /// The file as it was before the transaction that is open, and what was granted in it.
    open: Option<(File, Grant)>,
    grants: Vec<Grant>,
    clock: i64,
    boot: i64,
    restored: bool,
    /// `bootstrap` was called in this boot, and recorded nothing.
    bootstrapped_in_vain: bool,
    /// Something outside the file that remembers the largest token it has seen, and which grant
    /// wrote last.
    gate: (i64, usize),
    out_of_order: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Action {
    /// On a connection whose commits are synced. Claims are made on one whose commits are not.
    Bootstrap,
    Claim,
    /// A token that was seen elsewhere: far above what the file knows.
    ClaimAbove,
    ClaimInTransaction,
    /// The newest grant is taken over because its holder is taken for dead. The holder may be alive
    /// after all: that judgement may be wrong, and the fence must hold.
    ClaimFromDead,
    Commit,
    Rollback,
    /// The system writes back what it has; a strong commit does, too.
    Sync,
    PowerCut,
    Backup,
    Restore,
    SetClock(i64),
    WriteToTable(usize),
    WriteThroughGate(usize),
}

impl World {
    fn has(&self, protection: Protection) -> bool {
        self.missing != Some(protection)
    }

    fn commit_context(&self, moment: &Moment) -> CommitContext {
        let boot = if self.has(Protection::Epoch) { moment.boot } else { 1 };
        CommitContext { boot, may_lose_commits: true, is_own: true }
    }

    /// What `bootstrap` leaves, and its commit with all before it is synced.
    fn bootstrap(&self, moment: &mut Moment) {
        let (epoch, strong) = (
            moment.now.epoch,
            CommitContext { may_lose_commits: false, ..self.commit_context(moment) },
        );
        let needed = match self.has(Protection::MarkOfStrong) {
            true => epoch.recording(strong),
            false => epoch.needed(0, strong),
        };
        match needed.expect("room") {
            None => moment.bootstrapped_in_vain = !self.is_recorded(moment),
            Some(epoch) => {
                moment.now.epoch = epoch;
                if self.has(Protection::DurableEpoch) {
                    moment.safe = moment.now;
                }
            }
        }
    }

    fn is_recorded(&self, moment: &Moment) -> bool {
        moment.now.epoch.needed(0, self.commit_context(moment)) == Ok(None)
    }

    /// What a claim would be granted, with the epoch right before it.
    fn grant(
        &self,
        moment: &mut Moment,
        min_token: i64,
        is_own: bool,
        dead: Option<Claimant<'_>>,
    ) -> Option<Grant> {
        let mut token = 0;
        loop {
            let epoch = moment.now.epoch;
            let above = if self.has(Protection::EpochOfToken) { token } else { 0 };
            let context = CommitContext { is_own, ..self.commit_context(moment) };
            if let Some(needed) = epoch.needed(above, context).expect("room") {
                moment.now.epoch = needed;
                // In a transaction of the caller's it is part of that.
                if is_own && self.has(Protection::DurableEpoch) {
                    moment.safe.epoch = needed;
                }
            }
            let file = moment.now;
            let owner = file.expires_at_ms.map(|_| "a");
            let row = Row::new("x", State::stored(file.token, owner, file.expires_at_ms));
            let term = Term::new(TTL, moment.clock).expect("a term");
            let floor = file.epoch.floor.max(min_token);
            let step = match dead {
                Some(dead) => claim_from_dead(row, "a", term, floor, dead),
                None => claim(row, "a", term, floor),
            };
            let Step { write, answer } = step.expect("a token");
            let ClaimResult::Acquired(lease) = answer else { return None };
            if lease.token != token {
                token = lease.token;
                continue;
            }
            let Tenure { expires_at_ms, .. } = write?.tenure()?;
            moment.now.token = token;
            moment.now.expires_at_ms = Some(expires_at_ms);
            return Some(Grant { token, expires_at_ms });
        }
    }

    /// Whether a target that knows `newest` lets a grant write.
    fn accepts(&self, moment: &Moment, grant: Grant, passes: bool) -> bool {
        match self.missing {
            Some(Protection::Fence) => true,
            Some(Protection::NoClocks) => moment.clock < grant.expires_at_ms,
            _ => passes,
        }
    }
}

impl Model for World {
    type State = Moment;
    type Action = Action;

    fn init_states(&self) -> Vec<Moment> {
        vec![Moment {
            now: File::default(),
            safe: File::default(),
            backup: None,
            open: None,
            grants: vec![],
            clock: 0,
            boot: 1,
            restored: false,
            bootstrapped_in_vain: false,
            gate: (0, 0),
            out_of_order: false,
        }]
    }

    fn actions(&self, moment: &Moment, actions: &mut Vec<Action>) {
        let is_open = moment.open.is_some();
        if moment.grants.len() < self.grants && !is_open {
            actions.extend([Action::Claim, Action::ClaimAbove]);
            // Once is enough, and keeps the search small.
            if moment.grants.len() == 1 {
                actions.push(Action::ClaimFromDead);
            }
            // Inside a transaction order is promised only where bootstrap was called or the boot
            // recorded before.
            let is_recorded = self.is_recorded(moment);
            if is_recorded || moment.bootstrapped_in_vain {
                actions.push(Action::ClaimInTransaction);
            }
            if !is_recorded && !moment.bootstrapped_in_vain {
                actions.push(Action::Bootstrap);
            }
        }
        match is_open {
            true => actions.extend([Action::Commit, Action::Rollback]),
            false => {
                if moment.now != moment.safe {
                    actions.push(Action::Sync);
                }
                if moment.backup.is_none() && !moment.restored {
                    actions.push(Action::Backup);
                }
                if moment.backup.is_some() {
                    actions.push(Action::Restore);
                }
            }
        }
        if moment.boot <= i64::from(CUTS) {
            actions.push(Action::PowerCut);
        }
        let others = (0..=CLOCK).filter(|clock| *clock != moment.clock);
        actions.extend(others.map(Action::SetClock));
        for number in 0..moment.grants.len() {
            actions.push(Action::WriteThroughGate(number));
            if !is_open {
                actions.push(Action::WriteToTable(number));
            }
        }
    }

    fn next_state(&self, last: &Moment, action: Action) -> Option<Moment> {
        let mut moment = last.clone();
        match action {
            Action::Bootstrap => self.bootstrap(&mut moment),
            Action::Claim => {
                let grant = self.grant(&mut moment, 0, true, None)?;
                moment.grants.push(grant);
            }
            Action::ClaimAbove => {
                let grant = self.grant(&mut moment, 5 << 32, true, None)?;
                moment.grants.push(grant);
            }
            Action::ClaimFromDead => {
                let dead = last.grants.last()?.token;
                let claimant = Claimant { owner: "a", token: Some(dead) };
                let mut grant = self.grant(&mut moment, 0, true, Some(claimant))?;
                if !self.has(Protection::NewTokenOnTakeover) {
                    (grant.token, moment.now.token) = (dead, dead);
                }
                moment.grants.push(grant);
            }
            Action::ClaimInTransaction => {
                let grant = self.grant(&mut moment, 0, false, None)?;
                moment.open = Some((last.now, grant));
                if !self.has(Protection::AfterCommit) {
                    moment.grants.push(grant);
                }
            }
            Action::Commit => {
                let (_, grant) = moment.open.take()?;
                if self.has(Protection::AfterCommit) {
                    moment.grants.push(grant);
                }
            }
            Action::Rollback => moment.now = moment.open.take()?.0,
            Action::Sync => moment.safe = moment.now,
            Action::PowerCut => {
                (moment.now, moment.open) = (moment.safe, None);
                moment.boot += 1;
                moment.bootstrapped_in_vain = false;
            }
            Action::Backup => moment.backup = Some(moment.now),
            Action::Restore => {
                let mut file = moment.backup.take()?;
                if self.has(Protection::RestoreFence) {
                    let floor = file.epoch.floor_after_restore(file.token).expect("room");
                    file.epoch =
                        file.epoch.raised(floor, self.commit_context(&moment)).expect("room");
                    (file.token, file.expires_at_ms) = (file.epoch.floor, None);
                }
                (moment.now, moment.safe) = (file, file);
                moment.restored = true;
                moment.bootstrapped_in_vain = false;
            }
            Action::SetClock(clock) => moment.clock = clock,
            Action::WriteToTable(number) => {
                let grant = moment.grants[number];
                if !self.accepts(&moment, grant, grant.token == moment.now.token) {
                    return None;
                }
                moment.out_of_order |= number + 1 < moment.now.written_by;
                moment.now.written_by = moment.now.written_by.max(number + 1);
            }
            Action::WriteThroughGate(number) => {
                let grant = moment.grants[number];
                let (newest, written_by) = moment.gate;
                if !self.accepts(&moment, grant, grant.token >= newest) {
                    return None;
                }
                moment.out_of_order |= number + 1 < written_by;
                moment.gate = (newest.max(grant.token), written_by.max(number + 1));
            }
        }
        (moment != *last).then_some(moment)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(IN_ORDER, |_, moment: &Moment| !moment.out_of_order),
            Property::sometimes(GETS_LOST, |_, moment: &Moment| {
                moment.boot > 1 && moment.grants.iter().any(|grant| grant.token > moment.now.token)
            }),
            Property::sometimes(GOES_ON, |_, moment: &Moment| {
                moment.restored && moment.grants.iter().any(|grant| grant.token > 1 << 45)
            }),
        ]
    }
}
