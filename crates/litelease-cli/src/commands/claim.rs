//! `litelease claim`: a lease for a script, which renews and releases it by itself.

use std::time::Duration;

use litelease::{ClaimResult, Identity};

use crate::Common;
use crate::duration::{parse, parse_positive};
use crate::exit::{Failure, Result, code};
use crate::output::{answer, lease, owner, printable, time_left};
use crate::{database, output};

/// Claim a name for a script, and print its token
///
/// The lease ends after its ttl unless it is renewed. `litelease run` does all that by itself.
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
    #[arg(long)]
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
    if who.as_deref() == Some("") {
        return Err(Failure::usage(
            "the owner must not be empty: leave --owner out, or name somebody",
        ));
    }
    let db = database::open(common)?;
    // This process ends at once; the script that called it goes on.
    let who = who.unwrap_or_else(|| Identity::of_parent().to_string());
    let claimed = match above {
        Some(above) => db.claim_above(&name, &who, ttl, above)?,
        None => db.claim_wait(&name, &who, ttl, wait.unwrap_or_default())?,
    };
    match claimed {
        ClaimResult::Acquired(granted) => {
            answer(common.json, lease(&granted), &granted.token.to_string());
            Ok(code::OK)
        }
        ClaimResult::Busy(current) => {
            if common.json {
                let busy = serde_json::json!({ "busy": output::lease(&current) });
                anstream::println!("{busy}");
            } else {
                eprintln!(
                    "litelease: {} is held by {} (token {}), for {} more",
                    printable(&name),
                    owner(&current.owner),
                    current.token,
                    time_left(current.lease_expires_at_ms)
                );
            }
            Ok(code::NO)
        }
    }
}
