//! A server among several on one engine: it writes while it holds a lease there, and otherwise
//! forwards connections to the server that does.

pub(crate) mod writer_lease;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use litelease_cluster::{ClaimResult, Cluster, HoldError, Host, Lease, System};
use litelease_hold::{Clock, SystemClock};
use tokio::net::TcpListener;
use tokio::sync::watch;

use self::writer_lease::WriterLease;
use crate::cluster_access::ClusterAccess;
use crate::committer::Committer;
use crate::error::OpenError;
use crate::forwarding::Forwarding;
use crate::job::{Job, JobError, Receiver};
use crate::local_key;
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::mirror::encoding::ACCESS;
use crate::options::Options;
use crate::server::{Front, run_before};

/// The name of the lease that the server that writes to an engine holds.
#[doc(hidden)]
pub const WRITER_LEASE: &str = "serve";

/// The ttl of the writer's lease, by default.
const TTL: Duration = Duration::from_secs(5);

/// The longest time between two reads of the lease of another server.
const READ_AGAIN: Duration = Duration::from_millis(500);

/// How long to wait after an error.
const PAUSE: Duration = Duration::from_millis(200);

/// A server among any number of them on one engine.
///
/// One of them holds the lease `serve` on the engine and writes. The others forward connections to
/// it.
///
/// ```
/// use litelease_cluster::{Cluster, MemoryEngine};
/// use litelease_serve::{Options, Replica};
///
/// let cluster = Cluster::on(MemoryEngine::new()); // or Cluster::open("etcd://10.0.0.1:2379")
/// let replica = Replica::new(cluster, "10.0.0.7:7070", Options::default())?;
/// # Ok::<(), litelease_serve::OpenError>(())
/// ```
pub struct Replica {
    cluster: Cluster,
    advertise: String,
    options: Options,
    ttl: Duration,
    is_one_clock: bool,
}

impl Replica {
    /// Makes a server that other replicas reach at `advertise`, an address with a port.
    ///
    /// Creates the engine's tables, or what else it needs before the first row.
    pub fn new(cluster: Cluster, advertise: &str, options: Options) -> Result<Self, OpenError> {
        cluster.bootstrap().map_err(OpenError::Cluster)?;
        let cluster = cluster.of_service();
        let advertise = advertise.into();
        Ok(Replica { cluster, advertise, options, ttl: TTL, is_one_clock: false })
    }

    /// Takes the times of the engine for those of the clock in the options, in tests that set both.
    #[doc(hidden)]
    pub fn on_one_clock(self) -> Self {
        Replica { is_one_clock: true, ..self }
    }

    /// Sets how long the writer's lease is: 5 s. After a crash of the writer, no request is
    /// answered for about that long.
    pub fn with_ttl(self, ttl: Duration) -> Self {
        Replica { ttl, ..self }
    }

    /// Writes an access key for the user of this process into `folder`, where only this user can
    /// read it, for a server that listens at `address`. Returns its file, or `None` if no loopback
    /// address leads to the server.
    ///
    /// Each server on an engine has such a key of its own. It is made again at every start if it is
    /// gone.
    ///
    /// ```
    /// # use litelease_cluster::{Cluster, MemoryEngine};
    /// # use litelease_serve::{Options, Replica};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let replica = Replica::new(cluster, "127.0.0.1:7070", Options::default())?;
    /// let address = "127.0.0.1:7070".parse().unwrap();
    /// let file = replica.keep_local_key(&folder.path().join("access"), address)?.unwrap();
    /// assert!(std::fs::read_to_string(file).unwrap().starts_with("Authorization: Bearer "));
    /// # Ok::<(), litelease_serve::OpenError>(())
    /// ```
    pub fn keep_local_key(
        &self,
        folder: &Path,
        address: SocketAddr,
    ) -> Result<Option<PathBuf>, OpenError> {
        let Some(address) = local_key::loopback(address) else { return Ok(None) };
        let name = format!("local {}", self.advertise);
        local_key::keep_in(&self.access(), &name, folder, address)
    }

    /// Returns the access keys of the service on this engine.
    pub fn access(&self) -> ClusterAccess {
        ClusterAccess::new(self.cluster.clone())
    }
}

/// Serves until `shutdown` completes. A writer then answers its waiters with 503, finishes the
/// requests that are under way, and hands over at once.
///
/// ```
/// use litelease_cluster::{Cluster, MemoryEngine};
/// use litelease_serve::{Options, Replica, run_replica};
///
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let cluster = Cluster::on(MemoryEngine::new());
/// let replica = Replica::new(cluster, "127.0.0.1:7070", Options::default()).unwrap();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
/// run_replica(listener, replica, async { /* until a signal comes */ }).await.unwrap();
/// # });
/// ```
pub async fn run_replica(
    listener: TcpListener,
    replica: Replica,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Replica { cluster, advertise, options, ttl, is_one_clock } = replica;
    let (on_engine, metrics) = (cluster.clone(), Arc::<Metrics>::default());
    let (roles, mut role) = watch::channel(Role::Waiting);
    let stop = Arc::<Signal>::default();
    let owner = format!("{advertise} {} {:x}", std::process::id(), System.random_id());
    let candidate = Candidate { cluster, owner, advertise, ttl, roles, stop: Arc::clone(&stop) };
    let candidate = thread::Builder::new().name("candidate".into()).spawn(|| candidate.work())?;
    tokio::pin!(shutdown);
    let (mut is_over, mut served) = (false, Ok(()));
    while !is_over && served.is_ok() {
        let now = role.borrow_and_update().clone().if_trusted();
        let changed = async {
            tokio::select! {
                () = &mut shutdown => {
                    tracing::info!("shutting down");
                    is_over = true;
                }
                () = now.ends(&mut role) => {}
            }
        };
        let front = Front { metrics: Arc::clone(&metrics), ..Front::new(options.clone()) };
        served = match &now {
            Role::Writing(held) => {
                let (engine, held) = (on_engine.clone(), held.clone());
                let mirror = Mirror::new(engine, held, options.clock, is_one_clock);
                let front = Front { forwarding: Forwarding::Writer, ..front };
                let options = options.clone();
                run_before(&listener, front, changed, move |todo, answers, changes, metrics| {
                    match Committer::mirrored(mirror, &options, answers, changes, metrics) {
                        Ok(committer) => committer.work(&todo),
                        Err(error) => {
                            tracing::error!(error = %error, "no database in memory");
                            refuse(&todo);
                        }
                    }
                })
                .await
            }
            Role::Passing { .. } | Role::Waiting => {
                let front = Front { forwarding: Forwarding::replica(now.writer()), ..front };
                run_before(&listener, front, changed, |todo, answers, _, _| {
                    // Ends the delivery of answers, which would keep a sender of jobs.
                    drop(answers);
                    refuse(&todo);
                })
                .await
            }
        };
    }
    stop.set();
    let ended = tokio::task::spawn_blocking(move || candidate.join()).await;
    served.and(match ended {
        Ok(Ok(())) => Ok(()),
        _ => Err(io::Error::other("the thread that holds the lease has ended unexpectedly")),
    })
}

/// Answers every job of a server that does not write.
fn refuse(todo: &Receiver<Job>) {
    while let Ok(job) = todo.recv() {
        if let Some((_, reply)) = job.into_reply() {
            // The client may be gone.
            let _ = reply.send(Err(JobError::NoWriter));
        }
    }
}

/// The role of this server.
#[derive(Clone)]
enum Role {
    /// It writes.
    Writing(Arc<WriterLease>),
    /// It forwards connections to this address, while the writer there has this owner text.
    Passing { writer: String, owner: String },
    /// It knows no writer.
    Waiting,
}

impl Role {
    fn writer(&self) -> Option<String> {
        match self {
            Role::Passing { writer, .. } => Some(writer.clone()),
            _ => None,
        }
    }

    /// Returns the role of this server by its lease now. The thread that renews the lease may be
    /// waiting for the engine, and report later. A renewal that is answered later must not bring
    /// the lease back, because no server would serve under it.
    fn if_trusted(self) -> Self {
        match self {
            Role::Writing(held) if !held.is_trusted() => {
                held.give_up();
                Role::Waiting
            }
            role => role,
        }
    }

    fn is_same(&self, other: &Role) -> bool {
        match (self, other) {
            (Role::Writing(one), Role::Writing(other)) => Arc::ptr_eq(one, other),
            (Role::Passing { owner: one, .. }, Role::Passing { owner: other, .. }) => one == other,
            (Role::Waiting, Role::Waiting) => true,
            _ => false,
        }
    }

    /// Waits until this server has another role.
    async fn ends(&self, role: &mut watch::Receiver<Role>) {
        let Role::Writing(held) = self else {
            // A dropped sender sets no role any more, and the shutdown is near.
            return match role.changed().await {
                Ok(()) => {}
                Err(_) => std::future::pending().await,
            };
        };
        // This also checks the lease, because the thread that renews it may wait for the engine.
        while held.is_trusted() {
            let soon = held.trusted_for().min(Duration::from_millis(100));
            if let Ok(Ok(())) = tokio::time::timeout(soon, role.changed()).await {
                return;
            }
        }
        // For good: a renewal that is answered while this server stops to write must not bring the
        // lease back. The next writer here would not know what was lost before.
        held.give_up();
    }
}

/// The thread that claims and renews the writer's lease.
struct Candidate {
    cluster: Cluster,
    owner: String,
    advertise: String,
    ttl: Duration,
    roles: watch::Sender<Role>,
    stop: Arc<Signal>,
}

impl Candidate {
    fn work(self) {
        let mut failing_since = None;
        let mut duplicate = DuplicateAddress::default();
        while !self.stop.is_set() {
            match self.cluster.claim_since(WRITER_LEASE, &self.owner, self.ttl, 0) {
                Ok((ClaimResult::Acquired(lease), since)) => {
                    failing_since = None;
                    self.write(lease, since);
                }
                Ok((ClaimResult::Busy(current), _)) => {
                    failing_since = None;
                    self.follow(&current);
                    if duplicate.is_found(&current, &self, SystemClock.now()) {
                        let address = &self.advertise;
                        tracing::error!(
                            address,
                            "another server has the same address: give each its own --advertise"
                        );
                    }
                    self.wait_for_change();
                }
                Err(error) => {
                    let now = SystemClock.now();
                    let since = *failing_since.get_or_insert(now);
                    if since == now {
                        tracing::warn!(error = %error, "the engine cannot be asked who writes");
                    }
                    // The writer may still be there. It knows best for how long.
                    if now.saturating_sub(since) > self.ttl {
                        self.set_role(Role::Waiting);
                    }
                    self.stop.wait(PAUSE);
                }
            }
        }
    }

    fn set_role(&self, role: Role) {
        self.roles.send_if_modified(|before| {
            let is_new = !before.is_same(&role);
            if is_new {
                match &role {
                    Role::Writing(held) => {
                        tracing::info!(token = held.token(), "this server writes")
                    }
                    Role::Passing { writer, .. } => {
                        tracing::info!(writer, "this server passes connections on");
                    }
                    Role::Waiting => tracing::info!("no server is known to write"),
                }
                *before = role;
            }
            is_new
        });
    }

    /// Forwards connections to the server that has the lease.
    fn follow(&self, current: &Lease) {
        let writer = current.owner.split(' ').next().unwrap_or_default();
        self.set_role(match writer {
            // The lease of a process before this one: it ends soon.
            writer if writer == self.advertise || writer.is_empty() => Role::Waiting,
            writer => Role::Passing { writer: writer.into(), owner: current.owner.clone() },
        });
    }

    /// Sleeps until the lease may have changed.
    fn wait_for_change(&self) {
        let engine = self.cluster.engine();
        match engine.load(&[WRITER_LEASE]).map(|mut loaded| loaded.rows.pop()) {
            Ok(Some(found)) => {
                let is_held = found.row.as_ref().is_some_and(|row| row.tenure.is_some());
                if is_held {
                    let time = READ_AGAIN.min(self.ttl / 5);
                    engine.wait_for_change(WRITER_LEASE, found.version, time);
                }
            }
            _ => self.stop.wait(PAUSE),
        }
    }

    /// Keeps the lease until it is lost, given up, or this server stops.
    fn write(&self, lease: Lease, since: Duration) {
        match self.keep(lease, since) {
            Ok(lease) => self.write_under(&Arc::new(lease)),
            Err(error) => tracing::warn!(error = %error, "the lease cannot be kept"),
        }
        // Released at the end of this server, or for another one that can load what this one
        // cannot. If that fails, the lease expires. Only this server has this owner text, whatever
        // its token is by now.
        let _ = self.cluster.release_by_owner(WRITER_LEASE, &self.owner);
        if !self.stop.is_set() {
            self.stop.wait(PAUSE);
        }
    }

    fn keep(&self, lease: Lease, since: Duration) -> Result<WriterLease, HoldError> {
        let (cluster, ttl, stop) = (self.cluster.clone(), self.ttl, Arc::clone(&self.stop));
        let keep = move |lease, since| cluster.keep(lease, since, ttl);
        let (cluster, clock) = (self.cluster.clone(), Arc::new(SystemClock));
        WriterLease::new(cluster, ttl, clock, Box::new(keep), (lease, since), stop)
    }

    fn write_under(&self, lease: &Arc<WriterLease>) {
        let (mut incarnation, mut trouble) = (self.incarnation(), None);
        self.set_role(Role::Writing(Arc::clone(lease)));
        while lease.is_trusted() && !self.stop.is_set() {
            self.stop.wait(READ_AGAIN.min(self.ttl / 5));
            let new_trouble = lease.trouble();
            if let Some(reason) = new_trouble.as_ref().filter(|_| new_trouble != trouble) {
                tracing::warn!(reason = %reason, "the lease cannot be renewed");
            }
            trouble = new_trouble;
            let Some(found) = self.incarnation() else { continue };
            if *incarnation.get_or_insert(found) != found {
                // The memory may be ahead of what is stored now, and tokens must be above both.
                tracing::warn!("the engine may have lost commits: loading what it has");
                break;
            }
            if let Ok(rows) = self.cluster.engine().load_rows(ACCESS) {
                lease.compare_access(&rows.into_iter().collect());
            }
        }
        lease.end();
        self.set_role(Role::Waiting);
    }

    /// Returns the incarnation of the engine, if it answers.
    fn incarnation(&self) -> Option<i64> {
        self.cluster.engine().load(&[WRITER_LEASE]).ok().map(|loaded| loaded.incarnation)
    }
}

/// Another server that runs and advertises the address of this one. A lease that a process before
/// this one has left behind is over after its ttl.
#[derive(Default)]
struct DuplicateAddress {
    owner: String,
    since: Duration,
    was_reported: bool,
}

impl DuplicateAddress {
    /// Checks whether there is one that was not reported yet.
    fn is_found(&mut self, current: &Lease, me: &Candidate, now: Duration) -> bool {
        if self.owner != current.owner {
            *self =
                DuplicateAddress { owner: current.owner.clone(), since: now, was_reported: false };
        }
        let has_my_address = current.owner.split(' ').next() == Some(&me.advertise);
        let is_other = has_my_address && current.owner != me.owner;
        let is_found =
            is_other && now.saturating_sub(self.since) > me.ttl * 2 && !self.was_reported;
        self.was_reported |= is_found;
        is_found
    }
}

/// Asks the thread that holds the lease to stop, or to check it again.
#[derive(Default)]
pub(crate) struct Signal {
    is_set: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Signal {
    fn state(&self) -> MutexGuard<'_, (bool, bool)> {
        self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_set(&self) -> bool {
        self.state().0
    }

    fn set(&self) {
        self.state().0 = true;
        self.changed.notify_all();
    }

    fn wake(&self) {
        self.state().1 = true;
        self.changed.notify_all();
    }

    /// Sleeps until the flag is set or `wake` is called, for at most `time`.
    fn wait(&self, time: Duration) {
        let is_quiet = |state: &mut (bool, bool)| !state.0 && !state.1;
        let waited = self.changed.wait_timeout_while(self.state(), time, is_quiet);
        waited.unwrap_or_else(PoisonError::into_inner).0.1 = false;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use litelease_cluster::MemoryEngine;

    use super::*;

    #[test]
    fn a_server_with_the_address_of_another_one_says_so_once() {
        let (cluster, ttl) =
            (Cluster::on(MemoryEngine::new()).of_service(), Duration::from_secs(1));
        let (roles, _) = watch::channel(Role::Waiting);
        let (owner, advertise, stop) = ("a:1 7 x".into(), "a:1".into(), Arc::default());
        let me = Candidate { cluster: cluster.clone(), owner, advertise, ttl, roles, stop };
        let mut duplicate = DuplicateAddress::default();
        let mut found = |owner: &str, at_ms| {
            let _ = cluster.break_lease(WRITER_LEASE).unwrap();
            let lease = cluster.claim(WRITER_LEASE, owner, ttl).unwrap().acquired().unwrap();
            duplicate.is_found(&lease, &me, Duration::from_millis(at_ms))
        };
        // A lease of a process before this one ends; one of a process that runs does not.
        assert_eq!(["a:1 6 x"; 4].map(|owner| found(owner, 1_000)), [false; 4]);
        assert_eq!(
            [2_000, 3_000, 3_001, 9_000].map(|at| found("a:1 6 x", at)),
            [false, false, true, false]
        );
        assert_eq!(
            ["a:1 7 x", "b:1 6 x"].map(|owner| [found(owner, 20_000), found(owner, 30_000)]),
            [[false; 2]; 2]
        );
    }

    #[test]
    fn a_lease_that_ends_while_this_server_writes_is_over_for_good() {
        let (cluster, ttl) =
            (Cluster::on(MemoryEngine::new()).of_service(), Duration::from_secs(1));
        let lease = cluster.claim(WRITER_LEASE, "a", ttl).unwrap().acquired().unwrap();
        let (roles, mut role) = watch::channel(Role::Waiting);
        let (owner, advertise, stop) = ("a".into(), "a".into(), Arc::default());
        let candidate = Candidate { cluster, owner, advertise, ttl, roles, stop };
        let held = Arc::new(candidate.keep(lease, SystemClock.now()).unwrap());
        assert!(matches!(Role::Writing(Arc::clone(&held)).if_trusted(), Role::Writing(_)));
        // Another owner has it, and no renewal was answered since.
        let _ = candidate.cluster.break_lease(WRITER_LEASE).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(Role::Writing(Arc::clone(&held)).ends(&mut role));
        assert!(!held.is_trusted());
        assert!(matches!(Role::Writing(held).if_trusted(), Role::Waiting));
    }
}
