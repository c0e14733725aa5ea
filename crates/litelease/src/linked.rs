//! The SQLite that `rusqlite` links into this program, as the table of functions that the store drives.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};

use litelease_store::{Api, Connection, sqlite3, sqlite3_stmt};
use rusqlite::ffi;

/// The store's view of an open connection.
///
/// # Safety
/// The result must not be used after `connection` was closed, nor while another thread uses it.
pub(crate) unsafe fn view(connection: &rusqlite::Connection) -> Connection {
    // SAFETY: the pointer is used under the promise of this function, and `LINKED` holds the functions of
    // the library that the connection belongs to.
    unsafe { Connection::from_raw(connection.handle().cast(), &LINKED) }
}

/// Wraps each function in one that takes the store's pointer types instead of `rusqlite`'s.
macro_rules! linked {
    ($($field:ident = $function:ident(
        $handle:ty $(, $argument:ident: $type:ty)*
    ) $(-> $answer:ty)?;)*) => {
        $(unsafe extern "C" fn $field(handle: *mut $handle $(, $argument: $type)*) $(-> $answer)? {
            // SAFETY: the caller keeps to the contract of SQLite's function of this name.
            unsafe { ffi::$function(handle.cast() $(, $argument)*) }
        })*

        static LINKED: Api = Api { $($field,)* prepare_v3 };
    };
}

linked! {
    bind_int64 = sqlite3_bind_int64(sqlite3_stmt, index: c_int, value: i64) -> c_int;
    bind_text64 = sqlite3_bind_text64(
        sqlite3_stmt,
        index: c_int,
        text: *const c_char,
        length: u64,
        destructor: Option<unsafe extern "C" fn(*mut c_void)>,
        encoding: c_uchar
    ) -> c_int;
    changes = sqlite3_changes(sqlite3) -> c_int;
    clear_bindings = sqlite3_clear_bindings(sqlite3_stmt) -> c_int;
    column_bytes = sqlite3_column_bytes(sqlite3_stmt, index: c_int) -> c_int;
    column_int64 = sqlite3_column_int64(sqlite3_stmt, index: c_int) -> i64;
    column_text = sqlite3_column_text(sqlite3_stmt, index: c_int) -> *const c_uchar;
    column_type = sqlite3_column_type(sqlite3_stmt, index: c_int) -> c_int;
    db_filename = sqlite3_db_filename(sqlite3, schema: *const c_char) -> *const c_char;
    errmsg = sqlite3_errmsg(sqlite3) -> *const c_char;
    extended_errcode = sqlite3_extended_errcode(sqlite3) -> c_int;
    finalize = sqlite3_finalize(sqlite3_stmt) -> c_int;
    get_autocommit = sqlite3_get_autocommit(sqlite3) -> c_int;
    last_insert_rowid = sqlite3_last_insert_rowid(sqlite3) -> i64;
    reset = sqlite3_reset(sqlite3_stmt) -> c_int;
    set_last_insert_rowid = sqlite3_set_last_insert_rowid(sqlite3, rowid: i64);
    step = sqlite3_step(sqlite3_stmt) -> c_int;
    stmt_status = sqlite3_stmt_status(sqlite3_stmt, counter: c_int, reset: c_int) -> c_int;
    txn_state = sqlite3_txn_state(sqlite3, schema: *const c_char) -> c_int;
}

unsafe extern "C" fn prepare_v3(
    db: *mut sqlite3,
    sql: *const c_char,
    length: c_int,
    flags: c_uint,
    statement: *mut *mut sqlite3_stmt,
    tail: *mut *const c_char,
) -> c_int {
    // SAFETY: the caller keeps to the contract of SQLite's function of this name.
    unsafe { ffi::sqlite3_prepare_v3(db.cast(), sql, length, flags, statement.cast(), tail) }
}
