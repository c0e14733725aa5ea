//! `litelease wait`: until a name is free.

use std::time::Duration;

use serde_json::json;

use super::nesting;
use crate::Common;
use crate::duration::parse;
use crate::exit::{Result, code};
use crate::output::{lease, owner, printable, remark};
use crate::similar::{hint, similar_at};
use crate::target::Target;
use crate::waiting::while_waiting;

/// Wait until a name is free, without claiming it
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
    let name = printable(&args.name);
    let place = Target::open(common)?;
    if args.wait != Some(Duration::ZERO) {
        nesting::check(&place, &args.name)?;
    }
    let wait = args.wait.unwrap_or(Duration::MAX);
    match while_waiting(common, &args.name, || place.wait_free(&args.name, wait))? {
        None => {
            let hint = hint(similar_at(&place, &args.name).as_ref());
            let text = format!("{name}: nobody has it in {}{hint}", place.shown());
            remark(common, json!({ "free": args.name }), &text)?;
            Ok(code::OK)
        }
        Some(current) => {
            let text =
                format!("{name}: {} still has it (token {})", owner(&current.owner), current.token);
            remark(common, json!({ "busy": lease(&current) }), &text)?;
            Ok(code::NO)
        }
    }
}
