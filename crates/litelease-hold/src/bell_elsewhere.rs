//! The bell on systems without futexes across processes: it never rings, and waiters poll instead.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::watch::Listener;

/// The bell of a database file. It does nothing on this system.
#[derive(Debug)]
pub struct Bell;

impl Bell {
    /// Fails: there is no bell on this system.
    pub fn create(_file: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Returns `None`: there is no bell on this system.
    pub fn find(_file: &Path) -> Option<Self> {
        None
    }

    /// Returns 0: nothing is ever heard.
    pub fn heard(&self) -> u32 {
        0
    }

    /// Sleeps for `time`.
    pub fn listen(&self, _heard: u32, time: Duration) {
        std::thread::sleep(time);
    }

    /// Does nothing.
    pub fn ring(&self) {}
}

impl Listener for Bell {
    fn nudge(&self) {}
}
