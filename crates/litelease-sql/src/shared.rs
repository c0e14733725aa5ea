//! What the functions of one connection share: its store, with the statements it has compiled.
//!
//! SQLite refuses to close a connection that has statements left, so somebody must drop them in time. SQLite
//! disconnects virtual tables before it looks, so the table `litelease_leases` does it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use litelease_store::{Connection, Store};

pub(crate) struct Shared {
    connection: Connection,
    /// Kept while the virtual table is connected, and only then.
    store: RefCell<Option<Rc<Store>>>,
    is_connected: Cell<bool>,
}

impl Shared {
    pub(crate) fn new(connection: Connection) -> Rc<Self> {
        Rc::new(Shared { connection, store: RefCell::new(None), is_connected: Cell::new(false) })
    }

    /// The store of this connection, kept for the next call if it can be dropped in time.
    pub(crate) fn store(&self) -> Rc<Store> {
        if let Some(store) = self.store.borrow().as_ref() {
            return Rc::clone(store);
        }
        if !self.is_connected.get() {
            // Compiling a statement that names the virtual table connects it.
            drop(self.connection.prepare("SELECT 1 FROM litelease_leases"));
        }
        let store = Rc::new(Store::new(self.connection));
        if self.is_connected.get() {
            *self.store.borrow_mut() = Some(Rc::clone(&store));
        }
        store
    }

    /// The virtual table is there, and will say when the connection closes.
    pub(crate) fn connect(&self) {
        self.is_connected.set(true);
    }

    /// The connection is about to close: drop the statements.
    pub(crate) fn disconnect(&self) {
        self.is_connected.set(false);
        self.store.borrow_mut().take();
    }
}
