//! `litelease break`: the operator's way to end anybody's lease.

use serde_json::json;

use super::grant::rejected_at;
use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{owner, printable, remark};
use crate::place::{self, Verdict};

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
    let place = place::open(common)?;
    let name = printable(&args.name);
    if !args.yes
        && let Some(current) = place.inspect(&args.name)?
    {
        let who = owner(&current.owner);
        let question = format!(
            "End the lease of {who} on {name} (token {}) in {}?",
            current.token,
            place.shown()
        );
        if !is_sure(&question, "break it")? {
            return Ok(nothing_was_done());
        }
    }
    match place.break_lease(&args.name)? {
        Verdict::Done((who, killed)) => {
            let text = format!("{name}: broken, token {killed} of {} is superseded", owner(&who));
            let value = json!({ "broken": args.name, "owner": who, "killed": killed });
            remark(common, value, &text)?;
            Ok(code::OK)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &*place, &args.name, &rejection),
    }
}
