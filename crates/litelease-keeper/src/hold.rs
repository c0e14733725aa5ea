//! One held grant: how long it is trusted, and the news that it is over.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::Loss;

/// The grant that is kept alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// What is held.
    pub name: String,
    /// The owner text.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// How long each renewal is good for.
    pub ttl: Duration,
}

/// How long a grant is trusted after a renewal has *begun*: the ttl less a margin of a tenth, at least 50 ms.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_keeper::Window;
/// let window = Window::new(Duration::from_secs(60)).unwrap();
/// assert_eq!(window.end(Duration::from_secs(100)), Duration::from_secs(154));
/// assert!(Window::new(Duration::from_millis(100)).is_none(), "nothing of it could be trusted for long");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    ttl: Duration,
}

const LEAST_MARGIN: Duration = Duration::from_millis(50);

impl Window {
    /// The window of a ttl; none for one that is not longer than twice the margin, or too long to add up.
    pub fn new(ttl: Duration) -> Option<Self> {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        (ttl > 2 * LEAST_MARGIN).then_some(Window { ttl: ttl.min(century) })
    }

    /// Until when a grant or renewal that began at `start` is trusted.
    pub fn end(self, start: Duration) -> Duration {
        start + self.ttl - (self.ttl / 10).max(LEAST_MARGIN)
    }

    /// How long after the start of one renewal the next one is due, at the latest.
    pub fn interval(self) -> Duration {
        self.ttl / 3
    }

    /// How long after a renewal that failed the next one is tried.
    pub(crate) fn pause(self) -> Duration {
        (self.ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(250))
    }
}

type Callback = Box<dyn FnOnce(&Loss) + Send>;

/// A grant that a keeper renews, as its holder and the keeper share it.
pub struct Hold {
    grant: Grant,
    window: Window,
    pid: u32,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    trusted_until: Duration,
    expires_at_ms: i64,
    /// When the next renewal is due.
    due: Duration,
    /// The end of the window of a renewal inside a transaction of the holder's that is still open.
    pending_until: Option<Duration>,
    /// Why the last renewal failed.
    trouble: Option<Loss>,
    loss: Option<Loss>,
    callbacks: Vec<Callback>,
    /// Whether the holder has given it up.
    ended: bool,
}

impl Hold {
    /// A grant that was asked for at `start`, and whose row says that it ends at `expires_at_ms`.
    pub fn new(grant: Grant, window: Window, start: Duration, expires_at_ms: i64) -> Self {
        let state = State {
            trusted_until: window.end(start),
            expires_at_ms,
            due: start + window.interval(),
            pending_until: None,
            trouble: None,
            loss: None,
            callbacks: Vec::new(),
            ended: false,
        };
        let pid = std::process::id();
        Hold { grant, window, pid, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// What is held.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// When the row said it ends, as of the last renewal.
    pub fn expires_at_ms(&self) -> i64 {
        self.state().expires_at_ms
    }

    /// Until when it is trusted, if nothing else is heard of it.
    pub fn trusted_until(&self) -> Duration {
        self.state().trusted_until
    }

    /// The trust window of its ttl.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Whether this is another process than the one that holds it.
    pub fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Whether it can be trusted at `now`. Once it was lost, it stays lost.
    pub fn check(&self, now: Duration) -> Result<(), Loss> {
        if self.is_forked() {
            return Err(Loss::Forked);
        }
        let state = self.state();
        if let Some(loss) = &state.loss {
            return Err(loss.clone());
        }
        if now < state.trusted_until {
            return Ok(());
        }
        let loss = state.trouble.clone().unwrap_or(Loss::Expired);
        // While a transaction with a renewal in it is open, nobody else can be granted, and its COMMIT decides.
        // Until then this is not trusted, and not lost either.
        if state.pending_until.is_some_and(|end| now < end) {
            return Err(loss);
        }
        self.lose(state, loss.clone());
        Err(loss)
    }

    /// Takes note of the answer to a renewal that was begun at `start` and answered at `now`: the new expiry, or
    /// why not. `due` is when the next one is, if this one went well.
    pub(crate) fn settle(
        &self,
        start: Duration,
        now: Duration,
        answer: Result<i64, Loss>,
        due: Duration,
    ) {
        let mut state = self.state();
        if state.ended || state.loss.is_some() {
            return;
        }
        match answer {
            Err(loss) if !loss.may_pass() => return self.lose(state, loss),
            Err(trouble) => {
                state.trouble = Some(trouble);
                state.due = now + self.window.pause();
            }
            // One that answers late never prolongs trust: the holder may have been told already.
            Ok(_) if now >= state.trusted_until && state.pending_until.is_none() => {}
            Ok(expires_at_ms) => {
                state.trusted_until = state.trusted_until.max(self.window.end(start));
                state.expires_at_ms = expires_at_ms;
                state.trouble = None;
                state.due = due;
            }
        }
        drop(state);
        let _ = self.check(now);
    }

    /// Takes note that a transaction of the holder's has renewed the row at `start`. Its COMMIT decides.
    pub fn renewing(&self, start: Duration) {
        self.state().pending_until = Some(self.window.end(start));
    }

    /// The COMMIT that a renewal at `start` was waiting for has succeeded.
    pub fn committed(&self, start: Duration, now: Duration, expires_at_ms: i64) {
        let mut state = self.state();
        state.pending_until = None;
        let end = self.window.end(start);
        if state.loss.is_none() && now < end {
            state.trusted_until = state.trusted_until.max(end);
            state.expires_at_ms = expires_at_ms;
            state.due = now.max(start + self.window.interval());
            state.trouble = None;
        }
    }

    /// The transaction with the renewal in it was rolled back.
    pub fn rolled_back(&self) {
        self.state().pending_until = None;
    }

    /// Waits until it is lost, for at most `timeout`.
    pub fn wait_lost(&self, timeout: Duration) -> Option<Loss> {
        if self.is_forked() {
            return Some(Loss::Forked);
        }
        let going_on = |state: &mut State| state.loss.is_none() && !state.ended;
        let waited = self.changed.wait_timeout_while(self.state(), timeout, going_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.loss.clone()
    }

    /// Why it was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss.clone()
    }

    /// Why the last renewal failed, if it did.
    pub fn trouble(&self) -> Option<Loss> {
        self.state().trouble.clone()
    }

    /// Whether its holder has given it up.
    pub fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Has `callback` called on a thread of its own when it is lost; at once if it already is. One that ends as
    /// it should is not lost.
    pub fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
        let mut state = self.state();
        match state.loss.clone() {
            None => state.callbacks.push(Box::new(callback)),
            Some(loss) => call(vec![Box::new(callback)], loss),
        }
    }

    /// The holder has given it up: nothing is told any more.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.callbacks.clear();
        self.changed.notify_all();
    }

    /// Has it renewed as soon as can be.
    pub(crate) fn hurry(&self, now: Duration) {
        let mut state = self.state();
        state.due = state.due.min(now);
    }

    /// When the keeper must look at it next, unless it is over.
    pub(crate) fn next(&self) -> Option<Duration> {
        let state = self.state();
        let going_on = state.loss.is_none() && !state.ended;
        let deadline =
            state.pending_until.map_or(state.trusted_until, |end| end.max(state.trusted_until));
        going_on.then(|| state.due.min(deadline))
    }

    /// Whether it should be renewed at `now`, or a bit later.
    pub(crate) fn is_due(&self, now: Duration, ahead: bool) -> bool {
        let state = self.state();
        let reach = if ahead { now + self.window.ttl / 6 } else { now };
        state.loss.is_none() && !state.ended && state.due <= reach
    }

    fn lose(&self, mut state: MutexGuard<'_, State>, loss: Loss) {
        state.loss = Some(loss.clone());
        self.changed.notify_all();
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        call(callbacks, loss);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// Calls back on another thread: what the caller does there must not hold up the renewals of others.
fn call(callbacks: Vec<Callback>, loss: Loss) {
    if callbacks.is_empty() {
        return;
    }
    // One that panics must not keep the others from being called.
    let told = move || {
        for callback in callbacks {
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&loss)));
        }
    };
    // Where there is no thread to be had, there is nobody left to tell.
    let _ = std::thread::Builder::new().name("litelease loss".into()).spawn(told);
}
