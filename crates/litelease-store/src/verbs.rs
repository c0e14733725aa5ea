//! The verbs by their names: one table for SQL and for the bindings of other languages.
//!
//! To add a verb, write one function in the file of its capability, and one line in [`VERBS`]. SQL
//! and a binding are two readers of the table. They differ in the form of an answer: a value, or
//! rows (see `answers.rs`).

mod answers;
mod arguments;
mod fence;
mod history;
mod lease;
mod limit;
mod pool;
mod queue;
mod read;
mod tick;

use std::ffi::c_int;

pub(crate) use arguments::NOW;
use arguments::*;
pub use arguments::{Argument, Arguments, Kind, NAME, TTL};

use crate::{Error, OwnedValue, Store, Value};

/// A verb: `litelease_` and its name are the name of its SQL function or table.
///
/// ```
/// # use litelease_store::{Failure, Host, HostedStore, OwnedValue, verb};
/// fn token(host: Box<dyn Host>) -> Result<usize, Failure> {
///     let store = HostedStore::new(host)?;
///     let rows = verb("token", 1).expect("a verb").call(&store, &[OwnedValue::Text("x".into())]);
///     Ok(rows.map_or(0, |rows| rows.len()))
/// }
/// ```
pub struct Verb {
    /// The name.
    pub name: &'static str,
    /// Its arguments, in their order.
    pub arguments: &'static [Argument],
    /// The number of arguments that must be given.
    pub required: usize,
    /// Its effect on the database.
    pub effect: Effect,
    /// The functions that answer it, or its listing.
    pub answer: Answering,
}

/// The effect of a verb on the database. Only a statement of the application may call one that
/// writes: never a view, trigger or generated column, which another program may have put into the
/// file.
#[derive(Clone, Copy, PartialEq)]
pub enum Effect {
    /// It only reads.
    Reads,
    /// It writes.
    Writes,
    /// It writes, and can free what others wait for.
    Frees,
}

/// The functions that answer a verb, by the callers it has.
pub enum Answering {
    /// SQL and bindings.
    Both(VerbRun<OwnedValue>, VerbRun<Answer>),
    /// SQL: a function.
    InSql(VerbRun<OwnedValue>),
    /// Bindings.
    InBindings(VerbRun<Answer>),
    /// SQL and bindings: a table with arguments.
    Listing(&'static Listing),
}

/// A function that answers a verb.
pub type VerbRun<A> = fn(&Store, &Arguments<'_>) -> Result<A, Error>;

/// The rows of an answer. If the answer has cases, its row begins with the name of the case.
pub type Answer = Vec<Vec<OwnedValue>>;

/// A table with arguments, and its rows.
pub struct Listing {
    /// Its columns, as CREATE TABLE has them. The arguments follow them as hidden columns.
    pub(crate) columns: &'static str,
    /// The column by which the rows are ordered, and of which a query can ask for a range.
    pub(crate) order: Option<c_int>,
    /// Its rows, given the arguments and the range. A time among the arguments is always given.
    pub(crate) rows: fn(&Store, &Arguments<'_>, Range<'_>) -> Result<RowIterator, Error>,
}

/// The rows of a listing, read one at a time.
pub(crate) type RowIterator = Box<dyn Iterator<Item = Result<Vec<OwnedValue>, Error>>>;

/// The texts between which the query reads, both included, if it has such bounds. SQLite compares
/// again.
#[derive(Clone, Copy, Default)]
pub(crate) struct Range<'a> {
    pub(crate) from: Option<&'a str>,
    pub(crate) to: Option<&'a str>,
}

/// The reason why a call of a binding failed.
#[derive(Debug)]
pub enum Misuse {
    /// The store's own error.
    Error(Error),
    /// The argument of this number is missing or of another type.
    Argument(usize),
}

impl From<Error> for Misuse {
    fn from(error: Error) -> Self {
        Misuse::Error(error)
    }
}

/// Makes the table. A line names the callers of the verb, its name, its function, the arguments
/// that must be given, a semicolon, those that may be left out, and its effect.
macro_rules! verbs {
    ($($who:ident $name:literal = $function:path, ($($must:ident)* $(; $($may:ident)*)?) $effect:ident;)*) => {
        &[$(Verb {
            name: $name,
            arguments: &[$($must,)* $($($may,)*)?],
            required: <[&Argument]>::len(&[$(&$must),*]),
            effect: Effect::$effect,
            answer: verbs!(@ $who $function),
        },)*]
    };
    (@ both $function:path) => { Answering::Both($function, $function) };
    (@ sql $function:path) => { Answering::InSql($function) };
    (@ binding $function:path) => { Answering::InBindings($function) };
    (@ listing $listing:path) => { Answering::Listing(&$listing) };
}

/// All verbs. `version` is registered last in SQL: its presence shows that the others are there.
pub static VERBS: &[Verb] = verbs! {
    both "claim" = lease::claim, (NAME OWNER TTL; NOW MIN_TOKEN) Writes;
    both "renew" = lease::renew, (NAME OWNER TTL; NOW TOKEN) Writes;
    both "release" = lease::release, (NAME OWNER; NOW TOKEN) Frees;
    both "transfer" = lease::transfer, (NAME OWNER NEW_OWNER TTL; NOW TOKEN) Writes;
    both "ensure" = lease::ensure, (NAME OWNER TTL; NOW) Writes;
    both "break" = lease::break_lease, (NAME; NOW) Frees;
    both "token" = lease::token, (NAME) Reads;
    both "attach" = lease::attach, (NAME TOKEN VALUE; NOW) Writes;
    both "value" = lease::value, (NAME; NOW) Reads;
    both "purge" = lease::purge, (BEFORE; NOW) Writes;
    both "bootstrap" = lease::bootstrap, () Writes;
    both "raise" = lease::raise, (FLOOR) Writes;
    both "raise" = lease::raise_name, (NAME FLOOR) Frees;
    both "restore_fence" = lease::restore_fence, (; ABOVE) Frees;
    sql "owner" = lease::owner, (NAME; NOW) Reads;
    binding "inspect" = lease::inspect, (NAME; NOW) Reads;
    binding "live_leases" = lease::live_leases, (PREFIX; NOW) Reads;
    binding "claim_from_dead" = lease::claim_from_dead, (NAME OWNER TTL NOW DEAD_OWNER DEAD_TOKEN) Writes;
    binding "own" = lease::own, () Writes;
    binding "begin" = lease::begin, () Writes;
    binding "record_boot" = lease::record_boot, () Writes;
    binding "is_boot_recorded" = lease::is_boot_recorded, () Reads;
    binding "foreign_locks" = lease::foreign_locks, (; NOW) Reads;
    listing "leases" = lease::LEASES, (; NOW) Reads;

    both "limit" = limit::limit, (NAME TOKEN PROGRESS_WITHIN NOT_AFTER; NOW) Writes;
    both "progress" = limit::progress, (NAME TOKEN; NOW) Writes;
    both "request" = limit::request, (NAME REQUESTER WITHIN; NOW) Writes;
    both "withdraw_request" = limit::withdraw_request, (NAME REQUESTER) Writes;
    both "hand_over" = limit::hand_over, (NAME OWNER TTL; NOW TOKEN) Frees;
    both "take_over" = limit::take_over, (NAME OWNER TTL; NOW) Writes;
    binding "leader" = limit::leader, (NAME; NOW) Reads;
    listing "requested" = limit::REQUESTED, (NAME; NOW) Reads;

    both "guard" = fence::guard, (TABLE NAME; COLUMN STRICT) Writes;
    both "unguard" = fence::unguard, (TABLE; NAME) Writes;
    both "present" = fence::present, (NAME OR_WITHDRAW) Writes;
    both "checkpoint" = fence::checkpoint, (NAME TOKEN VALUE; NOW) Writes;
    both "admit" = fence::admit, (NAME TOKEN) Writes;
    listing "guards" = fence::GUARDS, () Reads;
    listing "checkpoint_get" = fence::CHECKPOINT, (NAME) Reads;

    both "read" = read::read, (NAME READER TTL; NOW) Writes;
    both "unread" = read::unread, (NAME READER) Frees;
    both "drained" = read::drained, (NAME TOKEN; NOW) Reads;
    binding "drain" = read::drain, (NAME TOKEN) Writes;
    binding "notify" = read::notify, () Frees;
    listing "readers" = read::READERS, (NAME; NOW) Reads;

    both "pool" = pool::pool, (ID COUNT; NOW) Frees;
    both "borrow" = pool::borrow, (ID TTL; NOW NOTE KEY) Writes;
    both "return" = pool::return_slot, (ID LEASE; NOW) Frees;
    both "pool_renew" = pool::renew_slot, (ID LEASE TTL; NOW) Writes;
    both "keep" = pool::keep_slot, (ID LEASE; NOW) Writes;
    both "pool_delete" = pool::delete_pool, (ID) Frees;
    binding "free_kept" = pool::free_kept_slot, (ID POSITION TOKEN) Frees;
    listing "slot" = pool::SLOT, (POOL_ID LEASE_ID) Reads;
    listing "slots" = pool::SLOTS, (POOL_ID; NOW) Reads;

    both "queue" = queue::queue, (QUEUE; MAX_ATTEMPTS) Writes;
    both "send" = queue::send, (QUEUE BODY; DELAY KEY NOW) Frees;
    both "extend" = queue::extend, (RECEIPT VISIBILITY; NOW) Writes;
    both "give_back" = queue::give_back, (RECEIPT; DELAY NOTE NOW) Frees;
    both "bury" = queue::bury, (RECEIPT; NOTE NOW) Writes;
    both "redrive" = queue::redrive, (QUEUE; DEAD_ITEM NOW) Frees;
    both "discard" = queue::discard, (QUEUE; DEAD_ITEM NOW) Writes;
    both "cancel" = queue::cancel, (QUEUE ITEM_OR_KEY; NOW) Writes;
    both "queue_delete" = queue::delete_queue, (QUEUE) Writes;
    sql "receive" = queue::receive, (QUEUE VISIBILITY; NOW) Writes;
    sql "ack" = queue::ack, (RECEIPT) Writes;
    binding "receive_many" = queue::receive_many, (QUEUE VISIBILITY COUNT_OF_ITEMS; NOW) Writes;
    binding "ack_many" = queue::ack_many, (; RECEIPTS) Writes;
    binding "queue_info" = queue::queue_info, (QUEUE; NOW) Reads;
    binding "next_visible" = queue::next_visible, (QUEUE) Reads;
    binding "begin_finish" = queue::begin_finish, (RECEIPT) Writes;
    binding "end_finish" = queue::end_finish, (RECEIPT) Writes;
    binding "undo_finish" = queue::undo_finish, () Writes;
    binding "tidy" = queue::tidy, () Writes;
    listing "delivery" = queue::DELIVERY, (RECEIPT) Reads;
    listing "items" = queue::ITEMS, (QUEUE; NOW) Reads;
    listing "queues" = queue::QUEUES, (; NOW) Reads;

    sql "tick" = tick::tick, (NAME TICK; NOW) Writes;
    sql "claim_tick" = tick::claim_tick, (NAME OWNER TTL TICK; ATTEMPTS NOW) Writes;
    sql "finish_tick" = tick::finish_tick, (NAME TOKEN; HAS_FAILED NOW) Frees;
    binding "tick" = tick::tick_case, (NAME TICK; NOW) Writes;
    binding "claim_tick" = tick::claim_tick_case, (NAME OWNER TTL TICK; ATTEMPTS NOW SCHEDULE) Writes;
    binding "finish_tick" = tick::finish_tick_case, (NAME TOKEN; HAS_FAILED NOW) Frees;
    binding "begin_finish_tick" = tick::begin_finish, (NAME TOKEN) Writes;
    binding "end_finish_tick" = tick::end_finish, (NAME TOKEN) Frees;
    both "tick_skip" = tick::skip, (NAME; UNTIL BREAKS NOW) Frees;
    both "tick_again" = tick::again, (NAME; NOW) Frees;
    both "tick_forget" = tick::forget, (NAME; NOW) Writes;
    listing "ticks" = tick::TICKS, (; NOW) Reads;

    both "keep_history" = history::keep_history, (KEEP) Writes;
    listing "history" = history::HISTORY, (; NAME_OR_ALL SINCE) Reads;

    sql "now" = lease::now, () Reads;
    sql "version" = lease::version, () Reads;
};

/// Returns the verb of this name that a binding can call with this many arguments.
///
/// ```
/// assert!(litelease_store::verb("claim", 3).is_some());
/// assert!(litelease_store::verb("no such verb", 0).is_none());
/// ```
pub fn verb(name: &str, count: usize) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name && verb.is_callable(count))
}

impl Verb {
    /// Makes a function that only SQL gets.
    pub const fn in_sql(
        name: &'static str,
        arguments: &'static [Argument],
        required: usize,
        run: VerbRun<OwnedValue>,
    ) -> Self {
        Verb { name, arguments, required, effect: Effect::Writes, answer: Answering::InSql(run) }
    }

    /// The argument in this place, if there is one.
    pub fn argument(&self, at: usize) -> Option<&'static Argument> {
        let last = self.arguments.last().filter(|last| last.kind == Kind::Texts);
        self.arguments.get(at).or(last)
    }

    fn is_callable(&self, count: usize) -> bool {
        let is_for_sql = matches!(self.answer, Answering::InSql(_));
        !is_for_sql && (count <= self.arguments.len() || self.argument(count).is_some())
    }

    /// Calls it for a binding. NULL as an optional argument leaves it out.
    pub fn call(&self, store: &Store, values: &[OwnedValue]) -> Result<Answer, Misuse> {
        for at in 0..values.len().max(self.required) {
            let value = values.get(at).map_or(Value::Null, OwnedValue::value);
            let may_be_left_out = at >= self.required && value == Value::Null;
            match self.argument(at) {
                Some(argument) if !may_be_left_out && !argument.takes_exactly(value) => {
                    return Err(Misuse::Argument(at));
                }
                _ => {}
            }
        }
        let given: Vec<_> = values.iter().map(|value| Some(value.value())).collect();
        let given = Arguments { given: &given };
        let rows = match self.answer {
            Answering::Both(_, run) | Answering::InBindings(run) => run(store, &given),
            Answering::Listing(listing) => store.in_snapshot(|| {
                (listing.rows)(store, &given, Range::default())?.collect::<Result<_, _>>()
            }),
            Answering::InSql(_) => Ok(Answer::new()),
        };
        Ok(rows?)
    }
}

/// Rows that were read to the end.
fn collected(rows: impl IntoIterator<Item = Vec<OwnedValue>>) -> RowIterator {
    let rows: Vec<_> = rows.into_iter().map(Ok).collect();
    Box::new(rows.into_iter())
}
