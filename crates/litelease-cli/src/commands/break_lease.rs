//! `litelease break`: the operator's way to end anybody's lease.

use litelease::BreakResult;
use serde_json::json;

use super::grant::rejected;
use super::is_sure;
use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::{answer, owner, printable};

/// End anybody's lease, and raise its token so that the old holder is refused
///
/// The holder is not killed. `litelease run` notices and ends its command; others are told when they renew.
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
        let question = format!("End the lease of {who} on {name} (token {})?", current.token);
        if !is_sure(&question, "break it")? {
            eprintln!("litelease: nothing was done");
            return Ok(code::NO);
        }
    }
    match db.break_lease(&args.name)? {
        BreakResult::Broken { owner: who, killed } => {
            let text = format!("{name}: broken, token {killed} of {} is superseded", owner(&who));
            let value = json!({ "broken": args.name, "owner": who, "killed": killed });
            answer(common.json, value, &text);
            Ok(code::OK)
        }
        BreakResult::Rejected { reason, current } => {
            rejected(common.json, &args.name, reason, current)
        }
    }
}
