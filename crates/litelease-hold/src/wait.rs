//! Waiting for a name: how long to sleep, and what ends a sleep early.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::{Cancel, Identity, Wakeup};
use litelease_sys::watch;

/// A waiter checks this often even without a wake-up.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// A waiter that nothing can wake checks this often.
const POLL_WITHOUT_NOTIFY: Duration = Duration::from_millis(100);

/// Returns how long a waiter may sleep before it checks again: until the holder's lease ends or
/// its own deadline, and never long, since a wake-up is only a hint.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::time_to_next_read;
/// let ms = Duration::from_millis;
/// assert_eq!(time_to_next_read(40, ms(1000)), ms(40), "the holder's lease ends first");
/// assert_eq!(time_to_next_read(9000, ms(30)), ms(30), "the own deadline comes first");
/// assert_eq!(time_to_next_read(9000, ms(9000)), ms(500));
/// assert_eq!(time_to_next_read(-5, ms(9000)), ms(1), "it has ended: read again, but do not spin");
/// ```
pub fn time_to_next_read(until_expiry_ms: i64, left: Duration) -> Duration {
    let until_expiry = Duration::from_millis(u64::try_from(until_expiry_ms).unwrap_or(0));
    until_expiry.max(Duration::from_millis(1)).min(SLOW_POLL).min(left)
}

/// A waiter at a database file. A process that frees a name notifies it, and any process that
/// writes the file wakes it.
///
/// Where the system provides neither, it only sleeps.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::Waiter;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("app.sqlite3");
/// # std::fs::write(&file, "").unwrap();
/// let waiter = Waiter::at(&file);
/// let generation = waiter.generation();
/// // Read the row here; then:
/// waiter.wait_for_change(generation, Duration::from_millis(1));
/// ```
#[derive(Debug)]
pub struct Waiter {
    wakeup: Option<Arc<Wakeup>>,
}

impl Waiter {
    /// Starts to listen at a database file. Events from now on end a sleep.
    pub fn at(file: &Path) -> Self {
        let wakeup = Wakeup::create(file).ok().map(Arc::new);
        if let Some(wakeup) = &wakeup {
            watch(file, wakeup);
        }
        Waiter { wakeup }
    }

    /// Returns a number that changes with every notification. Read it before the row, so that no
    /// notification is missed.
    pub fn generation(&self) -> u32 {
        self.wakeup.as_ref().map_or(0, |wakeup| wakeup.generation())
    }

    /// Sleeps until a process notifies this file, for at most `time`. Returns at once if one has
    /// since `generation`.
    pub fn wait_for_change(&self, generation: u32, time: Duration) {
        match &self.wakeup {
            Some(wakeup) => wakeup.wait(generation, time),
            None => std::thread::sleep(time.min(POLL_WITHOUT_NOTIFY)),
        }
    }

    /// Sleeps like [`wait_for_change`](Waiter::wait_for_change), and at most until the wait is
    /// cancelled.
    pub fn wait_unless_cancelled(&self, cancel: Option<&Cancel>, generation: u32, time: Duration) {
        let goes_on = match (cancel, &self.wakeup) {
            (Some(cancel), Some(wakeup)) => cancel.notifies(wakeup),
            (Some(cancel), None) => return cancel.sleep(time.min(POLL_WITHOUT_NOTIFY)),
            (None, _) => true,
        };
        if goes_on {
            self.wait_for_change(generation, time);
        }
    }
}

/// The shortest time between two checks of a holder, however often its row changes.
const EXAMINE_EVERY: Duration = Duration::from_millis(250);

/// Limits how often a waiter checks whether the holder's process is dead.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::{DeathCheck, HolderKind, Identity};
/// let mut check = DeathCheck::default();
/// let myself = Identity::new(HolderKind::Hold).to_string();
/// assert!(!check.is_dead(Duration::ZERO, &myself));
/// ```
#[derive(Debug, Default)]
pub struct DeathCheck {
    last: Option<Duration>,
}

impl DeathCheck {
    /// Checks whether the holder with this owner text is dead. Returns false if the last check was
    /// less than 250 ms ago.
    pub fn is_dead(&mut self, now: Duration, owner: &str) -> bool {
        if self.last.is_some_and(|last| now < last + EXAMINE_EVERY) {
            return false;
        }
        self.last = Some(now);
        Identity::parse(owner).is_some_and(|holder| holder.is_dead())
    }
}
