//! Since when clients have waited for names. A client waits for a few minutes at a time and asks
//! again, so one request does not show how long it has waited.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::access::Caller;
use crate::job::{GrantJob, Id, Wanted};

/// How long after its last request a client still waits: the longest wait of the clients of this
/// project, and a little more.
const ASKS_AGAIN_WITHIN: Duration = Duration::from_secs(310);

/// The first and the last request of each client, by what it waits for and as whom.
#[derive(Default)]
pub(super) struct WaitMemory(HashMap<(Id, Caller, String), (Instant, Instant)>);

impl WaitMemory {
    /// Dates a request back to the first one of its client.
    pub(super) fn remember(&mut self, job: &mut GrantJob) {
        let Wanted::Name(claim) = &mut job.wanted else { return };
        if self.0.len().is_power_of_two() {
            self.0.retain(|_, (_, last)| last.elapsed() < ASKS_AGAIN_WITHIN);
        }
        let key = (job.id.clone(), claim.caller, claim.owner.clone());
        let (first, last) = self.0.entry(key).or_insert((claim.asked, claim.asked));
        if last.elapsed() > ASKS_AGAIN_WITHIN {
            *first = claim.asked;
        }
        (claim.asked, *last) = (*first, claim.asked);
    }

    /// Forgets a client that is served.
    pub(super) fn forget(&mut self, job: &GrantJob) {
        if let Wanted::Name(claim) = &job.wanted {
            self.0.remove(&(job.id.clone(), claim.caller, claim.owner.clone()));
        }
    }
}
