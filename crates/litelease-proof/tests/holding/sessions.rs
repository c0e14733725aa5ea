//! Sessions: one heartbeat for many names, in real files and real processes, stopped and killed.

use std::io::{BufRead, BufReader, Write};
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use litelease::{Guard, Held, HoldError, HoldOptions, Litelease, Loss, Session, is_stale};
use litelease_proof::command::kill;
use litelease_proof::rig::{LONG, TestFolder, eventually, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const TTL: Duration = Duration::from_secs(30);
/// Short enough to see the end of, long enough for a busy machine to renew in time.
const SHORT: Duration = Duration::from_secs(2);

fn names() -> [&'static str; 3] {
    ["fiction", "poetry", "essays"]
}

fn claim_all(session: &Session) -> Vec<Held> {
    names().iter().map(|name| session.claim(name).unwrap()).collect()
}

/// The expiries of a session and its names, in one snapshot. None for what is free.
fn expiries(db: &Litelease) -> Vec<Option<i64>> {
    let all = db.list().unwrap();
    all.iter().map(|row| row.tenure.as_ref().map(|(_, expiry)| *expiry)).collect()
}

fn is_one_instant(expiries: &[Option<i64>]) -> bool {
    expiries.iter().all(|expiry| *expiry == expiries[0])
}

/// Why each name is lost.
fn losses(held: &[Held]) -> Vec<Loss> {
    held.iter().map(|held| held.check().unwrap_err().reason).collect()
}

#[test]
fn an_identity_is_busy_until_its_session_is_closed_and_closing_frees_everything_at_once() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(LONG);
        let session = Session::open(&db, "worker", TTL).unwrap();
        let held = claim_all(&session);
        match Session::open(&place.open(LONG), "worker", TTL) {
            Err(HoldError::Busy(current)) => assert_eq!(current.owner, session.owner()),
            other => panic!("{other:?}"),
        }
        assert!(matches!(session.claim("poetry"), Err(HoldError::Busy(_))), "claimed already");
        let watching = place.open(LONG);
        let seen = std::thread::spawn(move || {
            let mut seen = vec![expiries(&watching)];
            while seen.last().unwrap()[0].is_some() {
                seen.push(expiries(&watching));
            }
            seen
        });
        session.close().unwrap();
        for seen in seen.join().unwrap() {
            assert!(is_one_instant(&seen), "{journal}: all or nothing, and not {seen:?}");
        }
        for loss in losses(&held) {
            assert!(matches!(loss, Loss::SessionOver { .. }), "{loss}");
        }
        let again = Session::open(&db, "worker", TTL).unwrap();
        assert!(names().iter().all(|name| again.claim(name).is_ok()));
    }
}

#[test]
fn every_claim_and_every_heartbeat_sets_the_whole_session_to_one_instant_in_one_commit() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let session = Session::open(&db, "worker", SHORT).unwrap();
    let mut held = Vec::new();
    for name in names() {
        sleep(Duration::from_millis(20));
        held.push(session.claim(name).unwrap());
        assert!(is_one_instant(&expiries(&db)), "{:?}", expiries(&db));
    }
    let mut instants = vec![];
    eventually("three heartbeats", || {
        let seen = expiries(&db);
        assert!(is_one_instant(&seen), "{seen:?}");
        instants.push(seen[0]);
        instants.dedup();
        instants.len() > 3
    });
    session.check().unwrap();
    held.iter().for_each(|held| held.check().unwrap());

    // A name that is given up is no longer renewed, and the others are.
    held.pop().unwrap().release().unwrap();
    let before = held[0].lease().expires_at_ms;
    eventually("a heartbeat", || held[0].lease().expires_at_ms > before);
    assert_eq!(db.owner("essays").unwrap(), None);
    held.iter().for_each(|held| held.check().unwrap());
}

#[test]
fn a_renewal_inside_a_transaction_renews_the_whole_session() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let session = Session::open(&db, "worker", SHORT).unwrap();
    let held = claim_all(&session);
    let tx = db.transaction().unwrap();
    // Longer than the ttl, and the keeper cannot renew meanwhile.
    for _ in 0..6 {
        sleep(SHORT / 4);
        held[0].renew_in(&tx).unwrap();
    }
    tx.commit().unwrap();
    assert!(is_one_instant(&expiries(&db)));
    session.check().unwrap();
    held.iter().for_each(|held| held.check().unwrap());
}

#[test]
fn a_session_that_is_replaced_loses_every_name_and_its_guarded_writes_are_refused() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE orders (id)").unwrap();
    db.guard("orders", "fiction", &Guard::by_connection()).unwrap();
    let session = Session::open(&db, "worker", TTL).unwrap();
    let held = claim_all(&session);
    let free = db.hold("mine", HoldOptions::new(TTL)).unwrap();
    assert!(held[0].present_on(&db).unwrap());
    db.conn().execute("INSERT INTO orders VALUES (1)", []).unwrap();

    let newer = Session::replace(&place.open(LONG), "worker", TTL).unwrap();
    let refused = db.conn().execute("INSERT INTO orders VALUES (2)", []).unwrap_err();
    assert!(is_stale(&refused), "{refused}");
    for name in names() {
        assert_eq!(db.owner(name).unwrap(), None, "{name} is free");
    }
    eventually("it is told", || session.check().is_err());
    eventually("all are", || held.iter().all(|held| held.check().is_err()));
    assert_eq!(losses(&held), [Loss::Broken, Loss::Broken, Loss::Broken]);
    let lost = session.check().unwrap_err().reason;
    assert!(matches!(&lost, Loss::Superseded { owner: Some(owner), .. } if owner == newer.owner()));
    free.check().unwrap();
    assert!(matches!(session.claim("other"), Err(HoldError::Lost(_))));
    assert_eq!(db.token("other").unwrap(), None, "nothing was written");
    // The old session goes without a trace.
    drop((held, session));
    newer.check().unwrap();
    assert_eq!(db.owner("worker").unwrap().as_deref(), Some(newer.owner()));
}

#[test]
fn a_session_whose_identity_is_broken_writes_nothing_any_more() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let session = Session::open(&db, "worker", TTL).unwrap();
    let held = claim_all(&session);
    // One of its names has gone before, which is no harm to the others.
    let _ = db.break_lease("essays").unwrap();
    eventually("essays are lost", || held[2].check().is_err());
    assert_eq!(losses(&held[2..]), [Loss::Broken]);
    session.check().unwrap();
    held[0].check().unwrap();
    let before = db.inspect("poetry").unwrap().unwrap();
    let _ = db.break_lease("worker").unwrap();
    eventually("all is lost", || held.iter().all(|held| held.check().is_err()));
    assert!(session.claim("other").is_err());
    assert_eq!(session.check().unwrap_err().reason, Loss::Broken);
    for loss in losses(&held[..2]) {
        assert_eq!(loss.to_string(), "its session is over: broken by an operator");
    }
    assert_eq!(db.inspect("poetry").unwrap(), Some(before), "not renewed");
    assert_eq!(db.token("other").unwrap(), None);
}

#[test]
fn a_session_does_not_lend_its_own_identity() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let session = Session::open(&db, "worker", TTL).unwrap();
    // The handle would have shared the grant of the session, and dropping it would have closed the
    // session.
    assert!(matches!(session.claim("worker"), Err(HoldError::Busy(_))));
    session.check().unwrap();
    assert_eq!(db.owner("worker").unwrap().as_deref(), Some(session.owner()));
}

#[test]
fn a_renewal_inside_a_transaction_prolongs_no_name_if_the_identity_is_refused() {
    let place = TestFolder::new("WAL");
    let mut db = place.open(LONG);
    let session = Session::open(&db, "worker", TTL).unwrap();
    let held = claim_all(&session);
    let before = expiries(&db);
    assert!(db.limit(("worker", session.token()), None, Some(1)).unwrap().is_done());
    sleep(Duration::from_millis(5));
    let tx = db.transaction().unwrap();
    assert!(held[0].renew_in(&tx).is_err(), "the time of its session is up");
    // The holder may have stored other things, and commits.
    tx.commit().unwrap();
    assert_eq!(expiries(&db), before);
}

#[test]
fn a_name_that_was_lost_and_claimed_again_is_not_released_by_the_old_handle() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let session = Session::open(&db, "worker", SHORT).unwrap();
    let old = session.claim("fiction").unwrap();
    let limit = |time| db.limit(("fiction", old.token()), time, None).unwrap();
    assert!(limit(Some(Duration::from_millis(1))).is_done());
    assert_eq!(old.lost().wait(), Some(Loss::NoProgress));
    // It is no longer trusted, and its row is live for a moment.
    let _ = limit(None);
    let new = session.claim("fiction").unwrap();
    drop(old);
    new.check().unwrap();
    assert_eq!(db.owner("fiction").unwrap().as_deref(), Some(session.owner()));
}

#[test]
fn a_damaged_row_of_one_name_is_not_the_others_fault() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let plain = db.hold("plain", HoldOptions::new(SHORT)).unwrap();
    let damaged = db.hold("damaged", HoldOptions::new(SHORT)).unwrap();
    assert!(db.limit(("damaged", damaged.token()), Some(TTL), None).unwrap().is_done());
    let damage = "UPDATE litelease_limits SET progress_at_ms = 'yesterday'";
    db.conn().execute_batch(damage).unwrap();
    assert!(matches!(damaged.lost().wait(), Some(Loss::CannotRenew { .. })));
    let before = plain.lease().expires_at_ms;
    eventually("the other one is renewed", || plain.lease().expires_at_ms > before);
    plain.check().unwrap();
}

#[test]
fn odd_sessions_are_refused() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let short = Session::open(&db, "worker", Duration::from_millis(100));
    assert!(matches!(short, Err(HoldError::TtlTooShort(_))));
    let memory = litelease_proof::rig::memory();
    assert!(matches!(Session::open(&memory, "worker", TTL), Err(HoldError::InMemory)));
    let session = Session::open(&db, &"x".repeat(1_000_000), TTL).unwrap();
    let _held = session.claim("a\0b").unwrap();
    drop(session);
    db.conn().execute_batch("DROP TABLE litelease_sessions").unwrap();
    db.conn().execute_batch("CREATE TABLE litelease_sessions (x)").unwrap();
    let session = Session::open(&db, "worker", TTL).unwrap();
    let error = session.claim("books").unwrap_err().to_string();
    assert!(error.contains("litelease_sessions"), "{error}");
    assert_eq!(db.owner("books").unwrap(), None);
}

/// A process with a session of these three names.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(place: &TestFolder, ttl: Duration) -> Self {
        let ttl_ms = ttl.as_millis().to_string();
        let words = ["session", "worker", &ttl_ms, "fiction", "poetry", "essays"];
        let mut child = worker(WORKER, &words, &place.file);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Process { child, lines };
        assert_eq!(process.line(), "open");
        process
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    /// Lets it write, and returns what it says.
    fn write(&mut self) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "write").unwrap();
        self.line()
    }

    fn signal(&self, signal: i32) {
        kill(self.child.id() as i32, signal);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn guarded() -> (TestFolder, Litelease) {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    for name in names() {
        db.conn().execute_batch(&format!("CREATE TABLE of_{name} (pid)")).unwrap();
        db.guard(&format!("of_{name}"), name, &Guard::by_connection()).unwrap();
    }
    (place, db)
}

#[test]
fn a_stopped_process_finds_every_name_lost_and_every_guarded_write_refused() {
    for replaces in [false, true] {
        let (place, db) = guarded();
        let ttl = if replaces { TTL } else { SHORT };
        let mut old = Process::start(&place, ttl);
        assert_eq!(old.write(), "trusted 3 written 3");
        old.signal(libc::SIGSTOP);
        let session = match replaces {
            true => Session::replace(&db, "worker", TTL).unwrap(),
            false => eventually("it expires", || Session::open(&db, "worker", TTL).ok()),
        };
        let held = claim_all(&session);
        let before = expiries(&db);
        old.signal(libc::SIGCONT);
        eventually("it notices", || old.write() == "trusted 0 written 0");
        assert_eq!(expiries(&db), before, "it has renewed nothing");
        held.iter().for_each(|held| held.check().unwrap());
    }
}

#[test]
fn a_replaced_process_is_refused_even_where_its_names_had_expired_and_nobody_claimed_them() {
    let (place, db) = guarded();
    let mut old = Process::start(&place, SHORT);
    old.signal(libc::SIGSTOP);
    eventually("it expires", || db.owner("poetry").unwrap().is_none());
    let _session = Session::replace(&db, "worker", TTL).unwrap();
    old.signal(libc::SIGCONT);
    assert_eq!(old.write(), "trusted 0 written 0");
}

#[test]
fn a_killed_process_is_replaced_at_once_with_all_its_names() {
    let (place, db) = guarded();
    let mut old = Process::start(&place, LONG);
    old.signal(libc::SIGKILL);
    old.child.wait().unwrap();
    let session = Session::open(&db, "worker", TTL).unwrap();
    for name in names() {
        assert_eq!(db.token(name).unwrap(), Some(2), "{name} was broken");
    }
    claim_all(&session);

    // Without a new session, others take the names one by one.
    drop(session);
    let mut third = Process::start(&place, LONG);
    third.signal(libc::SIGKILL);
    third.child.wait().unwrap();
    let other = Session::open(&db, "other", TTL).unwrap();
    assert_eq!(other.claim("poetry").unwrap().token(), 5);
}
