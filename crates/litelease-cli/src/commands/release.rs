//! `litelease release`: ends exactly one grant.

use serde_json::json;

use super::grant::{Grant, rejected_at};
use crate::Common;
use crate::exit::{Result, code};
use crate::output::{printable, remark};
use crate::target::{Target, Verdict};

/// End a lease that was claimed
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease release nightly --token 7")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: Grant,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let place = Target::open(common)?;
    let grant = args.grant.argument();
    match place.release(&grant)? {
        Verdict::Done((name, token)) => {
            let text = format!("{}: released, token {token}", printable(&name));
            remark(common, json!({ "released": name, "token": token }), &text)?;
            Ok(code::OK)
        }
        Verdict::Rejected(rejection) => rejected_at(common, &place, &grant.name, &rejection),
    }
}
