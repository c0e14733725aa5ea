//! Keeping the mark: the floor of all tokens and the boot that may have lost some, in `litelease_meta`.
//!
//! What a mark means is `litelease_core::Mark`'s. Here it is read, and stored so that a power cut cannot take
//! it even where it can take a grant.

use litelease_core::{Here, Mark, epochs_left};

use crate::boot::Boot;
use crate::schema::{FORMAT, META, create, damaged_meta};
use crate::sqlite::{Value, code};
use crate::statements::{CONFIRM_MARK, FORGET_MARK, JOURNAL_MODE, KEEP_MARK, execute_once};
use crate::transaction::Boundary;
use crate::{Error, Store};

/// The `synchronous` at which no journal mode loses a commit: EXTRA.
const EXTRA: i64 = 3;

/// What a file knows of its epoch, for operators.
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
    /// Whether the present boot is recorded.
    pub boot: BootRecord,
}

/// Whether a file has a record of the present boot, which keeps tokens in order after a power cut.
///
/// ```
/// # use litelease_store::BootRecord;
/// assert_ne!(BootRecord::Missing, BootRecord::Durable);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootRecord {
    /// There is none. `bootstrap` leaves it, or the next grant outside a transaction that a power cut could take.
    Missing,
    /// There is one, and a power cut may still take it, with the grants that rely on it.
    AtRisk,
    /// There is one that no power cut takes.
    Durable,
}

impl EpochInfo {
    /// Returns how many epochs are left until tokens reach 2⁵³. Each boot takes one, and `restore_fence` 16,384.
    ///
    /// ```
    /// # use litelease_store::{BootRecord, EpochInfo};
    /// assert_eq!(EpochInfo { newest: 1 << 53, boot: BootRecord::Missing }.epochs_left(), 0);
    /// ```
    pub fn epochs_left(self) -> i64 {
        epochs_left(self.newest)
    }
}

/// What is to be confirmed after a commit of our own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unconfirmed {
    /// There is no such commit: a mark is stored as it is.
    No,
    /// Nothing yet.
    Nothing,
    /// This mark.
    Mark(Mark),
}

impl Store {
    /// The mark that is needed before `token` may be granted, if this one will not do.
    pub(crate) fn needed(
        &self,
        boundary: Boundary,
        mark: Mark,
        token: i64,
    ) -> Result<Option<Mark>, Error> {
        needed(mark, self.here(boundary)?, token)
    }

    /// Stores the mark that is needed before `token` may be granted.
    pub(crate) fn leave_mark(&self, boundary: Boundary, token: i64) -> Result<(), Error> {
        self.durably(boundary, |here| self.keep_needed(here, token))
    }

    /// The same in a transaction that is open.
    pub(crate) fn keep_needed(&self, here: Here, token: i64) -> Result<(), Error> {
        self.verify()?;
        match needed(self.mark()?, here, token)? {
            Some(mark) => self.keep(mark),
            // Somebody else was faster.
            None => Ok(()),
        }
    }

    /// Records the present boot so that no power cut can take that, if it is not recorded yet.
    ///
    /// On a read-only connection it does nothing: nobody can be granted anything through it, either.
    pub(crate) fn record_boot(&self) -> Result<(), Error> {
        if recording(self.mark()?, self.here(Boundary::Own)?)?.is_some() {
            match self.durably(Boundary::Own, |here| self.keep_recording(here)) {
                Err(Error::Sqlite(failure)) if failure.code & 0xff == code::READONLY => {
                    return Ok(());
                }
                done => done?,
            }
        }
        self.has_recorded.set(true);
        Ok(())
    }

    /// The same in a transaction that is open.
    pub(crate) fn keep_recording(&self, here: Here) -> Result<(), Error> {
        self.verify()?;
        match recording(self.mark()?, here)? {
            Some(mark) => self.keep(mark),
            // Somebody else was faster.
            None => Ok(()),
        }
    }

    /// Records the present boot before a transaction in which grants may follow, if the file has leases. Inside it there is no
    /// way to make the record durable. Each store looks until it has seen the record once.
    ///
    /// A file without leases, or one whose leases cannot be used, is no error: the verbs tell. Returns whether the boot is
    /// recorded.
    pub fn record_boot_before_transaction(&self) -> Result<bool, Error> {
        if self.has_recorded.get() || self.boundary()? != Boundary::Own {
            return Ok(self.has_recorded.get());
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
        recorded.map(|()| self.has_recorded.get())
    }

    /// Returns what the file knows of its epoch.
    pub fn epoch(&self) -> Result<EpochInfo, Error> {
        self.naming("look at the epoch", None, || {
            let names = self.list()?.into_iter().map(|row| row.token).max().unwrap_or(0);
            let slots = if self.verify_pools()? { self.newest_slot_token()? } else { 0 };
            let boot = self.boot_record()?;
            let floor = self.mark()?.floor;
            Ok(EpochInfo { newest: floor.max(names).max(slots), boot })
        })
    }

    /// Returns whether the present boot is recorded.
    pub fn boot_record(&self) -> Result<BootRecord, Error> {
        self.verify()?;
        Ok(match (self.mark()?.boot, self.connection.boot()) {
            // Nothing in memory outlives a boot.
            (_, 0) => BootRecord::Durable,
            (found, boot) if found == boot => BootRecord::Durable,
            (found, boot) if found == -boot => BootRecord::AtRisk,
            _ => BootRecord::Missing,
        })
    }

    /// Raises the floor to `floor` at least, in a transaction that is open, and answers what it is then.
    pub(crate) fn raise_floor(&self, here: Here, floor: i64) -> Result<i64, Error> {
        let raised = self.mark()?.raised(floor, here);
        let raised = raised.map_err(|refusal| Error::refused(EVERY_NAME, refusal))?;
        self.keep(raised).map(|()| raised.floor)
    }

    /// The mark of the file.
    pub(crate) fn mark(&self) -> Result<Mark, Error> {
        if !self.keeps_mark.get() {
            return Ok(Mark::default());
        }
        self.mark_in_batch(|| self.stored_mark())
    }

    fn stored_mark(&self) -> Result<Mark, Error> {
        self.statements.mark.with(self.connection, |statement| {
            let mut run = statement.run(&[])?;
            run.step()?;
            let number = |index| run.column(index).and_then(Value::integer);
            let (Some(floor @ 0..), Some(boot)) = (number(0), number(1)) else {
                // It may also be one of a newer format.
                return Err(self.verify().err().unwrap_or_else(damaged_meta));
            };
            let boot = Boot::present().read(boot, floor, &self.connection.filename());
            Ok(Mark { floor, boot })
        })
    }

    /// Does `work` in the transaction, and commits it, if it is ours, so that no power cut can take it.
    ///
    /// The caller's `synchronous` is put back before this returns, whatever comes of it.
    pub(crate) fn durably<T>(
        &self,
        boundary: Boundary,
        work: impl FnOnce(Here) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let here = self.here(boundary)?;
        if !here.is_own {
            return self.within(boundary, || work(here));
        }
        self.unconfirmed.set(Unconfirmed::Nothing);
        let done = match here.is_weak {
            true => self.with_synchronous(EXTRA, || self.within(boundary, || work(here))),
            false => self.within(boundary, || work(here)),
        };
        let unconfirmed = self.unconfirmed.replace(Unconfirmed::No);
        if let (Ok(_), Unconfirmed::Mark(mark)) = (&done, unconfirmed) {
            self.confirm(mark)?;
        }
        done
    }

    /// Says that a mark is sure, once the commit that made it has been synced.
    ///
    /// A process that is killed in between leaves it unsure, so whoever comes next makes it anew: it would see a mark
    /// that a power cut can still take. If this commit gets lost, that is no harm either.
    fn confirm(&self, mark: Mark) -> Result<(), Error> {
        let values = [mark.boot, mark.floor].map(Value::Integer);
        self.within(Boundary::Own, || execute_once(self.connection, CONFIRM_MARK, &values))
    }

    fn with_synchronous<T>(
        &self,
        level: i64,
        work: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.owes_synchronous.set(Some(self.connection.synchronous()?));
        let done = match self.connection.set_synchronous(level) {
            Ok(()) => work(),
            Err(failure) => Err(Error::Sqlite(failure)),
        };
        self.put_back_synchronous();
        done
    }

    /// Gives the caller their `synchronous` back.
    ///
    /// While a statement of the caller's that called us is interrupted, SQLite does nothing more, not even a
    /// rollback. Then this is still owed, and made up for at the next call or when the handle is given up.
    pub(crate) fn put_back_synchronous(&self) {
        if let Some(level) = self.owes_synchronous.get()
            && self.connection.set_synchronous(level).is_ok()
        {
            self.owes_synchronous.set(None);
        }
    }

    fn keep(&self, mark: Mark) -> Result<(), Error> {
        if !self.keeps_mark.get() {
            create(self.connection, &META)?;
        }
        let mark = self.unsure(mark)?;
        self.connection.keeping_last_insert_rowid(|| {
            let values = [FORMAT, mark.floor, mark.boot].map(Value::Integer);
            execute_once(self.connection, KEEP_MARK, &values)
        })?;
        self.forget_mark();
        Boot::present().remember(mark.floor, self.connection.filename());
        Ok(())
    }

    /// The mark as it is stored before it is confirmed.
    fn unsure(&self, mark: Mark) -> Result<Mark, Error> {
        if mark.boot <= 0 || self.unconfirmed.get() == Unconfirmed::No {
            return Ok(mark);
        }
        // SQLite writes and syncs nothing for a change that changes nothing, so what is there goes first.
        execute_once(self.connection, FORGET_MARK, &[])?;
        self.unconfirmed.set(Unconfirmed::Mark(mark));
        Ok(Mark { boot: -mark.boot, ..mark })
    }

    /// What is at risk in this transaction.
    ///
    /// In a file that has no mark because nothing was ever at risk, every grant asks: the caller may have changed
    /// the pragmas. That is little next to the sync that such a grant waits for.
    pub(crate) fn here(&self, boundary: Boundary) -> Result<Here, Error> {
        if let Some(here) = self.here_in_batch() {
            // Nobody can change the pragmas in a transaction.
            return Ok(here);
        }
        Ok(Here {
            boot: self.connection.boot(),
            is_weak: self.is_weak()?,
            is_own: boundary == Boundary::Own,
        })
    }

    /// Whether a power cut can take commits that this connection has acknowledged.
    fn is_weak(&self) -> Result<bool, Error> {
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

/// Whether commits made like this survive a power cut.
///
/// The combinations are those that simulated power cuts took nothing from; docs/durability.md has the table. What
/// is not known to be safe counts as weak.
pub(crate) fn is_strong(journal_mode: &str, synchronous: i64) -> bool {
    match journal_mode {
        "wal" | "truncate" | "persist" => synchronous >= 2,
        "delete" => synchronous >= EXTRA,
        _ => false,
    }
}

fn recording(mark: Mark, here: Here) -> Result<Option<Mark>, Error> {
    mark.recording(here).map_err(|refusal| Error::refused(EVERY_NAME, refusal))
}

fn needed(mark: Mark, here: Here, token: i64) -> Result<Option<Mark>, Error> {
    mark.needed(token, here).map_err(|refusal| Error::refused(EVERY_NAME, refusal))
}

/// What an error about the file's own numbers names.
pub(crate) const EVERY_NAME: &str = "every name";
