//! What rides on grants: values, limits, checkpoints, and the handoff on request.

use litelease::rusqlite::types;
use litelease::{
    CheckpointResult, Error, Grant, GrantResult, Lease, Litelease, Reason, RequestResult, Scope,
    TransferResult,
};

use super::batch::{Batch, Served, duration};
use super::names::{for_client, rejected, wait_for_owner};
use crate::access::{Caller, Names};
use crate::job::{Answer, Id, JobError, Requested, Riders, Timed};

/// Attaches a value to a grant.
pub(super) fn attach(
    db: &Litelease,
    grant: &Grant,
    value: &types::Value,
    now_ms: i64,
) -> Result<Answer, Error> {
    let attached = db.at(now_ms).attach(grant, value)?;
    stored(db, grant, "attached", attached, now_ms)
}

/// Limits a grant.
pub(super) fn limit(
    db: &Litelease,
    grant: &Grant,
    progress_within_ms: Option<i64>,
    max_time_ms: Option<i64>,
    now_ms: i64,
) -> Result<Answer, Error> {
    let not_after_ms = max_time_ms.map(|ms| now_ms.saturating_add(ms));
    let within = progress_within_ms.map(duration);
    let limited = db.at(now_ms).limit(grant, within, not_after_ms)?;
    stored(db, grant, "limited", limited, now_ms)
}

/// Counts progress of a grant.
pub(super) fn progress(db: &Litelease, grant: &Grant, now_ms: i64) -> Result<Answer, Error> {
    let counted = db.at(now_ms).progress(grant)?;
    stored(db, grant, "progressed", counted, now_ms)
}

/// Stores a checkpoint under a grant.
pub(super) fn checkpoint(
    db: &Litelease,
    grant: &Grant,
    value: &types::Value,
    now_ms: i64,
) -> Result<Answer, Error> {
    let result = match db.at(now_ms).checkpoint(grant, value)? {
        CheckpointResult::Stored => GrantResult::Done,
        CheckpointResult::Stale { newest } => GrantResult::Stale {
            reason: newest.map_or(Reason::NeverClaimed, |by| Reason::Superseded { by }),
        },
    };
    stored(db, grant, "stored", result, now_ms)
}

fn stored(
    db: &Litelease,
    grant: &Grant,
    word: &'static str,
    result: GrantResult,
    now_ms: i64,
) -> Result<Answer, Error> {
    Ok(match result {
        GrantResult::Done => Answer::Stored { word, name: grant.name.clone(), token: grant.token },
        GrantResult::Stale { reason } => {
            rejected(reason, db.at(now_ms).inspect(&grant.name)?, now_ms)
        }
    })
}

/// Hands a lease to its requester, who fetches its secret.
pub(super) fn hand_over(
    db: &Litelease,
    grant: &Grant,
    ttl_ms: i64,
    now_ms: i64,
) -> Result<Answer, Error> {
    Ok(match db.at(now_ms).hand_over(grant, duration(ttl_ms))? {
        TransferResult::Transferred(handed) => {
            wait_for_owner(db, &handed)?;
            Answer::Transferred(Timed::at(now_ms, handed))
        }
        TransferResult::Rejected { reason, current } => rejected(reason, current, now_ms),
    })
}

impl Batch {
    /// Asks the holder of a name to give it up.
    pub(super) fn request(
        &mut self,
        caller: Caller,
        name: &str,
        requester: &str,
        within_ms: i64,
        file: &Served<'_>,
    ) -> Result<(Id, Result<Answer, JobError>), Error> {
        let (id, now_ms) = (Id::Name(name.into()), self.now_ms);
        if let Err(refused) = file.keys.check(caller, Scope::Claim, Names::One(name), now_ms) {
            return Ok((id, Err(refused)));
        }
        let asked = for_client(ask(file.db, name, requester, within_ms, now_ms))?;
        if let Ok(Answer::Requested(_)) = &asked {
            self.requesters.push((id.clone(), requester.into()));
        }
        Ok((id, asked))
    }

    /// Notes that a claim which begins to wait has an open request, which is to be repeated.
    pub(super) fn note_requester(&mut self, id: &Id, owner: &str, file: &Served<'_>) {
        // An error only means that the request lapses.
        let requested = file.db.at(self.now_ms).requested(id).ok().flatten();
        if requested.is_some_and(|requested| requested.requester == owner) {
            self.requesters.push((id.clone(), owner.into()));
        }
    }
}

fn ask(
    db: &Litelease,
    name: &str,
    requester: &str,
    within_ms: i64,
    now_ms: i64,
) -> Result<Answer, Error> {
    let made = |requester: &str, token, until_ms: i64| {
        let left_ms = until_ms.saturating_sub(now_ms).max(0);
        Requested { name: name.into(), requester: requester.into(), token, until_ms, left_ms }
    };
    Ok(match db.at(now_ms).request(name, requester, duration(within_ms))? {
        RequestResult::Requested { token, until_ms } => {
            Answer::Requested(made(requester, token, until_ms))
        }
        RequestResult::RequestedBy { requester, until_ms } => {
            let token = db.token(name)?.unwrap_or_default();
            Answer::RequestedBy(made(&requester, token, until_ms))
        }
        RequestResult::Rejected { reason } => rejected(reason, None, now_ms),
    })
}

/// Reads what rides on a live lease.
pub(super) fn riders(
    db: &Litelease,
    lease: &Lease,
    now_ms: i64,
) -> Result<Option<Box<Riders>>, Error> {
    let value = db.at(now_ms).value(&lease.name)?.unwrap_or(types::Value::Null);
    let requested = db.at(now_ms).requested(&lease.name)?.map(|open| Requested {
        name: lease.name.clone(),
        requester: open.requester,
        token: open.token,
        until_ms: open.until_ms,
        left_ms: open.until_ms.saturating_sub(now_ms).max(0),
    });
    Ok(Riders::of(Some(value), requested))
}
