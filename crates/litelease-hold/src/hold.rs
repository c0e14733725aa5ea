//! The state of one held grant: until when it is trusted, and whether it is lost.

use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use litelease_core::{GrantRef, Limits};

use crate::{Loss, this_process};

/// A grant that the keeper renews.
#[derive(Clone, PartialEq, Eq)]
pub struct HeldGrant {
    /// The name that is held.
    pub name: String,
    /// The owner text.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// The ttl of each renewal.
    pub ttl: Duration,
    /// The secret that proves to the place that the grant is its holder's. Empty if the owner text
    /// proves it.
    pub secret: String,
}

impl fmt::Debug for HeldGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldGrant { name, owner, token, ttl, secret: _ } = self;
        let mut shown = f.debug_struct("HeldGrant");
        shown.field("name", name).field("owner", owner).field("token", token).field("ttl", ttl);
        shown.finish_non_exhaustive()
    }
}

impl<'a> From<&'a HeldGrant> for GrantRef<'a> {
    fn from(grant: &'a HeldGrant) -> Self {
        GrantRef { name: &grant.name, token: grant.token, owner: Some(&grant.owner) }
    }
}

/// The limits that a hold keeps itself, where its place stores none: it does not renew past them.
///
/// They end with the process, and other programs do not see them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldLimits {
    /// Renews only if the holder made progress within this time.
    pub progress_within: Option<Duration>,
    /// Ends the hold after this long.
    pub max_time: Option<Duration>,
}

impl HoldLimits {
    /// Returns how long the first grant may last, for a claim of `ttl`.
    pub fn first(self, ttl: Duration) -> Duration {
        self.max_time.map_or(ttl, |time| time.min(ttl))
    }

    /// Returns the limits of a grant that begins at `now`, by the rule for stored ones. Their times
    /// are on the clock of the hold.
    fn begin(self, token: i64, now: Duration) -> Option<Limits> {
        let HoldLimits { progress_within, max_time } = self;
        if self == HoldLimits::default() {
            return None;
        }
        let end = max_time.map(|time| in_ms(now.saturating_add(time)));
        // A time of less than a millisecond counts as one.
        let within = progress_within.map(|time| in_ms(time).max(1));
        Limits::new(token, within, end, in_ms(now)).ok()
    }
}

fn in_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// The trust window: how long a grant is trusted after a renewal has *begun*. That is the ttl less
/// a margin of a tenth, at least 50 ms.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::Window;
/// let window = Window::new(Duration::from_secs(60)).unwrap();
/// assert_eq!(window.end(Duration::from_secs(100)), Duration::from_secs(154));
/// assert!(Window::new(Duration::from_millis(100)).is_none(), "nothing of it could be trusted for long");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    ttl: Duration,
}

const LEAST_MARGIN: Duration = Duration::from_millis(50);

/// How long before the end of trust the keeper of a locked file tries every 100 µs at most, and
/// every 20 µs.
const LONGEST_FAST: Duration = Duration::from_secs(1);
const LONGEST_FASTEST: Duration = Duration::from_millis(250);

/// How long before the end of trust the keeper of a locked file tries every millisecond. Before
/// that it tries less often, because a long ttl would use a part of a core.
const LONGEST_HURRY: Duration = Duration::from_secs(10);

impl Window {
    /// Returns the window of a ttl, or `None` if the ttl is not longer than twice the margin. A
    /// ttl of more than a century counts as a century.
    pub fn new(ttl: Duration) -> Option<Self> {
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        (ttl > 2 * LEAST_MARGIN).then_some(Window { ttl: ttl.min(century) })
    }

    /// Returns until when a grant or renewal that began at `start` is trusted.
    pub fn end(self, start: Duration) -> Duration {
        self.end_of(start, None)
    }

    /// Returns until when a renewal that began at `start` is trusted. It was granted `granted`, or
    /// the whole ttl if that is `None`. The margin is a tenth of what was granted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_hold::Window;
    /// let seconds = Duration::from_secs;
    /// let window = Window::new(seconds(60)).unwrap();
    /// assert_eq!(window.end_of(seconds(100), Some(seconds(20))), seconds(118));
    /// assert_eq!(window.end_of(seconds(100), None), window.end(seconds(100)));
    /// ```
    pub fn end_of(self, start: Duration, granted: Option<Duration>) -> Duration {
        let granted = granted.map_or(self.ttl, |granted| granted.min(self.ttl));
        (start + granted).saturating_sub((granted / 10).max(LEAST_MARGIN))
    }

    /// Returns how long after the start of a renewal the next one is due, at the latest: a third of
    /// what was granted, which is the ttl if `granted` is `None`.
    ///
    /// A limit leaves less each time; below a minimum, the rest is not divided further.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_hold::Window;
    /// let seconds = Duration::from_secs;
    /// let window = Window::new(seconds(60)).unwrap();
    /// assert_eq!(window.interval(None), seconds(20));
    /// assert_eq!(window.interval(Some(seconds(6))), seconds(2));
    /// ```
    pub fn interval(self, granted: Option<Duration>) -> Duration {
        match granted {
            Some(granted) if granted < self.ttl => (granted / 3).max(self.pause()),
            _ => self.ttl / 3,
        }
    }

    /// Returns how long after a failed renewal the next one is tried.
    pub fn pause(self) -> Duration {
        (self.ttl / 20).clamp(Duration::from_millis(10), Duration::from_millis(250))
    }

    /// Returns how long after a renewal that found the file locked the next one is tried, if the
    /// grant is trusted for `left` more.
    ///
    /// A program that writes in a loop leaves the file free for some microseconds at a time, so the
    /// attempts come faster and faster. The fast ones are limited, or a long ttl would spin.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_hold::Window;
    /// let (ms, us) = (Duration::from_millis, Duration::from_micros);
    /// let window = Window::new(ms(1000)).unwrap(); // trusted for 900 ms
    /// assert_eq!([600, 450, 225].map(|left| window.locked_pause(ms(left))), [us(1000), us(100), us(20)]);
    /// let window = Window::new(ms(600_000)).unwrap();
    /// assert_eq!([60_000, 10_125, 9_999].map(|left| window.locked_pause(ms(left))), [ms(250), ms(125), ms(1)]);
    /// ```
    pub fn locked_pause(self, left: Duration) -> Duration {
        let whole = self.end(Duration::ZERO);
        if left <= (whole / 4).min(LONGEST_FASTEST) {
            Duration::from_micros(20)
        } else if left <= (whole / 2).min(LONGEST_FAST) {
            Duration::from_micros(100)
        } else {
            self.pause().min(left.saturating_sub(LONGEST_HURRY)).max(Duration::from_millis(1))
        }
    }
}

/// The outcome of a renewal that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The new expiry in the row, in Unix milliseconds.
    pub expires_at_ms: i64,
    /// How long it lasts, if the place granted less than the ttl. Trust grows by the time that was
    /// granted, not by the time that was asked for.
    pub granted: Option<Duration>,
}

impl Renewal {
    /// Returns the renewal, shortened if less than `ttl` was asked for.
    pub(crate) fn at_most(self, ttl: Duration) -> Self {
        let granted = Some(self.granted.map_or(ttl, |granted| granted.min(ttl)));
        Renewal { granted, ..self }
    }

    /// Returns a renewal by the whole ttl.
    pub fn whole(expires_at_ms: i64) -> Self {
        Renewal { expires_at_ms, granted: None }
    }
}

/// A request that the holder give its grant up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandoverRequest {
    /// The owner text of the requester.
    pub requester: String,
    /// The time from which on renewals are refused, in Unix milliseconds.
    pub until_ms: i64,
}

type Callback = Box<dyn FnOnce(&Loss) + Send>;

/// A callback for requests, of which there may be several.
type Listener = Arc<Mutex<dyn FnMut(&HandoverRequest) + Send>>;

/// A grant that a keeper renews, shared by its holder and the keeper.
pub struct Hold {
    grant: HeldGrant,
    window: Window,
    process: u64,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    trusted_until: Duration,
    expires_at_ms: i64,
    /// When the next renewal is due.
    due: Duration,
    /// The end of the window of a renewal inside an open transaction of the holder.
    pending_until: Option<Duration>,
    /// The limits that the hold keeps itself.
    limits: Option<Limits>,
    /// True if the last renewal was granted less than the ttl, so that the end is near.
    is_cut: bool,
    /// When the holder last made progress that is not stored yet.
    progress: Option<Duration>,
    /// Why the last renewal failed.
    trouble: Option<Loss>,
    loss: Option<Loss>,
    callbacks: Vec<Callback>,
    /// The open request for the grant.
    request: Option<HandoverRequest>,
    listeners: Vec<Listener>,
    /// True once the holder has released or handed it over.
    ended: bool,
}

impl State {
    /// Returns why the grant will be lost unless a renewal succeeds.
    fn trouble(&self) -> Option<Loss> {
        self.trouble.clone().or(self.is_cut.then_some(Loss::TimeIsUp))
    }
}

impl Hold {
    /// Creates the hold of a grant that was requested at `start`.
    pub fn new(grant: HeldGrant, window: Window, start: Duration, granted: Renewal) -> Self {
        let state = State {
            trusted_until: window.end_of(start, granted.granted),
            expires_at_ms: granted.expires_at_ms,
            is_cut: granted.granted.is_some(),
            limits: None,
            progress: None,
            due: start + window.interval(granted.granted),
            pending_until: None,
            trouble: None,
            loss: None,
            callbacks: Vec::new(),
            request: None,
            listeners: Vec::new(),
            ended: false,
        };
        let process = this_process();
        Hold { grant, window, process, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sets limits that the hold keeps itself from `now` on.
    pub fn limited(self, limits: HoldLimits, now: Duration) -> Self {
        self.state().limits = limits.begin(self.grant.token, now);
        self
    }

    /// Returns the grant with the ttl to ask for at `now`, which is shorter if a limit of the hold
    /// ends before. Fails if a limit refuses the renewal.
    pub(crate) fn to_renew(&self, now: Duration) -> Result<Cow<'_, HeldGrant>, Loss> {
        let (grant, now_ms) = (&self.grant, in_ms(now));
        let Some(limits) = self.state().limits else { return Ok(Cow::Borrowed(grant)) };
        if let Some(reason) = limits.refusal(now_ms) {
            return Err(Loss::from_rejection(grant.token, reason, None, Loss::Expired));
        }
        let left_ms = limits.cut(now_ms.saturating_add(in_ms(grant.ttl))).saturating_sub(now_ms);
        let ttl = grant.ttl.min(Duration::from_millis(left_ms.unsigned_abs()));
        Ok(Cow::Owned(HeldGrant { ttl, ..grant.clone() }))
    }

    /// Returns the grant.
    pub fn grant(&self) -> &HeldGrant {
        &self.grant
    }

    /// Returns the expiry in the row, as of the last renewal.
    pub fn expires_at_ms(&self) -> i64 {
        self.state().expires_at_ms
    }

    /// Returns until when the grant is trusted if it is not renewed again.
    pub fn trusted_until(&self) -> Duration {
        self.state().trusted_until
    }

    /// Returns the trust window of its ttl.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Checks whether this process was forked from the one that holds the grant.
    pub fn is_forked(&self) -> bool {
        self.process != this_process()
    }

    /// Checks whether the grant can be trusted at `now`. A lost grant stays lost.
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
        let loss = state.trouble().unwrap_or(Loss::Expired);
        // While a transaction with a renewal in it is open, no other owner can be granted the name,
        // and its COMMIT decides. Until then the grant is neither trusted nor lost.
        if state.pending_until.is_some_and(|end| now < end) {
            return Err(loss);
        }
        self.lose(state, loss.clone());
        Err(loss)
    }

    /// Records the answer to a renewal that began at `start` and was answered at `now`. `due` is
    /// the time of the next renewal if this one succeeded.
    pub fn settle(
        &self,
        start: Duration,
        now: Duration,
        answer: Result<Renewal, Loss>,
        due: Duration,
    ) {
        let mut state = self.state();
        if state.ended || state.loss.is_some() {
            return;
        }
        // Progress that was recorded during the renewal is for the next one.
        if !answer.as_ref().is_err_and(Loss::is_trouble_of_file) {
            state.progress = state.progress.filter(|at| *at > start);
        }
        match answer {
            Err(loss) if !loss.may_pass() => return self.lose(state, loss),
            Err(trouble) => {
                let left = state.trusted_until.saturating_sub(now);
                // The keeper does not race a transaction of the holder's own that has renewed the
                // row.
                let is_raced = state.pending_until.is_none() && !left.is_zero();
                state.due = now
                    + match trouble {
                        Loss::BlockedByWriter { .. } if is_raced => self.window.locked_pause(left),
                        _ => self.window.pause(),
                    };
                state.trouble = Some(trouble);
            }
            // A late answer never prolongs trust: the holder may have been told of the loss before.
            Ok(_) if now >= state.trusted_until && state.pending_until.is_none() => {}
            Ok(Renewal { expires_at_ms, granted }) => {
                let end = self.window.end_of(start, granted);
                state.trusted_until = state.trusted_until.max(end);
                state.is_cut = granted.is_some();
                state.expires_at_ms = expires_at_ms;
                state.trouble = None;
                state.due = due;
            }
        }
        drop(state);
        let _ = self.check(now);
    }

    /// Ends trust in the grant at once, for a reason that another part has found.
    pub fn fail(&self, loss: Loss) {
        let state = self.state();
        if state.loss.is_none() && !state.ended {
            self.lose(state, loss);
        }
    }

    /// Records that the holder has made progress at `now`. The next renewal stores it. It is due at
    /// once if the last one was refused for lack of progress. Returns whether the keeper must
    /// hurry.
    pub(crate) fn progress(&self, now: Duration) -> bool {
        let mut state = self.state();
        match &mut state.limits {
            Some(limits) => limits.progress_at_ms = in_ms(now),
            None => state.progress = Some(now),
        }
        let is_waited_for = state.trouble == Some(Loss::NoProgress);
        if is_waited_for {
            state.due = state.due.min(now);
        }
        is_waited_for
    }

    /// Returns how long before `now` the holder last made progress that is not stored yet.
    pub(crate) fn unsaved_progress(&self, now: Duration) -> Option<Duration> {
        self.state().progress.map(|at| now.saturating_sub(at))
    }

    /// Records that a transaction of the holder has renewed the row at `start`. Its COMMIT
    /// decides.
    pub fn renewing(&self, start: Duration, renewal: Renewal) {
        self.state().pending_until = Some(self.window.end_of(start, renewal.granted));
    }

    /// Records that the COMMIT of a renewal at `start` has succeeded.
    pub fn committed(&self, start: Duration, now: Duration, renewal: Renewal) {
        let mut state = self.state();
        state.pending_until = None;
        let end = self.window.end_of(start, renewal.granted);
        if state.loss.is_none() && now < end {
            state.trusted_until = state.trusted_until.max(end);
            state.is_cut = renewal.granted.is_some();
            state.expires_at_ms = renewal.expires_at_ms;
            state.due = now.max(start + self.window.interval(renewal.granted));
            state.trouble = None;
        }
    }

    /// Records that the transaction with the renewal was rolled back.
    pub fn rolled_back(&self) {
        self.state().pending_until = None;
    }

    /// Waits until the grant is lost, for at most `timeout`.
    pub fn wait_lost(&self, timeout: Duration) -> Option<Loss> {
        if self.is_forked() {
            return Some(Loss::Forked);
        }
        let going_on = |state: &mut State| state.loss.is_none() && !state.ended;
        let waited = self.changed.wait_timeout_while(self.state(), timeout, going_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.loss.clone()
    }

    /// Returns why the grant was lost, if it was.
    pub fn loss(&self) -> Option<Loss> {
        self.state().loss.clone()
    }

    /// Returns why the last renewal failed, or was granted less than the ttl, if it was.
    pub fn trouble(&self) -> Option<Loss> {
        self.state().trouble()
    }

    /// Checks whether the holder has released or handed over the grant.
    pub fn is_ended(&self) -> bool {
        self.state().ended
    }

    /// Calls `callback` on a thread of its own when the grant is lost; at once if it already is. A
    /// grant that is released by its holder is not lost.
    pub fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
        let mut state = self.state();
        match state.loss.clone() {
            None => state.callbacks.push(Box::new(callback)),
            Some(loss) => call(vec![Box::new(callback)], loss),
        }
    }

    /// Records the open request for the grant, or that there is none. Passes a new one to the
    /// callbacks.
    pub(crate) fn requested(&self, request: Option<HandoverRequest>) {
        let mut state = self.state();
        if state.request == request || state.ended {
            return;
        }
        state.request.clone_from(&request);
        let listeners = state.listeners.clone();
        drop(state);
        if let Some(request) = request {
            pass_on(listeners, request);
        }
    }

    /// Returns the open request for the grant, if the keeper has seen one.
    pub fn request(&self) -> Option<HandoverRequest> {
        self.state().request.clone()
    }

    /// Calls `callback` on a thread of its own for every request, and at once if there is one.
    pub fn on_request(&self, callback: impl FnMut(&HandoverRequest) + Send + 'static) {
        let listener: Listener = Arc::new(Mutex::new(callback));
        let mut state = self.state();
        state.listeners.push(listener.clone());
        let request = state.request.clone();
        drop(state);
        if let Some(request) = request {
            pass_on(vec![listener], request);
        }
    }

    /// Ends the hold because the holder has released it or handed it over. No callback is called
    /// later.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.callbacks.clear();
        state.listeners.clear();
        self.changed.notify_all();
    }

    /// Makes the next renewal due now.
    pub(crate) fn hurry(&self, now: Duration) {
        let mut state = self.state();
        state.due = state.due.min(now);
    }

    /// Returns when the keeper must act next, or `None` if the hold is over.
    pub fn next(&self) -> Option<Duration> {
        let state = self.state();
        let going_on = state.loss.is_none() && !state.ended;
        let deadline =
            state.pending_until.map_or(state.trusted_until, |end| end.max(state.trusted_until));
        going_on.then(|| state.due.min(deadline))
    }

    /// Checks whether a renewal is due at `now`, or soon after if `ahead`.
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

/// Passes a request on, on another thread.
fn pass_on(listeners: Vec<Listener>, request: HandoverRequest) {
    if listeners.is_empty() {
        return;
    }
    let told = move || {
        for listener in listeners {
            let mut listener = listener.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = catch_unwind(AssertUnwindSafe(|| listener(&request)));
        }
    };
    let _ = std::thread::Builder::new().name("litelease request".into()).spawn(told);
}

/// Runs callbacks on another thread, so that they do not delay the renewals of other holds.
fn call(callbacks: Vec<Callback>, loss: Loss) {
    if callbacks.is_empty() {
        return;
    }
    // A callback that panics must not keep the others from being called.
    let told = move || {
        for callback in callbacks {
            let _ = catch_unwind(AssertUnwindSafe(|| callback(&loss)));
        }
    };
    // If no thread can be started, the callbacks are not called.
    let _ = std::thread::Builder::new().name("litelease loss".into()).spawn(told);
}
