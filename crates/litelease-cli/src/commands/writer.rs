//! `litelease writer`: who holds the write lock of a database.

use litelease::{LockState, WriteLock};
use serde_json::{Value, json};

use crate::exit::{Failure, Result, code};
use crate::output::answer;
use crate::{Common, database};

/// Show which process holds the write lock of a database
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease writer --db data.db    exit code 1: nobody does")]
pub(crate) struct Args {}

pub(crate) fn execute(_: Args, common: &Common) -> Result<u8> {
    let lock = lock_of(common)?;
    let state = lock.state()?;
    let path = lock.path().display();
    let (text, code) = match &state {
        LockState::Free => ("nobody holds the write lock".into(), code::NO),
        LockState::Held(None) => (format!("held by an unknown process: see {path}"), code::OK),
        LockState::Unsigned(pid) => {
            let text = format!("pid {pid}, since an unknown time: its name is not in {path}");
            (text, code::OK)
        }
        LockState::Held(Some(holder)) => {
            let note = match holder.is_gone() {
                true => "the process is gone, one that it forked still holds the lock",
                false => "the process is there",
            };
            (format!("pid {} since {}, {note}", holder.pid, holder.since), code::OK)
        }
    };
    let value = json!({ "lock": path.to_string(), "holder": entry(&state) });
    answer(common, value, &text)?;
    Ok(code)
}

/// Who holds a lock, as JSON.
fn entry(state: &LockState) -> Value {
    match state {
        LockState::Free => Value::Null,
        LockState::Held(None) => json!({ "pid": null, "since": null, "process": "unknown" }),
        LockState::Unsigned(pid) => json!({ "pid": pid, "since": null, "process": "alive" }),
        LockState::Held(Some(holder)) => {
            let process = if holder.is_gone() { "dead" } else { "alive" };
            json!({ "pid": holder.pid, "since": holder.since, "process": process })
        }
    }
}

/// The lock and who holds it, as JSON for somebody who did not get it.
pub(super) fn holder(lock: &WriteLock) -> Value {
    let holder = lock.state().map_or(Value::Null, |state| entry(&state));
    json!({ "lock": lock.path().display().to_string(), "holder": holder })
}

/// The lock of the database that is meant. It must be named: the user's own file of leases is
/// nobody's to bulk-write.
pub(super) fn lock_of(common: &Common) -> Result<WriteLock> {
    if common.db.as_ref().is_none_or(|path| path.as_os_str().is_empty()) {
        return Err(Failure::usage("the database is missing: name it with --db FILE"));
    }
    Ok(WriteLock::of_database(&database::path(common)?)?)
}
