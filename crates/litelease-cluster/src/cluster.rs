//! The handle: an engine, a machine, options, and the time to decide at.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use litelease_hold::ProcessKeeper;

use crate::engine::{Engine, EngineFacts, Loaded, Result};
use crate::host::{Host, System};
use crate::row_cache::RowCache;

/// Leases on an engine that several machines share.
///
/// Clones share everything; threads may use them at the same time. Every verb is a transaction of
/// its own. A verb that gets no answer tries again, at the next member, for up to
/// [`Options::patience`]. Then it fails with [`Unreachable`](crate::Error::Unreachable) if nothing
/// can have been stored, and with [`CommitUnknown`](crate::Error::CommitUnknown) otherwise.
///
/// ```
/// # use std::time::Duration;
/// use litelease_cluster::{Cluster, MemoryEngine, RenewResult};
///
/// # fn main() -> litelease_cluster::Result<()> {
/// let cluster = Cluster::on(MemoryEngine::new());
/// let ttl = Duration::from_secs(30);
/// let lease = cluster.claim("scheduler", "a", ttl)?.acquired().expect("it is free");
/// assert!(matches!(cluster.renew(&lease, ttl)?, RenewResult::Renewed(_)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Cluster {
    pub(crate) shared: Arc<Shared>,
    /// The time that the caller gives; the clock's without one.
    pub(crate) when: Option<i64>,
    /// How long the verbs of this handle try, if not as the options say.
    pub(crate) patience: Option<Duration>,
    /// The names that belong to the service are for this handle, too.
    pub(crate) is_of_service: bool,
}

pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) options: Options,
    pub(crate) keeper: ProcessKeeper,
    row_cache: Mutex<RowCache>,
}

/// How the verbs wait, and which clocks they trust.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_cluster::Options;
/// let options = Options { patience: Duration::from_secs(1), ..Options::default() };
/// assert_eq!(options.max_skew, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a verb tries to get an answer: 5 s.
    pub patience: Duration,
    /// How wrong the clock of each machine may be: 60 s. Where the engine has no clock, a lease
    /// that ended longer than twice this ago is taken over without watching it for a whole ttl: the
    /// clock that its end was stored by and that of the claimant may be wrong in opposite ways.
    pub max_skew: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { patience: Duration::from_secs(5), max_skew: Duration::from_secs(60) }
    }
}

impl Cluster {
    /// Opens leases on an engine, with the system's clocks.
    pub fn on(engine: impl Engine + 'static) -> Self {
        Cluster::with(Arc::new(engine), Arc::new(System), Options::default())
    }

    /// Opens leases on an engine, with clocks and options of the caller's.
    pub fn with(engine: Arc<dyn Engine>, host: Arc<dyn Host>, options: Options) -> Self {
        Cluster::remembering(engine, host, options, RowCache::default())
    }

    /// Opens leases for a handle with a row cache: a test that goes back in time.
    #[doc(hidden)]
    pub fn remembering(
        engine: Arc<dyn Engine>,
        host: Arc<dyn Host>,
        options: Options,
        row_cache: RowCache,
    ) -> Self {
        let (row_cache, keeper) = (Mutex::new(row_cache), ProcessKeeper::new());
        let shared = Arc::new(Shared { engine, host, options, keeper, row_cache });
        Cluster { shared, when: None, patience: None, is_of_service: false }
    }

    /// Returns the same verbs, also for the names that belong to the service.
    #[doc(hidden)]
    pub fn of_service(&self) -> Cluster {
        Cluster { is_of_service: true, ..self.clone() }
    }

    /// Reads all rows, once the floor is recorded in this incarnation of the engine.
    #[doc(hidden)]
    pub fn rows(&self) -> Result<Loaded> {
        self.load_all(&mut self.patience())
    }

    /// Returns the same verbs at a given Unix time in milliseconds, for tests and simulations.
    ///
    /// They decide and write as if every clock said `now_ms`: a lease has ended when its expiry has
    /// come, whether a client has watched it or not.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let ttl = Duration::from_millis(50);
    /// cluster.at(100).claim("scheduler", "a", ttl)?;
    /// assert!(matches!(cluster.at(149).claim("scheduler", "b", ttl)?, ClaimResult::Busy(_)));
    /// let next = cluster.at(150).claim("scheduler", "b", ttl)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn at(&self, now_ms: i64) -> Cluster {
        Cluster { when: Some(now_ms), ..self.clone() }
    }

    /// Makes what the engine needs before the first row, such as tables, and checks it strictly if
    /// it is there. Call it at every start. etcd needs nothing.
    pub fn bootstrap(&self) -> Result<()> {
        self.shared.engine.bootstrap()
    }

    /// Returns facts about the engine, and what should be changed there.
    pub fn facts(&self) -> Result<EngineFacts> {
        self.shared.engine.facts()
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }

    /// Returns the machine that the verbs run on.
    #[doc(hidden)]
    pub fn host(&self) -> &dyn Host {
        &*self.shared.host
    }

    /// Returns a copy of what this handle remembers.
    #[doc(hidden)]
    pub fn row_cache(&self) -> RowCache {
        self.cache().clone()
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, RowCache> {
        // A thread that panicked has left whole rows there, because each change is one call.
        self.shared.row_cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("options", &self.shared.options).finish_non_exhaustive()
    }
}
