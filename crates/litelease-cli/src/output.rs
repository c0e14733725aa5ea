//! Answers: text for people, JSON for programs. Colours only on a terminal, and not with `NO_COLOR`.

use anstyle::{AnsiColor, Style};
use litelease::{Identity, LeaseInfo, Listed, Liveness, Status};
use serde_json::{Value, json};

use crate::duration::shown;

pub(crate) const GREEN: Style = AnsiColor::Green.on_default();
pub(crate) const RED: Style = AnsiColor::Red.on_default();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const CYAN: Style = AnsiColor::Cyan.on_default();

/// One answer, as JSON or as text.
pub(crate) fn answer(as_json: bool, value: Value, text: &str) {
    if as_json {
        anstream::println!("{value}");
    } else {
        anstream::println!("{text}");
    }
}

/// A lease as JSON.
pub(crate) fn lease(lease: &LeaseInfo) -> Value {
    entry(&Listed {
        name: lease.name.clone(),
        tenure: Some((lease.owner.clone(), lease.lease_expires_at_ms)),
        token: lease.token,
    })
}

/// A name and how it stands, as JSON.
pub(crate) fn entry(listed: &Listed) -> Value {
    let now_ms = litelease::now_ms();
    let owner = listed.tenure.as_ref().map(|(owner, _)| owner);
    let expires_at_ms = listed.tenure.as_ref().map(|(_, expiry)| *expiry);
    let who = owner.and_then(|owner| Identity::parse(owner));
    json!({
        "name": listed.name,
        "owner": owner,
        "token": listed.token,
        "expires_at_ms": expires_at_ms,
        "remaining_ms": expires_at_ms.map_or(0, |expiry| (expiry - now_ms).max(0)),
        "state": listed.status(now_ms).map(Status::word),
        "host": who.as_ref().map(|who| who.host.clone()),
        "pid": who.as_ref().map(|who| who.pid),
        "since_ms": who.as_ref().and_then(Identity::since_ms),
        "process": owner.map(|owner| process(owner)),
    })
}

/// Whether the process of an owner text is there: `alive`, `dead`, or `unknown` where nobody can tell.
pub(crate) fn process(owner: &str) -> &'static str {
    match Identity::parse(owner).map_or(Liveness::Unknown, |who| who.liveness()) {
        Liveness::Alive => "alive",
        Liveness::Dead => "dead",
        Liveness::Unknown => "unknown",
    }
}

/// An owner text as people want to see it: the process, without what only machines compare.
pub(crate) fn owner(owner: &str) -> String {
    let shown = Identity::parse(owner).map(|who| format!("{} pid {}", who.host, who.pid));
    shown.unwrap_or_else(|| printable(owner))
}

/// How long a lease has left.
pub(crate) fn time_left(expires_at_ms: i64) -> String {
    shown(expires_at_ms - litelease::now_ms())
}

/// A table as lines, without blanks at their ends.
pub(crate) fn lines(table: &comfy_table::Table) -> String {
    let lines = table.lines().map(|line| line.trim().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// Text that cannot play tricks with a terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| match letter.is_control() {
            true => letter.escape_default().collect::<Vec<_>>(),
            false => vec![letter],
        })
        .collect()
}
