//! Calls for operators on the items of a queue.

use std::time::Duration;

use litelease_wire::{Cancel, DeleteQueue, Discard, ItemState, ListItems, Redrive};

use crate::client::nonsense;
use crate::look::PAGE;
use crate::mode::Mode;
use crate::retry::RETRY;
use crate::{Error, Queue};

/// The state of an item of a queue.
///
/// ```no_run
/// # use litelease_client::{Client, Error};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// for item in client.queue("mail").items()? {
///     println!("{} is {}", item.id, item.state);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemInfo {
    /// The item.
    pub id: i64,
    /// `visible`, `delayed`, `leased` or `dead`.
    pub state: String,
    /// How often it was delivered since it was sent or redriven.
    pub attempt: i64,
    /// In how many milliseconds it is visible; negative if it has been since then. `None` if it is
    /// dead, or at its last allowed delivery.
    pub visible_in_ms: Option<i64>,
    /// How many milliseconds ago it was sent.
    pub age_ms: i64,
    /// Its key.
    pub key: Option<String>,
    /// The last note of a worker that gave it back or buried it.
    pub note: Option<String>,
}

/// The item to cancel, by id or by key.
///
/// ```
/// # use litelease_client::ItemName;
/// assert_ne!(ItemName::Id(1), ItemName::Key("1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemName<'a> {
    /// The item with this id.
    Id(i64),
    /// The item that was sent with this key.
    Key(&'a str),
}

/// The answer to a cancel.
///
/// ```
/// # use litelease_client::CancelResult;
/// assert_ne!(CancelResult::Cancelled, CancelResult::NotFound);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelResult {
    /// The item is removed.
    Cancelled,
    /// A worker has the item.
    Leased {
        /// How long the delivery has left.
        expires_in: Duration,
    },
    /// There is no such item.
    NotFound,
}

impl<M: Mode> Queue<M> {
    /// Revives all dead items, with their attempts reset. Returns how many. An item whose key
    /// another item uses by now stays dead. Needs the scope `operate`, as the verbs below do.
    pub fn redrive(&self) -> M::Answer<u64> {
        let (queue, id, reason) = (self.name().into(), None, self.client().note());
        self.client()
            .ask_for(Redrive { queue, id, ids: None, reason }, |done| done.redriven.unsigned_abs())
    }

    /// Revives one dead item. Returns false if it is not dead, or another item uses its key.
    pub fn redrive_one(&self, id: i64) -> M::Answer<bool> {
        let (queue, id, reason) = (self.name().into(), Some(id), self.client().note());
        self.client().ask_for(Redrive { queue, id, ids: None, reason }, |done| done.redriven > 0)
    }

    /// Deletes all dead items. Returns how many.
    pub fn discard(&self) -> M::Answer<u64> {
        let (queue, id, reason) = (self.name().into(), None, self.client().note());
        self.client()
            .ask_for(Discard { queue, id, ids: None, reason }, |done| done.discarded.unsigned_abs())
    }

    /// Deletes one dead item. Returns whether it was dead.
    pub fn discard_one(&self, id: i64) -> M::Answer<bool> {
        let (queue, id, reason) = (self.name().into(), Some(id), self.client().note());
        self.client().ask_for(Discard { queue, id, ids: None, reason }, |done| done.discarded > 0)
    }

    /// Removes an item that no worker has.
    ///
    /// ```no_run
    /// # use litelease_client::{CancelResult, Client, Error, ItemName};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// match client.queue("mail").cancel(ItemName::Key("order-17"))? {
    ///     CancelResult::Leased { expires_in } => println!("a worker has it, for {expires_in:?}"),
    ///     answer => println!("{answer:?}"),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn cancel(&self, name: ItemName<'_>) -> M::Answer<CancelResult> {
        let (queue, (id, key)) = (
            self.name().into(),
            match name {
                ItemName::Id(id) => (Some(id), None),
                ItemName::Key(key) => (None, Some(key.to_owned())),
            },
        );
        self.client().ask(Cancel { queue, id, key }, |reply| match reply.answer {
            Ok(_) => Ok(CancelResult::Cancelled),
            Err(no) => match (no.reason.as_str(), no.expires_in) {
                ("not_found", _) => Ok(CancelResult::NotFound),
                ("leased", Some(left)) => Ok(CancelResult::Leased { expires_in: left.duration() }),
                _ => Err(nonsense()),
            },
        })
    }

    /// Deletes the queue with everything in it. Returns whether there was one.
    pub fn delete(&self) -> M::Answer<bool> {
        self.client().ask_for(DeleteQueue { queue: self.name().into() }, |done| done.deleted)
    }

    /// Lists the items: dead ones first, then in the order of their delivery. Needs the scope
    /// `observe`.
    pub fn items(&self) -> M::Answer<Vec<ItemInfo>> {
        self.client().list(self.page_of_items(), RETRY, |found| {
            (found.items.into_iter().map(ItemInfo::from).collect(), found.next)
        })
    }

    fn page_of_items(&self) -> ListItems {
        ListItems { queue: self.name().into(), after: None, limit: PAGE }
    }
}

impl Queue {
    /// Hands every item to `each`, in that order, until it returns false. They are read in pages,
    /// so an item that moves meanwhile may be seen twice, or not at all.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// client.queue("mail").each_item(|item| {
    ///     println!("{}: {:?}", item.id, item.note);
    ///     item.state == "dead" // they come first
    /// })?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn each_item(&self, mut each: impl FnMut(ItemInfo) -> bool) -> Result<(), Error> {
        let mut after: Option<String> = None;
        loop {
            let (client, request) = (self.client().clone(), self.page_of_items());
            let page = async move { client.page(&request, after.as_deref(), RETRY).await };
            let found = self.client().transport.wait(page)??;
            for item in found.items {
                if !each(item.into()) {
                    return Ok(());
                }
            }
            after = found.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

impl From<ItemState> for ItemInfo {
    fn from(item: ItemState) -> Self {
        let ItemState { id, state, attempt, visible_in, age, key, note } = item;
        let visible_in_ms = visible_in.map(|left| left.ms);
        ItemInfo { id, state, attempt, visible_in_ms, age_ms: age.ms, key, note }
    }
}
