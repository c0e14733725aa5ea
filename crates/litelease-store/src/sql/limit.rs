//! `litelease_limit` and `litelease_progress`: what the renewals of a grant depend on.

use crate::sql::arguments::{Argument, Kind};
use crate::sql::functions::{Answer, Function, NAME, NOW, TOKEN, Writes};

const PROGRESS_WITHIN: Argument =
    Argument { name: "progress_within_ms", kind: Kind::Integer, null: Some("for none") };
const NOT_AFTER: Argument =
    Argument { name: "not_after_ms", kind: Kind::Integer, null: Some("for none") };

pub(crate) const LIMIT: Function = Function {
    name: "litelease_limit",
    arguments: &[NAME, TOKEN, PROGRESS_WITHIN, NOT_AFTER, NOW],
    required: 4,
    kind: Writes::Yes,
    run: |store, given| {
        let (name, token) = (given.text(0), given.integer(1));
        let (within, end) = (given.optional(2), given.optional(3));
        let limited = store.limit(name, token, within, end, given.when(4))?;
        Ok(Answer::Integer(i64::from(limited.is_done())))
    },
};

pub(crate) const PROGRESS: Function = Function {
    name: "litelease_progress",
    arguments: &[NAME, TOKEN, NOW],
    required: 2,
    kind: Writes::Yes,
    run: |store, given| {
        let noted = store.progress(given.text(0), given.integer(1), given.when(2))?;
        Ok(Answer::Integer(i64::from(noted.is_done())))
    },
};
