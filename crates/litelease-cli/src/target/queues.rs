//! Queues where a command works: in a file or on a server.

mod file;
mod server;

use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::{
    CancelResult, GiveBackOptions, ItemInfo, ItemName, LossSignal, QueueInfo, WorkerCounts,
};
use litelease_hold::WorkOptions;

pub(super) use server::stored;

use super::{Variable, failure};
use crate::Common;
use crate::exit::Result;

/// The verbs on queues that commands use.
pub(crate) trait Queues: Send + Sync {
    /// Returns the file or the URL, for messages.
    fn shown(&self) -> String;
    /// Returns what a command that runs here finds in its environment.
    fn variables(&self) -> Vec<Variable>;
    /// Fails if there is nothing here: asked before a question.
    fn check(&self) -> Result<()>;
    fn send(&self, queue: &str, body: &Body, delay: Duration, key: Option<&str>) -> Result<i64>;
    fn receive(&self, queue: &str, visibility: Duration) -> Result<Option<Delivery>>;
    fn ack(&self, receipt: &str) -> Result<Receipt<()>>;
    /// Returns the deadline, in Unix milliseconds.
    fn extend(&self, receipt: &str, visibility: Duration) -> Result<Receipt<i64>>;
    fn give_back(&self, receipt: &str, delay: Duration, note: Option<&str>) -> Result<Receipt<()>>;
    fn bury(&self, receipt: &str, note: Option<&str>) -> Result<Receipt<()>>;
    fn list(&self) -> Result<Vec<QueueInfo>>;
    fn info(&self, queue: &str) -> Result<Option<QueueInfo>>;
    /// Hands items to `each`, dead ones first, until it returns false.
    fn each_item(&self, queue: &str, each: &mut dyn FnMut(ItemInfo) -> bool) -> Result<()>;
    fn redrive(&self, queue: &str, id: Option<i64>) -> Result<u64>;
    fn discard(&self, queue: &str, id: Option<i64>) -> Result<u64>;
    fn cancel(&self, queue: &str, name: ItemName<'_>) -> Result<CancelResult>;
    fn delete(&self, queue: &str) -> Result<bool>;
    fn worker(&self, queue: &str, options: Options) -> Result<Worker>;
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

/// What becomes of a verb on a receipt.
pub(crate) enum Receipt<T> {
    Passed(T),
    /// It does not pass, for this reason.
    Stale(String),
    /// It is too late to extend the delivery.
    Over,
    /// The item is dead already.
    Dead,
}

/// How `work` works.
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

/// How a handler ends the work on an item itself.
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

/// Returns where the command finds queues. Opens nothing yet.
pub(crate) fn open(common: &Common) -> Result<Box<dyn Queues>> {
    match common.server()? {
        Some(url) => Ok(Box::new(server::Server::open(url)?)),
        None => Ok(Box::new(file::File::new(common)?)),
    }
}
