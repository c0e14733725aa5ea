//! Calls on the payload of a grant: values, limits, checkpoints, requests for the lease.

use litelease_wire::{
    Attach, HandOver, LastCheckpoint, Limit, Progress, RequestLease, StoreCheckpoint,
};

use super::call::{Context, Handle, Handled, milliseconds, not_of_process};
use crate::access::Which;
use crate::committer::{names, payloads};
use crate::response::Response;

impl Handle for Attach {
    async fn handle(self, context: Context<'_>) -> Handled {
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                payloads::attach(file, grant, self.value.clone(), now_ms)
            })
            .await
    }
}

impl Handle for Limit {
    async fn handle(self, context: Context<'_>) -> Handled {
        let within_ms = self.progress_within.map(milliseconds);
        let most_ms = self.max_time.map(milliseconds);
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                payloads::limit(file, grant, within_ms, most_ms, now_ms)
            })
            .await
    }
}

impl Handle for Progress {
    async fn handle(self, context: Context<'_>) -> Handled {
        context.on_grant(self.grant, payloads::progress).await
    }
}

impl Handle for StoreCheckpoint {
    async fn handle(self, context: Context<'_>) -> Handled {
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                payloads::checkpoint(file, grant, self.value.clone(), now_ms)
            })
            .await
    }
}

impl Handle for LastCheckpoint {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (caller, scopes) = (context.caller, context.call.scopes);
        let found = context.app.read(false, None, move |reader| {
            reader.check_any(caller, scopes, &Which::One(self.name.as_str().into()))?;
            reader.last_checkpoint(&self.name)
        });
        Ok(Response::json(200, &found.await?))
    }
}

impl Handle for RequestLease {
    async fn handle(self, context: Context<'_>) -> Handled {
        not_of_process("requester", &self.requester)?;
        let (requester, within_ms) = (self.requester, milliseconds(self.within));
        context
            .on_name(self.name, move |file, name, now_ms| {
                payloads::request(file, name, &requester, within_ms, now_ms)
            })
            .await
    }
}

impl Handle for HandOver {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ttl_ms = context.app.ttl_ms(self.ttl);
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                names::hand_over(file, grant, ttl_ms, now_ms)
            })
            .await
    }
}
