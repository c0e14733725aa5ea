//! Held slots of a pool: borrowed, kept alive by the keeper, and returned at the end.

use std::time::Duration;

use litelease_hold::{
    Clock, Due, HeldGrant, Hold, Kept, ProcessKeeper, Renewal, Rows, Seen, SystemClock, Window,
};

use crate::hold::{busy_timeout, keep};
use crate::kept_rows::KeptRows;
use crate::{
    BorrowOptions, Borrowed, Error, HoldError, Identity, Litelease, Loss, LossSignal, Lost, Result,
    SlotInfo, SlotRow,
};

/// A slot that this process holds. Dropping it returns the slot. Made by
/// [`Litelease::hold_slot`].
///
/// ```
/// # litelease_doctest::file!(db);
/// db.pools().register("importers", 2)?;
/// let slot: HeldSlot = db.hold_slot("importers", Duration::from_secs(30), Duration::ZERO, "")?.unwrap();
/// assert_eq!(slot.position(), 0);
/// slot.check()?;
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Debug)]
#[must_use = "a slot that is dropped is returned"]
pub struct HeldSlot {
    kept: Kept,
    slot: SlotInfo,
    is_returned: bool,
}

/// Returns the id of the pool that `litelease run --slots` and the service use for a name. No UUID
/// looks like it, so nobody reaches it by the URL of a pool.
#[doc(hidden)]
pub fn pool_of_name(name: &str) -> String {
    format!("name:{name}")
}

pub(crate) static SLOTS: ProcessKeeper = ProcessKeeper::new();

impl Litelease {
    /// Borrows a slot and keeps it alive in the background until it is returned or lost. Waits for
    /// a free one for at most `wait`; waiters are not queued. Returns `None` if no slot came free.
    /// `note` tells operators who and why. If it is the text of an [`Identity`] that holds, as
    /// `litelease run --slots` notes it, a successor takes the slot over when that process is dead.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// db.pools().register("importers", 1)?;
    /// let ttl = Duration::from_secs(30);
    /// let slot = db.hold_slot("importers", ttl, Duration::ZERO, "nightly")?;
    /// assert!(db.hold_slot("importers", ttl, Duration::ZERO, "nightly")?.is_none());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn hold_slot(
        &self,
        pool: &str,
        ttl: Duration,
        wait: Duration,
        note: &str,
    ) -> std::result::Result<Option<HeldSlot>, HoldError> {
        let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        let keeper = SLOTS.get()?;
        let file = self.store().file().ok_or(HoldError::InMemory)?;
        let begin = SystemClock.now();
        let watch = self.watch();
        let (borrowed, start) = loop {
            let (seen, start) = (watch.changes(), SystemClock.now());
            let options = BorrowOptions::new().note(note);
            if let Some(borrowed) = self.pools().borrow_with(pool, ttl, options)? {
                if SystemClock.now() < window.end(start) {
                    break (borrowed, start);
                }
                // Waiting for the write lock has taken too long: it was over on arrival.
                self.pools().return_slot(pool, &borrowed.lease_id)?;
            } else if self.free_dead_slots(pool)? {
                continue;
            }
            let left = wait.saturating_sub(SystemClock.now().saturating_sub(begin));
            if left.is_zero() {
                return Ok(None);
            }
            let next_ms = self.pools().next_expiry(pool)?.unwrap_or(i64::MAX);
            watch.wait(seen, next_ms, left);
        };
        let Borrowed { lease_id, slot, .. } = borrowed;
        let grant = HeldGrant { name: pool.into(), owner: lease_id, token: slot.token, ttl };
        let hold = || Hold::new(grant.clone(), window, start, Renewal::whole(slot.expires_at_ms));
        let open = || Ok(Box::new(SlotRows(KeptRows::open(&file)?)) as Box<dyn Rows>);
        match keep(&keeper, &file, hold, open, busy_timeout(self.conn())) {
            Ok(kept) => Ok(Some(HeldSlot { kept, slot, is_returned: false })),
            Err(error) => {
                // Nobody would keep it alive.
                let _ = self.pools().return_slot(pool, &grant.owner);
                Err(error)
            }
        }
    }
}

impl Litelease {
    /// Frees the slots of a pool whose holder is dead by its note. Returns whether there was one.
    fn free_dead_slots(&self, pool: &str) -> Result<bool> {
        let holder = |row: &SlotRow| row.note.as_deref().and_then(Identity::parse);
        let mut is_freed = false;
        for row in self.pools().slots(pool)? {
            if !row.slot.is_kept() && holder(&row).is_some_and(|holder| holder.is_dead()) {
                is_freed |= self.pools().break_slot(pool, row.slot.position, row.slot.token)?;
            }
        }
        Ok(is_freed)
    }
}

impl HeldSlot {
    /// Returns the number of the slot: 0 is the first.
    pub fn position(&self) -> i64 {
        self.slot.position
    }

    /// Returns the fencing token of the slot.
    pub fn token(&self) -> i64 {
        self.slot.token
    }

    /// Returns when the slot ends unless it is renewed, in Unix milliseconds.
    pub fn expires_at_ms(&self) -> i64 {
        self.kept.hold.expires_at_ms()
    }

    /// Checks whether the slot can be trusted to be this process's. Fails in time: before it can be
    /// lent to another one.
    pub fn check(&self) -> std::result::Result<(), Lost> {
        self.kept.hold.check(SystemClock.now()).map_err(|reason| self.as_lost(reason))
    }

    /// Returns a signal on which another thread can wait until the slot is lost.
    pub fn lost(&self) -> LossSignal {
        LossSignal::new(self.kept.hold.clone())
    }

    /// Calls `callback` on a thread of its own when the slot is lost; at once if it already is.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        let name = self.kept.hold.grant().name.clone();
        self.kept.hold.on_lost(move |reason| callback(&Lost { name, reason: reason.clone() }));
    }

    /// Returns the slot. Tries again for a while if the file is locked.
    pub fn give_back(mut self) -> std::result::Result<(), Lost> {
        self.is_returned = true;
        self.kept.release(Duration::from_secs(5)).map_err(|reason| self.as_lost(reason))
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.kept.hold.grant().name.clone(), reason }
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        if !self.is_returned {
            // A drop cannot tell, and must not take long.
            let _ = self.kept.release(Duration::from_millis(100));
        }
    }
}

/// The slots of one file as the keeper renews them. A grant of the keeper's is a borrowed slot
/// here: its name is the pool, and its owner the secret of the lease.
struct SlotRows(KeptRows);

impl SlotRows {
    fn renew_all(&mut self, due: &[Due<'_>]) -> Result<Vec<std::result::Result<Renewal, Loss>>> {
        self.0.db.with(|db| {
            let tx = KeptRows::begin(db)?;
            let mut answers = Vec::with_capacity(due.len());
            for Due { grant, .. } in due {
                answers.push(match tx.pools().renew(&grant.name, &grant.owner, grant.ttl) {
                    Ok(Some(slot)) => Ok(Renewal::whole(slot.expires_at_ms)),
                    Ok(None) if tx.pools().info(&grant.name)?.is_none() => Err(Loss::Broken),
                    Ok(None) => Err(Loss::Expired),
                    // What is wrong with one row is not the others' fault.
                    Err(error @ (Error::InvalidLeaseRow(_) | Error::TimeOverflow { .. })) => {
                        Err(Loss::CannotRenew { error: error.to_string() })
                    }
                    Err(error) => return Err(error),
                });
            }
            tx.commit()?;
            Ok(answers)
        })
    }
}

impl Rows for SlotRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<std::result::Result<Renewal, Loss>> {
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        let answers = self.renew_all(due);
        // Asked again: what was just stored may be in a file that nobody else opens any more.
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        answers.unwrap_or_else(|error| vec![Err(self.0.trouble(&error)); due.len()])
    }

    fn release(&mut self, grant: &HeldGrant) -> std::result::Result<(), Loss> {
        if self.is_moved() {
            return Err(Loss::FileReplaced);
        }
        let give_back = |db: &Litelease| db.pools().return_slot(&grant.name, &grant.owner);
        match self.0.db.with(give_back) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Loss::Expired),
            Err(error) => Err(self.0.trouble(&error)),
        }
    }

    fn look(&mut self, grant: &HeldGrant) -> Seen {
        let found = self.0.db.with(|db| db.pools().slot(&grant.name, &grant.owner));
        // What cannot be read now is left to the renewals.
        let is_current = found.map_or(true, |slot| slot.is_some());
        Seen { is_current: is_current && !self.is_moved(), asked: None }
    }

    fn is_moved(&self) -> bool {
        self.0.is_moved()
    }
}
