//! Waking waiters: a connection that listens, and a count of notifications for each name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::Listener;
use crate::postgres::client::{REQUEST, Shared};

/// The longest sleep between two reads of the row: a notification is only a hint.
const POLL: Duration = Duration::from_millis(500);
/// The same while no connection listens.
const POLL_WITHOUT_NOTIFY: Duration = Duration::from_millis(100);
/// How many names are remembered. Beyond that all are forgotten, which wakes all waiters.
const MOST: usize = 10_000;

/// Counts the notifications of each name.
#[derive(Default)]
pub(crate) struct NotificationCounts {
    counts: Mutex<HashMap<String, u64>>,
    changed: Condvar,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    /// A connection listens, or tries to.
    has_listener: AtomicBool,
    is_listening: AtomicBool,
}

impl NotificationCounts {
    /// Counts a notification of a name, and wakes its waiters.
    pub(crate) fn notify(&self, name: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST {
            counts.clear();
        }
        *counts.entry(name.to_owned()).or_default() += 1;
        self.changed.notify_all();
        drop(counts);
        self.notify_listeners(Some(name));
    }

    /// Adds a listener, which is called at every notification.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn notify_listeners(&self, name: Option<&str>) {
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed(name, None));
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many notifications of a name have come.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(name).copied().unwrap_or(0)
    }

    /// Sleeps until a name has more than `before` notifications, for at most `time` and never long.
    pub(crate) fn wait_for_change(&self, name: &str, before: u64, time: Duration) {
        let most =
            if self.is_listening.load(Ordering::Relaxed) { POLL } else { POLL_WITHOUT_NOTIFY };
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same =
            |counts: &mut HashMap<String, u64>| counts.get(name).copied().unwrap_or(0) == before;
        let _ = self.changed.wait_timeout_while(counts, time.min(most), is_same);
    }

    /// Takes the task of listening. Returns whether no other caller has it.
    pub(crate) fn takes_listening(&self) -> bool {
        !self.has_listener.swap(true, Ordering::Relaxed)
    }
}

/// Listens for ever, over one connection after another.
pub(crate) async fn listen(shared: Arc<Shared>) {
    loop {
        if let Ok(session) = shared.connect().await {
            let sql = format!("LISTEN \"{}\"", shared.schema);
            let is_listening = in_time(session.client.batch_execute(&sql)).await;
            shared.notifications.is_listening.store(is_listening, Ordering::Relaxed);
            // Notifications from before were missed.
            shared.notifications.notify_listeners(None);
            // The connection's own task counts notifications; an empty query now and then finds out
            // that the server has gone.
            while is_listening && in_time(session.client.simple_query("")).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            shared.notifications.is_listening.store(false, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Checks whether a request succeeds in time. A server that is gone without a word never answers.
async fn in_time<T>(request: impl Future<Output = Result<T, tokio_postgres::Error>>) -> bool {
    matches!(timeout(REQUEST, request).await, Ok(Ok(_)))
}
