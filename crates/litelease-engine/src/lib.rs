//! The seam between the verbs of Litelease and an engine that several machines share.
//!
//! An engine keeps rows and compares before it writes. It knows no rule: `litelease-cluster` loads
//! a row, asks the rule in `litelease-core` and hands back what to store. This crate has the trait
//! [`Engine`], what passes through it, the errors, and the URLs that name an engine. Most programs
//! want the `litelease-cluster` crate.

#![forbid(unsafe_code)]

#[cfg(feature = "driver")]
mod driver;
mod engine;
mod error;
mod guard;
mod url;

#[cfg(feature = "driver")]
#[doc(hidden)]
pub use driver::Driver;
pub use engine::{
    Change, Changes, Engine, EngineFacts, FORMAT, Listener, Loaded, LoadedRow, Mark, RowChange,
    Stored, StoredRow, StoredTenure, first_behind, time_to_move,
};
pub use error::{Error, Result};
pub use guard::GuardInfo;
pub use litelease_core::Guard;
pub use url::{EtcdUrl, Place, PostgresUrl};
