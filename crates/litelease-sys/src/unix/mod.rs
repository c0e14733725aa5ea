//! Calls that all Unix systems share.

mod access;
pub(crate) mod children;
mod clock;
mod files;
pub(crate) mod process;
mod sentinel;
pub(crate) mod standard;
mod terminal;

pub use access::exposure;
pub(crate) use access::{Access, may_not_write};
pub(crate) use clock::elapsed;
pub use clock::unix_ms;
pub use files::{
    FileId, FileStamp, create_pipe, create_private_folder, is_group_lost, is_linked, is_own_socket,
    open_pipe, path_of, private, readable_by_all, write_at_start,
};
pub(crate) use files::{create_unopened, inherit, refuse_odd, set_mode, special};
pub(crate) use process::has_ended;
pub use process::{
    at_exit, at_fork, functions_of, host_name, parent_id, pin_library, spawn_without_signals,
};

pub use sentinel::Sentinel;
pub use terminal::{RawTerminal, Terminal, give_terminal_to};
