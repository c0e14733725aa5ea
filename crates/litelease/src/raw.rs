//! The verbs on a connection that another library has opened through the same SQLite.

use std::ops::Deref;

use rusqlite::ffi;

use crate::Leases;
use crate::connection_cache::{CachedHandle, Kind};
use crate::linked_sqlite::raw_view;

/// The verbs on a raw connection, `*mut sqlite3`, of a library other than `rusqlite`: `sqlx`, or C
/// code.
///
/// Like a [`LiteleaseRef`](crate::LiteleaseRef), it joins an open transaction and never ends it.
/// Its statements stay with the connection and are finalised just before it closes. It cannot be
/// sent to another thread, so it cannot be held across an `.await` of a task that may move. See
/// docs/rust-integrations.md for `sqlx` and others.
///
/// ```
/// use std::time::Duration;
/// use litelease::{RawLitelease, rusqlite::Connection};
///
/// # fn main() -> litelease::Result<()> {
/// let mut conn = Connection::open_in_memory()?; // stands for one of another library
/// // SAFETY: the handle is open as long as `conn` is, which is borrowed and stays in this thread.
/// let leases = unsafe { RawLitelease::new(conn.handle(), &mut conn) };
/// leases.bootstrap()?;
/// assert!(leases.claim("scheduler", "a", Duration::from_secs(30))?.acquired().is_some());
/// # Ok(())
/// # }
/// ```
pub struct RawLitelease<'c> {
    cached: CachedHandle<'c>,
}

impl<'c> RawLitelease<'c> {
    /// Returns the verbs on a raw connection. They join an open transaction; if none is open, each
    /// runs in one of its own.
    ///
    /// `owner` is the value that keeps the connection open and in this thread, such as the guard
    /// that `sqlx` hands out. It is borrowed only so that the compiler keeps it alive.
    ///
    /// # Safety
    /// - `db` is an open connection of the SQLite that `rusqlite` links into this program. Cargo
    ///   allows one such library per program, so this holds for every Rust crate, but not for a C
    ///   library that brings its own.
    /// - It stays open until the result is dropped. Later it is closed with `sqlite3_close` or
    ///   `sqlite3_close_v2`, by whichever thread has it then.
    /// - No other thread uses it meanwhile. It may move to another thread afterwards.
    /// - The program finalises only its own statements. Some C programs finalise all of them, in a
    ///   loop over `sqlite3_next_stmt`.
    ///
    /// ```
    /// # use litelease::{RawLitelease, rusqlite::Connection};
    /// # let mut conn = Connection::open_in_memory()?;
    /// // SAFETY: the handle is open as long as `conn` is, which is borrowed and stays in this thread.
    /// unsafe { RawLitelease::new(conn.handle(), &mut conn) }.bootstrap()?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub unsafe fn new<T: ?Sized>(db: *mut ffi::sqlite3, _owner: &'c mut T) -> Self {
        // SAFETY: this function asks for the same.
        RawLitelease { cached: unsafe { CachedHandle::new(raw_view(db), Kind::Plain) } }
    }

    /// Returns the verbs inside a transaction of the caller's. If none is open, each fails with
    /// [`Error::NotInTransaction`](crate::Error::NotInTransaction) and writes nothing.
    ///
    /// # Safety
    /// As for [`new`](RawLitelease::new).
    ///
    /// ```
    /// # use litelease::{Error, RawLitelease, rusqlite::Connection};
    /// # let mut conn = Connection::open_in_memory()?;
    /// // SAFETY: the handle is open as long as `conn` is, which is borrowed and stays in this thread.
    /// let joined = unsafe { RawLitelease::joining(conn.handle(), &mut conn) };
    /// assert!(matches!(joined.bootstrap(), Err(Error::NotInTransaction)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub unsafe fn joining<T: ?Sized>(db: *mut ffi::sqlite3, _owner: &'c mut T) -> Self {
        // SAFETY: this function asks for the same.
        RawLitelease { cached: unsafe { CachedHandle::new(raw_view(db), Kind::Joining) } }
    }
}

impl Deref for RawLitelease<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        self.cached.leases()
    }
}

impl std::fmt::Debug for RawLitelease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawLitelease").finish_non_exhaustive()
    }
}
