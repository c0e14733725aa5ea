//! Pools of numbered slots: the verbs, each as a call of the rule.

use litelease_core::{
    Lease, MAX_COUNT, MAX_TEXT, PoolInfo, Refusal, SlotInfo, Term, borrow_slot, renew_slot,
    slot_term,
};

use crate::grant::{Attempt, check_arrival};
use crate::pool_rows::{BorrowOptions, Borrowed, POOLS, PoolRow, SLOTS, SlotRow};
use crate::schema::create;
use crate::transaction::Boundary;
use crate::{Error, Store, When};

/// The name in an error about a slot. The id of a pool may be a secret.
const A_SLOT: &str = "a slot";

impl Store {
    /// Makes a pool of `count` slots, or changes how many it has.
    ///
    /// Making it smaller takes no slot from its borrower: slots that are lent out stay so, and no
    /// more are lent out until fewer than `count` are.
    pub fn pool(&self, id: &str, count: i64, when: When) -> Result<PoolInfo, Error> {
        self.with_context("register a pool", None, || {
            if !(0..=MAX_COUNT).contains(&count) {
                return Err(Error::InvalidCount { count });
            }
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(pool) = self.find_pool(id, when.now_ms())?
                && pool.count == count
            {
                return Ok(pool.info());
            }
            self.changing_pools(boundary, || {
                let now_ms = when.now_ms();
                match self.find_pool(id, now_ms)? {
                    Some(pool) => {
                        self.resize(pool, count, now_ms)?;
                        Ok(PoolRow { count, ..pool }.info())
                    }
                    None => {
                        if !self.verify_pools()? {
                            create(self.connection, &POOLS)?;
                            create(self.connection, &SLOTS)?;
                        }
                        self.register(id, count, now_ms)?;
                        Ok(PoolInfo { count, in_use: 0 })
                    }
                }
            })
        })
    }

    /// Returns how many slots a pool has and how many are lent out, if there is such a pool. Needs
    /// no write lock.
    pub fn pool_info(&self, id: &str, when: When) -> Result<Option<PoolInfo>, Error> {
        self.with_context("look at a pool", None, || {
            let pool = self.find_pool(id, when.now_ms())?;
            Ok(pool.map(|pool| pool.info()))
        })
    }

    /// Borrows the lowest free slot, if there is one.
    pub fn borrow_slot(
        &self,
        id: &str,
        ttl_ms: i64,
        when: When,
        options: BorrowOptions<'_>,
    ) -> Result<Option<Borrowed>, Error> {
        self.with_context("borrow a slot", None, || {
            check_text("key of a borrow", options.key, 1)?;
            check_text("note of a borrow", options.note, 0)?;
            let boundary = self.boundary()?;
            if boundary.may_look_first()
                && let Some(answer) = self.without_lending(id, ttl_ms, when, options)?
            {
                return Ok(answer);
            }
            let lent = self.with_epoch(boundary, || {
                self.changing_pools(boundary, || {
                    self.attempt_to_lend(boundary, id, ttl_ms, when, options)
                })
            })?;
            if let Some(lent) = &lent {
                check_slot_arrival(when, lent.slot)?;
            }
            Ok(lent)
        })
    }

    /// Returns the slot of a lease, whether its time is up or not. None once it was returned, or
    /// lent to another borrower.
    pub fn slot(&self, id: &str, lease: &str) -> Result<Option<SlotInfo>, Error> {
        self.with_context("look at a slot", None, || {
            let pool = self.find_pool(id, i64::MIN)?.ok_or(Error::NoSuchPool)?;
            Ok(self.by_lease(&pool, lease)?.map(|lent| lent.slot))
        })
    }

    /// Gives a slot back. Answers whether it was still the borrower's.
    pub fn return_slot(&self, id: &str, lease: &str, when: When) -> Result<bool, Error> {
        self.with_context("return a slot", None, || {
            let boundary = self.boundary()?;
            let live = || -> Result<(PoolRow, Option<SlotInfo>), Error> {
                let now_ms = when.now_ms();
                let pool = self.find_pool(id, now_ms)?.ok_or(Error::NoSuchPool)?;
                let lent = self.by_lease(&pool, lease)?.filter(|lent| lent.slot.is_live(now_ms));
                Ok((pool, lent.map(|lent| lent.slot)))
            };
            if boundary.may_look_first() && live()?.1.is_none() {
                return Ok(false);
            }
            self.changing_pools(boundary, || match live()? {
                (mut pool, Some(slot)) => self.give_back_any(&mut pool, slot).map(|()| true),
                (_, None) => Ok(false),
            })
        })
    }

    /// Prolongs a live lease on a slot. None if it is over.
    pub fn renew_slot(
        &self,
        id: &str,
        lease: &str,
        ttl_ms: i64,
        when: When,
    ) -> Result<Option<SlotInfo>, Error> {
        self.with_context("renew a slot", None, || {
            let boundary = self.boundary()?;
            let renewed = || -> Result<(PoolRow, Option<SlotInfo>), Error> {
                let term = term(ttl_ms, when)?;
                let pool = self.find_pool(id, term.now_ms())?.ok_or(Error::NoSuchPool)?;
                let lent = self.by_lease(&pool, lease)?;
                Ok((pool, lent.and_then(|lent| renew_slot(lent.slot, term))))
            };
            if boundary.may_look_first() && renewed()?.1.is_none() {
                return Ok(None);
            }
            let renewed = self.changing_pools(boundary, || {
                let (pool, renewed) = renewed()?;
                if let Some(slot) = renewed {
                    self.prolong(&pool, slot)?;
                }
                Ok(renewed)
            })?;
            if let Some(slot) = renewed {
                check_slot_arrival(when, slot)?;
            }
            Ok(renewed)
        })
    }

    /// Deletes a pool with all its slots. Answers whether there was one.
    ///
    /// The same commit raises the file's floor to its newest token, so that none of its tokens is
    /// ever given again.
    pub fn delete_pool(&self, id: &str) -> Result<bool, Error> {
        self.with_context("delete a pool", None, || {
            let boundary = self.boundary()?;
            if boundary.may_look_first() && self.find_pool(id, i64::MIN)?.is_none() {
                return Ok(false);
            }
            self.durably(boundary, |context| {
                self.all_or_nothing(|| {
                    let Some(pool) = self.find_pool(id, i64::MIN)? else { return Ok(false) };
                    match pool.newest {
                        0 => {}
                        newest => _ = self.raise_floor(context, newest)?,
                    }
                    self.forget_kept_of(&pool)?;
                    self.delete_rows(&pool).map(|()| true)
                })
            })
        })
    }

    /// Returns the slots that are lent out, in the order of their positions. Needs no write lock.
    pub fn slots(&self, id: &str, when: When) -> Result<Vec<SlotRow>, Error> {
        self.slots_from(id, 0, usize::MAX, when)
    }

    /// Lists at most `limit` of the slots that are lent out, from a position on.
    pub fn slots_from(
        &self,
        id: &str,
        from: i64,
        limit: usize,
        when: When,
    ) -> Result<Vec<SlotRow>, Error> {
        self.with_context("list slots", None, || {
            let now_ms = when.now_ms();
            let pool = self.find_pool(id, now_ms)?.ok_or(Error::NoSuchPool)?;
            let from = from.clamp(0, MAX_COUNT + 1);
            self.with_kept_times(&pool, self.live_slots(&pool, from, limit, now_ms)?)
        })
    }

    /// Lists at most `limit` of the pools of which slots are lent out, whose id begins with
    /// `prefix` and comes after `after`, in the order of ids. Needs no write lock.
    pub fn pools_in_use(
        &self,
        prefix: &str,
        after: &str,
        limit: usize,
        when: When,
    ) -> Result<Vec<(String, PoolInfo)>, Error> {
        self.with_context("list the pools", None, || {
            self.store_counts()?;
            match self.verify_pools()? {
                true => self.held_pools(prefix, after, limit, when.now_ms()),
                false => Ok(Vec::new()),
            }
        })
    }

    /// Returns the newest token of any pool, or the file's floor if that is larger: every later one
    /// exceeds it.
    pub fn newest_pool_token(&self) -> Result<i64, Error> {
        self.with_context("look at the tokens of pools", None, || {
            let newest = if self.verify_pools()? { self.newest_slot_token()? } else { 0 };
            Ok(newest.max(self.epoch_record()?.floor))
        })
    }

    /// Counts the pools of the file.
    pub fn count_pools(&self) -> Result<i64, Error> {
        self.with_context("count the pools", None, || match self.verify_pools()? {
            true => self.number_of_pools(),
            false => Ok(0),
        })
    }

    /// Returns when the next lease of a pool ends by itself, if it has one that was not found over
    /// yet.
    pub fn next_expiry(&self, id: &str) -> Result<Option<i64>, Error> {
        self.with_context("look at a pool", None, || {
            let pool = self.find_pool(id, i64::MIN)?.ok_or(Error::NoSuchPool)?;
            self.first_expiry(&pool)
        })
    }

    /// Returns the answer to a borrow where it needs no write lock: the lease of the same key, or
    /// that nothing is free.
    fn without_lending(
        &self,
        id: &str,
        ttl_ms: i64,
        when: When,
        options: BorrowOptions<'_>,
    ) -> Result<Option<Option<Borrowed>>, Error> {
        let now_ms = term(ttl_ms, when)?.now_ms();
        let pool = self.find_pool(id, now_ms)?.ok_or(Error::NoSuchPool)?;
        if let Some(kept) = self.kept(&pool, options.key, now_ms)? {
            return Ok(Some(Some(kept)));
        }
        // The next borrow frees the slots whose time is up, and that is a write.
        let is_full = pool.over == 0 && pool.info().available() == 0;
        Ok(is_full.then_some(None))
    }

    /// Lends a slot, if one is free, with the write lock held.
    fn attempt_to_lend(
        &self,
        boundary: Boundary,
        id: &str,
        ttl_ms: i64,
        when: When,
        options: BorrowOptions<'_>,
    ) -> Result<Attempt<Option<Borrowed>>, Error> {
        // Read the clock here, under the write lock: waiting for the lock takes time too.
        let term = term(ttl_ms, when)?;
        let mut pool = self.find_pool(id, term.now_ms())?.ok_or(Error::NoSuchPool)?;
        if let Some(kept) = self.kept(&pool, options.key, term.now_ms())? {
            return Ok(Attempt::Decided(Some(kept)));
        }
        self.sweep(&mut pool, term.now_ms())?;
        let (snapshot, newest, epoch) =
            (self.pool_snapshot(&pool)?, self.newest_slot_token()?, self.epoch_record()?);
        let slot = borrow_slot(snapshot, term, newest, epoch.floor).map_err(refused)?;
        let Some(slot) = slot else { return Ok(Attempt::Decided(None)) };
        if !self.may_grant(boundary, epoch, slot.token)? {
            return Ok(Attempt::EpochNeeded { token: slot.token });
        }
        self.lend(&mut pool, slot, options).map(|lent| Attempt::Decided(Some(lent)))
    }

    /// Returns the live lease that was borrowed with this key.
    fn kept(
        &self,
        pool: &PoolRow,
        key: Option<&str>,
        now_ms: i64,
    ) -> Result<Option<Borrowed>, Error> {
        let Some(key) = key else { return Ok(None) };
        Ok(self.by_key(pool, key)?.filter(|lent| lent.slot.is_live(now_ms)))
    }

    /// Does all of `work` or nothing, with the write lock held.
    pub(crate) fn changing_pools<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.within(boundary, || match boundary {
            // A failure is rolled back as a whole.
            Boundary::Own => work(),
            Boundary::Joined(_) if self.context_in_batch().is_some() => work(),
            Boundary::Joined(_) => self.all_or_nothing(work),
        })
    }
}

fn term(ttl_ms: i64, when: When) -> Result<Term, Error> {
    slot_term(ttl_ms, when.now_ms()).map_err(refused)
}

fn refused(refusal: Refusal) -> Error {
    Error::refused(A_SLOT, refusal)
}

fn check_text(what: &'static str, text: Option<&str>, least: usize) -> Result<(), Error> {
    match text.map(str::len) {
        Some(bytes) if !(least..=MAX_TEXT).contains(&bytes) => {
            Err(Error::InvalidText { what, least, most: MAX_TEXT, bytes })
        }
        _ => Ok(()),
    }
}

fn check_slot_arrival(when: When, slot: SlotInfo) -> Result<(), Error> {
    let SlotInfo { token, expires_at_ms, .. } = slot;
    let lease = Lease { name: A_SLOT, owner: "", token, expires_at_ms };
    check_arrival(when, lease)
}
