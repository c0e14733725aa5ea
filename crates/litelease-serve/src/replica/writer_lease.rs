//! The lease of the server that writes to an engine: one hold, whose token a fence replaces.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use litelease_cluster::{Cluster, Held, HoldError, Lease, TransferResult};
use litelease_hold::{Clock, Loss, abandon, hold_of};

use super::Signal;
use crate::failure::Failure;

/// Keeps a grant alive that was requested at a given moment.
pub(crate) type Keep = Box<dyn Fn(Lease, Duration) -> Result<Held, HoldError> + Send + Sync>;

/// Access keys as the engine stores them.
pub(crate) type AccessRows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The writer's lease.
pub(crate) struct WriterLease {
    cluster: Cluster,
    ttl: Duration,
    clock: Arc<dyn Clock>,
    keep: Keep,
    state: Mutex<State>,
    /// The access keys by which this server decides, as rows of the engine. None before they are
    /// loaded.
    access: Mutex<Option<AccessRows>>,
    is_access_outdated: AtomicBool,
    /// Wakes the thread that waits for the end of the lease.
    stop: Arc<Signal>,
}

struct State {
    token: i64,
    /// None once this server has given the lease up: that is for good.
    held: Option<Held>,
    /// A new token is under way. It makes the keeper lose the hold on the old one, which proves
    /// nothing: until the answer is here, only the time of the last renewal counts.
    is_fencing: bool,
}

impl State {
    fn is_trusted(&self, now: Duration) -> bool {
        let is_trusted = |held: &Held| match self.is_fencing {
            true => now < hold_of(held).trusted_until(),
            false => held.check().is_ok(),
        };
        self.held.as_ref().is_some_and(is_trusted)
    }
}

impl WriterLease {
    /// Keeps the lease alive that was asked for at `since`.
    pub(crate) fn new(
        cluster: Cluster,
        ttl: Duration,
        clock: Arc<dyn Clock>,
        keep: Keep,
        (lease, since): (Lease, Duration),
        stop: Arc<Signal>,
    ) -> Result<Self, HoldError> {
        let token = lease.token;
        let held = Some(keep(lease, since)?);
        let state = Mutex::new(State { token, held, is_fencing: false });
        let (access, is_access_outdated) = (Mutex::default(), AtomicBool::new(false));
        Ok(WriterLease { cluster, ttl, clock, keep, state, access, is_access_outdated, stop })
    }

    /// Returns the token under which rows are stored.
    pub(crate) fn token(&self) -> i64 {
        self.state().token
    }

    /// Checks whether the lease can still be trusted, on this machine's own clock.
    pub(crate) fn is_trusted(&self) -> bool {
        self.state().is_trusted(self.clock.now())
    }

    /// Takes a new token. What was sent under the one before, and is still on its way to the
    /// engine, can no longer be stored.
    pub(crate) fn fence(&self) -> Result<(), Failure> {
        let since = self.clock.now();
        let lease = {
            let mut state = self.state();
            state.is_fencing = state.is_trusted(since);
            // A lease that was over stays over: no server would know what was lost before.
            state.held.as_ref().filter(|_| state.is_fencing).map(Held::lease).ok_or_else(over)?
        };
        let fenced = match self.cluster.transfer(&lease, &lease.owner, self.ttl) {
            Ok(TransferResult::Transferred(next)) => self.replace(next, since),
            Ok(TransferResult::Rejected { reason, .. }) => {
                self.give_up();
                Err(Failure::NotWriter(format!("another server writes now: {reason}")))
            }
            // If the new token was stored after all, the next renewal of the old one fails.
            Err(error) => Err(error.into()),
        };
        self.state().is_fencing = false;
        fenced
    }

    /// Gives the lease up, because another server has it or nothing can be loaded here.
    pub(crate) fn give_up(&self) {
        self.end();
        self.stop.wake();
    }

    /// Checks, once, whether this server decides by other access keys than those that are stored.
    pub(crate) fn is_access_outdated(&self) -> bool {
        self.is_access_outdated.swap(false, Ordering::AcqRel)
    }

    /// Records by which access keys this server decides from now on.
    pub(crate) fn use_access(&self, rows: AccessRows) {
        *self.access.lock().unwrap_or_else(PoisonError::into_inner) = Some(rows);
    }

    /// Compares the stored access keys with those by which this server decides. It does not compare
    /// two reads of the engine: between them a key may have been added, loaded here, and removed.
    pub(crate) fn compare_access(&self, stored: &AccessRows) {
        let used = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if used.as_ref().is_some_and(|used| used != stored) {
            self.is_access_outdated.store(true, Ordering::Release);
        }
    }

    /// Returns for how long the lease can be trusted if no further renewal succeeds.
    pub(crate) fn trusted_for(&self) -> Duration {
        let (state, now) = (self.state(), self.clock.now());
        let until = |held: &Held| hold_of(held).trusted_until().saturating_sub(now);
        let is_trusted = state.is_trusted(now);
        state.held.as_ref().filter(|_| is_trusted).map_or(Duration::ZERO, until)
    }

    /// Returns why the lease was lost or, before that, why the last renewal failed, if it did.
    pub(crate) fn trouble(&self) -> Option<Loss> {
        self.state().held.as_ref().and_then(|held| held.lost().reason())
    }

    /// Stops renewing the lease, for good. Its row stays as it is.
    pub(crate) fn end(&self) {
        if let Some(held) = self.state().held.take() {
            abandon(&held);
        }
    }

    /// Replaces the hold by one on the new grant.
    fn replace(&self, next: Lease, since: Duration) -> Result<(), Failure> {
        let token = next.token;
        let held = (self.keep)(next, since)?;
        let mut state = self.state();
        if !state.is_trusted(self.clock.now()) {
            drop(state);
            // Dropping it releases the row, whose new token is known only here.
            drop(held);
            return Err(over());
        }
        state.token = token;
        state.is_fencing = false;
        let old = state.held.replace(held);
        drop(state);
        if let Some(old) = old {
            abandon(&old);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn over() -> Failure {
    Failure::NotWriter("this server no longer writes: another one may have taken over".into())
}

#[cfg(test)]
mod tests;
