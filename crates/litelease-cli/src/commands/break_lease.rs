//! `litelease break`: ends any holder's lease, for operators.

use serde_json::{Value, json};

use super::grant::rejected_at;
use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{owner, printable, remark, slot_lease};
use crate::target::{Target, Verdict};

/// End any holder's lease, and raise its token so that the old holder is refused
///
/// This does not kill the holder. `litelease run` notices and ends its command within the kill
/// grace; other holders learn of it when they renew. A successor may be granted the name at once,
/// before the old command has ended.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease break nightly --yes
  litelease break importers --slot 0")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
    /// End the lease on this slot of the name, a number from 0 on, instead of that on the name
    #[arg(long, value_name = "POSITION")]
    slot: Option<i64>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let name = printable(&args.name);
    if let Some(position) = args.slot {
        return break_slot(&args, position, &place, common);
    }
    if !args.yes
        && let Some(current) = place.inspect(&args.name)?
    {
        let who = owner(&current.owner);
        let question = format!(
            "End the lease of {who} on {name} (token {}) in {}?",
            current.token,
            place.shown()
        );
        if !is_sure(&question, "break it")? {
            return Ok(nothing_was_done());
        }
    }
    match place.break_lease(&args.name)? {
        Verdict::Done((who, token)) => {
            let text = format!("{name}: broken, token {token} of {} is superseded", owner(&who));
            let value = json!({ "broken": args.name, "owner": who, "killed": token });
            remark(common, value, &text)?;
            Ok(code::OK)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &place, &args.name, &rejection),
    }
}

/// Ends the lease of whatever process holds a slot.
fn break_slot(args: &Args, position: i64, place: &Target, common: &Common) -> Result<u8> {
    let what = format!("slot {position} of {}", printable(&args.name));
    let held = place.slots(&args.name)?.into_iter().find(|row| row.slot.position == position);
    let note = held.as_ref().and_then(|row| row.note.clone());
    let held = held.as_ref().map(slot_lease);
    if let Some(current) = held.as_ref().filter(|_| !args.yes) {
        let (who, token) = (owner(&current.owner), current.token);
        let question =
            format!("End the lease of {who} on {what} (token {token}) in {}?", place.shown());
        if !is_sure(&question, "break it")? {
            return Ok(nothing_was_done());
        }
    }
    // By its token: the slot may have come free meanwhile, and be another holder's.
    let current = match held {
        Some(current) if place.break_slot(&args.name, position, current.token)? => current,
        _ => {
            let text = format!("{what} is not held in {}", place.shown());
            remark(common, Value::Null, &text)?;
            return Ok(code::NO);
        }
    };
    let (who, token) = (owner(&current.owner), current.token);
    let text = format!("{what}: broken, token {token} of {who} has ended");
    let value = json!({ "broken": args.name, "slot": position, "note": note, "killed": token });
    remark(common, value, &text)?;
    Ok(code::OK)
}
