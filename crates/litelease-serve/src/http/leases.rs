//! Calls on names: claims, renewals, and reads of leases.

use litelease::TickRequest;
use litelease_wire::{
    Break, Claim, LeaseEvents, LeasePage, Leases, ListLeases, Name, Refusal, Release, RenewLease,
    Transfer,
};

use super::call::{Context, Handle, Handled, USUAL_PAGE, not_of_process, which};
use crate::access::Which;
use crate::answer::{Answer, known};
use crate::committer::{NameState, names};
use crate::events::{self, Target};
use crate::job::{self, Id, Reported, TickWish, Wanted};
use crate::response::{HttpError, Response};

impl Handle for Claim {
    async fn handle(self, context: Context<'_>) -> Handled {
        let Claim { name, owner, ttl, wait, min_token, note, .. } = self;
        let (user, command) = (self.user, self.command);
        let (tick_ms, attempts, schedule) = (self.tick_ms, self.attempts, self.schedule);
        not_of_process("owner", &owner)?;
        let tick = tick_wish(tick_ms, attempts, schedule)?;
        if tick.is_some() && min_token.is_some() {
            return Err(HttpError::new(400, "give min_token or tick_ms, and not both"));
        }
        let (app, caller, scope) = (context.app, context.caller, context.scope());
        let claim = job::Claim::new(caller, owner, min_token.unwrap_or(0), note);
        let claim = job::Claim { tick, ..claim };
        let (id, wanted) = (Id::Name(name.as_str().into()), Wanted::Name(Box::new(claim)));
        let answer = context.grant(&id, wanted, ttl, wait)?.await?;
        if let (Some(token), true) = (answer.granted_token(), user.is_some() || command.is_some()) {
            app.holders.add(name.clone(), token, (user, command));
        }
        if !matches!(answer, Answer::NoneFree) {
            return Ok(answer.respond(&id, &app.jobs));
        }
        // The time is up. A client that may claim the name may see who has it.
        let text = "the name did not come free in time: ask again";
        let names = Which::One(name.as_str().into());
        let reported = Some(Reported { caller: Some(caller), names });
        let current = app.read(false, reported, move |reader| {
            reader.check(caller, scope, &Which::One(name.as_str().into()))?;
            Ok(reader.name(&name)?.current)
        });
        Ok(Response::refusal(&match current.await? {
            Some(current) => current.busy(text),
            None => Refusal::new("busy", text),
        }))
    }
}

impl Handle for RenewLease {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (ttl_ms, secret) = (context.app.ttl_ms(self.ttl), self.grant.clone());
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                names::renew(file, grant, &secret, ttl_ms, now_ms)
            })
            .await
    }
}

impl Handle for Release {
    async fn handle(self, context: Context<'_>) -> Handled {
        context.on_grant(self.grant, names::release).await
    }
}

impl Handle for Transfer {
    async fn handle(self, context: Context<'_>) -> Handled {
        not_of_process("new_owner", &self.new_owner)?;
        let (ttl_ms, to) = (context.app.ttl_ms(self.ttl), self.new_owner);
        context
            .on_grant(self.grant, move |file, grant, now_ms| {
                names::transfer(file, grant, &to, ttl_ms, now_ms)
            })
            .await
    }
}

impl Handle for Break {
    async fn handle(self, context: Context<'_>) -> Handled {
        let (token, operator) = (self.token, context.operator(self.reason));
        context
            .on_name(self.name, move |file, name, now_ms| {
                names::break_lease(file, name, token, &operator, now_ms)
            })
            .await
    }
}

impl Handle for ListLeases {
    async fn handle(self, context: Context<'_>) -> Handled {
        let ListLeases { name, prefix, after, limit, all } = self;
        let (names, limit) = (which(name, prefix)?, limit.unwrap_or(USUAL_PAGE));
        let (caller, scope) = (context.caller, context.scope());
        let reported = Some(Reported { caller: Some(caller), names: names.clone() });
        let leases = context.app.read(false, reported, move |reader| {
            reader.check(caller, scope, &names)?;
            Ok(match names {
                Which::One(name) => Leases::One(one(&name, reader.name(&name)?)),
                Which::Under(prefix) => {
                    let (rows, next) = reader.page(&prefix, after.as_deref(), limit, all)?;
                    let leases = rows.into_iter().map(|row| known(row, reader.now_ms)).collect();
                    Leases::Page(LeasePage { leases, next })
                }
            })
        });
        Ok(Response::json(200, &leases.await?))
    }
}

impl Handle for LeaseEvents {
    async fn handle(self, context: Context<'_>) -> Handled {
        let target = Target::Names(which(self.name, self.prefix)?, context.caller);
        events::stream(context.app, target).await
    }
}

/// Returns the tick that a claim asks for.
fn tick_wish(
    tick_ms: Option<i64>,
    attempts: Option<i64>,
    schedule: Option<String>,
) -> Result<Option<Box<TickWish>>, HttpError> {
    let Some(tick_ms) = tick_ms else {
        return match attempts.is_none() && schedule.is_none() {
            true => Ok(None),
            false => Err(HttpError::new(400, "attempts and schedule are for a tick: add tick_ms")),
        };
    };
    let usual = TickRequest::from(tick_ms);
    let asked = TickRequest { attempts: attempts.unwrap_or(usual.attempts), ..usual };
    Ok(Some(Box::new(TickWish { asked, schedule })))
}

fn one(name: &str, state: NameState) -> Name {
    let current = state.current.map(|current| current.into_wire());
    let (value, requested) = match &current {
        Some(current) => (current.value.clone(), current.requested.clone()),
        None => (None, None),
    };
    Name {
        expires_at_unix: current.as_ref().map(|current| current.expires_at_unix),
        expires_in: current.as_ref().map(|current| current.expires_in),
        held_for: current.as_ref().map(|current| current.held_for),
        name: name.into(),
        owner: current.map(|current| current.owner),
        requested,
        token: state.token,
        value,
        waiters: state.waiters,
        waiting: Some(state.waiting).filter(|waiting| !waiting.is_empty()),
    }
}
