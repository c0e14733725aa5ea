//! Credentials: how long a signed grant lasts, and when its times are accepted. They are whole
//! seconds, as in every JWT.

use crate::{Claimant, Lease, Reason, Row};

/// The times of a credential, in Unix seconds.
///
/// ```
/// # use litelease_core::CredentialTerm;
/// let term = CredentialTerm { issued_at: 10, expires_at: 12 };
/// assert!(term.issued_at < term.expires_at);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialTerm {
    /// The second in which it was issued (`iat`).
    pub issued_at: i64,
    /// The first second at which it is no longer valid (`exp`).
    pub expires_at: i64,
}

/// The answer to a request for a credential.
///
/// ```
/// # use litelease_core::{Claimant, CredentialResult, Reason, Row, credential};
/// let who = Claimant { owner: "a", token: Some(1) };
/// let never = credential(Row::new("upload", None), who, 60_000, 300_000, 10_000);
/// assert_eq!(never, CredentialResult::Rejected { reason: Reason::NeverClaimed });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialResult<S = alloc::string::String> {
    /// The grant is live, and a credential with these times may be signed.
    Granted {
        /// The grant.
        lease: Lease<S>,
        /// The times.
        term: CredentialTerm,
    },
    /// The grant is live, but no whole second of it is left, or the request was for less than one.
    TooShort {
        /// The grant.
        lease: Lease<S>,
    },
    /// The grant is not the live one.
    Rejected {
        /// The reason.
        reason: Reason,
    },
}

impl CredentialResult<&str> {
    /// Returns the answer with text of its own.
    pub fn into_owned(self) -> CredentialResult {
        match self {
            CredentialResult::Granted { lease, term } => {
                CredentialResult::Granted { lease: lease.into_owned(), term }
            }
            CredentialResult::TooShort { lease } => {
                CredentialResult::TooShort { lease: lease.into_owned() }
            }
            CredentialResult::Rejected { reason } => CredentialResult::Rejected { reason },
        }
    }
}

/// Decides whether a grant gets a credential, and until when: for `ttl_ms` from now, but never for
/// longer than `most_ms` and never past the expiry of the lease. Rounds the end down.
///
/// ```
/// # use litelease_core::{Claimant, CredentialResult, CredentialTerm, Row, State, credential};
/// let row = Row::new("upload", State::stored(2, Some("b"), Some(20_999)));
/// let who = Claimant { owner: "b", token: Some(2) };
/// let until = |ttl_ms, most_ms| match credential(row, who, ttl_ms, most_ms, 10_500) {
///     CredentialResult::Granted { term, .. } => Some(term.expires_at),
///     _ => None,
/// };
/// assert_eq!(until(5_000, 60_000), Some(15), "rounded down");
/// assert_eq!(until(9_000, 3_000), Some(13), "no longer than the issuer allows");
/// assert_eq!(until(60_000, 60_000), Some(20), "not past the lease");
/// assert_eq!(until(400, 60_000), None, "no whole second");
/// ```
pub fn credential<'a>(
    row: Row<'a>,
    who: Claimant<'_>,
    ttl_ms: i64,
    most_ms: i64,
    now_ms: i64,
) -> CredentialResult<&'a str> {
    let live = row.live(now_ms);
    let Some(lease) = live.filter(|lease| who.is(lease)) else {
        return CredentialResult::Rejected { reason: row.why_not(Some(who), now_ms) };
    };
    let end_ms = now_ms.saturating_add(ttl_ms.min(most_ms)).min(lease.expires_at_ms);
    let issued_at = now_ms.div_euclid(SECOND_MS);
    let expires_at = end_ms.div_euclid(SECOND_MS);
    match expires_at.saturating_mul(SECOND_MS) > now_ms {
        true => CredentialResult::Granted { lease, term: CredentialTerm { issued_at, expires_at } },
        false => CredentialResult::TooShort { lease },
    }
}

/// The reason why the times of a credential are not accepted.
///
/// ```
/// # use litelease_core::{CredentialTerm, Untimely, check_times};
/// let term = CredentialTerm { issued_at: 10, expires_at: 12 };
/// assert_eq!(check_times(term, None, 0, 12_000), Err(Untimely::Expired));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untimely {
    /// It has expired.
    Expired,
    /// It was issued in the future, or is not valid yet.
    Early,
}

/// Checks the times of a credential, with a leeway for clocks that disagree.
///
/// At the instant of its end a credential is no longer valid, as with a lease.
///
/// ```
/// # use litelease_core::{CredentialTerm, Untimely, check_times};
/// let term = CredentialTerm { issued_at: 10, expires_at: 12 };
/// assert_eq!(check_times(term, None, 0, 11_999), Ok(()));
/// assert_eq!(check_times(term, None, 0, 12_000), Err(Untimely::Expired));
/// assert_eq!(check_times(term, None, 0, 9_999), Err(Untimely::Early));
/// assert_eq!(check_times(term, Some(11), 0, 10_999), Err(Untimely::Early));
/// assert_eq!(check_times(term, None, 1_000, 12_999), Ok(()), "a leeway of a second");
/// ```
pub fn check_times(
    term: CredentialTerm,
    not_before: Option<i64>,
    leeway_ms: i64,
    now_ms: i64,
) -> Result<(), Untimely> {
    let ms = |seconds: i64| seconds.saturating_mul(SECOND_MS);
    let begin_ms = ms(not_before.map_or(term.issued_at, |begin| begin.max(term.issued_at)));
    match now_ms {
        now_ms if now_ms >= ms(term.expires_at).saturating_add(leeway_ms) => Err(Untimely::Expired),
        now_ms if now_ms.saturating_add(leeway_ms) < begin_ms => Err(Untimely::Early),
        _ => Ok(()),
    }
}

const SECOND_MS: i64 = 1000;
