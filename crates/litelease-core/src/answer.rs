//! The answers of the verbs. "No" is an answer: busy and rejected are no errors.
//!
//! The answers are generic over their text, so that the rule can borrow (`&str`) and a caller can
//! keep (`String`, the default) without the cases being written twice.

use alloc::string::String;
use core::fmt;

/// One grant of a name at this moment: its owner, its token and its end.
///
/// ```
/// # use litelease_core::Lease;
/// let lease = Lease { name: "scheduler", owner: "a", token: 7, expires_at_ms: 150 };
/// let kept: Lease = lease.into_owned();
/// assert_eq!(kept.owner, "a");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease<S = String> {
    /// The name that is leased.
    pub name: S,
    /// The owner.
    pub owner: S,
    /// The fencing token: larger than that of every earlier grant of this name.
    pub token: i64,
    /// The first millisecond (Unix time) at which the lease is no longer live.
    pub expires_at_ms: i64,
}

/// The answer to a claim.
///
/// ```
/// # use litelease_core::{ClaimResult, Lease};
/// let lease = Lease { name: "scheduler", owner: "a", token: 1, expires_at_ms: 150 };
/// match ClaimResult::Acquired(lease).into_owned() {
///     ClaimResult::Acquired(lease) => assert_eq!(lease.token, 1),
///     ClaimResult::Busy(current) => unreachable!("{} has it", current.owner),
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a claim may have been answered with Busy"]
pub enum ClaimResult<S = String> {
    /// The name is the caller's until the lease expires.
    Acquired(Lease<S>),
    /// The name has a live owner: this one. It may even be the same owner text.
    Busy(Lease<S>),
}

/// The answer to a renewal.
///
/// ```
/// # use litelease_core::{Reason, RenewResult};
/// let answer: RenewResult = RenewResult::Rejected { reason: Reason::Expired, current: None };
/// assert!(matches!(answer, RenewResult::Rejected { reason: Reason::Expired, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a renewal may have been rejected"]
pub enum RenewResult<S = String> {
    /// The same grant, now with this expiry.
    Renewed(Lease<S>),
    /// Nothing was changed.
    Rejected {
        /// The reason.
        reason: Reason,
        /// The live lease on that name, if there is one.
        current: Option<Lease<S>>,
    },
}

/// The answer to a release.
///
/// ```
/// # use litelease_core::ReleaseResult;
/// let answer = ReleaseResult::Released { name: "scheduler", token: 1 }.into_owned();
/// assert!(matches!(answer, ReleaseResult::Released { token: 1, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseResult<S = String> {
    /// The name is free; the next grant gets a larger token.
    Released {
        /// The name that was released.
        name: S,
        /// The token of the grant that ended.
        token: i64,
    },
    /// Nothing was changed.
    Rejected {
        /// The reason.
        reason: Reason,
        /// The live lease on that name, if there is one.
        current: Option<Lease<S>>,
    },
}

/// The answer to a transfer.
///
/// ```
/// # use litelease_core::{Lease, TransferResult};
/// let lease = Lease { name: "scheduler", owner: "b", token: 2, expires_at_ms: 200 };
/// let answer = TransferResult::Transferred(lease).into_owned();
/// assert!(matches!(answer, TransferResult::Transferred(lease) if lease.owner == "b"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a transfer may have been rejected"]
pub enum TransferResult<S = String> {
    /// The new owner's grant. The old owner's token is superseded.
    Transferred(Lease<S>),
    /// Nothing was changed.
    Rejected {
        /// The reason.
        reason: Reason,
        /// The live lease on that name, if there is one.
        current: Option<Lease<S>>,
    },
}

/// The answer to an operator's break.
///
/// ```
/// # use litelease_core::BreakResult;
/// let answer = BreakResult::Broken { owner: "a", token: 3 }.into_owned();
/// assert!(matches!(answer, BreakResult::Broken { token: 3, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a break may have been rejected"]
pub enum BreakResult<S = String> {
    /// The name is free and the broken holder's token is superseded.
    Broken {
        /// The owner whose lease was broken.
        owner: S,
        /// The token of that lease, which is superseded now.
        token: i64,
    },
    /// Nothing was changed: there was nothing live to break.
    Rejected {
        /// The reason.
        reason: Reason,
        /// Always `None`; here so that all rejections look alike.
        current: Option<Lease<S>>,
    },
}

/// The answer to a checkpoint.
///
/// ```
/// # use litelease_core::CheckpointResult;
/// let late = CheckpointResult::Stale { newest: Some(8) };
/// assert_ne!(late, CheckpointResult::Stored);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a checkpoint may have been refused"]
pub enum CheckpointResult {
    /// It is stored.
    Stored,
    /// Nothing was stored: the token is not the newest one of the name.
    Stale {
        /// The newest one, if the name was ever granted.
        newest: Option<i64>,
    },
}

/// The answer to a verb that stores a value or the like with a live grant.
///
/// ```
/// # use litelease_core::{GrantResult, Reason};
/// let late = GrantResult::Stale { reason: Reason::Superseded { by: 8 } };
/// assert!(!late.is_done());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the token may be stale"]
pub enum GrantResult {
    /// It is stored.
    Done,
    /// Nothing was stored: the token is not the newest one of the name, or its lease has ended.
    Stale {
        /// The reason.
        reason: Reason,
    },
}

impl GrantResult {
    /// Checks whether it was stored.
    ///
    /// ```
    /// # use litelease_core::GrantResult;
    /// assert!(GrantResult::Done.is_done());
    /// ```
    pub fn is_done(self) -> bool {
        self == GrantResult::Done
    }
}

/// The answer of a gate.
///
/// ```
/// # use litelease_core::AdmitResult;
/// let late = AdmitResult::Stale { newest: 8 };
/// assert_ne!(late, AdmitResult::Admitted);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the token may be stale"]
pub enum AdmitResult {
    /// No larger token was admitted before.
    Admitted,
    /// A larger one was: the owner with this token was superseded.
    Stale {
        /// The largest token that was admitted; 0 if there is none.
        newest: i64,
    },
}

/// The answer to raising a floor by hand.
///
/// ```
/// # use litelease_core::{RaiseResult, raise};
/// assert_eq!(raise(41, 40), Ok(RaiseResult::TooLow { present: 41 }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the floor may be too low"]
pub enum RaiseResult {
    /// Every later token is larger than the floor.
    Raised,
    /// It was so already.
    Unchanged,
    /// Tokens never sink: nothing was changed.
    TooLow {
        /// The floor or token that is there.
        present: i64,
    },
}

/// The reason why a verb was rejected: the first of these that fits.
///
/// ```
/// # use litelease_core::Reason;
/// assert_eq!(Reason::Superseded { by: 2 }.to_string(), "superseded by token 2");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The name was never granted.
    NeverClaimed,
    /// Another owner has a live lease on it.
    HeldBy,
    /// The given token is older than the newest one.
    Superseded {
        /// The newest token of the name.
        by: i64,
    },
    /// The given token is larger than any that was issued.
    UnknownToken,
    /// The grant was ended by a release or a break.
    Released,
    /// The grant ran out.
    Expired,
    /// The grant is limited, and its holder has made no progress within that time.
    NoProgress,
    /// The grant is limited, and its end has come.
    TimeIsUp,
    /// Another owner has requested the lease, and the time to give it up is over.
    Requested,
    /// The lease has no open request, so there is no owner to hand it over to.
    NotRequested,
}

impl Reason {
    /// Returns the reason in one word, for programs.
    ///
    /// ```
    /// # use litelease_core::Reason;
    /// assert_eq!(Reason::NoProgress.word(), "no_progress");
    /// let superseded = Reason::Superseded { by: 8 };
    /// assert_eq!(Reason::from_word(superseded.word(), Some(8)), Some(superseded));
    /// ```
    pub fn word(self) -> &'static str {
        match self {
            Reason::NeverClaimed => "never_claimed",
            Reason::HeldBy => "held_by",
            Reason::Superseded { .. } => "superseded",
            Reason::UnknownToken => "unknown_token",
            Reason::Released => "released",
            Reason::Expired => "expired",
            Reason::NoProgress => "no_progress",
            Reason::TimeIsUp => "time_is_up",
            Reason::Requested => "requested",
            Reason::NotRequested => "not_requested",
        }
    }

    /// Returns the reason of a word, if there is one. `by` is the newest token of the name.
    pub fn from_word(word: &str, by: Option<i64>) -> Option<Self> {
        let all = [
            Reason::NeverClaimed,
            Reason::HeldBy,
            Reason::Superseded { by: by.unwrap_or(0) },
            Reason::UnknownToken,
            Reason::Released,
            Reason::Expired,
            Reason::NoProgress,
            Reason::TimeIsUp,
            Reason::Requested,
            Reason::NotRequested,
        ];
        all.into_iter().find(|reason| reason.word() == word)
    }

    /// Returns the newest token of a name whose grant was superseded.
    pub fn superseded_by(self) -> Option<i64> {
        match self {
            Reason::Superseded { by } => Some(by),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::NeverClaimed => f.write_str("never claimed"),
            Reason::HeldBy => f.write_str("held by another owner"),
            Reason::Superseded { by } => write!(f, "superseded by token {by}"),
            Reason::UnknownToken => f.write_str("unknown token"),
            Reason::Released => f.write_str("released"),
            Reason::Expired => f.write_str("expired"),
            Reason::NoProgress => f.write_str("no progress"),
            Reason::TimeIsUp => f.write_str("time is up"),
            Reason::Requested => f.write_str("requested"),
            Reason::NotRequested => f.write_str("not requested"),
        }
    }
}

impl Lease<&str> {
    /// Returns the lease with text of its own.
    #[inline]
    pub fn into_owned(self) -> Lease {
        Lease {
            name: self.name.into(),
            owner: self.owner.into(),
            token: self.token,
            expires_at_ms: self.expires_at_ms,
        }
    }
}

impl<S> ClaimResult<S> {
    /// Returns the lease, if the name was granted.
    pub fn acquired(self) -> Option<Lease<S>> {
        match self {
            ClaimResult::Acquired(lease) => Some(lease),
            _ => None,
        }
    }
}

impl ClaimResult<&str> {
    /// Returns the answer with text of its own.
    #[inline]
    pub fn into_owned(self) -> ClaimResult {
        match self {
            ClaimResult::Acquired(lease) => ClaimResult::Acquired(lease.into_owned()),
            ClaimResult::Busy(current) => ClaimResult::Busy(current.into_owned()),
        }
    }
}

impl<S> RenewResult<S> {
    /// Returns the lease with its new expiry, if it was renewed.
    pub fn renewed(self) -> Option<Lease<S>> {
        match self {
            RenewResult::Renewed(lease) => Some(lease),
            _ => None,
        }
    }
}

impl RenewResult<&str> {
    /// Returns the answer with text of its own.
    #[inline]
    pub fn into_owned(self) -> RenewResult {
        match self {
            RenewResult::Renewed(lease) => RenewResult::Renewed(lease.into_owned()),
            RenewResult::Rejected { reason, current } => {
                RenewResult::Rejected { reason, current: current.map(Lease::into_owned) }
            }
        }
    }
}

impl ReleaseResult<&str> {
    /// Returns the answer with text of its own.
    #[inline]
    pub fn into_owned(self) -> ReleaseResult {
        match self {
            ReleaseResult::Released { name, token } => {
                ReleaseResult::Released { name: name.into(), token }
            }
            ReleaseResult::Rejected { reason, current } => {
                ReleaseResult::Rejected { reason, current: current.map(Lease::into_owned) }
            }
        }
    }
}

impl<S> TransferResult<S> {
    /// Returns the new owner's lease, if it was handed over.
    pub fn transferred(self) -> Option<Lease<S>> {
        match self {
            TransferResult::Transferred(lease) => Some(lease),
            _ => None,
        }
    }
}

impl TransferResult<&str> {
    /// Returns the answer with text of its own.
    #[inline]
    pub fn into_owned(self) -> TransferResult {
        match self {
            TransferResult::Transferred(lease) => TransferResult::Transferred(lease.into_owned()),
            TransferResult::Rejected { reason, current } => {
                TransferResult::Rejected { reason, current: current.map(Lease::into_owned) }
            }
        }
    }
}

impl BreakResult<&str> {
    /// Returns the answer with text of its own.
    #[inline]
    pub fn into_owned(self) -> BreakResult {
        match self {
            BreakResult::Broken { owner, token } => {
                BreakResult::Broken { owner: owner.into(), token }
            }
            BreakResult::Rejected { reason, current } => {
                BreakResult::Rejected { reason, current: current.map(Lease::into_owned) }
            }
        }
    }
}
