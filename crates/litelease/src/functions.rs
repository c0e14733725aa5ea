//! The SQL functions (`litelease_claim` and the rest) on a connection of the program's own.

use rusqlite::Connection;

use crate::Result;
use crate::error::lift;
use crate::linked::{Linked, view};

/// Puts the SQL functions and the table `litelease_leases` on a connection, as loading the extension would,
/// with no library to load. Doing it again changes nothing.
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
    // SAFETY: SQLite drops the functions when the connection closes, and the statements that they keep before
    // that; and a connection of `rusqlite` is used by one thread at a time.
    lift(unsafe { litelease_sql::register::<Linked>(view(connection)) })
}
