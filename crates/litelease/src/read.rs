//! Shared reads: the verbs, for all handles.

use std::time::Duration;

use crate::leases::in_ms;
use crate::{GrantRef, Leases, Reader, Result};

/// The verbs of shared reads. [`Cached`](crate::Cached) does all of it for a value in memory.
impl Leases {
    /// Lets `reader` answer from memory for `ttl`, at most an hour, unless a writer has `name`.
    ///
    /// Returns the version, which is the name's newest token: what was read from the file under
    /// another version may be old. Returns `None` while a writer has the name. Reading again
    /// prolongs and never shortens. Measure the ttl from before the call, on a clock that counts
    /// suspend, and stop a little earlier.
    ///
    /// Use a reader text once: a program that starts again must not give up what its predecessor
    /// still relies on. Inside a transaction, rely on it only after COMMIT.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_secs(30);
    /// assert_eq!(db.read("config", "web-1", ttl)?, Some(0));
    /// let writer = db.claim("config", "admin", ttl)?.acquired().unwrap();
    /// assert_eq!(db.read("config", "web-1", ttl)?, None);
    /// assert!(!db.drained(&writer)?, "web-1 may still answer from memory");
    /// db.unread("config", "web-1")?;
    /// assert!(db.drained(&writer)?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn read(&self, name: &str, reader: &str, ttl: Duration) -> Result<Option<i64>> {
        self.run(|store| store.read(name, reader, in_ms(ttl), self.when()))
    }

    /// Gives a read up: the reader no longer answers from memory. Returns whether there was one.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.read("config", "web-1", Duration::from_secs(30))?;
    /// assert!(db.unread("config", "web-1")?);
    /// assert!(!db.unread("config", "web-1")?);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn unread(&self, name: &str, reader: &str) -> Result<bool> {
        let given_up = self.run(|store| store.unread(name, reader))?;
        if given_up {
            self.notify();
        }
        Ok(given_up)
    }

    /// Lists the readers that may still answer from memory, by their texts. Takes no write lock.
    ///
    /// After [`restore_fence`](Leases::restore_fence), it lists for an hour one reader of every
    /// name: it stands for readers that the restored file does not know.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.at(100).read("config", "web-1", Duration::from_millis(50))?;
    /// let reader = Reader { reader: "web-1".into(), expires_at_ms: 150 };
    /// assert_eq!(db.at(149).readers("config")?, [reader]);
    /// assert_eq!(db.at(150).readers("config")?, []);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn readers(&self, name: &str) -> Result<Vec<Reader>> {
        self.run(|store| store.readers(name, self.when()))
    }

    /// Checks whether the writer with this token may write: the token is the newest, its lease is
    /// live, and no reader may answer from memory any more.
    ///
    /// Ask it in the transaction that writes: then the answer holds until COMMIT. Before, wait by
    /// elapsed time, not by this alone: a wall clock that was set forward shows readers as expired
    /// that still answer. [`Cached::write`](crate::Cached::write) does both.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let writer = db.claim("config", "admin", Duration::from_secs(30))?.acquired().unwrap();
    /// let tx = db.transaction()?;
    /// if tx.drained(&writer)? {
    ///     tx.conn().execute_batch("CREATE TABLE config (value)")?;
    ///     tx.release(&writer)?;
    ///     tx.commit()?;
    /// }
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn drained<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<bool> {
        let GrantRef { name, token, .. } = grant.into();
        self.run(|store| store.drained(name, token, self.when()))
    }
}
