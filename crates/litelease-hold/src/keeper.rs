//! The keeper: one thread that renews the holds of a process, or those of one place. Holds of one
//! file share a transaction.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process_keeper::unshared;
use crate::watch::{Listener, watch};
use crate::{Asked, Clock, HeldGrant, Hold, Loss, Renewal};

/// The rows of one file, on the keeper's own connection. A call must return soon, even if the file
/// is locked, because other files are waiting.
pub trait Rows: Send {
    /// Renews these grants in one transaction. Returns for each what was granted, or the reason why
    /// not.
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>>;

    /// Releases this grant. Returns an error, and changes nothing, if it is no longer current.
    fn release(&mut self, grant: &HeldGrant) -> Result<(), Loss>;

    /// Looks at the row of this grant, without taking the write lock.
    fn look(&mut self, grant: &HeldGrant) -> Seen;

    /// Hands this grant to who asks for it, for `ttl`. Returns none if nobody does, and an error if
    /// it is no longer current.
    fn hand_over(&mut self, _grant: &HeldGrant, _ttl: Duration) -> Result<Option<Handed>, Loss> {
        Ok(None)
    }

    /// Checks whether the file is no longer at the path where it was opened.
    fn is_moved(&self) -> bool;

    /// Checks whether the place is a file, which the keeper itself watches for changes. Otherwise
    /// somebody calls [`Keeper::changed`].
    fn is_file(&self) -> bool {
        true
    }
}

/// The row of a grant, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Whether the row still names the grant.
    pub is_current: bool,
    /// The open request for the grant.
    pub asked: Option<Asked>,
}

/// A grant that was handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The new owner, who has asked for it.
    pub owner: String,
    /// The new token.
    pub token: i64,
    /// The expiry of the new grant, in Unix milliseconds.
    pub expires_at_ms: i64,
}

/// A grant that is due to be renewed.
#[derive(Clone, Copy, Debug)]
pub struct Due<'g> {
    /// The grant.
    pub grant: &'g HeldGrant,
    /// How long ago its holder made progress, if that is not stored yet. It is stored first.
    pub progress: Option<Duration>,
    /// For how long it is trusted if this renewal fails. An answer that comes later is useless.
    pub trusted_for: Duration,
}

/// Renews the holds of a process.
///
/// It does nothing by itself: [`start`](Keeper::start) starts its thread, and tests call
/// [`step`](Keeper::step).
pub struct Keeper {
    clock: Arc<dyn Clock>,
    groups: Mutex<Vec<Arc<Group>>>,
    alarm: Arc<Alarm>,
}

/// Wakes the keeper's thread early.
#[derive(Default)]
struct Alarm {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

/// The holds of one file.
struct Group {
    file: String,
    is_file: bool,
    rows: Mutex<Box<dyn Rows>>,
    holds: Mutex<Vec<Arc<Hold>>>,
    /// Holds that were given up while the file was locked, and still have to be released.
    leftovers: Mutex<Vec<Arc<Hold>>>,
    /// The file was written since the rows were last checked.
    was_written: AtomicBool,
    last_look: Mutex<Duration>,
    alarm: Arc<Alarm>,
}

/// A hold and the way to give it up.
pub struct Kept {
    /// The hold, for its holder.
    pub hold: Arc<Hold>,
    group: Arc<Group>,
}

/// The keeper wakes up this often while it has holds, even if nothing is due.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How long to wait before the keeper tries a release again, if the file is locked.
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// How long a caller waits before it tries again, if the file is locked.
const CALLER_PAUSE: Duration = Duration::from_millis(1);

impl Keeper {
    /// Creates a keeper with this clock and without a thread.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Keeper { clock, groups: Mutex::default(), alarm: Arc::default() }
    }

    /// Starts the thread, which runs as long as the process.
    pub fn start(self: Arc<Self>) -> std::io::Result<()> {
        let body = move || loop {
            let next = self.step();
            self.alarm.wait(self.nap(next));
        };
        spawn(body).map(drop)
    }

    /// Starts the thread, which runs until the last reference to the keeper is dropped.
    pub fn start_while_used(self: &Arc<Self>) -> std::io::Result<()> {
        let (keeper, alarm) = (Arc::downgrade(self), self.alarm.clone());
        let body = move || {
            while let Some(keeper) = keeper.upgrade() {
                let next = keeper.step();
                let nap = keeper.nap(next);
                // Nobody else may have a reference any more: then this drops it, and that rings.
                drop(keeper);
                alarm.wait(nap);
            }
        };
        spawn(body).map(drop)
    }

    /// Begins to renew `hold`, a grant in `file`, which may be another place than a file. Opens the
    /// rows if the keeper has no hold there yet.
    pub fn keep<E>(
        &self,
        file: &str,
        hold: Hold,
        open: impl FnOnce() -> Result<Box<dyn Rows>, E>,
    ) -> Result<Kept, E> {
        let mut groups = locked(&self.groups);
        // Rows that were opened before the file was replaced belong to the old file.
        let found = groups.iter().find(|group| group.file == file && !group.is_moved());
        let group = match found {
            Some(group) => group.clone(),
            None => {
                let group = Arc::new(Group::new(file, open()?, self.alarm.clone()));
                if group.is_file {
                    watch(Path::new(file), &group);
                }
                groups.push(group.clone());
                group
            }
        };
        let hold = Arc::new(hold);
        locked(&group.holds).push(hold.clone());
        self.alarm.ring();
        Ok(Kept { hold, group })
    }

    /// Records that `file` was written: its holds are checked soon. Where the system can watch
    /// files, this happens by itself.
    pub fn was_written(&self, file: &str) {
        locked(&self.groups)
            .iter()
            .filter(|group| group.file == file)
            .for_each(|group| group.nudge());
    }

    /// Records that the row of `name`, or any row if it is `None`, may have been changed by others,
    /// and now has this token, if that is known. Its holds are renewed at once: the answer tells
    /// whether they are lost.
    pub fn changed(&self, name: Option<&str>, token: Option<i64>) {
        let now = self.clock.now();
        let groups = locked(&self.groups).clone();
        let is_meant = |hold: &Arc<Hold>| {
            let HeldGrant { name: held, token: own, .. } = hold.grant();
            name.is_none_or(|name| held == name) && token != Some(*own)
        };
        let mut has_hurried = false;
        for group in &groups {
            for hold in locked(&group.holds).iter().filter(|hold| is_meant(hold)) {
                hold.hurry(now);
                has_hurried = true;
            }
        }
        if has_hurried {
            self.alarm.ring();
        }
    }

    /// Does everything that is due now. Returns when something is due next.
    pub fn step(&self) -> Option<Duration> {
        self.alarm.reset();
        let groups = {
            let mut groups = locked(&self.groups);
            // A holder that still has a reference may leave a hold to be released.
            groups.retain(|group| Arc::strong_count(group) > 1 || !group.is_empty());
            groups.clone()
        };
        let step = |group: &Arc<Group>| {
            // A locked file takes time. Losses in other files must be reported meanwhile.
            for hold in groups.iter().flat_map(|group| group.holds()) {
                let _ = hold.check(self.clock.now());
            }
            group.step(&*self.clock)
        };
        groups.iter().filter_map(step).min()
    }

    /// Closes the rows of all files. Rows that another thread uses until `deadline` stay open.
    pub(crate) fn close(&self, deadline: Instant) {
        let groups = std::mem::take(&mut *locked(&self.groups));
        for group in groups {
            drop(unshared(group, deadline));
        }
    }

    /// Returns how long the thread sleeps if nobody rings.
    fn nap(&self, next: Option<Duration>) -> Duration {
        // Sleeps are short, because a timer fires late after a suspend. Without holds, sleep until
        // woken.
        let has_none = locked(&self.groups).is_empty();
        let left = next.map_or(LONGEST_NAP, |next| next.saturating_sub(self.clock.now()));
        if has_none { Duration::MAX } else { left.min(LONGEST_NAP) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.alarm.ring();
    }
}

fn spawn(body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name("litelease keeper".into()).spawn(body)
}

impl Alarm {
    fn ring(&self) {
        *locked(&self.has_rung) = true;
        self.rings.notify_all();
    }

    fn reset(&self) {
        *locked(&self.has_rung) = false;
    }

    fn wait(&self, time: Duration) {
        let woken = self.rings.wait_timeout_while(locked(&self.has_rung), time, |rung| !*rung);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Group {
    fn new(file: &str, rows: Box<dyn Rows>, alarm: Arc<Alarm>) -> Self {
        Group {
            file: file.into(),
            is_file: rows.is_file(),
            rows: Mutex::new(rows),
            holds: Mutex::default(),
            leftovers: Mutex::default(),
            was_written: AtomicBool::new(false),
            last_look: Mutex::default(),
            alarm,
        }
    }

    fn step(&self, clock: &dyn Clock) -> Option<Duration> {
        self.release_leftovers(clock.now());
        let holds = self.holds();
        let next_look = self.look(&holds, clock.now());
        let now = clock.now();
        if holds.iter().any(|hold| hold.is_due(now, false)) {
            self.renew(&holds, clock);
        }
        let next_release = (!locked(&self.leftovers).is_empty()).then_some(now + RELEASE_PAUSE);
        holds.iter().filter_map(|hold| hold.next()).chain(next_look).chain(next_release).min()
    }

    /// Checks the holds against the rows if the file was written. Returns when to check if it is
    /// too early. A hold that does not match its row is renewed at once: the answer to that gives
    /// the reason.
    fn look(&self, holds: &[Arc<Hold>], now: Duration) -> Option<Duration> {
        if !self.was_written.load(Ordering::SeqCst) {
            return None;
        }
        // A file that is written constantly is not checked constantly.
        let pause = holds.iter().map(|hold| hold.window().pause()).min()?;
        let mut last_look = locked(&self.last_look);
        if now < *last_look + pause {
            return Some(*last_look + pause);
        }
        *last_look = now;
        self.was_written.store(false, Ordering::SeqCst);
        let mut rows = locked(&self.rows);
        for hold in holds {
            match rows.look(hold.grant()) {
                Seen { is_current: true, asked } => hold.heard(asked),
                Seen { is_current: false, .. } => hold.hurry(now),
            }
        }
        None
    }

    /// Renews all holds that are due or soon will be, so that they share transactions from then
    /// on.
    fn renew(&self, holds: &[Arc<Hold>], clock: &dyn Clock) {
        let mut rows = locked(&self.rows);
        let start = clock.now();
        let batch: Vec<_> = holds.iter().filter(|hold| hold.is_due(start, true)).collect();
        let due: Vec<Due<'_>> = batch
            .iter()
            .map(|hold| Due {
                grant: hold.grant(),
                progress: hold.unsaved_progress(start),
                trusted_for: hold.trusted_until().saturating_sub(start),
            })
            .collect();
        let answers = rows.renew(&due);
        drop(rows);
        let now = clock.now();
        for (hold, answer) in batch.iter().zip(answers) {
            let due = start + hold.window().interval() - jitter(hold.window().interval(), start);
            hold.settle(start, now, answer, due);
        }
        // Where the system cannot watch files, requests are noticed after each renewal.
        #[cfg(not(target_os = "linux"))]
        self.was_written.store(true, Ordering::SeqCst);
    }

    fn release_leftovers(&self, now: Duration) {
        let mut leftovers = locked(&self.leftovers);
        if leftovers.is_empty() {
            return;
        }
        let mut rows = locked(&self.rows);
        // A hold that has expired needs no release.
        leftovers.retain(|hold| now < hold.trusted_until());
        // If the file is locked for one release, it is locked for all.
        let mut is_blocked = false;
        leftovers.retain(|hold| {
            is_blocked = is_blocked
                || matches!(rows.release(hold.grant()), Err(trouble) if trouble.may_pass());
            is_blocked
        });
    }

    fn holds(&self) -> Vec<Arc<Hold>> {
        let mut holds = locked(&self.holds);
        holds.retain(|hold| hold.next().is_some());
        holds.clone()
    }

    fn is_empty(&self) -> bool {
        self.holds().is_empty() && locked(&self.leftovers).is_empty()
    }

    fn is_moved(&self) -> bool {
        // Elsewhere, a renewal that is under way must not be waited for.
        self.is_file && locked(&self.rows).is_moved()
    }
}

impl Listener for Group {
    fn nudge(&self) {
        if !self.was_written.swap(true, Ordering::SeqCst) {
            self.alarm.ring();
        }
    }
}

impl Kept {
    /// Notes that the holder has made progress at `now`, for a grant whose renewals depend on it.
    /// The next renewal stores it.
    pub fn progress(&self, now: Duration) {
        if self.hold.progress(now) {
            self.group.alarm.ring();
        }
    }

    /// Hands the grant to who asks for it, for `ttl`, and ends the hold. Returns none if nobody
    /// does; then the hold goes on. If the file is still locked after `patience`, returns the
    /// error.
    pub fn hand_over(&self, ttl: Duration, patience: Duration) -> Result<Option<Handed>, Loss> {
        if self.hold.is_forked() {
            return Err(Loss::Forked);
        }
        let begin = Instant::now();
        loop {
            let mut rows = locked(&self.group.rows);
            match rows.hand_over(self.hold.grant(), ttl) {
                Err(trouble) if trouble.may_pass() && begin.elapsed() < patience => {
                    drop(rows);
                    thread::sleep(CALLER_PAUSE);
                }
                Ok(Some(handed)) => {
                    // Before the keeper looks at the row again: handed over is not lost.
                    self.hold.end();
                    return Ok(Some(handed));
                }
                answer => return answer,
            }
        }
    }

    /// Gives the hold up and releases its row. If the file is still locked after `patience`,
    /// returns the error, and the keeper goes on trying until the lease is over. Does nothing in a
    /// forked process.
    pub fn release(&self, patience: Duration) -> Result<(), Loss> {
        // This waits for a renewal that is under way. The row rejects a later one.
        self.release_by(patience, |grant| locked(&self.group.rows).release(grant))
    }

    /// Gives the hold up like [`release`](Kept::release), and releases its row by a call of the
    /// caller's, which need not wait for renewals that are under way.
    pub fn release_by(
        &self,
        patience: Duration,
        release: impl Fn(&HeldGrant) -> Result<(), Loss>,
    ) -> Result<(), Loss> {
        if self.hold.is_forked() {
            return Err(Loss::Forked);
        }
        self.hold.end();
        let begin = Instant::now();
        loop {
            match release(self.hold.grant()) {
                Err(trouble) if trouble.may_pass() && begin.elapsed() < patience => {
                    let is_file = self.group.is_file;
                    thread::sleep(if is_file { CALLER_PAUSE } else { RELEASE_PAUSE });
                }
                Err(trouble) if trouble.may_pass() => {
                    locked(&self.group.leftovers).push(self.hold.clone());
                    self.group.alarm.ring();
                    return Err(trouble);
                }
                answer => return answer,
            }
        }
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("hold", &self.hold).finish_non_exhaustive()
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns up to a tenth of the interval, so that processes that were started together drift
/// apart.
fn jitter(interval: Duration, start: Duration) -> Duration {
    let seed = start.as_micros() as u64 ^ u64::from(std::process::id()) << 32;
    // Multiplicative hashing; the upper ten bits are as good as random.
    let dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    interval / 10 * dice as u32 / 1024
}
