//! `litelease guard remove`: takes guards off a table.

use serde_json::json;

use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::target;

/// Remove the guards of a table
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease guard remove --db app.sqlite3 orders")]
pub(crate) struct Args {
    /// The table
    table: String,
    /// Only the guard by this name
    #[arg(value_parser = crate::commands::name)]
    name: Option<String>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let name = args.name.as_deref();
    let taken = match target::engine(common)? {
        Some(engine) => engine.cluster()?.unguard(&args.table, name)?,
        None => database::open_existing(common)?.unguard(&args.table, name)?,
    };
    let text = match taken {
        0 => format!("{} has no such guard", printable(&args.table)),
        _ => format!("{}: {taken} removed", printable(&args.table)),
    };
    remark(common, json!({ "unguarded": args.table, "guards": taken }), &text)?;
    Ok(if taken == 0 { code::NO } else { code::OK })
}
