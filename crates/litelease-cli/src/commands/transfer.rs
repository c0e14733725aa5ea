//! `litelease transfer`: hands exactly one grant to a new owner.

use std::time::Duration;

use litelease::TransferResult;

use super::grant::{Grant, rejected, unless_told};
use crate::Common;
use crate::duration::parse_positive;
use crate::exit::Result;
use crate::output::{answer, lease};
use crate::similar::similar_if;

/// Hand a lease to a new owner, and print its new token
///
/// The old token is superseded in the same step: there is no moment in which nobody has the name.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease transfer nightly --token 7 --to worker-b --ttl 10m")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
    /// The new owner
    #[arg(long, value_name = "OWNER", value_parser = super::new_owner)]
    to: String,
    /// For how long from now
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let (db, grant) = args.grant.find(common)?;
    match db.transfer(&grant, &args.to, args.ttl)? {
        TransferResult::Transferred(handed) => {
            let told = answer(common, lease(&handed), &handed.token.to_string());
            unless_told(&db, &handed, told)
        }
        TransferResult::Rejected { reason, current } => {
            let similar = similar_if(&db, args.grant.name(), &reason);
            rejected(common, args.grant.name(), reason, current, similar)
        }
    }
}
