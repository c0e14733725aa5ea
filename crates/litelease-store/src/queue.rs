//! Queues: the verbs, each as a call of the rule.

use std::fmt;

use litelease_core::{
    self as rule, AckResult, CancelResult, Delay, Item, ItemState, Lease, MAX_ATTEMPTS, MAX_NOTE,
    MAX_TEXT, Receipt, Refusal, StaleReason, Term,
};

use crate::grant::{Attempt, check_arrival};
use crate::history::Event;
use crate::queue_rows::{ItemRow, ItemWalk, QueueRow, Walked};
use crate::sqlite::Value;
use crate::transaction::Boundary;
use crate::{Error, Store, When};

/// The name in an error about a delivery. A receipt is a secret.
const AN_ITEM: &str = "an item";

/// An item that was delivered to a worker.
///
/// ```
/// # use litelease_store::Delivered;
/// let delivered = Delivered {
///     id: 1,
///     receipt: "1-…".into(),
///     attempt: 1,
///     token: 2,
///     deadline_ms: 150,
///     body: "hello",
/// };
/// assert_eq!(delivered.attempt, 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered<B> {
    /// The item.
    pub id: i64,
    /// The secret that acknowledges, extends, gives back or buries it: `ID-UUID`.
    pub receipt: String,
    /// How often the item was delivered, this time included, since it was sent or redriven.
    pub attempt: i64,
    /// The fencing token: larger than that of every earlier delivery in the file.
    pub token: i64,
    /// The first millisecond (Unix time) at which another worker may get the item.
    pub deadline_ms: i64,
    /// The body that was sent.
    pub body: B,
}

/// Options of a send.
///
/// ```
/// # use litelease_store::SendOptions;
/// let options = SendOptions { key: Some("order-17"), ..SendOptions::default() };
/// assert_eq!(options.delay_ms, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions<'a> {
    /// How long the item stays invisible.
    pub delay_ms: i64,
    /// 1 to 200 bytes, unique among the items of the queue that are neither acknowledged nor dead.
    pub key: Option<&'a str>,
}

/// The state of an item of a queue.
///
/// ```
/// # use litelease_store::ItemInfo;
/// # use litelease_core::ItemState;
/// let info: ItemInfo = ItemInfo {
///     id: 1,
///     state: ItemState::Visible,
///     attempt: 0,
///     visible_at_ms: Some(100),
///     sent_at_ms: 100,
///     key: None,
///     note: None,
/// };
/// assert_eq!(info.state.word(), "visible");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemInfo<S = String> {
    /// The item.
    pub id: i64,
    /// The state.
    pub state: ItemState,
    /// How often it was delivered since it was sent or redriven.
    pub attempt: i64,
    /// When it is visible, if no worker acknowledges it before. None if it is dead, or at its last
    /// allowed delivery.
    pub visible_at_ms: Option<i64>,
    /// When it was sent.
    pub sent_at_ms: i64,
    /// Its key.
    pub key: Option<S>,
    /// The last note of a worker that gave it back or buried it.
    pub note: Option<S>,
}

/// The counts of a queue.
///
/// ```
/// # use litelease_store::QueueInfo;
/// let mut info = QueueInfo::default();
/// info.visible = 2;
/// assert_eq!(info.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueInfo {
    /// The name of the queue.
    pub queue: String,
    /// Items that the next receive may deliver.
    pub visible: i64,
    /// Items that become visible later.
    pub delayed: i64,
    /// Items that a worker has.
    pub leased: i64,
    /// Items that only a redrive revives.
    pub dead: i64,
    /// For how long the item that is visible longest has been so, in milliseconds.
    pub oldest_ms: Option<i64>,
    /// How often an item is delivered before it is dead; 0 for any number.
    pub max_attempts: i64,
    /// Items that were sent later than now: the clock was set back.
    pub from_the_future: i64,
}

/// The item to cancel.
///
/// ```
/// # use litelease_store::ItemName;
/// assert_ne!(ItemName::Id(1), ItemName::Key("1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemName<'a> {
    /// The item of this id.
    Id(i64),
    /// The item that uses this key.
    Key(&'a str),
}

/// How many rows a slice of a change of many has. Other writers wait for one slice.
pub const SLICE: i64 = 1_000;

/// A change of many items, which is done in slices.
///
/// ```
/// # use litelease_store::ManyItems;
/// assert_ne!(ManyItems::Redrive, ManyItems::Discard);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManyItems {
    /// Revives all dead items.
    Redrive,
    /// Deletes all dead items.
    Discard,
    /// Deletes all items, and then the queue.
    Delete,
}

/// The outcome of one slice of such a change.
///
/// ```
/// # use litelease_store::Slice;
/// assert_eq!(Slice::default().next, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// How many items it has revived or deleted. For a queue that is deleted: 1 with the queue.
    pub count: u64,
    /// The id after which the next slice begins, if there may be more to do.
    pub next: Option<i64>,
}

/// A position in the list of a queue's items, from which the next page begins. As text it is
/// `TIME.ID`, or `.ID` among the items that have no time at which they are visible.
///
/// ```
/// # use litelease_store::ItemCursor;
/// let cursor = ItemCursor { visible_at_ms: Some(100), id: 7 };
/// assert_eq!(cursor.to_string(), "100.7");
/// assert_eq!(ItemCursor::parse("100.7"), Some(cursor));
/// assert_eq!(ItemCursor::parse("nonsense"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemCursor {
    /// When the item is visible.
    pub visible_at_ms: Option<i64>,
    /// The item.
    pub id: i64,
}

impl ItemCursor {
    /// Before the first item.
    const START: ItemCursor = ItemCursor { visible_at_ms: None, id: 0 };

    /// Before the first item that has a time at which it is visible.
    const FIRST_VISIBLE: ItemCursor = ItemCursor { visible_at_ms: Some(i64::MIN), id: 0 };

    /// Parses a cursor, if the text is one.
    pub fn parse(text: &str) -> Option<Self> {
        let (time, id) = text.split_once('.')?;
        let visible_at_ms = match time {
            "" => None,
            time => Some(time.parse().ok()?),
        };
        Some(ItemCursor { visible_at_ms, id: id.parse().ok()? })
    }
}

impl fmt::Display for ItemCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visible_at_ms.iter().try_for_each(|at_ms| write!(f, "{at_ms}"))?;
        write!(f, ".{}", self.id)
    }
}

impl<'w> Walked<'w> {
    /// Returns the state of the item at `now_ms`.
    pub(crate) fn info(self, now_ms: i64) -> ItemInfo<&'w str> {
        let Walked { id, item, sent_at_ms, key, note } = self;
        let (state, attempt) = (item.state(now_ms), item.attempts());
        let visible_at_ms = item.visible_at_ms();
        ItemInfo { id, state, attempt, visible_at_ms, sent_at_ms, key, note }
    }
}

impl ItemInfo<&str> {
    /// Returns it with texts of its own.
    ///
    /// ```
    /// # use litelease_store::{SendOptions, Store, Value, When};
    /// # fn keys(store: &Store) -> Result<Vec<Option<String>>, litelease_store::Error> {
    /// let mut keys = Vec::new();
    /// store.each_item("mail", When::Now, |item| {
    ///     keys.push(item.into_owned().key);
    ///     true
    /// })?;
    /// # Ok(keys)
    /// # }
    /// ```
    pub fn into_owned(self) -> ItemInfo {
        let ItemInfo { id, state, attempt, visible_at_ms, sent_at_ms, key, note } = self;
        let (key, note) = (key.map(str::to_owned), note.map(str::to_owned));
        ItemInfo { id, state, attempt, visible_at_ms, sent_at_ms, key, note }
    }
}

impl QueueInfo {
    /// Returns how many items it has, whatever their state.
    ///
    /// ```
    /// # use litelease_store::QueueInfo;
    /// assert!(QueueInfo::default().is_empty());
    /// ```
    pub fn len(&self) -> i64 {
        self.visible + self.delayed + self.leased + self.dead
    }

    /// Checks whether it has no items.
    ///
    /// ```
    /// # use litelease_store::QueueInfo;
    /// assert_eq!(QueueInfo::default().len(), 0);
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn count(&mut self, item: Item, sent_at_ms: i64, now_ms: i64) {
        match item.state(now_ms) {
            ItemState::Visible => self.visible += 1,
            ItemState::Delayed => self.delayed += 1,
            ItemState::Leased => self.leased += 1,
            ItemState::Dead => self.dead += 1,
        }
        self.from_the_future += i64::from(sent_at_ms > now_ms);
        if item.state(now_ms) == ItemState::Visible && self.oldest_ms.is_none() {
            // They come in the order of their delivery.
            self.oldest_ms = item.visible_at_ms().map(|since_ms| now_ms.saturating_sub(since_ms));
        }
    }
}

impl Store {
    /// Makes a queue, or changes how often its items are delivered before they are dead (0: any
    /// number). Answers that number.
    pub fn queue(&self, queue: &str, max_attempts: Option<i64>) -> Result<i64, Error> {
        self.with_context("configure the queue", Some(queue), || {
            if let Some(max_attempts) = max_attempts
                && !(0..=MAX_ATTEMPTS).contains(&max_attempts)
            {
                return Err(Error::InvalidAttempts { max_attempts });
            }
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(row) = self.find_queue(queue)?
                && max_attempts.is_none_or(|wanted| wanted == row.max_attempts)
            {
                return Ok(row.max_attempts);
            }
            self.changing_queues(boundary, || {
                Ok(self.make_queue(queue, max_attempts)?.max_attempts)
            })
        })
    }

    /// Sends an item, and answers its id. With a key that an item of the queue uses, it answers the
    /// id of that one and changes nothing.
    pub fn send(
        &self,
        queue: &str,
        body: Value<'_>,
        options: SendOptions<'_>,
        when: When,
    ) -> Result<i64, Error> {
        self.with_context("send to", Some(queue), || {
            check_key(options.key)?;
            delay(queue, options.delay_ms, when)?;
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && options.key.is_some()
                && let Some(row) = self.find_queue(queue)?
                && let Some(id) = self.key_in_use(row, options.key, when.now_ms())?
            {
                return Ok(id);
            }
            self.with_epoch(boundary, || {
                self.changing_queues(boundary, || {
                    self.attempt_to_send(boundary, queue, body, options, when)
                })
            })
        })
    }

    /// Delivers the item that was visible longest, if there is one. `keep` gets its body.
    pub fn receive<B>(
        &self,
        queue: &str,
        visibility_ms: i64,
        when: When,
        mut keep: impl FnMut(Value<'_>) -> B,
    ) -> Result<Option<Delivered<B>>, Error> {
        let body = |id| self.body_of(id, &mut keep);
        Ok(self.deliver(queue, 1, visibility_ms, when, body)?.pop())
    }

    /// Receives up to `count` items in one commit.
    pub fn receive_many<B>(
        &self,
        queue: &str,
        count: usize,
        visibility_ms: i64,
        when: When,
        mut keep: impl FnMut(Value<'_>) -> B,
    ) -> Result<Vec<Delivered<B>>, Error> {
        self.deliver(queue, count, visibility_ms, when, |id| self.body_of(id, &mut keep))
    }

    /// Receives one item without its body, which [`delivery`](Store::delivery) returns.
    pub fn receive_receipt(
        &self,
        queue: &str,
        visibility_ms: i64,
        when: When,
    ) -> Result<Option<String>, Error> {
        let delivered = self.deliver(queue, 1, visibility_ms, when, |_| Ok(()))?.pop();
        Ok(delivered.map(|delivered| delivered.receipt))
    }

    /// Returns the delivery of a receipt that passes. Needs no write lock.
    pub fn delivery<B>(
        &self,
        receipt: &str,
        keep: impl FnMut(Value<'_>) -> B,
    ) -> Result<Option<Delivered<B>>, Error> {
        self.with_context("look at a delivery", None, || {
            self.settle()?;
            let (AckResult::Acknowledged, Some(row)) = self.judge(receipt)? else {
                return Ok(None);
            };
            let Some(delivery) = row.item.delivery() else { return Ok(None) };
            Ok(Some(Delivered {
                id: row.id,
                receipt: receipt.into(),
                attempt: row.item.attempts(),
                token: delivery.token,
                deadline_ms: delivery.deadline_ms,
                body: self.body_of(row.id, keep)?,
            }))
        })
    }

    /// Answers what an acknowledgement would answer, and changes nothing. Needs no write lock.
    pub fn check_receipt(&self, receipt: &str) -> Result<AckResult, Error> {
        self.with_context("look at a delivery", None, || {
            self.settle()?;
            Ok(self.judge(receipt)?.0)
        })
    }

    /// Acknowledges an item: it is done, and gone.
    pub fn ack(&self, receipt: &str) -> Result<AckResult, Error> {
        self.with_context("acknowledge an item", None, || {
            self.changing_queues(self.boundary()?, || self.ack_one(receipt))
        })
    }

    /// Acknowledges many items in one commit. A stale receipt does not keep the others from
    /// passing.
    pub fn ack_many<'r>(
        &self,
        receipts: impl IntoIterator<Item = &'r str>,
    ) -> Result<Vec<AckResult>, Error> {
        self.with_context("acknowledge items", None, || {
            self.changing_queues(self.boundary()?, || {
                receipts.into_iter().map(|receipt| self.ack_one(receipt)).collect()
            })
        })
    }

    /// Prolongs a live delivery to at least `visibility_ms` from now, and answers its deadline.
    /// None if it is over.
    pub fn extend(
        &self,
        receipt: &str,
        visibility_ms: i64,
        when: When,
    ) -> Result<Option<i64>, Error> {
        self.with_context("extend a delivery", None, || {
            term(AN_ITEM, visibility_ms, when)?;
            let extended = self.changing_queues(self.boundary()?, || {
                let term = term(AN_ITEM, visibility_ms, when)?;
                let extended = self
                    .change_delivery(receipt, |item, receipt| rule::extend(item, receipt, term))?;
                Ok(extended.and_then(|row| row.item.delivery()))
            })?;
            if let Some(delivery) = extended {
                check_delivery(when, AN_ITEM, delivery.token, delivery.deadline_ms)?;
            }
            Ok(extended.map(|delivery| delivery.deadline_ms))
        })
    }

    /// Makes an item visible again, now or after a delay; at its last allowed attempt it is dead
    /// instead. Answers whether the receipt passed and the item was not dead already.
    pub fn give_back(
        &self,
        receipt: &str,
        delay_ms: i64,
        note: Option<&str>,
        when: When,
    ) -> Result<bool, Error> {
        self.with_context("give an item back", None, || {
            check_note(note)?;
            delay(AN_ITEM, delay_ms, when)?;
            self.changing_queues(self.boundary()?, || {
                let delay = delay(AN_ITEM, delay_ms, when)?;
                let given_back = self.change_delivery(receipt, |item, receipt| {
                    rule::give_back(item, receipt, delay)
                })?;
                self.note(given_back, note, when)
            })
        })
    }

    /// Undoes a delivery that no worker has heard of, without counting the attempt: the item is
    /// visible again since `visible_at_ms`. Answers whether the receipt passed.
    pub fn undeliver(&self, receipt: &str, visible_at_ms: i64, when: When) -> Result<bool, Error> {
        self.with_context("undo a delivery", None, || {
            self.changing_queues(self.boundary()?, || {
                let Some(receipt) = Receipt::parse(receipt) else { return Ok(false) };
                let Some(row) = self.item_by_id(receipt.id)? else { return Ok(false) };
                let now_ms = when.now_ms();
                let undone = rule::undeliver(row.item, receipt, visible_at_ms, now_ms);
                let Some(item) = undone else { return Ok(false) };
                if let Some(key) = &row.key {
                    // It was dead for a while, and another item uses its key by now.
                    if self.is_used_by_another(&row, key, now_ms)? {
                        return Ok(false);
                    }
                    self.take_key(row.queue, key, row.id)?;
                }
                self.save_item(row.id, item).map(|()| true)
            })
        })
    }

    /// Checks that a receipt is not of an item of another queue. One that is gone is of none.
    pub fn is_of_queue(&self, queue: &str, receipt: &str) -> Result<bool, Error> {
        self.with_context("look at a delivery", None, || {
            let Some(receipt) = Receipt::parse(receipt) else { return Ok(true) };
            let Some(row) = self.item_by_id(receipt.id)? else { return Ok(true) };
            Ok(self.find_queue(queue)?.is_some_and(|queue| queue.number == row.queue))
        })
    }

    /// Makes an item dead at once. Answers whether the receipt passed.
    pub fn bury(&self, receipt: &str, note: Option<&str>, when: When) -> Result<bool, Error> {
        self.with_context("bury an item", None, || {
            check_note(note)?;
            self.changing_queues(self.boundary()?, || {
                let now_ms = when.now_ms();
                let buried = self
                    .change_delivery(receipt, |item, receipt| rule::bury(item, receipt, now_ms))?;
                self.note(buried, note, when)
            })
        })
    }

    /// Revives the dead items of a queue, or one of them, and answers how many. One whose key
    /// another item uses by now stays dead.
    pub fn redrive(&self, queue: &str, id: Option<i64>, when: When) -> Result<u64, Error> {
        self.with_context("redrive", Some(queue), || match id {
            Some(id) => self
                .with_dead(queue, (id, "redriven"), when, |row, now_ms| self.revive(row, now_ms)),
            None => self.in_slices(queue, ManyItems::Redrive, when),
        })
    }

    /// Deletes the dead items of a queue, or one of them, and answers how many.
    pub fn discard(&self, queue: &str, id: Option<i64>, when: When) -> Result<u64, Error> {
        self.with_context("discard", Some(queue), || match id {
            Some(id) => self.with_dead(queue, (id, "discarded"), when, |row, _| {
                self.delete_item(row).map(|()| true)
            }),
            None => self.in_slices(queue, ManyItems::Discard, when),
        })
    }

    /// Does a part of a change of many items: those after the id `after`, up to [`SLICE`] of them.
    pub fn change_slice(
        &self,
        queue: &str,
        change: ManyItems,
        after: i64,
        when: When,
    ) -> Result<Slice, Error> {
        let work = || self.do_slice(queue, change, after, when);
        self.changing_queues(self.boundary()?, work)
    }

    fn do_slice(
        &self,
        queue: &str,
        change: ManyItems,
        after: i64,
        when: When,
    ) -> Result<Slice, Error> {
        let Some(row) = self.find_queue(queue)? else { return Ok(Slice::default()) };
        let now_ms = when.now_ms();
        let revive = |row: &ItemRow| self.revive(row, now_ms);
        let discard = |row: &ItemRow| self.delete_item(row).map(|()| true);
        let slice = match change {
            ManyItems::Redrive => self.slice_of_dead(row, after, now_ms, revive),
            ManyItems::Discard => self.slice_of_dead(row, after, now_ms, discard),
            ManyItems::Delete => self.delete_slice(row),
        }?;
        let count =
            if change == ManyItems::Delete { u64::from(slice.next.is_none()) } else { slice.count };
        self.record_items(change.kind(), queue, None, count, now_ms)?;
        Ok(slice)
    }

    /// Does a change of many items to its end. In a transaction of the caller's it is one change;
    /// otherwise each slice is a commit, and other connections write between them.
    fn in_slices(&self, queue: &str, change: ManyItems, when: When) -> Result<u64, Error> {
        let all = |slice: &dyn Fn(i64) -> Result<Slice, Error>| {
            let (mut count, mut next) = (0, Some(0));
            while let Some(after) = next {
                let Slice { count: more, next: after } = slice(after)?;
                (count, next) = (count + more, after);
            }
            Ok(count)
        };
        match self.boundary()? {
            Boundary::Own => all(&|after| self.change_slice(queue, change, after, when)),
            joined @ Boundary::Joined(_) => self.changing_queues(joined, || {
                all(&|after| self.do_slice(queue, change, after, when))
            }),
        }
    }

    /// Removes an item that no worker has.
    pub fn cancel(
        &self,
        queue: &str,
        name: ItemName<'_>,
        when: When,
    ) -> Result<CancelResult, Error> {
        self.with_context("cancel an item of", Some(queue), || {
            self.changing_queues(self.boundary()?, || {
                let Some(found) = self.find_queue(queue)? else {
                    return Ok(CancelResult::NotFound);
                };
                let now_ms = when.now_ms();
                let is_dead = |row: &ItemRow| row.item.state(now_ms) == ItemState::Dead;
                let row = match name {
                    ItemName::Id(id) => self.item_by_id(id)?,
                    // The key of a dead item is free.
                    ItemName::Key(key) => {
                        self.item_by_key(found.number, key)?.filter(|row| !is_dead(row))
                    }
                };
                let row = row.filter(|row| row.queue == found.number);
                let answer = rule::cancel(row.as_ref().map(|row| row.item), now_ms);
                if let (CancelResult::Cancelled, Some(row)) = (answer, row) {
                    self.delete_item(&row)?;
                    self.record_items("cancelled", queue, Some(row.id), 1, now_ms)?;
                }
                Ok(answer)
            })
        })
    }

    /// Deletes a queue with everything in it. Answers whether there was one.
    pub fn delete_queue(&self, queue: &str) -> Result<bool, Error> {
        self.with_context("delete the queue", Some(queue), || {
            let boundary = self.boundary()?;
            if boundary.may_look_first() && self.find_queue(queue)?.is_none() {
                return Ok(false);
            }
            Ok(self.in_slices(queue, ManyItems::Delete, When::Now)? > 0)
        })
    }

    /// Hands every item of a queue to `each`, the dead ones first and then in the order of their
    /// delivery, until `each` answers false. Needs no write lock, and keeps nothing in memory.
    pub fn each_item(
        &self,
        queue: &str,
        when: When,
        mut each: impl FnMut(ItemInfo<&str>) -> bool,
    ) -> Result<(), Error> {
        self.with_context("list the items of", Some(queue), || {
            let now_ms = when.now_ms();
            let mut walk = self.walk_queue(queue)?;
            while let Some(item) = walk.next()? {
                if !each(item.info(now_ms)) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Lists at most `limit` items of a queue, in the order of [`each_item`](Store::each_item),
    /// after a cursor. Answers the cursor to go on after, if there may be more. Each page is a
    /// snapshot of its own.
    pub fn items_page(
        &self,
        queue: &str,
        after: Option<ItemCursor>,
        limit: usize,
        when: When,
    ) -> Result<(Vec<ItemInfo>, Option<ItemCursor>), Error> {
        self.with_context("list the items of", Some(queue), || {
            self.settle()?;
            let (mut items, now_ms) = (Vec::new(), when.now_ms());
            let Some(row) = self.find_queue(queue)? else { return Ok((items, None)) };
            let mut cursor = Some(after.unwrap_or(ItemCursor::START));
            while let Some(after) = cursor.filter(|_| items.len() < limit) {
                let left = i64::try_from(limit - items.len()).unwrap_or(i64::MAX);
                let mut walk = self.walk_page(row.number, after, left)?;
                // Items with a time come after the last item without one.
                cursor = after.visible_at_ms.is_none().then_some(ItemCursor::FIRST_VISIBLE);
                while let Some(item) = walk.next()? {
                    items.push(item.info(now_ms).into_owned());
                }
                if let Some(last) = items.last().filter(|_| items.len() >= limit) {
                    cursor = Some(ItemCursor { visible_at_ms: last.visible_at_ms, id: last.id });
                }
            }
            Ok((items, cursor))
        })
    }

    /// Returns the body of an item of a queue, in whatever state, if there is such an item. Needs
    /// no write lock.
    pub fn item_body(&self, queue: &str, id: i64) -> Result<Option<crate::OwnedValue>, Error> {
        self.with_context("look at an item of", Some(queue), || {
            self.settle()?;
            let Some(row) = self.find_queue(queue)? else { return Ok(None) };
            match self.item_by_id(id)?.filter(|item| item.queue == row.number) {
                Some(item) => self.body_of(item.id, |body| body.into()).map(Some),
                None => Ok(None),
            }
        })
    }

    /// Returns the item of a queue that uses a key, if there is one.
    pub fn id_of_key(&self, queue: &str, key: &str, when: When) -> Result<Option<i64>, Error> {
        self.with_context("look at the queue", Some(queue), || match self.find_queue(queue)? {
            Some(row) => self.key_in_use(row, Some(key), when.now_ms()),
            None => Ok(None),
        })
    }

    /// Returns the name of the queue that the item of a receipt is in, if it is in one.
    pub fn queue_of(&self, receipt: &str) -> Result<Option<String>, Error> {
        self.with_context("look at a delivery", None, || {
            let Some(receipt) = Receipt::parse(receipt) else { return Ok(None) };
            match self.item_by_id(receipt.id)? {
                Some(row) => self.queue_name(row.queue),
                None => Ok(None),
            }
        })
    }

    /// Walks along the items of a queue.
    pub(crate) fn walk_queue(&self, queue: &str) -> Result<ItemWalk, Error> {
        self.settle()?;
        match self.find_queue(queue)? {
            Some(row) => self.walk_items(row.number),
            None => Ok(ItemWalk::empty()),
        }
    }

    /// Returns the counts of every queue, by name. Needs no write lock. Reads every item.
    pub fn queues(&self, when: When) -> Result<Vec<QueueInfo>, Error> {
        self.queues_under("", None, usize::MAX, when)
    }

    /// Returns the queues whose name begins with `prefix` and comes after `after`: at most
    /// `limit`.
    pub fn queues_under(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        when: When,
    ) -> Result<Vec<QueueInfo>, Error> {
        self.with_context("list the queues", None, || {
            self.settle()?;
            let now_ms = when.now_ms();
            let names = self.queue_names()?.into_iter().filter(|(_, name, _)| {
                name.starts_with(prefix) && after.is_none_or(|after| name.as_str() > after)
            });
            let counted = |(number, queue, limit)| self.count_items(number, queue, limit, now_ms);
            names.take(limit).map(counted).collect()
        })
    }

    fn count_items(
        &self,
        number: i64,
        queue: String,
        max_attempts: i64,
        now_ms: i64,
    ) -> Result<QueueInfo, Error> {
        let mut info = QueueInfo { queue, max_attempts, ..QueueInfo::default() };
        let mut walk = self.walk_items(number)?;
        while let Some(Walked { item, sent_at_ms, .. }) = walk.next()? {
            info.count(item, sent_at_ms, now_ms);
        }
        Ok(info)
    }

    /// Returns the counts of one queue, if there is such a queue.
    pub fn queue_info(&self, queue: &str, when: When) -> Result<Option<QueueInfo>, Error> {
        self.with_context("look at the queue", Some(queue), || {
            self.settle()?;
            let Some(row) = self.find_queue(queue)? else { return Ok(None) };
            self.count_items(row.number, queue.into(), row.max_attempts, when.now_ms()).map(Some)
        })
    }

    /// Returns when the next item of a queue is visible, or since when it has been, if there is
    /// one. Needs no write lock.
    pub fn next_visible(&self, queue: &str) -> Result<Option<i64>, Error> {
        self.with_context("look at the queue", Some(queue), || {
            self.settle()?;
            match self.find_queue(queue)? {
                Some(row) => self.first_visible(row.number),
                None => Ok(None),
            }
        })
    }

    /// Sends an item, with the write lock held.
    fn attempt_to_send(
        &self,
        boundary: Boundary,
        queue: &str,
        body: Value<'_>,
        options: SendOptions<'_>,
        when: When,
    ) -> Result<Attempt<i64>, Error> {
        // Read the clock here, under the write lock: waiting for the lock takes time too.
        let delay = delay(queue, options.delay_ms, when)?;
        let row = self.make_queue(queue, None)?;
        if let Some(id) = self.key_in_use(row, options.key, delay.now_ms())? {
            return Ok(Attempt::Decided(id));
        }
        let epoch = self.epoch_record()?;
        let id = rule::next_number(row.newest, epoch.floor).map_err(|no| refused(queue, no))?;
        if !self.may_grant(boundary, epoch, id)? {
            return Ok(Attempt::EpochNeeded { token: id });
        }
        self.count_queues(id)?;
        self.insert_item(id, row, delay.until_ms(), delay.now_ms(), options.key, body)?;
        Ok(Attempt::Decided(id))
    }

    fn deliver<B>(
        &self,
        queue: &str,
        count: usize,
        visibility_ms: i64,
        when: When,
        mut body: impl FnMut(i64) -> Result<B, Error>,
    ) -> Result<Vec<Delivered<B>>, Error> {
        self.with_context("receive from", Some(queue), || {
            let now_ms = term(queue, visibility_ms, when)?.now_ms();
            let boundary = self.boundary()?;
            let is_busy = &self.statements.queues.is_busy;
            // A worker whose last receive found an item expects more, and skips this read.
            if boundary.may_look_first() && !is_busy.get() {
                let Some(row) = self.find_queue(queue)? else { return Ok(Vec::new()) };
                if self.next_item(row, now_ms)?.is_none() {
                    return Ok(Vec::new());
                }
            }
            let delivered = self.with_epoch(boundary, || {
                self.changing_queues(boundary, || {
                    self.attempt_to_deliver(boundary, queue, count, visibility_ms, when, &mut body)
                })
            })?;
            is_busy.set(!delivered.is_empty());
            if let Some(Delivered { token, deadline_ms, .. }) = delivered.first() {
                check_delivery(when, queue, *token, *deadline_ms)?;
            }
            Ok(delivered)
        })
    }

    /// Delivers up to `count` items, with the write lock held.
    fn attempt_to_deliver<B>(
        &self,
        boundary: Boundary,
        queue: &str,
        count: usize,
        visibility_ms: i64,
        when: When,
        body: &mut impl FnMut(i64) -> Result<B, Error>,
    ) -> Result<Attempt<Vec<Delivered<B>>>, Error> {
        // Read the clock here, under the write lock: waiting for the lock takes time too.
        let term = term(queue, visibility_ms, when)?;
        let mut delivered = Vec::new();
        let Some(mut row) = self.find_queue(queue)? else {
            return Ok(Attempt::Decided(delivered));
        };
        let epoch = self.epoch_record()?;
        while delivered.len() < count
            && let Some(next) = self.next_item(row, term.now_ms())?
        {
            let token = rule::next_number(row.newest, epoch.floor);
            let token = token.map_err(|no| refused(queue, no))?;
            if !self.may_grant(boundary, epoch, token)? {
                match delivered.is_empty() {
                    true => return Ok(Attempt::EpochNeeded { token }),
                    // The next receive records it.
                    false => break,
                }
            }
            let receipt = Receipt::new(next.id, next.random);
            let Some(item) = rule::deliver(next.item, receipt.uuid, token, term, row.max_attempts)
            else {
                break;
            };
            self.save_item(next.id, item)?;
            row.newest = token;
            delivered.push(Delivered {
                id: next.id,
                receipt: receipt.to_string(),
                attempt: item.attempts(),
                token,
                deadline_ms: term.until_ms(),
                body: body(next.id)?,
            });
        }
        if !delivered.is_empty() {
            self.count_queues(row.newest)?;
        }
        Ok(Attempt::Decided(delivered))
    }

    /// Acknowledges an item, with the write lock held.
    fn ack_one(&self, receipt: &str) -> Result<AckResult, Error> {
        let (answer, row) = self.judge(receipt)?;
        if let (AckResult::Acknowledged, Some(row)) = (answer, row) {
            self.delete_item(&row)?;
        }
        Ok(answer)
    }

    /// Asks the rule whether a receipt passes.
    fn judge(&self, receipt: &str) -> Result<(AckResult, Option<ItemRow>), Error> {
        let Some(receipt) = Receipt::parse(receipt) else {
            return Ok((AckResult::Stale { reason: StaleReason::Unknown }, None));
        };
        let row = self.item_by_id(receipt.id)?;
        let newest = match row {
            Some(_) => 0,
            None => match self.newest_in_queues()? {
                // There is no queue yet.
                0 => 0,
                newest => newest.max(self.epoch_record()?.floor),
            },
        };
        Ok((rule::ack(row.as_ref().map(|row| row.item), receipt, newest), row))
    }

    /// Changes the item of a receipt by the rule, if the item exists.
    fn change_delivery(
        &self,
        receipt: &str,
        change: impl FnOnce(Item, Receipt) -> Option<Item>,
    ) -> Result<Option<ItemRow>, Error> {
        let Some(receipt) = Receipt::parse(receipt) else { return Ok(None) };
        let Some(row) = self.item_by_id(receipt.id)? else { return Ok(None) };
        let Some(item) = change(row.item, receipt) else { return Ok(None) };
        if item != row.item {
            self.save_item(row.id, item)?;
        }
        Ok(Some(ItemRow { item, ..row }))
    }

    /// Writes a note on an item that was changed. Its death belongs into the history.
    fn note(
        &self,
        changed: Option<ItemRow>,
        note: Option<&str>,
        when: When,
    ) -> Result<bool, Error> {
        let Some(row) = changed else { return Ok(false) };
        self.note_on_item(row.id, note)?;
        let now_ms = when.now_ms();
        if row.item.state(now_ms) == ItemState::Dead
            && let Some(queue) = self.queue_name(row.queue)?
        {
            let event =
                Event { number: Some(row.id), note, ..Event::new("item_died", "queue", &queue) };
            self.record_event(now_ms, event)?;
        }
        Ok(true)
    }

    /// Adds to the history that an operator has changed items of a queue: one, or so many.
    fn record_items(
        &self,
        kind: &str,
        queue: &str,
        item: Option<i64>,
        count: u64,
        now_ms: i64,
    ) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let result = i64::try_from(count).ok();
        self.record_event(
            now_ms,
            Event { number: item, result, ..Event::new(kind, "queue", queue) },
        )
    }

    /// Returns the item of a queue that uses a key.
    fn key_in_use(
        &self,
        queue: QueueRow,
        key: Option<&str>,
        now_ms: i64,
    ) -> Result<Option<i64>, Error> {
        let Some(key) = key else { return Ok(None) };
        let row = self.item_by_key(queue.number, key)?;
        let row = row.filter(|row| row.item.state(now_ms) != ItemState::Dead);
        Ok(row.map(|row| row.id))
    }

    fn is_used_by_another(&self, row: &ItemRow, key: &str, now_ms: i64) -> Result<bool, Error> {
        let used = self.item_by_key(row.queue, key)?;
        Ok(used
            .is_some_and(|other| other.id != row.id && other.item.state(now_ms) != ItemState::Dead))
    }

    /// Revives a dead item. Answers whether it could.
    fn revive(&self, row: &ItemRow, now_ms: i64) -> Result<bool, Error> {
        let Some(item) = rule::redrive(row.item, now_ms) else { return Ok(false) };
        if let Some(key) = &row.key {
            if self.is_used_by_another(row, key, now_ms)? {
                return Ok(false);
            }
            self.take_key(row.queue, key, row.id)?;
        }
        self.save_item(row.id, item).map(|()| true)
    }

    /// Changes one item of a queue, if it is dead, and counts. `kind` is what the history calls it.
    fn with_dead(
        &self,
        queue: &str,
        (id, kind): (i64, &str),
        when: When,
        work: impl FnOnce(&ItemRow, i64) -> Result<bool, Error>,
    ) -> Result<u64, Error> {
        self.changing_queues(self.boundary()?, || {
            let Some(found) = self.find_queue(queue)? else { return Ok(0) };
            let now_ms = when.now_ms();
            match self.item_by_id(id)?.filter(|row| row.queue == found.number) {
                Some(row) if row.item.state(now_ms) == ItemState::Dead => {
                    let count = u64::from(work(&row, now_ms)?);
                    self.record_items(kind, queue, Some(id), count, now_ms)?;
                    Ok(count)
                }
                _ => Ok(0),
            }
        })
    }

    /// Changes the dead items of a queue after an id, up to [`SLICE`] of them.
    fn slice_of_dead(
        &self,
        queue: QueueRow,
        after: i64,
        now_ms: i64,
        work: impl Fn(&ItemRow) -> Result<bool, Error>,
    ) -> Result<Slice, Error> {
        let mut slice = Slice { count: 0, next: Some(after) };
        for _ in 0..SLICE {
            let last = slice.next.unwrap_or_default();
            slice.next = None;
            let Some(row) = self.next_dead(queue.number, last)? else { break };
            if row.item.state(now_ms) == ItemState::Dead {
                slice.count += u64::from(work(&row)?);
            }
            slice.next = Some(row.id);
        }
        Ok(slice)
    }

    /// Deletes up to [`SLICE`] items of a queue, and the queue when it has none left.
    fn delete_slice(&self, queue: QueueRow) -> Result<Slice, Error> {
        if self.delete_items(queue, SLICE)? == SLICE {
            return Ok(Slice { count: 0, next: Some(0) });
        }
        self.delete_queue_row(queue)?;
        Ok(Slice { count: 1, next: None })
    }

    /// Does all of `work` or nothing, with the write lock held.
    fn changing_queues<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.within(boundary, || match boundary {
            // A failure is rolled back as a whole.
            Boundary::Own => work(),
            Boundary::Joined(_) => self.all_or_nothing(work),
        })
    }
}

impl ManyItems {
    /// Returns what the history calls it.
    fn kind(self) -> &'static str {
        match self {
            ManyItems::Redrive => "redriven",
            ManyItems::Discard => "discarded",
            ManyItems::Delete => "queue_deleted",
        }
    }
}

fn term(name: &str, visibility_ms: i64, when: When) -> Result<Term, Error> {
    Term::new(visibility_ms, when.now_ms()).map_err(|no| refused(name, no))
}

fn delay(name: &str, delay_ms: i64, when: When) -> Result<Delay, Error> {
    Delay::new(delay_ms, when.now_ms()).map_err(|no| refused(name, no))
}

fn refused(name: &str, refusal: Refusal) -> Error {
    Error::refused(name, refusal)
}

fn check_key(key: Option<&str>) -> Result<(), Error> {
    check_text("key of an item", key, 1, MAX_TEXT)
}

fn check_note(note: Option<&str>) -> Result<(), Error> {
    check_text("note of an item", note, 0, MAX_NOTE)
}

fn check_text(
    what: &'static str,
    text: Option<&str>,
    least: usize,
    most: usize,
) -> Result<(), Error> {
    match text.map(str::len) {
        Some(bytes) if !(least..=most).contains(&bytes) => {
            Err(Error::InvalidText { what, least, most, bytes })
        }
        _ => Ok(()),
    }
}

fn check_delivery(when: When, name: &str, token: i64, deadline_ms: i64) -> Result<(), Error> {
    check_arrival(when, Lease { name, owner: "", token, expires_at_ms: deadline_ms })
}
