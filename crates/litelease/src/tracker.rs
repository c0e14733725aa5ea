//! Locks by name in a file that the first lock makes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use litelease_hold::{HolderKind, Identity};

use crate::error::into_rusqlite;
use crate::{ClaimResult, HoldError, Litelease, now_ms};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// Locks by name that are never renewed: after `expire` another process can lock the name while the
/// first one is still working, and the first one does not notice.
///
/// Give it far more time than the work can take. For work of unknown length use
/// [`hold`](Litelease::hold). `new` creates the parent folders; the first lock creates the file and
/// its table.
///
/// ```
/// use litelease::{HoldError, Tracker};
///
/// # fn main() -> Result<(), HoldError> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("state/locks.sqlite3");
/// let tracker = Tracker::new(path)?;
/// let lock = tracker.lock("books", Tracker::EXPIRE)?;
/// match tracker.lock("books", Tracker::EXPIRE) {
///     Err(HoldError::TrackerIsLocked { name, owner, .. }) => println!("{owner} has {name}"),
///     other => panic!("{other:?}"),
/// }
/// drop(lock); // unlocked
/// # tracker.lock("books", Tracker::EXPIRE)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tracker {
    path: PathBuf,
}

/// A lock that is unlocked when this is dropped. Made by [`Tracker::lock`].
///
/// ```
/// # use litelease::Tracker;
/// # let folder = tempfile::tempdir().unwrap();
/// # let tracker = Tracker::new(folder.path().join("locks.sqlite3"))?;
/// let lock = tracker.lock("books", Tracker::EXPIRE)?;
/// assert_eq!(lock.token().len(), 32);
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Debug)]
#[must_use = "a lock that is dropped is given up"]
pub struct TrackerGuard {
    tracker: Tracker,
    name: String,
    token: String,
}

impl Tracker {
    /// The usual time after which a lock expires: a minute.
    ///
    /// ```
    /// assert_eq!(litelease::Tracker::EXPIRE.as_secs(), 60);
    /// ```
    pub const EXPIRE: Duration = Duration::from_secs(60);

    /// Returns the locks in the file at `path`. Creates its folders now; the first lock creates the
    /// file.
    pub fn new(path: impl AsRef<Path>) -> Result<Self> {
        let given = path.as_ref();
        // A relative path would lead to another file after a change of the working directory.
        let path = std::path::absolute(given)
            .map_err(|error| HoldError::Folder { path: given.into(), error })?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)
                .map_err(|error| HoldError::Folder { path: folder.into(), error })?;
        }
        Ok(Tracker { path })
    }

    /// Locks `name` until the result is dropped, for at most `expire`.
    pub fn lock(&self, name: &str, expire: Duration) -> Result<TrackerGuard> {
        let token = self.lock_it(name, expire)?;
        Ok(TrackerGuard { tracker: self.clone(), name: name.into(), token })
    }

    /// Locks `name` for `expire`, and returns a token (32 hex digits) to unlock it with.
    pub fn lock_it(&self, name: &str, expire: Duration) -> Result<String> {
        let who = Identity::new(HolderKind::Lock);
        let db = Litelease::open_own(&self.path)?;
        if !into_rusqlite(db.store().foreign_locks(now_ms()))?.is_empty() {
            return Err(HoldError::ForeignLocks(self.path.clone()));
        }
        match db.claim(name, &who.to_string(), expire)? {
            ClaimResult::Acquired(_) => Ok(who.unique),
            ClaimResult::Busy(current) => Err(HoldError::TrackerIsLocked {
                name: current.name,
                owner: without_token(&current.owner).into(),
                until: current.expires_at_ms,
            }),
        }
    }

    /// Unlocks `name`. Does nothing if the token is no longer current, because the lock then
    /// belongs to another owner.
    ///
    /// ```
    /// # use litelease::Tracker;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let tracker = Tracker::new(folder.path().join("locks.sqlite3"))?;
    /// let token = tracker.lock_it("books", Tracker::EXPIRE)?;
    /// tracker.unlock_it("books", "00000000000000000000000000000000")?; // not current
    /// assert!(tracker.lock_it("books", Tracker::EXPIRE).is_err());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn unlock_it(&self, name: &str, token: &str) -> Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        let db = Litelease::open_own(&self.path)?;
        // The token is the last word of the owner text, or all of it where the Python package
        // locked.
        let is_current =
            |owner: &str| !token.is_empty() && owner.split(' ').next_back() == Some(token);
        if let Some(lease) = db.inspect(name)?.filter(|lease| is_current(&lease.owner)) {
            db.release(&lease)?;
        }
        Ok(())
    }
}

/// Returns an owner text without its last word, which is the token that unlocks.
fn without_token(owner: &str) -> &str {
    owner.rsplit_once(' ').map_or("another owner", |(who, _)| who)
}

impl TrackerGuard {
    /// Returns the token of this acquisition.
    pub fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for TrackerGuard {
    fn drop(&mut self) {
        // A drop returns no error. A lock that stays ends after its time.
        let _ = self.tracker.unlock_it(&self.name, &self.token);
    }
}
