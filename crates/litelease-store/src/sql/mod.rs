//! The SQL functions: `litelease_claim`, `litelease_guard`, `litelease_leases` and the rest.
//!
//! They are the [`VERBS`](crate::VERBS) that SQL gets, called from a statement. Nothing else in the
//! crate uses this module. Rust programs reach it as `litelease::functions`; other programs load
//! the extension.

mod call;
mod shared;
mod table;

pub use call::register;
