//! Gates: the check of a token at a target that is not in the file of the lease.

use litelease_core::{AdmitResult, admit};

use crate::schema::{Table, create, is_there};
use crate::sqlite::{Value, code};
use crate::statements::execute_once;
use crate::{Error, Store};

/// The largest token that was admitted for each name. It is made by the first one.
pub(crate) const GATES: Table = Table {
    name: "litelease_gates",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1)
)",
};

/// The largest token that was admitted.
pub(crate) const ADMITTED: &str = "SELECT token FROM main.litelease_gates WHERE name = ?1";

/// Remembers a token that is admitted.
pub(crate) const ADMIT: &str = "INSERT INTO main.litelease_gates (name, token) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET token = excluded.token
WHERE excluded.token > litelease_gates.token";

/// Takes the write lock and changes nothing.
const LOCK: &str = "UPDATE main.litelease_gates SET token = token WHERE FALSE";

impl Store {
    /// Admits a token unless a larger one was admitted before, and remembers it.
    ///
    /// This needs no lease table: the leases are elsewhere.
    pub fn admit(&self, name: &str, token: i64) -> Result<AdmitResult, Error> {
        self.with_context("admit a token of", Some(name), || {
            let boundary = self.boundary()?;
            // A token that was admitted before is admitted again without a write. A token that is
            // too small is refused without one, because the largest never shrinks.
            if boundary.may_look_first() {
                let (answer, is_new) = admit(self.admitted(name)?, token);
                if !is_new {
                    return Ok(answer);
                }
            }
            let lock = || self.lock_gates();
            self.within_locked(boundary, lock, || {
                self.all_or_nothing(|| self.let_pass(name, token))
            })
        })
    }

    /// Takes the write lock in the caller's transaction. Where there is no table yet, creating it
    /// will.
    fn lock_gates(&self) -> Result<(), Error> {
        match execute_once(self.connection, LOCK, &[]) {
            Err(Error::Sqlite(failure)) if failure.code & 0xff == code::ERROR => Ok(()),
            done => done,
        }
    }

    fn let_pass(&self, name: &str, token: i64) -> Result<AdmitResult, Error> {
        if !is_there(self.connection, &GATES)? {
            create(self.connection, &GATES)?;
        }
        let (answer, is_new) = admit(self.admitted(name)?, token);
        if is_new {
            let values = [Value::Text(name), Value::Integer(token)];
            let save = || execute_once(self.connection, ADMIT, &values);
            self.connection.keeping_last_insert_rowid(save)?;
        }
        Ok(answer)
    }

    fn admitted(&self, name: &str) -> Result<Option<i64>, Error> {
        if !is_there(self.connection, &GATES)? {
            return Ok(None);
        }
        let mut statement = self.connection.prepare(ADMITTED)?;
        let mut run = statement.run(&[Value::Text(name)])?;
        if !run.step()? {
            return Ok(None);
        }
        match run.column(0).and_then(Value::integer) {
            Some(token) => Ok(Some(token)),
            None => Err(GATES.mismatch(format!("the row of {name:?} is damaged"))),
        }
    }
}
