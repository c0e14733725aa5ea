//! Verbs on queues: sends, receives, and the calls of workers and operators.

use litelease::{
    AckResult, CancelResult, Error, GiveBackOptions, ItemName, Litelease, Scope, SendOptions,
    StaleReason, is_live,
};
use litelease_store::{ManyItems, Store, When};
use litelease_wire::{
    Acknowledged, Buried, Cancelled, Discarded, Extended, GivenBack, Item, QueueDeleted, Redriven,
    Refusal, Sent, Value,
};

use super::batch::{Batch, Done, Failed, Operator, Served, duration, split};
use super::wait_lists::WaitLists;
use crate::access::{Caller, Names};
use crate::answer::{Answer, Delivered, QueueAnswer, seconds, stale};
use crate::answered_rows;
use crate::job::{GrantJob, Id, Job, ManyJob};
use crate::secret::request_hash;
use crate::value::{from_stored, to_stored};

/// Receives an item.
pub(super) fn receive(file: &Served<'_>, job: &GrantJob, caller: Caller, now_ms: i64) -> Done {
    let name = &*job.id;
    // A receive may have waited, and its key may have been removed meanwhile.
    file.keys.check(caller, Scope::Receive, Names::One(name), now_ms)?;
    let key = Key::new(caller, "receive", name, job.key.as_deref());
    let queue = file.db.queue(name).at(now_ms);
    if let Some(receipt) = answered(file.db, key.as_ref(), now_ms)? {
        // The answer is the same delivery, or nothing if that is over.
        let delivery = queue.delivery(&receipt)?.filter(|item| is_live(item.deadline_ms, now_ms));
        return Ok(Answer::Queue(
            delivery.map_or(QueueAnswer::NoItem, |item| delivered(name, item, 0, true, now_ms)),
        ));
    }
    may_remember(file, key.as_ref(), now_ms)?;
    // The item's order in the queue, for the case that its client does not receive it.
    let Some(was_visible_at_ms) = queue.next_visible()?.filter(|at_ms| *at_ms <= now_ms) else {
        return Ok(Answer::NoneFree);
    };
    let Some(item) = queue.receive(duration(job.ttl_ms))? else { return Ok(Answer::NoneFree) };
    remember(file, key.as_ref(), &item.receipt, now_ms)?;
    Ok(delivered(name, item, was_visible_at_ms, key.is_some(), now_ms).into())
}

fn delivered(
    queue: &str,
    item: litelease::Item<'_>,
    was_visible_at_ms: i64,
    has_key: bool,
    now_ms: i64,
) -> QueueAnswer {
    let deadline_ms = item.deadline_ms;
    let item = Item {
        attempt: item.attempt,
        body: from_stored(item.body),
        expires_at_unix: deadline_ms.div_euclid(1000),
        expires_in: seconds(deadline_ms.saturating_sub(now_ms)),
        id: item.id,
        queue: queue.into(),
        receipt: item.receipt,
        token: item.token,
    };
    QueueAnswer::Delivered(Box::new(Delivered { item, deadline_ms, was_visible_at_ms, has_key }))
}

/// A request that is identified by its client and its idempotency key.
pub(crate) struct Key {
    caller: Caller,
    hash: [u8; 16],
}

impl Key {
    pub(crate) fn new(caller: Caller, call: &str, queue: &str, key: Option<&str>) -> Option<Self> {
        key.map(|key| Key { caller, hash: request_hash(caller, call, queue, key) })
    }
}

/// Returns the answer that the request with this key got within the last day.
fn answered(db: &Litelease, key: Option<&Key>, now_ms: i64) -> Result<Option<String>, Error> {
    match key {
        Some(Key { hash, .. }) => answered_rows::find(db, hash, now_ms),
        None => Ok(None),
    }
}

/// Checks whether the answer to a request with a key may be stored, if it has one.
fn may_remember(file: &Served<'_>, key: Option<&Key>, now_ms: i64) -> Result<(), Failed> {
    Ok(key.map_or(Ok(()), |key| file.bounds.check_answer(key.caller, now_ms))?)
}

fn remember(file: &Served<'_>, key: Option<&Key>, answer: &str, now_ms: i64) -> Result<(), Error> {
    let Some(Key { caller, hash }) = key else { return Ok(()) };
    file.bounds.count_answer(*caller);
    answered_rows::store(file.db, hash, answer, now_ms)
}

/// Runs work that makes a number, once for each key.
fn once(
    file: &Served<'_>,
    key: Option<&Key>,
    now_ms: i64,
    make: impl FnOnce() -> Result<i64, Error>,
) -> Result<i64, Failed> {
    if let Some(number) = answered(file.db, key, now_ms)? {
        return Ok(number.parse().unwrap_or_default());
    }
    may_remember(file, key, now_ms)?;
    let number = make()?;
    remember(file, key, &number.to_string(), now_ms)?;
    Ok(number)
}

/// Sends an item.
pub(crate) fn send(
    file: &Served<'_>,
    name: &str,
    body: Value,
    options: SendOptions<'_>,
    key: Option<&Key>,
    now_ms: i64,
) -> Done {
    let queue = file.db.queue(name).at(now_ms);
    let id = once(file, key, now_ms, || queue.send_with(to_stored(body), options))?;
    Ok(QueueAnswer::Sent(Sent { id, queue: name.into() }).into())
}

/// Acknowledges an item.
pub(crate) fn ack(
    file: &Served<'_>,
    name: &str,
    receipt: &str,
    key: Option<&Key>,
    now_ms: i64,
) -> Done {
    // The same key with another receipt is another request.
    if answered(file.db, key, now_ms)?.is_none_or(|acked| acked != receipt) {
        if !is_of_queue(file.db, name, receipt)? {
            return unknown();
        }
        match file.db.queue(name).at(now_ms).ack(receipt)? {
            AckResult::Acknowledged => {}
            AckResult::Stale { reason } => return Ok(stale(reason.word()).into()),
        }
        if may_remember(file, key, now_ms).is_ok() {
            remember(file, key, receipt, now_ms)?;
        }
    }
    let (id, queue) = (item_of(receipt), name.into());
    Ok(QueueAnswer::Acknowledged(Acknowledged { acknowledged: true, id, queue }).into())
}

/// Prolongs a delivery.
pub(crate) fn extend(
    file: &Served<'_>,
    name: &str,
    receipt: &str,
    visibility_ms: i64,
    now_ms: i64,
) -> Done {
    if !is_of_queue(file.db, name, receipt)? {
        return unknown();
    }
    let queue = file.db.queue(name).at(now_ms);
    let Some(deadline_ms) = queue.extend(receipt, duration(visibility_ms))? else {
        return why_not(file.db, receipt, "expired");
    };
    Ok(Answer::Queue(QueueAnswer::Extended(Extended {
        expires_at_unix: deadline_ms.div_euclid(1000),
        expires_in: seconds(deadline_ms.saturating_sub(now_ms)),
        id: item_of(receipt),
        queue: name.into(),
    })))
}

/// Makes an item visible again.
pub(crate) fn give_back(
    file: &Served<'_>,
    name: &str,
    receipt: &str,
    options: GiveBackOptions<'_>,
    now_ms: i64,
) -> Done {
    if !is_of_queue(file.db, name, receipt)? {
        return unknown();
    }
    if !file.db.queue(name).at(now_ms).give_back_with(receipt, options)? {
        return why_not(file.db, receipt, "dead");
    }
    let (id, queue) = (item_of(receipt), name.into());
    Ok(QueueAnswer::GivenBack(GivenBack { given_back: true, id, queue }).into())
}

/// Makes an item dead.
pub(crate) fn bury(
    file: &Served<'_>,
    name: &str,
    receipt: &str,
    note: Option<&str>,
    now_ms: i64,
) -> Done {
    if !is_of_queue(file.db, name, receipt)? {
        return unknown();
    }
    if !file.db.queue(name).at(now_ms).bury(receipt, note)? {
        return why_not(file.db, receipt, "dead");
    }
    let (id, queue) = (item_of(receipt), name.into());
    Ok(QueueAnswer::Buried(Buried { buried: true, id, queue }).into())
}

/// Revives or deletes exactly these dead items. Those that are not dead any more are left out.
pub(crate) fn change_some(
    file: &Served<'_>,
    name: &str,
    (change, ids): (ManyItems, &[i64]),
    operator: &Operator,
    key: Option<&Key>,
    now_ms: i64,
) -> Done {
    let queue = file.db.queue(name).at(now_ms);
    let one = |id: &i64| match change {
        ManyItems::Redrive => queue.redrive_one(*id).map(i64::from),
        ManyItems::Discard | ManyItems::Delete => queue.discard_one(*id).map(i64::from),
    };
    let make = || ids.iter().map(one).sum();
    let count = once(file, key, now_ms, || file.acting(operator, make))?;
    Ok(changed(change, name, count).into())
}

/// Cancels an item, by its id or its key. Only a success is stored: the worker that has the item
/// may give it back.
pub(crate) fn cancel(
    file: &Served<'_>,
    name: &str,
    item: ItemName<'_>,
    operator: &Operator,
    key: Option<&Key>,
    now_ms: i64,
) -> Done {
    let queue = name.to_owned();
    let done = |id| QueueAnswer::Cancelled(Cancelled { cancelled: true, id, queue }).into();
    if let Some(id) = answered(file.db, key, now_ms)? {
        return Ok(done(id.parse().unwrap_or_default()));
    }
    may_remember(file, key, now_ms)?;
    let id = match item {
        ItemName::Id(id) => Some(id),
        ItemName::Key(key) => {
            file.db.with_store(|store| store.id_of_key(name, key, When::At(now_ms)))?
        }
    };
    let cancel = || file.db.queue(name).at(now_ms).cancel(item);
    let refusal = match file.acting(operator, cancel)? {
        CancelResult::Cancelled => {
            let id = id.unwrap_or_default();
            remember(file, key, &id.to_string(), now_ms)?;
            return Ok(done(id));
        }
        CancelResult::Leased { deadline_ms } => Refusal {
            expires_in: Some(seconds(deadline_ms.saturating_sub(now_ms))),
            ..Refusal::new(
                "leased",
                "a worker has the item: it can be cancelled when its delivery is over",
            )
        },
        CancelResult::NotFound => Refusal::new(
            "not_found",
            "there is no such item: it was acknowledged, cancelled, discarded or never sent",
        ),
    };
    Ok(QueueAnswer::Refused(Box::new(refusal)).into())
}

impl Batch {
    /// Does a slice of a change of many items, and leaves the rest to the next commit, so that
    /// other clients are served in between.
    pub(super) fn change_many(
        &mut self,
        job: ManyJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let (now_ms, id, change) = (self.now_ms, Id::Queue(job.queue.clone()), job.change);
        let names = Names::One(&job.queue);
        let checked = file.keys.check(job.operator.caller, Scope::Operate, names, now_ms);
        let done = checked.map_err(Failed::from).and_then(|()| change_slice(file, &job, now_ms));
        match split(done) {
            (Ok((count, after @ Some(_))), _) => {
                self.unfinished.push(Job::Many(ManyJob { count, after, ..job }));
            }
            (done, error) => {
                let answer = done.map(|(count, _)| changed(change, &job.queue, count).into());
                self.answer(id.clone(), job.reply, answer);
                error.map_or(Ok(()), Err)?;
            }
        }
        match change {
            ManyItems::Redrive => self.freed(&id, file, waiting),
            ManyItems::Discard | ManyItems::Delete => Ok(()),
        }
    }
}

/// Changes a slice of many items. Returns how many were changed so far, and the id after which the
/// next slice begins, if there is one. The last slice stores the answer for the key.
fn change_slice(
    file: &Served<'_>,
    job: &ManyJob,
    now_ms: i64,
) -> Result<(i64, Option<i64>), Failed> {
    let word = match job.change {
        ManyItems::Redrive => "redrive",
        ManyItems::Discard => "discard",
        ManyItems::Delete => "delete_queue",
    };
    let key = Key::new(job.operator.caller, word, &job.queue, job.key.as_deref());
    if let Some(count) = answered(file.db, key.as_ref(), now_ms)? {
        return Ok((count.parse().unwrap_or_default(), None));
    }
    may_remember(file, key.as_ref(), now_ms)?;
    let (after, when) = (job.after.unwrap_or(0), When::At(now_ms));
    let slice = file.acting(&job.operator, || {
        file.db.with_store(|store| store.change_slice(&job.queue, job.change, after, when))
    })?;
    let count = job.count.saturating_add(i64::try_from(slice.count).unwrap_or(i64::MAX));
    if slice.next.is_none() {
        remember(file, key.as_ref(), &count.to_string(), now_ms)?;
    }
    Ok((count, slice.next))
}

/// Returns the answer to a change of items that is done.
fn changed(change: ManyItems, name: &str, count: i64) -> QueueAnswer {
    let queue = name.to_owned();
    match change {
        ManyItems::Redrive => QueueAnswer::Redriven(Redriven { queue, redriven: count }),
        ManyItems::Discard => QueueAnswer::Discarded(Discarded { discarded: count, queue }),
        ManyItems::Delete => QueueAnswer::Deleted(QueueDeleted { deleted: count > 0, queue }),
    }
}

/// Checks whether a receipt belongs to an item of this queue: the client may have no access to
/// others.
fn is_of_queue(db: &Litelease, queue: &str, receipt: &str) -> Result<bool, Error> {
    db.with_store(|store: &Store| store.is_of_queue(queue, receipt))
}

fn unknown() -> Done {
    Ok(stale(StaleReason::Unknown.word()).into())
}

/// Answers the reason why a receipt was refused: because it does not pass, or else this one.
fn why_not(db: &Litelease, receipt: &str, otherwise: &str) -> Done {
    Ok(Answer::Queue(match db.with_store(|store| store.check_receipt(receipt))? {
        AckResult::Stale { reason } => stale(reason.word()),
        AckResult::Acknowledged => stale(otherwise),
    }))
}

/// Returns the item of a receipt that passes: its text begins with the id.
fn item_of(receipt: &str) -> i64 {
    receipt.split_once('-').and_then(|(id, _)| id.parse().ok()).unwrap_or_default()
}
