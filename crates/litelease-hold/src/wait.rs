//! Waiting for a name: how long to sleep, and what ends a sleep early.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::watch::watch;
use crate::{Bell, Cancel, Identity};

/// A waiter checks this often even without a wake-up.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// The same where nothing can wake it.
const POLL_WITHOUT_NOTIFY: Duration = Duration::from_millis(100);

/// Returns how long a waiter may sleep before it checks again: until the holder's lease ends or
/// its own deadline, and never long, since a wake-up is only a hint.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::nap;
/// let ms = Duration::from_millis;
/// assert_eq!(nap(40, ms(1000)), ms(40), "the holder's lease ends first");
/// assert_eq!(nap(9000, ms(30)), ms(30), "the own deadline comes first");
/// assert_eq!(nap(9000, ms(9000)), ms(500));
/// assert_eq!(nap(-5, ms(9000)), ms(1), "it has ended: look again, but do not spin");
/// ```
pub fn nap(until_expiry_ms: i64, left: Duration) -> Duration {
    let until_expiry = Duration::from_millis(u64::try_from(until_expiry_ms).unwrap_or(0));
    until_expiry.max(Duration::from_millis(1)).min(SLOW_POLL).min(left)
}

/// A waiter at a database file. It is woken when a process rings the bell, and when any process
/// writes the file.
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
/// let heard = waiter.heard();
/// // Look at the row here; then:
/// waiter.nap(heard, Duration::from_millis(1));
/// ```
#[derive(Debug)]
pub struct Waiter {
    bell: Option<Arc<Bell>>,
}

impl Waiter {
    /// Starts to listen at a database file. Events from now on end a sleep.
    pub fn at(file: &Path) -> Self {
        let bell = Bell::create(file).ok().map(Arc::new);
        if let Some(bell) = &bell {
            watch(file, bell);
        }
        Waiter { bell }
    }

    /// Returns a number that changes with every ring. Read it before checking the row, so that no
    /// ring is missed.
    pub fn heard(&self) -> u32 {
        self.bell.as_ref().map_or(0, |bell| bell.heard())
    }

    /// Sleeps until the bell rings, for at most `time`. Returns at once if it has rung since
    /// `heard`.
    pub fn nap(&self, heard: u32, time: Duration) {
        match &self.bell {
            Some(bell) => bell.listen(heard, time),
            None => std::thread::sleep(time.min(POLL_WITHOUT_NOTIFY)),
        }
    }

    /// Sleeps like [`nap`](Waiter::nap), and at most until the wait is cancelled.
    pub fn nap_unless(&self, cancel: Option<&Cancel>, heard: u32, time: Duration) {
        let goes_on = match (cancel, &self.bell) {
            (Some(cancel), Some(bell)) => cancel.rings(bell),
            (Some(cancel), None) => return cancel.sleep(time.min(POLL_WITHOUT_NOTIFY)),
            (None, _) => true,
        };
        if goes_on {
            self.nap(heard, time);
        }
    }
}

/// The shortest time between two checks of a holder, however often its row changes.
const EXAMINE_EVERY: Duration = Duration::from_millis(250);

/// What a waiter knows about the process that is in its way.
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
    /// Finds out whether the holder with this owner text is dead, unless that was asked a moment
    /// ago.
    pub fn is_dead(&mut self, now: Duration, owner: &str) -> bool {
        if self.last.is_some_and(|last| now < last + EXAMINE_EVERY) {
            return false;
        }
        self.last = Some(now);
        Identity::parse(owner).is_some_and(|holder| holder.is_dead())
    }
}
