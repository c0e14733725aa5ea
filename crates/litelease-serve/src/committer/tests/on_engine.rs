//! The committer on an engine in memory: rows that others have locked, clocks that are set, and
//! names that are not there.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use litelease_cluster::engine::{
    Change, Commit, Committed, EngineFacts, Loaded, LoadedRow, RowChange, Stored,
};
use litelease_cluster::{Cluster, Engine, Host, MemoryEngine};
use litelease_hold::{Acquired, Clock, Granted, Home, Keeper, SystemClock, keep};

use super::super::names;
use super::beside::alone;
use super::*;
use crate::replica::WRITER_LEASE;
use crate::replica::writer_lease::WriterLease;

type Outcome<T> = litelease_cluster::engine::Result<T>;

const LONG: Duration = Duration::from_hours(24);

/// An engine in memory on which another transaction may have locked all names.
#[derive(Default)]
struct Locking {
    rows: MemoryEngine,
    is_locked: AtomicBool,
    commits: AtomicUsize,
    loads: AtomicUsize,
}

impl Engine for Locking {
    fn load(&self, names: &[&str]) -> Outcome<Loaded> {
        self.rows.load(names)
    }

    fn list(&self) -> Outcome<Loaded> {
        self.rows.list()
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Outcome<Stored> {
        self.rows.store(seen, change)
    }

    fn forget(&self, seen: &[LoadedRow]) -> Outcome<u64> {
        self.rows.forget(seen)
    }

    fn wait_for_change(&self, _: &str, _: i64, _: Duration) {}

    fn load_rows(&self, prefix: &[u8]) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        self.rows.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Outcome<Stored> {
        self.rows.commit_rows(name, token, rows)
    }

    fn commit_parts(&self, commit: &Commit<'_>) -> Outcome<Committed> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        if !self.is_locked.load(Ordering::SeqCst) {
            return self.rows.commit_parts(commit);
        }
        let parts = commit.parts.iter().filter(|part| part.row.is_none()).cloned();
        let parts: Vec<_> = parts.collect();
        let Committed::Parts(stored) =
            self.rows.commit_parts(&Commit { parts: &parts, ..commit.clone() })?
        else {
            panic!("nobody else writes");
        };
        let mut stored = stored.into_iter();
        let became = commit.parts.iter().map(|part| match part.row {
            None => stored.next().unwrap(),
            Some(_) => Stored::Conflict,
        });
        Ok(Committed::Parts(became.collect()))
    }

    fn most_rows(&self, _: bool) -> usize {
        127
    }

    fn facts(&self) -> Outcome<EngineFacts> {
        Ok(EngineFacts::default())
    }
}

/// The clocks of the server, and its random numbers.
#[derive(Default)]
struct Machine {
    last_id: AtomicI64,
}

thread_local! {
    /// The time that has passed, and how far the wall clock was set.
    static PASSED_MS: Cell<i64> = const { Cell::new(0) };
    static SET_BY_MS: Cell<i64> = const { Cell::new(0) };
}

const START_MS: i64 = 1_000_000_000;

fn wall_clock() -> i64 {
    START_MS + PASSED_MS.get() + SET_BY_MS.get()
}

impl Host for Machine {
    fn wall_ms(&self) -> i64 {
        wall_clock()
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(PASSED_MS.get().unsigned_abs())
    }

    fn random_id(&self) -> i64 {
        self.last_id.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn pause(&self, _: Duration) {}
}

/// A committer on an engine, and a program beside it.
struct Beside {
    engine: Arc<Locking>,
    committer: Committer,
    jobs: Jobs,
    todo: Receiver<Job>,
    answers: mpsc::UnboundedReceiver<Vec<Answered>>,
    sequence: u64,
    has_clock: bool,
}

impl Beside {
    fn begin(has_clock: bool) -> Self {
        PASSED_MS.set(0);
        SET_BY_MS.set(0);
        let engine = Arc::<Locking>::default();
        if has_clock {
            engine.rows.edit(|rows| rows.server_ms = Some(START_MS));
        }
        Beside::take_over(engine, has_clock)
    }

    fn take_over(engine: Arc<Locking>, has_clock: bool) -> Self {
        let own = Cluster::on(engine.rows.clone()).of_service();
        let _ = own.break_lease(WRITER_LEASE).unwrap();
        let lease = own.claim(WRITER_LEASE, "w", LONG).unwrap().acquired().unwrap();
        let granted = (lease, SystemClock.now());
        let (keeper, rows) = (Arc::new(Keeper::new(Arc::new(SystemClock))), own.clone());
        let keep = move |lease, start| {
            let home = Home { keeper: keeper.clone(), key: String::new() };
            let acquired = Acquired { granted: Granted::whole(lease), start };
            keep(&home, acquired, LONG, || Ok(rows.kept_rows()))
        };
        let time = Arc::new(SystemClock);
        let lease = WriterLease::new(own, LONG, time, Box::new(keep), granted, Arc::default());
        let (shared, host): (Arc<dyn Engine>, _) = (engine.clone(), Arc::<Machine>::default());
        let cluster = Cluster::with(shared, host, litelease_cluster::Options::default());
        let mirror = Mirror::new(cluster, Arc::new(lease.unwrap()), wall_clock, false);
        let (jobs, todo) = channel();
        let (handed, answers) = mpsc::unbounded_channel();
        let options = Options { clock: wall_clock, open: true, ..Options::default() };
        let (changes, metrics) = (broadcast::channel(16).0, Arc::new(Metrics::default()));
        let committer = Committer::mirrored(mirror, &options, handed, changes, metrics).unwrap();
        let mut begun = Beside { engine, committer, jobs, todo, answers, sequence: 0, has_clock };
        begun.turn();
        begun
    }

    fn turn(&mut self) {
        self.committer.turn(&self.todo);
        while let Ok(answers) = self.answers.try_recv() {
            crate::pending_grant::deliver(answers, |grant| {
                self.committer.undelivered.push(grant);
            });
        }
    }

    fn pass(&self, time_ms: i64) {
        PASSED_MS.set(PASSED_MS.get() + time_ms);
        if self.has_clock {
            let now_ms = START_MS + PASSED_MS.get();
            self.engine.rows.edit(|rows| rows.server_ms = Some(now_ms));
        }
    }

    fn claim(&mut self, waits: bool) -> PendingAnswer {
        self.claim_one("x", waits, None)
    }

    fn claim_one(&mut self, name: &str, waits: bool, key: Option<&str>) -> PendingAnswer {
        let (reply, pending) = oneshot::channel();
        self.sequence += 1;
        let claim = Claim::new(Caller::default(), "http".into(), 0, None);
        let job = GrantJob {
            id: Id::Name(name.into()),
            wanted: Wanted::Name(Box::new(claim)),
            ttl_ms: 10_000,
            key: key.map(str::to_owned),
            wait: wait(waits),
            sequence: self.sequence,
            share: None,
            reply,
        };
        assert!(self.jobs.send(Job::Grant(job)).is_ok());
        pending
    }

    fn renew(&mut self, secret: &str) -> PendingAnswer {
        let (reply, pending) = oneshot::channel();
        let grant = secret.to_owned();
        let task = Task::Grant(
            secret.into(),
            Box::new(move |file, on, now_ms| names::renew(file, on, &grant, 10_000, now_ms)),
        );
        let (caller, scope) = (Caller::default(), Scope::Operate);
        assert!(self.jobs.send(Job::Work(Box::new(Work { caller, scope, task, reply }))).is_ok());
        pending
    }

    /// Returns the answer, which must be there after some turns.
    fn answer(&mut self, mut pending: PendingAnswer) -> NameAnswer {
        for _ in 0..9 {
            self.turn();
            if let Ok(answer) = pending.try_recv() {
                let Ok(Answer::Name(answer)) = answer else { panic!("not about a name") };
                return answer;
            }
        }
        panic!("no answer");
    }

    fn granted(&mut self) -> String {
        let pending = self.claim(false);
        let NameAnswer::Granted(granted) = self.answer(pending) else { panic!("not granted") };
        granted.grant
    }
}

#[test]
fn a_wall_clock_that_is_set_ends_no_lease_and_prolongs_none() {
    alone(|| {
        for has_clock in [false, true] {
            for set_by_ms in [3_600_000, -3_600_000] {
                let mut beside = Beside::begin(has_clock);
                let secret = beside.granted();
                beside.pass(3_000);
                SET_BY_MS.set(set_by_ms);
                let renewed = beside.renew(&secret);
                assert!(
                    matches!(beside.answer(renewed), NameAnswer::Renewed(_)),
                    "has_clock {has_clock}, set by {set_by_ms}"
                );
                let busy = beside.claim(false);
                assert!(matches!(beside.answer(busy), NameAnswer::Busy(..)));
                SET_BY_MS.set(set_by_ms / 2);
                beside.pass(10_001);
                let _ = beside.granted();
            }
        }
    });
}

#[test]
fn who_waits_for_a_name_that_another_transaction_has_locked_for_long_waits_on() {
    alone(|| {
        let mut beside = Beside::begin(true);
        let _ = beside.granted();
        let mut waiting = beside.claim(true);
        beside.turn();
        beside.engine.is_locked.store(true, Ordering::SeqCst);
        beside.pass(10_001);
        let long_ago = Instant::now() - MAX_CONTENTION - CONTENTION_PAUSE;
        beside.committer.contended.insert("x".into(), (long_ago, Instant::now()));
        for _ in 0..9 {
            beside.pass(50);
            beside.turn();
        }
        assert!(waiting.try_recv().is_err(), "it was answered");
        beside.engine.is_locked.store(false, Ordering::SeqCst);
        beside.pass(50);
        assert!(matches!(beside.answer(waiting), NameAnswer::Granted(_)));
    });
}

#[test]
fn a_grant_that_cannot_be_returned_is_tried_again_after_a_pause() {
    alone(|| {
        let mut beside = Beside::begin(true);
        let _ = beside.granted();
        let lease = beside.committer.file.db.at(wall_clock()).inspect("x").unwrap().unwrap();
        beside.engine.is_locked.store(true, Ordering::SeqCst);
        beside.committer.undelivered.push(UndeliveredGrant::Name(lease));
        beside.turn();
        let before = beside.engine.commits.load(Ordering::SeqCst);
        (0..9).for_each(|_| beside.turn());
        let after = beside.engine.commits.load(Ordering::SeqCst);
        assert!(after <= before + 1, "{before} commits became {after}");
        beside.engine.is_locked.store(false, Ordering::SeqCst);
        std::thread::sleep(CONTENTION_PAUSE);
        beside.turn();
        let _ = beside.granted();
    });
}

#[test]
fn names_that_are_not_there_take_no_memory() {
    alone(|| {
        let mut beside = Beside::begin(true);
        let _ = beside.granted();
        let asked: BTreeSet<Arc<str>> = (0..99).map(|at| format!("n{at}").into()).collect();
        beside.committer.file.refresh_names(&asked, false).unwrap();
        assert_eq!(beside.committer.file.names_known(), 1);
    });
}

#[test]
fn a_commit_of_many_names_that_is_refused_is_read_back_in_few_requests() {
    alone(|| {
        let mut beside = Beside::begin(true);
        let first = beside.claim_one("a0", false, None);
        assert!(matches!(beside.answer(first), NameAnswer::Granted(_)));
        let mut claims: Vec<_> =
            (1..100).map(|at| beside.claim_one(&format!("a{at}"), false, None)).collect();
        beside.engine.is_locked.store(true, Ordering::SeqCst);
        let before = beside.engine.loads.load(Ordering::SeqCst);
        beside.turn();
        let loads = beside.engine.loads.load(Ordering::SeqCst) - before;
        assert!(loads <= 2, "{loads} requests");
        beside.engine.is_locked.store(false, Ordering::SeqCst);
        let last = claims.pop().unwrap();
        let NameAnswer::Granted(last) = beside.answer(last) else { panic!("not granted") };
        let renewed = beside.renew(&last.grant);
        assert!(matches!(beside.answer(renewed), NameAnswer::Renewed(_)));
        assert!(claims.iter_mut().all(|claim| matches!(claim.try_recv(), Ok(Ok(_)))));
    });
}

/// A server that takes over on an engine without a clock does not know how old a lease is.
#[test]
fn a_repeated_claim_after_a_failover_is_trusted_no_longer_than_the_lease() {
    for has_clock in [false, true] {
        alone(move || {
            let mut beside = Beside::begin(has_clock);
            let claim = beside.claim_one("x", false, Some("key"));
            let NameAnswer::Granted(first) = beside.answer(claim) else { panic!("not granted") };
            let shared: Arc<dyn Engine> = beside.engine.clone();
            let options = litelease_cluster::Options::default();
            let program = Cluster::with(shared, Arc::<Machine>::default(), options);
            let busy = program.claim("x", "program", Duration::from_secs(10)).unwrap();
            assert!(matches!(busy, litelease_cluster::ClaimResult::Busy(_)));
            beside.pass(8_000);
            let mut beside = Beside::take_over(beside.engine, has_clock);
            let claim = beside.claim_one("x", false, Some("key"));
            let NameAnswer::Granted(again) = beside.answer(claim) else { panic!("not granted") };
            assert_eq!((again.lease.lease.token, &again.grant), (1, &first.grant));
            let trusted_ms = again.lease.lease.expires_at_ms - wall_clock();
            assert!(trusted_ms > 0);
            beside.pass(trusted_ms - 1);
            let busy = program.claim("x", "program", Duration::from_secs(10)).unwrap();
            assert!(
                matches!(busy, litelease_cluster::ClaimResult::Busy(_)),
                "has_clock {has_clock}: two believe in it, {trusted_ms} ms"
            );
        });
    }
}
