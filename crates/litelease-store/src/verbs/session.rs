//! Sessions and shards. Each verb runs in a transaction of its own, and is rolled back if its
//! answer is no.

use litelease_core::{ClaimResult, Lease, Reason, ReleaseResult, RenewResult};

use super::rows::{
    at_one_time, case, claimed_row, in_begun, lease, rejected, released, text, truth,
};
use super::{Answer, Arguments, Misuse};
use crate::{
    AssignedShard, Beat, Error, OwnedValue, SessionGrants, SessionOver, ShardGroup, Store, Value,
    When, is_passing,
};

/// The arguments from `at` on: identity, owner, token, ttl, and then name and token of each of its
/// names.
struct SessionArguments<'a> {
    grants: SessionGrants<'a>,
    names: Vec<(&'a str, i64)>,
}

impl<'a> SessionArguments<'a> {
    fn new(given: Arguments<'a>, at: usize) -> Result<Self, Misuse> {
        let names = (at + 4..given.0.len()).step_by(2);
        let names = names.map(|at| Ok((given.text(at)?, given.integer(at + 1)?)));
        let grants = SessionGrants {
            identity: given.text(at)?,
            owner: given.text(at + 1)?,
            token: given.integer(at + 2)?,
            ttl_ms: given.integer(at + 3)?,
            names: &[],
        };
        Ok(SessionArguments { grants, names: names.collect::<Result<_, Misuse>>()? })
    }

    fn grants(&self) -> SessionGrants<'_> {
        SessionGrants { names: &self.names, ..self.grants }
    }
}

/// Whether a live lease is the one that the caller has found to be dead.
fn is_grant(given: Arguments<'_>, owner: usize, token: usize, current: &Lease) -> bool {
    given.value(owner) == Value::Text(&current.owner)
        && given.value(token) == Value::Integer(current.token)
}

pub(super) fn session_open(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (identity, owner, ttl_ms) = (given.text(0)?, given.text(1)?, given.integer(2)?);
    let replaces = given.optional(3, Arguments::integer)? == Some(1);
    at_one_time(store, |now_ms| {
        let is_dead = |current: &Lease| is_grant(given, 4, 5, current);
        let answer = store.open_session(identity, owner, ttl_ms, now_ms, replaces, is_dead)?;
        let is_granted = matches!(answer, ClaimResult::Acquired(_));
        Ok((is_granted, vec![claimed_row(answer)]))
    })
}

/// One row for the identity, and one for each name. A keeper may have begun the transaction,
/// because it tries a locked file more often than SQLite does.
pub(super) fn session_beat(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let session = SessionArguments::new(given, 0)?;
    let work = |now_ms| {
        let beat = store.beat_session(session.grants(), now_ms, |_| Ok(()))?;
        beat_rows(store, session.grants(), now_ms, beat, |()| (true, vec![]))
    };
    match store.joins_transaction() {
        true => in_begun(store, work),
        false => at_one_time(store, work),
    }
}

/// The same, and at the end one row for the claim. Only that one if the name is busy.
pub(super) fn session_claim(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (name, session) = (given.text(0)?, SessionArguments::new(given, 3)?);
    at_one_time(store, |now_ms| {
        let is_dead = |current: &Lease| is_grant(given, 1, 2, current);
        let beat = store.claim_in_session(session.grants(), name, now_ms, is_dead)?;
        beat_rows(store, session.grants(), now_ms, beat, |answer| {
            (matches!(answer, ClaimResult::Acquired(_)), vec![claimed_row(answer)])
        })
    })
}

pub(super) fn session_close(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let session = SessionArguments::new(given, 0)?;
    at_one_time(store, |now_ms| {
        let answer = store.close_session(session.grants(), now_ms)?;
        let is_released = matches!(answer, ReleaseResult::Released { .. });
        Ok((is_released, vec![released(store, session.grants.identity, answer)?]))
    })
}

fn group_of(given: Arguments<'_>) -> Result<Result<ShardGroup, &'static str>, Misuse> {
    let count = usize::try_from(given.integer(1)?).unwrap_or(0);
    Ok(ShardGroup::new(given.text(0)?, count))
}

/// A group that was checked before.
fn checked_group(given: Arguments<'_>) -> Result<ShardGroup, Misuse> {
    group_of(given)?.map_err(|_| Misuse::Argument(0, "a group of shards"))
}

/// The identity of a member, or why there can be no such one.
pub(super) fn shard_member(_: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, id) = (group_of(given)?, given.text(2)?);
    Ok(vec![match group.and_then(|group| group.member(id)) {
        Ok(name) => vec![text("Member"), text(name)],
        Err(refused) => vec![text("Error"), text("InvalidShards"), text(refused)],
    }])
}

/// As a heartbeat. Only the count of the live members if that is another one.
pub(super) fn shard_join(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, session) = (checked_group(given)?, SessionArguments::new(given, 2)?);
    at_one_time(store, |now_ms| {
        let beat = store.join_shards(session.grants(), &group, now_ms)?;
        beat_rows(store, session.grants(), now_ms, beat, |other| match other {
            Some(count) => (false, vec![vec![text("Count"), OwnedValue::Integer(count)]]),
            None => (true, vec![]),
        })
    })
}

/// Whether the member must write now, and then each shard that it is to give up, and until when.
/// What follows the named arguments are the shards that it knows to be its own.
pub(super) fn shard_look(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, me, repeats) = (checked_group(given)?, given.text(2)?, given.integer(3)? == 1);
    let held = (4..given.0.len()).map(|at| given.integer(at)).collect::<Result<Vec<_>, _>>()?;
    let seen = store.in_snapshot(|| store.shards(&group, When::Now))?;
    let plan = seen.plan(me);
    let is_held = |shard| i64::try_from(shard).is_ok_and(|shard| held.contains(&shard));
    let has_work = seen.has_work(me, &plan, repeats, is_held);
    let requested = seen.requested(&plan).into_iter();
    let requested =
        requested.map(|(shard, until_ms)| vec![shard_number(shard), OwnedValue::Integer(until_ms)]);
    Ok([vec![truth(has_work)]].into_iter().chain(requested).collect())
}

/// As a heartbeat, and at the end one row for each shard that was granted: its number, the grant,
/// and the token, the value and the time of its last checkpoint.
pub(super) fn shard_step(store: &Store, given: Arguments<'_>) -> Result<Answer, Misuse> {
    let (group, session) = (checked_group(given)?, SessionArguments::new(given, 3)?);
    let drain_ms = given.integer(2)?;
    at_one_time(store, |now_ms| {
        let checkpoint = |token, value: Value<'_>, at_ms| {
            vec![OwnedValue::Integer(token), value.into(), OwnedValue::Integer(at_ms)]
        };
        let beat = store.share_shards(session.grants(), &group, drain_ms, now_ms, checkpoint)?;
        beat_rows(store, session.grants(), now_ms, beat, |assigned| {
            let row = |AssignedShard { shard, lease: granted, checkpoint }| {
                let checkpoint = checkpoint.unwrap_or_default();
                [vec![shard_number(shard)], lease(granted), checkpoint].concat()
            };
            (true, assigned.into_iter().map(row).collect())
        })
    })
}

/// One row for the identity, one for each name, and then the rest; only the rest if that says not
/// to commit. A renewal ends with how long it was granted for. A refusal that may pass is told as
/// `Refused`, and a name that is over only because its session is as `SessionOver`.
fn beat_rows<T>(
    store: &Store,
    session: SessionGrants<'_>,
    now_ms: i64,
    beat: Result<Beat<T>, SessionOver>,
    rest: impl FnOnce(T) -> (bool, Answer),
) -> Result<(bool, Answer), Error> {
    let refused = |name: &str, reason: Reason, current: Option<Lease>| {
        let mut row = rejected(store, name, reason, current)?;
        if is_passing(reason) {
            row[0] = text("Refused");
        }
        Ok::<_, Error>(row)
    };
    let granted = |lease: Lease| {
        let granted_ms = lease.expires_at_ms.saturating_sub(now_ms);
        [case("Renewed", lease), vec![OwnedValue::Integer(granted_ms)]].concat()
    };
    let names = session.names.iter().map(|(name, _)| *name);
    match beat {
        Ok(Beat { identity, names: answers, done }) => {
            let (is_done, rest) = rest(done);
            if !is_done {
                return Ok((false, rest));
            }
            let mut rows = vec![granted(identity)];
            for (name, answer) in names.zip(answers) {
                rows.push(match answer {
                    RenewResult::Renewed(lease) => granted(lease),
                    RenewResult::Rejected { reason, current } => refused(name, reason, current)?,
                });
            }
            rows.extend(rest);
            Ok((true, rows))
        }
        Err(SessionOver { reason, current, names: answers }) => {
            let mut rows = vec![refused(session.identity, reason, current)?];
            for (name, answer) in names.zip(answers) {
                rows.push(match answer {
                    Some((reason, current)) => refused(name, reason, current)?,
                    None => vec![text("SessionOver")],
                });
            }
            Ok((false, rows))
        }
    }
}

fn shard_number(shard: usize) -> OwnedValue {
    OwnedValue::Integer(i64::try_from(shard).unwrap_or(i64::MAX))
}
