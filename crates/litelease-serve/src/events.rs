//! Streams the state of a pool as server-sent events: at once, and again whenever it has changed.
//!
//! All streams of a pool share one reporter, which reads the state and formats it once for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::answer::{self, Body, HttpError, Response};
use crate::committer::Changed;
use crate::http::App;
use crate::job::{Answer, Id, JobError, State};

/// The shortest time between two reports. Changes that come faster are reported together.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// What each byte to each stream adds to that, in nanoseconds. So a large pool with many watchers
/// leaves other clients their share of the thread that serves all connections.
const INTERVAL_NANOS_PER_BYTE: u64 = 10;

/// How often a comment is sent, so that proxies keep an idle connection open.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// The pools that are watched, each with its reporter.
#[derive(Default)]
pub(crate) struct Watched(Mutex<HashMap<Id, Arc<Reporter>>>);

/// Reads the state of one pool for all its streams.
struct Reporter {
    news: watch::Sender<Arc<News>>,
    /// A new stream needs the current state.
    asked: Notify,
}

/// The latest report, for all streams of a pool.
#[derive(Default)]
struct News {
    /// Grows whenever the state has changed; the passing of time is no change.
    number: u64,
    text: Bytes,
    /// The pool was deleted.
    is_gone: bool,
}

/// Returns a stream as the response, if the pool exists.
pub(crate) async fn stream(app: &Arc<App>, id: Id) -> Result<Response, HttpError> {
    let mut news = Watched::join(app, &id);
    let first = match news.changed().await {
        Ok(()) => Arc::clone(&news.borrow_and_update()),
        Err(_) if app.is_stopping() => return Err(JobError::Stopping.into()),
        Err(_) => return Err(JobError::Database.into()),
    };
    if first.is_gone {
        return Err(JobError::NoSuchPool.into());
    }
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(tell(first, news, sender));
    let mut response = Response::new(200, "text/event-stream", "");
    response.body = Body::Stream(receiver);
    Ok(response)
}

/// Sends reports to one stream. A slow stream skips to the newest.
async fn tell(first: Arc<News>, mut news: watch::Receiver<Arc<News>>, sender: mpsc::Sender<Bytes>) {
    let (mut told, mut text) = (first.number, first.text.clone());
    loop {
        if sender.send(text).await.is_err() {
            return;
        }
        text = loop {
            tokio::select! {
                changed = news.changed() => {
                    // The reporter has ended: the client connects again by itself.
                    let Ok(()) = changed else { return };
                    let newest = Arc::clone(&news.borrow_and_update());
                    if newest.number != told {
                        told = newest.number;
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
    /// Subscribes to the reports of a pool, of which one comes at once. Starts a reporter if there
    /// is none.
    fn join(app: &Arc<App>, id: &Id) -> watch::Receiver<Arc<News>> {
        let mut reporters = app.watched.reporters();
        match reporters.get(id) {
            // A reporter without streams is about to end.
            Some(reporter) if reporter.news.receiver_count() > 0 => {
                let news = reporter.news.subscribe();
                reporter.asked.notify_one();
                news
            }
            _ => {
                let (sender, news) = watch::channel(Arc::default());
                let reporter = Arc::new(Reporter { news: sender, asked: Notify::new() });
                reporters.insert(Arc::clone(id), Arc::clone(&reporter));
                tokio::spawn(reporter.work(Arc::clone(app), Arc::clone(id)));
                news
            }
        }
    }

    fn forget(&self, id: &Id, reporter: &Arc<Reporter>) {
        let mut reporters = self.reporters();
        if reporters.get(id).is_some_and(|there| Arc::ptr_eq(there, reporter)) {
            reporters.remove(id);
        }
    }

    fn reporters(&self) -> MutexGuard<'_, HashMap<Id, Arc<Reporter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reporter {
    /// Works while there are streams.
    async fn work(self: Arc<Self>, app: Arc<App>, id: Id) {
        tokio::select! {
            () = self.report(&app, &id) => {}
            () = self.news.closed() => {}
            () = app.stopped() => {}
        }
        app.watched.forget(&id, &self);
    }

    /// Reads the state whenever the pool may have changed or a stream was added, and reports it.
    async fn report(&self, app: &Arc<App>, id: &Id) {
        let mut changes = app.changes.subscribe();
        let (mut last, mut number, mut is_asked) = (None, 0, true);
        loop {
            let looked = Instant::now();
            let state = match app.look(id).await {
                Ok(Answer::State(state)) => state,
                Err(JobError::NoSuchPool) => return self.say_goodbye(number + 1),
                _ => return,
            };
            let has_changed = last.as_ref().is_none_or(|last| !is_same(last, &state));
            let mut bytes = 0;
            if has_changed || is_asked {
                let text = Bytes::from(format!("data: {}\n\n", answer::state(&state)));
                number += u64::from(has_changed);
                bytes = usize::from(has_changed) * text.len() * self.news.receiver_count();
                self.news.send_replace(Arc::new(News { number, text, is_gone: false }));
            }
            let until_expiry = until_expiry(&state, app.options.clock);
            last = Some(state);
            sleep_until(looked + report_interval(bytes)).await;
            is_asked = tokio::select! {
                () = self.asked.notified() => true,
                () = sleep(until_expiry) => false,
                is_ours = next(&mut changes, id) => match is_ours {
                    true => false,
                    false => return,
                },
            };
            // The next read includes all changes up to now.
            changes = changes.resubscribe();
        }
    }

    fn say_goodbye(&self, number: u64) {
        let text = Bytes::from_static(b"event: gone\ndata: {}\n\n");
        self.news.send_replace(Arc::new(News { number, text, is_gone: true }));
    }
}

fn report_interval(bytes: usize) -> Duration {
    REPORT_INTERVAL.max(Duration::from_nanos(INTERVAL_NANOS_PER_BYTE.saturating_mul(bytes as u64)))
}

/// Waits for a change of this pool. Returns false if there can be no more.
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

/// Checks whether two states differ in time only.
fn is_same(a: &State, b: &State) -> bool {
    (a.info, &a.slots, a.waiters) == (b.info, &b.slots, b.waiters)
}
