//! The state of a process, as far as the system tells it.

/// The state of the process that an owner text names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The process is running.
    Alive,
    /// The process has ended, and so has its group, if it had one.
    Dead,
    /// Unknown: the process is on another host or in another container, or this system does not
    /// provide the information.
    Unknown,
}

/// The scope in which a process number and a start time are valid. Numbers belong to a pid
/// namespace. Start times count from boot and are shown relative to the time namespace of the
/// reader.
///
/// ```
/// # use litelease_sys::PidScope;
/// assert_eq!(PidScope::here(), PidScope::here());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidScope {
    /// The kernel's id of the boot.
    pub boot: String,
    /// The inode of the pid namespace.
    pub pid_namespace: u64,
    /// The inode of the time namespace; 0 where the kernel has none.
    pub time_namespace: u64,
}

impl PidScope {
    /// Returns the scope of this process, if the system provides it and shows the processes of this
    /// scope.
    pub fn here() -> Option<Self> {
        crate::system::scope()
    }
}
