//! The keeper's thread: what it finishes after its holders have gone, and what it never waits for.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use litelease_core::Lease;
use litelease_hold::{
    Clock, Current, Due, HeldGrant, Hold, Keeper, Loss, Notice, Renewal, Rows, SystemClock, Window,
};

const TTL: Duration = Duration::from_secs(60);

/// Rows whose first releases find the place locked.
#[derive(Clone, Default)]
struct Locked {
    locked_releases: usize,
    releases: Arc<AtomicUsize>,
    /// The time for an answer, of each renewal.
    answer_within: Arc<Mutex<Vec<Duration>>>,
}

impl Rows for Locked {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        self.answer_within.lock().unwrap().extend(due.iter().map(|due| due.answer_within));
        due.iter().map(|_| Ok(Renewal::whole(0))).collect()
    }

    fn release(&mut self, _: &HeldGrant, _: Duration) -> Result<(), Loss> {
        match self.releases.fetch_add(1, SeqCst) < self.locked_releases {
            true => Err(Loss::BlockedByWriter { pid: None }),
            false => Ok(()),
        }
    }

    fn read(&mut self, _: &HeldGrant) -> Current {
        Current::unknown()
    }

    fn hand_over(&mut self, _: &HeldGrant, _: Duration) -> Result<Option<Lease>, Loss> {
        Err(Loss::BlockedByWriter { pid: None })
    }

    fn listen(&mut self, _: Notice) {}

    fn beside(&self) -> Option<Box<dyn Rows>> {
        None
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}

fn hold(name: &str, ttl: Duration, start: Duration) -> Hold {
    let (owner, secret) = ("a".into(), String::new());
    let grant = HeldGrant { name: name.into(), owner, token: 1, ttl, secret };
    Hold::new(grant, Window::new(ttl).unwrap(), start, Renewal::whole(0))
}

fn open(rows: &Locked) -> Result<Box<dyn Rows>, ()> {
    Ok(Box::new(rows.clone()))
}

/// The thread slept with no reference to the keeper. A client that was dropped just after its hold
/// took the release with it, and the name stayed taken for its whole ttl.
#[test]
fn a_release_that_is_left_to_the_keeper_is_done_although_holder_and_keeper_were_dropped() {
    let rows = Locked { locked_releases: 3, ..Locked::default() };
    let keeper = Arc::new(Keeper::new(Arc::new(SystemClock)));
    keeper.start().unwrap();
    let kept = keeper.keep("place", hold("x", TTL, SystemClock.now()), || open(&rows)).unwrap();
    assert!(kept.release(Duration::ZERO).is_err());
    assert!(kept.check().is_err(), "what was given up is not trusted");
    drop((kept, keeper));
    let begin = SystemClock.now();
    while rows.releases.load(SeqCst) < 4 {
        assert!(SystemClock.now() < begin + TTL, "it is never released");
        thread::sleep(Duration::from_millis(5));
    }
    // And then the thread has nothing left that keeps it, or the rows, alive.
    while Arc::strong_count(&rows.releases) > 1 {
        assert!(SystemClock.now() < begin + TTL, "the rows are never dropped");
        thread::sleep(Duration::from_millis(5));
    }
}

/// One file that stayed locked while it was opened kept the keeper from renewing in all others.
#[test]
fn the_keeper_goes_on_while_the_rows_of_another_place_are_opened() {
    let keeper = Arc::new(Keeper::new(Arc::new(SystemClock)));
    let (rows, (opens, opening), (go_on, wait)) =
        (Locked::default(), mpsc::channel(), mpsc::channel::<()>());
    let opener = {
        let (keeper, rows) = (keeper.clone(), rows.clone());
        thread::spawn(move || {
            let slow = || {
                opens.send(()).unwrap();
                wait.recv().unwrap();
                open(&rows)
            };
            keeper.keep("slow", hold("x", TTL, SystemClock.now()), slow).unwrap()
        })
    };
    opening.recv().unwrap();
    let (done, stepped) = mpsc::channel();
    thread::spawn({
        let keeper = keeper.clone();
        move || done.send(keeper.step()).unwrap()
    });
    stepped.recv_timeout(TTL).expect("the keeper waits for the file that is opened");
    go_on.send(()).unwrap();
    drop(opener.join().unwrap());
}

/// A clock that stands still.
struct Still(Duration);

impl Clock for Still {
    fn now(&self) -> Duration {
        self.0
    }

    fn sleep(&self, _: Duration) {}
}

/// A request for a hold with a long ttl was given ten seconds, and a hold with a short one was
/// reported lost only after that.
#[test]
fn no_renewal_keeps_the_keeper_from_reporting_the_loss_of_another_hold() {
    let (long, short) = (Locked::default(), Locked::default());
    let now = Duration::from_secs(1000);
    let keeper = Arc::new(Keeper::new(Arc::new(Still(now))));
    let due = now - TTL / 2;
    let _long = keeper.keep("long", hold("x", TTL, due), || open(&long)).unwrap();
    let soon = hold("y", Duration::from_secs(3), now);
    let _short = keeper.keep("short", soon, || open(&short)).unwrap();
    keeper.step();
    // 3 s less a tenth.
    assert_eq!(*long.answer_within.lock().unwrap(), [Duration::from_millis(2700)]);
}

/// A clock that only sleeping moves on.
#[derive(Default)]
struct Stepped(Mutex<Duration>);

impl Clock for Stepped {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        *self.0.lock().unwrap() += time;
    }
}

/// A handover tried for five seconds, on the thread that was to report the loss: the holder of a
/// lease of one second heard of it three seconds late.
#[test]
fn a_handover_on_a_locked_place_returns_when_the_lease_is_lost() {
    let (clock, second) = (Arc::new(Stepped::default()), Duration::from_secs(1));
    let keeper = Arc::new(Keeper::new(clock.clone()));
    let hold = hold("x", second, clock.now());
    let kept = keeper.keep("place", hold, || open(&Locked::default())).unwrap();
    assert!(kept.hand_over(second, 5 * second, || true).is_err());
    // 1 s less a tenth.
    assert_eq!(clock.now(), Duration::from_millis(900));
    assert!(kept.check().is_err());
}

/// One that is trusted for longer is tried for as long as its caller says.
#[test]
fn a_handover_on_a_locked_place_leaves_a_lease_that_is_trusted_with_its_holder() {
    let clock = Arc::new(Stepped::default());
    let keeper = Arc::new(Keeper::new(clock.clone()));
    let hold = hold("x", TTL, clock.now());
    let kept = keeper.keep("place", hold, || open(&Locked::default())).unwrap();
    assert!(kept.hand_over(TTL, Duration::from_secs(5), || true).is_err());
    assert_eq!(clock.now(), Duration::from_secs(5));
    assert_eq!(kept.check(), Ok(()));
}
