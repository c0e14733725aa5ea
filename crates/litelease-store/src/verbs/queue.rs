//! Queues.

use litelease_core::{AckResult, CancelResult};

use super::rows::{number, optional_text, text, truth};
use super::{Answer, Arguments, Misuse};
use crate::{
    Delivered, Error, ItemInfo, ItemName, OwnedValue, QueueInfo, SendOptions, Store, Value,
};

pub(super) fn queue(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let max_attempts = given.optional(1, Arguments::integer)?;
    Ok(number(store.queue(given.text(0)?, max_attempts)?))
}

pub(super) fn send(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let delay_ms = given.optional(2, Arguments::integer)?.unwrap_or(0);
    let options = SendOptions { delay_ms, key: given.optional(3, Arguments::text)? };
    Ok(number(store.send(given.text(0)?, given.value(1), options, given.when(4)?)?))
}

/// No row where nothing is visible.
pub(super) fn receive(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, visibility_ms, when) = (given.text(0)?, given.integer(1)?, given.when(3)?);
    let count = given.optional(2, Arguments::integer)?.unwrap_or(1);
    let count = usize::try_from(count).map_err(|_| Misuse::Argument(2, "0 or more"))?;
    let received = store.receive_many(queue, count, visibility_ms, when, |body| body.into())?;
    Ok(received.into_iter().map(delivered).collect())
}

/// No row where the receipt is stale.
pub(super) fn delivery(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    let found = store.in_snapshot(|| store.delivery(receipt, |body| body.into()))?;
    Ok(found.map(delivered).into_iter().collect())
}

/// Any number of receipts, in one commit. One row answers each.
pub(super) fn ack(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipts = (0..given.0.len()).map(|at| given.text(at)).collect::<Result<Vec<_>, _>>()?;
    Ok(store.ack_many(receipts)?.into_iter().map(acknowledged).collect())
}

/// No row where the delivery is over.
pub(super) fn extend(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let deadline_ms = store.extend(given.text(0)?, given.integer(1)?, given.when(2)?)?;
    Ok(deadline_ms.map(number).unwrap_or_default())
}

pub(super) fn give_back(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let delay_ms = given.optional(1, Arguments::integer)?.unwrap_or(0);
    let (receipt, note) = (given.text(0)?, given.optional(2, Arguments::text)?);
    Ok(vec![vec![truth(store.give_back(receipt, delay_ms, note, given.when(3)?)?)]])
}

pub(super) fn bury(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let note = given.optional(1, Arguments::text)?;
    Ok(vec![vec![truth(store.bury(given.text(0)?, note, given.when(2)?)?)]])
}

pub(super) fn redrive(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let id = given.optional(1, Arguments::integer)?;
    let redriven = store.redrive(given.text(0)?, id, given.when(2)?)?;
    Ok(number(i64::try_from(redriven).unwrap_or(i64::MAX)))
}

pub(super) fn discard(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let id = given.optional(1, Arguments::integer)?;
    let discarded = store.discard(given.text(0)?, id, given.when(2)?)?;
    Ok(number(i64::try_from(discarded).unwrap_or(i64::MAX)))
}

/// An id, or a key as text.
pub(super) fn cancel(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let name = match given.value(1) {
        Value::Text(key) => ItemName::Key(key),
        Value::Integer(id) => ItemName::Id(id),
        _ => return Err(Misuse::Argument(1, "an id or a key")),
    };
    Ok(vec![match store.cancel(given.text(0)?, name, given.when(2)?)? {
        CancelResult::Cancelled => vec![text("Cancelled")],
        CancelResult::Leased { deadline_ms } => {
            vec![text("Leased"), OwnedValue::Integer(deadline_ms)]
        }
        CancelResult::NotFound => vec![text("NotFound")],
    }])
}

pub(super) fn delete_queue(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(vec![vec![truth(store.delete_queue(given.text(0)?)?)]])
}

/// No row where there is no such queue.
pub(super) fn queue_info(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, when) = (given.text(0)?, given.when(1)?);
    let info = store.in_snapshot(|| store.queue_info(queue, when))?;
    Ok(info.map(queue_row).into_iter().collect())
}

/// How every queue stands, by name.
pub(super) fn queues(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let when = given.when(0)?;
    let all = store.in_snapshot(|| store.queues(when))?;
    Ok(all.into_iter().map(queue_row).collect())
}

/// No row where nothing is or will be visible.
pub(super) fn next_visible(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    Ok(store.next_visible(given.text(0)?)?.map(number).unwrap_or_default())
}

/// The dead ones first, and then in the order of their delivery.
pub(super) fn items(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (queue, when, mut rows) = (given.text(0)?, given.when(1)?, Vec::new());
    store.in_snapshot(|| {
        store.each_item(queue, when, |item| {
            rows.push(item_row(item));
            true
        })
    })?;
    Ok(rows)
}

/// Begins a transaction for the effect of an item, unless its receipt is stale: then no transaction
/// is open.
pub(super) fn begin_finish(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    store.begin_for_caller()?;
    // A worker that was replaced need not even try.
    Ok(vec![or_roll_back(store, || store.check_receipt(receipt))?])
}

/// Acknowledges the item, and commits. If the receipt is stale, rolls everything back. No
/// transaction is open afterwards.
pub(super) fn end_finish(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let receipt = given.text(0)?;
    let answer = or_roll_back(store, || {
        store.check_same_transaction()?;
        store.ack(receipt)
    })?;
    if store.has_begun() {
        store.commit()?;
    }
    Ok(vec![answer])
}

/// Rolls back what `begin_finish` began, if it was not ended yet.
pub(super) fn undo_finish(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    if store.has_begun() {
        store.rollback()?;
    }
    Ok(vec![])
}

/// Rolls back the transaction that is open, if there is one. Answers whether there was.
pub(super) fn tidy(store: &Store, _: Arguments<'_>) -> Result<Answer, Misuse> {
    let was_open = store.is_in_transaction();
    if was_open || store.has_begun() {
        store.rollback()?;
    }
    Ok(vec![vec![truth(was_open)]])
}

/// Rolls the open transaction back, unless the receipt passes.
fn or_roll_back(
    store: &Store,
    work: impl FnOnce() -> Result<AckResult, Error>,
) -> Result<Vec<OwnedValue>, Error> {
    let answer = work();
    if !answer.as_ref().is_ok_and(|answer| answer.is_acknowledged()) {
        let rolled_back = store.rollback();
        return answer.and_then(|answer| rolled_back.map(|()| acknowledged(answer)));
    }
    answer.map(acknowledged)
}

fn delivered(delivered: Delivered<OwnedValue>) -> Vec<OwnedValue> {
    let Delivered { id, receipt, attempt, token, deadline_ms, body } = delivered;
    let [id, attempt, token, deadline] = [id, attempt, token, deadline_ms].map(OwnedValue::Integer);
    vec![id, text(receipt), attempt, token, deadline, body]
}

fn acknowledged(answer: AckResult) -> Vec<OwnedValue> {
    match answer {
        AckResult::Acknowledged => vec![text("Acknowledged")],
        AckResult::Stale { reason } => vec![text("StaleReceipt"), text(reason.word())],
    }
}

fn item_row(item: ItemInfo<&str>) -> Vec<OwnedValue> {
    let ItemInfo { id, state, attempt, visible_at_ms, sent_at_ms, key, note } = item.into_owned();
    vec![
        OwnedValue::Integer(id),
        text(state.word()),
        OwnedValue::Integer(attempt),
        visible_at_ms.map_or(OwnedValue::Null, OwnedValue::Integer),
        OwnedValue::Integer(sent_at_ms),
        optional_text(key),
        optional_text(note),
    ]
}

fn queue_row(info: QueueInfo) -> Vec<OwnedValue> {
    let counts = [info.visible, info.delayed, info.leased, info.dead].map(OwnedValue::Integer);
    let oldest_ms = info.oldest_ms.map_or(OwnedValue::Null, OwnedValue::Integer);
    let rest = vec![oldest_ms, OwnedValue::Integer(info.max_attempts)];
    [vec![text(info.queue)], counts.to_vec(), rest].concat()
}
