//! The lease row in SQLite: load, let the rule decide, save, inside the right transaction.
//!
//! The rules live in `litelease-core`. This crate contains no SQLite: it drives whichever one it is
//! handed as an [`Api`], so the same code runs on the SQLite linked into a Rust program and on the host's
//! SQLite of a loadable extension. Most programs want the `litelease` crate.

mod change;
mod clock;
pub mod door;
mod error;
mod file;
mod judge;
mod list;
mod purge;
mod schema;
mod sqlite;
mod statements;
mod store;
mod transaction;

pub use clock::When;
pub use error::{Error, Failure};
pub use judge::{Library, judge};
pub use list::Listed;
pub use sqlite::{
    Api, Connection, Destructor, SqlFunction, SqlLast, Statement, Value, c_string, code, sqlite3,
    sqlite3_context, sqlite3_stmt, sqlite3_value,
};
pub use store::Store;
