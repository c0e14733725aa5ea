//! Queues on a server, through `litelease-client`.

use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::{CancelResult, ItemInfo, ItemName, ItemState, QueueInfo};
use litelease_client::{Client, Error, SendOptions, Value};

use super::{Delivery, Options, Queues, Receipt, Worker};
use crate::exit::{Failure, Result};
use crate::target::{Variable, failure, of_server};

pub(super) struct Server {
    url: String,
    client: Client,
}

impl Server {
    pub(super) fn open(url: &str) -> Result<Self> {
        let client = Client::open(url).map_err(failure)?;
        Ok(Server { url: url.trim_end_matches('/').into(), client })
    }
}

/// Returns a time on this machine's clock.
fn from_now(left: Duration) -> i64 {
    litelease::now_ms().saturating_add(i64::try_from(left.as_millis()).unwrap_or(i64::MAX))
}

/// Returns a body as it is stored.
pub(in crate::target) fn stored(value: Value) -> Body {
    match value {
        Value::Null => Body::Null,
        Value::Integer(number) => Body::Integer(number),
        Value::Real(number) => Body::Real(number),
        Value::Text(text) => Body::Text(text),
        Value::Blob(bytes) => Body::Blob(bytes),
    }
}

fn sent(body: &Body) -> Value {
    match body {
        Body::Null => Value::Null,
        Body::Integer(number) => Value::Integer(*number),
        Body::Real(number) => Value::Real(*number),
        Body::Text(text) => Value::Text(text.clone()),
        Body::Blob(bytes) => Value::Blob(bytes.clone()),
    }
}

fn receipt<T>(done: std::result::Result<T, Error>) -> Result<Receipt<T>> {
    match done {
        Ok(done) => Ok(Receipt::Passed(done)),
        Err(Error::Stale { reason }) => Ok(match reason.as_str() {
            "expired" => Receipt::Over,
            "dead" => Receipt::Dead,
            reason => Receipt::Stale(reason.replace('_', " ")),
        }),
        Err(error) => Err(failure(error)),
    }
}

fn queue_info(info: &litelease_client::QueueInfo) -> QueueInfo {
    let mut counted = QueueInfo::default();
    counted.queue.clone_from(&info.queue);
    (counted.visible, counted.delayed) = (info.visible, info.delayed);
    (counted.leased, counted.dead) = (info.leased, info.dead);
    counted.oldest_ms = info.oldest.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    counted.max_attempts = info.max_attempts;
    counted
}

/// Returns an item with its times on this machine's clock.
fn item_info(item: litelease_client::ItemInfo, now_ms: i64) -> Option<ItemInfo> {
    let state = [ItemState::Visible, ItemState::Delayed, ItemState::Leased, ItemState::Dead];
    Some(ItemInfo {
        id: item.id,
        state: state.into_iter().find(|state| state.word() == item.state)?,
        attempt: item.attempt,
        visible_at_ms: item.visible_in_ms.map(|left_ms| now_ms.saturating_add(left_ms)),
        sent_at_ms: now_ms.saturating_sub(item.age_ms),
        key: item.key,
        note: item.note,
    })
}

impl Queues for Server {
    fn shown(&self) -> String {
        self.url.clone()
    }

    fn variables(&self) -> Vec<Variable> {
        of_server(&self.url)
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn send(&self, queue: &str, body: &Body, delay: Duration, key: Option<&str>) -> Result<i64> {
        let options = SendOptions::new().delay(delay);
        let options = key.into_iter().fold(options, |options, key| options.key(key));
        self.client.queue(queue).send_with(sent(body), options).map_err(failure)
    }

    fn receive(&self, queue: &str, visibility: Duration) -> Result<Option<Delivery>> {
        let received = self.client.queue(queue).receive(visibility, Duration::ZERO);
        Ok(received.map_err(failure)?.map(|item| Delivery {
            id: item.id,
            receipt: item.receipt,
            attempt: item.attempt,
            token: item.token,
            deadline_ms: from_now(item.expires_in),
            body: stored(item.body),
        }))
    }

    fn ack(&self, text: &str) -> Result<Receipt<()>> {
        receipt(self.client.queue("").ack(text))
    }

    fn extend(&self, text: &str, visibility: Duration) -> Result<Receipt<i64>> {
        receipt(self.client.queue("").extend(text, visibility).map(from_now))
    }

    fn give_back(&self, text: &str, delay: Duration, note: Option<&str>) -> Result<Receipt<()>> {
        receipt(self.client.queue("").give_back(text, delay, note))
    }

    fn bury(&self, text: &str, note: Option<&str>) -> Result<Receipt<()>> {
        receipt(self.client.queue("").bury(text, note))
    }

    fn list(&self) -> Result<Vec<QueueInfo>> {
        Ok(self.client.queues("").map_err(failure)?.iter().map(queue_info).collect())
    }

    fn info(&self, queue: &str) -> Result<Option<QueueInfo>> {
        Ok(self.client.queue(queue).info().map_err(failure)?.as_ref().map(queue_info))
    }

    fn each_item(&self, queue: &str, each: &mut dyn FnMut(ItemInfo) -> bool) -> Result<()> {
        let (now_ms, mut is_known) = (litelease::now_ms(), true);
        let listed = self.client.queue(queue).each_item(|item| match item_info(item, now_ms) {
            Some(item) => each(item),
            None => {
                is_known = false;
                false
            }
        });
        listed.map_err(failure)?;
        match is_known {
            true => Ok(()),
            false => Err(Failure::failed(
                "Server",
                "the server's answer cannot be understood: is it a Litelease of another version?",
            )),
        }
    }

    fn redrive(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        let queue = self.client.queue(queue);
        let done = match id {
            None => queue.redrive(),
            Some(id) => queue.redrive_one(id).map(u64::from),
        };
        done.map_err(failure)
    }

    fn discard(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        let queue = self.client.queue(queue);
        let done = match id {
            None => queue.discard(),
            Some(id) => queue.discard_one(id).map(u64::from),
        };
        done.map_err(failure)
    }

    fn cancel(&self, queue: &str, name: ItemName<'_>) -> Result<CancelResult> {
        let name = match name {
            ItemName::Id(id) => litelease_client::ItemName::Id(id),
            ItemName::Key(key) => litelease_client::ItemName::Key(key),
        };
        Ok(match self.client.queue(queue).cancel(name).map_err(failure)? {
            litelease_client::CancelResult::Cancelled => CancelResult::Cancelled,
            litelease_client::CancelResult::Leased { expires_in } => {
                CancelResult::Leased { deadline_ms: from_now(expires_in) }
            }
            litelease_client::CancelResult::NotFound => CancelResult::NotFound,
        })
    }

    fn delete(&self, queue: &str) -> Result<bool> {
        self.client.queue(queue).delete().map_err(failure)
    }

    fn worker(&self, queue: &str, options: Options) -> Result<Worker> {
        let client = Client::open(&self.url).map_err(failure)?;
        let Options { work, on_trouble } = options;
        let on_trouble = move |error: &Error| on_trouble("Server", &error.to_string());
        let worker = litelease_client::Worker::reporting(client, queue, work, on_trouble);
        Ok(Worker::Server(worker.map_err(failure)?))
    }
}
