//! Workers of a queue on a server: threads that receive items, have their deliveries extended while
//! a handler works, and acknowledge them or give them back.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease_hold::{
    Deliveries, Delivery, Held, HoldError, LossSignal, Lost, Received, Settled, Work, WorkOptions,
    WorkerCounts, abandon, cut,
};

use crate::{Client, Error, Item, Queue};

/// The longest wait of one request, and so the longest time until a drain is noticed.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How long a receive is repeated before the trouble is reported.
const PATIENCE: Duration = Duration::from_secs(3);

/// A worker of a queue on a server, like `litelease::Worker` of one in a file.
///
/// A handler that returns `Ok` has its item acknowledged. After an error or a panic the item is
/// given back, hidden for a delay that doubles with every attempt, with the error as its note. At
/// the last allowed attempt it is dead instead. Effects happen at least once: make them idempotent,
/// or have the system that they write to compare the token.
///
/// ```no_run
/// use std::time::Duration;
/// use litelease_client::{Client, Error, WorkOptions, Worker};
///
/// # fn main() -> Result<(), Error> {
/// let client = Client::open("http://127.0.0.1:7070")?;
/// let options = WorkOptions { until_empty: true, ..WorkOptions::new(Duration::from_secs(30)) };
/// let counts = Worker::new(client, "mail", options)?.run(|item| {
///     println!("{:?}, under token {}", item.body, item.token);
///     item.check() // fails before another worker can have the item
/// })?;
/// println!("{} done", counts.done);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// An item in the hands of a handler. It has the fields of [`Item`].
pub struct WorkItem<'w> {
    item: &'w Item,
    held: &'w Held,
    shared: &'w Shared,
    settled: &'w Cell<Option<Settled>>,
}

/// The state that the threads of a worker share.
struct Shared {
    client: Client,
    queue: String,
    work: Work,
    /// True once the server has answered.
    was_heard: AtomicBool,
    on_trouble: Option<OnTrouble>,
}

type OnTrouble = Box<dyn Fn(&Error) + Send + Sync>;

impl Worker {
    /// Returns a worker of the queue called `queue`. It sends nothing yet.
    pub fn new(client: Client, queue: &str, options: WorkOptions) -> Result<Self, Error> {
        Worker::with(client, queue, options, None)
    }

    /// Returns a worker like [`new`](Worker::new). It calls `on_trouble` when the server cannot be
    /// reached, or refuses for the moment, before it tries again.
    pub fn reporting(
        client: Client,
        queue: &str,
        options: WorkOptions,
        on_trouble: impl Fn(&Error) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Worker::with(client, queue, options, Some(Box::new(on_trouble)))
    }

    fn with(
        client: Client,
        queue: &str,
        options: WorkOptions,
        on_trouble: Option<OnTrouble>,
    ) -> Result<Self, Error> {
        let work = Work::new(options).map_err(Error::InvalidWorker)?;
        let (queue, was_heard) = (queue.into(), AtomicBool::new(false));
        Ok(Worker { shared: Arc::new(Shared { client, queue, work, was_heard, on_trouble }) })
    }

    /// Works until it is drained, and returns how many items it has settled.
    ///
    /// Fails if the server was never reached. A server that fails later is tried again.
    pub fn run<E: fmt::Display>(
        &self,
        handler: impl Fn(&WorkItem<'_>) -> Result<(), E> + Sync,
    ) -> Result<WorkerCounts, Error> {
        let work = &self.shared.work;
        let deliveries = || ServerDeliveries(self.shared.clone());
        let deliveries = (0..work.options().handlers).map(|_| deliveries()).collect();
        let handler = |delivery: &Delivery<'_, ServerDeliveries>| {
            let Delivery { item, held, settled, .. } = delivery;
            let item = WorkItem { item, held, shared: &self.shared, settled };
            handler(&item).map_err(|error| error.to_string())
        };
        work.run(deliveries, &handler, &|| work.drain())?;
        Ok(self.counts())
    }

    /// Asks the worker to receive nothing more. Does not wait; a request that waits for an item
    /// ends within two seconds.
    pub fn drain(&self) {
        self.shared.work.drain();
    }

    /// Returns how many items it has settled so far.
    pub fn counts(&self) -> WorkerCounts {
        self.shared.work.counts()
    }
}

impl WorkItem<'_> {
    /// Checks whether the item can be trusted to be this worker's. Fails in time: before another
    /// worker can receive it.
    pub fn check(&self) -> Result<(), Lost> {
        self.held.check()
    }

    /// Returns a signal on which another thread can wait until the delivery is lost.
    pub fn lost(&self) -> LossSignal {
        self.held.lost()
    }

    /// Acknowledges the item before the handler ends.
    pub fn ack(&self) -> Result<(), Error> {
        self.shared.queue().ack(&self.item.receipt)?;
        self.settle(Settled::Done);
        Ok(())
    }

    /// Gives the item back before the handler ends, hidden for `delay`.
    pub fn give_back(&self, delay: Duration, note: Option<&str>) -> Result<(), Error> {
        self.shared.queue().give_back(&self.item.receipt, delay, note.map(cut))?;
        self.settle(Settled::GivenBack);
        Ok(())
    }

    /// Makes the item dead at once.
    pub fn bury(&self, note: Option<&str>) -> Result<(), Error> {
        self.shared.queue().bury(&self.item.receipt, note.map(cut))?;
        self.settle(Settled::Buried);
        Ok(())
    }

    fn settle(&self, settled: Settled) {
        self.settled.set(Some(settled));
        abandon(self.held);
    }
}

impl Deref for WorkItem<'_> {
    type Target = Item;

    fn deref(&self) -> &Item {
        self.item
    }
}

impl Shared {
    fn queue(&self) -> Queue {
        self.client.queue(&self.queue)
    }
}

/// The queue, as the loop of one handler uses it.
struct ServerDeliveries(Arc<Shared>);

impl Deliveries for ServerDeliveries {
    type Item<'d> = Item;
    type Error = Error;

    fn receive(&self, wait: Duration) -> Result<Received<Item>, Error> {
        let visibility = self.0.work.options().visibility;
        // Trust begins with the request, so the request must not wait for long.
        let wait = wait.min(LONGEST_WAIT).min(visibility / 4);
        let received = self.0.queue().receive_within(visibility, wait, PATIENCE.min(visibility))?;
        self.0.was_heard.store(true, Ordering::Relaxed);
        // If the caller wanted to wait, the server has waited.
        let nothing = if wait.is_zero() { Duration::MAX } else { Duration::ZERO };
        Ok(received.map_or(Received::Nothing(nothing), Received::Item))
    }

    fn keep(&self, item: &Item, _: Duration) -> Result<Held, HoldError<Error>> {
        self.0.queue().held(item, self.0.work.options().visibility)
    }

    fn ack(&self, item: &Item) -> Result<Settled, Error> {
        match self.0.queue().ack(&item.receipt) {
            // The handler has acknowledged it itself, or the answer to an earlier acknowledgement
            // was lost.
            Err(Error::Stale { reason }) if reason == "gone" => Ok(Settled::Done),
            acked => settled(acked, Settled::Done),
        }
    }

    fn give_back(
        &self,
        item: &Item,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<Settled, Error> {
        settled(self.0.queue().give_back(&item.receipt, delay, note), Settled::GivenBack)
    }

    fn tidy(&self) -> Result<Option<&'static str>, Error> {
        Ok(None)
    }

    fn wait(&self, time: Duration) {
        std::thread::sleep(time.min(LONGEST_WAIT));
    }

    fn report(&self, error: Error) -> Result<(), Error> {
        let may_pass = match &error {
            // There may be no server at this address at all.
            Error::Unreachable(_) => self.0.was_heard.load(Ordering::Relaxed),
            Error::Refused { status: 429, .. } => true,
            _ => false,
        };
        if !may_pass {
            return Err(error);
        }
        if let Some(on_trouble) = &self.0.on_trouble {
            on_trouble(&error);
        }
        Ok(())
    }

    fn attempt_and_token(item: &Item) -> (i64, i64) {
        (item.attempt, item.token)
    }
}

fn settled(answer: Result<(), Error>, settled: Settled) -> Result<Settled, Error> {
    match answer {
        Ok(()) => Ok(settled),
        Err(Error::Stale { .. }) => Ok(Settled::Lost),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Worker").field(&self.shared.queue).finish()
    }
}

/// Leaves out the receipt, which is a secret, and the body.
impl fmt::Debug for WorkItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkItem").field(self.item).finish()
    }
}
