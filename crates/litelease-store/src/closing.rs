//! Notices that a connection closes, in time to finalise the statements that are kept for it.
//!
//! SQLite refuses to close a connection that has statements left. Before it checks for them it
//! disconnects the connection's virtual tables. So a private virtual table, which no statement can
//! query, receives the notice.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::callbacks::Library;
use crate::sqlite::{Connection, code, destroy, sqlite3};
use crate::{Failure, c_string};

/// Called with a connection that is about to close. It may finalise statements and must not run
/// any.
pub type Closing = fn(*mut sqlite3);

/// The module's data: SQLite keeps it until the connection is closed.
struct Watch {
    closing: Closing,
    /// `when_closing` is connecting the table. Any other statement is refused: it would keep the
    /// table connected for too long.
    is_connecting: Cell<bool>,
    /// The table is connected.
    is_connected: Cell<bool>,
}

/// SQLite's `sqlite3_module`, version 1, for a table that is never read.
#[repr(C)]
struct Module {
    version: c_int,
    create: Option<Connect>,
    connect: Option<Connect>,
    best_index: unsafe extern "C" fn(*mut Table, *mut c_void) -> c_int,
    disconnect: unsafe extern "C" fn(*mut Table) -> c_int,
    destroy: unsafe extern "C" fn(*mut Table) -> c_int,
    /// The functions of cursors and of writable tables, none of which is ever called.
    unused: [usize; 14],
}

type Connect = unsafe extern "C" fn(
    *mut sqlite3,
    *mut c_void,
    c_int,
    *const *const c_char,
    *mut *mut Table,
    *mut *mut c_char,
) -> c_int;

/// SQLite's `sqlite3_vtab`, and our fields.
#[repr(C)]
struct Table {
    module: *const c_void,
    references: c_int,
    error: *mut c_char,
    db: *mut sqlite3,
    watch: *const Watch,
}

/// The module for the connections of one library. It lives for ever, because SQLite may read it
/// after it has freed the data of the module.
struct Modules<L>(std::marker::PhantomData<L>);

impl<L: Library> Modules<L> {
    const MODULE: &'static Module = &Module {
        version: 1,
        create: None,
        connect: Some(connect::<L>),
        best_index,
        disconnect,
        destroy: disconnect,
        unused: [0; 14],
    };
}

impl Connection {
    /// Calls `closing` once, when this connection is about to be closed. Answers whether it
    /// will be.
    ///
    /// A close that SQLite refuses, because the application has statements left, counts too. Call
    /// it only where the schema is known to be loaded: otherwise SQLite reads it, which may wait
    /// for a lock.
    ///
    /// # Safety
    /// `L` must be the library of the connection.
    pub unsafe fn when_closing<L: Library>(self, closing: Closing) -> Result<bool, Failure> {
        let (db, api) = self.as_raw();
        // No other copy of this code in the process has this name.
        let name = format!("litelease_closing_{:x}", api.callbacks.rule_fn as usize);
        let c_name = format!("{name}\0");
        let module: *const Module = Modules::<L>::MODULE;
        let (is_connecting, is_connected) = (Cell::new(true), Cell::new(false));
        let watch = Box::into_raw(Box::new(Watch { closing, is_connecting, is_connected }));
        // SAFETY: the connection is open; SQLite frees the data, also when this call fails.
        let rc = unsafe {
            let data = watch.cast();
            let (name, free) = (c_name.as_ptr().cast(), destroy::<Watch>);
            (api.create_module_v2)(db, name, module.cast(), data, Some(free))
        };
        if rc != code::OK {
            let message = format!("cannot register {name}");
            return Err(Failure { code: rc, message });
        }
        // Compiling a statement that names the table connects it. That an authorizer refuses the
        // statement afterwards does not matter.
        let _ = self.prepare(&format!("SELECT 1 FROM {name}"));
        // SAFETY: SQLite keeps the data until the module is replaced or the connection closed.
        let watch = unsafe { &*watch };
        watch.is_connecting.set(false);
        Ok(watch.is_connected.get())
    }
}

/// # Safety
/// Only SQLite may call it; so it is for every function below.
unsafe extern "C" fn connect<L: Library>(
    db: *mut sqlite3,
    data: *mut c_void,
    _count: c_int,
    _arguments: *const *const c_char,
    table: *mut *mut Table,
    error: *mut *mut c_char,
) -> c_int {
    let api = L::api();
    // SAFETY: the connection is open, `data` is what the module was registered with, and SQLite
    // wants the new table in `table` and frees the message.
    unsafe {
        let watch = data.cast::<Watch>().cast_const();
        if !(*watch).is_connecting.get() {
            *error = c_string("this table is private to Litelease", |size| (api.malloc)(size));
            return code::ERROR;
        }
        match (api.declare_vtab)(db, c"CREATE TABLE closing (unread)".as_ptr()) {
            code::OK => {}
            rc => return rc,
        }
        (*watch).is_connected.set(true);
        let (module, error) = (ptr::null(), ptr::null_mut());
        *table = Box::into_raw(Box::new(Table { module, references: 0, error, db, watch }));
    }
    code::OK
}

unsafe extern "C" fn best_index(table: *mut Table, _info: *mut c_void) -> c_int {
    // SAFETY: the table is alive, and so is the data of its module.
    match unsafe { (*(*table).watch).is_connecting.get() } {
        true => code::OK,
        false => code::ERROR,
    }
}

unsafe extern "C" fn disconnect(table: *mut Table) -> c_int {
    // SAFETY: `connect` made it, and SQLite gives it up; the module's data goes after its tables.
    let (db, closing) = unsafe {
        let table = Box::from_raw(table);
        (*table.watch).is_connected.set(false);
        (table.db, (*table.watch).closing)
    };
    // A panic must not unwind into SQLite.
    let _ = catch_unwind(AssertUnwindSafe(|| closing(db)));
    code::OK
}
