//! Table-valued functions, as SQLite's eponymous virtual tables.
//!
//! They are also what drops the statements of a connection before that closes.

use std::ffi::{CStr, c_char, c_double, c_int, c_uchar, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::slice;

use crate::{
    Api, Connection, Error, Failure, Library, Store, Value, c_string, code, destroy, sqlite3,
    sqlite3_context, sqlite3_value,
};

use crate::sql::functions::Answer;
use crate::sql::shared::Shared;

/// A table-valued function.
pub(crate) struct TableFunction {
    pub(crate) name: &'static CStr,
    /// Its columns, as CREATE TABLE has them.
    pub(crate) definition: &'static CStr,
    /// The places of the hidden columns by which its arguments are given: at most `MOST`.
    pub(crate) arguments: &'static [c_int],
    /// Its rows, given the arguments.
    pub(crate) rows: fn(&Store, &[Given<'_>]) -> Result<Rows, Error>,
}

/// Rows of a table, each with all its columns.
pub(crate) type Rows = Vec<Vec<Answer>>;

/// The most arguments that any of them takes.
const MOST: usize = 2;

/// The number by which a plan is told to the cursor: a bit for each argument that is given, and above them which of
/// the values it is.
const FIRST_PLACE: usize = MOST;
const PLACE_BITS: usize = 4;

/// The value of an argument.
pub(crate) enum Given<'a> {
    Nothing,
    Value(Value<'a>),
    /// Text that is not UTF-8.
    BadText,
}

/// The data that SQLite keeps with a registered table.
struct Registered {
    function: &'static TableFunction,
    shared: Rc<Shared>,
}

const SQLITE_INDEX_CONSTRAINT_EQ: c_uchar = 2;
const SQLITE_VTAB_INNOCUOUS: c_int = 2;

/// SQLite's `sqlite3_module`, version 1.
#[repr(C)]
struct Module {
    version: c_int,
    create: Option<Connect>,
    connect: Option<Connect>,
    best_index: unsafe extern "C" fn(*mut Table, *mut IndexInfo) -> c_int,
    disconnect: unsafe extern "C" fn(*mut Table) -> c_int,
    destroy: unsafe extern "C" fn(*mut Table) -> c_int,
    open: unsafe extern "C" fn(*mut Table, *mut *mut Cursor) -> c_int,
    close: unsafe extern "C" fn(*mut Cursor) -> c_int,
    filter: unsafe extern "C" fn(
        *mut Cursor,
        c_int,
        *const c_char,
        c_int,
        *mut *mut sqlite3_value,
    ) -> c_int,
    next: unsafe extern "C" fn(*mut Cursor) -> c_int,
    eof: unsafe extern "C" fn(*mut Cursor) -> c_int,
    column: unsafe extern "C" fn(*mut Cursor, *mut sqlite3_context, c_int) -> c_int,
    rowid: unsafe extern "C" fn(*mut Cursor, *mut i64) -> c_int,
    /// Update, begin, sync, commit, rollback, find function, rename: none of them applies.
    unused: [usize; 7],
}

type Connect = unsafe extern "C" fn(
    *mut sqlite3,
    *mut c_void,
    c_int,
    *const *const c_char,
    *mut *mut Table,
    *mut *mut c_char,
) -> c_int;

/// SQLite's `sqlite3_vtab`, and what is ours.
#[repr(C)]
struct Table {
    module: *const c_void,
    references: c_int,
    error: *mut c_char,
    function: &'static TableFunction,
    shared: Rc<Shared>,
}

/// SQLite's `sqlite3_vtab_cursor`, and what is ours.
#[repr(C)]
struct Cursor {
    table: *mut Table,
    rows: Rows,
    position: usize,
}

/// The part of SQLite's `sqlite3_index_info` that is looked at.
#[repr(C)]
struct IndexInfo {
    constraint_count: c_int,
    constraints: *const Constraint,
    order_count: c_int,
    order: *const c_void,
    usage: *mut Usage,
    number: c_int,
    text: *mut c_char,
    text_needs_free: c_int,
    order_consumed: c_int,
    cost: c_double,
    rows: i64,
}

#[repr(C)]
struct Constraint {
    column: c_int,
    op: c_uchar,
    usable: c_uchar,
    offset: c_int,
}

#[repr(C)]
struct Usage {
    argument: c_int,
    omit: c_uchar,
}

/// The module for the connections of one library. It lives for ever, because SQLite may look at it after it
/// has freed what the module was registered with.
struct Modules<L>(PhantomData<L>);

impl<L: Library> Modules<L> {
    const MODULE: &'static Module = &Module {
        version: 1,
        // A table that exists by its name alone is connected and never created.
        create: None,
        connect: Some(connect::<L>),
        best_index,
        disconnect,
        destroy: disconnect,
        open,
        close,
        filter: filter::<L>,
        next,
        eof,
        column: column::<L>,
        rowid,
        unused: [0; 7],
    };
}

/// # Safety
/// As for [`register`](crate::sql::register).
pub(crate) unsafe fn register<L: Library>(
    connection: Connection,
    function: &'static TableFunction,
    shared: Rc<Shared>,
) -> Result<(), Error> {
    let data = Box::into_raw(Box::new(Registered { function, shared })).cast();
    let (db, api) = connection.as_raw();
    let module: *const Module = Modules::<L>::MODULE;
    // SAFETY: the connection is open; SQLite frees the data, also when this call fails.
    let rc = unsafe {
        let name = function.name.as_ptr();
        (api.create_module_v2)(db, name, module.cast(), data, Some(destroy::<Registered>))
    };
    match rc {
        code::OK => Ok(()),
        rc => {
            let message = format!("cannot register {}", function.name.to_string_lossy());
            Err(Error::Sqlite(Failure { code: rc, message }))
        }
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
    _error: *mut *mut c_char,
) -> c_int {
    let api = L::api();
    // SAFETY: the connection is open, `data` is what the module was registered with, and SQLite wants the new
    // table in `table`.
    unsafe {
        let registered = &*data.cast::<Registered>();
        let function = registered.function;
        (api.vtab_config)(db, SQLITE_VTAB_INNOCUOUS);
        match (api.declare_vtab)(db, function.definition.as_ptr()) {
            code::OK => {}
            rc => return rc,
        }
        let shared = Rc::clone(&registered.shared);
        shared.connect();
        let (module, error) = (ptr::null(), ptr::null_mut());
        let new = Table { module, references: 0, error, function, shared };
        *table = Box::into_raw(Box::new(new));
    }
    code::OK
}

unsafe extern "C" fn disconnect(table: *mut Table) -> c_int {
    // SAFETY: `connect` made it, and SQLite gives it up.
    let table = unsafe { Box::from_raw(table) };
    table.shared.disconnect();
    code::OK
}

unsafe extern "C" fn best_index(table: *mut Table, info: *mut IndexInfo) -> c_int {
    // SAFETY: SQLite hands over a valid description with that many constraints and usages.
    unsafe {
        let info = &mut *info;
        let mut given: c_int = 0;
        let arguments = (*table).function.arguments;
        let count = usize::try_from(info.constraint_count).unwrap_or(0);
        for at in 0..count {
            let constraint = &*info.constraints.add(at);
            let argument = arguments.iter().position(|column| *column == constraint.column);
            let Some(argument) = argument.filter(|_| constraint.op == SQLITE_INDEX_CONSTRAINT_EQ)
            else {
                continue;
            };
            if info.number & (1 << argument) != 0 {
                continue; // SQLite itself compares any further ones
            }
            if constraint.usable == 0 {
                // The argument depends on a table that comes later: this plan cannot work.
                return code::CONSTRAINT;
            }
            // The values come in the order of the constraints; the number tells where each belongs.
            given += 1;
            let usage = &mut *info.usage.add(at);
            (usage.argument, usage.omit) = (given, 1);
            info.number |= 1 << argument;
            info.number |= given << (FIRST_PLACE + PLACE_BITS * argument);
        }
        info.cost = 1e6;
        info.rows = 1_000;
    }
    code::OK
}

unsafe extern "C" fn open(table: *mut Table, cursor: *mut *mut Cursor) -> c_int {
    let new = Cursor { table, rows: Vec::new(), position: 0 };
    // SAFETY: SQLite wants the new cursor in `cursor`.
    unsafe { *cursor = Box::into_raw(Box::new(new)) };
    code::OK
}

unsafe extern "C" fn close(cursor: *mut Cursor) -> c_int {
    // SAFETY: `open` made it, and SQLite gives it up.
    drop(unsafe { Box::from_raw(cursor) });
    code::OK
}

unsafe extern "C" fn filter<L: Library>(
    cursor: *mut Cursor,
    number: c_int,
    _text: *const c_char,
    count: c_int,
    values: *mut *mut sqlite3_value,
) -> c_int {
    let api = L::api();
    // SAFETY: the cursor is ours, and SQLite hands over `count` values.
    let (cursor, values) = unsafe {
        let values = match usize::try_from(count) {
            Ok(count) if count > 0 => slice::from_raw_parts(values, count),
            _ => &[],
        };
        (&mut *cursor, values)
    };
    // SAFETY: the cursor is ours and its table is alive.
    let function = unsafe { (*cursor.table).function };
    let mut given = [const { Given::Nothing }; MOST];
    for (argument, given) in given.iter_mut().enumerate() {
        let place = number >> (FIRST_PLACE + PLACE_BITS * argument) & ((1 << PLACE_BITS) - 1);
        let value = usize::try_from(place - 1).ok().and_then(|at| values.get(at));
        if let Some(value) = value {
            // SAFETY: the value lives for the duration of the call.
            *given = unsafe { api.value(*value) }.map_or(Given::BadText, Given::Value);
        }
    }
    let given = &given[..function.arguments.len().min(MOST)];
    // SAFETY: the cursor is ours and its table is alive.
    unsafe { attempt(api, cursor, |cursor| cursor.start(given)) }
}

unsafe extern "C" fn next(cursor: *mut Cursor) -> c_int {
    // SAFETY: the cursor is ours.
    unsafe { (*cursor).position += 1 };
    code::OK
}

unsafe extern "C" fn eof(cursor: *mut Cursor) -> c_int {
    // SAFETY: the cursor is ours.
    unsafe { c_int::from((*cursor).position >= (*cursor).rows.len()) }
}

unsafe extern "C" fn column<L: Library>(
    cursor: *mut Cursor,
    context: *mut sqlite3_context,
    index: c_int,
) -> c_int {
    let api = L::api();
    // SAFETY: the cursor is ours, and the context is that of this call.
    unsafe {
        let cursor = &*cursor;
        let row = cursor.rows.get(cursor.position);
        let answer = row.zip(usize::try_from(index).ok()).and_then(|(row, index)| row.get(index));
        if let Some(answer) = answer {
            api.result_copied(context, answer.value());
        }
    }
    code::OK
}

unsafe extern "C" fn rowid(cursor: *mut Cursor, rowid: *mut i64) -> c_int {
    // SAFETY: the cursor is ours, and SQLite wants the number in `rowid`.
    unsafe { *rowid = i64::try_from((*cursor).position).unwrap_or(i64::MAX) };
    code::OK
}

impl Cursor {
    /// Reads all rows: a walk that is under way while rows are added might never end.
    fn start(&mut self, given: &[Given<'_>]) -> Result<(), Error> {
        // SAFETY: SQLite keeps a table alive while it has cursors.
        let table = unsafe { &*self.table };
        self.position = 0;
        self.rows = (table.function.rows)(&table.shared.store(), given)?;
        Ok(())
    }
}

/// Does something with a cursor. An error is left in its table, where SQLite looks for it.
///
/// # Safety
/// The table of the cursor must be alive.
unsafe fn attempt(
    api: &Api,
    cursor: &mut Cursor,
    work: impl FnOnce(&mut Cursor) -> Result<(), Error>,
) -> c_int {
    let table = cursor.table;
    // A panic must not unwind into SQLite.
    let (rc, message) = match catch_unwind(AssertUnwindSafe(|| work(cursor))) {
        Ok(Ok(())) => return code::OK,
        Ok(Err(Error::NotBootstrapped)) => {
            (code::ERROR, "no lease table yet: call litelease_bootstrap() once first".to_owned())
        }
        Ok(Err(Error::Sqlite(failure))) => (failure.code, failure.message),
        Ok(Err(error)) => (code::ERROR, error.to_string()),
        Err(_) => (code::ERROR, "internal error".to_owned()),
    };
    // SAFETY: the table is alive, and SQLite frees the message.
    unsafe {
        let message = format!("{}: {message}", (*table).function.name.to_string_lossy());
        (*table).error = c_string(&message, |size| (api.malloc)(size));
    }
    rc
}
