//! Lists rows, in the order of their names.

use litelease_core::{LeaseInfo, Row};

use crate::sqlite::{Statement, Value};
use crate::statements::{stored_row, stored_state};
use crate::{Error, Store, When};

/// Rows that are added during the walk are not part of it; otherwise a walk that claims might never end.
const LIST: &str = "SELECT name, owner, token, lease_expires_at_ms FROM main.litelease_resources
WHERE name >= ?1 AND name <= ?2
AND rowid <= (SELECT max(rowid) FROM main.litelease_resources) ORDER BY name";

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

/// Walks along rows in one snapshot, without collecting them.
pub(crate) struct LeaseWalk {
    statement: Statement,
}

impl Store {
    /// Lists all rows, live or not, in the order of their names.
    pub fn list(&self) -> Result<Vec<LeaseRow>, Error> {
        self.with_context("list leases", None, || {
            let mut walk = self.walk(None, None)?;
            let mut list = Vec::new();
            while let Some(row) = walk.next()? {
                list.push(LeaseRow::of(row));
            }
            Ok(list)
        })
    }

    /// Lists live leases whose name begins with `prefix` and comes after `after`: at most `limit`, found among the
    /// next `rows` rows. Answers them, and the name to go on after if there may be more.
    pub fn live_page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        rows: usize,
        when: When,
    ) -> Result<(Vec<LeaseInfo>, Option<String>), Error> {
        self.with_context("list leases", None, || {
            let now_ms = when.now_ms();
            let mut walk =
                self.walk(Some(after.map_or(prefix, |after| after.max(prefix))), None)?;
            let (mut leases, mut seen, mut last) = (Vec::new(), 0, None);
            while let Some(row) = walk.next()? {
                if !row.name().starts_with(prefix) {
                    return Ok((leases, None));
                }
                if after.is_some_and(|after| row.name() <= after) {
                    continue;
                }
                if seen >= rows || leases.len() >= limit {
                    return Ok((leases, last));
                }
                seen += 1;
                last = Some(row.name().to_owned());
                leases.extend(row.live(now_ms).map(LeaseInfo::into_owned));
            }
            Ok((leases, None))
        })
    }

    /// Walks along the rows from one name to another, both included, in the order of their names.
    pub(crate) fn walk(&self, from: Option<&str>, to: Option<&str>) -> Result<LeaseWalk, Error> {
        self.settle_debts()?;
        self.verify()?;
        let statement = self.connection.prepare(LIST)?;
        // Every text is at least the empty one, and less than a blob.
        let to = to.map_or(Value::Blob(&[]), Value::Text);
        statement.start(&[Value::Text(from.unwrap_or("")), to])?;
        Ok(LeaseWalk { statement })
    }
}

impl LeaseWalk {
    /// Returns the next row, if there is one.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>, Error> {
        if !self.statement.advance()? {
            return Ok(None);
        }
        let [name, owner, token, expiry] = [0, 1, 2, 3].map(|index| self.statement.column(index));
        let name = name.and_then(Value::text);
        let name = name.ok_or_else(|| Error::InvalidLeaseRow(String::new()))?;
        stored_row(name, stored_state([owner, token, expiry])).map(Some)
    }
}

impl LeaseRow {
    fn of(row: Row<'_>) -> Self {
        let tenure = row.state().and_then(|state| state.tenure());
        LeaseRow {
            name: row.name().into(),
            tenure: tenure.map(|tenure| (tenure.owner.into(), tenure.expires_at_ms)),
            token: row.token().unwrap_or(0),
        }
    }

    /// How the name stands at a Unix time in milliseconds.
    pub fn status(&self, now_ms: i64) -> Option<litelease_core::Status> {
        self.row().status(now_ms)
    }

    /// The row as the rule sees it.
    pub fn row(&self) -> Row<'_> {
        let (owner, expiry) = match &self.tenure {
            Some((owner, expiry)) => (Some(owner.as_str()), Some(*expiry)),
            None => (None, None),
        };
        Row::new(&self.name, litelease_core::State::stored(self.token, owner, expiry))
    }
}
