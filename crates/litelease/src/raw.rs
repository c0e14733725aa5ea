//! The verbs on a connection that another library has opened through the same SQLite.

use std::ops::Deref;

use rusqlite::ffi;

use crate::Leases;
use crate::kept::{Kind, Loan};
use crate::linked::raw_view;

/// The verbs on a raw connection, `*mut sqlite3`, of a library other than `rusqlite`: `sqlx`, or C code.
///
/// Like a [`LiteleaseRef`](crate::LiteleaseRef), it joins an open transaction and never ends it. Its statements stay
/// with the connection, and are finalised when that is closed, before SQLite looks for statements that are left. It
/// cannot be sent to another thread, so it cannot be held across an `.await` of a task that may move. What it takes
/// for `sqlx` and others is in docs/rust-integrations.md.
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
    loan: Loan<'c>,
}

impl<'c> RawLitelease<'c> {
    /// Returns the verbs on a raw connection. Where a transaction is open, they join it; where none is, each is one of
    /// its own.
    ///
    /// `owner` is whatever keeps the connection open and this thread's own, such as the guard that `sqlx` hands out. It
    /// is borrowed so that the compiler keeps it alive; nothing is done with it.
    ///
    /// # Safety
    /// - `db` is an open connection of the SQLite that `rusqlite` links into this program. Cargo allows one such
    ///   library per program, so this is true of every Rust crate; it is not true of a C library that brings its own.
    /// - It stays open as long as the result is used or not yet dropped. Later it is closed with `sqlite3_close` or
    ///   `sqlite3_close_v2`, by whichever thread has it then.
    /// - No other thread uses it meanwhile. Moving it to another thread afterwards is fine.
    /// - Nobody finalises statements that are not theirs, as some C programs do in a loop over `sqlite3_next_stmt`.
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
        RawLitelease { loan: unsafe { Loan::new(raw_view(db), Kind::Plain) } }
    }

    /// Returns the verbs inside a transaction of the caller's: each is
    /// [`Error::NotInTransaction`](crate::Error::NotInTransaction), and writes nothing, where none is open.
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
        RawLitelease { loan: unsafe { Loan::new(raw_view(db), Kind::Joining) } }
    }
}

impl Deref for RawLitelease<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        self.loan.leases()
    }
}

impl std::fmt::Debug for RawLitelease<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawLitelease").finish_non_exhaustive()
    }
}
