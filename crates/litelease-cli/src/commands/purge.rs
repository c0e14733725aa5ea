//! `litelease purge`: forgets names that are long unused.

use std::time::Duration;

use serde_json::json;

use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Failure, Result, code};
use crate::output::remark;
use crate::target::Target;

/// Delete the rows of names that were not leased for a while; their tokens are not reused
#[derive(clap::Args)]
#[command(
    after_help = "Items of queues stay, also dead ones: `litelease queue discard` deletes those.

Example:
  litelease purge --older-than 30d"
)]
pub(crate) struct Args {
    /// Names that have not been live for this long
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    older_than: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let age_ms = i64::try_from(args.older_than.as_millis())
        .map_err(|_| Failure::usage("--older-than is too long: give a shorter time"))?;
    let purged = Target::open(common)?.purge(litelease::now_ms().saturating_sub(age_ms))?;
    remark(common, json!({ "purged": purged }), &format!("purged {purged}"))?;
    Ok(code::OK)
}
