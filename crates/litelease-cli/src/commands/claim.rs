//! `litelease claim`: a lease for a script, which renews and releases it by itself.

use std::time::Duration;

use litelease::{ClaimResult, Identity};

use super::grant::unless_told;
use super::nesting;
use crate::Common;
use crate::duration::{parse, parse_positive};
use crate::exit::{Failure, Result};
use crate::output::{answer, busy, lease};
use crate::target::{Claim, Target};
use crate::waiting::while_waiting;

/// Claim a name for a script, and print its token
///
/// The lease ends after its ttl unless it is renewed. `litelease run` claims, renews and releases
/// by itself.
///
/// On a server, the secret of the grant is kept in a file that only you can read, so that renew,
/// release and transfer find it by the token. --json prints it, for another machine: give it to
/// them in $LITELEASE_GRANT.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  token=$(litelease claim nightly --ttl 10m) || exit    exit code 1: somebody has it
  litelease renew nightly --token $token --ttl 10m
  litelease release nightly --token $token")]
pub(crate) struct Args {
    /// The name to claim
    #[arg(value_parser = super::name)]
    name: String,
    /// The owner that claims it [default: host and process of the caller]
    #[arg(long, value_parser = super::owner)]
    owner: Option<String>,
    /// How long the lease lasts, unless it is renewed
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Wait for the name, at most this long
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    wait: Option<Duration>,
    /// Say who waits and why: a server shows it among the waiters of the name
    #[arg(long, value_name = "TEXT", requires = "wait")]
    note: Option<String>,
    /// Grant a token larger than this one, which was seen elsewhere
    #[arg(long, value_name = "TOKEN", conflicts_with = "wait")]
    above: Option<i64>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let Args { name, owner: who, ttl, wait, note, above } = args;
    let wait = wait.unwrap_or_default();
    if who.as_deref() == Some("") {
        return Err(Failure::usage("--owner is empty: leave it out, or give a text"));
    }
    let place = Target::open(common)?.with_note("--note", note.as_deref())?;
    if !wait.is_zero() {
        nesting::check(&place, &name)?;
    }
    // This process ends at once; the script that called it goes on.
    let who = who.unwrap_or_else(|| Identity::of_parent().to_string());
    let ask = Claim { name: &name, owner: &who, ttl, wait, above };
    match while_waiting(common, &name, || place.claim(&ask))? {
        ClaimResult::Acquired(granted) => {
            let mut shown = lease(&granted);
            if let Some(secret) = place.secret(&granted) {
                shown["grant"] = secret.into();
            }
            let told = answer(common, shown, &granted.token.to_string());
            unless_told(&place, &granted, told)
        }
        ClaimResult::Busy(current) => busy(common, &current),
    }
}
