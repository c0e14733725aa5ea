//! `litelease status`: who has what, for how long.

use std::io::{self, IsTerminal};

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, Table};
use litelease::{Identity, LeaseRow, Status};
use serde_json::Value;

use crate::Common;
use crate::duration::shown;
use crate::exit::{Result, code};
use crate::holder::Holder;
use crate::output::{entry, lines, owner, printable, process, remark, say, time_left};
use crate::place::{self, Place};
use crate::similar::{hint, similar_at};

/// Show who has what, since when and for how long
///
/// HELD is how long it has been held, LEFT how long the lease lasts unless it is renewed. User and
/// command are those of the process that holds it, if it runs on this host.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease status
  litelease status --all --json | jq '.[] | select(.process == \"dead\")'")]
pub(crate) struct Args {
    /// Show only these names
    names: Vec<String>,
    /// Also show names that nobody has
    #[arg(long)]
    all: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = place::open(common)?;
    let now_ms = litelease::now_ms();
    let is_wanted = |listed: &LeaseRow| args.names.is_empty() || args.names.contains(&listed.name);
    let listed: Vec<LeaseRow> = place.list(args.all)?.into_iter().filter(is_wanted).collect();
    if common.json {
        let all: Vec<Value> = listed.iter().map(entry).collect();
        say(&Value::from(all).to_string())?;
    } else if listed.is_empty() {
        remark(common, Value::Null, &nobody(&args.names, &*place))?;
    } else {
        say(&table(&listed, now_ms))?;
    }
    Ok(code::OK)
}

/// Says that nobody has what was asked for, and in which file: another user or another `--db` has
/// another one.
fn nobody(names: &[String], place: &dyn Place) -> String {
    let what = match names {
        [] => "anything".into(),
        names => names.iter().map(|name| printable(name)).collect::<Vec<_>>().join(" or "),
    };
    let similar = names.iter().find_map(|name| similar_at(place, name));
    format!("nobody has {what} in {}{}", place.shown(), hint(similar.as_ref()))
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
