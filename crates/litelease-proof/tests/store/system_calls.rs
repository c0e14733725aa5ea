//! A process is killed, or its disk fails, at every single write, sync, truncation and deletion of
//! a run.
//!
//! What it told before is stored, no token is ever granted twice, and the file works on.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use litelease::Lease;
use litelease_proof::rig::{TestFolder, acquired, report};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// The calls by which SQLite changes what is on the disk.
const CALLS: [&str; 6] = ["pwrite64", "write", "fdatasync", "fsync", "ftruncate", "unlink"];

/// Runs two cycles of a worker under strace.
fn trace(words: &[String], log: &Path, file: &Path) -> Output {
    Command::new("strace")
        .args(["-f", "-qq", "-o"])
        .arg(log)
        .args(words)
        .args([WORKER, "cycle"])
        .arg(file)
        .args(["x", "a", "2", "60000"])
        .output()
        .unwrap()
}

/// How many calls of a kind the run makes when nothing goes wrong.
fn calls_of(journal: &'static str, call: &str) -> usize {
    let place = prepared(journal).0;
    let log = place.folder.path().join("strace.log");
    let output = trace(&["-e".into(), format!("trace={call}")], &log, &place.file);
    assert!(output.status.success());
    let text = std::fs::read_to_string(&log).unwrap();
    text.lines().filter(|line| line.contains(&format!("{call}("))).count()
}

/// A file with one lease in it, so that there is something to lose. Where commits can get lost, its
/// epoch is from another boot, so that the first grant of the run leaves a new one.
fn prepared(journal: &'static str) -> (TestFolder, Lease) {
    let place = TestFolder::new(journal);
    let db = place.open(Duration::ZERO);
    let lease = acquired(db.claim("kept", "a", Duration::from_secs(60)));
    if journal == "DELETE" {
        db.conn().execute_batch("UPDATE litelease_meta SET boot = 1").unwrap();
    }
    (place, lease)
}

fn strace_works() -> bool {
    Command::new("strace")
        .args(["-f", "-o", "/dev/null", "true"])
        .status()
        .is_ok_and(|s| s.success())
}

#[test]
fn a_fault_at_every_single_system_call_loses_nothing_that_was_told() {
    if !strace_works() {
        report(
            "SKIPPED: faults at every system call, because strace is missing or not allowed to trace",
        );
        return;
    }
    for journal in ["WAL", "DELETE"] {
        for fault in ["signal=KILL", "error=EIO", "error=ENOSPC"] {
            let mut faults = 0;
            for call in CALLS {
                if call == "write" && fault != "signal=KILL" {
                    continue; // these are the worker's own words, not the database
                }
                for n in 1..=calls_of(journal, call) {
                    survive(journal, fault, call, n);
                    faults += 1;
                }
            }
            report(&format!(
                "{journal}, {fault}: {faults} system calls hit, nothing told was lost"
            ));
            assert!(faults >= 20, "{journal} {fault}: only {faults} calls were hit");
        }
    }
}

/// Lets one call fail and looks at what is left.
fn survive(journal: &'static str, fault: &str, call: &str, n: usize) {
    let case = format!("{journal}: {fault} at {call} {n}");
    let (place, before) = prepared(journal);
    let words = ["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{fault}:when={n}")];
    let output = trace(&words.map(String::from), Path::new("/dev/null"), &place.file);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let told: Vec<i64> = told.lines().filter_map(|line| line.parse().ok()).collect();

    let db = place.open(Duration::from_secs(10));
    let check: String =
        db.conn().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok", "{case}");
    assert_eq!(db.inspect("kept").unwrap(), Some(before), "{case}");
    let largest = told.last().copied().unwrap_or(0);
    let newest = db.token("x").unwrap().unwrap_or(0);
    assert!(newest >= largest, "{case}: told {told:?}, stored {newest}");
    let next = acquired(db.at(i64::MAX - 100_000).claim("x", "b", Duration::from_secs(60))).token;
    assert!(next > largest, "{case}: told {told:?}, then granted {next}");
    let is_recorded = journal == "DELETE";
    assert_eq!(next > 1 << 32, is_recorded, "{case}: {next}");
    assert!(next < 2 << 32, "{case}: one boot is one epoch, and this is {next}");

    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!text.contains("panicked"), "{case}: {text}");
    // A kill must have hit; of an error SQLite may make nothing, as when a deletion can wait.
    assert!(
        !fault.contains("KILL") || output.status.code().is_none(),
        "{case}: not killed: {text}"
    );
}
