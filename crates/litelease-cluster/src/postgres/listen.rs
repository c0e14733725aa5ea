//! Waking those who wait: a connection that listens, and a bell for each name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::timeout;

use crate::engine::Listener;
use crate::postgres::client::{REQUEST, Shared};

/// How long nobody sleeps longer without a look at the row: a ring is only a hint.
const POLL: Duration = Duration::from_millis(500);
/// The same while nobody listens.
const DEAF_POLL: Duration = Duration::from_millis(100);
/// How many names are remembered. Beyond that all are forgotten, which wakes everybody.
const MOST: usize = 10_000;

/// Counts the rings of each name.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<HashMap<String, u64>>,
    rung: Condvar,
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    /// Whether a connection listens, or tries to.
    has_listener: AtomicBool,
    is_listening: AtomicBool,
}

impl Bell {
    /// Rings for a name.
    pub(crate) fn ring(&self, name: &str) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        if rings.len() >= MOST {
            rings.clear();
        }
        *rings.entry(name.to_owned()).or_default() += 1;
        self.rung.notify_all();
        drop(rings);
        self.tell(Some(name));
    }

    /// Adds a listener, who is told of every ring.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) {
        let mut listeners = self.listeners();
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(listener);
    }

    fn tell(&self, name: Option<&str>) {
        let listeners: Vec<_> = self.listeners().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed(name, None));
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how often it has rung for a name.
    pub(crate) fn heard(&self, name: &str) -> u64 {
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.get(name).copied().unwrap_or(0)
    }

    /// Sleeps until it has rung for a name more often, for at most `time` and never long.
    pub(crate) fn nap(&self, name: &str, heard: u64, time: Duration) {
        let most = if self.is_listening.load(Ordering::Relaxed) { POLL } else { DEAF_POLL };
        let rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        let is_silent =
            |rings: &mut HashMap<String, u64>| rings.get(name).copied().unwrap_or(0) == heard;
        let _ = self.rung.wait_timeout_while(rings, time.min(most), is_silent);
    }

    /// Takes the task of listening, if nobody has it yet.
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
            shared.bell.is_listening.store(is_listening, Ordering::Relaxed);
            // Whatever was told before was not heard.
            shared.bell.tell(None);
            // The connection's own task rings; a question now and then finds out that the server
            // has gone.
            while is_listening && in_time(session.client.simple_query("")).await {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            shared.bell.is_listening.store(false, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Checks whether a request succeeds in time. A server that is gone without a word never answers.
async fn in_time<T>(request: impl Future<Output = Result<T, tokio_postgres::Error>>) -> bool {
    matches!(timeout(REQUEST, request).await, Ok(Ok(_)))
}
