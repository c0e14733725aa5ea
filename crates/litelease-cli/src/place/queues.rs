//! Queues where a command works: in a file or on a server.

mod file;
mod server;
mod server_worker;

use std::sync::Arc;
use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::{CancelResult, ItemInfo, ItemName, QueueInfo, WorkerCounts};

pub(super) use server::stored;

use super::{Trust, Variable};
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
    fn worker(&self, queue: &str, options: Options) -> Result<Arc<dyn Worker>>;
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
    pub(crate) visibility: Duration,
    pub(crate) jobs: usize,
    pub(crate) backoff: Duration,
    pub(crate) max_backoff: Duration,
    pub(crate) once: bool,
    pub(crate) drain: bool,
    /// Called with the kind and the text of an error that may pass.
    pub(crate) on_trouble: Box<OnTrouble>,
}

/// Hears of an error that may pass.
type OnTrouble = dyn Fn(&'static str, &str) + Send + Sync;

/// A worker of a queue.
pub(crate) trait Worker: Send + Sync {
    /// Hands items to `handler` until the worker is drained. An item whose handler returns an error
    /// is given back with that as its note.
    fn run(&self, handler: &Handler<'_>) -> Result<WorkerCounts>;
    /// Receives nothing more.
    fn drain(&self);
    fn counts(&self) -> WorkerCounts;
}

/// What is done for each item.
pub(crate) type Handler<'h> =
    dyn Fn(&dyn WorkItem) -> std::result::Result<(), String> + Send + Sync + 'h;

/// An item in the hands of a handler.
pub(crate) trait WorkItem {
    fn id(&self) -> i64;
    fn attempt(&self) -> i64;
    fn token(&self) -> i64;
    fn receipt(&self) -> &str;
    fn body(&self) -> &Body;
    /// Tells for how long the item can be trusted to be this worker's.
    fn trust(&self) -> Box<dyn Trust + Send + Sync>;
    /// Gives the item back at once. Returns whether that was done.
    fn give_back(&self, note: &str) -> bool;
    /// Makes the item dead. Returns whether that was done.
    fn bury(&self, note: &str) -> bool;
}

/// Returns where the command finds queues. Opens nothing yet.
pub(crate) fn open(common: &Common) -> Result<Box<dyn Queues>> {
    match common.server()? {
        Some(url) => Ok(Box::new(server::Server::open(url)?)),
        None => Ok(Box::new(file::File::new(common)?)),
    }
}
