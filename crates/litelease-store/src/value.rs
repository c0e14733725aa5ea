//! Values: what a live grant has attached to its name. They end with the grant.

use litelease_core::{self as rule, GrantResult};

use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::{Error, Store, When};

/// The value of each name, with the grant that attached it. It is made by the first one.
pub(crate) const VALUES: Table = Table {
    name: "litelease_values",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  value
)",
};

/// Stores a value, and replaces the one before.
pub(crate) const ATTACH: &str = "INSERT INTO main.litelease_values (name, token, value)
VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, value = excluded.value";

/// Reads a value, whichever grant attached it.
pub(crate) const VALUE: &str = "SELECT token, value FROM main.litelease_values WHERE name = ?1";

impl Store {
    /// Attaches a value to a live grant, and replaces the one before. It ends with the grant.
    pub fn attach(
        &self,
        name: &str,
        token: i64,
        value: Value<'_>,
        when: When,
    ) -> Result<GrantResult, Error> {
        self.with_context("attach a value to", Some(name), || {
            self.within(self.boundary()?, || {
                let answer =
                    self.read_row(name, |row| Ok(rule::attach(row, token, when.now_ms())))?;
                if answer.is_done() {
                    let values = [Value::Text(name), Value::Integer(token), value];
                    self.write_side(Side::Values, ATTACH, &values)?;
                }
                Ok(answer)
            })
        })
    }

    /// Returns the value that the live grant of `name` has attached. Needs no write lock.
    pub fn value<T>(
        &self,
        name: &str,
        when: When,
        keep: impl Fn(Value<'_>) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("read the value of", Some(name), || {
            self.settle()?;
            self.read_row(name, |row| {
                // Row and value are read in one snapshot: that of the statement which has reached
                // the row.
                let now_ms = when.now_ms();
                if row.live(now_ms).is_none() || !self.has(Side::Values)? {
                    return Ok(None);
                }
                let mut statement = self.connection.prepare(VALUE)?;
                let mut run = statement.run(&[Value::Text(name)])?;
                if !run.step()? {
                    return Ok(None);
                }
                match (run.column(0).and_then(Value::integer), run.column(1)) {
                    (Some(token), Some(value)) => {
                        Ok(rule::is_shown(row, token, now_ms).then(|| keep(value)))
                    }
                    _ => Err(VALUES.mismatch(format!("the row of {name:?} is damaged")).into()),
                }
            })
        })
    }
}
