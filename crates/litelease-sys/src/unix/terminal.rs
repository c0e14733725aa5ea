//! The terminal: only one process group at a time may read it, and that should be the command's.

use std::io::IsTerminal;

use super::children::pid_t;

/// Lends our place in the terminal's foreground to the command's group.
#[derive(Default)]
pub struct Terminal {
    is_lent: bool,
}

impl Terminal {
    /// Checks whether the command should get the terminal from the start: it is interactive, and
    /// ours to lend. In a pipeline it is not only ours.
    pub fn is_interactive() -> bool {
        std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && is_foreground()
    }

    /// Records that the command has taken the terminal when it was started.
    pub fn was_taken(&mut self) {
        self.is_lent = true;
    }

    /// Lends the terminal to `group`, if it is ours to lend.
    pub fn lend(&mut self, group: pid_t) -> bool {
        if is_foreground() {
            self.is_lent = give_terminal_to(group);
        }
        self.is_lent
    }

    /// Takes it back, if it was lent.
    pub fn take_back(&mut self) {
        if std::mem::take(&mut self.is_lent) {
            // SAFETY: no pointers are involved.
            give_terminal_to(unsafe { libc::getpgrp() });
        }
    }
}

/// Puts `group` into the foreground of the terminal on standard input. Also called between fork and
/// exec.
pub fn give_terminal_to(group: pid_t) -> bool {
    // SAFETY: plain calls on a set that is ours, all of them allowed between fork and exec. Who is
    // not in the foreground is stopped for trying this, unless the signal is blocked.
    unsafe {
        let mut blocked = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigemptyset(&mut blocked);
        libc::sigaddset(&mut blocked, libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut before);
        let given = libc::tcsetpgrp(0, group) == 0;
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        given
    }
}

fn is_foreground() -> bool {
    // SAFETY: no pointers are involved.
    unsafe { libc::tcgetpgrp(0) == libc::getpgrp() }
}
