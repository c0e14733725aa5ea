//! Limits of a grant: renewals need progress, and none prolongs past an end.
//!
//! A limit refuses renewals and never shortens a lease: no holder's trust window is cut.

use crate::{GrantResult, Lease, Reason, Refusal, Request, Row, is_live};

/// The limits of one grant, as they are stored.
///
/// ```
/// # use litelease_core::{Limits, Reason};
/// let limits = Limits::new(1, Some(60), Some(500), 100)?;
/// assert_eq!(limits.refusal(159), None);
/// assert_eq!(limits.refusal(160), Some(Reason::NoProgress));
/// assert_eq!(limits.cut(510), 500, "no renewal prolongs past the end");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// The token of the grant. Limits end with it.
    pub token: i64,
    /// How long ago progress may have been made for a renewal to be granted.
    pub progress_within_ms: Option<i64>,
    /// When progress was last made.
    pub progress_at_ms: i64,
    /// The time past which no renewal prolongs.
    pub not_after_ms: Option<i64>,
}

/// The conditions of a renewal besides its row. A plain grant has none.
///
/// ```
/// # use litelease_core::Conditions;
/// assert_eq!(Conditions::default().limits, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// The limits that are stored for the name. Those of an earlier grant have no effect.
    pub limits: Option<Limits>,
    /// The request that is stored for the name. One for an earlier grant means nothing.
    pub request: Option<Request>,
}

impl Limits {
    /// Returns the limits that are set at `now_ms`, which counts as progress.
    pub fn new(
        token: i64,
        progress_within_ms: Option<i64>,
        not_after_ms: Option<i64>,
        now_ms: i64,
    ) -> Result<Self, Refusal> {
        match progress_within_ms {
            Some(ms) if ms <= 0 => Err(Refusal::InvalidTime { what: "progress_within", ms }),
            _ => Ok(Limits { token, progress_within_ms, progress_at_ms: now_ms, not_after_ms }),
        }
    }

    /// Returns why a renewal is refused at `now_ms`, if it is.
    pub fn refusal(&self, now_ms: i64) -> Option<Reason> {
        let is_over = |end_ms: i64| !is_live(end_ms, now_ms);
        let progress = self.progress_within_ms;
        if self.not_after_ms.is_some_and(is_over) {
            return Some(Reason::TimeIsUp);
        }
        progress
            .map(|within_ms| self.progress_at_ms.saturating_add(within_ms))
            .is_some_and(is_over)
            .then_some(Reason::NoProgress)
    }

    /// Returns the expiry that a renewal up to `until_ms` may have.
    pub fn cut(&self, until_ms: i64) -> i64 {
        self.not_after_ms.map_or(until_ms, |not_after_ms| until_ms.min(not_after_ms))
    }
}

impl Conditions {
    /// Decides about a renewal of a live lease up to `until_ms`: the expiry that it may have, or
    /// why it is refused.
    #[inline]
    pub(crate) fn admit(
        &self,
        lease: &Lease<&str>,
        now_ms: i64,
        until_ms: i64,
    ) -> Result<i64, Reason> {
        let limits = self.limits.filter(|limits| limits.token == lease.token);
        let refusal = limits.and_then(|limits| limits.refusal(now_ms));
        let requested = || self.request.and_then(|request| request.refusal(lease.token, now_ms));
        match refusal.or_else(requested) {
            Some(reason) => Err(reason),
            None => Ok(limits.map_or(until_ms, |limits| limits.cut(until_ms))),
        }
    }
}

/// Decides whether limits may be set under a token: only on the newest grant, while it is live.
/// They replace those before, and count as progress.
///
/// ```
/// # use litelease_core::{GrantResult, Reason, Row, State, limit};
/// let row = Row::new("import", State::stored(2, Some("b"), Some(150)));
/// assert_eq!(limit(row, 2, 149), GrantResult::Done);
/// assert_eq!(limit(row, 2, 150), GrantResult::Stale { reason: Reason::Expired });
/// ```
pub fn limit(row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
    row.on_grant(token, now_ms)
}

/// Decides whether progress may be noted under a token: only on the newest grant, while it is live.
///
/// ```
/// # use litelease_core::{GrantResult, Row, State, progress};
/// let row = Row::new("import", State::stored(2, Some("b"), Some(150)));
/// assert_eq!(progress(row, 2, 149), GrantResult::Done);
/// assert!(!progress(row, 1, 149).is_done());
/// ```
pub fn progress(row: Row<'_>, token: i64, now_ms: i64) -> GrantResult {
    row.on_grant(token, now_ms)
}
