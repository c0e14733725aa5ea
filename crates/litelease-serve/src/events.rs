//! Streams the state of a pool, or of leases on names, as server-sent events: at once, and again
//! whenever it has changed.
//!
//! All streams of a subject share one reporter, which reads the state and formats it once for all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use litelease::Scope;
use litelease_wire::{EndedLease, KnownLease, LeaseNews, Overview};
use serde::Serialize;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use crate::access::{Caller, Which};
use crate::answer::{Answer, LeaseWithRemaining, PoolAnswer, PoolSnapshot};
use crate::committer::Changed;
use crate::http::App;
use crate::job::{Id, JobError};
use crate::overview;
use crate::response::{Body, HttpError, Response};

/// The shortest time between two reports. Changes that come faster are reported together.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// The time that each byte to each stream adds to that, in nanoseconds. So a large pool with many
/// watchers leaves other clients their share of the thread that serves all connections.
const INTERVAL_NANOS_PER_BYTE: u64 = 10;

/// A reporter reads for at most this part of the time, because reading a thousand leases keeps the
/// committer from its work.
const LOOK_SHARE: u32 = 10;

/// How often a comment is sent, so that proxies keep an idle connection open.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// How often a heartbeat is sent on a stream of the overview, whose client raises an alarm without
/// it, and the shortest time between two reads of it.
const OVERVIEW_HEARTBEAT: Duration = Duration::from_millis(1900);
const OVERVIEW_INTERVAL: Duration = Duration::from_secs(1);

/// How long a client that may watch is not checked again, while the access keys do not change.
const ADMITTED_FOR: Duration = Duration::from_secs(1);

/// The subject of a stream, and its client.
#[derive(Clone)]
pub(crate) enum Target {
    Pool(Id),
    /// Leases on these names, for this client.
    Names(Which, Caller),
    /// The overview of these names, for this client.
    Overview(Which, Caller),
}

/// The watched subjects, each with its reporter.
#[derive(Default)]
pub(crate) struct Watched(Mutex<HashMap<Subject, Arc<Reporter>>>);

/// The rows that a reporter reads, the same for all clients.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Subject {
    Pool(Id),
    Names(Which),
    Overview(Arc<str>),
}

/// Reads one subject for all its streams.
struct Reporter {
    news: watch::Sender<Arc<News>>,
    /// True if a new stream needs the current state.
    asked: Notify,
}

/// The latest report, for all streams of a subject.
#[derive(Default)]
struct News {
    /// Grows by one whenever the state has changed; the passing of time is no change.
    number: u64,
    /// The whole state.
    state: Bytes,
    /// The changes since the report before.
    change: Bytes,
    /// The pool was deleted.
    is_gone: bool,
}

/// The state of a subject at one time.
enum Seen {
    Pool(PoolSnapshot),
    Names(Vec<LeaseWithRemaining>),
    Overview(Box<Overview>),
}

/// The most leases that a stream shows.
const MOST_WATCHED: usize = 10_000;

/// Returns a stream as the response, if the client may watch and the pool exists.
pub(crate) async fn stream(app: &Arc<App>, target: Target) -> Result<Response, HttpError> {
    let mut admission = Admission { keys: 0, checked: None };
    admission.check(app, &target).await?;
    let share = app.streams.take(target.caller(), 1)?;
    let mut news = Watched::join(app, &target.subject());
    let first = match news.changed().await {
        Ok(()) => Arc::clone(&news.borrow_and_update()),
        Err(_) if app.is_stopping() => return Err(JobError::Stopping.into()),
        Err(_) => return Err(JobError::Database.into()),
    };
    if first.is_gone {
        return Err(JobError::NoSuchPool.into());
    }
    let (sender, receiver) = mpsc::channel(1);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        send_reports(app, target, admission, first, news, sender).await;
        drop(share);
    });
    let mut response = Response::new(200, "text/event-stream", "");
    response.body = Body::Stream(receiver);
    Ok(response)
}

impl Target {
    /// Checks whether the client may watch.
    async fn admit(&self, app: &App) -> Result<(), JobError> {
        match self {
            Target::Pool(_) => Ok(()),
            Target::Names(names, caller) | Target::Overview(names, caller) => {
                app.admit(*caller, Scope::Observe, names.clone()).await
            }
        }
    }

    fn caller(&self) -> Caller {
        match self {
            Target::Pool(_) => Caller::default(),
            Target::Names(_, caller) | Target::Overview(_, caller) => *caller,
        }
    }

    fn heartbeat(&self) -> Duration {
        match self {
            Target::Overview(..) => OVERVIEW_HEARTBEAT,
            Target::Pool(_) | Target::Names(..) => HEARTBEAT,
        }
    }

    /// Returns what a stream sends while nothing changes: a comment, or the time of the server.
    fn beat(&self, app: &App) -> Bytes {
        match self {
            Target::Overview(..) => {
                format!("event: beat\ndata: {{\"at_ms\":{}}}\n\n", (app.options.clock)()).into()
            }
            Target::Pool(_) | Target::Names(..) => Bytes::from_static(b": \n\n"),
        }
    }

    fn subject(&self) -> Subject {
        match self {
            Target::Pool(id) => Subject::Pool(id.clone()),
            Target::Names(names, _) => Subject::Names(names.clone()),
            Target::Overview(Which::One(prefix) | Which::Under(prefix), _) => {
                Subject::Overview(Arc::clone(prefix))
            }
        }
    }
}

/// The result of checking that a client may watch.
struct Admission {
    /// How often the access keys had changed at the last check, and when that was.
    keys: u64,
    checked: Option<Instant>,
}

impl Admission {
    /// Checks whether the client may watch, unless the last check still holds.
    ///
    /// The committer checks for changed keys before it reads the state. So a stream does not get a
    /// report that was read after its key was removed.
    async fn check(&mut self, app: &App, target: &Target) -> Result<(), JobError> {
        let keys = app.metrics.key_changes();
        // A key may also have expired, which changes nothing in the file.
        let is_new = |checked: Instant| checked.elapsed() < ADMITTED_FOR;
        if self.keys != keys || !self.checked.is_some_and(is_new) {
            target.admit(app).await?;
            *self = Admission { keys, checked: Some(Instant::now()) };
        }
        Ok(())
    }
}

/// Sends reports to one stream. A slow stream skips to the newest state. One whose client may no
/// longer watch ends.
async fn send_reports(
    app: Arc<App>,
    target: Target,
    mut admission: Admission,
    first: Arc<News>,
    mut news: watch::Receiver<Arc<News>>,
    sender: mpsc::Sender<Bytes>,
) {
    let (mut told, mut text) = (first.number, first.state.clone());
    loop {
        if admission.check(&app, &target).await.is_err() || sender.send(text).await.is_err() {
            return;
        }
        text = loop {
            let news_came = tokio::select! {
                changed = news.changed() => {
                    // The reporter has ended: the client connects again by itself.
                    let Ok(()) = changed else { return };
                    true
                }
                () = sleep(target.heartbeat()) => false,
                () = sender.closed() => return,
            };
            let newest = Arc::clone(&news.borrow_and_update());
            if admission.check(&app, &target).await.is_err() {
                return;
            }
            let is_next = newest.number == told + 1;
            if newest.number != told {
                told = newest.number;
                break if is_next { newest.change.clone() } else { newest.state.clone() };
            }
            if !news_came {
                break target.beat(&app);
            }
        };
    }
}

impl Watched {
    /// Subscribes to the reports of a subject, of which one comes at once. Starts a reporter if
    /// there is none.
    fn join(app: &Arc<App>, subject: &Subject) -> watch::Receiver<Arc<News>> {
        let mut reporters = app.watched.reporters();
        match reporters.get(subject) {
            // A reporter without streams is about to end.
            Some(reporter) if reporter.news.receiver_count() > 0 => {
                let news = reporter.news.subscribe();
                reporter.asked.notify_one();
                news
            }
            _ => {
                let (sender, news) = watch::channel(Arc::default());
                let reporter = Arc::new(Reporter { news: sender, asked: Notify::new() });
                reporters.insert(subject.clone(), Arc::clone(&reporter));
                tokio::spawn(reporter.work(Arc::clone(app), subject.clone()));
                news
            }
        }
    }

    fn forget(&self, subject: &Subject, reporter: &Arc<Reporter>) {
        let mut reporters = self.reporters();
        if reporters.get(subject).is_some_and(|there| Arc::ptr_eq(there, reporter)) {
            reporters.remove(subject);
        }
    }

    fn reporters(&self) -> MutexGuard<'_, HashMap<Subject, Arc<Reporter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reporter {
    /// Works while there are streams.
    async fn work(self: Arc<Self>, app: Arc<App>, subject: Subject) {
        tokio::select! {
            () = self.report(&app, &subject) => {}
            () = self.news.closed() => {}
            () = app.stopped() => {}
        }
        app.watched.forget(&subject, &self);
    }

    /// Reads the state whenever the subject may have changed or a stream was added, and reports it.
    async fn report(&self, app: &Arc<App>, subject: &Subject) {
        let mut changes = app.changes.subscribe();
        let (mut last, mut number, mut is_asked) = (None, 0, true);
        let mut change = Bytes::new();
        loop {
            let looked = Instant::now();
            let seen = match subject.read(app).await {
                Ok(seen) => seen,
                Err(JobError::NoSuchPool) => return self.say_goodbye(number + 1),
                Err(_) => return,
            };
            let took = looked.elapsed();
            let has_changed = last.as_ref().is_none_or(|last| !seen.is_same(last));
            let mut bytes = 0;
            if has_changed || is_asked {
                let state = seen.text();
                if has_changed {
                    number += 1;
                    change = last.as_ref().map_or_else(|| state.clone(), |last| seen.since(last));
                    bytes = change.len() * self.news.receiver_count();
                }
                let change = change.clone();
                self.news.send_replace(Arc::new(News { number, state, change, is_gone: false }));
            }
            let until_expiry = seen.until_expiry(app.options.clock);
            last = Some(seen);
            let pause = report_interval(bytes).max(took * LOOK_SHARE).max(subject.interval());
            sleep_until(looked + pause).await;
            is_asked = tokio::select! {
                () = self.asked.notified() => true,
                () = sleep(until_expiry) => false,
                next = next(&mut changes, subject) => match next {
                    Next::Ours => false,
                    // Access keys may have changed, too: each stream checks its own.
                    Next::Anything => true,
                    Next::Never => return,
                },
            };
            // The next read includes all changes up to now. Only a change of access keys must be
            // remembered.
            if take_all(&mut changes) {
                is_asked = true;
            }
        }
    }

    fn say_goodbye(&self, number: u64) {
        let text = Bytes::from_static(b"event: gone\ndata: {}\n\n");
        let (state, change) = (text.clone(), text);
        self.news.send_replace(Arc::new(News { number, state, change, is_gone: true }));
    }
}

impl Subject {
    async fn read(&self, app: &App) -> Result<Seen, JobError> {
        let names = match self {
            Subject::Pool(id) => {
                return match app.inspect(id, true).await? {
                    Answer::Pool(PoolAnswer::Snapshot(state)) => Ok(Seen::Pool(state)),
                    _ => Err(JobError::Database),
                };
            }
            Subject::Names(names) => names.clone(),
            Subject::Overview(prefix) => {
                let read = app.overview(Arc::clone(prefix)).await;
                // The log says what is wrong with the file.
                let read = read.map_err(|_| JobError::Database)?;
                return Ok(Seen::Overview(Box::new(read)));
            }
        };
        let reported = crate::job::Reported { caller: None, names: names.clone() };
        let leases = app.read(false, Some(reported), move |reader| {
            Ok(match names {
                Which::One(name) => reader.name(&name)?.current.into_iter().collect(),
                Which::Under(prefix) => {
                    let (rows, _) = reader.page(&prefix, None, MOST_WATCHED, false)?;
                    rows.into_iter().flatten().collect()
                }
            })
        });
        leases.await.map(Seen::Names)
    }

    /// Returns the shortest time between two reads.
    fn interval(&self) -> Duration {
        match self {
            Subject::Overview(_) => OVERVIEW_INTERVAL,
            Subject::Pool(_) | Subject::Names(_) => Duration::ZERO,
        }
    }

    fn has(&self, id: &Id) -> bool {
        match (self, id) {
            (Subject::Overview(_), _) => true,
            (Subject::Pool(pool), id) => pool == id,
            (Subject::Names(names), Id::Name(name)) => names.has(name),
            (Subject::Names(_), Id::Pool(_) | Id::Queue(_)) => false,
        }
    }
}

impl Seen {
    /// Writes the whole state as an event.
    fn text(&self) -> Bytes {
        match self {
            Seen::Pool(state) => format!("data: {}\n\n", json(&state.to_wire())).into(),
            Seen::Names(leases) => event("state", leases.iter().map(live)),
            Seen::Overview(all) => format!("event: state\ndata: {}\n\n", json(all)).into(),
        }
    }

    /// Writes the changes since `last` as an event.
    fn since(&self, last: &Seen) -> Bytes {
        let (leases, last) = match (self, last) {
            (Seen::Names(leases), Seen::Names(last)) => (leases, last),
            (Seen::Overview(now), Seen::Overview(last)) => {
                let change = overview::change(now, last);
                return format!("event: change\ndata: {}\n\n", json(&change)).into();
            }
            _ => return self.text(),
        };
        let (now, before) = (by_name(leases), by_name(last));
        let is_new = |lease: &&LeaseWithRemaining| {
            before.get(lease.lease.name.as_str()).is_none_or(|last| !lease.is_same(last))
        };
        let new = leases.iter().filter(is_new);
        let over = last.iter().filter(|lease| !now.contains_key(lease.lease.name.as_str()));
        let over = over.map(|lease| {
            KnownLease::Ended(EndedLease {
                expired_for: None,
                expires_at_unix: (),
                expires_in: (),
                last_owner: None,
                name: lease.lease.name.clone(),
                owner: (),
                state: None,
                token: lease.lease.token,
            })
        });
        event("change", new.map(live).chain(over))
    }

    /// Checks whether two states differ only in the time left.
    fn is_same(&self, other: &Seen) -> bool {
        match (self, other) {
            (Seen::Pool(a), Seen::Pool(b)) => {
                (a.info, &a.slots, a.waiters) == (b.info, &b.slots, b.waiters)
            }
            (Seen::Names(a), Seen::Names(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_same(b))
            }
            (Seen::Overview(a), Seen::Overview(b)) => overview::is_same(a, b),
            _ => false,
        }
    }

    fn until_expiry(&self, clock: fn() -> i64) -> Duration {
        let next = match self {
            Seen::Pool(state) => state.slots.iter().map(|row| row.slot.expires_at_ms).min(),
            Seen::Names(leases) => leases.iter().map(|lease| lease.lease.expires_at_ms).min(),
            // Things become late by the passing of time alone.
            Seen::Overview(_) => return OVERVIEW_INTERVAL,
        };
        let left_ms = next.map_or(i64::MAX, |at_ms| at_ms.saturating_sub(clock()));
        Duration::from_millis(left_ms.max(1).unsigned_abs())
    }
}

fn by_name(leases: &[LeaseWithRemaining]) -> HashMap<&str, &LeaseWithRemaining> {
    leases.iter().map(|lease| (lease.lease.name.as_str(), lease)).collect()
}

fn live(lease: &LeaseWithRemaining) -> KnownLease {
    KnownLease::Live(lease.clone().into_wire())
}

fn event(kind: &str, leases: impl Iterator<Item = KnownLease>) -> Bytes {
    let news = LeaseNews { leases: leases.collect() };
    format!("event: {kind}\ndata: {}\n\n", json(&news)).into()
}

fn json(value: &impl Serialize) -> String {
    // Fails only for maps whose keys are not texts, which a report has not.
    serde_json::to_string(value).unwrap_or_default()
}

fn report_interval(bytes: usize) -> Duration {
    REPORT_INTERVAL.max(Duration::from_nanos(INTERVAL_NANOS_PER_BYTE.saturating_mul(bytes as u64)))
}

/// The events that wake a reporter.
enum Next {
    /// Its subject has changed.
    Ours,
    /// Anything may have changed, access keys as well.
    Anything,
    /// There can be no more changes.
    Never,
}

/// Drains all changes that have come. Returns whether one of them may concern access keys.
fn take_all(changes: &mut broadcast::Receiver<Changed>) -> bool {
    let mut is_anything = false;
    loop {
        match changes.try_recv() {
            Ok(Some(_)) => {}
            Ok(None) | Err(TryRecvError::Lagged(_)) => is_anything = true,
            Err(TryRecvError::Empty | TryRecvError::Closed) => return is_anything,
        }
    }
}

/// Waits for a change of this subject.
async fn next(changes: &mut broadcast::Receiver<Changed>, subject: &Subject) -> Next {
    loop {
        match changes.recv().await {
            Ok(Some(changed)) if subject.has(&changed) => return Next::Ours,
            Ok(Some(_)) => {}
            Ok(None) | Err(RecvError::Lagged(_)) => return Next::Anything,
            Err(RecvError::Closed) => return Next::Never,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn that_access_keys_may_have_changed_is_never_forgotten() {
        let (sender, mut changes) = broadcast::channel(4);
        let name = || Some(Id::Name("n".into()));
        for (sent, is_anything) in [
            (vec![], false),
            (vec![name(), name()], false),
            (vec![name(), None, name()], true),
            // More came than the channel keeps: the lost changes may concern anything.
            (vec![name(); 9], true),
        ] {
            for change in sent {
                sender.send(change).unwrap();
            }
            assert_eq!(take_all(&mut changes), is_anything);
            assert!(!take_all(&mut changes), "all are taken");
        }
    }
}
