//! Checkpoints: progress that carries the grant it was made under.

use litelease_core::{CheckpointResult, is_newest};

use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// The latest checkpoint of each name. It is made by the first one.
pub(crate) const CHECKPOINTS: Table = Table {
    name: "litelease_checkpoints",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  value,
  updated_at_ms INTEGER NOT NULL
)",
};

/// Stores a checkpoint, and replaces the one before.
pub(crate) const STORE: &str = "INSERT INTO main.litelease_checkpoints
(name, token, value, updated_at_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, value = excluded.value,
updated_at_ms = excluded.updated_at_ms";

/// Reads a checkpoint.
pub(crate) const LAST: &str = "SELECT token, value, updated_at_ms
FROM main.litelease_checkpoints WHERE name = ?1";

impl Store {
    /// Stores a value as the progress made under a grant, if that is still the newest of the name.
    pub fn checkpoint(
        &self,
        name: &str,
        token: i64,
        value: Value<'_>,
        when: When,
    ) -> Result<CheckpointResult, Error> {
        self.with_context("store a checkpoint of", Some(name), || {
            self.within(self.boundary()?, || {
                let (is_newest, newest) =
                    self.read_row(name, |row| Ok((is_newest(row, token), row.token())))?;
                if !is_newest {
                    return Ok(CheckpointResult::Stale { newest });
                }
                let now_ms = when.now_ms();
                let values =
                    [Value::Text(name), Value::Integer(token), value, Value::Integer(now_ms)];
                self.all_or_nothing(|| {
                    self.save_checkpoint(&values)?;
                    self.note_progress(name, token, now_ms)
                })?;
                Ok(CheckpointResult::Stored)
            })
        })
    }

    /// Returns the latest checkpoint of `name`: the token it was stored under, its value and when.
    pub fn last_checkpoint<T>(
        &self,
        name: &str,
        keep: impl FnOnce(i64, Value<'_>, i64) -> T,
    ) -> Result<Option<T>, Error> {
        self.with_context("read the checkpoint of", Some(name), || {
            self.verify()?;
            if !is_there(self.connection, &CHECKPOINTS)? {
                return Ok(None);
            }
            let mut statement = self.connection.prepare(LAST)?;
            let mut run = statement.run(&[Value::Text(name)])?;
            if !run.step()? {
                return Ok(None);
            }
            let number = |index| run.column(index).and_then(Value::integer);
            match (number(0), run.column(1), number(2)) {
                (Some(token), Some(value), Some(at_ms)) => Ok(Some(keep(token, value, at_ms))),
                _ => Err(CHECKPOINTS.mismatch(format!("the row of {name:?} is damaged"))),
            }
        })
    }

    fn save_checkpoint(&self, values: &[Value<'_>]) -> Result<(), Error> {
        if !is_there(self.connection, &CHECKPOINTS)? {
            create(self.connection, &CHECKPOINTS)?;
        }
        let save = || execute_once(self.connection, STORE, values);
        self.connection.keeping_last_insert_rowid(save)
    }
}
