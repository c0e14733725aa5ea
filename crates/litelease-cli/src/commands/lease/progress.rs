//! `litelease lease progress`: notes that the work under a lease goes on.

use serde_json::json;

use crate::Common;
use crate::commands::grant::{Grant, GrantOfRun, rejected_at};
use crate::commands::run::progress_pipe;
use crate::exit::{Failure, Result, code};
use crate::output::{printable, remark};
use crate::target::{Target, Verdict};

/// Note that the work under a lease makes progress
///
/// A lease with `litelease run --progress-within` is renewed only if progress was noted within that
/// time. Inside the command it needs no arguments.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease run --progress-within 5m import -- sh -c 'for f in *; do load $f && litelease lease progress; done'")]
pub(crate) struct Args {
    #[command(flatten)]
    grant: GrantOfRun,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let grant: Grant = args.grant.named()?;
    if let Some((pipe, token)) = grant.progress_pipe() {
        progress_pipe::note(&pipe).map_err(|error| {
            let name = printable(grant.name());
            let text = format!("the litelease run of {name} around this command is gone: {error}");
            Failure::failed("Lost", text)
        })?;
        return noted(common, grant.name(), token);
    }
    let place = Target::open(common)?;
    match place.progress(&grant.argument())? {
        Verdict::Done((name, token)) => noted(common, &name, token),
        Verdict::Rejected(rejection) => rejected_at(common, &place, grant.name(), &rejection),
    }
}

fn noted(common: &Common, name: &str, token: i64) -> Result<u8> {
    let text = format!("{}: progress is noted", printable(name));
    remark(common, json!({ "progress": name, "token": token }), &text)?;
    Ok(code::OK)
}
