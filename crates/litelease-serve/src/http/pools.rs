//! Calls on a pool, by its id.

use litelease_wire::{Borrow, Delete, Events, Keep, Look, Register, Renew, Return};

use super::call::{Context, Handle, Handled, not_of_process};
use crate::committer::slots;
use crate::events::{self, Target};
use crate::job::{Id, Task, Wanted, no_id};
use crate::response::HttpError;

impl Handle for Register {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let id = context.pool();
        register(&context, id, self.count).await
    }
}

/// Creates a pool, or changes how many slots it has.
pub(super) async fn register(context: &Context<'_>, id: Id, count: i64) -> Handled {
    let (most, caller) = (context.app.options.max_count, context.caller);
    if count > most {
        let text = format!("count must be at most {most} (the server's --max-count)");
        return Err(HttpError::new(400, text));
    }
    context
        .on_id(Task::Pool, id, move |file, id, now_ms| {
            slots::register(file, caller, id, count, now_ms)
        })
        .await
}

impl Handle for Look {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let answer = context.app.inspect(&context.pool(), false).await?;
        Ok(answer.respond(&no_id(), &context.app.jobs))
    }
}

impl Handle for Delete {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let id = context.pool();
        context.on_id(Task::Pool, id, slots::delete).await
    }
}

impl Handle for Borrow {
    fn handle(self, mut context: Context<'_>) -> impl Future<Output = Handled> + Send {
        let (id, jobs) = (context.pool(), context.app.jobs.clone());
        let checked = self.note.iter().try_for_each(|note| not_of_process("note", note));
        let wanted = Wanted::Slot { note: self.note };
        let asked = checked.and_then(|()| context.grant(&id, wanted, self.ttl, self.wait));
        async move { Ok(asked?.await?.respond(&id, &jobs)) }
    }
}

impl Handle for Return {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let id = context.pool();
        context
            .on_id(Task::Slot, id, move |file, id, now_ms| {
                slots::return_slot(file, id, &self.lease, now_ms)
            })
            .await
    }
}

impl Handle for Renew {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let (id, ttl_ms) = (context.pool(), context.app.ttl_ms(self.ttl));
        context
            .on_id(Task::Slot, id, move |file, id, now_ms| {
                slots::renew(file, id, self.lease, ttl_ms, now_ms)
            })
            .await
    }
}

impl Handle for Keep {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        let id = context.pool();
        context
            .on_id(Task::Slot, id, move |file, id, now_ms| {
                slots::keep(file, id, &self.lease, now_ms)
            })
            .await
    }
}

impl Handle for Events {
    async fn handle(self, mut context: Context<'_>) -> Handled {
        events::stream(context.app, Target::Pool(context.pool())).await
    }
}
