//! The host API: for hosts that run statements themselves: the same tables and the same rule, as text and as
//! plain functions.
//!
//! Some hosts cannot load an extension, but can run SQL on their own connection and call a C function. They
//! load a row, ask the rule, and save what it says, inside a transaction of their own.

use litelease_core::{
    self as rule, BreakResult, ClaimResult, Claimant, CommitContext, Conditions, Epoch,
    RaiseResult, Reason, Refusal, ReleaseResult, RenewResult, Row, State, Status, Step, Term,
    TransferResult,
};

use crate::boot::Boot;
use crate::checkpoint::{CHECKPOINTS, LAST, STORE};
use crate::epoch::is_strong;
use crate::gate::{ADMIT, ADMITTED, GATES};
use crate::pool_rows::{FREE_POOLS, FREE_SLOTS, LOWEST_FREE, NEWEST_SLOT, POOLS, SLOTS};
use crate::purge::ENDED;
use crate::raise::FENCE;
use crate::schema::{ENTRY, FORMAT_OF_FILE, INTRUDERS, META, META_IS_RIGHT, RESOURCES};
use crate::statements::{
    CONFIRM_EPOCH, EPOCH_RECORD, FORGET_EPOCH, JOURNAL_MODE, KEEP_EPOCH, LOCK,
};

/// A host's question to the rule about a row that it has loaded.
#[allow(missing_docs)]
pub struct Question<'a> {
    pub verb: Verb<'a>,
    /// The stored state: `None` if there is no row.
    pub state: Option<State<'a>>,
    pub now_ms: i64,
    /// A token that a new one must exceed.
    pub floor: i64,
}

/// The verbs, as far as they need the rule.
#[allow(missing_docs)]
#[derive(Clone, Copy)]
pub enum Verb<'a> {
    Claim {
        owner: &'a str,
        ttl_ms: i64,
    },
    ClaimFromDead {
        owner: &'a str,
        ttl_ms: i64,
        dead: Claimant<'a>,
    },
    Renew {
        who: Claimant<'a>,
        ttl_ms: i64,
    },
    Release {
        who: Claimant<'a>,
    },
    Transfer {
        who: Claimant<'a>,
        new_owner: &'a str,
        ttl_ms: i64,
    },
    Break,
    Inspect,
    /// Raises the token of the name above this floor. The question's own floor is the file's.
    RaiseName {
        floor: i64,
    },
}

/// The rule's answer, without its texts: the host knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The verb did what it says.
    Done,
    /// A claim met a live lease.
    Busy,
    /// Nothing was changed, for this reason.
    Rejected(Reason),
    /// Nothing was changed: the token of the name, or the floor of the file, is larger than the floor asked for.
    FloorTooLow,
}

/// The outcome, and the state to store if any.
pub type Decision<'a> = (Outcome, Option<State<'a>>);

/// Asks the rule.
///
/// ```
/// use litelease_store::host_api::{Outcome, Question, Verb, decide};
///
/// let verb = Verb::Claim { owner: "a", ttl_ms: 50 };
/// let (outcome, write) = decide(Question { verb, state: None, now_ms: 100, floor: 0 })?;
/// assert_eq!(outcome, Outcome::Done);
/// assert_eq!(write.map(|state| state.token()), Some(1));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn decide(question: Question<'_>) -> Result<Decision<'_>, Refusal> {
    let Question { verb, state, now_ms, floor } = question;
    let row = Row::new("", state);
    Ok(match verb {
        Verb::Claim { owner, ttl_ms } => {
            short(rule::claim(row, owner, Term::new(ttl_ms, now_ms)?, floor)?, claimed)
        }
        Verb::ClaimFromDead { owner, ttl_ms, dead } => {
            let term = Term::new(ttl_ms, now_ms)?;
            short(rule::claim_from_dead(row, owner, term, floor, dead)?, claimed)
        }
        Verb::Renew { who, ttl_ms } => {
            let step = rule::renew(row, who, Term::new(ttl_ms, now_ms)?, Conditions::default());
            short(step, |answer| match answer {
                RenewResult::Renewed(_) => Outcome::Done,
                RenewResult::Rejected { reason, .. } => Outcome::Rejected(reason),
            })
        }
        Verb::Release { who } => short(rule::release(row, who, now_ms), |answer| match answer {
            ReleaseResult::Released { .. } => Outcome::Done,
            ReleaseResult::Rejected { reason, .. } => Outcome::Rejected(reason),
        }),
        Verb::Transfer { who, new_owner, ttl_ms } => {
            let step = rule::transfer(row, who, new_owner, Term::new(ttl_ms, now_ms)?, floor)?;
            short(step, |answer| match answer {
                TransferResult::Transferred(_) => Outcome::Done,
                TransferResult::Rejected { reason, .. } => Outcome::Rejected(reason),
            })
        }
        Verb::Break => short(rule::break_lease(row, now_ms, floor)?, |answer| match answer {
            BreakResult::Broken { .. } => Outcome::Done,
            BreakResult::Rejected { reason, .. } => Outcome::Rejected(reason),
        }),
        Verb::RaiseName { floor: above } => {
            short(rule::raise_name(row, above, floor)?, |answer| match answer {
                RaiseResult::Raised | RaiseResult::Unchanged => Outcome::Done,
                RaiseResult::TooLow { .. } => Outcome::FloorTooLow,
            })
        }
        Verb::Inspect => match row.status(now_ms) {
            Some(Status::Live) => (Outcome::Done, None),
            Some(Status::Expired) => (Outcome::Rejected(Reason::Expired), None),
            Some(Status::Released) => (Outcome::Rejected(Reason::Released), None),
            None => (Outcome::Rejected(Reason::NeverClaimed), None),
        },
    })
}

fn claimed(answer: ClaimResult<&str>) -> Outcome {
    match answer {
        ClaimResult::Acquired(_) => Outcome::Done,
        ClaimResult::Busy(_) => Outcome::Busy,
    }
}

fn short<'a, A>(step: Step<'a, A>, outcome: impl FnOnce(A) -> Outcome) -> Decision<'a> {
    let Step { write, answer } = step;
    (outcome(answer), write)
}

/// The rules of raising a file's floor and of purging. The statements `ended` and `delete_ended` are
/// [`has_ended`] in SQL.
pub use litelease_core::{has_ended, purge_limit, raise};

/// A host's question about the epoch of a file.
#[allow(missing_docs)]
pub struct EpochQuestion<'a> {
    pub wish: Wish,
    /// The epoch as it is stored: the default if there is none.
    pub epoch: Epoch,
    /// The path of the file; empty for a database in memory.
    pub file: &'a str,
    /// What the pragmas of these names answer.
    pub journal_mode: &'a str,
    pub synchronous: i64,
    /// Whether the host can store the epoch in a transaction of its own, with `synchronous` raised to EXTRA.
    pub is_own: bool,
}

/// The purpose of an epoch that a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To grant this token.
    Grant(i64),
    /// To record the present boot, as `bootstrap` does.
    Record,
    /// To raise the floor to this at least.
    Raise(i64),
    /// To fence off what was granted since a backup in which this is the newest token.
    Restore(i64),
}

/// Answers the epoch to store, if another one is needed, and whether a power cut can take commits.
///
/// ```
/// use litelease_core::Epoch;
/// use litelease_store::host_api::{EpochQuestion, Wish, epoch};
///
/// let in_memory = EpochQuestion {
///     wish: Wish::Grant(1),
///     epoch: Epoch::default(),
///     file: "",
///     journal_mode: "memory",
///     synchronous: 2,
///     is_own: true,
/// };
/// assert_eq!(epoch(in_memory)?, (None, false));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn epoch(question: EpochQuestion<'_>) -> Result<(Option<Epoch>, bool), Refusal> {
    let EpochQuestion { wish, epoch, file, journal_mode, synchronous, is_own } = question;
    let present = Boot::present();
    let may_lose_commits = !file.is_empty() && !is_strong(journal_mode, synchronous);
    let boot = if file.is_empty() { 0 } else { present.number() };
    let context = CommitContext { boot, may_lose_commits, is_own };
    let epoch = Epoch { boot: present.read(epoch.boot, epoch.floor, file), ..epoch };
    let wanted = match wish {
        Wish::Grant(token) => epoch.needed(token, context)?,
        Wish::Record => epoch.recording(context)?,
        Wish::Raise(floor) => Some(epoch.raised(floor, context)?),
        Wish::Restore(newest) => {
            // Grants follow, perhaps on weaker connections: the boot is recorded as by `bootstrap`.
            let context = CommitContext { may_lose_commits: boot != 0, ..context };
            Some(epoch.raised(epoch.floor_after_restore(newest)?, context)?)
        }
    };
    Ok((wanted, may_lose_commits))
}

/// Takes note that this process has left its epoch in a file.
///
/// ```
/// litelease_store::host_api::epoch_recorded("", 0);
/// ```
pub fn epoch_recorded(file: &str, floor: i64) {
    Boot::present().remember(floor, file.into());
}

/// Returns whether the system tells boots apart. Where it does not, a restored file cannot be fenced without a token that was
/// seen elsewhere, and [`LARGEST_TOKEN_NEEDED`] says so.
///
/// ```
/// assert!(litelease_store::host_api::tells_boots_apart() || !cfg!(target_os = "linux"));
/// ```
pub fn tells_boots_apart() -> bool {
    Boot::present().is_known()
}

/// What is said where a token must be given.
pub use crate::error::LARGEST_TOKEN_NEEDED;

/// Checks whether a token may be granted with this epoch, as far as can be told from the two alone. If not, [`epoch`] knows.
///
/// ```
/// # use litelease_core::Epoch;
/// # use litelease_store::host_api::epoch_covers;
/// assert!(!epoch_covers(Epoch { floor: 0, boot: 0 }, 1));
/// ```
pub fn epoch_covers(epoch: Epoch, token: i64) -> bool {
    epoch.boot == Boot::present().number() && epoch.is_enough_for(token)
}

/// The first difference between a table as it is stored and as it should be. `None` means that it is ours. For
/// what the statement `intruders` finds, `kind` and `text` are what it found.
///
/// ```
/// use litelease_store::host_api::difference;
///
/// let reason = difference("litelease_resources", "table", "CREATE TABLE litelease_resources (name)");
/// assert!(reason.unwrap().starts_with("missing column `owner`"));
/// let reason = difference("litelease_resources", "trigger", "log_it");
/// assert!(reason.unwrap().starts_with("it has a trigger that is not ours, \"log_it\""));
/// ```
pub fn difference(table: &str, kind: &str, text: &str) -> Option<String> {
    let tables = [&RESOURCES, &META, &CHECKPOINTS, &GATES, &POOLS, &SLOTS];
    match tables.into_iter().find(|ours| ours.name == table) {
        Some(ours) => ours.difference(kind, text),
        None => Some("Litelease has no such table".into()),
    }
}

/// A statement by its name. Names and numbers are its parameters, in the order of the verbs' arguments.
///
/// ```
/// use litelease_store::host_api::statement;
///
/// assert!(statement("load").unwrap().starts_with("SELECT rowid, owner, token"));
/// assert_eq!(statement("no such statement"), None);
/// ```
pub fn statement(name: &str) -> Option<String> {
    let sql = match name {
        "create" => RESOURCES.create(),
        "create_meta" => META.create(),
        "create_checkpoints" => CHECKPOINTS.create(),
        "checkpoint" => STORE.into(),
        "last_checkpoint" => LAST.into(),
        "create_gates" => GATES.create(),
        "admitted" => ADMITTED.into(),
        "admit" => ADMIT.into(),
        "entry" => ENTRY.into(),
        "intruders" => INTRUDERS.into(),
        "format" => FORMAT_OF_FILE.into(),
        "meta_is_right" => META_IS_RIGHT.into(),
        "schema_version" => "PRAGMA main.schema_version".into(),
        "temp_schema_version" => "PRAGMA temp.schema_version".into(),
        "lock" => LOCK.into(),
        "load" => format!("{LOAD} WHERE name = ?1"),
        "epoch" => EPOCH_RECORD.into(),
        "forget_epoch" => FORGET_EPOCH.into(),
        "confirm_epoch" => CONFIRM_EPOCH.into(),
        "keep_epoch" => KEEP_EPOCH.into(),
        "journal_mode" => JOURNAL_MODE.into(),
        "synchronous" => "PRAGMA main.synchronous".into(),
        "raise_synchronous" => "PRAGMA main.synchronous = EXTRA".into(),
        "file" => "SELECT file FROM pragma_database_list WHERE name = 'main'".into(),
        "list" => LOAD.into(),
        "fence" => FENCE.into(),
        "newest_slot" => NEWEST_SLOT.into(),
        "free_slots" => FREE_SLOTS.into(),
        "free_pools" => FREE_POOLS.into(),
        "lowest_free" => LOWEST_FREE.into(),
        "insert" => INSERT.into(),
        "update" => UPDATE.into(),
        "ended" => format!("{LOAD} WHERE {ENDED}"),
        "delete_ended" => format!("DELETE FROM main.litelease_resources WHERE {ENDED}"),
        _ => return None,
    };
    Some(sql)
}

/// The types come along, because a host may not tell text from a blob.
const LOAD: &str = "SELECT rowid, owner, token, lease_expires_at_ms,
typeof(owner), typeof(token), typeof(lease_expires_at_ms), typeof(name)
FROM main.litelease_resources";

const INSERT: &str = "INSERT INTO main.litelease_resources
(name, owner, token, lease_expires_at_ms, created_at_ms, updated_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?5)";

const UPDATE: &str = "UPDATE main.litelease_resources
SET owner = ?2, token = ?3, lease_expires_at_ms = ?4, updated_at_ms = ?5 WHERE rowid = ?1";
