//! `litelease write --status`: the holder of the write lock of a database.

use litelease::{LockState, WriteLock};
use serde_json::{Value, json};

use crate::Common;
use crate::exit::{Result, code};
use crate::output::answer;

/// Prints which process holds the write lock. The exit code is 1 if it is free.
pub(super) fn show(lock: &WriteLock, common: &Common) -> Result<u8> {
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

/// Returns the holder of a lock as JSON.
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

/// Returns the lock and its holder as JSON, for a caller that did not get it.
pub(super) fn holder(lock: &WriteLock) -> Value {
    let holder = lock.state().map_or(Value::Null, |state| entry(&state));
    json!({ "lock": lock.path().display().to_string(), "holder": holder })
}
