//! Sessions: one heartbeat for an identity and all the names that were claimed in it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::file::{Aside, DatabaseFile, SessionMembers, open_session};

use crate::file::file_of;
use crate::{Held, HoldError, Litelease, Lost};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// How long a session waits for a lock on the file, in short steps: its heartbeat comes between
/// them.
const PATIENCE: Duration = Duration::from_secs(5);

/// An identity that one process has at a time, and the names that are claimed in it: one heartbeat
/// renews all, in one commit, to the same instant. So everything ends together.
///
/// ```
/// use std::time::Duration;
/// use litelease::{HoldError, Litelease, Session};
///
/// # fn main() -> Result<(), HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let session = Session::open(&db, "worker-7", Duration::from_secs(30))?;
/// let (fiction, poetry) = (session.claim("fiction")?, session.claim("poetry")?);
///
/// // The same identity is taken; a newer process may replace it.
/// assert!(matches!(Session::open(&db, "worker-7", Duration::from_secs(30)), Err(HoldError::Busy(_))));
/// let newer = Session::replace(&db, "worker-7", Duration::from_secs(30))?;
/// assert_eq!([db.owner("fiction")?, db.owner("poetry")?], [None, None]);
/// assert!(session.claim("essays").is_err(), "nothing is written any more");
/// assert!(fiction.check().is_err() && poetry.check().is_err());
/// # drop(newer);
/// # Ok(())
/// # }
/// ```
///
/// Once its [`check`](litelease_hold::Held::check) has failed it always fails, and so does that of
/// every name.
#[derive(Debug)]
#[must_use = "a session that is dropped is closed"]
pub struct Session {
    held: litelease_hold::Held,
    members: Arc<SessionMembers>,
    file: DatabaseFile,
}

impl Session {
    /// Opens the session of an identity, which is a name like others. Fails with
    /// [`HoldError::Busy`] if another session has it.
    ///
    /// If the process of that session has ended, for which there is proof on Linux on the same
    /// host, its session is replaced. `ttl` is at least 101 ms. Fails inside a transaction and for
    /// a database in memory.
    pub fn open(db: &Litelease, identity: &str, ttl: Duration) -> Result<Self> {
        Session::begin(db, identity, ttl, false)
    }

    /// Opens the session of an identity in the place of the one before: breaks that and all its
    /// names in the same commit. From then on its guarded writes are refused.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let old = Session::open(&db, "worker-7", Duration::from_secs(30))?;
    /// let new = Session::replace(&db, "worker-7", Duration::from_secs(30))?;
    /// assert!(new.token() > old.token());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn replace(db: &Litelease, identity: &str, ttl: Duration) -> Result<Self> {
        Session::begin(db, identity, ttl, true)
    }

    fn begin(db: &Litelease, identity: &str, ttl: Duration, replaces: bool) -> Result<Self> {
        if db.store().is_in_transaction() {
            return Err(HoldError::InTransaction);
        }
        let file = file_of(db)?;
        let (held, members) = open_session(&caller(&file), identity, ttl, replaces)?;
        Ok(Session { held, members, file })
    }

    /// Claims a name in the session, without waiting for it. In the same commit the session and all
    /// its names are renewed to the same instant.
    ///
    /// If the session can no longer be renewed, nothing is written, and everything is lost.
    /// Dropping the result releases the name.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let session = Session::open(&db, "worker-7", Duration::from_secs(30))?;
    /// let books = session.claim("books")?;
    /// let expiry = |name| db.inspect(name).map(|lease| lease.unwrap().expires_at_ms);
    /// assert_eq!(expiry("books")?, expiry("worker-7")?);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn claim(&self, name: &str) -> Result<Held> {
        let held = self.members.claim(&caller(&self.file), name)?;
        Ok(Held::of_session(held, self.file.clone(), self.members.clone()))
    }

    /// Returns the identity.
    pub fn identity(&self) -> &str {
        self.held.name()
    }

    /// Closes the session: releases its identity and all its names in one commit. Dropping it
    /// closes it, too, and ignores errors.
    ///
    /// If the file is locked, it waits for a few seconds; after that the keeper keeps trying.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let session = Session::open(&db, "worker-7", Duration::from_secs(30))?;
    /// let books = session.claim("books")?;
    /// session.close()?;
    /// assert_eq!([db.owner("worker-7")?, db.owner("books")?], [None, None]);
    /// assert!(books.check().is_err());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn close(self) -> Result<(), Lost> {
        self.held.release()
    }
}

/// The hold of the identity.
impl Deref for Session {
    type Target = litelease_hold::Held;

    fn deref(&self) -> &Self::Target {
        &self.held
    }
}

/// Returns a caller that waits for a lock on the file.
pub(crate) fn caller(file: &DatabaseFile) -> Aside<'_> {
    Aside { file, patience: PATIENCE, go_on: &|| Ok(()), longest_sleep: litelease_hold::file::STEP }
}
