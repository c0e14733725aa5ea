//! All rows at once.

use crate::sqlite::Value;
use crate::statements::{stored_row, stored_state};
use crate::{Error, Store};

const LIST: &str = "SELECT name, owner, token, lease_expires_at_ms
FROM main.litelease_resources ORDER BY name";

/// A row with text of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRow {
    /// The name.
    pub name: String,
    /// The owner and its expiry, unless it was released.
    pub tenure: Option<(String, i64)>,
    /// The newest token.
    pub token: i64,
}

impl Store {
    /// All rows, live or not, in the order of their names.
    ///
    /// They are read to the end before anybody sees one: a walk that is under way while rows are added might
    /// never end.
    pub fn list(&self) -> Result<Vec<LeaseRow>, Error> {
        self.with_context("list leases", None, || {
            self.settle_debts()?;
            self.verify()?;
            let mut statement = self.connection.prepare(LIST)?;
            let mut run = statement.run(&[])?;
            let mut list = Vec::new();
            while run.step()? {
                let [name, owner, token, expiry] = [0, 1, 2, 3].map(|index| run.column(index));
                let name = name.and_then(Value::text);
                let name = name.ok_or_else(|| Error::InvalidLeaseRow(String::new()))?;
                let row = stored_row(name, stored_state([owner, token, expiry]))?;
                let tenure = row.state().and_then(|state| state.tenure());
                list.push(LeaseRow {
                    name: name.into(),
                    tenure: tenure.map(|tenure| (tenure.owner.into(), tenure.expires_at_ms)),
                    token: row.token().unwrap_or(0),
                });
            }
            Ok(list)
        })
    }
}

impl LeaseRow {
    /// How the name stands at a Unix time in milliseconds.
    pub fn status(&self, now_ms: i64) -> Option<litelease_core::Status> {
        self.row().status(now_ms)
    }

    /// The row as the rule sees it.
    pub fn row(&self) -> litelease_core::Row<'_> {
        let (owner, expiry) = match &self.tenure {
            Some((owner, expiry)) => (Some(owner.as_str()), Some(*expiry)),
            None => (None, None),
        };
        litelease_core::Row::new(
            &self.name,
            litelease_core::State::stored(self.token, owner, expiry),
        )
    }
}
