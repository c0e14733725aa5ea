//! Notices the commits of programs that notify no waiter: one thread per process watches files with
//! inotify.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use crate::{Listener, spawn_without_signals};

/// The event of a write arrives before its commit is visible, so listeners are nudged several
/// times: after these pauses, in microseconds.
const BURST: [u64; 7] = [0, 250, 500, 1000, 2000, 4000, 8000];

/// The listeners of each watch.
type Listeners = HashMap<i32, Vec<Weak<dyn Listener>>>;

/// A write, or a deletion: the attributes of a file change when it loses its name.
const EVENTS: u32 = libc::IN_MODIFY | libc::IN_ATTRIB | libc::IN_MOVE_SELF;

struct Watcher {
    /// A forked process has no such thread, and the lock may be taken for ever there.
    pid: u32,
    /// The inotify instance.
    events: File,
    listeners: Mutex<Listeners>,
}

/// Nudges `listener` from now on when a database file or its -wal is written or deleted.
///
/// If the system has no more watches, waiters rely on the slow poll.
pub fn watch<L: Listener + 'static>(database: &Path, listener: &Arc<L>) {
    let Some(watcher) = Watcher::get() else { return };
    let mut wal = database.as_os_str().to_owned();
    wal.push("-wal");
    let listener: Weak<L> = Arc::downgrade(listener);
    watcher.add(database, listener.clone());
    watcher.add(Path::new(&wal), listener);
}

impl Watcher {
    /// Returns the watcher of this process. A forked one starts its own, and leaves its parent's
    /// alone.
    fn get() -> Option<&'static Self> {
        static WATCHER: AtomicPtr<Watcher> = AtomicPtr::new(ptr::null_mut());
        let found = WATCHER.load(Ordering::Acquire);
        // SAFETY: a watcher that was stored is never freed.
        if let Some(watcher) = unsafe { found.as_ref() }
            && watcher.pid == std::process::id()
        {
            return Some(watcher);
        }
        let new = Box::into_raw(Box::new(Watcher::new()?));
        let stored = WATCHER.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire);
        if stored.is_err() {
            // SAFETY: it was not stored, so no other thread has it.
            drop(unsafe { Box::from_raw(new) });
            return Watcher::get();
        }
        // SAFETY: it is stored, and so never freed.
        let watcher: &'static Watcher = unsafe { &*new };
        let body = move || while watcher.pass_on().is_some() {};
        // Without a thread, waiters rely on the slow poll.
        let _ = spawn_without_signals("litelease watch", body);
        Some(watcher)
    }

    fn new() -> Option<Self> {
        // SAFETY: no pointers are involved.
        let events = unsafe { libc::inotify_init1(libc::IN_CLOEXEC) };
        if events < 0 {
            return None;
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let events = unsafe { File::from_raw_fd(events) };
        Some(Watcher { pid: std::process::id(), events, listeners: Mutex::default() })
    }

    fn add(&self, path: &Path, listener: Weak<dyn Listener>) {
        let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
        let mut listeners = self.listeners();
        // SAFETY: the path ends with a NUL and lives until the call returns. Watching a file does
        // not open it.
        let watch =
            unsafe { libc::inotify_add_watch(self.events.as_raw_fd(), path.as_ptr(), EVENTS) };
        if watch >= 0 {
            let listeners = listeners.entry(watch).or_default();
            listeners.retain(|listener| listener.strong_count() > 0);
            listeners.push(listener);
        }
    }

    /// Waits for events and nudges their listeners.
    fn pass_on(&self) -> Option<()> {
        let mut buffer = [0; 4096];
        let length = (&self.events).read(&mut buffer).ok()?;
        let nudged: Vec<Weak<dyn Listener>> = {
            let mut listeners = self.listeners();
            let written = watches(&buffer[..length]);
            self.forget(&mut listeners, &written);
            let woken = written.iter().filter_map(|watch| listeners.get(watch)).flatten();
            woken.cloned().collect()
        };
        if nudged.is_empty() {
            return Some(());
        }
        for pause in BURST {
            thread::sleep(Duration::from_micros(pause));
            // References are kept for moments only: the last one closes a file.
            nudged.iter().filter_map(Weak::upgrade).for_each(|listener| listener.nudge());
        }
        Some(())
    }

    /// Removes the watches that have no listeners any more.
    fn forget(&self, listeners: &mut Listeners, written: &[i32]) {
        for watch in written {
            let is_forgotten = listeners
                .get(watch)
                .is_some_and(|listeners| listeners.iter().all(|one| one.strong_count() == 0));
            if is_forgotten {
                listeners.remove(watch);
                // SAFETY: no pointers are involved.
                unsafe { libc::inotify_rm_watch(self.events.as_raw_fd(), *watch) };
            }
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the watches in a buffer of events. Each event is a header of 16 bytes, which starts
/// with the watch and ends with the length of a name.
fn watches(mut events: &[u8]) -> Vec<i32> {
    let mut watches = Vec::new();
    while let Some((header, rest)) = events.split_first_chunk::<16>() {
        let [a, b, c, d, .., w, x, y, z] = *header;
        let watch = i32::from_ne_bytes([a, b, c, d]);
        if !watches.contains(&watch) {
            watches.push(watch);
        }
        let name = u32::from_ne_bytes([w, x, y, z]) as usize;
        events = rest.get(name..).unwrap_or_default();
    }
    watches
}
