//! The `Rows` of one file, on a connection of the keeper's own: names, slots of pools and
//! deliveries of items.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use litelease_core::{
    AckResult, Claimant, Lease, Reason, ReleaseResult, RenewResult, Request, TransferResult,
};
use litelease_store::{Error, When};

use super::{
    DatabaseFile, FileConnection, FileHandle, FileLeases, FileTransaction, OwnConnection, in_ms,
    is_busy, now_ms, write_lock_pid,
};
use crate::{Current, Due, HandoverRequest, HeldGrant, Loss, Notice, Renewal, Rows};

type Result<T, E = Error> = std::result::Result<T, E>;

/// How long a commit waits for readers while it keeps new ones out. It is short, because other
/// files wait meanwhile; the keeper tries again.
const BUSY_TIMEOUT: Duration = Duration::from_millis(10);

/// How long to wait before looking up the holder of the write lock again. The keeper tries much
/// more often, and reading the system's list of locks takes longer than an attempt.
const WRITER_LOOK: Duration = Duration::from_millis(100);

/// The rows of one kind in one file, on a connection of the keeper's own.
pub struct KeptRows {
    /// The connection.
    pub db: OwnConnection<FileConnection>,
    file: DatabaseFile,
    kind: GrantKind,
    /// The process that had the write lock, and when that was looked up.
    writer: Cell<Option<(Instant, Option<u32>)>>,
}

/// The kind of grants in these rows. It decides how they are renewed and released.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GrantKind {
    /// Leases on names. The owner text proves them.
    Names,
    /// Slots: the name is the pool, and the secret is the id of the lease.
    Slots,
    /// Deliveries: the name is the queue, the secret is the receipt, and the ttl is the visibility.
    /// Their worker acknowledges them or gives them back; a release gives them back.
    Deliveries,
}

impl KeptRows {
    /// Opens a file that is there.
    pub fn open(file: &DatabaseFile, kind: GrantKind) -> Result<Self> {
        let db = OwnConnection::open(file, BUSY_TIMEOUT)?;
        Ok(KeptRows { db, file: file.clone(), kind, writer: Cell::default() })
    }

    /// Begins a transaction, if no other connection has one open.
    pub fn begin(db: &FileConnection) -> Result<FileTransaction<'_>> {
        // SQLite would sleep for milliseconds between two attempts, while the file may be free for
        // microseconds only. The keeper comes back sooner.
        db.connection().set_busy_timeout(Duration::ZERO);
        let begun = db.leases().begin();
        db.connection().set_busy_timeout(BUSY_TIMEOUT);
        begun
    }

    fn renew_all(&mut self, due: &[Due<'_>]) -> Result<Vec<Result<Renewal, Loss>>> {
        let kind = self.kind;
        self.db.with(|db| {
            let tx = Self::begin(db)?;
            let mut answers = Vec::with_capacity(due.len());
            for due in due {
                answers.push(match kind.renew(&tx, due) {
                    // An error in one row must not fail the others.
                    Err(error) if is_of_one_name(&error) => {
                        Err(Loss::CannotRenew { error: error.to_string() })
                    }
                    answer => answer?,
                });
            }
            tx.commit()?;
            Ok(answers)
        })
    }

    /// Hands a grant over, by a verb that the caller chooses.
    pub fn hand_over_by(
        &self,
        grant: &HeldGrant,
        hand_over: impl FnOnce(FileLeases<'_>, Claimant<'_>) -> Result<TransferResult>,
    ) -> Result<Option<Lease>, Loss> {
        if self.db.is_moved() {
            return Err(Loss::FileReplaced);
        }
        let handed = self.db.with(|db| {
            let answer = hand_over(db.leases(), claimant(grant))?;
            if matches!(answer, TransferResult::Transferred(_)) {
                // The requester is waiting for the lease.
                db.leases().freed();
            }
            Ok(answer)
        });
        match handed {
            Ok(TransferResult::Transferred(handed)) => Ok(Some(handed)),
            Ok(TransferResult::Rejected { reason: Reason::NotRequested, .. }) => Ok(None),
            Ok(TransferResult::Rejected { reason, current }) => {
                Err(loss(grant.token, reason, current))
            }
            Err(error) => Err(self.trouble(&error)),
        }
    }

    /// Converts an error of the file into the loss of each grant.
    pub fn trouble(&self, error: &Error) -> Loss {
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
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        let answers = self.renew_all(due);
        // Checked again: other programs may not see the file that stores the renewals.
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        answers.unwrap_or_else(|error| vec![Err(self.trouble(&error)); due.len()])
    }

    fn release(&mut self, grant: &HeldGrant, _: Duration) -> Result<(), Loss> {
        if self.is_moved() {
            return Err(Loss::FileReplaced);
        }
        let kind = self.kind;
        self.db
            .with(|db| kind.release(db.leases(), grant))
            .unwrap_or_else(|error| Err(self.trouble(&error)))
    }

    fn read(&mut self, grant: &HeldGrant) -> Current {
        let kind = self.kind;
        // If a row cannot be read now, the renewals decide.
        let current =
            self.db.with(|db| kind.read(db.leases(), grant)).unwrap_or(Current::unknown());
        Current { is_current: current.is_current && !self.is_moved(), ..current }
    }

    fn hand_over(&mut self, grant: &HeldGrant, ttl: Duration) -> Result<Option<Lease>, Loss> {
        match self.kind {
            GrantKind::Names => self.hand_over_by(grant, |db, who| {
                let (name, ttl_ms) = (&grant.name, in_ms(ttl));
                db.store.hand_over(name, who, ttl_ms, When::Now, |answer| answer.into_owned())
            }),
            GrantKind::Slots | GrantKind::Deliveries => Ok(None),
        }
    }

    fn listen(&mut self, notice: Notice) {
        notice.watch_file(Path::new(&*self.file));
    }

    /// Calls are short: the keeper's connection waits for no writer.
    fn beside(&self) -> Option<Box<dyn Rows>> {
        None
    }

    fn is_moved(&mut self) -> bool {
        self.db.is_moved()
    }
}

impl GrantKind {
    /// Renews a grant, or returns the reason why not.
    fn renew(self, tx: &FileTransaction<'_>, due: &Due<'_>) -> Result<Result<Renewal, Loss>> {
        let Due { grant, progress, .. } = due;
        let HeldGrant { name, token, ttl, secret, .. } = *grant;
        let (store, ttl_ms) = (tx.store, in_ms(*ttl));
        Ok(match self {
            GrantKind::Names => {
                if let Some(ago) = progress {
                    // The call below rejects a grant that has ended.
                    let _ = store.progress(name, *token, When::At(now_ms() - in_ms(*ago)))?;
                }
                let asked_at_ms = now_ms();
                let who = claimant(grant);
                match store.renew(name, who, ttl_ms, When::Now, |answer| answer.into_owned())? {
                    RenewResult::Renewed(lease) => Ok(granted(asked_at_ms, *ttl, &lease)),
                    RenewResult::Rejected { reason, current } => Err(loss(*token, reason, current)),
                }
            }
            GrantKind::Slots => match store.renew_slot(name, secret, ttl_ms, When::Now)? {
                Some(slot) => Ok(Renewal::whole(slot.expires_at_ms)),
                // Its time is not over, so it did not expire: an operator has broken it.
                None if !due.trusted_for.is_zero() => Err(Loss::Broken),
                None => Err(Loss::Expired),
            },
            GrantKind::Deliveries => match store.extend(secret, ttl_ms, When::Now)? {
                Some(deadline_ms) => Ok(Renewal::whole(deadline_ms)),
                None => match store.check_receipt(secret)? {
                    // No other worker has received the item, but the delivery's deadline has
                    // passed.
                    AckResult::Acknowledged => Err(Loss::Expired),
                    AckResult::Stale { reason } => Err(Loss::Stale { reason: reason.to_string() }),
                },
            },
        })
    }

    /// Releases a grant, or returns why it is no longer current.
    fn release(self, db: FileLeases<'_>, grant: &HeldGrant) -> Result<Result<(), Loss>> {
        let HeldGrant { name, owner, token, secret, .. } = grant;
        Ok(match self {
            GrantKind::Names => match db.release(name, owner, *token)? {
                ReleaseResult::Released { .. } => Ok(()),
                ReleaseResult::Rejected { reason, current } => Err(loss(*token, reason, current)),
            },
            GrantKind::Slots => match db.store.return_slot(name, secret, When::Now)? {
                true => Ok(()),
                false => Err(Loss::Expired),
            },
            GrantKind::Deliveries => {
                match db.store.give_back(secret, 0, Some("the worker ended"), When::Now)? {
                    true => {
                        db.freed();
                        Ok(())
                    }
                    false => Err(Loss::Expired),
                }
            }
        })
    }

    /// Reads the row of a grant.
    fn read(self, db: FileLeases<'_>, grant: &HeldGrant) -> Result<Current> {
        let is_current = match self {
            GrantKind::Names => {
                let read = |lease: Lease<&str>, request: Option<(&str, Request)>| Current {
                    is_current: lease.token == grant.token && lease.owner == grant.owner,
                    request: request.map(|(requester, request)| HandoverRequest {
                        requester: requester.into(),
                        until_ms: request.until_ms,
                    }),
                };
                let found = db.store.inspect_with_request(&grant.name, When::Now, read)?;
                return Ok(found.unwrap_or(Current { is_current: false, request: None }));
            }
            GrantKind::Slots => db.store.slot(&grant.name, &grant.secret)?.is_some(),
            GrantKind::Deliveries => db.store.check_receipt(&grant.secret)?.is_acknowledged(),
        };
        Ok(Current { is_current, request: None })
    }
}

fn claimant(grant: &HeldGrant) -> Claimant<'_> {
    Claimant { owner: &grant.owner, token: Some(grant.token) }
}

/// Checks whether an error concerns one name only: its row, its limits or its request.
fn is_of_one_name(error: &Error) -> bool {
    matches!(
        error,
        Error::InvalidLeaseRow(_) | Error::SchemaMismatch { .. } | Error::TimeOverflow { .. }
    )
}

/// Converts a rejection for a holder that has not released its lease.
pub fn loss(token: i64, reason: Reason, current: Option<Lease>) -> Loss {
    let current = current.map(|current| (current.token, current.owner));
    Loss::from_rejection(token, reason, current, Loss::FileReplaced)
}

/// Returns the time that was granted to a claim or renewal of `ttl` that began at `asked_at_ms`.
pub fn granted(asked_at_ms: i64, ttl: Duration, lease: &Lease) -> Renewal {
    let expires_at_ms = lease.expires_at_ms;
    let is_whole = expires_at_ms >= asked_at_ms.saturating_add(in_ms(ttl));
    // Measured after the row was written, and rounded down to whole milliseconds: so the result is
    // never too long.
    let left_ms = u64::try_from(expires_at_ms.saturating_sub(now_ms() + 1)).unwrap_or(0);
    let granted = (!is_whole).then(|| Duration::from_millis(left_ms));
    Renewal { expires_at_ms, granted }
}
