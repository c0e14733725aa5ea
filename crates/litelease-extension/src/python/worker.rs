//! The worker of a queue for Python: it receives, extends and acknowledges on a connection of its
//! own. Handlers run in Python, on the caller's connection.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease_hold::file::{
    DatabaseFile, FileConnection, FileDeliveries, FileError, FileQueue, Own, OwnConnection,
};
use litelease_hold::{HoldError, Settled, Work, WorkOptions};
use litelease_store::{Delivered, OwnedValue};

use crate::python::api::{
    Boxed, Object, OfProcess, Result, boxed, in_box, in_capsule, integer, string, tuple,
    without_gil,
};
use crate::python::holds::{
    Ending, PythonHeld, SLICE, Waited, capsule, failed, file_at, in_duration, name_at, optional,
    run,
};
use crate::python::session::Failed;
use crate::python::values::to_integer;
use crate::python::{Context, raise, session_of};

/// How long its connection waits for another connection's lock at a time.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

const SECOND: &str =
    "another worker runs on this connection: give each worker a connection of its own";
const REENTERED: &str = "another call on this worker is under way";
const FORKED: &str =
    "this process was forked since the worker began: begin another one, on a connection of its own";

/// A worker, as long as its loop runs.
struct Worker {
    work: Work,
    file: DatabaseFile,
    own: OwnConnection<FileConnection>,
    queue: Arc<FileQueue>,
    /// The connection on which the handlers work, by its number.
    number: Option<i64>,
    /// Answers whether to end before the next item.
    stop: Object,
    /// The item that a handler has, or the last one. While there is one, the keeper's connection
    /// stays open.
    current: RefCell<Option<(Delivered<OwnedValue>, Arc<PythonHeld>)>>,
    is_in_call: Cell<bool>,
    /// `None` once the work is over.
    only: RefCell<Option<Only>>,
}

/// The parts that a forked process leaves alone.
struct PythonWorker(OfProcess<Worker>);

impl Boxed for PythonWorker {
    const NAME: &'static CStr = c"litelease.worker";
}

/// Marks the only worker of a connection.
struct Only(Arc<AtomicBool>);

impl Only {
    fn begin(has_worker: &Arc<AtomicBool>) -> Option<Self> {
        (!has_worker.swap(true, Ordering::SeqCst)).then(|| Only(has_worker.clone()))
    }
}

impl Drop for Only {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Begins to work. Its arguments are the session, the path, the queue, the visibility and the first
/// and the longest delay in ms, whether to end after one item and when none is visible, the number
/// of the connection, and a function that returns whether to stop.
pub(crate) fn work(context: &'static Context, given: Object) -> Result<Object> {
    let refuse = |kind, text: &str| raise(context, Failed::Kind(kind, text.into()));
    let file = file_at(context, &given.item(1)?)?;
    let owner = given.item(0)?;
    let Some(only) = Only::begin(&session_of(context, &owner)?.has_worker) else {
        return refuse("LiteleaseError", SECOND);
    };
    let time = |at| Ok(in_duration(to_integer(&given.item(at)?).unwrap_or(0)));
    let options = WorkOptions {
        first_delay: time(4)?,
        longest_delay: time(5)?,
        once: given.item(6)?.is_true()?,
        until_empty: given.item(7)?.is_true()?,
        ..WorkOptions::new(time(3)?)
    };
    let work = match Work::new(options) {
        Ok(work) => work,
        Err(text) => return refuse("ValueError", text),
    };
    let name = name_at(context, &given, 2)?;
    let queue = FileQueue::new(file.clone(), &name, options.visibility);
    let queue = match queue {
        Ok(queue) => Arc::new(queue),
        Err(error) => return refuse("LiteleaseError", &error.to_string()),
    };
    let opened = run(context, &file, &context.names.none, |aside| aside.open(BUSY_TIMEOUT))?;
    let own = match opened.answer {
        Ok(own) => own,
        Err(error) => return raise(context, failed(HoldError::Lease(error))),
    };
    boxed(PythonWorker(OfProcess::new(Worker {
        work,
        file,
        own,
        queue,
        number: optional(context, &given.item(8)?),
        stop: given.item(9)?,
        current: RefCell::default(),
        is_in_call: Cell::new(false),
        only: RefCell::new(Some(only)),
    })))
}

/// Waits for the next item. Answers id, receipt, attempt, token, deadline and body, and the capsule
/// of its delivery; or None if the work is over.
pub(crate) fn work_next(context: &'static Context, given: Object) -> Result<Object> {
    with_worker(context, &given, |context, worker, _| {
        let waited = run(context, &worker.file, &worker.stop, |aside| worker.receive(aside.go_on))?;
        let received = match waited.answer {
            Ok(received) => received,
            Err(_) if waited.was_stopped => None,
            Err(error) => return raise(context, failed(error)),
        };
        let Some((mut item, held)) = received else { return context.names.none() };
        let body = std::mem::take(&mut item.body);
        let answer = tuple(vec![
            integer(item.id)?,
            string(&item.receipt)?,
            integer(item.attempt)?,
            integer(item.token)?,
            integer(item.deadline_ms)?,
            context.names.object_of(body.value())?,
            capsule(context, &held, worker.number)?,
        ]);
        drop(worker.current.replace(Some((item, held))));
        answer
    })
}

/// Ends the work on an item: acknowledges it, or gives it back with a note, unless the handler has.
/// Answers the outcome.
pub(crate) fn work_end(context: &'static Context, given: Object) -> Result<Object> {
    with_worker(context, &given, |context, worker, arguments| {
        let note = arguments.item(1)?;
        let note = match context.names.is_none(&note) {
            true => None,
            false => Some(note.text()?.to_owned()),
        };
        let current = worker.current.borrow();
        let Some((item, held)) = &*current else { return string(word(Settled::Lost)) };
        let none = &context.names.none;
        let Waited { answer, .. } = run(context, &worker.file, none, |aside| {
            let is_held = || held.over().is_none();
            let from = worker.deliveries(aside.go_on);
            let settled = worker.work.settle(&from, item, held.settled(), note, is_held);
            held.settle(*settled.as_ref().unwrap_or(&Settled::Lost));
            settled
        })?;
        match answer {
            Ok(settled) => string(word(settled)),
            Err(error) => raise(context, failed(HoldError::Lease(error))),
        }
    })
}

/// Ends the work: gives back the item that no handler has received, and allows another worker. The
/// capsule may live on, with the traceback of an exception.
pub(crate) fn work_over(context: &'static Context, arguments: Object) -> Result<Object> {
    let capsule = arguments.item(0)?;
    if let Some(worker) = in_box::<PythonWorker>(&capsule)?.0.get()
        && !worker.is_in_call.get()
    {
        let current = worker.current.take();
        // The handle may live on, too.
        let left = current.and_then(|(_, held)| held.end("Released", "its worker has ended"));
        without_gil(|| drop(left));
        drop(worker.only.take());
    }
    context.names.none()
}

/// Records what the handler itself has done with an item: the capsule of its delivery, and a word.
pub(crate) fn item_settled(_: &'static Context, arguments: Object) -> Result<Object> {
    let (held, how) = (in_capsule::<PythonHeld>(&arguments.item(0)?)?, arguments.item(1)?);
    let all = [Settled::Done, Settled::GivenBack, Settled::Buried];
    let how = how.text()?;
    held.settle(all.into_iter().find(|one| word(*one) == how).unwrap_or(Settled::Lost));
    arguments.item(1)
}

/// Returns the word for it in the counts of a worker in Python.
fn word(settled: Settled) -> &'static str {
    match settled {
        Settled::Done => "done",
        Settled::GivenBack => "given_back",
        Settled::Buried => "buried",
        Settled::Lost => "lost",
    }
}

/// Calls `work` with the worker of a capsule and the other arguments.
fn with_worker(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &Worker, &Object) -> Result<Object>,
) -> Result<Object> {
    let capsule = arguments.item(0)?;
    let refuse = |text: &str| raise(context, Failed::Kind("LiteleaseError", text.into()));
    let Some(worker) = in_box::<PythonWorker>(&capsule)?.0.get() else { return refuse(FORKED) };
    if worker.is_in_call.replace(true) {
        return refuse(REENTERED);
    }
    let answer = work(context, worker, arguments);
    worker.is_in_call.set(false);
    answer
}

impl Worker {
    fn deliveries<'w>(
        &'w self,
        go_on: &'w dyn Fn() -> Result<(), FileError>,
    ) -> FileDeliveries<Own<'w, &'w OwnConnection<FileConnection>>> {
        FileDeliveries::new(Own { own: &self.own, go_on, longest_sleep: SLICE }, &self.queue, None)
    }

    #[allow(clippy::type_complexity)] // an item, and its delivery
    fn receive(
        &self,
        go_on: &dyn Fn() -> Result<(), FileError>,
    ) -> Result<Option<(Delivered<OwnedValue>, Arc<PythonHeld>)>, HoldError<FileError>> {
        let from = self.deliveries(go_on);
        while let Some((item, start)) = self.work.next(&from)? {
            if let Some(held) = self.work.keep(&from, &item, start)? {
                return Ok(Some((item, PythonHeld::new(held, None, false))));
            }
        }
        Ok(None)
    }
}
