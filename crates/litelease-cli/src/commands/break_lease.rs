//! `litelease break`: the operator's way to end anybody's lease.

use litelease::BreakResult;
use serde_json::json;

use super::grant::rejected;
use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{owner, printable, remark};
use crate::similar::similar_if;

/// End any holder's lease, and raise its token so that the old holder is refused
///
/// This does not kill the holder. `litelease run` notices and ends its command within the kill
/// grace; other holders learn of it when they renew. A successor may be granted the name at once,
/// before the old command has ended.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease break nightly --yes")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let name = printable(&args.name);
    if !args.yes
        && let Some(current) = db.inspect(&args.name)?
    {
        let who = owner(&current.owner);
        let file = database::path(common)?;
        let question = format!(
            "End the lease of {who} on {name} (token {}) in {}?",
            current.token,
            file.display()
        );
        if !is_sure(&question, "break it")? {
            return Ok(nothing_was_done());
        }
    }
    match db.break_lease(&args.name)? {
        BreakResult::Broken { owner: who, killed } => {
            let text = format!("{name}: broken, token {killed} of {} is superseded", owner(&who));
            let value = json!({ "broken": args.name, "owner": who, "killed": killed });
            remark(common, value, &text)?;
            Ok(code::OK)
        }
        BreakResult::Rejected { reason, current } => {
            let similar = similar_if(&db, &args.name, &reason);
            rejected(common, &args.name, reason, current, similar)
        }
    }
}
