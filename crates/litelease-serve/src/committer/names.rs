//! Verbs on names: claims, and the calls of holders and operators.

use litelease::{
    BreakResult, ClaimResult, Error, Grant, Lease, Litelease, Reason, ReleaseResult, RenewResult,
    Scope, TransferResult, leaves_room,
};
use litelease_wire::{Broken, Refusal, Released};

use super::batch::{Done, Failed, Operator, Served, duration};
use super::ticks::{self, Claimed};
use crate::access::Names;
use crate::answer::{Answer, Granted, LeaseWithRemaining, NameAnswer, rejected};
use crate::high_water::NameGrant;
use crate::job::{Answered, Claim, GrantJob, JobError};
use crate::planted::Planted;
use crate::secret::{self, ClaimKey};
use crate::served_rows::{self, Secret, ServedRow};

/// Claims a name.
pub(super) fn claim(file: &Served<'_>, job: &GrantJob, claim: &Claim, now_ms: i64) -> Done {
    let (name, db) = (&*job.id, file.db);
    // A claim may have waited, and its key may have been removed meanwhile.
    file.keys.check(claim.caller, Scope::Claim, Names::One(name), now_ms)?;
    check_own(file, name)?;
    check_min_token(file, name, claim, now_ms)?;
    let key = job.key.as_deref().map(|key| ClaimKey { caller: claim.caller, key });
    let random = secret::random().ok_or(JobError::Database)?;
    // Read before anything is written: a table that is not ours concerns this claim alone.
    let served = served_rows::by_name(db, name)?;
    let Claimed { result, begun, running_ms } = match &claim.tick {
        None => {
            let ttl = duration(job.ttl_ms);
            let result = db.at(now_ms).claim_above(name, &claim.owner, ttl, claim.min_token)?;
            Claimed { result, begun: None, running_ms: None }
        }
        Some(wish) => match ticks::claim(file, name, claim, wish, job.ttl_ms, now_ms)? {
            Ok(claimed) => claimed,
            Err(refused) => return Ok(refused),
        },
    };
    let (lease, is_fetched, tick) = match result {
        ClaimResult::Acquired(lease) => (lease, false, begun),
        ClaimResult::Busy(current) => {
            match prior_stored(file, served.as_ref(), &current, claim, key, now_ms)? {
                Prior::Fetch => {
                    let tick = ticks::running(db, name, current.token)?;
                    (current, true, tick)
                }
                Prior::Again(grant) => return again(db, claim, current, grant, now_ms),
                Prior::None => {
                    let current = LeaseWithRemaining::found(db, now_ms, current)?;
                    return Ok(NameAnswer::Busy(Box::new(current), running_ms).into());
                }
            }
        }
    };
    let mut number = served.map(|row| row.number);
    let stored = served_rows::store(db, name, number, lease.token, |at| {
        number = Some(at);
        secret::make(random, key, at)
    });
    // The name is claimed already, so the claim must not stay without its secret.
    let grant = stored.map_err(Failed::Batch)?;
    let (lease, has_key) = (LeaseWithRemaining::at(now_ms, lease), key.is_some());
    Ok(granted(Granted { lease, grant, has_key, is_fetched, number, tick }))
}

/// Returns the answer to a claim that repeats an earlier one.
fn again(db: &Litelease, claim: &Claim, current: Lease, grant: String, now_ms: i64) -> Done {
    let tick = match &claim.tick {
        Some(_) => ticks::running(db, &current.name, current.token)?,
        None => None,
    };
    let lease = LeaseWithRemaining::at(now_ms, current);
    let (has_key, is_fetched, number) = (true, false, None);
    Ok(granted(Granted { lease, grant, has_key, is_fetched, number, tick }))
}

fn granted(granted: Granted) -> Answer {
    NameAnswer::Granted(Box::new(granted)).into()
}

/// Refuses the names that belong to the service.
pub(super) fn check_own(file: &Served<'_>, name: &str) -> Result<(), JobError> {
    match file.mirror.is_some() && litelease_cluster::is_of_service(name) {
        true => Err(JobError::OfService),
        false => Ok(()),
    }
}

/// Returns the last grant of a name among the answers of a commit, for the high-water mark.
pub(super) fn last_grant(answers: &[Answered], db: &Litelease) -> Option<NameGrant> {
    answers.iter().rev().find_map(|answered| match &answered.answer {
        Ok(Answer::Name(NameAnswer::Granted(granted))) => {
            let token = granted.lease.lease.token;
            granted.number.map(|number| NameGrant { number, token })
        }
        Ok(Answer::Name(NameAnswer::Transferred(handed))) => {
            // If it cannot be read, the mark gets the grant after this one.
            let served = served_rows::by_name(db, &handed.name).ok().flatten()?;
            Some(NameGrant { number: served.number, token: handed.token })
        }
        _ => None,
    })
}

/// Checks that a client may ask for a token this large. One that leaves no room in the epoch of the
/// file raises the tokens of every name in it, so only operators may.
fn check_min_token(
    file: &Served<'_>,
    name: &str,
    claim: &Claim,
    now_ms: i64,
) -> Result<(), Failed> {
    let (db, min_token) = (file.db, claim.min_token);
    if min_token == 0
        || leaves_room(min_token, db.pools().newest_token()?)
        || db.token(name)?.is_some_and(|newest| min_token <= newest)
    {
        return Ok(());
    }
    Ok(file.keys.check(claim.caller, Scope::Operate, Names::Under(""), now_ms)?)
}

/// The relation of a claim to the live lease on its name.
enum Prior {
    None,
    /// The lease was transferred to this owner, and waits to be fetched.
    Fetch,
    /// An earlier claim with the same key was granted the lease. This was its secret.
    Again(String),
}

/// Returns the relation of a claim to the live lease, whose row is stored again on an engine if the
/// claim is answered with it: this server has seen the row for a shorter time than others may have,
/// who take it over once they have seen it unchanged for a whole ttl.
fn prior_stored(
    file: &Served<'_>,
    served: Option<&ServedRow>,
    current: &Lease,
    claim: &Claim,
    key: Option<ClaimKey<'_>>,
    now_ms: i64,
) -> Result<Prior, Failed> {
    let is_unstored = Planted::AgainFromMemory.is_there();
    let prior = prior(file, served, current, claim, key);
    if file.mirror.is_none() || matches!(prior, Prior::None) || is_unstored {
        return Ok(prior);
    }
    let left = duration(current.expires_at_ms.saturating_sub(now_ms));
    Ok(match file.db.at(now_ms).renew(current, left)? {
        RenewResult::Renewed(_) => prior,
        RenewResult::Rejected { .. } => Prior::None,
    })
}

fn prior(
    file: &Served<'_>,
    served: Option<&ServedRow>,
    current: &Lease,
    claim: &Claim,
    key: Option<ClaimKey<'_>>,
) -> Prior {
    if current.owner != claim.owner {
        return Prior::None;
    }
    let Some(served) = served.filter(|row| row.token == current.token) else {
        return if file.was_handed_over(current) { Prior::Fetch } else { Prior::None };
    };
    match (&served.hash, &served.salt, key) {
        (None, ..) => Prior::Fetch,
        (Some(hash), Some(salt), Some(key)) => {
            let grant = secret::derive(salt, key, served.number);
            if *hash == secret::hash(&grant) { Prior::Again(grant) } else { Prior::None }
        }
        _ => Prior::None,
    }
}

/// Prolongs a lease. `secret` is that of the grant.
pub(crate) fn renew(
    file: &Served<'_>,
    grant: &Grant,
    secret: &str,
    ttl_ms: i64,
    now_ms: i64,
) -> Done {
    Ok(Answer::Name(match file.db.at(now_ms).renew(grant, duration(ttl_ms))? {
        RenewResult::Renewed(lease) => {
            let lease = LeaseWithRemaining::at(now_ms, lease);
            NameAnswer::Renewed(lease.with_secret(secret.to_lowercase()))
        }
        RenewResult::Rejected { reason, current } => rejected(file.db, reason, current, now_ms)?,
    }))
}

/// Ends a lease.
pub(crate) fn release(file: &Served<'_>, grant: &Grant, now_ms: i64) -> Done {
    Ok(Answer::Name(match file.db.at(now_ms).release(grant)? {
        ReleaseResult::Released { name, token } => {
            NameAnswer::Released(Released { name, released: true, token })
        }
        ReleaseResult::Rejected { reason, current } => rejected(file.db, reason, current, now_ms)?,
    }))
}

/// Ends the lease of any holder, or only the one with this token.
pub(crate) fn break_lease(
    file: &Served<'_>,
    name: &str,
    token: Option<i64>,
    operator: &Operator,
    now_ms: i64,
) -> Done {
    let db = file.db.at(now_ms);
    if let Some(token) = token
        && let Some(current) = db.inspect(name)?
        && current.token != token
    {
        let reason = Reason::Superseded { by: current.token };
        return Ok(Answer::Name(rejected(file.db, reason, Some(current), now_ms)?));
    }
    let broken = file.acting(operator, || db.break_lease(name))?;
    Ok(Answer::Name(match broken {
        BreakResult::Broken { owner, token } => {
            NameAnswer::Broken(Broken { killed: token, name: name.into(), owner })
        }
        BreakResult::Rejected { reason, current } => rejected(file.db, reason, current, now_ms)?,
    }))
}

/// Hands a lease to a new owner.
pub(crate) fn transfer(
    file: &Served<'_>,
    grant: &Grant,
    new_owner: &str,
    ttl_ms: i64,
    now_ms: i64,
) -> Done {
    transferred(file, file.db.at(now_ms).transfer(grant, new_owner, duration(ttl_ms))?, now_ms)
}

/// Hands a lease to its requester, who fetches its secret.
pub(crate) fn hand_over(file: &Served<'_>, grant: &Grant, ttl_ms: i64, now_ms: i64) -> Done {
    transferred(file, file.db.at(now_ms).hand_over(grant, duration(ttl_ms))?, now_ms)
}

fn transferred(file: &Served<'_>, result: TransferResult, now_ms: i64) -> Done {
    Ok(Answer::Name(match result {
        TransferResult::Transferred(handed) => {
            wait_for_owner(file.db, &handed)?;
            let handed = LeaseWithRemaining::at(now_ms, handed).into_wire();
            NameAnswer::Transferred(Box::new(handed))
        }
        TransferResult::Rejected { reason, current } => rejected(file.db, reason, current, now_ms)?,
    }))
}

/// Refuses a secret that belongs to no grant.
pub(super) fn unknown_grant() -> NameAnswer {
    NameAnswer::Refused(Box::new(Refusal::new(
        "unknown_grant",
        "there is no such grant: send the UUID from the answer to the claim",
    )))
}

/// Finds the grant of this secret. The verbs check whether it is live. Returns `None` if there was
/// never a name with such a grant.
pub(super) fn find(db: &Litelease, grant: &str) -> Result<Option<Grant>, Error> {
    let Some((number, hash)) = secret::read(grant) else { return Ok(None) };
    let Some(served) = served_rows::by_number(db, number)? else { return Ok(None) };
    // Comparing hashes reveals nothing about a secret, however long it takes. A secret that is not
    // the newest one of its name belongs to an older grant.
    let token = if served.hash == Some(hash) { served.token } else { served.token - 1 };
    Ok(Some(Grant { name: served.name, token }))
}

/// Checks whether the newest grant of a name is this one, and by the service.
pub(super) fn has_granted(db: &Litelease, lease: &Lease) -> Result<bool, Error> {
    Ok(served_rows::by_name(db, &lease.name)?.is_some_and(|row| row.token == lease.token))
}

/// Lets the owner of a lease fetch its secret.
pub(super) fn wait_for_owner(db: &Litelease, lease: &Lease) -> Result<(), Error> {
    let number = served_rows::by_name(db, &lease.name)?.map(|row| row.number);
    let no_secret = |_| Secret { hash: None, salt: None, made: () };
    served_rows::store(db, &lease.name, number, lease.token, no_secret)
}
