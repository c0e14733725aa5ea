//! Records which rows a thread has changed in the database in memory, by SQLite's update hook.
//!
//! SQLite calls the hook neither for rows that `INSERT OR REPLACE` deletes, nor for a DELETE
//! without WHERE, nor for tables WITHOUT ROWID. `table.rs` makes up for the first and the last.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use litelease::rusqlite::Connection;
use litelease::rusqlite::ffi;

/// The numbers of rows by table.
pub(super) type Changed = BTreeMap<String, BTreeSet<i64>>;

thread_local! {
    static CHANGED: RefCell<Changed> = const { RefCell::new(Changed::new()) };
}

/// Forgets the changes so far, and records those from now on. The thread that writes calls this.
pub(super) fn begin(connection: &Connection) {
    take();
    // SAFETY: the connection is open, and the hook is a function that uses no data of its own.
    unsafe { ffi::sqlite3_update_hook(connection.handle(), Some(note), ptr::null_mut()) };
}

/// Returns the rows that have changed since the last call.
pub(super) fn take() -> Changed {
    CHANGED.with(RefCell::take)
}

/// Forgets changes of a table: of this row, or of all.
pub(super) fn forget(table: &str, number: Option<i64>) {
    CHANGED.with(|changed| {
        let mut changed = changed.borrow_mut();
        match (number, changed.get_mut(table)) {
            (None, _) => _ = changed.remove(table),
            (Some(number), Some(numbers)) => _ = numbers.remove(&number),
            (Some(_), None) => {}
        }
    });
}

unsafe extern "C" fn note(
    _: *mut c_void,
    _: c_int,
    _: *const c_char,
    table: *const c_char,
    number: i64,
) {
    // SAFETY: SQLite gives the name of the table as a string that ends with NUL.
    let table = unsafe { CStr::from_ptr(table) }.to_string_lossy();
    CHANGED.with(|changed| {
        let mut changed = changed.borrow_mut();
        match changed.get_mut(&*table) {
            Some(numbers) => _ = numbers.insert(number),
            None => _ = changed.insert(table.into_owned(), BTreeSet::from([number])),
        }
    });
}
