//! The caller's `sqlite3.Connection` as the host of a store, through calls of `cursor.execute` and
//! `fetchall`.

use std::cell::RefCell;
use std::rc::Rc;

use litelease_store::{Failure, Host, Rows, Value, code};

use crate::python::api::{Object, Raised, Result, clear, py, string, take_exception, tuple};
use crate::python::values::{Names, to_integer};

/// Runs statements while a call is under way. Between calls it has no references to Python objects.
pub(crate) struct PythonHost {
    names: &'static Names,
    running: RefCell<Option<Running>>,
    /// The exceptions that this call has caught, each with its text.
    raised: RefCell<Vec<(String, Object)>>,
}

/// The connection, and a cursor of ours whose rows are plain tuples.
struct Running {
    connection: Object,
    cursor: Object,
    /// The caller's `text_factory`, while it is replaced.
    text_factory: Option<Object>,
}

const NO_TUPLES: &str = "the cursors of this connection answer other rows than tuples: Litelease needs a connection whose \
                         cursor class leaves fetchall() and row_factory as sqlite3 has them; open one for it, such as \
                         sqlite3.connect(path)";
const CONVERTED: &str = "a converter has changed what Litelease reads: this connection was opened with detect_types, and a \
                         converter is registered for INTEGER or TEXT; open one without detect_types for Litelease";

impl PythonHost {
    pub(crate) fn new(names: &'static Names) -> Self {
        PythonHost { names, running: RefCell::new(None), raised: RefCell::default() }
    }

    /// Begins a call. From here on text arrives as `str`, whatever the caller's setting.
    pub(crate) fn begin(&self, connection: Object, cursor: Object) -> Result<()> {
        let Names { text_factory, str, .. } = self.names;
        let theirs = connection.attribute(text_factory)?;
        let text_factory = match theirs.as_raw() == str.as_raw() {
            true => None,
            false => {
                connection.set_attribute(text_factory, str)?;
                Some(theirs)
            }
        };
        *self.running.borrow_mut() = Some(Running { connection, cursor, text_factory });
        Ok(())
    }

    /// Ends a call: restores the caller's setting. Returns the exceptions that it has caught.
    pub(crate) fn end(&self) -> Vec<(String, Object)> {
        if let Some(Running { connection, text_factory: Some(theirs), .. }) =
            self.running.borrow_mut().take()
            && connection.set_attribute(&self.names.text_factory, &theirs).is_err()
        {
            clear();
        }
        self.raised.take()
    }

    /// Stores the exception that is set, and returns to the store what it needs of it.
    fn failure(&self) -> Failure {
        let Ok(exception) = take_exception() else {
            return Failure { code: code::ERROR, message: "no exception is set".into() };
        };
        let message = exception.shown().replace('\0', " ");
        let code = match exception.attribute(&self.names.sqlite_errorcode) {
            Ok(found) => to_integer(&found).map_or(code::ERROR, |found| found as i32),
            Err(Raised) => {
                clear();
                code_by_words(&message, exception.is_instance(&self.names.sqlite_error))
            }
        };
        self.raised.borrow_mut().push((message.clone(), exception));
        Failure { code, message }
    }

    fn attribute(&self, of: impl Fn(&Running) -> &Object, name: &Object) -> Option<Object> {
        let running = self.running.borrow();
        let found = of(running.as_ref()?).attribute(name);
        found.inspect_err(|_| clear()).ok()
    }

    fn number(&self, of: impl Fn(&Running) -> &Object, name: &Object) -> i64 {
        self.attribute(of, name).and_then(|number| to_integer(&number)).unwrap_or(0)
    }

    fn execute(&self, running: &Running, sql: &str, values: &[Value<'_>]) -> Result<Rows> {
        let Names { execute, fetchall, .. } = self.names;
        let mut arguments = vec![string(sql)?];
        if !values.is_empty() {
            let values = values.iter().map(|value| self.names.object_of(*value));
            arguments.push(tuple(values.collect::<Result<_>>()?)?);
        }
        drop(running.cursor.attribute(execute)?.call(arguments)?);
        if !matches!(sql.split(['"', ' ']).next(), Some("SELECT" | "PRAGMA")) {
            return Ok(Rows::default());
        }
        self.rows(&running.cursor.attribute(fetchall)?.call(vec![])?)
    }

    fn rows(&self, list: &Object) -> Result<Rows> {
        if !list.is_instance(&self.names.list) {
            return Err(self.names.type_error(NO_TUPLES));
        }
        // SAFETY: the list is alive; what is no list raises.
        let count = unsafe { (py().PyList_Size)(list.as_raw()) };
        let mut rows = Rows::default();
        for at in 0..count {
            // SAFETY: as above, and there are so many rows.
            let row = Object::borrowed(unsafe { (py().PyList_GetItem)(list.as_raw(), at) })?;
            if !row.is_instance(&self.names.tuple) {
                return Err(self.names.type_error(NO_TUPLES));
            }
            let columns = row.tuple_len()?;
            if at == 0 {
                rows = Rows::new(columns);
            }
            for column in 0..columns {
                // SQLite has no such type, so a converter of the caller's has made the value.
                let value = self.names.to_value(&row.item(column)?)?;
                rows.push(value.ok_or_else(|| self.names.type_error(CONVERTED))?);
            }
        }
        if count < 0 { Err(Raised) } else { Ok(rows) }
    }
}

impl Host for PythonHost {
    fn run(&self, sql: &str, values: &[Value<'_>]) -> std::result::Result<Rows, Failure> {
        let running = self.running.borrow();
        let Some(running) = &*running else {
            return Err(Failure { code: code::ERROR, message: "no call is under way".into() });
        };
        self.execute(running, sql, values).map_err(|Raised| self.failure())
    }

    fn is_in_transaction(&self) -> bool {
        let found = self.attribute(|running| &running.connection, &self.names.in_transaction);
        found.is_some_and(|found| found.is_true().unwrap_or(false))
    }

    fn changes(&self) -> i64 {
        self.number(|running| &running.cursor, &self.names.rowcount)
    }

    fn total_changes(&self) -> i64 {
        self.number(|running| &running.connection, &self.names.total_changes)
    }
}

/// The host that a store and its session share.
pub(crate) struct SharedHost(pub(crate) Rc<PythonHost>);

impl Host for SharedHost {
    fn run(&self, sql: &str, values: &[Value<'_>]) -> std::result::Result<Rows, Failure> {
        self.0.run(sql, values)
    }

    fn is_in_transaction(&self) -> bool {
        self.0.is_in_transaction()
    }

    fn changes(&self) -> i64 {
        self.0.changes()
    }

    fn total_changes(&self) -> i64 {
        self.0.total_changes()
    }
}

/// Returns the code of an error by its text, because Python shows the code only since 3.11.
fn code_by_words(message: &str, is_sqlite: bool) -> i32 {
    const ABORT: i32 = 4;
    const MISUSE: i32 = 21;
    let words = [
        ("database is locked", code::BUSY),
        ("table is locked", code::LOCKED),
        ("readonly database", code::READONLY),
        ("interrupted", 9),
        ("disk I/O error", 10),
        ("disk is full", 13),
        ("constraint failed", code::CONSTRAINT),
        ("not authorized", 23),
        ("closed database", MISUSE),
        ("created in a thread", MISUSE),
    ];
    let found = words.iter().find(|(words, _)| message.contains(words));
    match found {
        Some((_, code)) => *code,
        None if is_sqlite => code::ERROR,
        None => ABORT,
    }
}
