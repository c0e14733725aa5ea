//! `litelease_attach` and `litelease_value`: what a live grant has attached to its name.

use crate::Value;
use crate::sql::functions::{self, Answer, Function, NAME, NOW, TOKEN, Writes};

pub(crate) const ATTACH: Function = Function {
    name: "litelease_attach",
    arguments: &[NAME, TOKEN, functions::VALUE, NOW],
    required: 3,
    kind: Writes::Yes,
    run: |store, given| {
        let value = given.value(2).unwrap_or(Value::Null);
        let attached = store.attach(given.text(0), given.integer(1), value, given.when(3))?;
        Ok(Answer::Integer(i64::from(attached.is_done())))
    },
};

pub(crate) const VALUE: Function = Function {
    name: "litelease_value",
    arguments: &[NAME, NOW],
    required: 1,
    kind: Writes::No,
    run: |store, given| {
        let value = store.value(given.text(0), given.when(1), |value| value.into())?;
        Ok(value.unwrap_or(Answer::Null))
    },
};
