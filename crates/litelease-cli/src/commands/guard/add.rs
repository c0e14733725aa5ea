//! `litelease guard add`: has a table refuse old owners.

use litelease::Guard;
use serde_json::json;

use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::target;

/// Make a table refuse writes that do not present the newest token of a name
///
/// Table and leases are in the file or the PostgreSQL that --db names. A write presents the token
/// through its connection (litelease_present; PostgreSQL: litelease.present, for one transaction),
/// or in a column of each row.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  litelease guard add --db app.sqlite3 orders order-writer
  litelease guard add --db app.sqlite3 orders order-writer --column lease_token
  litelease guard add --db postgres://app@db.example/app sales.orders order-writer")]
pub(crate) struct Args {
    /// The table
    table: String,
    /// The name whose newest token a write must present
    #[arg(value_parser = crate::commands::name)]
    name: String,
    /// The column in which each write presents the token
    #[arg(long)]
    column: Option<String>,
    /// The lease must be live, too
    #[arg(long)]
    strict: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    match target::engine(common)? {
        Some(engine) => on_engine(engine.cluster()?, &args)?,
        None => in_file(&args, common)?,
    }
    let text = format!("{} is guarded by {}", printable(&args.table), printable(&args.name));
    remark(common, json!({ "guarded": args.table, "name": args.name }), &text)?;
    Ok(code::OK)
}

fn in_file(args: &Args, common: &Common) -> Result<()> {
    let db = database::open_existing(common)?;
    db.bootstrap()?;
    let column = args.column.as_deref();
    let guard = column.map_or_else(Guard::by_connection, Guard::by_column);
    let guard = if args.strict { guard.strict() } else { guard };
    Ok(db.guard(&args.table, &args.name, &guard)?)
}

fn on_engine(cluster: &litelease_cluster::Cluster, args: &Args) -> Result<()> {
    use litelease_cluster::Guard;
    cluster.bootstrap()?;
    let column = args.column.as_deref();
    let guard = column.map_or_else(Guard::by_connection, Guard::by_column);
    let guard = if args.strict { guard.strict() } else { guard };
    Ok(cluster.guard(&args.table, &args.name, &guard)?)
}
