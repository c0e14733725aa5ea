//! The SQL functions: `litelease_claim`, `litelease_guard`, `litelease_leases` and the rest.
//!
//! They are the verbs of [`Store`](crate::Store), called from a statement. This module uses only
//! what the crate exports, and nothing else in the crate uses it. Rust programs reach it as
//! `litelease::functions`; other programs load the extension.

mod arguments;
mod call;
mod functions;
mod keep;
mod limit;
mod queue;
mod read;
mod request;
mod shared;
mod table;
mod tables;
mod value;

pub use arguments::{Argument, Arguments, Kind};
pub use call::register;
pub use functions::{Answer, Function, NAME, TTL, Writes};
