//! Workers: threads that receive the items of a queue, extend their deliveries while a handler
//! works, and acknowledge them or give them back.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use litelease_core::{MAX_NOTE, backoff};
use litelease_hold::{
    Bell, Clock, HeldGrant, Hold, Keeper, Kept, ProcessKeeper, Renewal, Rows, SystemClock, Waiter,
    Window, nap,
};
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::delivered_rows::DeliveredRows;
use crate::error::failure;
use crate::file::has_moved;
use crate::hold::keep;
use crate::{
    AckResult, Error, GiveBackOptions, HoldError, Item, Litelease, Loss, LossSignal, Lost, Queue,
    StaleReason, Transaction,
};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// The keeper of the deliveries of this process.
pub(crate) static DELIVERIES: ProcessKeeper = ProcessKeeper::new();

/// The most handlers of one worker: each has a thread and a connection.
const MOST_HANDLERS: usize = 1_000;

/// The longest visibility: a worker extends anyway, and a dead one should be noticed.
const LONGEST_VISIBILITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The time between two attempts at a file that cannot be written now.
const TROUBLE_PAUSE: Duration = Duration::from_millis(250);

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
    visibility: Duration,
    handlers: usize,
    first_delay: Duration,
    longest_delay: Duration,
    once: bool,
    until_empty: bool,
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

/// How many items a worker has dealt with.
///
/// ```
/// # use litelease::WorkerCounts;
/// assert_eq!(WorkerCounts::default().done, 0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerCounts {
    /// Items that handlers are working on.
    pub running: u64,
    /// Items that were acknowledged.
    pub done: u64,
    /// Items that were given back.
    pub given_back: u64,
    /// Items that were buried.
    pub buried: u64,
    /// Items whose receipt no longer passed when the handler had ended, or that could not be
    /// acknowledged or given back in time. They are delivered again.
    pub lost: u64,
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
    item: Item<'w>,
    kept: &'w Kept,
    db: &'w Litelease,
    settled: Cell<Option<Settled>>,
}

/// How the work on an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Settled {
    Done,
    GivenBack,
    Buried,
    Lost,
}

/// What the threads of a worker share.
struct Shared {
    file: String,
    queue: String,
    options: WorkerOptions,
    window: Window,
    state: Mutex<State>,
    /// Held by the one thread that looks for the next item. The others wait for it instead of
    /// asking the file, too.
    door: Mutex<()>,
}

#[derive(Default)]
struct State {
    is_draining: bool,
    counts: WorkerCounts,
}

impl WorkerOptions {
    /// Returns options for a worker with one handler. An item is hidden for `visibility` at a time
    /// and extended while its handler works, so it is how long others wait for the items of a
    /// worker that died: more than 100 ms, at most a year.
    pub fn new(visibility: Duration) -> Self {
        WorkerOptions {
            visibility,
            handlers: 1,
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(3600),
            once: false,
            until_empty: false,
            setup: None,
            on_trouble: None,
        }
    }

    /// Works on up to so many items at once, 1 to 1,000.
    pub fn handlers(self, handlers: usize) -> Self {
        WorkerOptions { handlers, ..self }
    }

    /// Hides an item for `first` after its first failure, for twice as long after each further
    /// one, and never for longer than `longest`; less up to a half, by chance. Unless set, from one
    /// second to one hour.
    pub fn backoff(self, first: Duration, longest: Duration) -> Self {
        WorkerOptions { first_delay: first, longest_delay: longest, ..self }
    }

    /// Ends after one item, which it waits for.
    pub fn once(self) -> Self {
        WorkerOptions { once: true, ..self }
    }

    /// Ends when no item is visible and no handler of this worker is at work. Items that are
    /// delayed, or with other workers, are left to others.
    pub fn until_empty(self) -> Self {
        WorkerOptions { until_empty: true, ..self }
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

    fn check(&self) -> Result<Window> {
        let wrong = |what| Err(HoldError::InvalidWorker(what));
        if !(1..=MOST_HANDLERS).contains(&self.handlers) {
            return wrong("a worker has 1 to 1,000 handlers");
        }
        if self.visibility > LONGEST_VISIBILITY {
            return wrong("the visibility is too long: give at most a year, it is extended anyway");
        }
        if self.longest_delay > LONGEST_VISIBILITY || self.first_delay > self.longest_delay {
            return wrong(
                "the first delay must not be longer than the longest, which is at most a year",
            );
        }
        let window = Window::new(self.visibility);
        window.ok_or(HoldError::InvalidWorker(
            "the visibility is too short to be extended: give more than 100 ms",
        ))
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
        let window = options.check()?;
        let store = self.leases.store();
        if store.is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        if self.connection.is_none() {
            // The connection may be another library's, and two of them on one file drop each
            // other's locks.
            let text =
                "a worker opens connections of its own: ask a Litelease or LiteleaseRef for it";
            return Err(failure(text).into());
        }
        let file = store.file().ok_or(HoldError::InMemory)?;
        let (state, door) = (Mutex::default(), Mutex::default());
        let queue = self.name.into();
        Ok(Worker { shared: Arc::new(Shared { file, queue, options, window, state, door }) })
    }
}

impl Worker {
    /// Works until it is drained, and returns what was done. With neither
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
        self.shared.work(self.shared.open()?, &handler)?;
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
        let connections = self.shared.open()?;
        let shared = self.shared.clone();
        let body = move || shared.work(connections, &handler);
        let thread = named("litelease worker").spawn(body).map_err(HoldError::NoThread)?;
        let pid = std::process::id();
        Ok(RunningWorker { shared: self.shared, thread: Some(thread), pid })
    }

    /// Returns a signal that drains this worker.
    pub fn drain_signal(&self) -> DrainSignal {
        DrainSignal { shared: self.shared.clone() }
    }

    /// Returns what was done so far.
    pub fn counts(&self) -> WorkerCounts {
        self.shared.state().counts
    }
}

impl RunningWorker {
    /// Receives nothing more, waits for the handlers under way, and returns what was done.
    pub fn drain(mut self) -> Result<WorkerCounts> {
        self.shared.drain();
        self.join()?;
        Ok(self.counts())
    }

    /// Returns what was done so far.
    pub fn counts(&self) -> WorkerCounts {
        self.shared.state().counts
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
            // A drop cannot tell.
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
    fn open(&self) -> Result<Vec<Litelease>> {
        (0..self.options.handlers).map(|_| self.open_one()).collect()
    }

    fn open_one(&self) -> Result<Litelease> {
        // Never created: if it has just been deleted, nobody else would see the new one's items.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.file, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        if let Some(setup) = &self.options.setup {
            setup(&connection)?;
        }
        Ok(Litelease::from_connection(connection))
    }

    fn work<E: fmt::Display>(
        &self,
        connections: Vec<Litelease>,
        handler: &(impl Fn(&WorkItem<'_>) -> std::result::Result<(), E> + Sync),
    ) -> Result<()> {
        let keeper = &*DELIVERIES.get()?;
        let waiter = &Waiter::at(Path::new(&self.file));
        thread::scope(|scope| {
            let mut threads = Vec::with_capacity(connections.len());
            let mut result = Ok(());
            for db in connections {
                let body = move || {
                    // One that cannot go on ends the others, too.
                    self.handle_all(&db, keeper, waiter, handler).inspect_err(|_| self.drain())
                };
                match named("litelease handler").spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        self.drain();
                        result = Err(HoldError::NoThread(error));
                        break;
                    }
                }
            }
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(ended);
            }
            result
        })
    }

    /// One thread: item after item, until the worker is drained.
    fn handle_all<E: fmt::Display>(
        &self,
        db: &Litelease,
        keeper: &Keeper,
        waiter: &Waiter,
        handler: &impl Fn(&WorkItem<'_>) -> std::result::Result<(), E>,
    ) -> Result<()> {
        // The keeper closes its connection when it has nothing to keep. The last delivery, although
        // over, keeps it open until the next one.
        let mut last = None;
        while let Some((item, start)) = self.next(db, waiter)? {
            let handled = self.keep(keeper, &item, start).and_then(|kept| {
                let kept: &Kept = last.insert(kept);
                let work = WorkItem { item, kept, db, settled: Cell::new(None) };
                let settled = self.handle(&work, handler);
                work.end();
                settled
            });
            let settled = handled.as_ref().copied().unwrap_or(Settled::Lost);
            self.state().counts.add(settled);
            handled?;
        }
        Ok(())
    }

    /// Waits for the next item, and receives it. Returns when the receive began, too. `None` if the
    /// worker is to end.
    fn next<'d>(
        &'d self,
        db: &'d Litelease,
        waiter: &Waiter,
    ) -> Result<Option<(Item<'d>, Duration)>> {
        let _door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            // What is heard from here on happened after we looked.
            let heard = waiter.heard();
            if self.state().is_draining {
                return Ok(None);
            }
            if has_moved(db.conn()) {
                return Err(HoldError::FileMoved(self.file.clone()));
            }
            let start = SystemClock.now();
            match self.receive(db) {
                Ok(Received::Item(item)) => {
                    // Asked again: nobody else opens that file any more.
                    if has_moved(db.conn()) {
                        return Err(HoldError::FileMoved(self.file.clone()));
                    }
                    let mut state = self.state();
                    state.counts.running += 1;
                    state.is_draining |= self.options.once;
                    return Ok(Some((item, start)));
                }
                Ok(Received::NothingFor(time_ms)) => match self.is_over() {
                    true => self.drain(),
                    false => waiter.nap(heard, nap(time_ms, self.longest_nap())),
                },
                Err(error) => {
                    self.pass(error)?;
                    thread::sleep(TROUBLE_PAUSE);
                }
            }
        }
    }

    /// Receives an item, or returns for how many milliseconds there will be none unless something
    /// happens.
    fn receive<'d>(&'d self, db: &'d Litelease) -> crate::Result<Received<'d>> {
        let queue = db.queue(&self.queue);
        // Asked without the write lock: an idle worker must not be in anybody's way.
        let left_ms = match queue.next_visible()? {
            None => return Ok(Received::NothingFor(i64::MAX)),
            Some(at_ms) => at_ms.saturating_sub(crate::now_ms()),
        };
        if left_ms > 0 {
            return Ok(Received::NothingFor(left_ms));
        }
        let item = queue.receive(self.options.visibility)?;
        // Another worker was quicker; look again.
        Ok(item.map_or(Received::NothingFor(0), Received::Item))
    }

    /// Checks whether a worker that ends with its queue is to end, when nothing is visible.
    fn is_over(&self) -> bool {
        // A handler may send, and what it gives back may be visible at once.
        self.options.until_empty && self.state().counts.running == 0
    }

    fn longest_nap(&self) -> Duration {
        match self.options.until_empty {
            true => Duration::from_millis(20),
            false => Duration::MAX,
        }
    }

    fn keep(&self, keeper: &Keeper, item: &Item<'_>, start: Duration) -> Result<Kept> {
        let grant = HeldGrant {
            name: self.queue.clone(),
            owner: item.receipt.clone(),
            token: item.token,
            ttl: self.options.visibility,
        };
        let hold =
            || Hold::new(grant.clone(), self.window, start, Renewal::whole(item.deadline_ms));
        let open = || Ok(Box::new(DeliveredRows::open(&self.file)?) as Box<dyn Rows>);
        keep(keeper, &self.file, hold, open, BUSY_TIMEOUT).inspect_err(|_| {
            // Nobody would extend it.
            let _ = item.give_back();
        })
    }

    /// Calls the handler, and acknowledges the item or gives it back unless the handler did.
    fn handle<E: fmt::Display>(
        &self,
        work: &WorkItem<'_>,
        handler: &impl Fn(&WorkItem<'_>) -> std::result::Result<(), E>,
    ) -> Result<Settled> {
        let called = catch_unwind(AssertUnwindSafe(|| handler(work)));
        let mut note = match called {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("the handler panicked: {}", words(&*panic))),
        };
        let connection = work.db.conn();
        if !connection.is_autocommit() {
            // It would block everybody, and what is in it was never finished.
            connection.execute_batch("ROLLBACK")?;
            note.get_or_insert_with(|| "the handler left a transaction open".into());
        }
        if let Some(settled) = work.settled.get() {
            return Ok(settled);
        }
        match note {
            None => self.insist(work, || {
                Ok(match work.item.ack()? {
                    // Acknowledged by the handler in its own way, or by an attempt whose answer was
                    // lost.
                    AckResult::Acknowledged | AckResult::Stale { reason: StaleReason::Gone } => {
                        Settled::Done
                    }
                    AckResult::Stale { .. } => Settled::Lost,
                })
            }),
            Some(note) => {
                let WorkerOptions { first_delay, longest_delay, .. } = self.options;
                let delay = backoff(first_delay, longest_delay, work.attempt, work.token);
                let options = GiveBackOptions::new().delay(delay).note(cut(&note));
                self.insist(work, || {
                    let given_back = work.item.give_back_with(options)?;
                    Ok(if given_back { Settled::GivenBack } else { Settled::Lost })
                })
            }
        }
    }

    /// Tries until it succeeds, as long as the delivery is this worker's.
    fn insist(
        &self,
        work: &WorkItem<'_>,
        settle: impl Fn() -> crate::Result<Settled>,
    ) -> Result<Settled> {
        loop {
            match settle() {
                Ok(settled) => return Ok(settled),
                Err(error) => self.pass(error)?,
            }
            if work.is_lost() {
                return Ok(Settled::Lost);
            }
            thread::sleep(TROUBLE_PAUSE);
        }
    }

    /// Reports an error that may pass, and returns any other.
    fn pass(&self, error: Error) -> Result<()> {
        if !may_pass(&error) {
            return Err(error.into());
        }
        if let Some(on_trouble) = &self.options.on_trouble {
            on_trouble(&error);
        }
        Ok(())
    }

    fn drain(&self) {
        self.state().is_draining = true;
        // The thread that looks for items may be asleep. Others that hear it look once.
        if let Some(bell) = Bell::find(Path::new(&self.file)) {
            bell.ring();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Received<'d> {
    Item(Item<'d>),
    NothingFor(i64),
}

impl WorkerCounts {
    fn add(&mut self, settled: Settled) {
        self.running -= 1;
        *match settled {
            Settled::Done => &mut self.done,
            Settled::GivenBack => &mut self.given_back,
            Settled::Buried => &mut self.buried,
            Settled::Lost => &mut self.lost,
        } += 1;
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
            None => self.kept.hold.check(SystemClock.now()),
            Some(Settled::Lost) => Err(Loss::Expired),
            Some(_) => Ok(()),
        };
        checked.map_err(|reason| {
            let name = format!("{} item {}", self.item.queue().name(), self.item.id);
            Lost { name, reason }
        })
    }

    /// Checks whether another worker may have the item.
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
        LossSignal::new(self.kept.hold.clone())
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
        // An item that is dead by now stays so: its last receipt would acknowledge it.
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

    fn settle(&self, settled: Settled) {
        self.settled.set(Some(settled));
        self.end();
    }

    /// Nothing is extended any more. No row is touched.
    fn end(&self) {
        let _ = self.kept.release(Duration::ZERO);
    }
}

impl<'w> Deref for WorkItem<'w> {
    type Target = Item<'w>;

    fn deref(&self) -> &Item<'w> {
        &self.item
    }
}

/// Checks whether trying again may help: the file is locked, the disk is full or fails.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::CommitUnknown(_) | Error::ExpiredOnArrival(_) => true,
        Error::Sqlite(error) => matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::OutOfMemory
            )
        ),
        _ => false,
    }
}

/// Returns what a panic said.
fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Shortens a note to what an item may carry.
fn cut(note: &str) -> &str {
    let mut end = note.len().min(MAX_NOTE);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    &note[..end]
}

fn named(name: &str) -> thread::Builder {
    thread::Builder::new().name(name.into())
}

impl fmt::Debug for WorkerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkerOptions { visibility, handlers, once, until_empty, .. } = self;
        f.debug_struct("WorkerOptions")
            .field("visibility", visibility)
            .field("handlers", handlers)
            .field("once", once)
            .field("until_empty", until_empty)
            .finish_non_exhaustive()
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

/// Without the receipt, which is a secret, and without the body.
impl fmt::Debug for WorkItem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WorkItem").field(&self.item).finish()
    }
}
