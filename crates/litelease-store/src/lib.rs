//! The lease row in SQLite: load, let the rule decide, save, inside the right transaction.
//!
//! The rules live in `litelease-core`. This crate contains no SQLite: it drives whichever one it is
//! handed as an [`Api`], so the same code runs on the SQLite linked into a Rust program and on the
//! host's SQLite of a loadable extension. Most programs want the `litelease` crate.

mod access;
mod batch;
#[doc(hidden)]
pub mod boot;
mod callbacks;
mod change;
mod checkpoint;
mod clock;
mod closing;
mod credential;
mod definition;
mod epoch;
mod error;
mod file;
mod foreign_locks;
mod gate;
mod grant;
mod guard;
mod history;
mod hosted;
mod keep;
mod limit;
mod list;
mod open;
mod overview;
mod pool;
mod pool_rows;
mod present;
mod purge;
mod queue;
mod queue_rows;
mod raise;
mod read;
mod request;
mod retire;
mod rule_fn;
mod schema;
mod service_tables;
mod session;
mod shard;
mod side_tables;
pub mod sql;
mod sqlite;
mod statements;
mod store;
mod table_info;
mod tick;
mod transaction;
mod trigger;
mod value;
mod verbs;

#[doc(hidden)]
pub use access::AccessRow;
pub use batch::Batch;
pub use callbacks::{Callbacks, Library};
pub use clock::When;
pub use closing::Closing;
pub use epoch::{BootRecord, EpochInfo};
pub use error::{Error, Failure};
pub use foreign_locks::ForeignLock;
pub use guard::GuardInfo;
pub use history::{Actor, DEFAULT_KEEP, HistoryFilter, HistoryRow};
pub use hosted::{Host, HostedStore, OwnedValue, Rows};
pub use list::{LeaseWalk, WalkedRow};
pub use litelease_core::{Guard, Row};
pub use open::OpenConnection;
#[doc(hidden)]
pub use pool_rows::LOWEST_FREE;
pub use pool_rows::{BorrowOptions, Borrowed, SlotRow};
pub use queue::{
    Delivered, ItemCursor, ItemInfo, ItemName, ManyItems, QueueInfo, SLICE, SendOptions, Slice,
};
pub use read::Reader;
pub use retire::{LeftBehind, RetireResult, Retirement};
pub use schema::Table;
pub use service_tables::{ANSWERED, FINISHED, SERVED, ServiceStatement};
pub use session::{Beat, SessionGrants, SessionOver, is_passing};
pub use shard::{AssignedShard, ShardGroup, ShardSnapshot};
pub use side_tables::SideTableInfo;
pub use sqlite::{
    Api, Caller, Connection, Destructor, Run, SqlFunction, SqlLast, Statement, Value, c_string,
    code, destroy, sqlite3, sqlite3_context, sqlite3_index_info, sqlite3_stmt, sqlite3_value,
};
pub use store::Store;
pub use tick::TickClaim;
pub use verbs::{
    Answer, Answering, Argument, Arguments, Effect, Kind, Listing, Misuse, NAME, TTL, VERBS, Verb,
    VerbRun, verb,
};
pub(crate) use verbs::{NOW, Range, RowIterator};

/// Takes the locks that verbs on any thread may hold for a moment, for a process that forks. They
/// are free again when the result is dropped.
pub fn lock_process() -> impl Sized + 'static {
    (present::all_refusals(), boot::left())
}
