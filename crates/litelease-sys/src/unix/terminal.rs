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

/// A terminal that passes every key on at once and shows none. Dropping it restores the terminal.
pub struct RawTerminal {
    before: libc::termios,
}

impl RawTerminal {
    /// Takes the terminal on standard input. Returns `None` if there is none. Ctrl-C is a key then.
    pub fn take() -> Option<Self> {
        // SAFETY: the structure is filled before it is read, and lives as long as the calls.
        unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(0, &raw mut before) != 0 {
                return None;
            }
            let mut raw = before;
            raw.c_lflag &= !(libc::ICANON | libc::ECHO | libc::ISIG);
            (libc::tcsetattr(0, libc::TCSANOW, &raw const raw) == 0)
                .then_some(RawTerminal { before })
        }
    }

    /// Waits for keys for this long. Returns their bytes; none if no key was pressed or a signal
    /// came, and `None` if the terminal is gone.
    pub fn keys(&self, wait: std::time::Duration) -> Option<Vec<u8>> {
        let mut ready = libc::pollfd { fd: 0, events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        let mut bytes = [0_u8; 64];
        // SAFETY: one structure that lives as long as the call; a buffer with its length.
        unsafe {
            if libc::poll(&raw mut ready, 1, ms) <= 0 {
                return Some(Vec::new());
            }
            let count = libc::read(0, bytes.as_mut_ptr().cast(), bytes.len());
            usize::try_from(count)
                .ok()
                .filter(|count| *count > 0)
                .map(|count| bytes[..count].to_vec())
        }
    }

    /// Returns how many columns and rows the terminal has.
    pub fn size(&self) -> (usize, usize) {
        // SAFETY: the structure is filled by the call, or stays zero.
        let size: libc::winsize = unsafe {
            let mut size = std::mem::zeroed();
            libc::ioctl(1, libc::TIOCGWINSZ, &raw mut size);
            size
        };
        match (size.ws_col, size.ws_row) {
            (0, _) | (_, 0) => (80, 24),
            (columns, rows) => (columns.into(), rows.into()),
        }
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // SAFETY: the structure was filled by the system.
        unsafe { libc::tcsetattr(0, libc::TCSANOW, &raw const self.before) };
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
