//! The grants of one client, as the keeper renews and releases them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litelease_keeper::{Clock, Due, Grant, Loss, Renewal, Rows, Seen, SystemClock, Window};

use crate::Error;
use crate::client::{Secret, release_once, renew_once};
use crate::transport::Transport;

/// The secrets of grants, and until when each is trusted, by name and token.
pub(crate) type Secrets = Arc<Mutex<HashMap<(String, i64), (Secret, Duration)>>>;

/// The leases on a server.
pub(crate) struct ServerRows {
    pub(crate) transport: Arc<Transport>,
    pub(crate) secrets: Secrets,
}

/// The shortest and the longest time that a request of the keeper may take.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

impl ServerRows {
    /// Sends one renewal. `end` is when the keeper must be back, if that is known. Sets it to the
    /// end of this request if it fails.
    fn renew_one(&self, grant: &Grant, end: &mut Option<Duration>) -> Result<Renewal, Loss> {
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
                let loss = loss(error);
                if loss.may_pass() {
                    end.get_or_insert(start + timeout);
                }
                Err(loss)
            }
        }
    }

    fn secret(&self, grant: &Grant) -> Option<(Secret, Duration)> {
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

    fn release(&mut self, grant: &Grant) -> Result<(), Loss> {
        let Some((secret, _)) = self.secret(grant) else { return Err(Loss::ReleasedElsewhere) };
        let timeout = (grant.ttl / 3).clamp(PATIENCE.0, PATIENCE.1);
        let released = release_once(&self.transport, &secret, timeout).map(drop).map_err(loss);
        if !released.as_ref().is_err_and(Loss::may_pass) {
            self.secrets().remove(&key(grant));
        }
        released
    }

    fn look(&mut self, _: &Grant) -> Seen {
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

fn key(grant: &Grant) -> (String, i64) {
    (grant.name.clone(), grant.token)
}

/// Returns what an error means for a hold.
fn loss(error: Error) -> Loss {
    match error {
        Error::Rejected { reason, current } => match (reason.as_str(), current) {
            ("expired", _) => Loss::Expired,
            ("released", _) => Loss::ReleasedElsewhere,
            // The pool was deleted.
            ("deleted", _) => Loss::Broken,
            ("no_progress", _) => Loss::NoProgress,
            ("time_is_up", _) => Loss::TimeIsUp,
            ("requested", _) => Loss::Requested,
            ("superseded", Some(current)) => {
                Loss::Superseded { by: current.token, owner: Some(current.owner) }
            }
            // A break raises the token and leaves the name free.
            ("superseded", None) => Loss::Broken,
            _ => Loss::FileReplaced,
        },
        // An access key that was taken back may be given again: the trust window decides.
        error => Loss::CannotRenew { error: error.to_string() },
    }
}
