//! Queues on a server: sending, and receiving items that are leased to one worker at a time.

use std::time::Duration;

use litelease_hold::{Clock, SystemClock, Window};
use serde_json::{Value as Json, json};

use crate::client::{LONGEST_WAIT, PATIENCE, duration, is_trusted, nonsense, seconds};
use crate::kind::Kind;
use crate::{Client, Error, Value};

/// A queue on a server.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{Client, Error};
/// let client = Client::open("http://127.0.0.1:7070")?;
/// let mail = client.queue("mail");
/// mail.send("hello")?;
/// while let Some(item) = mail.receive(Duration::from_secs(30), Duration::from_secs(60))? {
///     println!("{:?}", item.body);
///     mail.ack(&item.receipt)?;
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Queue<'c> {
    client: &'c Client,
    name: String,
}

/// An item that was delivered to this client.
///
/// Dropping it does nothing: the item is delivered again after its time.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{Client, Error, Item};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// let item: Option<Item> = client.queue("mail").receive(Duration::from_secs(30), Duration::ZERO)?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct Item {
    /// The item.
    pub id: i64,
    /// What acknowledges, extends, gives back or buries it. Whoever has it can do so.
    pub receipt: String,
    /// How often the item was delivered, this time included.
    pub attempt: i64,
    /// The fencing token: larger than that of every earlier delivery.
    pub token: i64,
    /// How long the delivery had left when the server answered.
    pub expires_in: Duration,
    /// What was sent.
    pub body: Value,
    /// The moment from which it is trusted, by the clock that counts suspend.
    pub(crate) start: Duration,
}

/// How to send an item.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_client::SendOptions;
/// let options = SendOptions::new().delay(Duration::from_secs(60)).key("order-17");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SendOptions<'a> {
    pub(crate) delay: Duration,
    pub(crate) key: Option<&'a str>,
}

/// How many items a queue has, by their state.
///
/// ```no_run
/// # use litelease_client::{Client, Error};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// for queue in client.queues("")? {
///     println!("{}: {} to do", queue.queue, queue.visible);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The queue.
    pub queue: String,
    /// Items that the next receive may deliver.
    pub visible: i64,
    /// Items that become visible later.
    pub delayed: i64,
    /// Items that a worker has.
    pub leased: i64,
    /// Items that only a redrive revives.
    pub dead: i64,
    /// For how long the item that is visible longest has been so.
    pub oldest: Option<Duration>,
    /// How often an item is delivered before it is dead; 0 for any number.
    pub max_attempts: i64,
}

impl<'a> SendOptions<'a> {
    /// Returns options that ask for nothing special.
    pub fn new() -> Self {
        SendOptions::default()
    }

    /// Hides the item for so long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets a key of 1 to 200 bytes. While an item of the queue with this key is neither
    /// acknowledged nor dead, a send returns the id of that item and changes nothing.
    pub fn key(mut self, key: &'a str) -> Self {
        self.key = Some(key);
        self
    }
}

impl Client {
    /// Returns the queue called `name`. It exists from its first use. If all that is known is a
    /// receipt, leave the name empty: the server finds the queue of the item.
    pub fn queue(&self, name: &str) -> Queue<'_> {
        Queue { client: self, name: name.into() }
    }

    /// Lists the queues whose name begins with `prefix`, with how many items each has.
    pub fn queues(&self, prefix: &str) -> Result<Vec<QueueInfo>, Error> {
        let (mut queues, mut after) = (Vec::new(), None::<String>);
        loop {
            let mut query = vec![("prefix", prefix)];
            query.extend(after.iter().map(|after| ("after", after.as_str())));
            let page = self.look("queues", &query)?;
            let infos = page["queues"].as_array().ok_or_else(nonsense)?;
            for info in infos {
                queues.push(queue_info(info).ok_or_else(nonsense)?);
            }
            match page["next"].as_str() {
                Some(next) => after = Some(next.into()),
                None => return Ok(queues),
            }
        }
    }
}

impl Queue<'_> {
    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends an item, and returns its id. A lost answer is asked for again, with the same key, so
    /// that nothing is sent twice.
    pub fn send(&self, body: impl Into<Value>) -> Result<i64, Error> {
        self.send_with(body, SendOptions::new())
    }

    /// Sends like [`send`](Queue::send), with a delay or a key.
    pub fn send_with(
        &self,
        body: impl Into<Value>,
        options: SendOptions<'_>,
    ) -> Result<i64, Error> {
        let mut request = json!({
            "queue": self.name, "body": body.into().to_json(), "delay": seconds(options.delay),
        });
        if let Some(key) = options.key {
            request["key"] = key.into();
        }
        let sent = self.client.insist("queue/send", &request)?.done()?;
        sent["id"].as_i64().ok_or_else(nonsense)
    }

    /// Receives the item that was visible longest, and waits for one for at most `wait`: first
    /// come, first served among all clients. No other worker gets it within `visibility`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let mail = client.queue("mail");
    /// if let Some(item) = mail.receive(Duration::from_secs(30), Duration::from_secs(60))? {
    ///     mail.ack(&item.receipt)?;
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn receive(&self, visibility: Duration, wait: Duration) -> Result<Option<Item>, Error> {
        self.receive_within(visibility, wait, visibility)
    }

    /// Receives like [`receive`](Queue::receive). While the server cannot be reached, the request
    /// is repeated for at most `patience` beyond the time to wait, for callers that must look after
    /// something else.
    pub fn receive_within(
        &self,
        visibility: Duration,
        wait: Duration,
        patience: Duration,
    ) -> Result<Option<Item>, Error> {
        Window::new(visibility).ok_or(Error::TtlTooShort(visibility))?;
        let request = json!({ "queue": self.name, "visibility": seconds(visibility), "wait": 0 });
        let begin = SystemClock.now();
        loop {
            let start = SystemClock.now();
            let left = wait.saturating_sub(start.saturating_sub(begin));
            let (request, this) = (request.clone(), left.min(LONGEST_WAIT));
            let received = self.client.insist_waiting("queue/receive", request, this, patience)?;
            let value = received.done()?;
            match value["item"].is_null() {
                true if left > this => {}
                true => return Ok(None),
                // The item was delivered after the first request was sent, so this is safe. After a
                // long wait nothing may be left of it, and an extension is needed first.
                false => return item(&value["item"], start).map(Some).ok_or_else(nonsense),
            }
        }
    }

    /// Acknowledges an item: it is done, and gone. [`Error::Stale`] says that the work belongs to
    /// another worker.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// # let mail = client.queue("mail");
    /// # let item = mail.receive(Duration::from_secs(30), Duration::ZERO)?.unwrap();
    /// match mail.ack(&item.receipt) {
    ///     Err(Error::Stale { reason }) => eprintln!("another worker does it: {reason}"),
    ///     answer => answer?,
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn ack(&self, receipt: &str) -> Result<(), Error> {
        let request = self.about(receipt);
        self.client.insist("queue/ack", &request)?.done().map(drop)
    }

    /// Prolongs a live delivery to at least `visibility` from now. Returns how long it has left, of
    /// which count from before the call.
    pub fn extend(&self, receipt: &str, visibility: Duration) -> Result<Duration, Error> {
        self.extend_within(receipt, visibility, PATIENCE)
    }

    /// Prolongs like [`extend`](Queue::extend), with one request that takes at most `timeout`, for
    /// callers that must know in time.
    pub fn extend_within(
        &self,
        receipt: &str,
        visibility: Duration,
        timeout: Duration,
    ) -> Result<Duration, Error> {
        let (transport, time) = (&self.client.transport, Some(visibility));
        let extended =
            Kind::Delivery.call(transport, "renew", &self.name, receipt, time, timeout)?;
        duration(&extended["expires_in"]).ok_or_else(nonsense)
    }

    /// Makes an item visible again, now or after `delay`. Attempts stay counted, and after the last
    /// allowed one the item is dead instead. `note` is for operators: at most 1,000 bytes.
    pub fn give_back(
        &self,
        receipt: &str,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<(), Error> {
        let mut request = self.about(receipt);
        request["delay"] = seconds(delay).into();
        note.into_iter().for_each(|note| request["note"] = note.into());
        self.client.insist("queue/give-back", &request)?.done_or("given_back")
    }

    /// Makes an item dead at once. `note` is for operators: at most 1,000 bytes.
    pub fn bury(&self, receipt: &str, note: Option<&str>) -> Result<(), Error> {
        let mut request = self.about(receipt);
        note.into_iter().for_each(|note| request["note"] = note.into());
        self.client.insist("queue/bury", &request)?.done_or("buried")
    }

    /// Returns a request about a delivery.
    pub(crate) fn about(&self, receipt: &str) -> Json {
        match self.name.as_str() {
            "" => json!({ "receipt": receipt }),
            queue => json!({ "queue": queue, "receipt": receipt }),
        }
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &Client {
        self.client
    }

    /// Returns how many items the queue has, or `None` if there is no such queue.
    pub fn info(&self) -> Result<Option<QueueInfo>, Error> {
        let found = self.client.look("queues", &[("queue", &self.name)])?;
        found["queues"].get(0).map(|info| queue_info(info).ok_or_else(nonsense)).transpose()
    }
}

impl Item {
    /// Checks whether the item can be trusted to be this client's: no other worker can have
    /// received it. False after a long wait, until the delivery is extended.
    pub fn is_trusted(&self) -> bool {
        is_trusted(self.start, self.expires_in)
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The receipt is nobody else's, and neither is the body.
        let Item { id, attempt, token, .. } = self;
        f.debug_struct("Item")
            .field("id", id)
            .field("attempt", attempt)
            .field("token", token)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

fn item(value: &Json, start: Duration) -> Option<Item> {
    Some(Item {
        id: value["id"].as_i64()?,
        receipt: value["receipt"].as_str()?.into(),
        attempt: value["attempt"].as_i64()?,
        token: value["token"].as_i64()?,
        expires_in: duration(&value["expires_in"])?,
        body: Value::of_json(&value["body"])?,
        start,
    })
}

fn queue_info(value: &Json) -> Option<QueueInfo> {
    let number = |field: &str| value[field].as_i64();
    Some(QueueInfo {
        queue: value["queue"].as_str()?.into(),
        visible: number("visible")?,
        delayed: number("delayed")?,
        leased: number("leased")?,
        dead: number("dead")?,
        oldest: duration(&value["oldest"]),
        max_attempts: number("max_attempts")?,
    })
}
