//! The writer turn by turn: jobs that come together, a clock that stands still, and a file that fails when told to.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;

use litelease::rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::job::{Jobs, channel};

type Told = oneshot::Receiver<Result<Answer, JobError>>;

thread_local! {
    static NOW_MS: Cell<i64> = const { Cell::new(0) };
    /// How long it takes from one look at the clock to the next.
    static PASSES_MS: Cell<i64> = const { Cell::new(0) };
}

fn clock() -> i64 {
    NOW_MS.set(NOW_MS.get() + PASSES_MS.get());
    NOW_MS.get()
}

/// A writer with one pool, `p`.
struct Desk {
    committer: Committer,
    jobs: Jobs,
    todo: Receiver<Job>,
    answers: mpsc::UnboundedReceiver<Vec<Answered>>,
    places: u64,
    _folder: tempfile::TempDir,
}

impl Desk {
    fn with(slots: i64) -> Self {
        NOW_MS.set(1_000);
        PASSES_MS.set(0);
        let folder = tempfile::tempdir().unwrap();
        let db = Litelease::from_connection(Connection::open_in_memory().unwrap());
        db.bootstrap().unwrap();
        db.pools().register("p", slots).unwrap();
        let mark = HighWater::beside(&folder.path().join("p")).unwrap();
        let (jobs, todo) = channel();
        let (handed, answers) = mpsc::unbounded_channel();
        let (changes, metrics) = (broadcast::channel(16).0, Arc::new(Metrics::default()));
        let options = Options { clock, ..Options::default() };
        let committer = Committer::new(db, mark, None, &options, handed, changes, metrics);
        Desk { committer, jobs, todo, answers, places: 0, _folder: folder }
    }

    fn leave_job(&self, job: impl FnOnce(Reply) -> Job) -> Told {
        let (reply, told) = oneshot::channel();
        assert!(self.jobs.send(job(reply)).is_ok());
        told
    }

    fn borrow(&mut self, ttl_ms: i64, waits: bool, key: Option<&str>) -> Told {
        self.places += 1;
        let (id, note, place, key) = ("p".into(), None, self.places, key.map(str::to_owned));
        self.leave_job(|reply| {
            Job::Borrow(BorrowJob { id, ttl_ms, note, key, waits, place, reply })
        })
    }

    /// A job that fails the commit it is in: no request comes with an empty key, and the store takes none.
    fn break_it(&mut self) -> Told {
        self.borrow(600, false, Some(""))
    }

    fn renew(&self, lease: &str) -> Told {
        let lease = lease.to_owned();
        self.leave_job(|reply| Job::Renew { id: "p".into(), lease, ttl_ms: 600, reply })
    }

    fn leave(&self, place: u64) {
        assert!(self.jobs.send(Job::Leave { id: "p".into(), place }).is_ok());
    }

    fn give_back(&self, lease: String) {
        assert!(self.jobs.send(Job::GiveBack { id: "p".into(), lease }).is_ok());
    }

    /// Lets every write fail, or not any more.
    fn fails(&self, fails: bool) {
        self.committer.db.conn().pragma_update(None, "query_only", fails).unwrap();
    }

    fn failures(&self) -> u64 {
        let text = self.committer.metrics.text();
        let count = text.lines().find_map(|line| line.strip_prefix("litelease_failures_total "));
        count.unwrap().parse().unwrap()
    }

    /// One commit for all that was left, and its answers.
    fn turn(&mut self) {
        assert!(self.committer.turn(&self.todo));
        while let Ok(answers) = self.answers.try_recv() {
            let jobs = &self.jobs;
            deliver(answers, |id, lease| assert!(jobs.send(Job::GiveBack { id, lease }).is_ok()));
        }
    }

    fn in_use(&self) -> i64 {
        self.committer.db.pools().at(NOW_MS.get()).info("p").unwrap().unwrap().in_use
    }
}

#[track_caller]
fn lent(told: &mut Told) -> String {
    match told.try_recv().unwrap() {
        Ok(Answer::Lent(lent)) => lent.borrowed.lease_id,
        answer => panic!("{answer:?}"),
    }
}

/// Plays with channels as they are under schedules; here there is one thread, and so one schedule.
fn alone(play: fn()) {
    let mut config = shuttle::Config::new();
    // SQLite needs more than the default.
    config.stack_size = 1024 * 1024;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(1), config).run(play);
}

#[test]
fn a_commit_that_fails_takes_nothing_from_who_has_borrowed_before() {
    alone(|| {
        let mut desk = Desk::with(2);
        let mut told = desk.borrow(600, false, Some("k"));
        desk.turn();
        let lease = lent(&mut told);
        // Its retry shares a commit with what breaks it.
        let mut retried = desk.borrow(600, false, Some("k"));
        let mut other = desk.borrow(600, false, None);
        let mut broken = desk.break_it();
        desk.turn();
        for told in [&mut retried, &mut other, &mut broken] {
            assert!(matches!(told.try_recv().unwrap(), Err(JobError::Database)));
        }
        let mut renewed = desk.renew(&lease);
        desk.turn();
        assert!(matches!(renewed.try_recv().unwrap(), Ok(Answer::Renewed { .. })));
        assert_eq!(desk.in_use(), 1);
    });
}

#[test]
fn who_is_gone_joins_no_queue_and_is_not_counted() {
    alone(|| {
        let mut desk = Desk::with(1);
        drop(desk.borrow(600, false, None));
        desk.turn();
        assert_eq!(desk.in_use(), 0, "nothing is lent to who is gone");
        let mut told = desk.borrow(600, false, None);
        let _head = desk.borrow(600, true, None);
        desk.turn();
        lent(&mut told);
        // These have waited long enough while the writer was busy: behind one who stays, nobody sees that they are gone.
        for waits in [true, false] {
            let before = desk.places + 1;
            let ended = [desk.borrow(600, waits, None), desk.borrow(600, waits, None)];
            drop(ended);
            (before..=desk.places).for_each(|place| desk.leave(place));
            desk.turn();
        }
        // This one is in the queue when it leaves.
        let behind = desk.borrow(600, true, None);
        desk.turn();
        assert_eq!(desk.committer.waiters, 2);
        drop(behind);
        desk.leave(desk.places);
        desk.turn();
        assert_eq!(desk.committer.waiters, 1);
        assert_eq!(desk.committer.queues.values().map(Queue::len).sum::<usize>(), 1);
    });
}

#[test]
fn what_could_not_be_returned_is_kept_and_the_database_is_not_pestered() {
    alone(|| {
        let mut desk = Desk::with(2);
        let (mut one, mut two) = (desk.borrow(600, false, None), desk.borrow(600, false, None));
        desk.turn();
        desk.give_back(lent(&mut one));
        desk.fails(true);
        desk.turn();
        // However slow this machine is, the rest is not over.
        let rests = &mut desk.committer.retry_at;
        *rests = rests.map(|until| until + Duration::from_secs(3_600));
        desk.give_back(lent(&mut two));
        (0..5).for_each(|_| desk.turn());
        assert_eq!(desk.failures(), 1);
        // Whoever asks is told at once.
        let mut told = desk.borrow(600, false, None);
        desk.turn();
        assert!(matches!(told.try_recv().unwrap(), Err(JobError::Database)));
        assert_eq!((desk.failures(), desk.in_use()), (2, 2));
        desk.fails(false);
        let mut told = desk.borrow(600, false, None);
        desk.turn();
        lent(&mut told);
        assert_eq!(desk.in_use(), 1, "both are back, and one is lent out again");
    });
}

#[test]
fn a_writer_ends_with_those_who_ask_also_while_the_database_fails() {
    alone(|| {
        let mut desk = Desk::with(1);
        let mut told = desk.borrow(600, false, None);
        desk.turn();
        desk.give_back(lent(&mut told));
        desk.fails(true);
        desk.turn();
        let metrics = Arc::clone(&desk.committer.metrics);
        drop(desk.jobs);
        desk.committer.work(&desk.todo);
        assert!(metrics.text().contains("litelease_failures_total 2\n"), "it has tried once more");
    });
}

#[test]
fn a_lease_that_ends_above_the_count_of_its_pool_wakes_once_and_hides_no_other() {
    alone(|| {
        let mut desk = Desk::with(2);
        let (mut long, mut short) = (desk.borrow(600, false, None), desk.borrow(50, false, None));
        let _resized = desk.leave_job(|reply| Job::Register { id: "p".into(), count: 1, reply });
        let mut waiter = desk.borrow(600, true, None);
        desk.turn();
        lent(&mut long);
        lent(&mut short);
        assert_eq!(desk.committer.until_due(), Duration::from_millis(50));
        NOW_MS.set(1_050);
        desk.turn();
        assert_eq!(
            desk.committer.until_due(),
            Duration::from_millis(550),
            "it would spin until then"
        );
        assert!(waiter.try_recv().is_err(), "there is one slot, and it is lent out");
        NOW_MS.set(1_600);
        desk.turn();
        lent(&mut waiter);
        assert_eq!(desk.committer.expiries.first(), None);
    });
}

#[test]
fn who_waits_longest_is_served_first_when_a_lease_ends_just_before_a_borrow() {
    alone(|| {
        let mut desk = Desk::with(1);
        let _held = desk.borrow(50, false, None);
        let (mut first, mut second) = (desk.borrow(600, true, None), desk.borrow(600, true, None));
        desk.turn();
        NOW_MS.set(1_050);
        let mut late = desk.borrow(600, false, None);
        desk.turn();
        lent(&mut first);
        assert!(matches!(late.try_recv().unwrap(), Ok(Answer::Nothing)), "it overtakes nobody");
        assert!(second.try_recv().is_err());
    });
}

#[test]
fn a_grant_that_is_over_before_it_is_sent_is_not_sent() {
    alone(|| {
        let mut desk = Desk::with(1);
        PASSES_MS.set(10);
        let (mut short, mut long) = (desk.borrow(10, false, None), desk.borrow(600, true, None));
        desk.turn();
        assert!(matches!(short.try_recv().unwrap(), Err(JobError::TooShort)));
        assert!(long.try_recv().is_err());
        desk.turn();
        lent(&mut long);
    });
}
