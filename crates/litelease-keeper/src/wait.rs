//! Waiting for a name: how long to nap, and what ends a nap early.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::Bell;
use crate::watch::watch;

/// A waiter looks this often even if nothing was heard.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// How long a waiter may nap before it looks again: until the holder's lease ends, until its own deadline, and
/// never for long, since a wake-up is only a hint.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_keeper::nap;
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

/// Whoever waits at a file: it hears when others of ours ring, and sees when anybody writes.
///
/// Where the system has neither, or does not allow it, a nap is just a nap.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_keeper::Waiter;
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
    /// Starts to listen at a database file. What happens from now on ends a nap.
    pub fn at(file: &Path) -> Self {
        let bell = Bell::create(file).ok().map(Arc::new);
        if let Some(bell) = &bell {
            watch(file, bell);
        }
        Waiter { bell }
    }

    /// What was heard so far. Asked before looking, so that a ring in between is not missed.
    pub fn heard(&self) -> u32 {
        self.bell.as_ref().map_or(0, |bell| bell.heard())
    }

    /// Naps until something new is heard, for at most `time`.
    pub fn nap(&self, heard: u32, time: Duration) {
        match &self.bell {
            Some(bell) => bell.listen(heard, time),
            // Nothing will be heard, so it looks more often.
            None => std::thread::sleep(time.min(Duration::from_millis(100))),
        }
    }
}
