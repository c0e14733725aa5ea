//! The one loop of a worker: receive an item, have its delivery extended while a handler works, and
//! acknowledge it or give it back.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use litelease_core::{MAX_NOTE, backoff};

use crate::{Clock, Held, HoldError, SystemClock, Window, abandon};

/// The most handlers of one worker: each has a thread and a connection.
const MOST_HANDLERS: usize = 1_000;

/// The longest visibility: a worker extends anyway, and a dead one should be noticed.
const LONGEST_VISIBILITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The time between two attempts at a place that has failed.
const TROUBLE_PAUSE: Duration = Duration::from_millis(250);

/// The longest sleep of a worker that ends when its queue is empty.
const UNTIL_EMPTY_PAUSE: Duration = Duration::from_millis(20);

/// The queue of a worker in some place, as one of its handlers uses it. Extending deliveries is the
/// keeper's.
pub trait Deliveries {
    /// An item that was received.
    type Item<'d>
    where
        Self: 'd;
    /// The error of its verbs.
    type Error: Send;

    /// Receives an item. It may wait for one for `wait`, if the place has a queue of waiters.
    fn receive(&self, wait: Duration) -> Result<Received<Self::Item<'_>>, Self::Error>;

    /// Extends the delivery in the background. `start` is when the receive began.
    fn keep(&self, item: &Self::Item<'_>, start: Duration) -> Result<Held, HoldError<Self::Error>>;

    /// Acknowledges the item.
    fn ack(&self, item: &Self::Item<'_>) -> Result<Settled, Self::Error>;

    /// Gives the item back, hidden for `delay`, with a note.
    fn give_back(
        &self,
        item: &Self::Item<'_>,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<Settled, Self::Error>;

    /// Cleans up what a handler has left open. Returns a note for the item if that was wrong.
    fn tidy(&self) -> Result<Option<&'static str>, Self::Error>;

    /// Sleeps until an item may be visible since the last receive, for at most this long.
    fn wait(&self, time: Duration);

    /// Reports an error that may pass, and returns any other.
    fn report(&self, error: Self::Error) -> Result<(), Self::Error>;

    /// Returns the attempt and the token of an item.
    fn attempt_and_token(item: &Self::Item<'_>) -> (i64, i64);
}

/// The answer to a receive.
#[derive(Debug)]
pub enum Received<I> {
    /// An item, delivered to this worker.
    Item(I),
    /// No item is visible, and none will be for this long unless a client sends one or gives one
    /// back.
    Nothing(Duration),
}

/// How the work on an item ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was acknowledged.
    Done,
    /// It was given back.
    GivenBack,
    /// It was made dead.
    Buried,
    /// Another worker may have it.
    Lost,
}

/// How many items a worker has dealt with.
///
/// ```
/// # use litelease_hold::WorkerCounts;
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

/// How a worker works.
#[derive(Clone, Copy, Debug)]
pub struct WorkOptions {
    /// How long an item is hidden from others at a time.
    pub visibility: Duration,
    /// How many items it works on at once.
    pub handlers: usize,
    /// How long an item is hidden after its first failure.
    pub first_delay: Duration,
    /// The longest time that an item is hidden after a failure.
    pub longest_delay: Duration,
    /// Ends after one item.
    pub once: bool,
    /// Ends when no item is visible and no handler is at work.
    pub until_empty: bool,
}

/// A worker: what its threads share.
#[derive(Debug)]
pub struct Work {
    options: WorkOptions,
    state: Mutex<State>,
    /// Held by the one thread that asks for the next item. The others wait for it instead of asking
    /// the place, too.
    receiving: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    is_draining: bool,
    counts: WorkerCounts,
}

/// An item in the hands of a handler.
pub struct Delivery<'w, D: Deliveries + 'w> {
    /// Where it came from.
    pub from: &'w D,
    /// The item.
    pub item: D::Item<'w>,
    /// The hold on its delivery.
    pub held: &'w Held,
    /// How the work has ended, if the handler has ended it. It ends the hold, too.
    pub settled: Cell<Option<Settled>>,
}

impl WorkOptions {
    /// Returns options for a worker with one handler, which waits for items until it is drained. An
    /// item that fails is hidden for a second at first, and for an hour at most.
    pub fn new(visibility: Duration) -> Self {
        WorkOptions {
            visibility,
            handlers: 1,
            first_delay: Duration::from_secs(1),
            longest_delay: Duration::from_secs(3600),
            once: false,
            until_empty: false,
        }
    }

    /// Returns what is wrong with these options, in words.
    fn check(&self) -> Result<(), &'static str> {
        if !(1..=MOST_HANDLERS).contains(&self.handlers) {
            return Err("a worker has 1 to 1,000 handlers");
        }
        if self.visibility > LONGEST_VISIBILITY {
            return Err("the visibility is too long: give at most a year, it is extended anyway");
        }
        if self.longest_delay > LONGEST_VISIBILITY || self.first_delay > self.longest_delay {
            return Err(
                "the first delay must not be longer than the longest, which is at most a year",
            );
        }
        match Window::new(self.visibility) {
            Some(_) => Ok(()),
            None => Err("the visibility is too short to be extended: give more than 100 ms"),
        }
    }
}

impl Work {
    /// Returns a worker that has not begun, or what is wrong with its options.
    pub fn new(options: WorkOptions) -> Result<Self, &'static str> {
        options.check()?;
        Ok(Work { options, state: Mutex::default(), receiving: Mutex::default() })
    }

    /// Returns how it works.
    pub fn options(&self) -> &WorkOptions {
        &self.options
    }

    /// Returns what was done so far.
    pub fn counts(&self) -> WorkerCounts {
        self.state().counts
    }

    /// Receives nothing more. A handler that sleeps in [`Deliveries::wait`] must be woken by the
    /// caller.
    pub fn drain(&self) {
        self.state().is_draining = true;
    }

    /// Works until it is drained, with a thread for each of these handles.
    pub fn run<D: Deliveries + Send + 'static>(
        &self,
        deliveries: Vec<D>,
        handler: &(impl Fn(&Delivery<'_, D>) -> Result<(), String> + Sync),
        drain: &(impl Fn() + Sync),
    ) -> Result<(), HoldError<D::Error>> {
        thread::scope(|scope| {
            let mut threads = Vec::with_capacity(deliveries.len());
            let mut result = Ok(());
            for from in deliveries {
                // One that cannot go on ends the others, too.
                let body = move || self.handle_all(&from, handler).inspect_err(|_| drain());
                let thread = thread::Builder::new().name("litelease handler".into());
                match thread.spawn_scoped(scope, body) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        drain();
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

    /// Handles item after item, until the worker is drained.
    fn handle_all<D: Deliveries + 'static>(
        &self,
        from: &D,
        handler: &impl Fn(&Delivery<'_, D>) -> Result<(), String>,
    ) -> Result<(), HoldError<D::Error>> {
        // The keeper closes its connection when it has nothing to keep. The last delivery, although
        // over, keeps it open until the next one.
        let mut last = None;
        while let Some((item, start)) = self.next(from)? {
            let Some(held) = self.keep(from, &item, start)? else { continue };
            let held: &Held = last.insert(held);
            let delivery = Delivery { from, item, held, settled: Cell::new(None) };
            let called = catch_unwind(AssertUnwindSafe(|| handler(&delivery)));
            let note = match called {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error),
                Err(panic) => Some(format!("the handler panicked: {}", message(&*panic))),
            };
            let Delivery { item, settled, .. } = delivery;
            let is_held = || held.check().is_ok();
            let settled = self.settle(from, &item, settled.get(), note, is_held);
            abandon(held);
            settled.map_err(HoldError::Lease)?;
        }
        Ok(())
    }

    /// Extends the delivery of an item in the background. Returns none if another worker may have
    /// it by now.
    pub fn keep<D: Deliveries>(
        &self,
        from: &D,
        item: &D::Item<'_>,
        start: Duration,
    ) -> Result<Option<Held>, HoldError<D::Error>> {
        let kept = from.keep(item, start);
        if kept.is_err() {
            self.state().counts.add(Settled::Lost);
        }
        match kept {
            Ok(held) => Ok(Some(held)),
            Err(HoldError::Lost(_)) => Ok(None),
            Err(error) => {
                // No keeper would extend it.
                let _ = from.give_back(item, Duration::ZERO, None);
                Err(error)
            }
        }
    }

    /// Waits for the next item, and receives it. Returns when the receive began, too. `None` if the
    /// worker is to end.
    #[allow(clippy::type_complexity)] // an item, and when its receive began
    pub fn next<'d, D: Deliveries>(
        &self,
        from: &'d D,
    ) -> Result<Option<(D::Item<'d>, Duration)>, HoldError<D::Error>> {
        let _receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        let WorkOptions { once, until_empty, .. } = self.options;
        let wait = if until_empty { Duration::ZERO } else { Duration::MAX };
        while !self.state().is_draining {
            let start = SystemClock.now();
            match from.receive(wait) {
                Ok(Received::Item(item)) => {
                    let mut state = self.state();
                    state.counts.running += 1;
                    state.is_draining |= once;
                    return Ok(Some((item, start)));
                }
                // A handler may send, and what it gives back may be visible at once.
                Ok(Received::Nothing(_)) if until_empty && self.counts().running == 0 => {
                    self.drain();
                }
                // Drained meanwhile. From here on, the caller of `drain` wakes a thread that waits.
                Ok(Received::Nothing(_)) if self.state().is_draining => {}
                Ok(Received::Nothing(time)) => {
                    let longest = if until_empty { UNTIL_EMPTY_PAUSE } else { Duration::MAX };
                    from.wait(time.min(longest));
                }
                Err(error) => {
                    from.report(error).map_err(HoldError::Lease)?;
                    thread::sleep(TROUBLE_PAUSE);
                }
            }
        }
        Ok(None)
    }

    /// Acknowledges an item whose handler has ended, or gives it back with a note, unless the
    /// handler has `settled` it. Tries again as long as it is held.
    pub fn settle<D: Deliveries>(
        &self,
        from: &D,
        item: &D::Item<'_>,
        settled: Option<Settled>,
        note: Option<String>,
        is_held: impl Fn() -> bool,
    ) -> Result<Settled, D::Error> {
        let settle = |mut note: Option<String>| {
            if let Some(left_open) = from.tidy()? {
                note.get_or_insert_with(|| left_open.into());
            }
            match (settled, note) {
                (Some(settled), _) => Ok(settled),
                (None, None) => retry(from, &is_held, || from.ack(item)),
                (None, Some(note)) => {
                    let (attempt, token) = D::attempt_and_token(item);
                    let WorkOptions { first_delay, longest_delay, .. } = self.options;
                    let delay = backoff(first_delay, longest_delay, attempt, token);
                    retry(from, &is_held, || from.give_back(item, delay, Some(cut(&note))))
                }
            }
        };
        let settled = settle(note);
        self.state().counts.add(*settled.as_ref().unwrap_or(&Settled::Lost));
        settled
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tries until it succeeds, as long as the delivery is this worker's.
fn retry<D: Deliveries>(
    from: &D,
    is_held: &impl Fn() -> bool,
    settle: impl Fn() -> Result<Settled, D::Error>,
) -> Result<Settled, D::Error> {
    loop {
        match settle() {
            Ok(settled) => return Ok(settled),
            Err(error) => from.report(error)?,
        }
        if !is_held() {
            return Ok(Settled::Lost);
        }
        thread::sleep(TROUBLE_PAUSE);
    }
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

/// Returns the message of a panic.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// Shortens a note to what an item may carry.
pub fn cut(note: &str) -> &str {
    let mut end = note.len().min(MAX_NOTE);
    while !note.is_char_boundary(end) {
        end -= 1;
    }
    &note[..end]
}
