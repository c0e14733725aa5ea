//! Telling listeners about changes: one watch of a prefix for each kind, at one member after
//! another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use litelease_engine::{Changes, Listener};

use crate::client::Connections;
use crate::messages::{KeyValue, WatchCreateRequest};
use crate::values::Keys;

/// How long a watch waits before it begins again.
const PAUSE: Duration = Duration::from_millis(200);

/// Who listens, by what.
#[derive(Default)]
pub(crate) struct Ears {
    tokens: Arc<Ear>,
    rows: Arc<Ear>,
}

/// Who listens to one kind of changes.
#[derive(Default)]
pub(crate) struct Ear {
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    is_watching: AtomicBool,
}

impl Ears {
    pub(crate) fn of(&self, what: Changes) -> &Arc<Ear> {
        match what {
            Changes::Tokens => &self.tokens,
            Changes::Rows => &self.rows,
        }
    }
}

impl Ear {
    /// Adds a listener, and returns whether somebody must begin to watch.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) -> bool {
        self.locked().push(listener);
        !self.is_watching.swap(true, Ordering::AcqRel)
    }

    fn tell(&self, name: Option<&str>, token: Option<i64>) {
        let listeners: Vec<_> = self.locked().iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed(name, token));
    }

    /// Ends the watch if nobody listens any more.
    fn is_deserted(&self) -> bool {
        let mut listeners = self.locked();
        listeners.retain(|listener| listener.strong_count() > 0);
        if listeners.is_empty() {
            self.is_watching.store(false, Ordering::Release);
        }
        listeners.is_empty()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Weak<dyn Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches what comes after a revision, until nobody listens any more.
pub(crate) async fn listen(
    connections: Arc<Connections>,
    keys: Keys,
    what: Changes,
    ear: Arc<Ear>,
    newest: i64,
) {
    let (key, range_end) = match what {
        Changes::Tokens => keys.tokens(),
        Changes::Rows => keys.rows(),
    };
    let start = key.len();
    // What was answered before anybody listened is known. From there on nothing is left out.
    let mut next = if newest == 0 { 0 } else { newest + 1 };
    while !ear.is_deserted() {
        let create = WatchCreateRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            start_revision: next,
        };
        let (from_now_on, at) = (next == 0, connections.current());
        let watched = connections.watch(create, |answer| {
            if answer.compact_revision > 0 {
                next = answer.compact_revision;
            }
            if answer.compact_revision > 0 || (answer.created && from_now_on) {
                ear.tell(None, None);
            }
            for pair in answer.events.iter().filter_map(|event| event.kv.as_ref()) {
                next = next.max(pair.mod_revision + 1);
                tell(&ear, pair, start);
            }
            answer.canceled || ear.is_deserted()
        });
        if watched.await.is_err() {
            // Nobody else may ask for a while, and notice that this member does not answer.
            connections.next_after(at);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn tell(ear: &Ear, pair: &KeyValue, start: usize) {
    let name = pair.key.get(start..).and_then(|name| std::str::from_utf8(name).ok());
    // The value of a row is no number.
    let token = std::str::from_utf8(&pair.value).ok().and_then(|token| token.parse().ok());
    if name.is_some() {
        ear.tell(name, token);
    }
}
