//! The committer turn by turn: jobs that arrive together, a clock under control, and a file that
//! fails when told to.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(test)]
mod beside;
#[cfg(test)]
mod on_engine;

use std::cell::Cell;

use litelease::Scope;
use litelease::rusqlite::Connection;
use litelease_store::ManyItems;
use litelease_wire::Sent;
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::access::Caller;
use crate::access::Which;
use crate::answer::NameAnswer;
use crate::job::{Claim, GrantJob, Jobs, ManyJob, Reply, Task, WaitState, Wanted, Work, channel};

type PendingAnswer = oneshot::Receiver<Result<Answer, JobError>>;

thread_local! {
    static NOW_MS: Cell<i64> = const { Cell::new(0) };
    /// How far the clock moves with every reading.
    static PASSES_MS: Cell<i64> = const { Cell::new(0) };
}

fn clock() -> i64 {
    NOW_MS.set(NOW_MS.get() + PASSES_MS.get());
    NOW_MS.get()
}

/// A committer with one pool, `p`.
struct Desk {
    committer: Committer,
    jobs: Jobs,
    todo: Receiver<Job>,
    answers: mpsc::UnboundedReceiver<Vec<Answered>>,
    sequences: u64,
    _folder: tempfile::TempDir,
}

impl Desk {
    fn with(slots: i64) -> Self {
        NOW_MS.set(1_000);
        PASSES_MS.set(0);
        Desk::on(Connection::open_in_memory().unwrap(), slots)
    }

    fn on(connection: Connection, slots: i64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Litelease::from_connection(connection);
        db.bootstrap().unwrap();
        db.pools().register("p", slots).unwrap();
        let high_water = HighWater::beside(&folder.path().join("p")).unwrap();
        let (jobs, todo) = channel();
        let (handed, answers) = mpsc::unbounded_channel();
        let (changes, metrics) = (broadcast::channel(16).0, Arc::new(Metrics::default()));
        let options = Options { clock, ..Options::default() };
        let committer = Committer::new(db, high_water, None, &options, handed, changes, metrics);
        Desk { committer, jobs, todo, answers, sequences: 0, _folder: folder }
    }

    fn leave_job(&self, job: impl FnOnce(Reply) -> Job) -> PendingAnswer {
        let (reply, pending) = oneshot::channel();
        assert!(self.jobs.send(job(reply)).is_ok());
        pending
    }

    fn work(&self, task: Task) -> PendingAnswer {
        let (caller, scope) = (Caller::default(), Scope::Operate);
        self.leave_job(|reply| Job::Work(Box::new(Work { caller, scope, task, reply })))
    }

    fn borrow(&mut self, ttl_ms: i64, waits: bool, key: Option<&str>) -> PendingAnswer {
        self.sequences += 1;
        let (id, wanted) = (Id::Pool("p".into()), Wanted::Slot { note: None });
        let (sequence, key) = (self.sequences, key.map(str::to_owned));
        self.leave_job(|reply| {
            Job::Grant(GrantJob {
                id,
                wanted,
                ttl_ms,
                key,
                wait: wait(waits),
                sequence,
                share: None,
                reply,
            })
        })
    }

    /// Sends a job that fails its commit: the store refuses an empty key, which no request can
    /// have.
    fn break_it(&mut self) -> PendingAnswer {
        self.borrow(600, false, Some(""))
    }

    fn renew(&self, lease: &str) -> PendingAnswer {
        let lease = lease.to_owned();
        self.work(Task::Slot(
            Id::Pool("p".into()),
            Box::new(move |file, id, now_ms| slots::renew(file, id, lease, 600, now_ms)),
        ))
    }

    fn leave(&self, sequence: u64) {
        assert!(self.jobs.send(Job::Leave { id: Id::Pool("p".into()), sequence }).is_ok());
    }

    fn give_back(&self, lease: String) {
        assert!(
            self.jobs
                .send(Job::GiveBack(UndeliveredGrant::Slot { id: Id::Pool("p".into()), lease }))
                .is_ok()
        );
    }

    /// Makes every write fail, or work again.
    fn fails(&self, fails: bool) {
        self.committer.file.db.conn().pragma_update(None, "query_only", fails).unwrap();
    }

    fn failures(&self) -> u64 {
        let text = self.committer.metrics.text();
        let count = text.lines().find_map(|line| line.strip_prefix("litelease_failures_total "));
        count.unwrap().parse().unwrap()
    }

    /// Does one commit of all jobs, and delivers the answers.
    fn turn(&mut self) {
        assert!(self.committer.turn(&self.todo));
        while let Ok(answers) = self.answers.try_recv() {
            let jobs = &self.jobs;
            deliver(answers, |grant| assert!(jobs.send(Job::GiveBack(grant)).is_ok()));
        }
    }

    fn in_use(&self) -> i64 {
        self.committer.file.db.pools().at(NOW_MS.get()).info("p").unwrap().unwrap().in_use
    }
}

fn wait(waits: bool) -> Option<WaitState> {
    waits.then(WaitState::default)
}

#[track_caller]
fn lent(pending: &mut PendingAnswer) -> String {
    match pending.try_recv().unwrap() {
        Ok(Answer::Pool(PoolAnswer::Lent { borrowed, .. })) => borrowed.lease_id,
        answer => panic!("{answer:?}"),
    }
}

/// Runs `play` with the channels of the test build. There is one thread, and so one schedule.
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
        let mut pending = desk.borrow(600, false, Some("k"));
        desk.turn();
        let lease = lent(&mut pending);
        // The retry shares a commit with the job that breaks it.
        let mut retried = desk.borrow(600, false, Some("k"));
        let mut other = desk.borrow(600, false, None);
        let mut broken = desk.break_it();
        desk.turn();
        for pending in [&mut retried, &mut other, &mut broken] {
            assert!(matches!(pending.try_recv().unwrap(), Err(JobError::Database)));
        }
        let mut renewed = desk.renew(&lease);
        desk.turn();
        assert!(matches!(
            renewed.try_recv().unwrap(),
            Ok(Answer::Pool(PoolAnswer::Renewed { .. }))
        ));
        assert_eq!(desk.in_use(), 1);
    });
}

#[test]
fn who_is_gone_joins_no_queue_and_is_not_counted() {
    alone(|| {
        let mut desk = Desk::with(1);
        drop(desk.borrow(600, false, None));
        desk.turn();
        assert_eq!(desk.in_use(), 0, "nothing is lent to a client that is gone");
        let mut pending = desk.borrow(600, false, None);
        let _head = desk.borrow(600, true, None);
        desk.turn();
        lent(&mut pending);
        // These have timed out while the committer was busy. Behind a waiter that stays, they are
        // not noticed.
        for waits in [true, false] {
            let before = desk.sequences + 1;
            let ended = [desk.borrow(600, waits, None), desk.borrow(600, waits, None)];
            drop(ended);
            (before..=desk.sequences).for_each(|sequence| desk.leave(sequence));
            desk.turn();
        }
        // This one leaves while it is in the queue.
        let behind = desk.borrow(600, true, None);
        desk.turn();
        assert_eq!(desk.committer.waiting.len(), 2);
        drop(behind);
        desk.leave(desk.sequences);
        desk.turn();
        assert_eq!(desk.committer.waiting.len(), 1);
        assert_eq!(desk.committer.waiting.len_of(&Id::Pool("p".into())), 1);
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
        // However slow this machine is, the pause is not over.
        let rests = &mut desk.committer.undelivered.retry_at;
        *rests = rests.map(|until| until + Duration::from_secs(3_600));
        desk.give_back(lent(&mut two));
        (0..5).for_each(|_| desk.turn());
        assert_eq!(desk.failures(), 1);
        // A new request is tried at once.
        let mut pending = desk.borrow(600, false, None);
        desk.turn();
        assert!(matches!(pending.try_recv().unwrap(), Err(JobError::Database)));
        assert_eq!((desk.failures(), desk.in_use()), (2, 2));
        desk.fails(false);
        let mut pending = desk.borrow(600, false, None);
        desk.turn();
        lent(&mut pending);
        assert_eq!(desk.in_use(), 1, "both are back, and one is lent out again");
    });
}

#[test]
fn a_writer_ends_with_those_who_ask_also_while_the_database_fails() {
    alone(|| {
        let mut desk = Desk::with(1);
        let mut pending = desk.borrow(600, false, None);
        desk.turn();
        desk.give_back(lent(&mut pending));
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
        let _resized = desk.work(Task::Pool(
            Id::Pool("p".into()),
            Box::new(|file, id, now_ms| slots::register(file, Caller::default(), id, 1, now_ms)),
        ));
        let mut waiter = desk.borrow(600, true, None);
        desk.turn();
        lent(&mut long);
        lent(&mut short);
        assert_eq!(desk.committer.waiting.due_in(NOW_MS.get()), Duration::from_millis(50));
        NOW_MS.set(1_050);
        desk.turn();
        assert_eq!(
            desk.committer.waiting.due_in(NOW_MS.get()),
            Duration::from_millis(550),
            "it would spin until then"
        );
        assert!(waiter.try_recv().is_err(), "there is one slot, and it is lent out");
        NOW_MS.set(1_600);
        desk.turn();
        lent(&mut waiter);
        assert_eq!(desk.committer.waiting.first_expiry(), None);
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
        assert!(matches!(late.try_recv().unwrap(), Ok(Answer::NoneFree)), "it overtakes nobody");
        assert!(second.try_recv().is_err());
    });
}

#[test]
fn a_grant_that_is_over_before_it_is_sent_is_not_sent() {
    alone(|| {
        let mut desk = Desk::with(1);
        PASSES_MS.set(10);
        let (mut short, mut long) = (desk.borrow(15, false, None), desk.borrow(600, true, None));
        desk.turn();
        assert!(matches!(short.try_recv().unwrap(), Err(JobError::TooShort)));
        assert!(long.try_recv().is_err());
        desk.turn();
        lent(&mut long);
    });
}

impl Desk {
    /// A desk whose clients need no access key.
    fn open() -> Self {
        let mut desk = Desk::with(1);
        let options = Options { open: true, ..Options::default() };
        desk.committer.file = ServedFile::new(
            memory(),
            Some(high_water(desk._folder.path())),
            None,
            &options,
            Arc::default(),
        );
        desk
    }

    fn claim(&mut self, name: &str, owner: &str, waits: bool, key: Option<&str>) -> PendingAnswer {
        self.sequences += 1;
        let claim = Claim::new(Caller::default(), owner.into(), 0, None);
        let (id, wanted) = (Id::Name(name.into()), Wanted::Name(Box::new(claim)));
        let (sequence, key) = (self.sequences, key.map(str::to_owned));
        self.leave_job(|reply| {
            Job::Grant(GrantJob {
                id,
                wanted,
                ttl_ms: 600,
                key,
                wait: wait(waits),
                sequence,
                share: None,
                reply,
            })
        })
    }

    fn on_grant(
        &self,
        secret: &str,
        work: impl Fn(&Served<'_>, &litelease::Grant, i64) -> Done + Send + 'static,
    ) -> PendingAnswer {
        self.work(Task::Grant(secret.into(), Box::new(work)))
    }

    fn request(&self, name: &str, requester: &'static str) -> PendingAnswer {
        self.work(Task::Name(
            Id::Name(name.into()),
            Box::new(move |file, name, now_ms| {
                payloads::request(file, name, requester, 900_000, now_ms)
            }),
        ))
    }

    fn owner(&self, name: &str) -> Option<String> {
        self.committer.file.db.at(NOW_MS.get()).owner(name).unwrap()
    }
}

fn memory() -> Litelease {
    let db = Litelease::from_connection(Connection::open_in_memory().unwrap());
    db.bootstrap().unwrap();
    db
}

fn high_water(folder: &std::path::Path) -> HighWater {
    HighWater::beside(&folder.join("other")).unwrap()
}

#[track_caller]
fn granted(pending: &mut PendingAnswer) -> (String, i64) {
    match pending.try_recv().unwrap() {
        Ok(Answer::Name(NameAnswer::Granted(granted))) => {
            (granted.grant, granted.lease.lease.token)
        }
        answer => panic!("{answer:?}"),
    }
}

/// Does all jobs, and then hands out the answers: so the clients can go in between.
fn turn_while(desk: &mut Desk, meanwhile: impl FnOnce()) {
    assert!(desk.committer.turn(&desk.todo));
    meanwhile();
    while let Ok(answers) = desk.answers.try_recv() {
        let jobs = &desk.jobs;
        deliver(answers, |grant| assert!(jobs.send(Job::GiveBack(grant)).is_ok()));
    }
}

#[test]
fn a_name_granted_to_a_client_that_is_gone_goes_to_the_next_in_line() {
    alone(|| {
        let mut desk = Desk::open();
        let pending = desk.claim("n", "a", false, None);
        let mut next = desk.claim("n", "b", true, None);
        turn_while(&mut desk, || drop(pending));
        assert_eq!(desk.owner("n").as_deref(), Some("a"));
        desk.turn();
        assert_eq!(granted(&mut next).1, 2);
        assert_eq!(desk.owner("n").as_deref(), Some("b"));
        // A key keeps the grant for the retry.
        let pending = desk.claim("m", "a", false, Some("k"));
        turn_while(&mut desk, || drop(pending));
        desk.turn();
        let mut again = desk.claim("m", "a", false, Some("k"));
        desk.turn();
        assert_eq!(granted(&mut again).1, 1);
    });
}

#[test]
fn a_lease_that_was_fetched_by_a_client_that_is_gone_waits_to_be_fetched_again() {
    alone(|| {
        let mut desk = Desk::open();
        let mut pending = desk.claim("n", "a", false, None);
        desk.turn();
        let grant = granted(&mut pending).0;
        let heir = desk.claim("n", "heir", true, None);
        let mut stranger = desk.claim("n", "stranger", true, None);
        desk.turn();
        let mut handed = desk.on_grant(&grant, |file, grant, now_ms| {
            names::transfer(file, grant, "heir", 600, now_ms)
        });
        turn_while(&mut desk, || drop(heir));
        assert!(matches!(handed.try_recv().unwrap(), Ok(Answer::Name(NameAnswer::Transferred(_)))));
        desk.turn();
        assert_eq!(desk.owner("n").as_deref(), Some("heir"), "it is not released");
        assert!(stranger.try_recv().is_err(), "nor given to anybody else");
        let mut again = desk.claim("n", "heir", false, None);
        desk.turn();
        assert_eq!(granted(&mut again).1, 2);
    });
}

#[test]
fn names_and_slots_share_a_commit_and_fail_together() {
    alone(|| {
        let mut desk = Desk::open();
        desk.committer.file.db.pools().register("p", 1).unwrap();
        let (mut name, mut slot) =
            (desk.claim("n", "a", false, None), desk.borrow(600, false, None));
        desk.turn();
        granted(&mut name);
        lent(&mut slot);
        assert!(desk.committer.metrics.text().contains("litelease_commits_total 1\n"));
        let (mut name, mut broken) = (desk.claim("m", "a", false, None), desk.break_it());
        desk.turn();
        for pending in [&mut name, &mut broken] {
            assert!(matches!(pending.try_recv().unwrap(), Err(JobError::Database)));
        }
        assert_eq!(desk.owner("m"), None);
    });
}

impl Desk {
    fn receive(&mut self, queue: &str, waits: bool, key: Option<&str>) -> PendingAnswer {
        self.sequences += 1;
        let (id, wanted) = (Id::Queue(queue.into()), Wanted::Item(Box::default()));
        let (sequence, key) = (self.sequences, key.map(str::to_owned));
        self.leave_job(|reply| {
            Job::Grant(GrantJob {
                id,
                wanted,
                ttl_ms: 600,
                key,
                wait: wait(waits),
                sequence,
                share: None,
                reply,
            })
        })
    }

    fn on_receipt(
        &self,
        receipt: &str,
        work: impl FnOnce(&Served<'_>, &str, i64) -> Done + Send + 'static,
    ) -> PendingAnswer {
        let (queue, receipt) = (Some("q".into()), receipt.into());
        self.work(Task::Receipt { queue, receipt, work: Box::new(work) })
    }

    fn send(&self, queue: &str, body: &str, delay_ms: i64) -> PendingAnswer {
        let (body, delay) = (body.into(), duration(delay_ms));
        self.work(Task::Queue(
            Id::Queue(queue.into()),
            Box::new(move |file, queue, now_ms| {
                let options = litelease::SendOptions::new().delay(delay);
                items::send(file, queue, body, options, None, now_ms)
            }),
        ))
    }
}

/// The id and the attempt of an item that was delivered.
#[track_caller]
fn delivered(pending: &mut PendingAnswer) -> (i64, i64) {
    match pending.try_recv().unwrap() {
        Ok(Answer::Queue(QueueAnswer::Delivered(delivered))) => {
            (delivered.item.id, delivered.item.attempt)
        }
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn an_item_that_its_client_does_not_hear_of_counts_no_attempt_and_keeps_its_place() {
    alone(|| {
        let mut desk = Desk::open();
        desk.committer.file.db.queue("q").set_max_attempts(1).unwrap();
        let _sent = [desk.send("q", "first", 0), desk.send("q", "second", 0)];
        desk.turn();
        NOW_MS.set(NOW_MS.get() + 10);
        let pending = desk.receive("q", false, None);
        turn_while(&mut desk, || drop(pending));
        // The last attempt that is allowed would have been used up.
        let mut next = desk.receive("q", false, None);
        desk.turn();
        assert_eq!(delivered(&mut next), (1, 1), "the same item, before the other one");
        // One that waits gets it in the same commit.
        let pending = desk.receive("q", false, None);
        let mut waiter = desk.receive("q", true, None);
        turn_while(&mut desk, || drop(pending));
        desk.turn();
        assert_eq!(delivered(&mut waiter), (2, 1));
        // A key keeps the delivery for the retry.
        let _sent = desk.send("q", "third", 0);
        let pending = desk.receive("q", false, Some("k"));
        turn_while(&mut desk, || drop(pending));
        let (mut again, mut other) =
            (desk.receive("q", false, Some("k")), desk.receive("q", false, None));
        desk.turn();
        assert_eq!(delivered(&mut again).1, 1);
        assert!(matches!(other.try_recv().unwrap(), Ok(Answer::NoneFree)));
    });
}

#[test]
fn an_item_whose_time_was_over_before_its_answer_is_not_delivered() {
    alone(|| {
        let mut desk = Desk::open();
        let _sent = desk.send("q", "x", 0);
        desk.turn();
        let mut late = desk.receive("q", false, None);
        // Every reading of the clock takes longer than the visibility.
        PASSES_MS.set(601);
        desk.turn();
        assert!(matches!(late.try_recv().unwrap(), Err(JobError::TooShort)));
        PASSES_MS.set(0);
        let mut next = desk.receive("q", false, None);
        desk.turn();
        assert_eq!(delivered(&mut next).1, 1);
    });
}

#[test]
fn one_bad_request_on_a_queue_does_not_fail_those_that_came_with_it() {
    alone(|| {
        let mut desk = Desk::open();
        let mut bad = desk.send("q", "too late", i64::MAX);
        let mut good = desk.send("q", "x", 0);
        let mut unknown =
            desk.on_receipt("x", |file, queue, now_ms| items::ack(file, queue, "x", None, now_ms));
        let mut name = desk.claim("n", "a", false, None);
        let mut slot = desk.borrow(600, false, None);
        desk.committer.file.db.pools().register("p", 1).unwrap();
        desk.turn();
        assert!(matches!(bad.try_recv().unwrap(), Err(JobError::TooLong)));
        assert!(matches!(
            good.try_recv().unwrap(),
            Ok(Answer::Queue(QueueAnswer::Sent(Sent { id: 1, .. })))
        ));
        assert!(matches!(unknown.try_recv().unwrap(), Ok(Answer::Queue(QueueAnswer::Refused(_)))));
        granted(&mut name);
        lent(&mut slot);
        assert!(desk.committer.metrics.text().contains("litelease_commits_total 1\n"));
        // A table that is not ours concerns those who use it.
        let db = &desk.committer.file.db;
        db.conn().execute_batch("CREATE TABLE litelease_answered (x)").unwrap();
        let mut keyed = desk.receive("q", false, Some("k"));
        let mut plain = desk.receive("q", false, None);
        desk.turn();
        assert!(matches!(keyed.try_recv().unwrap(), Err(JobError::Damaged)));
        delivered(&mut plain);
    });
}

#[test]
fn a_request_is_repeated_while_its_client_waits_and_lapses_with_it() {
    alone(|| {
        let mut desk = Desk::open();
        let claim = Claim::new(Caller::default(), "a".into(), 0, None);
        let (id, wanted) = (Id::Name("n".into()), Wanted::Name(Box::new(claim)));
        let mut held = desk.leave_job(|reply| {
            let (ttl_ms, key, wait, sequence) = (1_000_000, None, None, 1);
            Job::Grant(GrantJob { id, wanted, ttl_ms, key, wait, sequence, share: None, reply })
        });
        desk.turn();
        granted(&mut held);
        let mut asked = desk.request("n", "b");
        desk.turn();
        assert!(matches!(asked.try_recv().unwrap(), Ok(Answer::Name(NameAnswer::Requested(_)))));
        let waiter = desk.claim("n", "b", true, None);
        desk.turn();
        let requester = |desk: &Desk| {
            let open = desk.committer.file.db.at(NOW_MS.get()).requested("n").unwrap();
            open.map(|open| open.requester)
        };
        for _ in 0..10 {
            NOW_MS.set(NOW_MS.get() + 4_000);
            desk.turn();
            assert_eq!(requester(&desk).as_deref(), Some("b"));
        }
        drop(waiter);
        for _ in 0..4 {
            NOW_MS.set(NOW_MS.get() + 4_000);
            desk.turn();
        }
        assert_eq!(requester(&desk), None, "a client that is gone evicts nobody");
    });
}

// A grant that no client had received was given back in the next commit. If its row was damaged by
// then, that commit failed, and so did every later one, because the grant was put back to be tried
// again: the server answered no client any more.
#[test]
fn a_damaged_row_of_a_grant_to_take_back_or_of_a_request_fails_nobody_else() {
    alone(|| {
        let mut desk = Desk::open();
        let gone = desk.claim("n", "a", false, None);
        turn_while(&mut desk, || drop(gone));
        let damage = |desk: &Desk, sql: &str| {
            let sql = format!("PRAGMA ignore_check_constraints = 1; {sql}");
            desk.committer.file.db.conn().execute_batch(&sql).unwrap();
        };
        damage(&desk, "UPDATE litelease_resources SET token = 'x' WHERE name = 'n'");
        let claim = Claim::new(Caller::default(), "a".into(), 0, None);
        let (id, wanted) = (Id::Name("asked".into()), Wanted::Name(Box::new(claim)));
        let mut held = desk.leave_job(|reply| {
            let (ttl_ms, key, wait, sequence) = (1_000_000, None, None, 100);
            Job::Grant(GrantJob { id, wanted, ttl_ms, key, wait, sequence, share: None, reply })
        });
        desk.turn();
        granted(&mut held);
        let _requested = desk.request("asked", "b");
        desk.turn();
        let _waits = desk.claim("asked", "b", true, None);
        desk.turn();
        damage(&desk, "UPDATE litelease_requests SET until_ms = 'x'");
        for name in ["first", "second"] {
            NOW_MS.set(NOW_MS.get() + 4_000);
            let mut other = desk.claim(name, "a", false, None);
            desk.turn();
            granted(&mut other);
        }
        assert_eq!(desk.failures(), 0);
    });
}

/// A batch read the clock once and went on taking jobs. What was sent later was dated from the
/// start and answered with its whole ttl, so its client trusted it after it had ended.
#[test]
fn what_a_batch_grants_and_prolongs_counts_from_when_it_does_so() {
    alone(|| {
        let mut desk = Desk::open();
        desk.committer.file.db.pools().register("p", 2).unwrap();
        let mut first = (desk.borrow(100, false, None), desk.claim("n", "a", false, None));
        let _sent = [desk.send("q", "one", 0), desk.send("q", "two", 0)];
        let mut item = desk.receive("q", false, None);
        desk.turn();
        let (slot, (grant, _)) = (lent(&mut first.0), granted(&mut first.1));
        let Ok(Ok(Answer::Queue(QueueAnswer::Delivered(held)))) = item.try_recv() else {
            panic!("an item")
        };
        // From here on every reading of the clock is later than the one before.
        PASSES_MS.set(10);
        let began_ms = NOW_MS.get();
        let (receipt, same) = (held.item.receipt.clone(), held.item.receipt);
        let mut pending = [
            desk.borrow(600, false, None),
            desk.claim("m", "a", false, None),
            desk.receive("q", false, None),
            desk.renew(&slot),
            desk.on_grant(&grant, |file, grant, now_ms| {
                names::renew(file, grant, "x", 600, now_ms)
            }),
            desk.on_receipt(&receipt, move |file, queue, now_ms| {
                items::extend(file, queue, &same, 600, now_ms)
            }),
        ];
        desk.turn();
        let db = &desk.committer.file.db;
        let mut ends_ms: Vec<i64> = pending
            .iter_mut()
            .map(|pending| match pending.try_recv().unwrap() {
                Ok(Answer::Pool(PoolAnswer::Lent { borrowed, .. })) => borrowed.slot.expires_at_ms,
                Ok(Answer::Pool(PoolAnswer::Renewed { slot, .. })) => slot.expires_at_ms,
                Ok(Answer::Name(NameAnswer::Granted(granted))) => granted.lease.lease.expires_at_ms,
                Ok(Answer::Name(NameAnswer::Renewed(_))) => {
                    db.at(began_ms).inspect("n").unwrap().unwrap().expires_at_ms
                }
                Ok(Answer::Queue(QueueAnswer::Delivered(delivered))) => delivered.deadline_ms,
                Ok(Answer::Queue(QueueAnswer::Extended(_))) => {
                    db.queue("q").delivery(&receipt).unwrap().unwrap().deadline_ms
                }
                answer => panic!("{answer:?}"),
            })
            .collect();
        ends_ms.sort_unstable();
        assert!(ends_ms[0] > began_ms + 600, "{ends_ms:?} after {began_ms}");
        assert!(ends_ms.windows(2).all(|pair| pair[1] >= pair[0] + 10), "{ends_ms:?}");
        PASSES_MS.set(0);
    });
}

impl Desk {
    fn change_many(&self, change: ManyItems) -> PendingAnswer {
        let (queue, key) = ("q".into(), Some("k".to_owned()));
        let operator = Operator { caller: Caller::default(), reason: None };
        let (after, count) = (None, 0);
        self.leave_job(|reply| {
            Job::Many(ManyJob { operator, queue, change, after, count, key, reply })
        })
    }

    fn read(
        &self,
        work: impl FnOnce(&Reader<'_>) -> Result<(), JobError> + Send + 'static,
    ) -> oneshot::Receiver<Result<(), JobError>> {
        let (reply, pending) = oneshot::channel();
        let read: Read = Box::new(move |reader| {
            let done = reader.and_then(work);
            Box::new(move || _ = reply.send(done))
        });
        assert!(self.jobs.send(Job::Read { read, is_first: false, reported: None }).is_ok());
        pending
    }

    fn inspect(&self, with_slots: bool) -> PendingAnswer {
        self.leave_job(|reply| Job::Inspect { id: Id::Pool("p".into()), with_slots, reply })
    }

    fn fill_with_dead_items(&self, count: usize) {
        let db = &self.committer.file.db;
        db.queue("q").set_max_attempts(1).unwrap();
        let items = db.begin_batch().and_then(|()| {
            (0..count).try_for_each(|_| db.queue("q").at(1_000).send("x").map(drop))?;
            let ttl = Duration::from_millis(1);
            while db.queue("q").at(1_000).receive(ttl)?.is_some() {}
            db.commit_batch()
        });
        items.unwrap();
        NOW_MS.set(2_000);
    }
}

/// Returns how many items were changed.
fn count_of(answer: &QueueAnswer) -> i64 {
    match answer {
        QueueAnswer::Redriven(done) => done.redriven,
        QueueAnswer::Discarded(done) => done.discarded,
        QueueAnswer::Deleted(done) => i64::from(done.deleted),
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn a_change_of_many_items_lets_other_clients_in_after_every_slice() {
    alone(|| {
        for change in [ManyItems::Redrive, ManyItems::Discard, ManyItems::Delete] {
            let mut desk = Desk::open();
            desk.fill_with_dead_items(3_500);
            let mut waiter = desk.receive("q", true, None);
            desk.turn();
            let mut many = desk.change_many(change);
            desk.turn();
            assert!(many.try_recv().is_err(), "{change:?} is not done in one commit");
            let redrives = change == ManyItems::Redrive;
            assert_eq!(waiter.try_recv().is_ok(), redrives, "an item that was revived");
            let mut other = desk.claim("n", "a", false, None);
            desk.turn();
            granted(&mut other);
            assert!(many.try_recv().is_err());
            desk.turn();
            desk.turn();
            let count = match many.try_recv().unwrap() {
                Ok(Answer::Queue(answer)) => count_of(&answer),
                answer => panic!("{answer:?}"),
            };
            assert_eq!(count, if change == ManyItems::Delete { 1 } else { 3_500 });
            // Asked again with the same key, it answers the same and does nothing.
            let _sent = desk.send("q", "later", 0);
            let mut again = desk.change_many(change);
            desk.turn();
            assert!(again.try_recv().is_ok());
            assert!(desk.committer.file.db.queue("q").at(2_000).info().unwrap().is_some());
        }
    });
}

/// A client that had not heard of its redrive asked again with the same key. Both requests went
/// on slice by slice, and each counted the items that it had happened to change.
#[test]
fn a_change_of_many_items_that_is_asked_for_again_meanwhile_is_done_once() {
    alone(|| {
        for change in [ManyItems::Redrive, ManyItems::Discard, ManyItems::Delete] {
            let mut desk = Desk::open();
            desk.fill_with_dead_items(2_500);
            let mut pending = vec![desk.change_many(change)];
            desk.turn();
            pending.push(desk.change_many(change));
            desk.turn();
            // What comes while the last slice is done is behind it.
            pending.push(desk.change_many(change));
            (0..4).for_each(|_| desk.turn());
            let whole = if change == ManyItems::Delete { 1 } else { 2_500 };
            let counts = pending.iter_mut().map(|pending| match pending.try_recv().unwrap() {
                Ok(Answer::Queue(answer)) => count_of(&answer),
                answer => panic!("{answer:?}"),
            });
            assert_eq!(counts.collect::<Vec<_>>(), [whole; 3], "{change:?}");
        }
    });
}

#[test]
fn the_job_of_a_holder_does_not_wait_behind_all_that_others_have_sent() {
    alone(|| {
        let mut desk = Desk::with(1);
        let mut pending = desk.borrow(600, false, None);
        desk.turn();
        let lease = lent(&mut pending);
        // More than a batch takes.
        let _others: Vec<PendingAnswer> =
            (0..1_500).map(|_| desk.borrow(600, true, None)).collect();
        let mut renewed = desk.renew(&lease);
        desk.turn();
        assert!(matches!(renewed.try_recv(), Ok(Ok(Answer::Pool(PoolAnswer::Renewed { .. })))));
    });
}

/// An inspection of a pool read a row for each of its slots, and showed none of them. A slot that
/// cannot be read shows whether it was read.
#[test]
fn a_look_at_a_pool_does_not_read_its_slots() {
    alone(|| {
        let mut desk = Desk::with(2);
        let _lent = desk.borrow(600, false, None);
        desk.turn();
        let db = &desk.committer.file.db;
        db.conn().execute_batch("UPDATE main.litelease_pool_slots SET token = 'x'").unwrap();
        let (mut brief, mut whole) = (desk.inspect(false), desk.inspect(true));
        desk.turn();
        let pending = brief.try_recv().unwrap();
        let is_lent = |pool: &litelease_wire::Pool| pool.in_use == 1;
        assert!(
            matches!(&pending, Ok(Answer::Pool(PoolAnswer::Pool(pool))) if is_lent(pool)),
            "{pending:?}"
        );
        assert!(whole.try_recv().unwrap().is_err(), "a stream of events shows every slot");
    });
}

/// The keys were read before the reads of a turn. Another process removed a key and then changed a
/// name: a stream with that key reported the change.
#[test]
fn a_key_that_is_removed_before_what_is_read_counts_no_more_when_it_is_told() {
    alone(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        NOW_MS.set(1_000);
        let mut desk = Desk::on(Connection::open(&path).unwrap(), 1);
        let caller = Caller::from_key("ci");
        let db = &desk.committer.file.db;
        assert!(
            crate::FileAccess::new(db)
                .add("ci", &crate::secret::hash("ci"), "observe:*", None)
                .unwrap()
        );
        let read = |desk: &Desk| {
            desk.read(move |reader| {
                reader.check(caller, Scope::Observe, &Which::Under("".into()))?;
                reader.page("", None, 9, false).map(drop)
            })
        };
        let mut before = read(&desk);
        desk.turn();
        assert!(matches!(before.try_recv(), Ok(Ok(()))));
        let changes = desk.committer.metrics.key_changes();
        // It happens while the reads of a turn are answered.
        let mut other = desk.read(move |reader| {
            reader.read(|_, _| {
                let other = Litelease::from_connection(Connection::open(&path)?);
                assert!(crate::FileAccess::new(&other).remove("ci")?);
                other.claim("secret", "a", Duration::from_secs(60)).map(drop)
            })
        });
        let mut after = read(&desk);
        desk.turn();
        assert!(matches!(other.try_recv(), Ok(Ok(()))));
        let counted = desk.committer.metrics.key_changes();
        assert!(counted > changes, "a stream that was answered does not look for its key");
        // The time for reads may be over, and this one is left for the next turn.
        let pending = loop {
            match after.try_recv() {
                Ok(pending) => break pending,
                Err(_) => desk.turn(),
            }
        };
        assert!(matches!(pending, Err(JobError::WrongKey)), "{pending:?}");
    });
}

/// Every read that had come was answered before the next commit: 10,000 reads made a claim take
/// eight seconds.
#[test]
fn reads_do_not_keep_the_next_commit_waiting_until_all_are_answered() {
    alone(|| {
        let mut desk = Desk::with(1_000);
        for _ in 0..1_000 {
            let _lent = desk.borrow(600, false, None);
        }
        desk.turn();
        let mut inspections: Vec<PendingAnswer> = (0..2_000).map(|_| desk.inspect(true)).collect();
        desk.turn();
        inspections.retain_mut(|pending| pending.try_recv().is_err());
        assert!(!inspections.is_empty(), "all were answered at once");
        let mut borrowed = desk.borrow(600, false, None);
        desk.turn();
        assert!(borrowed.try_recv().is_ok(), "the borrow is answered before them");
        while !inspections.is_empty() {
            desk.turn();
            inspections.retain_mut(|pending| pending.try_recv().is_err());
        }
    });
}

#[test]
fn a_client_stores_answers_within_its_share_of_a_day() {
    let options = Options { max_answers: 8, ..Options::default() };
    let bounds = super::bounds::Bounds::new(&options);
    let (a, b) = (Caller::from_key("a"), Caller::from_key("b"));
    let is_refused = |caller, now_ms| {
        let checked = bounds.check_answer(caller, now_ms);
        checked.iter().for_each(|()| bounds.count_answer(caller));
        checked.is_err()
    };
    assert_eq!(
        [a, a, a, b, b, b].map(|one| is_refused(one, 1_000)),
        [false, false, true, false, false, true]
    );
    assert!(is_refused(a, 1_000 + 86_399_999));
    assert!(!is_refused(a, 1_000 + 86_400_000), "the next day");
}
