//! The SQL functions: `litelease_claim`, `litelease_guard`, `litelease_leases` and the rest.
//!
//! They are the verbs of `litelease-store`, called from a statement. This crate contains no SQLite either; it
//! registers its functions on whatever connection it is handed. Rust programs reach it as
//! `litelease::functions`, others load the extension.

mod arguments;
mod call;
mod functions;
mod shared;
mod table;
mod tables;

pub use call::register;
