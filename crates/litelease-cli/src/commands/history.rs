//! `litelease history`: what became of names, queues and pools.

use clap::Subcommand;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use litelease::{DEFAULT_KEEP, HistoryRow};
use serde_json::{Value, json};

use super::run::once_per::when;
use crate::Common;
use crate::duration;
use crate::exit::{Result, code};
use crate::output::{self, lines, printable, remark, say};
use crate::target::ticks::shown;
use crate::target::{HistoryRequest, Target};

/// Show what happened to names, queues and pools: who had them, how each grant ended, and what
/// operators did
///
/// A server keeps a history unless it is told not to. A file that programs use directly keeps one
/// after `litelease history on`; every program that writes the file then adds to it.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  litelease history on
  litelease history nightly                     the newest 50 rows about it, the newest last
  litelease history --since 2026-12-24 --limit 1000
  litelease history --kind broken --json        one object per line")]
pub(crate) struct Args {
    /// Show this name, queue or pool only
    name: Option<String>,
    /// Only what happened since then: a date, RFC 3339, `now`, or Unix milliseconds
    #[arg(long, value_name = "WHEN", value_parser = when)]
    since: Option<i64>,
    /// Only rows of this kind: granted, released, expired, died, broken, tick_failed, item_died…
    #[arg(long, value_name = "KIND", value_parser = kind)]
    kind: Option<String>,
    /// How many rows to show at most
    #[arg(long, value_name = "N", default_value = "50")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    #[command(subcommand)]
    change: Option<Change>,
}

#[derive(Subcommand)]
enum Change {
    /// Keep a history from now on, or change how many rows it keeps
    On {
        /// How many rows to keep: the newest ones
        #[arg(long, value_name = "ROWS", default_value_t = DEFAULT_KEEP)]
        #[arg(value_parser = clap::value_parser!(u32).range(1..))]
        keep: u32,
    },
    /// Stop it; what was recorded can still be read
    Off,
}

fn kind(text: &str) -> std::result::Result<String, String> {
    match litelease::HISTORY_KINDS.contains(&text) {
        true => Ok(text.into()),
        false => Err(format!("known kinds are {}", litelease::HISTORY_KINDS.join(", "))),
    }
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    match args.change {
        None => show(&args, &place, common),
        Some(change) => {
            let keep = if let Change::On { keep } = change { keep } else { 0 };
            place.keep_history(keep)?;
            let text = match keep {
                0 => format!("{} keeps no history any more", place.shown()),
                keep => format!("{} keeps the newest {keep} rows of its history", place.shown()),
            };
            remark(common, json!({ "keeps": keep }), &text)?;
            Ok(code::OK)
        }
    }
}

fn show(args: &Args, place: &Target, common: &Common) -> Result<u8> {
    let (name, kind) = (args.name.as_deref(), args.kind.as_deref());
    let wanted = HistoryRequest { name, kind, since_ms: args.since, limit: args.limit };
    let (mut rows, is_on) = place.history(&wanted)?;
    rows.reverse();
    if common.json {
        rows.iter().try_for_each(|row| say(&entry(row).to_string()))?;
    } else if rows.is_empty() {
        let way_out = if is_on { "" } else { "; litelease history on begins to record" };
        let text = format!("nothing is recorded in {}{way_out}", printable(&place.shown()));
        remark(common, Value::Null, &text)?;
    } else {
        say(&table(&rows))?;
    }
    Ok(if rows.is_empty() { code::NO } else { code::OK })
}

fn table(rows: &[HistoryRow]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(["WHEN", "NAME", "WHAT", "BY", "HELD", "ABOUT"]);
    for row in rows {
        let who = row.actor.as_deref().or(row.owner.as_deref());
        table.add_row([
            shown(row.at_ms),
            printable(&row.name),
            row.kind.replace('_', " "),
            who.map_or("-".into(), output::owner),
            row.held_ms().map_or("-".into(), |ms| duration::shown(ms.max(0))),
            about(row),
        ]);
    }
    lines(&table)
}

/// Returns what else is known of a row: which token, tick, item or slot, what came of it, and why.
fn about(row: &HistoryRow) -> String {
    let is_tick = row.kind.starts_with("tick_");
    let number = row.number.map(|number| match &*row.object {
        _ if is_tick => shown(number),
        "queue" => format!("item {number}"),
        _ => format!("slot {number}"),
    });
    let result = row.result.map(|result| match &*row.object {
        "queue" => format!("{result} items"),
        _ => format!("exit code {result}"),
    });
    let token = row.token.map(|token| format!("token {token}"));
    let note = row.note.as_deref().map(printable);
    [number, token, result, note].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn entry(row: &HistoryRow) -> Value {
    json!({
        "id": row.id,
        "at": shown(row.at_ms),
        "at_ms": row.at_ms,
        "kind": row.kind,
        "object": row.object,
        "name": row.name,
        "owner": row.owner,
        "token": row.token,
        "held_ms": row.held_ms(),
        "number": row.number,
        "result": row.result,
        "actor": row.actor,
        "note": row.note,
    })
}
