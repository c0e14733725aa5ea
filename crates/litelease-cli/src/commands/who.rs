//! `litelease who`: the process that holds a name.

use litelease::{Identity, KEPT, LeaseRow, Liveness};
use serde_json::{Value, json};

use crate::Common;
use crate::commands::watch;
use crate::duration::shown;
use crate::exit::{Result, code};
use crate::holder::Holder;
use crate::output::{answer, entry, lease_row, printable, remark, slot_lease, slots, time_left};
use crate::similar::{hint, similar_at};
use crate::target::Target;

/// Show which process has a name or its slots, since when and for how long
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease who nightly    exit code 1: nobody has it")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let name = printable(&args.name);
    if let Some(current) = place.live_row(&args.name)? {
        let value = place.value(&args.name)?;
        let mut told = entry(&current);
        if let Some(value) = &value {
            told["value"] = watch::as_json_value(value);
        }
        let value = value.map(|value| format!("; value {}", printable(&watch::shown(&value))));
        let text = format!("{name}: {}{}", described(&current), value.unwrap_or_default());
        answer(common, told, &text)?;
        return Ok(code::OK);
    }
    let held = place.slots(&args.name)?;
    if held.is_empty() {
        let similar = similar_at(&place, &args.name);
        let text = format!("{name}: nobody has it in {}{}", place.shown(), hint(similar.as_ref()));
        remark(common, Value::Null, &text)?;
        return Ok(code::NO);
    }
    let line = |slot: LeaseRow| format!("{name} {}: {}", slot.name, described(&slot));
    let lines: Vec<String> = held.iter().map(slot_lease).map(lease_row).map(line).collect();
    answer(common, json!({ "name": args.name, "slots": slots(&held) }), &lines.join("\n"))?;
    Ok(code::OK)
}

/// Describes a holder: its process, since when and for how long.
fn described(current: &LeaseRow) -> String {
    let mut text = format!("token {}, ", current.token);
    let Some((owner, end_ms)) = &current.tenure else { return text };
    let who = Identity::parse(owner);
    text += &match &who {
        None => format!("owner {}", printable(owner)),
        Some(who) => format!("host {}, pid {}", printable(&who.host), who.pid),
    };
    if let Some(since_ms) = current.since_ms {
        text += &format!(", for {} now", shown(litelease::now_ms().saturating_sub(since_ms)));
    }
    if let Some(who) = who {
        text += match who.liveness() {
            Liveness::Alive => ", the process is there",
            Liveness::Dead => ", the process is gone",
            Liveness::Unknown => ", and whether the process still runs is not known here",
        };
        if let Some(holder) = Holder::find(owner) {
            text += &format!(": {}, by {}", holder.line(), holder.user);
        }
    }
    match *end_ms {
        KEPT => text + "; kept until it is returned",
        end_ms => text + &format!("; lasts {} more unless renewed", time_left(end_ms)),
    }
}
