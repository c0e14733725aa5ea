//! The state that the functions of one connection share: its store, with the statements it has
//! compiled.
//!
//! SQLite refuses to close a connection that has statements left, so they must be dropped in time.
//! SQLite disconnects virtual tables before it checks, so the table-valued functions drop them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Connection, Store};

pub(crate) struct Shared {
    connection: Connection,
    /// Kept while a virtual table is connected, and only then.
    store: RefCell<Option<Rc<Store>>>,
    /// How many virtual tables are connected.
    connected: Cell<usize>,
}

impl Shared {
    pub(crate) fn new(connection: Connection) -> Rc<Self> {
        Rc::new(Shared { connection, store: RefCell::new(None), connected: Cell::new(0) })
    }

    /// The store of this connection, kept for the next call if it can be dropped in time.
    pub(crate) fn store(&self) -> Rc<Store> {
        if let Some(store) = self.store.borrow().as_ref() {
            return Rc::clone(store);
        }
        if self.connected.get() == 0 {
            // Compiling a statement that names a virtual table connects it.
            drop(self.connection.prepare("SELECT 1 FROM litelease_leases"));
        }
        let store = Rc::new(Store::new(self.connection));
        if self.connected.get() > 0 {
            *self.store.borrow_mut() = Some(Rc::clone(&store));
        }
        store
    }

    /// A virtual table is there, and will say when the connection closes.
    pub(crate) fn connect(&self) {
        self.connected.set(self.connected.get() + 1);
    }

    /// The connection is about to close: drop the statements.
    pub(crate) fn disconnect(&self) {
        self.connected.set(self.connected.get().saturating_sub(1));
        self.store.borrow_mut().take();
    }
}
