//! A worker of a queue on a server: threads that receive items, have them extended while a handler
//! works, and acknowledge them or give them back.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use litelease::rusqlite::types::Value as Body;
use litelease::{HoldError, Loss, WorkerCounts, backoff};
use litelease_client::{Client, Error, HeldItem, Item, Queue};

use super::server::stored;
use super::{Handler, Options, WorkItem, Worker};
use crate::exit::Result;
use crate::place::{Trust, failure};

/// The longest wait of one request: so long a worker that is drained may take to notice.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// For how long a receive is repeated before the trouble is told.
const PATIENCE: Duration = Duration::from_secs(3);

/// The time between two attempts at a server that has failed.
const TROUBLE_PAUSE: Duration = Duration::from_millis(250);

/// The time between two looks at a queue that was empty, while commands still run.
const EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// The most commands at once, as on a file.
const MOST_JOBS: usize = 1_000;

/// The most bytes that the note on an item may have.
const LONGEST_NOTE: usize = 1000;

pub(super) struct ServerWorker {
    client: Client,
    queue: String,
    options: Options,
    state: Mutex<State>,
    /// Held by the one thread that asks for the next item. The others wait for it.
    door: Mutex<()>,
}

#[derive(Default)]
struct State {
    is_draining: bool,
    /// The server has answered once.
    was_heard: bool,
    counts: WorkerCounts,
}

/// How the work on an item ended.
#[derive(Clone, Copy)]
enum Settled {
    Done,
    GivenBack,
    Buried,
    Lost,
}

impl ServerWorker {
    pub(super) fn new(client: Client, queue: &str, options: Options) -> Result<Self> {
        let wrong = |text| Err(HoldError::InvalidWorker(text).into());
        if !(1..=MOST_JOBS).contains(&options.jobs) {
            return wrong("a worker has 1 to 1,000 handlers");
        }
        if options.backoff > options.max_backoff {
            return wrong(
                "the first delay must not be longer than the longest, which is at most a year",
            );
        }
        let (state, door) = (Mutex::default(), Mutex::default());
        Ok(ServerWorker { client, queue: queue.into(), options, state, door })
    }

    fn queue(&self) -> Queue<'_> {
        self.client.queue(&self.queue)
    }

    fn handle_all(&self, handler: &Handler<'_>) -> Result<()> {
        while let Some(item) = self.next()? {
            let settled = self.work_on(item, handler);
            let mut state = self.state();
            state.counts.running -= 1;
            *match settled.as_ref().copied().unwrap_or(Settled::Lost) {
                Settled::Done => &mut state.counts.done,
                Settled::GivenBack => &mut state.counts.given_back,
                Settled::Buried => &mut state.counts.buried,
                Settled::Lost => &mut state.counts.lost,
            } += 1;
            drop(state);
            settled?;
        }
        Ok(())
    }

    /// Waits for the next item. `None` if the worker is to end.
    fn next(&self) -> Result<Option<Item>> {
        let _door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        let Options { visibility, once, drain, .. } = self.options;
        // Trust begins with the request, so it must not wait for long.
        let wait = if drain { Duration::ZERO } else { LONGEST_WAIT.min(visibility / 4) };
        while !self.state().is_draining {
            match self.queue().receive_within(visibility, wait, PATIENCE.min(visibility)) {
                Ok(Some(item)) => {
                    let mut state = self.state();
                    state.was_heard = true;
                    state.counts.running += 1;
                    state.is_draining |= once;
                    return Ok(Some(item));
                }
                Ok(None) => {
                    self.state().was_heard = true;
                    match drain {
                        // A handler may send, and what it gives back may be visible at once.
                        true if self.state().counts.running == 0 => self.drain(),
                        true => thread::sleep(EMPTY_PAUSE),
                        false => {}
                    }
                }
                Err(error) => {
                    self.pass(error)?;
                    thread::sleep(TROUBLE_PAUSE);
                }
            }
        }
        Ok(None)
    }

    /// Has an item extended, hands it to the handler, and settles it unless the handler did.
    fn work_on(&self, item: Item, handler: &Handler<'_>) -> Result<Settled> {
        let receipt = item.receipt.clone();
        let held = match self.queue().keep(item, self.options.visibility) {
            Ok(held) => held,
            // Another worker may have it by now.
            Err(Error::Stale { .. } | Error::Lost(_) | Error::Unreachable(_)) => {
                return Ok(Settled::Lost);
            }
            Err(error) => {
                // Nobody would extend it.
                let _ = self.queue().give_back(&receipt, Duration::ZERO, None);
                return Err(failure(error));
            }
        };
        let body = stored(held.body.clone());
        let work = OnServer { worker: self, held, body, settled: Cell::new(None) };
        let note = handler(&work).err();
        if let Some(settled) = work.settled.get() {
            return Ok(settled);
        }
        match note {
            None => self.insist(&work, || match self.queue().ack(&receipt) {
                // Acknowledged by the command itself, or by a request whose answer was lost.
                Err(Error::Stale { reason }) if reason == "gone" => Ok(Settled::Done),
                acked => acked.map(|()| Settled::Done),
            }),
            Some(note) => {
                let (first, longest) = (self.options.backoff, self.options.max_backoff);
                let delay = backoff(first, longest, work.held.attempt, work.held.token);
                self.insist(&work, || {
                    let given_back = self.queue().give_back(&receipt, delay, Some(cut(&note)));
                    given_back.map(|()| Settled::GivenBack)
                })
            }
        }
    }

    /// Tries until it succeeds, as long as the item is this worker's.
    fn insist(
        &self,
        work: &OnServer<'_>,
        settle: impl Fn() -> std::result::Result<Settled, Error>,
    ) -> Result<Settled> {
        loop {
            match settle() {
                Ok(settled) => return Ok(settled),
                Err(Error::Stale { .. }) => return Ok(Settled::Lost),
                Err(error) => self.pass(error)?,
            }
            if work.held.check().is_err() {
                return Ok(Settled::Lost);
            }
            thread::sleep(TROUBLE_PAUSE);
        }
    }

    /// Reports an error that may pass, and returns any other. A server that was never heard of may
    /// not be there at all.
    fn pass(&self, error: Error) -> Result<()> {
        let may_pass = match &error {
            Error::Unreachable(_) => self.state().was_heard,
            Error::Refused { status: 429, .. } => true,
            _ => false,
        };
        if !may_pass {
            return Err(failure(error));
        }
        (self.options.on_trouble)("Server", &error.to_string());
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker for ServerWorker {
    fn run(&self, handler: &Handler<'_>) -> Result<WorkerCounts> {
        thread::scope(|scope| {
            let mut result = Ok(());
            let mut threads = Vec::with_capacity(self.options.jobs);
            for _ in 0..self.options.jobs {
                // One that cannot go on ends the others, too.
                let body = || self.handle_all(handler).inspect_err(|_| self.drain());
                match thread::Builder::new().name("handler".into()).spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        self.drain();
                        result = Err(error.into());
                        break;
                    }
                }
            }
            for thread in threads {
                let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                result = result.and(ended);
            }
            result
        })?;
        Ok(self.counts())
    }

    fn drain(&self) {
        self.state().is_draining = true;
    }

    fn counts(&self) -> WorkerCounts {
        self.state().counts
    }
}

/// An item in the hands of a handler.
struct OnServer<'w> {
    worker: &'w ServerWorker,
    held: HeldItem,
    body: Body,
    settled: Cell<Option<Settled>>,
}

impl WorkItem for OnServer<'_> {
    fn id(&self) -> i64 {
        self.held.id
    }

    fn attempt(&self) -> i64 {
        self.held.attempt
    }

    fn token(&self) -> i64 {
        self.held.token
    }

    fn receipt(&self) -> &str {
        &self.held.receipt
    }

    fn body(&self) -> &Body {
        &self.body
    }

    fn trust(&self) -> Box<dyn Trust + Send + Sync> {
        Box::new(self.held.clone())
    }

    fn give_back(&self, note: &str) -> bool {
        let queue = self.worker.queue();
        let done = queue.give_back(&self.held.receipt, Duration::ZERO, Some(cut(note))).is_ok();
        self.settled.set(done.then_some(Settled::GivenBack));
        done
    }

    fn bury(&self, note: &str) -> bool {
        let done = self.worker.queue().bury(&self.held.receipt, Some(cut(note))).is_ok();
        self.settled.set(done.then_some(Settled::Buried));
        done
    }
}

impl Trust for HeldItem {
    fn trusted_for(&self) -> Duration {
        HeldItem::trusted_for(self)
    }

    fn reason(&self) -> Option<Loss> {
        self.trouble()
    }
}

/// Shortens a note to what an item may carry.
fn cut(note: &str) -> &str {
    let mut end = note.len().min(LONGEST_NOTE);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    &note[..end]
}
