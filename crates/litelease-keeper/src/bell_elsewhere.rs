//! Where there is no futex across processes: nobody hears a ring, and a nap is short instead.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::watch::Listener;

/// The bell of a database file, which is silent on this system.
#[derive(Debug)]
pub struct Bell;

impl Bell {
    /// Nothing to hang up.
    pub fn create(_file: &Path) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing to ring.
    pub fn find(_file: &Path) -> Option<Self> {
        None
    }

    /// Nothing was heard.
    pub fn heard(&self) -> u32 {
        0
    }

    /// Just naps.
    pub fn listen(&self, _heard: u32, time: Duration) {
        std::thread::sleep(time);
    }

    /// Nobody hears it.
    pub fn ring(&self) {}
}

impl Listener for Bell {
    fn nudge(&self) {}
}
