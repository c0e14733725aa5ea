//! A tiny process that outlives ours: if we are killed, it kills the command's group.
//!
//! The kernel does that for the command itself (PDEATHSIG), but not for what the command has
//! started.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;

use libc::pid_t;

/// The process on watch. Dropped by the kernel with us, which is how it learns of our end.
pub(crate) struct Sentinel {
    line: PipeWriter,
}

impl Sentinel {
    /// Posts it. Call this while the process has one thread only: nothing may be locked in the
    /// copy.
    pub(crate) fn post() -> std::io::Result<Self> {
        let (reader, line) = pipe()?;
        // SAFETY: there is one thread, so that the copy is whole.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()),
            0 => {
                drop(line);
                watch(reader);
                // SAFETY: ends the copy without running anything of the original's.
                unsafe { libc::_exit(0) }
            }
            _ => Ok(Sentinel { line }),
        }
    }

    /// Has it kill this group if we die. Call this before the group can start anything.
    pub(crate) fn watch_over(&mut self, group: pid_t) -> std::io::Result<()> {
        self.line.write_all(&group.to_ne_bytes())
    }

    /// In a copy of ours: leaves the line to the original, whose end it must tell.
    pub(crate) fn let_go(&self) {
        // SAFETY: nothing uses the descriptor after this, for the copy becomes another program or
        // ends.
        unsafe { libc::close(self.line.as_raw_fd()) };
    }

    /// The group has ended by itself.
    pub(crate) fn dismiss(mut self) {
        let _ = self.line.write_all(b".");
    }
}

fn watch(mut line: PipeReader) {
    // SAFETY: plain calls. It leaves the group and the session, so that no signal meant for us
    // reaches it, and lets go of our input and output, whose other ends wait for them to close.
    unsafe {
        libc::setsid();
        for descriptor in 0..3 {
            libc::close(descriptor);
        }
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    let mut group = [0; 4];
    if line.read_exact(&mut group).is_err() {
        return; // nothing was started
    }
    if let Ok(0) = line.read(&mut [0]) {
        // SAFETY: no pointers are involved. A group that is already gone is no harm.
        unsafe { libc::kill(-pid_t::from_ne_bytes(group), libc::SIGKILL) };
    }
}
