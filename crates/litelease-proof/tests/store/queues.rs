//! Queues: what a receive costs, bad input, damage, `finish`, and real processes that are killed
//! and stopped.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::rusqlite::types::Value;
use litelease::rusqlite::{Connection, types::Null};
use litelease::{
    AckResult, CancelResult, Error, GiveBackOptions, ItemName, ItemState, Leases, Litelease,
    LiteleaseRef, SendOptions, StaleReason,
};
use litelease_proof::command::kill;
use litelease_proof::rig::{
    Dice, LONG, TestFolder, eventually, memory, report, sqlite_code, worker,
};
use litelease_proof::trouble::SmallDisk;

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const SHORT: Duration = Duration::from_millis(50);

/// Returns every row of the tables of queues, as text.
fn stored(conn: &Connection) -> Vec<String> {
    let tables = ["counter", "names", "items", "bodies", "keys"];
    let mut rows = Vec::new();
    for table in tables {
        let Ok(mut all) = conn.prepare(&format!("SELECT * FROM litelease_queue_{table}")) else {
            continue;
        };
        let columns = all.column_count();
        let mut found = all.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values = (0..columns).map(|at| format!("{:?}", row.get::<_, Value>(at).unwrap()));
            rows.push(format!("{table}: {}", values.collect::<Vec<_>>().join(" ")));
        }
    }
    rows
}

/// A queue with so many items of the same kind, then 10 that are visible.
///
/// Comes with a count of the steps that SQLite takes, whatever statements they belong to.
fn crowded(count: i64, state: &str) -> (Litelease, Arc<AtomicI64>) {
    let counter = Arc::new(AtomicI64::new(0));
    let mut conn = Connection::open_in_memory().unwrap();
    let counting = Arc::clone(&counter);
    conn.progress_handler(1, Some(move || counting.fetch_add(1, Ordering::Relaxed) < 0)).unwrap();
    let db = Litelease::from_connection(conn);
    db.bootstrap().unwrap();
    db.queue("q").at(1).send("first").unwrap();
    let values = match state {
        "visible" => "100, 0, NULL, NULL, NULL, NULL",
        "delayed" => "1000000, 0, NULL, NULL, NULL, NULL",
        "leased" => "1000000, 1, i, randomblob(16), 1000000, NULL",
        "dead" => "NULL, 20, i, randomblob(16), 10, NULL",
        "buried" => "NULL, 1, i, randomblob(16), 10, 'buried'",
        state => panic!("{state}"),
    };
    db.conn()
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i <= {count})
             INSERT INTO litelease_queue_items
             (id, queue, visible_at_ms, attempts, token, receipt, deadline_ms, ended, sent_at_ms)
             SELECT i, 1, {values}, 1 FROM n;
             INSERT INTO litelease_queue_bodies SELECT id, 'body' FROM litelease_queue_items WHERE id > 1;
             UPDATE litelease_queue_counter SET newest = {count} + 2;"
        ))
        .unwrap();
    for _ in 0..10 {
        db.queue("q").at(100).send("last").unwrap();
    }
    (db, counter)
}

#[test]
fn a_receive_costs_the_same_in_a_queue_of_any_length() {
    let large = if std::env::var_os("LITELEASE_MILLION").is_some() { 1_000_000 } else { 100_000 };
    for state in ["visible", "delayed", "leased", "dead", "buried"] {
        let steps = [1_000, large].map(|count| {
            let (db, counter) = crowded(count, state);
            let queue = db.queue("q").at(200);
            // Statements are compiled, and the schema looked at, before it counts.
            queue.receive(LONG).unwrap().unwrap();
            assert!(queue.receive(LONG).unwrap().unwrap().ack().unwrap().is_acknowledged());
            let before = counter.load(Ordering::Relaxed);
            let item = queue.receive(LONG).unwrap().unwrap();
            let received = counter.load(Ordering::Relaxed) - before;
            assert!(item.ack().unwrap().is_acknowledged());
            let acknowledged = counter.load(Ordering::Relaxed) - before - received;
            let before = counter.load(Ordering::Relaxed);
            queue.send("another").unwrap();
            [received, acknowledged, counter.load(Ordering::Relaxed) - before]
        });
        report(&format!(
            "receive, ack and send behind {state} items: {:?} VM steps at 1,000, {:?} at {large}",
            steps[0], steps[1]
        ));
        assert_eq!(steps[0], steps[1], "{state}");
        assert!(steps[0].iter().all(|steps| (30..300).contains(steps)), "{steps:?}");
    }
}

#[test]
fn an_empty_receive_costs_the_same_behind_any_number_of_hidden_items() {
    for state in ["delayed", "leased", "dead"] {
        let steps = [1_000, 50_000].map(|count| {
            let (db, counter) = crowded(count, state);
            let queue = db.queue("q").at(200);
            while queue.receive(LONG).unwrap().is_some() {}
            assert!(queue.receive(LONG).unwrap().is_none());
            let before = counter.load(Ordering::Relaxed);
            assert!(queue.receive(LONG).unwrap().is_none());
            counter.load(Ordering::Relaxed) - before
        });
        assert_eq!(steps[0], steps[1], "{state}");
    }
}

#[test]
fn a_list_reads_rows_as_they_are_asked_for() {
    let steps = [1_000, 50_000].map(|count| {
        let (db, counter) = crowded(count, "visible");
        litelease::functions::register(db.conn()).unwrap();
        let first = "SELECT id FROM litelease_items('q', 200) LIMIT 1";
        let look = || db.conn().query_row(first, [], |row| row.get::<_, i64>(0)).unwrap();
        look();
        let before = counter.load(Ordering::Relaxed);
        assert_eq!(look(), 1);
        counter.load(Ordering::Relaxed) - before
    });
    assert_eq!(steps[0], steps[1]);
    let (db, _) = crowded(1_000, "visible");
    let mut seen = 0;
    db.queue("q")
        .each_item(|_| {
            seen += 1;
            seen < 7
        })
        .unwrap();
    assert_eq!(seen, 7);
}

#[test]
fn a_body_of_100_mb_is_written_once() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let body: Vec<u8> = (0..100_000_000u32).map(|at| (at % 251) as u8).collect();
    db.queue("q").send(&body).unwrap();
    let checkpoint = || db.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let log = || fs::metadata(place.file.with_extension("sqlite3-wal")).unwrap().len();
    checkpoint();
    let queue = db.queue("q");
    let mut item = queue.receive(LONG).unwrap().unwrap();
    assert!(item.extend(LONG + LONG).unwrap());
    assert!(item.give_back().unwrap());
    let item = queue.receive(LONG).unwrap().unwrap();
    let written = log();
    report(&format!("two deliveries of a body of 100 MB write {written} bytes"));
    assert!(written < 200_000, "{written} bytes were written");
    assert_eq!(item.body, Value::Blob(body));
    assert!(item.ack().unwrap().is_acknowledged());
    let bodies = "SELECT count(*) FROM litelease_queue_bodies";
    assert_eq!(db.conn().query_row(bodies, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn a_body_is_any_value_and_comes_back_as_it_was() {
    let db = memory();
    let bodies = [
        Value::Null,
        Value::Integer(i64::MIN),
        Value::Real(-0.5),
        Value::Text(String::new()),
        Value::Text("a\0b 🦀 ' \"".into()),
        Value::Text("12".into()),
        Value::Blob(vec![]),
        Value::Blob(vec![0, 255]),
    ];
    for body in &bodies {
        db.queue("q").send(body).unwrap();
    }
    for body in &bodies {
        let item = db.queue("q").receive(LONG).unwrap().unwrap();
        assert_eq!(item.body, *body);
        assert_eq!(db.queue("q").delivery(&item.receipt).unwrap().unwrap().body, *body);
    }
}

#[test]
fn bad_input_is_a_typed_error_and_nothing_is_stored() {
    let db = memory();
    litelease::functions::register(db.conn()).unwrap();
    let queue = db.queue("q");
    let before_any_table = stored(db.conn());
    let long = "k".repeat(201);
    let key = |key| queue.send_with("x", SendOptions::new().key(key));
    assert!(matches!(key(""), Err(Error::InvalidText { bytes: 0, .. })));
    assert!(matches!(key(&long), Err(Error::InvalidText { bytes: 201, most: 200, .. })));
    let far = SendOptions::new().delay(Duration::MAX);
    assert!(matches!(queue.send_with("x", far), Err(Error::TimeOverflow { .. })));
    assert!(matches!(queue.receive(Duration::ZERO), Err(Error::InvalidTtl { .. })));
    assert!(matches!(queue.receive(Duration::MAX), Err(Error::TimeOverflow { .. })));
    assert!(matches!(queue.set_max_attempts(-1), Err(Error::InvalidAttempts { .. })));
    assert_eq!(stored(db.conn()), before_any_table);
    assert!(db.queues().unwrap().is_empty());
    key(&"k".repeat(200)).unwrap();
    let item = queue.receive(LONG).unwrap().unwrap();
    let before = stored(db.conn());
    let late = GiveBackOptions::new().delay(Duration::MAX);
    assert!(matches!(item.give_back_with(late), Err(Error::TimeOverflow { .. })));
    let long = "n".repeat(1001);
    let noted = item.give_back_with(GiveBackOptions::new().note(&long));
    assert!(matches!(noted, Err(Error::InvalidText { bytes: 1001, .. })));
    assert!(matches!(item.bury(Some(&long)), Err(Error::InvalidText { .. })));
    assert!(matches!(queue.extend(&item.receipt, Duration::ZERO), Err(Error::InvalidTtl { .. })));
    for (sql, words) in [
        (
            "litelease_send('q', 'x', -1)",
            "litelease_send: \"q\": the delay must not be negative, got -1 ms",
        ),
        ("litelease_send('q', 'x', 9223372036854775807)", "ends after the last representable time"),
        ("litelease_send(7, 'x')", "litelease_send: queue must be TEXT, not an INTEGER"),
        ("litelease_send(NULL, 'x')", "litelease_send: queue must be TEXT, not NULL"),
        ("litelease_send('q', 'x', 1.5)", "delay_ms must be an INTEGER, or NULL for none"),
        ("litelease_send('q', 'x', NULL, '')", "the key of an item has 1 to 200 bytes, got 0"),
        ("litelease_send('q', 'x', NULL, x'61')", "key must be TEXT, or NULL for none, not a BLOB"),
        ("litelease_send('q', CAST(x'ff' AS TEXT))", "text that is not UTF-8"),
        ("litelease_receive('q', -5)", "the ttl must be at least 1 ms, got -5 ms"),
        ("litelease_receive('q', NULL)", "visibility_ms must be an INTEGER, not NULL"),
        ("litelease_ack(NULL)", "receipt must be TEXT, not NULL"),
        ("litelease_ack('x')", "litelease_ack: stale receipt: unknown"),
        ("litelease_give_back('x', -1)", "the delay must not be negative"),
        ("litelease_cancel('q', NULL)", "id must be an INTEGER, or the key as TEXT"),
        ("litelease_cancel('q', x'61')", "id must be an INTEGER, or the key as TEXT"),
        (
            "litelease_queue('q', -1)",
            "a queue allows 0 (any number) to 1000000000 attempts, and a tick 1 or more; got -1",
        ),
        ("litelease_queue('q', 'many')", "max_attempts must be an INTEGER, or NULL"),
        ("litelease_redrive('q', 'x')", "id must be an INTEGER, or NULL for all dead ones"),
    ] {
        let failed = db.conn().query_row(&format!("SELECT {sql}"), [], |_| Ok(())).unwrap_err();
        assert!(failed.to_string().contains(words), "{sql}: {failed}");
    }
    for (sql, words) in [
        ("litelease_items", "queue must be TEXT, not NULL: FROM litelease_items(queue[, now_ms])"),
        ("litelease_items(7)", "queue must be TEXT"),
        ("litelease_items('q', 'now')", "now_ms must be an INTEGER"),
        (
            "litelease_delivery(7)",
            "receipt must be TEXT, not an INTEGER: FROM litelease_delivery(receipt)",
        ),
        ("litelease_queues('now')", "now_ms must be an INTEGER"),
    ] {
        let failed = db.conn().query_row(&format!("SELECT * FROM {sql}"), [], |_| Ok(()));
        assert!(failed.as_ref().unwrap_err().to_string().contains(words), "{sql}: {failed:?}");
    }
    assert_eq!(stored(db.conn()), before, "nothing was stored");
}

#[test]
fn a_null_argument_is_one_that_was_left_out() {
    let db = memory();
    litelease::functions::register(db.conn()).unwrap();
    let ask = |sql: &str| db.conn().query_row(&format!("SELECT {sql}"), [], |row| row.get(0));
    assert_eq!(ask("litelease_queue('q', NULL)"), Ok(20));
    assert_eq!(ask("litelease_send('q', NULL, NULL, NULL, NULL)"), Ok(1));
    assert_eq!(ask("litelease_redrive('q', NULL, NULL)"), Ok(0));
    assert_eq!(db.queue("q").receive(LONG).unwrap().unwrap().body, Value::Null);
    db.queue("q").send(Null).unwrap();
}

#[test]
fn a_queue_called_like_sql_is_only_a_name() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE y (kept)").unwrap();
    let names = ["x'; DROP TABLE y; --", "x\"; DROP TABLE y; --", "\0", "a\0b", "", " ", "🦀", "É"];
    for name in names {
        db.queue(name).send(name).unwrap();
    }
    for name in names {
        let item = db.queue(name).receive(LONG).unwrap().unwrap();
        assert_eq!(item.body, Value::Text(name.into()));
        assert!(db.queue(name).receive(LONG).unwrap().is_none());
    }
    assert!(db.queue("E\u{301}").receive(LONG).unwrap().is_none(), "names are compared bytewise");
    assert_eq!(db.queues().unwrap().len(), names.len());
    db.conn().execute("INSERT INTO y VALUES (1)", []).unwrap();
    let long = "n".repeat(1_000_000);
    db.queue(&long).send(1).unwrap();
    assert!(db.queue(&long).delete().unwrap());
}

#[test]
fn a_foreign_table_is_refused_by_name() {
    for table in ["counter", "names", "items", "bodies", "keys"] {
        let name = format!("litelease_queue_{table}");
        let makers = [
            format!("CREATE TABLE {name} (id INTEGER PRIMARY KEY)"),
            format!("CREATE VIEW {name} AS SELECT 1"),
            format!("CREATE VIRTUAL TABLE {name} USING fts5(x)"),
        ];
        for maker in makers {
            let db = memory();
            db.conn().execute_batch(&maker).unwrap();
            refuses(&db, &name);
        }
        // One of ours that was changed, or has a trigger, or is gone.
        for damage in [
            format!("ALTER TABLE {name} ADD COLUMN extra"),
            format!("DROP TABLE {name}"),
            format!("CREATE TRIGGER t BEFORE DELETE ON {name} BEGIN SELECT RAISE(IGNORE); END"),
            format!(
                "CREATE UNIQUE INDEX u ON {name} ({})",
                if table == "bodies" { "body" } else { "1" }
            )
            .replace(
                "(1)",
                match table {
                    "counter" => "(newest)",
                    "names" => "(max_attempts)",
                    "items" => "(queue)",
                    _ => "(item)",
                },
            ),
        ] {
            let db = memory();
            db.queue("q").send(1).unwrap();
            db.conn().execute_batch(&damage).unwrap();
            refuses(&db, &name);
        }
    }
    // A table that hides a table-valued function.
    for name in ["litelease_items", "litelease_queues", "litelease_delivery"] {
        let db = memory();
        db.conn().execute_batch(&format!("CREATE TABLE {name} (x)")).unwrap();
        refuses(&db, name);
    }
}

#[track_caller]
fn refuses(db: &Litelease, name: &str) {
    let queue = db.queue("q");
    let refusals = [
        queue.send(1).map(drop),
        queue.receive(LONG).map(drop),
        queue.ack("1-00112233-4455-4677-8899-aabbccddeeff").map(drop),
        queue.redrive().map(drop),
        queue.cancel(ItemName::Id(1)).map(drop),
        queue.set_max_attempts(3).map(drop),
        queue.items().map(drop),
        db.queues().map(drop),
        db.epoch().map(drop),
        db.restore_fence_above(0).map(drop),
    ];
    for (at, refused) in refusals.into_iter().enumerate() {
        match refused {
            Err(Error::SchemaMismatch { table, .. }) => assert_eq!(table, name, "verb {at}"),
            other => panic!("{name}, verb {at}: {other:?}"),
        }
    }
    // Leases do not depend on it.
    assert!(db.claim("x", "a", LONG).unwrap().acquired().is_some());
    db.release_by_owner("x", "a").unwrap();
}

#[test]
fn a_damaged_row_is_reported_and_left_alone() {
    for damage in [
        "UPDATE litelease_queue_items SET token = 'many'",
        "UPDATE litelease_queue_items SET token = 0",
        "UPDATE litelease_queue_items SET receipt = 'text'",
        "UPDATE litelease_queue_items SET receipt = x'00'",
        "UPDATE litelease_queue_items SET deadline_ms = NULL",
        "UPDATE litelease_queue_items SET ended = 'eaten'",
        "UPDATE litelease_queue_items SET attempts = -1",
        "UPDATE litelease_queue_items SET attempts = 'x'",
        "UPDATE litelease_queue_items SET visible_at_ms = 'soon'",
        "DELETE FROM litelease_queue_bodies",
        "DELETE FROM litelease_queue_counter",
        "UPDATE litelease_queue_counter SET newest = 'x'",
        "UPDATE litelease_queue_names SET max_attempts = 'x'",
    ] {
        let db = memory();
        let queue = db.queue("q");
        queue.at(100).send("x").unwrap();
        let item = queue.at(100).receive(SHORT).unwrap().unwrap();
        db.conn().execute_batch("PRAGMA ignore_check_constraints = 1").unwrap();
        db.conn().execute_batch(damage).unwrap();
        let before = stored(db.conn());
        let answers = [
            queue.at(200).receive(LONG).map(drop),
            queue.at(120).extend(&item.receipt, LONG).map(drop),
            queue.send("y").map(drop),
        ];
        let refused = |answer: &litelease::Result<()>| {
            matches!(answer, Err(Error::SchemaMismatch { .. } | Error::UnexpectedChange { .. }))
        };
        assert!(answers.iter().any(refused), "{damage}: {answers:?}");
        if !damage.contains("bodies") && answers.iter().all(refused) {
            assert_eq!(stored(db.conn()), before, "{damage}");
        }
        let check = "SELECT count(*) FROM litelease_queue_items WHERE id = 1";
        assert_eq!(db.conn().query_row(check, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }
}

#[test]
fn the_callers_rowid_and_transaction_are_left_alone() {
    let mut db = memory();
    db.conn()
        .execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (4711)")
        .unwrap();
    db.queue("q").send("x").unwrap();
    db.queue("q").send_with("x", SendOptions::new().key("k")).unwrap();
    assert_eq!(db.conn().last_insert_rowid(), 4711);
    let tx = db.transaction().unwrap();
    tx.conn().execute("INSERT INTO t VALUES (5000)", []).unwrap();
    let refused = tx.queue("q").send_with("x", SendOptions::new().key(""));
    assert!(refused.is_err());
    tx.queue("q").send("y").unwrap();
    assert_eq!(tx.conn().last_insert_rowid(), 5000);
    tx.commit().unwrap();
    let rows: i64 = db.conn().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
    assert_eq!(rows, 2);
    assert_eq!(db.queue("q").info().unwrap().unwrap().visible, 3);
}

#[test]
fn nothing_visible_is_told_without_the_write_lock() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let (db, other) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
        let queue = db.queue("q");
        queue.send_with("x", SendOptions::new().key("k")).unwrap();
        let item = queue.receive(LONG).unwrap().unwrap();
        // The receive after one that found something asks for the lock, and finds nothing.
        assert!(queue.receive(LONG).unwrap().is_none());
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert!(queue.receive(LONG).unwrap().is_none());
        assert!(db.queue("unknown").receive(LONG).unwrap().is_none());
        let again = queue.send_with("again", SendOptions::new().key("k")).unwrap();
        assert_eq!(again, item.id, "nor does a key that is in use need it");
        assert_eq!(queue.delivery(&item.receipt).unwrap().unwrap().id, item.id);
        assert_eq!(queue.items().unwrap().len(), 1);
        assert_eq!(sqlite_code(queue.send("y")), 5);
        assert_eq!(sqlite_code(item.ack()), 5);
        other.execute_batch("ROLLBACK").unwrap();
        assert!(item.ack().unwrap().is_acknowledged());
    }
}

#[test]
fn many_items_are_one_commit() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    let queue = db.queue("q");
    for number in 0..10 {
        queue.send(number).unwrap();
    }
    let commits = || {
        let version = "PRAGMA data_version";
        place.connect(LONG).query_row(version, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    let other = place.connect(LONG);
    let seen = || other.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).unwrap();
    let _ = commits();
    let before = seen();
    let items = queue.receive_many(7, LONG).unwrap();
    assert_eq!(items.len(), 7);
    assert!(items.windows(2).all(|pair| pair[0].token < pair[1].token && pair[0].id < pair[1].id));
    assert_ne!(seen(), before);
    assert_eq!(queue.receive_many(7, LONG).unwrap().len(), 3);
    assert!(queue.receive_many(7, LONG).unwrap().is_empty());
    assert!(queue.receive_many(0, LONG).unwrap().is_empty());
    let receipts = items.iter().map(|item| item.receipt.as_str()).chain(["unknown"]);
    let answers = queue.ack_many(receipts).unwrap();
    let acknowledged = answers.iter().filter(|answer| answer.is_acknowledged()).count();
    assert_eq!(acknowledged, 7, "one that is stale keeps no other from passing");
    assert_eq!(answers[7], AckResult::Stale { reason: StaleReason::Unknown });
    assert_eq!(queue.info().unwrap().unwrap().len(), 3);
}

#[test]
fn an_effect_is_rolled_back_with_a_stale_receipt_and_says_so() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE effects (who)").unwrap();
    let queue = db.queue("q");
    let count = || -> i64 {
        db.conn().query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap()
    };
    queue.at(100).send("x").unwrap();
    let slow = queue.at(100).receive(SHORT).unwrap().unwrap();
    let quick = queue.at(150).receive(SHORT).unwrap().unwrap();
    let mut ran = false;
    let late = slow.finish(|tx| {
        ran = true;
        tx.conn().execute("INSERT INTO effects VALUES ('slow')", [])?;
        Ok(())
    });
    let error = late.unwrap_err();
    assert!(matches!(error, Error::StaleReceipt { reason: StaleReason::DeliveredAgain }));
    assert_eq!(error.to_string(), "stale receipt: delivered again");
    assert!(!ran && db.conn().is_autocommit() && count() == 0);
    // An error of the effect rolls back, and the item stays with its worker.
    let failed = quick.finish(|tx| {
        tx.conn().execute("INSERT INTO effects VALUES ('quick')", [])?;
        tx.conn().execute("INSERT INTO nowhere VALUES (1)", [])?;
        Ok(())
    });
    assert!(failed.is_err() && db.conn().is_autocommit() && count() == 0);
    // So does a panic.
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        quick.finish(|tx| -> litelease::Result<()> {
            tx.conn().execute("INSERT INTO effects VALUES ('panic')", [])?;
            panic!("in the effect")
        })
    }));
    assert!(panicked.is_err() && db.conn().is_autocommit() && count() == 0);
    let answer = quick.finish(|tx| {
        tx.conn().execute("INSERT INTO effects VALUES ('quick')", [])?;
        Ok(42)
    });
    assert_eq!(answer.unwrap(), 42);
    assert_eq!(count(), 1);
    assert!(matches!(
        quick.finish(|_| Ok(())),
        Err(Error::StaleReceipt { reason: StaleReason::Gone })
    ));
}

#[test]
fn an_effect_that_ends_the_transaction_is_never_acknowledged_alone() {
    let db = memory();
    db.conn()
        .execute_batch("CREATE TABLE effects (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
        .unwrap();
    db.conn().execute("INSERT INTO effects VALUES (1)", []).unwrap();
    let queue = db.queue("q");
    queue.send("x").unwrap();
    let item = queue.receive(LONG).unwrap().unwrap();
    // SQLite itself rolls the transaction back, and the effect ignores that.
    let done = item.finish(|tx| {
        let _ = tx.conn().execute("INSERT INTO effects VALUES (1)", []);
        Ok(())
    });
    assert!(matches!(done, Err(Error::TransactionEnded)), "{done:?}");
    assert_eq!(queue.info().unwrap().unwrap().leased, 1, "the item is still there");
    // The effect commits by itself: its rows are its own business, and the item stays.
    let done = item.finish(|tx| Ok(tx.conn().execute_batch("COMMIT")?));
    assert!(matches!(done, Err(Error::TransactionEnded)), "{done:?}");
    assert_eq!(queue.info().unwrap().unwrap().leased, 1);
    item.finish(|_| Ok(())).unwrap();
}

#[test]
fn every_handle_has_queues_and_finish_needs_no_open_transaction() {
    let mut conn = Connection::open_in_memory().unwrap();
    let leases = LiteleaseRef::new(&conn);
    leases.bootstrap().unwrap();
    leases.queue("q").send("x").unwrap();
    leases.queue("q").receive(LONG).unwrap().unwrap().finish(|_| Ok(())).unwrap();
    drop(leases);
    let tx = conn.transaction().unwrap();
    let joined = LiteleaseRef::joining(&tx);
    joined.queue("q").send("y").unwrap();
    let item = joined.queue("q").receive(LONG).unwrap().unwrap();
    let nested = item.finish(|_| Ok(()));
    assert!(nested.unwrap_err().to_string().contains("transaction within a transaction"));
    assert!(item.ack().unwrap().is_acknowledged());
    drop(item);
    drop(joined);
    tx.commit().unwrap();
    assert!(matches!(
        LiteleaseRef::joining(&conn).queue("q").send("z"),
        Err(Error::NotInTransaction)
    ));
    let mut db = Litelease::from_connection(conn);
    let tx = db.transaction().unwrap();
    tx.queue("q").send("z").unwrap();
    let item = tx.queue("q").receive(LONG).unwrap().unwrap();
    let refused = item.finish(|_| Ok(())).unwrap_err();
    assert!(refused.to_string().contains("begins a transaction of its own"), "{refused}");
    assert!(item.ack().unwrap().is_acknowledged());
    tx.commit().unwrap();
    assert!(db.queue("q").info().unwrap().unwrap().is_empty());
}

#[test]
fn sql_can_put_effect_and_acknowledgement_into_one_statement() {
    let db = memory();
    let conn = db.conn();
    litelease::functions::register(conn).unwrap();
    conn.execute_batch("CREATE TABLE effects (text)").unwrap();
    db.queue("q").at(100).send("x").unwrap();
    let slow = db.queue("q").at(100).receive(SHORT).unwrap().unwrap().receipt;
    let quick = db.queue("q").at(150).receive(SHORT).unwrap().unwrap().receipt;
    let effect = "INSERT INTO effects SELECT 'done' WHERE litelease_ack(?1)";
    let refused = conn.execute(effect, [&slow]).unwrap_err();
    assert_eq!(refused.sqlite_error().unwrap().extended_code, 19);
    assert!(refused.to_string().contains("stale receipt: delivered again"), "{refused}");
    // The trap: the error ends its statement only, and COMMIT is still allowed.
    conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO effects VALUES ('trap')").unwrap();
    assert!(conn.query_row("SELECT litelease_ack(?1)", [&slow], |_| Ok(())).is_err());
    assert!(!conn.is_autocommit());
    conn.execute_batch("ROLLBACK").unwrap();
    assert_eq!(conn.execute(effect, [&quick]).unwrap(), 1);
    let effects: i64 =
        conn.query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap();
    assert_eq!(effects, 1);
    assert!(db.queue("q").info().unwrap().unwrap().is_empty());
}

/// SQLite puts the function in the place of its alias, each time.
#[test]
fn an_alias_used_twice_receives_twice() {
    let db = memory();
    litelease::functions::register(db.conn()).unwrap();
    (0..3).for_each(|at| _ = db.queue("q").send(at).unwrap());
    let trap = "SELECT litelease_receive('q', 60000) AS r WHERE r IS NOT NULL";
    db.conn().query_row(trap, [], |_| Ok(())).unwrap();
    assert_eq!(db.queue("q").info().unwrap().unwrap().leased, 2, "the trap that docs/sql.md names");
}

#[test]
fn many_sends_of_one_statement_are_stored_together_or_not_at_all() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    litelease::functions::register(db.conn()).unwrap();
    let conn = db.conn();
    conn.execute_batch(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, delay);
         INSERT INTO t VALUES (1, NULL), (2, NULL), (3, NULL), (4, -1);",
    )
    .unwrap();
    let good = "SELECT litelease_send('q', id, delay) FROM t WHERE id < 4";
    let sent = |sql: &str| -> Result<Vec<i64>, _> {
        conn.prepare(sql).unwrap().query_map([], |row| row.get(0)).unwrap().collect()
    };
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(sent(good).unwrap(), [1, 2, 3]);
    conn.execute_batch("COMMIT").unwrap();
    // One fails: the caller rolls back, and no id is left behind.
    conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(sent("SELECT litelease_send('q', id, delay) FROM t").is_err());
    conn.execute_batch("ROLLBACK").unwrap();
    assert_eq!(db.queue("q").info().unwrap().unwrap().visible, 3);
    // Inside a statement that writes, too.
    conn.execute_batch("CREATE TABLE sent AS SELECT litelease_send('q', id) AS id FROM t").unwrap();
    assert_eq!(sent("SELECT id FROM sent").unwrap(), [4, 5, 6, 7]);
    let failing = "INSERT INTO sent SELECT litelease_send('q', id, delay) FROM t";
    assert!(conn.execute(failing, []).is_err());
    assert_eq!(db.queue("q").info().unwrap().unwrap().visible, 7, "nothing of it was sent");
    assert_eq!(sent("SELECT id FROM sent").unwrap(), [4, 5, 6, 7]);
}

#[test]
fn a_restored_file_accepts_no_receipt_of_before() {
    let place = TestFolder::new("DELETE");
    let db = place.open(LONG);
    let queue = db.queue("q");
    (0..3).for_each(|at| _ = queue.send(at).unwrap());
    let before = queue.receive(LONG).unwrap().unwrap();
    fs::copy(&place.file, place.folder.path().join("backup")).unwrap();
    let after = queue.receive(LONG).unwrap().unwrap();
    let sent_after = queue.send("after the backup").unwrap();
    let restored = Litelease::open(place.folder.path().join("backup")).unwrap();
    let floor = restored.restore_fence_above(0).unwrap();
    let queue = restored.queue("q");
    let stale = |receipt: &str| match queue.ack(receipt).unwrap() {
        AckResult::Stale { reason } => reason,
        AckResult::Acknowledged => panic!("{receipt} passes"),
    };
    assert_eq!(stale(&before.receipt), StaleReason::Restored);
    assert_eq!(stale(&after.receipt), StaleReason::Unknown, "the backup never saw that delivery");
    let again = queue.receive_many(10, LONG).unwrap();
    assert_eq!(again.len(), 3, "what was leased is visible at once");
    assert!(again.iter().all(|item| item.token > floor && item.token > after.token));
    assert_eq!(stale(&before.receipt), StaleReason::DeliveredAgain);
    assert!(queue.send("new").unwrap() > sent_after, "an id does not come back either");
    assert!(again.iter().all(|item| item.ack().unwrap().is_acknowledged()));
}

#[test]
fn a_purge_leaves_every_item_and_discard_deletes_the_dead_ones() {
    let db = memory();
    let queue = db.queue("q");
    queue.set_max_attempts(1).unwrap();
    for body in ["expired", "buried", "leased", "visible"] {
        queue.at(100).send_with(body, SendOptions::new().key(body)).unwrap();
    }
    queue.at(100).receive(SHORT).unwrap().unwrap();
    let buried = queue.at(100).receive(LONG).unwrap().unwrap();
    assert!(queue.at(300).bury(&buried.receipt, None).unwrap());
    queue.at(100).receive(LONG).unwrap().unwrap();
    assert_eq!(db.at(400).purge(i64::MAX).unwrap(), 0);
    let counts = |db: &Litelease| {
        let info = db.queue("q").at(400).info().unwrap().unwrap();
        let sql = "SELECT (SELECT count(*) FROM litelease_queue_bodies), (SELECT count(*) FROM litelease_queue_keys)";
        let stored = db.conn().query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        ((info.dead, info.leased, info.visible), stored)
    };
    assert_eq!(counts(&db), ((2, 1, 1), (4i64, 4i64)));
    assert_eq!(queue.at(400).discard().unwrap(), 2);
    assert_eq!(counts(&db), ((0, 1, 1), (2, 2)));
}

#[test]
fn items_of_the_future_are_counted_after_the_clock_went_back() {
    let db = memory();
    db.queue("q").at(1_000).send("x").unwrap();
    let info = db.queue("q").at(100).info().unwrap().unwrap();
    assert_eq!((info.from_the_future, info.delayed, info.visible), (1, 1, 0));
    let info = db.queue("q").at(1_000).info().unwrap().unwrap();
    assert_eq!((info.from_the_future, info.visible, info.oldest_ms), (0, 1, Some(0)));
}

#[test]
fn a_full_disk_leaves_nothing_half_sent() {
    for journal in ["DELETE", "WAL"] {
        let Some(disk) = SmallDisk::new("512k") else {
            report("SKIPPED: a full disk, because mounting a tmpfs is not allowed here");
            return;
        };
        let db = Litelease::open(disk.path().join("app.sqlite3")).unwrap();
        let pragmas = format!("PRAGMA journal_mode = {journal}; PRAGMA synchronous = FULL");
        db.conn().execute_batch(&pragmas).unwrap();
        db.bootstrap().unwrap();
        let queue = db.queue("q");
        queue.send("before").unwrap();
        let ballast = disk.fill();
        let mut failures = 0;
        let mut sent = BTreeSet::new();
        for _ in 0..40 {
            match queue.send_with(vec![7u8; 9_000], SendOptions::new()) {
                Ok(id) => _ = sent.insert(id),
                Err(Error::Sqlite(error) | Error::CommitUnknown(error)) => {
                    failures += 1;
                    assert!(error.to_string().contains("full"), "{journal}: {error}");
                }
                Err(error) => panic!("{journal}: {error:?}"),
            }
            assert!(db.conn().is_autocommit(), "no transaction is left open");
        }
        assert!(failures > 0, "{journal}: the disk never was full");
        fs::remove_file(ballast).unwrap();
        let whole = "SELECT (SELECT count(*) FROM litelease_queue_items) = (SELECT count(*) FROM litelease_queue_bodies)";
        assert!(db.conn().query_row(whole, [], |row| row.get::<_, bool>(0)).unwrap(), "{journal}");
        sent.insert(queue.send(vec![7u8; 9_000]).unwrap());
        let found: BTreeSet<i64> = queue.items().unwrap().iter().map(|item| item.id).collect();
        assert!(found.is_superset(&sent), "{journal}: what was told to be sent is there");
        assert_eq!(queue.receive(LONG).unwrap().unwrap().body, Value::Text("before".into()));
    }
}

/// The lines of a worker, read as they come.
fn lines(child: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn eight_workers_that_are_killed_do_every_effect_exactly_once() {
    let items: i64 =
        std::env::var("LITELEASE_ITEMS").ok().and_then(|items| items.parse().ok()).unwrap_or(400);
    let mut dice = Dice::new("workers killed at random moments");
    let place = TestFolder::new("WAL");
    let mut db = place.open(Duration::from_secs(30));
    db.conn().execute_batch("CREATE TABLE effects (item INTEGER, token INTEGER)").unwrap();
    db.queue("q").set_max_attempts(0).unwrap();
    let tx = db.transaction().unwrap();
    let ids: BTreeSet<i64> = (0..items).map(|at| tx.queue("q").send(at).unwrap()).collect();
    tx.commit().unwrap();
    let start = || worker(WORKER, &["finish-all", "q", "400"], &place.file);
    let mut workers: Vec<Child> = (0..8).map(|_| start()).collect();
    let mut readers = Vec::new();
    let mut kills = 0;
    let began = Instant::now();
    while db.queue("q").next_visible().unwrap().is_some() {
        thread::sleep(Duration::from_millis(dice.below(40)));
        let victim = &mut workers[dice.below(8) as usize];
        victim.kill().unwrap();
        readers.push(output_lines(victim));
        *victim = start();
        kills += 1;
        assert!(began.elapsed() < Duration::from_secs(300), "it takes too long");
    }
    for mut child in workers {
        child.kill().unwrap();
        readers.push(output_lines(&mut child));
    }
    let told: Vec<String> = readers.concat();
    let count = |word: &str| told.iter().filter(|line| line.starts_with(word)).count();
    let (finished, received) = (count("finished"), count("received"));
    let sum = "SELECT count(*), count(DISTINCT item) FROM effects";
    let (effects, distinct): (i64, i64) =
        db.conn().query_row(sum, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    report(&format!(
        "{items} items, {kills} workers killed, {received} deliveries, {finished} told finished: {effects} effects"
    ));
    assert_eq!((effects, distinct), (items, items), "each effect exactly once");
    let mut all = db.conn().prepare("SELECT item FROM effects").unwrap();
    let done: BTreeSet<i64> =
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(done, ids);
    assert!(kills >= 5, "too few kills to mean anything: {kills}");
    let check: String =
        db.conn().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(check, "ok");
}

fn output_lines(child: &mut Child) -> Vec<String> {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_worker_that_was_stopped_past_its_deadline_cannot_finish() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::from_secs(30));
    db.conn().execute_batch("CREATE TABLE effects (item INTEGER, token INTEGER)").unwrap();
    let queue = db.queue("q");
    let id = queue.send("x").unwrap();
    let mut zombie = worker(WORKER, &["finish-later", "q", "200"], &place.file);
    let mut told = lines(&mut zombie);
    assert_eq!(line(&mut told), format!("received {id}"));
    kill(zombie.id() as i32, libc::SIGSTOP);
    let item = eventually("the item is visible again", || queue.receive(LONG).unwrap());
    assert_eq!((item.id, item.attempt), (id, 2));
    // The zombie wakes up while its successor works, and again after that is done.
    let input = zombie.stdin.as_mut().unwrap();
    input.write_all(b"go\n").unwrap();
    kill(zombie.id() as i32, libc::SIGCONT);
    assert_eq!(line(&mut told), "stale receipt: delivered again");
    item.finish(|tx| {
        tx.conn().execute("INSERT INTO effects VALUES (?1, ?2)", (item.id, item.token))?;
        Ok(())
    })
    .unwrap();
    zombie.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    assert_eq!(line(&mut told), "stale receipt: gone");
    zombie.kill().unwrap();
    zombie.wait().unwrap();
    let effects: Vec<i64> = {
        let mut all = db.conn().prepare("SELECT token FROM effects").unwrap();
        all.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(effects, [item.token]);
}

#[test]
fn an_item_in_work_cannot_be_cancelled_and_a_dead_one_can() {
    let db = memory();
    let queue = db.queue("q");
    queue.set_max_attempts(1).unwrap();
    let id = queue.at(100).send("x").unwrap();
    queue.at(100).receive(SHORT).unwrap().unwrap();
    assert_eq!(
        queue.at(149).cancel(ItemName::Id(id)).unwrap(),
        CancelResult::Leased { deadline_ms: 150 }
    );
    assert_eq!(queue.at(150).items().unwrap()[0].state, ItemState::Dead);
    assert_eq!(queue.at(150).cancel(ItemName::Id(id)).unwrap(), CancelResult::Cancelled);
}

/// Reviving 200,000 dead items in one transaction kept every other writer of the file waiting.
#[test]
fn a_change_of_many_items_commits_after_every_slice_unless_the_caller_has_a_transaction() {
    let place = TestFolder::new("WAL");
    for (case, many) in ["redrive", "discard", "delete"].into_iter().enumerate() {
        let run = |db: &Leases| match many {
            "redrive" => db.queue(many).redrive().unwrap(),
            "discard" => db.queue(many).discard().unwrap(),
            _ => u64::from(db.queue(many).delete().unwrap()),
        };
        let expected = if many == "delete" { 1 } else { 2_500 };
        for in_transaction in [false, true] {
            let mut conn = Connection::open(&place.file).unwrap();
            let commits = Arc::new(AtomicI64::new(0));
            let counting = Arc::clone(&commits);
            let count = move || counting.fetch_add(1, Ordering::Relaxed) < 0;
            conn.commit_hook(Some(count)).unwrap();
            let mut db = Litelease::from_connection(conn);
            db.bootstrap().unwrap();
            let fill = db.transaction().unwrap();
            for _ in 0..2_500 {
                fill.queue(many).at(1_000).send("x").unwrap();
            }
            fill.queue(many).set_max_attempts(1).unwrap();
            let ttl = Duration::from_millis(1);
            while fill.queue(many).at(1_000).receive(ttl).unwrap().is_some() {}
            fill.commit().unwrap();
            commits.store(0, Ordering::Relaxed);
            match in_transaction {
                false => {
                    assert_eq!(run(&db), expected);
                    assert_eq!(commits.load(Ordering::Relaxed), 3, "{many}");
                }
                true => {
                    let transaction = db.transaction().unwrap();
                    assert_eq!(run(&transaction), expected);
                    assert_eq!(commits.load(Ordering::Relaxed), 0, "{many}");
                    transaction.rollback().unwrap();
                }
            }
            db.queue(many).delete().unwrap();
        }
        assert_eq!(stored(&Connection::open(&place.file).unwrap()).len(), 1, "{case}: the counter");
    }
}

#[test]
fn a_queue_that_is_deleted_in_part_keeps_the_keys_of_the_items_that_are_left() {
    let db = memory();
    let queue = db.queue("q").at(1_000);
    let keyed = || queue.send_with("x", SendOptions::new().key("k")).unwrap();
    keyed();
    let dead = queue.receive(LONG).unwrap().unwrap();
    assert!(queue.bury(&dead.receipt, None).unwrap());
    for _ in 0..1_000 {
        queue.send("x").unwrap();
    }
    // The key of a dead item is free.
    let live = keyed();
    let (change, when) = (litelease_store::ManyItems::Delete, litelease_store::When::At(1_000));
    let slice = db.with_store(|store| store.change_slice("q", change, 0, when)).unwrap();
    assert_eq!((slice.count, slice.next), (0, Some(0)), "it is not done");
    assert_eq!(keyed(), live, "the key is still in use");
}
