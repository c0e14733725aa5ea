//! Rings the bell of a file after a name has become free, to wake its waiters.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Bell;

/// After no waiter was found, none is looked for during this time.
const PAUSE: Duration = Duration::from_millis(100);

/// What a connection needs in order to ring.
///
/// ```
/// # use litelease_hold::{Bell, Notifier};
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("app.sqlite3");
/// # std::fs::write(&file, "").unwrap();
/// # let path = || file.to_str().map(String::from);
/// # let Ok(waiting) = Bell::create(&file) else { return };
/// let heard = waiting.heard();
/// let notifier = Notifier::default();
/// notifier.freed();
/// assert_eq!(waiting.heard(), heard, "a release that is not committed frees nothing");
/// notifier.committed(path);
/// assert_ne!(waiting.heard(), heard);
/// ```
#[derive(Debug, Default)]
pub struct Notifier {
    bell: RefCell<Option<Bell>>,
    /// When we last looked for a bell and found none.
    missed: Cell<Option<Instant>>,
    /// Whether a name was freed in a transaction that is not known to have been committed.
    owes: Cell<bool>,
}

impl Notifier {
    /// Remembers that a name was freed. Waiters are woken by the next
    /// [`committed`](Self::committed).
    pub fn freed(&self) {
        self.owes.set(true);
    }

    /// Checks whether something was freed and nobody was told yet.
    pub fn owes(&self) -> bool {
        self.owes.get()
    }

    /// Wakes the waiters of the file if something was freed. Call it while no transaction is open.
    pub fn committed(&self, file: impl FnOnce() -> Option<String>) {
        if !self.owes.take() {
            return;
        }
        let mut bell = self.bell.borrow_mut();
        if bell.is_none() {
            *bell = self.find(file);
        }
        if let Some(bell) = &*bell {
            bell.ring();
        }
    }

    /// Looks for the bell, but not after every one of a thousand releases in a row: looking costs a
    /// system call, and a waiter that has just begun also sees the file being written.
    fn find(&self, file: impl FnOnce() -> Option<String>) -> Option<Bell> {
        if self.missed.get().is_some_and(|missed| missed.elapsed() < PAUSE) {
            return None;
        }
        let found = file().and_then(|file| Bell::find(Path::new(&file)));
        self.missed.set(found.is_none().then(Instant::now));
        found
    }
}
