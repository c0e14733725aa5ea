//! The binding for CPython: the verbs of a hosted store as builtin functions.
//!
//! No bytecode runs inside a call, so no signal handler can raise in the middle of one. Errors come
//! from SQLite or from a callback of the caller's, as an exception of `cursor.execute`, and the
//! store undoes its work as after any other error.

mod api;
mod cached;
mod holds;
mod host;
mod jobs;
mod library;
mod opened;
mod session;
mod shards;
mod trust;
mod turn;
mod values;
mod waiting;
mod worker;
mod writer;

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

use litelease_hold::{HolderKind, Identity, Window, this_process};

use crate::python::api::{Boxed, Method, NAMES, Object, Raised, Raw, Result, VARARGS, py, string};
use crate::python::session::{Call, Failed, Session};
use crate::python::turn::{Calls, Counted};
use crate::python::values::{Names, to_integer};

/// The state that the functions of one interpreter share. It is never freed.
pub(crate) struct Context {
    names: Names,
    /// A function of Python's that raises an error, with its kind, its text, the exception behind
    /// it, and the lease that it is about.
    fail: Object,
    calls: Calls,
}

const CONTEXT: &CStr = c"litelease.context";

/// Returns the names, separated by spaces, of the functions of CPython whose addresses
/// [`litelease_python_init`] needs.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn litelease_python_needs() -> *const c_char {
    NAMES.as_ptr()
}

/// Returns the version of the library, as a C string.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn litelease_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Makes the functions of the binding: a dictionary of them, or null with an exception set.
///
/// # Safety
/// The GIL must be held. The addresses must be those of the functions that
/// [`litelease_python_needs`] names, in their order; `classes` must be a tuple of `None`, `str`,
/// `int`, `float`, `bytes`, `sqlite3.Error`, `tuple`, `list`, `TypeError`, `ResourceWarning` and
/// `LiteleaseError`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn litelease_python_init(
    addresses: *const *const c_void,
    classes: Raw,
    fail: Raw,
) -> Raw {
    // SAFETY: as promised.
    unsafe { api::set_functions(addresses) };
    caught(|| {
        let classes = Object::borrowed(classes)?;
        api::set_resource_warning(classes.item(9)?);
        let context = Context {
            names: Names::new(&classes)?,
            fail: Object::borrowed(fail)?,
            calls: Calls::default(),
        };
        let context = Box::into_raw(Box::new(context)).cast();
        // SAFETY: the context is never freed, and the definitions are static.
        unsafe {
            let shared = Object::owned((py().PyCapsule_New)(context, CONTEXT.as_ptr(), None))?;
            let functions = Object::owned((py().PyDict_New)())?;
            for method in METHODS {
                let made = (py().PyCFunction_NewEx)(method, shared.as_raw(), ptr::null_mut());
                let made = Object::owned(made)?;
                (py().PyDict_SetItemString)(functions.as_raw(), method.name, made.as_raw());
            }
            Ok(functions)
        }
    })
}

/// Makes the functions that Python calls. Each line has the kind of call ([`guarded`] or
/// [`at_once`]), the name, the signature with a sentence, and the Rust function.
macro_rules! methods {
    ($($call:ident $name:literal, $doc:literal, $function:path;)*) => {
        &[$({
            unsafe extern "C" fn entry(shared: Raw, arguments: Raw) -> Raw {
                $call(shared, arguments, $function)
            }
            Method { name: $name.as_ptr(), function: entry, flags: VARARGS, doc: $doc.as_ptr() }
        },)*]
    };
}

static METHODS: &[Method] = methods! {
    at_once c"session", c"session(opened)\n--\n\nMakes the handle of a session.", session;
    guarded c"opened", c"opened(open)\n--\n\nOpens a connection, and returns how the library reaches it.", opened::opened;
    guarded c"call", c"call(session, is_joined, verb, *values)\n--\n\nCalls a verb, and returns the rows of its answer.", call;
    at_once c"identity", c"identity(kind)\n--\n\nMakes an owner text for this process.", identity;
    at_once c"is_dead", c"is_dead(owner)\n--\n\nChecks whether a holder has provably ended.", is_dead;
    at_once c"window", c"window(ttl)\n--\n\nReturns how long a renewal is trusted, when the next is due, and the pause after one that failed.", window;
    guarded c"waiter", c"waiter(path)\n--\n\nMakes a waiter at a database file.", waiting::waiter;
    at_once c"generation", c"generation(waiter)\n--\n\nReturns a number that changes with every notification.", waiting::generation;
    at_once c"time_to_next_read", c"time_to_next_read(until_expiry_ms, left)\n--\n\nReturns how many seconds to sleep before looking again.", waiting::time_to_next_read;
    at_once c"listen", c"listen(waiter, generation, seconds)\n--\n\nSleeps until it is woken. Returns whether it was.", waiting::listen;
    guarded c"find_library", c"find_library(file, open)\n--\n\nFinds the SQLite library of Python's connections.", library::find_library;
    guarded c"hold", c"hold(path, name, ttl_ms, wait, owner, value, progress_ms, max_ms, request_ms, number, stop)\n--\n\nHolds a name.", holds::hold;
    guarded c"claim_wait", c"claim_wait(path, name, ttl_ms, wait, owner, value, progress_ms, max_ms, request_ms, number, stop)\n--\n\nClaims a name, and waits for it.", holds::claim_wait;
    guarded c"hold_slot", c"hold_slot(path, id, ttl_ms, wait, note, number, stop)\n--\n\nHolds a slot.", holds::hold_slot;
    guarded c"session_open", c"session_open(path, identity, ttl_ms, replaces, number, stop)\n--\n\nOpens a session.", holds::session_open;
    at_once c"session_claim", c"session_claim(session, path, name, stop)\n--\n\nClaims a name in a session.", holds::session_claim;
    guarded c"shards_join", c"shards_join(path, group, count, id, ttl_ms, drain_ms, number, stop)\n--\n\nJoins a group that shares shards.", shards::join;
    guarded c"shards_next", c"shards_next(shards, seconds)\n--\n\nWaits for an event.", shards::next;
    guarded c"shards_held", c"shards_held(shards)\n--\n\nReturns the shards that are held.", shards::held;
    guarded c"shards_check", c"shards_check(shards, shard)\n--\n\nChecks a shard.", shards::check;
    guarded c"shards_checkpoint", c"shards_checkpoint(shards, shard, value)\n--\n\nStores a checkpoint.", shards::checkpoint;
    guarded c"shards_hand_over", c"shards_hand_over(shards, shard)\n--\n\nHands a shard over.", shards::hand_over;
    guarded c"shards_release", c"shards_release(shards, shard)\n--\n\nGives a shard up.", shards::release;
    guarded c"shards_leave", c"shards_leave(shards)\n--\n\nLeaves the group.", shards::leave;
    guarded c"cached_open", c"cached_open(path, name, ttl_ms)\n--\n\nMakes the reader of a cached value.", cached::open;
    guarded c"cached_trusted_for", c"cached_trusted_for(reader, version)\n--\n\nReturns for how long a value can be trusted.", cached::trusted_for;
    guarded c"cached_acquire", c"cached_acquire(reader)\n--\n\nAsks for a read.", cached::acquire;
    guarded c"cached_give_way", c"cached_give_way(reader)\n--\n\nGives the read up if a writer has the name.", cached::give_way;
    guarded c"cached_close", c"cached_close(reader)\n--\n\nGives the read up for good.", cached::close;
    guarded c"closer", c"closer(number)\n--\n\nMakes what ends the holds of a connection when it is freed.", holds::closer;
    guarded c"end_holds", c"end_holds(number)\n--\n\nReleases the holds of a connection, or all.", holds::end_holds;
    at_once c"held_check", c"held_check(held)\n--\n\nReturns why a hold is over, if it is.", holds::check;
    at_once c"held_state", c"held_state(held)\n--\n\nReturns trust, expiry and trouble of a hold.", holds::state;
    at_once c"held_progress", c"held_progress(held)\n--\n\nNotes that the work goes on.", holds::progress;
    at_once c"held_release", c"held_release(held)\n--\n\nReleases a hold.", holds::release;
    at_once c"held_exit", c"held_exit(held, kind, error, trace)\n--\n\nLeaves the block of a hold.", holds::exit;
    at_once c"held_hand_over", c"held_hand_over(held, ttl_ms)\n--\n\nHands a hold over.", holds::hand_over;
    at_once c"held_requested", c"held_requested(held)\n--\n\nReturns the open request for a hold.", holds::requested;
    at_once c"event", c"event(held)\n--\n\nMakes the event of a hold, which does not keep it alive.", holds::event;
    at_once c"event_check", c"event_check(event)\n--\n\nReturns why a hold is over, if it is.", holds::event_check;
    at_once c"event_wait", c"event_wait(event, seconds)\n--\n\nWaits until a hold is lost. Returns whether it is.", holds::event_wait;
    at_once c"clock", c"clock()\n--\n\nReturns seconds on the clock that measures trust.", trust::clock;
    at_once c"trust_begin", c"trust_begin(name, owner, token, ttl, start)\n--\n\nMakes the hold of a grant on a server.", trust::begin;
    at_once c"trust_until", c"trust_until(held)\n--\n\nReturns until when a hold is trusted.", trust::until;
    at_once c"trust_due", c"trust_due(held)\n--\n\nReturns when a renewal is due.", trust::due;
    at_once c"trust_settle", c"trust_settle(held, start, granted, kind, by, error)\n--\n\nNotes the answer to a renewal.", trust::settle;
    guarded c"work", c"work(session, path, queue, visibility_ms, first_ms, longest_ms, once, until_empty, number, stop)\n--\n\nBegins to work on a queue.", worker::work;
    guarded c"work_next", c"work_next(worker)\n--\n\nWaits for the next item.", worker::work_next;
    guarded c"work_end", c"work_end(worker, note)\n--\n\nEnds the work on an item.", worker::work_end;
    guarded c"work_over", c"work_over(worker)\n--\n\nEnds the work.", worker::work_over;
    guarded c"item_settled", c"item_settled(held, how)\n--\n\nNotes what a handler has done with its item.", worker::item_settled;
    guarded c"job", c"job(path, name, schedule, zone, late_ms, each, at_start, attempts, retries, ttl_ms, max_ms)\n--\n\nMakes a scheduled job.", jobs::job;
    guarded c"job_next", c"job_next(job)\n--\n\nWaits for the next tick.", jobs::job_next;
    guarded c"job_retry", c"job_retry(job, failures)\n--\n\nReturns how long to wait before the job is repeated.", jobs::job_retry;
    guarded c"job_end", c"job_end(job, how)\n--\n\nEnds the work on a tick.", jobs::job_end;
    at_once c"job_stop", c"job_stop(job)\n--\n\nStops a job.", jobs::job_stop;
    at_once c"planned", c"planned(schedule, zone, now_ms)\n--\n\nReturns the tick that is planned for about now.", jobs::planned;
    at_once c"write_lock", c"write_lock(path, database, first, longest)\n--\n\nMakes a write lock.", writer::lock;
    at_once c"write_request", c"write_request(lock)\n--\n\nMakes a request for a write lock.", writer::request;
    guarded c"write_turn", c"write_turn(request, seconds)\n--\n\nWaits for the turn of a request among the threads.", writer::turn;
    guarded c"write_wait", c"write_wait(request, seconds)\n--\n\nWaits for the lock.", writer::wait;
    at_once c"write_has_turn", c"write_has_turn(request)\n--\n\nChecks whether it is the turn of a request.", writer::has_turn;
    at_once c"write_end", c"write_end(request)\n--\n\nGives back what a request has taken.", writer::end;
    at_once c"write_holder", c"write_holder(path)\n--\n\nReturns the process that holds a lock.", writer::holder;
    at_once c"end_calls", c"end_calls(is_late)\n--\n\nWaits for the calls of other threads.", end_calls;
    at_once c"begin_anew", c"begin_anew()\n--\n\nForgets other threads, after a fork.", begin_anew;
};

/// Runs `work` for a function that Python calls, with the shared state and the arguments.
///
/// Counts the call until its last use of Python. CPython would end a thread that came back to an
/// interpreter that is gone, in the middle of the call, which no library survives. Once the end has
/// begun, the calls of other threads are refused.
pub(crate) fn guarded(
    shared: Raw,
    arguments: Raw,
    work: impl FnOnce(&'static Context, Object) -> Result<Object>,
) -> Raw {
    at_once(shared, arguments, |context, arguments| {
        let _counted = context.begin()?;
        work(context, arguments)
    })
}

/// Runs `work` like [`guarded`], for functions that keep the GIL and run no bytecode: they are
/// neither counted nor refused.
pub(crate) fn at_once(
    shared: Raw,
    arguments: Raw,
    work: impl FnOnce(&'static Context, Object) -> Result<Object>,
) -> Raw {
    caught(|| {
        // SAFETY: Python passes the context with which the function was made.
        let context = unsafe { context(shared) }?;
        work(context, Object::borrowed(arguments)?)
    })
}

/// Runs `work` for Python: null means that an exception is set.
fn caught(work: impl FnOnce() -> Result<Object>) -> Raw {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(answer)) => answer.into_raw(),
        Ok(Err(Raised)) => ptr::null_mut(),
        // A panic must not unwind into Python. No answer can be given.
        Err(_) => std::process::abort(),
    }
}

/// Raises an error in Python.
pub(crate) fn raise(context: &Context, failed: Failed) -> Result<Object> {
    session::raise(&context.names, &context.fail, failed, &[])
}

impl Context {
    /// Counts a call until the result is dropped.
    pub(crate) fn begin(&self) -> Result<Counted<'_>> {
        self.calls.begin().ok_or_else(|| self.names.ending())
    }
}

/// # Safety
/// `shared` must be what the function was made with; so it is for every function below, which only
/// Python calls.
unsafe fn context(shared: Raw) -> Result<&'static Context> {
    // SAFETY: as promised; the context is never freed.
    unsafe {
        let context = (py().PyCapsule_GetPointer)(shared, CONTEXT.as_ptr());
        context.cast::<Context>().as_ref().ok_or(Raised)
    }
}

fn session(context: &'static Context, given: Object) -> Result<Object> {
    let opened = opened::read(context, &given.item(0)?);
    let session = Session::new(&context.names, &context.calls, opened);
    api::boxed(session)
}

fn call(context: &'static Context, arguments: Object) -> Result<Object> {
    let (owner, is_joined) = (arguments.item(0)?, arguments.item(1)?);
    let verb = arguments.item(2)?;
    let values = 3..arguments.tuple_len()?;
    let values = values.map(|at| arguments.item(at)).collect::<Result<_>>()?;
    let session = session_of(context, &owner)?;
    let is_joined = match context.names.is_none(&is_joined) {
        true => None,
        false => Some(is_joined.is_true()?),
    };
    session.call(&context.fail, Call { session: &owner, is_joined, verb: verb.text()?, values })
}

/// The session of its object, as long as that lives.
pub(crate) fn session_of<'o>(context: &Context, owner: &'o Object) -> Result<&'o Session> {
    let handle = owner.attribute(&context.names.handle)?;
    // SAFETY: the handle keeps the session alive, and the caller's object keeps the handle.
    unsafe {
        let session = (py().PyCapsule_GetPointer)(handle.as_raw(), Session::NAME.as_ptr());
        session.cast::<Session>().as_ref().ok_or(Raised)
    }
}

fn identity(_: &'static Context, given: Object) -> Result<Object> {
    let kind = to_integer(&given.item(0)?).unwrap_or(0);
    string(&identity_of(kind))
}

fn is_dead(_: &'static Context, given: Object) -> Result<Object> {
    let owner = given.item(0)?;
    api::integer(i64::from(is_dead_owner(owner.text()?)))
}

/// None where the ttl is too short to be trusted at all.
fn window(context: &'static Context, given: Object) -> Result<Object> {
    let ttl = given.item(0)?;
    // SAFETY: the object is alive; what is no number counts as -1.
    let ttl = unsafe { (py().PyFloat_AsDouble)(ttl.as_raw()) };
    api::clear();
    match window_of(ttl) {
        Some(parts) => api::tuple(parts.map(api::float).into_iter().collect::<Result<_>>()?),
        None => context.names.none(),
    }
}

fn end_calls(context: &'static Context, given: Object) -> Result<Object> {
    if given.item(0)?.is_true()? {
        api::keep_gil();
    }
    context.calls.end();
    context.names.none()
}

fn begin_anew(context: &'static Context, _: Object) -> Result<Object> {
    context.calls.begin_anew();
    context.names.none()
}

/// Makes a new owner text for this process: with 0 for a process that holds the lease itself, with
/// 1 for a lock that another process may unlock. Empty on systems that have none.
fn identity_of(kind: i64) -> String {
    let kind = if kind == 0 { HolderKind::Hold } else { HolderKind::Lock };
    Identity::new(kind).to_string()
}

fn is_dead_owner(owner: &str) -> bool {
    Identity::parse(owner).is_some_and(|holder| holder.is_dead())
}

fn window_of(ttl: f64) -> Option<[f64; 3]> {
    let window = Window::new(Duration::try_from_secs_f64(ttl).ok()?)?;
    let parts = [window.end(Duration::ZERO), window.interval(None), window.pause()];
    Some(parts.map(|part| part.as_secs_f64()))
}
