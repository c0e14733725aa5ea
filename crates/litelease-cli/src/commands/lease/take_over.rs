//! `litelease lease take-over`: takes a name from its holder, for operators.

use std::time::Duration;

use litelease::Identity;

use crate::Common;
use crate::commands::grant::unless_told;
use crate::commands::{is_sure, nothing_was_done};
use crate::duration::parse_positive;
use crate::exit::Result;
use crate::output::{answer, complain, lease, owner, printable};
use crate::target::Target;

/// End any holder's lease and claim the name in one step, and print the new token
///
/// There is no gap, and the old holder is superseded at once. This does not kill it: until it finds
/// out, both may work, and only the token tells them apart. `litelease lease request` asks instead.
#[derive(clap::Args)]
#[command(after_help = "Example:
  token=$(litelease lease take-over nightly --yes --ttl 10m)")]
pub(crate) struct Args {
    /// The name to take over
    #[arg(value_parser = crate::commands::name)]
    name: String,
    /// The owner that takes it over [default: host and process of the caller]
    #[arg(long, value_parser = crate::commands::new_owner)]
    owner: Option<String>,
    /// How long the new lease lasts
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let Args { name, owner: who, ttl, yes } = args;
    let place = Target::open(common)?;
    if !yes && let Some(current) = place.inspect(&name)? {
        let (shown, who, token) = (printable(&name), owner(&current.owner), current.token);
        let question =
            format!("Take {shown} over from {who} (token {token}) in {}?", place.shown());
        if !is_sure(&question, "take it over")? {
            return Ok(nothing_was_done());
        }
    }
    let who = who.unwrap_or_else(|| Identity::of_parent().to_string());
    let taken = place.take_over(&name, &who, ttl)?;
    let told = answer(common, lease(&taken.lease), &taken.lease.token.to_string());
    let is_told = told.is_ok() && !common.quiet && !common.json;
    if let Some(from) = taken.from.filter(|_| is_told) {
        let (name, who) = (printable(&name), owner(&from.owner));
        complain(&format!("litelease: {name} was taken over from {who}, token {}", from.token));
    }
    unless_told(&place, &taken.lease, told)
}
