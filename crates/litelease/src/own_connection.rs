//! Connections that this crate keeps open for itself: closed before the process forks, and opened
//! again by their next use.
//!
//! SQLite keeps a list of the files that a process has open, with the locks that it has on them. A
//! fork copies the list, but not the locks. In the child, a new connection to a file of the list
//! takes no lock of its own. So the parent's last close finds no other process, and deletes the
//! log while the child goes on writing to it: commits that the child was told of are lost.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use litelease_hold::at_fork;
use rusqlite::config::DbConfig;

use crate::error::failure;
use crate::file::DatabaseFile;
use crate::{Error, Litelease, Result};

/// How long a fork waits for a connection that is in use. A disk that does not answer must not keep
/// the program from forking.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection to a file that is there. It can be used by several threads, one after the other.
pub(crate) struct OwnConnection {
    slot: &'static Slot,
    file: DatabaseFile,
    busy_timeout: Duration,
    inode: Option<Inode>,
}

/// Holds the connection while it is open.
type Slot = Mutex<Option<Litelease>>;

/// The device and the number of a file.
type Inode = (u64, u64);

impl OwnConnection {
    /// Opens a file that is there.
    pub(crate) fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<Self> {
        static REGISTERED: Once = Once::new();
        REGISTERED.call_once(|| at_fork(before_fork, after_fork));
        let slot = lock(&SLOTS).take();
        let mut own = OwnConnection { slot, file: file.clone(), busy_timeout, inode: None };
        *lock(slot) = Some(open_existing(file, busy_timeout)?);
        own.inode = inode(file);
        Ok(own)
    }

    /// Runs `work` on the connection, which no other thread uses meanwhile. Opens it if a fork has
    /// closed it.
    pub(crate) fn with<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&Litelease) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let mut slot = lock(self.slot);
        let db = match &mut *slot {
            Some(db) => db,
            closed => closed.insert(self.connect_again()?),
        };
        work(db)
    }

    /// Runs work of the caller's on the connection. If the work forks, the connection stays open.
    pub(crate) fn lend<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&Litelease) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        let open = lock(self.slot).take();
        let db = open.map_or_else(|| self.connect_again(), Ok)?;
        let answer = work(&db);
        *lock(self.slot) = Some(db);
        answer
    }

    /// Checks whether the file is no longer at the path where it was opened.
    pub(crate) fn is_moved(&self) -> bool {
        match &*lock(self.slot) {
            Some(db) => db.has_moved(),
            None => inode(&self.file) != self.inode,
        }
    }

    fn connect_again(&self) -> Result<Litelease> {
        let db = open_existing(&self.file, self.busy_timeout)?;
        if db.has_moved() || inode(&self.file) != self.inode {
            return Err(failure("the database file was moved, deleted or replaced"));
        }
        Ok(db)
    }
}

impl Drop for OwnConnection {
    fn drop(&mut self) {
        drop(lock(self.slot).take());
        lock(&SLOTS).free.push(self.slot);
    }
}

/// Opens a file that is there.
pub(crate) fn open_existing(file: &DatabaseFile, busy_timeout: Duration) -> Result<Litelease> {
    let connection = file.connect()?;
    connection.busy_timeout(busy_timeout)?;
    let db = Litelease::from_connection(connection);
    // SQLite opens the -wal at the first look. If the file were replaced before that, it would
    // open the new file's, and write into it what belongs to the old one.
    db.token("")?;
    Ok(db)
}

/// Returns which file is at a path. Does not open it: closing it would drop SQLite's locks.
fn inode(file: &str) -> Option<Inode> {
    let found = fs::metadata(file).ok()?;
    Some((found.dev(), found.ino()))
}

/// The slots of this process. They are never freed, but used again, so that a fork can keep them
/// locked.
struct Slots {
    all: Vec<&'static Slot>,
    free: Vec<&'static Slot>,
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots { all: Vec::new(), free: Vec::new() });

impl Slots {
    fn take(&mut self) -> &'static Slot {
        self.free.pop().unwrap_or_else(|| {
            let slot: &'static Slot = Box::leak(Box::default());
            self.all.push(slot);
            slot
        })
    }
}

/// What the thread that forks keeps locked meanwhile, so that no connection is opened.
struct Forking {
    _closed: Vec<MutexGuard<'static, Option<Litelease>>>,
    _slots: MutexGuard<'static, Slots>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let slots = lock(&SLOTS);
    let deadline = Instant::now() + PATIENCE;
    let mut closed = Vec::with_capacity(slots.all.len());
    for slot in &slots.all {
        let Some(mut slot) = lock_until(slot, deadline) else { continue };
        if let Some(db) = slot.take() {
            // A checkpoint takes time, and the next use opens the file again.
            let _ = db.conn().set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        }
        closed.push(slot);
    }
    let forking = Forking { _closed: closed, _slots: slots };
    // A thread that is about to end has no such storage any more. Then nothing stays locked.
    let _ = FORKING.try_with(|own| own.replace(Some(forking)));
}

extern "C" fn after_fork() {
    let _ = FORKING.try_with(|own| own.take());
}

fn lock_until(
    slot: &'static Slot,
    deadline: Instant,
) -> Option<MutexGuard<'static, Option<Litelease>>> {
    loop {
        match slot.try_lock() {
            Ok(locked) => return Some(locked),
            Err(TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(TryLockError::WouldBlock) => return None,
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
