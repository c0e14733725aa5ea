//! The crate's error: that of the store, with SQLite's errors as `rusqlite` has them.

use rusqlite::ffi;

/// An error of a verb. SQLite's own errors come through as `rusqlite::Error`, with their extended
/// code.
///
/// Busy and rejected are answers inside `Ok`, never errors.
///
/// ```
/// use std::time::Duration;
/// use litelease::{Error, Litelease};
///
/// # fn main() -> litelease::Result<()> {
/// let db = Litelease::from_connection(litelease::rusqlite::Connection::open_in_memory()?);
/// let early = db.claim("scheduler", "a", Duration::from_secs(30));
/// assert!(matches!(early, Err(Error::NotBootstrapped)));
///
/// db.bootstrap()?;
/// let no_time = db.claim("scheduler", "a", Duration::ZERO);
/// assert!(matches!(no_time, Err(Error::InvalidTtl { ttl_ms: 0, .. })));
/// # Ok(())
/// # }
/// ```
pub type Error = litelease_store::Error<rusqlite::Error>;

/// A result with this crate's [`Error`].
///
/// ```
/// fn work() -> litelease::Result<()> {
///     Ok(())
/// }
/// # work().unwrap();
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes an error from a message alone.
pub(crate) fn failure(message: &str) -> Error {
    let code = ffi::Error::new(ffi::SQLITE_ERROR);
    Error::Sqlite(rusqlite::Error::SqliteFailure(code, Some(message.to_owned())))
}

/// Converts a result of the store into one of this crate.
pub(crate) fn into_rusqlite<T>(result: Result<T, litelease_store::Error>) -> Result<T> {
    result.map_err(rusqlite_error)
}

/// Converts an error of the store into one of this crate.
pub(crate) fn rusqlite_error(error: litelease_store::Error) -> Error {
    error.map_sqlite(|failure| {
        rusqlite::Error::SqliteFailure(ffi::Error::new(failure.code), Some(failure.message))
    })
}
