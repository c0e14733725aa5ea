//! `litelease status`: who has what, for how long.

use std::io::{self, IsTerminal};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, Table};
use litelease::{Identity, KEPT, LeaseRow, SlotRow, Status};
use serde_json::{Value, json};

use crate::Common;
use crate::duration::shown;
use crate::exit::{Result, code};
use crate::holder::Holder;
use crate::output::{complain, entry, lines, owner, printable, process, remark, say, time_left};
use crate::place::{self, Place};
use crate::similar::{hint, similar_at};

/// Show who has what, since when and for how long
///
/// HELD is how long it has been held, LEFT how long the lease lasts unless it is renewed. User and
/// command are those of the process that holds it, if it runs on this host.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease status
  litelease status --slots importers
  litelease status --all --json | jq '.[] | select(.process == \"dead\")'")]
pub(crate) struct Args {
    /// Show only these names
    names: Vec<String>,
    /// Also show names that nobody has
    #[arg(long)]
    all: bool,
    /// Show the slots that are held under this name by `litelease run --slots`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["names", "all"])]
    slots: Option<String>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = place::open(common)?;
    if let Some(name) = &args.slots {
        return show_slots(name, &*place, common);
    }
    let now_ms = litelease::now_ms();
    let is_wanted = |listed: &LeaseRow| args.names.is_empty() || args.names.contains(&listed.name);
    let listed: Vec<LeaseRow> = place.list(args.all)?.into_iter().filter(is_wanted).collect();
    if common.json {
        let all: Vec<Value> = listed.iter().map(entry).collect();
        say(&Value::from(all).to_string())?;
    } else if listed.is_empty() {
        remark(common, Value::Null, &nobody(&args.names, &*place)?)?;
    } else {
        say(&table(&listed, now_ms))?;
        let slots = held_slots(&args.names, &*place)?;
        if !slots.is_empty() && !common.quiet {
            complain(&format!("litelease: {slots}"));
        }
    }
    Ok(code::OK)
}

/// Says that nobody has what was asked for, and in which file: another user or another `--db` has
/// another one.
fn nobody(names: &[String], place: &dyn Place) -> Result<String> {
    let names_shown = || names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(" or ");
    let what = match names {
        [] => "no name is leased".into(),
        _ => format!("nobody has {}", names_shown()),
    };
    let similar = names.iter().find_map(|name| similar_at(place, name));
    let slots = match held_slots(names, place)? {
        slots if slots.is_empty() => slots,
        slots => format!("; {slots}"),
    };
    Ok(format!("{what} in {}{}{slots}", place.shown(), hint(similar.as_ref())))
}

/// How many pools are told in one line.
const MOST_POOLS: usize = 10;

/// Says which slots are held, of these names or of all, and how to see them; nothing if none is.
fn held_slots(names: &[String], place: &dyn Place) -> Result<String> {
    let mut pools = place.pools()?;
    pools.retain(|(name, _)| names.is_empty() || names.contains(name));
    let counts = pools
        .iter()
        .take(MOST_POOLS)
        .map(|(name, pool)| format!("{} of {} of {}", pool.in_use, pool.count, printable(name)));
    let mut said = counts.collect::<Vec<_>>().join(", ");
    if pools.len() > MOST_POOLS {
        said += &format!(" and of {} more names", pools.len() - MOST_POOLS);
    }
    Ok(match &pools[..] {
        [] => String::new(),
        [(name, _)] => {
            format!("slots held: {said}; see litelease status --slots {}", printable(name))
        }
        _ => format!("slots held: {said}; see litelease status --slots NAME"),
    })
}

/// Shows the slots of a name that are held.
fn show_slots(name: &str, place: &dyn Place, common: &Common) -> Result<u8> {
    let held = place.slots(name)?;
    if common.json {
        say(&Value::from_iter(held.iter().map(slot_entry)).to_string())?;
    } else if held.is_empty() {
        let text = format!("no slot of {} is held in {}", printable(name), place.shown());
        remark(common, Value::Null, &text)?;
    } else {
        say(&slot_table(&held))?;
    }
    Ok(code::OK)
}

/// Returns when a slot ends, unless it is kept until it is returned.
fn slot_end(row: &SlotRow) -> Option<i64> {
    Some(row.slot.expires_at_ms).filter(|end_ms| *end_ms != KEPT)
}

fn slot_entry(row: &SlotRow) -> Value {
    json!({
        "slot": row.slot.position,
        "token": row.slot.token,
        "expires_at_ms": slot_end(row),
        "note": row.note,
    })
}

fn slot_table(held: &[SlotRow]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["SLOT", "TOKEN", "LEFT", "NOTE"]);
    for row in held {
        table.add_row([
            row.slot.position.to_string(),
            row.slot.token.to_string(),
            slot_end(row).map_or("kept".into(), time_left),
            cut(printable(row.note.as_deref().unwrap_or("-"))),
        ]);
    }
    lines(&table)
}

fn table(listed: &[LeaseRow], now_ms: i64) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header(["NAME", "OWNER", "TOKEN", "HELD", "LEFT", "PROCESS", "USER", "COMMAND"]);
    for lease in listed {
        let name = Cell::new(cut(printable(&lease.name)));
        let token = Cell::new(lease.token);
        match (&lease.tenure, lease.status(now_ms)) {
            (Some((who, expiry)), Some(Status::Live)) => {
                let process = process(who);
                let colour = match process {
                    "alive" => Color::Green,
                    "dead" => Color::Red,
                    _ => Color::Reset,
                };
                let process = Cell::new(process).fg(colour);
                let since_ms = Identity::parse(who).and_then(|who| who.since_ms());
                let held = since_ms.map_or("-".into(), |since_ms| shown(now_ms - since_ms));
                let (user, command) = Holder::of(who).map_or(("-".into(), "-".into()), |holder| {
                    let command = holder.line();
                    (holder.user, command)
                });
                table.add_row([
                    name,
                    Cell::new(cut(owner(who))),
                    token,
                    held.into(),
                    time_left(*expiry).into(),
                    process,
                    user.into(),
                    command.into(),
                ]);
            }
            (_, status) => {
                let state = status.map_or("", Status::word);
                let none = || Cell::new("-");
                table.add_row([name, none(), token, none(), none(), state.into(), none(), none()]);
            }
        }
    }
    lines(&table)
}

/// The most characters of a name or an owner that a table on a terminal shows.
const WIDEST: usize = 60;

/// Shortens a text for a terminal: one long name would push all other columns out of sight.
fn cut(text: String) -> String {
    if !io::stdout().is_terminal() || text.chars().count() <= WIDEST {
        return text;
    }
    text.chars().take(WIDEST - 1).chain(['…']).collect()
}
