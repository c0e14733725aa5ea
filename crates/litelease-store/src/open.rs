//! Connections that we open ourselves, through the table of functions, in the SQLite library of the
//! program; and the facts that a connection has about its file.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::time::Duration;

use crate::sqlite::{Api, Connection, MAIN, Value, code, sqlite3};
use crate::{Failure, Store};

/// A connection that was opened here, and is closed when this is dropped.
pub struct OpenConnection(Connection);

const SQLITE_OPEN_READWRITE: c_int = 0x2;
const SQLITE_OPEN_FULLMUTEX: c_int = 0x1_0000;
const SQLITE_OPEN_PRIVATECACHE: c_int = 0x4_0000;
const SQLITE_FCNTL_HAS_MOVED: c_int = 20;
const SQLITE_FCNTL_VFS_POINTER: c_int = 27;
const SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE: c_int = 1006;

/// The beginning of SQLite's `sqlite3_vfs`.
#[repr(C)]
struct Vfs {
    version: c_int,
    file_size: c_int,
    longest_path: c_int,
    next: *mut Vfs,
    name: *const c_char,
}

impl OpenConnection {
    /// Opens a file that is there, with this VFS or the default one. Never creates it: if it has
    /// just been deleted, no other process would see the new one's rows.
    pub fn open(api: &'static Api, path: &str, vfs: Option<&str>) -> Result<Self, Failure> {
        let as_c = |text: &str| {
            let message = "a path with a NUL byte";
            CString::new(text)
                .map_err(|_| Failure { code: code::ERROR, message: message.to_owned() })
        };
        let (path, vfs) = (as_c(path)?, vfs.map(as_c).transpose()?);
        let vfs = vfs.as_ref().map_or(ptr::null(), |vfs| vfs.as_ptr());
        let flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_FULLMUTEX | SQLITE_OPEN_PRIVATECACHE;
        let mut db: *mut sqlite3 = ptr::null_mut();
        // SAFETY: both texts end with a NUL, and SQLite writes one pointer.
        let rc = unsafe { (api.open_v2)(path.as_ptr(), &raw mut db, flags, vfs) };
        if db.is_null() {
            return Err(Failure { code: rc, message: "out of memory".into() });
        }
        // SAFETY: the connection stays open until this is dropped; one that could not be opened
        // must be closed, too.
        let open = OpenConnection(unsafe { Connection::from_raw(db, api) });
        match rc {
            code::OK => Ok(open),
            rc => Err(open.0.failure(rc)),
        }
    }

    /// Returns the connection, to use it until this is dropped.
    pub fn connection(&self) -> Connection {
        self.0
    }

    /// Returns the pointer, for a caller that closes it itself.
    pub fn into_raw(self) -> *mut sqlite3 {
        let (db, _) = self.0.as_raw();
        std::mem::forget(self);
        db
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let (db, api) = self.0.as_raw();
        // SAFETY: it is open, and no other code closes it.
        unsafe { (api.close_v2)(db) };
    }
}

impl Connection {
    /// Returns the full path of the main database; none for one in memory or a temporary one.
    pub fn file(self) -> Option<String> {
        Some(self.filename()).filter(|path| !path.is_empty())
    }

    /// Sets how long a statement waits for another connection's lock.
    pub fn set_busy_timeout(self, time: Duration) {
        let (db, api) = self.as_raw();
        let ms = c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX);
        // SAFETY: the connection is open; so it is below.
        unsafe { (api.busy_timeout)(db, ms) };
    }

    /// Returns how long a statement waits for another connection's lock.
    pub fn busy_timeout(self) -> Duration {
        let ms = self.pragma("PRAGMA busy_timeout", |value| value.integer());
        Duration::from_millis(ms.and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0))
    }

    /// Leaves the log as it is when the connection closes, and does not copy it into the file.
    pub fn keep_log_at_close(self) {
        let (db, api) = self.as_raw();
        let nothing: *mut c_int = ptr::null_mut();
        // SAFETY: this setting takes a flag and a place for the answer, which may be null.
        unsafe { (api.db_config)(db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1 as c_int, nothing) };
    }

    /// Checks whether the file was moved, deleted or replaced since it was opened. SQLite still
    /// uses the old file, whose grants no other process sees.
    pub fn has_moved(self) -> bool {
        let mut moved: c_int = 0;
        let told = self.file_control(SQLITE_FCNTL_HAS_MOVED, &raw mut moved);
        told && moved != 0
    }

    /// Returns the name of the VFS, if SQLite knows it.
    pub fn vfs(self) -> Option<String> {
        let mut vfs: *mut Vfs = ptr::null_mut();
        if !self.file_control(SQLITE_FCNTL_VFS_POINTER, &raw mut vfs) || vfs.is_null() {
            return None;
        }
        // SAFETY: the VFS lives as long as the connection, and its name ends with a NUL.
        let name = unsafe { CStr::from_ptr((*vfs).name) };
        Some(name.to_string_lossy().into_owned())
    }

    /// Checks whether the library protects a connection against threads. One that runs without
    /// mutexes must not be used by a second thread at all.
    pub fn has_mutex(self) -> bool {
        let (db, api) = self.as_raw();
        // SAFETY: the connection is open.
        !unsafe { (api.db_mutex)(db) }.is_null()
    }

    /// Checks whether the main database was opened for reading only.
    pub fn is_read_only(self) -> bool {
        let (db, api) = self.as_raw();
        // SAFETY: the connection is open, and the name ends with a NUL.
        unsafe { (api.db_readonly)(db, MAIN.as_ptr()) == 1 }
    }

    /// Checks whether the main database was opened with a parameter of its URI set to true.
    pub fn has_uri_flag(self, parameter: &CStr) -> bool {
        let (path, api) = (self.path(), self.as_raw().1);
        // SAFETY: SQLite takes the path as it has handed it out.
        !path.is_null() && unsafe { (api.uri_boolean)(path, parameter.as_ptr(), 0) != 0 }
    }

    /// Checks whether the connection keeps its locks for itself (`locking_mode = EXCLUSIVE`).
    pub fn locks_exclusively(self) -> bool {
        self.pragma("PRAGMA main.locking_mode", |mode| mode.text().map(|mode| mode == "exclusive"))
            .unwrap_or(false)
    }

    fn pragma<T>(self, sql: &str, read: impl FnOnce(Value<'_>) -> Option<T>) -> Option<T> {
        let statement = self.prepare(sql).ok()?;
        statement.advance().ok()?;
        statement.column(0).and_then(read)
    }

    fn file_control<T>(self, operation: c_int, answer: *mut T) -> bool {
        let (db, api) = self.as_raw();
        // SAFETY: the connection is open, and the caller knows what SQLite writes.
        unsafe { (api.file_control)(db, MAIN.as_ptr(), operation, answer.cast()) == code::OK }
    }
}

impl Store {
    /// Returns the connection that the store uses.
    pub fn connection(&self) -> Connection {
        self.connection
    }
}
