//! Real processes on one file: racing, killed, in each other's way.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::Child;
use std::thread;
use std::time::Duration;

use litelease::{ClaimResult, Error};
use litelease_proof::rig::{Dice, LONG, TestFolder, acquired, report, worker};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// The tokens that a worker told before it ended. A last line that was cut off was never told.
fn tokens_of(child: &mut Child) -> Vec<i64> {
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    child.wait().unwrap();
    told.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')?.parse().ok()).collect()
}

/// All tokens, each of which must have been granted once.
fn each_once(tokens: Vec<i64>) -> BTreeSet<i64> {
    let granted = tokens.len();
    let distinct: BTreeSet<i64> = tokens.into_iter().collect();
    assert_eq!(distinct.len(), granted, "a token was granted twice");
    distinct
}

#[test]
fn eight_processes_on_one_file_get_every_token_once() {
    const ROUNDS: usize = 100;
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(Duration::ZERO);
        // Two names, so that there is contention for the lease and for the file.
        let start = |number: usize| {
            let (name, owner) = (["even", "odd"][number % 2], number.to_string());
            worker(WORKER, &["cycle", name, &owner, &ROUNDS.to_string(), "60000"], &place.file)
        };
        let mut workers: Vec<Child> = (0..8).map(start).collect();
        let (mut even, mut odd) = (Vec::new(), Vec::new());
        for (number, child) in workers.iter_mut().enumerate() {
            let tokens = tokens_of(child);
            assert_eq!(tokens.len(), ROUNDS, "worker {number} in {journal}");
            assert!(tokens.is_sorted(), "each worker sees the tokens grow");
            [&mut even, &mut odd][number % 2].extend(tokens);
        }
        let all: BTreeSet<i64> = (1..=4 * ROUNDS as i64).collect();
        assert_eq!(each_once(even), all, "{journal}: tokens are exact");
        assert_eq!(each_once(odd), all, "{journal}: tokens are exact");
        assert_eq!(db.token("even").unwrap(), Some(4 * ROUNDS as i64));
    }
}

#[test]
fn processes_killed_at_random_moments_lose_nothing_that_was_told() {
    let mut dice = Dice::new("kill -9 at random moments");
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(Duration::from_secs(10));
        let mut told = Vec::new();
        let mut rounds = 0;
        // A busy machine may need more of them before enough was granted to mean anything.
        while rounds < 25 || (told.len() < 60 && rounds < 500) {
            rounds += 1;
            let start = |owner: &str| {
                // A killed holder blocks the others for its ttl at most.
                worker(WORKER, &["cycle", "x", owner, "1000000", "20"], &place.file)
            };
            let mut workers = [start("a"), start("b")];
            thread::sleep(Duration::from_millis(10 + dice.below(40)));
            for child in &mut workers {
                child.kill().unwrap();
            }
            for child in &mut workers {
                told.extend(tokens_of(child));
            }
            let newest = db.token("x").unwrap().unwrap_or(0);
            let largest = told.iter().max().copied().unwrap_or(0);
            assert!(newest >= largest, "round {rounds}: told {largest}, stored {newest}");
        }
        let distinct = each_once(told);
        report(&format!(
            "{journal}: {} processes killed, {} tokens told, none twice",
            2 * rounds,
            distinct.len()
        ));
        assert!(distinct.len() > 50, "too few grants to mean anything: {}", distinct.len());
        let check: String =
            db.conn().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(check, "ok");
        thread::sleep(Duration::from_millis(25));
        let last = distinct.last().copied().unwrap();
        assert!(acquired(db.claim("x", "c", LONG)).token > last);
    }
}

#[test]
fn a_process_that_sits_on_the_write_lock_blocks_writers_and_not_readers() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = place.open(Duration::from_millis(50));
        let lease = acquired(db.claim("live", "a", LONG));
        let mut sitter = worker(WORKER, &["hold-lock"], &place.file);
        let mut line = [0; 7];
        sitter.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"locked\n");

        let busy = db.claim("live", "b", LONG).unwrap();
        assert!(matches!(busy, ClaimResult::Busy(_)), "{journal}");
        assert_eq!(db.owner("live").unwrap().as_deref(), Some("a"));
        for error in [
            db.claim("free", "b", LONG).unwrap_err(),
            db.renew(&lease, LONG).unwrap_err(),
            db.release(&lease).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Sqlite(_)), "{journal}: {error:?}");
            assert!(error.to_string().ends_with("database is locked"), "{error}");
            assert!(error.to_string().contains(place.file.to_str().unwrap()), "{error}");
        }
        // It dies, and its lock with it.
        sitter.kill().unwrap();
        sitter.wait().unwrap();
        assert_eq!(acquired(db.claim("free", "b", LONG)).token, 1, "{journal}");
    }
}

#[test]
fn processes_that_race_on_a_fresh_file_all_find_the_table_and_one_wins() {
    for round in 0..5 {
        let place = TestFolder::new("DELETE"); // the default: nobody has set anything up
        let start = |number: usize| {
            let owner = number.to_string();
            worker(WORKER, &["claim", "x", &owner, "60000"], &place.file)
        };
        let mut workers: Vec<Child> = (0..8).map(start).collect();
        let answers = workers.iter_mut().map(|child| {
            let mut told = String::new();
            child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
            assert!(child.wait().unwrap().success(), "round {round}");
            told
        });
        let (won, lost): (Vec<_>, Vec<_>) =
            answers.partition(|told| told.starts_with("acquired 1 "));
        assert_eq!((won.len(), lost.len()), (1, 7), "round {round}");
        assert!(lost.iter().all(|told| told.starts_with("busy ")), "{lost:?}");
    }
}
