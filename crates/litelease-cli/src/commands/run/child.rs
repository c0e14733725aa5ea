//! The command: started in a group of its own, signalled and reaped.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeReader, PipeWriter, Read, Write, pipe};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use litelease::backoff;
use litelease_sys::children::{
    Sentinel, die_with, exit_code, exit_now, fork, give_terminal_to, in_own_group, is_ignored,
    make_group, next_change, own_pid, pid_t, replace_process, signal, wait,
};
use serde_json::json;
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::session::{Event, Task};
use crate::exit::code;
use crate::target::Variable;

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
    pub(crate) fn fork(task: &Task, sentinel: &Sentinel) -> io::Result<Self> {
        let (lease, lease_writer) = pipe()?;
        let (outcome, outcome_writer) = pipe()?;
        let parent = std::process::id();
        // SAFETY: there is one thread, so that the copy is whole.
        match unsafe { fork() }? {
            None => {
                drop((lease_writer, outcome));
                sentinel.let_go();
                let mut outcome = Some(outcome_writer);
                let error = become_command(task, parent, lease, &mut outcome);
                if let Some(outcome) = &mut outcome {
                    let _ = outcome.write_all(&error.raw_os_error().unwrap_or(0).to_ne_bytes());
                }
                exit_now(127)
            }
            Some(group) => {
                // Parent and child both make the group, so it exists whichever runs first.
                make_group(group);
                let prepared = Prepared { group, lease: lease_writer, outcome };
                sentinel.watch_over(group)?;
                Ok(prepared)
            }
        }
    }

    /// Lets it become the command.
    pub(crate) fn start(mut self, lease: &[Variable], take_terminal: bool) -> io::Result<()> {
        // A SIGSTOP meanwhile stopped the copy of this process, and was not meant for the command.
        signal(self.group, SIGCONT);
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
        // It has ended, and no other code waits for it yet.
        let _ = wait(self.group);
        Err(io::Error::from_raw_os_error(i32::from_ne_bytes(error)))
    }
}

/// The variables of the lease, as they come over the pipe.
type LeaseVariables = Vec<(String, Option<String>)>;

/// Waits for the lease and becomes the command. Returns only if that fails.
fn become_command(
    task: &Task,
    parent: u32,
    mut lease: PipeReader,
    outcome: &mut Option<PipeWriter>,
) -> io::Error {
    make_group(0);
    if let Err(error) = die_with(parent) {
        return error;
    }
    let mut text = String::new();
    let sent = lease.read_to_string(&mut text).ok();
    let sent = sent.and_then(|_| serde_json::from_str::<(LeaseVariables, bool)>(&text).ok());
    let Some((lease, take_terminal)) = sent else {
        exit_now(0) // there will be no lease
    };
    let mut command = task.command.command();
    environment(&mut command, &task.variables);
    environment(&mut command, &lease);
    if take_terminal {
        give_terminal_to(own_pid());
    }
    match task.retries {
        0 => replace_process(&mut command),
        retries => repeat(&mut command, retries, outcome),
    }
}

/// The pauses before a command is repeated: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Runs the command, and repeats it so many times if it fails. Returns only if it cannot be run.
///
/// This process stays the leader of the group, which the owner text names. So it is signalled along
/// with the command: what the command makes of that decides, and it is not repeated.
fn repeat(command: &mut Command, retries: u32, outcome: &mut Option<PipeWriter>) -> io::Error {
    let is_stopped = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGQUIT, SIGHUP] {
        // The command does not inherit this, and signals that are ignored stay ignored.
        if !is_ignored(signal)
            && let Err(error) = signal_hook::flag::register(signal, is_stopped.clone())
        {
            return error;
        }
    }
    let has_stopped = || is_stopped.load(Ordering::SeqCst);
    for failures in 1.. {
        let status = match command.spawn() {
            Ok(mut running) => {
                drop(outcome.take());
                running.wait()
            }
            Err(error) => return error,
        };
        let code = status.map_or(code::FAILED.into(), exit_code);
        let [first, longest] = PAUSES;
        let seed = i64::from(std::process::id());
        let end = Instant::now() + backoff(first, longest, i64::from(failures), seed);
        while code != 0 && failures <= retries && !has_stopped() && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        if code == 0 || failures > retries || has_stopped() {
            exit_now(code);
        }
    }
    io::ErrorKind::Other.into()
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
        sentinel.watch_over(own_pid())
    };
    // SAFETY: between fork and exec it makes plain system calls only, and allocates nothing.
    unsafe { in_own_group(command, prepare) };
    command.spawn()
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

    fn exit_if_late(&self, signal: i32) {
        if self.0.get().is_some_and(|begin| begin.elapsed() > FIRST_SIGNALS) && signal != SIGTSTP {
            exit_now(128 + signal);
        }
    }
}

/// Sends an event for each signal that asks this process to stop.
pub(crate) fn forward_signals<E: Send + 'static>(
    events: Sender<E>,
    event: impl Fn(i32) -> E + Send + 'static,
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

/// Reaps every child from now on and sends an event for it, until there is none left.
///
/// Not before the command has been started: what could not be started is waited for there.
pub(crate) fn reap(events: Sender<Event>) -> io::Result<()> {
    let body = move || {
        while let Some((pid, change)) = next_change() {
            if events.send(Event::Child(pid, change)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("reaper".into()).spawn(body).map(drop)
}
