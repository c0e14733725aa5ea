//! The small files beside a database: locks, a wake-up word, a high-water mark.
//!
//! All of them keep two promises. **No harm**: anything at the path that is not an ordinary file
//! with one name (a link, a FIFO, a folder, a device) is refused; it is not followed, opened or
//! waited for. **Shared like the database**: a file takes the mode and group of the database,
//! regardless of which user creates it and of the umask.
//!
//! This crate knows nothing of SQLite and never opens the database: closing it would drop SQLite's
//! locks on it.

mod access;
mod database;
mod error;
mod side_file;

pub use database::{create_private, resolve};
pub use error::Error;
pub use side_file::SideFile;
