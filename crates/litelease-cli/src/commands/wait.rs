//! `litelease wait`: until nobody has a name.

use std::time::{Duration, Instant};

use litelease::{Waiter, nap};
use serde_json::json;

use crate::Common;
use crate::database;
use crate::duration::parse;
use crate::exit::{Result, code};
use crate::output::{answer, lease, owner, printable};

/// Wait until nobody has a name, without claiming it
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease wait nightly -w 10m && echo done    exit code 1: still held")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    wait: Option<Duration>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let begin = Instant::now();
    let waiter = Waiter::at(&database::path(common)?);
    loop {
        let heard = waiter.heard();
        database::check_moved(&db)?;
        let Some(current) = db.inspect(&args.name)? else {
            let text = format!("{}: nobody has it", printable(&args.name));
            answer(common.json, json!({ "free": args.name }), &text);
            return Ok(code::OK);
        };
        let left = args.wait.unwrap_or(Duration::MAX).saturating_sub(begin.elapsed());
        if left.is_zero() {
            let name = printable(&args.name);
            let text =
                format!("{name}: {} still has it (token {})", owner(&current.owner), current.token);
            answer(common.json, json!({ "busy": lease(&current) }), &text);
            return Ok(code::NO);
        }
        waiter.nap(heard, nap(current.lease_expires_at_ms - litelease::now_ms(), left));
    }
}
