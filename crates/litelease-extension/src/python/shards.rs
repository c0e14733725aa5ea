//! Members of groups that share shards, for Python: handles on those of `litelease-hold`, in
//! capsules. Freeing a capsule leaves the group.

use std::ffi::CStr;
use std::sync::{Arc, Weak};

use litelease_hold::file::{Aside, FileError, ShardEvent, Shards, ShardsOptions};
use litelease_hold::{Held, HoldError, Loss, Lost};

use crate::python::api::{
    InCapsule, Object, OfProcess, Result, capsule_of, in_capsule, integer, list, string, tuple,
};
use crate::python::holds::{
    Ending, SLICE, ends_with, failed, file_at, in_duration, lease_tuple, name_at, of_loss,
    optional, run,
};
use crate::python::values::to_integer;
use crate::python::waiting::{in_slices, seconds};
use crate::python::{Context, raise};

/// A member, until it leaves.
struct PythonShards {
    member: String,
    shards: OfProcess<Shards>,
}

impl InCapsule for PythonShards {
    const NAME: &'static CStr = c"litelease.shards";
}

impl Ending for PythonShards {
    fn end(&self, _: &'static str, _: &str) -> Option<Held> {
        self.shards.get()?.stop()
    }
}

/// Joins a group. Its arguments are the path, the group, the number of its shards, the id of the
/// member, the ttl and the drain in ms, the number of the connection or None, and None.
///
/// Answers the capsule with the owner text; or owner, token and expiry of the lease that is in the
/// way; or the other number of shards.
pub(crate) fn join(context: &'static Context, given: Object) -> Result<Object> {
    let (group, id) = (name_at(context, &given, 1)?, name_at(context, &given, 3)?);
    let count = given.item(2)?;
    if !context.names.is_integer(&count) {
        let text = format!("count must be a whole number, got {}", count.shown());
        return Err(context.names.type_error(&text));
    }
    let count = to_integer(&count).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let ms = |at| Ok(in_duration(to_integer(&given.item(at)?).unwrap_or(0)));
    let options = ShardsOptions::new(&id, ms(4)?).drain(ms(5)?);
    let (file, number) = (file_at(context, &given.item(0)?)?, given.item(6)?);
    let joined =
        run(context, &file, &given.item(7)?, |aside| Shards::join(aside, &group, count, options))?;
    match joined.answer {
        Ok(shards) => {
            let owner = string(shards.owner())?;
            let member = format!("{group}/member/{id}");
            let shards = Arc::new(PythonShards { member, shards: OfProcess::new(shards) });
            let weak: Weak<PythonShards> = Arc::downgrade(&shards);
            ends_with(context, optional(context, &number), weak);
            tuple(vec![capsule_of(shards)?, owner])
        }
        Err(HoldError::Busy(current)) => lease_tuple(&current),
        Err(HoldError::Lease(FileError::ShardCount { count, .. })) => integer(count),
        Err(error) => raise(context, failed(error)),
    }
}

/// Calls `work` with the member of a capsule and the other arguments. Answers a loss with the name
/// that was lost, the kind and the text.
fn with_shards(
    context: &'static Context,
    arguments: &Object,
    work: impl FnOnce(&'static Context, &Shards, &Object) -> Result<Answer>,
) -> Result<Object> {
    let member = in_capsule::<PythonShards>(&arguments.item(0)?)?;
    let answer = match member.shards.get() {
        Some(shards) => work(context, shards, arguments)?,
        None => Err(Lost { name: member.member.clone(), reason: Loss::Forked }.into()),
    };
    match answer {
        Ok(answer) => Ok(answer),
        Err(HoldError::Lost(Lost { name, reason })) => {
            let (kind, text) = of_loss(&reason);
            tuple(vec![string(&name)?, string(kind)?, string(&text)?])
        }
        Err(error) => raise(context, failed(error)),
    }
}

type Answer = std::result::Result<Object, HoldError<FileError>>;

fn shard_at(given: &Object) -> Result<usize> {
    let shard = to_integer(&given.item(1)?).and_then(|shard| usize::try_from(shard).ok());
    Ok(shard.unwrap_or(usize::MAX))
}

/// Waits for an event, for so many seconds. Answers None, or the number of the shard and what has
/// happened, in a tuple of its own.
pub(crate) fn next(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, given| {
        let next = in_slices(context, SLICE, seconds(&given.item(1)?), |time| {
            shards.next(time).transpose()
        })?;
        let event = match next {
            Some(Ok(event)) => event,
            Some(Err(error)) => return Ok(Err(error)),
            None => return Ok(Ok(context.names.none()?)),
        };
        let number = |shard: usize| integer(i64::try_from(shard).unwrap_or(i64::MAX));
        Ok(Ok(match event {
            ShardEvent::Assigned { shard, token, checkpoint } => {
                let checkpoint = match checkpoint {
                    Some((token, value, at_ms)) => tuple(vec![
                        integer(token)?,
                        context.names.object_of(value.value())?,
                        integer(at_ms)?,
                    ])?,
                    None => context.names.none()?,
                };
                tuple(vec![number(shard)?, tuple(vec![integer(token)?, checkpoint])?])?
            }
            ShardEvent::Requested { shard, until_ms } => {
                tuple(vec![number(shard)?, integer(until_ms)?])?
            }
            ShardEvent::Lost { shard, reason } => {
                let (kind, text) = of_loss(&reason);
                let reason = vec![string(kind)?, string(&text)?, context.names.none()?];
                tuple(vec![number(shard)?, tuple(reason)?])?
            }
            _ => context.names.none()?,
        }))
    })
}

/// Answers the numbers of the member's shards.
pub(crate) fn held(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |_, shards, _| {
        let held = shards.held().into_iter();
        let held = held.map(|shard| integer(i64::try_from(shard).unwrap_or(i64::MAX)));
        Ok(Ok(list(held.collect::<Result<_>>()?)?))
    })
}

pub(crate) fn check(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, given| {
        let checked = shards.check(shard_at(given)?);
        Ok(checked.map_err(HoldError::Lost).and(Ok(context.names.none()?)))
    })
}

pub(crate) fn checkpoint(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, given| {
        let (shard, value) = (shard_at(given)?, context.value_at(given, 2)?);
        let stored =
            asked(context, shards, |caller| shards.checkpoint(caller, shard, value.value()))?;
        Ok(stored.and(Ok(context.names.none()?)))
    })
}

/// Answers whether another member had requested the shard.
pub(crate) fn hand_over(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, given| {
        let shard = shard_at(given)?;
        Ok(match asked(context, shards, |caller| shards.hand_over(caller, shard))? {
            Ok(handed) => Ok(integer(i64::from(handed))?),
            Err(error) => Err(error),
        })
    })
}

/// Gives a shard up.
pub(crate) fn release(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, given| {
        let shard = shard_at(given)?;
        let released = asked(context, shards, |caller| shards.release(caller, shard))?;
        Ok(released.map_err(HoldError::Lost).and(Ok(context.names.none()?)))
    })
}

pub(crate) fn leave(context: &'static Context, given: Object) -> Result<Object> {
    with_shards(context, &given, |context, shards, _| {
        let left = asked(context, shards, |caller| shards.leave(caller))?;
        Ok(left.map_err(HoldError::Lost).and(Ok(context.names.none()?)))
    })
}

/// Runs `work` for a member, and lets Python handle signals meanwhile.
fn asked<T>(
    context: &'static Context,
    shards: &Shards,
    work: impl FnOnce(&Aside<'_>) -> T,
) -> Result<T> {
    Ok(run(context, shards.file(), &context.names.none()?, work)?.answer)
}
