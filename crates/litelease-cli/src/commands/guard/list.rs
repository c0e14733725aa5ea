//! `litelease guard list`: which tables refuse old owners, and whether they still do.

use comfy_table::presets::NOTHING;
use comfy_table::{Cell, Color, Table};
use serde_json::{Value, json};

use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{lines, printable, say};
use crate::target;

/// List guarded tables, and whether their guards are still there
///
/// Many migrations rebuild a table, which drops its guards. Such a guard is shown as `missing`, and
/// every program can write to the table until it is guarded again.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease guard list --db app.sqlite3    exit code 1: a guard is missing")]
pub(crate) struct Args {}

/// A guard in a file, or on an engine.
struct Guard {
    table: String,
    name: String,
    column: Option<String>,
    strict: bool,
    is_intact: bool,
}

impl From<litelease::GuardInfo> for Guard {
    fn from(guard: litelease::GuardInfo) -> Self {
        let litelease::GuardInfo { table, name, column, strict, is_intact, .. } = guard;
        Guard { table, name, column, strict, is_intact }
    }
}

impl From<litelease_cluster::GuardInfo> for Guard {
    fn from(guard: litelease_cluster::GuardInfo) -> Self {
        let litelease_cluster::GuardInfo { table, name, column, strict, is_intact } = guard;
        Guard { table, name, column, strict, is_intact }
    }
}

pub(crate) fn execute(_: Args, common: &Common) -> Result<u8> {
    let guards: Vec<Guard> = match target::engine(common)? {
        Some(engine) => engine.cluster()?.guards()?.into_iter().map(Guard::from).collect(),
        None => database::open_existing(common)?.guards()?.into_iter().map(Guard::from).collect(),
    };
    if common.json {
        say(&guards.iter().map(entry).collect::<Value>().to_string())?;
    } else if guards.is_empty() {
        say("nothing is guarded")?;
    } else {
        say(&table(&guards))?;
    }
    let is_missing = guards.iter().any(|guard| !guard.is_intact);
    Ok(if is_missing { code::NO } else { code::OK })
}

fn entry(guard: &Guard) -> Value {
    json!({
        "table": guard.table,
        "name": guard.name,
        "column": guard.column,
        "strict": guard.strict,
        "state": state(guard),
    })
}

fn state(guard: &Guard) -> &'static str {
    if guard.is_intact { "intact" } else { "missing" }
}

fn table(guards: &[Guard]) -> String {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(["TABLE", "NAME", "PRESENTED BY", "STRICT", "STATE"]);
    for guard in guards {
        let by = match &guard.column {
            Some(column) => format!("column {}", printable(column)),
            None => "connection".into(),
        };
        let colour = if guard.is_intact { Color::Green } else { Color::Red };
        table.add_row([
            Cell::new(printable(&guard.table)),
            Cell::new(printable(&guard.name)),
            Cell::new(by),
            Cell::new(if guard.strict { "yes" } else { "no" }),
            Cell::new(state(guard)).fg(colour),
        ]);
    }
    lines(&table)
}
