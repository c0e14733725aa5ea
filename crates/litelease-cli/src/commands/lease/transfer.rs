//! `litelease lease transfer`: hands exactly one grant to a new owner.

use std::time::Duration;

use crate::Common;
use crate::commands::grant::{Grant, rejected_at, unless_told};
use crate::duration::parse_positive;
use crate::exit::Result;
use crate::output::{answer, lease};
use crate::target::{Target, Verdict};

/// Hand a lease to a new owner, and print its new token
///
/// The old token is superseded in the same step: the name is free at no moment.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease lease transfer nightly --token 7 --to worker-b --ttl 10m")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
    /// The new owner
    #[arg(long, value_name = "OWNER", value_parser = crate::commands::new_owner)]
    to: String,
    /// How long the lease lasts from now
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let grant = args.grant.argument();
    match place.transfer(&grant, &args.to, args.ttl)? {
        Verdict::Done(handed) => {
            let told = answer(common, lease(&handed), &handed.token.to_string());
            unless_told(&place, &handed, told)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &place, &grant.name, &rejection),
    }
}
