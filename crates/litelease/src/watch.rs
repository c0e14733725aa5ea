//! Watches a file for changes by any process, for callers that read it again after each.

use std::path::Path;
use std::time::Duration;

use litelease_hold::{Cancel, Waiter, time_to_next_read};

use crate::Litelease;

/// Notices changes of a database file, whichever process makes them. Made by [`Litelease::watch`].
///
/// A wake-up is only a hint: read again, and decide by what is stored.
///
/// ```
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// db.claim("import", "a", Duration::from_millis(150))?;
/// let watch: Watch = db.watch();
/// loop {
///     let seen = watch.changes(); // before reading, so that no change is missed
///     let Some(current) = db.inspect("import")? else { break };
///     watch.wait(seen, current.expires_at_ms, Duration::from_secs(60));
/// }
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Debug)]
pub struct Watch {
    /// None for a database in memory, which no other process can change.
    waiter: Option<Waiter>,
}

impl Litelease {
    /// Starts to watch the file for changes by any process.
    ///
    /// Releases through this crate are noticed within a millisecond or so, other writes soon. Where
    /// the system cannot tell, [`wait`](Watch::wait) returns after a tenth of a second.
    ///
    /// ```
    /// # litelease_doctest::path!(path);
    /// let db = Litelease::open_own(&path)?;
    /// let watch = db.watch();
    /// let seen = watch.changes();
    /// let lease = Litelease::open(&path)?.claim("import", "a", Duration::from_secs(30))?;
    /// watch.wait(seen, i64::MAX, Duration::from_secs(1));
    /// assert!(db.inspect("import")?.is_some());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn watch(&self) -> Watch {
        Watch { waiter: self.store().file().map(|file| Waiter::at(Path::new(&file))) }
    }
}

impl Watch {
    /// Returns how many changes were noticed so far. Call it before reading the file.
    pub fn changes(&self) -> u32 {
        self.waiter.as_ref().map_or(0, Waiter::generation)
    }

    /// Waits until something has changed since `seen`, until the Unix time `until_ms`, or for
    /// `timeout`, whichever comes first, and never longer than half a second.
    pub fn wait(&self, seen: u32, until_ms: i64, timeout: Duration) {
        self.wait_unless(None, seen, until_ms, timeout);
    }

    /// Waits like [`wait`](Watch::wait), and at most until that is cancelled.
    pub(crate) fn wait_unless(
        &self,
        cancel: Option<&Cancel>,
        seen: u32,
        until_ms: i64,
        timeout: Duration,
    ) {
        let time = time_to_next_read(until_ms.saturating_sub(crate::now_ms()), timeout);
        match &self.waiter {
            Some(waiter) => waiter.wait_unless_cancelled(cancel, seen, time),
            None => std::thread::sleep(time),
        }
    }
}
