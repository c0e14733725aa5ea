//! Open requests for names, by clients that wait here. They are repeated while the client waits, so
//! that a request lapses only when its client is gone.

use std::collections::HashMap;
use std::time::Duration;

use litelease::{Error, Litelease};
use litelease_store::When;

use super::batch::Failed;
use super::wait_lists::WaitLists;
use crate::job::Id;

/// How often a request is repeated. It lapses after 10 seconds.
const REPEAT_MS: i64 = 3_000;

#[derive(Default)]
pub(super) struct Requests {
    /// The requester of each name, and when its request is to be repeated.
    open: HashMap<Id, (String, i64)>,
}

impl Requests {
    /// Adds requests whose client may wait, and repeats them from now on.
    pub(super) fn watch(
        &mut self,
        requesters: &mut Vec<(Id, String)>,
        waiting: &WaitLists,
        now_ms: i64,
    ) {
        for (id, requester) in requesters.drain(..) {
            if waiting.has_owner(&id, &requester) {
                self.open.insert(id, (requester, now_ms));
            }
        }
    }

    /// Returns how long until a request is to be repeated, or `None` if there are none.
    pub(super) fn due_in(&self, clock: fn() -> i64) -> Option<Duration> {
        let first_ms = self.open.values().map(|(_, due_ms)| *due_ms).min()?;
        Some(Duration::from_millis(first_ms.saturating_sub(clock()).max(0).unsigned_abs()))
    }

    /// Repeats the requests that are due, in the open transaction. Removes those that have ended
    /// and those whose client no longer waits.
    pub(super) fn repeat(
        &mut self,
        db: &Litelease,
        waiting: &WaitLists,
        now_ms: i64,
    ) -> Result<(), Error> {
        if self.open.is_empty() {
            return Ok(());
        }
        self.open.retain(|id, (requester, _)| waiting.has_owner(id, requester));
        let mut ended = Vec::new();
        for (id, (requester, due_ms)) in &mut self.open {
            if *due_ms > now_ms {
                continue;
            }
            *due_ms = now_ms.saturating_add(REPEAT_MS);
            // A damaged row must fail its own name only.
            let repeated =
                db.with_store(|store| store.repeat_request(id, requester, When::At(now_ms)));
            match repeated.map_err(Failed::from) {
                Ok(Some(_)) => {}
                Ok(None) | Err(Failed::Client(_)) => ended.push(id.clone()),
                Err(Failed::Batch(error)) => return Err(error),
            }
        }
        ended.iter().for_each(|id| _ = self.open.remove(id));
        Ok(())
    }
}
