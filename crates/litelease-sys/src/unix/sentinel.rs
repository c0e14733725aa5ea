//! A tiny process that outlives ours: if we are killed, it kills the groups of our commands.
//!
//! The kernel does that for the command itself (PDEATHSIG), but not for what the command has
//! started.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;

use super::children::{exit_now, fork, pid_t, signal_group};

/// The process on watch. Dropped by the kernel with us, which is how it learns of our end.
pub struct Sentinel {
    line: PipeWriter,
}

impl Sentinel {
    /// Posts it.
    ///
    /// # Safety
    /// The process must have a single thread: what another one has locked stays locked in the copy.
    pub unsafe fn post() -> std::io::Result<Self> {
        let (reader, line) = pipe()?;
        // SAFETY: the caller promises that there is one thread.
        match unsafe { fork() }? {
            None => {
                drop(line);
                watch(reader);
                exit_now(0)
            }
            Some(_) => Ok(Sentinel { line }),
        }
    }

    /// Asks the sentinel to kill this group if we die. Call this before the group can start
    /// anything; a copy of ours may call it, too, between fork and exec.
    pub fn watch_over(&self, group: pid_t) -> std::io::Result<()> {
        // A write of four bytes is one piece, also if other threads write.
        (&self.line).write_all(&group.to_ne_bytes())
    }

    /// Forgets a group that has ended by itself: its number may soon be another's.
    pub fn forget(&self, group: pid_t) {
        let _ = self.watch_over(-group);
    }

    /// Closes the line in a copy of ours: its end must mean the end of the original.
    pub fn let_go(&self) {
        // SAFETY: nothing uses the descriptor after this, for the copy becomes another program or
        // ends.
        unsafe { libc::close(self.line.as_raw_fd()) };
    }

    /// Ends the watch: all groups have ended by themselves.
    pub fn dismiss(self) {
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
        signal_group(group, libc::SIGKILL);
    }
}
