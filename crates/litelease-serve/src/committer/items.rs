//! Verbs on queues: receiving items, and what senders and workers ask for.

use std::sync::Arc;

use litelease::{
    AckResult, Error, GiveBackOptions, Litelease, Queue, Scope, SendOptions, StaleReason,
};

use super::batch::{Batch, Granting, Served, duration};
use super::names::for_client;
use super::wait_lists::WaitLists;
use crate::access::{Caller, Names};
use crate::job::{Answer, Delivered, GrantJob, Id, JobError, QueueJob, QueueVerb, Stale};
use crate::secret::request_hash;

/// How long the answer to a request with a key is kept.
const ANSWERS_KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// Receives an item. The inner result is the client's answer; the outer error fails the whole batch.
pub(super) fn receive(file: &Served<'_>, job: &GrantJob, caller: Caller, now_ms: i64) -> Granting {
    let (name, db) = (&*job.id, file.db);
    // A receive may have waited, and its key may have been removed meanwhile.
    if let Err(refused) = file.keys.check(caller, Scope::Receive, Names::One(name), now_ms) {
        return Ok(Err(refused));
    }
    let key = Key::of(caller, "receive", name, job.key.as_deref());
    for_client(deliver(db, name, job.ttl_ms, key.as_ref(), now_ms))
}

fn deliver(
    db: &Litelease,
    name: &str,
    visibility_ms: i64,
    key: Option<&Key>,
    now_ms: i64,
) -> Result<Answer, Error> {
    let queue = db.queue(name).at(now_ms);
    if let Some(receipt) = answered(db, key, now_ms)? {
        return again(&queue, &receipt, now_ms);
    }
    // The place of the item in the order, in case its client does not hear of it.
    let Some(was_visible_at_ms) = queue.next_visible()?.filter(|at_ms| *at_ms <= now_ms) else {
        return Ok(Answer::Nothing);
    };
    let Some(item) = queue.receive(duration(visibility_ms))? else { return Ok(Answer::Nothing) };
    remember(db, key, &item.receipt, now_ms)?;
    Ok(Answer::Delivered(Box::new(Delivered {
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
    })))
}

/// Answers a receive that was answered before: with the same delivery, or with nothing if that is
/// over.
fn again(queue: &Queue<'_>, receipt: &str, now_ms: i64) -> Result<Answer, Error> {
    let delivery = queue.delivery(receipt)?.filter(|item| item.deadline_ms > now_ms);
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

/// A request that is known by its idempotency key.
struct Key([u8; 16]);

impl Key {
    fn of(caller: Caller, call: &str, queue: &str, key: Option<&str>) -> Option<Self> {
        key.map(|key| Key(request_hash(caller, call, queue, key)))
    }
}

/// Returns what the request with this key was answered within the last day.
fn answered(db: &Litelease, key: Option<&Key>, now_ms: i64) -> Result<Option<String>, Error> {
    match key {
        Some(Key(key)) => db.answered(key, now_ms.saturating_sub(ANSWERS_KEPT_MS)),
        None => Ok(None),
    }
}

fn remember(db: &Litelease, key: Option<&Key>, answer: &str, now_ms: i64) -> Result<(), Error> {
    match key {
        Some(Key(key)) => {
            db.remember_answer(key, answer, now_ms, now_ms.saturating_sub(ANSWERS_KEPT_MS))
        }
        None => Ok(()),
    }
}

impl Batch {
    /// Does a verb on a queue. An error of the database fails the whole batch.
    pub(super) fn perform_on_queue(
        &mut self,
        job: QueueJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let QueueJob { caller, queue, verb, key, reply } = job;
        let id = Id::Queue(queue.clone());
        let scope = match verb {
            QueueVerb::Send { .. } => Scope::Send,
            _ => Scope::Receive,
        };
        let now_ms = self.now_ms;
        let checked = file.keys.check(caller, scope, Names::One(&queue), now_ms);
        let done = match checked {
            Ok(()) => for_client(perform(file.db, caller, &queue, verb, key.as_deref(), now_ms)),
            Err(refused) => Ok(Err(refused)),
        };
        let answer = match done {
            Ok(answer) => answer,
            Err(error) => {
                self.answer(id, reply, Err(JobError::Database));
                return Err(error);
            }
        };
        let frees =
            matches!(answer, Ok(Answer::Sent { .. } | Answer::ItemDone { word: GIVEN_BACK, .. }));
        self.answer(id.clone(), reply, answer);
        if frees { self.freed(&id, file, waiting) } else { Ok(()) }
    }
}

const GIVEN_BACK: &str = "given_back";

fn perform(
    db: &Litelease,
    caller: Caller,
    name: &Arc<str>,
    verb: QueueVerb,
    key: Option<&str>,
    now_ms: i64,
) -> Result<Answer, Error> {
    let queue = db.queue(name).at(now_ms);
    let item_done = |word: &'static str, receipt: &str| Answer::ItemDone {
        word,
        queue: name.to_string(),
        id: item_of(receipt),
    };
    match verb {
        QueueVerb::Send { body, delay_ms, key: item_key } => {
            let key = Key::of(caller, "send", name, key);
            let queue_name = name.to_string();
            if let Some(id) = answered(db, key.as_ref(), now_ms)? {
                return Ok(Answer::Sent { queue: queue_name, id: id.parse().unwrap_or_default() });
            }
            let options = SendOptions::new().delay(duration(delay_ms));
            let options = match &item_key {
                Some(key) => options.key(key),
                None => options,
            };
            let id = queue.send_with(body, options)?;
            remember(db, key.as_ref(), &id.to_string(), now_ms)?;
            Ok(Answer::Sent { queue: queue_name, id })
        }
        QueueVerb::Ack { receipt } => {
            let key = Key::of(caller, "ack", name, key);
            // The same key with another receipt is another request.
            if answered(db, key.as_ref(), now_ms)?.is_some_and(|acked| acked == receipt) {
                return Ok(item_done("acknowledged", &receipt));
            }
            if let Some(stale) = of_another_queue(&queue, &receipt)? {
                return Ok(stale);
            }
            match queue.ack(&receipt)? {
                AckResult::Acknowledged => {
                    remember(db, key.as_ref(), &receipt, now_ms)?;
                    Ok(item_done("acknowledged", &receipt))
                }
                AckResult::Stale { reason } => Ok(Answer::StaleReceipt(Stale::Rule(reason))),
            }
        }
        QueueVerb::Extend { receipt, visibility_ms } => {
            if let Some(stale) = of_another_queue(&queue, &receipt)? {
                return Ok(stale);
            }
            match queue.extend(&receipt, duration(visibility_ms))? {
                Some(deadline_ms) => Ok(Answer::Extended {
                    queue: name.to_string(),
                    id: item_of(&receipt),
                    deadline_ms,
                    left_ms: deadline_ms.saturating_sub(now_ms),
                }),
                None => why_not(&queue, &receipt, Stale::Expired),
            }
        }
        QueueVerb::GiveBack { receipt, delay_ms, note } => {
            if let Some(stale) = of_another_queue(&queue, &receipt)? {
                return Ok(stale);
            }
            let options = GiveBackOptions::new().delay(duration(delay_ms));
            let options = match &note {
                Some(note) => options.note(note),
                None => options,
            };
            match queue.give_back_with(&receipt, options)? {
                true => Ok(item_done(GIVEN_BACK, &receipt)),
                false => why_not(&queue, &receipt, Stale::Dead),
            }
        }
        QueueVerb::Bury { receipt, note } => {
            if let Some(stale) = of_another_queue(&queue, &receipt)? {
                return Ok(stale);
            }
            match queue.bury(&receipt, note.as_deref())? {
                true => Ok(item_done("buried", &receipt)),
                false => why_not(&queue, &receipt, Stale::Dead),
            }
        }
    }
}

/// Refuses the receipt of an item of another queue: the client may have no access to that one.
fn of_another_queue(queue: &Queue<'_>, receipt: &str) -> Result<Option<Answer>, Error> {
    Ok(match queue.is_mine(receipt)? {
        true => None,
        false => Some(Answer::StaleReceipt(Stale::Rule(StaleReason::Unknown))),
    })
}

/// Answers why a receipt was refused: because it does not pass, or else for this reason.
fn why_not(queue: &Queue<'_>, receipt: &str, otherwise: Stale) -> Result<Answer, Error> {
    Ok(Answer::StaleReceipt(match queue.check_receipt(receipt)? {
        AckResult::Stale { reason } => Stale::Rule(reason),
        AckResult::Acknowledged => otherwise,
    }))
}

/// Returns the item of a receipt that passes: its text begins with the id.
fn item_of(receipt: &str) -> i64 {
    receipt.split_once('-').and_then(|(id, _)| id.parse().ok()).unwrap_or_default()
}
