//! Queues.

use std::iter;

use litelease_core::AckResult;

use super::answers::{Form, acknowledged, optional, optional_text, text};
use super::{Answer, Arguments, Listing, Range, RowIterator, collected};
use crate::{
    Delivered, Error, ItemInfo, ItemName, OwnedValue, QueueInfo, SendOptions, Store, Value,
};

pub(super) fn queue<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.queue(given.text(0), given.optional(1)).map(F::plain)
}

pub(super) fn send<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let options = SendOptions { delay_ms: given.integer(2), key: given.optional_text(3) };
    store.send(given.text(0), given.any(1), options, given.when(4)).map(F::plain)
}

pub(super) fn receive(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    store.receive_receipt(given.text(0), given.integer(1), given.when(2)).map(optional_text)
}

/// No row where nothing is visible.
pub(super) fn receive_many(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let (queue, visibility_ms, when) = (given.text(0), given.integer(1), given.when(3));
    let count = usize::try_from(given.integer(2)).unwrap_or(0);
    let received = store.receive_many(queue, count, visibility_ms, when, |body| body.into())?;
    let row = |item: Delivered<OwnedValue>| {
        let mut row = delivered(&item);
        row.insert(1, text(item.receipt));
        row.push(item.body);
        row
    };
    Ok(received.into_iter().map(row).collect())
}

/// The delivery of a receipt, if that passes.
pub(super) const DELIVERY: Listing = Listing {
    columns: "id INTEGER, attempt INTEGER, token INTEGER, deadline_ms INTEGER, body",
    order: None,
    rows: |store, given, _| {
        let found = store.delivery::<OwnedValue>(given.text(0), |body| body.into())?;
        Ok(collected(found.map(|item| [delivered(&item), vec![item.body]].concat())))
    },
};

pub(super) fn ack(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    match store.ack(given.text(0))? {
        AckResult::Acknowledged => Ok(OwnedValue::Integer(1)),
        AckResult::Stale { reason } => Err(Error::StaleReceipt { reason }),
    }
}

/// Any number of receipts, in one commit. One row answers each.
pub(super) fn ack_many(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let receipts = (0..given.given.len()).map(|at| given.text(at));
    Ok(store.ack_many(receipts)?.into_iter().map(acknowledged).collect())
}

/// The deadline; none where the delivery is over.
pub(super) fn extend<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.extend(given.text(0), given.integer(1), given.when(2)).map(F::plain)
}

pub(super) fn give_back<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let (receipt, delay_ms, note) = (given.text(0), given.integer(1), given.optional_text(2));
    store.give_back(receipt, delay_ms, note, given.when(3)).map(F::plain)
}

pub(super) fn bury<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.bury(given.text(0), given.optional_text(1), given.when(2)).map(F::plain)
}

pub(super) fn redrive<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.redrive(given.text(0), given.optional(1), given.when(2)).map(F::plain)
}

pub(super) fn discard<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.discard(given.text(0), given.optional(1), given.when(2)).map(F::plain)
}

/// An id, or a key as text.
pub(super) fn cancel<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    let name = match given.any(1) {
        Value::Text(key) => ItemName::Key(key),
        _ => ItemName::Id(given.integer(1)),
    };
    store.cancel(given.text(0), name, given.when(2)).map(F::plain)
}

pub(super) fn delete_queue<F: Form>(store: &Store, given: &Arguments<'_>) -> Result<F, Error> {
    store.delete_queue(given.text(0)).map(F::plain)
}

/// No row where there is no such queue.
pub(super) fn queue_info(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let info = store.in_snapshot(|| store.queue_info(given.text(0), given.when(1)))?;
    Ok(info.map(queue_row).into_iter().collect())
}

/// The counts of every queue, by name.
pub(super) const QUEUES: Listing = Listing {
    columns: "queue TEXT, visible INTEGER, delayed INTEGER, leased INTEGER, dead INTEGER, \
              oldest_ms INTEGER, max_attempts INTEGER",
    order: None,
    rows: |store, given, _| Ok(collected(store.queues(given.when(0))?.into_iter().map(queue_row))),
};

/// No row where nothing is or will be visible.
pub(super) fn next_visible(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    store.next_visible(given.text(0)).map(Form::plain)
}

/// The items of a queue, the dead ones first and then in the order of their delivery.
pub(super) const ITEMS: Listing = Listing {
    columns: "id INTEGER, state TEXT, attempt INTEGER, visible_at_ms INTEGER, \
              sent_at_ms INTEGER, key TEXT, note TEXT",
    order: None,
    rows: items,
};

fn items(store: &Store, given: &Arguments<'_>, _: Range<'_>) -> Result<RowIterator, Error> {
    let now_ms = given.when(1).now_ms();
    let mut walk = store.walk_queue(given.text(0))?;
    let mut next = move || walk.next().map(|item| item.map(|item| item_row(item.info(now_ms))));
    Ok(Box::new(iter::from_fn(move || next().transpose())))
}

/// Begins a transaction for the effect of an item, unless its receipt is stale: then no transaction
/// is open.
pub(super) fn begin_finish(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let receipt = given.text(0);
    store.begin_for_caller()?;
    // A worker that was replaced need not even try.
    let passes = |answer: &AckResult| answer.is_acknowledged();
    Ok(vec![acknowledged(or_roll_back(store, passes, || store.check_receipt(receipt))?)])
}

/// Acknowledges the item, and commits. If the receipt is stale, rolls everything back. No
/// transaction is open afterwards.
pub(super) fn end_finish(store: &Store, given: &Arguments<'_>) -> Result<Answer, Error> {
    let passes = |answer: &AckResult| answer.is_acknowledged();
    let answer = or_roll_back(store, passes, || {
        store.check_same_transaction()?;
        store.ack(given.text(0))
    })?;
    if store.has_begun() {
        store.commit()?;
    }
    Ok(vec![acknowledged(answer)])
}

/// Rolls back what `begin_finish` began, if it was not ended yet.
pub(super) fn undo_finish(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    if store.has_begun() {
        store.rollback()?;
    }
    Ok(vec![])
}

/// Rolls back the transaction that is open, if there is one. Answers whether there was.
pub(super) fn tidy(store: &Store, _: &Arguments<'_>) -> Result<Answer, Error> {
    let was_open = store.is_in_transaction();
    if was_open || store.has_begun() {
        store.rollback()?;
    }
    Ok(Form::plain(was_open))
}

/// Rolls the open transaction back, unless the answer passes.
pub(super) fn or_roll_back<A>(
    store: &Store,
    passes: impl FnOnce(&A) -> bool,
    work: impl FnOnce() -> Result<A, Error>,
) -> Result<A, Error> {
    let answer = work();
    if answer.as_ref().is_ok_and(passes) {
        return answer;
    }
    let rolled_back = store.rollback();
    answer.and_then(|answer| rolled_back.map(|()| answer))
}

/// Lists the columns that both forms of a delivery have, without the body.
fn delivered(item: &Delivered<OwnedValue>) -> Vec<OwnedValue> {
    [item.id, item.attempt, item.token, item.deadline_ms].map(OwnedValue::Integer).to_vec()
}

fn item_row(item: ItemInfo<&str>) -> Vec<OwnedValue> {
    vec![
        OwnedValue::Integer(item.id),
        text(item.state.word()),
        OwnedValue::Integer(item.attempt),
        optional(item.visible_at_ms),
        OwnedValue::Integer(item.sent_at_ms),
        optional_text(item.key),
        optional_text(item.note),
    ]
}

fn queue_row(info: QueueInfo) -> Vec<OwnedValue> {
    let counts = [info.visible, info.delayed, info.leased, info.dead].map(OwnedValue::Integer);
    let rest = vec![optional(info.oldest_ms), OwnedValue::Integer(info.max_attempts)];
    [vec![text(info.queue)], counts.to_vec(), rest].concat()
}
