//! The rule of ticks with a bug planted on purpose.

use litelease_core::{
    self as rule, ClaimTickResult, Claimant, FinishTickResult, Refusal, Row, Term, Tick,
    TickChange, TickOutcome, TickRequest, TickResult, TickState, TickStep,
};

use crate::mutant::Rules;

/// A bare lease: what was finished is forgotten, so a late claimant begins again.
pub struct TickByLeaseAlone;

impl Rules for TickByLeaseAlone {
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        let under_way = stored.filter(|tick| tick.state == TickState::Open);
        rule::claim_tick(row, under_way, owner, asked, term, floor, dead)
    }

    fn tick(
        &self,
        row: Row<'_>,
        stored: Option<Tick>,
        tick_ms: i64,
        now_ms: i64,
    ) -> Result<TickStep<'static, TickResult>, Refusal> {
        let under_way = stored.filter(|tick| tick.state == TickState::Open);
        rule::tick(row, under_way, tick_ms, now_ms)
    }
}

/// Each claimant's own number of attempts counts.
pub struct AttemptsPerCaller;

impl Rules for AttemptsPerCaller {
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        let stored = stored.map(|tick| Tick { attempts: i64::MAX, ..tick });
        rule::claim_tick(row, stored, owner, asked, term, floor, dead)
    }
}

/// A transfer leaves the tick under the token of the old grant.
pub struct TransferForgetsTick;

impl Rules for TransferForgetsTick {
    fn carry_tick(&self, _: Option<Tick>, _: i64, _: i64) -> Option<Tick> {
        None
    }
}

/// A purge deletes the tick with the row of its lease.
pub struct PurgeForgetsTick;

impl Rules for PurgeForgetsTick {
    fn tick_after_purge(&self, _: Option<Tick>) -> Option<Tick> {
        None
    }
}

/// Ending a pause makes now the newest tick, also where a later one has run already.
pub struct SkipLowers;

impl Rules for SkipLowers {
    fn skip<'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        until_ms: Option<i64>,
        breaks: bool,
        now_ms: i64,
        floor: i64,
    ) -> Result<TickStep<'static, TickChange<&'a str>>, Refusal> {
        let mut step = rule::skip(row, stored, until_ms, breaks, now_ms, floor)?;
        if let Some(tick) = step.tick.as_mut().filter(|tick| tick.state != TickState::Open) {
            let tick_ms = until_ms.unwrap_or(now_ms);
            *tick = Tick { tick_ms, state: TickState::Skipped, skipped_ms: None, ..*tick };
            step.answer = TickChange::Changed(tick.newest());
        }
        Ok(step)
    }
}

/// A holder that has lost its lease finishes the tick that another one has.
pub struct FinishByZombie;

impl Rules for FinishByZombie {
    fn finish_tick(
        &self,
        row: Row<'_>,
        stored: Option<Tick>,
        token: i64,
        outcome: TickOutcome,
        now_ms: i64,
    ) -> TickStep<'static, FinishTickResult> {
        let newest = stored.map_or(0, |tick| tick.token);
        let token = if token <= newest { newest } else { token };
        rule::finish_tick(row, stored, token, outcome, now_ms)
    }
}

/// A tick passes only while its lease is live, so a job that was late is run again.
pub struct FinishByClock;

impl Rules for FinishByClock {
    fn finish_tick(
        &self,
        row: Row<'_>,
        stored: Option<Tick>,
        token: i64,
        outcome: TickOutcome,
        now_ms: i64,
    ) -> TickStep<'static, FinishTickResult> {
        let stored = stored.filter(|_| row.live(now_ms).is_some());
        rule::finish_tick(row, stored, token, outcome, now_ms)
    }
}

/// A claimant whose tick is taken waits for the lease of another one.
pub struct BusyBeforeTaken;

impl Rules for BusyBeforeTaken {
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        let step = rule::claim_tick(row, stored, owner, asked, term, floor, dead)?;
        match (step.answer, row.live(term.now_ms())) {
            (ClaimTickResult::AlreadyTaken(_), Some(current)) => {
                Ok(TickStep { answer: ClaimTickResult::Busy { current, tick_ms: None }, ..step })
            }
            _ => Ok(step),
        }
    }
}

/// A clock that is far ahead makes the ticks of the future taken.
pub struct FutureGranted;

impl Rules for FutureGranted {
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        let step = rule::claim_tick(row, stored, owner, asked, term, floor, dead)?;
        let ClaimTickResult::InFuture { now_ms } = step.answer else { return Ok(step) };
        let near = TickRequest { tick_ms: now_ms, ..asked };
        let mut step = rule::claim_tick(row, stored, owner, near, term, floor, dead)?;
        if let Some(tick) = &mut step.tick {
            tick.tick_ms = asked.tick_ms;
        }
        Ok(step)
    }
}

/// What a grant left open goes back to a fresh count of attempts.
pub struct AttemptsNotCounted;

impl Rules for AttemptsNotCounted {
    fn claim_tick<'a, 'q: 'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        owner: &'q str,
        asked: TickRequest,
        term: Term,
        floor: i64,
        dead: Option<Claimant<'_>>,
    ) -> Result<TickStep<'q, ClaimTickResult<&'a str>>, Refusal> {
        let stored = stored.map(|tick| Tick { attempt: 0, ..tick });
        rule::claim_tick(row, stored, owner, asked, term, floor, dead)
    }
}

/// Opening a tick again leaves it under the token of its last grant.
pub struct AgainKeepsToken;

impl Rules for AgainKeepsToken {
    fn again<'a>(
        &self,
        row: Row<'a>,
        stored: Option<Tick>,
        now_ms: i64,
    ) -> Result<TickStep<'static, TickChange<&'a str>>, Refusal> {
        let mut step = rule::again(row, stored, now_ms)?;
        if let (Some(tick), Some(stored)) = (&mut step.tick, stored) {
            tick.token = stored.token;
        }
        Ok(step)
    }
}
