//! Child processes: forked, signalled in groups, and reaped.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::{mem, ptr};

pub use libc::pid_t;

/// The way in which a process ended or paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It exited with this code.
    Exited(u8),
    /// It was killed by this signal.
    Killed(i32),
    /// It was stopped by this signal.
    Stopped(i32),
}

/// Forks this process. Returns the number of the copy, and `None` in the copy, which must end by
/// [`exit_now`] or become another program.
///
/// # Safety
/// The process must have a single thread: what another one has locked stays locked in the copy.
pub unsafe fn fork() -> io::Result<Option<pid_t>> {
    // SAFETY: the caller promises that there is one thread, so that the copy is whole.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        copy => Ok(Some(copy)),
    }
}

/// Ends this process at once: nothing that waits for its end is run.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: no pointers are involved.
    unsafe { libc::_exit(code) }
}

/// Puts a process, or this one if the number is 0, into a group of its own.
pub fn make_group(process: pid_t) {
    // SAFETY: no pointers are involved.
    unsafe { libc::setpgid(process, process) };
}

/// Returns the number of this process, as it was when it was forked.
pub fn own_pid() -> pid_t {
    // SAFETY: no pointers are involved.
    unsafe { libc::getpid() }
}

/// Has a command started in a group of its own. Its process calls `prepare` before it becomes the
/// command.
///
/// # Safety
/// `prepare` runs between fork and exec: it may make plain system calls only, and allocate nothing.
pub unsafe fn in_own_group(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the caller promises it.
    unsafe { command.process_group(0).pre_exec(prepare) };
}

/// Returns the exit code of a command as shells have it: 128 + signal if one has ended it.
pub fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
}

/// Replaces this process by the command. Returns only if that fails.
pub fn replace_process(command: &mut Command) -> io::Error {
    command.exec()
}

/// Sends a signal to the whole group.
pub fn signal_group(group: pid_t, signal: i32) {
    // SAFETY: no pointers are involved. A group that is gone needs no signal.
    unsafe { libc::kill(-group, signal) };
}

/// Sends a signal to one process.
pub fn signal(process: pid_t, signal: i32) {
    // SAFETY: no pointers are involved. A process that is gone needs no signal.
    unsafe { libc::kill(process, signal) };
}

/// Checks whether this process was started with a signal ignored.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: the structure is plain data, and only read into.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(signal, ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Makes the kernel report the ends of children, also if this process was started with SIGCHLD
/// ignored.
pub fn enable_sigchld() {
    // SAFETY: no pointers are involved.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Stops this process until it gets SIGCONT.
pub fn stop_self() {
    // SAFETY: no pointers are involved. Sent to this thread, so that it does not run on for a
    // moment.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Returns the process group of the program that started this process, which may have given this
/// process another.
pub fn parents_group() -> u32 {
    // SAFETY: no pointers are involved.
    let group = unsafe { libc::getpgid(libc::getppid()) };
    // SAFETY: as above.
    let own = || unsafe { libc::getpgrp() };
    (if group > 0 { group } else { own() }).unsigned_abs()
}

/// Waits until a child has ended or paused, and returns which, and how. `None` if there is no
/// child.
pub fn next_change() -> Option<(pid_t, Change)> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is ours to write to.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WUNTRACED) };
        match pid {
            0.. => return Some((pid, change(status))),
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return None,
        }
    }
}

/// Waits for the end of one child.
pub fn wait(child: pid_t) -> io::Result<Change> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is ours to write to.
        if unsafe { libc::waitpid(child, &mut status, 0) } == child {
            return Ok(change(status));
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reaps the children of ours in a group that have ended: orphans of a command are ours.
pub fn reap_group(group: pid_t) {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(-group, ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Reaps children that have ended, up to one in a group that another thread waits for.
pub fn reap_strangers(is_waited_for: impl Fn(pid_t) -> bool) {
    loop {
        // SAFETY: all zeros is a valid value of it, and the call fills it in; it reaps nothing.
        let pid = unsafe {
            let mut info: libc::siginfo_t = mem::zeroed();
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_ALL, 0, &mut info, how) != 0 {
                return;
            }
            info.si_pid()
        };
        // SAFETY: no pointers are involved.
        if pid == 0 || is_waited_for(unsafe { libc::getpgid(pid) }) {
            return;
        }
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(pid, ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Ends this process as a program ends whose reader has left: by SIGPIPE.
pub fn end_by_broken_pipe() {
    // SAFETY: no pointers are involved, and the default action needs no function of ours.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::raise(libc::SIGPIPE);
    }
}

fn change(status: i32) -> Change {
    if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}
