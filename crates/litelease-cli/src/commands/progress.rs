//! `litelease progress`: notes that the work under a lease goes on.

use serde_json::json;

use super::grant::{Grant, GrantOfRun, rejected_at};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::target::{Target, Verdict};

/// Note that the work under a lease makes progress
///
/// A lease with `litelease run --progress-within` is renewed only if progress was noted within that
/// time. Inside the command it needs no arguments.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease run --progress-within 5m import -- sh -c 'for f in *; do load $f && litelease progress; done'")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: GrantOfRun,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let grant: Grant = args.grant.named()?;
    let place = Target::open(common)?;
    match place.progress(&grant.argument())? {
        Verdict::Done((name, token)) => {
            let text = format!("{}: progress is noted", printable(&name));
            remark(common, json!({ "progress": name, "token": token }), &text)?;
            Ok(code::OK)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &place, grant.name(), &rejection),
    }
}
