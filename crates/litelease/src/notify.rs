//! Rings the bell of a file after a name has become free, to wake its waiters.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::time::{Duration, Instant};

use litelease_keeper::Bell;
use litelease_store::Store;

/// After no waiter was found, none is looked for during this time.
const PAUSE: Duration = Duration::from_millis(100);

/// What a handle needs in order to ring.
#[derive(Default)]
pub(crate) struct Notifier {
    bell: RefCell<Option<Bell>>,
    /// When we last looked for a bell and found none.
    missed: Cell<Option<Instant>>,
    /// Whether a name was freed in a transaction that is not known to have been committed.
    owes: Cell<bool>,
}

impl Notifier {
    /// Notes that a name was freed, and notifies waiters once that is committed: outside a
    /// transaction, now.
    pub(crate) fn freed(&self, store: &Store) {
        self.owes.set(true);
        if !store.is_in_transaction() {
            self.committed(store);
        }
    }

    /// Notifies waiters if a name was freed in what is now committed.
    pub(crate) fn committed(&self, store: &Store) {
        if !self.owes.take() {
            return;
        }
        let mut bell = self.bell.borrow_mut();
        if bell.is_none() {
            *bell = self.find(store);
        }
        if let Some(bell) = &*bell {
            bell.ring();
        }
    }

    /// Looks for the bell, but not after every one of a thousand releases in a row: looking costs a
    /// system call, and a waiter that has just begun also sees the file being written.
    fn find(&self, store: &Store) -> Option<Bell> {
        if self.missed.get().is_some_and(|missed| missed.elapsed() < PAUSE) {
            return None;
        }
        let found = store.file().and_then(|file| Bell::find(Path::new(&file)));
        self.missed.set(found.is_none().then(Instant::now));
        found
    }
}
