//! The state of a pool as server-sent events: once, and again whenever it has changed.
//!
//! All streams of a pool share one reporter: it looks once for all of them, and writes the text once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::answer::{self, Body, Refused, Response};
use crate::http::App;
use crate::job::{Answer, Id, State, Trouble};
use crate::writer::Changed;

/// Changes that come faster than this are told together.
const BREATH: Duration = Duration::from_millis(50);

/// What a byte to one stream adds to that, in nanoseconds. A large pool that many watch leaves the others their share of
/// the thread that has all connections.
const BREATH_PER_BYTE: u64 = 10;

/// A comment keeps the connection from being taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The pools that somebody watches, each with the sender of its reporter.
#[derive(Default)]
pub(crate) struct Watched(Mutex<HashMap<Id, Arc<Sender>>>);

type Sender = watch::Sender<Arc<News>>;

/// What is told to all streams of a pool.
#[derive(Default)]
struct News {
    /// None if there is no such pool any more.
    state: Option<State>,
    text: Bytes,
}

impl News {
    fn of(state: State) -> Arc<Self> {
        let text = format!("data: {}\n\n", answer::state(&state)).into();
        Arc::new(News { state: Some(state), text })
    }

    fn gone() -> Arc<Self> {
        Arc::new(News { state: None, text: Bytes::from_static(b"event: gone\ndata: {}\n\n") })
    }

    fn is_of(&self, state: &State) -> bool {
        self.state.as_ref().is_some_and(|told| is_same(told, state))
    }
}

/// Answers with a stream, if there is such a pool.
pub(crate) async fn stream(app: &Arc<App>, id: Id) -> Result<Response, Refused> {
    // Asked for first, so that no change is missed.
    let news = Watched::news(app, &id);
    let Answer::State(state) = app.look(&id).await? else {
        return Err(Trouble::Database.into());
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(tell(state, news, sender));
    let mut response = Response::new(200, "text/event-stream", "");
    response.body = Body::Stream(receiver);
    Ok(response)
}

/// Tells one stream. If it is slow, it misses what was not the newest.
async fn tell(first: State, mut news: watch::Receiver<Arc<News>>, sender: mpsc::Sender<Bytes>) {
    let mut text = News::of(first.clone()).text.clone();
    let mut first = Some(first);
    loop {
        if sender.send(text).await.is_err() {
            return;
        }
        text = loop {
            tokio::select! {
                changed = news.changed() => {
                    // The reporter has ended, and the client connects again by itself.
                    let Ok(()) = changed else { return };
                    let newest = Arc::clone(&news.borrow_and_update());
                    // The reporter may have found later what this stream has begun with.
                    if first.take().is_none_or(|first| !newest.is_of(&first)) {
                        break newest.text.clone();
                    }
                }
                () = sleep(HEARTBEAT) => break Bytes::from_static(b": \n\n"),
                () = sender.closed() => return,
            }
        };
    }
}

impl Watched {
    /// What the reporter of a pool finds from now on. The first to ask for it starts one.
    fn news(app: &Arc<App>, id: &Id) -> watch::Receiver<Arc<News>> {
        let mut senders = app.watched.senders();
        match senders.get(id) {
            // One without receivers is about to end.
            Some(sender) if sender.receiver_count() > 0 => sender.subscribe(),
            _ => {
                let (sender, news) = watch::channel(Arc::default());
                let sender = Arc::new(sender);
                senders.insert(Arc::clone(id), Arc::clone(&sender));
                tokio::spawn(report_while_watched(Arc::clone(app), Arc::clone(id), sender));
                news
            }
        }
    }

    fn forget(&self, id: &Id, sender: &Arc<Sender>) {
        let mut senders = self.senders();
        if senders.get(id).is_some_and(|there| Arc::ptr_eq(there, sender)) {
            senders.remove(id);
        }
    }

    fn senders(&self) -> MutexGuard<'_, HashMap<Id, Arc<Sender>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn report_while_watched(app: Arc<App>, id: Id, sender: Arc<Sender>) {
    tokio::select! {
        () = report(&app, &id, &sender) => {}
        () = sender.closed() => {}
        () = app.stopped() => {}
    }
    app.watched.forget(&id, &sender);
}

/// Looks at a pool whenever it may have changed, and tells all streams if it has.
async fn report(app: &Arc<App>, id: &Id, sender: &Sender) {
    let mut changes = app.changes.subscribe();
    loop {
        let looked = Instant::now();
        let state = match app.look(id).await {
            Ok(Answer::State(state)) => state,
            Err(Trouble::NoSuchPool) => {
                sender.send_replace(News::gone());
                return;
            }
            _ => return,
        };
        let until_expiry = until_expiry(&state, app.options.clock);
        let mut bytes = 0;
        if !sender.borrow().is_of(&state) {
            let news = News::of(state);
            bytes = news.text.len() * sender.receiver_count();
            sender.send_replace(news);
        }
        sleep_until(looked + breath(bytes)).await;
        tokio::select! {
            is_ours = next(&mut changes, id) => if !is_ours { return },
            () = sleep(until_expiry) => {}
        }
        // What has changed until now is in the next look.
        changes = changes.resubscribe();
    }
}

fn breath(bytes: usize) -> Duration {
    BREATH.max(Duration::from_nanos(BREATH_PER_BYTE.saturating_mul(bytes as u64)))
}

/// Waits for a change of this pool. False if there can be no more.
async fn next(changes: &mut broadcast::Receiver<Changed>, id: &Id) -> bool {
    loop {
        match changes.recv().await {
            Ok(Some(changed)) if changed != *id => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return true,
            Err(RecvError::Closed) => return false,
        }
    }
}

fn until_expiry(state: &State, clock: fn() -> i64) -> Duration {
    let next = state.slots.iter().map(|row| row.slot.expires_at_ms).min();
    let left_ms = next.map_or(i64::MAX, |at_ms| at_ms.saturating_sub(clock()));
    Duration::from_millis(left_ms.max(1).unsigned_abs())
}

/// Whether nothing but time has passed.
fn is_same(a: &State, b: &State) -> bool {
    (a.info, &a.slots, a.waiters) == (b.info, &b.slots, b.waiters)
}
