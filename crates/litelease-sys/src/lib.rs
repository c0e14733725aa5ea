//! Calls of the operating system: side files of a database, file locks, the write lock.
//!
//! The small files beside a database (locks, a wake-up word, a high-water mark) keep two promises.
//! **No harm**: anything at the path that is not an ordinary file with one name (a link, a FIFO, a
//! folder, a device) is refused; it is not followed, opened or waited for. **Only for writers**:
//! users who may write the database can open the file, others not, regardless of which user creates
//! it and of the umask.
//!
//! [`held_locks`] lists the locks that processes hold on any file. [`write_lock`] is a fair lock
//! across processes, on such a file. A library that is loaded into a process asks for calls at a
//! fork and at the end, for threads without signals, and to stay loaded.
//!
//! This crate knows nothing of SQLite and never opens the database: closing it would drop SQLite's
//! locks on it.

mod access;
mod database;
mod error;
mod locks;
#[cfg(unix)]
mod process;
mod side_file;
pub mod write_lock;

#[cfg(unix)]
pub use access::exposure;
pub use database::{create_private, resolve};
pub use error::Error;
pub use locks::{FileLock, LockKind, held_locks};
#[cfg(unix)]
pub use process::{at_exit, at_fork, functions_of, pin_library, spawn_without_signals};
pub use side_file::SideFile;
