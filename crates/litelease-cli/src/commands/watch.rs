//! `litelease watch`: a line for every change of hands.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use serde_json::json;

use crate::Common;
use crate::duration::parse;
use crate::exit::{Result, code};
use crate::output::{GREEN, RED, YELLOW, entry, owner, printable, say};
use crate::target::{Seen, Target};

/// Print a line for every grant, release and expiry, and every new value, as they happen
///
/// The present state comes first, then changes in order. It compares the file with its last look,
/// so what begins and ends in between is not shown.
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

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let mut watching = Target::open(common)?.watch(&args.names)?;
    let begin = Instant::now();
    let mut known = BTreeMap::new();
    loop {
        let now = watching.read()?;
        for (name, listed) in &now {
            for event in events(known.get(name), listed) {
                tell(common.json, event, listed)?;
            }
        }
        let now_ms = litelease::now_ms();
        let next = now.values().filter(|listed| listed.is_live(now_ms));
        let next_ms = next.filter_map(Seen::tenure).min().unwrap_or(i64::MAX);
        known = now;
        let left = args.time.unwrap_or(Duration::MAX).saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(code::OK);
        }
        watching.wait_for_change(next_ms, left)?;
    }
}

/// Returns what has happened to a name between two looks, in order.
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

fn tell(as_json: bool, event: &str, seen: &Seen) -> Result<()> {
    if as_json {
        let mut line = entry(&seen.row);
        line["value"] = seen.value.as_ref().map_or(json!(null), |value| match value {
            Value::Integer(number) => json!(number),
            Value::Real(number) => json!(number),
            value => json!(shown(value)),
        });
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
