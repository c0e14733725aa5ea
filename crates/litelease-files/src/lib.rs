//! The small files beside a database: locks, a wake-up word, a high-water mark.
//!
//! Two promises, for all of them. **No harm**: what is at the path and is not an ordinary file of one name (a link, a
//! FIFO, a folder, a device) is refused, neither followed nor opened nor waited for. **Shared like the database**: a
//! file takes the database's mode and group, whoever creates it first and whatever the umask is.
//!
//! [`held_locks`] lists the locks that processes hold on any file, for telling who is in the way.
//!
//! This crate knows nothing of SQLite, and never opens the database: closing it again would drop SQLite's locks on it.

mod access;
mod database;
mod error;
mod locks;
mod side_file;

pub use database::{create_private, resolve};
pub use error::Error;
pub use locks::{FileLock, LockKind, held_locks};
pub use side_file::SideFile;
