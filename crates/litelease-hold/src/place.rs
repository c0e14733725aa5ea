//! The trait of a place with leases (a file, a server or an engine), and the one loop that acquires
//! a name there.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use litelease_core::Lease;

use crate::{Cancel, Clock, DeathCheck, HoldLimits, Keeper, NoKeeper, Rows};

/// The verbs that a thread needs to acquire a name in a place. The keeper's thread uses [`Rows`].
///
/// Trust is counted from the machine's own clock, never the place's, read before each call.
pub trait Place {
    /// The error of its verbs.
    type Error;

    /// Returns the clock that measures trust here.
    fn clock(&self) -> Arc<dyn Clock>;

    /// Returns the keeper that renews grants of this place.
    fn home(&self) -> Result<Home, NoKeeper>;

    /// Claims once. It may wait for the name for [`Wish::wait`], if the place itself has a queue of
    /// waiters.
    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed, Self::Error>;

    /// Asks the present holder to give the name up within [`Wish::request`], or repeats that
    /// request. Returns the token of the lease that is requested, if the request was stored.
    fn request(&mut self, wish: &Wish<'_>) -> Result<Option<i64>, Self::Error>;

    /// Takes over a lease that was handed to this owner. `asked` is the token that it has
    /// requested.
    fn accept(
        &mut self,
        wish: &Wish<'_>,
        handed: &Lease,
        asked: Option<i64>,
    ) -> Result<Option<Granted>, Self::Error>;

    /// Withdraws a request, and returns the lease that is live after that.
    fn withdraw(&mut self, wish: &Wish<'_>) -> Result<Option<Lease>, Self::Error>;

    /// Releases a grant that a failed claim may have stored.
    fn take_back(&mut self, wish: &Wish<'_>);

    /// Waits for at most this long until the name may have become free after the last claim.
    fn wait(&mut self, wish: &Wish<'_>, current: &Lease, at_most: Duration);

    /// Sleeps a little, for at most this long, after an error that may pass. Returns false at once
    /// if trying again cannot help.
    fn pause(&mut self, error: &Self::Error, at_most: Duration) -> bool;

    /// Opens the rows for the keeper.
    fn rows(&self) -> Result<Box<dyn Rows>, Self::Error>;
}

/// The keeper of a place.
pub struct Home {
    /// The keeper.
    pub keeper: Arc<Keeper>,
    /// Identifies the rows: holds with equal keys share them, and are renewed together.
    pub key: String,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The key is not printed: it may be the secret path of a pool.
        f.debug_struct("Home").finish_non_exhaustive()
    }
}

/// A request for a grant.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The name.
    pub name: &'a str,
    /// The owner text.
    pub owner: &'a str,
    /// How long the grant is to last.
    pub ttl: Duration,
    /// How long the place itself may wait for the name.
    pub wait: Duration,
    /// A live lease whose holder is proved to be dead: the claim replaces it.
    pub dead: Option<&'a Lease>,
    /// How soon the present holder must give the name up, if it is asked to.
    pub request: Option<Duration>,
    /// True if no other grant uses the owner text. Otherwise nothing is taken back by it.
    pub is_owner_unique: bool,
    /// The limits that the hold keeps.
    pub limits: HoldLimits,
    /// Cancels the wait: the place checks it wherever it waits.
    pub cancel: Option<&'a Cancel>,
}

impl<'a> Wish<'a> {
    /// Returns the wish of a plain claim.
    pub fn new(name: &'a str, owner: &'a str, ttl: Duration) -> Self {
        Wish {
            name,
            owner,
            ttl,
            wait: Duration::ZERO,
            dead: None,
            request: None,
            limits: HoldLimits::default(),
            cancel: None,
            is_owner_unique: true,
        }
    }

    /// Checks whether the wait has been cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(Cancel::is_cancelled)
    }
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Claimed {
    /// The name is granted.
    Granted(Granted),
    /// Another owner has it.
    Busy(Lease),
}

/// A grant, as a place returns it.
pub struct Granted {
    /// The lease.
    pub lease: Lease,
    /// The secret that proves to the place that the grant is its holder's: of a grant on a server,
    /// of a slot, of a delivery. Empty if the owner text proves it.
    pub secret: String,
    /// How long it lasts, if the place granted less than the ttl.
    pub lasts: Option<Duration>,
    /// The limits that the hold keeps.
    pub limits: HoldLimits,
    /// Called once the keeper has the grant. Makes a value that lives as long as the hold, such as
    /// a watch on its name.
    pub attach: Option<Attach>,
}

/// Makes a value that lives as long as a hold.
pub type Attach = Box<dyn FnOnce() -> Attached + Send>;

/// A value that lives as long as a hold.
pub type Attached = Box<dyn Any + Send + Sync>;

impl Granted {
    /// Returns a grant of the whole ttl that its owner text proves.
    pub fn whole(lease: Lease) -> Self {
        let limits = HoldLimits::default();
        Granted { lease, secret: String::new(), lasts: None, limits, attach: None }
    }
}

impl fmt::Debug for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is not printed.
        f.debug_struct("Granted").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// A name that was acquired, and the start of the call that was granted.
#[derive(Debug)]
pub struct Acquired {
    /// The grant.
    pub granted: Granted,
    /// The moment from which it is trusted.
    pub start: Duration,
}

/// Claims a name, and waits for it for at most `wait`, or until that is cancelled. Returns the
/// lease that is in the way if the name did not come free in time.
pub fn acquire<P: Place>(
    place: &mut P,
    wish: &Wish<'_>,
    wait: Duration,
) -> Result<Result<Acquired, Lease>, P::Error> {
    let clock = place.clock();
    let begin = clock.now();
    let (mut death, mut requests) = (DeathCheck::default(), Requests::default());
    loop {
        let mut start = clock.now();
        let left = |now: Duration| wait.saturating_sub(now.saturating_sub(begin));
        let mut claimed = place.claim(&Wish { wait: left(start), ..*wish });
        if let Ok(Claimed::Busy(current)) = &claimed
            && death.is_dead(clock.now(), &current.owner)
        {
            start = clock.now();
            claimed = place.claim(&Wish { dead: Some(&current.clone()), ..*wish });
        }
        if let Ok(Claimed::Busy(current)) = claimed {
            // A grant that was handed over is trusted from its acceptance on, not from the
            // handover.
            start = clock.now();
            claimed = requests.follow(place, wish, current, start);
        }
        let left = left(clock.now());
        let has_waited = match &claimed {
            Ok(Claimed::Busy(current)) if !left.is_zero() => {
                place.wait(wish, current, left);
                true
            }
            Err(error) if !left.is_zero() => place.pause(error, left),
            _ => false,
        };
        if has_waited && !wish.is_cancelled() {
            continue;
        }
        match claimed {
            Ok(Claimed::Granted(granted)) => return Ok(Ok(Acquired { granted, start })),
            claimed if wish.request.is_none() => return ended(claimed, start),
            claimed => {
                // If this fails, the request lapses by itself.
                let now = place.withdraw(wish);
                let current = match (claimed?, now?) {
                    (Claimed::Busy(_), Some(current)) if current.owner == wish.owner => current,
                    (claimed, _) => return ended(Ok(claimed), start),
                };
                // The lease was handed over just before: no other caller would ever take it.
                let start = clock.now();
                return ended(requests.follow(place, wish, current, start), start);
            }
        }
    }
}

fn ended<E>(claimed: Result<Claimed, E>, start: Duration) -> Result<Result<Acquired, Lease>, E> {
    Ok(match claimed? {
        Claimed::Granted(granted) => Ok(Acquired { granted, start }),
        Claimed::Busy(current) => Err(current),
    })
}

/// How often a request is repeated: several times before it would lapse.
const REPEAT_EVERY: Duration = Duration::from_secs(3);

/// The requests of a waiter, while it waits.
#[derive(Default)]
struct Requests {
    /// The token that was requested last, and when.
    asked: Option<(i64, Duration)>,
}

impl Requests {
    /// Makes or repeats the request, and takes the lease if it was handed over. Otherwise the name
    /// is still busy.
    fn follow<P: Place>(
        &mut self,
        place: &mut P,
        wish: &Wish<'_>,
        current: Lease,
        now: Duration,
    ) -> Result<Claimed, P::Error> {
        if current.owner == wish.owner {
            let asked = self.asked.map(|(token, _)| token);
            let accepted = place.accept(wish, &current, asked)?;
            return Ok(accepted.map_or(Claimed::Busy(current), Claimed::Granted));
        }
        let is_fresh = |(token, at)| token == current.token && now < at + REPEAT_EVERY;
        if !self.asked.is_some_and(is_fresh)
            && let Some(token) = place.request(wish)?
        {
            self.asked = Some((token, now));
        }
        Ok(Claimed::Busy(current))
    }
}
