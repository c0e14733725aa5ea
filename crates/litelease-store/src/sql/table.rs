//! Table-valued functions, as SQLite's eponymous virtual tables.
//!
//! They are also what drops the statements of a connection before that closes.

use std::ffi::{CStr, CString, c_char, c_double, c_int, c_uchar, c_void};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::slice;
use std::{iter, ptr};

use crate::{
    Api, Arguments, Connection, Error, Failure, Kind, Library, Listing, NOW, OwnedValue, Range,
    RowIterator, Value, Verb, When, c_string, code, destroy, sqlite3, sqlite3_context,
    sqlite3_value,
};

use crate::sql::call::sql_name;
use crate::sql::shared::Shared;

/// The most arguments that any of them takes.
const MOST: usize = 2;

/// The number that tells the cursor its plan: a bit for each argument that is given, and above them
/// the number of the values. The two ends of the range come after the arguments.
const FIRST_PLACE: usize = MOST;
const PLACE_BITS: usize = 4;
const PLACE: c_int = (1 << PLACE_BITS) - 1;
const FROM: usize = MOST;
const TO: usize = MOST + 1;

/// The data that SQLite keeps with a registered table.
struct Registered {
    verb: &'static Verb,
    listing: &'static Listing,
    shared: Rc<Shared>,
}

const SQLITE_INDEX_CONSTRAINT_EQ: c_uchar = 2;
const SQLITE_INDEX_CONSTRAINT_GT: c_uchar = 4;
const SQLITE_INDEX_CONSTRAINT_LE: c_uchar = 8;
const SQLITE_INDEX_CONSTRAINT_LT: c_uchar = 16;
const SQLITE_INDEX_CONSTRAINT_GE: c_uchar = 32;
const SQLITE_VTAB_INNOCUOUS: c_int = 2;
const SQLITE_NULL: c_int = 5;

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

/// SQLite's `sqlite3_vtab`, and our fields.
#[repr(C)]
struct Table {
    module: *const c_void,
    references: c_int,
    error: *mut c_char,
    verb: &'static Verb,
    listing: &'static Listing,
    /// The number of columns before the hidden ones, which are its arguments.
    visible: usize,
    shared: Rc<Shared>,
}

/// SQLite's `sqlite3_vtab_cursor`, and our fields.
#[repr(C)]
struct Cursor {
    table: *mut Table,
    /// The arguments.
    given: Vec<OwnedValue>,
    rows: RowIterator,
    /// The present row; `None` after the last one.
    row: Option<Vec<OwnedValue>>,
    position: i64,
}

/// The part of SQLite's `sqlite3_index_info` that is looked at.
#[repr(C)]
struct IndexInfo {
    constraint_count: c_int,
    constraints: *const Constraint,
    order_count: c_int,
    order: *const OrderBy,
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
struct OrderBy {
    column: c_int,
    is_descending: c_uchar,
}

#[repr(C)]
struct Usage {
    argument: c_int,
    omit: c_uchar,
}

/// The module for the connections of one library. It lives for ever, because SQLite may read it
/// after it has freed the data of the module.
struct Modules<L>(PhantomData<L>);

impl<L: Library> Modules<L> {
    const MODULE: &'static Module = &Module {
        version: 1,
        // A table that exists by its name alone is connected and never created.
        create: None,
        connect: Some(connect::<L>),
        best_index: best_index::<L>,
        disconnect,
        destroy: disconnect,
        open,
        close,
        filter: filter::<L>,
        next: next::<L>,
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
    verb: &'static Verb,
    listing: &'static Listing,
    shared: Rc<Shared>,
) -> Result<(), Error> {
    let data = Box::into_raw(Box::new(Registered { verb, listing, shared })).cast();
    let name = CString::new(sql_name(verb)).unwrap_or_default();
    let (db, api) = connection.as_raw();
    let module: *const Module = Modules::<L>::MODULE;
    // SAFETY: the connection is open; SQLite frees the data, also when this call fails.
    let rc = unsafe {
        let destroy = Some(destroy::<Registered> as _);
        (api.create_module_v2)(db, name.as_ptr(), module.cast(), data, destroy)
    };
    match rc {
        code::OK => Ok(()),
        rc => {
            let message = format!("cannot register {}", sql_name(verb));
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
    // SAFETY: the connection is open, `data` is what the module was registered with, and SQLite
    // wants the new table in `table`.
    unsafe {
        let registered = &*data.cast::<Registered>();
        let Registered { verb, listing, .. } = *registered;
        let definition = CString::new(definition(verb, listing)).unwrap_or_default();
        (api.vtab_config)(db, SQLITE_VTAB_INNOCUOUS);
        match (api.declare_vtab)(db, definition.as_ptr()) {
            code::OK => {}
            rc => return rc,
        }
        let shared = Rc::clone(&registered.shared);
        shared.connect();
        let (module, error) = (ptr::null(), ptr::null_mut());
        let visible = listing.columns.matches(", ").count() + 1;
        let new = Table { module, references: 0, error, verb, listing, visible, shared };
        *table = Box::into_raw(Box::new(new));
    }
    code::OK
}

/// Declares the columns, and then the arguments as hidden ones.
fn definition(verb: &Verb, listing: &Listing) -> String {
    let hidden = verb.arguments.iter().map(|argument| {
        let kind = if argument.kind == Kind::Text { "TEXT" } else { "INTEGER" };
        format!(", {} {kind} HIDDEN", argument.name)
    });
    format!("CREATE TABLE x ({}{})", listing.columns, hidden.collect::<String>())
}

unsafe extern "C" fn disconnect(table: *mut Table) -> c_int {
    // SAFETY: `connect` made it, and SQLite gives it up.
    let table = unsafe { Box::from_raw(table) };
    table.shared.disconnect();
    code::OK
}

unsafe extern "C" fn best_index<L: Library>(table: *mut Table, info: *mut IndexInfo) -> c_int {
    // SAFETY: SQLite hands over a valid description with that many constraints, usages and terms of
    // an order.
    unsafe {
        let Table { verb, listing, visible, .. } = &*table;
        let info = &mut *info;
        let mut given: c_int = 0;
        let count = usize::try_from(info.constraint_count).unwrap_or(0);
        for at in 0..count {
            let constraint = &*info.constraints.add(at);
            let is_equal = constraint.op == SQLITE_INDEX_CONSTRAINT_EQ;
            let column = usize::try_from(constraint.column).unwrap_or(0);
            let argument = column.checked_sub(*visible).filter(|at| *at < verb.arguments.len());
            let usage = &mut *info.usage.add(at);
            if let Some(argument) = argument.filter(|_| is_equal) {
                if info.number & (1 << argument) != 0 {
                    continue; // SQLite itself compares any further ones
                }
                if constraint.usable == 0 {
                    // The argument depends on a table that comes later: this plan cannot work.
                    return code::CONSTRAINT;
                }
                // The values come in the order of the constraints; the number shows where each
                // belongs.
                given += 1;
                (usage.argument, usage.omit) = (given, 1);
                info.number |= 1 << argument | given << place(argument);
            } else if Some(constraint.column) == listing.order && constraint.usable != 0 {
                let ends = constraint.ends();
                let free = ends.iter().filter(|end| (info.number >> place(**end)) & PLACE == 0);
                let free: c_int = free.map(|end| 1 << place(*end)).sum();
                if free == 0 || given == PLACE || !is_binary(L::api(), info, at) {
                    continue;
                }
                given += 1;
                usage.argument = given;
                info.number |= given * free;
                info.cost = 1e3;
            }
        }
        if info.cost != 1e3 {
            info.cost = 1e6;
        }
        info.rows = 1_000;
        let ordered_by = (info.order_count == 1).then(|| &*info.order);
        let is_ascending = |by: &&OrderBy| by.is_descending == 0;
        let ordered_by = ordered_by.filter(is_ascending).map(|by| by.column);
        info.order_consumed = c_int::from(ordered_by.is_some() && ordered_by == listing.order);
    }
    code::OK
}

impl Constraint {
    /// The ends of the range that the constraint sets.
    fn ends(&self) -> &'static [usize] {
        match self.op {
            SQLITE_INDEX_CONSTRAINT_EQ => &[FROM, TO],
            SQLITE_INDEX_CONSTRAINT_GT | SQLITE_INDEX_CONSTRAINT_GE => &[FROM],
            SQLITE_INDEX_CONSTRAINT_LT | SQLITE_INDEX_CONSTRAINT_LE => &[TO],
            _ => &[],
        }
    }
}

/// Where the number of a plan has the place of a value.
fn place(value: usize) -> usize {
    FIRST_PLACE + PLACE_BITS * value
}

/// Checks whether a constraint compares bytes, as the order of our rows does.
///
/// # Safety
/// SQLite must be asking for this plan, and have a constraint in this place.
unsafe fn is_binary(api: &Api, info: &mut IndexInfo, at: usize) -> bool {
    let Ok(at) = c_int::try_from(at) else { return false };
    // SAFETY: as promised; SQLite answers a C string.
    unsafe {
        let collation = (api.vtab_collation)(ptr::from_mut(info).cast(), at);
        !collation.is_null() && CStr::from_ptr(collation).to_bytes().eq_ignore_ascii_case(b"BINARY")
    }
}

unsafe extern "C" fn open(table: *mut Table, cursor: *mut *mut Cursor) -> c_int {
    let rows = Box::new(iter::empty());
    let new = Cursor { table, given: Vec::new(), rows, row: None, position: 0 };
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
    let verb = unsafe { (*cursor.table).verb };
    let value = |at: usize| {
        let value = usize::try_from(((number >> place(at)) & PLACE) - 1).ok()?;
        values.get(value).copied()
    };
    // SAFETY: the values live for the duration of the call.
    let read = |value| unsafe { (api.value(value), (api.value_type)(value)) };
    let given = verb.arguments.iter().enumerate().map(|(at, argument)| {
        let (given, kind) = value(at).map_or((Some(Value::Null), SQLITE_NULL), read);
        match given {
            Some(Value::Null) if argument.name == NOW.name => {
                Ok(OwnedValue::Integer(When::Now.now_ms()))
            }
            Some(given) if argument.takes(Some(given)) => Ok(given.into()),
            given => {
                let message = format!("{}: FROM {}", argument.complaint(given, kind), usage(verb));
                Err(Error::Sqlite(Failure { code: code::ERROR, message }))
            }
        }
    });
    let [from, to] = [FROM, TO].map(|end| value(end).and_then(|value| read(value).0));
    let range = Range { from: from.and_then(Value::text), to: to.and_then(Value::text) };
    let given = given.collect::<Result<_, _>>();
    // SAFETY: the cursor is ours and its table is alive.
    unsafe { run(api, cursor, |cursor| cursor.start(given?, range)) }
}

/// Shows a call of the table.
fn usage(verb: &Verb) -> String {
    let (must, may) = verb.arguments.split_at(verb.required);
    let may = may.iter().map(|argument| format!("[, {}]", argument.name)).collect::<String>();
    let must = must.iter().map(|argument| argument.name).collect::<Vec<_>>().join(", ");
    let arguments = format!("{must}{may}");
    format!("{}({})", sql_name(verb), arguments.replacen("[, ", "[", usize::from(must.is_empty())))
}

unsafe extern "C" fn next<L: Library>(cursor: *mut Cursor) -> c_int {
    // SAFETY: the cursor is ours and its table is alive.
    unsafe { run(L::api(), &mut *cursor, Cursor::advance) }
}

unsafe extern "C" fn eof(cursor: *mut Cursor) -> c_int {
    // SAFETY: the cursor is ours.
    unsafe { c_int::from((*cursor).row.is_none()) }
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
        let row = cursor.row.as_ref();
        let visible = (*cursor.table).visible;
        let answer =
            usize::try_from(index).ok().and_then(|index| match index.checked_sub(visible) {
                Some(argument) => cursor.given.get(argument),
                None => row.and_then(|row| row.get(index)),
            });
        if let Some(answer) = answer {
            api.result_copied(context, answer.value());
        }
    }
    code::OK
}

unsafe extern "C" fn rowid(cursor: *mut Cursor, rowid: *mut i64) -> c_int {
    // SAFETY: the cursor is ours, and SQLite wants the number in `rowid`.
    unsafe { *rowid = (*cursor).position };
    code::OK
}

impl Cursor {
    fn start(&mut self, given: Vec<OwnedValue>, range: Range<'_>) -> Result<(), Error> {
        // SAFETY: SQLite keeps a table alive while it has cursors.
        let table = unsafe { &*self.table };
        self.position = 0;
        self.given = given;
        let given: Vec<_> = self.given.iter().map(|given| Some(given.value())).collect();
        let given = Arguments { given: &given };
        self.rows = (table.listing.rows)(&table.shared.store(), &given, range)?;
        self.advance()
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.position += 1;
        self.row = self.rows.next().transpose()?;
        Ok(())
    }
}

/// Runs `work` on a cursor. Stores an error in its table, where SQLite reads it.
///
/// # Safety
/// The table of the cursor must be alive.
unsafe fn run(
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
        let message = format!("{}: {message}", sql_name((*table).verb));
        (*table).error = c_string(&message, |size| (api.malloc)(size));
    }
    rc
}
