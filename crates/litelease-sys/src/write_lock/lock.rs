//! The lock itself.

use std::fs::{File, TryLockError};
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::{SideFile, resolve, system};

use crate::write_lock::file::Present;
use crate::write_lock::lock_waiter::{LockWaiter, QueuedWait, Waited};
use crate::write_lock::turn::{NotNow, Turn};
use crate::write_lock::{Error, Holder, OwnedLock, SlicedLock, file, queue};

/// The way to wait for the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Waiting {
    /// In a queue. A process that has had its turn goes to the end. A turn is one write, or a
    /// millisecond of short ones.
    #[default]
    Fair,
    /// By trying again and again. Needs no thread, but can starve: the process that has just
    /// unlocked tries first.
    Polled {
        /// The first pause. Each later one is twice as long as the one before; none is shorter than
        /// a millisecond.
        first: Duration,
        /// The longest pause.
        longest: Duration,
    },
}

impl Waiting {
    /// Polls after 5 ms at first and 50 ms at last.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_sys::write_lock::Waiting;
    /// let Waiting::Polled { first, longest } = Waiting::POLLED else { unreachable!() };
    /// assert_eq!((first, longest), (Duration::from_millis(5), Duration::from_millis(50)));
    /// ```
    pub const POLLED: Self =
        Waiting::Polled { first: Duration::from_millis(5), longest: Duration::from_millis(50) };
}

/// The state of a lock.
///
/// ```
/// # use litelease_sys::write_lock::LockState;
/// assert_ne!(LockState::Free, LockState::Held(None));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// The lock is free.
    Free,
    /// The lock is held, by this holder if that is known.
    Held(Option<Holder>),
    /// The lock is held by this process, which has not signed the lock file, such as flock(1).
    Unsigned(u32),
}

/// A lock across processes and threads, on a file of its own.
///
/// The file is created if it is missing, never truncated before it is locked, and never deleted.
/// The first waiter creates a second file, with `.queue` at its end. Handles in one process
/// exclude each other like processes do. Threads that share a handle take turns.
///
/// ```
/// use std::time::Duration;
/// use litelease_sys::write_lock::{LockState, Waiting, WriteLock};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("data.db.lock");
/// let lock = WriteLock::new(path);
/// let held = lock.acquire(Duration::from_millis(500), Waiting::Fair)?;
/// let state = lock.state()?;
/// assert!(matches!(state, LockState::Held(Some(holder)) if holder.pid == std::process::id()));
/// drop(held);
/// assert_eq!(lock.state()?, LockState::Free);
/// # Ok::<(), litelease_sys::write_lock::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteLock {
    side: SideFile,
    turn: Turn,
    waiter: Arc<LockWaiter>,
    /// When this handle last got the lock at the head of the queue, or without one.
    let_in: Mutex<Option<Instant>>,
    pid: u32,
}

/// The lock, held until this is dropped. It belongs to the thread that took it.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct Locked<'l> {
    lock: &'l WriteLock,
    file: File,
    is_shared: bool,
    thread_bound: PhantomData<*const ()>,
}

/// An attempt to take the lock, from its begin to its deadline.
#[derive(Debug)]
pub(crate) struct Attempt {
    timeout: Duration,
    deadline: Instant,
    waiting: Waiting,
    /// How often the lock file was replaced meanwhile.
    replacements: u32,
    queued: Option<QueuedWait>,
    /// When an attempt that polls tries next, and how long it pauses after that.
    next_try: (Instant, Duration),
}

impl Attempt {
    pub(crate) fn new(timeout: Duration, waiting: Waiting) -> Self {
        let start = Instant::now();
        // A timeout that overflows the clock is as good as none.
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_secs(1 << 32));
        let pause = match waiting {
            Waiting::Polled { first, .. } => first.max(SHORTEST_PAUSE),
            Waiting::Fair => Duration::ZERO,
        };
        let next_try = (start, pause);
        Attempt { timeout, deadline, waiting, replacements: 0, queued: None, next_try }
    }
}

/// How long a handle may lock again without queueing. Waking the next waiter takes longer than a
/// short write, so queueing for every write would be slow.
const SLICE: Duration = Duration::from_millis(1);

/// The shortest pause of an attempt that polls.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);

/// How often the lock file may be replaced while it is being locked before that is an error.
const MOST_REPLACEMENTS: u32 = 100;

impl WriteLock {
    /// Names the lock on this file. Opens nothing yet. A relative path is made absolute now, so
    /// that a change of the working directory does not lead to another lock.
    ///
    /// ```
    /// let lock = litelease_sys::write_lock::WriteLock::new("data.db.lock");
    /// assert!(lock.path().is_absolute());
    /// ```
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        WriteLock::on(SideFile::at(std::path::absolute(&path).unwrap_or(path)))
    }

    /// Lets only users who may write a database open the lock file.
    #[must_use]
    pub fn like(self, database: impl Into<PathBuf>) -> Self {
        WriteLock::on(self.side.like(database))
    }

    /// Names the lock of a database: its canonical path with `.lock` at its end. Users that may
    /// write the database may take the lock.
    pub fn of_database(path: &Path) -> Result<Self, Error> {
        WriteLock::beside(path, ".lock")
    }

    /// Names another lock beside a database: its canonical path with `ending` at its end.
    pub fn beside(database: &Path, ending: &str) -> Result<Self, Error> {
        let resolved = resolve(database);
        let resolved = resolved.map_err(|error| Error::Io { path: database.into(), error })?;
        Ok(WriteLock::on(SideFile::new(&resolved, ending)))
    }

    fn on(side: SideFile) -> Self {
        let waiter = Arc::new(LockWaiter::new(side.clone()));
        let (turn, let_in) = (Turn::default(), Mutex::default());
        WriteLock { side, turn, waiter, let_in, pid: std::process::id() }
    }

    /// Returns the path of the lock file: an absolute one.
    pub fn path(&self) -> &Path {
        self.side.path()
    }

    /// Waits for the lock, for at most `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_sys::write_lock::{Error, Waiting, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let lock = WriteLock::new(folder.path().join("data.db.lock"));
    /// let held = lock.acquire(Duration::ZERO, Waiting::Fair)?;
    /// let second = lock.acquire(Duration::ZERO, Waiting::Fair);
    /// assert!(matches!(second, Err(Error::Nested)));
    /// # Ok::<(), litelease_sys::write_lock::Error>(())
    /// ```
    pub fn acquire(&self, timeout: Duration, waiting: Waiting) -> Result<Locked<'_>, Error> {
        if self.is_inherited() {
            return Err(Error::Forked);
        }
        let mut attempt = Attempt::new(timeout, waiting);
        self.turn.take(attempt.deadline).map_err(|not_now| match not_now {
            NotNow::Nested => Error::Nested,
            NotNow::TimedOut => self.timed_out(timeout),
        })?;
        // Without a time to stop at, an attempt ends with the lock or at its deadline.
        let locked = self.go_on(&mut attempt, None);
        match locked.and_then(|locked| locked.ok_or_else(|| self.timed_out(timeout))) {
            Ok(file) => {
                Ok(Locked { lock: self, file, is_shared: false, thread_bound: PhantomData })
            }
            Err(error) => {
                self.turn.give_back();
                Err(error)
            }
        }
    }

    /// Makes the lock one that is waited for in slices.
    pub fn into_sliced(self, waiting: Waiting) -> SlicedLock {
        SlicedLock::new(self, waiting)
    }

    /// Takes the lock without waiting. It is held until the result is dropped, in any thread.
    ///
    /// ```
    /// # use litelease_sys::write_lock::{Error, WriteLock};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("data.db.serve.lock");
    /// let held = WriteLock::new(&path).into_owned()?;
    /// let second = WriteLock::new(&path).into_owned();
    /// assert!(matches!(second, Err(Error::Timeout { holder: Some(_), .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn into_owned(self) -> Result<OwnedLock, Error> {
        OwnedLock::take(self.side)
    }

    /// Returns whether the lock is held now, and by which process.
    pub fn state(&self) -> Result<LockState, Error> {
        let Some(file) = self.side.open_to_read()? else { return Ok(LockState::Free) };
        let is_held = match file::is_locked(&file) {
            Some(is_held) => is_held,
            // If the system cannot say, try the lock. That can make others wait for a moment.
            None => match file.try_lock_shared() {
                Ok(()) => false,
                Err(TryLockError::WouldBlock) => true,
                Err(TryLockError::Error(error)) => return Err(self.failed(error)),
            },
        };
        if !is_held {
            return Ok(LockState::Free);
        }
        Ok(match file::present_holder(&self.side) {
            Present::Signed(holder) => LockState::Held(Some(holder)),
            Present::Unsigned(pid) => LockState::Unsigned(pid),
            Present::Unknown => LockState::Held(None),
        })
    }

    /// Goes on with an attempt, until `until` if that comes first. Returns the locked file, or
    /// `None` if the lock has not come yet.
    pub(crate) fn go_on(
        &self,
        attempt: &mut Attempt,
        until: Option<Instant>,
    ) -> Result<Option<File>, Error> {
        let until = until.unwrap_or(attempt.deadline);
        while attempt.replacements < MOST_REPLACEMENTS {
            let waited = match &mut attempt.queued {
                Some(queued) => queued.go_on(until)?,
                None => match self.begin(attempt, until)? {
                    Some(waited) => waited,
                    None => continue,
                },
            };
            match waited {
                Waited::Locked(file) => {
                    let was_queued = attempt.queued.take().is_some();
                    if self.side.is_still(&file) {
                        if was_queued {
                            *self.let_in() = Some(Instant::now());
                        }
                        file::sign(&file, &Holder::me());
                        return Ok(Some(file));
                    }
                    // The file was removed meanwhile: a lock on it excludes no process.
                    attempt.replacements += 1;
                }
                Waited::TimedOut => {
                    attempt.queued = None;
                    return Err(self.timed_out(attempt.timeout));
                }
                Waited::NotYet => return Ok(None),
            }
        }
        Err(Error::Unstable { path: self.path().into() })
    }

    /// Tries the lock if this handle may. Otherwise takes a place in the queue and returns `None`.
    fn begin(&self, attempt: &mut Attempt, until: Instant) -> Result<Option<Waited>, Error> {
        let file = self.side.open()?;
        if attempt.waiting != Waiting::Fair || Instant::now() >= attempt.deadline {
            return self.poll(file, attempt, until).map(Some);
        }
        let slice = self.let_in().filter(|since| since.elapsed() < SLICE);
        let may_try = slice.is_some() || queue::is_empty(&self.side);
        if may_try && file::try_lock(&file, &self.side)? {
            *self.let_in() = slice.or_else(|| Some(Instant::now()));
            return Ok(Some(Waited::Locked(file)));
        }
        *self.let_in() = None;
        attempt.queued = Some(QueuedWait::new(&self.waiter, file, attempt.deadline)?);
        Ok(None)
    }

    fn let_in(&self) -> MutexGuard<'_, Option<Instant>> {
        self.let_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks whether the process was forked after the handle was created.
    pub(crate) fn is_inherited(&self) -> bool {
        self.pid != std::process::id()
    }

    fn timed_out(&self, after: Duration) -> Error {
        file::timed_out(&self.side, after)
    }

    /// Tries with growing pauses until `until`; once if the deadline has passed.
    fn poll(&self, file: File, attempt: &mut Attempt, until: Instant) -> Result<Waited, Error> {
        loop {
            let now = Instant::now();
            let (next_try, pause) = attempt.next_try;
            if now >= next_try.min(attempt.deadline) {
                if file::try_lock(&file, &self.side)? {
                    return Ok(Waited::Locked(file));
                }
                if now >= attempt.deadline {
                    return Ok(Waited::TimedOut);
                }
                let longest = match attempt.waiting {
                    Waiting::Polled { longest, .. } => longest.max(SHORTEST_PAUSE),
                    Waiting::Fair => pause,
                };
                let pause = pause.min(longest);
                // A pause that overflows the clock is longer than the attempt.
                let next_try = now.checked_add(pause).unwrap_or(attempt.deadline);
                attempt.next_try = (next_try, pause.saturating_mul(2).min(longest));
            }
            let next = attempt.next_try.0.min(attempt.deadline);
            if now >= until && until < next {
                return Ok(Waited::NotYet);
            }
            thread::sleep(next.min(until).saturating_duration_since(now));
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        file::failed(&self.side, error)
    }
}

impl Locked<'_> {
    /// Shares the lock with child processes that are started from now on, as flock(1) does. It is
    /// freed when this process and all of them have closed it.
    pub fn share_with_children(&mut self) -> Result<(), Error> {
        system::inherit(&self.file).map_err(|error| self.lock.failed(error))?;
        self.is_shared = true;
        Ok(())
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.lock.is_inherited() {
            return; // a forked child's copy: the lock belongs to the parent
        }
        // Closing the file is not enough if a child was forked meanwhile: it has the file open,
        // too.
        if !self.is_shared {
            let _ = self.file.unlock();
        }
        self.lock.turn.give_back();
    }
}
