//! The verbs by their names, values in and values out: what a binding for another language calls.
//!
//! To add a verb, write one short function and add one line to [`VERBS`]. An answer is a list of rows; a row of an answer
//! that has cases begins with the name of its case.

use std::time::Duration;

use litelease_core::{
    AckResult, AdmitResult, BreakResult, CancelResult, CheckpointResult, ClaimResult, Claimant,
    GrantResult, LeaseInfo, Reason, ReleaseResult, RenewResult, Request, RequestResult, SlotInfo,
    TransferResult, backoff,
};

use crate::schema::{RESOURCES, is_there};
use crate::statements::execute_once;
use crate::{
    AssignedShard, Beat, BootRecord, BorrowOptions, Delivered, Error, Guard, ItemInfo, ItemName,
    OwnedValue, QueueInfo, SendOptions, SessionGrants, SessionOver, ShardGroup, Store, Value, When,
    is_passing,
};

/// A verb that can be called by its name.
///
/// ```
/// # use litelease_store::{Failure, Host, HostedStore, OwnedValue, Rows, Value, verb};
/// fn token(host: Box<dyn Host>) -> Result<usize, Failure> {
///     let store = HostedStore::new(host)?;
///     let rows = verb("token").expect("a verb").call(&store, &[OwnedValue::Text("x".into())]);
///     Ok(rows.map_or(0, |rows| rows.len()))
/// }
/// ```
pub struct Verb {
    /// The name.
    pub name: &'static str,
    /// The names of its arguments, in their order. Those at the end may be left out where the verb has a default.
    pub arguments: &'static str,
    /// Whether it can free what others wait for.
    pub frees: bool,
    run: Run,
}

/// The rows of an answer.
pub type Answer = Vec<Vec<OwnedValue>>;

/// The reason why a call failed.
#[derive(Debug)]
pub enum Misuse {
    /// The store's own error.
    Error(Error),
    /// An argument is missing or of another type: its number, and what it must be.
    Argument(usize, &'static str),
}

impl From<Error> for Misuse {
    fn from(error: Error) -> Self {
        Misuse::Error(error)
    }
}

/// A function that runs a verb.
type Run = fn(&Store, Arguments<'_>) -> Result<Answer, Misuse>;

const fn verb_of(name: &'static str, arguments: &'static str, run: Run) -> Verb {
    Verb { name, arguments, frees: false, run }
}

/// A verb that can free what others wait for.
const fn freeing(name: &'static str, arguments: &'static str, run: Run) -> Verb {
    Verb { name, arguments, frees: true, run }
}

/// All verbs.
pub static VERBS: &[Verb] = &[
    verb_of("bootstrap", "", bootstrap),
    verb_of("claim", "name owner ttl_ms now_ms min_token", claim),
    verb_of("claim_from_dead", "name owner ttl_ms now_ms dead_owner dead_token", claim_from_dead),
    verb_of("ensure", "name owner ttl_ms now_ms", ensure),
    verb_of("attach", "name token value now_ms", attach),
    verb_of("value", "name now_ms", value),
    verb_of("renew", "name owner ttl_ms now_ms token", renew),
    verb_of("renew_all", "", renew_all),
    freeing("release", "name owner now_ms token", release),
    verb_of("transfer", "name owner new_owner ttl_ms now_ms token", transfer),
    freeing("break", "name now_ms", break_lease),
    verb_of("inspect", "name now_ms", inspect),
    verb_of("token", "name", token),
    verb_of("leases", "prefix now_ms", leases),
    verb_of("purge", "before_ms now_ms", purge),
    verb_of("raise", "floor", raise),
    freeing("raise_name", "name floor", raise_name),
    freeing("restore_fence", "above", restore_fence),
    verb_of("guard", "table name column strict", guard),
    verb_of("unguard", "table name", unguard),
    verb_of("guards", "", guards),
    verb_of("present", "name token", present),
    verb_of("withdraw", "name", withdraw),
    verb_of("checkpoint", "name token value now_ms", checkpoint),
    verb_of("last_checkpoint", "name", last_checkpoint),
    verb_of("admit", "name token", admit),
    freeing("pool", "id count now_ms", pool),
    verb_of("pool_info", "id now_ms", pool_info),
    verb_of("borrow", "id ttl_ms now_ms note key", borrow),
    verb_of("slot", "id lease", slot),
    freeing("return", "id lease now_ms", return_slot),
    verb_of("pool_renew", "id lease ttl_ms now_ms", renew_slot),
    verb_of("slots", "id now_ms", slots),
    verb_of("begin", "", begin),
    verb_of("record_boot", "", record_boot),
    verb_of("is_boot_recorded", "", is_boot_recorded),
    verb_of("keep", "id lease now_ms", keep_slot),
    freeing("free_kept", "id position token", free_kept_slot),
    verb_of("read", "name reader ttl_ms now_ms", read),
    freeing("unread", "name reader", unread),
    verb_of("readers", "name now_ms", readers),
    verb_of("drained", "name token now_ms", drained),
    verb_of("own", "", own),
    freeing("pool_delete", "id", delete_pool),
    verb_of("queue", "queue max_attempts", queue),
    freeing("send", "queue body delay_ms key now_ms", send),
    verb_of("receive", "queue visibility_ms count now_ms", receive),
    verb_of("delivery", "receipt", delivery),
    verb_of("ack", "", ack),
    verb_of("extend", "receipt visibility_ms now_ms", extend),
    verb_of("extend_all", "", extend_all),
    freeing("give_back", "receipt delay_ms note now_ms", give_back),
    freeing("give_back_failed", "receipt first_ms longest_ms attempt token note", give_back_failed),
    verb_of("bury", "receipt note now_ms", bury),
    freeing("redrive", "queue item now_ms", redrive),
    verb_of("discard", "queue item now_ms", discard),
    verb_of("cancel", "queue item_or_key now_ms", cancel),
    verb_of("queue_delete", "queue", delete_queue),
    verb_of("queue_info", "queue now_ms", queue_info),
    verb_of("queues", "now_ms", queues),
    verb_of("next_visible", "queue", next_visible),
    verb_of("items", "queue now_ms", items),
    verb_of("begin_finish", "receipt", begin_finish),
    verb_of("end_finish", "receipt", end_finish),
    verb_of("undo_finish", "", undo_finish),
    freeing("session_open", "name owner ttl_ms replaces dead_owner dead_token", session_open),
    verb_of("session_beat", "name owner token ttl_ms", session_beat),
    verb_of("session_claim", "name dead_owner dead_token name owner token ttl_ms", session_claim),
    freeing("session_close", "name owner token ttl_ms", session_close),
    verb_of("shard_member", "group count id", shard_member),
    verb_of("shard_join", "group count name owner token ttl_ms", shard_join),
    verb_of("shard_look", "group count owner repeats", shard_look),
    verb_of("drain", "name token", drain),
    freeing("ring", "", ring),
    verb_of("shard_step", "group count drain_ms name owner token ttl_ms", shard_step),
    verb_of("limit", "name token progress_within_ms not_after_ms now_ms", limit),
    verb_of("progress", "name token now_ms", progress),
    verb_of("request", "name requester within_ms now_ms", request),
    verb_of("repeat_request", "name requester", repeat_request),
    verb_of("withdraw_request", "name requester", withdraw_request),
    verb_of("requested", "name now_ms", requested),
    freeing("hand_over", "name owner ttl_ms now_ms token", hand_over),
    verb_of("take_over", "name owner ttl_ms now_ms", take_over),
    verb_of(
        "claim_with",
        "name owner ttl_ms dead_owner dead_token value progress_within_ms max_time_ms",
        claim_with,
    ),
    verb_of(
        "accept_with",
        "name owner ttl_ms token asked value progress_within_ms max_time_ms",
        accept_with,
    ),
    verb_of("leader", "name now_ms", leader),
];

/// Returns the verb of this name.
///
/// ```
/// assert!(litelease_store::verb("claim").is_some());
/// assert!(litelease_store::verb("no such verb").is_none());
/// ```
pub fn verb(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}

impl Verb {
    /// Calls it.
    pub fn call(&self, store: &Store, values: &[OwnedValue]) -> Result<Answer, Misuse> {
        (self.run)(store, Arguments(values))
    }
}

/// The values that a verb is called with. What is not given is NULL.
#[derive(Clone, Copy)]
pub struct Arguments<'a>(&'a [OwnedValue]);

impl<'a> Arguments<'a> {
    fn value(self, at: usize) -> Value<'a> {
        self.0.get(at).map_or(Value::Null, OwnedValue::value)
    }

    fn text(self, at: usize) -> Result<&'a str, Misuse> {
        self.value(at).text().ok_or(Misuse::Argument(at, "text"))
    }

    fn integer(self, at: usize) -> Result<i64, Misuse> {
        self.value(at).integer().ok_or(Misuse::Argument(at, "a whole number"))
    }

    fn optional<T>(
        self,
        at: usize,
        get: impl FnOnce(Self, usize) -> Result<T, Misuse>,
    ) -> Result<Option<T>, Misuse> {
        match self.value(at) {
            Value::Null => Ok(None),
            _ => get(self, at).map(Some),
        }
    }

    /// A time, or the system clock's.
    fn when(self, at: usize) -> Result<When, Misuse> {
        Ok(self.optional(at, Self::integer)?.map_or(When::Now, When::At))
    }

    /// An owner and a token that may be missing.
    fn who(self, owner: usize, token: usize) -> Result<Claimant<'a>, Misuse> {
        Ok(Claimant { owner: self.text(owner)?, token: self.optional(token, Self::integer)? })
    }
}

// Leases.

fn bootstrap(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.bootstrap()?;
    Ok(vec![])
}

/// Settings for a program that owns the file.
fn own(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.own()?;
    Ok(vec![])
}

fn claim(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let min_token = given.optional(4, Arguments::integer)?.unwrap_or(0);
    let when = given.when(3)?;
    Ok(vec![store.claim(name, owner, ttl_ms, when, min_token, claimed)?])
}

fn claim_from_dead(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let (when, dead) = (given.when(3)?, given.who(4, 5)?);
    Ok(vec![store.claim_from_dead(name, owner, ttl_ms, when, dead, claimed)?])
}

fn ensure(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    Ok(vec![store.ensure(name, owner, ttl_ms, given.when(3)?, claimed)?])
}

fn attach(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, value) = (given.text(0)?, given.integer(1)?, given.value(2));
    let answer = store.attach(name, token, value, given.when(3)?)?;
    Ok(vec![on_grant(store, name, answer)?])
}

/// No row where the live grant has none.
fn value(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, given.when(1)?);
    let found: Option<OwnedValue> =
        store.in_snapshot(|| store.value(name, when, |found| found.into()))?;
    Ok(found.into_iter().map(|value| vec![value]).collect())
}

fn renew(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 4)?, given.integer(2)?);
    let answer = store.renew(name, who, ttl_ms, given.when(3)?, |answer| answer.into_owned())?;
    Ok(vec![renewed(store, name, answer)?])
}

/// name, owner, ttl, token and the time since its holder made progress, which may be NULL, of each grant, one after the
/// other; of a slot its pool, its lease, the ttl, NULL and NULL. One row answers each: what is wrong with one lease is not
/// the others' fault.
fn renew_all(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let all = || {
        given.0.chunks_exact(5).map(|grant| {
            let grant = Arguments(grant);
            let (name, who, ttl_ms) = (grant.text(0)?, grant.who(1, 3)?, grant.integer(2)?);
            let progress_ago_ms = grant.optional(4, Arguments::integer)?;
            // A grant that is over by now is rejected below.
            let progress = |token| match progress_ago_ms {
                Some(ago_ms) => {
                    let at_ms = When::Now.now_ms().saturating_sub(ago_ms);
                    store.progress(name, token, When::At(at_ms)).map(drop)
                }
                None => Ok(()),
            };
            let answer = match who.token {
                Some(token) => progress(token)
                    .and_then(|()| {
                        store.renew(name, who, ttl_ms, When::Now, |answer| answer.into_owned())
                    })
                    .and_then(|answer| renewed(store, name, answer)),
                None => renewed_slot(store, name, who.owner, ttl_ms),
            };
            match answer {
                Ok(answer) => Ok(answer),
                Err(error @ (Error::Sqlite(_) | Error::CommitUnknown(_))) => Err(error.into()),
                Err(error) => Ok(vec![text("Error"), text(error.kind()), text(error.to_string())]),
            }
        })
    };
    // An error of an argument is not the store's: it is told after the transaction.
    let mut misuse = None;
    let renewed = store.within(store.boundary()?, || {
        let answers = all().map(|answer| match answer {
            Err(Misuse::Error(error)) => Err(error),
            Ok(answer) => Ok(answer),
            Err(other) => {
                misuse = Some(other);
                Ok(vec![])
            }
        });
        answers.collect::<Result<Answer, Error>>()
    })?;
    misuse.map_or(Ok(renewed), Err)
}

fn release(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who) = (given.text(0)?, given.who(1, 3)?);
    let answer = store.release(name, who, given.when(2)?, |answer| answer.into_owned())?;
    Ok(vec![released(store, name, answer)?])
}

fn transfer(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, new_owner) = (given.text(0)?, given.who(1, 5)?, given.text(2)?);
    let (ttl_ms, when) = (given.integer(3)?, given.when(4)?);
    let answer =
        store.transfer(name, who, new_owner, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![transferred(store, name, answer)?])
}

fn break_lease(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let name = given.text(0)?;
    let answer = store.break_lease(name, given.when(1)?, |answer| answer.into_owned())?;
    Ok(vec![match answer {
        BreakResult::Broken { owner, killed } => {
            vec![text("Broken"), text(owner), OwnedValue::Integer(killed)]
        }
        BreakResult::Rejected { reason, current } => rejected(store, name, reason, current)?,
    }])
}

/// No row where nobody has it.
fn inspect(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let found = store.inspect(given.text(0)?, given.when(1)?, |found| lease(found.into_owned()))?;
    Ok(found.into_iter().collect())
}

/// No row where it was never claimed.
fn token(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let newest = store.token(given.text(0)?)?;
    Ok(newest.into_iter().map(|token| vec![OwnedValue::Integer(token)]).collect())
}

/// The live leases, in the order of their names.
fn leases(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (prefix, now_ms) = (given.optional(0, Arguments::text)?, given.when(1)?.now_ms());
    let rows = store.list()?;
    let live = rows.iter().filter(|row| row.name.starts_with(prefix.unwrap_or("")));
    Ok(live.filter_map(|row| litelease_core::inspect(row.row(), now_ms)).map(lease).collect())
}

fn purge(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let purged = store.purge(given.integer(0)?, given.when(1)?)?;
    Ok(number(i64::try_from(purged).unwrap_or(i64::MAX)))
}

fn raise(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.raise(given.integer(0)?)?;
    Ok(vec![])
}

fn raise_name(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.raise_name(given.text(0)?, given.integer(1)?, When::Now)?;
    Ok(vec![])
}

/// The largest token that was seen, if any.
fn restore_fence(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let above = given.optional(0, Arguments::integer)?;
    Ok(number(store.restore_fence(above, When::Now)?))
}

/// Begins a transaction of the caller's, with the write lock and the present boot durably recorded.
fn begin(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.settle_debts()?;
    // Not the text of our own transactions: the caller may change the schema in this one.
    let begin = || execute_once(store.connection, "BEGIN IMMEDIATE TRANSACTION", &[]);
    let has_recorded = store.epoch_state.has_recorded.get();
    // Most files of other writers have no leases, and are not looked at any closer.
    match has_recorded || is_there(store.connection, &RESOURCES).unwrap_or(true) {
        true => store.open_recorded(begin)?,
        false => begin()?,
    }
    Ok(vec![])
}

/// Records the present boot, if the file has leases.
fn record_boot(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    store.record_boot_before_transaction()?;
    Ok(vec![])
}

fn is_boot_recorded(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.boot_record()? == BootRecord::Durable)]])
}

// Fences.

fn guard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let guard = match given.optional(2, Arguments::text)? {
        Some(column) => Guard::by_column(column),
        None => Guard::by_connection(),
    };
    let is_strict = given.optional(3, Arguments::integer)? == Some(1);
    let guard = if is_strict { guard.strict() } else { guard };
    store.guard(given.text(0)?, given.text(1)?, &guard)?;
    Ok(vec![])
}

fn unguard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let taken = store.unguard(given.text(0)?, given.optional(1, Arguments::text)?)?;
    Ok(number(i64::try_from(taken).unwrap_or(i64::MAX)))
}

fn guards(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    let rows = store.guards()?.into_iter().map(|guard| {
        vec![
            text(guard.table),
            text(guard.name),
            optional_text(guard.column),
            truth(guard.strict),
            truth(guard.is_intact),
            OwnedValue::Integer(i64::try_from(guard.refusals).unwrap_or(i64::MAX)),
        ]
    });
    Ok(rows.collect())
}

fn present(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.present(given.text(0)?, given.integer(1)?)?)]])
}

fn withdraw(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    store.withdraw(given.text(0)?)?;
    Ok(vec![])
}

fn checkpoint(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, value) = (given.text(0)?, given.integer(1)?, given.value(2));
    Ok(vec![match store.checkpoint(name, token, value, given.when(3)?)? {
        CheckpointResult::Stored => vec![text("Stored")],
        CheckpointResult::Stale { newest } => stale(newest),
    }])
}

/// No row where there is none.
fn last_checkpoint(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let found = store.last_checkpoint(given.text(0)?, |token, value, at_ms| {
        vec![OwnedValue::Integer(token), value.into(), OwnedValue::Integer(at_ms)]
    })?;
    Ok(found.into_iter().collect())
}

fn admit(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![match store.admit(given.text(0)?, given.integer(1)?)? {
        AdmitResult::Admitted => vec![text("Admitted")],
        AdmitResult::Stale { newest } => stale(Some(newest)),
    }])
}

// Pools.

fn pool(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let info = store.pool(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(vec![vec![OwnedValue::Integer(info.count), OwnedValue::Integer(info.in_use)]])
}

/// No row where there is no such pool.
fn pool_info(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let info = store.pool_info(given.text(0)?, given.when(1)?)?;
    let row = |number| OwnedValue::Integer(number);
    Ok(info.map(|info| vec![row(info.count), row(info.in_use)]).into_iter().collect())
}

/// No row where nothing is free.
fn borrow(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (id, ttl_ms, when) = (given.text(0)?, given.integer(1)?, given.when(2)?);
    let (note, key) = (given.optional(3, Arguments::text)?, given.optional(4, Arguments::text)?);
    let lent = store.borrow_slot(id, ttl_ms, when, BorrowOptions { key, note })?;
    let row = lent.map(|lent| [vec![text(lent.lease_id)], slot_row(lent.slot)].concat());
    Ok(row.into_iter().collect())
}

fn slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(store.slot(given.text(0)?, given.text(1)?)?.map(slot_row).into_iter().collect())
}

fn return_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let returned = store.return_slot(given.text(0)?, given.text(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(returned)]])
}

/// No row where it is over.
fn renew_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (id, lease, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let renewed = store.renew_slot(id, lease, ttl_ms, given.when(3)?)?;
    Ok(renewed.map(slot_row).into_iter().collect())
}

fn keep_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let kept = store.keep_slot(given.text(0)?, given.text(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(kept)]])
}

fn free_kept_slot(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let freed = store.free_kept_slot(given.text(0)?, given.integer(1)?, given.integer(2)?)?;
    Ok(vec![vec![truth(freed)]])
}

fn slots(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let rows = store.slots(given.text(0)?, given.when(1)?)?.into_iter();
    Ok(rows.map(|row| [slot_row(row.slot), vec![optional_text(row.note)]].concat()).collect())
}

fn delete_pool(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.delete_pool(given.text(0)?)?)]])
}

// Shared reads.

/// The version; no row while a writer has the name.
fn read(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let version = store.read(given.text(0)?, given.text(1)?, given.integer(2)?, given.when(3)?)?;
    Ok(version.into_iter().map(|version| vec![OwnedValue::Integer(version)]).collect())
}

fn unread(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.unread(given.text(0)?, given.text(1)?)?)]])
}

fn readers(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let readers = store.readers(given.text(0)?, given.when(1)?)?.into_iter();
    Ok(readers.map(|one| vec![text(one.reader), OwnedValue::Integer(one.expires_at_ms)]).collect())
}

fn drained(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let drained = store.drained(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(vec![vec![truth(drained)]])
}

/// In the transaction that writes: whether the writer may, and then forgets the readers that it has waited for.
fn drain(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token) = (given.text(0)?, given.integer(1)?);
    let is_drained = store.drained(name, token, When::Now)?;
    if is_drained {
        store.forget_readers(name)?;
    }
    Ok(vec![vec![truth(is_drained)]])
}

/// Wakes those who wait at the file, without having freed anything: readers look whether a writer has come.
fn ring(_: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![])
}

/// Does `work` at one time, which is read under the write lock, and commits it if it says so.
fn at_one_time(
    store: &Store,
    work: impl FnOnce(i64) -> Result<(bool, Answer), Error>,
) -> Result<Answer, Misuse> {
    store.begin()?;
    match work(When::Now.now_ms()) {
        Ok((true, answer)) => store.commit().map(|()| answer),
        Ok((false, answer)) => store.rollback().map(|()| answer),
        Err(error) => store.rollback().and(Err(error)),
    }
    .map_err(Misuse::Error)
}

// Limits and handoff.

fn limit(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token, when) = (given.text(0)?, given.integer(1)?, given.when(4)?);
    let number = |at| given.optional(at, Arguments::integer);
    let answer = store.limit(name, token, number(2)?, number(3)?, when)?;
    Ok(vec![on_grant(store, name, answer)?])
}

fn progress(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, token) = (given.text(0)?, given.integer(1)?);
    let answer = store.progress(name, token, given.when(2)?)?;
    Ok(vec![on_grant(store, name, answer)?])
}

fn request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, requester, within_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let when = given.when(3)?;
    let answer = store.request(name, requester, within_ms, when, |answer| answer.into_owned())?;
    Ok(vec![match answer {
        RequestResult::Requested { token, until_ms } => {
            vec![text("Requested"), OwnedValue::Integer(token), OwnedValue::Integer(until_ms)]
        }
        RequestResult::RequestedBy { requester, until_ms } => {
            vec![text("RequestedBy"), text(requester), OwnedValue::Integer(until_ms)]
        }
        RequestResult::Rejected { reason } => rejected(store, name, reason, None)?,
    }])
}

/// The token of the grant that is asked for; no row where there is no such request.
fn repeat_request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let token = store.repeat_request(given.text(0)?, given.text(1)?, When::Now)?;
    Ok(token.map(number).unwrap_or_default())
}

fn withdraw_request(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.withdraw_request(given.text(0)?, given.text(1)?)?)]])
}

/// No row where nobody asks.
fn requested(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, given.when(1)?);
    let row = |requester: &str, request: Request| {
        let numbers = [request.until_ms, request.token].map(OwnedValue::Integer);
        [vec![text(requester)], numbers.to_vec()].concat()
    };
    Ok(store.in_snapshot(|| store.requested(name, when, row))?.into_iter().collect())
}

fn hand_over(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 4)?, given.integer(2)?);
    let when = given.when(3)?;
    let answer = store.hand_over(name, who, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![transferred(store, name, answer)?])
}

/// The new grant, and the one that was ended, if there was one.
fn take_over(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let taken = store.take_over(name, owner, ttl_ms, given.when(3)?, |taken| taken.into_owned())?;
    Ok([Some(taken.lease), taken.from].into_iter().flatten().map(lease).collect())
}

/// A claim, or one from a dead holder, and what rides on the grant, in one commit.
fn claim_with(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let dead = given.optional(3, |given, at| given.who(at, at + 1))?;
    let riders = Riders::of(given)?;
    // A busy name is answered without the write lock, as by a plain claim.
    let busy = |current: LeaseInfo<&str>| case("Busy", current);
    if dead.is_none()
        && let Some(busy) = store.inspect(name, When::Now, busy)?
    {
        return Ok(vec![busy]);
    }
    let token = |answer: ClaimResult<&str>| {
        let token = answer.acquired().map(|lease| lease.token);
        (token, claimed(answer))
    };
    let claim = || match dead {
        Some(dead) => store.claim_from_dead(name, owner, ttl_ms, When::Now, dead, token),
        None => store.claim(name, owner, ttl_ms, When::Now, 0, token),
    };
    at_one_time(store, |_| {
        let (token, row) = claim()?;
        token.map_or(Ok(()), |token| riders.store(store, name, token))?;
        Ok((token.is_some(), vec![row]))
    })
}

/// Takes the grant under `token` that was handed to this requester since it asked for the one under `asked`, renews it, and
/// stores what rides on it, in one commit. No row where it is not the requester's.
fn accept_with(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, ttl_ms) = (given.text(0)?, given.who(1, 3)?, given.integer(2)?);
    let (asked, riders) = (given.optional(4, Arguments::integer)?, Riders::of(given)?);
    // Most owners who find their own lease busy have asked for nothing: they need no write lock.
    if asked.is_none() {
        let found = store.in_snapshot(|| store.request_of(name))?;
        if found.is_none_or(|(requester, _)| requester != who.owner) {
            return Ok(vec![]);
        }
    }
    let accepted = |lease: LeaseInfo<&str>| (lease.token, case("Acquired", lease));
    at_one_time(store, |_| {
        let found = match asked {
            Some(asked) if who.token > Some(asked) => {
                store
                    .renew(name, who, ttl_ms, When::Now, |answer| answer.renewed().map(accepted))?
            }
            _ => store.accept(name, who.owner, ttl_ms, When::Now, accepted)?,
        };
        let Some((token, row)) = found else { return Ok((false, vec![])) };
        riders.store(store, name, token)?;
        Ok((true, vec![row]))
    })
}

/// What is stored in the commit of a claim: its last three arguments.
struct Riders<'a> {
    value: Value<'a>,
    progress_within_ms: Option<i64>,
    max_time_ms: Option<i64>,
}

impl<'a> Riders<'a> {
    fn of(given: Arguments<'a>) -> Result<Self, Misuse> {
        let number = |at| given.optional(at, Arguments::integer);
        let (progress_within_ms, max_time_ms) = (number(6)?, number(7)?);
        Ok(Riders { value: given.value(5), progress_within_ms, max_time_ms })
    }

    fn store(&self, store: &Store, name: &str, token: i64) -> Result<(), Error> {
        if self.value != Value::Null {
            let _ = store.attach(name, token, self.value, When::Now)?;
        }
        if self.progress_within_ms.is_some() || self.max_time_ms.is_some() {
            let end_ms = |time_ms| When::Now.now_ms().saturating_add(time_ms);
            let not_after_ms = self.max_time_ms.map(end_ms);
            let _ = store.limit(name, token, self.progress_within_ms, not_after_ms, When::Now)?;
        }
        Ok(())
    }
}

/// The live lease with its value, in one snapshot and at one time; no row where nobody has it.
fn leader(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, when) = (given.text(0)?, When::At(given.when(1)?.now_ms()));
    let found = store.in_snapshot(|| {
        let found = store.inspect(name, when, |found| lease(found.into_owned()))?;
        let value = store.value(name, when, |value| value.into())?;
        Ok(found.map(|row| [row, vec![value.unwrap_or(OwnedValue::Null)]].concat()))
    })?;
    Ok(found.into_iter().collect())
}

// Queues.

fn queue(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let max_attempts = given.optional(1, Arguments::integer)?;
    Ok(number(store.queue(given.text(0)?, max_attempts)?))
}

fn send(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let delay_ms = given.optional(2, Arguments::integer)?.unwrap_or(0);
    let options = SendOptions { delay_ms, key: given.optional(3, Arguments::text)? };
    Ok(number(store.send(given.text(0)?, given.value(1), options, given.when(4)?)?))
}

/// No row where nothing is visible.
fn receive(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, visibility_ms, when) = (given.text(0)?, given.integer(1)?, given.when(3)?);
    let count = given.optional(2, Arguments::integer)?.unwrap_or(1);
    let count = usize::try_from(count).map_err(|_| Misuse::Argument(2, "0 or more"))?;
    let received = store.receive_many(queue, count, visibility_ms, when, |body| body.into())?;
    Ok(received.into_iter().map(delivered).collect())
}

/// No row where the receipt is stale.
fn delivery(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    let found = store.in_snapshot(|| store.delivery(receipt, |body| body.into()))?;
    Ok(found.map(delivered).into_iter().collect())
}

/// Any number of receipts, in one commit. One row answers each.
fn ack(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipts = (0..given.0.len()).map(|at| given.text(at)).collect::<Result<Vec<_>, _>>()?;
    Ok(store.ack_many(receipts)?.into_iter().map(acknowledged).collect())
}

/// No row where the delivery is over.
fn extend(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let deadline_ms = store.extend(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(deadline_ms.map(number).unwrap_or_default())
}

/// Receipt and visibility of each delivery, one after the other, in one commit. One row answers each: what is wrong with
/// one delivery is not the others' fault.
fn extend_all(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let all =
        (0..given.0.len() / 2).map(|at| Ok((given.text(2 * at)?, given.integer(2 * at + 1)?)));
    let all = all.collect::<Result<Vec<_>, Misuse>>()?;
    let one = |(receipt, visibility_ms)| match store.extend(receipt, visibility_ms, When::Now) {
        Ok(Some(deadline_ms)) => Ok(vec![text("Extended"), OwnedValue::Integer(deadline_ms)]),
        Ok(None) => Ok(match store.check_receipt(receipt)? {
            // Nobody else has received the item, but its deadline has passed.
            AckResult::Acknowledged => vec![text("Rejected"), text("EXPIRED"), OwnedValue::Null],
            stale => acknowledged(stale),
        }),
        Err(error @ (Error::Sqlite(_) | Error::CommitUnknown(_))) => Err(error),
        Err(error) => Ok(vec![text("Error"), text(error.kind()), text(error.to_string())]),
    };
    Ok(store.within(store.boundary()?, || all.into_iter().map(one).collect())?)
}

fn give_back(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let delay_ms = given.optional(1, Arguments::integer)?.unwrap_or(0);
    let (receipt, note) = (given.text(0)?, given.optional(2, Arguments::text)?);
    Ok(vec![vec![truth(store.give_back(receipt, delay_ms, note, given.when(3)?)?)]])
}

/// Hides the item for longer after each failure.
fn give_back_failed(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let time = |at| Ok(Duration::from_millis(u64::try_from(given.integer(at)?).unwrap_or(0)));
    let (first, longest): (_, Result<_, Misuse>) = (time(1)?, time(2));
    let delay = backoff(first, longest?, given.integer(3)?, given.integer(4)?);
    let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    let (receipt, note) = (given.text(0)?, given.optional(5, Arguments::text)?);
    Ok(vec![vec![truth(store.give_back(receipt, delay_ms, note, When::Now)?)]])
}

fn bury(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let note = given.optional(1, Arguments::text)?;
    Ok(vec![vec![truth(store.bury(given.text(0)?, note, given.when(2)?)?)]])
}

fn redrive(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let id = given.optional(1, Arguments::integer)?;
    let redriven = store.redrive(given.text(0)?, id, given.when(2)?)?;
    Ok(number(i64::try_from(redriven).unwrap_or(i64::MAX)))
}

fn discard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let id = given.optional(1, Arguments::integer)?;
    let discarded = store.discard(given.text(0)?, id, given.when(2)?)?;
    Ok(number(i64::try_from(discarded).unwrap_or(i64::MAX)))
}

/// An id, or a key as text.
fn cancel(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let name = match given.value(1) {
        Value::Text(key) => ItemName::Key(key),
        Value::Integer(id) => ItemName::Id(id),
        _ => return Err(Misuse::Argument(1, "an id or a key")),
    };
    Ok(vec![match store.cancel(given.text(0)?, name, given.when(2)?)? {
        CancelResult::Cancelled => vec![text("Cancelled")],
        CancelResult::Leased { deadline_ms } => {
            vec![text("Leased"), OwnedValue::Integer(deadline_ms)]
        }
        CancelResult::NotFound => vec![text("NotFound")],
    }])
}

fn delete_queue(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.delete_queue(given.text(0)?)?)]])
}

/// No row where there is no such queue.
fn queue_info(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, when) = (given.text(0)?, given.when(1)?);
    let info = store.in_snapshot(|| store.queue_info(queue, when))?;
    Ok(info.map(queue_row).into_iter().collect())
}

/// How every queue stands, by name.
fn queues(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let when = given.when(0)?;
    let all = store.in_snapshot(|| store.queues(when))?;
    Ok(all.into_iter().map(queue_row).collect())
}

/// No row where nothing is or will be visible.
fn next_visible(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(store.next_visible(given.text(0)?)?.map(number).unwrap_or_default())
}

/// The dead ones first, and then in the order of their delivery.
fn items(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, when, mut rows) = (given.text(0)?, given.when(1)?, Vec::new());
    store.in_snapshot(|| {
        store.each_item(queue, when, |item| {
            rows.push(item_row(item));
            true
        })
    })?;
    Ok(rows)
}

/// Begins a transaction for the effect of an item, unless its receipt is stale: then no transaction is open.
fn begin_finish(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    store.begin_for_caller()?;
    // A worker that was replaced need not even try.
    Ok(vec![or_roll_back(store, || store.check_receipt(receipt))?])
}

/// Acknowledges the item, and commits. If the receipt is stale, rolls everything back. No transaction is open afterwards.
fn end_finish(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    let answer = or_roll_back(store, || {
        store.check_same_transaction()?;
        store.ack(receipt)
    })?;
    if store.has_begun() {
        store.commit()?;
    }
    Ok(vec![answer])
}

/// Rolls back what `begin_finish` began, if it was not ended yet.
fn undo_finish(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    if store.has_begun() {
        store.rollback()?;
    }
    Ok(vec![])
}

/// Rolls the open transaction back, unless the receipt passes.
fn or_roll_back(
    store: &Store,
    work: impl FnOnce() -> Result<AckResult, Error>,
) -> Result<Vec<OwnedValue>, Error> {
    let answer = work();
    if !answer.as_ref().is_ok_and(|answer| answer.is_acknowledged()) {
        let rolled_back = store.rollback();
        return answer.and_then(|answer| rolled_back.map(|()| acknowledged(answer)));
    }
    answer.map(acknowledged)
}

// Sessions and shards. Each verb runs in a transaction of its own, and is rolled back if its answer is no.

/// The arguments from `at` on: identity, owner, token, ttl, and then name and token of each of its names.
struct SessionArguments<'a> {
    grants: SessionGrants<'a>,
    names: Vec<(&'a str, i64)>,
}

impl<'a> SessionArguments<'a> {
    fn new(given: Arguments<'a>, at: usize) -> Result<Self, Misuse> {
        let names = (at + 4..given.0.len()).step_by(2);
        let names = names.map(|at| Ok((given.text(at)?, given.integer(at + 1)?)));
        let grants = SessionGrants {
            identity: given.text(at)?,
            owner: given.text(at + 1)?,
            token: given.integer(at + 2)?,
            ttl_ms: given.integer(at + 3)?,
            names: &[],
        };
        Ok(SessionArguments { grants, names: names.collect::<Result<_, Misuse>>()? })
    }

    fn grants(&self) -> SessionGrants<'_> {
        SessionGrants { names: &self.names, ..self.grants }
    }
}

/// Whether a live lease is the one that the caller has found to be dead.
fn is_grant(given: Arguments<'_>, owner: usize, token: usize, current: &LeaseInfo) -> bool {
    given.value(owner) == Value::Text(&current.owner)
        && given.value(token) == Value::Integer(current.token)
}

fn session_open(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (identity, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let replaces = given.optional(3, Arguments::integer)? == Some(1);
    at_one_time(store, |now_ms| {
        let is_dead = |current: &LeaseInfo| is_grant(given, 4, 5, current);
        let answer = store.open_session(identity, owner, ttl_ms, now_ms, replaces, is_dead)?;
        let is_granted = matches!(answer, ClaimResult::Acquired(_));
        Ok((is_granted, vec![claimed_row(answer)]))
    })
}

/// One row for the identity, and one for each name.
fn session_beat(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let session = SessionArguments::new(given, 0)?;
    at_one_time(store, |now_ms| {
        let beat = store.beat_session(session.grants(), now_ms, |_| Ok(()))?;
        beat_rows(store, session.grants(), now_ms, beat, |()| (true, vec![]))
    })
}

/// The same, and at the end one row for the claim. Only that one if the name is busy.
fn session_claim(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, session) = (given.text(0)?, SessionArguments::new(given, 3)?);
    at_one_time(store, |now_ms| {
        let is_dead = |current: &LeaseInfo| is_grant(given, 1, 2, current);
        let beat = store.claim_in_session(session.grants(), name, now_ms, is_dead)?;
        beat_rows(store, session.grants(), now_ms, beat, |answer| {
            (matches!(answer, ClaimResult::Acquired(_)), vec![claimed_row(answer)])
        })
    })
}

fn session_close(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let session = SessionArguments::new(given, 0)?;
    at_one_time(store, |now_ms| {
        let answer = store.close_session(session.grants(), now_ms)?;
        let is_released = matches!(answer, ReleaseResult::Released { .. });
        Ok((is_released, vec![released(store, session.grants.identity, answer)?]))
    })
}

fn group_of(given: Arguments<'_>) -> Result<Result<ShardGroup, &'static str>, Misuse> {
    let count = usize::try_from(given.integer(1)?).unwrap_or(0);
    Ok(ShardGroup::new(given.text(0)?, count))
}

/// A group that was checked before.
fn checked_group(given: Arguments<'_>) -> Result<ShardGroup, Misuse> {
    group_of(given)?.map_err(|_| Misuse::Argument(0, "a group of shards"))
}

/// The identity of a member, or why there can be no such one.
fn shard_member(_: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, id) = (group_of(given)?, given.text(2)?);
    Ok(vec![match group.and_then(|group| group.member(id)) {
        Ok(name) => vec![text("Member"), text(name)],
        Err(refused) => vec![text("Error"), text("InvalidShards"), text(refused)],
    }])
}

/// As a heartbeat. Only the count of the live members if that is another one.
fn shard_join(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, session) = (checked_group(given)?, SessionArguments::new(given, 2)?);
    at_one_time(store, |now_ms| {
        let beat = store.join_shards(session.grants(), &group, now_ms)?;
        beat_rows(store, session.grants(), now_ms, beat, |other| match other {
            Some(count) => (false, vec![vec![text("Count"), OwnedValue::Integer(count)]]),
            None => (true, vec![]),
        })
    })
}

/// Whether the member must write now, and then each shard that it is to give up, and until when. What follows the named
/// arguments are the shards that it knows to be its own.
fn shard_look(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, me, repeats) = (checked_group(given)?, given.text(2)?, given.integer(3)? == 1);
    let held = (4..given.0.len()).map(|at| given.integer(at)).collect::<Result<Vec<_>, _>>()?;
    let seen = store.in_snapshot(|| store.shards(&group, When::Now))?;
    let plan = seen.plan(me);
    let is_held = |shard| i64::try_from(shard).is_ok_and(|shard| held.contains(&shard));
    let has_work = seen.has_work(me, &plan, repeats, is_held);
    let requested = seen.requested(&plan).into_iter();
    let requested =
        requested.map(|(shard, until_ms)| vec![shard_number(shard), OwnedValue::Integer(until_ms)]);
    Ok([vec![truth(has_work)]].into_iter().chain(requested).collect())
}

/// As a heartbeat, and at the end one row for each shard that was granted: its number, the grant, and the token, the value
/// and the time of its last checkpoint.
fn shard_step(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, session) = (checked_group(given)?, SessionArguments::new(given, 3)?);
    let drain_ms = given.integer(2)?;
    at_one_time(store, |now_ms| {
        let checkpoint = |token, value: Value<'_>, at_ms| {
            vec![OwnedValue::Integer(token), value.into(), OwnedValue::Integer(at_ms)]
        };
        let beat = store.share_shards(session.grants(), &group, drain_ms, now_ms, checkpoint)?;
        beat_rows(store, session.grants(), now_ms, beat, |assigned| {
            let row = |AssignedShard { shard, lease: granted, checkpoint }| {
                let checkpoint = checkpoint.unwrap_or_default();
                [vec![shard_number(shard)], lease(granted), checkpoint].concat()
            };
            (true, assigned.into_iter().map(row).collect())
        })
    })
}

/// One row for the identity, one for each name, and then the rest; only the rest if that says not to commit. A renewal ends
/// with how long it was granted for. A refusal that may pass is told as `Refused`, and a name that is over only because its
/// session is as `SessionOver`.
fn beat_rows<T>(
    store: &Store,
    session: SessionGrants<'_>,
    now_ms: i64,
    beat: Result<Beat<T>, SessionOver>,
    rest: impl FnOnce(T) -> (bool, Answer),
) -> Result<(bool, Answer), Error> {
    let refused = |name: &str, reason: Reason, current: Option<LeaseInfo>| {
        let mut row = rejected(store, name, reason, current)?;
        if is_passing(reason) {
            row[0] = text("Refused");
        }
        Ok::<_, Error>(row)
    };
    let granted = |lease: LeaseInfo| {
        let granted_ms = lease.lease_expires_at_ms.saturating_sub(now_ms);
        [case("Renewed", lease), vec![OwnedValue::Integer(granted_ms)]].concat()
    };
    let names = session.names.iter().map(|(name, _)| *name);
    match beat {
        Ok(Beat { identity, names: answers, done }) => {
            let (is_done, rest) = rest(done);
            if !is_done {
                return Ok((false, rest));
            }
            let mut rows = vec![granted(identity)];
            for (name, answer) in names.zip(answers) {
                rows.push(match answer {
                    RenewResult::Renewed(lease) => granted(lease),
                    RenewResult::Rejected { reason, current } => refused(name, reason, current)?,
                });
            }
            rows.extend(rest);
            Ok((true, rows))
        }
        Err(SessionOver { reason, current, names: answers }) => {
            let mut rows = vec![refused(session.identity, reason, current)?];
            for (name, answer) in names.zip(answers) {
                rows.push(match answer {
                    Some((reason, current)) => refused(name, reason, current)?,
                    None => vec![text("SessionOver")],
                });
            }
            Ok((false, rows))
        }
    }
}

fn shard_number(shard: usize) -> OwnedValue {
    OwnedValue::Integer(i64::try_from(shard).unwrap_or(i64::MAX))
}

// Rows.

fn delivered(delivered: Delivered<OwnedValue>) -> Vec<OwnedValue> {
    let Delivered { id, receipt, attempt, token, deadline_ms, body } = delivered;
    let [id, attempt, token, deadline] = [id, attempt, token, deadline_ms].map(OwnedValue::Integer);
    vec![id, text(receipt), attempt, token, deadline, body]
}

fn acknowledged(answer: AckResult) -> Vec<OwnedValue> {
    match answer {
        AckResult::Acknowledged => vec![text("Acknowledged")],
        AckResult::Stale { reason } => vec![text("StaleReceipt"), text(reason.word())],
    }
}

fn item_row(item: ItemInfo<&str>) -> Vec<OwnedValue> {
    let ItemInfo { id, state, attempt, visible_at_ms, sent_at_ms, key, note } = item.into_owned();
    vec![
        OwnedValue::Integer(id),
        text(state.word()),
        OwnedValue::Integer(attempt),
        visible_at_ms.map_or(OwnedValue::Null, OwnedValue::Integer),
        OwnedValue::Integer(sent_at_ms),
        optional_text(key),
        optional_text(note),
    ]
}

fn queue_row(info: QueueInfo) -> Vec<OwnedValue> {
    let counts = [info.visible, info.delayed, info.leased, info.dead].map(OwnedValue::Integer);
    let oldest_ms = info.oldest_ms.map_or(OwnedValue::Null, OwnedValue::Integer);
    let rest = vec![oldest_ms, OwnedValue::Integer(info.max_attempts)];
    [vec![text(info.queue)], counts.to_vec(), rest].concat()
}

fn claimed(answer: ClaimResult<&str>) -> Vec<OwnedValue> {
    claimed_row(answer.into_owned())
}

fn claimed_row(answer: ClaimResult) -> Vec<OwnedValue> {
    match answer {
        ClaimResult::Acquired(lease) => case("Acquired", lease),
        ClaimResult::Busy(current) => case("Busy", current),
    }
}

fn released(store: &Store, name: &str, answer: ReleaseResult) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        ReleaseResult::Released { name, token } => {
            Ok(vec![text("Released"), text(name), OwnedValue::Integer(token)])
        }
        ReleaseResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

fn renewed(store: &Store, name: &str, answer: RenewResult) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        RenewResult::Renewed(lease) => Ok(case("Renewed", lease)),
        RenewResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

fn transferred(
    store: &Store,
    name: &str,
    answer: TransferResult,
) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        TransferResult::Transferred(lease) => Ok(case("Transferred", lease)),
        TransferResult::Rejected { reason, current } => rejected(store, name, reason, current),
    }
}

fn on_grant(store: &Store, name: &str, answer: GrantResult) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        GrantResult::Done => Ok(vec![text("Done")]),
        GrantResult::Stale { reason } => rejected(store, name, reason, None),
    }
}

/// A renewed slot is told as the grant of its position.
fn renewed_slot(
    store: &Store,
    id: &str,
    lease: &str,
    ttl_ms: i64,
) -> Result<Vec<OwnedValue>, Error> {
    Ok(match store.renew_slot(id, lease, ttl_ms, When::Now)? {
        Some(SlotInfo { position, token, expires_at_ms: lease_expires_at_ms }) => {
            let name = format!("{id} {position}");
            case("Renewed", LeaseInfo { name, owner: lease.into(), token, lease_expires_at_ms })
        }
        None => vec![text("Rejected"), text("EXPIRED"), OwnedValue::Null],
    })
}

/// The reason, the newest token of the name if there is one, and the live lease if there is one.
fn rejected(
    store: &Store,
    name: &str,
    reason: Reason,
    current: Option<LeaseInfo>,
) -> Result<Vec<OwnedValue>, Error> {
    let word = match reason {
        Reason::NeverClaimed => "NEVER_CLAIMED",
        Reason::HeldBy => "HELD_BY",
        Reason::Superseded { .. } => "SUPERSEDED",
        Reason::UnknownToken => "UNKNOWN_TOKEN",
        Reason::Released => "RELEASED",
        Reason::Expired => "EXPIRED",
        Reason::NoProgress => "NO_PROGRESS",
        Reason::TimeIsUp => "TIME_IS_UP",
        Reason::Requested => "REQUESTED",
        Reason::NotRequested => "NOT_REQUESTED",
    };
    let newest = match (reason, &current) {
        (Reason::NeverClaimed, _) => None,
        (Reason::Superseded { by }, _) => Some(by),
        (_, Some(current)) => Some(current.token),
        _ => store.token(name)?,
    };
    let newest = newest.map_or(OwnedValue::Null, OwnedValue::Integer);
    let row = vec![text("Rejected"), text(word), newest];
    Ok([row, current.map(lease).unwrap_or_default()].concat())
}

fn case<S: Into<String>>(word: &str, info: LeaseInfo<S>) -> Vec<OwnedValue> {
    let LeaseInfo { name, owner, token, lease_expires_at_ms } = info;
    let expiry = OwnedValue::Integer(lease_expires_at_ms);
    vec![text(word), text(name), text(owner), OwnedValue::Integer(token), expiry]
}

fn lease<S: Into<String>>(info: LeaseInfo<S>) -> Vec<OwnedValue> {
    let mut row = case("", info);
    row.remove(0);
    row
}

fn slot_row(slot: SlotInfo) -> Vec<OwnedValue> {
    [slot.position, slot.token, slot.expires_at_ms].map(OwnedValue::Integer).to_vec()
}

fn stale(newest: Option<i64>) -> Vec<OwnedValue> {
    vec![text("Stale"), newest.map_or(OwnedValue::Null, OwnedValue::Integer)]
}

fn number(number: i64) -> Answer {
    vec![vec![OwnedValue::Integer(number)]]
}

fn truth(is_so: bool) -> OwnedValue {
    OwnedValue::Integer(i64::from(is_so))
}

fn text(text: impl Into<String>) -> OwnedValue {
    OwnedValue::Text(text.into())
}

fn optional_text(given: Option<String>) -> OwnedValue {
    given.map_or(OwnedValue::Null, OwnedValue::Text)
}
