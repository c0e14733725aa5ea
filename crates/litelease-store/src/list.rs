//! Lists rows, in the order of their names.

use litelease_core::{LeaseRow, Row};

use crate::side_tables::Side;
use crate::sqlite::{Statement, Value};
use crate::statements::{stored_row, stored_state};
use crate::{Error, Store};

/// Rows that are added during the walk are not part of it; otherwise a walk that claims might never
/// end.
const LIST: &str = "SELECT name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms
FROM main.litelease_resources WHERE name >= ?1 AND name <= ?2
AND rowid <= (SELECT max(rowid) FROM main.litelease_resources) ORDER BY name";

/// Lists rows with the value of each grant, for files that have values.
const LIST_WITH_VALUES: &str =
    "SELECT lease.name, owner, lease.token, lease_expires_at_ms, created_at_ms, updated_at_ms,
side.value FROM main.litelease_resources AS lease LEFT JOIN main.litelease_values AS side
ON side.name = lease.name AND side.token = lease.token
WHERE lease.name >= ?1 AND lease.name <= ?2
AND lease.rowid <= (SELECT max(rowid) FROM main.litelease_resources) ORDER BY lease.name";

/// A row of a walk.
pub struct WalkedRow<'w> {
    /// The row.
    pub row: Row<'w>,
    /// When its newest grant began.
    pub since_ms: Option<i64>,
    /// When it was last granted, renewed or ended.
    pub updated_at_ms: Option<i64>,
    /// The value of its newest grant: NULL if there is none. A value ends with its grant, so it
    /// counts only while the lease is live.
    pub value: Value<'w>,
}

impl From<WalkedRow<'_>> for LeaseRow {
    fn from(walked: WalkedRow<'_>) -> Self {
        LeaseRow::new(walked.row, walked.since_ms)
    }
}

/// Walks along rows in one snapshot, without collecting them.
pub struct LeaseWalk {
    statement: Statement,
    has_values: bool,
}

impl Store {
    /// Lists all rows, live or not, in the order of their names.
    pub fn list(&self) -> Result<Vec<LeaseRow>, Error> {
        self.with_context("list leases", None, || {
            let mut walk = self.walk(None, None)?;
            let mut list = Vec::new();
            while let Some(walked) = walk.next()? {
                list.push(LeaseRow::from(walked));
            }
            Ok(list)
        })
    }

    /// Passes the rows whose name begins with `prefix` and comes after `after` to `keep`, until
    /// it has returned `limit` results or has seen `rows` rows. Returns the results, and the name
    /// to go on after if there may be more.
    pub fn page<T>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        rows: usize,
        keep: impl Fn(WalkedRow<'_>) -> Option<T>,
    ) -> Result<(Vec<T>, Option<String>), Error> {
        self.with_context("list leases", None, || {
            let mut walk =
                self.walk(Some(after.map_or(prefix, |after| after.max(prefix))), None)?;
            let (mut leases, mut seen, mut last) = (Vec::new(), 0, None);
            while let Some(walked) = walk.next()? {
                let row = walked.row;
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
                leases.extend(keep(walked));
            }
            Ok((leases, None))
        })
    }

    /// Walks along the rows from one name to another, both included, in the order of their names.
    pub fn walk(&self, from: Option<&str>, to: Option<&str>) -> Result<LeaseWalk, Error> {
        self.settle()?;
        self.verify()?;
        let has_values = self.has(Side::Values)?;
        let sql = if has_values { LIST_WITH_VALUES } else { LIST };
        let statement = self.connection.prepare(sql)?;
        // Every text is at least the empty one, and less than a blob.
        let to = to.map_or(Value::Blob(&[]), Value::Text);
        statement.start(&[Value::Text(from.unwrap_or("")), to])?;
        Ok(LeaseWalk { statement, has_values })
    }
}

impl LeaseWalk {
    /// Returns the next row, if there is one.
    #[allow(clippy::should_implement_trait)] // it lends the row
    pub fn next(&mut self) -> Result<Option<WalkedRow<'_>>, Error> {
        if !self.statement.advance()? {
            return Ok(None);
        }
        let [name, owner, token, expiry] = [0, 1, 2, 3].map(|index| self.statement.column(index));
        let name = name.and_then(Value::text);
        let name = name.ok_or_else(|| Error::InvalidLeaseRow(String::new()))?;
        let since_ms = self.statement.column(4).and_then(Value::integer);
        let updated_at_ms = self.statement.column(5).and_then(Value::integer);
        let value = if self.has_values { self.statement.column(6) } else { None };
        let row = stored_row(name, stored_state([owner, token, expiry]))?;
        Ok(Some(WalkedRow { row, since_ms, updated_at_ms, value: value.unwrap_or(Value::Null) }))
    }
}
