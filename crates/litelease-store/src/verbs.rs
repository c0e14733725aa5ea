//! The verbs by their names, values in and values out: what a binding for another language calls.
//!
//! To add a verb, write one short function in the file of its capability and add one line to
//! [`VERBS`]. An answer is a list of rows; a row of an answer that has cases begins with the name
//! of its case.

mod fence;
mod lease;
mod limit;
mod pool;
mod queue;
mod read;
mod rows;

use litelease_core::Claimant;

use crate::{Error, OwnedValue, Store, Value, When};

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
    /// The names of its arguments, in their order. Those at the end may be left out where the verb
    /// has a default.
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
    verb_of("bootstrap", "", lease::bootstrap),
    verb_of("claim", "name owner ttl_ms now_ms min_token", lease::claim),
    verb_of(
        "claim_from_dead",
        "name owner ttl_ms now_ms dead_owner dead_token",
        lease::claim_from_dead,
    ),
    verb_of("ensure", "name owner ttl_ms now_ms", lease::ensure),
    verb_of("attach", "name token value now_ms", lease::attach),
    verb_of("value", "name now_ms", lease::value),
    verb_of("renew", "name owner ttl_ms now_ms token", lease::renew),
    freeing("release", "name owner now_ms token", lease::release),
    verb_of("transfer", "name owner new_owner ttl_ms now_ms token", lease::transfer),
    freeing("break", "name now_ms", lease::break_lease),
    verb_of("inspect", "name now_ms", lease::inspect),
    verb_of("token", "name", lease::token),
    verb_of("leases", "prefix now_ms", lease::leases),
    verb_of("purge", "before_ms now_ms", lease::purge),
    verb_of("raise", "floor", lease::raise),
    freeing("raise_name", "name floor", lease::raise_name),
    freeing("restore_fence", "above", lease::restore_fence),
    verb_of("guard", "table name column strict", fence::guard),
    verb_of("unguard", "table name", fence::unguard),
    verb_of("guards", "", fence::guards),
    verb_of("present", "name token", fence::present),
    verb_of("withdraw", "name", fence::withdraw),
    verb_of("checkpoint", "name token value now_ms", fence::checkpoint),
    verb_of("last_checkpoint", "name", fence::last_checkpoint),
    verb_of("admit", "name token", fence::admit),
    freeing("pool", "id count now_ms", pool::pool),
    verb_of("pool_info", "id now_ms", pool::pool_info),
    verb_of("borrow", "id ttl_ms now_ms note key", pool::borrow),
    verb_of("slot", "id lease", pool::slot),
    freeing("return", "id lease now_ms", pool::return_slot),
    verb_of("pool_renew", "id lease ttl_ms now_ms", pool::renew_slot),
    verb_of("slots", "id now_ms", pool::slots),
    verb_of("begin", "", lease::begin),
    verb_of("record_boot", "", lease::record_boot),
    verb_of("is_boot_recorded", "", lease::is_boot_recorded),
    verb_of("keep", "id lease now_ms", pool::keep_slot),
    freeing("free_kept", "id position token", pool::free_kept_slot),
    verb_of("read", "name reader ttl_ms now_ms", read::read),
    freeing("unread", "name reader", read::unread),
    verb_of("readers", "name now_ms", read::readers),
    verb_of("drained", "name token now_ms", read::drained),
    verb_of("own", "", lease::own),
    verb_of("foreign_locks", "now_ms", lease::foreign_locks),
    freeing("pool_delete", "id", pool::delete_pool),
    verb_of("queue", "queue max_attempts", queue::queue),
    freeing("send", "queue body delay_ms key now_ms", queue::send),
    verb_of("receive", "queue visibility_ms count now_ms", queue::receive),
    verb_of("delivery", "receipt", queue::delivery),
    verb_of("ack", "", queue::ack),
    verb_of("extend", "receipt visibility_ms now_ms", queue::extend),
    freeing("give_back", "receipt delay_ms note now_ms", queue::give_back),
    verb_of("bury", "receipt note now_ms", queue::bury),
    freeing("redrive", "queue item now_ms", queue::redrive),
    verb_of("discard", "queue item now_ms", queue::discard),
    verb_of("cancel", "queue item_or_key now_ms", queue::cancel),
    verb_of("queue_delete", "queue", queue::delete_queue),
    verb_of("queue_info", "queue now_ms", queue::queue_info),
    verb_of("queues", "now_ms", queue::queues),
    verb_of("next_visible", "queue", queue::next_visible),
    verb_of("items", "queue now_ms", queue::items),
    verb_of("begin_finish", "receipt", queue::begin_finish),
    verb_of("end_finish", "receipt", queue::end_finish),
    verb_of("undo_finish", "", queue::undo_finish),
    verb_of("tidy", "", queue::tidy),
    verb_of("drain", "name token", read::drain),
    freeing("ring", "", read::ring),
    verb_of("limit", "name token progress_within_ms not_after_ms now_ms", limit::limit),
    verb_of("progress", "name token now_ms", limit::progress),
    verb_of("request", "name requester within_ms now_ms", limit::request),
    verb_of("withdraw_request", "name requester", limit::withdraw_request),
    verb_of("requested", "name now_ms", limit::requested),
    freeing("hand_over", "name owner ttl_ms now_ms token", limit::hand_over),
    verb_of("take_over", "name owner ttl_ms now_ms", limit::take_over),
    verb_of("leader", "name now_ms", limit::leader),
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
