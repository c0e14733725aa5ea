//! The calls of the service: one row for each, with its typed request and answer.
//!
//! The server reads requests and writes answers with these types, the Rust client the other way
//! round, and the OpenAPI document describes them. A file per resource has its calls and answers.
//!
//! ```
//! use litelease_wire::{Claim, Members, Request};
//!
//! let body = br#"{"name":"backup","owner":"host-a","ttl":30}"#;
//! let claim = Claim::read(Members::of_body(body)?)?;
//! assert_eq!((claim.name.as_str(), claim.ttl, claim.wait), ("backup", 30.0, 0.0));
//! assert_eq!(Claim::CALL.path, "/v1/claim");
//! # Ok::<(), litelease_wire::Invalid>(())
//! ```

#![forbid(unsafe_code)]

#[macro_use]
mod answer;
#[macro_use]
mod call;
mod field;
mod grants;
mod history;
mod leases;
mod openapi;
mod overview;
mod pools;
mod queues;
mod read;
mod slots;
mod ticks;
mod value;

pub use answer::{Described, Refusal, Schemas, Seconds};
pub use call::{Call, Field, Key, Request};
pub use grants::*;
pub use history::*;
pub use leases::*;
pub use openapi::openapi;
pub use overview::*;
pub use pools::*;
pub use queues::*;
pub use read::{Invalid, Members};
pub use slots::*;
pub use ticks::*;
pub use value::Value;

/// The longest body of most requests, in bytes.
pub const LONGEST: usize = 16 * 1024;

/// The most bytes that an item of a queue may have.
pub const LONGEST_ITEM: usize = 1024 * 1024;

/// The start of the path of every call on a pool; its id follows.
pub const POOLS: &str = "/l/";

/// Calls a macro with the names of all requests, in the order of the OpenAPI document. A name that
/// the macro does not handle does not compile.
#[macro_export]
macro_rules! for_all_calls {
    ($each:path) => {
        $each! {
            Register, Look, Delete, Borrow, Return, Renew, Keep, Events,
            Claim, RenewLease, Release, Transfer, Break, ListLeases, LeaseEvents,
            SlotBorrow, SlotRenew, SlotReturn, SlotBreak, ListSlots, ListPools,
            FinishTick, DoTick, InstallSchedule, SkipTicks, TickAgain, ForgetTick, ListTicks,
            Attach, Limit, Progress, StoreCheckpoint, LastCheckpoint, RequestLease, HandOver,
            Send, Receive, Ack, Extend, GiveBack, Bury, Redrive, Discard, Cancel, DeleteQueue,
            ListItems, ReadItem, ListQueues, ListHistory,
            ReadOverview, OverviewEvents, ReadKey,
        }
    };
}

macro_rules! rows {
    ($($request:ident),* $(,)?) => {
        /// All calls.
        pub const CALLS: &[&Call] = &[$(&$request::CALL),*];
    };
}

for_all_calls!(rows);
