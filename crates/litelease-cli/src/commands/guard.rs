//! `litelease guard`: has a table refuse old owners.

use litelease::Guard;
use serde_json::json;

use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{printable, remark};

/// Make a table refuse writes that do not present the newest token of a name
///
/// Table and leases are in the file that --db names. A write presents the token through its
/// connection (litelease_present), or in a column of each row.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease guard --db app.sqlite3 orders order-writer
  litelease guard --db app.sqlite3 orders order-writer --column lease_token")]
pub(crate) struct Args {
    /// The table
    table: String,
    /// The name whose newest token a write must present
    #[arg(value_parser = super::name)]
    name: String,
    /// The column in which each write presents the token
    #[arg(long)]
    column: Option<String>,
    /// The lease must be live, too
    #[arg(long)]
    strict: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    db.bootstrap()?;
    let guard = args.column.map_or_else(Guard::by_connection, Guard::by_column);
    let guard = if args.strict { guard.strict() } else { guard };
    db.guard(&args.table, &args.name, &guard)?;
    let text = format!("{} is guarded by {}", printable(&args.table), printable(&args.name));
    remark(common, json!({ "guarded": args.table, "name": args.name }), &text)?;
    Ok(code::OK)
}
