//! The list of functions: what each is called, what it takes, whether it writes and what it does.

use crate::{BorrowOptions, Error, Guard, Store, Value, When};
use litelease_core::{
    AdmitResult, BreakResult, CheckpointResult, ClaimResult, Claimant, ReleaseResult, RenewResult,
    TransferResult,
};

use crate::sql::arguments::{Argument, Arguments, Kind};
use crate::sql::{keep, limit, read, request, value};

/// One SQL function.
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: &'static [Argument],
    /// How many of them must be given.
    pub required: usize,
    /// Its effect on the database.
    pub kind: Writes,
    /// Answers a call.
    pub run: fn(&Store, &Arguments<'_>) -> Result<Answer, Error>,
}

/// The effect of a function on the database. One that writes may be called by a statement of the
/// application only, never by a view, trigger or generated column of a file that somebody else
/// could have made.
#[derive(Clone, Copy, PartialEq)]
pub enum Writes {
    /// It writes.
    Yes,
    /// It only reads.
    No,
}

/// The answer of a function.
pub use crate::OwnedValue as Answer;

/// The argument `name`.
pub const NAME: Argument = Argument { name: "name", kind: Kind::Text, null: None };
pub(crate) const OWNER: Argument = Argument { name: "owner", kind: Kind::Text, null: None };
const NEW_OWNER: Argument = Argument { name: "new_owner", kind: Kind::Text, null: None };
/// The argument `ttl_ms`.
pub const TTL: Argument = Argument { name: "ttl_ms", kind: Kind::Integer, null: None };
pub(crate) const NOW: Argument =
    Argument { name: "now_ms", kind: Kind::Integer, null: Some("for the system clock") };
pub(crate) const TOKEN: Argument = Argument { name: "token", kind: Kind::Integer, null: None };
const MIN_TOKEN: Argument = Argument { name: "min_token", kind: Kind::Integer, null: None };
const TABLE: Argument = Argument { name: "table", kind: Kind::Text, null: None };
const COLUMN: Argument =
    Argument { name: "column", kind: Kind::Text, null: Some("to guard by connection") };
const STRICT: Argument = Argument { name: "strict", kind: Kind::Flag, null: None };
const OR_WITHDRAW: Argument =
    Argument { name: "token", kind: Kind::Integer, null: Some("to withdraw it") };
pub(crate) const VALUE: Argument = Argument { name: "value", kind: Kind::Anything, null: None };
const FLOOR: Argument = Argument { name: "floor", kind: Kind::Integer, null: None };
const ABOVE: Argument =
    Argument { name: "above", kind: Kind::Integer, null: Some("if no token was seen") };
pub(super) const ID: Argument = Argument { name: "id", kind: Kind::Text, null: None };
const COUNT: Argument = Argument { name: "count", kind: Kind::Integer, null: None };
pub(super) const LEASE: Argument = Argument { name: "lease", kind: Kind::Text, null: None };
const NOTE: Argument = Argument { name: "note", kind: Kind::Text, null: Some("for none") };
const KEY: Argument = Argument { name: "key", kind: Kind::Text, null: Some("for none") };
pub(super) const READER: Argument = Argument { name: "reader", kind: Kind::Text, null: None };
const BEFORE: Argument = Argument { name: "before_ms", kind: Kind::Integer, null: None };

/// Every function. `litelease_version` is the last to be registered.
pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "litelease_bootstrap",
        arguments: &[],
        required: 0,
        kind: Writes::Yes,
        run: |store, _| store.bootstrap().map(|()| Answer::Integer(1)),
    },
    Function {
        name: "litelease_claim",
        arguments: &[NAME, OWNER, TTL, NOW, MIN_TOKEN],
        required: 3,
        kind: Writes::Yes,
        run: |store, given| {
            let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
            let min_token = given.optional(4).unwrap_or(0);
            store.claim(name, owner, ttl_ms, given.when(3), min_token, |answer| match answer {
                ClaimResult::Acquired(lease) => Answer::Integer(lease.token),
                ClaimResult::Busy(_) => Answer::Null,
            })
        },
    },
    Function {
        name: "litelease_renew",
        arguments: &[NAME, OWNER, TTL, NOW, TOKEN],
        required: 3,
        kind: Writes::Yes,
        run: |store, given| {
            let who = Claimant { owner: given.text(1), token: given.optional(4) };
            store.renew(
                given.text(0),
                who,
                given.integer(2),
                given.when(3),
                |answer| match answer {
                    RenewResult::Renewed(lease) => Answer::Integer(lease.token),
                    RenewResult::Rejected { .. } => Answer::Null,
                },
            )
        },
    },
    Function {
        name: "litelease_release",
        arguments: &[NAME, OWNER, NOW, TOKEN],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let who = Claimant { owner: given.text(1), token: given.optional(3) };
            store.release(given.text(0), who, given.when(2), |answer| match answer {
                ReleaseResult::Released { .. } => Answer::Integer(1),
                ReleaseResult::Rejected { .. } => Answer::Integer(0),
            })
        },
    },
    Function {
        name: "litelease_transfer",
        arguments: &[NAME, OWNER, NEW_OWNER, TTL, NOW, TOKEN],
        required: 4,
        kind: Writes::Yes,
        run: |store, given| {
            let who = Claimant { owner: given.text(1), token: given.optional(5) };
            let (name, new_owner, ttl_ms) = (given.text(0), given.text(2), given.integer(3));
            store.transfer(name, who, new_owner, ttl_ms, given.when(4), |answer| match answer {
                TransferResult::Transferred(lease) => Answer::Integer(lease.token),
                TransferResult::Rejected { .. } => Answer::Null,
            })
        },
    },
    Function {
        name: "litelease_break",
        arguments: &[NAME, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            store.break_lease(given.text(0), given.when(1), |answer| match answer {
                BreakResult::Broken { killed, .. } => Answer::Integer(killed),
                BreakResult::Rejected { .. } => Answer::Null,
            })
        },
    },
    Function {
        name: "litelease_purge",
        arguments: &[BEFORE, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            let purged = store.purge(given.integer(0), given.when(1))?;
            Ok(Answer::Integer(i64::try_from(purged).unwrap_or(i64::MAX)))
        },
    },
    Function {
        name: "litelease_guard",
        arguments: &[TABLE, NAME, COLUMN, STRICT],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let guard = given.optional_text(2).map_or_else(Guard::by_connection, Guard::by_column);
            let guard = if given.integer(3) == 1 { guard.strict() } else { guard };
            store.guard(given.text(0), given.text(1), &guard).map(|()| Answer::Integer(1))
        },
    },
    Function {
        name: "litelease_unguard",
        arguments: &[TABLE, NAME],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            let taken = store.unguard(given.text(0), given.optional_text(1))?;
            Ok(Answer::Integer(i64::try_from(taken).unwrap_or(i64::MAX)))
        },
    },
    Function {
        name: "litelease_present",
        arguments: &[NAME, OR_WITHDRAW],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| match given.optional(1) {
            Some(token) => {
                let is_newest = store.present(given.text(0), token)?;
                Ok(Answer::Integer(i64::from(is_newest)))
            }
            None => store.withdraw(given.text(0)).map(|()| Answer::Null),
        },
    },
    Function {
        name: "litelease_checkpoint",
        arguments: &[NAME, TOKEN, VALUE, NOW],
        required: 3,
        kind: Writes::Yes,
        run: |store, given| {
            let value = given.value(2).unwrap_or(Value::Null);
            match store.checkpoint(given.text(0), given.integer(1), value, given.when(3))? {
                CheckpointResult::Stored => Ok(Answer::Integer(1)),
                CheckpointResult::Stale { .. } => Ok(Answer::Integer(0)),
            }
        },
    },
    Function {
        name: "litelease_admit",
        arguments: &[NAME, TOKEN],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| match store.admit(given.text(0), given.integer(1))? {
            AdmitResult::Admitted => Ok(Answer::Integer(1)),
            AdmitResult::Stale { .. } => Ok(Answer::Integer(0)),
        },
    },
    Function {
        name: "litelease_raise",
        arguments: &[FLOOR],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            let floor = given.integer(0);
            store.raise(floor).map(|()| Answer::Integer(floor))
        },
    },
    Function {
        name: "litelease_raise",
        arguments: &[NAME, FLOOR],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let floor = given.integer(1);
            let raised = store.raise_name(given.text(0), floor, When::Now);
            raised.map(|()| Answer::Integer(floor))
        },
    },
    Function {
        name: "litelease_restore_fence",
        arguments: &[ABOVE],
        required: 0,
        kind: Writes::Yes,
        run: |store, given| store.restore_fence(given.optional(0), When::Now).map(Answer::Integer),
    },
    Function {
        name: "litelease_pool",
        arguments: &[ID, COUNT],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let info = store.pool(given.text(0), given.integer(1), When::Now)?;
            Ok(Answer::Integer(info.count))
        },
    },
    Function {
        name: "litelease_borrow",
        arguments: &[ID, TTL, NOW, NOTE, KEY],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let options =
                BorrowOptions { note: given.optional_text(3), key: given.optional_text(4) };
            let (id, ttl_ms) = (given.text(0), given.integer(1));
            let lent = store.borrow_slot(id, ttl_ms, given.when(2), options)?;
            Ok(lent.map_or(Answer::Null, |lent| Answer::Text(lent.lease_id)))
        },
    },
    Function {
        name: "litelease_return",
        arguments: &[ID, LEASE, NOW],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let returned = store.return_slot(given.text(0), given.text(1), given.when(2))?;
            Ok(Answer::Integer(i64::from(returned)))
        },
    },
    Function {
        name: "litelease_pool_renew",
        arguments: &[ID, LEASE, TTL, NOW],
        required: 3,
        kind: Writes::Yes,
        run: |store, given| {
            let (id, lease, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
            let renewed = store.renew_slot(id, lease, ttl_ms, given.when(3))?;
            Ok(renewed.map_or(Answer::Null, |slot| Answer::Integer(slot.token)))
        },
    },
    Function {
        name: "litelease_pool_delete",
        arguments: &[ID],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| Ok(Answer::Integer(i64::from(store.delete_pool(given.text(0))?))),
    },
    keep::KEEP,
    read::READ,
    read::UNREAD,
    read::DRAINED,
    Function {
        name: "litelease_ensure",
        arguments: &[NAME, OWNER, TTL, NOW],
        required: 3,
        kind: Writes::Yes,
        run: |store, given| {
            let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
            store.ensure(name, owner, ttl_ms, given.when(3), |answer| match answer {
                ClaimResult::Acquired(lease) => Answer::Integer(lease.token),
                ClaimResult::Busy(_) => Answer::Null,
            })
        },
    },
    Function {
        name: "litelease_owner",
        arguments: &[NAME, NOW],
        required: 1,
        kind: Writes::No,
        run: |store, given| {
            let owner =
                store.inspect(given.text(0), given.when(1), |lease| lease.owner.to_owned())?;
            Ok(owner.map_or(Answer::Null, Answer::Text))
        },
    },
    Function {
        name: "litelease_token",
        arguments: &[NAME],
        required: 1,
        kind: Writes::No,
        run: |store, given| {
            let token = store.token(given.text(0))?;
            Ok(token.map_or(Answer::Null, Answer::Integer))
        },
    },
    value::ATTACH,
    value::VALUE,
    limit::LIMIT,
    limit::PROGRESS,
    request::REQUEST,
    request::WITHDRAW,
    request::HAND_OVER,
    request::TAKE_OVER,
    Function {
        name: "litelease_now",
        arguments: &[],
        required: 0,
        kind: Writes::No,
        run: |_, _| Ok(Answer::Integer(When::Now.now_ms())),
    },
    Function {
        name: "litelease_version",
        arguments: &[],
        required: 0,
        kind: Writes::No,
        run: |_, _| Ok(Answer::Text(env!("CARGO_PKG_VERSION").into())),
    },
];
