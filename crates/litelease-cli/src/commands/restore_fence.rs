//! `litelease restore-fence`: makes a file that was restored from a backup safe to grant from.

use serde_json::json;

use super::is_sure;
use crate::Common;
use crate::database;
use crate::exit::{Result, code};
use crate::output::answer;

/// After a restore from a backup: end every lease and raise every token far above all that were ever granted
///
/// A file from a backup has old tokens, and would grant some of them a second time. Run this once, after the backup is in
/// place and before anybody uses it.
#[derive(clap::Args)]
#[command(
    name = "restore-fence",
    after_help = "Example:
  litelease restore-fence --db app.sqlite3 --yes"
)]
pub(crate) struct Args {
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let db = database::open_existing(common)?;
    if !args.yes && !is_sure("End every lease in this file, and raise every token?", "fence it")? {
        eprintln!("litelease: nothing was done");
        return Ok(code::NO);
    }
    let floor = db.restore_fence()?;
    let text = format!("fenced: every token from now on is larger than {floor}");
    answer(common.json, json!({ "floor": floor }), &text);
    Ok(code::OK)
}
