//! Notifies the waiters of a file after a name has become free.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Wakeup;

/// After a search that found no waiter, none is searched for during this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Notifies waiters of the names that one connection has freed, after its commit.
///
/// ```
/// # use litelease_hold::{Notifier, Wakeup};
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("app.sqlite3");
/// # std::fs::write(&file, "").unwrap();
/// # let path = || file.to_str().map(String::from);
/// # let Ok(waiting) = Wakeup::create(&file) else { return };
/// let generation = waiting.generation();
/// let notifier = Notifier::default();
/// notifier.freed();
/// assert_eq!(waiting.generation(), generation, "a release that is not committed frees nothing");
/// notifier.committed(path);
/// assert_ne!(waiting.generation(), generation);
/// ```
#[derive(Debug, Default)]
pub struct Notifier {
    wakeup: RefCell<Option<Wakeup>>,
    /// The time of the last search that found no wakeup file, and so no waiter.
    missed: Cell<Option<Instant>>,
    /// True if a name was freed in a transaction that may still be open.
    owes: Cell<bool>,
}

impl Notifier {
    /// Remembers that a name was freed. Waiters are woken by the next
    /// [`committed`](Self::committed).
    pub fn freed(&self) {
        self.owes.set(true);
    }

    /// Checks whether a name was freed and waiters were not notified yet.
    pub fn owes(&self) -> bool {
        self.owes.get()
    }

    /// Wakes the waiters of the file if a name was freed. Call it while no transaction is open.
    pub fn committed(&self, file: impl FnOnce() -> Option<String>) {
        if !self.owes.take() {
            return;
        }
        let mut wakeup = self.wakeup.borrow_mut();
        if wakeup.is_none() {
            *wakeup = self.find(file);
        }
        if let Some(wakeup) = &*wakeup {
            wakeup.notify();
        }
    }

    /// Opens the wakeup, but not after every one of a thousand releases in a row, because each try
    /// is a system call. A waiter that has just begun also notices that the file is written.
    fn find(&self, file: impl FnOnce() -> Option<String>) -> Option<Wakeup> {
        if self.missed.get().is_some_and(|missed| missed.elapsed() < PAUSE) {
            return None;
        }
        let found = file().and_then(|file| Wakeup::find(Path::new(&file)));
        self.missed.set(found.is_none().then(Instant::now));
        found
    }
}
