//! A held lease on any place: acquired, kept alive by the keeper, and released at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease_core::{GrantRef, Lease};

use crate::place::{Acquired, Attached, acquire};
use crate::{
    Granted, HandoverRequest, HeldGrant, Hold, HoldError, Home, Kept, Loss, LossSignal, Lost,
    Place, Renewal, Window, Wish,
};

/// How long a release tries. Then the keeper goes on, until the lease is over.
const RELEASE: Duration = Duration::from_secs(5);
/// How long a drop tries: it cannot return an error, and must not take long.
const DROP: Duration = Duration::from_millis(100);

/// A lease that is kept alive in the background until this is dropped; then it is released, also on
/// panic.
///
/// It is trusted until the start of the last successful renewal + ttl - margin, on a clock that
/// counts the time a machine is suspended. The margin is a tenth of the ttl, at least 50 ms. After
/// that it is lost, whatever the place says, and stays lost: stop the work that needed it. A
/// renewal whose answer was lost does not prolong trust.
#[derive(Debug)]
#[must_use = "a hold that is dropped is released"]
pub struct Held {
    kept: Kept,
    is_released: AtomicBool,
    _attached: NotShown<Option<Attached>>,
}

/// A value that `Debug` leaves out.
struct NotShown<T>(#[allow(dead_code)] T);

impl<T> std::fmt::Debug for NotShown<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Claims a name and keeps it alive. The claim is for `wish.ttl`; renewals are for `ttl`, which may
/// be longer.
pub fn hold<P: Place>(
    place: &mut P,
    wish: &Wish<'_>,
    ttl: Duration,
    wait: Duration,
) -> Result<Held, HoldError<P::Error>> {
    for ttl in [ttl, wish.ttl] {
        Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
    }
    let wish = &Wish { ttl: wish.limits.first(wish.ttl), ..*wish };
    // Checked before the claim: a process without a keeper must not be granted anything.
    let home = place.home()?;
    let acquired = match acquire(place, wish, wait) {
        Ok(Ok(mut acquired)) => {
            let is_cut = wish.ttl < ttl;
            acquired.granted.lasts = acquired.granted.lasts.or(is_cut.then_some(wish.ttl));
            acquired.granted.limits = wish.limits;
            acquired
        }
        Ok(Err(current)) => return Err(HoldError::Busy(current)),
        Err(error) => {
            place.take_back(wish);
            return Err(HoldError::Lease(error));
        }
    };
    let kept = keep(&home, acquired, ttl, || place.rows());
    // Without the keeper, no thread would renew it.
    kept.inspect_err(|_| place.take_back(wish))
}

/// Keeps a grant alive that was not made by [`hold`].
///
/// A grant that is older than a third of its ttl is renewed first, and trusted from the start of
/// that renewal on.
pub fn keep<E>(
    home: &Home,
    acquired: Acquired,
    ttl: Duration,
    rows: impl FnOnce() -> Result<Box<dyn crate::Rows>, E>,
) -> Result<Held, HoldError<E>> {
    let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
    let Acquired { granted, start } = acquired;
    let Granted { lease, secret, lasts, limits, attach } = granted;
    let Lease { name, owner, token, expires_at_ms } = lease;
    let grant = HeldGrant { name, owner, token, ttl, secret };
    let group = home.keeper.group(&home.key, rows).map_err(HoldError::Lease)?;
    let granted = Renewal { expires_at_ms, granted: lasts };
    let first = HeldGrant { ttl: limits.first(ttl), ..grant.clone() };
    let (start, granted) = group
        .first_trust(&first, window, start, granted)
        .map_err(|reason| Lost { name: grant.name.clone(), reason })?;
    let granted = if first.ttl < ttl { granted.at_most(first.ttl) } else { granted };
    let hold = Hold::new(grant, window, start, granted).limited(limits, start);
    let kept = home.keeper.add(group, hold);
    let mut held = Held { kept, is_released: AtomicBool::new(false), _attached: NotShown(None) };
    held.check()?;
    held._attached = NotShown(attach.map(|attach| attach()));
    Ok(held)
}

/// Returns the hold of a grant that the keeper already has.
pub fn held_from(kept: Kept) -> Held {
    Held { kept, is_released: AtomicBool::new(false), _attached: NotShown(None) }
}

/// Returns the state of the hold that the keeper shares, for the place that made it.
pub fn hold_of(held: &Held) -> &Arc<Hold> {
    &held.kept.hold
}

/// Stops renewing a grant and leaves its row alone: its holder has another grant of the name, or
/// ends the row otherwise, as a worker ends a delivery.
pub fn abandon(held: &Held) {
    held.is_released.store(true, Ordering::SeqCst);
    held.kept.hold.end();
}

impl Held {
    /// Returns the name that is held.
    pub fn name(&self) -> &str {
        &self.grant().name
    }

    /// Returns the owner text, which is unique to this hold: host, process and a random part.
    pub fn owner(&self) -> &str {
        &self.grant().owner
    }

    /// Returns the fencing token of this grant.
    pub fn token(&self) -> i64 {
        self.grant().token
    }

    /// Returns the grant, with its ttl.
    pub fn grant(&self) -> &HeldGrant {
        self.kept.hold.grant()
    }

    /// Returns the lease, with the expiry of the last renewal.
    pub fn lease(&self) -> Lease {
        let HeldGrant { name, owner, token, .. } = self.grant().clone();
        Lease { name, owner, token, expires_at_ms: self.expires_at_ms() }
    }

    /// Returns the expiry as of the last renewal, in Unix milliseconds.
    pub fn expires_at_ms(&self) -> i64 {
        self.kept.hold.expires_at_ms()
    }

    /// Checks whether the lease can still be trusted. Once this has failed it always fails, with
    /// one exception: while a transaction of the holder's that renews it is open, its COMMIT
    /// decides.
    pub fn check(&self) -> Result<(), Lost> {
        self.kept.check().map_err(|reason| self.as_lost(reason))
    }

    /// Notes that the work has made progress, for a hold with a limit on the time without it, and
    /// checks whether the lease can still be trusted.
    ///
    /// Call it as often as you like: it writes nothing itself. The keeper stores it with its next
    /// renewal.
    pub fn progress(&self) -> Result<(), Lost> {
        self.kept.progress();
        self.check()
    }

    /// Returns for how long the lease can be trusted from now on if no further renewal succeeds.
    pub fn trusted_for(&self) -> Duration {
        self.lost().trusted_for()
    }

    /// Returns why the last renewal failed, or was granted less than the ttl. The lease is not lost
    /// yet: the keeper goes on trying.
    pub fn trouble(&self) -> Option<Loss> {
        self.kept.hold.trouble()
    }

    /// Returns a signal on which another thread can wait until the lease is lost.
    pub fn lost(&self) -> LossSignal {
        self.kept.lost()
    }

    /// Calls `callback` on a thread of its own when the lease is lost; at once if it already is.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        let name = self.name().to_owned();
        self.kept.hold.on_lost(move |reason| callback(&Lost { name, reason: reason.clone() }));
    }

    /// Returns the open request for this lease, if the keeper has seen one.
    pub fn request(&self) -> Option<HandoverRequest> {
        self.kept.hold.request()
    }

    /// Calls `callback` on a thread of its own for every request for this lease; at once if there
    /// is one.
    pub fn on_request(&self, callback: impl FnMut(&HandoverRequest) + Send + 'static) {
        self.kept.hold.on_request(callback);
    }

    /// Hands the lease to the owner that has requested it, under a new token and for `ttl` from
    /// now, and ends the hold. Returns the requester's grant. The two do not overlap: stop the work
    /// before.
    ///
    /// Returns the hold with the error if there is no request, or if the handover fails. If the
    /// place is locked, it tries for a few seconds, and never longer than the lease is trusted.
    #[allow(clippy::result_large_err)] // the hold comes back
    pub fn hand_over<E>(self, ttl: Duration) -> Result<Lease, (Held, HoldError<E>)> {
        self.hand_over_while(ttl, || true)
    }

    /// Hands the lease over like [`hand_over`](Held::hand_over), and stops trying once `goes_on`
    /// returns false.
    #[allow(clippy::result_large_err)] // the hold comes back
    pub fn hand_over_while<E>(
        self,
        ttl: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Lease, (Held, HoldError<E>)> {
        match self.kept.hand_over(ttl, RELEASE, goes_on) {
            Ok(Some(handed)) => {
                self.is_released.store(true, Ordering::SeqCst);
                Ok(handed)
            }
            Ok(None) => Err((self, HoldError::NotRequested)),
            Err(reason) => {
                let lost = self.as_lost(reason);
                Err((self, lost.into()))
            }
        }
    }

    /// Releases the lease. Returns the error if that failed. Dropping the hold releases it, too,
    /// and ignores errors.
    ///
    /// If the place is locked or cannot be reached, this tries for a few seconds. After that the
    /// keeper keeps trying until the lease is over.
    pub fn release(self) -> Result<(), Lost> {
        self.release_within(RELEASE)
    }

    /// Releases the lease like [`release`](Held::release), but tries here for this long.
    pub fn release_within(self, time: Duration) -> Result<(), Lost> {
        self.release_while(time, || true)
    }

    /// Releases the lease, and tries here for this long, or until `goes_on` returns false.
    pub fn release_while(self, time: Duration, goes_on: impl Fn() -> bool) -> Result<(), Lost> {
        self.is_released.store(true, Ordering::SeqCst);
        self.kept.release_while(time, goes_on).map_err(|reason| self.as_lost(reason))
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.name().into(), reason }
    }
}

impl<'h> From<&'h Held> for GrantRef<'h> {
    fn from(held: &'h Held) -> Self {
        held.grant().into()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::SeqCst) {
            // The row of a superseded grant is left alone.
            let _ = self.kept.release(DROP);
        }
    }
}
