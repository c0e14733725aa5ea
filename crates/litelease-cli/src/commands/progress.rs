//! `litelease progress`: notes that the work under a lease goes on.

use litelease::GrantResult;
use serde_json::json;

use super::grant::{Grant, GrantOfRun, rejected};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::similar::similar_if;

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
    let (db, lease) = grant.find(common)?;
    match db.progress(&lease.name, lease.token)? {
        GrantResult::Done => {
            let text = format!("{}: progress is noted", printable(grant.name()));
            remark(common, json!({ "progress": lease.name, "token": lease.token }), &text)?;
            Ok(code::OK)
        }
        GrantResult::Stale { reason } => {
            let similar = similar_if(&db, grant.name(), &reason);
            rejected(common, grant.name(), reason, None, similar)
        }
    }
}
