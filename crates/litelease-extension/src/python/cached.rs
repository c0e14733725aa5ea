//! Readers of cached values, for Python: handles on those of `litelease-hold`, in capsules. Freeing
//! a capsule ends its read.

use std::ffi::CStr;
use std::sync::{Arc, Weak};

use litelease_hold::Held;
use litelease_hold::file::CachedReader;

use crate::python::api::{
    InCapsule, Object, OfProcess, Result, capsule_of, float, in_capsule, integer, string, tuple,
    without_gil,
};
use crate::python::holds::{Ending, ends_with, failed, file_at, in_duration, name_at, run};
use crate::python::session::Failed;
use crate::python::values::to_integer;
use crate::python::{Context, raise};

struct PythonReader(OfProcess<CachedReader>);

const FORKED: &str =
    "this is a forked process: the cached value belongs to its parent; make another one here";

impl InCapsule for PythonReader {
    const NAME: &'static CStr = c"litelease.cached";
}

impl Ending for PythonReader {
    fn end(&self, _: &'static str, _: &str) -> Option<Held> {
        self.0.get()?.close();
        None
    }
}

/// Starts to watch a file for a reader. Its arguments are the path, the name, and the ttl in ms.
/// Answers the capsule and the reader text.
pub(crate) fn open(context: &'static Context, given: Object) -> Result<Object> {
    let (file, name) = (file_at(context, &given.item(0)?)?, name_at(context, &given, 1)?);
    let ttl = in_duration(to_integer(&given.item(2)?).unwrap_or(0));
    let made =
        run(context, &file, &context.names.none()?, |aside| CachedReader::new(aside, &name, ttl))?;
    match made.answer {
        Ok(reader) => {
            let text = string(reader.reader())?;
            let reader = Arc::new(PythonReader(OfProcess::new(reader)));
            let weak: Weak<PythonReader> = Arc::downgrade(&reader);
            ends_with(context, None, weak);
            tuple(vec![capsule_of(reader)?, text])
        }
        Err(error) => raise(context, failed(error)),
    }
}

/// Calls `work` with the reader of a capsule and the other arguments. Raises if the reader was
/// closed, and in a forked process.
fn with_reader(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &CachedReader, &Object) -> Result<Object>,
) -> Result<Object> {
    let reader = in_capsule::<PythonReader>(&arguments.item(0)?)?;
    let refused = match reader.0.get() {
        Some(reader) if !reader.is_closed() => return work(context, reader, arguments),
        Some(reader) => format!("the cached value {:?} is closed", reader.name()),
        None => FORKED.into(),
    };
    raise(context, Failed::Kind("LiteleaseError", refused))
}

/// Answers for how many seconds a value of this version may be answered from memory.
pub(crate) fn trusted_for(context: &'static Context, given: Object) -> Result<Object> {
    with_reader(context, &given, |_, reader, given| {
        let version = to_integer(&given.item(1)?).unwrap_or(0);
        float(reader.trusted_for(version).as_secs_f64())
    })
}

/// Asks for a read. Answers the version of the value, or None while a writer has the name.
pub(crate) fn acquire(context: &'static Context, given: Object) -> Result<Object> {
    with_reader(context, &given, |context, reader, _| {
        let mut granted = Ok(None);
        without_gil(|| granted = reader.acquire());
        match granted {
            Ok(Some(version)) => integer(version),
            Ok(None) => context.names.none(),
            Err(error) => raise(context, failed(error)),
        }
    })
}

/// Ends the read if a writer has the name.
pub(crate) fn give_way(context: &'static Context, given: Object) -> Result<Object> {
    with_reader(context, &given, |context, reader, _| {
        without_gil(|| reader.give_way());
        context.names.none()
    })
}

/// Ends the read for good.
pub(crate) fn close(context: &'static Context, given: Object) -> Result<Object> {
    let capsule = given.item(0)?;
    let reader = in_capsule::<PythonReader>(&capsule)?;
    without_gil(|| drop(reader.end("", "")));
    context.names.none()
}
