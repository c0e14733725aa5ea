//! All rows, one after the other.

use litelease_core::Row;

use crate::sqlite::{Statement, Value};
use crate::statements::stored_row;
use crate::{Error, Store};

const LIST: &str = "SELECT name, owner, token, lease_expires_at_ms
FROM main.litelease_resources ORDER BY name";

/// A walk over all rows, in the order of their names. It holds a snapshot until it is dropped.
pub struct Rows {
    statement: Statement,
}

impl Store {
    /// All rows, live or not.
    pub fn rows(&self) -> Result<Rows, Error> {
        self.naming("list leases", None, || {
            self.verify()?;
            Ok(Rows { statement: self.connection.prepare(LIST)? })
        })
    }
}

impl Rows {
    /// Goes on to the next row, if there is one.
    pub fn advance(&mut self) -> Result<bool, Error> {
        Ok(self.statement.advance()?)
    }

    /// The present row.
    pub fn row(&self) -> Result<Row<'_>, Error> {
        let [name, owner, token, expiry] = [0, 1, 2, 3].map(|index| self.statement.column(index));
        let name =
            name.and_then(Value::text).ok_or_else(|| Error::InvalidLeaseRow(String::new()))?;
        stored_row(name, [owner, token, expiry])
    }
}
