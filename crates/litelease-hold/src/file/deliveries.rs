//! The `Deliveries` of a queue in a file, on the connection of a handler or on one of our own.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use litelease_core::{AckResult, Lease, StaleReason};
use litelease_store::{Delivered, Error, Failure, OwnedValue, When, code};

use super::{Asks, DatabaseFile, FileError, FileLeases, GrantKind, in_ms, now_ms, open_rows};
use crate::{
    Acquired, Clock, Deliveries, Granted, Held, HoldError, Home, NoKeeper, Received, Settled,
    SystemClock, Waiter, Wakeup, keep, time_to_next_read,
};

type Result<T, E = FileError> = std::result::Result<T, E>;

/// How long the keeper tries to open its connection to a locked file.
const PATIENCE: Duration = Duration::from_secs(10);

/// A queue of a file, shared by all handlers of a worker.
pub struct FileQueue {
    file: DatabaseFile,
    name: String,
    visibility: Duration,
    home: Home,
    waiter: Waiter,
}

/// The queue, for one handler.
pub struct FileDeliveries<A> {
    /// The connection on which the handler receives.
    pub asks: A,
    queue: Arc<FileQueue>,
    /// Called with each error that may pass.
    on_trouble: Option<OnTrouble>,
    /// The generation of wake-ups before the last receive.
    generation: Cell<u32>,
}

/// Called with an error.
type OnTrouble = Arc<dyn Fn(Error) + Send + Sync>;

impl FileQueue {
    /// Returns the queue of this name, whose items are hidden for `visibility` at a time.
    pub fn new(file: DatabaseFile, name: &str, visibility: Duration) -> Result<Self, NoKeeper> {
        let (home, waiter) = (file.home("deliveries")?, Waiter::at(Path::new(&*file)));
        Ok(FileQueue { file, name: name.into(), visibility, home, waiter })
    }

    /// Wakes handlers that wait. Handlers of other queues read once and wait on.
    pub fn wake(file: &DatabaseFile) {
        if let Some(wakeup) = Wakeup::find(Path::new(&**file)) {
            wakeup.notify();
        }
    }
}

impl<A: Asks> FileDeliveries<A> {
    /// Returns the queue for one handler.
    pub fn new(asks: A, queue: &Arc<FileQueue>, on_trouble: Option<OnTrouble>) -> Self {
        FileDeliveries { asks, queue: queue.clone(), on_trouble, generation: Cell::new(0) }
    }

    fn check_moved(&self, leases: FileLeases<'_>) -> Result<()> {
        match leases.store.connection().has_moved() {
            true => Err(FileError::Moved(self.queue.file.path.clone())),
            false => Ok(()),
        }
    }
}

impl<A: Asks> Deliveries for FileDeliveries<A> {
    type Item<'d>
        = Delivered<OwnedValue>
    where
        Self: 'd;
    type Error = FileError;

    fn receive(&self, _: Duration) -> Result<Received<Delivered<OwnedValue>>> {
        self.asks.go_on()?;
        let FileQueue { name, visibility, waiter, .. } = &*self.queue;
        self.generation.set(waiter.generation());
        self.asks.with(|leases| {
            self.check_moved(leases)?;
            // Checked without the write lock: an idle worker must not block other writers.
            let left_ms = match leases.store.next_visible(name)? {
                None => i64::MAX,
                Some(at_ms) => at_ms.saturating_sub(now_ms()),
            };
            if let Ok(left_ms @ 1..) = u64::try_from(left_ms) {
                return Ok(Received::Nothing(Duration::from_millis(left_ms)));
            }
            let visibility_ms = in_ms(*visibility);
            let received =
                leases.store.receive(name, visibility_ms, When::Now, |body| body.into())?;
            let Some(item) = received else {
                // Another worker was quicker, so check again.
                return Ok(Received::Nothing(Duration::ZERO));
            };
            // Checked again: other programs may not see the file that stores the delivery.
            self.check_moved(leases)?;
            Ok(Received::Item(item))
        })
    }

    fn keep(
        &self,
        item: &Delivered<OwnedValue>,
        start: Duration,
    ) -> Result<Held, HoldError<FileError>> {
        let FileQueue { file, name, visibility, home, .. } = &*self.queue;
        let lease = Lease {
            name: name.clone(),
            owner: format!("item {}", item.id),
            token: item.token,
            expires_at_ms: item.deadline_ms,
        };
        let granted = Granted { secret: item.receipt.clone(), ..Granted::whole(lease) };
        let rows = || Ok(open_rows(file, GrantKind::Deliveries, PATIENCE)?);
        keep(home, Acquired { granted, start }, *visibility, rows)
    }

    fn ack(&self, item: &Delivered<OwnedValue>) -> Result<Settled> {
        let acked = self.asks.with(|leases| Ok(leases.store.ack(&item.receipt)?))?;
        Ok(match acked {
            // The handler acknowledged it itself, or the answer to an earlier attempt was lost.
            AckResult::Acknowledged | AckResult::Stale { reason: StaleReason::Gone } => {
                Settled::Done
            }
            AckResult::Stale { .. } => Settled::Lost,
        })
    }

    fn give_back(
        &self,
        item: &Delivered<OwnedValue>,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<Settled> {
        let note = note.map(|note| note.replace('\0', " "));
        self.asks.with(|leases| {
            let (receipt, delay_ms) = (&item.receipt, in_ms(delay));
            let given_back =
                leases.store.give_back(receipt, delay_ms, note.as_deref(), When::Now)?;
            if given_back {
                leases.freed();
            }
            Ok(if given_back { Settled::GivenBack } else { Settled::Lost })
        })
    }

    fn tidy(&self) -> Result<Option<&'static str>> {
        self.asks.with(|leases| {
            if !leases.store.is_in_transaction() {
                return Ok(None);
            }
            // The handler's transaction would block all other writers, and it never ended it.
            leases.store.rollback()?;
            Ok(Some("the handler left a transaction open"))
        })
    }

    fn wait(&self, time: Duration) {
        let time_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let (waiter, generation) = (&self.queue.waiter, self.generation.get());
        let end = SystemClock.now() + time_to_next_read(time_ms, Duration::MAX);
        while waiter.generation() == generation && self.asks.go_on().is_ok() {
            let left = end.saturating_sub(SystemClock.now());
            if left.is_zero() {
                return;
            }
            waiter.wait_for_change(generation, left.min(self.asks.longest_sleep()));
        }
    }

    fn report(&self, error: FileError) -> Result<()> {
        self.asks.go_on()?;
        match error {
            FileError::Verb(error) if may_pass(&error) => {
                if let Some(on_trouble) = &self.on_trouble {
                    on_trouble(error);
                }
                Ok(())
            }
            error => Err(error),
        }
    }

    fn attempt_and_token(item: &Delivered<OwnedValue>) -> (i64, i64) {
        (item.attempt, item.token)
    }
}

/// Checks whether trying again may help: the file is locked, the disk is full or fails.
pub(super) fn may_pass(error: &Error) -> bool {
    match error {
        Error::CommitUnknown(_) | Error::ExpiredOnArrival(_) => true,
        Error::Sqlite(Failure { code, .. }) => matches!(
            code & 0xff,
            code::BUSY | code::LOCKED | code::FULL | code::IOERR | code::NOMEM
        ),
        _ => false,
    }
}
