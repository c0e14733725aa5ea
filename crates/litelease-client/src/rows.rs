//! The grants of one client, as the keeper renews and releases them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litelease_core::Reason;
use litelease_hold::{Clock, Due, HeldGrant, Loss, Renewal, Rows, Seen, SystemClock, Window};

use crate::Error;
use crate::client::{Secret, release_once, renew_once};
use crate::transport::Transport;

/// The secrets of grants, and until when each is trusted, by name and token.
pub(crate) type Secrets = Arc<Mutex<HashMap<(String, i64), (Secret, Duration)>>>;

/// The leases on a server.
pub(crate) struct ServerRows {
    transport: Arc<Transport>,
    secrets: Secrets,
    /// Grants whose release was sent and not answered, by name and token.
    unanswered: HashSet<(String, i64)>,
}

/// The shortest and the longest time that a request of the keeper may take.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

impl ServerRows {
    pub(crate) fn new(transport: Arc<Transport>, secrets: Secrets) -> Self {
        ServerRows { transport, secrets, unanswered: HashSet::new() }
    }

    /// Sends one renewal. `end` is when the keeper must be back, if that is known. Sets it to the
    /// end of this request if it fails.
    fn renew_one(&self, grant: &HeldGrant, end: &mut Option<Duration>) -> Result<Renewal, Loss> {
        let start = SystemClock.now();
        let (secret, trusted_until) = self.secret(grant).ok_or(Loss::ReleasedElsewhere)?;
        // While a request is under way the keeper does nothing else. So none goes on beyond the
        // trust window, and there is time for a few of them.
        let left = trusted_until.min(end.unwrap_or(Duration::MAX)).saturating_sub(start);
        let timeout = (grant.ttl / 6).min(left).clamp(PATIENCE.0, PATIENCE.1);
        match renew_once(&self.transport, &secret, grant.ttl, timeout) {
            Ok(lease) => {
                let granted = lease.granted(grant.ttl);
                if let Some(window) = Window::new(grant.ttl) {
                    let end = window.end_of(start, granted).max(trusted_until);
                    self.secrets().insert(key(grant), (secret, end));
                }
                // The expiry by the server's clock is never compared with this machine's.
                Ok(Renewal { expires_at_ms: 0, granted })
            }
            Err(error) => {
                let loss = loss(grant.token, error);
                if loss.may_pass() {
                    end.get_or_insert(start + timeout);
                }
                Err(loss)
            }
        }
    }

    fn secret(&self, grant: &HeldGrant) -> Option<(Secret, Duration)> {
        self.secrets().get(&key(grant)).cloned()
    }

    fn secrets(&self) -> std::sync::MutexGuard<'_, HashMap<(String, i64), (Secret, Duration)>> {
        self.secrets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Rows for ServerRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        // A renewal that fails at once, because the server refuses it, takes nothing from the
        // others. A server that does not answer one request in time will not answer the next one,
        // and the keeper must be back when the first trust window ends. So from the first failure
        // on, all others together have as long as that request had.
        let (mut end, mut trouble) = (None, None);
        let renew = |due: &Due<'_>| {
            let is_over = end.is_some_and(|end| SystemClock.now() >= end);
            if let Some(trouble) = trouble.clone().filter(|_| is_over) {
                return Err(trouble);
            }
            let renewed = self.renew_one(due.grant, &mut end);
            trouble =
                renewed.as_ref().err().filter(|loss| loss.may_pass()).cloned().or(trouble.take());
            renewed
        };
        due.iter().map(renew).collect()
    }

    fn release(&mut self, grant: &HeldGrant) -> Result<(), Loss> {
        let Some((secret, trusted_until)) = self.secret(grant) else {
            return Err(Loss::ReleasedElsewhere);
        };
        let timeout = (grant.ttl / 3).clamp(PATIENCE.0, PATIENCE.1);
        let released = release_once(&self.transport, &secret, timeout)
            .map(drop)
            .map_err(|error| loss(grant.token, error));
        let key = key(grant);
        if released.as_ref().is_err_and(Loss::may_pass) {
            self.unanswered.insert(key);
            return released;
        }
        self.secrets().remove(&key);
        let was_sent = self.unanswered.remove(&key);
        match released {
            Err(Loss::ReleasedElsewhere) if was_sent => Ok(()),
            // A break would have left the next token to no owner, and the lease is not over. So a
            // release has let another client have that token; or an operator has given it the
            // lease, which is over either way.
            Err(Loss::Superseded { by, owner: Some(_) })
                if was_sent && by == grant.token + 1 && SystemClock.now() < trusted_until =>
            {
                Ok(())
            }
            released => released,
        }
    }

    fn look(&mut self, _: &HeldGrant) -> Seen {
        // The server is asked by renewals only.
        Seen { is_current: true, asked: None }
    }

    fn is_moved(&self) -> bool {
        false
    }

    fn is_file(&self) -> bool {
        false
    }
}

fn key(grant: &HeldGrant) -> (String, i64) {
    (grant.name.clone(), grant.token)
}

/// Returns what an error means for the hold of a grant with this token.
fn loss(token: i64, error: Error) -> Loss {
    match error {
        // The pool was deleted.
        Error::Rejected { reason, .. } if reason == "deleted" => Loss::Broken,
        Error::Rejected { reason, by, current } => match Reason::from_word(&reason, by) {
            Some(reason) => {
                let current = current.map(|current| (current.token, current.owner));
                Loss::from_rejection(token, reason, current, Loss::FileReplaced)
            }
            None => Loss::FileReplaced,
        },
        // An access key that was taken back may be given again: the trust window decides.
        error => Loss::CannotRenew { error: error.to_string() },
    }
}
