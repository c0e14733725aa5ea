//! Holds in SQL, on the loaded extension: what they answer, what they refuse, and that they leave
//! nothing behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::rusqlite::{Connection, ErrorCode, OpenFlags};
use litelease::{HoldError, HoldOptions, Litelease};
use litelease_proof::command::Desk;
use litelease_proof::rig::{
    Dice, LONG, TestFolder, eventually, extension, load_extension, report, worker,
};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");

/// A connection with the loaded extension, to a file with leases.
fn open(folder: &TestFolder) -> Connection {
    folder.open(LONG);
    let connection = folder.connect(LONG);
    load_extension(&connection, &extension());
    connection
}

/// The answer to `SELECT …`, or the text of the error.
fn ask(connection: &Connection, sql: &str) -> Result<Option<i64>, String> {
    let answer = connection.query_row(&format!("SELECT {sql}"), [], |row| row.get(0));
    answer.map_err(|error| error.to_string())
}

#[track_caller]
fn refused(connection: &Connection, sql: &str, text: &str) {
    let error = ask(connection, sql).unwrap_err();
    assert!(error.contains(text), "{sql}: {error:?} does not say {text:?}");
}

#[test]
fn a_hold_is_renewed_until_it_is_ended() {
    let folder = TestFolder::new("WAL");
    let (one, other) = (open(&folder), open(&folder));
    assert_eq!(ask(&one, "litelease_hold('x', 1000)"), Ok(Some(1)));
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(ask(&one, "litelease_held('x')"), Ok(Some(1)), "longer than its ttl");
    assert_eq!(ask(&one, "litelease_hold('x', 1000)"), Ok(Some(1)), "it is its own");
    assert_eq!(ask(&other, "litelease_held('x')"), Ok(Some(1)), "of the same process and file");
    assert_eq!(ask(&other, "litelease_hold('x', 1000)"), Ok(None), "of another connection");
    assert_eq!(ask(&other, "litelease_hold('x', 1000, 100)"), Ok(None), "also after a wait");
    assert_eq!(ask(&other, "litelease_unhold('x')"), Ok(Some(0)), "not its own to end");
    assert_eq!(ask(&one, "litelease_unhold('x')"), Ok(Some(1)));
    assert_eq!(ask(&one, "litelease_unhold('x')"), Ok(Some(0)));
    assert_eq!(ask(&other, "litelease_owner('x') IS NULL"), Ok(Some(1)));
    assert_eq!(ask(&other, "litelease_hold('x', 1000)"), Ok(Some(2)), "a larger token");
    refused(&one, "litelease_hold('x', 100)", "a ttl of 100 ms is too short");
    refused(&one, "litelease_hold('x', -1)", "a ttl of -1 ms is too short");
    refused(&one, "litelease_hold('x', 1000, -1)", "wait_ms must not be negative");
    refused(&one, "litelease_held('y')", "\"y\" is not held by this process");
}

#[test]
fn a_hold_ends_with_its_connection_and_not_when_the_extension_is_loaded_again() {
    let folder = TestFolder::new("WAL");
    let (one, other) = (open(&folder), open(&folder));
    assert_eq!(ask(&one, "litelease_hold('x', 60000)"), Ok(Some(1)));
    load_extension(&one, &extension());
    litelease::functions::register(&one).unwrap();
    assert_eq!(ask(&one, "litelease_held('x')"), Ok(Some(1)));
    one.close().unwrap();
    assert_eq!(ask(&other, "litelease_owner('x') IS NULL"), Ok(Some(1)), "released at once");
    refused(&other, "litelease_held('x')", "not held");
}

/// The keeper's connection was open for up to a second after the host's last one: the log stayed
/// beside the file, and a copy of the file alone lacked the last commits.
#[test]
fn no_log_is_left_when_the_host_closes_its_last_connection() {
    let folder = TestFolder::new("WAL");
    let log = folder.folder.path().join("test.sqlite3-wal");
    for unholds in [false, true] {
        let one = open(&folder);
        assert!(ask(&one, "litelease_hold('x', 60000)").unwrap().is_some());
        one.execute_batch("CREATE TABLE IF NOT EXISTS n (id); INSERT INTO n VALUES (1)").unwrap();
        assert!(log.exists());
        if unholds {
            assert_eq!(ask(&one, "litelease_unhold('x')"), Ok(Some(1)));
        }
        one.close().unwrap();
        assert!(!log.exists(), "unheld: {unholds}");
    }
}

/// A lost hold is an error until the name is held again or given up.
#[test]
fn a_broken_hold_is_reported_soon_and_can_be_held_again() {
    let folder = TestFolder::new("WAL");
    let one = open(&folder);
    assert_eq!(ask(&one, "litelease_hold('x', 60000)"), Ok(Some(1)));
    let _ = folder.open(LONG).break_lease("x").unwrap();
    eventually("the loss", || ask(&one, "litelease_held('x')").is_err());
    refused(&one, "litelease_held('x')", "the lease on \"x\" is lost: broken by an operator");
    assert_eq!(ask(&one, "litelease_hold('x', 60000)"), Ok(Some(3)));
    assert_eq!(ask(&one, "litelease_held('x')"), Ok(Some(3)));
    let _ = folder.open(LONG).break_lease("x").unwrap();
    eventually("the loss", || ask(&one, "litelease_held('x')").is_err());
    assert_eq!(ask(&one, "litelease_unhold('x')"), Ok(Some(0)), "it was not held any more");
    refused(&one, "litelease_held('x')", "not held");
}

#[test]
fn what_cannot_be_held_safely_is_refused_with_the_reason() {
    let folder = TestFolder::new("DELETE");
    let hold = "litelease_hold('x', 60000)";
    let with = |uri: &str, flags: OpenFlags| {
        let path = format!("file:{}{uri}", folder.file.display());
        let flags = flags | OpenFlags::SQLITE_OPEN_URI;
        let connection = Connection::open_with_flags(path, flags).unwrap();
        load_extension(&connection, &extension());
        connection
    };
    let write = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let plain = open(&folder);

    let memory = Connection::open_in_memory().unwrap();
    load_extension(&memory, &extension());
    refused(&memory, hold, "litelease_hold: needs a database in a file");
    let temporary = Connection::open("").unwrap();
    load_extension(&temporary, &extension());
    refused(&temporary, hold, "needs a database in a file");
    refused(&with("", OpenFlags::SQLITE_OPEN_READ_ONLY), hold, "opened read-only");
    refused(&with("?mode=ro", write), hold, "opened read-only");
    refused(&with("?immutable=1", write), hold, "opened read-only");
    refused(&with("?nolock=1", write), hold, "opened with nolock=1");
    refused(&with("?vfs=unix-none", write), hold, "the VFS unix-none takes none");
    refused(&with("?vfs=unix-excl", write), hold, "does not know how the VFS \"unix-excl\"");

    plain.execute_batch("BEGIN").unwrap();
    refused(&plain, hold, "cannot be called inside a transaction");
    plain.execute_batch("COMMIT").unwrap();
    let reads = "litelease_hold('x', 60000) FROM sqlite_master";
    refused(&plain, reads, "reads or writes a table");
    let in_trigger =
        "CREATE TRIGGER t AFTER INSERT ON n BEGIN SELECT litelease_hold('x', 9000); END;
                      INSERT INTO n VALUES (1)";
    plain.execute_batch("CREATE TABLE n (id)").unwrap();
    let unsafe_use = plain.execute_batch(in_trigger).unwrap_err().to_string();
    assert!(unsafe_use.contains("unsafe use of litelease_hold"), "{unsafe_use}");
    plain.execute_batch("DROP TRIGGER t").unwrap();

    let exclusive = open(&folder);
    exclusive.pragma_update(None, "locking_mode", "EXCLUSIVE").unwrap();
    refused(&exclusive, hold, "locking_mode = EXCLUSIVE");
    drop(exclusive);
    assert_eq!(ask(&plain, "litelease_token('x')"), Ok(None), "nothing was written");

    let empty = TestFolder::new("WAL");
    let unprepared = empty.connect(LONG);
    load_extension(&unprepared, &extension());
    refused(&unprepared, hold, "no lease table yet: call litelease_bootstrap() once first");

    std::fs::rename(&folder.file, folder.folder.path().join("elsewhere")).unwrap();
    refused(&plain, hold, "the file was moved, deleted or replaced");
}

/// A wait ends with SQLITE_INTERRUPT, and nothing is left: not at whichever moment it comes.
#[test]
fn an_interrupted_wait_leaves_nothing() {
    let (folder, mut dice) = (TestFolder::new("WAL"), Dice::new("interrupted waits"));
    let (holder, waiter) = (open(&folder), open(&folder));
    let (mut granted, mut interrupted) = (0, 0);
    for _ in 0..60 {
        assert!(ask(&holder, "litelease_hold('x', 60000)").unwrap().is_some());
        let (free_after, stop_after) = (dice.below(30), dice.below(40));
        let answer = thread::scope(|scope| {
            let handle = waiter.get_interrupt_handle();
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(stop_after));
                handle.interrupt();
            });
            let done = AtomicBool::new(false);
            let answer = thread::scope(|scope| {
                // The holder's connection stays in this thread; another program breaks the lease.
                let other = folder.open(LONG);
                let done = &done;
                scope.spawn(move || {
                    thread::sleep(Duration::from_millis(free_after));
                    let _ = other.break_lease("x").unwrap();
                    done.store(true, Ordering::SeqCst);
                });
                waiter.query_row("SELECT litelease_hold('x', 60000, 5000)", [], |row| {
                    row.get::<_, Option<i64>>(0)
                })
            });
            assert!(done.load(Ordering::SeqCst));
            let _ = ask(&holder, "litelease_unhold('x')");
            answer
        });
        match answer {
            Ok(token) => {
                granted += 1;
                assert_eq!(ask(&waiter, "litelease_held('x')"), Ok(token));
                assert_eq!(ask(&waiter, "litelease_unhold('x')"), Ok(Some(1)));
            }
            Err(error) => {
                interrupted += 1;
                let code = error.sqlite_error_code();
                assert_eq!(code, Some(ErrorCode::OperationInterrupted), "{error}");
                refused(&waiter, "litelease_held('x')", "not held");
            }
        }
        let free = ask(&waiter, "litelease_owner('x') IS NULL");
        assert_eq!(free, Ok(Some(1)), "after {free_after} and {stop_after} ms");
    }
    assert!(granted > 0 && interrupted > 0, "{granted} granted, {interrupted} interrupted");
    report(&format!("waits in SQL: {granted} granted, {interrupted} interrupted, nothing left"));
}

/// The keeper is inside SQLite, or has a lock of ours, in one fork of many. A copy that finds such
/// a lock taken waits for ever: the thread that has it is not there.
#[test]
fn no_fork_takes_a_lock_of_the_keeper_along() {
    let hung = |forks: &str, gate: &str| {
        let folder = TestFolder::new("WAL");
        folder.open(LONG);
        let forking = worker(WORKER, &["fork-holds", forks, gate], &folder.file);
        let output = forking.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let forks = match std::env::var_os("LITELEASE_STRESS_SECONDS") {
        Some(_) => "2000",
        None => "200",
    };
    assert_eq!(hung(forks, "gated"), format!("0 of {forks}"));
    // Otherwise this proves nothing: without the gate a copy hangs.
    assert!(hung("3000", "ungated").starts_with("1 of"));
}

/// The same name held through SQL, Rust and the command: one of them at a time, each sees the
/// others, and what one gives up another gets.
#[test]
fn holds_of_every_kind_exclude_each_other() {
    let desk = Desk::new();
    let db = desk.db();
    let sql = db.conn();
    load_extension(sql, &extension());
    let rust = Litelease::open(sql.path().unwrap()).unwrap();
    let minute = HoldOptions::new(Duration::from_secs(60));

    assert_eq!(ask(sql, "litelease_hold('x', 60000)"), Ok(Some(1)));
    match rust.hold("x", minute.clone()) {
        Err(HoldError::Busy(current)) => assert_eq!(current.token, 1),
        other => panic!("{other:?}"),
    }
    let busy = desk.run(&["run", "-n", "x", "--", "true"]);
    assert_eq!(busy.status.code(), Some(1), "{busy:?}");
    let who = String::from_utf8(desk.run(&["who", "x"]).stdout).unwrap();
    assert!(who.contains(&std::process::id().to_string()), "{who}");
    assert_eq!(ask(sql, "litelease_unhold('x')"), Ok(Some(1)));

    let held = rust.hold("x", minute).unwrap();
    assert_eq!(ask(sql, "litelease_hold('x', 60000)"), Ok(None));
    let waited = thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        ask(sql, "litelease_hold('x', 60000, 60000)")
    });
    assert_eq!(waited, Ok(Some(3)));
    let broken = desk.run(&["break", "--yes", "x"]);
    assert!(broken.status.success(), "{broken:?}");
    eventually("the loss", || ask(sql, "litelease_held('x')").is_err());
}

/// The keeper's own connection waits for no writer, and comes in between two of its transactions.
#[test]
fn a_writer_in_a_loop_does_not_take_a_hold_away() {
    for journal in ["WAL", "DELETE"] {
        let folder = TestFolder::new(journal);
        let one = open(&folder);
        one.execute_batch("CREATE TABLE n (id)").unwrap();
        assert_eq!(ask(&one, "litelease_hold('x', 3000)"), Ok(Some(1)));
        let stop = AtomicBool::new(false);
        let writes = thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let (connection, mut writes) = (folder.connect(LONG), 0);
                while !stop.load(Ordering::SeqCst) {
                    connection.execute_batch("BEGIN IMMEDIATE; INSERT INTO n VALUES (1)").unwrap();
                    thread::sleep(Duration::from_millis(2));
                    connection.execute_batch("COMMIT").unwrap();
                    thread::sleep(Duration::from_micros(200));
                    writes += 1;
                }
                writes
            });
            // Beyond its first two renewals.
            let begin = Instant::now();
            let mut held = Ok(Some(1));
            while begin.elapsed() < Duration::from_millis(2500) && held == Ok(Some(1)) {
                held = ask(&one, "litelease_held('x')");
                thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Ordering::SeqCst);
            assert_eq!(held, Ok(Some(1)), "{journal}");
            writer.join().unwrap()
        });
        report(&format!("{journal}: a hold of 3 s was kept beside {writes} transactions in a row"));
    }
}

/// Closing a file drops all locks that a process has on it, unless SQLite itself closes it. Our
/// connections open and close while the host has a transaction open, and no other process gets in.
#[test]
fn the_locks_of_the_host_stay_while_our_connections_come_and_go() {
    for journal in ["WAL", "DELETE"] {
        let folder = TestFolder::new(journal);
        let (host, holder) = (open(&folder), open(&folder));
        host.execute_batch("CREATE TABLE n (id); BEGIN IMMEDIATE; INSERT INTO n VALUES (1)")
            .unwrap();
        let (mut refused, mut holds) = (0, 0);
        holder.busy_timeout(Duration::ZERO).unwrap();
        for _ in 0..20 {
            // It cannot be granted, but it is tried on a new connection.
            let locked = ask(&holder, "litelease_hold('x', 1000)").unwrap_err();
            assert!(locked.contains("locked"), "{locked}");
            holds += 1;
            let mut shell = std::process::Command::new("sqlite3");
            shell.arg(&folder.file).arg("INSERT INTO n VALUES (2)");
            let output = shell.output().unwrap();
            assert!(!output.status.success(), "another process got in: {journal}");
            refused += 1;
        }
        host.execute_batch("COMMIT").unwrap();
        assert_eq!(ask(&host, "count(*) FROM n"), Ok(Some(1)));
        assert_eq!(ask(&holder, "litelease_hold('x', 1000)"), Ok(Some(1)));
        report(&format!("{journal}: {holds} tries to hold, and {refused} writers kept out"));
    }
}
