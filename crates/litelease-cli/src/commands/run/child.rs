//! The command: started in a group of its own, signalled and reaped.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::thread;

use libc::{c_int, pid_t};
use litelease::Held;

use super::Args;
use super::sentinel::join_watch;
use super::session::Event;
use super::terminal;

/// How a process ended or paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Exited(u8),
    Killed(c_int),
    Stopped(c_int),
}

/// Starts the command in a new process group, and answers its number, which is the group's.
///
/// It dies when this thread does, so this must be the main thread.
pub(crate) fn start(
    args: &Args,
    held: &Held,
    database: &Path,
    sentinel: RawFd,
    take_terminal: bool,
) -> io::Result<pid_t> {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    environment(&mut command, held, database);
    let parent = std::process::id();
    // SAFETY: between fork and exec only plain system calls are made.
    unsafe {
        command.pre_exec(move || {
            libc::setpgid(0, 0);
            join_watch(sentinel);
            if take_terminal {
                terminal::give_to(libc::getpid());
            }
            die_with(parent)
        })
    };
    let child = command.spawn()?;
    pid_t::try_from(child.id()).map_err(io::Error::other)
}

/// Starts the shell command that is to be told of a loss.
pub(crate) fn start_hook(
    hook: &str,
    held: &Held,
    database: &Path,
    reason: &str,
) -> io::Result<pid_t> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", hook]).env("LITELEASE_LOST", reason);
    environment(&mut command, held, database);
    pid_t::try_from(command.spawn()?.id()).map_err(io::Error::other)
}

fn environment(command: &mut Command, held: &Held, database: &Path) {
    let lease = held.lease();
    command
        .env("LITELEASE_NAME", &lease.name)
        .env("LITELEASE_OWNER", &lease.owner)
        .env("LITELEASE_TOKEN", lease.token.to_string())
        .env("LITELEASE_EXPIRES_AT_MS", lease.lease_expires_at_ms.to_string())
        .env("LITELEASE_DB", database);
}

/// Has the kernel kill this process when its parent dies.
#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // It may have died before it was asked for.
        if libc::getppid() != parent as pid_t {
            libc::_exit(128 + libc::SIGKILL);
        }
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: u32) -> io::Result<()> {
    Ok(())
}

/// What the command leaves behind becomes our child, so that its end is heard of.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    // SAFETY: no pointers are involved. Where it is refused, orphans are init's, as ever.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    }
}

/// Sends a signal to the whole group.
pub(crate) fn signal_group(group: pid_t, signal: c_int) {
    // SAFETY: no pointers are involved. A group that is gone needs no signal.
    unsafe { libc::kill(-group, signal) };
}

/// Sends a signal to one process.
pub(crate) fn signal(process: pid_t, signal: c_int) {
    // SAFETY: no pointers are involved. A process that is gone needs no signal.
    unsafe { libc::kill(process, signal) };
}

/// Whether this process was started with a signal ignored.
pub(crate) fn is_ignored(signal: c_int) -> bool {
    // SAFETY: the structure is plain data, and only read into.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Whether anybody in the group is still there.
pub(crate) fn group_exists(group: pid_t) -> bool {
    // SAFETY: no pointers are involved; signal 0 only asks.
    let asked = unsafe { libc::kill(-group, 0) };
    asked == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Stops this process until somebody continues it.
pub(crate) fn stop_self() {
    // SAFETY: no pointers are involved. Sent to this thread, so that it does not run on for a moment.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Reaps every child from now on and tells of it, until there is none left.
///
/// Not before the command has been started: the standard library reaps by itself what it could not start.
pub(crate) fn reap(events: Sender<Event>) -> io::Result<()> {
    let body = move || loop {
        let mut status = 0;
        // SAFETY: `status` is ours to write to.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::WUNTRACED) };
        if pid < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        if pid < 0 || events.send(Event::Child(pid, change(status))).is_err() {
            return;
        }
    };
    thread::Builder::new().name("reaper".into()).spawn(body).map(drop)
}

fn change(status: c_int) -> Change {
    if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}
