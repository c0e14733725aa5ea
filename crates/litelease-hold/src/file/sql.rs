//! Holds in SQL: `litelease_hold`, `litelease_held` and `litelease_unhold`, for every language that
//! can load the extension.
//!
//! A hold belongs to the connection that made it, and ends when that closes. It is claimed and
//! renewed on connections of our own, through the same SQLite library. The caller's connection only
//! says which file it has open, and whether the caller was interrupted.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use litelease_store::{
    Argument, Arguments, Caller, Connection, Error, Failure, Kind, Library, NAME, OwnedValue,
    Store, TTL, Verb, code, sqlite3_context, sqlite3_value,
};
use litelease_sys::{FileId, at_exit, pin_library};

use super::aside::STEP;
use super::fork::{had_open_connection, let_children_hold};
use super::{Aside, DatabaseFile, FILES, FileError, More};
use crate::{Held, HoldError, HolderKind, Identity, Window, Wish, this_process};

const WAIT: Argument = Argument { name: "wait_ms", kind: Kind::Integer, null: Some("for no wait") };

/// The functions.
const HOLDS: &[Verb] = &[
    Verb::in_sql("hold", &[NAME, TTL, WAIT], 2, hold_in_sql),
    Verb::in_sql("held", &[NAME], 1, held),
    Verb::in_sql("unhold", &[NAME], 1, unhold),
];

/// How long the end of a connection or of a process may be delayed by releases.
const AT_END: Duration = Duration::from_millis(100);

/// The VFSs of SQLite that lock files in the way that other processes expect.
const LOCKING: [&str; 4] = ["unix", "unix-dotfile", "win32", "win32-longpath"];

/// A connection that has the functions, and its holds.
pub(crate) struct Known {
    /// The process that has opened it.
    process: u64,
    /// The address of the functions of its library.
    api: usize,
    /// Its main database file, as device and number.
    file: FileId,
    holds: Vec<Held>,
}

/// The connections that have the functions, by their addresses.
static KNOWN: Mutex<BTreeMap<usize, Known>> = Mutex::new(BTreeMap::new());

/// Registers all SQL functions on a connection, those for holds among them. Repeating it changes
/// nothing.
///
/// # Safety
/// As for [`litelease_store::sql::register`].
pub unsafe fn register<L: Library>(connection: Connection) -> Result<(), Error> {
    // SAFETY: as this function asks.
    unsafe { litelease_store::sql::register::<L>(connection, HOLDS) }?;
    let Some(file) = file_number(connection) else { return Ok(()) };
    let (address, api) = (address(connection), connection.as_raw().1);
    if lock_known().contains_key(&address) {
        return Ok(());
    }
    let_children_hold();
    // SQLite frees the data of a function when the connection closes. No other copy of this code
    // in the process has this name, so loading the extension again does not replace it.
    let name = format!("litelease_closing_{:x}", ptr::from_ref(&KNOWN) as usize);
    let data: (*mut c_void, _) = (connection.as_raw().0.cast(), Some(closed as _));
    // SAFETY: the function ignores its data, and `closed` takes it for an address only.
    unsafe { connection.register(&name, 0, Caller::Statement, nothing, Some(data)) }?;
    let (process, api) = (this_process(), ptr::from_ref(api) as usize);
    lock_known().insert(address, Known { process, api, file, holds: Vec::new() });
    Ok(())
}

/// Keeps other threads from using the list of connections, during a fork.
pub(crate) fn lock_known() -> MutexGuard<'static, BTreeMap<usize, Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a name for the connection of `store`. Returns its token, or NULL if another owner has it.
fn hold_in_sql(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, caller) = (given.text(0), store.connection());
    let ms =
        |at| Duration::from_millis(u64::try_from(given.optional(at).unwrap_or(0)).unwrap_or(0));
    let (ttl, wait) = (ms(1), ms(2));
    check_connection(store)?;
    if given.optional(2).is_some_and(|wait_ms| wait_ms < 0) {
        return Err(refusal("wait_ms must not be negative"));
    }
    if let Some(token) = own_hold(caller, name)? {
        return Ok(OwnedValue::Integer(token));
    }
    if Window::new(ttl).is_none() {
        let ttl_ms = given.integer(1);
        let text = "is too short to be kept alive: give more than 100 ms";
        return Err(refusal(format!("a ttl of {ttl_ms} ms {text}")));
    }
    let file = DatabaseFile::behind(store).ok_or_else(in_memory)?;
    stay_loaded(&file);
    // Read now, while the path leads to the caller's file.
    let go_on = || match caller.has_moved() {
        true => Err(FileError::Moved(file.path.clone())),
        false => Ok(go_on(caller)?),
    };
    let patience = caller.busy_timeout();
    let aside = Aside { file: &file, patience, go_on: &go_on, longest_sleep: STEP };
    let owner = Identity::new(HolderKind::Hold).to_string();
    match aside.hold(&Wish::new(name, &owner, ttl), ttl, wait, More::default()) {
        // An interrupt during the grant takes it back: its caller never sees the token.
        Ok(held) if go_on().is_ok() => {
            let token = held.token();
            // The connection is in the list: `own_hold` has found it, and SQLite does not close it
            // in the middle of a call.
            if let Some(known) = lock_known().get_mut(&address(caller)) {
                known.holds.push(held);
            }
            Ok(OwnedValue::Integer(token))
        }
        Ok(held) => {
            drop(held);
            go_on().map_err(as_error).and(Ok(OwnedValue::Null))
        }
        Err(HoldError::Busy(_)) => Ok(OwnedValue::Null),
        Err(HoldError::Lease(error)) => Err(as_error(error)),
        Err(error) => Err(refusal(error)),
    }
}

/// Returns the token of a name that a connection of this process to the same file holds. Fails if
/// the hold is lost, and if there is none.
fn held(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, known) = (given.text(0), lock_known());
    let file = known.get(&address(store.connection())).map(|known| known.file);
    let holds = known.values().filter(|known| Some(known.file) == file);
    let mut holds = holds.flat_map(|known| &known.holds).filter(|held| held.name() == name);
    // Another connection may hold a name again that this one has lost.
    let mut lost = None;
    holds
        .find_map(|held| match held.check() {
            Ok(()) => Some(Ok(OwnedValue::Integer(held.token()))),
            Err(error) => {
                lost = Some(error);
                None
            }
        })
        .unwrap_or_else(|| match lost {
            Some(lost) => Err(refusal(lost)),
            None => Err(refusal(format!("{name:?} is not held by this process"))),
        })
}

/// Ends the hold of this connection on a name. Returns whether there was one.
fn unhold(store: &Store, given: &Arguments<'_>) -> Result<OwnedValue, Error> {
    let (name, caller) = (given.text(0), store.connection());
    let taken = {
        let mut known = lock_known();
        known.get_mut(&address(caller)).and_then(|known| {
            let at = known.holds.iter().position(|held| held.name() == name)?;
            Some(known.holds.swap_remove(at))
        })
    };
    let Some(held) = taken else { return Ok(OwnedValue::Integer(0)) };
    // An open transaction of the caller blocks the keeper, which releases the name after the
    // COMMIT.
    let patience = match store.is_in_transaction() {
        true => Duration::ZERO,
        false => caller.busy_timeout(),
    };
    let was_held = match held.release_within(patience) {
        Ok(()) => true,
        // The keeper goes on trying to release it.
        Err(lost) => lost.reason.may_pass(),
    };
    Ok(OwnedValue::Integer(i64::from(was_held)))
}

/// Fails if the caller was interrupted: SQLite then stops every statement on its connection until
/// the one that calls us has ended.
fn go_on(caller: Connection) -> Result<(), Error> {
    match caller.answers_one("SELECT 1") {
        Err(failure) if failure.code & 0xff == code::INTERRUPT => Err(failure.into()),
        _ => Ok(()),
    }
}

/// Refuses connections whose file the keeper cannot use safely, or at all.
fn check_connection(store: &Store) -> Result<(), Error> {
    let caller = store.connection();
    let vfs = caller.vfs().unwrap_or_default();
    if store.file().is_none() {
        return Err(in_memory());
    }
    if caller.is_read_only() || caller.has_uri_flag(c"immutable") {
        return Err(refusal("needs to write, and this connection was opened read-only"));
    }
    if caller.has_uri_flag(c"nolock") {
        return Err(refusal("needs locks, and this connection was opened with nolock=1"));
    }
    if !LOCKING.contains(&vfs.as_str()) {
        return Err(refusal(match vfs.as_str() {
            "unix-none" => "needs locks, and the VFS unix-none takes none".into(),
            vfs => format!("does not know how the VFS {vfs:?} locks files: use the default one"),
        }));
    }
    if !caller.is_autocommit() {
        return Err(refusal("cannot be called inside a transaction: commit first"));
    }
    if store.is_in_transaction() {
        let text = "cannot be called while a statement of this connection reads or writes a table: \
                    end it first";
        return Err(refusal(text));
    }
    if caller.locks_exclusively() {
        return Err(refusal("cannot share a file with PRAGMA locking_mode = EXCLUSIVE"));
    }
    if caller.has_moved() {
        return Err(moved());
    }
    Ok(())
}

/// Returns the token of a name that this connection already holds, and drops a hold that is lost.
/// Fails if the list of connections shows that a hold would be unsafe.
fn own_hold(caller: Connection, name: &str) -> Result<Option<i64>, Error> {
    let lost = {
        let mut list = lock_known();
        let Some(Known { process, api, file, .. }) = list.get(&address(caller)) else {
            let text = "does not know this connection: its file was not there when the extension was loaded";
            return Err(refusal(text));
        };
        let (process, api, file) = (*process, *api, *file);
        if process != this_process() {
            let text = "was called on a connection that was opened before a fork: open a new one";
            return Err(refusal(text));
        }
        let same_file = || list.values().filter(|known| known.file == file);
        if had_open_connection() || same_file().any(|known| known.process != process) {
            let text = "cannot be called in a forked process whose parent had the file open at the \
                        fork: close connections before";
            return Err(refusal(text));
        }
        if same_file().any(|known| known.api != api) {
            let text = "found the file open in another SQLite library of this process: two \
                        libraries drop each other's locks";
            return Err(refusal(text));
        }
        let Some(own) = list.get_mut(&address(caller)) else { return Ok(None) };
        let Some(at) = own.holds.iter().position(|held| held.name() == name) else {
            return Ok(None);
        };
        match own.holds[at].check() {
            Ok(()) => return Ok(Some(own.holds[at].token())),
            Err(_) => own.holds.swap_remove(at),
        }
    };
    // Dropped without the lock, because releasing it takes time.
    drop(lost);
    Ok(None)
}

/// Keeps this library and SQLite's loaded from now on, because the keeper's thread runs in them.
/// Registers the release of all names at the end of the process.
pub fn stay_loaded(file: &DatabaseFile) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        pin_library(ptr::from_ref(&KNOWN) as usize);
        at_exit(release_all);
    });
    // Done once per library: the loader has a lock, and a fork must seldom find it taken.
    static PINNED: AtomicUsize = AtomicUsize::new(0);
    let sqlite = file.api.open_v2 as *const () as usize;
    if PINNED.swap(sqlite, Ordering::SeqCst) != sqlite {
        pin_library(sqlite);
    }
}

/// Releases all holds, at the end of the process.
extern "C" fn release_all() {
    let work = || {
        let deadline = Instant::now() + AT_END;
        let mut list = loop {
            match KNOWN.try_lock() {
                Ok(list) => break list,
                Err(TryLockError::Poisoned(error)) => break error.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(1));
                }
                Err(TryLockError::WouldBlock) => return,
            }
        };
        let is_own = |known: &&mut Known| known.process == this_process();
        let holds: Vec<Held> =
            list.values_mut().filter(is_own).flat_map(|known| known.holds.drain(..)).collect();
        drop(list);
        release_until(holds, deadline);
        FILES.stop_until(deadline);
    };
    let _ = catch_unwind(work);
}

/// Releases holds. After `deadline`, the keeper releases those in files that are still locked.
pub fn release_until(holds: impl IntoIterator<Item = Held>, deadline: Instant) {
    for held in holds {
        let _ = held.release_within(deadline.saturating_duration_since(Instant::now()));
    }
}

/// Ends the holds of a connection that was closed.
///
/// # Safety
/// Only SQLite may call it, with the data that `register` gave it.
unsafe extern "C" fn closed(connection: *mut c_void) {
    let work = || {
        let mut list = lock_known();
        let known = list.remove(&(connection as usize));
        if list.is_empty() {
            // The library may be unloaded now, which would leak its memory.
            *list = BTreeMap::new();
        }
        drop(list);
        // A forked process leaves the holds of its parent alone.
        match known {
            Some(known) if known.process != this_process() => std::mem::forget(known),
            Some(known) => {
                release_until(known.holds, Instant::now() + AT_END);
                // The program may have closed its last connection, and then expects the file to be
                // closed.
                FILES.close_idle();
            }
            None => {}
        }
    };
    // A panic must not unwind into SQLite.
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Does nothing: the function exists for its data, which SQLite frees.
unsafe extern "C" fn nothing(_: *mut sqlite3_context, _: c_int, _: *mut *mut sqlite3_value) {}

fn address(connection: Connection) -> usize {
    connection.as_raw().0 as usize
}

/// Returns device and number of the main database file; none if it is in memory.
fn file_number(connection: Connection) -> Option<FileId> {
    Some(FileId::new(&fs::metadata(connection.file()?).ok()?))
}

fn refusal(text: impl ToString) -> Error {
    Error::Sqlite(Failure { code: code::ERROR, message: text.to_string() })
}

fn in_memory() -> Error {
    refusal("needs a database in a file, and this one is in memory or temporary")
}

fn moved() -> Error {
    refusal("found that the file was moved, deleted or replaced: open it again")
}

fn as_error(error: FileError) -> Error {
    match error {
        FileError::Verb(error) => error,
        FileError::Moved(_) => moved(),
        error => refusal(error),
    }
}
