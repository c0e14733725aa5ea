//! Telling listeners about changes: a watch of all rows, and one stream with a watch for each name
//! that is followed, at one member after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::engine::{Changes, Listener, SideKind};
use crate::etcd::client::Connections;
use crate::etcd::messages::{
    KeyValue, WatchCancelRequest, WatchCreateRequest, WatchResponse, WatchUnion,
};
use crate::etcd::values::Keys;

/// How long a watch waits before it begins again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a task without a name to follow checks whether a listener is left.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// The listeners, by the changes that they listen to.
#[derive(Default)]
pub(crate) struct Subscribers {
    tokens: Arc<Subscription>,
    rows: Arc<Subscription>,
    pub(crate) followed: Arc<Followed>,
}

/// Listeners to one kind of changes.
#[derive(Default)]
pub(crate) struct Subscription {
    listeners: Mutex<Vec<Weak<dyn Listener>>>,
    is_watching: AtomicBool,
}

/// The names whose tokens are watched.
#[derive(Default)]
pub(crate) struct Followed {
    names: Mutex<Names>,
    changed: Notify,
}

#[derive(Default)]
struct Names {
    by_name: BTreeMap<String, Follow>,
    /// Watches on the present stream, by what they watch, and the other way round.
    ids: HashMap<Watched, i64>,
    names: HashMap<i64, Watched>,
    /// Those that must begin or end to be watched there.
    due: Vec<Watched>,
    last_id: i64,
}

/// A name, and whether the watch is of the payload of its grant instead of its token.
type Watched = (String, bool);

struct Follow {
    holders: usize,
    /// The first revision that listeners were not notified of yet.
    next: i64,
}

impl Subscribers {
    pub(crate) fn subscription(&self, what: Changes) -> &Arc<Subscription> {
        match what {
            Changes::Tokens => &self.tokens,
            Changes::Rows => &self.rows,
        }
    }
}

impl Subscription {
    /// Adds a listener, and returns whether the caller must begin to watch.
    pub(crate) fn add(&self, listener: Weak<dyn Listener>) -> bool {
        locked(&self.listeners).push(listener);
        !self.is_watching.swap(true, Ordering::AcqRel)
    }

    fn notify(&self, name: Option<&str>, token: Option<i64>) {
        let listeners: Vec<_> = locked(&self.listeners).iter().filter_map(Weak::upgrade).collect();
        listeners.iter().for_each(|listener| listener.changed(name, token));
    }

    /// Ends the watch if no listener is left.
    fn has_no_listeners(&self) -> bool {
        let mut listeners = locked(&self.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        if listeners.is_empty() {
            self.is_watching.store(false, Ordering::Release);
        }
        listeners.is_empty()
    }
}

impl Followed {
    pub(crate) fn follow(&self, name: &str, version: i64) {
        let mut names = locked(&self.names);
        let next = version + 1;
        let follow = Follow { holders: 0, next };
        names.by_name.entry(name.to_owned()).or_insert(follow).holders += 1;
        names.due.extend(both(name));
        self.changed.notify_one();
    }

    pub(crate) fn unfollow(&self, name: &str) {
        let mut names = locked(&self.names);
        let Some(follow) = names.by_name.get_mut(name) else { return };
        follow.holders -= 1;
        if follow.holders == 0 {
            names.by_name.remove(name);
            names.due.extend(both(name));
            self.changed.notify_one();
        }
    }

    /// Begins a new stream, and returns its first watch, if there is a name to follow.
    fn begin(&self, keys: &Keys) -> Option<WatchCreateRequest> {
        let mut names = locked(&self.names);
        names.ids.clear();
        names.names.clear();
        names.due = names.by_name.keys().flat_map(|name| both(name)).collect();
        let first = names.due.pop()?;
        names.create(keys, &first)
    }

    /// Returns what must be sent on the present stream: watches to begin and to end.
    fn requests(&self, keys: &Keys) -> Vec<WatchUnion> {
        let mut names = locked(&self.names);
        let due = std::mem::take(&mut names.due);
        due.iter().filter_map(|watched| names.request(keys, watched)).collect()
    }

    /// Notifies listeners of an answer. Returns whether the stream is of no use any more.
    fn take(&self, answer: &WatchResponse, start: usize, tokens: &Subscription) -> bool {
        for pair in answer.events.iter().filter_map(|event| event.kv.as_ref()) {
            let Some((name, token)) = read(pair, start) else { continue };
            let mut names = locked(&self.names);
            // A payload may be reported before an earlier token: then that one is read again.
            let is_token = token.is_some();
            if let Some(follow) = names.by_name.get_mut(name) {
                follow.next = follow.next.max(if is_token { pair.mod_revision + 1 } else { 0 });
                drop(names);
                tokens.notify(Some(name), token);
            }
        }
        if !answer.canceled {
            return false;
        }
        let mut names = locked(&self.names);
        // None if it was cancelled from here, or refused when it was created: a member that was
        // restarted knows no logins, and answers with no id of ours.
        let Some(watched) = names.names.remove(&answer.watch_id) else { return answer.created };
        names.ids.remove(&watched);
        if answer.compact_revision == 0 {
            return true;
        }
        // etcd has compacted the revisions in between.
        if let Some(follow) = names.by_name.get_mut(&watched.0) {
            follow.next = answer.compact_revision;
            names.due.push(watched.clone());
        }
        drop(names);
        tokens.notify(Some(&watched.0), None);
        false
    }
}

impl Names {
    fn create(&mut self, keys: &Keys, watched: &Watched) -> Option<WatchCreateRequest> {
        let (name, is_payload) = watched;
        let start_revision = self.by_name.get(name)?.next;
        self.last_id += 1;
        let watch_id = self.last_id;
        self.ids.insert(watched.clone(), watch_id);
        self.names.insert(watch_id, watched.clone());
        let key = match is_payload {
            true => keys.side(SideKind::Payload, name),
            false => keys.token(name),
        };
        Some(WatchCreateRequest { key, range_end: Vec::new(), start_revision, watch_id })
    }

    fn request(&mut self, keys: &Keys, watched: &Watched) -> Option<WatchUnion> {
        match (self.ids.get(watched).copied(), self.by_name.contains_key(&watched.0)) {
            (None, true) => self.create(keys, watched).map(WatchUnion::Create),
            (Some(watch_id), false) => {
                self.ids.remove(watched);
                self.names.remove(&watch_id);
                Some(WatchUnion::Cancel(WatchCancelRequest { watch_id }))
            }
            _ => None,
        }
    }
}

/// Watches the tokens of the names that are followed, until no listener is left.
pub(crate) async fn listen_to_tokens(
    connections: Arc<Connections>,
    keys: Keys,
    subscription: Arc<Subscription>,
    followed: Arc<Followed>,
) {
    let start = keys.token("").len();
    while !subscription.has_no_listeners() {
        let Some(first) = followed.begin(&keys) else {
            let _ = timeout(LOOK_AROUND, followed.changed.notified()).await;
            continue;
        };
        let at = connections.current();
        let is_done = |answer: &WatchResponse| {
            followed.take(answer, start, &subscription) || subscription.has_no_listeners()
        };
        let more = || followed.requests(&keys);
        if connections.watch_all(first, is_done, &followed.changed, more).await.is_err() {
            // No other call may notice for a while that this member does not answer.
            connections.next_after(at);
        }
        sleep(PAUSE).await;
    }
}

/// Watches all rows after a revision, until no listener is left.
pub(crate) async fn listen_to_rows(
    connections: Arc<Connections>,
    keys: Keys,
    subscription: Arc<Subscription>,
    newest: i64,
) {
    let (key, range_end) = keys.rows_and_sides();
    let start = key.len();
    // The caller knows the answers from before it listened. From then on no change is left out.
    let mut next = if newest == 0 { 0 } else { newest + 1 };
    while !subscription.has_no_listeners() {
        let (key, range_end) = (key.clone(), range_end.clone());
        let create = WatchCreateRequest { key, range_end, start_revision: next, watch_id: 0 };
        let (from_now_on, at) = (next == 0, connections.current());
        let watched = connections.watch(create, |answer| {
            if answer.compact_revision > 0 {
                next = answer.compact_revision;
            }
            if answer.compact_revision > 0 || (answer.created && from_now_on) {
                subscription.notify(None, None);
            }
            for pair in answer.events.iter().filter_map(|event| event.kv.as_ref()) {
                next = next.max(pair.mod_revision + 1);
                if let Some((name, _)) = read(pair, start) {
                    subscription.notify(Some(name), None);
                }
            }
            answer.canceled || subscription.has_no_listeners()
        });
        if watched.await.is_err() {
            connections.next_after(at);
        }
        sleep(PAUSE).await;
    }
}

/// Returns what is watched for a name.
fn both(name: &str) -> [Watched; 2] {
    [false, true].map(|is_payload| (name.to_owned(), is_payload))
}

/// Reads the name of a key, and the token that is its value.
fn read(pair: &KeyValue, start: usize) -> Option<(&str, Option<i64>)> {
    let name = pair.key.get(start..).and_then(|name| std::str::from_utf8(name).ok())?;
    Some((name, std::str::from_utf8(&pair.value).ok().and_then(|token| token.parse().ok())))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
