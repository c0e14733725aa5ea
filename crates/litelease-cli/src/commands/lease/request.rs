//! `litelease lease request`: asks the holder of a name to give it up, and claims it then.

use std::time::Duration;

use litelease::{ClaimResult, Identity};

use crate::Common;
use crate::commands::grant::unless_told;
use crate::commands::nesting;
use crate::duration::{parse, parse_positive};
use crate::exit::Result;
use crate::output::{answer, busy, lease};
use crate::target::{Claim, Target};
use crate::waiting::while_waiting;

/// Ask the holder of a name to give it up, wait for it, and print the new token
///
/// The holder hears of it at once and can hand the lease over, with no gap and no overlap. If it
/// does not, its renewals are refused after --within, so that it is out within one more ttl. Its
/// lease is never cut short. When this command ends, the request ends with it.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  token=$(litelease lease request nightly --within 5m --ttl 10m) || exit    exit code 1: not in time
  litelease renew nightly --token $token --ttl 10m")]
pub(crate) struct Args {
    /// The name to ask for
    #[arg(value_parser = crate::commands::name)]
    name: String,
    /// How soon the holder must give it up
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = parse_positive)]
    within: Duration,
    /// How long the new lease lasts, unless it is renewed
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    wait: Option<Duration>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let Args { name, within, ttl, wait } = args;
    let wait = wait.unwrap_or(Duration::MAX);
    let place = Target::open(common)?;
    nesting::check(&place, &name)?;
    // The script that called this one goes on; its text is fresh for each attempt.
    let who = Identity::of_parent().to_string();
    let claim = Claim { name: &name, owner: &who, ttl, wait, above: None };
    let claimed = while_waiting(common, &name, || place.request_wait(&claim, within))?;
    match claimed {
        ClaimResult::Acquired(granted) => {
            let told = answer(common, lease(&granted), &granted.token.to_string());
            unless_told(&place, &granted, told)
        }
        ClaimResult::Busy(current) => busy(common, &current),
    }
}
