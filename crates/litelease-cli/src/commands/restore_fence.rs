//! `litelease restore-fence`: makes a file that was restored from a backup safe to grant from.

use serde_json::json;

use super::{is_sure, nothing_was_done};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::answer;
use crate::target::Target;

/// Fence a file that was restored from a backup: end every lease and raise every token
///
/// A file from a backup has old tokens, and would grant some of them a second time. This raises
/// tokens far above all that were ever granted. Run it once, after the backup is in place and
/// before any program uses it.
#[derive(clap::Args)]
#[command(
    name = "restore-fence",
    after_help = "Example:
  litelease restore-fence --db app.sqlite3 --yes
  litelease restore-fence --db app.sqlite3 --above 4294967311    a token that was seen in a log or a gate"
)]
pub(crate) struct Args {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// The largest token that was seen anywhere; raise tokens far above it, too
    ///
    /// Required if the system has no boot id, because then every start of a process takes an epoch
    /// of tokens: 0 if no token was seen.
    #[arg(long, value_name = "TOKEN", value_parser = clap::value_parser!(i64).range(0..))]
    above: Option<i64>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    place.check()?;
    let question = format!("End every lease in {}, and raise every token?", place.shown());
    if !args.yes && !is_sure(&question, "fence it")? {
        return Ok(nothing_was_done());
    }
    let floor = place.restore_fence(args.above)?;
    let text = format!("fenced: every token from now on is larger than {floor}");
    answer(common, json!({ "floor": floor }), &text)?;
    Ok(code::OK)
}
