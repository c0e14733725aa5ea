//! What an interrupt has kept a store from undoing, kept with the connection: whichever store uses
//! it next makes up for it.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::sqlite::{Caller, Connection, destroy, sqlite3_context, sqlite3_value};

/// The work that is to be undone on a connection.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Debts {
    /// A transaction of ours that is still open because its rollback failed.
    pub(crate) open: Option<OpenTransaction>,
    /// The caller's `synchronous`, while it is still raised.
    pub(crate) synchronous: Option<i64>,
}

/// A transaction of ours whose rollback failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenTransaction {
    /// Whether it got as far as its savepoint.
    pub(crate) has_savepoint: bool,
    /// How many rows the connection had changed by then. If there are more now, a statement of the
    /// caller's wrote.
    pub(crate) changes: i64,
}

/// How many connections owe something: where none does, a verb compares one number.
static OWING: AtomicUsize = AtomicUsize::new(0);

/// By the address of the connection. SQLite drops an [`Entry`] with its connection, so a reused
/// address has none.
static CONNECTIONS: Mutex<BTreeMap<usize, Debts>> = Mutex::new(BTreeMap::new());

/// The data of a function that is registered only so that SQLite drops it when the connection is
/// gone.
struct Entry(usize);

impl Drop for Entry {
    fn drop(&mut self) {
        let mut connections = connections();
        count(connections.remove(&self.0), None);
    }
}

impl Connection {
    /// Returns what is to be undone on this connection.
    #[inline]
    pub(crate) fn debts(self) -> Debts {
        // Whoever has the connection now got it from the thread that made the debt, so sees what
        // that has counted.
        if OWING.load(Ordering::Relaxed) == 0 {
            return Debts::default();
        }
        connections().get(&self.address()).copied().unwrap_or_default()
    }

    /// Changes what is owed to this connection.
    pub(crate) fn change_debts(self, change: impl FnOnce(&mut Debts)) {
        let mut debts = self.debts();
        change(&mut debts);
        let is_known = connections().contains_key(&self.address());
        if !is_known {
            if debts == Debts::default() {
                return;
            }
            self.register_entry();
        }
        let mut connections = connections();
        count(connections.insert(self.address(), debts), Some(debts));
    }

    /// An interrupt does not stop this. It fails only where memory is short; then the debt is kept
    /// all the same.
    fn register_entry(self) {
        let (_, api) = self.as_raw();
        // No other copy of this code in the process has this name.
        let name = format!("litelease_debts_{:x}", api.callbacks.rule_fn as usize);
        let data = Box::into_raw(Box::new(Entry(self.address()))).cast();
        let data = Some((data, Some(destroy::<Entry> as _)));
        // SAFETY: the function does nothing, and `destroy` frees what was boxed here.
        let _ = unsafe { self.register(&name, 0, Caller::Statement, nothing, data) };
    }

    fn address(self) -> usize {
        self.as_raw().0 as usize
    }
}

/// Answers NULL.
unsafe extern "C" fn nothing(_: *mut sqlite3_context, _: c_int, _: *mut *mut sqlite3_value) {}

fn count(before: Option<Debts>, after: Option<Debts>) {
    let owes = |debts: Option<Debts>| debts.is_some_and(|debts| debts != Debts::default());
    match (owes(before), owes(after)) {
        (false, true) => OWING.fetch_add(1, Ordering::Relaxed),
        (true, false) => OWING.fetch_sub(1, Ordering::Relaxed),
        _ => 0,
    };
}

fn connections() -> MutexGuard<'static, BTreeMap<usize, Debts>> {
    CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
}
