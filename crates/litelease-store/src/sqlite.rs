//! The part of SQLite's C interface that the store uses. Besides `rule_fn.rs`, `present.rs` and
//! `closing.rs`, which SQLite calls, the only file of this crate with `unsafe` in it.
//!
//! The functions come as a table, because there is more than one SQLite to call: the one linked
//! into a Rust program, and the host's when this code runs inside a loadable extension.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::marker::PhantomData;
use std::{ptr, slice};

use crate::boot::Boot;
use crate::rule_fn::RULE_CALL;
use crate::{Callbacks, Failure};

/// SQLite's connection, as the C interface has it.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct sqlite3 {
    _opaque: [u8; 0],
}

/// SQLite's prepared statement, as the C interface has it.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct sqlite3_stmt {
    _opaque: [u8; 0],
}

/// SQLite's context of a call of a function, as the C interface has it.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct sqlite3_context {
    _opaque: [u8; 0],
}

/// SQLite's value, as the C interface has it.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct sqlite3_value {
    _opaque: [u8; 0],
}

/// SQLite's question about a plan for a virtual table, as the C interface has it.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct sqlite3_index_info {
    _opaque: [u8; 0],
}

/// A function that SQLite calls from a statement.
pub type SqlFunction = unsafe extern "C" fn(*mut sqlite3_context, c_int, *mut *mut sqlite3_value);

/// The function that SQLite calls last, for one that works on many rows.
pub type SqlLast = unsafe extern "C" fn(*mut sqlite3_context);

/// The function that frees a value that SQLite holds; `None` where it need not be freed.
pub type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;

/// The functions of one SQLite library that the store calls. The fields are named as in SQLite's
/// own table for extensions, `sqlite3_api_routines`.
#[allow(missing_docs)]
#[derive(Clone, Copy)]
pub struct Api {
    pub bind_blob64:
        unsafe extern "C" fn(*mut sqlite3_stmt, c_int, *const c_void, u64, Destructor) -> c_int,
    pub bind_double: unsafe extern "C" fn(*mut sqlite3_stmt, c_int, f64) -> c_int,
    pub bind_int64: unsafe extern "C" fn(*mut sqlite3_stmt, c_int, i64) -> c_int,
    pub bind_null: unsafe extern "C" fn(*mut sqlite3_stmt, c_int) -> c_int,
    pub bind_pointer: unsafe extern "C" fn(
        *mut sqlite3_stmt,
        c_int,
        *mut c_void,
        *const c_char,
        Destructor,
    ) -> c_int,
    pub bind_text64: unsafe extern "C" fn(
        *mut sqlite3_stmt,
        c_int,
        *const c_char,
        u64,
        Destructor,
        c_uchar,
    ) -> c_int,
    pub busy_timeout: unsafe extern "C" fn(*mut sqlite3, c_int) -> c_int,
    pub changes: unsafe extern "C" fn(*mut sqlite3) -> c_int,
    pub clear_bindings: unsafe extern "C" fn(*mut sqlite3_stmt) -> c_int,
    pub close_v2: unsafe extern "C" fn(*mut sqlite3) -> c_int,
    pub column_value: unsafe extern "C" fn(*mut sqlite3_stmt, c_int) -> *mut sqlite3_value,
    pub create_function_v2: unsafe extern "C" fn(
        *mut sqlite3,
        *const c_char,
        c_int,
        c_int,
        *mut c_void,
        Option<SqlFunction>,
        Option<SqlFunction>,
        Option<SqlLast>,
        Destructor,
    ) -> c_int,
    pub create_module_v2: unsafe extern "C" fn(
        *mut sqlite3,
        *const c_char,
        *const c_void,
        *mut c_void,
        Destructor,
    ) -> c_int,
    pub db_config: unsafe extern "C" fn(*mut sqlite3, c_int, ...) -> c_int,
    pub db_filename: unsafe extern "C" fn(*mut sqlite3, *const c_char) -> *const c_char,
    pub db_mutex: unsafe extern "C" fn(*mut sqlite3) -> *mut c_void,
    pub db_readonly: unsafe extern "C" fn(*mut sqlite3, *const c_char) -> c_int,
    pub declare_vtab: unsafe extern "C" fn(*mut sqlite3, *const c_char) -> c_int,
    pub errmsg: unsafe extern "C" fn(*mut sqlite3) -> *const c_char,
    pub extended_errcode: unsafe extern "C" fn(*mut sqlite3) -> c_int,
    pub file_control:
        unsafe extern "C" fn(*mut sqlite3, *const c_char, c_int, *mut c_void) -> c_int,
    pub finalize: unsafe extern "C" fn(*mut sqlite3_stmt) -> c_int,
    pub get_autocommit: unsafe extern "C" fn(*mut sqlite3) -> c_int,
    pub interrupt: unsafe extern "C" fn(*mut sqlite3),
    pub last_insert_rowid: unsafe extern "C" fn(*mut sqlite3) -> i64,
    pub malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    pub open_v2:
        unsafe extern "C" fn(*const c_char, *mut *mut sqlite3, c_int, *const c_char) -> c_int,
    pub prepare_v3: unsafe extern "C" fn(
        *mut sqlite3,
        *const c_char,
        c_int,
        c_uint,
        *mut *mut sqlite3_stmt,
        *mut *const c_char,
    ) -> c_int,
    pub reset: unsafe extern "C" fn(*mut sqlite3_stmt) -> c_int,
    pub result_blob64: unsafe extern "C" fn(*mut sqlite3_context, *const c_void, u64, Destructor),
    pub result_double: unsafe extern "C" fn(*mut sqlite3_context, f64),
    pub result_error: unsafe extern "C" fn(*mut sqlite3_context, *const c_char, c_int),
    pub result_error_code: unsafe extern "C" fn(*mut sqlite3_context, c_int),
    pub result_int64: unsafe extern "C" fn(*mut sqlite3_context, i64),
    pub result_null: unsafe extern "C" fn(*mut sqlite3_context),
    pub result_text64:
        unsafe extern "C" fn(*mut sqlite3_context, *const c_char, u64, Destructor, c_uchar),
    pub set_last_insert_rowid: unsafe extern "C" fn(*mut sqlite3, i64),
    pub step: unsafe extern "C" fn(*mut sqlite3_stmt) -> c_int,
    pub stmt_status: unsafe extern "C" fn(*mut sqlite3_stmt, c_int, c_int) -> c_int,
    pub total_changes: unsafe extern "C" fn(*mut sqlite3) -> c_int,
    pub txn_state: unsafe extern "C" fn(*mut sqlite3, *const c_char) -> c_int,
    pub uri_boolean: unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> c_int,
    pub user_data: unsafe extern "C" fn(*mut sqlite3_context) -> *mut c_void,
    pub value_blob: unsafe extern "C" fn(*mut sqlite3_value) -> *const c_void,
    pub value_bytes: unsafe extern "C" fn(*mut sqlite3_value) -> c_int,
    pub value_double: unsafe extern "C" fn(*mut sqlite3_value) -> f64,
    pub value_int64: unsafe extern "C" fn(*mut sqlite3_value) -> i64,
    pub value_pointer: unsafe extern "C" fn(*mut sqlite3_value, *const c_char) -> *mut c_void,
    pub value_text: unsafe extern "C" fn(*mut sqlite3_value) -> *const c_uchar,
    pub value_type: unsafe extern "C" fn(*mut sqlite3_value) -> c_int,
    pub vtab_collation: unsafe extern "C" fn(*mut sqlite3_index_info, c_int) -> *const c_char,
    pub vtab_config: unsafe extern "C" fn(*mut sqlite3, c_int, ...) -> c_int,
    /// Not SQLite's: what SQLite calls in us, for this library.
    pub callbacks: Callbacks,
}

/// The result codes that the store distinguishes.
pub mod code {
    use std::ffi::c_int;

    /// Success.
    pub const OK: c_int = 0;
    /// A generic error, "no such table" among them.
    pub const ERROR: c_int = 1;
    /// The application's authorizer refused.
    pub(crate) const AUTH: c_int = 23;
    /// Another connection holds a lock that this one needs.
    pub const BUSY: c_int = 5;
    /// Another statement of this connection, or one that shares its cache, is in the way.
    pub const LOCKED: c_int = 6;
    /// There is no memory left.
    pub const NOMEM: c_int = 7;
    /// The file is read-only.
    pub const READONLY: c_int = 8;
    /// A statement was interrupted.
    pub const INTERRUPT: c_int = 9;
    /// The disk fails.
    pub const IOERR: c_int = 10;
    /// The disk is full.
    pub const FULL: c_int = 13;
    /// Text or a blob is longer than the connection allows.
    pub(crate) const TOOBIG: c_int = 18;
    /// A constraint was violated.
    pub const CONSTRAINT: c_int = 19;
    /// The commit hook of the application refused; the transaction was rolled back.
    pub const CONSTRAINT_COMMITHOOK: c_int = 531;
    pub(crate) const ROW: c_int = 100;
    pub(crate) const DONE: c_int = 101;
}

const SQLITE_INTEGER: c_int = 1;
const SQLITE_FLOAT: c_int = 2;
const SQLITE_BLOB: c_int = 4;
const SQLITE_NULL: c_int = 5;
const SQLITE_UTF8: c_uchar = 1;
const SQLITE_PREPARE_PERSISTENT: c_uint = 1;
const SQLITE_STMTSTATUS_REPREPARE: c_int = 5;
const SQLITE_DIRECTONLY: c_int = 0x8_0000;
const SQLITE_INNOCUOUS: c_int = 0x20_0000;
pub(crate) const MAIN: &CStr = c"main";

/// The callers that a function of ours accepts.
#[derive(Clone, Copy)]
pub enum Caller {
    /// A statement of the application.
    Statement,
    /// Triggers and views too, also in a file that the application does not trust.
    Anybody,
}

/// An open SQLite connection, which other code owns.
#[derive(Clone, Copy)]
pub struct Connection {
    db: *mut sqlite3,
    api: &'static Api,
}

/// How far the transaction on the main database has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnState {
    /// Nothing was read or written yet.
    None,
    /// A snapshot is held.
    Read,
    /// The write lock is held.
    Write,
}

/// A value that is bound or read.
///
/// ```
/// # use litelease_store::Value;
/// assert_eq!(Value::Integer(7).integer(), Some(7));
/// assert_eq!(Value::Text("a").integer(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// An INTEGER.
    Integer(i64),
    /// A REAL.
    Real(f64),
    /// A TEXT.
    Text(&'a str),
    /// A BLOB.
    Blob(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the number, if it is one.
    pub fn integer(self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the text, if it is one.
    pub fn text(self) -> Option<&'a str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A compiled statement.
pub struct Statement {
    raw: *mut sqlite3_stmt,
    connection: Connection,
    /// How often SQLite had recompiled this statement when the schema was last found right.
    verified: Cell<Option<c_int>>,
    /// The call of the rule that this statement makes, while it runs. Its address is bound to `?2`.
    pub(crate) call_slot: Option<Box<CallSlot>>,
}

/// A place for a pointer that is there only while a statement runs.
pub(crate) type CallSlot = Cell<*mut c_void>;

/// One run of a statement. The values it was given are borrowed until it ends; then it is reset, so
/// that no lock outlives it and no pointer to a value is left behind.
pub struct Run<'s, 'v> {
    statement: &'s Statement,
    values: PhantomData<&'v str>,
}

impl Connection {
    /// Returns the connection behind a raw pointer, driven through `api`.
    ///
    /// # Safety
    /// `db` must be an open connection of the SQLite library whose functions `api` holds. It must
    /// stay open for as long as this value, its copies and whatever was made from them are used,
    /// and it must not be used from two threads at once.
    pub unsafe fn from_raw(db: *mut sqlite3, api: &'static Api) -> Self {
        Connection { db, api }
    }

    /// Returns the pointer and the table that it was made from.
    pub fn as_raw(self) -> (*mut sqlite3, &'static Api) {
        (self.db, self.api)
    }

    /// Checks whether no transaction is open.
    #[inline]
    pub fn is_autocommit(self) -> bool {
        // SAFETY: `db` is open, by the promise of `from_raw`; so it is for every call below.
        unsafe { (self.api.get_autocommit)(self.db) != 0 }
    }

    /// Stops all statements of the connection that are running. A host's cannot be stopped.
    pub(crate) fn interrupt(self) {
        // SAFETY: `db` is open.
        unsafe { (self.api.interrupt)(self.db) }
    }

    /// Returns how far the transaction on the main database has come.
    pub(crate) fn txn_state(self) -> TxnState {
        self.txn_state_of(MAIN.as_ptr())
    }

    /// Returns how far the transaction has come on whichever database it has come farthest.
    pub(crate) fn txn_state_anywhere(self) -> TxnState {
        self.txn_state_of(ptr::null())
    }

    fn txn_state_of(self, schema: *const c_char) -> TxnState {
        // SAFETY: `db` is open and the name is a C string, or null for all databases.
        match unsafe { (self.api.txn_state)(self.db, schema) } {
            2 => TxnState::Write,
            1 => TxnState::Read,
            _ => TxnState::None,
        }
    }

    /// Returns the rows changed by the last statement, without those that triggers changed.
    pub(crate) fn changes(self) -> i64 {
        // SAFETY: `db` is open.
        i64::from(unsafe { (self.api.changes)(self.db) })
    }

    /// Rows changed by all statements since the connection was opened.
    pub(crate) fn total_changes(self) -> i64 {
        // SAFETY: `db` is open.
        i64::from(unsafe { (self.api.total_changes)(self.db) })
    }

    /// Runs `work` and puts the caller's `last_insert_rowid()` back.
    pub(crate) fn keeping_last_insert_rowid<T>(self, work: impl FnOnce() -> T) -> T {
        // SAFETY: `db` is open.
        let before = unsafe { (self.api.last_insert_rowid)(self.db) };
        let done = work();
        // SAFETY: `db` is open.
        unsafe { (self.api.set_last_insert_rowid)(self.db, before) };
        done
    }

    /// Returns the path of the main database; empty for one in memory.
    pub(crate) fn filename(self) -> String {
        self.copy_text(self.path())
    }

    /// Checks whether the main database is in a file.
    pub(crate) fn has_file(self) -> bool {
        let path = self.path();
        // SAFETY: a pointer that is not null is a C string.
        !path.is_null() && unsafe { *path } != 0
    }

    pub(crate) fn path(self) -> *const c_char {
        // SAFETY: `db` is open and the name is a C string.
        unsafe { (self.api.db_filename)(self.db, MAIN.as_ptr()) }
    }

    /// Returns a key that identifies the main database: its path, or the connection's address if it
    /// is in memory.
    pub(crate) fn database_key(self) -> String {
        match self.filename() {
            none if none.is_empty() && self.is_hosted() => self.key_in_memory(),
            none if none.is_empty() => format!("memory {:p}", self.db),
            path => path,
        }
    }

    /// Returns the key of a host's database in memory: the address of SQLite's connection, if an
    /// extension in it can return that.
    fn key_in_memory(self) -> String {
        let told = self.prepare("SELECT litelease_refused(NULL, NULL)").and_then(|statement| {
            statement.advance()?;
            Ok(statement.column(0).and_then(Value::text).map(str::to_owned))
        });
        told.ok().flatten().unwrap_or_else(|| format!("memory {:p}", self.db))
    }

    /// Compiles a statement.
    pub fn prepare(self, sql: &str) -> Result<Statement, Failure> {
        let Ok(length) = c_int::try_from(sql.len()) else {
            return Err(Failure { code: code::ERROR, message: "statement too long".into() });
        };
        let mut raw = ptr::null_mut();
        // SAFETY: `db` is open, the text has the given length, and `raw` is written to.
        let rc = unsafe {
            (self.api.prepare_v3)(
                self.db,
                sql.as_ptr().cast(),
                length,
                SQLITE_PREPARE_PERSISTENT,
                &raw mut raw,
                ptr::null_mut(),
            )
        };
        match rc {
            code::OK => {
                Ok(Statement { raw, connection: self, verified: Cell::new(None), call_slot: None })
            }
            _ => Err(self.failure(rc)),
        }
    }

    /// Checks whether a query answers 1.
    pub fn answers_one(self, sql: &str) -> Result<bool, Failure> {
        let statement = self.prepare(sql)?;
        Ok(statement.advance()? && statement.column(0) == Some(Value::Integer(1)))
    }

    /// Returns the present boot as this database is concerned: 0 for one in memory, which does not
    /// outlive any.
    pub(crate) fn boot(self) -> i64 {
        if self.has_file() { Boot::present().number() } else { 0 }
    }

    /// Returns the caller's `synchronous`, as a number.
    pub(crate) fn synchronous(self) -> Result<i64, Failure> {
        // SQLite puts the answer into the statement when it compiles it, so a held one would be
        // wrong.
        let statement = self.prepare("PRAGMA main.synchronous")?;
        statement.advance()?;
        Ok(statement.column(0).and_then(Value::integer).unwrap_or(0))
    }

    /// Sets `synchronous`, which is to be put back.
    ///
    /// SQLite does it when it compiles this. An interrupt is looked for at white space and at the
    /// end of a text that no semicolon ends, and would leave the caller with another setting than
    /// before.
    pub(crate) fn set_synchronous(self, level: i64) -> Result<(), Failure> {
        let statement = self.prepare(&format!("PRAGMA\"main\".\"synchronous\"={level};"))?;
        // A host compiles a statement when it runs it.
        if self.is_hosted() { statement.advance().map(drop) } else { Ok(()) }
    }

    /// Compiles a statement that asks the rule.
    ///
    /// The private function gets a name that no other copy of this code in the process uses for its
    /// own, and is registered when the connection does not know it yet.
    pub(crate) fn prepare_asking(self, sql: &str) -> Result<Statement, Failure> {
        let rule_fn = self.api.callbacks.rule_fn;
        let name = format!("litelease_rule_{:x}", rule_fn as usize);
        let sql = sql.replace("litelease_rule", &name);
        let sql = sql.replace("litelease_boot", &self.boot().to_string());
        let mut statement = self.prepare_calling(&sql, || {
            let data = Box::into_raw(Box::<CallSlot>::new(Cell::new(ptr::null_mut()))).cast();
            let data = Some((data, Some(destroy::<CallSlot> as _)));
            // SAFETY: this is the function's data, and `destroy` frees the box that was made here.
            unsafe { self.register(&name, -1, Caller::Statement, rule_fn, data) }
        })?;
        let call_slot = statement.call_slot.insert(Box::new(Cell::new(ptr::null_mut())));
        let place = ptr::from_ref::<CallSlot>(call_slot).cast_mut().cast();
        // SAFETY: the statement is alive, the kind lives for ever, and the call_slot as long as the
        // statement.
        match unsafe { (self.api.bind_pointer)(statement.raw, 2, place, RULE_CALL.as_ptr(), None) }
        {
            code::OK => Ok(statement),
            rc => Err(self.failure(rc)),
        }
    }

    /// Compiles a statement that calls a function of ours, which `register` registers where the
    /// connection does not know it yet. Registering it again would disturb statements
    /// that are running.
    pub(crate) fn prepare_calling(
        self,
        sql: &str,
        register: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Statement, Failure> {
        self.prepare(sql).or_else(|failure| {
            if !failure.message.contains("no such function") || register().is_err() {
                return Err(failure);
            }
            self.prepare(sql)
        })
    }

    /// Registers a function, with data that SQLite frees.
    ///
    /// # Safety
    /// The function must be one of this library, and work with this data.
    pub unsafe fn register(
        self,
        name: &str,
        arguments: c_int,
        caller: Caller,
        function: SqlFunction,
        data: Option<(*mut c_void, Destructor)>,
    ) -> Result<(), Failure> {
        let name = format!("{name}\0");
        let flags = match caller {
            Caller::Statement => SQLITE_DIRECTONLY,
            Caller::Anybody => SQLITE_INNOCUOUS,
        };
        let (data, destroy) = data.unwrap_or((ptr::null_mut(), None));
        // SAFETY: `db` is open, the name ends with a NUL, and the caller promises the rest. SQLite
        // frees the data also when this call fails.
        let rc = unsafe {
            (self.api.create_function_v2)(
                self.db,
                name.as_ptr().cast(),
                arguments,
                c_int::from(SQLITE_UTF8) | flags,
                data,
                Some(function),
                None,
                None,
                destroy,
            )
        };
        if rc == code::OK { Ok(()) } else { Err(self.failure(rc)) }
    }

    /// Returns SQLite's message about the call that just failed with `rc`.
    pub(crate) fn failure(self, rc: c_int) -> Failure {
        // SAFETY: `db` is open.
        let (extended, message) =
            unsafe { ((self.api.extended_errcode)(self.db), (self.api.errmsg)(self.db)) };
        // A misuse may not be recorded in the connection: then the code that came back is the
        // better one.
        let code = if extended & 0xff == rc & 0xff { extended } else { rc };
        Failure { code, message: self.copy_text(message) }
    }

    fn copy_text(self, text: *const c_char) -> String {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: SQLite hands out C strings that live until the next call on this connection.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl Statement {
    /// Binds the values and gets ready to step.
    #[inline]
    pub(crate) fn run<'v>(&mut self, values: &[Value<'v>]) -> Result<Run<'_, 'v>, Failure> {
        Run::start(self, values)
    }

    /// Binds copies of the values, for a run that outlives them. It lasts until the statement is
    /// dropped.
    pub(crate) fn start(&self, values: &[Value<'_>]) -> Result<(), Failure> {
        (1..).zip(values).try_for_each(|(index, value)| self.bind(index, *value, transient()))
    }

    #[inline]
    fn bind(&self, index: c_int, value: Value<'_>, how: Destructor) -> Result<(), Failure> {
        let (api, raw) = (self.api(), self.raw);
        // SAFETY: `raw` is alive. Text and blobs live until the run ends, unless `how` says that
        // SQLite copies them.
        let rc = unsafe {
            match value {
                // Bindings are cleared after each run, so parameters that are not bound are NULL.
                Value::Null => code::OK,
                Value::Integer(number) => (api.bind_int64)(raw, index, number),
                Value::Real(number) => (api.bind_double)(raw, index, number),
                Value::Blob(bytes) => {
                    let (start, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
                    (api.bind_blob64)(raw, index, start, length, how)
                }
                Value::Text(text) => {
                    let (start, length) = (text.as_ptr().cast(), text.len() as u64);
                    (api.bind_text64)(raw, index, start, length, how, SQLITE_UTF8)
                }
            }
        };
        if rc == code::OK { Ok(()) } else { Err(self.connection.failure(rc)) }
    }

    /// Checks whether SQLite compiled this statement, anew or for the first time, since
    /// `mark_verified`.
    #[inline]
    pub(crate) fn is_unverified(&self) -> bool {
        self.verified.get() != Some(self.compilations())
    }

    /// Remembers that the schema this statement is now compiled against was found right.
    pub(crate) fn mark_verified(&self) {
        self.verified.set(Some(self.compilations()));
    }

    /// Goes on to the next row, if there is one. No reference to a column of the row before may be
    /// in use.
    pub(crate) fn advance(&self) -> Result<bool, Failure> {
        // SAFETY: `raw` is alive.
        match unsafe { (self.api().step)(self.raw) } {
            code::ROW => Ok(true),
            code::DONE => Ok(false),
            rc => Err(self.connection.failure(rc)),
        }
    }

    /// Returns a column of the present row; `None` for text that is not UTF-8.
    #[inline]
    pub(crate) fn column(&self, index: c_int) -> Option<Value<'_>> {
        let api = self.api();
        // SAFETY: `raw` is alive, and SQLite answers NULL for a column that is not there. Such a
        // value may be looked at by one thread only, as `from_raw` demands, and stays where it is
        // until the next step or the reset.
        unsafe { api.value((api.column_value)(self.raw, index)) }
    }

    #[inline]
    fn compilations(&self) -> c_int {
        // SAFETY: `raw` lives as long as `self`.
        unsafe { (self.api().stmt_status)(self.raw, SQLITE_STMTSTATUS_REPREPARE, 0) }
    }

    #[inline]
    fn api(&self) -> &'static Api {
        self.connection.api
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: `raw` came from `prepare` and is finalised only here. The code it gives back is
        // that of the last step, which was reported then.
        unsafe { (self.api().finalize)(self.raw) };
    }
}

// SAFETY: a statement may move to another thread together with its connection, and `from_raw`
// demands that no two threads use that at once.
unsafe impl Send for Statement {}

// SAFETY: as for a statement.
unsafe impl Send for Connection {}

impl<'s, 'v> Run<'s, 'v> {
    /// Starts a run of `statement`, which must be the only one.
    #[inline]
    pub(crate) fn start(statement: &'s Statement, values: &[Value<'v>]) -> Result<Self, Failure> {
        // From here on the guard clears the bindings, even after an error.
        let run = Run { statement, values: PhantomData };
        for (index, value) in (1..).zip(values) {
            // The values are borrowed for longer than the run, so SQLite need not copy them: a null
            // destructor means SQLITE_STATIC.
            statement.bind(index, *value, None)?;
        }
        Ok(run)
    }

    /// Goes on to the next row, if there is one.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool, Failure> {
        self.statement.advance()
    }

    /// Calls the method of the statement.
    #[inline]
    pub(crate) fn is_unverified(&self) -> bool {
        self.statement.is_unverified()
    }

    /// Calls the method of the statement.
    pub(crate) fn mark_verified(&self) {
        self.statement.mark_verified();
    }

    /// Returns a column of the present row; `None` for text that is not UTF-8.
    #[inline]
    pub fn column(&self, index: c_int) -> Option<Value<'_>> {
        self.statement.column(index)
    }
}

impl Api {
    /// A value that SQLite passes to a function; `None` for text that is not UTF-8.
    ///
    /// # Safety
    /// The value must be one of this library's and live for `'a`.
    // Else all of it goes through memory, for the sake of a few branches.
    #[inline(always)]
    pub unsafe fn value<'a>(&self, value: *mut sqlite3_value) -> Option<Value<'a>> {
        // SAFETY: as promised; `value_text` comes before `value_bytes`, as SQLite asks.
        unsafe {
            match (self.value_type)(value) {
                SQLITE_NULL => Some(Value::Null),
                SQLITE_INTEGER => Some(Value::Integer((self.value_int64)(value))),
                SQLITE_FLOAT => Some(Value::Real((self.value_double)(value))),
                SQLITE_BLOB => {
                    let start = (self.value_blob)(value).cast();
                    Some(Value::Blob(as_bytes(start, (self.value_bytes)(value))))
                }
                _ => {
                    let start = (self.value_text)(value);
                    as_text(start, (self.value_bytes)(value)).map(Value::Text)
                }
            }
        }
    }

    /// Answers a call of a function.
    ///
    /// # Safety
    /// The context must be that of a call by this library, and text and blobs must live until its
    /// statement ends.
    pub(crate) unsafe fn result(&self, context: *mut sqlite3_context, value: Value<'_>) {
        // SAFETY: as promised.
        unsafe { self.give(context, value, None) }
    }

    /// Answers a call of a function with a value that SQLite copies.
    ///
    /// # Safety
    /// The context must be that of a call by this library.
    pub unsafe fn result_copied(&self, context: *mut sqlite3_context, value: Value<'_>) {
        // SAFETY: as promised.
        unsafe { self.give(context, value, transient()) }
    }

    /// # Safety
    /// As for `result`, unless the destructor says that SQLite copies.
    unsafe fn give(&self, context: *mut sqlite3_context, value: Value<'_>, how: Destructor) {
        // SAFETY: as promised.
        unsafe {
            match value {
                Value::Null => (self.result_null)(context),
                Value::Integer(number) => (self.result_int64)(context, number),
                Value::Real(number) => (self.result_double)(context, number),
                Value::Text(text) => {
                    let (start, length) = (text.as_ptr().cast(), text.len() as u64);
                    (self.result_text64)(context, start, length, how, SQLITE_UTF8);
                }
                Value::Blob(bytes) => {
                    let (start, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
                    (self.result_blob64)(context, start, length, how);
                }
            }
        }
    }
}

/// Returns SQLITE_TRANSIENT, which makes SQLite copy a value.
fn transient() -> Destructor {
    // SAFETY: the address -1 is no function but a constant that SQLite knows.
    unsafe { std::mem::transmute::<isize, Destructor>(-1) }
}

/// Frees what a function or module was registered with.
///
/// # Safety
/// `data` must come from `Box::into_raw` of a `Box<T>`, and must not be used any more.
pub unsafe extern "C" fn destroy<T>(data: *mut c_void) {
    // SAFETY: as promised.
    drop(unsafe { Box::from_raw(data.cast::<T>()) });
}

/// Returns a C string in memory that SQLite can free, or null where there is none left.
///
/// # Safety
/// `malloc` must be SQLite's: it returns at least as many bytes as were requested, or null.
pub unsafe fn c_string(text: &str, malloc: impl FnOnce(c_int) -> *mut c_void) -> *mut c_char {
    let Ok(size) = c_int::try_from(text.len() + 1) else { return ptr::null_mut() };
    let memory = malloc(size).cast::<u8>();
    if !memory.is_null() {
        // SAFETY: as promised, there is room for the text and a NUL.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), memory, text.len());
            *memory.add(text.len()) = 0;
        }
    }
    memory.cast()
}

/// Returns text as SQLite hands it out.
///
/// # Safety
/// `start` must be null or point to `length` bytes that live for `'a`.
#[inline]
unsafe fn as_text<'a>(start: *const c_uchar, length: c_int) -> Option<&'a str> {
    if start.is_null() {
        return None;
    }
    // SAFETY: as promised.
    let bytes = unsafe { as_bytes(start, length) };
    if bytes.is_ascii() {
        // Nearly all names and owners are, and telling that is much cheaper.
        // SAFETY: ASCII is UTF-8.
        return Some(unsafe { std::str::from_utf8_unchecked(bytes) });
    }
    std::str::from_utf8(bytes).ok()
}

/// Bytes as SQLite hands them out; none where it has a null pointer for them.
///
/// # Safety
/// As for `as_text`.
#[inline]
unsafe fn as_bytes<'a>(start: *const c_uchar, length: c_int) -> &'a [u8] {
    match usize::try_from(length) {
        // SAFETY: as promised.
        Ok(length) if !start.is_null() => unsafe { slice::from_raw_parts(start, length) },
        _ => &[],
    }
}

impl Drop for Run<'_, '_> {
    fn drop(&mut self) {
        let (api, raw) = (self.statement.api(), self.statement.raw);
        // SAFETY: `raw` is alive. `reset` repeats the error of the last step, which was reported
        // then.
        unsafe {
            (api.reset)(raw);
            match &self.statement.call_slot {
                None => _ = (api.clear_bindings)(raw),
                // All but the call_slot itself, which stays where it is.
                Some(call_slot) => {
                    call_slot.set(ptr::null_mut());
                    (api.bind_null)(raw, 1);
                }
            }
        }
    }
}
