//! Sessions: which names a session has claimed, so that whoever replaces it can break them all.

use crate::schema::Table;
use crate::side_tables::Side;
use crate::sqlite::Value;
use crate::{Error, Store};

/// The session of each name that was claimed in one, by the grant of its identity. It is made by the first one.
pub(crate) const SESSIONS: Table = Table {
    name: "litelease_sessions",
    definition: "(
  name TEXT PRIMARY KEY,
  token INTEGER NOT NULL CHECK (token >= 1),
  identity TEXT NOT NULL,
  session_token INTEGER NOT NULL CHECK (session_token >= 1)
)",
};

/// Notes the session of a grant, in the place of the one before.
pub(crate) const ENTER: &str = "INSERT INTO main.litelease_sessions
(name, token, identity, session_token) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, identity = excluded.identity,
session_token = excluded.session_token";

/// Reads the grants of a session that have neither been released nor succeeded.
pub(crate) const NAMES_OF_SESSION: &str = "SELECT side.name FROM main.litelease_sessions AS side
JOIN main.litelease_resources AS lease ON lease.name = side.name AND lease.token = side.token
WHERE side.identity = ?1 AND side.session_token = ?2 AND lease.owner IS NOT NULL ORDER BY side.name";

impl Store {
    /// Notes, inside a transaction, that the grant of `name` under `token` belongs to a session.
    pub fn enter_session(
        &self,
        name: &str,
        token: i64,
        identity: &str,
        session_token: i64,
    ) -> Result<(), Error> {
        self.with_context("note the session of", Some(name), || {
            let values = [
                Value::Text(name),
                Value::Integer(token),
                Value::Text(identity),
                Value::Integer(session_token),
            ];
            self.write_side(Side::Sessions, ENTER, &values)
        })
    }

    /// The names of a session whose grants still stand in the file, live or expired.
    pub fn names_of_session(
        &self,
        identity: &str,
        session_token: i64,
    ) -> Result<Vec<String>, Error> {
        self.with_context("read the names of session", Some(identity), || {
            self.verify()?;
            if !self.has(Side::Sessions)? {
                return Ok(Vec::new());
            }
            let mut statement = self.connection.prepare(NAMES_OF_SESSION)?;
            let mut run = statement.run(&[Value::Text(identity), Value::Integer(session_token)])?;
            let mut names = Vec::new();
            while run.step()? {
                match run.column(0).and_then(Value::text) {
                    Some(name) => names.push(name.to_owned()),
                    None => return Err(SESSIONS.mismatch("a name is no text".into())),
                }
            }
            Ok(names)
        })
    }
}
