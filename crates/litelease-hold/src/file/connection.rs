//! Connections that this crate keeps open for itself: they are closed before the process forks, and
//! opened again by their next use.

use std::any::Any;
use std::fs;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use litelease_store::{Connection, Error, Failure, OpenConnection, Store, code};

use litelease_sys::FileId;

use super::fork::close_before_forks;
use super::{DatabaseFile, FileLeases};
use crate::Notifier;

/// A connection of our own to an existing file, with its leases.
pub struct FileConnection {
    // Fields are dropped in this order: the statements must go before their connection.
    store: Store,
    notifier: Notifier,
    connection: OpenConnection,
}

/// A handle with a connection of its own.
pub trait FileHandle: Any + Send {
    /// Returns its connection.
    fn connection(&self) -> Connection;
}

/// A handle that can be closed and opened again.
pub trait OpenFile: FileHandle + Sized {
    /// The error of its verbs.
    type Error;

    /// Converts an error of the store.
    fn error(error: Error) -> Self::Error;

    /// Opens an existing file.
    fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<Self, Self::Error>;
}

impl FileConnection {
    /// Returns the leases of the file.
    pub fn leases(&self) -> FileLeases<'_> {
        FileLeases { store: &self.store, notifier: &self.notifier }
    }
}

impl OpenFile for FileConnection {
    type Error = Error;

    fn error(error: Error) -> Error {
        error
    }

    fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<Self, Error> {
        let connection = open(file, busy_timeout)?;
        let store = Store::new(connection.connection());
        read_once(&store)?;
        Ok(FileConnection { store, notifier: Notifier::default(), connection })
    }
}

impl FileHandle for FileConnection {
    fn connection(&self) -> Connection {
        self.connection.connection()
    }
}

/// Opens a connection to an existing file.
pub(crate) fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<OpenConnection, Error> {
    let open = OpenConnection::open(file.api, &file.path, file.vfs.as_deref())?;
    if !open.connection().has_mutex() {
        return Err(failure("this SQLite runs without mutexes, so no other thread may use it"));
    }
    open.connection().set_busy_timeout(busy_timeout);
    Ok(open)
}

/// Reads the file once, because SQLite opens the -wal at the first read. If the file were replaced
/// before that, SQLite would open the new file's log and write the old one's pages into it.
pub fn read_once(store: &Store) -> Result<(), Error> {
    store.token("").map(drop)
}

fn failure(message: &str) -> Error {
    Error::Sqlite(Failure { code: code::ERROR, message: message.into() })
}

/// A connection to an existing file, which several threads can use one after the other.
pub struct OwnConnection<H> {
    slot: &'static Slot,
    file: DatabaseFile,
    busy_timeout: Duration,
    file_id: Option<FileId>,
    handle: PhantomData<fn() -> H>,
}

/// Holds the connection while it is open.
type Slot = Mutex<Option<Box<dyn FileHandle>>>;

type LockedSlot = MutexGuard<'static, Option<Box<dyn FileHandle>>>;

impl<H: OpenFile> OwnConnection<H> {
    /// Opens an existing file.
    pub fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<Self, H::Error> {
        close_before_forks();
        let slot = lock(&SLOTS).take();
        let (file, handle) = (file.clone(), PhantomData);
        let mut own = OwnConnection { slot, file, busy_timeout, file_id: None, handle };
        // Opened under the lock, so that a fork finds it.
        let mut locked = lock(slot);
        *locked = Some(Box::new(H::open(&own.file, busy_timeout)?));
        drop(locked);
        own.file_id = file_id(&own.file);
        Ok(own)
    }

    /// Runs `work` on the connection, which no other thread uses meanwhile. Opens it again if a
    /// fork has closed it.
    pub fn with<T, E: From<H::Error>>(
        &self,
        work: impl FnOnce(&H) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut slot = lock(self.slot);
        let open = match &mut *slot {
            Some(open) => open,
            closed => closed.insert(self.open_again()?),
        };
        work(as_handle(&**open)?)
    }

    /// Runs the caller's work on the connection. If the work forks, the connection stays open.
    pub fn lend<T, E: From<H::Error>>(
        &self,
        work: impl FnOnce(&H) -> Result<T, E>,
    ) -> Result<T, E> {
        let open = lock(self.slot).take();
        let open = open.map_or_else(|| self.open_again(), Ok)?;
        let answer = work(as_handle(&*open)?);
        *lock(self.slot) = Some(open);
        answer
    }

    /// Checks whether the file is no longer at the path where it was opened.
    pub fn is_moved(&self) -> bool {
        match &*lock(self.slot) {
            Some(open) => open.connection().has_moved(),
            None => file_id(&self.file) != self.file_id,
        }
    }

    fn open_again(&self) -> Result<Box<dyn FileHandle>, H::Error> {
        let open = H::open(&self.file, self.busy_timeout)?;
        if open.connection().has_moved() || file_id(&self.file) != self.file_id {
            return Err(H::error(failure("the database file was moved, deleted or replaced")));
        }
        Ok(Box::new(open))
    }
}

/// Casts a handle to its own type. Its slot has only handles of this type.
fn as_handle<H: OpenFile>(open: &dyn FileHandle) -> Result<&H, H::Error> {
    let open: &dyn Any = open;
    open.downcast_ref().ok_or_else(|| H::error(failure("the connection has another type")))
}

impl<H> Drop for OwnConnection<H> {
    fn drop(&mut self) {
        drop(lock(self.slot).take());
        lock(&SLOTS).free.push(self.slot);
    }
}

/// Identifies the file at a path. Does not open it: closing it would drop SQLite's locks.
fn file_id(file: &str) -> Option<FileId> {
    Some(FileId::new(&fs::metadata(file).ok()?))
}

/// The slots of this process. They are never freed, but reused, so that a fork can keep them
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

/// Our connections while a fork is under way: closed, and locked so that none is opened. Dropping
/// it unlocks them.
pub(crate) struct Closed {
    _slots: Vec<LockedSlot>,
    _list: MutexGuard<'static, Slots>,
}

/// Closes our connections and keeps them closed. Also returns false if one of them was in use until
/// `deadline`, and so is still open.
pub(crate) fn close_all(deadline: Instant) -> (Closed, bool) {
    let (list, mut are_closed) = (lock(&SLOTS), true);
    let mut slots = Vec::with_capacity(list.all.len());
    for slot in &list.all {
        let Some(mut slot) = lock_until(slot, deadline) else {
            are_closed = false;
            continue;
        };
        if let Some(open) = slot.take() {
            // A checkpoint takes time, and it is not needed: the next use opens the file again.
            open.connection().keep_log_at_close();
        }
        slots.push(slot);
    }
    (Closed { _slots: slots, _list: list }, are_closed)
}

fn lock_until(slot: &'static Slot, deadline: Instant) -> Option<LockedSlot> {
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
