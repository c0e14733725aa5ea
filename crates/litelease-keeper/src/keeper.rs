//! The keeper: one thread that renews all holds of a process, those of one file in one transaction.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::{Clock, Grant, Hold, Loss};

/// The rows of one file, on a connection of the keeper's own. A call must come back soon, also when the file
/// is locked: other files are waiting.
pub trait Rows: Send {
    /// Renews these grants in one transaction: for each its new expiry in Unix milliseconds, or why not.
    fn renew(&mut self, grants: &[&Grant]) -> Vec<Result<i64, Loss>>;

    /// Ends this grant. One that is no longer current is left alone, and that is the answer.
    fn release(&mut self, grant: &Grant) -> Result<(), Loss>;

    /// Whether the file is no longer where it was opened.
    fn is_moved(&self) -> bool;
}

/// Keeps the holds of a process alive.
///
/// It does nothing by itself: [`start`](Keeper::start) gives it a thread, tests call [`step`](Keeper::step).
pub struct Keeper {
    clock: Arc<dyn Clock>,
    pid: u32,
    book: Mutex<Book>,
    news: Condvar,
}

#[derive(Default)]
struct Book {
    groups: Vec<Arc<Group>>,
    has_news: bool,
}

/// The holds of one file.
struct Group {
    file: String,
    rows: Mutex<Box<dyn Rows>>,
    holds: Mutex<Vec<Arc<Hold>>>,
    /// Given up by their holders when the file was in the way, and still to be released.
    leftovers: Mutex<Vec<Arc<Hold>>>,
}

/// A hold and the way to give it up.
pub struct Kept {
    /// What the holder asks.
    pub hold: Arc<Hold>,
    group: Arc<Group>,
}

/// The keeper wakes up this often even if nothing is due: after a suspend its own alarm is late.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// How often a release is tried again when the file is in the way.
const RELEASE_PAUSE: Duration = Duration::from_millis(20);

impl Keeper {
    /// A keeper with this clock, and no thread yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Keeper { clock, pid: std::process::id(), book: Mutex::default(), news: Condvar::new() }
    }

    /// Gives it its thread, for as long as the process lives.
    pub fn start(self: Arc<Self>) -> std::io::Result<()> {
        let body = move || loop {
            let next = self.step();
            self.nap(next);
        };
        thread::Builder::new().name("litelease keeper".into()).spawn(body).map(drop)
    }

    /// The clock that all its holds are measured with.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Whether this is another process than the one whose holds it keeps. Its thread is not here.
    pub fn is_forked(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Keeps `hold`, a grant in `file`. Its rows are opened if none of that file is held yet.
    pub fn keep<E>(
        &self,
        file: &str,
        hold: Hold,
        open: impl FnOnce() -> Result<Box<dyn Rows>, E>,
    ) -> Result<Kept, E> {
        let mut book = locked(&self.book);
        // What was opened before the file was replaced has a ghost of it.
        let found = book.groups.iter().find(|group| group.file == file && !group.is_moved());
        let group = match found {
            Some(group) => group.clone(),
            None => {
                let rows = Mutex::new(open()?);
                let (holds, leftovers) = Default::default();
                let group = Arc::new(Group { file: file.into(), rows, holds, leftovers });
                book.groups.push(group.clone());
                group
            }
        };
        let hold = Arc::new(hold);
        locked(&group.holds).push(hold.clone());
        book.has_news = true;
        self.news.notify_all();
        Ok(Kept { hold, group })
    }

    /// Does everything that is due now, and answers when something is due next.
    pub fn step(&self) -> Option<Duration> {
        let groups = {
            let mut book = locked(&self.book);
            book.has_news = false;
            // Whoever still has a hold of it may leave something to be released.
            book.groups.retain(|group| Arc::strong_count(group) > 1 || !group.is_empty());
            book.groups.clone()
        };
        for group in &groups {
            // A group that is blocked must not keep others from being told.
            for hold in group.holds() {
                let _ = hold.check(self.clock.now());
            }
        }
        groups.iter().filter_map(|group| group.step(&*self.clock)).min()
    }

    fn nap(&self, next: Option<Duration>) {
        let book = locked(&self.book);
        if book.has_news {
            return;
        }
        if book.groups.is_empty() {
            let woken = self.news.wait_while(book, |book| !book.has_news);
            return drop(woken.unwrap_or_else(PoisonError::into_inner));
        }
        let left = next.map_or(LONGEST_NAP, |next| next.saturating_sub(self.clock.now()));
        let woken =
            self.news.wait_timeout_while(book, left.min(LONGEST_NAP), |book| !book.has_news);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Group {
    fn step(&self, clock: &dyn Clock) -> Option<Duration> {
        self.release_leftovers(clock.now());
        let holds = self.holds();
        let now = clock.now();
        if holds.iter().any(|hold| hold.is_due(now, false)) {
            self.renew(&holds, clock);
        }
        let next = holds.iter().filter_map(|hold| hold.next()).min();
        match locked(&self.leftovers).is_empty() {
            true => next,
            false => Some(next.map_or(now + RELEASE_PAUSE, |next| next.min(now + RELEASE_PAUSE))),
        }
    }

    /// Renews all that are due, and those that soon will be: so they stay together from then on.
    fn renew(&self, holds: &[Arc<Hold>], clock: &dyn Clock) {
        let mut rows = locked(&self.rows);
        let start = clock.now();
        let batch: Vec<_> = holds.iter().filter(|hold| hold.is_due(start, true)).collect();
        let grants: Vec<&Grant> = batch.iter().map(|hold| hold.grant()).collect();
        let answers = rows.renew(&grants);
        drop(rows);
        let now = clock.now();
        for (hold, answer) in batch.iter().zip(answers) {
            let due = start + hold.window().interval() - jitter(hold.window().interval(), start);
            hold.settle(start, now, answer, due);
        }
    }

    fn release_leftovers(&self, now: Duration) {
        let mut leftovers = locked(&self.leftovers);
        if leftovers.is_empty() {
            return;
        }
        let mut rows = locked(&self.rows);
        // What has run out needs no release any more.
        leftovers.retain(|hold| now < hold.trusted_until());
        leftovers.retain(
            |hold| matches!(rows.release(hold.grant()), Err(trouble) if trouble.may_pass()),
        );
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
        locked(&self.rows).is_moved()
    }
}

impl Kept {
    /// Gives the hold up and releases its row. If the file is still in the way after `patience`, the keeper goes
    /// on trying until the lease is over, and the trouble is the answer. In a forked process nothing happens.
    pub fn release(&self, patience: Duration) -> Result<(), Loss> {
        if self.hold.is_forked() {
            return Err(Loss::Forked);
        }
        self.hold.end();
        let mut waited = Duration::ZERO;
        loop {
            // A renewal that is under way is waited for here, and one that comes later is rejected by the row.
            let answer = locked(&self.group.rows).release(self.hold.grant());
            match answer {
                Err(trouble) if trouble.may_pass() && waited < patience => {
                    thread::sleep(RELEASE_PAUSE);
                    waited += RELEASE_PAUSE;
                }
                Err(trouble) if trouble.may_pass() => {
                    locked(&self.group.leftovers).push(self.hold.clone());
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
        f.debug_struct("Keeper").field("pid", &self.pid).finish_non_exhaustive()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Up to a tenth of the interval: processes that were started together drift apart.
fn jitter(interval: Duration, start: Duration) -> Duration {
    let seed = start.as_micros() as u64 ^ u64::from(std::process::id()) << 32;
    // Multiplicative hashing; the upper ten bits are as good as random.
    let dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54;
    interval / 10 * dice as u32 / 1024
}
