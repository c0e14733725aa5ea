//! One run, from waiting for the name to releasing it: a loop over everything that can happen.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use litelease::{Cancel, Loss, ProcessGroup, TickOutcome};
use litelease_hold::HandoverRequest;
use litelease_sys::children::{self, Change, Sentinel, Terminal, pid_t};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGTTIN, SIGTTOU};

use super::super::command_line::CommandLine;
use super::super::nesting;
use super::child::{self, Ending, Prepared};
use super::killer::{Killer, LONGEST_WAIT};
use super::progress_pipe::{PROGRESS, ProgressPipe};
use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::{self, printable};
use crate::target::{Tenure, Variable};

/// An event of the loop.
pub(crate) enum Event {
    /// The waiting is over, one way or the other.
    Held(Result<Tenure>),
    /// A signal to pass on to the command.
    Signal(i32),
    /// A child of ours ended or paused.
    Child(pid_t, Change),
    /// The lease is lost.
    Lost,
    /// Another process asks for the lease.
    Requested(HandoverRequest),
    /// The command has noted progress.
    Progress,
}

/// A command to run, and its options.
pub(crate) struct Task {
    /// The name or the pool, for messages.
    pub(crate) name: String,
    pub(crate) conflict_exit_code: u8,
    /// The exit code if the tick is taken.
    pub(crate) taken_exit_code: u8,
    pub(crate) grace: Duration,
    pub(crate) on_lost: Option<String>,
    pub(crate) command: CommandLine,
    /// How often the command is repeated if it fails.
    pub(crate) retries: u32,
    /// Variables of the environment, besides those of the lease.
    pub(crate) variables: Vec<Variable>,
    /// The command notes progress to the hold, and not where its lease is.
    pub(crate) has_progress_pipe: bool,
}

/// Takes the lease or the slot, for a process group. The wait for it can be cancelled.
pub(crate) type Take = Box<dyn FnOnce(u32, Cancel) -> Result<Tenure> + Send>;

/// How long the end of a wait is waited for that was cancelled. If it takes longer, the place is in
/// the way.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) fn run(task: Task, common: &Common, take: Take) -> Result<u8> {
    children::enable_sigchld();
    // SAFETY: there is one thread so far.
    let sentinel = unsafe { Sentinel::post() }?;
    let prepared = Prepared::fork(&task, &sentinel)?;
    let (sender, events) = channel();
    let ending = child::forward_signals(sender.clone(), Event::Signal)?;
    let cancel = Cancel::default();
    wait_on_thread(take, prepared.group, cancel.clone(), sender.clone())?;
    let held = match wait_for_lease(&events, common, &cancel)? {
        Waited::Held(held) => held,
        Waited::Signal(signal) => return Ok(code::SIGNAL + signal as u8),
        Waited::Busy => return Ok(task.conflict_exit_code),
        Waited::Taken => return Ok(task.taken_exit_code),
    };
    RunLoop::start(task, common.json, held, prepared, sentinel, sender)?.run(&events, &ending)
}

/// The end of the wait.
enum Waited {
    Held(Tenure),
    Signal(i32),
    Busy,
    /// The tick is taken.
    Taken,
}

fn wait_for_lease(events: &Receiver<Event>, common: &Common, cancel: &Cancel) -> Result<Waited> {
    loop {
        match events.recv() {
            Ok(Event::Held(Ok(held))) => return Ok(Waited::Held(held)),
            Ok(Event::Held(Err(failure))) if failure.is_taken() => {
                failure.print_if_remarkable(common.json);
                return Ok(Waited::Taken);
            }
            Ok(Event::Held(Err(failure))) if failure.code == code::NO => {
                if common.json || !common.quiet {
                    failure.print(common.json);
                }
                return Ok(Waited::Busy);
            }
            Ok(Event::Held(Err(failure))) => return Err(failure),
            Ok(Event::Signal(SIGTSTP)) => children::stop_self(),
            Ok(Event::Signal(signal)) => {
                cancel.cancel();
                // It may have been granted in this very moment: then it is released when it is
                // dropped. A second signal ends this at once.
                drop(events.recv_timeout(CANCEL_TIMEOUT));
                return Ok(Waited::Signal(signal));
            }
            Ok(Event::Child(..) | Event::Lost | Event::Requested(_) | Event::Progress) => {}
            Err(_) => return Err(Failure::failed("Threads", "the waiting thread is gone")),
        }
    }
}

/// Waits for the lease on a thread, so that signals are heard meanwhile.
fn wait_on_thread(take: Take, group: pid_t, cancel: Cancel, events: Sender<Event>) -> Result<()> {
    let body = move || {
        let held = take(group.unsigned_abs(), cancel);
        // If a signal came first, the receiver is gone, and the lease is released again.
        let _ = events.send(Event::Held(held));
    };
    thread::Builder::new().name("wait".into()).spawn(body)?;
    Ok(())
}

/// A command that runs under a lease.
struct RunLoop {
    task: Task,
    as_json: bool,
    tenure: Tenure,
    /// The variables of the lease.
    lease: Vec<Variable>,
    group: pid_t,
    processes: ProcessGroup,
    sentinel: Sentinel,
    terminal: Terminal,
    /// The end of the command itself.
    ended: Option<u8>,
    /// This process was asked to end, and has passed that on.
    is_stopped: bool,
    killer: Killer,
    /// On a thread: a reader of standard error that is stuck must not delay the kill.
    loss_report: Option<JoinHandle<()>>,
    hook: Option<pid_t>,
    _progress: Option<ProgressPipe>,
}

impl RunLoop {
    /// Starts the command.
    fn start(
        task: Task,
        as_json: bool,
        tenure: Tenure,
        prepared: Prepared,
        sentinel: Sentinel,
        events: Sender<Event>,
    ) -> Result<Self> {
        children::adopt_orphans();
        let mut terminal = Terminal::default();
        let take_terminal = Terminal::is_interactive();
        let group = prepared.group;
        let mut lease = tenure.variables.clone();
        let owner = lease.iter().find(|(name, _)| *name == "LITELEASE_OWNER");
        if let Some(owner) = owner.and_then(|(_, owner)| owner.as_ref()?.to_str()) {
            lease.push((nesting::OWNERS, Some(nesting::with(owner).into())));
        }
        let noted = events.clone();
        let progress = task
            .has_progress_pipe
            .then(|| ProgressPipe::listen(move || noted.send(Event::Progress).is_ok()))
            .transpose()?;
        lease.push((PROGRESS, progress.as_ref().map(|pipe| pipe.path.clone().into())));
        if let Err(error) = prepared.start(&lease, take_terminal) {
            if take_terminal {
                terminal.was_taken();
                terminal.take_back();
            }
            sentinel.dismiss();
            return Err(task.command.not_started(&error));
        }
        if take_terminal {
            terminal.was_taken();
        }
        let lost = events.clone();
        tenure.held.on_lost(move |_| drop(lost.send(Event::Lost)));
        let requested = events.clone();
        tenure.held.on_request(move |request| {
            drop(requested.send(Event::Requested(request.clone())));
        });
        child::reap(events)?;
        let killer = Killer::new(group, task.grace);
        let (ended, loss_report, hook) = (None, None, None);
        Ok(RunLoop {
            task,
            as_json,
            tenure,
            lease,
            group,
            processes: ProcessGroup::new(group.unsigned_abs()),
            sentinel,
            terminal,
            ended,
            is_stopped: false,
            killer,
            loss_report,
            hook,
            _progress: progress,
        })
    }

    /// Runs until the group and the hook have ended.
    fn run(mut self, events: &Receiver<Event>, ending: &Ending) -> Result<u8> {
        while !self.is_over() {
            self.enforce_deadline();
            match events.recv_timeout(self.idle_time()) {
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::Child(pid, change)) => self.note(pid, change),
                Ok(Event::Requested(request)) => self.report_request(&request),
                // If it is lost, the killer knows.
                Ok(Event::Progress) => _ = self.tenure.held.progress(),
                Ok(Event::Lost | Event::Held(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.terminal.take_back();
        self.sentinel.dismiss();
        if self.killer.has_begun() {
            self.loss_report.iter().for_each(join_briefly);
            return Ok(code::LOST);
        }
        // Released when the work has ended, not before. If that fails, the lease ends by itself.
        ending.begin();
        if let Some(finish) = self.tenure.finish.take().filter(|_| !self.is_stopped) {
            let is_done = self.ended == Some(code::OK);
            let outcome = if is_done { TickOutcome::Done } else { TickOutcome::Failed };
            finish(&self.tenure.held, outcome)?;
            return Ok(self.ended.unwrap_or(code::FAILED));
        }
        let name = printable(&self.task.name);
        match self.tenure.release(self.ended) {
            Err(loss) if loss.may_pass() => {
                let text = format!("{name} could not be released and ends by itself: {loss}");
                Failure::failed("NotReleased", text).print(self.as_json);
            }
            Err(loss) => {
                let text = format!("lost the lease on {name}: {loss}");
                Failure::failed("Lost", text).print(self.as_json);
            }
            Ok(()) => {}
        }
        Ok(self.ended.unwrap_or(code::FAILED))
    }

    fn is_over(&self) -> bool {
        self.ended.is_some() && self.hook.is_none() && self.processes.has_ended()
    }

    /// Ends the group before another holder can be granted the name.
    fn enforce_deadline(&mut self) {
        if let Some(reason) = self.killer.poll(&self.tenure.held.lost()) {
            let text = format!("lost the lease on {}: {reason}", printable(&self.task.name));
            self.loss_report = self.report(code::LOST, "Lost", text);
            self.start_hook(&reason);
            self.killer.poll(&self.tenure.held.lost());
        }
    }

    fn report(&self, code: u8, kind: &'static str, text: String) -> Option<JoinHandle<()>> {
        let as_json = self.as_json;
        let print = move || Failure::new(code, kind, text).print(as_json);
        thread::Builder::new().name("report".into()).spawn(print).ok()
    }

    /// Reports that another process asks for the lease. The command may end early, and is ended
    /// when renewals have been refused for too long.
    fn report_request(&self, request: &HandoverRequest) {
        let (name, who) = (printable(&self.task.name), output::owner(&request.requester));
        let left = output::time_left(request.until_ms);
        let text = format!("{name} is requested by {who}: it is renewed for {left} more");
        self.report(code::OK, "Requested", text);
    }

    fn start_hook(&mut self, reason: &Loss) {
        let Some(hook) = self.task.on_lost.take() else { return };
        match child::start_hook(&hook, &self.task.variables, &self.lease, &reason.to_string()) {
            Ok(pid) => self.hook = Some(pid),
            Err(why) => Failure::failed("Hook", format!("--on-lost: {why}")).print(self.as_json),
        }
    }

    /// Returns how long the loop may sleep if no event comes.
    fn idle_time(&self) -> Duration {
        // A group may lose its last member without any child of ours ending.
        let longest = if self.ended.is_some() { Duration::from_millis(50) } else { LONGEST_WAIT };
        self.killer.idle_time(&self.tenure.held.lost()).min(longest)
    }

    fn pass_on(&mut self, signal: i32) {
        // A tick whose run is ended from outside is left to others.
        self.is_stopped |= signal != SIGTSTP;
        children::signal_group(self.group, signal);
        if let Some(hook) = self.hook {
            children::signal(hook, signal);
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

    /// Handles a stop of the command. If it wants the terminal it may have it. After Ctrl-Z this
    /// process stops, too, so that the shell has its turn. It does not renew then: afterwards the
    /// clock decides.
    fn stopped(&mut self, signal: i32) {
        if matches!(signal, SIGTTIN | SIGTTOU) && self.terminal.lend(self.group) {
            return children::signal_group(self.group, SIGCONT);
        }
        if !matches!(signal, SIGTSTP | SIGTTIN | SIGTTOU) {
            return; // an operator's business
        }
        self.terminal.take_back();
        children::stop_self();
        if !self.tenure.held.trusted_for().is_zero() {
            self.terminal.lend(self.group);
            children::signal_group(self.group, SIGCONT);
        }
    }
}

/// Waits for the report for a moment: a reader that is stuck must not delay the end for ever.
fn join_briefly(loss_report: &JoinHandle<()>) {
    let begin = Instant::now();
    while !loss_report.is_finished() && begin.elapsed() < Duration::from_secs(1) {
        thread::sleep(Duration::from_millis(5));
    }
}
