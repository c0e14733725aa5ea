//! Answers about queues.

use litelease_wire::{
    Acknowledged, Buried, Cancelled, Discarded, Extended, GivenBack, Item, QueueDeleted, Received,
    Redriven, Refusal, Sent,
};
use serde::Serialize;

use super::{Effect, UndeliveredGrant};
use crate::job::{Id, Jobs};
use crate::response::Response;

/// The outcome of a job on a queue.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum QueueAnswer {
    #[serde(skip)]
    Delivered(Box<Delivered>),
    /// The delivery that a repeated request asks for is over.
    #[serde(skip)]
    NoItem,
    #[serde(skip)]
    Refused(Box<Refusal>),
    Sent(Sent),
    Acknowledged(Acknowledged),
    Extended(Extended),
    GivenBack(GivenBack),
    Buried(Buried),
    Redriven(Redriven),
    Discarded(Discarded),
    Cancelled(Cancelled),
    Deleted(QueueDeleted),
}

/// A delivery of an item.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Delivered {
    pub(crate) item: Item,
    pub(crate) deadline_ms: i64,
    /// Since when the item was visible, which is its order in the queue.
    pub(crate) was_visible_at_ms: i64,
    /// True if an idempotency key keeps the delivery when its client is gone.
    pub(crate) has_key: bool,
}

impl QueueAnswer {
    pub(super) fn undelivered(&self, id: &Id) -> Option<UndeliveredGrant> {
        match self {
            QueueAnswer::Delivered(delivered) if !delivered.has_key => {
                Some(UndeliveredGrant::Item {
                    id: id.clone(),
                    receipt: delivered.item.receipt.clone(),
                    visible_at_ms: delivered.was_visible_at_ms,
                })
            }
            _ => None,
        }
    }

    pub(super) fn effect(&self) -> Effect {
        match self {
            QueueAnswer::Sent(_) | QueueAnswer::GivenBack(_) => Effect::Freed,
            QueueAnswer::Redriven(Redriven { redriven: 1.., .. }) => Effect::Freed,
            _ => Effect::Nothing,
        }
    }

    pub(super) fn respond(self, grant: Option<UndeliveredGrant>, jobs: &Jobs) -> Response {
        match self {
            QueueAnswer::Delivered(delivered) => {
                Response::granting(&Received { item: Some(delivered.item) }, grant, jobs)
            }
            QueueAnswer::NoItem => Response::json(200, &Received { item: None }),
            QueueAnswer::Refused(refusal) => Response::refusal(&refusal),
            answer => Response::json(200, &answer),
        }
    }
}

/// Returns the refusal of a receipt.
pub(crate) fn stale(words: &str) -> QueueAnswer {
    let text = format!("stale receipt: {words}; stop working on this item");
    QueueAnswer::Refused(Box::new(Refusal::new(&words.replace(' ', "_"), text)))
}
