//! `litelease watch`: a line for every change of hands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{SlotRow, Status};
use serde_json::json;

use super::status::slot_entry;
use crate::Common;
use crate::duration::parse;
use crate::exit::{Result, code};
use crate::output::{GREEN, RED, YELLOW, entry, owner, printable, say, slot_lease, slots};
use crate::target::{Seen, Target, Watching};

/// Print a line for every grant, release and expiry, and every new value, as they happen
///
/// The present state comes first, then changes in order. It compares the file with its last look,
/// so what begins and ends in between is not shown. Slots of a name are shown with their position;
/// one that was returned or broken has "ended". On a server they are asked for once a second.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease watch
  litelease watch nightly --json --for 1h")]
pub(crate) struct Args {
    /// Show only these names
    names: Vec<String>,
    /// Stop after this time [default: never]
    #[arg(long = "for", value_name = "TIME", value_parser = parse)]
    time: Option<Duration>,
}

/// How often slots are read, where nothing notifies of them.
const SLOTS: Duration = Duration::from_secs(1);

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let mut watching = Target::open(common)?.watch(&args.names)?;
    let begin = Instant::now();
    let (mut known, mut known_slots) = (BTreeMap::new(), BTreeMap::new());
    loop {
        let now = watching.read()?;
        for (name, listed) in &now {
            for event in events(known.get(name), listed) {
                print_event(common.json, event, listed)?;
            }
        }
        let slots = held_slots(&watching, &args.names)?;
        let now_ms = litelease::now_ms();
        for (event, (name, _), row) in slot_events(&known_slots, &slots, now_ms) {
            print_slot(common.json, event, name, row)?;
        }
        let live = now.values().filter(|listed| listed.is_live(now_ms)).filter_map(Seen::tenure);
        let lent = slots.values().map(|row| row.slot.expires_at_ms);
        let next_ms = live.chain(lent).filter(|end_ms| *end_ms > now_ms).min().unwrap_or(i64::MAX);
        (known, known_slots) = (now, slots);
        let left = args.time.unwrap_or(Duration::MAX).saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(code::OK);
        }
        let longest = if watching.has_slots() { SLOTS } else { Duration::MAX };
        watching.wait_for_change(next_ms, left.min(longest))?;
    }
}

/// Slots by their names and positions.
type Slots = BTreeMap<(String, i64), SlotRow>;

/// Returns the slots that are held under these names, or under all if none is given.
fn held_slots(watching: &Watching, names: &[String]) -> Result<Slots> {
    let names = match names {
        [] => watching.pools()?.into_iter().map(|(name, _)| name).collect(),
        names => names.to_vec(),
    };
    let mut held = Slots::new();
    for name in names {
        let rows = watching.slots(&name)?.into_iter();
        held.extend(rows.map(|row| ((name.clone(), row.slot.position), row)));
    }
    Ok(held)
}

/// Returns the changes of slots between two reads: first those that are over, then new ones.
fn slot_events<'s>(
    before: &'s Slots,
    now: &'s Slots,
    now_ms: i64,
) -> Vec<(&'static str, &'s (String, i64), &'s SlotRow)> {
    let is_in = |slots: &Slots, at: &(String, i64), row: &SlotRow| {
        slots.get(at).is_some_and(|other| other.slot.token == row.slot.token)
    };
    let over = before.iter().filter(|(at, row)| !is_in(now, at, row)).map(|(at, row)| {
        let is_over = slot_entry(row).status(now_ms) != Some(Status::Live);
        (if is_over && !row.slot.is_kept() { "expired" } else { "ended" }, at, row)
    });
    let new = now.iter().filter(|(at, row)| !is_in(before, at, row));
    over.chain(new.map(|(at, row)| ("granted", at, row))).collect()
}

fn print_slot(as_json: bool, event: &str, name: &str, row: &SlotRow) -> Result<()> {
    if as_json {
        let mut line = slots(std::slice::from_ref(row))[0].take();
        line["name"] = json!(name);
        line["event"] = json!(event);
        line["at_ms"] = json!(litelease::now_ms());
        return say(&line.to_string());
    }
    let colour = match event {
        "granted" => GREEN,
        "ended" => YELLOW,
        _ => RED,
    };
    let lease = slot_lease(row);
    let (name, slot, token) = (printable(name), &lease.name, lease.token);
    let who = owner(&lease.owner);
    say(&format!("{colour}{event}{colour:#} {name} {slot} token {token} {who}"))
}

/// Returns the changes of a name between two reads, in order.
fn events(before: Option<&Seen>, now: &Seen) -> Vec<&'static str> {
    let hands = change_of_hands(before, now);
    let before = before.filter(|_| hands.is_none()).and_then(|seen| seen.value.as_ref());
    let is_new = now.was_live && now.value.is_some() && before != now.value.as_ref();
    // A grant shows its value in its own line.
    hands.into_iter().chain((is_new && hands.is_none()).then_some("value")).collect()
}

fn change_of_hands(before: Option<&Seen>, now: &Seen) -> Option<&'static str> {
    let (was_live, was_token) = before.map_or((false, 0), |seen| (seen.was_live, seen.row.token));
    match (was_live, now.was_live) {
        (_, true) if now.row.token != was_token => Some("granted"),
        (true, false) if now.row.token != was_token => Some("broken"),
        (true, false) if now.row.tenure.is_none() => Some("released"),
        (true, false) => Some("expired"),
        _ => None,
    }
}

fn print_event(as_json: bool, event: &str, seen: &Seen) -> Result<()> {
    if as_json {
        let mut line = entry(&seen.row);
        line["value"] = seen.value.as_ref().map_or(json!(null), as_json_value);
        line["event"] = json!(event);
        line["at_ms"] = json!(litelease::now_ms());
        say(&line.to_string())
    } else {
        let colour = match event {
            "granted" | "value" => GREEN,
            "released" => YELLOW,
            _ => RED,
        };
        let who = seen.row.tenure.as_ref().map(|(who, _)| format!(" {}", owner(who)));
        let (name, token) = (printable(&seen.row.name), seen.row.token);
        let who = who.unwrap_or_default();
        let value = seen.value.as_ref().map(|value| format!(" value {}", printable(&shown(value))));
        let value = value.unwrap_or_default();
        say(&format!("{colour}{event}{colour:#} {name} token {token}{who}{value}"))
    }
}

/// Returns a value for programs.
pub(super) fn as_json_value(value: &Value) -> serde_json::Value {
    match value {
        Value::Integer(number) => json!(number),
        Value::Real(number) => json!(number),
        value => json!(shown(value)),
    }
}

/// Returns a value as text.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => number.to_string(),
        Value::Text(text) => text.clone(),
        Value::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
