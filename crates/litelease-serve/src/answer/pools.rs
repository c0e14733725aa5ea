//! Answers about pools and their slots.

use litelease::{Borrowed, PoolInfo, SlotInfo, SlotRow};
use litelease_wire::{Deleted, HeldSlot, Kept, Pool, PoolState, Refusal, Returned, SlotLease};
use serde::Serialize;

use super::{UndeliveredGrant, seconds};
use crate::job::{Id, Jobs};
use crate::response::Response;

/// The outcome of a job on a pool.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum PoolAnswer {
    /// A slot was lent out.
    #[serde(skip)]
    Lent {
        borrowed: Borrowed,
        /// The ttl that was granted, or the rest of it if a key found the lease of an earlier
        /// request.
        ttl_ms: i64,
        /// True if an idempotency key keeps the lease when its client is gone.
        has_key: bool,
    },
    #[serde(skip)]
    Renewed {
        lease: String,
        slot: SlotInfo,
        ttl_ms: i64,
    },
    /// The lease to renew or keep is over.
    #[serde(skip)]
    LeaseEnded,
    #[serde(skip)]
    Snapshot(PoolSnapshot),
    Pool(Pool),
    Deleted(Deleted),
    Returned(Returned),
    Kept(Kept),
}

/// The public state of a pool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PoolSnapshot {
    pub(crate) info: PoolInfo,
    pub(crate) slots: Vec<SlotRow>,
    pub(crate) waiters: usize,
    pub(crate) now_ms: i64,
}

impl PoolAnswer {
    pub(crate) fn pool(id: &str, info: PoolInfo) -> Self {
        let PoolInfo { count, in_use, .. } = info;
        PoolAnswer::Pool(Pool { available: info.available(), count, id: id.into(), in_use })
    }

    pub(super) fn undelivered(&self, id: &Id) -> Option<UndeliveredGrant> {
        match self {
            PoolAnswer::Lent { borrowed, has_key: false, .. } => {
                let lease = borrowed.lease_id.clone();
                Some(UndeliveredGrant::Slot { id: id.clone(), lease })
            }
            _ => None,
        }
    }

    pub(super) fn respond(self, grant: Option<UndeliveredGrant>, jobs: &Jobs) -> Response {
        match self {
            PoolAnswer::Lent { borrowed: Borrowed { lease_id, slot }, ttl_ms, .. } => {
                Response::granting(&slot_lease(lease_id, slot, ttl_ms), grant, jobs)
            }
            PoolAnswer::Renewed { lease, slot, ttl_ms } => {
                Response::json(200, &slot_lease(lease, slot, ttl_ms))
            }
            PoolAnswer::LeaseEnded => Response::refusal(&Refusal::new(
                "ended",
                "the lease is no longer live: it has expired or was returned, so borrow again",
            )),
            PoolAnswer::Snapshot(snapshot) => Response::json(200, &snapshot.to_wire()),
            answer => Response::json(200, &answer),
        }
    }
}

impl PoolSnapshot {
    pub(crate) fn to_wire(&self) -> PoolState {
        let PoolInfo { count, in_use, .. } = self.info;
        let slots = self.slots.iter().map(|row| held_slot(row, self.now_ms)).collect();
        let available = self.info.available();
        PoolState { available, count, in_use, slots, waiters: self.waiters }
    }
}

fn slot_lease(lease: String, slot: SlotInfo, ttl_ms: i64) -> SlotLease {
    let is_kept = slot.is_kept();
    SlotLease {
        expires_at_unix: (!is_kept).then(|| slot.expires_at_ms.div_euclid(1000)),
        expires_in: (!is_kept).then(|| seconds(ttl_ms)),
        lease,
        position: slot.position,
        token: slot.token,
    }
}

/// Returns a slot that is lent out, as every client may see it.
pub(crate) fn held_slot(row: &SlotRow, now_ms: i64) -> HeldSlot {
    let SlotInfo { position, token, expires_at_ms } = row.slot;
    let is_kept = row.slot.is_kept();
    let kept_ms = row.kept_since_ms.map(|since| now_ms.saturating_sub(since).max(0));
    HeldSlot {
        expires_in: (!is_kept).then(|| seconds(expires_at_ms.saturating_sub(now_ms).max(0))),
        kept_for: is_kept.then(|| kept_ms.map(seconds)),
        note: row.note.clone(),
        position,
        token,
    }
}
