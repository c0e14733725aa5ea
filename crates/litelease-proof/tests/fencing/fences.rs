//! Checkpoints, gates, and the SQL functions of all fences.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

use litelease::rusqlite::Connection;
use litelease::rusqlite::types::Value;
use litelease::{
    AdmitResult, CheckpointResult, Error, Gate, Guard, Litelease, functions, is_stale,
};
use litelease_proof::rig::{
    LONG, TestFolder, acquired, extension, load_extension, memory, sqlite_code, worker,
};

#[test]
fn a_checkpoint_wants_the_newest_token_exactly() {
    let db = memory();
    assert_eq!(
        db.checkpoint(("import", 1), "x").unwrap(),
        CheckpointResult::Stale { newest: None }
    );
    let first = acquired(db.claim("import", "a", LONG));
    let second = db.transfer(&first, "b", LONG).unwrap().transferred().unwrap();
    for token in [first.token, second.token + 1, 0, -2, i64::MIN, i64::MAX] {
        let refused = db.checkpoint(("import", token), "x").unwrap();
        assert_eq!(refused, CheckpointResult::Stale { newest: Some(2) }, "{token}");
    }
    assert_eq!(db.last_checkpoint("import").unwrap(), None);
    assert_eq!(db.checkpoint(("import", 2), "x").unwrap(), CheckpointResult::Stored);
}

#[test]
fn a_checkpoint_keeps_any_value_as_it_is() {
    let db = memory();
    let lease = acquired(db.claim("import", "a", LONG));
    for value in [
        Value::Null,
        Value::Integer(i64::MIN),
        Value::Real(1.5),
        Value::Text("nul\0 and 🚀".into()),
        Value::Text(String::new()),
        Value::Blob(vec![0, 255]),
        Value::Blob(Vec::new()),
        Value::Text("x".repeat(1 << 20)),
    ] {
        assert_eq!(
            db.checkpoint(("import", lease.token), value.clone()).unwrap(),
            CheckpointResult::Stored
        );
        let last = db.last_checkpoint("import").unwrap().unwrap();
        assert_eq!((last.token, last.value), (1, value));
    }
}

#[test]
fn a_checkpoint_outlives_its_lease_and_tells_the_generation_it_was_made_under() {
    let db = memory();
    let first = acquired(db.at(100).claim("import", "a", LONG));
    assert_eq!(db.checkpoint(("import", first.token), "page 3").unwrap(), CheckpointResult::Stored);
    let second = acquired(db.claim("import", "b", LONG));
    let last = db.last_checkpoint("import").unwrap().unwrap();
    assert_eq!((last.token, last.value), (first.token, Value::Text("page 3".into())));
    assert!(second.token > last.token, "the successor knows that it is not its own");
    let _ = db.release(&second).unwrap();
    // The owner of a lease that was only released may still store a checkpoint, until another owner
    // has the name.
    assert_eq!(
        db.checkpoint(("import", second.token), "page 4").unwrap(),
        CheckpointResult::Stored
    );
    assert_eq!(db.purge(i64::MAX).unwrap(), 1);
    assert_eq!(
        db.checkpoint(("import", second.token), "page 5").unwrap(),
        CheckpointResult::Stale { newest: None }
    );
    assert_eq!(db.last_checkpoint("import").unwrap().unwrap().value, Value::Text("page 4".into()));
}

#[test]
fn a_checkpoint_joins_the_transaction_of_its_caller_and_leaves_the_rest_alone() {
    let mut db = memory();
    db.conn().execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1), (2), (3)").unwrap();
    let lease = acquired(db.claim("import", "a", LONG));
    let rowid = db.conn().last_insert_rowid();
    let tx = db.transaction().unwrap();
    assert_eq!(tx.checkpoint(("import", lease.token), 7).unwrap(), CheckpointResult::Stored);
    tx.rollback().unwrap();
    assert_eq!(db.last_checkpoint("import").unwrap(), None);
    assert_eq!(db.checkpoint(("import", lease.token), 7).unwrap(), CheckpointResult::Stored);
    assert_eq!(db.conn().last_insert_rowid(), rowid);
    assert!(db.conn().is_autocommit());
}

#[test]
fn tables_that_are_not_ours_are_refused_by_name() {
    let db = memory();
    let lease = acquired(db.claim("import", "a", LONG));
    db.conn()
        .execute_batch(
            "CREATE TABLE litelease_checkpoints (name, token, value, updated_at_ms);
             CREATE TABLE litelease_gates (name TEXT PRIMARY KEY, token INTEGER)",
        )
        .unwrap();
    for (refused, table) in [
        (db.checkpoint(("import", lease.token), 7).map(drop), "litelease_checkpoints"),
        (db.last_checkpoint("import").map(drop), "litelease_checkpoints"),
        (db.admit("import", 7).map(drop), "litelease_gates"),
    ] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, Error::SchemaMismatch { table: named, .. } if *named == table),
            "{refused}"
        );
    }
    let bare = Litelease::from_connection(Connection::open_in_memory().unwrap());
    assert!(matches!(bare.checkpoint(("x", 1), 7), Err(Error::NotBootstrapped)));
    assert!(matches!(bare.last_checkpoint("x"), Err(Error::NotBootstrapped)));
    assert!(matches!(bare.present(("x", 1)), Err(Error::NotBootstrapped)));
    assert!(matches!(bare.guard("x", "y", &Guard::by_connection()), Err(Error::NotBootstrapped)));
}

#[test]
fn a_gate_admits_no_token_after_a_larger_one() {
    let place = TestFolder::new("WAL");
    let gate = Gate::open(&place.file).unwrap();
    for token in [0, -1, i64::MIN] {
        assert_eq!(gate.admit("a", token).unwrap(), AdmitResult::Stale { newest: 0 }, "{token}");
    }
    for (token, answer) in [
        (3, AdmitResult::Admitted),
        (3, AdmitResult::Admitted),
        (2, AdmitResult::Stale { newest: 3 }),
        (i64::MAX, AdmitResult::Admitted),
        (4, AdmitResult::Stale { newest: i64::MAX }),
    ] {
        assert_eq!(gate.admit("a", token).unwrap(), answer, "{token}");
    }
    assert_eq!(gate.admit("b", 1).unwrap(), AdmitResult::Admitted, "names do not share");
    let pragma = |what: &str| -> String {
        let connection = place.connect(LONG);
        connection.query_row(&format!("PRAGMA {what}"), [], |row| row.get(0)).unwrap()
    };
    assert_eq!(pragma("journal_mode"), "wal");
}

#[test]
fn a_gate_wants_a_file_that_it_can_trust() {
    let refused = Gate::open(":memory:").unwrap_err().to_string();
    assert!(refused.contains("a gate needs a file"), "{refused}");
    let place = TestFolder::new("WAL");
    std::fs::write(&place.file, "this is no database, whatever it is called").unwrap();
    assert_eq!(sqlite_code(Gate::open(&place.file).map(drop)), 26);
}

#[test]
fn threads_at_one_gate_never_pass_after_a_larger_token() {
    let place = TestFolder::new("WAL");
    let (next, passed) = (AtomicI64::new(1), AtomicI64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let gate = Gate::open(&place.file).unwrap();
                for _ in 0..100 {
                    let token = next.fetch_add(1, Ordering::SeqCst);
                    // What had passed before this one asked must not be larger if it passes, too.
                    let before = passed.load(Ordering::SeqCst);
                    match gate.admit("x", token).unwrap() {
                        AdmitResult::Admitted => {
                            assert!(token >= before, "{token} passed after {before}");
                            passed.fetch_max(token, Ordering::SeqCst);
                        }
                        AdmitResult::Stale { newest } => assert!(newest > token),
                    }
                }
            });
        }
    });
    let gate = Gate::open(&place.file).unwrap();
    assert_eq!(gate.admit("x", 1).unwrap(), AdmitResult::Stale { newest: passed.into_inner() });
}

#[test]
fn a_gate_remembers_what_it_answered_even_if_its_process_is_killed() {
    let place = TestFolder::new("WAL");
    let mut child = worker(env!("CARGO_BIN_EXE_worker"), &["admit", "x"], &place.file);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = 0;
    for _ in 0..50 {
        last = lines.next().unwrap().unwrap().parse().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let more = lines.map_while(Result::ok).filter_map(|line| line.parse().ok());
    last = more.fold(last, i64::max);
    let gate = Gate::open(&place.file).unwrap();
    let answer = gate.admit("x", last - 1).unwrap();
    assert!(matches!(answer, AdmitResult::Stale { newest } if newest >= last), "{answer:?}");
}

#[test]
fn a_gate_can_be_in_the_transaction_of_its_target() {
    let mut target = Litelease::from_connection(Connection::open_in_memory().unwrap());
    let tx = target.transaction().unwrap();
    assert_eq!(tx.admit("x", 7).unwrap(), AdmitResult::Admitted);
    tx.rollback().unwrap();
    assert_eq!(target.admit("x", 6).unwrap(), AdmitResult::Admitted);
    // In a transaction that was begun without the write lock, too.
    target.conn().execute_batch("BEGIN").unwrap();
    assert_eq!(target.admit("x", 7).unwrap(), AdmitResult::Admitted);
    assert_eq!(target.admit("x", 6).unwrap(), AdmitResult::Stale { newest: 7 });
    target.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(target.admit("x", 6).unwrap(), AdmitResult::Stale { newest: 7 });
}

/// The extension and the program's own copy of the code, on one connection: there is one set of
/// presentations.
#[test]
fn two_copies_of_the_code_on_one_connection_know_the_same_presentations() {
    let path = extension();
    for extension_first in [true, false] {
        let db = memory();
        db.conn().execute_batch("CREATE TABLE orders (id)").unwrap();
        db.guard("orders", "writer", &Guard::by_connection()).unwrap();
        let lease = acquired(db.claim("writer", "a", LONG));
        if extension_first {
            load_extension(db.conn(), &path);
        }
        assert!(db.present(("writer", lease.token)).unwrap());
        if !extension_first {
            load_extension(db.conn(), &path);
        }
        let ask =
            |sql: &str| -> Option<i64> { db.conn().query_row(sql, [], |row| row.get(0)).unwrap() };
        assert_eq!(ask("SELECT litelease_presented('writer')"), Some(1));
        db.conn().execute("INSERT INTO orders VALUES (1)", []).unwrap();
        assert_eq!(ask("SELECT litelease_present('writer', 2)"), Some(0));
        assert!(is_stale(&db.conn().execute("INSERT INTO orders VALUES (2)", []).unwrap_err()));
        assert!(db.present(("writer", lease.token)).unwrap());
        db.conn().execute("INSERT INTO orders VALUES (3)", []).unwrap();
        functions::register(db.conn()).unwrap();
        assert_eq!(ask("SELECT litelease_presented('writer')"), Some(1));
    }
}

#[test]
fn a_file_that_somebody_else_made_cannot_present_or_unguard() {
    let db = memory();
    functions::register(db.conn()).unwrap();
    acquired(db.claim("writer", "a", LONG));
    db.conn()
        .execute_batch(
            "CREATE TABLE orders (id); CREATE TABLE bait (id);
             CREATE TRIGGER present AFTER INSERT ON bait BEGIN SELECT litelease_present('writer', 1); END;
             CREATE VIEW presents AS SELECT litelease_presenting('writer', 1);
             CREATE VIEW unguards AS SELECT litelease_unguard('orders');
             CREATE VIEW counts AS SELECT litelease_refused(1, 'writer')",
        )
        .unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    for sql in [
        "INSERT INTO bait VALUES (1) RETURNING 1",
        "SELECT * FROM presents",
        "SELECT * FROM unguards",
    ] {
        let refused = db.conn().query_row(sql, [], |_| Ok(())).unwrap_err().to_string();
        assert!(refused.contains("unsafe use of litelease_"), "{sql}: {refused}");
    }
    // Counting is harmless.
    db.conn().query_row("SELECT * FROM counts", [], |_| Ok(())).unwrap();
    assert!(is_stale(&db.conn().execute("INSERT INTO orders VALUES (1)", []).unwrap_err()));
}

#[test]
fn wrong_arguments_of_the_fences_are_named() {
    let conn = Connection::open_in_memory().unwrap();
    functions::register(&conn).unwrap();
    for (sql, words) in [
        ("SELECT litelease_guard(7, 'n')", "table must be TEXT, not an INTEGER"),
        ("SELECT litelease_guard('t', NULL)", "name must be TEXT, not NULL"),
        (
            "SELECT litelease_guard('t', 'n', 7)",
            "column must be TEXT, or NULL to guard by connection, not an INTEGER",
        ),
        ("SELECT litelease_guard('t', 'n', NULL, 2)", "strict must be 0 or 1, not another INTEGER"),
        ("SELECT litelease_guard('t', 'n', NULL, NULL)", "strict must be 0 or 1, not NULL"),
        (
            "SELECT litelease_present('n', 1.5)",
            "token must be an INTEGER, or NULL to withdraw it, not a REAL",
        ),
        ("SELECT litelease_present('n')", "wrong number of arguments"),
        ("SELECT litelease_checkpoint('n', NULL, 1)", "token must be an INTEGER, not NULL"),
        (
            "SELECT litelease_checkpoint('n', 1, CAST(x'ff' AS TEXT))",
            "value must be a value, not text that is not UTF-8",
        ),
        ("SELECT litelease_admit(x'61', 1)", "name must be TEXT, not a BLOB"),
        ("SELECT * FROM litelease_checkpoint_get", "name must be TEXT"),
        ("SELECT * FROM litelease_checkpoint_get(7)", "name must be TEXT"),
        ("SELECT litelease_guard('t', 'n')", "call litelease_bootstrap() once first"),
        ("SELECT * FROM litelease_guards", "call litelease_bootstrap() once first"),
        ("SELECT litelease_present('n', 1)", "call litelease_bootstrap() once first"),
    ] {
        let refused = conn.query_row(sql, [], |_| Ok(())).unwrap_err().to_string();
        assert!(refused.contains(words), "{sql}: {refused}");
    }
}

/// In a transaction that has not read yet, a gate waits for another writer like any write does,
/// instead of taking a snapshot that it could never upgrade.
#[test]
fn a_gate_in_a_deferred_transaction_waits_for_another_writer() {
    let place = TestFolder::new("WAL");
    let target = place.open(LONG);
    assert_eq!(target.admit("x", 1).unwrap(), AdmitResult::Admitted);
    let (locked, is_locked) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let other = place.connect(LONG);
            other.execute_batch("BEGIN IMMEDIATE; CREATE TABLE t (x)").unwrap();
            locked.send(()).unwrap();
            thread::sleep(std::time::Duration::from_millis(200));
            other.execute_batch("COMMIT").unwrap();
        });
        is_locked.recv().unwrap();
        target.conn().execute_batch("BEGIN").unwrap();
        assert_eq!(target.admit("x", 2).unwrap(), AdmitResult::Admitted);
        target.conn().execute_batch("COMMIT").unwrap();
    });
}
