//! Calls of the operating system: the only crate that makes any.
//!
//! Each system has a folder with the same functions: `linux`, and `other_unix` for macOS, FreeBSD
//! and their kind; `unix` has what both share. If a system cannot tell something, the answer is
//! "unknown": a process of which nothing is known counts as alive.
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

mod database;
mod error;
mod listener;
mod liveness;
mod locks;
mod side_file;
#[cfg_attr(target_os = "linux", path = "linux/mod.rs")]
#[cfg_attr(not(target_os = "linux"), path = "other_unix/mod.rs")]
mod system;
mod unix;
pub mod write_lock;

pub use database::{create_private, resolve};
pub use error::Error;
pub use listener::Listener;
pub use liveness::{Liveness, PidScope};
pub use locks::{FileLock, LockKind, held_locks};
pub use side_file::SideFile;
pub use system::{
    FileId, FileStamp, IS_NOTIFIED, ProcessGroup, ProcessInfo, Wakeup, at_exit, at_fork,
    create_pipe, create_private_folder, exposure, functions_of, host_name, is_group_lost,
    is_linked, is_own_socket, liveness_of, monotonic, network_filesystem, open_pipe, parent_id,
    path_of, pin_library, private, random_bytes, readable_by_all, spawn_without_signals, start_of,
    unix_ms, watch, write_at_start,
};

/// Standard output and standard error, without the buffers of the standard library.
pub mod standard {
    pub use crate::system::standard::*;
}

/// Child processes: forked, signalled in groups, reaped, and tied to their parent.
pub mod children {
    pub use crate::system::children::*;
    pub use crate::system::{
        RawTerminal, Sentinel, Terminal, adopt_orphans, die_with, give_terminal_to,
    };
}
