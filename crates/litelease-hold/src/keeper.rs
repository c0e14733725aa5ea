//! The keeper: one thread that renews the holds of a process, or those of one place. Holds of one
//! file share a transaction.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use litelease_core::Lease;
use litelease_sys::{IS_NOTIFIED, Listener, spawn_without_signals};

use crate::process_keeper::unshared;
use crate::{
    Clock, Current, Due, HeldGrant, Hold, Loss, LossSignal, Notice, Renewal, Rows, Window,
};

/// Renews the holds of a process.
///
/// It does nothing by itself: [`start`](Keeper::start) starts its thread, and tests call
/// [`step`](Keeper::step).
pub struct Keeper {
    clock: Arc<dyn Clock>,
    groups: Mutex<Vec<Arc<Group>>>,
    /// How many threads are closing rows that are in `groups` no more.
    closing: AtomicUsize,
    alarm: Arc<Alarm>,
}

/// Wakes the keeper's thread early.
#[derive(Default)]
struct Alarm {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// The holds that share rows.
pub(crate) struct Group {
    key: String,
    rows: Mutex<Box<dyn Rows>>,
    /// A second handle on the same rows, for callers that must not wait for a renewal.
    beside: Option<Mutex<Box<dyn Rows>>>,
    holds: Mutex<Vec<Arc<Hold>>>,
    /// Released holds whose rows are still to be freed, because the place was locked. Each keeps
    /// the keeper at work.
    leftovers: Mutex<Vec<(Arc<Hold>, Arc<Keeper>)>>,
    /// True if the file was written since the rows were last read.
    was_written: AtomicBool,
    last_read: Mutex<Duration>,
    clock: Arc<dyn Clock>,
    alarm: Arc<Alarm>,
}

/// A hold, and the handle to end it. The keeper works as long as one exists.
pub struct Kept {
    /// The hold, for its holder.
    pub hold: Arc<Hold>,
    group: Arc<Group>,
    keeper: Arc<Keeper>,
}

/// The keeper wakes up this often while it has holds, even if nothing is due.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// How long to wait before the keeper tries a release again, if the file is locked.
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

/// How long to try to renew a grant whose answer came late.
const FIRST_RENEWAL: Duration = Duration::from_secs(5);

/// How long a caller waits before it tries again, if the file is locked. Where calls take long, it
/// waits for [`RELEASE_PAUSE`].
const CALLER_PAUSE: Duration = Duration::from_millis(1);

impl Keeper {
    /// Creates a keeper with this clock and without a thread.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (groups, closing, alarm) = (Mutex::default(), AtomicUsize::new(0), Arc::default());
        Keeper { clock, groups, closing, alarm }
    }

    /// Starts the thread, which runs until the last reference to the keeper is dropped. A hold
    /// whose release is pending has a reference.
    pub fn start(self: &Arc<Self>) -> std::io::Result<()> {
        let (keeper, alarm) = (Arc::downgrade(self), self.alarm.clone());
        let body = move || {
            while let Some(keeper) = keeper.upgrade() {
                let next = keeper.step();
                let time = keeper.time_to(next);
                // Dropped before it sleeps: if it is the last reference, that wakes this thread.
                drop(keeper);
                alarm.wait(time);
            }
        };
        spawn_without_signals("litelease keeper", body).map(drop)
    }

    /// Begins to renew `hold`. Holds with equal keys share rows, which `open` opens for the first
    /// of them.
    pub fn keep<E>(
        self: &Arc<Self>,
        key: &str,
        hold: Hold,
        open: impl FnOnce() -> Result<Box<dyn Rows>, E>,
    ) -> Result<Kept, E> {
        Ok(self.add(self.group(key, open)?, hold))
    }

    /// Returns the group with this key.
    pub(crate) fn group<E>(
        &self,
        key: &str,
        open: impl FnOnce() -> Result<Box<dyn Rows>, E>,
    ) -> Result<Arc<Group>, E> {
        if let Some(found) = self.find(&locked(&self.groups), key) {
            return Ok(found);
        }
        // Opened without the keeper's lock, which the other holds need: opening may take long.
        let group = Arc::new(Group::new(key, open()?, self));
        let mut groups = locked(&self.groups);
        if let Some(found) = self.find(&groups, key) {
            return Ok(found);
        }
        locked(&group.rows).listen(Notice { group: Arc::downgrade(&group) });
        groups.push(group.clone());
        Ok(group)
    }

    /// Returns the group with this key, unless its rows belong to a file that was replaced since.
    fn find(&self, groups: &[Arc<Group>], key: &str) -> Option<Arc<Group>> {
        groups.iter().find(|group| group.key == key && !group.is_moved()).cloned()
    }

    /// Begins to renew a hold of this group.
    pub(crate) fn add(self: &Arc<Self>, group: Arc<Group>, hold: Hold) -> Kept {
        let hold = Arc::new(hold);
        locked(&group.holds).push(hold.clone());
        self.alarm.notify();
        Kept { hold, group, keeper: self.clone() }
    }

    /// Records that rows with this key were written, so that their holds are checked soon. Where
    /// the system can watch files, the keeper notices by itself.
    pub fn was_written(&self, key: &str) {
        let groups = locked(&self.groups);
        groups.iter().filter(|group| group.key == key).for_each(|group| group.nudge());
    }

    /// Does everything that is due now. Returns the time of the next work.
    pub fn step(&self) -> Option<Duration> {
        self.alarm.reset();
        self.close_idle();
        let groups = locked(&self.groups).clone();
        let step = |group: &Arc<Group>| {
            // A locked file takes time. Losses in other files must be reported meanwhile.
            let mut back_by = Duration::MAX;
            for hold in groups.iter().flat_map(|group| group.holds()) {
                let now = self.clock.now();
                let _ = hold.check(now);
                if hold.trusted_until() > now {
                    back_by = back_by.min(hold.trusted_until());
                }
            }
            group.step(&*self.clock, back_by)
        };
        groups.iter().filter_map(step).min()
    }

    /// Closes the rows that have no holds any more. Returns whether other threads still use some of
    /// them, or are closing them, as they do for moments.
    pub(crate) fn close_idle(&self) -> bool {
        let mut groups = locked(&self.groups);
        // A holder that still has a reference may leave a release to the keeper.
        let is_idle = |group: &mut Arc<Group>| Arc::strong_count(group) == 1 && group.is_empty();
        let idle: Vec<Arc<Group>> = groups.extract_if(.., is_idle).collect();
        let is_in_use = groups.iter().any(|group| group.is_empty());
        // Closed without the lock: it takes time.
        self.closing.fetch_add(1, Ordering::SeqCst);
        drop(groups);
        drop(idle);
        let others = self.closing.fetch_sub(1, Ordering::SeqCst) - 1;
        is_in_use || others > 0
    }

    /// Closes the rows of all files, except those that another thread uses until `deadline`.
    pub(crate) fn close(&self, deadline: Instant) {
        let groups = std::mem::take(&mut *locked(&self.groups));
        for group in groups {
            drop(unshared(group, deadline));
        }
        // The keeper's thread may be closing rows that had no holds any more. If the program ended
        // before that was done, SQLite would leave its log.
        while self.closing.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns how long the thread sleeps if nothing wakes it.
    fn time_to(&self, next: Option<Duration>) -> Duration {
        // Sleeps are short, because a timer fires late after a suspend. Without holds, sleep until
        // woken.
        let has_none = locked(&self.groups).is_empty();
        let left = next.map_or(LONGEST_SLEEP, |next| next.saturating_sub(self.clock.now()));
        if has_none { Duration::MAX } else { left.min(LONGEST_SLEEP) }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.alarm.notify();
    }
}

impl Alarm {
    fn notify(&self) {
        *locked(&self.is_set) = true;
        self.changed.notify_all();
    }

    fn reset(&self) {
        *locked(&self.is_set) = false;
    }

    fn wait(&self, time: Duration) {
        let woken = self.changed.wait_timeout_while(locked(&self.is_set), time, |is_set| !*is_set);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Group {
    fn new(key: &str, rows: Box<dyn Rows>, keeper: &Keeper) -> Self {
        Group {
            key: key.into(),
            beside: rows.beside().map(Mutex::new),
            rows: Mutex::new(rows),
            holds: Mutex::default(),
            leftovers: Mutex::default(),
            was_written: AtomicBool::new(false),
            last_read: Mutex::default(),
            clock: keeper.clock.clone(),
            alarm: keeper.alarm.clone(),
        }
    }

    /// Uses the rows without waiting for a renewal that is under way, if renewals can take long.
    fn with_rows<T>(&self, work: impl FnOnce(&mut dyn Rows) -> T) -> T {
        let beside = self.beside.as_ref().and_then(|beside| locked(beside).beside());
        match beside {
            Some(mut rows) => work(&mut *rows),
            None => work(&mut **locked(&self.rows)),
        }
    }

    /// Returns from when a new grant is trusted, and how long it lasts. A grant that is so old that
    /// its renewal is due is renewed first.
    ///
    /// If that renewal fails and the grant can still be trusted, the keeper goes on trying.
    /// Otherwise this function tries for some seconds.
    pub(crate) fn first_trust(
        &self,
        grant: &HeldGrant,
        window: Window,
        asked: Duration,
        granted: Renewal,
    ) -> Result<(Duration, Renewal), Loss> {
        let lasts = granted.granted.unwrap_or(grant.ttl).min(grant.ttl);
        let begin = self.clock.now();
        if begin < asked.saturating_add(lasts / 3) {
            return Ok((asked, granted));
        }
        let deadline = begin.saturating_add(grant.ttl.min(FIRST_RENEWAL));
        loop {
            let start = self.clock.now();
            let trusted_for = window.end(Duration::ZERO);
            let due = Due { grant, progress: None, trusted_for, answer_within: trusted_for };
            let answer = self.with_rows(|rows| rows.renew(&[due])).pop();
            let now = self.clock.now();
            let is_late = now >= start + trusted_for;
            let trouble = match answer.unwrap_or(Err(Loss::Expired)) {
                Ok(renewal) if !is_late => return Ok((start, renewal)),
                Ok(_) => Loss::Expired,
                Err(loss) if !loss.is_trouble_of_file() => return Err(loss),
                Err(_) if now < window.end_of(asked, granted.granted) => {
                    return Ok((asked, granted));
                }
                Err(trouble) => trouble,
            };
            if now >= deadline {
                return Err(trouble);
            }
            let is_locked = matches!(trouble, Loss::BlockedByWriter { .. });
            let left = deadline.saturating_sub(now);
            let pause = if is_locked { window.locked_pause(left) } else { window.pause() };
            self.clock.sleep(pause);
        }
    }

    /// Renews the holds of this name, or of all names, at once, except the one with this token.
    pub(crate) fn changed(&self, name: Option<&str>, token: Option<i64>) {
        let now = self.clock.now();
        let is_meant = |hold: &&Arc<Hold>| {
            let HeldGrant { name: held, token: own, .. } = hold.grant();
            name.is_none_or(|name| held == name) && token != Some(*own)
        };
        let holds = locked(&self.holds);
        let mut has_hurried = false;
        for hold in holds.iter().filter(is_meant) {
            hold.hurry(now);
            has_hurried = true;
        }
        if has_hurried {
            self.alarm.notify();
        }
    }

    /// Does everything that is due now. Returns by `back_by`, when the first hold may be lost.
    fn step(&self, clock: &dyn Clock, back_by: Duration) -> Option<Duration> {
        self.release_leftovers(clock.now());
        let holds = self.holds();
        let next_read = self.read(&holds, clock.now());
        let now = clock.now();
        if holds.iter().any(|hold| hold.is_due(now, false)) {
            self.renew(&holds, clock, back_by);
        }
        let next_release = (!locked(&self.leftovers).is_empty()).then_some(now + RELEASE_PAUSE);
        holds.iter().filter_map(|hold| hold.next()).chain(next_read).chain(next_release).min()
    }

    /// Checks the holds against the rows if the file was written. Returns when to check if it is
    /// too early. A hold that does not match its row is renewed at once: the answer to that gives
    /// the reason.
    fn read(&self, holds: &[Arc<Hold>], now: Duration) -> Option<Duration> {
        if !self.was_written.load(Ordering::SeqCst) {
            return None;
        }
        // A file that is written constantly is not checked constantly.
        let pause = holds.iter().map(|hold| hold.window().pause()).min()?;
        let mut last_read = locked(&self.last_read);
        if now < *last_read + pause {
            return Some(*last_read + pause);
        }
        *last_read = now;
        self.was_written.store(false, Ordering::SeqCst);
        let mut rows = locked(&self.rows);
        for hold in holds {
            match rows.read(hold.grant()) {
                Current { is_current: true, request } => hold.requested(request),
                Current { is_current: false, .. } => hold.hurry(now),
            }
        }
        None
    }

    /// Renews all holds that are due or soon will be, so that they share transactions from then
    /// on.
    fn renew(&self, holds: &[Arc<Hold>], clock: &dyn Clock, back_by: Duration) {
        let mut rows = locked(&self.rows);
        let start = clock.now();
        let batch: Vec<_> = holds.iter().filter(|hold| hold.is_due(start, true)).collect();
        let asked: Vec<_> = batch.iter().map(|hold| hold.to_renew(start)).collect();
        let due = batch.iter().zip(&asked).filter_map(|(hold, grant)| {
            Some(Due {
                grant: grant.as_ref().ok()?,
                progress: hold.unsaved_progress(start),
                trusted_for: hold.trusted_until().saturating_sub(start),
                answer_within: back_by.saturating_sub(start),
            })
        });
        let due: Vec<Due<'_>> = due.collect();
        let mut answers = if due.is_empty() { Vec::new() } else { rows.renew(&due) }.into_iter();
        let has_news = rows.has_news();
        drop(rows);
        let now = clock.now();
        for (hold, grant) in batch.iter().zip(&asked) {
            let answer = match grant {
                Ok(grant) if grant.ttl < hold.grant().ttl => {
                    answers.next().map(|answer| answer.map(|renewal| renewal.at_most(grant.ttl)))
                }
                Ok(_) => answers.next(),
                Err(limit) => Some(Err(limit.clone())),
            };
            let Some(answer) = answer else { continue };
            let granted = answer.as_ref().ok().and_then(|renewal| renewal.granted);
            let interval = hold.window().interval(granted);
            hold.settle(start, now, answer, start + interval - jitter(interval, start));
        }
        if has_news {
            self.nudge();
        }
        if !IS_NOTIFIED {
            // Nothing notifies the keeper of requests, so it looks for them after each renewal.
            self.was_written.store(true, Ordering::SeqCst);
        }
    }

    fn release_leftovers(&self, now: Duration) {
        // Taken out of the lock: a call may take long, and a holder that ends its hold must not
        // wait for it.
        let mut leftovers = std::mem::take(&mut *locked(&self.leftovers));
        if leftovers.is_empty() {
            return;
        }
        // A hold that has expired needs no release.
        leftovers.retain(|(hold, _)| now < hold.trusted_until());
        let mut rows = locked(&self.rows);
        // If the place is locked for one release, it is locked for all.
        let mut is_blocked = false;
        leftovers.retain(|(hold, _)| {
            let mut release = || rows.release(hold.grant(), Duration::ZERO);
            is_blocked = is_blocked || release().is_err_and(|trouble| trouble.may_pass());
            is_blocked
        });
        locked(&self.leftovers).append(&mut leftovers);
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
        self.with_rows(|rows| rows.is_moved())
    }
}

impl Listener for Group {
    fn nudge(&self) {
        if !self.was_written.swap(true, Ordering::SeqCst) {
            self.alarm.notify();
        }
    }
}

impl Kept {
    /// Checks whether the grant can be trusted now. Fails once its holder has ended it.
    pub fn check(&self) -> Result<(), Loss> {
        match self.hold.is_ended() {
            true => Err(Loss::ReleasedElsewhere),
            false => self.hold.check(self.group.clock.now()),
        }
    }

    /// Returns a signal on which another thread can wait until the grant is lost.
    pub fn lost(&self) -> LossSignal {
        LossSignal::new(self.hold.clone(), self.group.clock.clone())
    }

    /// Records that the holder has made progress, for a grant whose renewals depend on it. The next
    /// renewal stores it.
    pub fn progress(&self) {
        if self.hold.progress(self.group.clock.now()) {
            self.group.alarm.notify();
        }
    }

    /// Hands the grant to the owner that has requested it, for `ttl`, and ends the hold. Returns
    /// none if there is no request; then the hold goes on. Returns the error if the place is still
    /// locked after `time`, once `goes_on` returns false, or when the lease is lost.
    pub fn hand_over(
        &self,
        ttl: Duration,
        time: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<Lease>, Loss> {
        if self.hold.is_forked() {
            return Err(Loss::Forked);
        }
        let clock = &self.group.clock;
        let end = clock.now().saturating_add(time);
        // The caller may be on the thread that has to report the loss.
        let has_time = |now| now < end && self.hold.check(now).is_ok();
        loop {
            let mut rows = locked(&self.group.rows);
            match rows.hand_over(self.hold.grant(), ttl) {
                Err(trouble) if trouble.may_pass() && has_time(clock.now()) && goes_on() => {
                    drop(rows);
                    clock.sleep(CALLER_PAUSE);
                }
                Ok(Some(handed)) => {
                    // Ended before the keeper reads the row again, which would look like a loss.
                    self.hold.end();
                    return Ok(Some(handed));
                }
                Err(loss) => {
                    if !loss.may_pass() {
                        self.hold.fail(loss.clone());
                    }
                    return Err(loss);
                }
                Ok(None) => return Ok(None),
            }
        }
    }

    /// Ends the hold and releases its row. If the place is still locked after `time`, returns the
    /// error, and the keeper goes on trying until the lease is over. Does nothing in a forked
    /// process.
    ///
    /// A renewal under way may be stored before the release or after it. The row rejects it then.
    pub fn release(&self, time: Duration) -> Result<(), Loss> {
        self.release_while(time, || true)
    }

    /// Releases like [`release`](Kept::release), and leaves the rest to the keeper as soon as
    /// `goes_on` returns false. It is called between two tries.
    pub fn release_while(&self, time: Duration, goes_on: impl Fn() -> bool) -> Result<(), Loss> {
        if self.hold.is_forked() {
            return Err(Loss::Forked);
        }
        self.hold.end();
        let group = &self.group;
        let (clock, begin) = (&group.clock, group.clock.now());
        loop {
            let left = time.saturating_sub(clock.now().saturating_sub(begin));
            match group.with_rows(|rows| rows.release(self.hold.grant(), left)) {
                Err(trouble) if trouble.may_pass() && !left.is_zero() && goes_on() => {
                    clock.sleep(group.beside.as_ref().map_or(CALLER_PAUSE, |_| RELEASE_PAUSE));
                }
                Err(trouble) if trouble.may_pass() => {
                    let leftover = (self.hold.clone(), self.keeper.clone());
                    locked(&group.leftovers).push(leftover);
                    group.alarm.notify();
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
    // Multiplicative hashing: its upper ten bits are as good as random.
    let dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    interval / 10 * dice as u32 / 1024
}
