//! Looking at leases, once or as they change.

use std::io::{BufRead, BufReader};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, sleep};
use std::time::Duration;

use litelease_hold::{Clock, SystemClock};
use serde_json::Value as Json;

use crate::client::{Client, Lease, duration, lease, nonsense, pauses};
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
pub struct Watch {
    news: Receiver<Result<News, Error>>,
}

/// The server sends something every 15 seconds. A stream that is silent for longer is over.
pub(crate) const SILENCE: Duration = Duration::from_secs(40);

/// How long a first connection, or a read of leases, is tried.
const FIRST: Duration = Duration::from_secs(5);

/// How many leases are asked for at once.
const PAGE: &str = "500";

impl Client {
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
    pub fn inspect(&self, name: &str) -> Result<Name, Error> {
        let value = self.look_within("leases", &[("name", name)], FIRST)?;
        Ok(Name { token: value["token"].as_i64(), lease: lease(&value) })
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
    pub fn leases(&self, prefix: &str) -> Result<Vec<Lease>, Error> {
        let mut all = Vec::new();
        self.pages("leases", &[("prefix", prefix)], |page| {
            all.extend(page.iter().filter_map(lease));
        })?;
        Ok(all)
    }

    /// Reads a list page by page: leases, or pools with their slots.
    fn pages(
        &self,
        call: &str,
        asked: &[(&str, &str)],
        mut each: impl FnMut(&[Json]),
    ) -> Result<(), Error> {
        let list = if call == "slots" { "pools" } else { call };
        let mut after = None::<String>;
        loop {
            let mut query = vec![("limit", PAGE)];
            query.extend(asked);
            query.extend(after.iter().map(|after| ("after", after.as_str())));
            let page = self.look_within(call, &query, FIRST)?;
            each(page[list].as_array().ok_or_else(nonsense)?);
            match page["next"].as_str() {
                Some(next) => after = Some(next.into()),
                None => return Ok(()),
            }
        }
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
    pub fn names(&self, prefix: &str) -> Result<Vec<KnownName>, Error> {
        let mut all = Vec::new();
        self.pages("leases", &[("all", "true"), ("prefix", prefix)], |page| {
            all.extend(page.iter().filter_map(known));
        })?;
        Ok(all)
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
    pub fn pools(&self, prefix: &str) -> Result<Vec<PoolOfName>, Error> {
        let mut all = Vec::new();
        self.pages("slots", &[("prefix", prefix)], |page| {
            all.extend(page.iter().filter_map(pool_of_name));
        })?;
        Ok(all)
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
    pub fn slots(&self, name: &str) -> Result<Vec<SlotInfo>, Error> {
        let mut all = Vec::new();
        self.pages("slots", &[("name", name)], |page| {
            let slots = page.iter().filter_map(|pool| pool["slots"].as_array());
            all.extend(slots.flatten().filter_map(slot_info));
        })?;
        Ok(all)
    }

    /// Watches leases on names that begin like this. A lost connection is made again.
    pub fn watch(&self, prefix: &str) -> Watch {
        self.watch_at(format!("/v1/events?prefix={}", encoded(prefix)))
    }

    /// Watches the lease on one name.
    pub fn watch_name(&self, name: &str) -> Watch {
        self.watch_at(path_of_name(name))
    }

    fn watch_at(&self, path: String) -> Watch {
        let (sender, news) = sync_channel(64);
        let transport = Arc::clone(&self.transport);
        // Without a thread nothing is heard, and that is told.
        let body = move || _ = listen(&transport, &path, &sender);
        let _ = thread::Builder::new().name("litelease watch".into()).spawn(body);
        Watch { news }
    }
}

impl Watch {
    /// Returns the next news, or `None` if none comes within this time.
    pub fn next(&self, timeout: Duration) -> Result<Option<News>, Error> {
        match self.news.recv_timeout(timeout) {
            Ok(news) => news.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Unreachable("nothing is heard any more".into()))
            }
        }
    }
}

/// Passes on all events until nobody listens any more, or the server refuses to tell.
fn listen(
    transport: &Transport,
    path: &str,
    news: &SyncSender<Result<News, Error>>,
) -> Result<(), ()> {
    let (begin, mut was_heard, mut wait) = (SystemClock.now(), false, pauses());
    loop {
        match transport.stream(path, SILENCE) {
            Ok(stream) => {
                (was_heard, wait) = (true, pauses());
                pass_on(BufReader::new(stream), news)?;
            }
            Err(Outcome::Unknown(_) | Outcome::Unreached(_))
                if was_heard || SystemClock.now().saturating_sub(begin) < FIRST => {}
            Err(outcome) => return news.send(Err(outcome.into_error())).map_err(drop),
        }
        sleep(wait());
    }
}

/// Passes on the events of one stream until it ends.
fn pass_on(stream: impl BufRead, news: &SyncSender<Result<News, Error>>) -> Result<(), ()> {
    events(stream).flatten().try_for_each(|heard| news.send(Ok(heard)).map_err(drop))
}

/// Reads a stream line by line until it ends. A line that ends no event is `None`: the server sends
/// one every 15 seconds.
pub(crate) fn events(stream: impl BufRead) -> impl Iterator<Item = Option<News>> {
    let mut kind = String::new();
    stream.lines().map_while(Result::ok).map_while(move |line| {
        if let Some(event) = line.strip_prefix("event: ") {
            kind = event.into();
        }
        line.strip_prefix("data: ").map_or(Some(None), |data| heard(&kind, data).map(Some))
    })
}

/// Returns the path of the event stream of one name.
pub(crate) fn path_of_name(name: &str) -> String {
    format!("/v1/events?name={}", encoded(name))
}

fn heard(kind: &str, data: &str) -> Option<News> {
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

/// Encodes a text for a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_and_texts_are_encoded() {
        let data = r#"{"leases":[
            {"name":"a","owner":"x","token":1,"expires_in":3},
            {"name":"b","owner":null,"token":2,"expires_in":null}
        ]}"#;
        let news = heard("change", data).map(|news| (news.is_whole, news.live.len(), news.ended));
        assert_eq!(news, Some((false, 1, vec!["b".to_owned()])));
        assert!(heard("state", "{}").is_none());
        assert_eq!(encoded("a b/ä&="), "a%20b%2F%C3%A4%26%3D");
    }
}
