//! The common part of grants of names and of slots: the epoch that must cover their token, and the
//! check that they have not expired by the time they are stored.

use litelease_core::{Epoch, Lease};

use crate::schema::damaged_meta;
use crate::transaction::Boundary;
use crate::{Error, Store, When};

/// How often one grant or one BEGIN may record an epoch. Another process may raise the floor
/// meanwhile, but not again and again.
pub(crate) const MAX_RECORDS: u32 = 3;

/// The outcome of one attempt to grant.
pub(crate) enum Attempt<T> {
    /// The rule has decided, and its result is stored.
    Decided(T),
    /// Nothing was stored: the file's epoch does not cover this token, so it must be recorded
    /// first.
    EpochNeeded { token: i64 },
}

impl Store {
    /// Attempts to grant, and records the epoch between attempts where it does not cover the token.
    pub(crate) fn with_epoch<T>(
        &self,
        boundary: Boundary,
        mut attempt: impl FnMut() -> Result<Attempt<T>, Error>,
    ) -> Result<T, Error> {
        let mut records = 0;
        loop {
            match attempt()? {
                Attempt::Decided(decided) => return Ok(decided),
                Attempt::EpochNeeded { .. } if records == MAX_RECORDS => return Err(damaged_meta()),
                Attempt::EpochNeeded { token } => self.record_epoch(boundary, token)?,
            }
            records += 1;
        }
    }

    /// Checks whether a token may be granted with this epoch, as it is stored.
    #[inline]
    pub(crate) fn may_grant(
        &self,
        boundary: Boundary,
        epoch: Epoch,
        token: i64,
    ) -> Result<bool, Error> {
        // Most epochs are of this boot and large enough, which shows without asking the connection.
        let covers = epoch.boot == self.epoch_state.boot.get() && epoch.is_enough_for(token);
        Ok(covers || self.needed(boundary, epoch, token)?.is_none())
    }
}

/// Checks that a lease which was just stored has not expired already: committing takes time too.
///
/// A time that the caller passes does not advance, so there is nothing to check.
#[inline]
pub(crate) fn check_arrival(when: When, lease: Lease<&str>) -> Result<(), Error> {
    match when {
        When::Now if when.now_ms() >= lease.expires_at_ms => {
            Err(Error::ExpiredOnArrival(lease.into_owned()))
        }
        _ => Ok(()),
    }
}
