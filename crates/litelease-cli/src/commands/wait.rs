//! `litelease wait`: until nobody has a name.

use std::time::{Duration, Instant};

use litelease::{LeaseInfo, Litelease};
use serde_json::json;

use super::nesting;
use crate::duration::parse;
use crate::exit::{Result, code};
use crate::output::{lease, owner, printable, remark};
use crate::similar::{hint, similar};
use crate::waiting::while_waiting;
use crate::{Common, database};

/// Wait until nobody has a name, without claiming it
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease wait nightly -w 10m && echo done    exit code 1: still held")]
pub(crate) struct Args {
    /// The name
    #[arg(value_parser = super::name)]
    name: String,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse)]
    wait: Option<Duration>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let name = printable(&args.name);
    let Some(db) = database::look(common)? else {
        return is_free(&args.name, common, None);
    };
    if args.wait != Some(Duration::ZERO) {
        nesting::check(&db, &args.name)?;
    }
    match while_waiting(common, &args.name, || until_free(&db, &args))? {
        None => is_free(&args.name, common, similar(&db, &args.name)),
        Some(current) => {
            let text =
                format!("{name}: {} still has it (token {})", owner(&current.owner), current.token);
            remark(common, json!({ "busy": lease(&current) }), &text)?;
            Ok(code::NO)
        }
    }
}

fn is_free(name: &str, common: &Common, similar: Option<String>) -> Result<u8> {
    let (shown, file) = (printable(name), database::path(common)?);
    let text = format!("{shown}: nobody has it in {}{}", file.display(), hint(similar.as_ref()));
    remark(common, json!({ "free": name }), &text)?;
    Ok(code::OK)
}

/// Waits until nobody has the name. Returns the holder if the time is over before.
fn until_free(db: &Litelease, args: &Args) -> Result<Option<LeaseInfo>> {
    let begin = Instant::now();
    let watch = db.watch();
    loop {
        let seen = watch.changes();
        database::check_moved(db)?;
        let Some(current) = db.inspect(&args.name)? else { return Ok(None) };
        let left = args.wait.unwrap_or(Duration::MAX).saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Ok(Some(current));
        }
        watch.wait(seen, current.lease_expires_at_ms, left);
    }
}
