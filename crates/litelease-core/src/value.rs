//! Values that live grants attach to their names, for every reader.

use crate::{GrantResult, Row};

/// Decides whether a value may be attached under a token: only to the newest grant, while it is
/// live.
///
/// ```
/// # use litelease_core::{GrantResult, Reason, Row, State, attach};
/// let row = Row::new("leader", State::stored(2, Some("b"), Some(150)));
/// assert_eq!(attach(row, 2, 149), GrantResult::Done);
/// assert_eq!(attach(row, 2, 150), GrantResult::Stale { reason: Reason::Expired });
/// assert_eq!(attach(row, 1, 149), GrantResult::Stale { reason: Reason::Superseded { by: 2 } });
/// ```
pub fn attach(row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
    row.on_grant(token, now_ms)
}

/// Checks whether a value that was attached under `token` is shown: it ends with its grant.
///
/// ```
/// # use litelease_core::{Row, State, is_shown};
/// let row = Row::new("leader", State::stored(2, Some("b"), Some(150)));
/// assert!(is_shown(row, 2, 149));
/// assert!(!is_shown(row, 1, 149), "the grant before it has attached that");
/// assert!(!is_shown(row, 2, 150), "expired");
/// ```
pub fn is_shown(row: Row<'_>, token: i64, now_ms: i64) -> bool {
    row.on_grant(token, now_ms) == GrantResult::Done
}
