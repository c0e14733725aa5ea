//! Values that live grants attach to their names, and leases listed with them.

use std::marker::PhantomData;

use litelease_store::LeaseWalk;
use rusqlite::ToSql;
use rusqlite::types;

use crate::error::into_rusqlite;
use crate::fences::{as_value, owned};
use crate::{GrantRef, GrantResult, LeaseRow, Leases, Result};

/// A lease, and the value that its live grant has attached: an item of [`Leases::leases_under`].
///
/// ```
/// # litelease_doctest::memory!(db);
/// let lease = db.claim("member/a", "a", Duration::from_secs(30))?.acquired().unwrap();
/// assert!(db.attach(&lease, "10.0.0.7:4000")?.is_done());
/// let listed: ListedLease = db.leases_under("member/").next().unwrap()?;
/// assert_eq!(listed.lease.name, "member/a");
/// assert_eq!(listed.value, Some(rusqlite::types::Value::Text("10.0.0.7:4000".into())));
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListedLease {
    /// The lease, which may have ended.
    pub lease: LeaseRow,
    /// The value of its grant, while that is live.
    pub value: Option<types::Value>,
}

/// Iterates over leases in the order of their names. Made by [`Leases::leases_under`].
///
/// ```
/// # litelease_doctest::memory!(db);
/// let mut members: LeasesUnder<'_> = db.leases_under("member/");
/// assert!(members.next().is_none());
/// # Ok::<(), litelease::Error>(())
/// ```
pub struct LeasesUnder<'l> {
    walk: Walk,
    prefix: String,
    now_ms: i64,
    /// The connection stays open, and with this thread, as long as its statement is.
    borrowed: PhantomData<&'l Leases>,
}

enum Walk {
    Begun(LeaseWalk),
    Failed(crate::Error),
    Over,
}

/// Values of grants.
impl Leases {
    /// Attaches a value to a live grant, instead of the one before: the address of a leader, or the
    /// data of a member.
    ///
    /// It ends with the grant: the value of a grant that has expired, was released or was
    /// superseded is not returned any more. For a token that is not the newest, or not live, it
    /// returns `Stale` and stores nothing. Attaching NULL removes the value.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let lease = db.claim("leader", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// assert_eq!(db.attach(&lease, "10.0.0.7:4000")?, GrantResult::Done);
    /// assert_eq!(db.value("leader")?, Some("10.0.0.7:4000".to_owned().into()));
    ///
    /// db.release(&lease)?;
    /// assert_eq!(db.value("leader")?, None);
    /// let late = db.attach(&lease, "10.0.0.7:4000")?;
    /// assert_eq!(late, GrantResult::Stale { reason: Reason::Released });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn attach<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        value: impl ToSql,
    ) -> Result<GrantResult> {
        let (GrantRef { name, token, .. }, output) = (grant.into(), value.to_sql()?);
        let value = as_value(&output, "a value")?;
        self.run(|store| store.attach(name, token, value, self.when()))
    }

    /// Returns the value that the live grant of `name` has attached. Takes no write lock.
    pub fn value(&self, name: &str) -> Result<Option<types::Value>> {
        let value = self.run(|store| store.value(name, self.when(), owned))?;
        Ok(value.filter(|value| *value != types::Value::Null))
    }

    /// Lists the names that begin with `prefix`, live or not, with the values of live grants,
    /// sorted by name. Takes no write lock.
    ///
    /// It reads one row after the other, along the index of names and in one snapshot; the snapshot
    /// is held until the result is dropped.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// for name in ["job", "member/a", "member/b", "members"] {
    ///     let _ = db.claim(name, "a", Duration::from_secs(30))?;
    /// }
    /// let names = db.leases_under("member/").map(|listed| Ok(listed?.lease.name));
    /// assert_eq!(names.collect::<Result<Vec<_>>>()?, ["member/a", "member/b"]);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn leases_under(&self, prefix: &str) -> LeasesUnder<'_> {
        let begun = self.verbs().and_then(|store| into_rusqlite(store.walk(Some(prefix), None)));
        let walk = match begun {
            Ok(walk) => Walk::Begun(walk),
            Err(error) => Walk::Failed(error),
        };
        let (prefix, now_ms) = (prefix.to_owned(), self.when().now_ms());
        LeasesUnder { walk, prefix, now_ms, borrowed: PhantomData }
    }
}

impl Leases {
    /// Checks the tables of values, limits and requests, for `litelease doctor`.
    #[doc(hidden)]
    pub fn side_tables(&self) -> Result<Vec<litelease_store::SideTableInfo>> {
        self.run(|store| store.side_tables(self.when()))
    }
}

impl LeasesUnder<'_> {
    fn step(walk: &mut LeaseWalk, prefix: &str, now_ms: i64) -> Result<Option<ListedLease>> {
        let Some(walked) = into_rusqlite(walk.next())? else { return Ok(None) };
        let (row, value) = (walked.row, walked.value);
        if !row.name().starts_with(prefix) {
            return Ok(None);
        }
        let value = row.live(now_ms).map(|_| owned(value));
        let value = value.filter(|value| *value != types::Value::Null);
        Ok(Some(ListedLease { lease: walked.into(), value }))
    }
}

impl Iterator for LeasesUnder<'_> {
    type Item = Result<ListedLease>;

    fn next(&mut self) -> Option<Self::Item> {
        match std::mem::replace(&mut self.walk, Walk::Over) {
            Walk::Over => None,
            Walk::Failed(error) => Some(Err(error)),
            Walk::Begun(mut walk) => {
                let next = LeasesUnder::step(&mut walk, &self.prefix, self.now_ms).transpose()?;
                if next.is_ok() {
                    self.walk = Walk::Begun(walk);
                }
                Some(next)
            }
        }
    }
}

impl Drop for LeasesUnder<'_> {
    fn drop(&mut self) {
        // The statement ends here. That there is a `drop` makes the compiler keep the connection
        // open until then.
        self.walk = Walk::Over;
    }
}

impl std::fmt::Debug for LeasesUnder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeasesUnder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
