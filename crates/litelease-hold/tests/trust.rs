//! The one loop that acquires and keeps, on a place whose every call can be late, fail or lose its
//! answer, while a rival takes the name whenever it is free.
//!
//! All histories with up to `DEPTH` such accidents are played. Whenever the holder trusts its
//! lease, the row must be its own and live.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use litelease_hold::{
    Claimed, Clock, Current, Due, Granted, Held, HeldGrant, HoldError, Home, Keeper, Loss,
    NoKeeper, Notice, Place, Renewal, Rows, Wish, hold,
};

use litelease_core::Lease;

const TTL: Duration = Duration::from_millis(900);
const NAME: &str = "x";

/// How many calls have an accident; all later ones go well.
const DEPTH: usize = 4;

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Accident {
    None,
    /// The request is under way for so many milliseconds.
    SlowThere(u64),
    /// The answer is under way for so many milliseconds.
    SlowBack(u64),
    /// The request never arrives.
    Fails,
    /// It is carried out, and its answer is lost.
    AnswerLost,
    /// The request never arrives, and trying again cannot help.
    Refused,
}

/// Longer than the margin of a trust window, and too short for a renewal to be due.
const LITTLE: u64 = 200;
/// Half a ttl, and two of them.
const HALF: u64 = 450;
const TWICE: u64 = 1800;

const ACCIDENTS: [Accident; 9] = [
    Accident::None,
    Accident::SlowBack(LITTLE),
    Accident::SlowThere(HALF),
    Accident::SlowThere(TWICE),
    Accident::SlowBack(HALF),
    Accident::SlowBack(TWICE),
    Accident::Fails,
    Accident::AnswerLost,
    Accident::Refused,
];

/// A bug that the histories must find.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    /// Trust is counted from the answer to a claim.
    TrustFromAnswer,
    /// What a failed claim has stored is not taken back.
    NoTakeBack,
    /// A renewal compares the token only.
    WithoutOwner,
}

#[derive(Clone)]
struct World(Arc<Inner>);

struct Inner {
    ms: AtomicU64,
    state: Mutex<State>,
    bug: Bug,
}

struct State {
    /// Owner, token and expiry.
    row: Option<(String, i64, u64)>,
    token: i64,
    accidents: Vec<Accident>,
    calls: usize,
    /// Whether the rival claims again what it had, under the same token: a backup was restored.
    restores: bool,
}

impl World {
    fn new(accidents: &[Accident], restores: bool, bug: Bug) -> Self {
        let state =
            State { row: None, token: 0, accidents: accidents.to_vec(), calls: 0, restores };
        World(Arc::new(Inner { ms: AtomicU64::new(10_000), state: Mutex::new(state), bug }))
    }

    fn ms(&self) -> u64 {
        self.0.ms.load(Ordering::SeqCst)
    }

    /// Time passes, and the rival takes the name as soon as it is free.
    fn pass(&self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            let now = self.0.ms.fetch_add(10, Ordering::SeqCst) + 10;
            let mut state = self.0.state.lock().unwrap();
            let is_over = state.row.as_ref().is_some_and(|(_, _, until)| *until <= now);
            if is_over {
                // After a restore, the rival is granted the token of the holder again.
                state.token += i64::from(!state.restores);
                state.row = Some(("rival".into(), state.token, now + 10_000));
            }
        }
    }

    /// Makes one call. Returns none if its answer is lost, and whether trying again may help.
    fn call<T>(&self, work: impl FnOnce(&mut State, u64) -> T) -> Result<T, bool> {
        let accident = {
            let mut state = self.0.state.lock().unwrap();
            state.calls += 1;
            let calls = state.calls;
            state.accidents.get(calls - 1).copied().unwrap_or(Accident::None)
        };
        self.pass(10);
        if let Accident::SlowThere(ms) = accident {
            self.pass(ms);
        }
        if accident == Accident::Fails || accident == Accident::Refused {
            self.pass(100);
            return Err(accident == Accident::Fails);
        }
        let answer = work(&mut self.0.state.lock().unwrap(), self.ms());
        match accident {
            Accident::SlowBack(ms) => self.pass(ms),
            Accident::AnswerLost => {
                self.pass(HALF);
                return Err(true);
            }
            _ => {}
        }
        Ok(answer)
    }

    fn is_ours_and_live(&self, held: &Held) -> bool {
        let state = self.0.state.lock().unwrap();
        state.row.as_ref().is_some_and(|(owner, token, until)| {
            (owner.as_str(), *token) == (held.owner(), held.token()) && self.ms() < *until
        })
    }
}

impl Clock for World {
    fn now(&self) -> Duration {
        Duration::from_millis(self.ms())
    }

    fn sleep(&self, time: Duration) {
        self.pass(u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(10));
    }
}

/// An error, and whether it may pass.
#[derive(Debug)]
struct Failed(bool);

struct FakePlace {
    world: World,
    keeper: Arc<Keeper>,
}

impl Place for FakePlace {
    type Error = Failed;

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.world.clone())
    }

    fn home(&self) -> Result<Home, NoKeeper> {
        Ok(Home { keeper: self.keeper.clone(), key: "rows".into() })
    }

    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed, Failed> {
        let ttl = u64::try_from(wish.ttl.as_millis()).unwrap();
        let owner = wish.owner.to_owned();
        let begin = self.world.ms();
        let answer = self.world.call(|state, now| {
            if let Some((owner, token, until)) = &state.row
                && now < *until
            {
                let (owner, token) = (owner.clone(), *token);
                let (name, expires_at_ms) = (NAME.into(), *until as i64);
                return Claimed::Busy(Lease { name, owner, token, expires_at_ms });
            }
            state.token += 1;
            state.row = Some((owner.clone(), state.token, now + ttl));
            let (token, name) = (state.token, NAME.into());
            let expires_at_ms = (now + ttl) as i64;
            Claimed::Granted(Granted::whole(Lease { name, owner, token, expires_at_ms }))
        });
        if self.world.0.bug == Bug::TrustFromAnswer {
            // Trust that begins later is the same as a lease that ends earlier.
            let took = self.world.ms() - begin;
            if let Some((_, _, until)) = &mut self.world.0.state.lock().unwrap().row {
                *until = until.saturating_sub(took);
            }
        }
        answer.map_err(Failed)
    }

    fn request(&mut self, _: &Wish<'_>) -> Result<Option<i64>, Failed> {
        Ok(None)
    }

    fn accept(
        &mut self,
        _: &Wish<'_>,
        _: &Lease,
        _: Option<i64>,
    ) -> Result<Option<Granted>, Failed> {
        Ok(None)
    }

    fn withdraw(&mut self, _: &Wish<'_>) -> Result<Option<Lease>, Failed> {
        Ok(None)
    }

    fn take_back(&mut self, wish: &Wish<'_>) {
        if self.world.0.bug == Bug::NoTakeBack {
            return;
        }
        let mut state = self.world.0.state.lock().unwrap();
        state.row = state.row.take().filter(|(owner, ..)| owner != wish.owner);
    }

    fn wait(&mut self, _: &Wish<'_>, _: &Lease, at_most: Duration) {
        self.world.sleep(at_most.min(Duration::from_millis(100)));
    }

    fn pause(&mut self, error: &Failed, at_most: Duration) -> bool {
        if error.0 {
            self.world.sleep(at_most.min(Duration::from_millis(50)));
        }
        error.0
    }

    fn rows(&self) -> Result<Box<dyn Rows>, Failed> {
        Ok(Box::new(FakeRows(self.world.clone())))
    }
}

struct FakeRows(World);

impl FakeRows {
    /// Changes the row of a grant if it is current. Returns why not.
    fn on(&self, grant: &HeldGrant, change: impl FnOnce(&mut State, u64)) -> Result<(), Loss> {
        let compares_owner = self.0.0.bug != Bug::WithoutOwner;
        let answer = self.0.call(|state, now| match &state.row {
            Some((owner, token, until))
                if *token == grant.token
                    && (!compares_owner || *owner == grant.owner)
                    && now < *until =>
            {
                change(state, now);
                Ok(())
            }
            Some((owner, by, _)) if *by != grant.token => {
                Err(Loss::Superseded { by: *by, owner: Some(owner.clone()) })
            }
            _ => Err(Loss::FileReplaced),
        });
        answer.unwrap_or(Err(Loss::CannotRenew { error: "no answer".into() }))
    }
}

impl Rows for FakeRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        let renew = |due: &Due<'_>| {
            let ttl = u64::try_from(due.grant.ttl.as_millis()).unwrap();
            self.on(due.grant, |state, now| {
                if let Some((_, _, until)) = &mut state.row {
                    *until = now + ttl;
                }
            })
            .map(|()| Renewal::whole(0))
        };
        due.iter().map(renew).collect()
    }

    fn release(&mut self, grant: &HeldGrant, _: Duration) -> Result<(), Loss> {
        self.on(grant, |state, _| state.row = None)
    }

    fn read(&mut self, _: &HeldGrant) -> Current {
        Current::unknown()
    }

    fn hand_over(&mut self, _: &HeldGrant, _: Duration) -> Result<Option<Lease>, Loss> {
        Ok(None)
    }

    fn listen(&mut self, _: Notice) {}

    fn beside(&self) -> Option<Box<dyn Rows>> {
        Some(Box::new(FakeRows(self.0.clone())))
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}

/// Plays one history: a hold that begins, is kept for some ttls, and is released. Returns what went
/// wrong, and whether it was ever granted.
fn play(accidents: &[Accident], restores: bool, bug: Bug) -> Result<bool, String> {
    let world = World::new(accidents, restores, bug);
    let keeper = Arc::new(Keeper::new(Arc::new(world.clone())));
    let mut place = FakePlace { world: world.clone(), keeper: keeper.clone() };
    let held = hold(&mut place, &Wish::new(NAME, "we", TTL), TTL, TTL * 3);
    let held = match held {
        Ok(held) => held,
        Err(error) => {
            let row = world.0.state.lock().unwrap().row.clone();
            let is_left = row.is_some_and(|(owner, ..)| owner == "we");
            return match (is_left, error) {
                (false, HoldError::Lease(_) | HoldError::Busy(_) | HoldError::Lost(_)) => Ok(false),
                (true, error) => Err(format!("a hold that failed with {error:?} left a lease")),
                (_, error) => Err(format!("{error:?}")),
            };
        }
    };
    for step in 0..200 {
        if held.check().is_ok() && !world.is_ours_and_live(&held) {
            return Err(format!("after {step} steps it trusts what it does not have"));
        }
        keeper.step();
        world.pass(50);
    }
    let was_trusted = held.check().is_ok();
    let released = held.release();
    let row = world.0.state.lock().unwrap().row.clone();
    let is_left = row.is_some_and(|(owner, _, until)| owner == "we" && world.ms() < until);
    match (was_trusted, released, is_left) {
        (true, Ok(()), true) => Err("it was released, and is there".into()),
        (true, Err(lost), _) => Err(format!("nothing was wrong, and it is not released: {lost}")),
        _ => Ok(true),
    }
}

/// Plays all histories. Returns the first that went wrong.
fn play_all(bug: Bug) -> (usize, Option<String>) {
    let mut granted = 0;
    for number in 0..ACCIDENTS.len().pow(DEPTH as u32) {
        let at = |place: u32| ACCIDENTS[number / ACCIDENTS.len().pow(place) % ACCIDENTS.len()];
        let accidents: Vec<Accident> = (0..DEPTH as u32).map(at).collect();
        for restores in [false, true] {
            match play(&accidents, restores, bug) {
                Ok(is_granted) => granted += usize::from(is_granted),
                Err(wrong) => return (granted, Some(format!("{accidents:?}: {wrong}"))),
            }
        }
    }
    (granted, None)
}

#[test]
fn a_lease_is_trusted_only_while_its_row_is_the_holders_own_whatever_call_fails() {
    let (granted, wrong) = play_all(Bug::None);
    assert_eq!(wrong, None);
    assert!(granted > 1000, "only {granted} histories had a grant");
}

#[test]
fn trust_that_is_counted_from_the_answer_is_found() {
    let (_, wrong) = play_all(Bug::TrustFromAnswer);
    assert!(wrong.is_some_and(|wrong| wrong.contains("trusts what it does not have")));
}

#[test]
fn a_claim_that_is_not_taken_back_is_found() {
    let (_, wrong) = play_all(Bug::NoTakeBack);
    assert!(wrong.is_some_and(|wrong| wrong.contains("left a lease")));
}

#[test]
fn a_renewal_without_the_owner_is_found() {
    let (_, wrong) = play_all(Bug::WithoutOwner);
    assert!(wrong.is_some_and(|wrong| wrong.contains("trusts what it does not have")));
}
