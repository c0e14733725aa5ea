//! One run, from waiting for the name to releasing it: a loop over everything that can happen.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use litelease::{Held, HoldError, HoldOptions, Loss, RequestInfo};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;

use super::super::nesting;
use super::Args;
use super::child::{self, Change, Prepared};
use super::sentinel::Sentinel;
use super::terminal::Terminal;
use crate::exit::{Failure, Result, code};
use crate::output::{held_by, printable};
use crate::waiting::while_waiting;
use crate::{Common, database, output};

/// Something that has happened.
pub(crate) enum Event {
    /// The waiting is over, one way or the other.
    Held(std::result::Result<Held, Failure>),
    /// Somebody wants us to stop.
    Signal(c_int),
    /// A child of ours ended or paused.
    Child(pid_t, Change),
    /// The lease is lost.
    Lost,
    /// Somebody asks for the lease.
    Requested(RequestInfo),
}

/// The main loop looks at the clock this often: after a suspend its alarm is late.
const LONGEST_NAP: Duration = Duration::from_secs(1);

pub(crate) fn run(args: Args, common: &Common) -> Result<u8> {
    let path = database::path(common)?;
    // The child may have another working directory one day; the path should still be right.
    let path = std::path::absolute(&path).unwrap_or(path);
    child::hear_of_children();
    let mut sentinel = Sentinel::post()?;
    let prepared = Prepared::fork(&args, &path, &mut sentinel)?;
    let (sender, events) = channel();
    forward_signals(sender.clone())?;
    take(&args, common, prepared.group, sender.clone())?;
    let held = match wait_for_lease(&events, common)? {
        Waited::Held(held) => held,
        Waited::Signal(signal) => return Ok(code::SIGNAL + signal as u8),
        Waited::Busy => return Ok(args.conflict_exit_code),
    };
    Session::start(args, common.json, held, path, prepared, sentinel, sender)?.run(&events)
}

/// How the waiting ended.
enum Waited {
    Held(Held),
    Signal(c_int),
    Busy,
}

fn wait_for_lease(events: &Receiver<Event>, common: &Common) -> Result<Waited> {
    loop {
        match events.recv() {
            Ok(Event::Held(Ok(held))) => return Ok(Waited::Held(held)),
            Ok(Event::Held(Err(failure))) if failure.code == code::NO => {
                if common.json || !common.quiet {
                    failure.tell(common.json);
                }
                return Ok(Waited::Busy);
            }
            Ok(Event::Held(Err(failure))) => return Err(failure),
            Ok(Event::Signal(SIGTSTP)) => child::stop_self(),
            Ok(Event::Signal(signal)) => {
                // It may have been granted in this very moment: then it is released when it is
                // dropped.
                drop(events.recv_timeout(Duration::from_millis(50)));
                return Ok(Waited::Signal(signal));
            }
            Ok(Event::Child(..) | Event::Lost | Event::Requested(_)) => {}
            Err(_) => return Err(Failure::failed("Threads", "the waiting thread is gone")),
        }
    }
}

/// Waits for the name on a thread, so that signals are heard meanwhile.
fn take(args: &Args, common: &Common, group: pid_t, events: Sender<Event>) -> Result<()> {
    let (name, wait) = (args.name.clone(), args.wait());
    let options = args.options().wait(wait).group(group.unsigned_abs());
    let common = common.clone();
    let body = move || {
        let held = hold(&common, &name, options, wait);
        // Nobody listens any more if a signal came first.
        let _ = events.send(Event::Held(held));
    };
    thread::Builder::new().name("wait".into()).spawn(body)?;
    Ok(())
}

fn hold(common: &Common, name: &str, options: HoldOptions, wait: Duration) -> Result<Held> {
    while_waiting(common, name, || {
        let db = database::open_patiently(common, wait)?;
        nesting::check(&db, name)?;
        db.hold(name, options).map_err(|error| match error {
            HoldError::Busy(current) => {
                let failure = Failure::new(code::NO, "Busy", held_by(&current));
                failure.because_of(output::lease(&current))
            }
            error => error.into(),
        })
    })
}

fn forward_signals(events: Sender<Event>) -> Result<()> {
    // What is ignored stays so, for us and for the command: nohup asks for that.
    let wanted = [SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGTSTP];
    let mut signals =
        Signals::new(wanted.into_iter().filter(|signal| !child::is_ignored(*signal)))?;
    let body = move || {
        for signal in signals.forever() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(body)?;
    Ok(())
}

/// A command that runs under a lease.
struct Session {
    args: Args,
    as_json: bool,
    held: Held,
    path: PathBuf,
    group: pid_t,
    sentinel: Sentinel,
    terminal: Terminal,
    /// How the command itself ended.
    ended: Option<u8>,
    ending: Option<Ending>,
    hook: Option<pid_t>,
}

/// The end of a group whose lease is lost.
struct Ending {
    kill_at: Instant,
    /// Whether it must be over when our own trust window is: nobody else is known to have the name
    /// yet.
    is_own_clock: bool,
    is_killed: bool,
    /// Somebody who does not read what we say must not keep us from what we do.
    telling: Option<JoinHandle<()>>,
}

impl Ending {
    /// Whether it is time for SIGKILL, with so much trust left. The first clock does not count a
    /// suspend, the second does.
    fn is_due(&self, left: Duration) -> bool {
        Instant::now() >= self.kill_at || (self.is_own_clock && left.is_zero())
    }
}

impl Session {
    /// Starts the command.
    fn start(
        args: Args,
        as_json: bool,
        held: Held,
        path: PathBuf,
        prepared: Prepared,
        sentinel: Sentinel,
        events: Sender<Event>,
    ) -> Result<Self> {
        child::adopt_orphans();
        let mut terminal = Terminal::new();
        let take_terminal = Terminal::is_interactive();
        let group = prepared.group;
        if let Err(error) = prepared.start(&held.lease(), take_terminal) {
            if take_terminal {
                terminal.was_taken();
                terminal.take_back();
            }
            sentinel.dismiss();
            return Err(not_started(&args, &error));
        }
        if take_terminal {
            terminal.was_taken();
        }
        let lost = events.clone();
        held.on_lost(move |_| drop(lost.send(Event::Lost)));
        let requested = events.clone();
        held.on_requested(move |request| drop(requested.send(Event::Requested(request.clone()))));
        child::reap(events)?;
        let (ended, ending, hook) = (None, None, None);
        Ok(Session { args, as_json, held, path, group, sentinel, terminal, ended, ending, hook })
    }

    /// Runs until the group and the hook have ended.
    fn run(mut self, events: &Receiver<Event>) -> Result<u8> {
        while !self.is_over() {
            self.keep_the_promise();
            match events.recv_timeout(self.nap()) {
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::Child(pid, change)) => self.note(pid, change),
                Ok(Event::Requested(request)) => self.tell_of(&request),
                Ok(Event::Lost | Event::Held(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.terminal.take_back();
        self.sentinel.dismiss();
        if let Some(ending) = self.ending {
            ending.telling.iter().for_each(give_time);
            return Ok(code::LOST);
        }
        // Released when the work has ended, not before. If that fails, the lease ends by itself.
        let (name, lease) = (printable(&self.args.name), self.held.lease());
        match self.held.release() {
            Err(lost) if lost.reason.may_pass() => {
                if database::release_patiently(&self.path, &lease) {
                    return Ok(self.ended.unwrap_or(code::FAILED));
                }
                let text =
                    format!("{name} could not be released and ends by itself: {}", lost.reason);
                Failure::failed("NotReleased", text).tell(self.as_json);
            }
            Err(lost) => Failure::failed("Lost", lost).tell(self.as_json),
            Ok(()) => {}
        }
        Ok(self.ended.unwrap_or(code::FAILED))
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() && self.hook.is_none() && !child::group_exists(self.group)
    }

    /// No overlap with a successor: ends the group before somebody else can be granted the name.
    fn keep_the_promise(&mut self) {
        let left = self.held.trusted_for();
        match &mut self.ending {
            None if left.is_zero() => self.end(),
            None if left <= self.args.kill_grace() => self.end(),
            Some(ending) if !ending.is_killed && ending.is_due(left) => {
                ending.is_killed = true;
                child::signal_group(self.group, libc::SIGKILL);
            }
            _ => {}
        }
    }

    /// The lease is lost, or about to be: SIGTERM now, SIGKILL after the grace. Where only our own
    /// window is running out, SIGKILL comes at its end.
    fn end(&mut self) {
        child::signal_group(self.group, libc::SIGTERM);
        // One that is stopped would not notice.
        child::signal_group(self.group, libc::SIGCONT);
        let grace = self.args.kill_grace();
        let left = self.held.trusted_for().min(grace);
        let reason = match self.held.check() {
            Err(lost) => lost.reason,
            Ok(()) => self.held.trouble().unwrap_or(Loss::Expired),
        };
        let is_own_clock = matches!(reason, Loss::Expired) || reason.may_pass();
        let kill_at = Instant::now() + if is_own_clock { left } else { grace };
        let telling = self.tell(&reason);
        self.ending = Some(Ending { kill_at, is_own_clock, is_killed: false, telling });
        self.start_hook(&reason);
        self.keep_the_promise();
    }

    fn tell(&self, reason: &Loss) -> Option<JoinHandle<()>> {
        let (name, as_json) = (printable(&self.args.name), self.as_json);
        let text = format!("lost the lease on {name}: {reason}");
        let tell = move || Failure::new(code::LOST, "Lost", text).tell(as_json);
        thread::Builder::new().name("tell".into()).spawn(tell).ok()
    }

    /// Somebody asks for the lease: the command may end early, and is ended when renewals have been
    /// refused for too long.
    fn tell_of(&self, request: &RequestInfo) {
        let (name, who) = (printable(&self.args.name), output::owner(&request.requester));
        let left = output::time_left(request.until_ms);
        let text = format!("{name} is requested by {who}: it is renewed for {left} more");
        let as_json = self.as_json;
        let tell = move || Failure::new(code::OK, "Requested", text).tell(as_json);
        let _ = thread::Builder::new().name("tell".into()).spawn(tell);
    }

    fn start_hook(&mut self, reason: &Loss) {
        let Some(hook) = self.args.on_lost.take() else { return };
        match child::start_hook(&hook, &self.held, &self.path, &reason.to_string()) {
            Ok(pid) => self.hook = Some(pid),
            Err(error) => Failure::failed("Hook", format!("--on-lost: {error}")).tell(self.as_json),
        }
    }

    /// Until when nothing needs to be done, unless something happens.
    fn nap(&self) -> Duration {
        let next = match &self.ending {
            None => self.held.trusted_for().saturating_sub(self.args.kill_grace()),
            Some(ending) if !ending.is_killed => {
                ending.kill_at.saturating_duration_since(Instant::now())
            }
            Some(_) => LONGEST_NAP,
        };
        // A group may lose its last member without any child of ours ending.
        let longest = if self.ended.is_some() { Duration::from_millis(50) } else { LONGEST_NAP };
        next.min(longest)
    }

    fn pass_on(&mut self, signal: c_int) {
        child::signal_group(self.group, signal);
        if let Some(hook) = self.hook {
            child::signal(hook, signal);
        }
    }

    fn note(&mut self, pid: pid_t, change: Change) {
        match change {
            Change::Stopped(signal) if pid == self.group => self.stopped(signal),
            Change::Stopped(_) => {}
            _ if Some(pid) == self.hook => self.hook = None,
            Change::Exited(code) if pid == self.group => self.ended = Some(code),
            Change::Killed(signal) if pid == self.group => {
                self.ended = Some(code::SIGNAL.saturating_add(signal as u8));
            }
            _ => {} // an orphan, or the sentinel
        }
    }

    /// The command was stopped. If it wants the terminal it may have it; if somebody pressed
    /// Ctrl-Z, we stop, too, so that their shell has its turn. Nobody renews then: when we go on,
    /// the clock decides.
    fn stopped(&mut self, signal: c_int) {
        if matches!(signal, libc::SIGTTIN | libc::SIGTTOU) && self.terminal.lend(self.group) {
            return child::signal_group(self.group, libc::SIGCONT);
        }
        if !matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU) {
            return; // an operator's business
        }
        self.terminal.take_back();
        child::stop_self();
        if self.held.check().is_ok() {
            self.terminal.lend(self.group);
            child::signal_group(self.group, libc::SIGCONT);
        }
    }
}

/// Waits a moment for what is being said. Somebody who does not read it must not keep us for ever.
fn give_time(telling: &JoinHandle<()>) {
    let begin = Instant::now();
    while !telling.is_finished() && begin.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(5));
    }
}

fn not_started(args: &Args, error: &std::io::Error) -> Failure {
    args.command.not_started(error)
}
