//! Reads leases, pools and slots, and watches leases change.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{Clock, SystemClock};
use litelease_wire::{self as wire, Seconds};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use crate::client::{Client, Lease, pauses};
use crate::mode::{Async, Blocking, Mode};
use crate::retry::{Page, path};
use crate::transport::{Outcome, Transport};
use crate::{Error, Value};

/// A name, leased or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Name {
    /// Its newest token, if it was ever granted.
    pub token: Option<i64>,
    /// Its lease, or `None` if the name is free.
    pub lease: Option<Lease>,
    /// The first requests that wait for it, in their order.
    pub waiting: Vec<Waiter>,
}

/// A name that was granted once.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownName {
    /// The name.
    pub name: String,
    /// Its newest token.
    pub token: i64,
    /// `live`, `released` or `expired`.
    pub state: String,
    /// The owner of its lease or, if that has run out, the last owner.
    pub owner: Option<String>,
    /// How many milliseconds its lease has left; negative if it has run out.
    pub left_ms: Option<i64>,
    /// How long ago its grant began, if it is leased.
    pub held_for: Option<Duration>,
}

/// A request that waits for a name or a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner text of a claim.
    pub owner: Option<String>,
    /// The words of the waiter: who it is, and why it waits.
    pub note: Option<String>,
    /// How long a claim has waited.
    pub waits_for: Option<Duration>,
}

/// A pool, by its name or by four characters of a hash of its id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOfLabel {
    /// The label.
    pub label: String,
    /// How many slots it has.
    pub count: i64,
    /// How many of them are held.
    pub in_use: i64,
    /// The first of them.
    pub slots: Vec<SlotInfo>,
    /// How many requests wait for a slot.
    pub waiters: usize,
    /// The first of them.
    pub waiting: Vec<Waiter>,
}

/// A pool that has a name, of which slots are held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolOfName {
    /// The name.
    pub name: String,
    /// How many slots it has.
    pub count: i64,
    /// How many of them are held.
    pub in_use: i64,
}

/// A slot that a client holds. Its lease is that client's secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// The number of the slot: 0 is the first.
    pub position: i64,
    /// Its fencing token.
    pub token: i64,
    /// How long its lease lasts unless it is renewed; `None` if it is kept until it is returned.
    pub expires_in: Option<Duration>,
    /// The note of the holder: usually who it is, and why.
    pub note: Option<String>,
}

/// A change of leases, as a [`Watch`] reports it.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct News {
    /// True for the first report and those after a lost connection: `live` has all live leases
    /// then.
    pub is_whole: bool,
    /// Leases that were granted or renewed.
    pub live: Vec<Lease>,
    /// Names whose lease has ended.
    pub ended: Vec<String>,
    /// The values that live leases have attached, by name. Reports about many names leave out
    /// values of more than 1 KiB.
    pub values: Vec<(String, Value)>,
}

/// Reports every change of some leases. Made by [`Client::watch`].
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{Client, Error};
/// let client = Client::open("http://127.0.0.1:7070")?;
/// let watch = client.watch("backup/");
/// while let Some(news) = watch.next(Duration::from_secs(60))? {
///     println!("{news:?}");
/// }
/// # Ok::<(), Error>(())
/// ```
pub struct Watch<M: Mode = Blocking> {
    transport: Arc<Transport>,
    news: Arc<Mutex<Receiver<Result<News, Error>>>>,
    mode: PhantomData<M>,
}

/// The server sends a line every 15 seconds, so a stream that is silent for longer is dead.
pub(crate) const SILENCE: Duration = Duration::from_secs(40);

/// How long a first connection, or a read of leases, is tried.
pub(crate) const FIRST: Duration = Duration::from_secs(5);

/// How many leases are asked for at once.
pub(crate) const PAGE: Option<usize> = Some(500);

impl<M: Mode> Client<M> {
    /// Returns the token of a name, and its lease if it has a live one.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// match client.inspect("backup")?.lease {
    ///     Some(lease) => println!("{} has it", lease.owner),
    ///     None => println!("it is free"),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn inspect(&self, name: &str) -> M::Answer<Name> {
        self.find(one(name), FIRST, |found| match found {
            wire::Leases::One(found) => {
                let wire::Name { name, owner, token, expires_in, held_for, waiting, .. } = found;
                let tenure = owner.zip(token).zip(expires_in);
                let lease = tenure.map(|((owner, token), left)| Lease {
                    name,
                    owner,
                    token,
                    expires_in: left.duration(),
                    held_for: held_for.map(Seconds::duration),
                });
                Name { token, lease, waiting: waiters(waiting) }
            }
            wire::Leases::Page(_) => Name { token: None, lease: None, waiting: Vec::new() },
        })
    }

    /// Returns all live leases on names that begin with this prefix.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// for lease in client.leases("backup/")? {
    ///     println!("{}: {}", lease.name, lease.owner);
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn leases(&self, prefix: &str) -> M::Answer<Vec<Lease>> {
        self.list(many(prefix, false), FIRST, |found| {
            let (known, next) = page(found);
            (known.into_iter().filter_map(live).collect(), next)
        })
    }

    /// Returns all known names that begin with this prefix, leased or not.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// for known in client.names("backup/")? {
    ///     println!("{}: {}", known.name, known.state);
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn names(&self, prefix: &str) -> M::Answer<Vec<KnownName>> {
        self.list(many(prefix, true), FIRST, |found| {
            let (known, next) = page(found);
            (known.into_iter().map(KnownName::from).collect(), next)
        })
    }

    /// Returns the pools whose name begins with this prefix and of which slots are held.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// for pool in client.pools("")? {
    ///     println!("{}: {} of {} slots are held", pool.name, pool.in_use, pool.count);
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn pools(&self, prefix: &str) -> M::Answer<Vec<PoolOfName>> {
        let (name, prefix, after) = (None, Some(prefix.into()), None);
        let request = wire::ListSlots { name, prefix, after, limit: PAGE };
        self.list(request, FIRST, |found| {
            let pool = |pool| {
                let wire::PoolOfName { name, count, in_use, .. } = pool;
                PoolOfName { name, count, in_use }
            };
            (found.pools.into_iter().map(pool).collect(), found.next)
        })
    }

    /// Returns all pools, by label. Needs the scope `observe` for every name.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// for pool in client.all_pools()? {
    ///     println!("{}: {} of {}, {} wait", pool.label, pool.in_use, pool.count, pool.waiters);
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn all_pools(&self) -> M::Answer<Vec<PoolOfLabel>> {
        self.list(wire::ListPools { after: None, limit: PAGE }, FIRST, |found| {
            let pool = |pool| {
                let wire::PoolOfLabel {
                    label, count, in_use, slots, waiters: all, waiting, ..
                } = pool;
                let (slots, waiting) = (slots.into_iter().map(slot).collect(), waiters(waiting));
                PoolOfLabel { label, count, in_use, slots, waiters: all, waiting }
            };
            (found.pools.into_iter().map(pool).collect(), found.next)
        })
    }

    /// Returns the held slots of the pool that has this name, by position.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// for slot in client.slots("importers")? {
    ///     println!("slot {}: {}", slot.position, slot.note.unwrap_or_default());
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn slots(&self, name: &str) -> M::Answer<Vec<SlotInfo>> {
        let (name, prefix, after) = (Some(name.into()), None, None);
        let request = wire::ListSlots { name, prefix, after, limit: PAGE };
        self.list(request, FIRST, |found| {
            let slots = found.pools.into_iter().filter_map(|pool| pool.slots).flatten();
            (slots.map(slot).collect(), found.next)
        })
    }

    /// Watches the leases on names that begin with this prefix. Reconnects when the connection is
    /// lost.
    pub fn watch(&self, prefix: &str) -> Watch<M> {
        self.watch_at(path(&wire::LeaseEvents { name: None, prefix: Some(prefix.into()) }))
    }

    /// Watches the lease on one name.
    pub fn watch_name(&self, name: &str) -> Watch<M> {
        self.watch_at(path_of_name(name))
    }

    fn watch_at(&self, path: String) -> Watch<M> {
        let (sender, news) = channel(64);
        let transport = Arc::clone(&self.transport);
        // In a forked process the watch gets no events, and reports that.
        let _ = self.transport.start(async move { listen(&transport, &path, &sender).await });
        let (transport, news) = (Arc::clone(&self.transport), Arc::new(Mutex::new(news)));
        Watch { transport, news, mode: PhantomData }
    }
}

impl Watch {
    /// Returns the next news, or `None` if none comes within this time.
    pub fn next(&self, time: Duration) -> Result<Option<News>, Error> {
        let news = Arc::clone(&self.news);
        let next = async move { timeout(time, async { news.lock().await.recv().await }).await };
        match self.transport.wait(next)? {
            Ok(Some(news)) => news.map(Some),
            Ok(None) => Err(Error::Unreachable("nothing is heard any more".into())),
            Err(_) => Ok(None),
        }
    }
}

impl Watch<Async> {
    /// Returns the next news, or `None` after an error, which ends the watch. Dropping the future
    /// loses no news.
    ///
    /// ```no_run
    /// # use litelease_client::{AsyncClient, Error};
    /// # async fn example(client: AsyncClient) -> Result<(), Error> {
    /// let mut watch = client.watch("backup/");
    /// while let Some(news) = watch.next().await {
    ///     println!("{:?}", news?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<Result<News, Error>> {
        self.news.lock().await.recv().await
    }
}

/// Sends all events to the watch until it is dropped, or the server refuses the stream.
async fn listen(transport: &Transport, path: &str, news: &Sender<Result<News, Error>>) {
    let (begin, mut was_heard, mut wait) = (SystemClock.now(), false, pauses());
    while !news.is_closed() {
        match transport.stream(path, SILENCE).await {
            Ok(mut stream) => {
                (was_heard, wait) = (true, pauses());
                let mut events = Events::default();
                while let Some(line) = stream.line().await
                    && let Some(event) = events.read(&line)
                    && !news.is_closed()
                {
                    if let Some(event) = event {
                        // Fails only if the watch was dropped.
                        let _ = news.send(Ok(event)).await;
                    }
                }
            }
            Err(Outcome::Unknown(_) | Outcome::Unreached(_))
                if was_heard || SystemClock.now().saturating_sub(begin) < FIRST => {}
            Err(outcome) => {
                let _ = news.send(Err(outcome.into_error())).await;
                return;
            }
        }
        sleep(wait()).await;
    }
}

/// Reads the lines of a stream of events.
#[derive(Default)]
pub(crate) struct Events {
    kind: String,
}

impl Events {
    /// Reads a line. Returns `Some(None)` for one that ends no event, as the server sends every 15
    /// seconds, and `None` for one that cannot be parsed.
    pub(crate) fn read(&mut self, line: &str) -> Option<Option<News>> {
        if let Some(event) = line.strip_prefix("event: ") {
            self.kind = event.into();
        }
        line.strip_prefix("data: ").map_or(Some(None), |data| news(&self.kind, data).map(Some))
    }
}

/// Returns the path of the event stream of one name.
pub(crate) fn path_of_name(name: &str) -> String {
    path(&wire::LeaseEvents { name: Some(name.into()), prefix: None })
}

fn news(kind: &str, data: &str) -> Option<News> {
    let mut news = News { is_whole: kind == "state", ..News::default() };
    for known in serde_json::from_str::<wire::LeaseNews>(data).ok()?.leases {
        match known {
            wire::KnownLease::Ended(ended) => news.ended.push(ended.name),
            wire::KnownLease::Live(mut lease) => {
                news.values.extend(lease.value.take().map(|value| (lease.name.clone(), value)));
                news.live.push(lease.into());
            }
        }
    }
    Some(news)
}

fn slot(slot: wire::HeldSlot) -> SlotInfo {
    let wire::HeldSlot { position, token, expires_in, note, .. } = slot;
    SlotInfo { position, token, expires_in: expires_in.map(Seconds::duration), note }
}

fn waiters(waiting: Option<Vec<wire::Waiter>>) -> Vec<Waiter> {
    let waiter = |wire::Waiter { note, owner, waits_for }| {
        let waits_for = waits_for.map(Seconds::duration);
        Waiter { owner, note, waits_for }
    };
    waiting.into_iter().flatten().map(waiter).collect()
}

/// Asks for one name.
pub(crate) fn one(name: &str) -> wire::ListLeases {
    let (name, prefix, after) = (Some(name.into()), None, None);
    wire::ListLeases { name, prefix, after, limit: None, all: false }
}

/// Asks for a page of names.
fn many(prefix: &str, all: bool) -> wire::ListLeases {
    let (name, prefix, after) = (None, Some(prefix.into()), None);
    wire::ListLeases { name, prefix, after, limit: PAGE, all }
}

fn page(found: wire::Leases) -> Page<wire::KnownLease> {
    match found {
        wire::Leases::Page(page) => (page.leases, page.next),
        wire::Leases::One(_) => (Vec::new(), None),
    }
}

fn live(known: wire::KnownLease) -> Option<Lease> {
    match known {
        wire::KnownLease::Live(lease) => Some(lease.into()),
        wire::KnownLease::Ended(_) => None,
    }
}

impl From<wire::KnownLease> for KnownName {
    fn from(known: wire::KnownLease) -> Self {
        match known {
            wire::KnownLease::Live(lease) => KnownName {
                name: lease.name,
                token: lease.token,
                state: "live".into(),
                owner: Some(lease.owner),
                left_ms: Some(lease.expires_in.ms),
                held_for: Some(lease.held_for.duration()),
            },
            wire::KnownLease::Ended(ended) => KnownName {
                name: ended.name,
                token: ended.token,
                state: ended.state.unwrap_or_else(|| "released".into()),
                owner: ended.last_owner,
                left_ms: ended.expired_for.map(|ago| -ago.ms),
                held_for: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let data = r#"{"leases":[
            {"name":"a","owner":"x","token":1,"expires_in":3,"held_for":2,"expires_at_unix":4},
            {"name":"b","owner":null,"token":2,"expires_in":null,"expires_at_unix":null}
        ]}"#;
        let read = news("change", data).map(|news| (news.is_whole, news.live.len(), news.ended));
        assert_eq!(read, Some((false, 1, vec!["b".to_owned()])));
        assert!(news("state", "{}").is_none());
    }
}
