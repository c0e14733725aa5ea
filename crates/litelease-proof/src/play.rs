//! Playing a scenario: each player takes the steps to one surface and brings its answers back as
//! text.

use std::collections::BTreeMap;
use std::fmt;

use litelease_core::{
    BreakResult, CheckpointResult, ClaimResult, GrantResult, Lease, LeaseRow, PoolInfo, Reason,
    ReleaseResult, RenewResult, RequestResult, SlotInfo, Status, TakenOver, TransferResult,
};

use crate::scenario::{Action, Scenario, shown};

/// A surface that plays steps.
pub trait Player {
    /// Does a step and tells its answer.
    fn step(&mut self, now_ms: i64, action: &Action) -> Played;

    /// Whether the surface has the verbs on ticks. One that has not leaves a file at the first.
    fn has_ticks(&self) -> bool {
        false
    }
}

/// What became of a step.
pub enum Played {
    /// The answer, in canonical form.
    Answer(String),
    /// A no without its reason, from a surface that does not tell it.
    No,
    /// The surface cannot do this, and why.
    Skipped(&'static str),
}

/// How many steps were played and which were not.
#[derive(Default)]
pub struct Tally {
    /// Steps whose answer was compared.
    pub played: usize,
    /// Steps that the surface lacks, with the reason.
    pub skipped: BTreeMap<&'static str, usize>,
}

/// Plays a scenario to its end, or to the first answer that differs.
pub fn play(scenario: &Scenario, player: &mut dyn Player, tally: &mut Tally) -> Result<(), String> {
    for (done, step) in scenario.steps.iter().enumerate() {
        if matches!(step.action, Action::Ticks(_)) && !player.has_ticks() {
            let left = scenario.steps.len() - done;
            *tally.skipped.entry("this surface has no ticks yet").or_default() += left;
            return Ok(());
        }
        match player.step(step.now_ms, &step.action) {
            Played::Skipped(why) => *tally.skipped.entry(why).or_default() += 1,
            Played::Answer(answer) if answer == step.answer => tally.played += 1,
            Played::No if step.answer.starts_with("rejected ") => tally.played += 1,
            Played::No => {
                let (path, line) = (scenario.path.display(), step.line);
                return Err(format!("{path}:{line}: {}\n  but got -> rejected", step.text));
            }
            Played::Answer(answer) => {
                let (path, line) = (scenario.path.display(), step.line);
                return Err(format!("{path}:{line}: {}\n  but got -> {answer}", step.text));
            }
        }
    }
    Ok(())
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} steps played", self.played)?;
        for (why, steps) in &self.skipped {
            write!(f, ", {steps} SKIPPED ({why})")?;
        }
        Ok(())
    }
}

/// An answer in the words of scenario files.
pub trait ToText {
    /// The text.
    fn to_text(&self) -> String;
}

impl<S: AsRef<str>> ToText for ClaimResult<S> {
    fn to_text(&self) -> String {
        match self {
            ClaimResult::Acquired(lease) => format!("acquired {}", grant(lease)),
            ClaimResult::Busy(lease) => {
                format!("busy {} {}", shown(lease.owner.as_ref()), grant(lease))
            }
        }
    }
}

impl<S: AsRef<str>> ToText for RenewResult<S> {
    fn to_text(&self) -> String {
        match self {
            RenewResult::Renewed(lease) => format!("renewed {}", grant(lease)),
            RenewResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for ReleaseResult<S> {
    fn to_text(&self) -> String {
        match self {
            ReleaseResult::Released { token, .. } => format!("released {token}"),
            ReleaseResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for TransferResult<S> {
    fn to_text(&self) -> String {
        match self {
            TransferResult::Transferred(lease) => format!("transferred {}", grant(lease)),
            TransferResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl<S: AsRef<str>> ToText for BreakResult<S> {
    fn to_text(&self) -> String {
        match self {
            BreakResult::Broken { token, .. } => format!("broken {token}"),
            BreakResult::Rejected { reason, current } => rejected(reason, current),
        }
    }
}

impl ToText for GrantResult {
    fn to_text(&self) -> String {
        match self {
            GrantResult::Done => "done".into(),
            GrantResult::Stale { reason } => rejected::<&str>(reason, &None),
        }
    }
}

impl<S: AsRef<str>> ToText for RequestResult<S> {
    fn to_text(&self) -> String {
        match self {
            RequestResult::Requested { until_ms, .. } => format!("requested until {until_ms}"),
            RequestResult::RequestedBy { requester, until_ms } => {
                format!("requested by {} until {until_ms}", shown(requester.as_ref()))
            }
            RequestResult::Rejected { reason } => rejected::<&str>(reason, &None),
        }
    }
}

impl<S: AsRef<str>> ToText for TakenOver<S> {
    fn to_text(&self) -> String {
        format!("acquired {}", grant(&self.lease))
    }
}

/// An open request in the words of scenario files: requester, time and token.
pub(crate) fn requested<S: AsRef<str>>(open: Option<(S, i64, i64)>) -> String {
    open.map_or("none".into(), |(requester, until_ms, token)| {
        format!("requested by {} until {until_ms} token {token}", shown(requester.as_ref()))
    })
}

/// Whether a request was withdrawn.
pub(crate) fn withdrawn(withdrawn: bool) -> String {
    if withdrawn { "withdrawn".into() } else { "none".into() }
}

/// The answer to a checkpoint under `token` in the words of scenario files.
pub(crate) fn checkpoint(answer: CheckpointResult, token: i64) -> String {
    let reason = match answer {
        CheckpointResult::Stored => return "stored".into(),
        CheckpointResult::Stale { newest: None } => Reason::NeverClaimed,
        CheckpointResult::Stale { newest: Some(by) } if token < by => Reason::Superseded { by },
        CheckpointResult::Stale { .. } => Reason::UnknownToken,
    };
    rejected::<&str>(&reason, &None)
}

pub(crate) fn grant<S>(lease: &Lease<S>) -> String {
    format!("{} until {}", lease.token, lease.expires_at_ms)
}

fn rejected<S: AsRef<str>>(reason: &Reason, current: &Option<Lease<S>>) -> String {
    match (reason, current) {
        (Reason::HeldBy, Some(lease)) => {
            format!("rejected held by {} {}", shown(lease.owner.as_ref()), lease.token)
        }
        (Reason::HeldBy, None) => "rejected held by nobody".into(),
        (Reason::Superseded { by }, _) => format!("rejected superseded by {by}"),
        (reason, _) => format!("rejected {reason}"),
    }
}

pub(crate) fn held<S: AsRef<str>>(lease: Option<Lease<S>>) -> String {
    match lease {
        Some(lease) => format!("held {} {}", shown(lease.owner.as_ref()), grant(&lease)),
        None => "none".into(),
    }
}

pub(crate) fn owner<S: AsRef<str>>(owner: Option<S>) -> String {
    owner.map_or("none".into(), |owner| format!("owner {}", shown(owner.as_ref())))
}

/// When the live grant of a name began, in the words of scenario files.
pub(crate) fn since(row: Option<LeaseRow>, now_ms: i64) -> String {
    let live = row.filter(|row| row.status(now_ms) == Some(Status::Live));
    began(live.and_then(|row| row.since_ms))
}

/// The same, of a surface that tells only of live grants.
pub(crate) fn began(since_ms: Option<i64>) -> String {
    since_ms.map_or("none".into(), |since_ms| format!("since {since_ms}"))
}

/// A value in the words of scenario files.
pub(crate) fn value<S: AsRef<str>>(value: Option<S>) -> String {
    value.map_or("none".into(), |value| format!("value {}", shown(value.as_ref())))
}

/// A slot in the words of scenario files.
pub(crate) fn slot(slot: Option<SlotInfo>) -> String {
    slot.map_or("none".into(), |slot| {
        let SlotInfo { position, token, expires_at_ms } = slot;
        if slot.is_kept() {
            return format!("slot {position} token {token} kept");
        }
        format!("slot {position} token {token} until {expires_at_ms}")
    })
}

/// Several of them.
pub(crate) fn slots(slots: impl IntoIterator<Item = SlotInfo>) -> String {
    let told: Vec<String> = slots.into_iter().map(|lent| slot(Some(lent))).collect();
    if told.is_empty() { "none".into() } else { told.join(" ") }
}

/// A pool in the words of scenario files.
pub(crate) fn pool(info: PoolInfo) -> String {
    format!("pool of {} with {} in use", info.count, info.in_use)
}

/// The answers about shared reads in the words of scenario files.
pub(crate) fn version(version: Option<i64>) -> String {
    version.map_or("none".into(), |version| format!("version {version}"))
}

pub(crate) fn unread(given_up: bool) -> String {
    if given_up { "unread".into() } else { "none".into() }
}

pub(crate) fn drained(drained: bool) -> String {
    if drained { "drained".into() } else { "not drained".into() }
}

pub(crate) fn number(number: Option<i64>) -> String {
    number.map_or("none".into(), |number| number.to_string())
}

/// An error in the words of scenario files: its kind, or SQLite's own name for it.
pub fn error(error: &litelease::Error) -> String {
    let litelease::Error::Sqlite(failure) = error else { return format!("error {}", error.kind()) };
    let code = failure.sqlite_error().map_or(0, |error| error.extended_code);
    let name = match code {
        5 => "SQLITE_BUSY",
        6 => "SQLITE_LOCKED",
        8 => "SQLITE_READONLY",
        13 => "SQLITE_FULL",
        517 => "SQLITE_BUSY_SNAPSHOT",
        _ => return format!("error SQLITE {code}"),
    };
    format!("error {name}")
}
