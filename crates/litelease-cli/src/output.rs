//! Answers: text for people, JSON for programs. Colours only on a terminal, and not with
//! `NO_COLOR`.

use anstyle::{AnsiColor, Style};
use litelease::{Identity, Lease, LeaseRow, Liveness, SlotRow, Status};
use litelease_hold::Holder;
use serde_json::{Value, json};

use crate::Common;
use crate::duration::shown;
use crate::exit::{Failure, Result, code};
use crate::stream::{write_error, write_out};

pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// Prints a line on standard output. Fails if it cannot be written: then the caller does not know
/// the result.
pub(crate) fn say(line: &str) -> Result<()> {
    say_text(&format!("{line}\n"))
}

/// Prints whole lines, which end themselves.
pub(crate) fn say_text(text: &str) -> Result<()> {
    write_out(text).map_err(|error| Failure::not_told(&error))
}

/// Prints a line on standard error, and ignores failures.
pub(crate) fn complain(line: &str) {
    write_error(&format!("{line}\n"));
}

/// Prints one answer, as JSON or as text.
pub(crate) fn answer(common: &Common, value: Value, text: &str) -> Result<()> {
    if common.json { say(&value.to_string()) } else { say(text) }
}

/// Prints an answer that the exit code gives, too. `--quiet` leaves it out.
pub(crate) fn remark(common: &Common, value: Value, text: &str) -> Result<()> {
    if common.quiet && !common.json { Ok(()) } else { answer(common, value, text) }
}

/// Describes the holder of a busy name, in one line.
pub(crate) fn held_by(current: &Lease) -> String {
    let (name, who) = (printable(&current.name), owner(&current.owner));
    let left = time_left(current.expires_at_ms);
    format!("{name} is held by {who} (token {}), for {left} more", current.token)
}

/// Prints that another owner has the name, and returns the exit code for that.
pub(crate) fn busy(common: &Common, current: &Lease) -> Result<u8> {
    if common.json {
        say(&json!({ "busy": lease(current) }).to_string())?;
    } else if !common.quiet {
        complain(&format!("litelease: {}", held_by(current)));
    }
    Ok(code::NO)
}

/// Returns a lease as JSON.
pub(crate) fn lease(lease: &Lease) -> Value {
    entry(&lease_row(lease.clone()))
}

/// Returns a lease as a row. Of those that say so in their owner text, it is known since when.
pub(crate) fn lease_row(lease: Lease) -> LeaseRow {
    let Lease { name, owner, token, expires_at_ms } = lease;
    let since_ms = Identity::parse(&owner).and_then(|who| who.since_ms());
    LeaseRow { name, tenure: Some((owner, expires_at_ms)), token, since_ms }
}

/// Returns a held slot as a lease. The note of its holder is the owner.
pub(crate) fn slot_lease(row: &SlotRow) -> Lease {
    let (slot, note) = (row.slot, row.note.clone().filter(|note| !note.is_empty()));
    let (name, owner) = (format!("slot {}", slot.position), note.unwrap_or_else(|| "-".into()));
    Lease { name, owner, token: slot.token, expires_at_ms: slot.expires_at_ms }
}

/// Returns held slots as JSON.
pub(crate) fn slots(held: &[SlotRow]) -> Value {
    let slot = |row: &SlotRow| {
        let mut slot = lease(&slot_lease(row));
        slot["note"] = row.note.clone().into();
        slot["slot"] = row.slot.position.into();
        if let Some(fields) = slot.as_object_mut() {
            fields.retain(|field, _| field != "name" && field != "owner");
        }
        if row.slot.is_kept() {
            slot["expires_at_ms"] = Value::Null;
            slot["remaining_ms"] = Value::Null;
        }
        slot
    };
    held.iter().map(slot).collect()
}

/// Returns a row of the lease table as JSON.
pub(crate) fn entry(listed: &LeaseRow) -> Value {
    let now_ms = litelease::now_ms();
    let owner = listed.tenure.as_ref().map(|(owner, _)| owner);
    let expires_at_ms = listed.tenure.as_ref().map(|(_, expiry)| *expiry);
    let who = owner.and_then(|owner| Identity::parse(owner));
    let holder = owner.and_then(|owner| Holder::find(owner));
    json!({
        "name": listed.name,
        "owner": owner,
        "token": listed.token,
        "expires_at_ms": expires_at_ms,
        "remaining_ms": expires_at_ms.map_or(0, |expiry| (expiry - now_ms).max(0)),
        "state": listed.status(now_ms).map(Status::word),
        "host": who.as_ref().map(|who| who.host.clone()),
        "pid": who.as_ref().map(|who| who.pid),
        "since_ms": listed.since_ms,
        "process": owner.map(|owner| process(owner)),
        "user": holder.as_ref().map(|holder| &holder.user),
        "command": holder.as_ref().map(|holder| &holder.command),
    })
}

/// Returns whether the process of an owner text is running: `alive`, `dead` or `unknown`.
pub(crate) fn process(owner: &str) -> &'static str {
    match Identity::parse(owner).map_or(Liveness::Unknown, |who| who.liveness()) {
        Liveness::Alive => "alive",
        Liveness::Dead => "dead",
        Liveness::Unknown => "unknown",
    }
}

/// Shortens an owner text for people.
pub(crate) fn owner(owner: &str) -> String {
    printable(&litelease_hold::short_owner(owner))
}

/// Returns how long a lease has left.
pub(crate) fn time_left(expires_at_ms: i64) -> String {
    shown(expires_at_ms - litelease::now_ms())
}

/// Formats a table as lines without trailing blanks.
pub(crate) fn lines(table: &comfy_table::Table) -> String {
    let lines = table.lines().map(|line| line.trim().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Escapes text so that it cannot control a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| match letter.is_control() {
            true => letter.escape_default().collect::<Vec<_>>(),
            false => vec![letter],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any client may choose an owner text that looks like one of ours.
    #[test]
    fn the_host_of_an_owner_text_reaches_no_terminal_as_it_is() {
        let forged = format!("\u{1b}[31mevil\u{7} pid 1 {}", "0".repeat(32));
        assert!(Identity::parse(&forged).is_some());
        assert!(!owner(&forged).contains(['\u{1b}', '\u{7}']), "{:?}", owner(&forged));
    }
}
