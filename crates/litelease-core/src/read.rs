//! The rule of shared reads: a reader may answer from memory for a while, and a writer waits until
//! all have stopped.
//!
//! The writer is the owner of the name. While there is one, no read is granted or prolonged.

use crate::{Refusal, Row, Term, is_live};

/// The longest ttl of a read: an hour. It bounds how long a writer can wait for a reader that has
/// died.
pub const MAX_READ_TTL_MS: i64 = 3_600_000;

/// A read that was granted.
///
/// ```
/// # use litelease_core::Read;
/// let read = Read { version: 7, expires_at_ms: 150 };
/// assert_eq!(read.version, 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Read {
    /// The newest token of the name: it changes whenever a writer may have written.
    pub version: i64,
    /// The first millisecond at which a writer no longer waits for the reader.
    pub expires_at_ms: i64,
}

/// Returns the term of a read. It refuses a ttl of more than an hour.
///
/// ```
/// # use litelease_core::{MAX_READ_TTL_MS, Refusal, read_term};
/// assert!(read_term(MAX_READ_TTL_MS, 100).is_ok());
/// let refused = read_term(MAX_READ_TTL_MS + 1, 100).unwrap_err();
/// assert_eq!(refused.to_string(), "the ttl of a read is at most 3600000 ms, got 3600001 ms");
/// ```
pub fn read_term(ttl_ms: i64, now_ms: i64) -> Result<Term, Refusal> {
    match ttl_ms {
        ..=MAX_READ_TTL_MS => Term::new(ttl_ms, now_ms),
        _ => Err(Refusal::TtlTooLong { ttl_ms, most_ms: MAX_READ_TTL_MS }),
    }
}

/// Grants or prolongs a read, unless a writer has the name. `before` is the expiry that the reader
/// has already, and `floor` the file's, which is the version of a name without a row.
///
/// ```
/// # use litelease_core::{Read, Row, State, read, read_term};
/// let free = Row::new("config", State::stored(7, None, None));
/// let term = read_term(50, 100)?;
/// assert_eq!(read(free, None, term, 0), Some(Read { version: 7, expires_at_ms: 150 }));
/// assert_eq!(read(free, Some(170), term, 0), Some(Read { version: 7, expires_at_ms: 170 }));
/// assert_eq!(read(Row::new("new", None), None, term, 3).unwrap().version, 3);
///
/// let written = Row::new("config", State::stored(8, Some("a"), Some(101)));
/// assert_eq!(read(written, Some(170), term, 0), None);
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn read(row: Row<'_>, before: Option<i64>, term: Term, floor: i64) -> Option<Read> {
    let expires_at_ms = before.map_or(term.until_ms(), |before| before.max(term.until_ms()));
    match row.live(term.now_ms()) {
        Some(_) => None,
        None => Some(Read { version: row.token().unwrap_or(floor), expires_at_ms }),
    }
}

/// Decides whether the writer with this token may write: it has the newest token, its lease is
/// live, and no reader is. `last_reader` is the latest expiry of any reader of the name.
///
/// ```
/// # use litelease_core::{Row, State, drained};
/// let row = Row::new("config", State::stored(8, Some("a"), Some(200)));
/// assert!(drained(row, 8, 150, None));
/// assert!(!drained(row, 8, 149, Some(150)), "a reader may still answer from memory");
/// assert!(drained(row, 8, 150, Some(150)));
/// assert!(!drained(row, 7, 150, None), "superseded");
/// assert!(!drained(row, 8, 200, None), "expired");
/// ```
pub fn drained(row: Row<'_>, token: i64, now_ms: i64, last_reader: Option<i64>) -> bool {
    row.live(now_ms).is_some_and(|lease| lease.token == token)
        && last_reader.is_none_or(|expires_at_ms| !is_live(expires_at_ms, now_ms))
}
