//! Registering the functions, and answering SQLite's calls.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::slice;

use crate::{
    Answering, Api, Arguments, Caller, Connection, Effect, Error, Failure, Library, OwnedValue,
    VERBS, Verb, VerbRun, code, destroy, sqlite3_context, sqlite3_value,
};

use crate::sql::shared::Shared;
use crate::sql::table;

/// The most arguments that any of the functions takes.
const MOST: usize = 6;

/// Lets SQLite pass any number of arguments to a function.
const ANY_COUNT: c_int = -1;

/// The data that SQLite keeps with a registered function.
struct Registered {
    verb: &'static Verb,
    run: VerbRun<OwnedValue>,
    shared: Rc<Shared>,
}

/// Puts the functions and the table-valued functions on a connection, and `more` functions of the
/// caller's. Doing it again changes nothing.
///
/// # Safety
/// The functions use the connection until it is closed, so what [`Connection::from_raw`] asks for
/// must hold until then. `L` must be the library of the connection.
pub unsafe fn register<L: Library>(
    connection: Connection,
    more: &'static [Verb],
) -> Result<(), Error> {
    // SQLite does not let a function be replaced while a statement runs, and there is no need to.
    let sql = format!("SELECT litelease_version() = '{}'", env!("CARGO_PKG_VERSION"));
    if connection.answers_one(&sql).unwrap_or(false) {
        return Ok(());
    }
    let shared = Shared::new(connection);
    // The tables first and the version last: its presence shows the next time that all are there.
    for verb in VERBS {
        if let Answering::Listing(listing) = verb.answer {
            // SAFETY: as this function asks.
            unsafe { table::register::<L>(connection, verb, listing, Rc::clone(&shared)) }?;
        }
    }
    connection.register_presentations()?;
    for verb in more.iter().chain(VERBS) {
        if let Answering::Both(run, _) | Answering::InSql(run) = verb.answer {
            let registered = Registered { verb, run, shared: Rc::clone(&shared) };
            // SAFETY: as this function asks.
            unsafe { register_function::<L>(connection, registered) }?;
        }
    }
    Ok(())
}

/// # Safety
/// As for [`register`].
unsafe fn register_function<L: Library>(
    connection: Connection,
    registered: Registered,
) -> Result<(), Error> {
    let verb = registered.verb;
    let caller = match verb.effect {
        Effect::Reads => Caller::Anybody,
        Effect::Writes | Effect::Frees => Caller::Statement,
    };
    let data = Box::into_raw(Box::new(registered)).cast();
    let data = Some((data, Some(destroy::<Registered> as _)));
    // Once for all counts of arguments. Each registration takes a slot of SQLite's lookaside memory
    // for as long as the connection is open, and the statements of the connection need those.
    let count = match verb.arguments.len() {
        count if count == verb.required => c_int::try_from(count).unwrap_or(ANY_COUNT),
        _ => ANY_COUNT,
    };
    let name = sql_name(verb);
    // SAFETY: `call` uses the data with which it is registered.
    let done = unsafe { connection.register(&name, count, caller, call::<L>, data) };
    done.map_err(|failure| {
        let message = format!("cannot register {name}: {}", failure.message);
        Error::Sqlite(Failure { message, ..failure })
    })
}

/// Answers a call of any of the functions.
///
/// # Safety
/// Only SQLite may call it, for a function registered by `register_function`.
unsafe extern "C" fn call<L: Library>(
    context: *mut sqlite3_context,
    count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let api = L::api();
    // SAFETY: SQLite hands back the data that the function was registered with, and keeps it alive.
    let registered = unsafe { &*(api.user_data)(context).cast::<Registered>() };
    let values = match usize::try_from(count) {
        // SAFETY: SQLite hands over `count` values that live for the duration of the call.
        Ok(count) if count > 0 => unsafe { slice::from_raw_parts(values, count) },
        _ => &[],
    };
    // A panic must not unwind into SQLite.
    let answered = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as above.
        unsafe { registered.answer(api, values) }
    }));
    let answer = answered.unwrap_or_else(|_| {
        Err(complaint(format!("{}: internal error", sql_name(registered.verb))))
    });
    // SAFETY: the context is SQLite's own.
    unsafe { give(api, context, answer) }
}

impl Registered {
    /// # Safety
    /// The values must be those of a call by the library of `api`.
    unsafe fn answer(
        &self,
        api: &Api,
        values: &[*mut sqlite3_value],
    ) -> Result<OwnedValue, Failure> {
        let Verb { arguments, required, .. } = *self.verb;
        if !(required..=arguments.len()).contains(&values.len()) {
            let name = sql_name(self.verb);
            // As SQLite words it.
            return Err(complaint(format!("wrong number of arguments to function {name}()")));
        }
        let mut given = [None; MOST];
        for ((given, value), argument) in given.iter_mut().zip(values).zip(arguments) {
            // SAFETY: as promised.
            *given = unsafe { api.value(*value) };
            if !argument.takes(*given) {
                // SAFETY: as promised.
                let kind = unsafe { (api.value_type)(*value) };
                let wrong = argument.complaint(*given, kind);
                return Err(complaint(format!("{}: {wrong}", sql_name(self.verb))));
            }
        }
        let arguments = Arguments { given: &given[..values.len().min(MOST)] };
        let store = self.shared.store();
        (self.run)(&store, &arguments).map_err(|error| as_failure(self.verb, error))
    }
}

/// The name of a verb's function or table.
pub(super) fn sql_name(verb: &Verb) -> String {
    format!("litelease_{}", verb.name)
}

/// SQLite's own errors keep their code; all others are plain errors.
#[cold]
fn as_failure(verb: &Verb, error: Error) -> Failure {
    let message = match &error {
        Error::NotBootstrapped => {
            "no lease table yet: call litelease_bootstrap() once first".into()
        }
        error => error.to_string(),
    };
    let message = format!("{}: {message}", sql_name(verb));
    match error {
        Error::Sqlite(failure) | Error::CommitUnknown(failure) => Failure { message, ..failure },
        // The code of a write that a guard refuses, so that a caller can tell it from a mistake.
        Error::StaleReceipt { .. } | Error::StaleTick { .. } => {
            Failure { code: code::CONSTRAINT, message }
        }
        _ => complaint(message),
    }
}

#[cold]
fn complaint(message: String) -> Failure {
    Failure { code: code::ERROR, message }
}

/// # Safety
/// The context must be that of a call by the library of `api`.
unsafe fn give(api: &Api, context: *mut sqlite3_context, answer: Result<OwnedValue, Failure>) {
    // SAFETY: as promised.
    unsafe {
        match answer {
            Ok(answer) => api.result_copied(context, answer.value()),
            Err(failure) => {
                let length = c_int::try_from(failure.message.len()).unwrap_or(0);
                (api.result_error)(context, failure.message.as_ptr().cast(), length);
                // After the message, because that sets the code to the generic one.
                (api.result_error_code)(context, failure.code);
            }
        }
    }
}
