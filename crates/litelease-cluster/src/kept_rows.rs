//! The rows of an engine as the keeper renews them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use litelease_core::{Claimant, Reason};
use litelease_hold::{Current, Due, HandoverRequest, HeldGrant, Loss, Notice, Renewal, Rows};

use crate::batch::{Renewed, Renewing};
use crate::cluster::Cluster;
use crate::engine::{Changes, Error, Listener};
use crate::limits::in_ms;
use crate::{GrantRef, Lease, ReleaseResult, RenewResult, RequestInfo, TransferResult};

pub(crate) struct KeptRows {
    cluster: Cluster,
    /// The engine's refusal of the last renewal. It is the reason of a loss, also if the last try
    /// before the end of the window had no time left for an answer.
    refused: Option<Error>,
    /// The engine notifies it as long as it is here.
    listener: Option<Arc<dyn Listener>>,
    /// The last renewals have found that a grant carries something, or no longer does.
    has_news: bool,
}

/// Passes on what others have changed.
struct Notifies(Notice);

impl Listener for Notifies {
    fn changed(&self, name: Option<&str>, token: Option<i64>) {
        self.0.changed(name, token);
    }
}

impl KeptRows {
    pub(crate) fn new(cluster: Cluster) -> Self {
        KeptRows { cluster, refused: None, listener: None, has_news: false }
    }

    /// Returns the error for a failed renewal.
    fn reason<A: Clone>(&mut self, answer: Result<A, Error>) -> Result<A, Error> {
        match (&answer, &self.refused) {
            (Err(Error::Refused(_)), _) => self.refused = answer.as_ref().err().cloned(),
            (Err(Error::Unreachable(_) | Error::CommitUnknown(_)), Some(refused)) => {
                return Err(refused.clone());
            }
            _ => self.refused = None,
        }
        answer
    }
}

impl Rows for KeptRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        // An answer after the end of the window is useless, and while the keeper waits for one, it
        // cannot report to the holders that their window is over.
        let within = due.iter().map(|due| due.trusted_for.min(due.answer_within));
        let time = within.filter(|time| !time.is_zero()).min().unwrap_or(Duration::ZERO);
        let asked: Vec<Renewing<'_>> = due.iter().map(|due| renewing(due.grant)).collect();
        for Due { grant, progress, .. } in due {
            // Without stored limits, the hold itself keeps them.
            if let Some(ago) = progress.filter(|_| self.cluster.has_payload(&grant.name)) {
                let _ = self.cluster.within(time).progress_ago((&*grant.name, grant.token), ago);
            }
        }
        let before = asked.iter().any(|asked| self.cluster.has_payload(asked.name));
        let answers = self.cluster.renew_many(&asked, time);
        self.has_news = before || asked.iter().any(|asked| self.cluster.has_payload(asked.name));
        let answers = due.iter().zip(answers);
        answers.map(|(due, answer)| renewal(due.grant.token, self.reason(answer))).collect()
    }

    fn release(&mut self, grant: &HeldGrant, time: Duration) -> Result<(), Loss> {
        release(&self.cluster.within(time), grant)
    }

    /// The engine only notifies of changes; renewals find out what has changed. This says what the
    /// last one has found.
    fn read(&mut self, grant: &HeldGrant) -> Current {
        let found =
            self.cluster.found_request(&grant.name).filter(|found| found.token == grant.token);
        let request = found
            .map(|RequestInfo { requester, until_ms, .. }| HandoverRequest { requester, until_ms });
        Current { request, ..Current::unknown() }
    }

    fn has_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    fn hand_over(&mut self, grant: &HeldGrant, ttl: Duration) -> Result<Option<Lease>, Loss> {
        let HeldGrant { name, owner, token, .. } = grant;
        let grant = GrantRef { name, token: *token, owner: Some(owner) };
        match self.cluster.hand_over(grant, ttl) {
            Ok(TransferResult::Transferred(handed)) => Ok(Some(handed)),
            Ok(TransferResult::Rejected { reason: Reason::NotRequested, .. }) => Ok(None),
            Ok(TransferResult::Rejected { reason, current }) => Err(loss(*token, reason, current)),
            Err(error) => Err(trouble(error)),
        }
    }

    fn listen(&mut self, notice: Notice) {
        let listener: Arc<dyn Listener> = Arc::new(Notifies(notice));
        self.cluster.shared.engine.listen(Changes::Tokens, Arc::downgrade(&listener));
        self.listener = Some(listener);
    }

    fn beside(&self) -> Option<Box<dyn Rows>> {
        Some(Box::new(KeptRows::new(self.cluster.clone())))
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}

fn renewing(grant: &HeldGrant) -> Renewing<'_> {
    let who = Claimant { owner: &grant.owner, token: Some(grant.token) };
    // The ttl was checked when the name was claimed.
    Renewing { name: &grant.name, who, ttl_ms: in_ms(grant.ttl).unwrap_or(1) }
}

/// Releases a grant. Fails if it is no longer current. All tries are one attempt: the owner text of
/// a hold is unique, so it distinguishes a release whose answer was lost from another client's
/// change.
pub(crate) fn release(cluster: &Cluster, grant: &HeldGrant) -> Result<(), Loss> {
    let mut hasher = DefaultHasher::new();
    (&grant.owner, grant.token).hash(&mut hasher);
    let attempt = i64::try_from(hasher.finish() >> 1).unwrap_or(1).max(1);
    match cluster.release_as(grant, attempt) {
        Ok(ReleaseResult::Released { .. }) => Ok(()),
        Ok(ReleaseResult::Rejected { reason, current }) => Err(loss(grant.token, reason, current)),
        Err(error) => Err(trouble(error)),
    }
}

fn renewal(token: i64, answer: Result<Renewed, Error>) -> Result<Renewal, Loss> {
    match answer {
        Ok((RenewResult::Renewed(lease), granted)) => {
            Ok(Renewal { expires_at_ms: lease.expires_at_ms, granted })
        }
        Ok((RenewResult::Rejected { reason, current }, _)) => Err(loss(token, reason, current)),
        Err(error) => Err(trouble(error)),
    }
}

/// Returns what a rejection means for a holder that has not released its lease.
fn loss(token: i64, reason: Reason, current: Option<Lease>) -> Loss {
    let current = current.map(|current| (current.token, current.owner));
    Loss::from_rejection(token, reason, current, Loss::Forgotten)
}

/// Returns what an error means: all but one may pass. Whether a renewal whose answer was lost is
/// stored does not matter: it is trusted only if it was answered.
fn trouble(error: Error) -> Loss {
    match error {
        Error::Forgotten { .. } => Loss::Forgotten,
        error => Loss::CannotRenew { error: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryEngine;

    #[test]
    fn a_refusal_is_the_reason_until_the_engine_answers_again() {
        let mut rows = KeptRows::new(Cluster::on(MemoryEngine::new()));
        let late = || Err::<(), _>(Error::Unreachable("there was no time left to ask".into()));
        let refused = || Err::<(), _>(Error::Refused("this password is wrong".into()));
        assert_eq!(rows.reason(late()), late());
        assert_eq!(rows.reason(refused()), refused());
        assert_eq!(rows.reason(late()), refused());
        let busy = || Err::<(), _>(Error::Locked("others were faster".into()));
        assert_eq!(rows.reason(busy()), busy());
        assert_eq!(rows.reason(late()), late());
    }
}
