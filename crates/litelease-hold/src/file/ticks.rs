//! The `Ticks` of a file, on the connection of a job or on one of our own.

use std::sync::Arc;
use std::time::Duration;

use litelease_core::{FinishTickResult, Tick, TickInfo, TickOutcome};
use litelease_store::{Error, TickClaim, When};

use super::deliveries::may_pass;
use super::{Asks, FileError, FilePlace, More, now_ms};
use crate::{
    Begun, HeldGrant, HeldTick, HoldError, HolderKind, Identity, TickWish, Ticks, Wish, hold,
};

type Result<T, E = FileError> = std::result::Result<T, E>;

/// The pause after an error that may pass.
const TROUBLE_PAUSE: Duration = Duration::from_millis(250);

/// The pause while a stored tick is ahead of the clock, which an operator has to mend.
const AHEAD_PAUSE: Duration = Duration::from_secs(60);

/// The ticks of a file, for one job.
pub struct FileTicks<A> {
    /// The connection on which the job claims.
    pub asks: A,
    /// Called with each error that may pass.
    on_trouble: Option<Arc<dyn Fn(Error) + Send + Sync>>,
}

impl<A: Asks> FileTicks<A> {
    /// Returns the ticks for one job. Without a function that is called with errors, a stored tick
    /// that is ahead of the clock ends the scheduler.
    pub fn new(asks: A, on_trouble: Option<Arc<dyn Fn(Error) + Send + Sync>>) -> Self {
        FileTicks { asks, on_trouble }
    }
}

impl<A: Asks> Ticks for FileTicks<A> {
    type Error = FileError;

    fn now_ms(&self) -> i64 {
        now_ms()
    }

    fn newest(&self, name: &str) -> Result<Option<(Tick, Option<String>)>> {
        self.asks.go_on()?;
        self.asks.with(|leases| {
            let found = leases.store.newest_tick(name, When::Now)?;
            Ok(found.map(|TickInfo { tick, schedule, .. }| (tick, schedule)))
        })
    }

    fn install(&self, name: &str, tick_ms: i64, schedule: &str) -> Result<()> {
        self.asks.with(|leases| {
            leases.store.install_tick(name, tick_ms, Some(schedule), When::Now)?;
            Ok(())
        })
    }

    fn begin(&self, wish: &TickWish<'_>) -> Result<Begun, HoldError<FileError>> {
        let TickWish { name, asked, schedule, ttl, max_time, wait, cancel } = *wish;
        let tick = Some(TickClaim { asked, schedule: Some(schedule) });
        let more = More { max_time, tick, ..More::default() };
        let mut place = FilePlace::new(&self.asks, more).map_err(HoldError::Lease)?;
        let owner = Identity::new(HolderKind::Hold).to_string();
        // What is granted ends with the limit, too.
        let first = max_time.map_or(ttl, |time| time.min(ttl));
        let wish = Wish { cancel: Some(cancel), ..Wish::new(name, &owner, first) };
        match hold(&mut place, &wish, ttl, wait) {
            Ok(held) => {
                let (attempt, previous_ms) =
                    place.begun.map_or((1, None), |begun| (begun.attempt, begun.previous_ms));
                Ok(Begun::Held(HeldTick { tick_ms: asked.tick_ms, held, attempt, previous_ms }))
            }
            Err(HoldError::Busy(_) | HoldError::Lease(FileError::TickTaken(_))) => {
                Ok(Begun::NotNow)
            }
            Err(HoldError::Lease(FileError::TickInFuture { now_ms })) => {
                Ok(Begun::InFuture(now_ms))
            }
            Err(error) => Err(error),
        }
    }

    fn finish(&self, grant: &HeldGrant, outcome: TickOutcome) -> Result<FinishTickResult> {
        let HeldGrant { name, token, .. } = grant;
        self.asks.with(|leases| {
            let finished = leases.store.finish_tick(name, *token, outcome, When::Now)?;
            leases.freed();
            Ok(finished)
        })
    }

    fn report(&self, error: FileError) -> Result<Duration> {
        self.asks.go_on()?;
        let pause = match &error {
            FileError::Verb(error) if may_pass(error) => Some(TROUBLE_PAUSE),
            FileError::Verb(Error::TickAhead { .. }) => {
                self.on_trouble.as_ref().map(|_| AHEAD_PAUSE)
            }
            _ => None,
        };
        match (pause, error) {
            (Some(pause), FileError::Verb(error)) => {
                if let Some(on_trouble) = &self.on_trouble {
                    on_trouble(error);
                }
                Ok(pause)
            }
            (_, error) => Err(error),
        }
    }
}
