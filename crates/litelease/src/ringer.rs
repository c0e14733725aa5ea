//! Ringing the bell of a file after a name has become free, for those who wait for it.

use std::cell::{Cell, RefCell};
use std::path::Path;

use litelease_keeper::Bell;
use litelease_store::Store;

/// What a handle needs in order to ring.
#[derive(Default)]
pub(crate) struct Ringer {
    bell: RefCell<Option<Bell>>,
    /// Whether a name was freed in a transaction that is not known to have been committed.
    owes: Cell<bool>,
}

impl Ringer {
    /// A name was freed. Others see it once it is committed: outside a transaction that is now.
    pub(crate) fn freed(&self, store: &Store) {
        self.owes.set(true);
        if !store.is_in_transaction() {
            self.committed(store);
        }
    }

    /// What was done is committed.
    pub(crate) fn committed(&self, store: &Store) {
        if !self.owes.take() {
            return;
        }
        let mut bell = self.bell.borrow_mut();
        if bell.is_none() {
            *bell = store.file().and_then(|file| Bell::find(Path::new(&file)));
        }
        if let Some(bell) = &*bell {
            bell.ring();
        }
    }
}
