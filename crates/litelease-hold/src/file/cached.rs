//! Reads: the right to answer a value from memory until a writer wants to change it.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use litelease_core::MAX_READ_TTL_MS;
use litelease_store::{Error, When};
use litelease_sys::spawn_without_signals;

use super::{
    Aside, DatabaseFile, FileConnection, FileError, FileHandle, OwnConnection, in_ms, is_busy,
};
use crate::{Clock, HoldError, HolderKind, Identity, SystemClock, Waiter, Window, this_process};

type Result<T, E = HoldError<FileError>> = std::result::Result<T, E>;

/// How long a read waits for the write lock. After that it is answered from the file.
const GRANT_PATIENCE: Duration = Duration::from_millis(100);

/// The longest sleep between two reads of the file, since a wake-up is only a hint.
const SLOW_POLL: Duration = Duration::from_millis(500);

/// The shortest time between two reads, however often the file is written.
const READ_PAUSE: Duration = Duration::from_millis(2);

/// How long to wait before a failed attempt to end a read is repeated.
const LEAVE_PAUSE: Duration = Duration::from_millis(5);

/// A reader of a name, with a thread that ends the read when a writer has claimed the name. The
/// value itself belongs to the caller.
pub struct CachedReader {
    shared: Arc<Shared>,
    watching: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    name: String,
    /// The reader text, unique to this reader.
    reader: String,
    file: DatabaseFile,
    ttl: Duration,
    window: Window,
    process: u64,
    /// The connection on which reads are granted, prolonged and ended. Locked before `state`.
    rows: OwnConnection<FileConnection>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The version of the value that may be answered from memory.
    version: Option<i64>,
    /// The end of its trust window.
    trusted_until: Duration,
    /// The time until which a writer may wait for this reader. `None` if no writer has to.
    granted_until: Option<Duration>,
    is_closed: bool,
}

impl CachedReader {
    /// Starts to watch the file. `ttl` is more than 100 ms and at most an hour: a writer waits that
    /// long for a reader whose process is stopped.
    pub fn new(caller: &Aside<'_>, name: &str, ttl: Duration) -> Result<Self> {
        let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        let (ttl_ms, most_ms) = (in_ms(ttl), MAX_READ_TTL_MS);
        if ttl_ms > most_ms {
            return Err(Error::TtlTooLong { name: name.into(), ttl_ms, most_ms }.into());
        }
        let rows = caller.patiently(|| Ok(OwnConnection::open(caller.file, GRANT_PATIENCE)?))?;
        let shared = Arc::new(Shared {
            name: name.into(),
            reader: Identity::new(HolderKind::Hold).to_string(),
            ttl,
            window,
            process: this_process(),
            rows,
            file: caller.file.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let watching = shared.clone();
        let watching = spawn_without_signals("litelease cached", move || watching.watch());
        let watching = Mutex::new(Some(watching.map_err(HoldError::NoThread)?));
        Ok(CachedReader { shared, watching })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the reader text: host, process and a random part.
    pub fn reader(&self) -> &str {
        &self.shared.reader
    }

    /// Asks for a read. Returns the version of the value if it is granted, or `None` if a writer
    /// has the name or the file is locked. A value that the caller loads afterwards has this
    /// version, or will not be trusted.
    pub fn acquire(&self) -> Result<Option<i64>> {
        let Shared { name, reader, ttl, file, .. } = &*self.shared;
        if self.is_forked() {
            return Err(HoldError::Forked);
        }
        self.shared.rows.with(|rows| {
            let moved = || HoldError::Lease(FileError::Moved(file.path.clone()));
            if rows.connection().has_moved() {
                return Err(moved());
            }
            if self.is_closed() {
                return Ok(None); // the thread would not give it up
            }
            let start = SystemClock.now();
            let version = match rows.leases().store.read(name, reader, in_ms(*ttl), When::Now) {
                Ok(Some(version)) => version,
                Ok(None) | Err(Error::ExpiredOnArrival(_)) => return Ok(None),
                Err(error) if is_busy(&error) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            // Checked again: other programs may not see the file that stores the grant.
            if rows.connection().has_moved() {
                return Err(moved());
            }
            let mut state = lock(&self.shared.state);
            state.granted_until = Some(SystemClock.now() + *ttl);
            state.version = Some(version);
            state.trusted_until = self.shared.window.end(start);
            self.shared.changed.notify_all();
            Ok(Some(version))
        })
    }

    /// Returns how long a value of this version may be answered from memory if no writer comes.
    pub fn trusted_for(&self, version: i64) -> Duration {
        if self.is_forked() {
            return Duration::ZERO;
        }
        let state = lock(&self.shared.state);
        match state.version == Some(version) {
            true => state.trusted_until.saturating_sub(SystemClock.now()),
            false => Duration::ZERO,
        }
    }

    /// Ends the read if a writer, such as the caller, has the name.
    pub fn give_way(&self) {
        self.shared.give_way();
    }

    /// Ends the read for good. If the file is locked, the thread goes on trying.
    pub fn close(&self) {
        if self.is_forked() {
            return; // the thread and its connection are the other process's
        }
        let given_up = self.shared.rows.with(|rows| {
            let mut state = lock(&self.shared.state);
            (state.is_closed, state.trusted_until) = (true, Duration::ZERO);
            self.shared.changed.notify_all();
            drop(state);
            self.shared.unread(rows)
        });
        // If the file is locked, the thread goes on trying, and this call does not wait for it.
        if given_up.is_ok()
            && let Some(watching) = lock(&self.watching).take()
        {
            let _ = watching.join();
        }
    }

    /// Checks whether the reader was closed.
    pub fn is_closed(&self) -> bool {
        lock(&self.shared.state).is_closed
    }

    /// Checks whether this process was forked from the one of the reader.
    pub fn is_forked(&self) -> bool {
        self.shared.process != this_process()
    }
}

impl Drop for CachedReader {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for CachedReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedReader").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// Watches the file as long as a writer may wait for this reader.
    fn watch(&self) {
        let waiter = Waiter::at(Path::new(&*self.file));
        while let Some(granted_until) = self.wait_until_granted() {
            let generation = waiter.generation();
            self.give_way();
            let left = granted_until.saturating_sub(SystemClock.now());
            waiter.wait_for_change(generation, left.min(SLOW_POLL));
            sleep(READ_PAUSE.min(left));
        }
        self.leave();
    }

    /// Returns until when a writer may wait for this reader, or `None` once it is closed.
    fn wait_until_granted(&self) -> Option<Duration> {
        let mut state = lock(&self.state);
        loop {
            match state.granted_until {
                _ if state.is_closed => return None,
                Some(until) if SystemClock.now() < until => return Some(until),
                _ => state.granted_until = None,
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the read after the last use of the value, if there is one. Tries until no writer waits
    /// for it any longer.
    fn leave(&self) {
        loop {
            let left =
                lock(&self.state).granted_until.map(|until| until.checked_sub(SystemClock.now()));
            let Some(Some(_)) = left else { return };
            let given_up = self.rows.with(|rows: &FileConnection| self.unread(rows));
            if given_up.is_ok() || self.rows.is_moved() {
                return;
            }
            sleep(LEAVE_PAUSE);
        }
    }

    fn give_way(&self) {
        let read: Result<(), Error> = self.rows.with(|rows| {
            if lock(&self.state).granted_until.is_none() {
                return Ok(());
            }
            // If the file cannot be read now, the trust window decides.
            let is_written = rows.leases().inspect(&self.name).is_ok_and(|writer| writer.is_some());
            if !is_written && !rows.connection().has_moved() {
                return Ok(());
            }
            self.distrust();
            // Ended after trust, because a writer that finds no reader writes. A failure is tried
            // again.
            self.unread(rows)
        });
        if read.is_err() && self.rows.is_moved() {
            self.distrust();
        }
    }

    /// Ends the read, and wakes the writers that wait for it and this reader's own thread.
    fn unread(&self, rows: &FileConnection) -> Result<(), Error> {
        let given_up = rows.leases().store.unread(&self.name, &self.reader);
        if given_up.is_ok() {
            lock(&self.state).granted_until = None;
        }
        rows.leases().freed();
        given_up.map(drop)
    }

    fn distrust(&self) {
        lock(&self.state).trusted_until = Duration::ZERO;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
