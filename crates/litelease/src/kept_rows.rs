//! The rows of one file as the keeper renews them, on a connection of its own.

use std::cell::Cell;
use std::time::{Duration, Instant};

use litelease_core::Request;
use litelease_hold::{Asked, Due, Handed, HeldGrant, Renewal, Rows, Seen};
use litelease_store::When;
use rusqlite::ErrorCode;

use crate::error::lift;
use crate::file::write_lock_pid;
use crate::leases::in_ms;
use crate::own_connection::OwnConnection;
use crate::{
    Error, GrantRef, Lease, Litelease, Loss, Reason, ReleaseResult, RenewResult, Result,
    Transaction, TransferResult, now_ms,
};

/// How long a commit waits for readers, while no new ones get in. Other files wait meanwhile, so
/// it is short; the keeper tries again.
const BUSY_TIMEOUT: Duration = Duration::from_millis(10);

/// How long the process that holds the write lock is not asked for again. The keeper tries much
/// more often, and reading the system's list of locks takes longer than an attempt.
const WRITER_LOOK: Duration = Duration::from_millis(100);

pub(crate) struct KeptRows {
    pub(crate) db: OwnConnection,
    file: String,
    /// The process that held the write lock, and when it was asked for.
    writer: Cell<Option<(Instant, Option<u32>)>>,
}

impl KeptRows {
    /// Opens a file that is there.
    pub(crate) fn open(file: &str) -> Result<Self> {
        let db = OwnConnection::open(file, BUSY_TIMEOUT)?;
        Ok(KeptRows { db, file: file.into(), writer: Cell::default() })
    }

    /// Begins a transaction, if nobody else has one open.
    pub(crate) fn begin(db: &Litelease) -> Result<Transaction<'_>> {
        // SQLite would sleep for milliseconds between two attempts, while the file may be free for
        // microseconds only. The keeper comes back sooner.
        db.conn().busy_timeout(Duration::ZERO)?;
        let begun = Transaction::begin(db, db.conn());
        db.conn().busy_timeout(BUSY_TIMEOUT)?;
        begun
    }

    fn renew_all(&mut self, due: &[Due<'_>]) -> Result<Vec<std::result::Result<Renewal, Loss>>> {
        self.db.with(|db| {
            let tx = Self::begin(db)?;
            let mut answers = Vec::with_capacity(due.len());
            for Due { grant, progress, .. } in due {
                if let Some(ago) = progress {
                    // A grant that is over by now is rejected below.
                    let _ = tx.at(now_ms() - in_ms(*ago)).progress((&grant.name, grant.token))?;
                }
                let asked_at_ms = now_ms();
                answers.push(match tx.renew(*grant, grant.ttl) {
                    Ok(RenewResult::Renewed(lease)) => Ok(renewal(asked_at_ms, grant.ttl, &lease)),
                    Ok(RenewResult::Rejected { reason, current }) => {
                        Err(loss(grant.token, reason, current))
                    }
                    Err(error) if is_of_one_name(&error) => {
                        Err(Loss::CannotRenew { error: error.to_string() })
                    }
                    Err(error) => return Err(error),
                });
            }
            tx.commit()?;
            Ok(answers)
        })
    }

    /// Hands a grant over by a verb of the caller's choice.
    pub(crate) fn hand_over_by(
        &self,
        grant: &HeldGrant,
        hand_over: impl FnOnce(&Litelease, GrantRef<'_>) -> Result<TransferResult>,
    ) -> std::result::Result<Option<Handed>, Loss> {
        if self.is_moved() {
            return Err(Loss::FileReplaced);
        }
        match self.db.with(|db| hand_over(db, grant.into())) {
            Ok(TransferResult::Transferred(handed)) => Ok(Some(Handed {
                owner: handed.owner,
                token: handed.token,
                expires_at_ms: handed.expires_at_ms,
            })),
            Ok(TransferResult::Rejected { reason: Reason::NotRequested, .. }) => Ok(None),
            Ok(TransferResult::Rejected { reason, current }) => {
                Err(loss(grant.token, reason, current))
            }
            Err(error) => Err(self.trouble(&error)),
        }
    }

    pub(crate) fn trouble(&self, error: &Error) -> Loss {
        if is_busy(error) {
            return Loss::BlockedByWriter { pid: self.writer_pid() };
        }
        Loss::CannotRenew { error: error.to_string() }
    }

    fn writer_pid(&self) -> Option<u32> {
        let known = self.writer.get().filter(|(asked, _)| asked.elapsed() < WRITER_LOOK);
        let (asked, pid) = known.unwrap_or_else(|| (Instant::now(), write_lock_pid(&self.file)));
        self.writer.set(Some((asked, pid)));
        pid
    }
}

impl Rows for KeptRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<std::result::Result<Renewal, Loss>> {
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        let answers = self.renew_all(due);
        // Asked again: what was just stored may be in a file that nobody else opens any more.
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        answers.unwrap_or_else(|error| vec![Err(self.trouble(&error)); due.len()])
    }

    fn release(&mut self, grant: &HeldGrant) -> std::result::Result<(), Loss> {
        if self.is_moved() {
            return Err(Loss::FileReplaced);
        }
        match self.db.with(|db| db.release(grant)) {
            Ok(ReleaseResult::Released { .. }) => Ok(()),
            Ok(ReleaseResult::Rejected { reason, current }) => {
                Err(loss(grant.token, reason, current))
            }
            Err(error) => Err(self.trouble(&error)),
        }
    }

    fn look(&mut self, grant: &HeldGrant) -> Seen {
        let seen = |lease: Lease<&str>, asked: Option<(&str, Request)>| Seen {
            is_current: lease.token == grant.token && lease.owner == grant.owner,
            asked: asked.map(|(requester, request)| Asked {
                requester: requester.into(),
                until_ms: request.until_ms,
            }),
        };
        let found =
            self.db.with(|db| lift(db.store().inspect_with_request(&grant.name, When::Now, seen)));
        // What cannot be read now is left to the renewals.
        let found = found.unwrap_or(Some(Seen { is_current: true, asked: None }));
        let seen = found.unwrap_or(Seen { is_current: false, asked: None });
        Seen { is_current: seen.is_current && !self.is_moved(), ..seen }
    }

    fn hand_over(
        &mut self,
        grant: &HeldGrant,
        ttl: Duration,
    ) -> std::result::Result<Option<Handed>, Loss> {
        self.hand_over_by(grant, |db, lease| db.hand_over(lease, ttl))
    }

    fn is_moved(&self) -> bool {
        self.db.is_moved()
    }
}

/// Checks whether another connection's lock was in the way.
pub(crate) fn is_busy(error: &Error) -> bool {
    use ErrorCode::{DatabaseBusy, DatabaseLocked};
    match error {
        Error::Sqlite(error) => {
            matches!(error.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked))
        }
        _ => false,
    }
}

/// Checks whether an error is about one name: its row, its limits or its request. It is not the
/// others' fault.
pub(crate) fn is_of_one_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidLeaseRow(_) | Error::SchemaMismatch { .. } | Error::TimeOverflow { .. }
    )
}

/// Returns what a rejection means for a holder that has not released its lease.
pub(crate) fn loss(token: i64, reason: Reason, current: Option<Lease>) -> Loss {
    let current = current.map(|current| (current.token, current.owner));
    Loss::from_rejection(token, reason, current, Loss::FileReplaced)
}

/// Returns what was granted to a claim or renewal by `ttl` that began at `asked_at_ms`.
pub(crate) fn renewal(asked_at_ms: i64, ttl: Duration, lease: &Lease) -> Renewal {
    let expires_at_ms = lease.expires_at_ms;
    let is_whole = expires_at_ms >= asked_at_ms.saturating_add(in_ms(ttl));
    // Measured now, which is later than the row was written, and without the millisecond that has
    // begun: so it is never too long.
    let left_ms = u64::try_from(expires_at_ms.saturating_sub(now_ms() + 1)).unwrap_or(0);
    let granted = (!is_whole).then(|| Duration::from_millis(left_ms));
    Renewal { expires_at_ms, granted }
}
