//! The tokens that a connection has presented for its writes to guarded tables.
//!
//! The tokens are kept with the connection, in memory. The triggers read them by
//! `litelease_presented(name)` and compare for themselves, in their own file: a function that
//! compared would read the wrong file if this one is attached to another.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use litelease_core::is_newest;

use crate::callbacks::Library;
use crate::sqlite::{Caller, Connection, Value, sqlite3_context, sqlite3_value};
use crate::{Error, Failure, Store, destroy};

/// The statement that keeps a token with the connection, or forgets it.
pub(crate) const PRESENTING: &str = "SELECT litelease_presenting(?1, ?2)";

/// The tokens that one connection has presented.
#[derive(Default)]
struct Presented(RefCell<Vec<(Box<str>, i64)>>);

/// How often guards have refused a write, by file, number of the guarded table, and name.
static REFUSALS: Mutex<BTreeMap<(String, i64, String), u64>> = Mutex::new(BTreeMap::new());

pub(crate) fn all_refusals() -> MutexGuard<'static, BTreeMap<(String, i64, String), u64>> {
    REFUSALS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most counters: more than any file has guards, so that calls without a guard cannot fill the
/// memory.
const MOST_COUNTERS: usize = 10_000;

impl Store {
    /// Presents a token for this connection's writes to the tables that `name` guards. Answers
    /// whether it is the newest one.
    ///
    /// One that is not is kept all the same, and refused by the guards.
    pub fn present(&self, name: &str, token: i64) -> Result<bool, Error> {
        self.with_context("present the token of", Some(name), || {
            // If anything fails from here on, the token that was presented before must not stay.
            self.keep_presented(name, None)?;
            let is_newest = self.read_fenced_row(name, |row| Ok(is_newest(row, token)))?;
            self.keep_presented(name, Some(token))?;
            Ok(is_newest)
        })
    }

    /// Takes back the token that was presented for `name`, before another part of the program uses
    /// the connection.
    pub fn withdraw(&self, name: &str) -> Result<(), Error> {
        self.with_context("withdraw the token of", Some(name), || self.keep_presented(name, None))
    }

    fn keep_presented(&self, name: &str, token: Option<i64>) -> Result<(), Error> {
        let token = token.map_or(Value::Null, Value::Integer);
        self.statements.presenting.with(self.connection, |statement| {
            statement.run(&[Value::Text(name), token])?.step()?;
            Ok(())
        })
    }
}

impl Connection {
    /// Registers `litelease_presented` and its companions on the connection, unless they are there
    /// already: tokens that were presented must not be lost.
    pub fn register_presentations(self) -> Result<(), Failure> {
        self.prepare_calling(PRESENTING, || self.register_presenting()).map(drop)
    }

    pub(crate) fn register_presenting(self) -> Result<(), Failure> {
        let callbacks = self.as_raw().1.callbacks;
        let presented = Rc::new(Presented::default());
        let shared = || {
            let data = Box::into_raw(Box::new(Rc::clone(&presented))).cast::<c_void>();
            Some((data, Some(destroy::<Rc<Presented>> as unsafe extern "C" fn(*mut c_void))))
        };
        let place = Box::into_raw(Box::new(self)).cast::<c_void>();
        let place = Some((place, Some(destroy::<Connection> as unsafe extern "C" fn(*mut c_void))));
        // SAFETY: each function is registered with the data that it uses. The function that shows
        // that all are there comes last.
        unsafe {
            self.register("litelease_refused", 2, Caller::Anybody, callbacks.refused, place)?;
            let (presented, presenting) = (callbacks.presented, callbacks.presenting);
            self.register("litelease_presented", 1, Caller::Anybody, presented, shared())?;
            self.register("litelease_presenting", 2, Caller::Statement, presenting, shared())
        }
    }
}

/// Returns how often the guards of a table by a name have refused a write in this process.
pub(crate) fn refusals(file: String, number: i64, name: &str) -> u64 {
    let counters = all_refusals();
    counters.get(&(file, number, name.to_owned())).copied().unwrap_or(0)
}

/// Begins to count anew for a table that gets a number which another one may have had.
pub(crate) fn forget_refusals(file: &str, number: i64) {
    let mut counters = all_refusals();
    counters.retain(|(counted, of, _), _| counted != file || *of != number);
}

/// `litelease_presented(name)`: the token, or NULL.
///
/// # Safety
/// Only SQLite may call it, as `register_presenting` has registered it; so it is for the functions
/// below.
pub(crate) unsafe extern "C" fn presented<L: Library>(
    context: *mut sqlite3_context,
    _count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let api = L::api();
    // SAFETY: SQLite hands over one value, and the data that the function was registered with.
    unsafe {
        let Presented(tokens) = &**(api.user_data)(context).cast::<Rc<Presented>>();
        let name = api.value(*values).and_then(Value::text);
        let found = tokens.try_borrow().ok().zip(name).and_then(|(tokens, name)| {
            tokens.iter().find(|(known, _)| **known == *name).map(|(_, token)| *token)
        });
        api.result(context, found.map_or(Value::Null, Value::Integer));
    }
}

/// `litelease_presenting(name, token)`: keeps the token, or forgets it where it is NULL.
///
/// # Safety
/// As for `presented`.
pub(crate) unsafe extern "C" fn presenting<L: Library>(
    context: *mut sqlite3_context,
    _count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let api = L::api();
    // SAFETY: SQLite hands over two values, and the data that the function was registered with.
    unsafe {
        let Presented(tokens) = &**(api.user_data)(context).cast::<Rc<Presented>>();
        let name = api.value(*values).and_then(Value::text);
        let token = api.value(*values.add(1)).and_then(Value::integer);
        if let (Ok(mut tokens), Some(name)) = (tokens.try_borrow_mut(), name) {
            tokens.retain(|(known, _)| **known != *name);
            tokens.extend(token.map(|token| (name.into(), token)));
        }
        api.result(context, Value::Null);
    }
}

/// `litelease_refused(number, name)`: counts a refused write. Without them, answers where a
/// database in memory is counted.
///
/// # Safety
/// As for `presented`.
pub(crate) unsafe extern "C" fn refused<L: Library>(
    context: *mut sqlite3_context,
    _count: c_int,
    values: *mut *mut sqlite3_value,
) {
    let api = L::api();
    // SAFETY: SQLite hands over two values, and the data that the function was registered with.
    unsafe {
        let connection = *(api.user_data)(context).cast::<Connection>();
        let number = api.value(*values).and_then(Value::integer);
        let name = api.value(*values.add(1)).and_then(Value::text);
        if number.is_none() && name.is_none() && !connection.has_file() {
            return api.result_copied(context, Value::Text(&connection.database_key()));
        }
        if let Some((number, name)) = number.zip(name) {
            let key = (connection.database_key(), number, name.to_owned());
            let mut counters = all_refusals();
            if counters.len() < MOST_COUNTERS || counters.contains_key(&key) {
                *counters.entry(key).or_default() += 1;
            }
        }
        api.result(context, Value::Null);
    }
}
