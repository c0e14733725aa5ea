//! The outcomes of jobs: one enum per resource. Each knows its response, its effect on other
//! clients, and the grant to take back if its client does not receive it.

mod names;
mod pools;
mod queues;

pub(crate) use names::{Attachments, Granted, LeaseWithRemaining, NameAnswer, known, rejected};
pub(crate) use pools::{PoolAnswer, PoolSnapshot, held_slot};
pub(crate) use queues::{Delivered, QueueAnswer, stale};

use litelease::Lease;
use litelease_wire::{Refusal, Seconds};

use crate::job::{Id, Jobs};
use crate::response::Response;

/// The outcome of a job.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Pool(PoolAnswer),
    Name(NameAnswer),
    Queue(QueueAnswer),
    /// Nothing is free, or the time to wait is over.
    NoneFree,
}

/// The effect of an answer on other clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Nothing,
    /// Streams have to report a change.
    Changed,
    /// The next waiter may find something free.
    Freed,
    /// The new owner of a lease may wait for it.
    HandedOver,
}

/// A grant that can be taken back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UndeliveredGrant {
    /// A slot: it is returned.
    Slot { id: Id, lease: String },
    /// A lease on a name: it is released.
    Name(Lease),
    /// A lease that its new owner has fetched: it waits to be fetched again.
    Fetched(Lease),
    /// An item that was delivered: it is visible again since that time, and the attempt does not
    /// count.
    Item { id: Id, receipt: String, visible_at_ms: i64 },
}

impl Answer {
    /// Returns the grant that is to be taken back if no client receives the answer. A key keeps its
    /// grant: the client will ask for it again.
    pub(crate) fn undelivered(&self, id: &Id) -> Option<UndeliveredGrant> {
        match self {
            Answer::Pool(answer) => answer.undelivered(id),
            Answer::Name(answer) => answer.undelivered(),
            Answer::Queue(answer) => answer.undelivered(id),
            Answer::NoneFree => None,
        }
    }

    /// Checks whether the grant of the answer is live. Returns `None` if it grants nothing.
    pub(crate) fn is_live_grant(&self, now_ms: i64) -> Option<bool> {
        match self {
            Answer::Pool(PoolAnswer::Lent { borrowed, .. }) => Some(borrowed.slot.is_live(now_ms)),
            Answer::Name(NameAnswer::Granted(granted)) => {
                Some(litelease::is_live(granted.lease.lease.expires_at_ms, now_ms))
            }
            Answer::Queue(QueueAnswer::Delivered(item)) => {
                Some(litelease::is_live(item.deadline_ms, now_ms))
            }
            _ => None,
        }
    }

    /// Checks whether the client may wait for something better.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self, Answer::NoneFree | Answer::Name(NameAnswer::Busy(..)))
    }

    pub(crate) fn effect(&self) -> Effect {
        match self {
            // A deleted pool ends the wait, too.
            Answer::Pool(_) => Effect::Freed,
            Answer::Name(answer) => answer.effect(),
            Answer::Queue(answer) => answer.effect(),
            Answer::NoneFree => Effect::Nothing,
        }
    }

    /// Turns the answer into a response.
    pub(crate) fn respond(self, id: &Id, jobs: &Jobs) -> Response {
        let grant = self.undelivered(id);
        match self {
            Answer::Pool(answer) => answer.respond(grant, jobs),
            Answer::Name(answer) => answer.respond(grant, jobs),
            Answer::Queue(answer) => answer.respond(grant, jobs),
            Answer::NoneFree => {
                Response::refusal(&Refusal::new("none_free", "no resource available"))
            }
        }
    }
}

impl From<PoolAnswer> for Answer {
    fn from(answer: PoolAnswer) -> Self {
        Answer::Pool(answer)
    }
}

impl From<NameAnswer> for Answer {
    fn from(answer: NameAnswer) -> Self {
        Answer::Name(answer)
    }
}

impl From<QueueAnswer> for Answer {
    fn from(answer: QueueAnswer) -> Self {
        Answer::Queue(answer)
    }
}

pub(crate) const fn seconds(ms: i64) -> Seconds {
    Seconds { ms }
}
