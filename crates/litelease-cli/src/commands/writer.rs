//! `litelease writer`: who holds the write lock of a database.

use litelease::{LockState, WriteLock};
use serde_json::json;

use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::answer;

/// Tell who holds the write lock of a database
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease writer --db data.db    exit code 1: nobody does")]
pub(crate) struct Args {}

pub(crate) fn execute(_: Args, common: &Common) -> Result<u8> {
    let lock = lock_of(common)?;
    let path = lock.path().display();
    let (text, value, code) = match lock.state()? {
        LockState::Free => ("nobody holds the write lock".into(), json!(null), code::NO),
        LockState::Held(None) => {
            let text = format!("held, and {path} does not tell by whom");
            (text, json!({ "pid": null, "since": null, "process": "unknown" }), code::OK)
        }
        LockState::Held(Some(holder)) => {
            let process = if holder.is_gone() { "dead" } else { "alive" };
            let note = match process {
                "dead" => "the process is gone, one that it forked still holds the lock",
                _ => "the process is there",
            };
            let text = format!("pid {} since {}, {note}", holder.pid, holder.since);
            let value = json!({ "pid": holder.pid, "since": holder.since, "process": process });
            (text, value, code::OK)
        }
    };
    let value = json!({ "lock": path.to_string(), "holder": value });
    answer(common.json, value, &text);
    Ok(code)
}

/// The lock of the database that is meant. It must be named: the user's own file of leases is nobody's to bulk-write.
pub(super) fn lock_of(common: &Common) -> Result<WriteLock> {
    let Some(path) = common.db.as_ref().filter(|path| !path.as_os_str().is_empty()) else {
        return Err(Failure::usage("say with --db which database is to be written"));
    };
    Ok(WriteLock::of_database(path)?)
}
