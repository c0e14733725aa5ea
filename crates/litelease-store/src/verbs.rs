//! The verbs by their names, values in and values out: what a binding for another language calls.
//!
//! To add a verb, write one short function and add one line to [`VERBS`]. An answer is a list of rows; a row of an answer
//! that has cases begins with the name of its case.

use litelease_core::{
    AdmitResult, BreakResult, CheckpointResult, ClaimResult, Claimant, GrantResult, LeaseInfo,
    Reason, ReleaseResult, RenewResult, SlotInfo, TransferResult,
};

use crate::schema::{RESOURCES, is_there};
use crate::statements::execute_once;
use crate::{BootRecord, BorrowOptions, Error, Guard, OwnedValue, Store, Value, When};

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
    verb_of("checkpoint", "name token value", checkpoint),
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
    Ok(vec![match store.attach(name, token, value, given.when(3)?)? {
        GrantResult::Done => vec![text("Done")],
        GrantResult::Stale { reason } => rejected(store, name, reason, None)?,
    }])
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

/// name, owner, ttl and token of each grant, one after the other; of a slot its pool, its lease, the ttl and NULL. One row
/// answers each: what is wrong with one lease is not the others' fault.
fn renew_all(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let all = || {
        given.0.chunks_exact(4).map(|grant| {
            let grant = Arguments(grant);
            let (name, who, ttl_ms) = (grant.text(0)?, grant.who(1, 3)?, grant.integer(2)?);
            let answer = match who.token {
                Some(_) => store
                    .renew(name, who, ttl_ms, When::Now, |answer| answer.into_owned())
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
    Ok(vec![match answer {
        ReleaseResult::Released { name, token } => {
            vec![text("Released"), text(name), OwnedValue::Integer(token)]
        }
        ReleaseResult::Rejected { reason, current } => rejected(store, name, reason, current)?,
    }])
}

fn transfer(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, who, new_owner) = (given.text(0)?, given.who(1, 5)?, given.text(2)?);
    let (ttl_ms, when) = (given.integer(3)?, given.when(4)?);
    let answer =
        store.transfer(name, who, new_owner, ttl_ms, when, |answer| answer.into_owned())?;
    Ok(vec![match answer {
        TransferResult::Transferred(lease) => case("Transferred", lease),
        TransferResult::Rejected { reason, current } => rejected(store, name, reason, current)?,
    }])
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
    Ok(vec![match store.checkpoint(name, token, value, When::Now)? {
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

// Rows.

fn claimed(answer: ClaimResult<&str>) -> Vec<OwnedValue> {
    match answer {
        ClaimResult::Acquired(lease) => case("Acquired", lease),
        ClaimResult::Busy(current) => case("Busy", current),
    }
}

fn renewed(store: &Store, name: &str, answer: RenewResult) -> Result<Vec<OwnedValue>, Error> {
    match answer {
        RenewResult::Renewed(lease) => Ok(case("Renewed", lease)),
        RenewResult::Rejected { reason, current } => rejected(store, name, reason, current),
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
