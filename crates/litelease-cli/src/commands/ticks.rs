//! `litelease ticks`: did it run, when, and with which outcome; and what operators do about it.

use std::time::Duration;

use clap::Subcommand;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::{Lease, NewestTick, TickChange, TickInfo, TickState};
use serde_json::{Value, json};

use super::run::once_per::{stored_schedule, when};
use crate::Common;
use crate::duration::{self, parse_positive};
use crate::exit::{Failure, Result, code};
use crate::output::{self, busy, lines, printable, remark, say};
use crate::target::Target;
use crate::target::ticks::shown;

/// Show the newest tick of each scheduled job: its state, by whom, how long it took, the newest one
/// that was done, and the next
///
/// `skip` pauses a schedule and ends a pause, `again` runs a tick once more, `forget` drops a
/// schedule that is no more.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  litelease ticks
  litelease ticks nightly --late 26h      exit code 1: none was done within 26 hours
  litelease ticks skip nightly --until 2026-12-27
  litelease ticks skip nightly            ends the pause")]
pub(crate) struct Args {
    /// Show this one only
    name: Option<String>,
    /// Exit with 1 if the newest tick that was done is older than this
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    late: Option<Duration>,
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Subcommand)]
enum Change {
    /// Skip every tick up to now, or up to a time: this pauses a schedule, and ends a pause
    Skip {
        /// The name of the job
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// Skip the ticks of every job, as after a restored backup
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Skip every tick up to this time: a date, RFC 3339, `now`, or Unix milliseconds
        #[arg(long, value_name = "WHEN", value_parser = when)]
        until: Option<i64>,
        /// End the lease of a run that is under way
        #[arg(long = "break")]
        breaks: bool,
        #[command(flatten)]
        why: Reason,
    },
    /// Run the newest tick once more, with all its attempts
    Again {
        /// The name of the job
        name: String,
        #[command(flatten)]
        why: Reason,
    },
    /// Forget the ticks of a schedule that is no more
    Forget {
        /// The name of the job
        name: String,
        #[command(flatten)]
        why: Reason,
    },
}

#[derive(clap::Args)]
struct Reason {
    /// Why, for the log of a server
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Args {
    fn reason(&self) -> Option<&str> {
        match self.change.as_ref()? {
            Change::Skip { why, .. } | Change::Again { why, .. } | Change::Forget { why, .. } => {
                why.reason.as_deref()
            }
        }
    }
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?.with_note("--reason", args.reason())?;
    match args.change {
        None => {
            let ticks = match &args.name {
                Some(name) => place.newest_tick(name)?.into_iter().collect(),
                None => place.ticks()?,
            };
            show(ticks, &args, &place, common)
        }
        Some(Change::Skip { all: true, until, breaks, .. }) => {
            if let Target::File(file) = &place {
                file.open()?;
            }
            let mut worst = code::OK;
            for TickInfo { name, .. } in place.ticks()? {
                let skipped = place.skip_ticks(&name, until, breaks)?;
                worst = worst.max(changed(common, &name, skipped, "skipped up to")?);
            }
            Ok(worst)
        }
        Some(Change::Skip { name, until, breaks, .. }) => {
            let name = name.unwrap_or_default();
            let skipped = place.skip_ticks(&name, until, breaks)?;
            changed(common, &name, skipped, "skipped up to")
        }
        Some(Change::Again { name, .. }) => {
            let opened = place.tick_again(&name)?;
            changed(common, &name, opened, "to be run again:")
        }
        Some(Change::Forget { name, .. }) => {
            let forgotten = place.forget_tick(&name)?;
            changed(common, &name, forgotten, "forgotten, the newest was")
        }
    }
}

fn changed(common: &Common, name: &str, answer: TickChange, done: &str) -> Result<u8> {
    match answer {
        TickChange::Changed(NewestTick { tick_ms, state }) => {
            let text = format!("{}: {done} {}", printable(name), shown(tick_ms));
            let newest = json!({ "name": name, "tick": shown(tick_ms), "state": state.word() });
            remark(common, newest, &text)?;
            Ok(code::OK)
        }
        TickChange::Busy(current) => busy(common, &current),
        TickChange::Unknown => {
            Err(Failure::new(code::NO, "Unknown", format!("{} has no tick", printable(name))))
        }
    }
}

fn show(ticks: Vec<TickInfo>, args: &Args, place: &Target, common: &Common) -> Result<u8> {
    let now_ms = litelease::now_ms();
    if common.json {
        say(&ticks.iter().map(entry).collect::<Value>().to_string())?;
    } else if ticks.is_empty() {
        let whose =
            args.name.as_ref().map_or(String::new(), |name| format!(" of {}", printable(name)));
        remark(common, Value::Null, &format!("there is no tick{whose} in {}", place.shown()))?;
    } else {
        say(&table(&ticks, now_ms))?;
    }
    let is_late = |info: &TickInfo, late: Duration| {
        let done_ms = info.tick.newest_done_ms();
        let late_ms = i64::try_from(late.as_millis()).unwrap_or(i64::MAX);
        done_ms.is_none_or(|done_ms| now_ms.saturating_sub(done_ms) > late_ms)
    };
    let is_missing = args.name.is_some() && ticks.is_empty();
    let has_late = args.late.is_some_and(|late| ticks.iter().any(|info| is_late(info, late)));
    Ok(if is_missing || has_late { code::NO } else { code::OK })
}

/// Returns the word for a tick, with that of one whose holder is at work.
fn state(info: &TickInfo) -> &'static str {
    match info.tick.newest().state {
        TickState::Open if info.holder.is_some() => "running",
        state => state.word(),
    }
}

fn next_ms(info: &TickInfo) -> Option<i64> {
    let newest = info.tick.newest().tick_ms;
    stored_schedule(info.schedule.as_deref()?)?.next(newest.max(litelease::now_ms()))
}

fn table(ticks: &[TickInfo], now_ms: i64) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(["NAME", "TICK", "STATE", "ATTEMPT", "BY", "TOOK", "DONE", "NEXT"]);
    for info in ticks {
        let date = |ms: Option<i64>| ms.map_or("-".into(), shown);
        let tick = info.tick;
        let was_begun = tick.attempt > 0;
        let end_ms = tick.ended_ms.or(info.holder.is_some().then_some(now_ms));
        let took = end_ms.filter(|_| was_begun).map(|end_ms| end_ms.saturating_sub(tick.began_ms));
        table.add_row([
            printable(&info.name),
            shown(tick.newest().tick_ms),
            state(info).into(),
            if was_begun { format!("{} of {}", tick.attempt, tick.attempts) } else { "-".into() },
            info.owner.as_deref().map_or("-".into(), output::owner),
            took.map_or("-".into(), duration::shown),
            date(tick.newest_done_ms()),
            date(next_ms(info)),
        ]);
    }
    lines(&table)
}

fn entry(info: &TickInfo) -> Value {
    let TickInfo { name, tick, owner, schedule, holder } = info;
    let date = |ms: Option<i64>| ms.map(shown);
    json!({
        "name": name,
        "tick": shown(tick.newest().tick_ms),
        "tick_ms": tick.newest().tick_ms,
        "state": state(info),
        "attempt": tick.attempt,
        "attempts": tick.attempts,
        "owner": owner,
        "began_ms": tick.began_ms,
        "ended_ms": tick.ended_ms,
        "done": date(tick.newest_done_ms()),
        "done_ms": tick.newest_done_ms(),
        "next": date(next_ms(info)),
        "schedule": schedule,
        "expires_at_ms": holder.as_ref().map(|Lease { expires_at_ms, .. }| *expires_at_ms),
    })
}
