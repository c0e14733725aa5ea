//! Verbs on names: claims, and what the holder of a grant or an operator asks for.

use litelease::{
    BreakResult, ClaimResult, Error, Grant, Lease, Litelease, Reason, ReleaseResult, RenewResult,
    Scope, TransferResult, leaves_room,
};

use super::batch::{Batch, Granting, Served, duration};
use super::payloads;
use super::wait_lists::WaitLists;
use crate::access::{Caller, Names};
use crate::high_water::NameGrant;
use crate::job::{
    Answer, Answered, Claim, GrantJob, Id, JobError, NamedJob, Timed, Verb, Why, no_id,
};
use crate::secret::{self, ClaimKey};
use crate::served_rows::{self, Secret, ServedRow};

/// Claims a name. The inner result is the client's answer; the outer error fails the whole batch.
pub(super) fn claim(file: &Served<'_>, job: &GrantJob, claim: &Claim, now_ms: i64) -> Granting {
    let (name, db) = (&*job.id, file.db);
    // A claim may have waited, and its key may have been removed meanwhile.
    if let Err(refused) = file.keys.check(claim.caller, Scope::Claim, Names::One(name), now_ms) {
        return Ok(Err(refused));
    }
    if let Err(refused) = for_client(check_min_token(file, name, claim, now_ms))?.flatten() {
        return Ok(Err(refused));
    }
    let key = job.key.as_deref().map(|key| ClaimKey { caller: claim.caller, key });
    let Some(random) = secret::random() else { return Ok(Err(JobError::Database)) };
    // Read before anything is written: a table that is not ours concerns this claim alone.
    let served = match for_client(served_rows::by_name(db, name))? {
        Ok(served) => served,
        Err(refused) => return Ok(Err(refused)),
    };
    let claimed =
        db.at(now_ms).claim_above(name, &claim.owner, duration(job.ttl_ms), claim.min_token);
    let (lease, is_fetched) = match for_client(claimed)? {
        Ok(ClaimResult::Acquired(lease)) => (lease, false),
        Ok(ClaimResult::Busy(current)) => match prior(served.as_ref(), &current, claim, key) {
            Prior::Fetch => (current, true),
            Prior::Again(grant) => {
                let lease = Timed::at(now_ms, current);
                let (has_key, is_fetched) = (true, false);
                let answer = Answer::Granted { lease, grant, has_key, is_fetched, number: None };
                return Ok(Ok(answer));
            }
            Prior::None => return Ok(Ok(Answer::Busy(Timed::at(now_ms, current)))),
        },
        Err(refused) => return Ok(Err(refused)),
    };
    let mut number = served.map(|row| row.number);
    let grant = served_rows::store(db, name, number, lease.token, |at| {
        number = Some(at);
        secret::make(random, key, at)
    })?;
    let (lease, has_key) = (Timed::at(now_ms, lease), key.is_some());
    Ok(Ok(Answer::Granted { lease, grant, has_key, is_fetched, number }))
}

/// Returns the last grant of a name among the answers of a commit, for the high-water mark.
pub(super) fn last_grant(answers: &[Answered], db: &Litelease) -> Option<NameGrant> {
    answers.iter().rev().find_map(|answered| match &answered.answer {
        Ok(Answer::Granted { lease, number, .. }) => {
            number.map(|number| NameGrant { number, token: lease.lease.token })
        }
        Ok(Answer::Transferred(handed)) => {
            // If it cannot be read, the grant after this one is noted.
            let served = served_rows::by_name(db, &handed.lease.name).ok().flatten()?;
            Some(NameGrant { number: served.number, token: handed.lease.token })
        }
        _ => None,
    })
}

/// Checks that a client may ask for a token as large as it does. One that leaves no room in the
/// epoch of the file raises the tokens of every name in it, so it is for operators.
fn check_min_token(
    file: &Served<'_>,
    name: &str,
    claim: &Claim,
    now_ms: i64,
) -> Result<Result<(), JobError>, Error> {
    let (db, min_token) = (file.db, claim.min_token);
    if min_token == 0
        || leaves_room(min_token, db.pools().newest_token()?)
        || db.token(name)?.is_some_and(|newest| min_token <= newest)
    {
        return Ok(Ok(()));
    }
    Ok(file.keys.check(claim.caller, Scope::Operate, Names::Under(""), now_ms))
}

/// What a claim has to do with the live lease on its name.
enum Prior {
    None,
    /// The lease was transferred to this owner, and waits to be fetched.
    Fetch,
    /// An earlier claim with the same key has got the lease. This was its secret.
    Again(String),
}

fn prior(
    served: Option<&ServedRow>,
    current: &Lease,
    claim: &Claim,
    key: Option<ClaimKey<'_>>,
) -> Prior {
    let Some(served) = served.filter(|row| row.token == current.token) else { return Prior::None };
    if current.owner != claim.owner {
        return Prior::None;
    }
    match (&served.hash, &served.salt, key) {
        (None, ..) => Prior::Fetch,
        (Some(hash), Some(salt), Some(key)) => {
            let grant = secret::derive(salt, key, served.number);
            if *hash == secret::hash(&grant) { Prior::Again(grant) } else { Prior::None }
        }
        _ => Prior::None,
    }
}

impl Batch {
    /// Does a verb on a name. An error of the database fails the whole batch.
    pub(super) fn perform_on_name(
        &mut self,
        job: NamedJob,
        file: &Served<'_>,
        waiting: &mut WaitLists,
    ) -> Result<(), Error> {
        let NamedJob { caller, verb, reply } = job;
        let done = match verb {
            Verb::Break { name } => self.break_lease(caller, &name, file),
            Verb::Renew { grant, ttl_ms } => self.on_grant(caller, &grant, file, |held, now_ms| {
                let renewed = file.db.at(now_ms).renew(held, duration(ttl_ms))?;
                Ok(match renewed {
                    RenewResult::Renewed(lease) => {
                        let (lease, grant) = (Timed::at(now_ms, lease), grant.to_lowercase());
                        Answer::RenewedName { lease, grant }
                    }
                    RenewResult::Rejected { reason, current } => rejected(reason, current, now_ms),
                })
            }),
            Verb::Release { grant } => self.on_grant(caller, &grant, file, |held, now_ms| {
                Ok(match file.db.at(now_ms).release(held)? {
                    ReleaseResult::Released { name, token } => Answer::Released { name, token },
                    ReleaseResult::Rejected { reason, current } => {
                        rejected(reason, current, now_ms)
                    }
                })
            }),
            Verb::Attach { grant, value } => self.on_grant(caller, &grant, file, |held, now_ms| {
                payloads::attach(file.db, held, &value, now_ms)
            }),
            Verb::Limit { grant, progress_within_ms, max_time_ms } => {
                self.on_grant(caller, &grant, file, |held, now_ms| {
                    payloads::limit(file.db, held, progress_within_ms, max_time_ms, now_ms)
                })
            }
            Verb::Progress { grant } => self.on_grant(caller, &grant, file, |held, now_ms| {
                payloads::progress(file.db, held, now_ms)
            }),
            Verb::Checkpoint { grant, value } => {
                self.on_grant(caller, &grant, file, |held, now_ms| {
                    payloads::checkpoint(file.db, held, &value, now_ms)
                })
            }
            Verb::Request { name, requester, within_ms } => {
                self.request(caller, &name, &requester, within_ms, file)
            }
            Verb::HandOver { grant, ttl_ms } => {
                self.on_grant(caller, &grant, file, |held, now_ms| {
                    payloads::hand_over(file.db, held, ttl_ms, now_ms)
                })
            }
            Verb::Transfer { grant, new_owner, ttl_ms } => {
                self.on_grant(caller, &grant, file, |held, now_ms| {
                    transfer(file.db, held, &new_owner, ttl_ms, now_ms)
                })
            }
        };
        let (id, answer) = match done {
            Ok(done) => done,
            Err(error) => {
                self.answer(no_id(), reply, Err(JobError::Database));
                return Err(error);
            }
        };
        let frees = matches!(answer, Ok(Answer::Released { .. } | Answer::Broken { .. }));
        let (hands_over, changes) = (
            matches!(answer, Ok(Answer::Transferred(_))),
            matches!(
                answer,
                Ok(Answer::RenewedName { .. } | Answer::Stored { .. } | Answer::Requested(_))
            ),
        );
        self.answer(id.clone(), reply, answer);
        match (frees, hands_over) {
            (true, _) => self.freed(&id, file, waiting),
            (_, true) => {
                self.changed.push(id.clone());
                waiting.hand_over(&id, file, self)
            }
            _ => {
                if changes {
                    self.changed.push(id);
                }
                Ok(())
            }
        }
    }

    fn break_lease(
        &self,
        caller: Caller,
        name: &str,
        file: &Served<'_>,
    ) -> Result<(Id, Result<Answer, JobError>), Error> {
        let (id, now_ms) = (Id::Name(name.into()), self.now_ms);
        if let Err(refused) = file.keys.check(caller, Scope::Operate, Names::One(name), now_ms) {
            return Ok((id, Err(refused)));
        }
        let broken = for_client(file.db.at(now_ms).break_lease(name))?;
        let answer = broken.map(|broken| match broken {
            BreakResult::Broken { owner, killed } => {
                Answer::Broken { name: name.into(), owner, killed }
            }
            BreakResult::Rejected { reason, current } => rejected(reason, current, now_ms),
        });
        Ok((id, answer))
    }

    /// Does something with a grant, if the client may.
    fn on_grant(
        &self,
        caller: Caller,
        grant: &str,
        file: &Served<'_>,
        work: impl FnOnce(&Grant, i64) -> Result<Answer, Error>,
    ) -> Result<(Id, Result<Answer, JobError>), Error> {
        let now_ms = self.now_ms;
        if let Err(refused) = file.keys.check_key(caller, now_ms) {
            return Ok((no_id(), Err(refused)));
        }
        let grant = match for_client(find(file.db, grant))? {
            Ok(Some(grant)) => grant,
            Ok(None) => {
                let unknown = Answer::Rejected { why: Why::UnknownGrant, current: None };
                return Ok((no_id(), Ok(unknown)));
            }
            Err(refused) => return Ok((no_id(), Err(refused))),
        };
        let (id, names) = (Id::Name(grant.name.as_str().into()), Names::One(&grant.name));
        if let Err(refused) = file.keys.check(caller, Scope::Claim, names, now_ms) {
            return Ok((id, Err(refused)));
        }
        Ok((id, for_client(work(&grant, now_ms))?))
    }
}

/// Finds the grant that has this secret: whether it is live is for the verbs to say. Returns `None`
/// if there was never a name with such a grant.
fn find(db: &Litelease, grant: &str) -> Result<Option<Grant>, Error> {
    let Some((number, hash)) = secret::read(grant) else { return Ok(None) };
    let Some(served) = served_rows::by_number(db, number)? else { return Ok(None) };
    // Comparing hashes tells nothing about a secret, however long it takes. A secret that is not
    // the newest one of its name belongs to an older grant.
    let token = if served.hash == Some(hash) { served.token } else { served.token - 1 };
    Ok(Some(Grant { name: served.name, token }))
}

fn transfer(
    db: &Litelease,
    grant: &Grant,
    new_owner: &str,
    ttl_ms: i64,
    now_ms: i64,
) -> Result<Answer, Error> {
    Ok(match db.at(now_ms).transfer(grant, new_owner, duration(ttl_ms))? {
        TransferResult::Transferred(handed) => {
            wait_for_owner(db, &handed)?;
            Answer::Transferred(Timed::at(now_ms, handed))
        }
        TransferResult::Rejected { reason, current } => rejected(reason, current, now_ms),
    })
}

/// Lets the owner of a lease fetch its secret.
pub(super) fn wait_for_owner(db: &Litelease, lease: &Lease) -> Result<(), Error> {
    let number = served_rows::by_name(db, &lease.name)?.map(|row| row.number);
    let no_secret = |_| Secret { hash: None, salt: None, made: () };
    served_rows::store(db, &lease.name, number, lease.token, no_secret)
}

pub(super) fn rejected(reason: Reason, current: Option<Lease>, now_ms: i64) -> Answer {
    let current = current.map(|current| Timed::at(now_ms, current));
    Answer::Rejected { why: Why::Rule(reason), current }
}

/// Separates errors that concern one client from those that fail the whole batch.
pub(super) fn for_client<T>(done: Result<T, Error>) -> Result<Result<T, JobError>, Error> {
    match done {
        Ok(done) => Ok(Ok(done)),
        Err(Error::TimeOverflow { .. }) => Ok(Err(JobError::TooLong)),
        Err(Error::TokenExhausted { .. }) => Ok(Err(JobError::Exhausted)),
        Err(error @ (Error::InvalidLeaseRow(_) | Error::SchemaMismatch { .. })) => {
            tracing::error!(kind = error.kind(), "a stored row or table is not as it should be");
            Ok(Err(JobError::Damaged))
        }
        Err(error) => Err(error),
    }
}
