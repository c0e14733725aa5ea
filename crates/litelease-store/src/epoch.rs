//! Keeping the epoch: the floor of all tokens and the boot that may have lost some, in
//! `litelease_meta`.
//!
//! `litelease_core::Epoch` has the rules of an epoch. This module reads it, and stores it so that a
//! power cut cannot take it even where it can take a grant.

use std::cell::Cell;

use litelease_core::{CommitContext, Epoch, epochs_left, next_epoch};

use crate::boot::Boot;
use crate::grant::MAX_RECORDS;
use crate::schema::{FORMAT, META, create, damaged_meta};
use crate::sqlite::{Value, code};
use crate::statements::{CONFIRM_EPOCH, FORGET_EPOCH, JOURNAL_MODE, KEEP_EPOCH, execute_once};
use crate::transaction::Boundary;
use crate::{Error, Store};

/// The `synchronous` at which no journal mode loses a commit: EXTRA.
const EXTRA: i64 = 3;

/// The epoch of a file, for operators.
///
/// ```
/// # use litelease_store::{BootRecord, EpochInfo};
/// let info = EpochInfo { newest: 41, boot: BootRecord::Durable };
/// assert_eq!(info.epochs_left(), (1 << 21) - 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochInfo {
    /// The floor of the file, or its largest token if that is larger.
    pub newest: i64,
    /// The record of the present boot.
    pub boot: BootRecord,
}

/// The record of the present boot in a file, which keeps tokens in order after a power cut.
///
/// ```
/// # use litelease_store::BootRecord;
/// assert_ne!(BootRecord::Missing, BootRecord::Durable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootRecord {
    /// There is none. `bootstrap` leaves it, or the next grant outside a transaction that a power
    /// cut could take.
    Missing,
    /// There is one, and a power cut may still take it, with the grants that rely on it.
    AtRisk,
    /// There is one that no power cut takes.
    Durable,
}

impl EpochInfo {
    /// Returns how many epochs are left until tokens reach 2⁵³. Each boot takes one, and
    /// `restore_fence` 16,384.
    ///
    /// ```
    /// # use litelease_store::{BootRecord, EpochInfo};
    /// assert_eq!(EpochInfo { newest: 1 << 53, boot: BootRecord::Missing }.epochs_left(), 0);
    /// ```
    pub fn epochs_left(self) -> i64 {
        epochs_left(self.newest)
    }

    /// Returns the floor of the next epoch, above every token of the file; `None` if there is none.
    ///
    /// ```
    /// # use litelease_store::{BootRecord, EpochInfo};
    /// let info = EpochInfo { newest: 41, boot: BootRecord::Durable };
    /// assert_eq!(info.next_floor(), Some(1 << 32));
    /// ```
    pub fn next_floor(self) -> Option<i64> {
        next_epoch(self.newest).ok()
    }
}

/// The state of one store concerning the epoch of its file.
#[derive(Default)]
pub(crate) struct EpochState {
    /// The file has a table that keeps its epoch, as of the last check of its schema.
    pub(crate) has_epoch: Cell<bool>,
    /// The present boot as of the same check; 0 for a database in memory.
    pub(crate) boot: Cell<i64>,
    /// This store has seen a durable record of the present boot. It may be at risk again since.
    pub(crate) has_recorded: Cell<bool>,
    /// The epoch to confirm after the present commit.
    unconfirmed: Cell<Unconfirmed>,
}

/// The epoch to confirm after a commit of our own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Unconfirmed {
    /// There is no such commit: an epoch is stored as it is.
    #[default]
    No,
    /// Nothing yet.
    Nothing,
    /// This epoch.
    Epoch(Epoch),
}

impl Store {
    /// Returns the epoch that is needed before `token` may be granted, if this one will not do.
    pub(crate) fn needed(
        &self,
        boundary: Boundary,
        epoch: Epoch,
        token: i64,
    ) -> Result<Option<Epoch>, Error> {
        needed(epoch, self.commit_context(boundary)?, token)
    }

    /// Stores the epoch that is needed before `token` may be granted.
    pub(crate) fn record_epoch(&self, boundary: Boundary, token: i64) -> Result<(), Error> {
        self.recorded(boundary, |context| self.record_needed(context, token))
    }

    /// Stores the epoch that is needed before `token` may be granted, in an open transaction.
    pub(crate) fn record_needed(&self, context: CommitContext, token: i64) -> Result<(), Error> {
        self.verify()?;
        match needed(self.epoch_record()?, context, token)? {
            Some(epoch) => self.keep(epoch),
            // Another connection was faster.
            None => Ok(()),
        }
    }

    /// Records the present boot so that no power cut can take that, if it is not recorded yet.
    ///
    /// On a read-only connection it does nothing: no grant can come through it, either.
    pub(crate) fn record_boot(&self) -> Result<(), Error> {
        if recording(self.epoch_record()?, self.commit_context(Boundary::Own)?)?.is_some() {
            match self.recorded(Boundary::Own, |context| self.keep_recording(context)) {
                Err(error) if self.is_for_reading(&error) => return Ok(()),
                done => done?,
            }
            self.epoch_state.has_epoch.set(true);
        }
        self.epoch_state.has_recorded.set(true);
        Ok(())
    }

    /// Checks whether a write failed because the connection can never write. `query_only` does not
    /// count: the caller can switch it off and claim.
    fn is_for_reading(&self, error: &Error) -> bool {
        let is_readonly =
            matches!(error, Error::Sqlite(failure) if failure.code & 0xff == code::READONLY);
        is_readonly && self.connection.answers_one("PRAGMA query_only").is_ok_and(|is_on| !is_on)
    }

    /// Records the present boot in an open transaction, if it is not recorded yet.
    pub(crate) fn keep_recording(&self, context: CommitContext) -> Result<(), Error> {
        self.verify()?;
        match recording(self.epoch_record()?, context)? {
            Some(epoch) => self.keep(epoch),
            // Another connection was faster.
            None => Ok(()),
        }
    }

    /// Opens a transaction with the present boot durably recorded, if the file has leases.
    ///
    /// The record is looked at under the write lock, each time: a transaction that another caller
    /// begins can put it at risk, and inside a transaction there is no way to make it durable.
    pub(crate) fn open_recorded(&self, open: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        for _ in 0..MAX_RECORDS {
            let is_recorded = self.record_boot_before_transaction()?;
            open()?;
            if !is_recorded {
                return Ok(());
            }
            match self.is_boot_still_recorded() {
                Ok(true) => return Ok(()),
                looked => self.rollback().and(looked.map(drop))?,
            }
        }
        Err(damaged_meta())
    }

    /// Records the present boot before a transaction in which grants may follow, if the file has
    /// leases and this store has not seen the record yet.
    /// [`is_boot_still_recorded`](Store::is_boot_still_recorded) checks it again inside the
    /// transaction.
    ///
    /// A file without leases, or with unusable ones, is no error here: the verbs return it. Returns
    /// whether the boot is recorded.
    pub fn record_boot_before_transaction(&self) -> Result<bool, Error> {
        if self.epoch_state.has_recorded.get() || self.boundary()? != Boundary::Own {
            return Ok(self.epoch_state.has_recorded.get());
        }
        let recorded = match self.verify().and_then(|()| self.record_boot()) {
            Err(
                Error::NotBootstrapped
                | Error::SchemaMismatch { .. }
                | Error::NewerFormat { .. }
                | Error::TokenExhausted { .. },
            ) => Ok(()),
            done => done,
        };
        recorded.map(|()| self.epoch_state.has_recorded.get())
    }

    /// Checks whether the record of the present boot is still durable. It costs one read where this
    /// store has seen it.
    pub fn is_boot_still_recorded(&self) -> Result<bool, Error> {
        let found = match self.epoch_state.has_recorded.get() {
            true => self.epoch_record().map(|epoch| epoch.boot == self.connection.boot()),
            false => self.boot_record().map(|record| record == BootRecord::Durable),
        };
        let is_recorded = match found {
            // The table is gone, or is another one now.
            Err(Error::Sqlite(failure)) if failure.code & 0xff == code::ERROR => false,
            Err(
                Error::NotBootstrapped | Error::SchemaMismatch { .. } | Error::NewerFormat { .. },
            ) => false,
            found => found?,
        };
        self.epoch_state.has_recorded.set(is_recorded);
        Ok(is_recorded)
    }

    /// Returns what the file knows of its epoch.
    pub fn epoch(&self) -> Result<EpochInfo, Error> {
        self.with_context("look at the epoch", None, || {
            let boot = self.boot_record()?;
            Ok(EpochInfo { newest: self.newest()?, boot })
        })
    }

    /// Returns the floor of the file, or its largest token if that is larger.
    pub(crate) fn newest(&self) -> Result<i64, Error> {
        let names = self.list()?.into_iter().map(|row| row.token).max().unwrap_or(0);
        let slots = if self.verify_pools()? { self.newest_slot_token()? } else { 0 };
        let floor = self.epoch_record()?.floor;
        let queues = if self.verify_queues()? { self.newest_in_queues()? } else { 0 };
        Ok(floor.max(names).max(slots).max(queues))
    }

    /// Returns whether the present boot is recorded.
    pub fn boot_record(&self) -> Result<BootRecord, Error> {
        self.verify()?;
        Ok(match (self.epoch_record()?.boot, self.connection.boot()) {
            // Nothing in memory outlives a boot.
            (_, 0) => BootRecord::Durable,
            (found, boot) if found == boot => BootRecord::Durable,
            (found, boot) if found == -boot => BootRecord::AtRisk,
            _ => BootRecord::Missing,
        })
    }

    /// Raises the floor to `floor` at least, in the open transaction, and returns it.
    pub(crate) fn raise_floor(&self, context: CommitContext, floor: i64) -> Result<i64, Error> {
        let raised = self.epoch_record()?.raised(floor, context);
        let raised = raised.map_err(|refusal| Error::refused(EVERY_NAME, refusal))?;
        self.keep(raised).map(|()| raised.floor)
    }

    /// Raises the floor above every token there can be, in a transaction that is open.
    pub(crate) fn retire_floor(&self, context: CommitContext) -> Result<(), Error> {
        let retired = self.epoch_record()?.retired(context);
        self.keep(retired.map_err(|refusal| Error::refused(EVERY_NAME, refusal))?)
    }

    /// Returns the floor of the file: every token that is granted from now on is larger.
    pub fn token_floor(&self) -> Result<i64, Error> {
        self.with_context("look at the floor", None, || Ok(self.epoch_record()?.floor))
    }

    pub(crate) fn epoch_record(&self) -> Result<Epoch, Error> {
        if !self.epoch_state.has_epoch.get() {
            return Ok(Epoch::default());
        }
        self.epoch_in_batch(|| self.stored_epoch())
    }

    fn stored_epoch(&self) -> Result<Epoch, Error> {
        self.statements.epoch.with(self.connection, |statement| {
            let mut run = statement.run(&[])?;
            run.step()?;
            let number = |index| run.column(index).and_then(Value::integer);
            let (Some(floor @ 0..), Some(boot)) = (number(0), number(1)) else {
                // It may also be one of a newer format.
                return Err(self.verify().err().unwrap_or_else(damaged_meta));
            };
            let boot = Boot::present().read(boot, floor, &self.connection.filename());
            Ok(Epoch { floor, boot })
        })
    }

    /// Does `work` in the transaction, and commits it, if it is ours, so that no power cut can take
    /// it.
    ///
    /// The caller's `synchronous` is put back before this returns, whatever comes of it.
    pub(crate) fn durably<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce(CommitContext) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // The change is committed even if the epoch could not be confirmed: the next grant confirms
        // it.
        self.commit_and_confirm(boundary, work).map(|(done, _)| done)
    }

    /// Does `work` like [`durably`](Store::durably). It only records the boot, so it fails if that
    /// cannot be confirmed.
    pub(crate) fn recorded(
        &self,
        boundary: Boundary,
        work: impl FnOnce(CommitContext) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.commit_and_confirm(boundary, work)?.1
    }

    /// Returns the result of the work, and whether its epoch is confirmed.
    fn commit_and_confirm<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce(CommitContext) -> Result<T, Error>,
    ) -> Result<(T, Result<(), Error>), Error> {
        let context = self.commit_context(boundary)?;
        if !context.is_own {
            return self.within(boundary, || work(context)).map(|done| (done, Ok(())));
        }
        self.epoch_state.unconfirmed.set(Unconfirmed::Nothing);
        let done = match context.may_lose_commits {
            true => self.with_synchronous(EXTRA, || self.within(boundary, || work(context))),
            false => self.within(boundary, || work(context)),
        };
        let unconfirmed = self.epoch_state.unconfirmed.replace(Unconfirmed::No);
        let confirmed = match unconfirmed {
            Unconfirmed::Epoch(epoch) if done.is_ok() => self.confirm(epoch),
            _ => Ok(()),
        };
        done.map(|done| (done, confirmed))
    }

    /// Marks an epoch as sure, once the commit that made it has been synced.
    ///
    /// A process that is killed in between leaves it unsure, so the next process makes it anew:
    /// that process would see an epoch that a power cut can still take. If this commit gets lost,
    /// that is no harm either.
    fn confirm(&self, epoch: Epoch) -> Result<(), Error> {
        let values = [epoch.boot, epoch.floor].map(Value::Integer);
        self.within(Boundary::Own, || execute_once(self.connection, CONFIRM_EPOCH, &values))
    }

    fn with_synchronous<T>(
        &self,
        level: i64,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let raised_from = &self.transaction_state.raised_from;
        if raised_from.get().is_none() {
            raised_from.set(Some(self.connection.synchronous()?));
        }
        let done = match self.connection.set_synchronous(level) {
            Ok(()) => work(),
            Err(failure) => Err(Error::Sqlite(failure)),
        };
        self.put_back_synchronous();
        done
    }

    /// Gives the caller their `synchronous` back.
    ///
    /// After a rollback that has changed the schema, SQLite must read that again first, and does
    /// not while it is interrupted. Then the next call of this store tries again.
    pub(crate) fn put_back_synchronous(&self) {
        let raised_from = &self.transaction_state.raised_from;
        if let Some(level) = raised_from.get()
            && self.connection.set_synchronous(level).is_ok()
        {
            raised_from.set(None);
        }
    }

    fn keep(&self, epoch: Epoch) -> Result<(), Error> {
        if !self.epoch_state.has_epoch.get() {
            create(self.connection, &META)?;
        }
        let epoch = self.unsure(epoch)?;
        self.connection.keeping_last_insert_rowid(|| {
            let values = [FORMAT, epoch.floor, epoch.boot].map(Value::Integer);
            execute_once(self.connection, KEEP_EPOCH, &values)
        })?;
        self.forget_epoch();
        Boot::present().remember(epoch.floor, self.connection.filename());
        Ok(())
    }

    /// Returns the epoch as it is stored before it is confirmed.
    fn unsure(&self, epoch: Epoch) -> Result<Epoch, Error> {
        if epoch.boot <= 0 || self.epoch_state.unconfirmed.get() == Unconfirmed::No {
            return Ok(epoch);
        }
        // SQLite writes and syncs nothing for an update that changes nothing, so the row is deleted
        // first.
        execute_once(self.connection, FORGET_EPOCH, &[])?;
        self.epoch_state.unconfirmed.set(Unconfirmed::Epoch(epoch));
        Ok(Epoch { boot: -epoch.boot, ..epoch })
    }

    /// Returns the commit context of this transaction.
    ///
    /// In a file that has no epoch because nothing was ever at risk, every grant asks: the caller
    /// may have changed the pragmas. That is little next to the sync that such a grant waits for.
    pub(crate) fn commit_context(&self, boundary: Boundary) -> Result<CommitContext, Error> {
        if let Some(context) = self.context_in_batch() {
            // The pragmas cannot change in a transaction.
            return Ok(context);
        }
        Ok(CommitContext {
            boot: self.connection.boot(),
            may_lose_commits: self.may_lose_commits()?,
            is_own: boundary == Boundary::Own,
        })
    }

    /// Checks whether a power cut can take commits that this connection has acknowledged.
    fn may_lose_commits(&self) -> Result<bool, Error> {
        if self.connection.boot() == 0 {
            return Ok(false);
        }
        let synchronous = self.connection.synchronous()?;
        // SQLite compiles this one anew for every run, so there is no use in keeping it.
        let mut statement = self.connection.prepare(JOURNAL_MODE)?;
        let mut run = statement.run(&[])?;
        run.step()?;
        let journal_mode = run.column(0).and_then(Value::text).unwrap_or_default();
        Ok(!is_strong(journal_mode, synchronous))
    }
}

/// Checks whether commits made like this survive a power cut.
///
/// These are the combinations from which simulated power cuts took nothing; docs/durability.md has
/// the table. All others count as weak.
pub(crate) fn is_strong(journal_mode: &str, synchronous: i64) -> bool {
    match journal_mode {
        "wal" | "truncate" | "persist" => synchronous >= 2,
        "delete" => synchronous >= EXTRA,
        _ => false,
    }
}

fn recording(epoch: Epoch, context: CommitContext) -> Result<Option<Epoch>, Error> {
    epoch.recording(context).map_err(|refusal| Error::refused(EVERY_NAME, refusal))
}

fn needed(epoch: Epoch, context: CommitContext, token: i64) -> Result<Option<Epoch>, Error> {
    epoch.needed(token, context).map_err(|refusal| Error::refused(EVERY_NAME, refusal))
}

/// The name in an error about the file's own numbers.
pub(crate) const EVERY_NAME: &str = "every name";
