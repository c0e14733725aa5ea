//! `litelease every`: runs a command at every tick of a schedule, once among all that do.

use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use litelease_hold::schedule::{Planner, Planning, Step};
use litelease_sys::children::{self, pid_t};
use signal_hook::consts::{SIGTERM, SIGTSTP};

use super::command_line::CommandLine;
use super::run::child::forward_signals;
use super::run::once_per::TickOptions;
use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Failure, Result, code};
use crate::output::{complain, printable};
use crate::target::Target;
use crate::target::ticks::shown;

/// How often the end of a run is looked for.
const POLL: Duration = Duration::from_millis(50);

/// The pause before a server that could not be reached is asked again.
const SERVER_PAUSE: Duration = Duration::from_secs(5);

/// Run a command at every tick of a schedule, once among all that have it
///
/// Stays in the foreground. Each tick is a `litelease run --once-per`: it waits while another
/// process runs it, and takes over if that one dies. Several ticks that were missed are one run.
/// The first start runs nothing. On SIGTERM it ends when the present run has ended; on a second
/// one it passes that on.
#[derive(clap::Args)]
#[command(override_usage = "litelease every [OPTIONS] <SCHEDULE> <NAME> [--] <COMMAND>...")]
#[command(after_help = "Examples:
  litelease every 15m sync -- sync.sh
  litelease every '0 3 * * *' --zone Europe/Berlin nightly -- backup.sh
  litelease every 1h --each --late 6h rollup -- rollup.sh    every hour that was missed, in order")]
pub(crate) struct Args {
    /// The schedule: a cron line, or a period such as 15m or 1d
    schedule: String,
    /// The name of the job
    #[arg(value_parser = super::name)]
    name: String,
    /// Run every tick that was missed, in order, and not only the last one; none that is older than
    /// --late [default: 1d]
    #[arg(long)]
    each: bool,
    /// Run the last tick at the first start
    #[arg(long)]
    at_start: bool,
    /// How long the name stays taken after a crash that others cannot see; see `litelease run`
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    ttl: Option<Duration>,
    /// End a run after this time at the latest
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    max_time: Option<Duration>,
    #[command(flatten)]
    tick: TickOptions,
    #[command(flatten)]
    command: CommandLine,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let schedule = args.tick.schedule(&args.schedule)?;
    args.command.check(&format!("every {:?} {}", args.schedule, printable(&args.name)))?;
    let place = Target::open(common)?;
    place.prepare_for_ticks()?;
    children::enable_sigchld();
    let (sender, signals) = channel();
    let _ending = forward_signals(sender, |signal| signal)?;
    let planning = Planning { each: args.each, at_start: args.at_start, ..args.tick.planning() };
    let planner = Planner::new(schedule, planning);
    Every { args, planner, common, place, signals }.run()
}

struct Every<'c> {
    args: Args,
    planner: Planner,
    common: &'c Common,
    place: Target,
    signals: Receiver<i32>,
}

/// The end of a wait.
enum Woken {
    Time,
    Signal(i32),
}

impl Every<'_> {
    fn run(mut self) -> Result<u8> {
        loop {
            let step = match self.step() {
                Ok(step) => step,
                Err(failure) => match self.wait_for_server(failure)? {
                    Woken::Time => continue,
                    Woken::Signal(signal) => return Ok(ended_by(signal)),
                },
            };
            let woken = match step {
                Step::Run(tick_ms) => {
                    let (code, signal) = self.run_tick(tick_ms)?;
                    if matches!(code, code::USAGE | code::NOT_FOUND | code::NOT_RUNNABLE) {
                        return Ok(code);
                    }
                    if code != code::OK && !self.common.quiet {
                        let (name, tick) = (printable(&self.args.name), shown(tick_ms));
                        complain(&format!(
                            "litelease: the run of {name} for {tick} ended with {code}"
                        ));
                    }
                    signal.map_or(Woken::Time, Woken::Signal)
                }
                Step::Install(tick_ms) => {
                    let schedule = self.planner.schedule().to_string();
                    match self.place.install_schedule(&self.args.name, tick_ms, &schedule) {
                        Ok(()) => Woken::Time,
                        Err(failure) => self.wait_for_server(failure)?,
                    }
                }
                Step::Wait(time) => self.wait(time),
            };
            if let Woken::Signal(signal) = woken {
                return Ok(ended_by(signal));
            }
        }
    }

    /// Waits a little for a server that cannot be reached, and says so.
    fn wait_for_server(&self, failure: Failure) -> Result<Woken> {
        if !failure.is_of_server() {
            return Err(failure);
        }
        failure.print(self.common.json);
        Ok(self.wait(SERVER_PAUSE))
    }

    fn step(&mut self) -> Result<Step> {
        let info = self.place.newest_tick(&self.args.name)?;
        let stored = info.as_ref().map(|info| (info.tick, info.schedule.as_deref()));
        Ok(self.planner.step(stored, litelease::now_ms()))
    }

    /// Runs a tick to its end. Returns the exit code, and the signal that came meanwhile.
    fn run_tick(&self, tick_ms: i64) -> Result<(u8, Option<i32>)> {
        let mut running = self.command(tick_ms)?.spawn()?;
        let mut first = None;
        loop {
            match self.wait(POLL) {
                Woken::Signal(signal) if first.is_some() => children::signal(pid(&running), signal),
                Woken::Signal(signal) => first = Some(signal),
                Woken::Time => {}
            }
            if let Some(status) = running.try_wait()? {
                let code = status.code().and_then(|code| u8::try_from(code).ok());
                return Ok((code.unwrap_or(code::FAILED), first));
            }
        }
    }

    /// Returns the `litelease run` of a tick.
    fn command(&self, tick_ms: i64) -> Result<Command> {
        let Args { schedule, name, ttl, max_time, .. } = &self.args;
        let mut command = Command::new(std::env::current_exe()?);
        if let Some(db) = &self.common.db {
            command.arg("--db").arg(db);
        }
        if let Some(server) = &self.common.server {
            command.arg("--server").arg(server);
        }
        for (is_given, flag) in [(self.common.json, "--json"), (self.common.quiet, "--quiet")] {
            command.args(is_given.then_some(flag));
        }
        command.args(["run", "--once-per", schedule, "--tick", &tick_ms.to_string()]);
        command.args(self.args.tick.words());
        for (flag, time) in [("--ttl", ttl), ("--max-time", max_time)] {
            if let Some(time) = time {
                command.args([flag, &format!("{}ms", time.as_millis())]);
            }
        }
        command.arg(name).arg("--").args(self.args.command.words());
        Ok(command)
    }

    fn wait(&self, time: Duration) -> Woken {
        match self.signals.recv_timeout(time) {
            Ok(SIGTSTP) => {
                children::stop_self();
                Woken::Time
            }
            Ok(signal) => Woken::Signal(signal),
            Err(RecvTimeoutError::Timeout) => Woken::Time,
            Err(RecvTimeoutError::Disconnected) => Woken::Signal(SIGTERM),
        }
    }
}

/// Returns the exit code of a command that a signal has ended.
fn ended_by(signal: i32) -> u8 {
    code::SIGNAL.saturating_add(signal as u8)
}

fn pid(running: &Child) -> pid_t {
    pid_t::try_from(running.id()).unwrap_or_default()
}
