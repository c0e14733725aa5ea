//! `litelease release`: ends exactly one grant.

use litelease::ReleaseResult;
use serde_json::json;

use super::grant::{Grant, rejected};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::similar::similar_if;

/// End a lease that was claimed
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease release nightly --token 7")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let (db, grant) = args.grant.find(common)?;
    match db.release(&grant)? {
        ReleaseResult::Released { name, token } => {
            let text = format!("{}: released, token {token}", printable(&name));
            remark(common, json!({ "released": name, "token": token }), &text)?;
            Ok(code::OK)
        }
        ReleaseResult::Rejected { reason, current } => {
            let similar = similar_if(&db, args.grant.name(), &reason);
            rejected(common, args.grant.name(), reason, current, similar)
        }
    }
}
