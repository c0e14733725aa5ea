//! Looking after the items of a queue on a server, for operators.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::client::{duration, nonsense};
use crate::mode::Mode;
use crate::retry::{RETRY, path};
use crate::{Error, Queue};

/// How many items are asked for at once.
const PAGE: &str = "500";

/// How an item of a queue stands.
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

/// The item that is to be cancelled.
///
/// ```
/// # use litelease_client::ItemName;
/// assert_ne!(ItemName::Id(1), ItemName::Key("1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemName<'a> {
    /// The item of this id.
    Id(i64),
    /// The item that uses this key.
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
        /// For how long.
        expires_in: Duration,
    },
    /// There is no such item.
    NotFound,
}

impl<M: Mode> Queue<M> {
    /// Revives all dead items, with no attempt counted. Returns how many. One whose key another
    /// item uses by now stays dead. Needs the scope `operate`, as the verbs below do.
    pub fn redrive(&self) -> M::Answer<u64> {
        self.count("queue/redrive", None, |done| done["redriven"].as_u64())
    }

    /// Revives one dead item. Returns whether it was dead, and its key not in use.
    pub fn redrive_one(&self, id: i64) -> M::Answer<bool> {
        self.count("queue/redrive", Some(id), |done| Some(done["redriven"].as_u64()? > 0))
    }

    /// Deletes all dead items. Returns how many.
    pub fn discard(&self) -> M::Answer<u64> {
        self.count("queue/discard", None, |done| done["discarded"].as_u64())
    }

    /// Deletes one dead item. Returns whether it was dead.
    pub fn discard_one(&self, id: i64) -> M::Answer<bool> {
        self.count("queue/discard", Some(id), |done| Some(done["discarded"].as_u64()? > 0))
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
        let request = match name {
            ItemName::Id(id) => json!({ "queue": self.name(), "id": id }),
            ItemName::Key(key) => json!({ "queue": self.name(), "key": key }),
        };
        self.client().ask("queue/cancel", request, |reply| match reply.answer() {
            Ok(_) => Ok(CancelResult::Cancelled),
            Err(no) => match (no["reason"].as_str(), duration(&no["expires_in"])) {
                (Some("not_found"), _) => Ok(CancelResult::NotFound),
                (Some("leased"), Some(expires_in)) => Ok(CancelResult::Leased { expires_in }),
                _ => Err(nonsense()),
            },
        })
    }

    /// Deletes the queue with everything in it. Returns whether there was one.
    pub fn delete(&self) -> M::Answer<bool> {
        let request = json!({ "queue": self.name() });
        self.client().ask_for("queue/delete", request, |deleted| deleted["deleted"].as_bool())
    }

    /// Lists the items: dead ones first, then in the order of their delivery. Needs the scope
    /// `observe`.
    pub fn items(&self) -> M::Answer<Vec<ItemInfo>> {
        self.client().list(self.items_path(), "items", RETRY, info)
    }

    fn items_path(&self) -> String {
        path("queue/items", &[("queue", self.name()), ("limit", PAGE)])
    }

    fn count<T: Send + 'static>(
        &self,
        call: &'static str,
        id: Option<i64>,
        read: fn(&Json) -> Option<T>,
    ) -> M::Answer<T> {
        let mut request = json!({ "queue": self.name() });
        id.into_iter().for_each(|id| request["id"] = id.into());
        self.client().ask_for(call, request, read)
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
        let mut after = Some(String::new());
        while let Some(this) = after {
            let (client, path) = (self.client().clone(), self.items_path() + &this);
            let page = async move { client.page(&path, "items", RETRY).await };
            let (items, next) = self.client().transport.wait(page)??;
            for item in &items {
                if !each(info(item).ok_or_else(nonsense)?) {
                    return Ok(());
                }
            }
            after = next;
        }
        Ok(())
    }
}

fn info(value: &Json) -> Option<ItemInfo> {
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    // A cast of a float saturates.
    let ms = |field: &str| value[field].as_f64().map(|seconds| (seconds * 1000.0).round() as i64);
    Some(ItemInfo {
        id: value["id"].as_i64()?,
        state: text("state")?,
        attempt: value["attempt"].as_i64()?,
        visible_in_ms: ms("visible_in"),
        age_ms: ms("age")?,
        key: text("key"),
        note: text("note"),
    })
}
