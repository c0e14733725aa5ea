//! Held leases: claimed, kept alive by the keeper of the handle, and released at the end.

use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{
    Acquired, Attached, Cancel, Claimed, Clock, Granted, Held, HoldLimits, HolderKind, Home,
    Identity, Liveness, NoKeeper, Place, Rows, Wish, acquire, hold, keep,
};

use crate::change::Answered;
use crate::cluster::Cluster;
use crate::engine::{Engine, Error};
use crate::host::Host;
use crate::kept_rows::KeptRows;
use crate::value::Value;
use crate::{ClaimResult, Lease, RequestResult};

/// The error of [`hold`](Cluster::hold) and [`claim_wait`](Cluster::claim_wait). Errors
/// of the verbs and [`Lost`](crate::Lost) turn into it with `?`.
///
/// ```
/// # use std::time::Duration;
/// use litelease_cluster::{Cluster, HoldError, HoldOptions, MemoryEngine};
///
/// # fn main() -> Result<(), HoldError> {
/// let cluster = Cluster::on(MemoryEngine::new());
/// let held = cluster.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
/// match cluster.hold("books", HoldOptions::new(Duration::from_secs(60))) {
///     Err(HoldError::Busy(current)) => assert_eq!(current.owner, held.owner()),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
pub type HoldError = litelease_hold::HoldError<Error>;

impl From<Error> for HoldError {
    fn from(error: Error) -> Self {
        HoldError::Lease(error)
    }
}

/// How long a release tries whose result is not used.
const TAKE_BACK: Duration = Duration::from_millis(100);
/// A waiter reads the row this often even if nothing wakes it.
const POLL: Duration = Duration::from_secs(5);
/// The same if the holder is a process of this machine, whose death is noticed.
const POLL_NEAR: Duration = Duration::from_millis(500);
/// How long a waiter pauses while the engine cannot be reached.
const PAUSE: Duration = Duration::from_millis(100);

/// Options of a hold.
///
/// They are those of a hold in a file, without ticks.
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
    value: Value,
    request: Option<Duration>,
    limits: HoldLimits,
    cancel: Option<Cancel>,
}

impl HoldOptions {
    /// Returns options for a hold whose renewals last `ttl` each, and which does not wait for the
    /// name.
    pub fn new(ttl: Duration) -> Self {
        let (kind, limits) = (HolderKind::Hold, HoldLimits::default());
        let (wait, value, request, cancel) = (Duration::ZERO, Value::Null, None, None);
        HoldOptions { ttl, wait, kind, value, request, limits, cancel }
    }

    /// Attaches a value in the transaction of the claim, such as the address of a leader: see
    /// [`attach`](Cluster::attach). No reader sees the grant without it.
    pub fn value(self, value: impl Into<Value>) -> Self {
        HoldOptions { value: value.into(), ..self }
    }

    /// Asks the present holder to give the name up within this time, while this waits: see
    /// [`request`](Cluster::request). The request is withdrawn if the wait ends without the name.
    pub fn request(self, within: Duration) -> Self {
        HoldOptions { request: Some(within), ..self }
    }

    /// Waits for the name for at most this long; `Duration::MAX` is for ever.
    pub fn wait(self, wait: Duration) -> Self {
        HoldOptions { wait, ..self }
    }

    /// Renews only while [`progress`](Held::progress) is noted within this time. The hold keeps
    /// this limit itself.
    pub fn progress_within(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.progress_within = time.into();
        self
    }

    /// Holds for this long at the most. The hold keeps this limit itself.
    pub fn max_time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.max_time = time.into();
        self
    }

    /// Ends the wait early when this is cancelled.
    pub fn cancel(self, cancel: Cancel) -> Self {
        HoldOptions { cancel: Some(cancel), ..self }
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
    ///
    /// A break, or a grant to another owner, is reported at once where the engine can be reached.
    ///
    /// ```
    /// use std::time::Duration;
    /// use litelease_cluster::{Cluster, HoldError, HoldOptions, MemoryEngine};
    ///
    /// # fn main() -> Result<(), HoldError> {
    /// let cluster = Cluster::on(MemoryEngine::new()); // or Cluster::open("etcd://10.0.0.1:2379")
    /// let options = HoldOptions::new(Duration::from_secs(60)).wait(Duration::from_secs(5));
    /// let held = cluster.hold("books", options)?;
    /// for shelf in ["fiction", "poetry"] {
    ///     held.check()?; // Err(Lost { reason }) once it can no longer be trusted
    ///     println!("{shelf}, under token {}", held.token());
    /// }
    /// drop(held); // released; a superseded grant is left alone
    /// assert_eq!(cluster.owner("books")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold(&self, name: &str, options: HoldOptions) -> Result<Held, HoldError> {
        let HoldOptions { ttl, wait, kind, value, request, limits, cancel } = options;
        value.check()?;
        let cluster = Cluster { when: None, ..self.clone() };
        let owner = Identity::new(kind).to_string();
        let mut place = ClusterPlace::new(&cluster, value);
        let cancel = cancel.as_ref();
        let wish = Wish { limits, cancel, request, ..Wish::new(name, &owner, ttl) };
        hold(&mut place, &wish, ttl, wait)
    }

    /// Claims like [`claim`](Cluster::claim), but waits until the name is free. Returns `Busy`
    /// after `timeout`.
    ///
    /// A release anywhere wakes it at once. A holder that dies is succeeded when its lease is over.
    /// On an engine without a clock, such as etcd, that is when its row was not renewed for a whole
    /// ttl. If it held the name with [`hold`](Cluster::hold) or `litelease run` on this machine,
    /// and in this container, it is succeeded within a second (Linux). Waiters are not queued: the
    /// first to wait need not be the first to get the name.
    ///
    /// While the engine cannot be reached, it goes on waiting. A request that is under way then may
    /// outlast `timeout` by some seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let (ttl, wait) = (Duration::from_millis(150), Duration::from_secs(60));
    /// cluster.claim("books", "a", ttl)?;
    /// // It is never renewed, so it is over before the waiting is.
    /// let next = cluster.claim_wait("books", "b", ttl, wait)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease_cluster::HoldError>(())
    /// ```
    pub fn claim_wait(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        timeout: Duration,
    ) -> Result<ClaimResult, HoldError> {
        self.wait_for(&Wish::new(name, owner, ttl), timeout)
    }

    fn wait_for(&self, wish: &Wish<'_>, timeout: Duration) -> Result<ClaimResult, HoldError> {
        let mut place = ClusterPlace::new(self, Value::Null);
        Ok(match acquire(&mut place, wish, timeout)? {
            Ok(acquired) => ClaimResult::Acquired(acquired.granted.lease),
            Err(current) => ClaimResult::Busy(current),
        })
    }

    /// Waits like [`claim_wait`](Cluster::claim_wait), and [asks](Cluster::request) the present
    /// holder to give the name up within `within`. The request is repeated while this waits, and
    /// withdrawn if the wait ends without the name. No other grant may use the owner text.
    pub fn request_wait(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        within: Duration,
        timeout: Duration,
    ) -> Result<ClaimResult, HoldError> {
        let wish = Wish { request: Some(within), ..Wish::new(name, owner, ttl) };
        self.wait_for(&wish, timeout)
    }

    /// Keeps a grant alive that was not made by [`hold`](Cluster::hold), such as one from a
    /// transfer. `since` is a moment of [`Host::monotonic`] before the call that granted it. No
    /// other holder may use its owner text.
    pub fn keep(&self, lease: Lease, since: Duration, ttl: Duration) -> Result<Held, HoldError> {
        let place = ClusterPlace::new(self, Value::Null);
        let acquired = Acquired { granted: Granted::whole(lease), start: since };
        keep(&place.home()?, acquired, ttl, || place.rows())
    }

    /// Returns the rows as the keeper renews them: for tests that step a keeper of their own.
    #[doc(hidden)]
    pub fn kept_rows(&self) -> Box<dyn Rows> {
        Box::new(KeptRows::new(self.clone()))
    }
}

/// An engine as a place, for one hold or one wait.
struct ClusterPlace<'c> {
    cluster: &'c Cluster,
    /// The value that is stored with the grant.
    value: Value,
    /// The row of the lease that was in the way at the last claim: its version, and how much of the
    /// lease is left, at most.
    version: i64,
    left_ms: i64,
}

impl<'c> ClusterPlace<'c> {
    fn new(cluster: &'c Cluster, value: Value) -> Self {
        ClusterPlace { cluster, value, version: 0, left_ms: 0 }
    }

    /// Returns a grant whose row has this version.
    fn granted(&self, lease: Lease, version: i64) -> Granted {
        let (engine, name) = (Arc::clone(&self.cluster.shared.engine), lease.name.clone());
        // Changes since this version are reported, so nothing is missed until then.
        let attach = move || Box::new(Followed::new(engine, name, version)) as Attached;
        Granted { attach: Some(Box::new(attach) as _), ..Granted::whole(lease) }
    }
}

impl Place for ClusterPlace<'_> {
    type Error = Error;

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(HostClock(Arc::clone(&self.cluster.shared.host)))
    }

    /// The keeper of this handle has a thread of its own, so that a slow engine keeps no other
    /// holds of the process from being renewed.
    fn home(&self) -> Result<Home, NoKeeper> {
        let keeper = self.cluster.shared.keeper.get_with(|| self.clock())?;
        Ok(Home { keeper, key: String::new() })
    }

    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed, Error> {
        let Wish { name, owner, ttl, .. } = *wish;
        let answered = match wish.dead {
            Some(dead) => {
                self.cluster.claim_once_from_dead(name, owner, ttl, dead.into(), &self.value)
            }
            None => self.cluster.claim_once(name, owner, ttl, 0, &self.value),
        };
        let Answered { answer, version, left_ms, .. } = answered?;
        match answer {
            ClaimResult::Acquired(lease) => Ok(Claimed::Granted(self.granted(lease, version))),
            ClaimResult::Busy(current) => {
                (self.version, self.left_ms) = (version, left_ms);
                Ok(Claimed::Busy(current))
            }
        }
    }

    fn request(&mut self, wish: &Wish<'_>) -> Result<Option<i64>, Error> {
        let Wish { name, owner, request, .. } = *wish;
        match request {
            Some(within) => Ok(match self.cluster.request(name, owner, within)? {
                RequestResult::Requested { token, .. } => Some(token),
                RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => None,
            }),
            // This owner may have asked before it began to wait.
            None => self.cluster.repeat_request(name, owner),
        }
    }

    fn accept(
        &mut self,
        wish: &Wish<'_>,
        handed: &Lease,
        asked: Option<i64>,
    ) -> Result<Option<Granted>, Error> {
        let Wish { name, owner, ttl, .. } = *wish;
        let is_asked = asked.is_some_and(|token| handed.token > token);
        let Some(answered) = self.cluster.accept(name, owner, ttl, is_asked)? else {
            return Ok(None);
        };
        let Answered { answer: lease, version, .. } = answered;
        if self.value != Value::Null {
            // It is the owner's, whatever becomes of its value.
            let _ = self.cluster.attach(&lease, self.value.clone());
        }
        Ok(Some(self.granted(lease, version)))
    }

    fn withdraw(&mut self, wish: &Wish<'_>) -> Result<Option<Lease>, Error> {
        let _ = self.cluster.withdraw_request(wish.name, wish.owner);
        self.cluster.inspect(wish.name)
    }

    fn take_back(&mut self, wish: &Wish<'_>) {
        // The owner text proves it: no other grant uses it.
        let _ = self.cluster.within(TAKE_BACK).release_by_owner(wish.name, wish.owner);
    }

    fn wait(&mut self, wish: &Wish<'_>, current: &Lease, at_most: Duration) {
        let longest = if is_near(&current.owner) { POLL_NEAR } else { POLL };
        let over = Duration::from_millis(u64::try_from(self.left_ms).unwrap_or(0).max(1));
        let time = over.min(longest).min(at_most);
        let (engine, version) = (Arc::clone(&self.cluster.shared.engine), self.version);
        match wish.cancel {
            None => engine.wait_for_change(wish.name, version, time),
            Some(cancel) => {
                let name = wish.name.to_owned();
                let wait = move || engine.wait_for_change(&name, version, time);
                cancel.unless_cancelled(wait).unwrap_or_else(|| cancel.sleep(PAUSE));
            }
        }
    }

    fn pause(&mut self, error: &Error, at_most: Duration) -> bool {
        let may_pass = error.is_transient();
        if may_pass {
            self.cluster.shared.host.pause(PAUSE.min(at_most));
        }
        may_pass
    }

    fn rows(&self) -> Result<Box<dyn Rows>, Error> {
        Ok(self.cluster.kept_rows())
    }
}

/// A watch on one held name, which ends when this is dropped.
struct Followed {
    engine: Arc<dyn Engine>,
    name: String,
    /// In a forked process, the watch is the parent's.
    process: u32,
}

impl Followed {
    fn new(engine: Arc<dyn Engine>, name: String, version: i64) -> Self {
        engine.follow(&name, version);
        Followed { engine, name, process: std::process::id() }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.engine.unfollow(&self.name);
        }
    }
}

/// The clock of a machine.
struct HostClock(Arc<dyn Host>);

impl Clock for HostClock {
    fn now(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, time: Duration) {
        self.0.pause(time);
    }
}

/// Checks whether the holder is a process of this machine.
fn is_near(owner: &str) -> bool {
    Identity::parse(owner).is_some_and(|holder| holder.liveness() != Liveness::Unknown)
}
