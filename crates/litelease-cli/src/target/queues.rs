//! Queues where a command works: in a file or on a server.

use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::rusqlite::{Transaction, TransactionBehavior};
use litelease::{
    AckResult, CancelResult, GiveBackOptions, ItemInfo, ItemName, ItemState, Litelease,
    LiteleaseRef, LossSignal, QueueInfo, SendOptions, WorkerCounts, WorkerOptions,
};
use litelease_client::{Client, Error, Value};
use litelease_hold::WorkOptions;

use super::file::File;
use super::server::{Server, end_ms, failure};
use super::{Target, Variable};
use crate::engine_url::EngineUrl;
use crate::exit::{Failure, Result};
use crate::{Common, database};

/// A place with queues. An engine has none.
pub(crate) enum Queues {
    File(File),
    Server(Server),
}

impl Queues {
    /// Returns where the command finds queues. Opens nothing yet.
    pub(crate) fn open(common: &Common) -> Result<Self> {
        match common.server()? {
            Some(url) => Ok(Queues::Server(Server::open(url)?)),
            None => match EngineUrl::from_common(common)? {
                Some(url) => Err(url.needs_service("queues")),
                None => Ok(Queues::File(File::new(common)?)),
            },
        }
    }

    /// Returns the same place, where requests say why. Only a server logs it.
    pub(crate) fn with_reason(self, reason: Option<&str>) -> Result<Self> {
        let place = match self {
            Queues::File(file) => Target::File(file),
            Queues::Server(server) => Target::Server(server),
        };
        match place.with_note("--reason", reason)? {
            Target::Server(server) => Ok(Queues::Server(server)),
            Target::File(file) => Ok(Queues::File(file)),
            Target::Engine(_) => Err(Failure::usage("an engine has no queues")),
        }
    }

    /// Returns the file or the URL, for messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Queues::File(file) => file.shown(),
            Queues::Server(server) => server.url.clone(),
        }
    }

    /// Returns what a command that runs here finds in its environment.
    pub(crate) fn variables(&self) -> Vec<Variable> {
        match self {
            Queues::File(file) => file.variables(),
            Queues::Server(server) => server.variables(),
        }
    }

    /// Fails if there is nothing here: checked before a question.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Queues::File(file) => file.open().map(drop),
            Queues::Server(_) => Ok(()),
        }
    }

    pub(crate) fn send(
        &self,
        queue: &str,
        body: &Body,
        delay: Duration,
        key: Option<&str>,
    ) -> Result<i64> {
        match self {
            Queues::File(file) => {
                let db = database::open_patiently(&file.common, Duration::ZERO)?;
                let options = SendOptions::new().delay(delay);
                let options = key.into_iter().fold(options, |options, key| options.key(key));
                Ok(db.queue(queue).send_with(body, options)?)
            }
            Queues::Server(server) => {
                let options = litelease_client::SendOptions::new().delay(delay);
                let options = key.into_iter().fold(options, |options, key| options.key(key));
                server.client.queue(queue).send_with(sent(body), options).map_err(failure)
            }
        }
    }

    pub(crate) fn receive(&self, queue: &str, visibility: Duration) -> Result<Option<Delivery>> {
        match self {
            Queues::File(file) => {
                let Some(db) = file.open_if_any()? else { return Ok(None) };
                let received = db.queue(queue).receive(visibility)?;
                Ok(received.map(|item| Delivery {
                    id: item.id,
                    receipt: item.receipt,
                    attempt: item.attempt,
                    token: item.token,
                    deadline_ms: item.deadline_ms,
                    body: item.body,
                }))
            }
            Queues::Server(server) => {
                let received = server.client.queue(queue).receive(visibility, Duration::ZERO);
                Ok(received.map_err(failure)?.map(|item| Delivery {
                    id: item.id,
                    receipt: item.receipt,
                    attempt: item.attempt,
                    token: item.token,
                    deadline_ms: end_ms(item.expires_in),
                    body: stored(item.body),
                }))
            }
        }
    }

    pub(crate) fn ack(&self, receipt: &str) -> Result<Receipt<()>> {
        match self {
            Queues::File(file) => Ok(match file.open()?.queue("").ack(receipt)? {
                AckResult::Acknowledged => Receipt::Passed(()),
                AckResult::Stale { reason } => Receipt::Stale(reason.to_string()),
            }),
            Queues::Server(server) => receipt_verdict(server.client.queue("").ack(receipt)),
        }
    }

    /// Returns the deadline, in Unix milliseconds.
    pub(crate) fn extend(&self, receipt: &str, visibility: Duration) -> Result<Receipt<i64>> {
        match self {
            Queues::File(file) => {
                let db = file.open()?;
                match db.queue("").extend(receipt, visibility)? {
                    Some(deadline_ms) => Ok(Receipt::Passed(deadline_ms)),
                    // The newest delivery can still be acknowledged; extending it is too late.
                    None if db.queue("").delivery(receipt)?.is_some() => Ok(Receipt::Over),
                    None => Ok(Receipt::Stale(reason(&db, receipt)?)),
                }
            }
            Queues::Server(server) => {
                receipt_verdict(server.client.queue("").extend(receipt, visibility).map(end_ms))
            }
        }
    }

    pub(crate) fn give_back(
        &self,
        receipt: &str,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<Receipt<()>> {
        match self {
            Queues::File(file) => {
                let db = file.open()?;
                let options = GiveBackOptions::new().delay(delay);
                let options = note.into_iter().fold(options, |options, note| options.note(note));
                let given_back = db.queue("").give_back_with(receipt, options)?;
                ended(&db, receipt, given_back)
            }
            Queues::Server(server) => {
                receipt_verdict(server.client.queue("").give_back(receipt, delay, note))
            }
        }
    }

    pub(crate) fn bury(&self, receipt: &str, note: Option<&str>) -> Result<Receipt<()>> {
        match self {
            Queues::File(file) => {
                let db = file.open()?;
                let buried = db.queue("").bury(receipt, note)?;
                ended(&db, receipt, buried)
            }
            Queues::Server(server) => receipt_verdict(server.client.queue("").bury(receipt, note)),
        }
    }

    pub(crate) fn list(&self) -> Result<Vec<QueueInfo>> {
        match self {
            Queues::File(file) => {
                Ok(file.open_if_any()?.map_or(Ok(Vec::new()), |db| db.queues())?)
            }
            Queues::Server(server) => {
                Ok(server.client.queues("").map_err(failure)?.iter().map(queue_info).collect())
            }
        }
    }

    pub(crate) fn info(&self, queue: &str) -> Result<Option<QueueInfo>> {
        match self {
            Queues::File(file) => {
                Ok(file.open_if_any()?.map_or(Ok(None), |db| db.queue(queue).info())?)
            }
            Queues::Server(server) => {
                Ok(server.client.queue(queue).info().map_err(failure)?.as_ref().map(queue_info))
            }
        }
    }

    /// Hands items to `each`, dead ones first, until it returns false.
    pub(crate) fn each_item(
        &self,
        queue: &str,
        each: &mut dyn FnMut(ItemInfo) -> bool,
    ) -> Result<()> {
        match self {
            Queues::File(file) => match file.open_if_any()? {
                Some(db) => Ok(db.queue(queue).each_item(each)?),
                None => Ok(()),
            },
            Queues::Server(server) => {
                let (now_ms, mut is_known) = (litelease::now_ms(), true);
                let listed =
                    server.client.queue(queue).each_item(|item| match item_info(item, now_ms) {
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
        }
    }

    pub(crate) fn redrive(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        match (self, id) {
            (Queues::File(file), None) => Ok(file.open()?.queue(queue).redrive()?),
            (Queues::File(file), Some(id)) => {
                Ok(u64::from(file.open()?.queue(queue).redrive_one(id)?))
            }
            (Queues::Server(server), None) => server.client.queue(queue).redrive().map_err(failure),
            (Queues::Server(server), Some(id)) => {
                server.client.queue(queue).redrive_one(id).map(u64::from).map_err(failure)
            }
        }
    }

    pub(crate) fn discard(&self, queue: &str, id: Option<i64>) -> Result<u64> {
        match (self, id) {
            (Queues::File(file), None) => Ok(file.open()?.queue(queue).discard()?),
            (Queues::File(file), Some(id)) => {
                Ok(u64::from(file.open()?.queue(queue).discard_one(id)?))
            }
            (Queues::Server(server), None) => server.client.queue(queue).discard().map_err(failure),
            (Queues::Server(server), Some(id)) => {
                server.client.queue(queue).discard_one(id).map(u64::from).map_err(failure)
            }
        }
    }

    pub(crate) fn cancel(&self, queue: &str, name: ItemName<'_>) -> Result<CancelResult> {
        match self {
            Queues::File(file) => Ok(file.open()?.queue(queue).cancel(name)?),
            Queues::Server(server) => {
                let name = match name {
                    ItemName::Id(id) => litelease_client::ItemName::Id(id),
                    ItemName::Key(key) => litelease_client::ItemName::Key(key),
                };
                Ok(match server.client.queue(queue).cancel(name).map_err(failure)? {
                    litelease_client::CancelResult::Cancelled => CancelResult::Cancelled,
                    litelease_client::CancelResult::Leased { expires_in } => {
                        CancelResult::Leased { deadline_ms: end_ms(expires_in) }
                    }
                    litelease_client::CancelResult::NotFound => CancelResult::NotFound,
                })
            }
        }
    }

    pub(crate) fn delete(&self, queue: &str) -> Result<bool> {
        match self {
            Queues::File(file) => Ok(file.open()?.queue(queue).delete()?),
            Queues::Server(server) => server.client.queue(queue).delete().map_err(failure),
        }
    }

    pub(crate) fn worker(&self, queue: &str, options: Options) -> Result<Worker> {
        match self {
            Queues::File(file) => {
                let db = database::open_patiently(&file.common, Duration::ZERO)?;
                let Options { work, on_trouble } = options;
                let options = WorkerOptions::from(work)
                    .on_trouble(move |error| on_trouble(error.kind(), &error.to_string()));
                Ok(Worker::File(db.queue(queue).worker(options)?))
            }
            Queues::Server(server) => {
                let client = Client::open(&server.url).map_err(failure)?;
                let Options { work, on_trouble } = options;
                let on_trouble = move |error: &Error| on_trouble("Server", &error.to_string());
                let worker = litelease_client::Worker::reporting(client, queue, work, on_trouble);
                Ok(Worker::Server(worker.map_err(failure)?))
            }
        }
    }
}

/// An item that was delivered.
pub(crate) struct Delivery {
    pub(crate) id: i64,
    pub(crate) receipt: String,
    pub(crate) attempt: i64,
    pub(crate) token: i64,
    pub(crate) deadline_ms: i64,
    pub(crate) body: Body,
}

/// The outcome of a verb on a receipt.
pub(crate) enum Receipt<T> {
    Passed(T),
    /// It does not pass, for this reason.
    Stale(String),
    /// It is too late to extend the delivery.
    Over,
    /// The item is dead already.
    Dead,
}

/// The options of `work`.
pub(crate) struct Options {
    pub(crate) work: WorkOptions,
    /// Called with the kind and the text of an error that may pass.
    pub(crate) on_trouble: Box<OnTrouble>,
}

/// Hears of an error that may pass.
type OnTrouble = dyn Fn(&'static str, &str) + Send + Sync;

/// A worker of a queue.
#[derive(Clone)]
pub(crate) enum Worker {
    File(litelease::Worker),
    Server(litelease_client::Worker),
}

/// Does the work on one item.
pub(crate) type Handler<'h> =
    dyn Fn(&WorkItem<'_>) -> std::result::Result<(), String> + Send + Sync + 'h;

/// An item in the hands of a handler.
pub(crate) struct WorkItem<'w> {
    pub(crate) id: i64,
    pub(crate) attempt: i64,
    pub(crate) token: i64,
    pub(crate) receipt: &'w str,
    pub(crate) body: &'w Body,
    /// Shows for how long the item can be trusted to be this worker's.
    pub(crate) lost: LossSignal,
    end: &'w dyn Fn(End, &str) -> bool,
}

/// The way in which a handler ends the work on an item itself.
#[derive(Clone, Copy)]
enum End {
    GiveBack,
    Bury,
}

impl Worker {
    /// Hands items to `handler` until the worker is drained. An item whose handler returns an error
    /// is given back with that as its note.
    pub(crate) fn run(&self, handler: &Handler<'_>) -> Result<WorkerCounts> {
        match self {
            Worker::File(worker) => Ok(worker.run(|item| {
                let end = |end, note: &str| match end {
                    End::GiveBack => item.give_back_with(GiveBackOptions::new().note(note)).is_ok(),
                    End::Bury => item.bury(Some(note)).is_ok(),
                };
                handler(&WorkItem {
                    id: item.id,
                    attempt: item.attempt,
                    token: item.token,
                    receipt: &item.receipt,
                    body: &item.body,
                    lost: item.lost(),
                    end: &end,
                })
            })?),
            Worker::Server(worker) => worker
                .run(|item| {
                    let end = |end, note: &str| match end {
                        End::GiveBack => item.give_back(Duration::ZERO, Some(note)).is_ok(),
                        End::Bury => item.bury(Some(note)).is_ok(),
                    };
                    let body = stored(item.body.clone());
                    handler(&WorkItem {
                        id: item.id,
                        attempt: item.attempt,
                        token: item.token,
                        receipt: &item.receipt,
                        body: &body,
                        lost: item.lost(),
                        end: &end,
                    })
                })
                .map_err(failure),
        }
    }

    /// Receives nothing more.
    pub(crate) fn drain(&self) {
        match self {
            Worker::File(worker) => worker.drain_signal().drain(),
            Worker::Server(worker) => worker.drain(),
        }
    }

    pub(crate) fn counts(&self) -> WorkerCounts {
        match self {
            Worker::File(worker) => worker.counts(),
            Worker::Server(worker) => worker.counts(),
        }
    }
}

impl WorkItem<'_> {
    /// Gives the item back at once. Returns whether that was done.
    pub(crate) fn give_back(&self, note: &str) -> bool {
        (self.end)(End::GiveBack, note)
    }

    /// Makes the item dead. Returns whether that was done.
    pub(crate) fn bury(&self, note: &str) -> bool {
        (self.end)(End::Bury, note)
    }
}

/// Returns whether a delivery was ended as the command wanted, or why not.
fn ended(db: &Litelease, receipt: &str, done: bool) -> Result<Receipt<()>> {
    if done {
        return Ok(Receipt::Passed(()));
    }
    Ok(match db.queue("").delivery(receipt)? {
        Some(_) => Receipt::Dead,
        None => Receipt::Stale(reason(db, receipt)?),
    })
}

/// Returns why a receipt does not pass. Nothing is changed by asking: an acknowledgement that would
/// pass is rolled back.
fn reason(db: &Litelease, receipt: &str) -> Result<String> {
    let tx = Transaction::new_unchecked(db.conn(), TransactionBehavior::Immediate)
        .map_err(litelease::Error::from)?;
    let answer = LiteleaseRef::joining(&tx).queue("").ack(receipt)?;
    tx.rollback().map_err(litelease::Error::from)?;
    Ok(match answer {
        AckResult::Stale { reason } => reason.to_string(),
        AckResult::Acknowledged => "ended in this moment".into(),
    })
}

/// Returns a body as it is stored.
pub(super) fn stored(value: Value) -> Body {
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

fn receipt_verdict<T>(done: std::result::Result<T, Error>) -> Result<Receipt<T>> {
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
