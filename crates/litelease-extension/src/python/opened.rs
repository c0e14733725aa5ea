//! Connections of Python's whose opening the library has seen: it runs verbs on them itself, with
//! no call of Python per statement.
//!
//! Python does not show the pointer of a connection. SQLite passes it to an automatic extension,
//! which it calls for each connection that is opened.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use litelease_store::{Connection, Error, Statement, Store, code, sqlite3};

use crate::python::Context;
use crate::python::api::{Boxed, Object, Result, boxed, in_box};
use crate::python::library::found;
use crate::routines::Routines;
use crate::{libraries, load};

thread_local! {
    /// The connections that this thread opens for us: their number so far, and the last one.
    static OPENING: Cell<Option<(usize, *mut sqlite3)>> = const { Cell::new(None) };
}

/// A connection of Python's, by its pointer.
#[derive(Clone, Copy)]
pub(crate) struct Opened(*mut sqlite3, &'static Routines);

impl Boxed for Opened {
    const NAME: &'static CStr = c"litelease.opened";
}

/// The store of such a connection.
pub(crate) struct OwnStore {
    // Dropped first.
    pub(crate) store: Store,
    /// Keeps the connection's memory. If Python closes the connection, it refuses every statement,
    /// and is freed with the last compiled one.
    _anchor: Statement,
    opened: Opened,
}

/// Opens a connection by a function of Python's. Answers a capsule with its pointer, or None if the
/// library cannot use it.
pub(crate) fn opened(context: &'static Context, given: Object) -> Result<Object> {
    let open = given.item(0)?;
    let table = libraries()
        .find(|(_, api)| found().is_some_and(|found| ptr::eq(found, *api)))
        .map(|(table, _)| table)
        .filter(|table| table.at_each_open(entry));
    OPENING.set(Some((0, ptr::null_mut())));
    let answer = open.call(vec![]);
    // If an audit hook has opened another one meanwhile, the pointers cannot be told apart.
    let db = OPENING.take().filter(|(count, _)| *count == 1).map(|(_, db)| db);
    drop(answer?);
    let Some((db, table)) = db.zip(table) else { return context.names.none() };
    boxed(Opened(db, table))
}

/// # Safety
/// Only SQLite may call it, for a connection that it is opening.
unsafe extern "C" fn entry(
    db: *mut sqlite3,
    _error: *mut *mut c_char,
    _table: *const Routines,
) -> c_int {
    let told = |opening: &Cell<Option<(usize, _)>>| {
        opening.set(opening.get().map(|(count, _)| (count + 1, db)));
    };
    let _ = OPENING.try_with(told);
    code::OK
}

/// Reads an answer of [`opened`].
pub(crate) fn read(context: &Context, capsule: &Object) -> Option<Opened> {
    if context.names.is_none(capsule) {
        return None;
    }
    in_box(capsule).copied().ok()
}

impl OwnStore {
    /// The leases in the main database. None if other threads could not use the connection.
    ///
    /// # Safety
    /// The connection must be open.
    pub(crate) unsafe fn new(opened: Opened) -> std::result::Result<Option<Self>, Error> {
        let Some((_, api)) = libraries().find(|(table, _)| ptr::eq(*table, opened.1)) else {
            return Ok(None);
        };
        // SAFETY: it is open, and stays in memory as long as the statement below.
        let connection = unsafe { Connection::from_raw(opened.0, api) };
        if !connection.has_mutex() {
            return Ok(None);
        }
        let anchor = connection.prepare("SELECT 1")?;
        Ok(Some(OwnStore { store: Store::new(connection), _anchor: anchor, opened }))
    }

    /// Registers the SQL functions on the connection.
    pub(crate) fn load(&self) -> std::result::Result<(), String> {
        // SAFETY: the caller has seen that it is open, and SQLite frees them when it closes.
        unsafe { load(self.opened.0, self.opened.1) }
    }
}
