//! Raises tokens by hand, for a file that may be older than what it protects.

use litelease_core::{self as rule, CommitContext, RaiseResult};

use crate::boot::Boot;
use crate::change::Change;
use crate::epoch::EVERY_NAME;
use crate::pool_rows::{FREE_POOLS, FREE_SLOTS};
use crate::sqlite::Value;
use crate::statements::execute_once;
use crate::{Error, Store, When};

/// Ends every lease and raises every token.
pub(crate) const FENCE: &str = "UPDATE main.litelease_resources
SET owner = NULL, lease_expires_at_ms = NULL, token = ?1, updated_at_ms = ?2";

impl Store {
    /// Raises the file's floor: every token granted from now on is larger than `floor`.
    ///
    /// Where it can be, this is made so that no power cut takes it.
    pub fn raise(&self, floor: i64) -> Result<(), Error> {
        self.with_context("raise", None, || {
            self.durably(self.boundary()?, |context| {
                self.verify()?;
                let raised = rule::raise(self.epoch_record()?.floor, floor);
                match raised.map_err(|refusal| Error::refused(EVERY_NAME, refusal))? {
                    RaiseResult::Raised => {
                        self.all_or_nothing(|| self.raise_floor(context, floor).map(drop))
                    }
                    RaiseResult::Unchanged => Ok(()),
                    RaiseResult::TooLow { present } => {
                        Err(Error::FloorTooLow { name: None, floor, present })
                    }
                }
            })
        })
    }

    /// Raises the token of one name above `floor`, and ends its lease: no token up to the floor
    /// counts any more.
    pub fn raise_name(&self, name: &str, floor: i64, when: When) -> Result<(), Error> {
        self.with_context("raise", Some(name), || {
            let boundary = self.boundary()?;
            let raised = self.ending("raised", boundary, |boundary| {
                self.change(boundary, name, when, Change::Grant, |row, file_floor, _| {
                    Ok(rule::raise_name(row, floor, file_floor)?)
                })
            })?;
            match raised {
                RaiseResult::Raised | RaiseResult::Unchanged => Ok(()),
                RaiseResult::TooLow { present } => {
                    Err(Error::FloorTooLow { name: Some(name.into()), floor, present })
                }
            }
        })
    }

    /// Fences off all grants from before this file was restored from a backup: ends every lease but
    /// those on slots that are kept, which get new tokens, and raises every token and the floor far
    /// above all grants since the backup, and above the given token. Returns the new floor.
    ///
    /// Where the system has no boot id, every start of a process takes an epoch, and the token must
    /// be given.
    pub fn restore_fence(&self, above: Option<i64>, when: When) -> Result<i64, Error> {
        self.with_context("fence", None, || {
            let takes_epochs = self.connection.boot() != 0 && !Boot::present().is_known();
            if takes_epochs && above.is_none() {
                return Err(Error::LargestTokenNeeded);
            }
            self.durably(self.boundary()?, |context| {
                // Also checks that every row is valid: an invalid one is reported, never
                // overwritten.
                let rows = self.list()?;
                let has_pools = self.verify_pools()?;
                let newest = rows.iter().map(|row| row.token).max().unwrap_or(0);
                let newest = if has_pools { newest.max(self.newest_slot_token()?) } else { newest };
                let has_queues = self.verify_queues()?;
                let newest = newest.max(self.newest_in_queues()?).max(above.unwrap_or(0));
                let floor = self.epoch_record()?.floor_after_restore(newest);
                let floor = floor.map_err(|refusal| Error::refused(EVERY_NAME, refusal))?;
                // Grants follow, perhaps on weaker connections: the boot is recorded as by
                // `bootstrap`.
                let context = CommitContext { may_lose_commits: context.boot != 0, ..context };
                self.all_or_nothing(|| {
                    let floor = self.raise_floor(context, floor)?;
                    if has_pools {
                        execute_once(self.connection, FREE_SLOTS, &[])?;
                        execute_once(self.connection, FREE_POOLS, &[])?;
                        self.renumber_kept(floor)?;
                    }
                    if has_queues {
                        self.fence_queues(|item| rule::fence_item(item, when.now_ms()))?;
                    }
                    self.distrust_readers(when.now_ms())?;
                    self.forget_issuer()?;
                    let values = [floor, when.now_ms()].map(Value::Integer);
                    execute_once(self.connection, FENCE, &values)?;
                    match (self.connection.changes(), i64::try_from(rows.len())) {
                        (changed, Ok(expected)) if changed == expected => Ok(floor),
                        (changed, expected) => Err(Error::UnexpectedChange {
                            what: "every row".into(),
                            expected: expected.unwrap_or(i64::MAX),
                            changed,
                        }),
                    }
                })
            })
        })
    }
}
