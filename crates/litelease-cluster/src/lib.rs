//! Leases with expiry and fencing tokens for several machines.
//!
//! The verbs are those of the `litelease` crate, and so is the rule. An engine that several
//! machines share stores the rows.
//!
//! ```
//! use std::time::Duration;
//! use litelease_cluster::{ClaimResult, Cluster, MemoryEngine};
//!
//! # fn main() -> litelease_cluster::Result<()> {
//! let cluster = Cluster::on(MemoryEngine::new()); // or Cluster::open("etcd://10.0.0.1:2379")
//! match cluster.claim("scheduler", "worker-a", Duration::from_secs(30))? {
//!     ClaimResult::Acquired(lease) => println!("got token {}", lease.token),
//!     ClaimResult::Busy(current) => println!("currently owned by {}", current.owner),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each verb loads the row, asks the rule, and stores the answer if the row is still the same.
//! No lock is held in between, so a client that stops blocks no other.
//!
//! The features `etcd` and `postgres`, both on by default, bring the two engines. The module
//! [`engine`] has the trait for another one.

#![forbid(unsafe_code)]

mod batch;
mod change;
mod cluster;
pub mod engine;
#[cfg(feature = "etcd")]
mod etcd;
mod floor;
mod guard;
mod hold;
mod host;
mod kept_rows;
mod limit;
mod limits;
mod memory;
mod open;
pub mod payload;
#[cfg(feature = "postgres")]
mod postgres;
mod request;
mod row_cache;
mod value;
mod verbs;
mod watch;

pub use cluster::{Cluster, Options};
pub use engine::{Engine, EngineFacts, EngineUrl, Error, Guard, GuardInfo, Result};
pub use hold::{HoldError, HoldOptions};
pub use host::{Host, System};
#[doc(hidden)]
pub use limits::is_of_service;
pub use litelease_core::{
    BreakResult, ClaimResult, GrantRef, GrantResult, Lease, LeaseRow, Reason, ReleaseResult,
    RenewResult, RequestResult, Status, TakenOver, TransferResult,
};
pub use litelease_hold::{Cancel, Held, Identity, Loss, LossSignal, Lost};
pub use memory::{MemoryEngine, MemoryRows};
pub use request::RequestInfo;
#[doc(hidden)]
pub use row_cache::RowCache;
pub use value::Value;
pub use watch::Watch;
