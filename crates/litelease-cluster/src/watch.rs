//! Watches an engine for changes by any client, for callers that read again after each.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use litelease_hold::time_to_next_read;

use crate::cluster::Cluster;
use crate::engine::{Changes, Listener};
use crate::host::Host;

/// Notices changes of rows, whichever client makes them. Made by [`Cluster::watch`].
///
/// A wake-up is only a hint: read again, and decide by what is stored.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_cluster::{Cluster, MemoryEngine, Watch};
/// # let cluster = Cluster::on(MemoryEngine::new());
/// cluster.claim("import", "a", Duration::from_millis(150))?;
/// let watch: Watch = cluster.watch();
/// loop {
///     let seen = watch.changes(); // before looking, so that no change is missed
///     let Some(current) = cluster.inspect("import")? else { break };
///     watch.wait(seen, current.expires_at_ms, Duration::from_secs(60));
/// }
/// # Ok::<(), litelease_cluster::Error>(())
/// ```
pub struct Watch {
    counter: Arc<Counter>,
    host: Arc<dyn Host>,
}

#[derive(Default)]
struct Counter {
    changes: Mutex<u32>,
    changed: Condvar,
}

impl Listener for Counter {
    fn changed(&self, _: Option<&str>, _: Option<i64>) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes = changes.wrapping_add(1);
        self.changed.notify_all();
    }
}

impl Cluster {
    /// Starts to watch the rows for changes by any client.
    ///
    /// etcd reports every change at once. PostgreSQL reports releases, breaks and transfers; other
    /// changes are noticed within half a second.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::{Cluster, MemoryEngine};
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let watch = cluster.watch();
    /// let seen = watch.changes();
    /// cluster.claim("import", "a", Duration::from_secs(30))?;
    /// watch.wait(seen, i64::MAX, Duration::from_secs(1));
    /// assert_ne!(watch.changes(), seen);
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn watch(&self) -> Watch {
        let counter = Arc::new(Counter::default());
        let listener: Arc<dyn Listener> = counter.clone();
        self.shared.engine.listen(Changes::Rows, Arc::downgrade(&listener));
        Watch { counter, host: Arc::clone(&self.shared.host) }
    }
}

impl Watch {
    /// Returns how many changes were noticed so far. Call it before looking at the rows.
    pub fn changes(&self) -> u32 {
        *self.counter.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed since `seen`, until the Unix time `until_ms`, or for
    /// `timeout`, whichever comes first, and never longer than half a second.
    pub fn wait(&self, seen: u32, until_ms: i64, timeout: Duration) {
        let time = time_to_next_read(until_ms.saturating_sub(self.host.wall_ms()), timeout);
        let changes = self.counter.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = |changes: &mut u32| *changes == seen;
        let _ = self.counter.changed.wait_timeout_while(changes, time, is_same);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("changes", &self.changes()).finish_non_exhaustive()
    }
}
