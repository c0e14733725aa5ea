//! Conversions between Python and the store, and the names and classes that they need.

use litelease_store::{OwnedValue, Value};

use crate::python::api::{
    Object, Raised, Result, bytes, float, integer, interned, list, py, set_exception, string,
    take_exception, tuple,
};

/// Attributes by their names, and classes. They live as long as the interpreter.
pub(crate) struct Names {
    pub(crate) autocommit: Object,
    pub(crate) conn: Object,
    pub(crate) cursor: Object,
    pub(crate) enable_load_extension: Object,
    pub(crate) execute: Object,
    pub(crate) fetchall: Object,
    pub(crate) handle: Object,
    pub(crate) in_transaction: Object,
    pub(crate) load_extension: Object,
    pub(crate) name: Object,
    pub(crate) native: Object,
    pub(crate) row_factory: Object,
    pub(crate) rowcount: Object,
    pub(crate) sqlite_errorcode: Object,
    pub(crate) text_factory: Object,
    pub(crate) total_changes: Object,
    pub(crate) none: Object,
    pub(crate) str: Object,
    pub(crate) sqlite_error: Object,
    pub(crate) tuple: Object,
    pub(crate) list: Object,
    type_error: Object,
    litelease_error: Object,
    int: Object,
    float: Object,
    bytes: Object,
}

impl Names {
    /// Takes the classes of the tuple that `litelease_python_init` is given.
    pub(crate) fn new(classes: &Object) -> Result<Self> {
        Ok(Names {
            autocommit: interned(c"autocommit")?,
            conn: interned(c"conn")?,
            cursor: interned(c"cursor")?,
            enable_load_extension: interned(c"enable_load_extension")?,
            execute: interned(c"execute")?,
            fetchall: interned(c"fetchall")?,
            handle: interned(c"handle")?,
            in_transaction: interned(c"in_transaction")?,
            load_extension: interned(c"load_extension")?,
            name: interned(c"name")?,
            native: interned(c"_native")?,
            row_factory: interned(c"row_factory")?,
            rowcount: interned(c"rowcount")?,
            sqlite_errorcode: interned(c"sqlite_errorcode")?,
            text_factory: interned(c"text_factory")?,
            total_changes: interned(c"total_changes")?,
            none: classes.item(0)?,
            str: classes.item(1)?,
            int: classes.item(2)?,
            float: classes.item(3)?,
            bytes: classes.item(4)?,
            sqlite_error: classes.item(5)?,
            tuple: classes.item(6)?,
            list: classes.item(7)?,
            type_error: classes.item(8)?,
            litelease_error: classes.item(10)?,
        })
    }

    pub(crate) fn none(&self) -> Result<Object> {
        Object::borrowed(self.none.as_raw())
    }

    /// Sets a `TypeError`.
    pub(crate) fn type_error(&self, text: &str) -> Raised {
        set(&self.type_error, text)
    }

    /// Sets the error of a call that comes while another thread ends the interpreter. Runs no
    /// bytecode, because Python could end this thread there.
    pub(crate) fn ending(&self) -> Raised {
        set(&self.litelease_error, "the interpreter is shutting down")
    }

    pub(crate) fn is_none(&self, object: &Object) -> bool {
        object.as_raw() == self.none.as_raw()
    }

    /// Returns the value of an object; `None` if its class is none of SQLite's, or it is a number
    /// that does not fit.
    pub(crate) fn to_value(&self, object: &Object) -> Result<Option<OwnedValue>> {
        if self.is_none(object) {
            return Ok(Some(OwnedValue::Null));
        }
        let class = object.class();
        let is = |known: &Object| class == known.as_raw() || object.is_instance(known);
        Ok(if is(&self.int) {
            to_integer(object).map(OwnedValue::Integer)
        } else if is(&self.str) {
            Some(OwnedValue::Text(object.text()?.into()))
        } else if is(&self.bytes) {
            Some(OwnedValue::Blob(object.bytes()?.into()))
        } else if is(&self.float) {
            // SAFETY: the object is a float.
            Some(OwnedValue::Real(unsafe { (py().PyFloat_AsDouble)(object.as_raw()) }))
        } else {
            None
        })
    }

    /// Checks whether it is a whole number, however large.
    pub(crate) fn is_integer(&self, object: &Object) -> bool {
        object.is_instance(&self.int)
    }

    pub(crate) fn object_of(&self, value: Value<'_>) -> Result<Object> {
        match value {
            Value::Null => self.none(),
            Value::Integer(number) => integer(number),
            Value::Real(number) => float(number),
            Value::Text(text) => string(text),
            Value::Blob(blob) => bytes(blob),
        }
    }

    /// Returns rows as a list of tuples.
    pub(crate) fn list_of(&self, rows: &[Vec<OwnedValue>]) -> Result<Object> {
        let row = |row: &Vec<OwnedValue>| {
            let values = row.iter().map(|value| self.object_of(value.value()));
            tuple(values.collect::<Result<_>>()?)
        };
        list(rows.iter().map(row).collect::<Result<_>>()?)
    }
}

/// Sets an exception of a class that is written in C, or has no state of its own.
fn set(class: &Object, text: &str) -> Raised {
    let made = string(text).and_then(|text| class.call(vec![text]));
    made.map_or_else(|raised| raised, set_exception)
}

/// Returns the number, if it fits.
pub(crate) fn to_integer(object: &Object) -> Option<i64> {
    // SAFETY: the object is alive. -1 may also mean that it has raised.
    let number = unsafe { (py().PyLong_AsLongLong)(object.as_raw()) };
    if number == -1 && take_exception().is_ok() { None } else { Some(number) }
}
