//! The gate around forks: our connections are closed and our locks are taken during a fork.
//!
//! SQLite keeps a list of the files that a process has open, with its locks on them. A fork copies
//! the list, but not the locks. In the child, a new connection to a listed file takes no lock of
//! its own. So the parent's last close finds no other process, and deletes the log while the child
//! goes on writing to it: commits that the child has reported are lost. Besides, a lock that some
//! thread has at the fork is never released in the child, which has no such thread.
//!
//! So the thread that forks first takes all locks of the process that our threads may have, and
//! closes our connections. Their next use opens them again.

use std::any::Any;
use std::cell::RefCell;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use litelease_sys::at_fork;

use super::connection::close_all;
use super::{FILES, session, sql};
use crate::process_keeper::{KeeperLock, count_fork};

/// How long a fork waits for connections that are in use. A disk that does not answer must not keep
/// the program from forking.
const PATIENCE: Duration = Duration::from_secs(5);

/// True if forked processes may hold names, with a keeper of their own.
static MAY_HOLD: AtomicBool = AtomicBool::new(false);

/// True if a connection of ours stayed open at the fork that made this process, or at an earlier
/// one.
static HAD_OPEN: AtomicBool = AtomicBool::new(false);

/// The locks that the forking thread keeps during the fork.
struct Forking {
    keeper: KeeperLock,
    are_closed: bool,
    _locks: Vec<Box<dyn Any>>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// For the proof that forks need the gate: there is none.
#[cfg(planted)]
pub static HAS_NO_GATE: AtomicBool = AtomicBool::new(false);

/// Closes our connections before each fork of this process.
pub(crate) fn close_before_forks() {
    static REGISTERED: Once = Once::new();
    #[cfg(planted)]
    if HAS_NO_GATE.load(Ordering::SeqCst) {
        return;
    }
    REGISTERED.call_once(|| at_fork(before, in_parent, in_child));
}

/// Lets processes that are forked from now on hold names, with a keeper of their own.
pub fn let_children_hold() {
    close_before_forks();
    MAY_HOLD.store(true, Ordering::SeqCst);
}

/// Checks whether a connection of ours stayed open at the fork that made this process, because it
/// was in use for too long. Then SQLite takes no locks here.
pub(crate) fn had_open_connection() -> bool {
    HAD_OPEN.load(Ordering::SeqCst)
}

extern "C" fn before() {
    // In the order in which other code takes them.
    let known = sql::lock_known();
    let keeper = FILES.lock();
    let (connections, are_closed) = close_all(Instant::now() + PATIENCE);
    let store = litelease_store::lock_process();
    let open = session::lock_open();
    let locks: Vec<Box<dyn Any>> =
        vec![Box::new(open), Box::new(store), Box::new(connections), Box::new(known)];
    // A thread that is ending has lost its thread-local storage. Then nothing stays locked.
    let _ =
        FORKING.try_with(|own| own.replace(Some(Forking { keeper, are_closed, _locks: locks })));
}

extern "C" fn in_parent() {
    let _ = FORKING.try_with(|own| own.take());
}

extern "C" fn in_child() {
    count_fork();
    let forking = FORKING.try_with(|own| own.take()).ok().flatten();
    let are_closed = forking.as_ref().is_some_and(|forking| forking.are_closed);
    HAD_OPEN.fetch_or(!are_closed, Ordering::SeqCst);
    if let Some(forking) = forking
        && MAY_HOLD.load(Ordering::SeqCst)
    {
        FILES.begin_anew(forking.keeper);
    }
}
