//! A tiny process that outlives ours: if we are killed, it kills the groups of our commands.
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

    /// Asks the sentinel to kill this group if we die. Call this before the group can start
    /// anything; a copy of ours may call it, too, between fork and exec.
    pub(crate) fn watch_over(&self, group: pid_t) -> std::io::Result<()> {
        // A write of four bytes is one piece, also if other threads write.
        (&self.line).write_all(&group.to_ne_bytes())
    }

    /// Forgets a group that has ended by itself: its number may soon be another's.
    pub(crate) fn forget(&self, group: pid_t) {
        let _ = self.watch_over(-group);
    }

    /// Closes the line in a copy of ours: its end must mean the end of the original.
    pub(crate) fn let_go(&self) {
        // SAFETY: nothing uses the descriptor after this, for the copy becomes another program or
        // ends.
        unsafe { libc::close(self.line.as_raw_fd()) };
    }

    /// Ends the watch: all groups have ended by themselves.
    pub(crate) fn dismiss(self) {
        let _ = self.watch_over(0);
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
    let mut groups: Vec<pid_t> = Vec::new();
    let mut number = [0; 4];
    while line.read_exact(&mut number).is_ok() {
        match pid_t::from_ne_bytes(number) {
            0 => groups.clear(),
            group if group > 0 => groups.push(group),
            ended => groups.retain(|group| *group != -ended),
        }
    }
    for group in groups {
        // SAFETY: no pointers are involved. A group that is already gone is no harm.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
}
