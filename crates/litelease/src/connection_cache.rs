//! A cache of verbs per connection of the caller's, so that a new handle for each call finds its
//! statements compiled and the schema checked.
//!
//! SQLite calls back when a connection closes, and its entry is dropped before SQLite checks for
//! open statements.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, PoisonError};

use litelease_store::{Connection, sqlite3};

use crate::Leases;
use crate::linked_sqlite::LinkedSqlite;

/// The cache entry of one connection: the verbs for each kind of handle, in the order of [`Kind`].
#[derive(Default)]
struct ConnectionCache([Option<Leases>; 2]);

/// The kinds of handles on a connection of the caller's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its verbs join an open transaction; if none is open, each runs in one of its own.
    Plain,
    /// Its verbs demand a transaction.
    Joining,
}

/// The cache, by the address of the connection. An entry is dropped before its connection, so a
/// reused address has none. It is split into several maps, so that threads seldom wait for each
/// other.
static CONNECTIONS: [Mutex<BTreeMap<usize, ConnectionCache>>; 16] =
    [const { Mutex::new(BTreeMap::new()) }; 16];

// SAFETY: the verbs and the counter of their `Rc` are used only by the thread that has the
// connection, which is one at a time: that thread makes a `CachedHandle`, or closes the connection,
// which calls `closing`. The map merely carries them from one to the next.
unsafe impl Send for ConnectionCache {}

/// The verbs on a connection that is borrowed for `'c`: the cached ones, or new ones, which are
/// cached if they were used.
///
/// The connection must outlive it, because it is used when this is dropped; `Drop` makes the
/// compiler see to that.
pub(crate) struct CachedHandle<'c> {
    leases: Leases,
    connection: Connection,
    kind: Kind,
    is_cached: bool,
    borrowed: PhantomData<&'c ()>,
}

impl<'c> CachedHandle<'c> {
    /// # Safety
    /// The connection must be one of the linked library's, stay open for `'c`, and not be used by
    /// another thread as long as this value lives.
    pub(crate) unsafe fn new(connection: Connection, kind: Kind) -> Self {
        let cached = find(connection, kind);
        let is_cached = cached.is_some();
        // SAFETY: this function asks for the same, and cached verbs are dropped before it closes.
        let leases = cached.unwrap_or_else(|| unsafe { Leases::on(connection, kind) });
        CachedHandle { leases, connection, kind, is_cached, borrowed: PhantomData }
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }
}

impl Drop for CachedHandle<'_> {
    fn drop(&mut self) {
        if !self.is_cached && self.leases.store().has_statements() {
            store(self.connection, self.kind, &self.leases);
        }
    }
}

fn find(connection: Connection, kind: Kind) -> Option<Leases> {
    let address = address(connection);
    let map = map(address);
    let leases = map.get(&address)?.0[kind as usize].as_ref()?;
    // SAFETY: the caller has the connection, and its `CachedHandle` ends before that closes.
    Some(unsafe { leases.share() })
}

/// Caches verbs until their connection closes. Caches nothing if SQLite cannot call back then.
fn store(connection: Connection, kind: Kind, leases: &Leases) {
    let address = address(connection);
    let is_known = map(address).contains_key(&address);
    // SAFETY: all connections of this crate are the linked library's. The map is not locked
    // meanwhile: SQLite may call back.
    if is_known || unsafe { connection.when_closing::<LinkedSqlite>(closing) } == Ok(true) {
        let mut map = map(address);
        let ConnectionCache(cached) = map.entry(address).or_default();
        // SAFETY: these are dropped by `closing`.
        cached[kind as usize].get_or_insert_with(|| unsafe { leases.share() });
    }
}

/// Drops the cache entry of a connection that is about to close.
fn closing(db: *mut sqlite3) {
    let address = db as usize;
    let cached = map(address).remove(&address);
    // Not under the lock: dropping the verbs calls SQLite.
    drop(cached);
}

fn address(connection: Connection) -> usize {
    connection.as_raw().0 as usize
}

fn map(address: usize) -> MutexGuard<'static, BTreeMap<usize, ConnectionCache>> {
    // The low bits are the same in all addresses.
    let at = (address >> 6 ^ address >> 12) % CONNECTIONS.len();
    CONNECTIONS[at].lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LiteleaseRef;

    #[test]
    fn a_cache_entry_is_dropped_with_its_connection() -> crate::Result<()> {
        let is_cached = |address| map(address).contains_key(&address);
        for _ in 0..100 {
            let connection = rusqlite::Connection::open_in_memory()?;
            // SAFETY: only its address is read.
            let address = unsafe { connection.handle() } as usize;
            assert!(!is_cached(address), "a new connection at an old address");
            LiteleaseRef::new(&connection).bootstrap()?;
            assert_eq!(LiteleaseRef::new(&connection).token("x")?, None);
            assert!(is_cached(address));
            assert!(connection.close().is_ok());
            assert!(!is_cached(address));
        }
        Ok(())
    }
}
