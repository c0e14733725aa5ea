//! Looking at leases, once or as they change.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{Clock, SystemClock};
use serde_json::Value as Json;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use crate::client::{Client, Lease, duration, lease, pauses};
use crate::mode::{Async, Blocking, Mode};
use crate::retry::path;
use crate::transport::{Outcome, Transport};
use crate::{Error, Value};

/// A name, leased or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Name {
    /// Its newest token, if it was ever granted.
    pub token: Option<i64>,
    /// Its lease, if somebody has it.
    pub lease: Option<Lease>,
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
    /// Who has it or, if its last lease has run out, who had it.
    pub owner: Option<String>,
    /// How many milliseconds its lease has left; negative if it has run out.
    pub left_ms: Option<i64>,
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
    /// Who holds it and why, in the holder's words.
    pub note: Option<String>,
}

/// What a [`Watch`] has heard.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct News {
    /// Whether these are all live leases: the first news, and those after a lost connection.
    pub is_whole: bool,
    /// Leases that were granted or renewed.
    pub live: Vec<Lease>,
    /// Names whose lease has ended.
    pub ended: Vec<String>,
    /// What live leases have attached, by name. In news of many names, a value of more than 1 KiB
    /// is left out.
    pub values: Vec<(String, Value)>,
}

/// Hears of every lease that changes. Made by [`Client::watch`].
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

/// The server sends something every 15 seconds. A stream that is silent for longer is over.
pub(crate) const SILENCE: Duration = Duration::from_secs(40);

/// How long a first connection, or a read of leases, is tried.
const FIRST: Duration = Duration::from_secs(5);

/// How many leases are asked for at once.
const PAGE: (&str, &str) = ("limit", "500");

impl<M: Mode> Client<M> {
    /// Returns who has a name.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// match client.inspect("backup")?.lease {
    ///     Some(lease) => println!("{} has it", lease.owner),
    ///     None => println!("nobody has it"),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn inspect(&self, name: &str) -> M::Answer<Name> {
        self.find(path("leases", &[("name", name)]), FIRST, |value| {
            Some(Name { token: value["token"].as_i64(), lease: lease(value) })
        })
    }

    /// Returns all live leases on names that begin like this.
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
        self.list(path("leases", &[PAGE, ("prefix", prefix)]), "leases", FIRST, lease)
    }

    /// Reads a list page by page, whose entries are in this field.
    pub(crate) fn list<T: Send + 'static, E: IntoIterator<Item = T> + 'static>(
        &self,
        path: String,
        field: &'static str,
        time: Duration,
        read: fn(&Json) -> E,
    ) -> M::Answer<Vec<T>> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            let (mut all, mut after) = (Vec::new(), Some(String::new()));
            while let Some(this) = after {
                let (entries, next) = client.page(&(path.clone() + &this), field, time).await?;
                all.extend(entries.iter().flat_map(read));
                after = next;
            }
            Ok(all)
        })
    }

    /// Returns all names that begin like this, whether somebody has them or not.
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
        let path = path("leases", &[PAGE, ("all", "true"), ("prefix", prefix)]);
        self.list(path, "leases", FIRST, known)
    }

    /// Returns the pools whose name begins like this and of which slots are held.
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
        self.list(path("slots", &[PAGE, ("prefix", prefix)]), "pools", FIRST, pool_of_name)
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
        self.list(path("slots", &[PAGE, ("name", name)]), "pools", FIRST, |pool| {
            let slots = pool["slots"].as_array().into_iter().flatten();
            slots.filter_map(slot_info).collect::<Vec<_>>()
        })
    }

    /// Watches leases on names that begin like this. A lost connection is made again.
    pub fn watch(&self, prefix: &str) -> Watch<M> {
        self.watch_at(path("events", &[("prefix", prefix)]))
    }

    /// Watches the lease on one name.
    pub fn watch_name(&self, name: &str) -> Watch<M> {
        self.watch_at(path_of_name(name))
    }

    fn watch_at(&self, path: String) -> Watch<M> {
        let (sender, news) = channel(64);
        let transport = Arc::clone(&self.transport);
        // In a forked process nothing is heard, and the watch says so.
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
    /// Returns the next news. `None` after an error: nothing is heard any more. Dropping the future
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

/// Passes on all events until the watch is gone, or the server refuses the stream.
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
                        // If this fails, the watch is closed.
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
    /// Reads a line. One that ends no event is `Some(None)`: the server sends one every 15 seconds.
    /// `None` if it makes no sense.
    pub(crate) fn read(&mut self, line: &str) -> Option<Option<News>> {
        if let Some(event) = line.strip_prefix("event: ") {
            self.kind = event.into();
        }
        line.strip_prefix("data: ").map_or(Some(None), |data| news(&self.kind, data).map(Some))
    }
}

/// Returns the path of the event stream of one name.
pub(crate) fn path_of_name(name: &str) -> String {
    path("events", &[("name", name)])
}

fn news(kind: &str, data: &str) -> Option<News> {
    let value: Json = serde_json::from_str(data).ok()?;
    let all = value["leases"].as_array()?;
    let ended = all.iter().filter(|lease| lease["owner"].is_null());
    let ended = ended.filter_map(|lease| lease["name"].as_str().map(str::to_owned)).collect();
    let attached = |lease: &Json| {
        let value = Value::of_json(&lease["value"]).filter(|value| *value != Value::Null)?;
        Some((lease["name"].as_str()?.to_owned(), value))
    };
    let values = all.iter().filter_map(attached).collect();
    let live = all.iter().filter_map(lease).collect();
    Some(News { is_whole: kind == "state", live, ended, values })
}

fn pool_of_name(value: &Json) -> Option<PoolOfName> {
    Some(PoolOfName {
        name: value["name"].as_str()?.into(),
        count: value["count"].as_i64()?,
        in_use: value["in_use"].as_i64()?,
    })
}

fn slot_info(value: &Json) -> Option<SlotInfo> {
    Some(SlotInfo {
        position: value["position"].as_i64()?,
        token: value["token"].as_i64()?,
        expires_in: duration(&value["expires_in"]),
        note: value["note"].as_str().map(str::to_owned),
    })
}

fn known(value: &Json) -> Option<KnownName> {
    let owner = value["owner"].as_str().or(value["last_owner"].as_str()).map(str::to_owned);
    let left = value["expires_in"].as_f64().or(value["expired_for"].as_f64().map(|ago| -ago));
    Some(KnownName {
        name: value["name"].as_str()?.into(),
        token: value["token"].as_i64()?,
        state: value["state"].as_str().unwrap_or("live").into(),
        owner,
        // A cast of a float saturates.
        left_ms: left.map(|seconds| (seconds * 1000.0).round() as i64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read() {
        let data = r#"{"leases":[
            {"name":"a","owner":"x","token":1,"expires_in":3},
            {"name":"b","owner":null,"token":2,"expires_in":null}
        ]}"#;
        let read = news("change", data).map(|news| (news.is_whole, news.live.len(), news.ended));
        assert_eq!(read, Some((false, 1, vec!["b".to_owned()])));
        assert!(news("state", "{}").is_none());
    }
}
