//! The functions and tables of queues.

use std::iter;

use litelease_core::{AckResult, CancelResult};

use crate::sql::arguments::{Argument, Arguments, Kind, whole};
use crate::sql::functions::{Answer, Function, Writes};
use crate::sql::table::{Given, Range, Rows, TableFunction};
use crate::sql::tables::{collected, complaint, time};
use crate::{Error, ItemInfo, ItemName, QueueInfo, SendOptions, Store, Value, When};

const QUEUE: Argument = Argument { name: "queue", kind: Kind::Text, null: None };
const MAX_ATTEMPTS: Argument =
    Argument { name: "max_attempts", kind: Kind::Integer, null: Some("to leave it as it is") };
const BODY: Argument = Argument { name: "body", kind: Kind::Anything, null: None };
const DELAY: Argument = Argument { name: "delay_ms", kind: Kind::Integer, null: Some("for none") };
const KEY: Argument = Argument { name: "key", kind: Kind::Text, null: Some("for none") };
const VISIBILITY: Argument = Argument { name: "visibility_ms", kind: Kind::Integer, null: None };
const RECEIPT: Argument = Argument { name: "receipt", kind: Kind::Text, null: None };
const NOTE: Argument = Argument { name: "note", kind: Kind::Text, null: Some("for none") };
const ID: Argument = Argument { name: "id", kind: Kind::Integer, null: Some("for all dead ones") };
const ID_OR_KEY: Argument = Argument { name: "id", kind: Kind::Anything, null: None };
const NOW: Argument =
    Argument { name: "now_ms", kind: Kind::Integer, null: Some("for the system clock") };

/// Every function of queues.
pub(crate) const FUNCTIONS: &[Function] = &[
    Function {
        name: "litelease_queue",
        arguments: &[QUEUE, MAX_ATTEMPTS],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| store.queue(given.text(0), given.optional(1)).map(Answer::Integer),
    },
    Function {
        name: "litelease_send",
        arguments: &[QUEUE, BODY, DELAY, KEY, NOW],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let body = given.value(1).unwrap_or(Value::Null);
            let options = SendOptions { delay_ms: given.integer(2), key: given.optional_text(3) };
            store.send(given.text(0), body, options, given.when(4)).map(Answer::Integer)
        },
    },
    Function {
        name: "litelease_receive",
        arguments: &[QUEUE, VISIBILITY, NOW],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let receipt = store.receive_receipt(given.text(0), given.integer(1), given.when(2))?;
            Ok(receipt.map_or(Answer::Null, Answer::Text))
        },
    },
    Function {
        name: "litelease_ack",
        arguments: &[RECEIPT],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| match store.ack(given.text(0))? {
            AckResult::Acknowledged => Ok(Answer::Integer(1)),
            AckResult::Stale { reason } => Err(Error::StaleReceipt { reason }),
        },
    },
    Function {
        name: "litelease_extend",
        arguments: &[RECEIPT, VISIBILITY, NOW],
        required: 2,
        kind: Writes::Yes,
        run: |store, given| {
            let deadline_ms = store.extend(given.text(0), given.integer(1), given.when(2))?;
            Ok(deadline_ms.map_or(Answer::Null, Answer::Integer))
        },
    },
    Function {
        name: "litelease_give_back",
        arguments: &[RECEIPT, DELAY, NOTE, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            let (receipt, delay_ms) = (given.text(0), given.integer(1));
            let note = given.optional_text(2);
            store.give_back(receipt, delay_ms, note, given.when(3)).map(yes)
        },
    },
    Function {
        name: "litelease_bury",
        arguments: &[RECEIPT, NOTE, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            store.bury(given.text(0), given.optional_text(1), given.when(2)).map(yes)
        },
    },
    Function {
        name: "litelease_redrive",
        arguments: &[QUEUE, ID, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            store.redrive(given.text(0), given.optional(1), given.when(2)).map(count)
        },
    },
    Function {
        name: "litelease_discard",
        arguments: &[QUEUE, ID, NOW],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| {
            store.discard(given.text(0), given.optional(1), given.when(2)).map(count)
        },
    },
    Function {
        name: "litelease_cancel",
        arguments: &[QUEUE, ID_OR_KEY, NOW],
        required: 2,
        kind: Writes::Yes,
        run: cancel,
    },
    Function {
        name: "litelease_queue_delete",
        arguments: &[QUEUE],
        required: 1,
        kind: Writes::Yes,
        run: |store, given| store.delete_queue(given.text(0)).map(yes),
    },
];

/// Every table of queues.
pub(crate) const TABLES: &[TableFunction] = &[
    TableFunction {
        name: c"litelease_delivery",
        definition: c"CREATE TABLE delivery (id INTEGER, attempt INTEGER, token INTEGER, \
                      deadline_ms INTEGER, body, receipt TEXT HIDDEN)",
        arguments: &[5],
        order: None,
        rows: delivery,
    },
    TableFunction {
        name: c"litelease_items",
        definition: c"CREATE TABLE items (id INTEGER, state TEXT, attempt INTEGER, \
                      visible_at_ms INTEGER, sent_at_ms INTEGER, key TEXT, note TEXT, \
                      queue TEXT HIDDEN, now_ms INTEGER HIDDEN)",
        arguments: &[7, 8],
        order: None,
        rows: items,
    },
    TableFunction {
        name: c"litelease_queues",
        definition: c"CREATE TABLE queues (queue TEXT, visible INTEGER, delayed INTEGER, \
                      leased INTEGER, dead INTEGER, oldest_ms INTEGER, max_attempts INTEGER, \
                      now_ms INTEGER HIDDEN)",
        arguments: &[7],
        order: None,
        rows: queues,
    },
];

/// 1 if the item is gone, 0 if somebody works on it, NULL if there is none.
fn cancel(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let name = match given.value(1) {
        Some(Value::Text(key)) => ItemName::Key(key),
        Some(value) if whole(value).is_some() => ItemName::Id(given.integer(1)),
        _ => {
            return Err(complaint("id must be an INTEGER, or the key as TEXT"));
        }
    };
    Ok(match store.cancel(given.text(0), name, given.when(2))? {
        CancelResult::Cancelled => Answer::Integer(1),
        CancelResult::Leased { .. } => Answer::Integer(0),
        CancelResult::NotFound => Answer::Null,
    })
}

/// The delivery of a receipt that passes.
fn delivery(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(receipt))] = given else {
        return Err(complaint("receipt must be TEXT: FROM litelease_delivery(receipt)"));
    };
    let delivered = store.delivery::<Answer>(receipt, |body| body.into())?;
    Ok(collected(delivered.map(|delivered| {
        vec![
            Answer::Integer(delivered.id),
            Answer::Integer(delivered.attempt),
            Answer::Integer(delivered.token),
            Answer::Integer(delivered.deadline_ms),
            delivered.body,
            Answer::Text(delivered.receipt),
        ]
    })))
}

/// The items of a queue, read as they are asked for.
fn items(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let [Given::Value(Value::Text(queue)), now] = given else {
        return Err(complaint("queue must be TEXT: FROM litelease_items(queue[, now_ms])"));
    };
    let (queue, now_ms) = (String::from(*queue), time(Some(now))?);
    let mut walk = store.walk_queue(&queue)?;
    let next = move || {
        let next = walk.next().map(|item| item.map(|item| columns(item.info(now_ms), &queue)));
        next.transpose().map(|row| {
            row.map(|mut row: Vec<Answer>| {
                row.push(Answer::Integer(now_ms));
                row
            })
        })
    };
    Ok(Box::new(iter::from_fn(next)))
}

fn columns(item: ItemInfo<&str>, queue: &str) -> Vec<Answer> {
    let text = |text: Option<&str>| text.map_or(Answer::Null, |text| Answer::Text(text.into()));
    vec![
        Answer::Integer(item.id),
        text(Some(item.state.word())),
        Answer::Integer(item.attempt),
        item.visible_at_ms.map_or(Answer::Null, Answer::Integer),
        Answer::Integer(item.sent_at_ms),
        text(item.key),
        text(item.note),
        text(Some(queue)),
    ]
}

/// How every queue stands.
fn queues(store: &Store, given: &[Given<'_>], _: Range<'_>) -> Result<Rows, Error> {
    let now_ms = time(given.first())?;
    let columns = |info: QueueInfo| {
        let counts = [info.visible, info.delayed, info.leased, info.dead].map(Answer::Integer);
        let mut row = vec![Answer::Text(info.queue)];
        row.extend(counts);
        row.push(info.oldest_ms.map_or(Answer::Null, Answer::Integer));
        row.extend([info.max_attempts, now_ms].map(Answer::Integer));
        row
    };
    Ok(collected(store.queues(When::At(now_ms))?.into_iter().map(columns)))
}

fn yes(is_so: bool) -> Answer {
    Answer::Integer(i64::from(is_so))
}

fn count(count: u64) -> Answer {
    Answer::Integer(i64::try_from(count).unwrap_or(i64::MAX))
}
