//! The list of functions: what each is called, what it takes, whether it writes and what it does.

use litelease_core::{
    BreakResult, ClaimResult, Claimant, ReleaseResult, RenewResult, TransferResult,
};
use litelease_store::{Error, Store, When};

use crate::arguments::{Argument, Arguments, Kind};

/// One SQL function.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [Argument],
    /// How many of them must be given.
    pub(crate) required: usize,
    pub(crate) kind: Writes,
    pub(crate) run: fn(&Store, &Arguments<'_>) -> Result<Answer, Error>,
}

/// What a function does to the database. One that writes may be called by a statement of the application
/// only, never by a view, trigger or generated column of a file that somebody else could have made.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Writes {
    Yes,
    No,
}

/// What a function answers.
pub(crate) enum Answer {
    Null,
    Integer(i64),
    Text(String),
}

const NAME: Argument = Argument { name: "name", kind: Kind::Text };
const OWNER: Argument = Argument { name: "owner", kind: Kind::Text };
const NEW_OWNER: Argument = Argument { name: "new_owner", kind: Kind::Text };
const TTL: Argument = Argument { name: "ttl_ms", kind: Kind::Integer };
const NOW: Argument = Argument { name: "now_ms", kind: Kind::Time };
const TOKEN: Argument = Argument { name: "token", kind: Kind::Integer };
const MIN_TOKEN: Argument = Argument { name: "min_token", kind: Kind::Integer };
const FLOOR: Argument = Argument { name: "floor", kind: Kind::Integer };
const BEFORE: Argument = Argument { name: "before_ms", kind: Kind::Integer };

/// Every function. `litelease_version` is the last to be registered.
pub(crate) const FUNCTIONS: &[Function] =
    &[
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
                store.renew(given.text(0), who, given.integer(2), given.when(3), |answer| {
                    match answer {
                        RenewResult::Renewed(lease) => Answer::Integer(lease.token),
                        RenewResult::Rejected { .. } => Answer::Null,
                    }
                })
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
