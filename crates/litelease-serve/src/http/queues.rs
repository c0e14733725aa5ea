//! Calls on queues.

use litelease::{GiveBackOptions, ItemName, SendOptions};
use litelease_store::{ItemCursor, ManyItems};
use litelease_wire::{
    Ack, Bury, Cancel, DeleteQueue, Discard, Extend, GiveBack, ListItems, ListQueues, Receive,
    Received, Redrive, Send,
};

use super::call::{Context, Handle, Handled, USUAL_PAGE, milliseconds, which, wrong_after};
use crate::access::Which;
use crate::answer::Answer;
use crate::committer::{Done, Operator, Served, duration, items};
use crate::job::{Id, Job, ManyJob, Task, Wanted};
use crate::listings;
use crate::response::{HttpError, Response};

impl Context<'_> {
    /// Returns the identity under which the server stores the answer to the request, if it has a
    /// key: the client and the content of the request.
    fn request_key(&self, queue: &str) -> Option<items::Key> {
        items::Key::new(self.caller, self.call.name, queue, self.key.as_deref())
    }

    /// Runs work on the item of a receipt.
    async fn on_receipt(
        &self,
        queue: Option<String>,
        receipt: String,
        work: impl FnOnce(&Served<'_>, &str, &str, i64) -> Done + std::marker::Send + 'static,
    ) -> Handled {
        let same = receipt.clone();
        let work = Box::new(move |file: &Served<'_>, queue: &str, now_ms| {
            work(file, queue, &same, now_ms)
        });
        self.perform(Task::Receipt { queue: queue.map(Into::into), receipt, work }).await
    }

    /// Changes some dead items, or all of them.
    async fn on_dead(
        self,
        queue: String,
        change: ManyItems,
        items: (Option<i64>, Option<Vec<i64>>),
        reason: Option<String>,
    ) -> Handled {
        let ids = match items {
            (Some(_), Some(_)) => {
                return Err(HttpError::new(400, "give the id of an item or ids, and not both"));
            }
            (id, ids) => ids.or(id.map(|id| vec![id])),
        };
        let operator = self.operator(reason);
        let Some(ids) = ids else { return self.change_many(&queue, change, operator).await };
        let key = self.request_key(&queue);
        let of_queue = Id::Queue(queue.as_str().into());
        self.on_id(Task::Queue, of_queue, move |file, queue, now_ms| {
            items::change_some(file, queue, (change, &ids), &operator, key.as_ref(), now_ms)
        })
        .await
    }

    async fn change_many(&self, queue: &str, change: ManyItems, operator: Operator) -> Handled {
        let (key, queue) = (self.key.clone(), queue.into());
        let (after, count) = (None, 0);
        self.ask(|reply| Job::Many(ManyJob { operator, queue, change, after, count, key, reply }))
            .await
    }
}

impl Handle for Send {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (body, item_key) = (self.body, self.key);
        let delay = duration(milliseconds(self.delay));
        let key = context.request_key(&self.queue);
        context
            .on_id(Task::Queue, Id::Queue(self.queue.into()), move |file, queue, now_ms| {
                let mut options = SendOptions::new().delay(delay);
                if let Some(item_key) = &item_key {
                    options = options.key(item_key);
                }
                items::send(file, queue, body, options, key.as_ref(), now_ms)
            })
            .await
    }
}

impl Handle for Receive {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (id, app) = (Id::Queue(self.queue.into()), context.app);
        let wanted = Wanted::Item(Box::new(context.caller));
        match context.grant(&id, wanted, self.visibility, self.wait)?.await? {
            Answer::NoneFree => Ok(Response::json(200, &Received { item: None })),
            answer => Ok(answer.respond(&id, &app.jobs)),
        }
    }
}

impl Handle for Ack {
    async fn handle(self, context: Context<'_>) -> Handled {
        let key = context.request_key(self.queue.as_deref().unwrap_or_default());
        context
            .on_receipt(self.queue, self.receipt, move |file, queue, receipt, now_ms| {
                items::ack(file, queue, receipt, key.as_ref(), now_ms)
            })
            .await
    }
}

impl Handle for Extend {
    async fn handle(self, context: Context<'_>) -> Handled {
        let visibility_ms = context.app.ttl_ms(self.visibility);
        context
            .on_receipt(self.queue, self.receipt, move |file, queue, receipt, now_ms| {
                items::extend(file, queue, receipt, visibility_ms, now_ms)
            })
            .await
    }
}

impl Handle for GiveBack {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (delay, note) = (duration(milliseconds(self.delay)), self.note);
        context
            .on_receipt(self.queue, self.receipt, move |file, queue, receipt, now_ms| {
                let mut options = GiveBackOptions::new().delay(delay);
                if let Some(note) = &note {
                    options = options.note(note);
                }
                items::give_back(file, queue, receipt, options, now_ms)
            })
            .await
    }
}

impl Handle for Bury {
    async fn handle(self, context: Context<'_>) -> Handled {
        let note = self.note;
        context
            .on_receipt(self.queue, self.receipt, move |file, queue, receipt, now_ms| {
                items::bury(file, queue, receipt, note.as_deref(), now_ms)
            })
            .await
    }
}

impl Handle for Redrive {
    async fn handle(self, context: Context<'_>) -> Handled {
        context.on_dead(self.queue, ManyItems::Redrive, (self.id, self.ids), self.reason).await
    }
}

impl Handle for Discard {
    async fn handle(self, context: Context<'_>) -> Handled {
        context.on_dead(self.queue, ManyItems::Discard, (self.id, self.ids), self.reason).await
    }
}

impl Handle for Cancel {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (id, item_key) = (self.id, self.key);
        if id.is_some() == item_key.is_some() {
            return Err(HttpError::new(400, "give the id or the key of an item, and not both"));
        }
        let (key, operator) = (context.request_key(&self.queue), context.operator(None));
        context
            .on_id(Task::Queue, Id::Queue(self.queue.into()), move |file, queue, now_ms| {
                let by_key = ItemName::Key(item_key.as_deref().unwrap_or_default());
                let item = id.map_or(by_key, ItemName::Id);
                items::cancel(file, queue, item, &operator, key.as_ref(), now_ms)
            })
            .await
    }
}

impl Handle for DeleteQueue {
    async fn handle(self, context: Context<'_>) -> Handled {
        let operator = context.operator(None);
        context.change_many(&self.queue, ManyItems::Delete, operator).await
    }
}

impl Handle for ListItems {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListItems { queue, after, limit } = self;
        let after = after.map(|after| ItemCursor::parse(&after).ok_or_else(wrong_after));
        let (after, limit) = (after.transpose()?, limit.unwrap_or(USUAL_PAGE));
        context.admit(Which::One(queue.as_str().into())).await?;
        let list = move |db: &_, now_ms| listings::items(db, &queue, after, limit, now_ms);
        context.answer_beside(list).await
    }
}

impl Handle for ListQueues {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListQueues { queue, prefix, after, limit } = self;
        let (names, limit) = (which(queue, prefix)?, limit.unwrap_or(USUAL_PAGE));
        context.admit(names.clone()).await?;
        let count =
            move |db: &_, now_ms| listings::queues(db, &names, after.as_deref(), limit, now_ms);
        context.answer_beside(count).await
    }
}
