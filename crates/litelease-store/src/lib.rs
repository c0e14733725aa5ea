//! The lease row in SQLite: load, let the rule decide, save, inside the right transaction.
//!
//! The rules live in `litelease-core`. This crate contains no SQLite: it drives whichever one it is
//! handed as an [`Api`], so the same code runs on the SQLite linked into a Rust program and on the host's
//! SQLite of a loadable extension. Most programs want the `litelease` crate.

mod batch;
#[doc(hidden)]
pub mod boot;
mod callbacks;
mod change;
mod checkpoint;
mod clock;
mod closing;
mod debts;
mod definition;
mod epoch;
mod error;
mod file;
mod gate;
mod grant;
mod guard;
pub mod host_api;
mod limit;
mod list;
mod pool;
mod pool_rows;
mod present;
mod purge;
mod raise;
mod request;
mod rule_fn;
mod schema;
mod side_tables;
pub mod sql;
mod sqlite;
mod statements;
mod store;
mod table_info;
mod transaction;
mod trigger;
mod value;

pub use batch::Batch;
pub use callbacks::{Callbacks, Library};
pub use clock::When;
pub use closing::Closing;
pub use epoch::{BootRecord, EpochInfo};
pub use error::{Error, Failure};
pub use guard::{Guard, GuardInfo};
pub use list::{LeaseRow, LeaseWalk};
pub use pool_rows::{BorrowOptions, Borrowed, SlotRow};
pub use sqlite::{
    Api, Caller, Connection, Destructor, SqlFunction, SqlLast, Statement, Value, c_string, code,
    destroy, sqlite3, sqlite3_context, sqlite3_index_info, sqlite3_stmt, sqlite3_value,
};
pub use store::Store;
