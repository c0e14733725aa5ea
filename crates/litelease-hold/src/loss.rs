//! The reasons for which a hold is lost.

use std::fmt;

use litelease_core::Reason;

/// The reason why a held lease can no longer be trusted.
///
/// ```
/// # use litelease_hold::Loss;
/// assert_eq!(Loss::Broken.to_string(), "broken by an operator");
/// let blocked = Loss::BlockedByWriter { pid: Some(4711) };
/// assert_eq!(blocked.to_string(), "blocked by a writer: pid 4711 held the write lock for too long");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// The name was granted to another owner since, under this token.
    Superseded {
        /// The newest token.
        by: i64,
        /// The current owner, if there is one.
        owner: Option<String>,
    },
    /// The trust window ended before a renewal: this process was stopped, asleep or starved.
    Expired,
    /// The grant was released by another process or handle.
    ReleasedElsewhere,
    /// Renewals failed until the trust window was over.
    CannotRenew {
        /// The last error.
        error: String,
    },
    /// Another writer held the file's write lock until the trust window was over.
    BlockedByWriter {
        /// The process of the writer, if the system provides it.
        pid: Option<u32>,
    },
    /// An operator ended the grant.
    Broken,
    /// The database file was moved, deleted, replaced or restored: it no longer knows this grant.
    FileReplaced,
    /// The engine no longer knows this grant: an older copy of it was restored.
    Forgotten,
    /// The receipt of a delivery no longer passes.
    Stale {
        /// The reason, in words: `delivered again`.
        reason: String,
    },
    /// This is a forked process: the hold belongs to its parent.
    Forked,
    /// The grant is limited, and its holder made no progress within that time.
    NoProgress,
    /// The grant is limited, and its end has come.
    TimeIsUp,
    /// Another owner has requested the lease, and the time to give it up was over.
    Requested,
    /// The session that the lease belongs to is over.
    SessionOver {
        /// The reason, in words.
        reason: String,
    },
}

impl Loss {
    /// Converts a rejection for a holder that has not released the grant with this token. `current`
    /// is the live lease on the name, if there is one: its token and its owner. `replaced` is the
    /// place's word for a row that knows less than the holder.
    ///
    /// ```
    /// # use litelease_core::Reason;
    /// # use litelease_hold::Loss;
    /// let loss = |reason| Loss::from_rejection(7, reason, None, Loss::FileReplaced);
    /// assert_eq!(loss(Reason::Superseded { by: 8 }), Loss::Broken);
    /// assert_eq!(loss(Reason::Superseded { by: 9 }), Loss::Superseded { by: 9, owner: None });
    /// assert_eq!(loss(Reason::UnknownToken), Loss::FileReplaced);
    /// ```
    pub fn from_rejection(
        token: i64,
        reason: Reason,
        current: Option<(i64, String)>,
        replaced: Loss,
    ) -> Loss {
        match (reason, current) {
            (_, Some((by, owner))) if by != token => Loss::Superseded { by, owner: Some(owner) },
            // A break raises the token by one and leaves the name free. A takeover would still be
            // live. So this was a break (a heuristic: a successor that has already released looks
            // the same).
            (Reason::Superseded { by }, _) if by == token + 1 => Loss::Broken,
            (Reason::Superseded { by }, _) => Loss::Superseded { by, owner: None },
            (Reason::Released, _) => Loss::ReleasedElsewhere,
            (Reason::Expired, _) => Loss::Expired,
            (Reason::NoProgress, _) => Loss::NoProgress,
            (Reason::TimeIsUp, _) => Loss::TimeIsUp,
            (Reason::Requested, _) => Loss::Requested,
            (Reason::NeverClaimed | Reason::UnknownToken | Reason::HeldBy, _) => replaced,
            // Only a handover is rejected like this, and its caller handles it.
            (Reason::NotRequested, _) => Loss::CannotRenew { error: reason.to_string() },
        }
    }

    /// Returns the name of the case in one word, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Loss::Superseded { .. } => "superseded",
            Loss::Expired => "expired",
            Loss::ReleasedElsewhere => "released",
            Loss::CannotRenew { .. } => "cannot-renew",
            Loss::BlockedByWriter { .. } => "blocked",
            Loss::Broken => "broken",
            Loss::FileReplaced => "file-replaced",
            Loss::Forgotten => "forgotten",
            Loss::Stale { .. } => "stale",
            Loss::Forked => "forked",
            Loss::NoProgress => "no-progress",
            Loss::TimeIsUp => "time-is-up",
            Loss::Requested => "requested",
            Loss::SessionOver { .. } => "session-over",
        }
    }

    /// Checks whether trying again may help: the file was locked or failed, or a limit refuses to
    /// renew a grant that is still the newest.
    pub fn may_pass(&self) -> bool {
        self.is_trouble_of_file() || self.is_limit()
    }

    /// Checks whether the file was locked or failed, so that nothing may have been stored.
    pub(crate) fn is_trouble_of_file(&self) -> bool {
        matches!(self, Loss::CannotRenew { .. } | Loss::BlockedByWriter { .. })
    }

    /// Checks whether the row still names the grant, and a limit refuses to renew it.
    pub(crate) fn is_limit(&self) -> bool {
        matches!(self, Loss::NoProgress | Loss::TimeIsUp | Loss::Requested)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Superseded { by, owner: Some(owner) } => {
                write!(f, "superseded by token {by} of {owner}")
            }
            Loss::Superseded { by, owner: None } => write!(f, "superseded by token {by}"),
            Loss::Expired => f.write_str("expired: it could not be renewed in time"),
            Loss::ReleasedElsewhere => f.write_str("released elsewhere"),
            Loss::CannotRenew { error } => write!(f, "cannot renew: {error}"),
            Loss::BlockedByWriter { pid: None } => {
                f.write_str("blocked by a writer: the write lock was held for too long")
            }
            Loss::BlockedByWriter { pid: Some(pid) } if *pid == std::process::id() => write!(
                f,
                "blocked by a writer: this process (pid {pid}) held the write lock for too long: keep \
                 transactions shorter than the ttl, or renew inside them"
            ),
            Loss::BlockedByWriter { pid: Some(pid) } => {
                write!(f, "blocked by a writer: pid {pid} held the write lock for too long")
            }
            Loss::Broken => f.write_str("broken by an operator"),
            Loss::FileReplaced => f.write_str("the database file was moved, deleted or replaced"),
            Loss::Forgotten => {
                f.write_str("the engine no longer knows it: an older copy was restored")
            }
            Loss::Stale { reason } => write!(f, "stale receipt: {reason}"),
            Loss::Forked => f.write_str("this is a forked process: the hold is its parent's"),
            Loss::NoProgress => f.write_str("no progress was made within the time that it has"),
            Loss::TimeIsUp => f.write_str("the time that it may be held is up"),
            Loss::Requested => f.write_str("it was requested, and the time to hand it over is up"),
            Loss::SessionOver { reason } => write!(f, "its session is over: {reason}"),
        }
    }
}
