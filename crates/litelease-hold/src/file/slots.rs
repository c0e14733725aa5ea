//! Held slots of a pool: borrowed, kept alive by the keeper, and returned at the end.

use std::path::Path;
use std::time::Duration;

use litelease_core::Lease;
use litelease_store::{BorrowOptions, Borrowed, Error, SlotRow, Store, When};

use super::{Asks, FileError, FilePlace, GrantKind, More, in_ms, is_busy, now_ms, open_rows};
use crate::{
    Acquired, Cancel, Clock, Granted, Held, HoldError, HoldLimits, Identity, SystemClock, Waiter,
    Window, keep, time_to_next_read, unique,
};

type Result<T, E = HoldError<FileError>> = std::result::Result<T, E>;

/// The shortest time between two checks whether holders are dead, however often the file changes.
const DEATH_CHECK: Duration = Duration::from_millis(250);

/// How long a waiter sleeps if the file is locked.
const LOCKED_PAUSE: Duration = Duration::from_millis(10);

/// A request for a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotWish<'w> {
    /// The id of the pool.
    pub pool: &'w str,
    /// How long each renewal lasts.
    pub ttl: Duration,
    /// How long to wait for a free slot.
    pub wait: Duration,
    /// A text for operators. If it is the text of an [`Identity`] that holds, a successor takes the
    /// slot over when that process is dead.
    pub note: Option<&'w str>,
    /// The limits that the hold keeps itself.
    pub limits: HoldLimits,
    /// Ends the wait.
    pub cancel: Option<&'w Cancel>,
}

/// Borrows a slot and keeps it alive. Returns the hold, whose secret is the id of the lease, and
/// the number of the slot, or `None` if no slot came free in time. Waiters are not queued. If the
/// file is locked, tries for `patience`.
pub(crate) fn hold_slot(
    asks: impl Asks,
    wish: &SlotWish<'_>,
    patience: Duration,
) -> Result<Option<(Held, i64)>> {
    let SlotWish { pool, ttl, limits, .. } = *wish;
    let first = limits.first(ttl);
    for ttl in [first, ttl] {
        Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
    }
    let FilePlace { asks, file, .. } =
        FilePlace::new(asks, More::default()).map_err(HoldError::Lease)?;
    let home = file.home("slots")?;
    // The key finds the slot again if the answer is lost.
    let key = unique();
    let borrow = |store: &Store| {
        let options = BorrowOptions { key: Some(&key), note: wish.note };
        store.borrow_slot(pool, in_ms(first), When::Now, options)
    };
    let take_back = || {
        let _ = asks.with(|leases| {
            if let Some(lent) = borrow(leases.store)? {
                leases.store.return_slot(pool, &lent.lease_id, When::Now)?;
                leases.freed();
            }
            Ok(())
        });
    };
    let (borrowed, start) = match wait_for_slot(&asks, wish, &file, patience, borrow) {
        Ok(Some(borrowed)) => borrowed,
        Ok(None) => return Ok(None),
        Err(FileError::Verb(Error::CommitUnknown(failure))) => {
            take_back();
            return Err(Error::CommitUnknown(failure).into());
        }
        Err(error) => return Err(HoldError::Lease(error)),
    };
    let position = borrowed.slot.position;
    let (token, expires_at_ms) = (borrowed.slot.token, borrowed.slot.expires_at_ms);
    let lease =
        Lease { name: pool.into(), owner: format!("slot {position}"), token, expires_at_ms };
    let lasts = (first < ttl).then_some(first);
    let granted = Granted { secret: borrowed.lease_id, lasts, limits, ..Granted::whole(lease) };
    let patience =
        asks.with(|leases| Ok(leases.store.connection().busy_timeout())).unwrap_or(patience);
    let rows = || Ok(open_rows(&file, GrantKind::Slots, patience)?);
    match keep(&home, Acquired { granted, start }, ttl, rows) {
        Ok(held) => Ok(Some((held, position))),
        Err(error) => {
            // No keeper would keep it alive.
            take_back();
            Err(error)
        }
    }
}

/// Borrows a slot. Also returns when that began.
fn wait_for_slot(
    asks: &impl Asks,
    wish: &SlotWish<'_>,
    file: &str,
    patience: Duration,
    borrow: impl Fn(&Store) -> Result<Option<Borrowed>, Error>,
) -> Result<Option<(Borrowed, Duration)>, FileError> {
    let begin = SystemClock.now();
    let (mut waiter, mut next_death_check, mut locked_since) = (None, begin, None);
    loop {
        asks.go_on()?;
        let generation = waiter.as_ref().map_or(0, Waiter::generation);
        let start = SystemClock.now();
        let checks_deaths = start >= next_death_check;
        let tried = asks.with(|leases| {
            let store = leases.store;
            if let Some(borrowed) = borrow(store)? {
                return Ok(Ok(borrowed));
            }
            if checks_deaths && free_dead_slots(store, wish.pool)? {
                leases.freed();
                return Ok(Err(0)); // and at once again
            }
            Ok(Err(store.next_expiry(wish.pool)?.unwrap_or(i64::MAX)))
        });
        if checks_deaths {
            next_death_check = start + DEATH_CHECK;
        }
        let free_at_ms = match tried {
            Ok(Ok(borrowed)) => return Ok(Some((borrowed, start))),
            Ok(Err(free_at_ms)) => {
                locked_since = None;
                free_at_ms
            }
            Err(FileError::Verb(error)) if is_busy(&error) => {
                let since = *locked_since.get_or_insert(start);
                if SystemClock.now() >= since + patience {
                    return Err(error.into());
                }
                std::thread::sleep(LOCKED_PAUSE);
                continue;
            }
            Err(error) => return Err(error),
        };
        let left = wish.wait.saturating_sub(SystemClock.now().saturating_sub(begin));
        let is_over = left.is_zero() || wish.cancel.is_some_and(Cancel::is_cancelled);
        match &waiter {
            _ if free_at_ms == 0 => {}
            _ if is_over => return Ok(None),
            Some(waiter) => {
                let left = left.min(asks.longest_sleep());
                let time = time_to_next_read(free_at_ms.saturating_sub(now_ms()), left);
                waiter.wait_unless_cancelled(wish.cancel, generation, time);
            }
            // The loop borrows once more before it sleeps, because earlier wake-ups were missed.
            None => waiter = Some(Waiter::at(Path::new(file))),
        }
    }
}

/// Frees the slots of a pool whose notes name a dead holder. Returns whether there was one.
fn free_dead_slots(store: &Store, pool: &str) -> Result<bool, Error> {
    let holder = |row: &SlotRow| row.note.as_deref().and_then(Identity::parse);
    let mut is_freed = false;
    for row in store.slots(pool, When::Now)? {
        if !row.slot.is_kept() && holder(&row).is_some_and(|holder| holder.is_dead()) {
            is_freed |= store.break_slot(pool, row.slot.position, row.slot.token, When::Now)?;
        }
    }
    Ok(is_freed)
}
