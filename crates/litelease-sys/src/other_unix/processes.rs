//! Processes, of which this system tells nothing but whether a number is in use.

use crate::unix::process::is_absent;
use crate::{Liveness, PidScope};

/// Checks whether the process with this number is running. A number in use proves nothing, because
/// it is not known when its process started.
pub fn liveness_of(pid: u32, _start: u64) -> Liveness {
    match libc::pid_t::try_from(pid) {
        Ok(pid) if pid > 0 && is_absent(pid) => Liveness::Dead,
        _ => Liveness::Unknown,
    }
}

/// A process group, by its number.
#[derive(Debug)]
pub struct ProcessGroup {
    number: u32,
}

impl ProcessGroup {
    /// Names a group by its number.
    pub fn new(number: u32) -> Self {
        ProcessGroup { number }
    }

    /// Checks whether all processes of the group have ended. Returns false if that cannot be
    /// proved.
    pub fn has_ended(&self) -> bool {
        // For kill(), 0 and -1 mean other processes.
        libc::pid_t::try_from(self.number).is_ok_and(|number| number > 1 && is_absent(-number))
    }
}

/// The user and the command of a process.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// The name of its user, or the number of one that has no name here.
    pub user: String,
    /// Its program and arguments.
    pub command: Vec<String>,
}

impl ProcessInfo {
    /// Returns `None`: the system is not asked.
    pub fn find(_pid: u32) -> Option<Self> {
        None
    }
}

/// Returns `None`: this system does not tell when a process started.
pub fn start_of(_pid: u32) -> Option<u64> {
    None
}

/// Returns `None`: this system does not tell the scope of a process number.
pub(crate) fn scope() -> Option<PidScope> {
    None
}
