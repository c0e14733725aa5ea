//! Holds and waiting on engines: kept alive, told when they are over, and handed on at once.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::{
    ClaimResult, Cluster, Error, Held, HoldError, HoldOptions, Host, Loss, MemoryEngine,
    RenewResult, System,
};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};

const LONG: Duration = Duration::from_secs(60);
/// How long a test waits for what happens at once.
const SOON: Duration = Duration::from_secs(10);

/// Calls a test with the engine in memory and with those that are installed. `open` makes another
/// client.
fn on_every_engine(test: impl Fn(&str, &dyn Fn() -> Cluster)) {
    let memory = MemoryEngine::new();
    test("memory", &|| Cluster::on(memory.clone()));
    if etcd::is_installed() {
        let etcd = Etcd::shared();
        let url = etcd.url(&format!("holding-{:?}", thread::current().id()));
        test("etcd", &|| Cluster::open(&url).unwrap());
    }
    if postgres::is_installed() {
        let server = Postgres::shared();
        let thread = format!("{:?}", thread::current().id());
        let url =
            server.url(&format!("holding_{}", thread.replace(|c: char| !c.is_ascii_digit(), "")));
        Cluster::open(&url).unwrap().bootstrap().unwrap();
        test("PostgreSQL", &|| Cluster::open(&url).unwrap());
    }
}

#[test]
fn a_hold_outlives_its_ttl_and_its_end_frees_the_name() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        // Long enough for a busy machine to renew it in time.
        let (ttl, time) = (Duration::from_millis(2_500), Duration::from_secs(3));
        let held = a.hold("kept", HoldOptions::new(ttl)).unwrap();
        let until = Instant::now() + time;
        let waited = b.claim_wait("kept", "b", LONG, time).unwrap();
        assert!(matches!(waited, ClaimResult::Busy(_)), "{engine}: {waited:?}");
        assert!(Instant::now() >= until, "{engine}");
        held.check().unwrap();
        assert_eq!(held.token(), 1, "{engine}");
        held.release().unwrap();
        assert_eq!(b.owner("kept").unwrap(), None, "{engine}");

        let held = b.hold("kept", HoldOptions::new(ttl)).unwrap();
        assert!(matches!(a.hold("kept", HoldOptions::new(ttl)), Err(HoldError::Busy(_))));
        drop(held);
        assert_eq!(a.hold("kept", HoldOptions::new(ttl)).unwrap().token(), 3, "{engine}");
    });
}

#[test]
fn a_release_wakes_a_waiter_elsewhere() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        let held = a.hold("passed", HoldOptions::new(LONG)).unwrap();
        let (begun, begins) = mpsc::channel();
        let waiter = thread::spawn(move || {
            begun.send(()).unwrap();
            let start = Instant::now();
            (b.hold("passed", HoldOptions::new(LONG).wait(LONG)).unwrap().token(), start.elapsed())
        });
        begins.recv().unwrap();
        thread::sleep(Duration::from_millis(300));
        held.release().unwrap();
        let (token, took) = waiter.join().unwrap();
        assert_eq!(token, 2, "{engine}");
        assert!(took < SOON, "{engine}: {took:?}");
    });
}

/// The ttl is long, so that no renewal which is due anyway tells the holder.
#[test]
fn a_request_is_told_to_the_holder_at_once_and_the_handover_wakes_the_requester() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        let options = HoldOptions::new(LONG).value("10.0.0.7:4000");
        let held = a.hold("asked", options).unwrap();
        assert_eq!(b.value("asked").unwrap(), Some("10.0.0.7:4000".into()), "{engine}");
        let (told, requests) = mpsc::channel();
        held.on_request(move |request| told.send(request.requester.clone()).unwrap());
        let waiter = thread::spawn(move || {
            let options = HoldOptions::new(LONG).wait(LONG).request(LONG).value(7);
            let held = b.hold("asked", options).unwrap();
            (held.token(), b.value("asked").unwrap(), held)
        });
        let requester =
            requests.recv_timeout(SOON).unwrap_or_else(|_| panic!("{engine}: not told"));
        assert_eq!(
            a.requested("asked").unwrap().map(|open| open.requester),
            Some(requester.clone())
        );
        let handed = held.hand_over::<Error>(LONG).unwrap();
        assert_eq!((handed.token, handed.owner), (2, requester), "{engine}");
        let (token, value, held) = waiter.join().unwrap();
        assert_eq!((token, value), (2, Some(7.into())), "{engine}");
        assert_eq!(a.requested("asked").unwrap(), None, "{engine}");
        drop(held);

        // A wait that ends without the name takes its request back.
        let held = a.hold("asked", HoldOptions::new(LONG)).unwrap();
        let wait = Duration::from_millis(300);
        let busy = a.request_wait("asked", "c", LONG, LONG, wait).unwrap();
        assert!(matches!(busy, ClaimResult::Busy(_)), "{engine}: {busy:?}");
        assert_eq!(a.requested("asked").unwrap(), None, "{engine}");
        held.release().unwrap();
    });
}

/// The handle that renews has not set the limits, so it must find out about them.
#[test]
fn limits_that_another_client_has_set_end_a_hold() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        let held = a.hold("limited", HoldOptions::new(Duration::from_secs(3))).unwrap();
        assert!(b.limit(("limited", held.token()), None, Some(0)).unwrap().is_done());
        assert_eq!(held.lost().wait_timeout(SOON), Some(Loss::TimeIsUp), "{engine}");
        drop(held);
        let lease = b.claim("limited", "b", LONG).unwrap();
        // The limits have ended with their grant, although they are still stored.
        let lease = match lease {
            ClaimResult::Acquired(lease) => lease,
            // On an engine without a clock it is over once it was not renewed for a ttl.
            ClaimResult::Busy(_) => {
                b.claim_wait("limited", "b", LONG, SOON).unwrap().acquired().unwrap()
            }
        };
        assert!(matches!(b.renew(&lease, LONG).unwrap(), RenewResult::Renewed(_)), "{engine}");
        assert_eq!(b.value("limited").unwrap(), None, "{engine}");
    });
}

#[test]
fn a_thousand_names_are_read_with_what_some_of_them_carry() {
    on_every_engine(|engine, open| {
        let a = open();
        let names: Vec<String> = (0..300).map(|number| format!("many {number:03}")).collect();
        let leases: Vec<_> = names
            .iter()
            .map(|name| a.claim(name, "a", LONG).unwrap().acquired().unwrap())
            .collect();
        for lease in leases.iter().step_by(50) {
            assert!(a.attach(lease, lease.name.as_str()).unwrap().is_done());
            assert!(a.limit(lease, None, Some(0)).unwrap().is_done());
        }
        // Another handle knows none of the rows.
        let answers = open().renew_all(&leases, LONG);
        for (number, answer) in answers.into_iter().enumerate() {
            let is_renewed = matches!(answer, Ok(RenewResult::Renewed(_)));
            assert_eq!(is_renewed, number % 50 != 0, "{engine}: {number}: {answer:?}");
        }
        let values = open().values().unwrap();
        assert_eq!(values.len(), 6, "{engine}: {values:?}");
        assert!(values.iter().all(|(name, _, value)| *value == name.as_str().into()));
        for lease in &leases {
            let _ = a.release(lease).unwrap();
        }
        assert_eq!(a.purge(i64::MAX).unwrap(), 300, "{engine}");
        assert_eq!(open().values().unwrap(), [], "{engine}: they are purged with their rows");
    });
}

#[test]
fn a_break_is_told_to_the_holder_at_once() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        let held = a.hold("broken", HoldOptions::new(LONG)).unwrap();
        let (told, tells) = mpsc::channel();
        held.on_lost(move |lost| told.send(lost.reason.clone()).unwrap());
        let _ = b.break_lease("broken").unwrap();
        // A third of the ttl would pass before the next renewal.
        let reason = tells.recv_timeout(SOON).unwrap_or_else(|_| panic!("{engine}: not told"));
        assert_eq!(reason, Loss::Broken, "{engine}");
        assert_eq!(held.check().unwrap_err().reason, Loss::Broken, "{engine}");
    });
}

/// Waits until every hold was renewed by a request that was sent from now on, and none is lost.
fn wait_for_renewals(held: &[Held], ttl: Duration) {
    let from = System.wall_ms() + ttl.as_millis() as i64;
    let start = Instant::now();
    while held.iter().any(|held| held.lease().expires_at_ms < from) {
        held.iter().for_each(|held| held.check().unwrap());
        assert!(start.elapsed() < LONG);
        thread::sleep(Duration::from_millis(50));
    }
}

fn hold_many(cluster: &Cluster, ttl: Duration) -> Vec<Held> {
    let many = if std::env::var_os("LITELEASE_STRESS_SECONDS").is_some() { 1_000 } else { 50 };
    let hold = |number: i32| cluster.hold(&number.to_string(), HoldOptions::new(ttl)).unwrap();
    (0..many).map(hold).collect()
}

#[test]
fn a_hold_that_ends_because_its_password_is_refused_says_so() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    server.add_user("app", "one");
    let cluster = Cluster::open(&server.url("app").replace("postgres@", "app:one@")).unwrap();
    cluster.bootstrap().unwrap();
    let held = cluster.hold("x", HoldOptions::new(Duration::from_secs(3))).unwrap();
    server.sql("ALTER ROLE app PASSWORD 'two'");
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'");
    let lost = held.lost().wait_timeout(LONG).expect("it is lost");
    assert!(lost.to_string().contains("check the user and the password"), "{lost}");
}

#[test]
fn holds_survive_the_death_of_a_leader_and_end_by_their_own_clock_when_nobody_answers() {
    if !etcd::is_installed() {
        return;
    }
    let mut etcd = Etcd::start(3);
    let cluster = Cluster::open(&etcd.url("")).unwrap();
    let ttl = Duration::from_secs(15);
    let held = hold_many(&cluster, ttl);
    let until = crate::end_of_stress();
    loop {
        let leader = etcd.wait_for_leader();
        etcd.kill(leader);
        wait_for_renewals(&held, ttl);
        etcd.spawn(leader);
        if Instant::now() >= until {
            break;
        }
        etcd.wait_for_leader();
        wait_for_renewals(&held, ttl);
    }
    // The watch has followed to another member.
    let (told, tells) = mpsc::channel();
    held[7].on_lost(move |lost| told.send(lost.reason.clone()).unwrap());
    let _ = Cluster::open(&etcd.url("")).unwrap().break_lease("7").unwrap();
    assert_eq!(tells.recv_timeout(LONG), Ok(Loss::Broken));
    drop(held);

    let short = cluster.hold("short", HoldOptions::new(Duration::from_millis(1_500))).unwrap();
    let (told, tells) = mpsc::channel();
    short.on_lost(move |lost| told.send(lost.reason.clone()).unwrap());
    (0..3).for_each(|at| etcd.signal(at, libc::SIGSTOP));
    let reason = tells.recv_timeout(LONG).unwrap();
    assert!(matches!(reason, Loss::CannotRenew { .. }), "{reason:?}");
    assert_eq!(short.lost().trusted_for(), Duration::ZERO);
    (0..3).for_each(|at| etcd.signal(at, libc::SIGCONT));
    let other = Cluster::open(&etcd.url("")).unwrap();
    let next = other.claim_wait("short", "b", LONG, LONG).unwrap();
    assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    // It stays lost, and what it drops is not its own any more.
    assert_eq!(short.check().unwrap_err().reason, reason);
    drop(short);
    assert_eq!(other.owner("short").unwrap().as_deref(), Some("b"));
}

#[test]
fn holds_survive_a_crash_of_the_server_and_a_lock_is_in_the_way_of_one_row_only() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    let cluster = Cluster::open(&server.url("litelease")).unwrap();
    cluster.bootstrap().unwrap();
    let ttl = Duration::from_secs(15);
    let held = hold_many(&cluster, ttl);
    server.crash();
    server.spawn();
    wait_for_renewals(&held, ttl);

    thread::scope(|scope| {
        // An open transaction of another program.
        let lock = "DO $$ BEGIN PERFORM FROM litelease.resources WHERE name = '7' FOR UPDATE;
            PERFORM pg_sleep(2); END $$";
        scope.spawn(|| server.sql(lock));
        let leases = [held[7].lease(), held[8].lease()];
        let start = Instant::now();
        loop {
            let answers = cluster.renew_all(&leases, ttl);
            assert!(matches!(answers[1], Ok(RenewResult::Renewed(_))), "{answers:?}");
            if let Err(error) = &answers[0] {
                assert_eq!(error.kind(), "Locked", "{error}");
                break;
            }
            assert!(start.elapsed() < LONG);
        }
    });
    held[7].check().unwrap();
    drop(held);

    let short = cluster.hold("short", HoldOptions::new(Duration::from_millis(1_500))).unwrap();
    let (told, tells) = mpsc::channel();
    short.on_lost(move |lost| told.send(lost.reason.clone()).unwrap());
    server.freeze(true);
    let reason = tells.recv_timeout(LONG).unwrap();
    assert!(matches!(reason, Loss::CannotRenew { .. }), "{reason:?}");
    server.freeze(false);
}

#[test]
fn a_watch_ends_its_wait_when_others_change_something() {
    on_every_engine(|engine, open| {
        let (a, b) = (open(), open());
        let lease = b.claim("watched", "b", LONG).unwrap().acquired().unwrap();
        let watch = a.watch();
        let start = Instant::now();
        let mut is_first = true;
        loop {
            let seen = watch.changes();
            if a.owner("watched").unwrap().is_none() {
                break;
            }
            if is_first {
                let _ = b.release(&lease).unwrap();
                is_first = false;
            }
            watch.wait(seen, i64::MAX, LONG);
            assert!(start.elapsed() < SOON, "{engine}");
        }
    });
}

/// The keeper's thread and the engine's end with the last handle.
#[test]
fn a_handle_that_is_dropped_leaves_no_thread_behind() {
    let cluster = Cluster::on(MemoryEngine::new());
    let engine = Arc::downgrade(cluster.engine());
    drop(cluster.hold("x", HoldOptions::new(LONG)).unwrap());
    drop(cluster);
    let start = Instant::now();
    // The keeper wakes up every second while it has holds.
    while engine.strong_count() > 0 {
        assert!(start.elapsed() < SOON);
        thread::sleep(Duration::from_millis(20));
    }
}
