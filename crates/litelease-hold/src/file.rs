//! A file as a place. It reaches SQLite only through the store's table of functions, so one hold
//! serves Rust programs and any program that loads the extension.
//!
//! Only SQLite opens the database: if we opened and closed it, SQLite would lose its locks on it.

mod aside;
mod cached;
mod connection;
mod deliveries;
mod drain;
mod fork;
mod place;
mod rows;
mod session;
mod shards;
mod slots;
pub mod sql;
#[cfg(feature = "schedules")]
mod ticks;
mod writer;

use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::time::Duration;

use litelease_core::{Claimant, Lease, NewestTick, ReleaseResult};
use litelease_store::{Api, Error, Failure, Store, When, code};

use crate::{Held, HoldError, Home, NoKeeper, Notifier, ProcessKeeper};

pub use aside::{Aside, Own, STEP};
pub use cached::CachedReader;
pub use connection::{FileConnection, FileHandle, OpenFile, OwnConnection, read_once};
pub use deliveries::{FileDeliveries, FileQueue};
pub use drain::Drain;
#[cfg(planted)]
pub use fork::HAS_NO_GATE;
pub use fork::let_children_hold;
pub use place::{Asks, BegunTick, FilePlace, More, open_rows, patiently};
pub use rows::{GrantKind, KeptRows, granted, loss};
pub use session::{SessionMembers, open_session};
pub use shards::{ShardEvent, Shards, ShardsOptions, StoredCheckpoint};
pub use slots::SlotWish;
pub use sql::{release_until, stay_loaded};
#[cfg(feature = "schedules")]
pub use ticks::FileTicks;
pub use writer::write_lock_pid;

/// The keeper of all holds of this process in files.
pub static FILES: ProcessKeeper = ProcessKeeper::new();

/// The file of a connection, to open other connections to it.
///
/// They use the same SQLite library, because two libraries in one process drop each other's locks,
/// and the same VFS: those of SQLite lock files in different ways, and two ways on one file exclude
/// no writer.
#[derive(Clone)]
pub struct DatabaseFile {
    /// The full path.
    pub path: String,
    /// The name of the VFS, or `None` for the default one.
    pub vfs: Option<String>,
    /// The functions of the library.
    pub api: &'static Api,
}

impl DatabaseFile {
    /// Returns the main database file of a store's connection; none if it is in memory.
    pub fn behind(store: &Store) -> Option<Self> {
        let connection = store.connection();
        Some(DatabaseFile {
            path: store.file()?,
            vfs: connection.vfs(),
            api: connection.as_raw().1,
        })
    }

    /// Returns the keeper, and the key of the rows of one kind in this file.
    pub fn home(&self, kind: &str) -> Result<Home, NoKeeper> {
        let DatabaseFile { path, vfs, api } = self;
        let key = format!("{kind} {:p} {vfs:?} {path}", ptr::from_ref(*api));
        Ok(Home { keeper: FILES.get()?, key })
    }
}

impl Deref for DatabaseFile {
    type Target = str;

    fn deref(&self) -> &str {
        &self.path
    }
}

impl fmt::Debug for DatabaseFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DatabaseFile { path, vfs, .. } = self;
        f.debug_struct("DatabaseFile").field("path", path).field("vfs", vfs).finish_non_exhaustive()
    }
}

/// The leases of a file, through one connection, with the notification of waiters.
#[derive(Clone, Copy)]
pub struct FileLeases<'s> {
    /// The verbs.
    pub store: &'s Store,
    /// Notifies waiters after each commit that frees a name.
    pub notifier: &'s Notifier,
}

impl<'s> FileLeases<'s> {
    /// Begins a transaction that holds the write lock.
    pub fn begin(self) -> Result<FileTransaction<'s>, Error> {
        self.store.begin()?;
        Ok(FileTransaction { leases: self, is_open: true })
    }

    /// Returns the live lease on a name.
    pub fn inspect(self, name: &str) -> Result<Option<Lease>, Error> {
        self.store.inspect(name, When::Now, |lease| lease.into_owned())
    }

    /// Borrows a slot and keeps it alive. Returns the hold, whose secret is the id of the lease,
    /// and the number of the slot; none if no slot came free in time.
    pub fn hold_slot(
        self,
        wish: &SlotWish<'_>,
    ) -> Result<Option<(Held, i64)>, HoldError<FileError>> {
        slots::hold_slot(self, wish, Duration::ZERO)
    }

    /// Releases a grant, and notifies waiters.
    pub fn release(self, name: &str, owner: &str, token: i64) -> Result<ReleaseResult, Error> {
        let who = Claimant { owner, token: Some(token) };
        let answer = self.store.release(name, who, When::Now, |answer| answer.into_owned())?;
        if matches!(answer, ReleaseResult::Released { .. }) {
            self.freed();
        }
        Ok(answer)
    }

    /// Releases the live lease on a name if it has this owner text, which only that grant has.
    pub fn release_if_stored(self, name: &str, owner: &str) -> Result<(), Error> {
        match self.inspect(name)?.filter(|lease| lease.owner == owner) {
            Some(lease) => self.release(name, owner, lease.token).map(drop),
            None => Ok(()),
        }
    }

    /// Records that a name was freed, and notifies its waiters once that is committed: at once,
    /// outside a transaction.
    pub fn freed(self) {
        self.notifier.freed_in(self.store);
    }
}

/// A transaction on a file. It rolls back unless it is committed.
pub struct FileTransaction<'s> {
    leases: FileLeases<'s>,
    is_open: bool,
}

impl FileTransaction<'_> {
    /// Commits, and notifies the waiters of the names that were freed.
    pub fn commit(mut self) -> Result<(), Error> {
        self.is_open = false;
        self.store.commit()?;
        self.notifier.committed_in(self.store);
        Ok(())
    }
}

impl<'s> Deref for FileTransaction<'s> {
    type Target = FileLeases<'s>;

    fn deref(&self) -> &FileLeases<'s> {
        &self.leases
    }
}

impl Drop for FileTransaction<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // A drop returns no error. A transaction that stays open ends with the connection.
            let _ = self.store.rollback();
        }
    }
}

impl Notifier {
    /// Records that a name was freed through this store, and notifies waiters once that is
    /// committed: at once, outside a transaction.
    pub fn freed_in(&self, store: &Store) {
        self.freed();
        if !store.is_in_transaction() {
            self.committed_in(store);
        }
    }

    /// Notifies waiters if a name was freed and no transaction is open any more.
    pub fn committed_in(&self, store: &Store) {
        self.committed(|| store.file());
    }
}

/// The errors of holds in files, on top of those of the verbs.
#[derive(Debug)]
pub enum FileError {
    /// The database is in memory or temporary: another connection, such as the keeper's, cannot
    /// see it.
    InMemory,
    /// The connection is inside a transaction, whose snapshot would never show that the name has
    /// become free.
    InTransaction,
    /// The file was moved, deleted or replaced: other processes do not see the grants in it.
    Moved(String),
    /// The live members of a group share another number of shards.
    ShardCount {
        /// The group.
        group: String,
        /// The number that they share.
        count: i64,
    },
    /// The group of shards or the member has an invalid name or count.
    InvalidShards(&'static str),
    /// The tick is taken.
    TickTaken(NewestTick),
    /// The tick is more than a minute ahead of the clock.
    TickInFuture {
        /// The clock.
        now_ms: i64,
    },
    /// An error of a verb.
    Verb(Error),
}

impl From<Error> for FileError {
    fn from(error: Error) -> Self {
        FileError::Verb(error)
    }
}

impl From<Error> for HoldError<FileError> {
    fn from(error: Error) -> Self {
        HoldError::Lease(error.into())
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::InMemory => f.write_str(
                "a database in memory is seen by one connection only: holding, waiting and workers need a file",
            ),
            FileError::InTransaction => f.write_str(
                "holding and waiting inside a transaction would wait on its snapshot for ever: commit first",
            ),
            FileError::Moved(file) => {
                write!(f, "{file} was moved, deleted or replaced while it was open: open it again")
            }
            FileError::ShardCount { group, count } => write!(
                f,
                "the members of {group:?} share {count} shards: join with that count, or let all of them leave"
            ),
            FileError::InvalidShards(what) => f.write_str(what),
            FileError::TickTaken(newest) => write!(f, "the tick is taken: {newest}"),
            FileError::TickInFuture { now_ms } => {
                write!(f, "the tick is more than a minute ahead of the clock, which says {now_ms}")
            }
            FileError::Verb(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {}

/// Checks whether the call failed because another connection had a lock.
pub fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Sqlite(Failure { code, .. })
        if matches!(code & 0xff, code::BUSY | code::LOCKED))
}

/// Converts a time to whole milliseconds, rounded up, so that a lease never ends early. A time
/// beyond 64 bits becomes the largest one, which the rule refuses as an overflow at any time after
/// 1970.
pub fn in_ms(time: Duration) -> i64 {
    i64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

fn now_ms() -> i64 {
    When::Now.now_ms()
}
