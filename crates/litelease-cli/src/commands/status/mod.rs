//! `litelease status`: the holder of each name, since when and for how long.

mod shards;

use std::io::{self, IsTerminal};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, Table};
use litelease::{KEPT, Lease, LeaseRow, SlotRow, Status};
use litelease_hold::Holder;
use serde_json::Value;

use crate::Common;
use crate::duration::shown;
use crate::exit::{Result, code};
use crate::output::{
    complain, entry, lease_row, lines, owner, printable, process, remark, say, slot_lease, slots,
    time_left,
};
use crate::similar::{hint, similar_at};
use crate::target::Target;

/// Show who has what, since when and for how long
///
/// HELD is how long it has been held, LEFT how long the lease lasts unless it is renewed. User and
/// command are those of the process that holds it, if it runs on this host. The owner of a slot is
/// what its holder has noted.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease status
  litelease status --slots importers
  litelease status --shards orders    exit code 1: the group has no live member
  litelease status --all --json | jq '.[] | select(.process == \"dead\")'")]
pub(crate) struct Args {
    /// Show only these names
    names: Vec<String>,
    /// Also show names that are free
    #[arg(long)]
    all: bool,
    /// Show the slots that are held under this name by `litelease run --slots`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["names", "all"])]
    slots: Option<String>,
    /// Show who has which shard of a group: its live members, then each shard with its member,
    /// token, time left, requester and last checkpoint
    #[arg(long, value_name = "GROUP", conflicts_with_all = ["names", "all", "slots"])]
    #[arg(value_parser = shards::group)]
    shards: Option<String>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    if let Some(group) = &args.shards {
        return shards::show(group, common);
    }
    let place = Target::open(common)?;
    if let Some(name) = &args.slots {
        return show_slots(name, &place, common);
    }
    let now_ms = litelease::now_ms();
    let is_wanted = |listed: &LeaseRow| args.names.is_empty() || args.names.contains(&listed.name);
    let listed: Vec<LeaseRow> = place.list(args.all)?.into_iter().filter(is_wanted).collect();
    if common.json {
        let all: Vec<Value> = listed.iter().map(entry).collect();
        say(&Value::from(all).to_string())?;
    } else if listed.is_empty() {
        remark(common, Value::Null, &nobody(&args.names, &place)?)?;
    } else {
        say(&table("NAME", &listed, now_ms))?;
        let slots = held_slots(&args.names, &place)?;
        if !slots.is_empty() && !common.quiet {
            complain(&format!("litelease: {slots}"));
        }
    }
    Ok(code::OK)
}

/// Returns the message that the names are free, and in which file: another user or another `--db`
/// has another one.
fn nobody(names: &[String], place: &Target) -> Result<String> {
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

/// Prints which slots are held, of these names or of all, and how to see them; nothing if none is.
fn held_slots(names: &[String], place: &Target) -> Result<String> {
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
fn show_slots(name: &str, place: &Target, common: &Common) -> Result<u8> {
    let held = place.slots(name)?;
    if common.json {
        say(&slots(&held).to_string())?;
    } else if held.is_empty() {
        let text = format!("no slot of {} is held in {}", printable(name), place.shown());
        remark(common, Value::Null, &text)?;
    } else {
        let rows: Vec<LeaseRow> = held.iter().map(slot_entry).collect();
        say(&table("SLOT", &rows, litelease::now_ms()))?;
    }
    Ok(code::OK)
}

/// Returns a held slot as a row of the table, by its position.
pub(super) fn slot_entry(row: &SlotRow) -> LeaseRow {
    let slot = slot_lease(row);
    lease_row(Lease { name: row.slot.position.to_string(), ..slot })
}

fn table(first: &str, listed: &[LeaseRow], now_ms: i64) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_header([first, "OWNER", "TOKEN", "HELD", "LEFT", "PROCESS", "USER", "COMMAND"]);
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
                let held = |since_ms: i64| shown(now_ms.saturating_sub(since_ms));
                let held = lease.since_ms.map_or("-".into(), held);
                let left = if *expiry == KEPT { "kept".into() } else { time_left(*expiry) };
                let holder = Holder::find(who);
                let command = holder.as_ref().map_or("-".into(), Holder::line);
                let user = holder.map_or("-".into(), |holder| holder.user);
                table.add_row([
                    name,
                    Cell::new(cut(owner(who))),
                    token,
                    held.into(),
                    left.into(),
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
