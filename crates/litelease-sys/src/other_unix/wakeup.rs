//! Stands in for the wakeup on systems without futexes across processes, where waiters poll
//! instead.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::Listener;

/// The wakeup of a database file. It does nothing on this system.
#[derive(Debug)]
pub struct Wakeup;

impl Wakeup {
    /// Fails: there is no wakeup on this system.
    pub fn create(_file: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns `None`: there is no wakeup on this system.
    pub fn find(_file: &Path) -> Option<Self> {
        None
    }

    /// Returns 0: there is never a notification.
    pub fn generation(&self) -> u32 {
        0
    }

    /// Sleeps for `time`.
    pub fn wait(&self, _generation: u32, time: Duration) {
        std::thread::sleep(time);
    }

    /// Does nothing.
    pub fn notify(&self) {}
}

impl Listener for Wakeup {
    fn nudge(&self) {}
}
