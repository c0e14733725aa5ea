//! `litelease renew`: prolongs exactly one grant.

use std::time::Duration;

use super::grant::{Grant, rejected_at};
use crate::Common;
use crate::duration::parse_positive;
use crate::exit::{Result, code};
use crate::output::{answer, lease};
use crate::target::{Target, Verdict};

/// Prolong a lease that was claimed, and print its token
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease renew nightly --token 7 --ttl 10m || exit    exit code 1: it is lost")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
    /// How long the lease lasts from now
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let grant = args.grant.argument();
    match place.renew(&grant, args.ttl)? {
        Verdict::Done(renewed) => {
            answer(common, lease(&renewed), &renewed.token.to_string())?;
            Ok(code::OK)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &place, &grant.name, &rejection),
    }
}
