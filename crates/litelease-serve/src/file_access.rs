//! The access keys of a served file. Any program that may write the file may change them.

use std::time::Duration;

use litelease::{Litelease, Result};
use litelease_store::{AccessRow, When};

use crate::error::OpenError;
use crate::local_key::AccessKeys;

/// The access keys of a served file. A running server notices a change at its next call.
///
/// ```
/// use litelease_serve::{AccessKey, FileAccess};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let db = litelease::Litelease::open_own(folder.path().join("leases.sqlite3"))?;
/// let access = FileAccess::new(&db);
/// let key = AccessKey::generate().unwrap();
/// assert!(access.add("ci", &key.hash(), "claim:backup/*\nobserve:*", None)?);
/// println!("{}", key.show());
/// assert!(access.remove("ci")?);
/// # Ok::<(), litelease::Error>(())
/// ```
pub struct FileAccess<'d> {
    db: &'d Litelease,
}

impl<'d> FileAccess<'d> {
    /// Returns the access keys in a file.
    pub fn new(db: &'d Litelease) -> Self {
        FileAccess { db }
    }

    /// Returns all keys, in the order of their names, or `None` if there was never one.
    pub fn list(&self) -> Result<Option<Vec<AccessRow>>> {
        self.db.with_store(|store| store.access())
    }

    /// Adds a key, unless there is one of this name. Returns whether it did.
    pub fn add(
        &self,
        name: &str,
        hash: &[u8],
        allow: &str,
        expires: Option<Duration>,
    ) -> Result<bool> {
        let later = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let expires_at_ms = expires.map(|time| litelease::now_ms().saturating_add(later(time)));
        self.db.with_store(|store| store.add_access(name, hash, allow, expires_at_ms, When::Now))
    }

    /// Takes a key back. Returns whether there was one.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.db.with_store(|store| store.remove_access(name))
    }
}

impl AccessKeys for Litelease {
    fn find(&self, name: &str) -> Result<Option<Option<AccessRow>>, OpenError> {
        let is_it = |row: &AccessRow| row.name == name;
        Ok(FileAccess::new(self).list()?.map(|rows| rows.into_iter().find(is_it)))
    }

    fn replace(&self, name: &str, hash: &[u8], allow: &str) -> Result<(), OpenError> {
        FileAccess::new(self).remove(name)?;
        FileAccess::new(self).add(name, hash, allow, None)?;
        Ok(())
    }
}
