//! The lease rule: from a stored row, a request and a time to what to write and what to answer.
//!
//! Everything here is a pure function. It knows no SQLite, no clock, no thread and no text format;
//! the caller reads the clock and stores the row. Most programs want the `litelease`
//! crate, which does both on a SQLite file.
//!
//! ```
//! use litelease_core::{ClaimResult, Row, State, Term, claim};
//!
//! let first = claim(Row::new("scheduler", None), "a", Term::new(50, 100)?, 0)?;
//! assert!(matches!(first.answer, ClaimResult::Acquired(lease) if lease.token == 1));
//!
//! // What the first claim asked to be stored is what the second one meets.
//! let second = claim(Row::new("scheduler", first.write), "b", Term::new(50, 149)?, 0)?;
//! assert!(matches!(second.answer, ClaimResult::Busy(lease) if lease.owner == "a"));
//! assert_eq!(second.write, None);
//! # Ok::<(), litelease_core::Refusal>(())
//! ```

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod access;
mod answer;
mod backoff;
mod credential;
mod epoch;
mod grant;
mod guard;
mod history;
mod judge;
mod lease_row;
mod limit;
mod pool;
mod queue;
mod read;
mod request;
mod row;
mod rule;
mod shard;
mod tick;
mod value;

pub use access::{InvalidPermission, Permission, Scope};
pub use answer::{
    AdmitResult, BreakResult, CheckpointResult, ClaimResult, GrantResult, Lease, RaiseResult,
    Reason, ReleaseResult, RenewResult, TransferResult,
};
pub use backoff::backoff;
pub use credential::{CredentialResult, CredentialTerm, Untimely, check_times, credential};
pub use epoch::{CommitContext, Epoch, epochs_left, leaves_room, next_epoch};
pub use grant::{Grant, GrantRef};
pub use guard::Guard;
pub use history::HISTORY_KINDS;
pub use judge::{
    Health, Judgement, NameFacts, Pause, QueueFacts, Thresholds, TickFacts, Usual, grouped,
    judge_name, judge_queue, judge_tick, spoken,
};
pub use lease_row::LeaseRow;
pub use limit::{Conditions, Limits, limit, progress};
pub use pool::{
    KEPT, MAX_COUNT, MAX_TEXT, PoolInfo, PoolSnapshot, SlotInfo, borrow_slot, keep_slot,
    pool_label, pool_of_name, renew_slot, slot_term,
};
pub use queue::{
    AckResult, CancelResult, DEFAULT_ATTEMPTS, Delay, Delivery, Ended, Item, ItemState,
    MAX_ATTEMPTS, MAX_NOTE, Receipt, StaleReason, ack, bury, cancel, deliver, extend, fence_item,
    give_back, next_number, redrive, undeliver,
};
pub use read::{MAX_READ_TTL_MS, Read, drained, read, read_term};
pub use request::{
    REQUEST_LAPSES_MS, Request, RequestResult, RequestStep, TakenOver, hand_over,
    is_from_predecessor, is_handed_to, request, take_over,
};
pub use row::{Claimant, Refusal, Row, State, Status, Tenure, Term, is_live};
pub use rule::{
    Step, admit, break_lease, busy, busy_for, claim, claim_from_dead, ensure, has_ended, inspect,
    is_newest, purge_limit, raise, raise_name, release, renew, transfer,
};
pub use shard::{MAX_SHARDS, ShardPlan, ShardState, plan};
pub use tick::{
    ClaimTickResult, DEFAULT_TICK_ATTEMPTS, FinishTickResult, MAX_AHEAD_MS, NewestTick, Tick,
    TickChange, TickInfo, TickOutcome, TickRequest, TickResult, TickState, TickStep, again,
    carry_tick, claim_tick, finish_tick, forget_tick, installed, skip, tick,
};
pub use value::{attach, is_shown};
