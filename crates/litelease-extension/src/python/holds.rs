//! Held leases for Python: handles on the holds of `litelease-hold`, in capsules.
//!
//! Freeing a capsule ends its hold, so an exception at any moment leaves nothing behind: no
//! bytecode runs between the grant and the capsule.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease_core::Lease;
use litelease_hold::file::{
    Aside, DatabaseFile, FILES, FileError, More, SessionMembers, SlotWish, let_children_hold,
    open_session, release_until, stay_loaded,
};
use litelease_hold::{
    Clock, Held, Hold, HoldError, HoldLimits, HolderKind, Identity, Loss, LossSignal, Settled,
    SystemClock, Wish, abandon, this_process,
};
use litelease_store::{Error, Failure, OwnedValue, code};

use crate::python::api::{
    self, Boxed, Object, Raised, Result, boxed, check_signals, float, integer, py, string, tuple,
    without_gil,
};
use crate::python::library::found;
use crate::python::session::Failed;
use crate::python::values::to_integer;
use crate::python::waiting::{in_slices, seconds};
use crate::python::{Context, raise};

/// The longest time that a signal's handler has to wait.
pub(super) const SLICE: Duration = Duration::from_millis(50);

/// The longest sleep of a wait that only signals and the end of the interpreter can end. A signal
/// ends the sleep of the main thread, whose handlers run then.
pub(super) const UNSTOPPED: Duration = Duration::from_millis(250);

/// How long a release tries. Then the keeper goes on.
const RELEASE: Duration = Duration::from_secs(5);

/// How long the end of a connection or of the interpreter may be delayed by releases.
const AT_END: Duration = Duration::from_millis(500);

/// How long Python's connections wait for a lock by default.
const PATIENCE: Duration = Duration::from_secs(5);

/// A hold, until it has ended.
pub(super) struct PythonHeld {
    /// The end of the work on an item, if this is a delivery.
    settled: OnceLock<Settled>,
    /// True if dropping it without a release is a mistake to warn of.
    is_warned_of: bool,
    /// The process that holds it. Checked first: a forked process may find the locks held for ever.
    process: u64,
    lost: LossSignal,
    state: Mutex<State>,
}

enum State {
    /// Held, with the session whose identity it is, if it is one.
    Held(Box<Held>, Option<Arc<SessionMembers>>),
    /// Held on a server, and renewed by Python.
    OnServer(Arc<Hold>),
    /// Being handed over. If that fails, and the hold was to end meanwhile, it ends like this.
    Moving(Option<(&'static str, String)>),
    /// Ended like this.
    Ended { kind: &'static str, text: String },
}

/// A handle that ends with its connection.
pub(super) trait Ending: Send + Sync {
    /// Marks it as ended like this, unless it has ended before. Returns the hold, for the caller to
    /// release.
    fn end(&self, kind: &'static str, text: &str) -> Option<Held>;
}

/// The handles of a connection.
type Endings = Vec<Weak<dyn Ending>>;

/// The handles of each open connection of an interpreter, by a number that Python gives the
/// connection. Handles that belong to no connection are under 0.
static OF_CONNECTION: Mutex<BTreeMap<Key, Endings>> = Mutex::new(BTreeMap::new());

/// The key of a connection: the address of its interpreter's context, and its number there.
type Key = (usize, i64);

fn key(context: &Context, number: i64) -> Key {
    (std::ptr::from_ref(context) as usize, number)
}

const RELEASED: &str = "it was released";
pub(super) const NO_LIBRARY: &str = "this Python's sqlite3 does not let Litelease open a connection of its own: its SQLite is \
                          neither a shared library nor able to load extensions";

/// Holds a name. Its arguments are the path, the name, the ttl in ms, the seconds to wait, the
/// owner or None, a value, the limits in ms or None, the time in ms within which the holder must
/// give the name up or None, the number of the connection or None, and a function that returns
/// whether to stop.
///
/// Answers the capsule with owner, token and expiry; or owner, token and expiry of the lease that
/// is in the way; or None if it was stopped.
pub(crate) fn hold(context: &'static Context, given: Object) -> Result<Object> {
    let asked = HoldArguments::read(context, &given)?;
    let number = optional(context, &given.item(9)?);
    let Waited { answer, was_stopped } = run(context, &asked.file, &given.item(10)?, |aside| {
        let HoldArguments { ttl, wait, more: (value, progress_within, max_time), .. } = &asked;
        let more = More {
            value: Some(value.value()).filter(|value| *value != litelease_store::Value::Null),
            progress_within: *progress_within,
            max_time: *max_time,
            ..More::default()
        };
        // The grant itself ends with the limit, too.
        let first = max_time.map_or(*ttl, |time| time.min(*ttl));
        aside.hold(&asked.wish(first), *ttl, *wait, more)
    })?;
    if was_stopped {
        return context.names.none();
    }
    answer_hold(context, answer.map(|held| (held, None)), number)
}

/// Holds a slot. Its arguments are the path, the id of the pool, the ttl in ms, the seconds to
/// wait, a note or None, the number of the connection or None, and a function that returns whether
/// to stop.
///
/// Answers the capsule with the id of the lease, the token, the expiry and the number of the slot;
/// or 0 if none came free; or None if it was stopped.
pub(crate) fn hold_slot(context: &'static Context, given: Object) -> Result<Object> {
    let (file, pool) = (file_at(context, &given.item(0)?)?, name_at(context, &given, 1)?);
    let ttl = in_duration(to_integer(&given.item(2)?).unwrap_or(0));
    let (wait, note) = (seconds(&given.item(3)?), given.item(4)?);
    let note = if context.names.is_none(&note) { None } else { Some(note.text()?) };
    let (limits, cancel) = (HoldLimits::default(), None);
    let wish = SlotWish { pool: &pool, ttl, wait, note, limits, cancel };
    let Waited { answer, was_stopped } =
        run(context, &file, &given.item(6)?, |aside| aside.hold_slot(&wish))?;
    match answer {
        _ if was_stopped => context.names.none(),
        Ok(None) => integer(0),
        Ok(Some((held, position))) => {
            let (lease, token) = (held.grant().secret.clone(), held.token());
            let expires_at_ms = held.expires_at_ms();
            let capsule = capsule_of(context, held, None, optional(context, &given.item(5)?))?;
            let numbers = [token, expires_at_ms, position].map(integer);
            let all = [Ok(capsule), string(&lease)].into_iter().chain(numbers);
            tuple(all.collect::<Result<_>>()?)
        }
        Err(error) => raise(context, failed(error)),
    }
}

/// Opens a session. Its arguments are the path, the identity, the ttl in ms, whether it replaces
/// another, the number of the connection or None, and None. Answers as [`hold`] does.
pub(crate) fn session_open(context: &'static Context, given: Object) -> Result<Object> {
    let (file, identity) = (file_at(context, &given.item(0)?)?, name_at(context, &given, 1)?);
    let ttl = in_duration(to_integer(&given.item(2)?).unwrap_or(0));
    let (replaces, number) = (given.item(3)?.is_true()?, optional(context, &given.item(4)?));
    let opened = run(context, &file, &given.item(5)?, |aside| {
        open_session(aside, &identity, ttl, replaces)
    })?;
    let opened = opened.answer.map(|(held, members)| (held, Some(members)));
    answer_hold(context, opened, number)
}

/// Claims a name in a session. Its arguments are the session, the path, the name and None. Answers
/// as [`hold`] does.
pub(crate) fn session_claim(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, session, given| {
        let (file, name) = (file_at(context, &given.item(1)?)?, name_at(context, given, 2)?);
        // Cloned, so that the state is not locked during the claim.
        let members = match &*session.state() {
            State::Held(_, members) => members.clone(),
            _ => None,
        };
        let Some(members) = members.filter(|_| session.over().is_none()) else {
            return over(context, session.over());
        };
        let claimed = run(context, &file, &given.item(3)?, |aside| members.claim(aside, &name))?;
        answer_hold(context, claimed.answer.map(|held| (held, None)), Some(NEVER))
    })
}

/// Answers the capsule of a hold with owner, token and expiry; or owner, token and expiry of the
/// lease that is in the way; or why the session that it was claimed in is lost.
fn answer_hold(
    context: &'static Context,
    answer: std::result::Result<(Held, Option<Arc<SessionMembers>>), HoldError<FileError>>,
    number: Option<i64>,
) -> Result<Object> {
    match answer {
        Ok((held, session)) => {
            let (owner, token) = (held.owner().to_owned(), held.token());
            let expires_at_ms = held.expires_at_ms();
            let capsule = capsule_of(context, held, session, number)?;
            tuple(vec![capsule, string(&owner)?, integer(token)?, integer(expires_at_ms)?])
        }
        Err(HoldError::Busy(current)) => lease_tuple(&current),
        Err(HoldError::Lost(lost)) => over(context, Some(of_loss(&lost.reason))),
        Err(error) => raise(context, failed(error)),
    }
}

/// Claims a name, and waits for it. Its arguments are those of [`hold`]. Answers True with owner,
/// token and expiry of the grant, or False with those of the lease that is in the way; or None if
/// it was stopped.
pub(crate) fn claim_wait(context: &'static Context, given: Object) -> Result<Object> {
    let asked = HoldArguments::read(context, &given)?;
    let Waited { answer, was_stopped } = run(context, &asked.file, &given.item(10)?, |aside| {
        aside.acquire(&asked.wish(asked.ttl), asked.wait)
    })?;
    match answer {
        _ if was_stopped => context.names.none(),
        Ok(granted) => {
            let is_granted = integer(i64::from(granted.is_ok()))?;
            let (Ok(lease) | Err(lease)) = granted;
            tuple(vec![is_granted, lease_tuple(&lease)?])
        }
        Err(error) => raise(context, failed(HoldError::Lease(error))),
    }
}

/// The arguments of a hold or a wait.
struct HoldArguments {
    file: DatabaseFile,
    name: String,
    owner: String,
    is_unique: bool,
    ttl: Duration,
    wait: Duration,
    more: (OwnedValue, Option<Duration>, Option<Duration>),
    request: Option<Duration>,
}

/// The answer of a wait, and whether `stop` has ended it.
pub(super) struct Waited<T> {
    pub(super) answer: T,
    pub(super) was_stopped: bool,
}

impl HoldArguments {
    fn read(context: &'static Context, given: &Object) -> Result<Self> {
        let time = |at: usize| -> Result<Option<Duration>> {
            Ok(optional(context, &given.item(at)?).map(in_duration))
        };
        let owner = given.item(4)?;
        let is_unique = context.names.is_none(&owner);
        let owner = match is_unique {
            true => Identity::new(HolderKind::Hold).to_string(),
            false => name_at(context, given, 4)?,
        };
        let value = context.value_at(given, 5)?;
        Ok(HoldArguments {
            file: file_at(context, &given.item(0)?)?,
            name: name_at(context, given, 1)?,
            owner,
            is_unique,
            ttl: time(2)?.unwrap_or_default(),
            wait: seconds(&given.item(3)?),
            more: (value, time(6)?, time(7)?),
            request: time(8)?,
        })
    }

    fn wish(&self, ttl: Duration) -> Wish<'_> {
        let wish = Wish::new(&self.name, &self.owner, ttl);
        Wish { request: self.request, is_owner_unique: self.is_unique, ..wish }
    }
}

/// Acquires without the GIL, and lets Python handle signals meanwhile. `stop` returns whether to
/// stop, or is None.
pub(super) fn run<T>(
    context: &'static Context,
    file: &DatabaseFile,
    stop: &Object,
    ask: impl FnOnce(&Aside<'_>) -> T,
) -> Result<Waited<T>> {
    let_children_hold();
    stay_loaded(file);
    let was_stopped = Cell::new(false);
    let longest_sleep = if context.names.is_none(stop) { UNSTOPPED } else { SLICE };
    let is_stopped = || match context.names.is_none(stop) {
        true => Ok(false),
        false => stop.call(vec![])?.is_true(),
    };
    let check = || is_stopped().map(|is_stopped| was_stopped.set(is_stopped));
    let (answer, handled) = interruptible(context, check, |goes_on| {
        let go_on = || match !was_stopped.get() && goes_on() && !was_stopped.get() {
            true => Ok(()),
            false => Err(interrupted()),
        };
        ask(&Aside { file, patience: PATIENCE, go_on: &go_on, longest_sleep })
    });
    match handled {
        // The handler's exception is still set. The grant is released.
        Err(Raised) => {
            let exception = api::take_exception()?;
            drop(answer);
            Err(api::set_exception(exception))
        }
        Ok(()) => Ok(Waited { answer, was_stopped: was_stopped.get() }),
    }
}

/// Runs `work` without the GIL. Whenever `work` asks whether to go on, takes the GIL, lets Python
/// handle the signals that have come, and runs `check`. `work` must stop once either has raised, or
/// the interpreter ends. Returns the answer, and whether an exception is set now.
pub(super) fn interruptible<T>(
    context: &Context,
    check: impl Fn() -> Result<()>,
    work: impl FnOnce(&dyn Fn() -> bool) -> T,
) -> (T, Result<()>) {
    let (gil, has_raised) = (Gil::default(), Cell::new(false));
    let goes_on = || {
        if !has_raised.get() {
            gil.taken(|| has_raised.set(check_signals().and_then(|()| check()).is_err()));
        }
        !has_raised.get() && !context.calls.are_ending()
    };
    let answer = gil.released(|| work(&goes_on));
    (answer, if has_raised.get() { Err(Raised) } else { Ok(()) })
}

impl Context {
    /// Returns an argument that is a value.
    pub(super) fn value_at(&self, given: &Object, at: usize) -> Result<OwnedValue> {
        let given = given.item(at)?;
        self.names.to_value(&given)?.ok_or_else(|| {
            let text = "value must be None, an int, a float, a str or bytes";
            self.names.type_error(&format!("{text}, got {}", given.shown()))
        })
    }
}

/// Returns the file at a path, for connections of our own.
pub(super) fn file_at(context: &'static Context, path: &Object) -> Result<DatabaseFile> {
    let Some(api) = found() else {
        let failed = Failed::Kind("NotSupportedError", NO_LIBRARY.into());
        return raise(context, failed).and(Err(Raised));
    };
    Ok(DatabaseFile { path: path.text()?.to_owned(), vfs: None, api })
}

/// Returns an argument that is a name or an owner.
pub(super) fn name_at(context: &'static Context, given: &Object, at: usize) -> Result<String> {
    let given = given.item(at)?;
    match given.is_instance(&context.names.str) {
        true => Ok(given.text()?.to_owned()),
        false => {
            let shown = given.shown();
            Err(context.names.type_error(&format!("names and owners are str, got {shown}")))
        }
    }
}

/// The GIL, which is released and now and then taken for a moment.
#[derive(Default)]
struct Gil(Cell<Option<*mut c_void>>);

impl Gil {
    fn released<T>(&self, work: impl FnOnce() -> T) -> T {
        if api::is_gil_kept() {
            return work();
        }
        // SAFETY: the GIL is held, and is taken again by the same thread.
        unsafe {
            self.0.set(Some((py().PyEval_SaveThread)()));
            let done = work();
            if let Some(thread) = self.0.take() {
                (py().PyEval_RestoreThread)(thread);
            }
            done
        }
    }

    /// Runs `work` with the GIL, inside [`released`](Gil::released).
    fn taken(&self, work: impl FnOnce()) {
        // SAFETY: as above, the other way round.
        unsafe {
            if let Some(thread) = self.0.take() {
                (py().PyEval_RestoreThread)(thread);
                work();
                self.0.set(Some((py().PyEval_SaveThread)()));
            }
        }
    }
}

impl PythonHeld {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why it is over, if it is: the kind and the text.
    pub(super) fn over(&self) -> Option<(&'static str, String)> {
        if self.process != this_process() {
            return Some(of_loss(&Loss::Forked));
        }
        match self.settled.get() {
            Some(Settled::Lost) => return Some(of_loss(&Loss::Expired)),
            Some(_) => return Some(("Settled", "it was settled".into())),
            None => {}
        }
        match &*self.state() {
            State::Held(held, _) => held.check().err().map(|lost| of_loss(&lost.reason)),
            State::OnServer(hold) => hold.check(SystemClock.now()).err().map(|loss| of_loss(&loss)),
            State::Moving(_) => Some(handed_over()),
            State::Ended { kind, text } => Some((*kind, text.clone())),
        }
    }
}

impl PythonHeld {
    pub(super) fn new(
        held: Held,
        session: Option<Arc<SessionMembers>>,
        is_warned_of: bool,
    ) -> Arc<Self> {
        let (lost, settled) = (held.lost(), OnceLock::new());
        let state = Mutex::new(State::Held(Box::new(held), session));
        Arc::new(PythonHeld { settled, is_warned_of, process: this_process(), lost, state })
    }

    /// Records how the work on an item has ended. The delivery is no longer extended.
    pub(super) fn settle(&self, how: Settled) {
        if self.settled.set(how).is_ok()
            && let State::Held(held, _) = &*self.state()
        {
            abandon(held);
        }
    }

    pub(super) fn settled(&self) -> Option<Settled> {
        self.settled.get().copied()
    }
}

impl PythonHeld {
    /// Returns the hold of a grant on a server, unless it has ended.
    pub(super) fn server_hold(&self) -> Option<Arc<Hold>> {
        if self.process != this_process() {
            return None;
        }
        match &*self.state() {
            State::OnServer(hold) => Some(hold.clone()),
            _ => None,
        }
    }
}

/// Makes the capsule of a grant on a server.
pub(super) fn of_server(hold: Arc<Hold>) -> Result<Object> {
    let lost = of_hold(&hold);
    let state = Mutex::new(State::OnServer(hold));
    let (settled, process) = (OnceLock::new(), this_process());
    api::capsule_of(Arc::new(PythonHeld { settled, is_warned_of: false, process, lost, state }))
}

fn of_hold(hold: &Arc<Hold>) -> LossSignal {
    LossSignal::new(hold.clone(), Arc::new(SystemClock))
}

impl api::InCapsule for PythonHeld {
    const NAME: &'static CStr = c"litelease.held";

    fn freed(&self) {
        if self.is_warned_of && self.over().is_none() {
            warn_of(self);
        }
    }
}

impl Ending for PythonHeld {
    fn end(&self, kind: &'static str, text: &str) -> Option<Held> {
        if self.process != this_process() || self.settled.get().is_some() {
            return None;
        }
        let mut state = self.state();
        if let State::OnServer(hold) = &*state {
            let lost = hold.check(SystemClock.now()).err().map(|loss| of_loss(&loss));
            hold.end();
            let (kind, text) = lost.unwrap_or((kind, text.to_owned()));
            *state = State::Ended { kind, text };
            return None;
        }
        if let State::Moving(end) = &mut *state {
            end.get_or_insert((kind, text.to_owned()));
        }
        let State::Held(held, _) = &*state else { return None };
        // A hold that was lost before keeps its first reason.
        let lost = held.check().err().map(|lost| of_loss(&lost.reason));
        let (kind, text) = lost.unwrap_or((kind, text.to_owned()));
        match std::mem::replace(&mut *state, State::Ended { kind, text }) {
            State::Held(held, _) => Some(*held),
            _ => None,
        }
    }
}

impl Drop for PythonHeld {
    fn drop(&mut self) {
        // A forked process leaves it alone: its locks may be held for ever there.
        if self.process != this_process() {
            let state = std::mem::replace(&mut self.state, Mutex::new(State::Moving(None)));
            std::mem::forget(state);
        }
    }
}

impl PythonHeld {
    /// Goes on with a hold that could not be handed over. Returns it if it was to end meanwhile.
    fn take_back(&self, held: Held) -> Option<Held> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Moving(None)) {
            State::Moving(Some((kind, text))) => {
                *state = State::Ended { kind, text };
                Some(held)
            }
            _ => {
                *state = State::Held(Box::new(held), None);
                None
            }
        }
    }
}

fn handed_over() -> (&'static str, String) {
    ("HandedOver", "it was handed over, or is about to be".into())
}

/// The number for no connection: the hold ends with another handle.
const NEVER: i64 = -1;

/// Makes the capsule of a hold.
fn capsule_of(
    context: &Context,
    held: Held,
    session: Option<Arc<SessionMembers>>,
    number: Option<i64>,
) -> Result<Object> {
    let is_warned_of = number != Some(NEVER);
    capsule(context, &PythonHeld::new(held, session, is_warned_of), number)
}

/// Makes a capsule of a hold, which ends with the connection of this number.
pub(super) fn capsule(
    context: &Context,
    held: &Arc<PythonHeld>,
    number: Option<i64>,
) -> Result<Object> {
    if number != Some(NEVER) {
        let weak: Weak<PythonHeld> = Arc::downgrade(held);
        ends_with(context, number, weak);
    }
    api::capsule_of(held.clone())
}

/// Warns of a hold that was dropped without being released. A `__del__` would swallow the exception
/// of a signal handler, even without a warning.
fn warn_of(held: &PythonHeld) {
    let State::Held(held, _) = &*held.state() else { return };
    let text = format!(
        "the hold on {:?} was garbage-collected, so it is released: keep what hold() returns",
        held.name()
    );
    api::warn_of_resource(&text);
}

/// Ties a handle to a connection. Ends it at once if that was closed during the wait for the
/// handle.
pub(super) fn ends_with(context: &Context, number: Option<i64>, handle: Weak<dyn Ending>) {
    let mut all = of_connections();
    if number.is_none() {
        all.entry(key(context, 0)).or_default();
    }
    if let Some(handles) = all.get_mut(&key(context, number.unwrap_or(0))) {
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(handle);
        return;
    }
    drop(all);
    end_all([handle], "Closed", CLOSED);
}

const CLOSED: &str = "its connection was closed";

fn of_connections() -> MutexGuard<'static, BTreeMap<Key, Endings>> {
    OF_CONNECTION.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a capsule that ends the holds of a connection when it is freed. SQLite frees it when the
/// connection closes, as the data of a function.
pub(crate) fn closer(context: &'static Context, given: Object) -> Result<Object> {
    let key = key(context, to_integer(&given.item(0)?).unwrap_or(0));
    of_connections().entry(key).or_default();
    boxed(Closer(key))
}

/// Ends the holds of a connection when it is dropped.
struct Closer(Key);

impl Boxed for Closer {
    const NAME: &'static CStr = c"litelease.closer";
}

impl Drop for Closer {
    fn drop(&mut self) {
        let handles = of_connections().remove(&self.0);
        end_all(handles.into_iter().flatten(), "Closed", CLOSED);
    }
}

/// Ends holds, and releases them.
fn end_all(handles: impl IntoIterator<Item = Weak<dyn Ending>>, kind: &'static str, text: &str) {
    let holds = handles.into_iter().filter_map(|handle| handle.upgrade()?.end(kind, text));
    // All are marked as ended before the first is released.
    let holds: Vec<Held> = holds.collect();
    release_until(holds, Instant::now() + AT_END);
    FILES.close_idle();
}

/// Ends the holds of a connection, by its number, or all, and waits only briefly for a locked file.
pub(crate) fn end_holds(context: &'static Context, given: Object) -> Result<Object> {
    let number = optional(context, &given.item(0)?);
    let (first, last) = match number {
        Some(number) => (number, number),
        None => (i64::MIN, i64::MAX),
    };
    // The holds of other interpreters go on.
    let ours = key(context, first)..=key(context, last);
    let mut handles = Vec::new();
    for (_, of_one) in of_connections().range_mut(ours) {
        handles.append(of_one);
    }
    without_gil(|| end_all(handles, "Released", RELEASED));
    context.names.none()
}

/// Calls `work` with the hold of a capsule and the other arguments. Functions that release the GIL
/// count themselves.
fn with_held(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &PythonHeld, &Object) -> Result<Object>,
) -> Result<Object> {
    work(context, &*api::in_capsule::<PythonHeld>(&arguments.item(0)?)?, arguments)
}

/// Answers None, or why it is over: the kind and the text.
pub(super) fn over(context: &Context, over: Option<(&'static str, String)>) -> Result<Object> {
    match over {
        Some((kind, text)) => tuple(vec![string(kind)?, string(&text)?]),
        None => context.names.none(),
    }
}

pub(crate) fn check(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, _| over(context, held.over()))
}

/// Answers for how many seconds it is trusted, when it expires in Unix ms, and the error of the
/// last renewal.
pub(crate) fn state(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, _| {
        let (trusted, expires_at_ms, trouble) = match &*held.state() {
            State::Held(held, _) => (held.trusted_for(), held.expires_at_ms(), held.trouble()),
            State::OnServer(hold) => (of_hold(hold).trusted_for(), 0, hold.trouble()),
            _ => (Duration::ZERO, 0, None),
        };
        let trouble = over(context, trouble.as_ref().map(of_loss))?;
        tuple(vec![float(trusted.as_secs_f64())?, integer(expires_at_ms)?, trouble])
    })
}

pub(crate) fn progress(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, _| {
        if held.process == this_process()
            && let State::Held(held, _) = &*held.state()
        {
            let _ = held.progress();
        }
        over(context, held.over())
    })
}

/// Releases it. Answers whether it was still held, or why its row could not be released: the file
/// is locked. Then the keeper goes on trying.
pub(crate) fn release(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, _| match release_now(context, held)? {
        Ok(was_held) => integer(i64::from(was_held)),
        Err(trouble) => over(context, Some(of_loss(&trouble))),
    })
}

/// Leaves the block of an object that has the capsule of a hold: releases it, before any bytecode
/// runs. Its arguments are the object and those of `__exit__`.
pub(crate) fn exit(context: &'static Context, given: Object) -> Result<Object> {
    let owner = given.item(0)?;
    let held = api::in_capsule::<PythonHeld>(&owner.attribute(&context.names.native)?)?;
    match release_now(context, &held)? {
        // The exception of the block matters more; the keeper goes on trying to release.
        Err(_) if context.names.is_none(&given.item(2)?) => {
            let name = owner.attribute(&context.names.name)?.shown();
            let goes_on = format!("the keeper goes on trying to release '{name}'");
            let text = format!("database is locked: {goes_on}");
            raise(context, Failed::Kind("OperationalError", text))
        }
        _ => context.names.none(),
    }
}

/// Releases a hold. Returns whether it was still held, or the error of the release.
fn release_now(
    context: &'static Context,
    held: &PythonHeld,
) -> Result<std::result::Result<bool, Loss>> {
    let _counted = context.begin()?;
    let Some(held) = held.end("Released", RELEASED) else { return Ok(Ok(false)) };
    let (answer, handled) =
        interruptible(context, || Ok(()), |goes_on| held.release_while(RELEASE, goes_on));
    handled?;
    Ok(match answer {
        Err(lost) if lost.reason.may_pass() => Err(lost.reason),
        // The row of a lost lease is left alone.
        answer => Ok(answer.is_ok()),
    })
}

/// Hands it over for this many ms. Answers owner, token and expiry of the requester's grant, or the
/// reason of the failure.
pub(crate) fn hand_over(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, arguments| {
        let ttl = in_duration(to_integer(&arguments.item(1)?).unwrap_or(0));
        let _counted = context.begin()?;
        if let Some(reason) = held.over() {
            return over(context, Some(reason));
        }
        // The requester may trust the lease from here on.
        let State::Held(moving, _) = std::mem::replace(&mut *held.state(), State::Moving(None))
        else {
            return over(context, Some(handed_over()));
        };
        let (answer, handled) = interruptible(
            context,
            || Ok(()),
            |goes_on| moving.hand_over_while::<FileError>(ttl, goes_on),
        );
        match answer {
            Ok(lease) => {
                let (kind, text) = handed_over();
                *held.state() = State::Ended { kind, text };
                handled?;
                lease_tuple(&lease)
            }
            Err((back, error)) => {
                if let Some(back) = held.take_back(back) {
                    // The hold was to end meanwhile. If the file is locked, the keeper releases it.
                    without_gil(|| drop(back));
                }
                handled?;
                let reason = match error {
                    HoldError::NotRequested => ("NotRequested", String::new()),
                    HoldError::Lost(lost) => of_loss(&lost.reason),
                    error => ("CannotRenew", error.to_string()),
                };
                over(context, Some(reason))
            }
        }
    })
}

/// Answers the requester and the Unix time in ms until which the holder must give up, or None.
pub(crate) fn requested(context: &'static Context, given: Object) -> Result<Object> {
    with_held(context, &given, |context, held, _| {
        let request = match &*held.state() {
            State::Held(held, _) => held.request(),
            _ => None,
        };
        match request {
            Some(request) => tuple(vec![string(&request.requester)?, integer(request.until_ms)?]),
            None => context.names.none(),
        }
    })
}

/// The state behind the event of a hold. It keeps no hold alive.
struct PythonEvent {
    held: Weak<PythonHeld>,
    lost: LossSignal,
    process: u64,
}

impl api::InCapsule for PythonEvent {
    const NAME: &'static CStr = c"litelease.event";
}

impl PythonEvent {
    fn over(&self) -> Option<(&'static str, String)> {
        if self.process != this_process() {
            return Some(of_loss(&Loss::Forked));
        }
        match self.held.upgrade() {
            Some(held) => held.over(),
            None => {
                let lost = self.lost.wait_timeout(Duration::ZERO);
                Some(lost.map_or(("Released", RELEASED.into()), |loss| of_loss(&loss)))
            }
        }
    }
}

/// Makes the event of a hold.
pub(crate) fn event(_: &'static Context, given: Object) -> Result<Object> {
    let held = api::in_capsule::<PythonHeld>(&given.item(0)?)?;
    let (lost, process) = (held.lost.clone(), held.process);
    api::capsule_of(Arc::new(PythonEvent { held: Arc::downgrade(&held), lost, process }))
}

/// Answers None, or why its hold is over.
pub(crate) fn event_check(context: &'static Context, given: Object) -> Result<Object> {
    over(context, api::in_capsule::<PythonEvent>(&given.item(0)?)?.over())
}

/// Waits until its hold is lost, for so many seconds. Answers whether it is.
pub(crate) fn event_wait(context: &'static Context, given: Object) -> Result<Object> {
    let event = api::in_capsule::<PythonEvent>(&given.item(0)?)?;
    let lost = in_slices(context, SLICE, seconds(&given.item(1)?), |time| {
        let over = event.over();
        if over.as_ref().is_some_and(|(kind, _)| !ENDS.contains(kind)) {
            return Some(());
        }
        match over {
            Some(_) => sleep(time),
            None => drop(event.lost.wait_timeout(time)),
        }
        None
    })?;
    let is_lost = || event.over().is_some_and(|(kind, _)| !ENDS.contains(&kind));
    integer(i64::from(lost.is_some() || is_lost()))
}

/// How a hold ends without being lost.
const ENDS: [&str; 3] = ["Released", "HandedOver", "Settled"];

fn interrupted() -> FileError {
    let failure = Failure { code: code::INTERRUPT, message: "interrupted".into() };
    FileError::Verb(Error::Sqlite(failure))
}

/// Returns what Python raises for an error of a hold.
pub(super) fn failed(error: HoldError<FileError>) -> Failed {
    match error {
        HoldError::Lease(FileError::Verb(Error::Sqlite(failure))) => {
            Failed::Kind("OperationalError", failure.message)
        }
        HoldError::Lease(FileError::Verb(error)) => Failed::Store(error),
        HoldError::TtlTooShort(_) => Failed::Kind("InvalidTtl", error.to_string()),
        HoldError::Lease(FileError::InvalidShards(what)) => {
            Failed::Kind("InvalidShards", what.into())
        }
        error => Failed::Kind("LiteleaseError", error.to_string()),
    }
}

/// Returns a loss with the name that Python has for it, and its text.
pub(super) fn of_loss(loss: &Loss) -> (&'static str, String) {
    let kind = match loss {
        Loss::Superseded { .. } => "Superseded",
        Loss::Expired => "Expired",
        Loss::ReleasedElsewhere => "ReleasedElsewhere",
        Loss::BlockedByWriter { .. } => "BlockedByWriter",
        Loss::CannotRenew { .. } => "CannotRenew",
        Loss::Broken => "Broken",
        Loss::FileReplaced => "FileReplaced",
        Loss::Forked => "Forked",
        Loss::NoProgress => "NoProgress",
        Loss::TimeIsUp => "TimeIsUp",
        Loss::Requested => "Requested",
        Loss::Stale { .. } => "Stale",
        _ => "SessionOver",
    };
    (kind, loss.to_string())
}

pub(super) fn lease_tuple(lease: &Lease) -> Result<Object> {
    tuple(vec![string(&lease.owner)?, integer(lease.token)?, integer(lease.expires_at_ms)?])
}

pub(super) fn optional(context: &Context, given: &Object) -> Option<i64> {
    if context.names.is_none(given) { None } else { to_integer(given) }
}

pub(super) fn in_duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
