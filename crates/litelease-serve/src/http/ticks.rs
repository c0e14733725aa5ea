//! Calls on ticks.

use litelease::{TickInfo, TickOutcome};
use litelease_store::When;
use litelease_wire::{
    DoTick, FinishTick, ForgetTick, InstallSchedule, ListTicks, SkipTicks, Tick, TickAgain, Ticks,
};

use super::call::{Context, Handle, Handled, USUAL_PAGE, which};
use crate::access::Which;
use crate::answer::seconds;
use crate::committer::{Served, ticks};
use crate::job::Reported;
use crate::response::Response;

impl Handle for FinishTick {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (secret, is_done) = (self.grant.clone(), self.outcome == "done");
        let outcome = if is_done { TickOutcome::Done } else { TickOutcome::Failed };
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                ticks::finish(file, grant, &secret, outcome, now_ms)
            })
            .await
    }
}

impl Handle for DoTick {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (caller, key, tick_ms) = (context.caller, context.key.clone(), self.tick_ms);
        context
            .on_name(self.name, move |file, name, now_ms| {
                ticks::tick(file, name, tick_ms, (caller, key.as_deref()), now_ms)
            })
            .await
    }
}

impl Handle for InstallSchedule {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (tick_ms, schedule) = (self.tick_ms, self.schedule);
        context
            .on_name(self.name, move |file, name, now_ms| {
                ticks::install(file, name, tick_ms, schedule.as_deref(), now_ms)
            })
            .await
    }
}

impl Handle for SkipTicks {
    async fn handle(self, context: Context<'_>) -> Handled {
        let SkipTicks { name, until_ms, breaks, reason } = self;
        let operator = context.operator(reason);
        context
            .on_name(name, move |file, name, now_ms| {
                ticks::skip(file, name, (until_ms, breaks), &operator, now_ms)
            })
            .await
    }
}

impl Handle for TickAgain {
    async fn handle(self, context: Context<'_>) -> Handled {
        let operator = context.operator(self.reason);
        let again = move |file: &Served<'_>, name: &str, now_ms| {
            ticks::again(file, name, &operator, now_ms)
        };
        context.on_name(self.name, again).await
    }
}

impl Handle for ForgetTick {
    async fn handle(self, context: Context<'_>) -> Handled {
        let operator = context.operator(self.reason);
        let forget = move |file: &Served<'_>, name: &str, now_ms| {
            ticks::forget(file, name, &operator, now_ms)
        };
        context.on_name(self.name, forget).await
    }
}

impl Handle for ListTicks {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListTicks { name, prefix, after, limit } = self;
        let (names, limit) = (which(name, prefix)?, limit.unwrap_or(USUAL_PAGE));
        let (caller, scopes) = (context.caller, context.call.scopes);
        let reported = Some(Reported { caller: Some(caller), names: names.clone() });
        let found = context.app.read(false, reported, move |reader| {
            reader.check_any(caller, scopes, &names)?;
            let (found, next) = reader.read(|db, now_ms| {
                let (prefix, when) = match &names {
                    Which::One(name) => {
                        return Ok((db.at(now_ms).newest_tick(name)?.into_iter().collect(), None));
                    }
                    Which::Under(prefix) => (prefix, When::At(now_ms)),
                };
                let after = after.as_deref();
                let found = db.with_store(|store| store.ticks_under(prefix, after, limit, when))?;
                let next = found.last().filter(|_| found.len() >= limit);
                let next = next.map(|last| last.name.clone());
                Ok((found, next))
            })?;
            let ticks = found.into_iter().map(|info| tick(info, reader.now_ms)).collect();
            Ok(Ticks { next, ticks })
        });
        Ok(Response::json(200, &found.await?))
    }
}

fn tick(info: TickInfo, now_ms: i64) -> Tick {
    let TickInfo { name, tick, owner, schedule, holder } = info;
    Tick {
        attempt: tick.attempt,
        attempts: tick.attempts,
        began_ms: tick.began_ms,
        done_ms: tick.newest_done_ms(),
        ended_ms: tick.ended_ms,
        expires_in: holder.map(|holder| seconds(holder.expires_at_ms.saturating_sub(now_ms))),
        name,
        owner,
        schedule,
        state: tick.newest().state.word().into(),
        tick_ms: tick.newest().tick_ms,
        token: Some(tick.token).filter(|token| *token > 0),
    }
}
