//! Workers: threads that receive the items of a queue, extend their deliveries while a handler
//! works, and acknowledge them or give them back.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use litelease_hold::file::{Asks, DatabaseFile, FileDeliveries, FileError, FileLeases, FileQueue};
use litelease_hold::{Delivery, Held, Settled, Work, WorkOptions, abandon};
use rusqlite::Connection;

use crate::error::{failure, rusqlite_error};
use crate::file::{connect, file_of};
use crate::{
    AckResult, Error, GiveBackOptions, HoldError, Item, Litelease, Loss, LossSignal, Lost, Queue,
    Transaction, WorkerCounts,
};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// The busy timeout of a handler's connection.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Options of a worker.
///
/// ```
/// use std::time::Duration;
/// use litelease::WorkerOptions;
///
/// let options = WorkerOptions::new(Duration::from_secs(30))
///     .handlers(4)
///     .backoff(Duration::from_secs(1), Duration::from_secs(600));
/// # let _ = options;
/// ```
#[derive(Clone)]
pub struct WorkerOptions {
    work: WorkOptions,
    setup: Option<Setup>,
    on_trouble: Option<OnTrouble>,
}

type Setup = Arc<dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync>;
type OnTrouble = Arc<dyn Fn(&Error) + Send + Sync>;

/// A worker of a queue, made by [`Queue::worker`].
///
/// Each of its handlers has a thread and a connection of its own. A delivery is committed before
/// its handler starts, and the handler runs with no transaction open. Meanwhile the keeper extends
/// the delivery every third of its visibility. Between items the worker sleeps until a process
/// sends or gives back.
///
/// A handler that returns `Ok` has its item acknowledged. Its effect happens at least once; with
/// [`WorkItem::finish`] it happens once. After an error or a panic the item is given back, hidden
/// for a delay that doubles with every attempt, with the error as its note. At the last allowed
/// attempt it is dead instead.
///
/// ```
/// use std::time::Duration;
/// use litelease::{Litelease, WorkerOptions};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// db.conn().execute_batch("CREATE TABLE sent (text)")?;
/// db.queue("mail").send("hello")?;
///
/// let options = WorkerOptions::new(Duration::from_secs(30)).handlers(2).until_empty();
/// let counts = db.queue("mail").worker(options)?.run(|item| {
///     // The slow work, with no transaction open.
///     item.finish(|tx| {
///         tx.conn().execute("INSERT INTO sent VALUES (?1)", [&item.body])?;
///         Ok(())
///     })
/// })?;
/// assert_eq!(counts.done, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Worker {
    shared: Arc<Shared>,
}

/// A worker that runs in the background. Dropping it drains it: it receives nothing more, and the
/// drop returns when the handlers under way have ended.
///
/// ```
/// # litelease_doctest::file!(db);
/// let worker = db.queue("mail").worker(WorkerOptions::new(Duration::from_secs(30)))?;
/// let running = worker.start(|item: &WorkItem<'_>| {
///     println!("{:?}", item.body);
///     Ok::<(), String>(())
/// })?;
/// db.queue("mail").send("hello")?;
/// running.drain()?;
/// # Ok::<(), HoldError>(())
/// ```
#[must_use = "a worker that is dropped is drained"]
pub struct RunningWorker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
    pid: u32,
}

/// Asks a worker from any thread to receive nothing more; made by [`Worker::drain_signal`].
///
/// ```
/// # litelease_doctest::file!(db);
/// let worker = db.queue("mail").worker(WorkerOptions::new(Duration::from_secs(30)))?;
/// let signal = worker.drain_signal();
/// std::thread::spawn(move || signal.drain());
/// worker.run(|_| Ok::<(), String>(()))?; // returns when it has drained
/// # Ok::<(), HoldError>(())
/// ```
#[derive(Clone)]
pub struct DrainSignal {
    shared: Arc<Shared>,
}

/// An item in the hands of a handler. It has the fields of [`Item`].
///
/// Its delivery is extended in the background. It is trusted until its visibility, less a margin,
/// has passed since the start of the last extension, on a clock that counts the time a machine is
/// suspended; the margin is that of a [`Held`](crate::Held). After that [`check`](WorkItem::check)
/// fails: stop the work, for another worker may have the item. Whatever `check` says,
/// [`finish`](WorkItem::finish) and [`ack`](WorkItem::ack) are decided by the receipt in the file.
///
/// ```
/// # litelease_doctest::file!(db);
/// # db.queue("mail").send("hello")?;
/// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
/// db.queue("mail").worker(options)?.run(|item| {
///     for _page in 0..3 {
///         item.check()?; // Err(Lost { reason }) once another worker may have the item
///     }
///     println!("item {}, attempt {}, token {}", item.id, item.attempt, item.token);
///     Ok::<(), Lost>(())
/// })?;
/// # Ok::<(), HoldError>(())
/// ```
pub struct WorkItem<'w> {
    item: &'w Item<'w>,
    held: &'w Held,
    db: &'w Litelease,
    settled: &'w Cell<Option<Settled>>,
}

/// The state that the threads of a worker share.
struct Shared {
    file: DatabaseFile,
    queue: String,
    options: WorkerOptions,
    work: Work,
}

impl WorkerOptions {
    /// Returns options for a worker with one handler. An item is hidden for `visibility` at a time
    /// and extended while its handler works. So other workers wait this long for the items of a
    /// worker that died: more than 100 ms, at most a year.
    pub fn new(visibility: Duration) -> Self {
        WorkOptions::new(visibility).into()
    }

    /// Works on up to this many items at once, 1 to 1,000.
    pub fn handlers(self, handlers: usize) -> Self {
        WorkerOptions { work: WorkOptions { handlers, ..self.work }, ..self }
    }

    /// Hides an item for `first` after its first failure, for twice as long after each further
    /// one, and never for longer than `longest`; less up to a half, by chance. Unless set, from one
    /// second to one hour.
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        let work = WorkOptions { first_delay: first, longest_delay: longest, ..self.work };
        WorkerOptions { work, ..self }
    }

    /// Ends after one item, which it waits for.
    pub fn once(self) -> Self {
        WorkerOptions { work: WorkOptions { once: true, ..self.work }, ..self }
    }

    /// Ends when no item is visible and no handler of this worker is at work. Items that are
    /// delayed, or with other workers, are left to others.
    pub fn until_empty(self) -> Self {
        WorkerOptions { work: WorkOptions { until_empty: true, ..self.work }, ..self }
    }

    /// Sets up the connection of each handler before its first item. It is a new connection to the
    /// same file: pragmas and functions of the caller's connection do not apply to it.
    pub fn setup(
        self,
        setup: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Self {
        WorkerOptions { setup: Some(Arc::new(setup)), ..self }
    }

    /// Calls `on_trouble` when the file cannot be read or written and the worker tries again: it is
    /// locked, the disk is full or fails.
    pub fn on_trouble(self, on_trouble: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        WorkerOptions { on_trouble: Some(Arc::new(on_trouble)), ..self }
    }
}

impl From<WorkOptions> for WorkerOptions {
    fn from(work: WorkOptions) -> Self {
        WorkerOptions { work, setup: None, on_trouble: None }
    }
}

impl Queue<'_> {
    /// Returns a worker of this queue. It opens connections of its own to the file, so it fails
    /// for a database in memory, and inside a transaction. It uses the system's clock.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let options = WorkerOptions::new(Duration::from_secs(30)).until_empty();
    /// let counts = db.queue("mail").worker(options)?.run(|_| Ok::<(), String>(()))?;
    /// assert_eq!(counts, WorkerCounts::default());
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn worker(&self, options: WorkerOptions) -> Result<Worker> {
        let work = Work::new(options.work).map_err(HoldError::InvalidWorker)?;
        let store = self.leases.store();
        if store.is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        if self.connection.is_none() {
            // The connection may be another library's, and two libraries drop each other's locks on
            // a file.
            let text =
                "a worker opens connections of its own: ask a Litelease or LiteleaseRef for it";
            return Err(failure(text).into());
        }
        let file = file_of(self.leases)?;
        let queue = self.name.into();
        Ok(Worker { shared: Arc::new(Shared { file, queue, options, work }) })
    }
}

impl Worker {
    /// Works until it is drained, and returns how many items it has settled. With neither
    /// [`once`](WorkerOptions::once) nor [`until_empty`](WorkerOptions::until_empty) only a
    /// [`DrainSignal`] ends it, or an error that does not pass by itself.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// db.queue("mail").send("hello")?;
    /// let options = WorkerOptions::new(Duration::from_secs(30)).until_empty();
    /// let counts = db.queue("mail").worker(options)?.run(|item| match item.attempt {
    ///     1 => Err("no route to host"),
    ///     _ => Ok(()),
    /// })?;
    /// assert_eq!(counts.given_back, 1);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn run<E: fmt::Display>(
        &self,
        handler: impl Fn(&WorkItem<'_>) -> std::result::Result<(), E> + Sync,
    ) -> Result<WorkerCounts> {
        self.shared.run(self.shared.open()?, &handler)?;
        Ok(self.counts())
    }

    /// Works in the background. See [`RunningWorker`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let worker = db.queue("mail").worker(WorkerOptions::new(Duration::from_secs(30)))?;
    /// let running = worker.start(|_: &WorkItem<'_>| Ok::<(), String>(()))?;
    /// drop(running); // drained
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn start<E: fmt::Display>(
        self,
        handler: impl Fn(&WorkItem<'_>) -> std::result::Result<(), E> + Send + Sync + 'static,
    ) -> Result<RunningWorker> {
        let deliveries = self.shared.open()?;
        let shared = self.shared.clone();
        let body = move || shared.run(deliveries, &handler);
        let thread = thread::Builder::new().name("litelease worker".into()).spawn(body);
        let thread = thread.map_err(HoldError::NoThread)?;
        let pid = std::process::id();
        Ok(RunningWorker { shared: self.shared, thread: Some(thread), pid })
    }

    /// Returns a signal that drains this worker.
    pub fn drain_signal(&self) -> DrainSignal {
        DrainSignal { shared: self.shared.clone() }
    }

    /// Returns how many items it has settled so far.
    pub fn counts(&self) -> WorkerCounts {
        self.shared.work.counts()
    }
}

impl RunningWorker {
    /// Receives nothing more, waits for the handlers under way, and returns how many items were
    /// settled.
    pub fn drain(mut self) -> Result<WorkerCounts> {
        self.shared.drain();
        self.join()?;
        Ok(self.counts())
    }

    /// Returns how many items it has settled so far.
    pub fn counts(&self) -> WorkerCounts {
        self.shared.work.counts()
    }

    /// Checks whether it has ended by itself: after its one item, when the queue was empty, or
    /// because of an error, which [`drain`](RunningWorker::drain) returns.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn join(&mut self) -> Result<()> {
        // In a forked process the thread does not exist, and would be waited for in vain.
        if self.pid != std::process::id() {
            return Err(HoldError::Forked);
        }
        let ended = self.thread.take().map(JoinHandle::join);
        // A handler's panic does not get here.
        ended.unwrap_or(Ok(Ok(()))).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        if self.thread.is_some() && self.pid == std::process::id() {
            self.shared.drain();
            // A drop returns no error.
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

impl DrainSignal {
    /// Asks the worker to receive nothing more. Does not wait.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let worker = db.queue("mail").worker(WorkerOptions::new(Duration::from_secs(30)))?;
    /// worker.drain_signal().drain();
    /// assert_eq!(worker.run(|_| Ok::<(), String>(()))?.done, 0);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn drain(&self) {
        self.shared.drain();
    }
}

impl Shared {
    /// Opens a connection per handler, before any thread is started.
    fn open(&self) -> Result<Vec<FileDeliveries<Handler>>> {
        let WorkerOptions { work, on_trouble, .. } = &self.options;
        let queue = Arc::new(FileQueue::new(self.file.clone(), &self.queue, work.visibility)?);
        let open = |_| {
            let on_trouble = on_trouble.clone().map(|on_trouble| {
                Arc::new(move |error| on_trouble(&rusqlite_error(error)))
                    as Arc<dyn Fn(_) + Send + Sync>
            });
            Ok(FileDeliveries::new(Handler(self.open_one()?), &queue, on_trouble))
        };
        (0..work.handlers).map(open).collect()
    }

    fn open_one(&self) -> Result<Litelease> {
        let connection = connect(&self.file, BUSY_TIMEOUT)?;
        if let Some(setup) = &self.options.setup {
            setup(&connection)?;
        }
        Ok(Litelease::from_connection(connection))
    }

    fn run<E: fmt::Display>(
        &self,
        deliveries: Vec<FileDeliveries<Handler>>,
        handler: &(impl Fn(&WorkItem<'_>) -> std::result::Result<(), E> + Sync),
    ) -> Result<()> {
        let handler = |delivery: &Delivery<'_, FileDeliveries<Handler>>| {
            let Delivery { from, item, held, settled } = delivery;
            let db = &from.asks.0;
            let item = &db.queue(&self.queue).delivered(item);
            let item = WorkItem { item, held, db, settled };
            handler(&item).map_err(|error| error.to_string())
        };
        Ok(self.work.run(deliveries, &handler, &|| self.drain())?)
    }

    fn drain(&self) {
        self.work.drain();
        // The thread that receives may be asleep. Other waiters that this wakes read once and wait
        // on.
        FileQueue::wake(&self.file);
    }
}

/// The handle of a handler or a job, with a connection of its own.
pub(crate) struct Handler(pub(crate) Litelease);

impl Asks for Handler {
    fn with<T>(
        &self,
        work: impl FnOnce(FileLeases<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        work(self.0.in_file())
    }

    fn go_on(&self) -> Result<(), FileError> {
        Ok(())
    }

    fn longest_sleep(&self) -> Duration {
        Duration::MAX
    }
}

impl<'w> WorkItem<'w> {
    /// Returns the handle of this handler's thread, with a connection of its own.
    ///
    /// Leave no transaction open: it would block every other worker. Write effects with
    /// [`finish`](WorkItem::finish).
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     item.db().queue("audit").send(item.id)?;
    ///     Ok::<(), litelease::Error>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn db(&self) -> &'w Litelease {
        self.db
    }

    /// Checks whether the delivery can still be trusted. Once this has failed it always fails.
    pub fn check(&self) -> std::result::Result<(), Lost> {
        let checked = match self.settled.get() {
            None => self.held.check().map_err(|lost| lost.reason),
            Some(Settled::Lost) => Err(Loss::Expired),
            Some(_) => Ok(()),
        };
        checked.map_err(|reason| {
            let name = format!("{} item {}", self.queue().name(), self.id);
            Lost { name, reason }
        })
    }

    /// Checks whether another worker may have received the item.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     assert!(!item.is_lost());
    ///     Ok::<(), String>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    /// Returns for how long the delivery can be trusted from now on if no further extension
    /// succeeds.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     assert!(item.trusted_for() <= Duration::from_secs(27));
    ///     Ok::<(), String>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn trusted_for(&self) -> Duration {
        self.lost().trusted_for()
    }

    /// Returns a signal on which another thread can wait until the delivery is lost.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     assert_eq!(item.lost().wait_timeout(Duration::from_millis(1)), None);
    ///     Ok::<(), String>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn lost(&self) -> LossSignal {
        self.held.lost()
    }

    /// Writes the effect of the work and acknowledges the item, in one transaction: see
    /// [`Item::finish`]. If another worker has received the item since, everything is rolled back.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.conn().execute_batch("CREATE TABLE sent (text)")?;
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     item.finish(|tx| {
    ///         tx.conn().execute("INSERT INTO sent VALUES (?1)", [&item.body])?;
    ///         Ok(())
    ///     })
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn finish<T>(
        &self,
        effect: impl FnOnce(&Transaction<'_>) -> crate::Result<T>,
    ) -> crate::Result<T> {
        self.try_finish(effect)
    }

    /// Finishes like [`finish`](WorkItem::finish), with an effect that has errors of its own.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// let counts = db.queue("mail").worker(options)?.run(|item| {
    ///     item.try_finish(|_| Err::<(), Box<dyn std::error::Error>>("no money".into()))
    /// })?;
    /// assert_eq!(counts.given_back, 1);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn try_finish<T, E: From<Error>>(
        &self,
        effect: impl FnOnce(&Transaction<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let done = self.item.try_finish(effect)?;
        self.settle(Settled::Done);
        Ok(done)
    }

    /// Acknowledges the item before the handler ends: see [`Queue::ack`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     assert!(item.ack()?.is_acknowledged());
    ///     Ok::<(), litelease::Error>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn ack(&self) -> crate::Result<AckResult> {
        let answer = self.item.ack()?;
        if answer.is_acknowledged() {
            self.settle(Settled::Done);
        }
        Ok(answer)
    }

    /// Gives the item back at once, with no delay: see [`Queue::give_back`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// let counts = db.queue("mail").worker(options)?.run(|item| {
    ///     item.give_back()?; // not for us
    ///     Ok::<(), litelease::Error>(())
    /// })?;
    /// assert_eq!(counts.given_back, 1);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn give_back(&self) -> crate::Result<bool> {
        self.give_back_with(GiveBackOptions::new())
    }

    /// Gives the item back with a delay or a note of the handler's choice: see
    /// [`Queue::give_back_with`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// db.queue("mail").worker(options)?.run(|item| {
    ///     item.give_back_with(GiveBackOptions::new().delay(Duration::from_secs(3600)))?;
    ///     Ok::<(), litelease::Error>(())
    /// })?;
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn give_back_with(&self, options: GiveBackOptions<'_>) -> crate::Result<bool> {
        let given_back = self.item.give_back_with(options)?;
        // An item that is dead by now stays dead: its last receipt would acknowledge it.
        self.settle(if given_back { Settled::GivenBack } else { Settled::Lost });
        Ok(given_back)
    }

    /// Makes the item dead at once: see [`Queue::bury`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.queue("mail").send("hello")?;
    /// # let options = WorkerOptions::new(Duration::from_secs(30)).once();
    /// let counts = db.queue("mail").worker(options)?.run(|item| {
    ///     item.bury(Some("no such customer"))?;
    ///     Ok::<(), litelease::Error>(())
    /// })?;
    /// assert_eq!(counts.buried, 1);
    /// # Ok::<(), HoldError>(())
    /// ```
    pub fn bury(&self, note: Option<&str>) -> crate::Result<bool> {
        let buried = self.item.bury(note)?;
        if buried {
            self.settle(Settled::Buried);
        }
        Ok(buried)
    }

    /// Records how the work has ended, before the handler returns. The delivery is no longer
    /// extended.
    fn settle(&self, settled: Settled) {
        self.settled.set(Some(settled));
        abandon(self.held);
    }
}

impl<'w> Deref for WorkItem<'w> {
    type Target = Item<'w>;

    fn deref(&self) -> &Item<'w> {
        self.item
    }
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerOptions").field("work", &self.work).finish_non_exhaustive()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Worker").field(&self.shared.queue).finish()
    }
}

impl fmt::Debug for RunningWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunningWorker").field(&self.shared.queue).finish()
    }
}

impl fmt::Debug for DrainSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DrainSignal").field(&self.shared.queue).finish()
    }
}

/// Leaves out the receipt, which is a secret, and the body.
impl fmt::Debug for WorkItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkItem").field(self.item).finish()
    }
}
