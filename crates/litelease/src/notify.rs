//! Rings the bell of a file after a name has become free, to wake its waiters.

use litelease_store::Store;

/// What a handle needs in order to ring.
#[derive(Default)]
pub(crate) struct Notifier(litelease_hold::Notifier);

impl Notifier {
    /// Notes that a name was freed, and notifies waiters once that is committed: outside a
    /// transaction, now.
    pub(crate) fn freed(&self, store: &Store) {
        self.0.freed();
        if !store.is_in_transaction() {
            self.committed(store);
        }
    }

    /// Notifies waiters if a name was freed in what is now committed.
    pub(crate) fn committed(&self, store: &Store) {
        self.0.committed(|| store.file());
    }
}
