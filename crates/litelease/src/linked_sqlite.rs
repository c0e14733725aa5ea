//! The SQLite that `rusqlite` links into this program, as the table of functions that the store
//! drives.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_void};
use std::mem::transmute;

use litelease_store::{
    Api, Callbacks, Connection, Destructor, Library, SqlFunction, SqlLast, sqlite3,
    sqlite3_context, sqlite3_index_info, sqlite3_stmt, sqlite3_value,
};

use self::declared as ffi;

/// SQLite's functions as `rusqlite` declares them, and those that its oldest bindings do not know:
/// with SQLite linked from the system, `rusqlite` 0.37 declares what SQLite 3.14 had.
pub(crate) mod declared {
    use std::ffi::{c_char, c_int, c_uint, c_void};

    pub(super) use rusqlite::ffi::*;

    use super::Destructor;

    /// The function that SQLite calls for each new connection.
    pub(crate) type Init =
        unsafe extern "C" fn(*mut sqlite3, *mut *mut c_char, *const c_void) -> c_int;

    unsafe extern "C" {
        /// Declared differently by different versions of the bindings.
        pub(crate) fn sqlite3_auto_extension(init: Option<Init>) -> c_int;
        pub(super) fn sqlite3_bind_pointer(
            statement: *mut sqlite3_stmt,
            index: c_int,
            pointer: *mut c_void,
            kind: *const c_char,
            destructor: Destructor,
        ) -> c_int;
        pub(super) fn sqlite3_close_v2(db: *mut sqlite3) -> c_int;
        pub(super) fn sqlite3_prepare_v3(
            db: *mut sqlite3,
            sql: *const c_char,
            length: c_int,
            flags: c_uint,
            statement: *mut *mut sqlite3_stmt,
            tail: *mut *const c_char,
        ) -> c_int;
        pub(super) fn sqlite3_set_last_insert_rowid(db: *mut sqlite3, rowid: i64);
        pub(super) fn sqlite3_txn_state(db: *mut sqlite3, schema: *const c_char) -> c_int;
        pub(super) fn sqlite3_value_pointer(
            value: *mut sqlite3_value,
            kind: *const c_char,
        ) -> *mut c_void;
        pub(super) fn sqlite3_vtab_collation(
            info: *mut sqlite3_index_info,
            constraint: c_int,
        ) -> *const c_char;
    }
}

/// Returns the store's view of an open connection.
///
/// # Safety
/// The result must not be used after `connection` was closed, nor while another thread uses it.
pub(crate) unsafe fn view(connection: &rusqlite::Connection) -> Connection {
    // SAFETY: the pointer is used under the promise of this function.
    unsafe { raw_view(connection.handle()) }
}

/// Returns the store's view of a connection that was opened without `rusqlite`.
///
/// # Safety
/// As for [`view`], and the connection must be open and one of the linked library's.
pub(crate) unsafe fn raw_view(db: *mut ffi::sqlite3) -> Connection {
    // SAFETY: as promised; `LINKED` holds the functions of the library that the connection belongs
    // to.
    unsafe { Connection::from_raw(db.cast(), &LINKED) }
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

        static LINKED: Api = Api {
            $($field,)*
            create_function_v2,
            create_module_v2,
            column_value,
            db_mutex,
            malloc: ffi::sqlite3_malloc,
            open_v2,
            // SAFETY: the two types differ only in what the pointer points to, which is opaque to
            // both.
            db_config: unsafe { transmute::<LinkedConfig, Config>(ffi::sqlite3_db_config) },
            // SAFETY: as above.
            vtab_config: unsafe { transmute::<LinkedConfig, Config>(ffi::sqlite3_vtab_config) },
            prepare_v3,
            uri_boolean: ffi::sqlite3_uri_boolean,
            callbacks: Callbacks::calling::<LinkedSqlite>(),
        };
    };
}

type LinkedConfig = unsafe extern "C" fn(*mut ffi::sqlite3, c_int, ...) -> c_int;
type Config = unsafe extern "C" fn(*mut sqlite3, c_int, ...) -> c_int;

/// The SQLite that `rusqlite` links into this program.
pub(crate) struct LinkedSqlite;

impl Library for LinkedSqlite {
    fn api() -> &'static Api {
        &LINKED
    }
}

linked! {
    bind_blob64 = sqlite3_bind_blob64(
        sqlite3_stmt,
        index: c_int,
        bytes: *const c_void,
        length: u64,
        destructor: Destructor
    ) -> c_int;
    bind_double = sqlite3_bind_double(sqlite3_stmt, index: c_int, value: f64) -> c_int;
    bind_int64 = sqlite3_bind_int64(sqlite3_stmt, index: c_int, value: i64) -> c_int;
    bind_null = sqlite3_bind_null(sqlite3_stmt, index: c_int) -> c_int;
    bind_pointer = sqlite3_bind_pointer(
        sqlite3_stmt,
        index: c_int,
        pointer: *mut c_void,
        kind: *const c_char,
        destructor: Destructor
    ) -> c_int;
    bind_text64 = sqlite3_bind_text64(
        sqlite3_stmt,
        index: c_int,
        text: *const c_char,
        length: u64,
        destructor: Destructor,
        encoding: c_uchar
    ) -> c_int;
    busy_timeout = sqlite3_busy_timeout(sqlite3, ms: c_int) -> c_int;
    changes = sqlite3_changes(sqlite3) -> c_int;
    clear_bindings = sqlite3_clear_bindings(sqlite3_stmt) -> c_int;
    close_v2 = sqlite3_close_v2(sqlite3) -> c_int;
    declare_vtab = sqlite3_declare_vtab(sqlite3, definition: *const c_char) -> c_int;
    db_filename = sqlite3_db_filename(sqlite3, schema: *const c_char) -> *const c_char;
    db_readonly = sqlite3_db_readonly(sqlite3, schema: *const c_char) -> c_int;
    errmsg = sqlite3_errmsg(sqlite3) -> *const c_char;
    extended_errcode = sqlite3_extended_errcode(sqlite3) -> c_int;
    file_control = sqlite3_file_control(
        sqlite3,
        schema: *const c_char,
        operation: c_int,
        argument: *mut c_void
    ) -> c_int;
    finalize = sqlite3_finalize(sqlite3_stmt) -> c_int;
    get_autocommit = sqlite3_get_autocommit(sqlite3) -> c_int;
    interrupt = sqlite3_interrupt(sqlite3);
    last_insert_rowid = sqlite3_last_insert_rowid(sqlite3) -> i64;
    reset = sqlite3_reset(sqlite3_stmt) -> c_int;
    result_blob64 = sqlite3_result_blob64(
        sqlite3_context,
        bytes: *const c_void,
        length: u64,
        destructor: Destructor
    );
    result_double = sqlite3_result_double(sqlite3_context, number: f64);
    result_error = sqlite3_result_error(sqlite3_context, message: *const c_char, length: c_int);
    result_error_code = sqlite3_result_error_code(sqlite3_context, code: c_int);
    result_int64 = sqlite3_result_int64(sqlite3_context, number: i64);
    result_null = sqlite3_result_null(sqlite3_context);
    result_text64 = sqlite3_result_text64(
        sqlite3_context,
        text: *const c_char,
        length: u64,
        destructor: Destructor,
        encoding: c_uchar
    );
    set_last_insert_rowid = sqlite3_set_last_insert_rowid(sqlite3, rowid: i64);
    step = sqlite3_step(sqlite3_stmt) -> c_int;
    stmt_status = sqlite3_stmt_status(sqlite3_stmt, counter: c_int, reset: c_int) -> c_int;
    total_changes = sqlite3_total_changes(sqlite3) -> c_int;
    txn_state = sqlite3_txn_state(sqlite3, schema: *const c_char) -> c_int;
    user_data = sqlite3_user_data(sqlite3_context) -> *mut c_void;
    value_blob = sqlite3_value_blob(sqlite3_value) -> *const c_void;
    value_bytes = sqlite3_value_bytes(sqlite3_value) -> c_int;
    value_double = sqlite3_value_double(sqlite3_value) -> f64;
    value_int64 = sqlite3_value_int64(sqlite3_value) -> i64;
    value_pointer = sqlite3_value_pointer(sqlite3_value, kind: *const c_char) -> *mut c_void;
    value_text = sqlite3_value_text(sqlite3_value) -> *const c_uchar;
    value_type = sqlite3_value_type(sqlite3_value) -> c_int;
    vtab_collation = sqlite3_vtab_collation(sqlite3_index_info, constraint: c_int) -> *const c_char;
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

unsafe extern "C" fn open_v2(
    path: *const c_char,
    db: *mut *mut sqlite3,
    flags: c_int,
    vfs: *const c_char,
) -> c_int {
    // SAFETY: the caller keeps to the contract of SQLite's function of this name.
    unsafe { ffi::sqlite3_open_v2(path, db.cast(), flags, vfs) }
}

unsafe extern "C" fn db_mutex(db: *mut sqlite3) -> *mut c_void {
    // SAFETY: the caller keeps to the contract of SQLite's function of this name.
    unsafe { ffi::sqlite3_db_mutex(db.cast()).cast() }
}

unsafe extern "C" fn create_function_v2(
    db: *mut sqlite3,
    name: *const c_char,
    arguments: c_int,
    flags: c_int,
    data: *mut c_void,
    function: Option<SqlFunction>,
    step: Option<SqlFunction>,
    last: Option<SqlLast>,
    destroy: Destructor,
) -> c_int {
    type Function =
        unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);
    type Last = unsafe extern "C" fn(*mut ffi::sqlite3_context);
    // SAFETY: the types of the functions differ only in what their pointers point to, which is
    // opaque to both sides. For the rest, the caller keeps to the contract of SQLite's function of
    // this name.
    unsafe {
        ffi::sqlite3_create_function_v2(
            db.cast(),
            name,
            arguments,
            flags,
            data,
            transmute::<Option<SqlFunction>, Option<Function>>(function),
            transmute::<Option<SqlFunction>, Option<Function>>(step),
            transmute::<Option<SqlLast>, Option<Last>>(last),
            destroy,
        )
    }
}

unsafe extern "C" fn column_value(
    statement: *mut sqlite3_stmt,
    index: c_int,
) -> *mut sqlite3_value {
    // SAFETY: the caller keeps to the contract of SQLite's function of this name.
    unsafe { ffi::sqlite3_column_value(statement.cast(), index).cast() }
}

unsafe extern "C" fn create_module_v2(
    db: *mut sqlite3,
    name: *const c_char,
    module: *const c_void,
    data: *mut c_void,
    destroy: Destructor,
) -> c_int {
    // SAFETY: the caller keeps to the contract of SQLite's function of this name.
    unsafe { ffi::sqlite3_create_module_v2(db.cast(), name, module.cast(), data, destroy) }
}
