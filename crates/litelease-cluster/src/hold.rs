//! Held leases: claimed, kept alive by the keeper of the handle, and released at the end.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use litelease_hold::{
    Clock, HeldGrant, Hold, HolderKind, Identity, Keeper, Kept, Loss, LossSignal, Lost, NoKeeper,
    ProcessKeeper, Renewal, Rows, Window,
};

use crate::change::Answered;
use crate::cluster::Cluster;
use crate::engine::{Changes, Listener};
use crate::host::Host;
use crate::kept_rows::{KeptRows, release};
use crate::{ClaimResult, HoldError, Lease};

/// How long a release tries. After that the keeper does, until the lease is over.
const RELEASE: Duration = Duration::from_secs(5);
/// The same where nobody can be told.
const DROP: Duration = Duration::from_millis(100);

/// Options of a hold.
///
/// They are those of a hold in a file, less what only files have: values, limits, progress and
/// requests.
///
/// ```
/// use std::time::Duration;
/// use litelease_cluster::HoldOptions;
///
/// let options = HoldOptions::new(Duration::from_secs(60)).wait(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct HoldOptions {
    ttl: Duration,
    wait: Duration,
    kind: HolderKind,
}

/// A lease that is kept alive in the background until this is dropped; then it is released, also on
/// panic.
///
/// It is trusted until the start of the last successful renewal + ttl - margin, on a clock that
/// counts the time a machine is suspended. The margin is a tenth of the ttl, at least 50 ms. After
/// that it is lost, whatever the engine says, and stays lost: stop the work that needed it. A
/// renewal whose answer was lost does not prolong trust.
///
/// A break, or a grant to somebody else, is told at once where the engine can be reached.
///
/// ```
/// use std::time::Duration;
/// use litelease_cluster::{Cluster, HoldError, HoldOptions, MemoryEngine};
///
/// # fn main() -> Result<(), HoldError> {
/// let cluster = Cluster::on(MemoryEngine::new()); // or Cluster::open("etcd://10.0.0.1:2379")
/// let held = cluster.hold("books", HoldOptions::new(Duration::from_secs(60)).wait(Duration::from_secs(5)))?;
/// for shelf in ["fiction", "poetry"] {
///     held.check()?; // Err(Lost { reason }) once it can no longer be trusted
///     println!("{shelf}, under token {}", held.token());
/// }
/// drop(held); // released; a superseded grant is left alone
/// assert_eq!(cluster.owner("books")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a hold that is dropped is released"]
pub struct Held {
    kept: Kept,
    /// The keeper works as long as this is there.
    cluster: Cluster,
    released: bool,
}

/// The keeper of a handle, and who tells it about changes.
#[derive(Default)]
pub(crate) struct Keeping {
    keeper: ProcessKeeper,
    listener: OnceLock<Arc<dyn Listener>>,
}

impl HoldOptions {
    /// Returns options for a hold whose renewals last `ttl` each, and which does not wait for the
    /// name.
    pub fn new(ttl: Duration) -> Self {
        HoldOptions { ttl, wait: Duration::ZERO, kind: HolderKind::Hold }
    }

    /// Waits for the name for at most this long; `Duration::MAX` is for ever.
    pub fn wait(self, wait: Duration) -> Self {
        HoldOptions { wait, ..self }
    }

    /// Names a process group that does the work. If this process dies, a successor on this machine
    /// waits until that group has ended, too, or until the ttl is over.
    pub fn group(self, group: u32) -> Self {
        HoldOptions { kind: HolderKind::Run { group }, ..self }
    }
}

impl Cluster {
    /// Claims `name` and keeps it alive in the background until the result is dropped.
    ///
    /// The owner text is unique to this hold: host, process and a random part. A thread of this
    /// handle renews all its holds every third of their ttl, many in one request. Clones of the
    /// handle share it. The time of [`at`](Cluster::at) is ignored: a hold needs clocks that go on.
    pub fn hold(&self, name: &str, options: HoldOptions) -> Result<Held, HoldError> {
        let HoldOptions { ttl, wait, kind } = options;
        let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        let cluster = Cluster { when: None, ..self.clone() };
        let keeper = cluster.keeper()?;
        let owner = Identity::new(kind).to_string();
        let waited = cluster.wait_for(name, &owner, ttl, wait).inspect_err(|_| {
            // It may have been stored all the same, and the owner text tells: nobody else uses it.
            let _ = cluster.within(DROP).release_by_owner(name, &owner);
        })?;
        let Answered { answer, since, version, .. } = waited;
        let lease = match answer {
            ClaimResult::Acquired(lease) => lease,
            ClaimResult::Busy(current) => return Err(HoldError::Busy(current)),
        };
        let grant = HeldGrant { name: name.into(), owner, token: lease.token, ttl };
        let granted = Renewal::whole(lease.expires_at_ms);
        let hold = Hold::new(grant, window, since, granted);
        if let Err(reason) = hold.check(cluster.shared.host.counted()) {
            let _ = cluster.within(DROP).release(&lease);
            return Err(Lost { name: name.into(), reason }.into());
        }
        let open = || Ok::<_, Infallible>(cluster.kept_rows());
        let kept = match keeper.keep("", hold, open) {
            Ok(kept) => kept,
            Err(never) => match never {},
        };
        cluster.shared.engine.follow(name, version);
        Ok(Held { kept, cluster, released: false })
    }

    /// Returns the rows as the keeper renews them: for tests that step a keeper of their own.
    #[doc(hidden)]
    pub fn kept_rows(&self) -> Box<dyn Rows> {
        Box::new(KeptRows::new(self.clone()))
    }

    /// Returns the keeper of this handle. It has a thread of its own, so that a slow engine keeps
    /// no other holds of the process from being renewed.
    fn keeper(&self) -> Result<Arc<Keeper>, NoKeeper> {
        let Keeping { keeper, listener } = &self.shared.keeping;
        let host = || Arc::clone(&self.shared.host);
        let keeper = keeper.get_with(|| Arc::new(HostClock(host())))?;
        listener.get_or_init(|| {
            let nudge: Arc<dyn Listener> = Arc::new(Nudge(Arc::downgrade(&keeper)));
            self.shared.engine.listen(Changes::Tokens, Arc::downgrade(&nudge));
            nudge
        });
        Ok(keeper)
    }
}

impl Held {
    /// Returns the name that is held.
    pub fn name(&self) -> &str {
        &self.kept.hold.grant().name
    }

    /// Returns the owner text, which is unique to this hold: host, process and a random part.
    pub fn owner(&self) -> &str {
        &self.kept.hold.grant().owner
    }

    /// Returns the fencing token of this grant.
    pub fn token(&self) -> i64 {
        self.kept.hold.grant().token
    }

    /// Returns the grant as the verbs take it, with the expiry of the last renewal.
    pub fn lease(&self) -> Lease {
        let HeldGrant { name, owner, token, .. } = self.kept.hold.grant().clone();
        Lease { name, owner, token, expires_at_ms: self.kept.hold.expires_at_ms() }
    }

    /// Checks whether the lease can still be trusted. Once this has failed it always fails.
    pub fn check(&self) -> Result<(), Lost> {
        self.kept.hold.check(self.now()).map_err(|reason| self.as_lost(reason))
    }

    /// Returns a signal for other threads: they can wait for the loss of this lease.
    pub fn lost(&self) -> LossSignal {
        LossSignal::new(self.kept.hold.clone())
    }

    /// Calls `callback` on a thread of its own when the lease is lost; at once if it already is.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        let name = self.name().to_owned();
        self.kept.hold.on_lost(move |reason| callback(&Lost { name, reason: reason.clone() }));
    }

    /// Releases the lease and returns whether that worked. Dropping the hold releases it, too, and
    /// ignores errors.
    ///
    /// If the engine cannot be reached, it tries for a few seconds; after that the keeper keeps
    /// trying until the lease is over.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let held = cluster.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
    /// held.release()?;
    /// assert_eq!(cluster.owner("books")?, None);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn release(mut self) -> Result<(), Lost> {
        self.released = true;
        self.release_within(RELEASE).map_err(|reason| self.as_lost(reason))
    }

    /// Releases the row. A renewal that is under way is not waited for: of the two, only the first
    /// is stored as it was sent, and the release is tried again.
    fn release_within(&self, patience: Duration) -> Result<(), Loss> {
        let cluster = self.cluster.within(patience);
        self.kept.release_by(Duration::ZERO, |grant| release(&cluster, grant))
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.name().into(), reason }
    }

    fn now(&self) -> Duration {
        self.cluster.shared.host.counted()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The watch is the parent's.
        if !self.kept.hold.is_forked() {
            self.cluster.shared.engine.unfollow(self.name());
        }
        if !self.released {
            // A drop cannot tell, and must not take long; what was superseded is left alone.
            let _ = self.release_within(DROP);
        }
    }
}

/// The clock of a machine.
struct HostClock(Arc<dyn Host>);

impl Clock for HostClock {
    fn now(&self) -> Duration {
        self.0.counted()
    }
}

/// Makes the keeper look at what others have changed.
struct Nudge(Weak<Keeper>);

impl Listener for Nudge {
    fn changed(&self, name: Option<&str>, token: Option<i64>) {
        if let Some(keeper) = self.0.upgrade() {
            keeper.changed(name, token);
        }
    }
}
