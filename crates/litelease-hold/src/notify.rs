//! Notifies the waiters of a file after a name has become free.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Wakeup;

/// After no waiter was found, none is looked for during this time.
const PAUSE: Duration = Duration::from_millis(100);

/// Notifies waiters of what one connection has freed, after its commit.
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
    /// When no waiter had made the file at the last search for it.
    missed: Cell<Option<Instant>>,
    /// A name was freed in a transaction that is not known to have been committed.
    owes: Cell<bool>,
}

impl Notifier {
    /// Remembers that a name was freed. Waiters are woken by the next
    /// [`committed`](Self::committed).
    pub fn freed(&self) {
        self.owes.set(true);
    }

    /// Checks whether something was freed and waiters were not notified yet.
    pub fn owes(&self) -> bool {
        self.owes.get()
    }

    /// Wakes the waiters of the file if something was freed. Call it while no transaction is open.
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

    /// Opens the wakeup, but does not try after every one of a thousand releases in a row: trying
    /// costs a system call, and a waiter that has just begun also sees the file being written.
    fn find(&self, file: impl FnOnce() -> Option<String>) -> Option<Wakeup> {
        if self.missed.get().is_some_and(|missed| missed.elapsed() < PAUSE) {
            return None;
        }
        let found = file().and_then(|file| Wakeup::find(Path::new(&file)));
        self.missed.set(found.is_none().then(Instant::now));
        found
    }
}
