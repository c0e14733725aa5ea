//! The deliveries of one file as the keeper extends them, on a connection of its own.

use litelease_hold::{Due, HeldGrant, Renewal, Rows, Seen};

use crate::error::lift;
use crate::kept_rows::KeptRows;
use crate::{AckResult, Error, Loss, Result, Transaction};

/// A grant of the keeper's is a delivery here: its name is the queue, its owner the receipt, and
/// its ttl the visibility.
pub(crate) struct DeliveredRows(KeptRows);

impl DeliveredRows {
    /// Opens a file that is there.
    pub(crate) fn open(file: &str) -> Result<Self> {
        Ok(DeliveredRows(KeptRows::open(file)?))
    }

    fn extend_all(&mut self, due: &[Due<'_>]) -> Result<Vec<std::result::Result<Renewal, Loss>>> {
        self.0.db.with(|db| {
            let tx = KeptRows::begin(db)?;
            let mut answers = Vec::with_capacity(due.len());
            for Due { grant, .. } in due {
                answers.push(match tx.queue(&grant.name).extend(&grant.owner, grant.ttl) {
                    Ok(Some(deadline_ms)) => Ok(Renewal::whole(deadline_ms)),
                    Ok(None) => Err(loss(&tx, grant)?),
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

impl Rows for DeliveredRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<std::result::Result<Renewal, Loss>> {
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        let answers = self.extend_all(due);
        // Asked again: what was just stored may be in a file that nobody else opens any more.
        if self.is_moved() {
            return vec![Err(Loss::FileReplaced); due.len()];
        }
        answers.unwrap_or_else(|error| vec![Err(self.0.trouble(&error)); due.len()])
    }

    /// The worker ends its deliveries itself.
    fn release(&mut self, _: &HeldGrant) -> std::result::Result<(), Loss> {
        Ok(())
    }

    fn look(&mut self, grant: &HeldGrant) -> Seen {
        let checked = self.0.db.with(|db| lift(db.store().check_receipt(&grant.owner)));
        // What cannot be read now is left to the extensions.
        let is_current = checked.map_or(true, |answer| answer.is_acknowledged());
        Seen { is_current: is_current && !self.is_moved(), asked: None }
    }

    fn is_moved(&self) -> bool {
        self.0.is_moved()
    }
}

/// Returns why a delivery could not be extended.
fn loss(tx: &Transaction<'_>, grant: &HeldGrant) -> Result<Loss> {
    Ok(match lift(tx.store().check_receipt(&grant.owner))? {
        // Nobody else has received the item, but its deadline has passed.
        AckResult::Acknowledged => Loss::Expired,
        AckResult::Stale { reason } => Loss::Stale { reason: reason.to_string() },
    })
}
