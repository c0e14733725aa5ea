//! Ticks: a scheduled job once, although every process has the schedule.

use std::time::Duration;

use litelease_core::TickResult;
use litelease_core::{
    ClaimTickResult, FinishTickResult, NewestTick, TickChange, TickInfo, TickOutcome, TickRequest,
};
use litelease_store::TickClaim;

use crate::leases::in_ms;
use crate::{GrantRef, Leases, Result};

/// Ticks: the instants that a schedule plans. A tick is run once, however many processes have it.
impl Leases {
    /// Begins and finishes a tick in one step, and returns whether it is the caller's: `First` for
    /// exactly one of all callers.
    ///
    /// In a transaction the tick is part of it, so what else is written there happens once per
    /// tick, exactly. In autocommit an effect that follows happens at most once.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # db.conn().execute_batch("CREATE TABLE digests (day INTEGER)")?;
    /// for _worker in 0..3 {
    ///     let tx = db.transaction()?;
    ///     if tx.tick("digest", 86_400_000)? == TickResult::First {
    ///         tx.conn().execute("INSERT INTO digests VALUES (1)", [])?;
    ///     }
    ///     tx.commit()?;
    /// }
    /// let digests: i64 = db.conn().query_row("SELECT count(*) FROM digests", [], |row| row.get(0))?;
    /// assert_eq!(digests, 1);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn tick(&self, name: &str, tick_ms: i64) -> Result<TickResult> {
        self.run(|store| store.tick(name, tick_ms, self.when()))
    }

    /// Grants a tick to `owner` for `ttl`, unless it is taken or the name has a live lease.
    ///
    /// A tick that is open although its holder is gone is granted again, as its next attempt.
    /// Finish it with [`finish_tick`](Leases::finish_tick); renew the lease meanwhile as any other.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_secs(30);
    /// let ClaimTickResult::Acquired { lease, .. } = db.claim_tick("nightly", "a", ttl, 60_000)? else {
    ///     panic!("it is free")
    /// };
    /// assert!(db.finish_tick(&lease, TickOutcome::Done)?.is_finished());
    /// let late = db.claim_tick("nightly", "b", ttl, 60_000)?;
    /// assert!(matches!(late, ClaimTickResult::AlreadyTaken(newest) if newest.tick_ms == 60_000));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_tick(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        tick: impl Into<TickRequest>,
    ) -> Result<ClaimTickResult> {
        let claim = TickClaim { asked: tick.into(), schedule: None };
        let (ttl_ms, when) = (in_ms(ttl), self.when());
        self.run(|store| {
            store.claim_tick(name, owner, ttl_ms, claim, when, None, |it| it.into_owned())
        })
    }

    /// Finishes the tick of a grant, and ends the grant. It passes as long as no newer token of the
    /// name exists, expired or not. In a transaction it is part of it.
    ///
    /// The same call again is answered with `Repeated`: no effect may be repeated then.
    pub fn finish_tick<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        outcome: TickOutcome,
    ) -> Result<FinishTickResult> {
        let GrantRef { name, token, .. } = grant.into();
        let finished = self.run(|store| store.finish_tick(name, token, outcome, self.when()))?;
        self.notify();
        Ok(finished)
    }

    /// Skips every tick up to now, or up to `until_ms`: it pauses a schedule, ends a pause, and
    /// cures [`TickAhead`](crate::Error::TickAhead). While a holder is at work on such a tick it is
    /// busy; with `breaks` it ends that holder's lease in the same commit.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_secs(30);
    /// let _ = db.at(100).skip_ticks("nightly", Some(900), false)?;
    /// let paused = db.at(500).claim_tick("nightly", "a", ttl, 500)?;
    /// assert!(matches!(paused, ClaimTickResult::AlreadyTaken(_)));
    /// let _ = db.at(600).skip_ticks("nightly", None, false)?;
    /// let resumed = db.at(700).claim_tick("nightly", "a", ttl, 700)?;
    /// assert!(matches!(resumed, ClaimTickResult::Acquired { .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn skip_ticks(
        &self,
        name: &str,
        until_ms: Option<i64>,
        breaks: bool,
    ) -> Result<TickChange> {
        let when = self.when();
        let skipped =
            self.run(|store| store.skip_ticks(name, until_ms, breaks, when, |it| it.into_owned()))?;
        self.notify();
        Ok(skipped)
    }

    /// Opens the newest tick once more, with all its attempts.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// assert_eq!(db.tick("digest", 60_000)?, TickResult::First);
    /// assert!(matches!(db.tick_again("digest")?, TickChange::Changed(_)));
    /// assert_eq!(db.tick("digest", 60_000)?, TickResult::First);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn tick_again(&self, name: &str) -> Result<TickChange> {
        let opened = self.run(|store| store.tick_again(name, self.when(), |it| it.into_owned()))?;
        self.notify();
        Ok(opened)
    }

    /// Deletes the newest tick of a schedule that is no more. While a holder is at work on it, it
    /// is busy.
    pub fn forget_tick(&self, name: &str) -> Result<TickChange> {
        self.run(|store| store.forget_tick(name, self.when(), |it| it.into_owned()))
    }

    /// Stores the newest past tick of a schedule as skipped, if `name` has no tick yet, so that
    /// installing the schedule runs nothing. Returns the newest tick.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.install_schedule("nightly", 60_000, "0 3 * * *")?;
    /// assert!(matches!(db.tick("nightly", 60_000)?, TickResult::AlreadyTaken(_)));
    /// assert_eq!(db.tick("nightly", 120_000)?, TickResult::First);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn install_schedule(&self, name: &str, tick_ms: i64, text: &str) -> Result<NewestTick> {
        self.run(|store| store.install_tick(name, tick_ms, Some(text), self.when()))
    }

    /// Returns the newest tick of `name`, if it has one. Takes no write lock.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let _ = db.tick("digest", 60_000)?;
    /// let info: TickInfo = db.newest_tick("digest")?.unwrap();
    /// let tick: Tick = info.tick;
    /// assert_eq!(tick.newest(), NewestTick { tick_ms: 60_000, state: TickState::Done });
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn newest_tick(&self, name: &str) -> Result<Option<TickInfo>> {
        self.run(|store| store.newest_tick(name, self.when()))
    }

    /// Returns the newest tick of every name, by name. Takes no write lock.
    pub fn ticks(&self) -> Result<Vec<TickInfo>> {
        self.run(|store| store.ticks(self.when()))
    }
}
