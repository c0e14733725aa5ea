//! SQLite as a host language has it: a store whose statements run on a connection that the host
//! owns.
//!
//! The store drives SQLite through a table of C functions. [`HostedStore`] has a table of its own,
//! whose functions hand each statement with its values to a [`Host`] and keep the rows that come
//! back. So all verbs work where no extension can be loaded, and no rule and no statement is
//! written in the host's language.
//!
//! SQLite reports some errors when it compiles a statement; a host reports them with the first
//! step.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int, c_uchar, c_uint, c_void};
use std::mem::transmute;
use std::ops::Deref;
use std::{ptr, slice};

use crate::callbacks::{Callbacks, Library};
use crate::sqlite::{
    Api, Connection, Destructor, SqlFunction, SqlLast, Value, code, sqlite3, sqlite3_stmt,
    sqlite3_value,
};
use crate::{Failure, Store};

/// A connection that a host language owns.
///
/// No method may call back into the [`HostedStore`] that it serves.
pub trait Host {
    /// Runs one statement to its end, and answers its rows.
    fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure>;

    /// Checks whether a transaction is open. A host whose connection is closed returns false.
    fn is_in_transaction(&self) -> bool;

    /// Returns the rows changed by the last INSERT, UPDATE or DELETE, without those that triggers
    /// changed.
    fn changes(&self) -> i64;

    /// Rows changed since the connection was opened.
    fn total_changes(&self) -> i64;
}

/// The rows of a statement: all their values in one line.
///
/// ```
/// # use litelease_store::{OwnedValue, Rows};
/// let mut rows = Rows::new(2);
/// rows.push(OwnedValue::Integer(1));
/// rows.push(OwnedValue::Text("a".into()));
/// assert_eq!(rows.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    columns: usize,
    values: Vec<OwnedValue>,
}

impl Rows {
    /// Returns no rows, of this many columns.
    pub fn new(columns: usize) -> Self {
        Rows { columns, values: Vec::new() }
    }

    /// Adds the next value of the present row, or the first of the next one.
    pub fn push(&mut self, value: OwnedValue) {
        self.values.push(value);
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Checks whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn value(&self, row: usize, column: usize) -> Option<&OwnedValue> {
        if column < self.columns { self.values.get(row * self.columns + column) } else { None }
    }
}

/// A value with text of its own.
///
/// ```
/// # use litelease_store::{OwnedValue, Value};
/// assert_eq!(OwnedValue::from(Value::Text("a")).value(), Value::Text("a"));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum OwnedValue {
    /// NULL.
    #[default]
    Null,
    /// An INTEGER.
    Integer(i64),
    /// A REAL.
    Real(f64),
    /// A TEXT.
    Text(String),
    /// A BLOB.
    Blob(Vec<u8>),
}

impl OwnedValue {
    /// Returns the value, borrowed.
    pub fn value(&self) -> Value<'_> {
        match self {
            OwnedValue::Null => Value::Null,
            OwnedValue::Integer(number) => Value::Integer(*number),
            OwnedValue::Real(number) => Value::Real(*number),
            OwnedValue::Text(text) => Value::Text(text),
            OwnedValue::Blob(bytes) => Value::Blob(bytes),
        }
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Null => OwnedValue::Null,
            Value::Integer(number) => OwnedValue::Integer(number),
            Value::Real(number) => OwnedValue::Real(number),
            Value::Text(text) => OwnedValue::Text(text.into()),
            Value::Blob(bytes) => OwnedValue::Blob(bytes.into()),
        }
    }
}

/// A store on a connection that a host language owns.
pub struct HostedStore {
    // Dropped first: it uses the fields below.
    store: Store,
    hosted: Box<Hosted>,
}

impl HostedStore {
    /// Returns the leases in the main database of the host's connection.
    pub fn new(host: Box<dyn Host>) -> Result<Self, Failure> {
        let path = main_file(&*host)?;
        let hosted = Box::new(Hosted {
            host,
            path,
            failure: RefCell::new((code::OK, CString::default())),
            changes: Cell::new(0),
            schema: Cell::new(Schema::default()),
            is_unchanged: Cell::new(false),
            callers_rowid: Cell::new(None),
            kept: RefCell::new(Vec::new()),
        });
        let db = ptr::from_ref(&*hosted).cast_mut().cast();
        // SAFETY: the table's functions take such a pointer, and it stays where it is for as long
        // as the store. A box of something that is not `Send` stays in one thread, unless the
        // caller vouches for more.
        let store = Store::new(unsafe { Connection::from_raw(db, &HOSTED) });
        Ok(HostedStore { store, hosted })
    }

    /// Puts the caller's `last_insert_rowid()` back, if a verb has inserted rows since the last
    /// call. Call it after each verb, also after one that failed.
    pub fn restore_rowid(&self) {
        if let Some(rowid) = self.hosted.callers_rowid.take() {
            self.hosted.set_rowid(rowid);
        }
    }

    /// Returns the path of the main database; empty for one in memory.
    pub fn file(&self) -> &str {
        self.hosted.path.to_str().unwrap_or_default()
    }
}

impl Deref for HostedStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

/// The statement that begins a transaction of ours, with the write lock.
const BEGIN: &str = "BEGIN IMMEDIATE";

/// Sets `last_insert_rowid()`, which only an INSERT can do, by the one row of a table in the
/// connection's own temporary database.
///
/// It begins with WITH, because Python begins a transaction for what begins with REPLACE.
const SET_ROWID: &str = "WITH caller(id) AS (VALUES (?1)) REPLACE INTO temp.litelease_rowid (rowid, only) \
                         SELECT id, 1 FROM caller";
const CREATE_ROWID: &str =
    "CREATE TEMP TABLE IF NOT EXISTS litelease_rowid (only INTEGER NOT NULL UNIQUE)";

/// Reads the path by PRAGMA, because a table-valued function would take a snapshot.
fn main_file(host: &dyn Host) -> Result<CString, Failure> {
    let rows = host.run("PRAGMA database_list", &[])?;
    let is_main = |row: &usize| rows.value(*row, 1) == Some(&OwnedValue::Text("main".into()));
    let path = match (0..rows.len()).find(is_main).and_then(|row| rows.value(row, 2)) {
        Some(OwnedValue::Text(path)) => path.clone(),
        _ => String::new(),
    };
    CString::new(path).map_err(|_| Failure { code: code::ERROR, message: "odd path".into() })
}

impl Connection {
    /// Checks whether a host runs the statements.
    #[inline]
    pub(crate) fn is_hosted(self) -> bool {
        ptr::eq(self.as_raw().1, &raw const HOSTED)
    }
}

/// The target of a `sqlite3*`.
struct Hosted {
    host: Box<dyn Host>,
    path: CString,
    /// The last failure: code and message.
    failure: RefCell<(c_int, CString)>,
    changes: Cell<i64>,
    /// The caller's `last_insert_rowid()`, since our first INSERT.
    callers_rowid: Cell<Option<i64>>,
    schema: Cell<Schema>,
    /// A transaction of ours is open, with the write lock, and has not changed the schema.
    is_unchanged: Cell<bool>,
    /// The data of registered functions, and the functions that free it.
    kept: RefCell<Vec<(*mut c_void, Destructor)>>,
}

/// The committed schema when it was last read, and the number that identifies it.
///
/// One that is seen inside a transaction and may not be committed gets a new number each time: if
/// it is rolled back, another one will get its version.
#[derive(Clone, Copy, Default)]
struct Schema {
    versions: Option<(i64, i64)>,
    number: c_int,
    newest: c_int,
}

/// The target of a `sqlite3_stmt*`.
struct HostedStatement {
    hosted: *const Hosted,
    sql: Box<str>,
    /// How many parameters it has. Parameters that are not bound are NULL.
    parameters: usize,
    /// The values are borrowed until they are cleared, which `Run` does before they go.
    values: Vec<Value<'static>>,
    rows: Rows,
    /// The row that comes next; `None` before the first step.
    next: Option<usize>,
}

impl Hosted {
    fn fail(&self, failure: Failure) -> c_int {
        let message = failure.message.replace('\0', " ");
        *self.failure.borrow_mut() = (failure.code, CString::new(message).unwrap_or_default());
        failure.code
    }

    fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure> {
        let first_word = sql.split([' ', ';']).next();
        if first_word == Some("INSERT") && self.callers_rowid.get().is_none() {
            self.callers_rowid.set(self.integer("SELECT last_insert_rowid()"));
        }
        let ran = self.host.run(sql, values);
        match first_word {
            Some("INSERT" | "UPDATE" | "DELETE") => self.changes.set(self.host.changes()),
            Some("BEGIN") if sql == BEGIN => self.is_unchanged.set(ran.is_ok()),
            Some("CREATE" | "DROP" | "COMMIT" | "ROLLBACK" | "VACUUM") => {
                self.is_unchanged.set(false)
            }
            _ => {}
        }
        ran
    }

    fn integer(&self, sql: &str) -> Option<i64> {
        match self.host.run(sql, &[]).ok()?.value(0, 0)? {
            OwnedValue::Integer(number) => Some(*number),
            _ => None,
        }
    }

    fn set_rowid(&self, rowid: i64) {
        let set = || self.host.run(SET_ROWID, &[Value::Integer(rowid)]);
        // The table goes with a transaction that is rolled back. If the host refuses it, the verb
        // has succeeded all the same.
        if set().is_err() && self.host.run(CREATE_ROWID, &[]).is_ok() {
            let _ = set();
        }
    }

    /// Returns the number of the schema that a statement finds now.
    fn schema_number(&self) -> c_int {
        let main = self.integer("PRAGMA main.schema_version");
        let versions = main.zip(self.integer("PRAGMA temp.schema_version"));
        let mut schema = self.schema.get();
        if versions.is_some() && schema.versions == versions {
            return schema.number;
        }
        schema.newest = schema.newest.wrapping_add(1);
        let is_committed = self.is_unchanged.get() || !self.host.is_in_transaction();
        if versions.is_some() && is_committed {
            (schema.versions, schema.number) = (versions, schema.newest);
        }
        self.schema.set(schema);
        schema.newest
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        for (data, destroy) in self.kept.take() {
            if let Some(destroy) = destroy {
                // SAFETY: it was registered together with its data, and this is the connection's
                // end.
                unsafe { destroy(data) };
            }
        }
    }
}

struct HostedLibrary;

impl Library for HostedLibrary {
    fn api() -> &'static Api {
        &HOSTED
    }
}

/// Stands for a function that the store calls only where an extension or a linked SQLite is driven.
unsafe extern "C" fn unused() {
    std::process::abort();
}

macro_rules! unused {
    () => {
        // SAFETY: it is never called through the other type.
        unsafe { transmute::<unsafe extern "C" fn(), _>(unused) }
    };
}

#[allow(clippy::missing_transmute_annotations)] // the field says what each function is
static HOSTED: Api = Api {
    bind_blob64,
    bind_double,
    bind_int64,
    bind_null,
    bind_pointer: unused!(),
    bind_text64,
    busy_timeout: unused!(),
    changes,
    clear_bindings,
    close_v2: unused!(),
    column_value,
    create_function_v2,
    create_module_v2: unused!(),
    db_config: unused!(),
    db_filename,
    db_mutex: unused!(),
    db_readonly: unused!(),
    declare_vtab: unused!(),
    errmsg,
    extended_errcode,
    file_control: unused!(),
    finalize,
    get_autocommit,
    interrupt: unused!(),
    last_insert_rowid,
    malloc: unused!(),
    open_v2: unused!(),
    prepare_v3,
    reset,
    result_blob64: unused!(),
    result_double: unused!(),
    result_error: unused!(),
    result_error_code: unused!(),
    result_int64: unused!(),
    result_null: unused!(),
    result_text64: unused!(),
    set_last_insert_rowid,
    step,
    stmt_status,
    total_changes,
    txn_state,
    uri_boolean: unused!(),
    user_data: unused!(),
    value_blob,
    value_bytes,
    value_double,
    value_int64,
    value_pointer: unused!(),
    value_text,
    value_type,
    vtab_collation: unused!(),
    vtab_config: unused!(),
    callbacks: Callbacks::calling::<HostedLibrary>(),
};

/// # Safety
/// `db` must be the pointer of a [`HostedStore`]; so it is for every function of the table. No
/// panic unwinds through them: they are called by this crate alone.
unsafe fn hosted<'a>(db: *mut sqlite3) -> &'a Hosted {
    // SAFETY: as promised.
    unsafe { &*db.cast::<Hosted>() }
}

/// # Safety
/// The statement must be one that `prepare_v3` made, and no other code may use it meanwhile.
unsafe fn statement<'a>(raw: *mut sqlite3_stmt) -> &'a mut HostedStatement {
    // SAFETY: as promised.
    unsafe { &mut *raw.cast::<HostedStatement>() }
}

unsafe extern "C" fn prepare_v3(
    db: *mut sqlite3,
    sql: *const c_char,
    length: c_int,
    _flags: c_uint,
    raw: *mut *mut sqlite3_stmt,
    _tail: *mut *const c_char,
) -> c_int {
    let length = usize::try_from(length).unwrap_or(0);
    // SAFETY: `Connection::prepare` hands over a text of this length, and a place for the
    // statement.
    unsafe {
        let sql = str::from_utf8_unchecked(slice::from_raw_parts(sql.cast(), length));
        let (sql, parameters) = (sql.into(), parameters_of(sql));
        let hosted = db.cast::<Hosted>().cast_const();
        let (values, rows) = (Vec::new(), Rows::default());
        let made = Box::new(HostedStatement { hosted, sql, parameters, values, rows, next: None });
        *raw = Box::into_raw(made).cast();
    }
    code::OK
}

unsafe extern "C" fn finalize(raw: *mut sqlite3_stmt) -> c_int {
    // SAFETY: `prepare_v3` made it, and it is finalised once.
    drop(unsafe { Box::from_raw(raw.cast::<HostedStatement>()) });
    code::OK
}

unsafe extern "C" fn step(raw: *mut sqlite3_stmt) -> c_int {
    // SAFETY: as promised to `statement`.
    let statement = unsafe { statement(raw) };
    // SAFETY: the connection outlives its statements.
    let hosted = unsafe { &*statement.hosted };
    let next = match statement.next {
        Some(next) => next,
        None => {
            statement.values.resize(statement.parameters, Value::Null);
            match hosted.run(&statement.sql, &statement.values) {
                Ok(rows) => statement.rows = rows,
                Err(failure) => return hosted.fail(failure),
            }
            0
        }
    };
    statement.next = Some(next + 1);
    if next < statement.rows.len() { code::ROW } else { code::DONE }
}

unsafe extern "C" fn reset(raw: *mut sqlite3_stmt) -> c_int {
    // SAFETY: as promised to `statement`.
    let statement = unsafe { statement(raw) };
    (statement.rows, statement.next) = (Rows::default(), None);
    code::OK
}

unsafe extern "C" fn clear_bindings(raw: *mut sqlite3_stmt) -> c_int {
    // SAFETY: as promised to `statement`.
    unsafe { statement(raw) }.values.clear();
    code::OK
}

/// Returns the largest number of a parameter, outside quotes.
fn parameters_of(sql: &str) -> usize {
    let mut quote = None;
    let mut largest = 0;
    for (at, letter) in sql.char_indices() {
        match (quote, letter) {
            (Some(end), letter) if letter == end => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"' | '`') => quote = Some(letter),
            (None, '[') => quote = Some(']'),
            (None, '?') => {
                let digits = sql[at + 1..].split(|c: char| !c.is_ascii_digit()).next();
                largest = largest.max(digits.and_then(|digits| digits.parse().ok()).unwrap_or(0));
            }
            _ => {}
        }
    }
    largest
}

/// # Safety
/// As for `statement`. What the value borrows must live until the bindings are cleared.
unsafe fn bind(raw: *mut sqlite3_stmt, index: c_int, value: Value<'static>) -> c_int {
    // SAFETY: as promised.
    let values = &mut unsafe { statement(raw) }.values;
    let Some(at) = usize::try_from(index).ok().and_then(|index| index.checked_sub(1)) else {
        return code::ERROR;
    };
    if values.len() <= at {
        values.resize(at + 1, Value::Null);
    }
    values[at] = value;
    code::OK
}

/// # Safety
/// `start` must point to this many bytes, which live until the bindings are cleared.
unsafe fn borrowed(start: *const u8, length: u64) -> &'static [u8] {
    match usize::try_from(length) {
        // SAFETY: as promised.
        Ok(length) if !start.is_null() => unsafe { slice::from_raw_parts(start, length) },
        _ => &[],
    }
}

unsafe extern "C" fn bind_blob64(
    raw: *mut sqlite3_stmt,
    index: c_int,
    start: *const c_void,
    length: u64,
    _destroy: Destructor,
) -> c_int {
    // SAFETY: `Run::bind` hands over bytes that it borrows until the run ends.
    unsafe { bind(raw, index, Value::Blob(borrowed(start.cast(), length))) }
}

unsafe extern "C" fn bind_text64(
    raw: *mut sqlite3_stmt,
    index: c_int,
    start: *const c_char,
    length: u64,
    _destroy: Destructor,
    _encoding: c_uchar,
) -> c_int {
    // SAFETY: `Run::bind` hands over a `str` that it borrows until the run ends.
    unsafe {
        let text = str::from_utf8_unchecked(borrowed(start.cast(), length));
        bind(raw, index, Value::Text(text))
    }
}

unsafe extern "C" fn bind_double(raw: *mut sqlite3_stmt, index: c_int, number: f64) -> c_int {
    // SAFETY: as promised to `statement`.
    unsafe { bind(raw, index, Value::Real(number)) }
}

unsafe extern "C" fn bind_int64(raw: *mut sqlite3_stmt, index: c_int, number: i64) -> c_int {
    // SAFETY: as promised to `statement`.
    unsafe { bind(raw, index, Value::Integer(number)) }
}

unsafe extern "C" fn bind_null(raw: *mut sqlite3_stmt, index: c_int) -> c_int {
    // SAFETY: as promised to `statement`.
    unsafe { bind(raw, index, Value::Null) }
}

static NULL: OwnedValue = OwnedValue::Null;

unsafe extern "C" fn column_value(raw: *mut sqlite3_stmt, column: c_int) -> *mut sqlite3_value {
    // SAFETY: as promised to `statement`.
    let statement = unsafe { statement(raw) };
    let row = statement.next.and_then(|next| next.checked_sub(1));
    let column = usize::try_from(column).ok();
    let found = row.zip(column).and_then(|(row, column)| statement.rows.value(row, column));
    ptr::from_ref(found.unwrap_or(&NULL)).cast_mut().cast()
}

/// # Safety
/// The value must be one that `column_value` answered, of a row that is still the present one.
unsafe fn value<'a>(raw: *mut sqlite3_value) -> &'a OwnedValue {
    // SAFETY: as promised.
    unsafe { &*raw.cast::<OwnedValue>() }
}

unsafe extern "C" fn value_type(raw: *mut sqlite3_value) -> c_int {
    // SAFETY: as promised to `value`; so it is below.
    match unsafe { value(raw) } {
        OwnedValue::Integer(_) => 1,
        OwnedValue::Real(_) => 2,
        OwnedValue::Text(_) => 3,
        OwnedValue::Blob(_) => 4,
        OwnedValue::Null => 5,
    }
}

unsafe extern "C" fn value_int64(raw: *mut sqlite3_value) -> i64 {
    // SAFETY: as above.
    unsafe { value(raw) }.value().integer().unwrap_or(0)
}

unsafe extern "C" fn value_double(raw: *mut sqlite3_value) -> f64 {
    // SAFETY: as above.
    match unsafe { value(raw) } {
        OwnedValue::Real(number) => *number,
        _ => 0.0,
    }
}

/// # Safety
/// As for `value`.
unsafe fn bytes<'a>(raw: *mut sqlite3_value) -> &'a [u8] {
    // SAFETY: as promised.
    match unsafe { value(raw) } {
        OwnedValue::Text(text) => text.as_bytes(),
        OwnedValue::Blob(bytes) => bytes,
        _ => &[],
    }
}

unsafe extern "C" fn value_blob(raw: *mut sqlite3_value) -> *const c_void {
    // SAFETY: as above.
    unsafe { bytes(raw) }.as_ptr().cast()
}

unsafe extern "C" fn value_text(raw: *mut sqlite3_value) -> *const c_uchar {
    // SAFETY: as above.
    unsafe { bytes(raw) }.as_ptr()
}

unsafe extern "C" fn value_bytes(raw: *mut sqlite3_value) -> c_int {
    // SAFETY: as above.
    c_int::try_from(unsafe { bytes(raw) }.len()).unwrap_or(0)
}

unsafe extern "C" fn changes(db: *mut sqlite3) -> c_int {
    // SAFETY: as promised to `hosted`; so it is below.
    saturated(unsafe { hosted(db) }.changes.get())
}

unsafe extern "C" fn total_changes(db: *mut sqlite3) -> c_int {
    // SAFETY: as above.
    saturated(unsafe { hosted(db) }.host.total_changes())
}

fn saturated(number: i64) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

unsafe extern "C" fn get_autocommit(db: *mut sqlite3) -> c_int {
    // SAFETY: as above.
    c_int::from(!unsafe { hosted(db) }.host.is_in_transaction())
}

/// A host does not show whether a transaction has read yet, so the write lock is taken before any
/// read.
unsafe extern "C" fn txn_state(_db: *mut sqlite3, _schema: *const c_char) -> c_int {
    0
}

unsafe extern "C" fn db_filename(db: *mut sqlite3, _schema: *const c_char) -> *const c_char {
    // SAFETY: as above.
    unsafe { hosted(db) }.path.as_ptr()
}

unsafe extern "C" fn errmsg(db: *mut sqlite3) -> *const c_char {
    // SAFETY: as above. The text stays until the next failure.
    unsafe { hosted(db) }.failure.borrow().1.as_ptr()
}

unsafe extern "C" fn extended_errcode(db: *mut sqlite3) -> c_int {
    // SAFETY: as above.
    unsafe { hosted(db) }.failure.borrow().0
}

/// The one status that the store asks for: how often SQLite has compiled the statement. SQLite does
/// so when the schema changes.
unsafe extern "C" fn stmt_status(raw: *mut sqlite3_stmt, _which: c_int, _reset: c_int) -> c_int {
    // SAFETY: as promised to `statement`, and the connection outlives its statements.
    unsafe { &*statement(raw).hosted }.schema_number()
}

/// [`HostedStore::restore_rowid`] puts it back, once for all inserts of a verb.
unsafe extern "C" fn last_insert_rowid(_db: *mut sqlite3) -> i64 {
    0
}

unsafe extern "C" fn set_last_insert_rowid(_db: *mut sqlite3, _rowid: i64) {}

/// Registers a function that is never called, for the sake of its data, which SQLite frees with the
/// connection.
unsafe extern "C" fn create_function_v2(
    db: *mut sqlite3,
    _name: *const c_char,
    _arguments: c_int,
    _flags: c_int,
    data: *mut c_void,
    _function: Option<SqlFunction>,
    _step: Option<SqlFunction>,
    _last: Option<SqlLast>,
    destroy: Destructor,
) -> c_int {
    // SAFETY: as above.
    unsafe { hosted(db) }.kept.borrow_mut().push((data, destroy));
    code::OK
}

#[cfg(test)]
mod tests {
    use super::parameters_of;

    #[test]
    fn parameters_are_counted_outside_of_what_is_quoted() {
        for (sql, count) in [
            ("SELECT 1", 0),
            ("SELECT ?1, ?2, ?1", 2),
            ("SELECT ?12", 12),
            ("SELECT \"?7\", '?8', [?9], `?10`, ?1", 1),
            ("SELECT 'it''s ?3', ?2", 2),
        ] {
            assert_eq!(parameters_of(sql), count, "{sql}");
        }
    }
}
