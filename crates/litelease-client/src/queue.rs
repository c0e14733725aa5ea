//! Queues on a server: sending, and receiving items that are leased to one worker at a time.

use std::time::Duration;

use litelease_hold::{Clock, SystemClock, Window, unique};
use litelease_wire::{self as wire, Ack, Bury, GiveBack, ListQueues, Receive, Seconds, Send};
use tokio::time::sleep;

use crate::client::{LONGEST_WAIT, PATIENCE, UNTIL_NOTICED, is_trusted, seconds};
use crate::kind::{GrantCall, Kind, renewed_for};
use crate::mode::{Blocking, Mode, Untaken};
use crate::retry::{RETRY, Reply};
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
pub struct Queue<M: Mode = Blocking> {
    client: Client<M>,
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
    /// The receipt: it alone acknowledges, extends, gives back or buries the delivery.
    pub receipt: String,
    /// How often the item was delivered, this time included.
    pub attempt: i64,
    /// The fencing token: larger than that of every earlier delivery.
    pub token: i64,
    /// How long the delivery had left when the server answered.
    pub expires_in: Duration,
    /// The body of the item.
    pub body: Value,
    /// The moment from which it is trusted, by the clock that counts suspend.
    pub(crate) start: Duration,
}

/// Options for sending an item.
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
    /// How long the item that has been visible longest has been so.
    pub oldest: Option<Duration>,
    /// How often an item is delivered before it is dead; 0 for any number.
    pub max_attempts: i64,
}

impl<'a> SendOptions<'a> {
    /// Returns the options of a plain send: visible at once, without a key.
    pub fn new() -> Self {
        SendOptions::default()
    }

    /// Hides the item for this long.
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

impl<M: Mode> Client<M> {
    /// Returns the queue called `name`, which exists from its first use. For calls with a receipt
    /// the name may be empty: the server finds the queue of the item.
    pub fn queue(&self, name: &str) -> Queue<M> {
        Queue { client: self.clone(), name: name.into() }
    }

    /// Lists the queues whose name begins with `prefix`, with how many items each has.
    pub fn queues(&self, prefix: &str) -> M::Answer<Vec<QueueInfo>> {
        let (queue, prefix, after) = (None, Some(prefix.into()), None);
        self.list(ListQueues { queue, prefix, after, limit: None }, RETRY, |found| {
            (found.queues.into_iter().map(QueueInfo::from).collect(), found.next)
        })
    }
}

impl<M: Mode> Queue<M> {
    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends an item, and returns its id. A lost answer is asked for again, with the same key, so
    /// that no item is sent twice.
    pub fn send(&self, body: impl Into<Value>) -> M::Answer<i64> {
        self.send_with(body, SendOptions::new())
    }

    /// Sends like [`send`](Queue::send), with a delay or a key.
    pub fn send_with(&self, body: impl Into<Value>, options: SendOptions<'_>) -> M::Answer<i64> {
        let request = Send {
            queue: self.name.clone(),
            body: body.into(),
            delay: seconds(options.delay),
            key: options.key.map(str::to_owned),
        };
        self.client.ask_for(request, |sent| sent.id)
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
    pub fn receive(&self, visibility: Duration, wait: Duration) -> M::Answer<Option<Item>> {
        self.receive_within(visibility, wait, visibility)
    }

    /// Receives like [`receive`](Queue::receive), but repeats the request for at most `patience`
    /// beyond the time to wait, if the server cannot be reached: for callers that have other work.
    pub fn receive_within(
        &self,
        visibility: Duration,
        wait: Duration,
        patience: Duration,
    ) -> M::Answer<Option<Item>> {
        let queue = self.clone();
        M::obtain(
            &self.client.transport,
            async move { queue.deliver(visibility, wait, patience).await },
        )
    }

    /// Receives an item. If this future is dropped, or its result, the item is given back.
    pub(crate) async fn deliver(
        &self,
        visibility: Duration,
        wait: Duration,
        patience: Duration,
    ) -> Result<(Option<Item>, Untaken), Error> {
        Window::new(visibility).ok_or(Error::TtlTooShort(visibility))?;
        let begin = SystemClock.now();
        loop {
            let start = SystemClock.now();
            let left = wait.saturating_sub(start.saturating_sub(begin));
            let (this, tag) = (left.min(LONGEST_WAIT), unique());
            let (queue, same) = (self.clone(), tag.clone());
            let give_back = async move { queue.give_back_received(visibility, same).await };
            let untaken = Untaken::new(&self.client.transport, give_back);
            match self.receive_once(visibility, this, patience, tag, start).await {
                // Trust begins with the first request, which was sent before the delivery. After a
                // long wait nothing of it may be left, so the caller must extend the delivery
                // first.
                Ok(Some(item)) => return Ok((Some(item), untaken)),
                Ok(None) if left > this => drop(untaken.taken()),
                Ok(None) => return Ok((None, untaken.taken())),
                Err(error) => {
                    untaken.taken();
                    return Err(error);
                }
            }
        }
    }

    async fn receive_once(
        &self,
        visibility: Duration,
        wait: Duration,
        patience: Duration,
        tag: String,
        start: Duration,
    ) -> Result<Option<Item>, Error> {
        let (queue, visibility) = (self.name.clone(), seconds(visibility));
        let request = Receive { queue, visibility, wait: 0.0 };
        let reply = self.client.retry(&request, tag, wait, patience).await?;
        Ok(reply.done()?.item.map(|item| Item {
            id: item.id,
            receipt: item.receipt,
            attempt: item.attempt,
            token: item.token,
            expires_in: item.expires_in.duration(),
            body: item.body,
            start,
        }))
    }

    /// Gives back what the server has delivered, or may still deliver, to a receive that was given
    /// up, as a claim does with its grant.
    async fn give_back_received(&self, visibility: Duration, tag: String) {
        for pause in [Duration::ZERO, UNTIL_NOTICED] {
            sleep(pause).await;
            let (tag, start) = (tag.clone(), SystemClock.now());
            let received = self.receive_once(visibility, Duration::ZERO, visibility, tag, start);
            if let Ok(Some(item)) = received.await {
                let request = self.giving_back(&item.receipt, Duration::ZERO, None);
                // If this fails, the item is delivered again after its time.
                let none = Duration::ZERO;
                let _ = self.client.retry(&request, unique(), none, visibility).await;
                return;
            }
        }
    }

    /// Acknowledges an item, which removes it. Fails with [`Error::Stale`] if the work belongs to
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
    pub fn ack(&self, receipt: &str) -> M::Answer<()> {
        let (queue, receipt) = (self.named(), receipt.into());
        self.client.ask(Ack { queue, receipt }, Reply::check)
    }

    /// Prolongs a live delivery to at least `visibility` from now. Returns how long it has left,
    /// counted from before the call.
    pub fn extend(&self, receipt: &str, visibility: Duration) -> M::Answer<Duration> {
        self.extend_within(receipt, visibility, PATIENCE)
    }

    /// Prolongs like [`extend`](Queue::extend), with one request that takes at most `timeout`, for
    /// callers that need the answer in time.
    pub fn extend_within(
        &self,
        receipt: &str,
        visibility: Duration,
        timeout: Duration,
    ) -> M::Answer<Duration> {
        let (queue, receipt, renew) =
            (self.clone(), receipt.to_owned(), GrantCall::Renew(visibility));
        M::answer(&self.client.transport, async move {
            let Queue { client, name } = queue;
            let extended = client.call(&Kind::Delivery, renew, &name, &receipt, timeout);
            renewed_for(extended.await?)
        })
    }

    /// Makes an item visible again, now or after `delay`. Attempts stay counted, and after the last
    /// allowed one the item is dead instead. `note` is for operators: at most 1,000 bytes.
    pub fn give_back(&self, receipt: &str, delay: Duration, note: Option<&str>) -> M::Answer<()> {
        let request = self.giving_back(receipt, delay, note);
        self.client.ask(request, |reply| reply.done_or_already("given_back"))
    }

    /// Makes an item dead at once. `note` is for operators: at most 1,000 bytes.
    pub fn bury(&self, receipt: &str, note: Option<&str>) -> M::Answer<()> {
        let (queue, receipt, note) = (self.named(), receipt.into(), note.map(str::to_owned));
        self.client.ask(Bury { queue, receipt, note }, |reply| reply.done_or_already("buried"))
    }

    /// Returns the name of the queue, if it is known.
    fn named(&self) -> Option<String> {
        Some(self.name.clone()).filter(|name| !name.is_empty())
    }

    fn giving_back(&self, receipt: &str, delay: Duration, note: Option<&str>) -> GiveBack {
        let (queue, receipt, delay) = (self.named(), receipt.into(), seconds(delay));
        GiveBack { queue, receipt, delay, note: note.map(str::to_owned) }
    }

    /// Returns the client.
    pub(crate) fn client(&self) -> &Client<M> {
        &self.client
    }

    /// Returns how many items the queue has, or `None` if there is no such queue.
    pub fn info(&self) -> M::Answer<Option<QueueInfo>> {
        let (queue, prefix, after) = (Some(self.name.clone()), None, None);
        self.client.find(ListQueues { queue, prefix, after, limit: None }, RETRY, |found| {
            found.queues.into_iter().next().map(QueueInfo::from)
        })
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
        // Neither the receipt, which is a secret, nor the body is printed.
        let Item { id, attempt, token, .. } = self;
        f.debug_struct("Item")
            .field("id", id)
            .field("attempt", attempt)
            .field("token", token)
            .finish_non_exhaustive()
    }
}

impl<M: Mode> std::fmt::Debug for Queue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("name", &self.name).finish_non_exhaustive()
    }
}

impl From<wire::Queue> for QueueInfo {
    fn from(info: wire::Queue) -> Self {
        let wire::Queue { queue, visible, delayed, leased, dead, oldest, max_attempts } = info;
        let oldest = oldest.map(Seconds::duration);
        QueueInfo { queue, visible, delayed, leased, dead, oldest, max_attempts }
    }
}
