//! `litelease_keep`: a slot without expiry, until it is returned.

use crate::sql::functions::{Answer, Function, ID, LEASE, NOW, Writes};

pub(super) const KEEP: Function = Function {
    name: "litelease_keep",
    arguments: &[ID, LEASE, NOW],
    required: 2,
    kind: Writes::Yes,
    run: |store, given| {
        let kept = store.keep_slot(given.text(0), given.text(1), given.when(2))?;
        Ok(Answer::Integer(i64::from(kept)))
    },
};
