//! One worker, from the first item to the last: its threads run commands, and a loop over all
//! events ends the commands whose item is lost.

use std::io::ErrorKind;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use litelease::WorkerCounts;
use litelease_hold::WorkOptions;
use litelease_sys::children::{self, Change, Sentinel, signal_group};
use serde_json::json;
use signal_hook::consts::{SIGCONT, SIGSTOP, SIGTSTP};

use super::super::run::child::forward_signals;
use super::super::run::killer::LONGEST_WAIT;
use super::Args;
use super::command::ItemCommand;
use super::progress_line;
use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::{complain, printable};
use crate::target::Variable;
use crate::target::queues::{Options, Queues, WorkItem, Worker};

/// An event of the loop.
enum Event {
    /// A signal to stop or to end.
    Signal(i32),
    /// A command was started.
    Started,
    /// The worker has ended.
    Over(Result<WorkerCounts>),
}

/// The state that the threads share.
struct WorkLoop {
    args: Args,
    common: Common,
    variables: Vec<Variable>,
    sentinel: &'static Sentinel,
    worker: Worker,
    state: Mutex<State>,
    /// A clone for each thread that reports a loss.
    reports: Arc<()>,
}

/// How long the process waits at its end for reports of losses.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    /// How many commands are being started.
    starting: usize,
    commands: Vec<Arc<ItemCommand>>,
    /// An operator wants the worker to receive nothing more.
    is_draining: bool,
    /// An operator wants the commands to end, too.
    is_ending: bool,
    /// The end of the last command, for `--once`.
    last: Option<u8>,
    /// The reason why no command can be started.
    failure: Option<Failure>,
}

pub(super) fn run(args: Args, common: &Common) -> Result<u8> {
    let place = Queues::open(common)?;
    let variables = place.variables();
    children::enable_sigchld();
    // SAFETY: there is one thread so far.
    let sentinel = unsafe { Sentinel::post() }?;
    // It is needed until the process ends, which it learns from that.
    let sentinel: &'static Sentinel = Box::leak(Box::new(sentinel));
    let worker = place.worker(&args.queue, options(&args, common))?;
    children::adopt_orphans();
    let (sender, events) = channel();
    forward_signals(sender.clone(), Event::Signal)?;
    let (common, state, reports) = (common.clone(), Mutex::default(), Arc::default());
    let session = Arc::new(WorkLoop { args, common, variables, sentinel, worker, state, reports });
    progress_line::start(&session.common, place, &session.args.queue, session.worker.clone());
    session.clone().start(sender)?;
    let counts = loop {
        session.enforce_deadline();
        match events.recv_timeout(session.idle_time()) {
            Ok(Event::Signal(SIGTSTP)) => session.pause(),
            Ok(Event::Signal(_)) => session.drain(),
            Ok(Event::Over(result)) => break result,
            Ok(Event::Started) | Err(RecvTimeoutError::Timeout) => session.reap_strangers(),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::failed("Threads", "the working threads are gone"));
            }
        }
    };
    session.end(counts)
}

fn options(args: &Args, common: &Common) -> Options {
    let last_reported = Mutex::new(String::new());
    let (as_json, queue) = (common.json, printable(&args.queue));
    let on_trouble = move |kind: &'static str, error: &str| {
        let text = format!("{queue}: trying again: {error}");
        let mut last = last_reported.lock().unwrap_or_else(PoisonError::into_inner);
        if *last != text {
            Failure::failed(kind, &text).print(as_json);
            *last = text;
        }
    };
    let work = WorkOptions {
        visibility: args.visibility,
        handlers: args.jobs,
        first_delay: args.backoff,
        longest_delay: args.max_backoff,
        once: args.once,
        until_empty: args.drain,
    };
    Options { work, on_trouble: Box::new(on_trouble) }
}

impl WorkLoop {
    /// Starts the worker, on a thread.
    fn start(self: Arc<Self>, events: Sender<Event>) -> Result<()> {
        let body = move || {
            let result = self.worker.run(&|item| self.handle(item, &events));
            // The process may end once the result is sent. The main thread closes the connections,
            // and an open one would leave its -wal.
            drop(self);
            // The main loop may have failed, and then the receiver is gone.
            let _ = events.send(Event::Over(result));
        };
        thread::Builder::new().name("work".into()).spawn(body)?;
        Ok(())
    }

    /// Runs the command for an item. An error is the note with which the item is given back.
    fn handle(
        &self,
        item: &WorkItem<'_>,
        events: &Sender<Event>,
    ) -> std::result::Result<(), String> {
        let command = match self.start_command(item) {
            Ok(command) => command,
            Err(error) => return Err(self.not_started(item, &error)),
        };
        // The main loop may have failed, and then the receiver is gone.
        let _ = events.send(Event::Started);
        let change = command.wait();
        self.sentinel.forget(command.group);
        let was_ended = command.killer().has_begun();
        let (code, how) = match change {
            Change::Exited(code) => (code, format!("exit code {code}")),
            Change::Killed(signal) | Change::Stopped(signal) => {
                (code::SIGNAL.saturating_add(signal as u8), format!("signal {signal}"))
            }
        };
        let is_ending = {
            let mut state = self.state();
            state.commands.retain(|running| running.group != command.group);
            state.last = Some(code);
            state.is_ending
        };
        match change {
            // Many programs end with 0 after SIGTERM, whether they have done their work or not.
            _ if was_ended && is_ending && !item.lost.trusted_for().is_zero() => {
                let note = format!("ended by an operator, {how}");
                let is_done = item.give_back(&note);
                self.report(item, &note, "given back");
                if is_done { Ok(()) } else { Err(note) }
            }
            _ if was_ended => Err(format!("ended because the item was lost, {how}")),
            Change::Exited(0) => Ok(()),
            Change::Exited(code) if self.args.bury_on.contains(&code) => {
                let is_done = item.bury(&how);
                self.report(item, &how, "buried");
                if is_done { Ok(()) } else { Err(how) }
            }
            _ => {
                self.report(item, &how, "given back");
                Err(how)
            }
        }
    }

    fn start_command(&self, item: &WorkItem<'_>) -> std::io::Result<Arc<ItemCommand>> {
        self.state().starting += 1;
        let started = ItemCommand::start(&self.args, &self.variables, self.sentinel, item);
        let mut state = self.state();
        state.starting -= 1;
        let command = Arc::new(started?);
        if state.is_ending {
            command.killer().end();
        }
        state.commands.push(command.clone());
        Ok(command)
    }

    /// Returns the note for an item whose command cannot be started. Unless that may pass, nothing
    /// more is received, and the item is given back without a delay.
    fn not_started(&self, item: &WorkItem<'_>, error: &std::io::Error) -> String {
        let note = format!("cannot start the command: {error}");
        if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) {
            self.report(item, &note, "given back");
        } else {
            self.state().failure = Some(self.args.command.not_started(error));
            self.worker.drain();
            // If this fails, it is given back with a delay.
            let _ = item.give_back(&note);
        }
        note
    }

    fn report(&self, item: &WorkItem<'_>, how: &str, outcome: &str) {
        let (id, attempt) = (item.id, item.attempt);
        if self.common.json {
            let value = json!({ "item": id, "attempt": attempt, "outcome": outcome, "note": how });
            complain(&value.to_string());
        } else if !self.common.quiet {
            let queue = printable(&self.args.queue);
            complain(&format!("litelease: {queue} item {id}, attempt {attempt}: {how}, {outcome}"));
        }
    }

    /// Ends the groups whose items other workers may receive soon.
    fn enforce_deadline(&self) {
        for command in self.commands() {
            let mut killer = command.killer();
            if let Some(reason) = killer.poll(&command.lease) {
                let (queue, as_json) = (printable(&self.args.queue), self.common.json);
                let text = format!("{queue}: lost the item of process {}: {reason}", command.group);
                // On a thread: a reader of standard error that is stuck must not delay the kill.
                let report = self.reports.clone();
                let print = move || {
                    Failure::new(code::LOST, "Lost", text).print(as_json);
                    drop(report);
                };
                let _ = thread::Builder::new().name("report".into()).spawn(print);
                killer.poll(&command.lease);
            }
        }
    }

    /// Returns how long the loop may sleep if no event comes.
    fn idle_time(&self) -> Duration {
        let commands = self.commands().into_iter();
        let times = commands.map(|command| command.killer().idle_time(&command.lease));
        times.min().unwrap_or(LONGEST_WAIT)
    }

    /// Stops with the commands after Ctrl-Z. Deliveries are not extended meanwhile: afterwards the
    /// clock decides.
    fn pause(&self) {
        // Held until the process goes on, so that no command is started meanwhile.
        let state = self.state_with_all_commands();
        for command in &state.commands {
            signal_group(command.group, SIGSTOP);
        }
        children::stop_self();
        drop(state);
        self.enforce_deadline();
        for command in self.commands().iter().filter(|command| !command.killer().has_begun()) {
            signal_group(command.group, SIGCONT);
        }
    }

    /// Receives nothing more. Asked again, ends the commands, too.
    fn drain(&self) {
        let mut state = self.state();
        state.is_ending = std::mem::replace(&mut state.is_draining, true);
        if state.is_ending {
            state.commands.iter().for_each(|command| command.killer().end());
        }
        drop(state);
        self.worker.drain();
    }

    /// Reaps what commands have left behind outside their groups. The rest is reaped by its thread.
    fn reap_strangers(&self) {
        // Held all the time: a command that is just being started is not in the list yet.
        let state = self.state();
        if state.starting == 0 {
            let is_ours = |group| state.commands.iter().any(|command| command.group == group);
            children::reap_strangers(is_ours);
        }
    }

    fn end(&self, counts: Result<WorkerCounts>) -> Result<u8> {
        let begin = Instant::now();
        while Arc::strong_count(&self.reports) > 1 && begin.elapsed() < FLUSH_TIMEOUT {
            thread::sleep(Duration::from_millis(2));
        }
        let (failure, last) = {
            let mut state = self.state();
            (state.failure.take(), state.last)
        };
        if let Some(failure) = failure {
            return Err(failure);
        }
        let counts = counts?;
        progress_line::sum_up(&self.common, &self.args.queue, counts)?;
        Ok(match last {
            _ if !self.args.once => code::OK,
            _ if counts.lost > 0 => code::LOST,
            last => last.unwrap_or(code::NO),
        })
    }

    /// Returns the state once no command is being started: that one runs already, and is not in
    /// the list yet.
    fn state_with_all_commands(&self) -> MutexGuard<'_, State> {
        loop {
            let state = self.state();
            if state.starting == 0 {
                return state;
            }
            drop(state);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn commands(&self) -> Vec<Arc<ItemCommand>> {
        self.state().commands.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
