//! The SQL functions (`litelease_claim` and the rest) on a connection of the program's own.

use std::ffi::{c_char, c_int, c_void};
use std::panic::catch_unwind;

use litelease_store::c_string;
use rusqlite::{Connection, ffi};

use crate::Result;
use crate::error::{failure, into_rusqlite};
use crate::linked_sqlite::declared::sqlite3_auto_extension;
use crate::linked_sqlite::{LinkedSqlite, raw_view, view};

/// Registers the SQL functions and the table `litelease_leases` on a connection, like the loadable
/// extension. Registering again changes nothing.
///
/// ```
/// use litelease::rusqlite::Connection;
///
/// # fn main() -> litelease::Result<()> {
/// let conn = Connection::open_in_memory()?;
/// litelease::functions::register(&conn)?;
/// conn.query_row("SELECT litelease_bootstrap()", [], |_| Ok(()))?;
/// let token: Option<i64> =
///     conn.query_row("SELECT litelease_claim('scheduler', 'a', 30000)", [], |row| row.get(0))?;
/// assert_eq!(token, Some(1));
/// # Ok(())
/// # }
/// ```
pub fn register(connection: &Connection) -> Result<()> {
    // SAFETY: SQLite drops the functions when the connection closes, and the statements that they
    // keep before that; and a connection of `rusqlite` is used by one thread at a time.
    into_rusqlite(unsafe { litelease_hold::file::sql::register::<LinkedSqlite>(view(connection)) })
}

/// Registers the SQL functions on every connection that this program opens from now on, through any
/// crate: for `diesel` and others that do not expose their connections. Registering again changes
/// nothing.
///
/// It applies to the SQLite that `rusqlite` links, which all Rust crates in the program share.
///
/// ```
/// use litelease::rusqlite::Connection;
///
/// # fn main() -> litelease::Result<()> {
/// litelease::functions::register_everywhere()?;
/// let conn = Connection::open_in_memory()?; // or one of another crate
/// conn.query_row("SELECT litelease_bootstrap()", [], |_| Ok(()))?;
/// # Ok(())
/// # }
/// ```
pub fn register_everywhere() -> Result<()> {
    // SAFETY: `init` is what SQLite wants here, and lives for ever.
    match unsafe { sqlite3_auto_extension(Some(init)) } {
        ffi::SQLITE_OK => Ok(()),
        _ => Err(failure("SQLite has no memory left for the list of functions to register")),
    }
}

/// Registers the functions on a new connection.
///
/// # Safety
/// Only SQLite may call it, with a connection that is being opened.
unsafe extern "C" fn init(
    db: *mut ffi::sqlite3,
    message: *mut *mut c_char,
    _routines: *const c_void,
) -> c_int {
    // A panic must not unwind into SQLite.
    let registered = catch_unwind(|| {
        // SAFETY: the connection is open and one of the linked library's. SQLite lets one thread at
        // a time call functions, and drops them when the connection closes, and the statements that
        // they keep before that.
        into_rusqlite(unsafe { litelease_hold::file::sql::register::<LinkedSqlite>(raw_view(db)) })
    });
    let error = match registered {
        Ok(Ok(())) => return ffi::SQLITE_OK,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "internal error".to_owned(),
    };
    // SAFETY: SQLite frees the message, and wants it in `message` where it wants one.
    unsafe {
        if !message.is_null() {
            *message = c_string(&error, |size| ffi::sqlite3_malloc(size));
        }
    }
    ffi::SQLITE_ERROR
}
