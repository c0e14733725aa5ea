//! `litelease renew`: prolongs exactly one grant.

use std::time::Duration;

use litelease::RenewResult;

use super::grant::{Grant, rejected};
use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Result, code};
use crate::output::{answer, lease};
use crate::similar::similar_if;

/// Prolong a lease that was claimed, and print its token
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease renew nightly --token 7 --ttl 10m || exit    exit code 1: it is lost")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
    /// For how long from now
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let (db, grant) = args.grant.find(common)?;
    match db.renew(&grant, args.ttl)? {
        RenewResult::Renewed(renewed) => {
            answer(common, lease(&renewed), &renewed.token.to_string())?;
            Ok(code::OK)
        }
        RenewResult::Rejected { reason, current } => {
            let similar = similar_if(&db, args.grant.name(), &reason);
            rejected(common, args.grant.name(), reason, current, similar)
        }
    }
}
