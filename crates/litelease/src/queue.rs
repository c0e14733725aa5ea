//! Queues of items that are leased to one worker at a time, for all handles.

use std::fmt;
use std::time::Duration;

use litelease_store::{Delivered, OwnedValue, SendOptions as Options, When};
use rusqlite::types::{self, ToSqlOutput};
use rusqlite::{Connection, ToSql};

use crate::error::{failure, into_rusqlite};
use crate::fences::{as_value, owned};
use crate::leases::in_ms;
use crate::{
    AckResult, CancelResult, Error, ItemInfo, Leases, Litelease, LiteleaseRef, QueueInfo, Result,
    Transaction,
};

/// A queue, through any handle.
///
/// An item that was sent is delivered to one worker at a time. It is hidden until a deadline, which
/// the worker can extend; it is gone when the worker acknowledges it, and is delivered again if the
/// deadline passes first. Sending joins the transaction of the handle, so an item and the row that
/// it is about are stored together or not at all. [`Item::finish`] does the same at the other end:
/// the effect and the acknowledgement are one commit, and a worker that was replaced cannot make
/// it.
///
/// A queue exists from its first use. Its name is any text.
///
/// ```
/// # litelease_doctest::memory!(db);
/// # db.conn().execute_batch("CREATE TABLE orders (id); CREATE TABLE sent (id)")?;
/// let tx = db.transaction()?;
/// tx.conn().execute("INSERT INTO orders VALUES (17)", [])?;
/// tx.queue("mail").send(17)?;
/// tx.commit()?; // the order and its mail, or neither
///
/// while let Some(item) = db.queue("mail").receive(Duration::from_secs(30))? {
///     // The work, with no transaction open.
///     item.finish(|tx| {
///         tx.conn().execute("INSERT INTO sent VALUES (?1)", [&item.body])?;
///         Ok(())
///     })?;
/// }
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Queue<'q> {
    pub(crate) leases: &'q Leases,
    /// Missing where the handle has a transaction open, or knows only the raw connection.
    pub(crate) connection: Option<&'q Connection>,
    pub(crate) name: &'q str,
    when: When,
}

/// An item that was delivered to this worker, until its deadline, its acknowledgement or its
/// return.
///
/// Dropping it does nothing: the item is delivered again after its deadline.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let queue = db.queue("mail");
/// queue.send("hello")?;
/// let item: Item<'_> = queue.receive(Duration::from_secs(30))?.unwrap();
/// assert_eq!(item.body, rusqlite::types::Value::Text("hello".into()));
/// assert!(item.ack()?.is_acknowledged());
/// # Ok::<(), litelease::Error>(())
/// ```
#[non_exhaustive]
pub struct Item<'q> {
    /// The item.
    pub id: i64,
    /// Acknowledges, extends, gives back or buries the item: `ID-UUID`. It is a secret.
    pub receipt: String,
    /// How often the item was delivered, this time included, since it was sent or redriven.
    pub attempt: i64,
    /// The fencing token, for effects outside the file: larger than that of every earlier delivery.
    pub token: i64,
    /// The first millisecond (Unix time) at which another worker may get the item.
    pub deadline_ms: i64,
    /// The body that was sent.
    pub body: types::Value,
    queue: Queue<'q>,
}

/// Options of a send.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let options = SendOptions::new().delay(Duration::from_secs(60)).key("order-17");
/// let id = db.queue("mail").send_with("hello", options)?;
/// assert_eq!(db.queue("mail").send_with("again", options)?, id);
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions<'a> {
    delay: Duration,
    key: Option<&'a str>,
}

/// Options of giving an item back.
///
/// ```
/// # litelease_doctest::memory!(db);
/// # db.queue("mail").send("hello")?;
/// # let item = db.queue("mail").receive(Duration::from_secs(30))?.unwrap();
/// let options = GiveBackOptions::new().delay(Duration::from_secs(60)).note("no route to host");
/// assert!(item.give_back_with(options)?);
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GiveBackOptions<'a> {
    delay: Duration,
    note: Option<&'a str>,
}

/// The name of an item to cancel: its id or its key.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let queue = db.queue("mail");
/// let id = queue.send_with("hello", SendOptions::new().key("order-17"))?;
/// assert_eq!(queue.cancel(ItemName::Key("order-17"))?, CancelResult::Cancelled);
/// assert_eq!(queue.cancel(ItemName::Id(id))?, CancelResult::NotFound);
/// # Ok::<(), litelease::Error>(())
/// ```
pub use litelease_store::ItemName;

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

impl<'a> GiveBackOptions<'a> {
    /// Returns the options of a plain return: visible at once, without a note.
    pub fn new() -> Self {
        GiveBackOptions::default()
    }

    /// Hides the item for this long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds a text for operators, such as the error, of at most 1,000 bytes.
    pub fn note(mut self, note: &'a str) -> Self {
        self.note = Some(note);
        self
    }
}

impl Leases {
    /// Returns the queue called `name`, in this handle's connection and transaction.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let tx = db.transaction()?;
    /// tx.queue("mail").send("hello")?;
    /// drop(tx); // rolled back, so nothing was sent
    /// assert!(db.queue("mail").receive(Duration::from_secs(30))?.is_none());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn queue<'q>(&'q self, name: &'q str) -> Queue<'q> {
        Queue { leases: self, connection: None, name, when: self.when() }
    }

    /// Lists the queues by name, with how many items each has in which state. Reads every item.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.queue("mail").send("hello")?;
    /// let queues = db.queues()?;
    /// assert_eq!((queues[0].queue.as_str(), queues[0].visible), ("mail", 1));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.run(|store| store.queues(self.when()))
    }
}

impl Litelease {
    /// Returns the queue called `name`.
    pub fn queue<'q>(&'q self, name: &'q str) -> Queue<'q> {
        Queue { connection: Some(self.conn()), ..Leases::queue(self, name) }
    }
}

impl LiteleaseRef<'_> {
    /// Returns the queue called `name`. It joins an open transaction.
    pub fn queue<'q>(&'q self, name: &'q str) -> Queue<'q> {
        Queue { connection: Some(self.conn()), ..Leases::queue(self, name) }
    }
}

impl<'q> Queue<'q> {
    /// Returns the same queue at a given Unix time in milliseconds, for tests and simulations.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let queue = db.queue("mail");
    /// queue.at(100).send("hello")?;
    /// let visibility = Duration::from_millis(50);
    /// let first = queue.at(100).receive(visibility)?.unwrap();
    /// assert!(queue.at(149).receive(visibility)?.is_none());
    /// let second = queue.at(150).receive(visibility)?.unwrap();
    /// let reason = StaleReason::DeliveredAgain;
    /// assert_eq!(first.ack()?, AckResult::Stale { reason });
    /// assert!(second.ack()?.is_acknowledged());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn at(self, now_ms: i64) -> Self {
        Queue { when: When::At(now_ms), ..self }
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &'q str {
        self.name
    }

    /// Sets how often an item is delivered before it is dead: 20 unless set, 0 for any number.
    /// Deliveries under way keep the limit that they were made with.
    pub fn set_max_attempts(&self, max_attempts: i64) -> Result<()> {
        self.leases.run(|store| store.queue(self.name, Some(max_attempts))).map(drop)
    }

    /// Sends an item, and returns its id. Ids are never reused.
    ///
    /// In a transaction of the handle's, a rollback means that it was never sent.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let queue = db.queue("mail");
    /// assert_eq!(queue.send("text")?, 1);
    /// assert_eq!(queue.send(vec![0u8; 1000])?, 2);
    /// assert_eq!(queue.send(rusqlite::types::Null)?, 3);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn send(&self, body: impl ToSql) -> Result<i64> {
        self.send_with(body, SendOptions::new())
    }

    /// Sends like [`send`](Queue::send), with a delay or a key.
    pub fn send_with(&self, body: impl ToSql, options: SendOptions<'_>) -> Result<i64> {
        let body: ToSqlOutput<'_> = body.to_sql()?;
        let body = as_value(&body, "the body of an item")?;
        let options = Options { delay_ms: in_ms(options.delay), key: options.key };
        let id = self.leases.run(|store| store.send(self.name, body, options, self.when))?;
        self.leases.notify();
        Ok(id)
    }

    /// Receives the item that was visible longest, if there is one. No other worker gets it within
    /// `visibility`.
    ///
    /// A queue that does not exist has no items. If nothing is visible, this takes no write lock.
    /// Inside a transaction, begin to work only after COMMIT: after a rollback the receipt is
    /// stale.
    pub fn receive(&self, visibility: Duration) -> Result<Option<Item<'q>>> {
        let store = self.leases.verbs()?;
        let received = store.receive(self.name, in_ms(visibility), self.when, owned);
        Ok(into_rusqlite(received)?.map(|delivered| self.item(delivered)))
    }

    /// Receives up to `count` items in one commit.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let queue = db.queue("mail");
    /// queue.send("a")?;
    /// queue.send("b")?;
    /// let items = queue.receive_many(10, Duration::from_secs(30))?;
    /// assert_eq!(items.len(), 2);
    /// let answers = queue.ack_many(items.iter().map(|item| item.receipt.as_str()))?;
    /// assert!(answers.iter().all(|answer| answer.is_acknowledged()));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn receive_many(&self, count: usize, visibility: Duration) -> Result<Vec<Item<'q>>> {
        let store = self.leases.verbs()?;
        let received = store.receive_many(self.name, count, in_ms(visibility), self.when, owned);
        Ok(into_rusqlite(received)?.into_iter().map(|delivered| self.item(delivered)).collect())
    }

    /// Returns the item of a receipt, for a program that has received only the text. None if the
    /// receipt is stale.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let queue = db.queue("mail");
    /// # queue.send("hello")?;
    /// let receipt = queue.receive(Duration::from_secs(30))?.unwrap().receipt;
    /// let item = queue.delivery(&receipt)?.unwrap();
    /// assert_eq!(item.attempt, 1);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn delivery(&self, receipt: &str) -> Result<Option<Item<'q>>> {
        let found = self.leases.run(|store| store.delivery(receipt, owned))?;
        Ok(found.map(|delivered| self.item(delivered)))
    }

    /// Acknowledges an item, which removes it.
    ///
    /// The newest receipt of an item passes, also after its deadline, as long as no other worker
    /// has received the item since. If the answer is `Stale` inside a transaction, roll it back:
    /// the work belongs to another worker. [`Item::finish`] never forgets that.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let queue = db.queue("mail");
    /// # queue.send("hello")?;
    /// let item = queue.receive(Duration::from_secs(30))?.unwrap();
    /// assert_eq!(queue.ack(&item.receipt)?, AckResult::Acknowledged);
    /// let reason = StaleReason::Gone;
    /// assert_eq!(queue.ack(&item.receipt)?, AckResult::Stale { reason });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn ack(&self, receipt: &str) -> Result<AckResult> {
        self.leases.run(|store| store.ack(receipt))
    }

    /// Acknowledges many items in one commit. A stale receipt does not keep the others from
    /// passing; the answers come in the order of the receipts.
    pub fn ack_many<'r>(
        &self,
        receipts: impl IntoIterator<Item = &'r str>,
    ) -> Result<Vec<AckResult>> {
        self.leases.run(|store| store.ack_many(receipts))
    }

    /// Prolongs a live delivery to at least `visibility` from now, and returns its deadline. It
    /// never shortens one. None if the delivery is over.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let queue = db.queue("mail");
    /// # queue.at(100).send("hello")?;
    /// let item = queue.at(100).receive(Duration::from_millis(50))?.unwrap();
    /// let longer = Duration::from_millis(70);
    /// assert_eq!(queue.at(120).extend(&item.receipt, longer)?, Some(190));
    /// assert_eq!(queue.at(190).extend(&item.receipt, longer)?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn extend(&self, receipt: &str, visibility: Duration) -> Result<Option<i64>> {
        self.leases.run(|store| store.extend(receipt, in_ms(visibility), self.when))
    }

    /// Gives an item back: another worker may receive it now. At its last allowed attempt it is
    /// dead instead. Returns whether the receipt passed and the item was not dead already.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let queue = db.queue("mail");
    /// # queue.send("hello")?;
    /// let item = queue.receive(Duration::from_secs(30))?.unwrap();
    /// assert!(queue.give_back(&item.receipt)?);
    /// assert!(!queue.give_back(&item.receipt)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn give_back(&self, receipt: &str) -> Result<bool> {
        self.give_back_with(receipt, GiveBackOptions::new())
    }

    /// Gives back like [`give_back`](Queue::give_back), with a delay or a note.
    pub fn give_back_with(&self, receipt: &str, options: GiveBackOptions<'_>) -> Result<bool> {
        let GiveBackOptions { delay, note } = options;
        let store = self.leases.verbs()?;
        let given_back = into_rusqlite(store.give_back(receipt, in_ms(delay), note, self.when))?;
        if given_back {
            self.leases.notify();
        }
        Ok(given_back)
    }

    /// Makes an item dead at once, with a note for operators of at most 1,000 bytes. Returns
    /// whether the receipt passed.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let queue = db.queue("mail");
    /// # queue.send("hello")?;
    /// let item = queue.receive(Duration::from_secs(30))?.unwrap();
    /// assert!(queue.bury(&item.receipt, Some("no such customer"))?);
    /// assert_eq!(queue.info()?.unwrap().dead, 1);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn bury(&self, receipt: &str, note: Option<&str>) -> Result<bool> {
        self.leases.run(|store| store.bury(receipt, note, self.when))
    }

    /// Revives all dead items: they are visible now, with no attempt counted. Returns how many. An
    /// item whose key another one uses by now stays dead.
    ///
    /// Outside a transaction it commits after every thousand items, so that other writers get their
    /// turn. If it fails half way, call it again. So do [`Queue::discard`] and [`Queue::delete`].
    pub fn redrive(&self) -> Result<u64> {
        self.redrive_with(None)
    }

    /// Revives one item, if it is dead, and returns whether it was.
    pub fn redrive_one(&self, id: i64) -> Result<bool> {
        Ok(self.redrive_with(Some(id))? > 0)
    }

    fn redrive_with(&self, id: Option<i64>) -> Result<u64> {
        let redriven = self.leases.run(|store| store.redrive(self.name, id, self.when))?;
        if redriven > 0 {
            self.leases.notify();
        }
        Ok(redriven)
    }

    /// Deletes all dead items, and returns how many.
    pub fn discard(&self) -> Result<u64> {
        self.leases.run(|store| store.discard(self.name, None, self.when))
    }

    /// Deletes one item, if it is dead, and returns whether it was.
    pub fn discard_one(&self, id: i64) -> Result<bool> {
        Ok(self.leases.run(|store| store.discard(self.name, Some(id), self.when))? > 0)
    }

    /// Removes an item, unless a worker has it: then returns its deadline.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let queue = db.queue("mail");
    /// let id = queue.send("hello")?;
    /// let item = queue.receive(Duration::from_secs(30))?.unwrap();
    /// let deadline_ms = item.deadline_ms;
    /// assert_eq!(queue.cancel(ItemName::Id(id))?, CancelResult::Leased { deadline_ms });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn cancel(&self, name: ItemName<'_>) -> Result<CancelResult> {
        self.leases.run(|store| store.cancel(self.name, name, self.when))
    }

    /// Deletes the queue with everything in it. Returns whether there was one.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.queue("mail").send("hello")?;
    /// assert!(db.queue("mail").delete()?);
    /// assert!(!db.queue("mail").delete()?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn delete(&self) -> Result<bool> {
        self.leases.run(|store| store.delete_queue(self.name))
    }

    /// Returns the counts of the queue, if it exists. Reads every item.
    pub fn info(&self) -> Result<Option<QueueInfo>> {
        self.leases.run(|store| store.queue_info(self.name, self.when))
    }

    /// Returns when the next item becomes visible, or has become so: try to receive again then.
    /// Takes no write lock.
    pub fn next_visible(&self) -> Result<Option<i64>> {
        self.leases.run(|store| store.next_visible(self.name))
    }

    /// Lists the items, the dead ones first and then in the order of their delivery, without bodies
    /// and receipts. For a long queue use [`each_item`](Queue::each_item).
    pub fn items(&self) -> Result<Vec<ItemInfo>> {
        let mut items = Vec::new();
        self.each_item(|item| {
            items.push(item);
            true
        })?;
        Ok(items)
    }

    /// Passes the items to `each`, in the same order, until it returns false. Keeps none of them in
    /// memory. `each` must not write through the connection.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.queue("mail").each_item(|item| {
    ///     println!("{} is {}", item.id, item.state);
    ///     true
    /// })?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn each_item(&self, mut each: impl FnMut(ItemInfo) -> bool) -> Result<()> {
        let store = self.leases.verbs()?;
        into_rusqlite(store.each_item(self.name, self.when, |item| each(item.into_owned())))
    }

    /// Returns the item of a delivery that a worker has received.
    pub(crate) fn delivered(&self, delivered: &Delivered<OwnedValue>) -> Item<'q> {
        let Delivered { id, ref receipt, attempt, token, deadline_ms, ref body } = *delivered;
        let (receipt, body) = (receipt.clone(), owned(body.value()));
        self.item(Delivered { id, receipt, attempt, token, deadline_ms, body })
    }

    fn item(&self, delivered: Delivered<types::Value>) -> Item<'q> {
        let Delivered { id, receipt, attempt, token, deadline_ms, body } = delivered;
        Item { id, receipt, attempt, token, deadline_ms, body, queue: *self }
    }
}

impl<'q> Item<'q> {
    /// Returns the queue of the item.
    pub fn queue(&self) -> Queue<'q> {
        self.queue
    }

    /// Writes the effect of the work and acknowledges the item, in one transaction.
    ///
    /// `effect` writes through the transaction. If the receipt is stale, because another worker has
    /// received the item since, everything is rolled back and the error is [`Error::StaleReceipt`];
    /// if `effect` fails, too, with its error, and the item stays with this worker. So the effect
    /// happens at most once, and exactly once if the item is ever acknowledged.
    /// [`Error::CommitUnknown`] means that the outcome is unknown: finishing again shows it.
    ///
    /// Do the slow work before: while the transaction is open, no other connection can write, and
    /// this delivery cannot be extended.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # db.conn().execute_batch("CREATE TABLE results (text)")?;
    /// # let queue = db.queue("mail");
    /// queue.at(100).send("hello")?;
    /// let slow = queue.at(100).receive(Duration::from_millis(50))?.unwrap();
    /// let quick = queue.at(150).receive(Duration::from_millis(50))?.unwrap();
    /// let effect = |tx: &Transaction<'_>| {
    ///     tx.conn().execute("INSERT INTO results VALUES ('done')", [])?;
    ///     Ok(())
    /// };
    /// let late = slow.finish(effect);
    /// assert!(matches!(late, Err(Error::StaleReceipt { .. })), "and nothing was written");
    /// quick.finish(effect)?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn finish<T>(&self, effect: impl FnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        self.try_finish(effect)
    }

    /// Finishes like [`finish`](Item::finish), with an effect that has errors of its own.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let item = db.queue("mail").receive(Duration::from_secs(30))?.unwrap();
    /// let done = item.try_finish(|_| Err::<(), Box<dyn std::error::Error>>("no money".into()));
    /// assert_eq!(done.unwrap_err().to_string(), "no money");
    /// assert!(item.ack()?.is_acknowledged(), "the item is still with this worker");
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn try_finish<T, E: From<Error>>(
        &self,
        effect: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let Some(connection) = self.queue.connection else {
            return Err(failure(
                "finish begins a transaction of its own, which this handle cannot: acknowledge in the transaction \
                 that is open, or receive through a Litelease or LiteleaseRef",
            )
            .into());
        };
        let leases = self.queue.leases;
        let tx = Transaction::begin(leases, connection)?;
        // A worker that was replaced does not run the effect at all.
        let passes = |answer: AckResult| match answer {
            AckResult::Acknowledged => Ok(()),
            AckResult::Stale { reason } => Err(Error::StaleReceipt { reason }),
        };
        passes(into_rusqlite(leases.store().check_receipt(&self.receipt))?)?;
        let done = effect(&tx)?;
        // Acknowledged last, in case the effect has ended this transaction and begun another one.
        passes(into_rusqlite(leases.store().ack(&self.receipt))?)?;
        tx.commit()?;
        Ok(done)
    }

    /// Acknowledges the item: see [`Queue::ack`].
    pub fn ack(&self) -> Result<AckResult> {
        self.queue.ack(&self.receipt)
    }

    /// Prolongs the delivery and returns whether it was still live: see [`Queue::extend`].
    pub fn extend(&mut self, visibility: Duration) -> Result<bool> {
        let deadline_ms = self.queue.extend(&self.receipt, visibility)?;
        self.deadline_ms = deadline_ms.unwrap_or(self.deadline_ms);
        Ok(deadline_ms.is_some())
    }

    /// Gives the item back: see [`Queue::give_back`].
    pub fn give_back(&self) -> Result<bool> {
        self.queue.give_back(&self.receipt)
    }

    /// Gives the item back with a delay or a note: see [`Queue::give_back_with`].
    pub fn give_back_with(&self, options: GiveBackOptions<'_>) -> Result<bool> {
        self.queue.give_back_with(&self.receipt, options)
    }

    /// Makes the item dead at once: see [`Queue::bury`].
    pub fn bury(&self, note: Option<&str>) -> Result<bool> {
        self.queue.bury(&self.receipt, note)
    }
}

impl fmt::Debug for Queue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.name).finish()
    }
}

/// Leaves out the receipt, which is a secret, and the body.
impl fmt::Debug for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Item { id, attempt, token, deadline_ms, .. } = self;
        f.debug_struct("Item")
            .field("id", id)
            .field("attempt", attempt)
            .field("token", token)
            .field("deadline_ms", deadline_ms)
            .finish_non_exhaustive()
    }
}
