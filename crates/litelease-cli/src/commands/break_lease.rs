//! `litelease break`: the operator's way to end anybody's lease.

use std::io::{BufRead, IsTerminal, Write};

use litelease::BreakResult;
use serde_json::json;

use super::grant::rejected;
use crate::Common;
use crate::database;
use crate::exit::{Failure, Result, code};
use crate::output::{answer, owner, printable};

/// End anybody's lease, and raise its token so that the old holder is refused
///
/// The holder is not killed. `litelease run` notices and ends its command; others are told when they renew.
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease break nightly --yes")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    let name = printable(&args.name);
    if !args.yes
        && let Some(current) = db.inspect(&args.name)?
    {
        let who = owner(&current.owner);
        if !is_sure(&format!("End the lease of {who} on {name} (token {})?", current.token))? {
            eprintln!("litelease: nothing was done");
            return Ok(code::NO);
        }
    }
    match db.break_lease(&args.name)? {
        BreakResult::Broken { owner: who, killed } => {
            let text = format!("{name}: broken, token {killed} of {} is superseded", owner(&who));
            let value = json!({ "broken": args.name, "owner": who, "killed": killed });
            answer(common.json, value, &text);
            Ok(code::OK)
        }
        BreakResult::Rejected { reason, current } => {
            rejected(common.json, &args.name, reason, current)
        }
    }
}

fn is_sure(question: &str) -> Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::usage("nobody is there to ask: add --yes to break it all the same"));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut said = String::new();
    input.lock().read_line(&mut said)?;
    Ok(matches!(said.trim(), "y" | "Y" | "yes"))
}
