//! Ticks: a scheduled job once, although every machine has the schedule.

use std::time::Duration;

use litelease_core::{
    self as core, NewestTick, Tick, TickChange, TickInfo, TickOutcome, TickRequest, TickResult,
    TickState,
};
use litelease_hold::abandon;
use litelease_wire::{
    Claim, DoTick, FinishTick, ForgetTick, InstallSchedule, ListTicks, Refusal, SkipTicks,
    TickAgain, TickChanged, Ticks,
};
use serde_json::Value;

use crate::client::{from_now, nonsense};
use crate::look::{FIRST, PAGE};
use crate::mode::Mode;
use crate::retry::{Reply, refusal};
use crate::transport::Outcome;
use crate::{Client, Error, Grant, Held};

/// The tick of a new grant.
///
/// ```no_run
/// # use litelease_client::{BegunTick, Error, Grant};
/// # let grant = Grant::with_secret("");
/// if let Some(BegunTick { attempt, previous_ms, .. }) = grant.tick {
///     println!("attempt {attempt}; the last one that was done: {previous_ms:?}");
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BegunTick {
    /// The tick.
    pub tick_ms: i64,
    /// The number of this grant among those of the tick, from 1.
    pub attempt: i64,
    /// The newest tick before that was done.
    pub previous_ms: Option<i64>,
    /// An older tick that was open, and is not run any more.
    pub passed_ms: Option<i64>,
}

impl From<litelease_wire::BegunTick> for BegunTick {
    fn from(begun: litelease_wire::BegunTick) -> Self {
        let litelease_wire::BegunTick { attempt, passed_ms, previous_ms, tick_ms } = begun;
        BegunTick { tick_ms, attempt, previous_ms, passed_ms }
    }
}

/// A tick that a claim asks for, and the schedule that has planned it.
#[derive(Clone, Debug)]
pub(crate) struct TickWish {
    pub(crate) asked: TickRequest,
    pub(crate) schedule: Option<String>,
}

impl TickWish {
    /// Adds the tick to a claim. A schedule that is too long to be stored is left out: it is only
    /// shown.
    pub(crate) fn claim(wish: Option<&TickWish>, claim: Claim) -> Claim {
        let Some(TickWish { asked, schedule }) = wish else { return claim };
        let schedule = schedule.clone().filter(|schedule| schedule.len() <= LONGEST_SCHEDULE);
        let (tick_ms, attempts) = (Some(asked.tick_ms), Some(asked.attempts));
        Claim { tick_ms, attempts, schedule, ..claim }
    }
}

/// The longest schedule that a server stores, in bytes.
const LONGEST_SCHEDULE: usize = 1000;

/// Ticks: the instants that a schedule plans. A tick is run once, however many machines have it.
impl<M: Mode> Client<M> {
    /// Claims a name with a tick, and waits for it for at most `wait`. Fails with
    /// [`TickTaken`](Error::TickTaken) at once when waiting would not help: the tick is done, or
    /// has had all its grants.
    ///
    /// The grant is that of every claim: renew it, and end it with
    /// [`finish_tick`](Client::finish_tick). A release leaves the tick to other clients.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error, TickOutcome};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let ttl = Duration::from_secs(30);
    /// match client.claim_tick("nightly", "host-a", ttl, Duration::ZERO, 1_767_225_600_000) {
    ///     Ok(grant) => client.finish_tick(&grant, TickOutcome::Done)?,
    ///     Err(Error::TickTaken(newest)) => println!("{newest}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn claim_tick(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
        tick: impl Into<TickRequest>,
    ) -> M::Answer<Grant> {
        let wish = TickWish { asked: tick.into(), schedule: None };
        self.claim_with(name, owner, ttl, wait, 0, Some(&wish))
    }

    /// Makes the tick of a grant final, and ends the grant. It passes as long as no other client
    /// was granted the name meanwhile; otherwise it fails with [`StaleTick`](Error::StaleTick).
    pub fn finish_tick(&self, grant: &Grant, outcome: TickOutcome) -> M::Answer<()> {
        let outcome = outcome.state().word().into();
        self.ask(FinishTick { grant: grant.secret().into(), outcome }, Reply::check)
    }

    /// Begins and finishes a tick in one step, and returns whether it is the caller's: `First` for
    /// one of all callers. An effect that follows happens at most once.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error, TickResult};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// if client.tick("digest", 1_767_225_600_000)? == TickResult::First {
    ///     println!("send it");
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn tick(&self, name: &str, tick_ms: i64) -> M::Answer<TickResult> {
        self.ask(DoTick { name: name.into(), tick_ms }, |reply| match reply.done() {
            Ok(_) => Ok(TickResult::First),
            Err(Error::TickTaken(newest)) => Ok(TickResult::AlreadyTaken(newest)),
            Err(Error::TickInFuture { now_ms }) => Ok(TickResult::InFuture { now_ms }),
            Err(error) => Err(error),
        })
    }

    /// Skips every tick up to now, or up to `until_ms`: it pauses a schedule, and ends a pause.
    /// While a holder is at work on such a tick it is busy; with `breaks` it ends that holder's
    /// lease, too, and is sent only once.
    pub fn skip_ticks(
        &self,
        name: &str,
        until_ms: Option<i64>,
        breaks: bool,
    ) -> M::Answer<TickChange> {
        let (name, reason) = (name.into(), self.note());
        let request = SkipTicks { name, until_ms, breaks, reason };
        match breaks {
            true => self.change_once(request),
            false => self.ask(request, |reply| changed(reply.answer)),
        }
    }

    /// Opens the newest tick once more, with all its attempts. It is sent only once: the tick may
    /// be done again before a second request.
    pub fn tick_again(&self, name: &str) -> M::Answer<TickChange> {
        self.change_once(TickAgain { name: name.into(), reason: self.note() })
    }

    /// Deletes the newest tick of a schedule that is no more. It is sent only once.
    pub fn forget_tick(&self, name: &str) -> M::Answer<TickChange> {
        self.change_once(ForgetTick { name: name.into(), reason: self.note() })
    }

    /// Stores the newest past tick of a schedule as skipped, if `name` has no tick yet, so that
    /// installing the schedule runs nothing. Returns the newest tick.
    pub fn install_schedule(&self, name: &str, tick_ms: i64, text: &str) -> M::Answer<NewestTick> {
        let schedule = Some(text.to_owned()).filter(|text| text.len() <= LONGEST_SCHEDULE);
        let install = InstallSchedule { name: name.into(), tick_ms, schedule };
        self.ask(install, |reply| newest(reply.done()?))
    }

    /// Returns the newest tick of `name`, if it has one.
    pub fn newest_tick(&self, name: &str) -> M::Answer<Option<TickInfo>> {
        let list = ListTicks { name: Some(name.into()), prefix: None, after: None, limit: None };
        self.find(list, FIRST, |found| found.ticks.into_iter().next().and_then(info))
    }

    /// Returns the newest tick of every name that begins with this prefix, by name.
    pub fn ticks(&self, prefix: &str) -> M::Answer<Vec<TickInfo>> {
        let prefix = Some(prefix.into());
        self.list(ListTicks { name: None, prefix, after: None, limit: PAGE }, FIRST, |found| {
            let Ticks { next, ticks } = found;
            (ticks.into_iter().filter_map(info).collect(), next)
        })
    }

    fn change_once<R>(&self, request: R) -> M::Answer<TickChange>
    where
        R: litelease_wire::Request<Answer = TickChanged>,
    {
        let client = self.clone();
        M::answer(&self.transport, async move {
            match client.once(&request).await {
                Outcome::Done(value) => changed(Ok(crate::transport::typed(value)?)),
                Outcome::No(value) => changed(Err(refusal(value))),
                outcome => Err(outcome.into_error()),
            }
        })
    }
}

impl<M: Mode> Held<M> {
    /// Finishes the tick that is held, and ends the hold. It passes as long as no other client was
    /// granted the name, also if this hold is lost by now: tokens decide, not clocks.
    pub fn finish(self, client: &Client<M>, outcome: TickOutcome) -> M::Answer<()> {
        // A renewal that comes after the end would look like a loss.
        abandon(&self);
        client.finish_tick(self.grant(), outcome)
    }
}

fn newest(changed: TickChanged) -> Result<NewestTick, Error> {
    let state = TickState::from_word(&changed.state).ok_or_else(nonsense)?;
    Ok(NewestTick { tick_ms: changed.tick_ms, state })
}

fn changed(answer: Result<TickChanged, Refusal>) -> Result<TickChange, Error> {
    match answer {
        Ok(changed) => newest(changed).map(TickChange::Changed),
        Err(Refusal { reason, .. }) if reason == "no_tick" => Ok(TickChange::Unknown),
        Err(Refusal { reason, current: Some(current), .. }) if reason == "busy" => {
            Ok(TickChange::Busy((&crate::Lease::from(current)).into()))
        }
        Err(no) => Err(refused_tick(&no).unwrap_or_else(|| crate::client::rejected(no))),
    }
}

/// Returns the error of a claim that is refused because of its tick: waiting would not help.
pub(crate) fn refused(no: &Value) -> Option<Error> {
    match no["reason"].as_str()? {
        "already_taken" | "in_future" | "tick_ahead" => refused_tick(&refusal(no.clone())),
        _ => None,
    }
}

/// Returns the error of a refusal because of a tick.
pub(crate) fn refused_tick(no: &Refusal) -> Option<Error> {
    let newest = no.newest.as_ref().and_then(|newest| {
        let state = TickState::from_word(&newest.state)?;
        Some(NewestTick { tick_ms: newest.tick_ms, state })
    });
    Some(match no.reason.as_str() {
        "already_taken" => Error::TickTaken(newest?),
        "in_future" => Error::TickInFuture { now_ms: no.now_ms? },
        "tick_ahead" => Error::TickAhead { tick_ms: no.tick_ms?, now_ms: no.now_ms? },
        "tick_held" => Error::TickHeld { tick_ms: no.tick_ms? },
        "stale_tick" => Error::StaleTick { newest },
        _ => return None,
    })
}

/// Reads a tick, with the end of its holder's lease on this machine's clock. `None` if its state is
/// one that this client does not know.
fn info(tick: litelease_wire::Tick) -> Option<TickInfo> {
    let litelease_wire::Tick { name, owner, schedule, expires_in, token, .. } = tick;
    let token = token.unwrap_or_default();
    let holder = owner.clone().zip(expires_in).map(|(owner, left)| {
        let expires_at_ms = from_now(left.duration());
        core::Lease { name: name.clone(), owner, token, expires_at_ms }
    });
    let tick = Tick {
        tick_ms: tick.tick_ms,
        state: TickState::from_word(&tick.state)?,
        token,
        attempt: tick.attempt,
        attempts: tick.attempts,
        began_ms: tick.began_ms,
        ended_ms: tick.ended_ms,
        previous_ms: tick.done_ms,
        skipped_ms: None,
    };
    Some(TickInfo { name, tick, owner, schedule, holder })
}
