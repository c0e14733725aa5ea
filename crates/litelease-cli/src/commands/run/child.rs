//! The command: started in a group of its own, signalled and reaped.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::super::command_line::CommandLine;
use super::sentinel::Sentinel;
use super::session::Event;
use super::terminal;
use crate::target::Variable;

/// The way in which a process ended or paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Exited(u8),
    Killed(c_int),
    Stopped(c_int),
}

/// A process that waits to become the command, in a process group of its own.
///
/// The group exists before the name is claimed, so that the owner text can name it: if we are
/// killed, no other process may take the name over before all processes of the group have ended.
pub(crate) struct Prepared {
    /// Its number, which is the group's.
    pub(crate) group: pid_t,
    /// Carries the lease to it. It ends if this closes without one.
    lease: PipeWriter,
    /// Carries the error back if the command cannot be run, and closes if it can.
    outcome: PipeReader,
}

impl Prepared {
    /// Forks it. Call this while the process has one thread only: nothing may be locked in the
    /// copy.
    ///
    /// It dies when this thread does, so this must be the main thread.
    pub(crate) fn fork(
        command: &CommandLine,
        place: &[Variable],
        sentinel: &Sentinel,
    ) -> io::Result<Self> {
        let (lease, lease_writer) = pipe()?;
        let (outcome, outcome_writer) = pipe()?;
        let parent = std::process::id();
        // SAFETY: there is one thread, so that the copy is whole.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop((lease_writer, outcome));
                sentinel.let_go();
                let error = become_command(command, place, parent, lease);
                let _ =
                    (&outcome_writer).write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
                // SAFETY: ends the copy without running anything of the original's.
                unsafe { libc::_exit(127) }
            }
            group => {
                // Parent and child both call setpgid, so the group exists whichever runs first.
                // SAFETY: no pointers are involved.
                unsafe { libc::setpgid(group, group) };
                let prepared = Prepared { group, lease: lease_writer, outcome };
                sentinel.watch_over(group)?;
                Ok(prepared)
            }
        }
    }

    /// Lets it become the command.
    pub(crate) fn start(mut self, lease: &[Variable], take_terminal: bool) -> io::Result<()> {
        // A SIGSTOP meanwhile stopped the copy of this process, and was not meant for the command.
        signal(self.group, libc::SIGCONT);
        let lossless = |text: &OsString| text.to_string_lossy().into_owned();
        let lease: Vec<(&str, Option<String>)> =
            lease.iter().map(|(name, value)| (*name, value.as_ref().map(lossless))).collect();
        let text = json!([lease, take_terminal]);
        // If it was killed meanwhile, that is how the command has ended.
        let _ = self.lease.write_all(text.to_string().as_bytes());
        drop(self.lease);
        let mut error = [0; 4];
        if self.outcome.read_exact(&mut error).is_err() {
            return Ok(());
        }
        // SAFETY: it has ended, and no other code waits for it yet.
        unsafe { libc::waitpid(self.group, std::ptr::null_mut(), 0) };
        Err(io::Error::from_raw_os_error(c_int::from_ne_bytes(error)))
    }
}

/// The variables of the lease, as they come over the pipe.
type LeaseVariables = Vec<(String, Option<String>)>;

/// Waits for the lease and becomes the command. Returns only if that fails.
fn become_command(
    command: &CommandLine,
    place: &[Variable],
    parent: u32,
    mut lease: PipeReader,
) -> io::Error {
    // SAFETY: no pointers are involved.
    unsafe { libc::setpgid(0, 0) };
    if let Err(error) = die_with(parent) {
        return error;
    }
    let mut text = String::new();
    let sent = lease.read_to_string(&mut text).ok();
    let sent = sent.and_then(|_| serde_json::from_str::<(LeaseVariables, bool)>(&text).ok());
    let Some((lease, take_terminal)) = sent else {
        // SAFETY: ends the copy without running anything of the original's.
        unsafe { libc::_exit(0) } // there will be no lease
    };
    let mut command = command.command();
    environment(&mut command, place);
    environment(&mut command, &lease);
    if take_terminal {
        // SAFETY: no pointers are involved.
        terminal::give_to(unsafe { libc::getpid() });
    }
    command.exec()
}

/// Starts the shell command that learns of a loss.
pub(crate) fn start_hook(
    hook: &str,
    place: &[Variable],
    lease: &[Variable],
    reason: &str,
) -> io::Result<pid_t> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", hook]).env("LITELEASE_LOST", reason);
    environment(&mut command, place);
    environment(&mut command, lease);
    pid_t::try_from(command.spawn()?.id()).map_err(io::Error::other)
}

fn environment<N: AsRef<OsStr>, V: AsRef<OsStr>>(command: &mut Command, all: &[(N, Option<V>)]) {
    for (name, value) in all {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
}

/// Starts a command in a group of its own, which ends with us. The thread that calls this must wait
/// for its end: the kernel kills the command when that thread ends.
pub(crate) fn start_in_group(
    command: &mut Command,
    sentinel: &'static Sentinel,
) -> io::Result<std::process::Child> {
    let parent = std::process::id();
    let prepare = move || {
        die_with(parent)?;
        // SAFETY: no pointers are involved.
        sentinel.watch_over(unsafe { libc::getpid() })
    };
    // SAFETY: between fork and exec it makes plain system calls only, and allocates nothing.
    unsafe { command.process_group(0).pre_exec(prepare) };
    command.spawn()
}

/// Has the kernel kill this process when its parent dies.
#[cfg(target_os = "linux")]
fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // It may have died before.
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

/// Makes orphans of the command children of this process, which is notified of their end.
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

/// Remembers when this process has begun to clean up. After a second, a signal ends it at once,
/// because the cleaning up may be blocked.
#[derive(Clone, Default)]
pub(crate) struct Ending(Arc<OnceLock<Instant>>);

/// For how long a signal does not end a process that cleans up: several may come together.
const FIRST_SIGNALS: Duration = Duration::from_secs(1);

impl Ending {
    /// Records that only cleaning up is left.
    pub(crate) fn begin(&self) {
        let _ = self.0.set(Instant::now());
    }

    fn exit_if_late(&self, signal: c_int) {
        if self.0.get().is_some_and(|begin| begin.elapsed() > FIRST_SIGNALS) && signal != SIGTSTP {
            // SAFETY: no pointers are involved.
            unsafe { libc::_exit(128 + signal) };
        }
    }
}

/// Sends an event for each signal that asks this process to stop.
pub(crate) fn forward_signals<E: Send + 'static>(
    events: Sender<E>,
    event: impl Fn(c_int) -> E + Send + 'static,
) -> io::Result<Ending> {
    let ending = Ending::default();
    let begun = ending.clone();
    // Signals that are ignored stay ignored, for us and for the command: nohup wants that.
    let wanted = [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGTSTP];
    let mut signals = Signals::new(wanted.into_iter().filter(|signal| !is_ignored(*signal)))?;
    let body = move || {
        for signal in signals.forever() {
            begun.exit_if_late(signal);
            if events.send(event(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(body).map(|_| ending)
}

/// Checks whether this process was started with a signal ignored.
fn is_ignored(signal: c_int) -> bool {
    // SAFETY: the structure is plain data, and only read into.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Makes the kernel report the ends of children, also if this process was started with SIGCHLD
/// ignored.
pub(crate) fn enable_sigchld() {
    // SAFETY: no pointers are involved.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Stops this process until it gets SIGCONT.
pub(crate) fn stop_self() {
    // SAFETY: no pointers are involved. Sent to this thread, so that it does not run on for a
    // moment.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Returns the process group of the program that started this process, which may have given this
/// process another.
pub(crate) fn parents_group() -> u32 {
    // SAFETY: no pointers are involved.
    let group = unsafe { libc::getpgid(libc::getppid()) };
    // SAFETY: as above.
    let own = || unsafe { libc::getpgrp() };
    (if group > 0 { group } else { own() }).unsigned_abs()
}

/// Reaps every child from now on and sends an event for it, until there is none left.
///
/// Not before the command has been started: what could not be started is waited for there.
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

/// Waits for the end of one child.
pub(crate) fn wait(child: pid_t) -> io::Result<Change> {
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
pub(crate) fn reap_group(group: pid_t) {
    // SAFETY: no status is asked for.
    while unsafe { libc::waitpid(-group, ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// Reaps children that have ended, up to one in a group that another thread waits for.
pub(crate) fn reap_strangers(is_waited_for: impl Fn(pid_t) -> bool) {
    loop {
        // SAFETY: all zeros is a valid value of it, and the call fills it in; it reaps nothing.
        let pid = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
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

fn change(status: c_int) -> Change {
    if libc::WIFSTOPPED(status) {
        Change::Stopped(libc::WSTOPSIG(status))
    } else if libc::WIFSIGNALED(status) {
        Change::Killed(libc::WTERMSIG(status))
    } else {
        Change::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX))
    }
}
