//! Verbs on queues: receiving items, and what senders and workers ask for.

use std::sync::Arc;

use litelease::{
    AckResult, CancelResult, Error, GiveBackOptions, ItemName, Litelease, Queue, Scope,
    SendOptions, StaleReason, is_live,
};
use litelease_store::{ManyItems, Store, When};

use super::batch::{Batch, Granting, Served, duration};
use super::names::for_client;
use super::wait_lists::WaitLists;
use crate::access::{Caller, Names};
use crate::answered_rows;
use crate::job::{
    Answer, Delivered, GrantJob, Id, Job, JobError, ManyJob, Meant, QueueJob, QueueVerb, Stale,
    no_id,
};
use crate::secret::request_hash;

/// Receives an item. The inner result is the client's answer; the outer error fails the whole
/// batch.
pub(super) fn receive(file: &Served<'_>, job: &GrantJob, caller: Caller, now_ms: i64) -> Granting {
    let name = &*job.id;
    // A receive may have waited, and its key may have been removed meanwhile.
    if let Err(refused) = file.keys.check(caller, Scope::Receive, Names::One(name), now_ms) {
        return Ok(Err(refused));
    }
    let key = Key::of(caller, "receive", name, job.key.as_deref());
    for_client(deliver(file, name, job.ttl_ms, key.as_ref(), now_ms)).map(Result::flatten)
}

fn deliver(
    file: &Served<'_>,
    name: &str,
    visibility_ms: i64,
    key: Option<&Key>,
    now_ms: i64,
) -> Result<Result<Answer, JobError>, Error> {
    let queue = file.db.queue(name).at(now_ms);
    if let Some(receipt) = answered(file.db, key, now_ms)? {
        return again(&queue, &receipt, now_ms).map(Ok);
    }
    if let Err(refused) = may_remember(file, key, now_ms) {
        return Ok(Err(refused));
    }
    // The place of the item in the order, in case its client does not hear of it.
    let Some(was_visible_at_ms) = queue.next_visible()?.filter(|at_ms| *at_ms <= now_ms) else {
        return Ok(Ok(Answer::Nothing));
    };
    let Some(item) = queue.receive(duration(visibility_ms))? else {
        return Ok(Ok(Answer::Nothing));
    };
    remember(file, key, &item.receipt, now_ms)?;
    Ok(Ok(Answer::Delivered(Box::new(Delivered {
        queue: name.into(),
        id: item.id,
        attempt: item.attempt,
        token: item.token,
        deadline_ms: item.deadline_ms,
        left_ms: item.deadline_ms.saturating_sub(now_ms),
        was_visible_at_ms,
        has_key: key.is_some(),
        receipt: item.receipt,
        body: item.body,
    }))))
}

/// Answers a receive that was answered before: with the same delivery, or with nothing if that is
/// over.
fn again(queue: &Queue<'_>, receipt: &str, now_ms: i64) -> Result<Answer, Error> {
    let delivery = queue.delivery(receipt)?.filter(|item| is_live(item.deadline_ms, now_ms));
    let Some(item) = delivery else { return Ok(Answer::NoItem) };
    Ok(Answer::Delivered(Box::new(Delivered {
        queue: queue.name().into(),
        id: item.id,
        attempt: item.attempt,
        token: item.token,
        deadline_ms: item.deadline_ms,
        left_ms: item.deadline_ms.saturating_sub(now_ms),
        was_visible_at_ms: 0,
        has_key: true,
        receipt: item.receipt,
        body: item.body,
    })))
}

/// A request that is known by its client and its idempotency key.
struct Key {
    caller: Caller,
    hash: [u8; 16],
}

impl Key {
    fn of(caller: Caller, call: &str, queue: &str, key: Option<&str>) -> Option<Self> {
        key.map(|key| Key { caller, hash: request_hash(caller, call, queue, key) })
    }
}

/// Returns what the request with this key was answered within the last day.
fn answered(db: &Litelease, key: Option<&Key>, now_ms: i64) -> Result<Option<String>, Error> {
    match key {
        Some(Key { hash, .. }) => answered_rows::find(db, hash, now_ms),
        None => Ok(None),
    }
}

/// Checks whether the answer to a request with a key may be stored, if it has one.
fn may_remember(file: &Served<'_>, key: Option<&Key>, now_ms: i64) -> Result<(), JobError> {
    key.map_or(Ok(()), |key| file.bounds.check_answer(key.caller, now_ms))
}

fn remember(file: &Served<'_>, key: Option<&Key>, answer: &str, now_ms: i64) -> Result<(), Error> {
    let Some(Key { caller, hash }) = key else { return Ok(()) };
    file.bounds.count_answer(*caller);
    answered_rows::store(file.db, hash, answer, now_ms)
}

impl Batch {
    /// Does a verb on a queue. An error of the database fails the whole batch.
    pub(super) fn perform_on_queue(
        &mut self,
        job: QueueJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let QueueJob { caller, queue: asked, verb, key, reply } = job;
        let now_ms = self.now_ms;
        let found = match (&asked, verb.receipt()) {
            (None, Some(receipt)) => {
                for_client(file.db.with_store(|store| store.queue_of(receipt)))
            }
            _ => Ok(Ok(asked.as_deref().map(str::to_owned))),
        };
        let done = match found {
            Ok(Ok(found)) => {
                let queue: Arc<str> = found.unwrap_or_default().into();
                let id = Id::Queue(queue.clone());
                // A key belongs to what the client has asked for.
                let key =
                    Key::of(caller, verb.word(), asked.as_deref().unwrap_or(""), key.as_deref());
                let checked = check(file, caller, asked.is_some(), &queue, &verb, now_ms);
                let done = match checked {
                    Ok(None) => for_client(perform(file, &queue, verb, key.as_ref(), now_ms))
                        .map(Result::flatten),
                    Ok(Some(unknown)) => Ok(Ok(unknown)),
                    Err(refused) => Ok(Err(refused)),
                };
                done.map(|answer| (id, answer))
            }
            Ok(Err(refused)) => Ok((no_id(), Err(refused))),
            Err(error) => Err(error),
        };
        let (id, answer) = match done {
            Ok(done) => done,
            Err(error) => {
                self.answer(no_id(), reply, Err(JobError::Database));
                return Err(error);
            }
        };
        let frees = match &answer {
            Ok(Answer::Sent { .. } | Answer::ItemDone { word: GIVEN_BACK, .. }) => true,
            Ok(Answer::Counted { word: REDRIVEN, count, .. }) => *count > 0,
            _ => false,
        };
        self.answer(id.clone(), reply, answer);
        if frees { self.freed(&id, file, waiting) } else { Ok(()) }
    }

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
        let done = match file.keys.check(job.caller, Scope::Operate, names, now_ms) {
            Ok(()) => for_client(change_slice(file, &job, now_ms)).map(Result::flatten),
            Err(refused) => Ok(Err(refused)),
        };
        match done {
            Ok(Ok((count, after @ Some(_)))) => {
                self.unfinished.push(Job::Many(ManyJob { count, after, ..job }));
            }
            Ok(done) => {
                let answer = done.map(|(count, _)| changed(change, &job.queue, count));
                self.answer(id.clone(), job.reply, answer);
            }
            Err(error) => {
                self.answer(id, job.reply, Err(JobError::Database));
                return Err(error);
            }
        }
        match change {
            ManyItems::Redrive => self.freed(&id, file, waiting),
            ManyItems::Discard | ManyItems::Delete => Ok(()),
        }
    }
}

/// Does a slice of a change of many items. Returns how many were changed so far, and the id after
/// which the next slice begins, if there is one. The key is remembered with the last one.
fn change_slice(
    file: &Served<'_>,
    job: &ManyJob,
    now_ms: i64,
) -> Result<Result<(i64, Option<i64>), JobError>, Error> {
    let word = match job.change {
        ManyItems::Redrive => "redrive",
        ManyItems::Discard => "discard",
        ManyItems::Delete => "delete",
    };
    let key = Key::of(job.caller, word, &job.queue, job.key.as_deref());
    if let Some(count) = answered(file.db, key.as_ref(), now_ms)? {
        return Ok(Ok((count.parse().unwrap_or_default(), None)));
    }
    if let Err(refused) = may_remember(file, key.as_ref(), now_ms) {
        return Ok(Err(refused));
    }
    let (after, when) = (job.after.unwrap_or(0), When::At(now_ms));
    let slice =
        file.db.with_store(|store| store.change_slice(&job.queue, job.change, after, when))?;
    let count = job.count.saturating_add(i64::try_from(slice.count).unwrap_or(i64::MAX));
    if slice.next.is_none() {
        remember(file, key.as_ref(), &count.to_string(), now_ms)?;
    }
    Ok(Ok((count, slice.next)))
}

/// Returns the answer to a change of many items that is done.
fn changed(change: ManyItems, name: &str, count: i64) -> Answer {
    let queue = name.to_owned();
    match change {
        ManyItems::Redrive => Answer::Counted { word: REDRIVEN, queue, count },
        ManyItems::Discard => Answer::Counted { word: DISCARDED, queue, count },
        ManyItems::Delete => Answer::QueueDeleted { queue, is_done: count > 0 },
    }
}

const GIVEN_BACK: &str = "given_back";
const REDRIVEN: &str = "redriven";
const DISCARDED: &str = "discarded";

impl QueueVerb {
    /// Returns the name of the call, which an idempotency key is for.
    fn word(&self) -> &'static str {
        match self {
            QueueVerb::Send { .. } => "send",
            QueueVerb::Ack { .. } => "ack",
            QueueVerb::Extend { .. } => "extend",
            QueueVerb::GiveBack { .. } => "give-back",
            QueueVerb::Bury { .. } => "bury",
            QueueVerb::Redrive { .. } => "redrive",
            QueueVerb::Discard { .. } => "discard",
            QueueVerb::Cancel(_) => "cancel",
        }
    }

    /// Returns the scope that a client needs for it.
    fn scope(&self) -> Scope {
        match self {
            QueueVerb::Send { .. } => Scope::Send,
            QueueVerb::Ack { .. }
            | QueueVerb::Extend { .. }
            | QueueVerb::GiveBack { .. }
            | QueueVerb::Bury { .. } => Scope::Receive,
            QueueVerb::Redrive { .. } | QueueVerb::Discard { .. } | QueueVerb::Cancel(_) => {
                Scope::Operate
            }
        }
    }
}

/// Checks whether a client may do a verb. If it has not named the queue, a receipt of a queue that
/// it may not use is unknown to it, as one of another queue than it has named.
fn check(
    file: &Served<'_>,
    caller: Caller,
    is_named: bool,
    queue: &str,
    verb: &QueueVerb,
    now_ms: i64,
) -> Result<Option<Answer>, JobError> {
    let scope = verb.scope();
    let check = |names| file.keys.check(caller, scope, names, now_ms);
    if is_named {
        return check(Names::One(queue)).map(|()| None);
    }
    check(Names::Some)?;
    let unknown = Answer::StaleReceipt(Stale::Rule(StaleReason::Unknown));
    Ok((!queue.is_empty() && check(Names::One(queue)).is_err()).then_some(unknown))
}

fn perform(
    file: &Served<'_>,
    name: &Arc<str>,
    verb: QueueVerb,
    key: Option<&Key>,
    now_ms: i64,
) -> Result<Result<Answer, JobError>, Error> {
    let queue = file.db.queue(name).at(now_ms);
    let queue_name = || name.to_string();
    let item_done = |word: &'static str, receipt: &str| Answer::ItemDone {
        word,
        queue: queue_name(),
        id: item_of(receipt),
    };
    if let Some(receipt) = verb.receipt()
        && !matches!(verb, QueueVerb::Ack { .. })
        && let Some(stale) = of_another_queue(file.db, &queue, receipt)?
    {
        return Ok(Ok(stale));
    }
    let answer = match verb {
        QueueVerb::Send { body, delay_ms, key: item_key } => {
            let options = SendOptions::new().delay(duration(delay_ms));
            let options = match &item_key {
                Some(key) => options.key(key),
                None => options,
            };
            let sent = once(file, key, now_ms, || queue.send_with(body, options))?;
            return Ok(sent.map(|id| Answer::Sent { queue: queue_name(), id }));
        }
        QueueVerb::Ack { receipt } => {
            // The same key with another receipt is another request.
            if answered(file.db, key, now_ms)?.is_some_and(|acked| acked == receipt) {
                return Ok(Ok(item_done("acknowledged", &receipt)));
            }
            if let Some(stale) = of_another_queue(file.db, &queue, &receipt)? {
                return Ok(Ok(stale));
            }
            match queue.ack(&receipt)? {
                AckResult::Acknowledged => {
                    if may_remember(file, key, now_ms).is_ok() {
                        remember(file, key, &receipt, now_ms)?;
                    }
                    Ok(item_done("acknowledged", &receipt))
                }
                AckResult::Stale { reason } => Ok(Answer::StaleReceipt(Stale::Rule(reason))),
            }
        }
        QueueVerb::Extend { receipt, visibility_ms } => {
            match queue.extend(&receipt, duration(visibility_ms))? {
                Some(deadline_ms) => Ok(Answer::Extended {
                    queue: queue_name(),
                    id: item_of(&receipt),
                    deadline_ms,
                    left_ms: deadline_ms.saturating_sub(now_ms),
                }),
                None => why_not(file.db, &receipt, Stale::Expired),
            }
        }
        QueueVerb::GiveBack { receipt, delay_ms, note } => {
            let options = GiveBackOptions::new().delay(duration(delay_ms));
            let options = match &note {
                Some(note) => options.note(note),
                None => options,
            };
            match queue.give_back_with(&receipt, options)? {
                true => Ok(item_done(GIVEN_BACK, &receipt)),
                false => why_not(file.db, &receipt, Stale::Dead),
            }
        }
        QueueVerb::Bury { receipt, note } => match queue.bury(&receipt, note.as_deref())? {
            true => Ok(item_done("buried", &receipt)),
            false => why_not(file.db, &receipt, Stale::Dead),
        },
        QueueVerb::Redrive { id } => {
            let done = once(file, key, now_ms, || queue.redrive_one(id).map(i64::from))?;
            let counted = |count| Answer::Counted { word: REDRIVEN, queue: queue_name(), count };
            return Ok(done.map(counted));
        }
        QueueVerb::Discard { id } => {
            let done = once(file, key, now_ms, || queue.discard_one(id).map(i64::from))?;
            let counted = |count| Answer::Counted { word: DISCARDED, queue: queue_name(), count };
            return Ok(done.map(counted));
        }
        QueueVerb::Cancel(meant) => return cancel(file, &queue, &meant, key, now_ms),
    };
    answer.map(Ok)
}

/// Cancels an item. Only a success is remembered: the worker that has the item may give it back.
fn cancel(
    file: &Served<'_>,
    queue: &Queue<'_>,
    meant: &Meant,
    key: Option<&Key>,
    now_ms: i64,
) -> Result<Result<Answer, JobError>, Error> {
    let done = |id| Answer::ItemDone { word: "cancelled", queue: queue.name().into(), id };
    if let Some(id) = answered(file.db, key, now_ms)? {
        return Ok(Ok(done(id.parse().unwrap_or_default())));
    }
    if let Err(refused) = may_remember(file, key, now_ms) {
        return Ok(Err(refused));
    }
    let (name, id) = match meant {
        Meant::Id(id) => (ItemName::Id(*id), Some(*id)),
        Meant::Key(key) => {
            let find = |store: &Store| store.id_of_key(queue.name(), key, When::At(now_ms));
            (ItemName::Key(key), file.db.with_store(find)?)
        }
    };
    Ok(Ok(match queue.cancel(name)? {
        CancelResult::Cancelled => {
            let id = id.unwrap_or_default();
            remember(file, key, &id.to_string(), now_ms)?;
            done(id)
        }
        CancelResult::Leased { deadline_ms } => {
            Answer::ItemLeased { left_ms: deadline_ms.saturating_sub(now_ms) }
        }
        CancelResult::NotFound => Answer::NoSuchItem,
    }))
}

/// Does something that makes a number, once for each key.
fn once(
    file: &Served<'_>,
    key: Option<&Key>,
    now_ms: i64,
    make: impl FnOnce() -> Result<i64, Error>,
) -> Result<Result<i64, JobError>, Error> {
    if let Some(number) = answered(file.db, key, now_ms)? {
        return Ok(Ok(number.parse().unwrap_or_default()));
    }
    if let Err(refused) = may_remember(file, key, now_ms) {
        return Ok(Err(refused));
    }
    let number = make()?;
    remember(file, key, &number.to_string(), now_ms)?;
    Ok(Ok(number))
}

/// Refuses the receipt of an item of another queue: the client may have no access to that one.
fn of_another_queue(
    db: &Litelease,
    queue: &Queue<'_>,
    receipt: &str,
) -> Result<Option<Answer>, Error> {
    Ok(match db.with_store(|store| store.is_of_queue(queue.name(), receipt))? {
        true => None,
        false => Some(Answer::StaleReceipt(Stale::Rule(StaleReason::Unknown))),
    })
}

/// Answers why a receipt was refused: because it does not pass, or else for this reason.
fn why_not(db: &Litelease, receipt: &str, otherwise: Stale) -> Result<Answer, Error> {
    Ok(Answer::StaleReceipt(match db.with_store(|store| store.check_receipt(receipt))? {
        AckResult::Stale { reason } => Stale::Rule(reason),
        AckResult::Acknowledged => otherwise,
    }))
}

/// Returns the item of a receipt that passes: its text begins with the id.
fn item_of(receipt: &str) -> i64 {
    receipt.split_once('-').and_then(|(id, _)| id.parse().ok()).unwrap_or_default()
}
