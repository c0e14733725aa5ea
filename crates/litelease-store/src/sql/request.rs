//! `litelease_request` and what belongs to a handoff.

use litelease_core::{Claimant, Request, RequestResult, TransferResult};

use crate::sql::arguments::{Argument, Kind};
use crate::sql::functions::{Answer, Function, NAME, NOW, OWNER, TOKEN, TTL, Writes};
use crate::sql::table::{Given, Range, Rows, TableFunction};
use crate::sql::tables::{collected, complaint, time};
use crate::{Error, Store, Value, When};

const REQUESTER: Argument = Argument { name: "requester", kind: Kind::Text, null: None };
const WITHIN: Argument = Argument { name: "within_ms", kind: Kind::Integer, null: None };

pub(crate) const REQUEST: Function = Function {
    name: "litelease_request",
    arguments: &[NAME, REQUESTER, WITHIN, NOW],
    required: 3,
    kind: Writes::Yes,
    run: |store, given| {
        let (name, requester, within_ms) = (given.text(0), given.text(1), given.integer(2));
        store.request(name, requester, within_ms, given.when(3), |answer| match answer {
            RequestResult::Requested { until_ms, .. } => Answer::Integer(until_ms),
            RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => Answer::Null,
        })
    },
};

pub(crate) const WITHDRAW: Function = Function {
    name: "litelease_withdraw_request",
    arguments: &[NAME, REQUESTER],
    required: 2,
    kind: Writes::Yes,
    run: |store, given| {
        let withdrawn = store.withdraw_request(given.text(0), given.text(1))?;
        Ok(Answer::Integer(i64::from(withdrawn)))
    },
};

pub(crate) const HAND_OVER: Function = Function {
    name: "litelease_hand_over",
    arguments: &[NAME, OWNER, TTL, NOW, TOKEN],
    required: 3,
    kind: Writes::Yes,
    run: |store, given| {
        let who = Claimant { owner: given.text(1), token: given.optional(4) };
        let (name, ttl_ms) = (given.text(0), given.integer(2));
        store.hand_over(name, who, ttl_ms, given.when(3), |answer| match answer {
            TransferResult::Transferred(lease) => Answer::Integer(lease.token),
            TransferResult::Rejected { .. } => Answer::Null,
        })
    },
};

pub(crate) const TAKE_OVER: Function = Function {
    name: "litelease_take_over",
    arguments: &[NAME, OWNER, TTL, NOW],
    required: 3,
    kind: Writes::Yes,
    run: |store, given| {
        let (name, owner, ttl_ms) = (given.text(0), given.text(1), given.integer(2));
        store.take_over(name, owner, ttl_ms, given.when(3), |taken| {
            Answer::Integer(taken.lease.token)
        })
    },
};

pub(crate) const REQUESTED: TableFunction = TableFunction {
    name: c"litelease_requested",
    definition: c"CREATE TABLE requested (requester TEXT, until_ms INTEGER, token INTEGER, \
                  name TEXT HIDDEN, now_ms INTEGER HIDDEN)",
    arguments: &[3, 4],
    order: None,
    rows: requested,
};

/// The open request for the live grant of the name that is given, if there is one.
fn requested(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(name)), now] = given else {
        return Err(complaint("name must be TEXT: FROM litelease_requested(name[, now_ms])"));
    };
    let now_ms = time(Some(now))?;
    let found = store.requested(name, When::At(now_ms), |requester, request| {
        let Request { token, until_ms, .. } = request;
        vec![
            Answer::Text(requester.into()),
            Answer::Integer(until_ms),
            Answer::Integer(token),
            Answer::Text((*name).into()),
            Answer::Integer(now_ms),
        ]
    })?;
    Ok(collected(found))
}
