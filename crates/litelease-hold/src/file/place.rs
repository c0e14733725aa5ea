//! The file as a `Place`: claims, requests and waits, on the caller's connection or one of our own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use litelease_core::{ClaimResult, ClaimTickResult, Claimant, Lease, RequestResult};
use litelease_store::{Error, TickClaim, Value, When};

use super::{DatabaseFile, FileError, FileLeases, GrantKind, KeptRows, in_ms, is_busy, now_ms};
use crate::{
    Cancel, Claimed, Clock, Granted, Home, NoKeeper, Place, Rows, SystemClock, Waiter, Wish,
    time_to_next_read,
};

type Result<T, E = FileError> = std::result::Result<T, E>;

/// How long a waiter sleeps if the name is free and the file is not.
const LOCKED_PAUSE_MS: i64 = 10;

/// A file as a place, for one hold or one wait.
pub struct FilePlace<'l, A> {
    pub(super) asks: A,
    /// The file.
    pub file: DatabaseFile,
    /// Values and limits that are stored in the commit of a claim.
    more: More<'l>,
    waiter: Option<Waiter>,
    /// The generation of wake-ups before the last claim.
    generation: u32,
    /// The tick that was granted.
    pub begun: Option<BegunTick>,
}

/// A tick that a hold was granted.
///
/// ```
/// # use litelease_hold::file::BegunTick;
/// let first = BegunTick { attempt: 1, previous_ms: None };
/// assert_eq!(first.attempt, 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BegunTick {
    /// The number of this grant among those of the tick, from 1.
    pub attempt: i64,
    /// The newest tick before that was done.
    pub previous_ms: Option<i64>,
}

/// The connection on which a place claims: the caller's, or one of our own.
pub trait Asks {
    /// Runs `work` on the leases.
    fn with<T>(&self, work: impl FnOnce(FileLeases<'_>) -> Result<T>) -> Result<T>;

    /// Fails with the reason if the caller was interrupted.
    fn go_on(&self) -> Result<()>;

    /// Returns the longest sleep of a wait between two checks for an interrupt.
    fn longest_sleep(&self) -> Duration;
}

impl<A: Asks> Asks for &A {
    fn with<T>(&self, work: impl FnOnce(FileLeases<'_>) -> Result<T>) -> Result<T> {
        (*self).with(work)
    }

    fn go_on(&self) -> Result<()> {
        (*self).go_on()
    }

    fn longest_sleep(&self) -> Duration {
        (*self).longest_sleep()
    }
}

impl Asks for FileLeases<'_> {
    fn with<T>(&self, work: impl FnOnce(FileLeases<'_>) -> Result<T>) -> Result<T> {
        work(*self)
    }

    fn go_on(&self) -> Result<()> {
        Ok(())
    }

    fn longest_sleep(&self) -> Duration {
        Duration::MAX
    }
}

/// The answer to a claim, and the tick that came with it.
type Made = (ClaimResult, Option<BegunTick>);

/// Values and limits that are stored with a grant, and end with it.
#[derive(Default)]
pub struct More<'l> {
    /// The value.
    pub value: Option<Value<'l>>,
    /// How often the holder must make progress.
    pub progress_within: Option<Duration>,
    /// How long the name may be held.
    pub max_time: Option<Duration>,
    /// The tick that is claimed with the name.
    pub tick: Option<TickClaim<'l>>,
}

impl<'l, A: Asks> FilePlace<'l, A> {
    /// Fails inside a transaction, whose snapshot would never show that the name has become free,
    /// and for a database in memory.
    pub fn new(asks: A, more: More<'l>) -> Result<Self> {
        let file = asks.with(|leases| match leases.store.is_in_transaction() {
            true => Err(FileError::InTransaction),
            false => DatabaseFile::behind(leases.store).ok_or(FileError::InMemory),
        })?;
        Ok(FilePlace { asks, file, more, waiter: None, generation: 0, begun: None })
    }

    fn sleep(&mut self, cancel: Option<&Cancel>, until_expiry_ms: i64, at_most: Duration) {
        match &self.waiter {
            Some(waiter) => {
                let time =
                    time_to_next_read(until_expiry_ms, at_most.min(self.asks.longest_sleep()));
                waiter.wait_unless_cancelled(cancel, self.generation, time);
            }
            // The caller reads once more before it sleeps, because earlier wake-ups were missed.
            None => self.waiter = Some(Waiter::at(Path::new(&*self.file))),
        }
    }

    /// Claims once, on these leases.
    fn make(&self, leases: FileLeases<'_>, wish: &Wish<'_>) -> Result<Made> {
        if let Some(tick) = self.more.tick {
            return self.make_tick(leases, wish, tick);
        }
        if self.more.is_empty() {
            return Ok((ask(leases, wish)?, None));
        }
        // A busy name is answered without the write lock, as by a plain claim.
        if wish.dead.is_none()
            && let Some(current) = leases.inspect(wish.name)?
        {
            return Ok((ClaimResult::Busy(current), None));
        }
        let tx = leases.begin()?;
        let answer = ask(*tx, wish)?;
        if let ClaimResult::Acquired(lease) = &answer {
            self.more.store(*tx, lease)?;
            tx.commit()?;
        }
        Ok((answer, None))
    }

    /// Claims a tick once. One that is taken is an error, because waiting would not help.
    fn make_tick(
        &self,
        leases: FileLeases<'_>,
        wish: &Wish<'_>,
        tick: TickClaim<'_>,
    ) -> Result<Made> {
        let Wish { name, owner, ttl, .. } = *wish;
        let dead = wish.dead.map(Claimant::from);
        let claim = |leases: FileLeases<'_>| {
            let (ttl_ms, own) = (in_ms(ttl), |it: ClaimTickResult<&str>| it.into_owned());
            leases.store.claim_tick(name, owner, ttl_ms, tick, When::Now, dead, own)
        };
        let answer = if self.more.is_empty() {
            claim(leases)?
        } else {
            let tx = leases.begin()?;
            let answer = claim(*tx)?;
            if let ClaimTickResult::Acquired { lease, .. } = &answer {
                self.more.store(*tx, lease)?;
                tx.commit()?;
            }
            answer
        };
        match answer {
            ClaimTickResult::Acquired { lease, attempt, previous_ms, .. } => {
                Ok((ClaimResult::Acquired(lease), Some(BegunTick { attempt, previous_ms })))
            }
            ClaimTickResult::Busy { current, .. } => Ok((ClaimResult::Busy(current), None)),
            ClaimTickResult::AlreadyTaken(newest) => Err(FileError::TickTaken(newest)),
            ClaimTickResult::InFuture { now_ms } => Err(FileError::TickInFuture { now_ms }),
        }
    }

    fn check_moved(&self, leases: FileLeases<'_>) -> Result<()> {
        match leases.store.connection().has_moved() {
            true => Err(FileError::Moved(self.file.path.clone())),
            false => Ok(()),
        }
    }
}

impl<A: Asks> Place for FilePlace<'_, A> {
    type Error = FileError;

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn home(&self) -> Result<Home, NoKeeper> {
        self.file.home("names")
    }

    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed> {
        self.asks.go_on()?;
        // Counted before the read: a later wake-up belongs to a change after it.
        self.generation = self.waiter.as_ref().map_or(0, Waiter::generation);
        let (claimed, begun) = self.asks.with(|leases| {
            self.check_moved(leases)?;
            let (answer, begun) = self.make(leases, wish)?;
            Ok(match answer {
                ClaimResult::Acquired(lease) => {
                    // Checked again: other programs may not see the file that stores the grant.
                    self.check_moved(leases)?;
                    (Claimed::Granted(Granted::whole(lease)), begun)
                }
                ClaimResult::Busy(current) => (Claimed::Busy(current), None),
            })
        })?;
        self.begun = begun;
        Ok(claimed)
    }

    fn request(&mut self, wish: &Wish<'_>) -> Result<Option<i64>> {
        let Wish { name, owner, request, .. } = *wish;
        self.asks.with(|FileLeases { store, .. }| {
            let open = store.requested(name, When::Now, |requester, _| requester == owner)?;
            Ok(match (request, open) {
                (_, Some(true)) => store.repeat_request(name, owner, When::Now)?,
                // Another owner has a request open, or this owner may not make one.
                (_, Some(false)) | (None, None) => None,
                (Some(within), None) => {
                    let within_ms = in_ms(within);
                    store.request(name, owner, within_ms, When::Now, |answer| match answer {
                        RequestResult::Requested { token, .. } => Some(token),
                        RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => None,
                    })?
                }
            })
        })
    }

    fn accept(
        &mut self,
        wish: &Wish<'_>,
        handed: &Lease,
        asked: Option<i64>,
    ) -> Result<Option<Granted>> {
        self.asks.with(|leases| {
            let tx = leases.begin()?;
            let (name, ttl_ms) = (wish.name, in_ms(wish.ttl));
            let accepted = match asked {
                Some(token) if handed.token > token => {
                    let who = Claimant { owner: &handed.owner, token: Some(handed.token) };
                    tx.store.renew(name, who, ttl_ms, When::Now, |a| a.into_owned())?.renewed()
                }
                _ => {
                    let owned = |lease: Lease<&str>| lease.into_owned();
                    tx.store.accept(name, wish.owner, ttl_ms, When::Now, owned)?
                }
            };
            if let Some(lease) = &accepted {
                self.more.store(*tx, lease)?;
                tx.commit()?;
            }
            Ok(accepted.map(Granted::whole))
        })
    }

    fn withdraw(&mut self, wish: &Wish<'_>) -> Result<Option<Lease>> {
        self.asks.with(|leases| {
            let _ = leases.store.withdraw_request(wish.name, wish.owner);
            Ok(leases.inspect(wish.name)?)
        })
    }

    fn take_back(&mut self, wish: &Wish<'_>) {
        if wish.is_owner_unique {
            let release = |leases: FileLeases<'_>| leases.release_if_stored(wish.name, wish.owner);
            let _ = self.asks.with(|leases| Ok(release(leases)?));
        }
    }

    fn wait(&mut self, wish: &Wish<'_>, current: &Lease, at_most: Duration) {
        self.sleep(wish.cancel, current.expires_at_ms.saturating_sub(now_ms()), at_most);
    }

    fn pause(&mut self, error: &FileError, at_most: Duration) -> bool {
        let may_pass = matches!(error, FileError::Verb(error) if is_busy(error));
        if may_pass {
            self.sleep(None, LOCKED_PAUSE_MS, at_most);
        }
        may_pass
    }

    fn rows(&self) -> Result<Box<dyn Rows>> {
        let patience = |leases: FileLeases<'_>| Ok(leases.store.connection().busy_timeout());
        let rows = open_rows(&self.file, GrantKind::Names, self.asks.with(patience)?)?;
        // Checked again: the rows may belong to a file that has replaced this one.
        self.asks.with(|leases| self.check_moved(leases))?;
        Ok(rows)
    }
}

impl More<'_> {
    fn is_empty(&self) -> bool {
        self.value.is_none() && self.progress_within.is_none() && self.max_time.is_none()
    }

    fn store(&self, leases: FileLeases<'_>, lease: &Lease) -> Result<(), Error> {
        let (store, Lease { name, token, .. }) = (leases.store, lease);
        if let Some(value) = self.value {
            let _ = store.attach(name, *token, value, When::Now)?;
        }
        if self.progress_within.is_some() || self.max_time.is_some() {
            let not_after_ms = self.max_time.map(|time| now_ms().saturating_add(in_ms(time)));
            let within_ms = self.progress_within.map(in_ms);
            let _ = store.limit(name, *token, within_ms, not_after_ms, When::Now)?;
        }
        Ok(())
    }
}

fn ask(leases: FileLeases<'_>, wish: &Wish<'_>) -> Result<ClaimResult, Error> {
    let Wish { name, owner, .. } = *wish;
    let (store, ttl_ms) = (leases.store, in_ms(wish.ttl));
    match wish.dead {
        Some(dead) => {
            let dead = Claimant { owner: &dead.owner, token: Some(dead.token) };
            store.claim_from_dead(name, owner, ttl_ms, When::Now, dead, |a| a.into_owned())
        }
        None => store.claim(name, owner, ttl_ms, When::Now, 0, |answer| answer.into_owned()),
    }
}

/// Opens rows for the keeper.
pub fn open_rows(
    file: &DatabaseFile,
    kind: GrantKind,
    patience: Duration,
) -> Result<Box<dyn Rows>, Error> {
    Ok(Box::new(patiently(patience, || KeptRows::open(file, kind))?))
}

/// Opens a handle for the keeper. The keeper's connection waits for no writer, because other files
/// wait for the keeper. So this waits for a writer that blocks the first read.
pub fn patiently<T>(patience: Duration, open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begin = SystemClock.now();
    loop {
        match open() {
            Err(error) if is_busy(&error) && SystemClock.now() < begin + patience => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
}
