//! Acquires a name on a connection of our own, for callers in other languages: their connection may
//! be in the middle of a statement, and they may be interrupted.

use std::borrow::Borrow;
use std::thread::sleep;
use std::time::Duration;

use litelease_core::Lease;
use litelease_store::{Error, Failure, code};

use super::{
    Asks, DatabaseFile, FileConnection, FileError, FileLeases, FilePlace, More, OwnConnection,
    SlotWish, is_busy, slots,
};
use crate::{Clock, Held, HoldError, SystemClock, Wish, acquire, hold};

/// How long a call waits before it checks again whether its caller was interrupted.
pub const STEP: Duration = Duration::from_millis(50);

/// A caller in another language.
pub struct Aside<'c> {
    /// Its file.
    pub file: &'c DatabaseFile,
    /// How long it waits for another connection's lock.
    pub patience: Duration,
    /// Fails if the caller was interrupted.
    pub go_on: &'c dyn Fn() -> Result<(), FileError>,
    /// The longest sleep of a wait before it asks again whether to go on. A signal ends a sleep.
    pub longest_sleep: Duration,
}

impl<'c> Aside<'c> {
    /// Claims a name and keeps it alive, as [`hold`] does.
    pub fn hold(
        &self,
        wish: &Wish<'_>,
        ttl: Duration,
        wait: Duration,
        more: More<'_>,
    ) -> Result<Held, HoldError<FileError>> {
        let mut place = self.place(more).map_err(HoldError::Lease)?;
        self.patiently(|| hold(&mut place, wish, ttl, wait))
    }

    /// Repeats `attempt` for some time while the file is locked.
    pub(super) fn patiently<T>(
        &self,
        attempt: impl FnMut() -> Result<T, HoldError<FileError>>,
    ) -> Result<T, HoldError<FileError>> {
        let may_pass = |error: &HoldError<FileError>| matches!(error, HoldError::Lease(error) if self.may_pass(error));
        self.retrying(may_pass, attempt)
    }

    /// Claims a name, and waits for it, as [`acquire`] does.
    pub fn acquire(
        &self,
        wish: &Wish<'_>,
        wait: Duration,
    ) -> Result<Result<Lease, Lease>, FileError> {
        let mut place = self.place(More::default())?;
        let acquired =
            self.retrying(|error| self.may_pass(error), || acquire(&mut place, wish, wait))?;
        Ok(acquired.map(|acquired| acquired.granted.lease))
    }

    /// Borrows a slot and keeps it alive, as [`FileLeases::hold_slot`] does.
    pub fn hold_slot(
        &self,
        wish: &SlotWish<'_>,
    ) -> Result<Option<(Held, i64)>, HoldError<FileError>> {
        slots::hold_slot(self.own().map_err(HoldError::Lease)?, wish, self.patience)
    }

    /// Opens a connection of our own whose calls wait this long for another connection's lock.
    pub fn open(&self, step: Duration) -> Result<OwnConnection<FileConnection>, FileError> {
        let open = || OwnConnection::open(self.file, step).map_err(FileError::Verb);
        self.retrying(|error| self.may_pass(error), open).map_err(cannot_open)
    }

    fn place<'m>(&self, more: More<'m>) -> Result<FilePlace<'m, Own<'c>>, FileError> {
        FilePlace::new(self.own()?, more)
    }

    fn own(&self) -> Result<Own<'c>, FileError> {
        let Aside { go_on, longest_sleep, .. } = *self;
        Ok(Own { own: self.open(STEP)?, go_on, longest_sleep })
    }

    fn may_pass(&self, error: &FileError) -> bool {
        matches!(error, FileError::Verb(error) if is_busy(error)) && (self.go_on)().is_ok()
    }

    /// Repeats a call for some time while it fails with an error that may pass.
    fn retrying<T, E>(
        &self,
        may_pass: impl Fn(&E) -> bool,
        mut attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let begin = SystemClock.now();
        loop {
            match attempt() {
                Err(error) if SystemClock.now() < begin + self.patience && may_pass(&error) => {
                    sleep(Duration::from_millis(1));
                }
                answer => return answer,
            }
        }
    }
}

/// A connection of our own that acquires names for a caller in another language.
pub struct Own<'c, C = OwnConnection<FileConnection>> {
    /// The connection.
    pub own: C,
    /// Fails if the caller was interrupted.
    pub go_on: &'c dyn Fn() -> Result<(), FileError>,
    /// The longest sleep of a wait.
    pub longest_sleep: Duration,
}

impl<C: Borrow<OwnConnection<FileConnection>>> Asks for Own<'_, C> {
    fn with<T>(
        &self,
        work: impl FnOnce(FileLeases<'_>) -> Result<T, FileError>,
    ) -> Result<T, FileError> {
        self.own.borrow().with(|own: &FileConnection| work(own.leases()))
    }

    fn go_on(&self) -> Result<(), FileError> {
        (self.go_on)()
    }

    fn longest_sleep(&self) -> Duration {
        self.longest_sleep
    }
}

/// Names our own connection in the error: the caller's connection works.
fn cannot_open(error: FileError) -> FileError {
    match error {
        FileError::Verb(Error::Sqlite(Failure { code, message }))
            if !matches!(code & 0xff, code::BUSY | code::LOCKED | code::INTERRUPT) =>
        {
            let message = format!("cannot open the file a second time: {message}");
            FileError::Verb(Error::Sqlite(Failure { code, message }))
        }
        error => error,
    }
}
