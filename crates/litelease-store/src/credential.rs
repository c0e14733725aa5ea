//! Credentials: the random id of the file, which its credentials name as their issuer, and the
//! grant that a credential is for. Keys and signatures are not known here.

use litelease_core::{self as rule, Claimant, CredentialResult};

use crate::schema::{Table, create, is_there};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// The id of the file as an issuer of credentials, in one row. It is made by the first use, and
/// made anew after `restore_fence`.
pub(crate) const ISSUER: Table = Table {
    name: "litelease_issuer",
    definition: "(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  issuer TEXT NOT NULL
)",
};

/// Reads the id.
const READ_ISSUER: &str = "SELECT issuer FROM main.litelease_issuer WHERE id = 1";

/// Stores the id, unless there is one.
const KEEP_ISSUER: &str = "INSERT INTO main.litelease_issuer (id, issuer) VALUES (1, ?1)
ON CONFLICT (id) DO NOTHING";

/// Removes the id: the next use makes another.
const FORGET_ISSUER: &str = "DELETE FROM main.litelease_issuer";

impl Store {
    /// Returns the id of the file as an issuer. Stores `fresh` as its id if it has none yet.
    ///
    /// The caller makes `fresh`: SQLite's own random numbers repeat in the children of a fork.
    pub fn issuer(&self, fresh: &str) -> Result<String, Error> {
        self.with_context("read the issuer", None, || {
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(issuer) = self.stored_issuer()?
            {
                return Ok(issuer);
            }
            self.durably(boundary, |_| {
                self.verify()?;
                self.all_or_nothing(|| {
                    if !is_there(self.connection, &ISSUER)? {
                        create(self.connection, &ISSUER)?;
                    }
                    let keep = || execute_once(self.connection, KEEP_ISSUER, &[Value::Text(fresh)]);
                    self.connection.keeping_last_insert_rowid(keep)?;
                    self.stored_issuer()?.ok_or_else(damaged)
                })
            })
        })
    }

    /// Decides whether the grant gets a credential, and until when. Needs no write lock.
    pub fn credential(
        &self,
        name: &str,
        who: Claimant<'_>,
        ttl_ms: i64,
        most_ms: i64,
        when: When,
    ) -> Result<CredentialResult, Error> {
        self.with_context("issue a credential for", Some(name), || {
            self.settle()?;
            self.read_row(name, |row| {
                Ok(rule::credential(row, who, ttl_ms, most_ms, when.now_ms()).into_owned())
            })
        })
    }

    /// Removes the id of a file that was restored. There may be several copies of the backup, and
    /// their tokens cannot be compared: so each becomes an issuer of its own.
    pub(crate) fn forget_issuer(&self) -> Result<(), Error> {
        match is_there(self.connection, &ISSUER)? {
            true => execute_once(self.connection, FORGET_ISSUER, &[]),
            false => Ok(()),
        }
    }

    fn stored_issuer(&self) -> Result<Option<String>, Error> {
        if !is_there(self.connection, &ISSUER)? {
            return Ok(None);
        }
        let mut statement = self.connection.prepare(READ_ISSUER)?;
        let mut run = statement.run(&[])?;
        if !run.step()? {
            return Ok(None);
        }
        run.column(0).and_then(Value::text).map(|id| Some(id.to_owned())).ok_or_else(damaged)
    }
}

fn damaged() -> Error {
    ISSUER.mismatch("its row is damaged".into())
}
