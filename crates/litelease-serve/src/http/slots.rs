//! Calls on the slots of a pool that has a name. A client that may claim the name may use the pool.

use litelease_wire::{ListPools, ListSlots, Pools, SlotBorrow, SlotBreak, SlotRenew, SlotReturn};

use super::call::{Context, Handle, Handled, USUAL_PAGE, not_of_process, which, wrong_after};
use super::pools;
use crate::access::Which;
use crate::answer::{Answer, PoolAnswer};
use crate::committer::{Served, slots};
use crate::job::{Id, JobError, NamedSlot, Task, Wanted};
use crate::listings::{self, MOST_SHOWN};
use crate::response::{HttpError, Response};
use crate::secret::slot_key;

/// Returns the pool of a name, for a client that may use it.
async fn pool_of(context: &Context<'_>, name: &str) -> Result<Id, HttpError> {
    context.admit(Which::One(name.into())).await?;
    Ok(Id::Pool(litelease::pool_of_name(name).into()))
}

impl Handle for SlotBorrow {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let SlotBorrow { name, count, ttl, wait, note } = self;
        note.iter().try_for_each(|note| not_of_process("note", note))?;
        let id = pool_of(&context, &name).await?;
        let has_count = match context.app.inspect(&id, false).await {
            Ok(Answer::Pool(PoolAnswer::Pool(pool))) => pool.count == count,
            Ok(_) | Err(JobError::NoSuchPool) => false,
            Err(error) => return Err(error.into()),
        };
        if !has_count {
            pools::register(&context, id.clone(), count).await?;
        }
        let (caller, jobs) = (context.caller, context.app.jobs.clone());
        // All clients of the pool share its keys: without the caller in it, a client could get the
        // lease of another one that has sent the same key.
        context.key = context.key.map(|key| slot_key(caller, &name, &key));
        let wanted = Wanted::NamedSlot(Box::new(NamedSlot { caller, name: name.into(), note }));
        Ok(context.grant(&id, wanted, ttl, wait)?.await?.respond(&id, &jobs))
    }
}

impl Handle for SlotRenew {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (id, ttl_ms) = (pool_of(&context, &self.name).await?, context.app.ttl_ms(self.ttl));
        context
            .on_id(Task::Slot, id, move |file, id, now_ms| {
                slots::renew(file, id, self.lease, ttl_ms, now_ms)
            })
            .await
    }
}

impl Handle for SlotReturn {
    async fn handle(self, context: Context<'_>) -> Handled {
        let id = pool_of(&context, &self.name).await?;
        context
            .on_id(Task::Slot, id, move |file, id, now_ms| {
                slots::return_slot(file, id, &self.lease, now_ms)
            })
            .await
    }
}

impl Handle for SlotBreak {
    async fn handle(self, context: Context<'_>) -> Handled {
        let SlotBreak { name, position, token, reason } = self;
        let id = pool_of(&context, &name).await?;
        let operator = context.operator(reason);
        let work = move |file: &Served<'_>, id: &str, now_ms| {
            slots::break_slot(file, id, position, token, &operator, now_ms)
        };
        context.on_id(Task::Pool, id, work).await
    }
}

impl Handle for ListSlots {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListSlots { name, prefix, after, limit } = self;
        let (names, limit) = (which(name, prefix)?, limit.unwrap_or(USUAL_PAGE));
        context.admit(names.clone()).await?;
        match names {
            Which::Under(prefix) => {
                let list = move |db: &_, now_ms| {
                    listings::pools(db, &prefix, after.as_deref(), limit, now_ms)
                };
                context.answer_beside(list).await
            }
            Which::One(name) => {
                let from = after.map(|after| after.parse::<u32>().map_err(|_| wrong_after()));
                let from = from.transpose()?.map_or(0, |after| i64::from(after) + 1);
                let list = move |db: &_, now_ms| listings::slots(db, &name, from, limit, now_ms);
                context.answer_beside(list).await
            }
        }
    }
}

impl Handle for ListPools {
    async fn handle(self, context: Context<'_>) -> Handled {
        let after = self.after.map(|after| after.parse().map_err(|_| wrong_after()));
        let (after, limit) = (after.transpose()?.unwrap_or(-1), self.limit.unwrap_or(USUAL_PAGE));
        // Most pools have no name, so this is for keys that may see every name.
        context.admit(Which::Under("".into())).await?;
        let list = move |db: &_, now_ms| listings::all_pools(db, after, limit, now_ms);
        let (mut pools, next) = context.app.read_beside(list).await?;
        // Requests that wait are in memory only.
        let pools = context.app.read(false, None, move |reader| {
            for (id, pool) in &mut pools {
                let (waiters, waiting) = reader.waiting(&Id::Pool(id.as_str().into()), MOST_SHOWN);
                pool.waiters = waiters;
                pool.waiting = Some(waiting).filter(|waiting| !waiting.is_empty());
            }
            Ok(pools.into_iter().map(|(_, pool)| pool).collect())
        });
        Ok(Response::json(200, &Pools { next, pools: pools.await? }))
    }
}
