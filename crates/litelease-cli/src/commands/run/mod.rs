//! `litelease run`: a command under a lease, like flock(1).

pub(super) mod child;
pub(super) mod killer;
pub(crate) mod once_per;
pub(super) mod progress_pipe;
pub(super) mod session;

use std::time::Duration;

use litelease::{Cancel, HoldError};
use serde_json::json;

use self::once_per::PlannedTick;
use self::session::Task;
use super::command_line::CommandLine;
use super::nesting;
use crate::Common;
use crate::duration::{parse, parse_positive, shown};
use crate::exit::{Failure, Result, code};
use crate::output::{printable, remark};
use crate::target::{HoldRequest, Target};
use crate::waiting::while_waiting;

/// Run a command under a lease, so that only one runs at a time
///
/// Waits for the name, runs the command in a process group of its own, keeps the lease alive, and
/// releases it when the command and everything it started in its group have ended. If the lease
/// cannot be renewed, the group is ended before a successor can be granted the name. If an operator
/// breaks it, the group has its kill grace to end, and a successor may already run.
///
/// Sets LITELEASE_NAME, LITELEASE_OWNER, LITELEASE_TOKEN, LITELEASE_EXPIRES_AT_MS and LITELEASE_DB
/// (or LITELEASE_SERVER and LITELEASE_GRANT) in the command's environment. Running the same name
/// inside the command is an error: it would wait for itself.
///
/// You may leave out the --: the command begins with the first word after the name.
#[derive(clap::Args)]
#[command(override_usage = "litelease run [OPTIONS] <NAME> [--] <COMMAND>...")]
#[command(after_help = "Examples:
  litelease run nightly -- backup.sh
  litelease run -n nightly -- backup.sh          exit code 1: already running
  litelease run -w 30s -E 0 nightly -- backup.sh
  litelease run --progress-within 5m --max-time 2h import -- import.py
  litelease run --once-per '0 3 * * *' nightly -- backup.sh    in several crontabs
  litelease run --slots 3 importers -- import.py    at most three at a time
  litelease run --slots 3 --max-time 1h importers -- import.py
  litelease run --server https://lease.example deploy -- deploy.sh
  litelease run --ttl 5m --on-lost 'mail -s lost ops' import -- import.py

Exit codes: the command's own (128 + signal if a signal ended it); -E if busy; 64 usage; 69 the file or the
server is broken or in the way; 75 the lease was lost; 126 the command cannot be run; 127 it was not found.")]
pub(crate) struct Args {
    /// The name to lease
    #[arg(value_parser = super::name)]
    name: String,
    /// Do not wait for the name (but do wait while the file is being written)
    #[arg(short = 'n', long)]
    nonblock: bool,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse, conflicts_with = "nonblock")]
    wait: Option<Duration>,
    /// Exit code if another owner has the name [default: 1], or if the tick is taken [default: 0]
    #[arg(short = 'E', long, value_name = "CODE")]
    conflict_exit_code: Option<u8>,
    /// How long the name stays taken after a crash that others cannot see, such as that of this
    /// machine; renewed three times in this time
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Time between SIGTERM and SIGKILL when the lease is lost [default: 5s, at most a quarter of
    /// the ttl]
    #[arg(long, value_name = "TIME", value_parser = parse)]
    kill_grace: Option<Duration>,
    /// A shell command to run when the lease is lost, with LITELEASE_LOST in its environment, too
    #[arg(long, value_name = "COMMAND")]
    on_lost: Option<String>,
    /// A value for everybody to read while the lease is held, such as an address: `litelease watch`
    /// shows it
    #[arg(long)]
    value: Option<String>,
    /// Renew the lease only while the command makes progress within this time: by `litelease lease
    /// progress` inside it, or a checkpoint
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    progress_within: Option<Duration>,
    /// Run at most so many at a time under this name, instead of one; not with --value
    ///
    /// The command finds the number of its slot, from 0 on, in LITELEASE_SLOT. Everybody should
    /// give the same number: the last one counts.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    slots: Option<u32>,
    /// End the command after this time at the latest
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    max_time: Option<Duration>,
    #[command(flatten)]
    tick: once_per::TickArgs,
    #[command(flatten)]
    command: CommandLine,
}

impl Args {
    fn kill_grace(&self) -> Duration {
        self.kill_grace.unwrap_or_else(|| killer::default_grace(self.ttl))
    }

    fn wait(&self) -> Duration {
        if self.nonblock { Duration::ZERO } else { self.wait.unwrap_or(Duration::MAX) }
    }

    /// Checks the options, and returns the kill grace.
    fn check(&self) -> Result<Duration> {
        if self.ttl <= Duration::from_millis(100) {
            return Err(HoldError::TtlTooShort(self.ttl).into());
        }
        let grace = self.kill_grace();
        if let Some(time) = self.max_time {
            check_grace("max time", time, grace)?;
        }
        check_grace("ttl", self.ttl, grace)?;
        self.command.check(&format!("run {}", printable(&self.name)))?;
        match self.slots.is_some() && self.value.is_some() {
            true => {
                Err(Failure::usage("--slots does not work with --value: leave one of them out"))
            }
            false => Ok(grace),
        }
    }

    /// Returns what to hold, except for the process group.
    fn request(&self, tick: Option<PlannedTick>) -> Result<HoldRequest> {
        if tick.is_some() && self.slots.is_some() {
            return Err(Failure::usage("--slots does not work with a tick: leave one of them out"));
        }
        Ok(HoldRequest {
            name: self.name.clone(),
            ttl: self.ttl,
            wait: tick.as_ref().map_or(self.wait(), |tick| tick.wait(self.wait())),
            group: 0,
            value: self.value.clone(),
            progress_within: self.progress_within,
            max_time: self.max_time,
            slots: self.slots,
            tick: tick.map(|tick| (tick.request, tick.schedule)),
            cancel: Cancel::default(),
        })
    }
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    // Found out before the file is made.
    let grace = args.check()?;
    let place = Target::open(common)?;
    let tick = args.tick.planned(&args.name, args.command.words())?;
    if tick.as_ref().is_some_and(|tick| tick.is_late) {
        let text = format!("the tick of {} is too late: it is not begun", printable(&args.name));
        remark(common, json!({ "late": args.name }), &text)?;
        return Ok(args.conflict_exit_code.unwrap_or(code::OK));
    }
    let wanted = args.request(tick)?;
    let task = Task {
        name: args.name.clone(),
        conflict_exit_code: args.conflict_exit_code.unwrap_or(code::NO),
        taken_exit_code: args.conflict_exit_code.unwrap_or(code::OK),
        grace,
        on_lost: args.on_lost,
        command: args.command,
        retries: args.tick.options.retries,
        variables: place.variables(),
        has_progress_pipe: args.progress_within.is_some() && !place.stores_limits(&wanted),
    };
    let waiting = common.clone();
    let take = move |group, cancel| {
        let wanted = HoldRequest { group, cancel, ..wanted };
        match wanted.slots {
            Some(_) => place.hold(&wanted),
            None => while_waiting(&waiting, &wanted.name, || {
                nesting::check(&place, &wanted.name)?;
                place.hold(&wanted)
            }),
        }
    };
    session::run(task, common, Box::new(take))
}

/// Refuses a grace that a lease of this length has no room for. `what` is what its length is
/// called.
pub(super) fn check_grace(what: &str, length: Duration, grace: Duration) -> Result<()> {
    if length / 2 > grace {
        return Ok(());
    }
    let told = |time: Duration| shown(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
    Err(Failure::usage(format!(
        "a {what} of {} is too short for a kill grace of {}: give a {what} of more than twice that",
        told(length),
        told(grace),
    )))
}
