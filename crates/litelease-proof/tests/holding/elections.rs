//! Elections: one leader at a time, terms that grow, and observers that see them in order.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::{Election, Guard, HoldError, HoldOptions, Litelease, Loss, Observed};
use litelease_proof::command::kill;
use litelease_proof::rig::{Dice, LONG, TestFolder, acquired, eventually, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const TTL: Duration = Duration::from_secs(30);

fn text(value: &str) -> Option<Value> {
    Some(Value::Text(value.into()))
}

/// Returns the term and the value of an answer; none if there is no leader.
fn state_of(observed: Observed) -> Option<(i64, Option<Value>)> {
    match observed {
        Observed::Leads(leader) => Some((leader.term, leader.value)),
        Observed::Vacant => None,
        Observed::Unchanged => panic!("nothing has changed"),
    }
}

fn terms(db: &Litelease) -> Vec<i64> {
    let mut statement = db.conn().prepare("SELECT term FROM decisions ORDER BY rowid").unwrap();
    let terms = statement.query_map([], |row| row.get(0)).unwrap();
    terms.collect::<Result<_, _>>().unwrap()
}

#[test]
fn a_leader_is_known_with_its_value_from_the_first_moment_to_the_last() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(LONG);
        // Names around it are no leaders of it.
        for name in ["leader/a", "leade"] {
            acquired(db.claim(name, "x", TTL));
        }
        let election = Election::new(&db, "leader").unwrap();
        assert_eq!(election.leader().unwrap(), None);
        let leader = election.campaign("a", HoldOptions::new(TTL)).unwrap();
        let known = election.leader().unwrap().unwrap();
        assert_eq!((known.term, known.value), (1, text("a")));
        assert_eq!(known.owner, leader.held().owner());
        leader.proclaim(7).unwrap();
        assert_eq!(election.leader().unwrap().unwrap().value, Some(Value::Integer(7)));
        let rival = Election::new(&place.open(LONG), "leader").unwrap();
        assert!(matches!(rival.campaign("b", HoldOptions::new(TTL)), Err(HoldError::Busy(_))));
        leader.resign().unwrap();
        assert_eq!(rival.leader().unwrap(), None);
        let next = rival.campaign("b", HoldOptions::new(TTL)).unwrap();
        assert_eq!(next.term(), 2);
    }
    let memory = litelease_proof::rig::memory();
    assert!(matches!(Election::new(&memory, "leader"), Err(HoldError::InMemory)));
}

#[test]
fn an_observer_sees_the_present_state_first_and_then_the_newest_change() {
    let place = TestFolder::new("WAL");
    let election = Election::new(&place.open(LONG), "leader").unwrap();
    let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(6))).unwrap();
    let mut observer = election.observe().unwrap();
    assert_eq!(state_of(observer.next(Duration::ZERO).unwrap()), Some((1, text("a"))));
    assert_eq!(observer.next(Duration::from_millis(2500)).unwrap(), Observed::Unchanged, "renewed");
    // It skips what is no longer so.
    leader.proclaim("b").unwrap();
    leader.proclaim("c").unwrap();
    assert_eq!(state_of(observer.next(LONG).unwrap()), Some((1, text("c"))));
    leader.resign().unwrap();
    assert_eq!(state_of(observer.next(LONG).unwrap()), None);

    // It is woken, and notices an expiry although no process writes.
    let waiting = thread::spawn(move || [0, 1].map(|_| state_of(observer.next(LONG).unwrap())));
    let db = place.open(LONG);
    let lease = db.claim("leader", "x", Duration::from_secs(3)).unwrap().acquired().unwrap();
    assert_eq!(waiting.join().unwrap(), [Some((lease.token, None)), None]);
}

#[test]
fn a_leader_that_was_succeeded_reads_and_proclaims_nothing() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE config (rate); INSERT INTO config VALUES (5)").unwrap();
    let election = Election::new(&db, "leader").unwrap();
    let leader = election.campaign("a", HoldOptions::new(TTL)).unwrap();
    let rate = || {
        leader.read(|tx| tx.query_row("SELECT rate FROM config", [], |row| row.get::<_, i64>(0)))
    };
    assert_eq!(rate().unwrap(), 5);
    // What a read writes is not kept, and the next one sees what is new.
    leader.read(|tx| tx.execute("UPDATE config SET rate = 6", [])).unwrap();
    assert_eq!(rate().unwrap(), 5);
    db.conn().execute("UPDATE config SET rate = 7", []).unwrap();
    assert_eq!(rate().unwrap(), 7);

    // One snapshot: what a later leader writes meanwhile is not seen.
    let seen = leader.read(|tx| {
        let taken = db.take_over("leader", "b", TTL).unwrap();
        db.conn().execute("UPDATE config SET rate = ?1", [100 + taken.lease.token])?;
        tx.query_row("SELECT rate FROM config", [], |row| row.get::<_, i64>(0))
    });
    assert_eq!(seen.unwrap(), 7);
    match rate() {
        Err(HoldError::Lost(lost)) => {
            assert!(matches!(lost.reason, Loss::Superseded { by: 2, .. }))
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(leader.proclaim("still me"), Err(HoldError::Lost(_))));
    assert_eq!(election.leader().unwrap().unwrap().value, None);
    eventually("it is told", || leader.check().is_err());
}

struct Candidate(Child);

impl Candidate {
    fn start(place: &TestFolder) -> Self {
        Candidate(worker(WORKER, &["lead", "leader", "500"], &place.file))
    }

    fn signal(&self, signal: i32) {
        kill(self.0.id() as i32, signal);
    }

    /// Ends it, and returns what it has told.
    fn end(mut self) -> Vec<String> {
        let _ = self.0.kill();
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let lines = lines.map_while(Result::ok).collect();
        let _ = self.0.wait();
        lines
    }
}

/// Candidates write as fast as they can as long as the file lets them, and never ask whether they
/// are trusted.
#[test]
fn leaders_that_are_stopped_and_killed_never_write_or_read_after_their_successors() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE decisions (term INTEGER)").unwrap();
    db.guard("decisions", "leader", &Guard::by_connection()).unwrap();
    let mut dice = Dice::new("elections");
    let mut observer = Election::new(&db, "leader").unwrap().observe().unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let observing = thread::spawn(move || {
        let mut seen = Vec::new();
        while !stopped.load(std::sync::atomic::Ordering::SeqCst) {
            match observer.next(Duration::from_millis(50)).unwrap() {
                Observed::Leads(leader) => seen.push(leader.term),
                Observed::Vacant | Observed::Unchanged => {}
            }
        }
        seen
    });
    let mut candidates: Vec<_> = (0..3).map(|_| Candidate::start(&place)).collect();
    let mut lines = Vec::new();
    let pid_of_leader = |candidates: &[Candidate]| {
        let owner = db.owner("leader").unwrap()?;
        let pid = litelease::Identity::parse(&owner)?.pid;
        candidates.iter().position(|candidate| candidate.0.id() == pid)
    };
    for round in 0..6 {
        let (place_of, term) = eventually("a leader has written", || {
            let (term, place_of) = (db.token("leader").unwrap(), pid_of_leader(&candidates)?);
            (terms(&db).last().copied() == term).then_some((place_of, term))
        });
        sleep(Duration::from_millis(50 + dice.below(100)));
        if round % 3 == 2 {
            lines.push(candidates.remove(place_of).end());
            candidates.push(Candidate::start(&place));
        } else {
            candidates[place_of].signal(libc::SIGSTOP);
        }
        let mut stopped = Instant::now();
        eventually("a later one leads", || {
            // If it was stopped with the lock of the file, no process can: stop it once more.
            if round % 3 != 2 && stopped.elapsed() > Duration::from_millis(1500) {
                candidates[place_of].signal(libc::SIGCONT);
                sleep(Duration::from_millis(5 + dice.below(10)));
                candidates[place_of].signal(libc::SIGSTOP);
                stopped = Instant::now();
            }
            db.token("leader").unwrap() > term && db.owner("leader").unwrap().is_some()
        });
        candidates.iter().for_each(|candidate| candidate.signal(libc::SIGCONT));
    }
    sleep(Duration::from_millis(300));
    lines.extend(candidates.into_iter().map(Candidate::end));
    stop.store(true, std::sync::atomic::Ordering::SeqCst);

    let (terms, seen) = (terms(&db), observing.join().unwrap());
    assert!(terms.is_sorted(), "no write of an earlier term after one of a later: {terms:?}");
    assert!(seen.is_sorted_by(|a, b| a < b), "observers see each term once, in order: {seen:?}");
    let mut distinct = terms.clone();
    distinct.dedup();
    assert!(distinct.len() >= 5, "{distinct:?}");
    let lines: Vec<String> = lines.concat();
    assert!(lines.iter().any(|line| line == "refused"), "a stopped one tried: {lines:?}");
    assert!(!lines.iter().any(|line| line.contains("although")), "{lines:?}");
}
