//! The history of a server.

use std::time::Duration;

use litelease_wire::{Event as Wire, ListHistory};

use crate::client::Client;
use crate::mode::Mode;
use crate::retry::RETRY;

/// Rows of the history of a server, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct History {
    /// The rows.
    pub events: Vec<Event>,
    /// True if the server keeps a history.
    pub is_on: bool,
}

/// Something that happened to a name, a queue or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Its number. Later ones have larger numbers.
    pub id: i64,
    /// When it happened, in Unix milliseconds of the server.
    pub at_ms: i64,
    /// The event in a word: `granted`, `released`, `expired`, `broken`…
    pub kind: String,
    /// `name`, `queue` or `pool`.
    pub object: String,
    /// The name.
    pub name: String,
    /// The holder.
    pub owner: Option<String>,
    /// The token of the grant.
    pub token: Option<i64>,
    /// How long a grant that ended was held.
    pub held_for: Option<Duration>,
    /// The tick in Unix milliseconds, the id of the item, or the slot.
    pub number: Option<i64>,
    /// The exit code of a command, or how many items an operator changed.
    pub result: Option<i64>,
    /// The name of the access key of the operator.
    pub actor: Option<String>,
    /// The reason that was given.
    pub note: Option<String>,
}

impl From<Wire> for Event {
    fn from(event: Wire) -> Self {
        Event {
            id: event.id,
            at_ms: event.at_unix_ms,
            kind: event.kind,
            object: event.object,
            name: event.name,
            owner: event.owner,
            token: event.token,
            held_for: event.held_for.map(|held_for| held_for.duration()),
            number: event.number,
            result: event.result,
            actor: event.actor,
            note: event.note,
        }
    }
}

/// The most rows that one page has.
const PAGE: usize = 1000;

impl<M: Mode> Client<M> {
    /// Returns what happened, the newest first: about one name or all, of one kind or all, since a
    /// Unix time in milliseconds or ever, `most` rows at most.
    pub fn history(
        &self,
        name: Option<&str>,
        kind: Option<&str>,
        since_ms: Option<i64>,
        most: usize,
    ) -> M::Answer<History> {
        let request = ListHistory {
            name: name.map(str::to_owned),
            prefix: None,
            object: None,
            kind: kind.map(str::to_owned),
            since: since_ms.map(|since_ms| since_ms as f64 / 1000.0),
            newer: None,
            after: None,
            limit: Some(most.clamp(1, PAGE)),
        };
        let client = self.clone();
        M::answer(&self.transport, async move {
            let (mut history, mut after) = (History::default(), None::<String>);
            loop {
                let page = client.page(&request, after.as_deref(), RETRY).await?;
                history.is_on = page.keeps.is_some();
                history.events.extend(page.events.into_iter().map(Event::from));
                history.events.truncate(most);
                after = page.next.filter(|_| history.events.len() < most);
                if after.is_none() {
                    return Ok(history);
                }
            }
        })
    }
}
