//! `litelease claim`: a lease for a script, which renews and releases it by itself.

use std::time::Duration;

use litelease::{ClaimResult, HoldError, Identity};

use super::grant::unless_told;
use super::nesting;
use crate::duration::{parse, parse_positive};
use crate::exit::{Failure, Result};
use crate::output::{answer, busy, lease};
use crate::waiting::while_waiting;
use crate::{Common, database};

/// Claim a name for a script, and print its token
///
/// The lease ends after its ttl unless it is renewed. `litelease run` claims, renews and releases
/// by itself.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  token=$(litelease claim nightly --ttl 10m) || exit    exit code 1: somebody has it
  litelease renew nightly --token $token --ttl 10m
  litelease release nightly --token $token")]
pub(crate) struct Args {
    /// What to claim
    #[arg(value_parser = super::name)]
    name: String,
    /// Who claims it [default: host and process of the caller]
    #[arg(long, value_parser = super::owner)]
    owner: Option<String>,
    /// For how long
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Wait for the name, at most this long
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    wait: Option<Duration>,
    /// Grant a token larger than this one, which was seen elsewhere
    #[arg(long, value_name = "TOKEN", conflicts_with = "wait")]
    above: Option<i64>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let Args { name, owner: who, ttl, wait, above } = args;
    let wait = wait.unwrap_or_default();
    if who.as_deref() == Some("") {
        return Err(Failure::usage(
            "the owner must not be empty: leave --owner out, or name somebody",
        ));
    }
    let db = database::open_patiently(common, wait)?;
    if !wait.is_zero() {
        nesting::check(&db, &name)?;
    }
    // This process ends at once; the script that called it goes on.
    let who = who.unwrap_or_else(|| Identity::of_parent().to_string());
    let claimed = match above {
        Some(above) => db.claim_above(&name, &who, ttl, above).map_err(HoldError::from),
        None => while_waiting(common, &name, || db.claim_wait(&name, &who, ttl, wait)),
    }?;
    match claimed {
        ClaimResult::Acquired(granted) => {
            let told = answer(common, lease(&granted), &granted.token.to_string());
            unless_told(&db, &granted, told)
        }
        ClaimResult::Busy(current) => busy(common, &current),
    }
}
