//! `litelease lease ensure`: claims a name, or renews what the owner already has.

use std::time::Duration;

use litelease::ClaimResult;

use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Result, code};
use crate::output::{answer, busy, lease};
use crate::target::Target;

/// Claim a name, or renew the lease that the owner already has, and print its token
///
/// Repeating it does no harm: the token stays the same, and the lease is prolonged.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease lease ensure nightly --owner worker-a --ttl 10m || exit    exit code 1: another owner has it")]
pub(crate) struct Args {
    /// The name to claim or to renew
    #[arg(value_parser = crate::commands::name)]
    name: String,
    /// The owner that claims it: the same text each time
    #[arg(long, value_parser = crate::commands::new_owner)]
    owner: String,
    /// How long the lease lasts from now
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    match Target::open(common)?.ensure(&args.name, &args.owner, args.ttl)? {
        ClaimResult::Acquired(granted) => {
            // If this cannot be printed, nothing is released: the lease may be an older one, and
            // repeating the command prints the same token.
            answer(common, lease(&granted), &granted.token.to_string())?;
            Ok(code::OK)
        }
        ClaimResult::Busy(current) => busy(common, &current),
    }
}
