//! The rows of an engine as the keeper renews them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use litelease_core::{Claimant, Reason};
use litelease_hold::{Due, HeldGrant, Loss, Renewal, Rows, Seen};

use crate::batch::Renewing;
use crate::cluster::Cluster;
use crate::engine::Error;
use crate::limits::in_ms;
use crate::{Lease, ReleaseResult, RenewResult};

pub(crate) struct KeptRows {
    cluster: Cluster,
    /// What the engine has refused since the last renewal. It is the reason of a loss, also if the
    /// last try before the end of the window had no time left for an answer.
    refused: Option<Error>,
}

impl KeptRows {
    pub(crate) fn new(cluster: Cluster) -> Self {
        KeptRows { cluster, refused: None }
    }

    /// Returns the error that says why a renewal failed.
    fn reason(&mut self, answer: Result<RenewResult, Error>) -> Result<RenewResult, Error> {
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
        // An answer that comes after the end of the window is of no use, and while one is waited
        // for, nobody is told that it is over.
        let trusted = due.iter().map(|due| due.trusted_for).filter(|time| !time.is_zero());
        let time = trusted.min().unwrap_or(Duration::ZERO);
        let asked: Vec<Renewing<'_>> = due.iter().map(|due| renewing(due.grant)).collect();
        let answers = self.cluster.renew_many(&asked, time);
        let answers = due.iter().zip(answers);
        answers.map(|(due, answer)| renewal(due.grant.token, self.reason(answer))).collect()
    }

    fn release(&mut self, grant: &HeldGrant) -> Result<(), Loss> {
        release(&self.cluster.within(Duration::ZERO), grant)
    }

    fn look(&mut self, _: &HeldGrant) -> Seen {
        Seen { is_current: true, asked: None }
    }

    fn is_moved(&self) -> bool {
        false
    }

    fn is_file(&self) -> bool {
        false
    }
}

fn renewing(grant: &HeldGrant) -> Renewing<'_> {
    let who = Claimant { owner: &grant.owner, token: Some(grant.token) };
    // The ttl was checked when the name was claimed.
    Renewing { name: &grant.name, who, ttl_ms: in_ms(grant.ttl).unwrap_or(1) }
}

/// Releases a grant. Fails if it is no longer current. All tries are one attempt: the owner text of
/// a hold is unique, so it tells a release whose answer was lost from what others have done.
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

fn renewal(token: i64, answer: Result<RenewResult, Error>) -> Result<Renewal, Loss> {
    match answer {
        Ok(RenewResult::Renewed(lease)) => Ok(Renewal::whole(lease.expires_at_ms)),
        Ok(RenewResult::Rejected { reason, current }) => Err(loss(token, reason, current)),
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
        let late = || Err(Error::Unreachable("there was no time left to ask".into()));
        let refused = || Err(Error::Refused("this password is wrong".into()));
        assert_eq!(rows.reason(late()), late());
        assert_eq!(rows.reason(refused()), refused());
        assert_eq!(rows.reason(late()), refused());
        let busy = || Err(Error::Locked("others were faster".into()));
        assert_eq!(rows.reason(busy()), busy());
        assert_eq!(rows.reason(late()), late());
    }
}
