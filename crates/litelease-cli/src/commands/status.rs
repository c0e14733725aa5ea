//! `litelease status`: who has what, for how long.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, Table};
use litelease::{Listed, Status};
use serde_json::Value;

use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{entry, lines, owner, printable, process, time_left};

/// Show who has what, for how long
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease status
  litelease status --all --json | jq '.[] | select(.process == \"dead\")'")]
pub(crate) struct Args {
    /// Only these names
    names: Vec<String>,
    /// Names that nobody has, too
    #[arg(long)]
    all: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let now_ms = litelease::now_ms();
    let is_wanted = |listed: &Listed| {
        (args.names.is_empty() || args.names.contains(&listed.name))
            && (args.all || listed.status(now_ms) == Some(Status::Live))
    };
    let listed: Vec<Listed> = db.list()?.into_iter().filter(is_wanted).collect();
    if common.json {
        let all: Vec<Value> = listed.iter().map(entry).collect();
        println!("{}", Value::from(all));
    } else if listed.is_empty() {
        println!("nobody has anything");
    } else {
        anstream::println!("{}", table(&listed, now_ms));
    }
    Ok(code::OK)
}

fn table(listed: &[Listed], now_ms: i64) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["NAME", "OWNER", "TOKEN", "LEFT", "PROCESS"]);
    for lease in listed {
        let name = Cell::new(printable(&lease.name));
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
                table.add_row([
                    name,
                    Cell::new(owner(who)),
                    token,
                    time_left(*expiry).into(),
                    process,
                ]);
            }
            (_, status) => {
                let state = status.map_or("", Status::word);
                table.add_row([name, Cell::new("-"), token, Cell::new("-"), Cell::new(state)]);
            }
        }
    }
    lines(&table)
}
