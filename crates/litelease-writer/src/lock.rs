//! The lock itself.

use std::fs::{File, TryLockError};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::place::Place;
use crate::turn::{NotNow, Turn};
use crate::{Error, Holder, file};

/// How the lock is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// In the queue of the system: nobody starves.
    #[default]
    Fair,
    /// By asking again and again, after 5 ms at first and 50 ms at last. It needs no thread, and it starves: whoever
    /// has just unlocked asks first.
    Polled,
}

/// Whether a lock is held.
///
/// ```
/// # use litelease_writer::LockState;
/// assert_ne!(LockState::Free, LockState::Held(None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Nobody holds it.
    Free,
    /// Somebody does: this one, if the file tells.
    Held(Option<Holder>),
}

/// A lock across processes and threads, on a file of its own.
///
/// The file is made when it is missing, never truncated before it is locked and never deleted. Handles in one
/// process exclude each other like processes do; threads that share a handle are served one after the other.
///
/// ```
/// use std::time::Duration;
/// use litelease_writer::{LockState, Waiting, WriteLock};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.db.lock");
/// let lock = WriteLock::new(path);
/// let held = lock.acquire(Duration::from_millis(500), Waiting::Fair)?;
/// let state = lock.state()?;
/// assert!(matches!(state, LockState::Held(Some(holder)) if holder.pid == std::process::id()));
/// drop(held);
/// assert_eq!(lock.state()?, LockState::Free);
/// # Ok::<(), litelease_writer::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteLock {
    path: PathBuf,
    turn: Turn,
    place: Mutex<Arc<Place>>,
    pid: u32,
}

/// The lock, until this is dropped. It belongs to the thread that took it.
#[derive(Debug)]
#[must_use = "the lock is given back when this is dropped"]
pub struct Held<'l> {
    lock: &'l WriteLock,
    file: File,
    is_shared: bool,
    thread_bound: PhantomData<*const ()>,
}

/// How often a lock file may vanish while it is locked before that counts as a fault.
const MOST_REPLACEMENTS: u32 = 100;

impl WriteLock {
    /// The lock on this file. Nothing is opened yet.
    ///
    /// ```
    /// let lock = litelease_writer::WriteLock::new("data.db.lock");
    /// ```
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let pid = std::process::id();
        WriteLock { path: path.into(), turn: Turn::default(), place: Mutex::default(), pid }
    }

    /// The lock of a database: its path with `.lock` at its end. One file has one lock, whichever way it is called.
    ///
    /// ```
    /// # use litelease_writer::WriteLock;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let lock = WriteLock::of_database(&folder.path().join("data.db"))?;
    /// assert!(lock.path().ends_with("data.db.lock"));
    /// # Ok::<(), litelease_writer::Error>(())
    /// ```
    pub fn of_database(path: &Path) -> Result<Self, Error> {
        let resolved =
            path.canonicalize().or_else(|error| match (path.parent(), path.file_name()) {
                // It is about to be made.
                (Some(folder), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
                    let folder =
                        if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
                    Ok(folder.canonicalize()?.join(name))
                }
                _ => Err(error),
            });
        let resolved = resolved.map_err(|error| Error::Io { path: path.into(), error })?;
        let mut name = resolved.into_os_string();
        name.push(".lock");
        Ok(WriteLock::new(name))
    }

    /// The path of the lock file.
    ///
    /// ```
    /// # use std::path::Path;
    /// # let lock = litelease_writer::WriteLock::new("data.db.lock");
    /// assert_eq!(lock.path(), Path::new("data.db.lock"));
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the lock, until the timeout at most.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_writer::{Error, Waiting, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let lock = WriteLock::new(folder.path().join("data.db.lock"));
    /// let held = lock.acquire(Duration::ZERO, Waiting::Fair)?;
    /// let second = lock.acquire(Duration::ZERO, Waiting::Fair);
    /// assert!(matches!(second, Err(Error::Nested)));
    /// # Ok::<(), litelease_writer::Error>(())
    /// ```
    pub fn acquire(&self, timeout: Duration, waiting: Waiting) -> Result<Held<'_>, Error> {
        if self.pid != std::process::id() {
            return Err(Error::Forked);
        }
        let start = Instant::now();
        // A timeout beyond all clocks is as good as none.
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_secs(1 << 32));
        let timed_out = || Error::Timeout { after: timeout, holder: file::signed(&self.path) };
        self.turn.take(deadline).map_err(|not_now| match not_now {
            NotNow::Nested => Error::Nested,
            NotNow::TimedOut => timed_out(),
        })?;
        let locked = self.lock(deadline, waiting).and_then(|locked| locked.ok_or_else(timed_out));
        match locked {
            Ok(file) => {
                file::sign(&file, &Holder::me());
                Ok(Held { lock: self, file, is_shared: false, thread_bound: PhantomData })
            }
            Err(error) => {
                self.turn.give_back();
                Err(error)
            }
        }
    }

    /// Whether the lock is held now, and by whom.
    ///
    /// ```
    /// # use litelease_writer::{LockState, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// let lock = WriteLock::new(folder.path().join("data.db.lock"));
    /// assert_eq!(lock.state()?, LockState::Free);
    /// # Ok::<(), litelease_writer::Error>(())
    /// ```
    pub fn state(&self) -> Result<LockState, Error> {
        if !self.path.try_exists().map_err(|error| self.failed(error))? {
            return Ok(LockState::Free);
        }
        let file = file::open(&self.path)?;
        let is_held = match file::is_locked(&file) {
            Some(is_held) => is_held,
            // Where the system does not tell, only trying does; that is in the way of others for a moment.
            None => match file.try_lock_shared() {
                Ok(()) => false,
                Err(TryLockError::WouldBlock) => true,
                Err(TryLockError::Error(error)) => return Err(self.failed(error)),
            },
        };
        Ok(if is_held { LockState::Held(file::signed(&self.path)) } else { LockState::Free })
    }

    /// The locked file, or `None` if the deadline came first.
    fn lock(&self, deadline: Instant, waiting: Waiting) -> Result<Option<File>, Error> {
        for _ in 0..MOST_REPLACEMENTS {
            let file = file::open(&self.path)?;
            let locked = match waiting {
                Waiting::Fair => self.lock_fairly(file, deadline),
                Waiting::Polled => poll(file, deadline),
            };
            match locked.map_err(|error| self.failed(error))? {
                Some(file) if file::is_still_at(&file, &self.path) => return Ok(Some(file)),
                // Somebody removed it meanwhile: what we hold is a lock on nothing.
                Some(_) => {}
                None => return Ok(None),
            }
        }
        Err(Error::Unstable { path: self.path.clone() })
    }

    fn lock_fairly(&self, file: File, deadline: Instant) -> io::Result<Option<File>> {
        let place = self.place_for(&file)?;
        // Where a thread of ours is in the queue already, its place is nearer than a new one.
        if place.id().is_none() && try_lock(&file)? {
            return Ok(Some(file));
        }
        place.wait(file, deadline)
    }

    /// The place of this handle; a new one if the old one waits for a file that is no longer there.
    fn place_for(&self, file: &File) -> io::Result<Arc<Place>> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let id = file::id(file)?;
        if place.id().is_some_and(|waits_for| waits_for != id) {
            *place = Arc::default();
        }
        Ok(Arc::clone(&place))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), error }
    }
}

impl Held<'_> {
    /// Lets the children that are started from now on share the lock, as flock(1) does: it is freed when this
    /// process and all of them have let go of it.
    #[cfg(unix)]
    pub fn share_with_children(&mut self) -> Result<(), Error> {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETFD, 0) } {
            0 => {
                self.is_shared = true;
                Ok(())
            }
            _ => Err(self.lock.failed(io::Error::last_os_error())),
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.lock.pid != std::process::id() {
            return; // a forked child's copy: the lock is its parent's
        }
        // Closing the file would do, unless a process was forked off meanwhile that does not know of it.
        if !self.is_shared {
            let _ = self.file.unlock();
        }
        self.lock.turn.give_back();
    }
}

/// The classic schedule.
fn poll(file: File, deadline: Instant) -> io::Result<Option<File>> {
    let mut pause = Duration::from_millis(5);
    loop {
        if try_lock(&file)? {
            return Ok(Some(file));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        thread::sleep(pause.min(left));
        pause = (2 * pause).min(Duration::from_millis(50));
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}
