//! What users tell: whole stories on one real file, through the public API only.
//!
//! `LITELEASE_STRESS_SECONDS=120 cargo test -p litelease-proof --test store journeys::` tells them
//! again and again, several at a time on one file.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::{ClaimResult, Error, Litelease, Reason, ReleaseResult, RenewResult};
use litelease_proof::rig::{LONG, acquired, report, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// A story: a file, and a prefix for its names so that many can be told at once.
type Journey = fn(&Path, &str);

const JOURNEYS: [(&str, Journey); 6] = [
    ("first claim", first_claim),
    ("a second caller is busy", second_caller),
    ("release and reclaim", release_and_reclaim),
    ("expiry and takeover", expiry_and_takeover),
    ("work and claim together", work_and_claim_together),
    ("a restart finds everything", restart),
];

fn open(file: &Path) -> Litelease {
    let db = Litelease::open(file).unwrap();
    db.conn().busy_timeout(Duration::from_secs(60)).unwrap();
    db.bootstrap().unwrap();
    db
}

fn first_claim(file: &Path, prefix: &str) {
    let name = format!("{prefix} scheduler");
    let db = open(file);
    assert_eq!(db.inspect(&name).unwrap(), None);
    let lease = acquired(db.claim(&name, "worker-a", LONG));
    assert_eq!(
        (lease.name.as_str(), lease.owner.as_str(), lease.token),
        (name.as_str(), "worker-a", 1)
    );
    assert_eq!(db.inspect(&name).unwrap(), Some(lease));
}

fn second_caller(file: &Path, prefix: &str) {
    let name = format!("{prefix} scheduler");
    let (first, second) = (open(file), open(file));
    let lease = acquired(first.claim(&name, "worker-a", LONG));
    match second.claim(&name, "worker-b", LONG).unwrap() {
        ClaimResult::Busy(current) => assert_eq!(current, lease),
        answer => panic!("{answer:?}"),
    }
}

fn release_and_reclaim(file: &Path, prefix: &str) {
    let name = format!("{prefix} scheduler");
    let (first, second) = (open(file), open(file));
    let lease = acquired(first.claim(&name, "worker-a", LONG));
    let released = first.release(&lease).unwrap();
    assert_eq!(released, ReleaseResult::Released { name: name.clone(), token: 1 });
    assert_eq!(acquired(second.claim(&name, "worker-b", LONG)).token, 2);
}

fn expiry_and_takeover(file: &Path, prefix: &str) {
    let name = format!("{prefix} scheduler");
    let (first, second) = (open(file), open(file));
    // The file may be busy for longer than a short ttl: then the grant is over before it arrives.
    let old = loop {
        match first.claim(&name, "worker-a", Duration::from_millis(50)) {
            Err(Error::ExpiredOnArrival(_)) => {}
            claimed => break acquired(claimed),
        }
    };
    thread::sleep(Duration::from_millis(60));
    let new = acquired(second.claim(&name, "worker-b", LONG));
    assert!(new.token > old.token);
    match first.renew(&old, LONG).unwrap() {
        RenewResult::Rejected { reason: Reason::HeldBy, current } => assert_eq!(current, Some(new)),
        answer => panic!("{answer:?}"),
    }
}

fn work_and_claim_together(file: &Path, prefix: &str) {
    let name = format!("{prefix} import");
    let mut db = open(file);
    db.conn()
        .execute_batch("CREATE TABLE IF NOT EXISTS imported (batch TEXT, token INTEGER)")
        .unwrap();
    let batches = |db: &Litelease| -> i64 {
        let count = "SELECT count(*) FROM imported WHERE batch = ?1";
        db.conn().query_row(count, [&name], |row| row.get(0)).unwrap()
    };

    let tx = db.transaction().unwrap();
    let lease = acquired(tx.claim(&name, "worker-a", LONG));
    tx.conn().execute("INSERT INTO imported VALUES (?1, ?2)", (&name, lease.token)).unwrap();
    tx.rollback().unwrap();
    assert_eq!((batches(&db), db.token(&name).unwrap()), (0, None), "rolled back together");

    let tx = db.transaction().unwrap();
    let lease = acquired(tx.claim(&name, "worker-a", LONG));
    tx.conn().execute("INSERT INTO imported VALUES (?1, ?2)", (&name, lease.token)).unwrap();
    tx.commit().unwrap();
    assert_eq!((batches(&db), db.token(&name).unwrap()), (1, Some(1)), "committed together");

    let mut tx = db.transaction().unwrap();
    let released = tx.release(&lease).unwrap();
    assert!(matches!(released, ReleaseResult::Released { .. }));
    let mut outer = tx.savepoint().unwrap();
    acquired(outer.claim(&name, "worker-b", LONG));
    let inner = outer.savepoint().unwrap();
    inner.conn().execute("DELETE FROM imported WHERE batch = ?1", [&name]).unwrap();
    drop(inner);
    outer.rollback().unwrap();
    tx.commit().unwrap();
    assert_eq!((batches(&db), db.inspect(&name).unwrap()), (1, None), "the release alone stayed");
}

fn restart(file: &Path, prefix: &str) {
    let name = format!("{prefix} leader");
    let run = |words: &[&str]| {
        let mut child = worker(WORKER, words, file);
        let mut told = String::new();
        child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(child.wait().unwrap().success());
        told.trim().to_owned()
    };
    assert!(run(&["claim", &name, "before", "3600000"]).starts_with("acquired 1 "));
    assert_eq!(run(&["inspect", &name]), "held before 1");
    assert!(run(&["claim", &name, "after", "3600000"]).starts_with("busy before 1 "));
    let db = open(file);
    let lease = db.inspect(&name).unwrap().unwrap();
    assert!(matches!(db.release(&lease).unwrap(), ReleaseResult::Released { .. }));
    assert!(run(&["claim", &name, "after", "3600000"]).starts_with("acquired 2 "));
}

#[test]
fn every_journey_ends_well_on_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.sqlite3");
    for (story, journey) in JOURNEYS {
        journey(&file, story);
    }
}

#[test]
fn a_drifted_schema_fails_loudly_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.sqlite3");
    let db = open(&file);
    acquired(db.claim("scheduler", "worker-a", LONG));
    db.conn().execute_batch("ALTER TABLE litelease_resources ADD COLUMN priority INTEGER").unwrap();
    drop(db);

    let db = Litelease::open(&file).unwrap();
    for error in [db.bootstrap().unwrap_err(), db.claim("scheduler", "worker-b", LONG).unwrap_err()]
    {
        let Error::SchemaMismatch { reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("NOT NULL, priority INTEGER, CHECK"), "{reason}");
    }
    let owner: String =
        db.conn().query_row("SELECT owner FROM litelease_resources", [], |row| row.get(0)).unwrap();
    assert_eq!(owner, "worker-a");
}

/// Four threads tell all stories on one file until the time is up. One round unless more is asked
/// for.
#[test]
fn the_journeys_hold_under_stress() {
    let asked = std::env::var("LITELEASE_STRESS_SECONDS").ok();
    let seconds: u64 = asked.map_or(0, |seconds| seconds.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(seconds);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.sqlite3");
    let told = AtomicUsize::new(0);
    let tell_stories = |thread: usize| {
        let mut last_word = Instant::now();
        for round in 0.. {
            for (story, journey) in JOURNEYS {
                journey(&file, &format!("{thread} {round} {story}"));
                told.fetch_add(1, Ordering::Relaxed);
            }
            if thread == 0 && last_word.elapsed() > Duration::from_secs(10) {
                last_word = Instant::now();
                let left = end.saturating_duration_since(last_word).as_secs();
                report(&format!(
                    "stress: {} journeys, {left} s left",
                    told.load(Ordering::Relaxed)
                ));
            }
            if Instant::now() >= end {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn({
                let tell_stories = &tell_stories;
                move || tell_stories(thread)
            });
        }
    });
    report(&format!("stress: {} journeys told, all ended well", told.load(Ordering::Relaxed)));
    let check: String =
        open(&file).conn().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}
