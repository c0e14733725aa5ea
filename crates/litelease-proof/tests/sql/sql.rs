//! The SQL functions as guests on another program's connection: their properties, what they refuse,
//! and how they come and go.

use std::process::Command;
use std::time::Duration;

use litelease::rusqlite::{Connection, OpenFlags, ffi, types::Value};
use litelease_proof::rig::{TestFolder, extension, load_extension, report};

/// A connection with the functions registered and the lease table there.
fn memory() -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    litelease::functions::register(&conn).unwrap();
    conn.query_row("SELECT litelease_bootstrap()", [], |_| Ok(())).unwrap();
    conn
}

#[track_caller]
fn one(conn: &Connection, sql: &str) -> Value {
    conn.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

#[track_caller]
fn refused(conn: &Connection, sql: &str) -> String {
    match conn.query_row(sql, [], |row| row.get::<_, Value>(0)) {
        Err(error) => error.to_string(),
        Ok(value) => panic!("{sql} -> {value:?}"),
    }
}

#[test]
fn the_list_of_functions_is_pinned() {
    let conn = memory();
    let sql = "SELECT name || '/' || narg || ' ' || CASE
        WHEN flags & 0x80000 AND NOT flags & 0x200000 THEN 'direct only'
        WHEN flags & 0x200000 AND NOT flags & 0x80000 THEN 'innocuous' ELSE 'neither' END
        FROM pragma_function_list WHERE name LIKE 'litelease_%' AND name NOT LIKE 'litelease_rule_%'
        ORDER BY name, narg";
    let mut list = conn.prepare(sql).unwrap();
    let list: Vec<String> =
        list.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        list,
        [
            "litelease_ack/1 direct only",
            "litelease_admit/2 direct only",
            "litelease_attach/-1 direct only",
            "litelease_bootstrap/0 direct only",
            "litelease_borrow/-1 direct only",
            "litelease_break/-1 direct only",
            "litelease_bury/-1 direct only",
            "litelease_cancel/-1 direct only",
            "litelease_checkpoint/-1 direct only",
            "litelease_claim/-1 direct only",
            "litelease_claim_tick/-1 direct only",
            "litelease_discard/-1 direct only",
            "litelease_drained/-1 innocuous",
            "litelease_ensure/-1 direct only",
            "litelease_extend/-1 direct only",
            "litelease_finish_tick/-1 direct only",
            "litelease_give_back/-1 direct only",
            "litelease_guard/-1 direct only",
            "litelease_hand_over/-1 direct only",
            "litelease_held/1 direct only",
            "litelease_hold/-1 direct only",
            "litelease_keep/-1 direct only",
            "litelease_keep_history/1 direct only",
            "litelease_limit/-1 direct only",
            "litelease_now/0 innocuous",
            "litelease_owner/-1 innocuous",
            "litelease_pool/-1 direct only",
            "litelease_pool_delete/1 direct only",
            "litelease_pool_renew/-1 direct only",
            "litelease_present/2 direct only",
            "litelease_presented/1 innocuous",
            "litelease_presenting/2 direct only",
            "litelease_progress/-1 direct only",
            "litelease_purge/-1 direct only",
            "litelease_queue/-1 direct only",
            "litelease_queue_delete/1 direct only",
            "litelease_raise/1 direct only",
            "litelease_raise/2 direct only",
            "litelease_read/-1 direct only",
            "litelease_receive/-1 direct only",
            "litelease_redrive/-1 direct only",
            "litelease_refused/2 innocuous",
            "litelease_release/-1 direct only",
            "litelease_renew/-1 direct only",
            "litelease_request/-1 direct only",
            "litelease_restore_fence/-1 direct only",
            "litelease_return/-1 direct only",
            "litelease_send/-1 direct only",
            "litelease_take_over/-1 direct only",
            "litelease_tick/-1 direct only",
            "litelease_tick_again/-1 direct only",
            "litelease_tick_forget/-1 direct only",
            "litelease_tick_skip/-1 direct only",
            "litelease_token/1 innocuous",
            "litelease_transfer/-1 direct only",
            "litelease_unguard/-1 direct only",
            "litelease_unhold/1 direct only",
            "litelease_unread/2 direct only",
            "litelease_value/-1 innocuous",
            "litelease_version/0 innocuous",
            "litelease_withdraw_request/2 direct only",
        ]
    );
    let modules: i64 = conn
        .query_row(
            "SELECT count(*) FROM pragma_module_list WHERE name IN
             ('litelease_leases', 'litelease_guards', 'litelease_checkpoint_get', 'litelease_slot',
              'litelease_slots', 'litelease_delivery', 'litelease_items', 'litelease_queues',
              'litelease_readers', 'litelease_requested', 'litelease_ticks')",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(modules, 11);
}

/// PHP's `SQLite3::query` steps a statement to learn whether it has rows, resets it, and
/// `fetchArray` steps it again: so a SELECT that claims was granted its lease unseen, and then got
/// the answer that the name is taken.
#[test]
fn ensure_tells_the_token_to_a_driver_that_executes_a_select_twice() {
    let conn = memory();
    let twice = |sql: &str| -> [Option<i64>; 2] {
        let mut statement = conn.prepare(sql).unwrap();
        [(); 2].map(|()| statement.query_row([], |row| row.get(0)).unwrap())
    };
    assert_eq!(twice("SELECT litelease_claim('x', 'a', 60000)"), [Some(1), None]);
    assert_eq!(twice("SELECT litelease_ensure('x', 'a', 60000)"), [Some(1), Some(1)]);
    assert_eq!(twice("SELECT litelease_ensure('y', 'a', 60000)"), [Some(1), Some(1)]);
    assert_eq!(twice("SELECT litelease_ensure('y', 'b', 60000)"), [None, None]);
}

#[test]
fn wrong_arguments_are_named() {
    let conn = memory();
    for (sql, words) in [
        ("SELECT litelease_claim(NULL, 'a', 5)", "litelease_claim: name must be TEXT, not NULL"),
        ("SELECT litelease_claim(x'61', 'a', 5)", "litelease_claim: name must be TEXT, not a BLOB"),
        (
            "SELECT litelease_claim('x', 7, 5)",
            "litelease_claim: owner must be TEXT, not an INTEGER",
        ),
        (
            "SELECT litelease_claim('x', 'a', '5')",
            "litelease_claim: ttl_ms must be an INTEGER, not TEXT",
        ),
        (
            "SELECT litelease_claim('x', 'a', 5.5)",
            "litelease_claim: ttl_ms must be an INTEGER, not a REAL with a fraction",
        ),
        ("SELECT litelease_claim('x', 7.0, 5)", "litelease_claim: owner must be TEXT, not a REAL"),
        (
            "SELECT litelease_guard('t', 'x', NULL, 0.5)",
            "litelease_guard: strict must be 0 or 1, not a REAL",
        ),
        (
            "SELECT litelease_claim('x', 'a', NULL)",
            "litelease_claim: ttl_ms must be an INTEGER, not NULL",
        ),
        (
            "SELECT litelease_claim('x', 'a', 5, 'now')",
            "now_ms must be an INTEGER, or NULL for the system clock",
        ),
        ("SELECT litelease_claim('x', 'a', 5, 1, NULL)", "min_token must be an INTEGER, not NULL"),
        (
            "SELECT litelease_renew('x', 'a', 5, 1, NULL)",
            "litelease_renew: token must be an INTEGER, not NULL",
        ),
        ("SELECT litelease_owner(NULL)", "litelease_owner: name must be TEXT, not NULL"),
        ("SELECT litelease_purge(NULL)", "litelease_purge: before_ms must be an INTEGER, not NULL"),
        ("SELECT litelease_claim('x')", "wrong number of arguments to function litelease_claim()"),
        ("SELECT litelease_claim('x', 'a', 0)", "the ttl must be at least 1 ms, got 0 ms"),
        ("SELECT * FROM litelease_leases('now')", "litelease_leases: now_ms must be an INTEGER"),
        ("SELECT litelease_pool('p', '4')", "litelease_pool: count must be an INTEGER, not TEXT"),
        ("SELECT litelease_pool('p', -1)", "litelease_pool: a pool has 0 to 1000000 slots, got -1"),
        (
            "SELECT litelease_borrow('p', 5, 1, 7)",
            "note must be TEXT, or NULL for none, not an INTEGER",
        ),
        (
            "SELECT * FROM litelease_slot('p')",
            "lease_id must be TEXT, not NULL: FROM litelease_slot(pool_id, lease_id)",
        ),
        (
            "SELECT * FROM litelease_slots",
            "pool_id must be TEXT, not NULL: FROM litelease_slots(pool_id[, now_ms])",
        ),
        (
            "SELECT * FROM litelease_slots(7)",
            "pool_id must be TEXT, not an INTEGER: FROM litelease_slots(pool_id[, now_ms])",
        ),
        ("SELECT * FROM litelease_slots('p', 'now')", "litelease_slots: now_ms must be an INTEGER"),
        ("SELECT * FROM litelease_slots('p')", "litelease_slots: there is no such pool"),
    ] {
        let error = refused(&conn, sql);
        assert!(error.contains(words), "{sql}: {error}");
    }
    assert_eq!(one(&conn, "SELECT count(*) FROM litelease_resources"), Value::Integer(0));
}

#[test]
fn a_whole_real_is_an_integer_up_to_what_a_real_can_tell_apart() {
    let conn = memory();
    one(&conn, "SELECT litelease_pool('p', 3.0)");
    let claim = |now_ms: f64| {
        let sql = "SELECT litelease_claim('x', 'a', 50.0, ?1)";
        conn.query_row(sql, [now_ms], |row| row.get::<_, i64>(0))
    };
    // JavaScript's largest safe integer is the last one that cannot be a rounded neighbour.
    let largest = 9_007_199_254_740_991.0;
    for (token, now_ms) in (1..).zip([-largest, -0.0, 100.0, largest]) {
        assert_eq!(claim(now_ms).unwrap(), token, "{now_ms}");
        let sql = "SELECT lease_expires_at_ms - 50 FROM litelease_resources WHERE name = 'x'";
        assert_eq!(one(&conn, sql), Value::Integer(now_ms as i64), "{now_ms}");
    }
    let before = one(&conn, "SELECT group_concat(token) FROM litelease_resources");
    let calls = [
        "litelease_claim('y', 'a', ?1)",
        "litelease_claim('y', 'a', 50, ?1)",
        "litelease_claim('y', 'a', 50, 100, ?1)",
        "litelease_ensure('y', 'a', ?1)",
        "litelease_ensure('y', 'a', 50, ?1)",
        "litelease_renew('x', 'a', ?1)",
        "litelease_renew('x', 'a', 50, ?1)",
        "litelease_renew('x', 'a', 50, 100, ?1)",
        "litelease_transfer('x', 'a', 'b', ?1)",
        "litelease_transfer('x', 'a', 'b', 50, ?1)",
        "litelease_transfer('x', 'a', 'b', 50, 100, ?1)",
        "litelease_release('x', 'a', ?1)",
        "litelease_release('x', 'a', 100, ?1)",
        "litelease_break('x', ?1)",
        "litelease_purge(?1)",
        "litelease_purge(100, ?1)",
        "litelease_raise(?1)",
        "litelease_raise('x', ?1)",
        "litelease_restore_fence(?1)",
        "litelease_owner('x', ?1)",
        "litelease_guard('t', 'x', NULL, ?1)",
        "litelease_present('x', ?1)",
        "litelease_checkpoint('x', ?1, 'row')",
        "litelease_admit('x', ?1)",
        "litelease_pool('p', ?1)",
        "litelease_borrow('p', ?1)",
        "litelease_borrow('p', 50, ?1)",
        "litelease_pool_renew('p', 'lease', ?1)",
        "litelease_pool_renew('p', 'lease', 50, ?1)",
        "litelease_return('p', 'lease', ?1)",
        "(SELECT count(*) FROM litelease_leases(?1))",
        "(SELECT count(*) FROM litelease_slots('p', ?1))",
    ];
    for call in calls {
        for real in [30_000.5, 0.1, largest + 1.0, -largest - 1.0, 1e300, f64::INFINITY] {
            let sql = format!("SELECT {call}");
            let refused = conn.query_row(&sql, [real], |row| row.get::<_, Value>(0));
            let error = refused.expect_err(&sql).to_string();
            let named = match real {
                _ if call.contains("litelease_guard(") => "strict must be 0 or 1, not a REAL",
                _ if call.starts_with("(SELECT") => "now_ms must be an INTEGER, or NULL",
                real if real.abs() < 1e6 => "not a REAL with a fraction",
                _ => "not a REAL of 2^53 or more, which may have been rounded",
            };
            assert!(error.contains(named), "{sql} {real}: {error}");
        }
    }
    assert_eq!(one(&conn, "SELECT group_concat(token) FROM litelease_resources"), before);
    // A value is kept as it is.
    one(&conn, "SELECT litelease_checkpoint('x', 4.0, 7.0)");
    let value = one(&conn, "SELECT typeof(value) FROM litelease_checkpoint_get('x')");
    assert_eq!(value, Value::Text("real".into()));
}

#[test]
fn a_missing_table_says_what_to_call() {
    let conn = Connection::open_in_memory().unwrap();
    litelease::functions::register(&conn).unwrap();
    for sql in [
        "SELECT litelease_claim('x', 'a', 5)",
        "SELECT litelease_owner('x')",
        "SELECT litelease_token('x')",
        "SELECT litelease_purge(0)",
        "SELECT * FROM litelease_leases",
        "SELECT litelease_pool('p', 1)",
        "SELECT litelease_borrow('p', 5)",
        "SELECT * FROM litelease_slots('p')",
    ] {
        let error = refused(&conn, sql);
        assert!(error.contains("call litelease_bootstrap() once first"), "{sql}: {error}");
    }
}

#[test]
fn the_arguments_of_a_table_may_come_from_another_in_any_order() {
    let conn = memory();
    one(&conn, "SELECT litelease_pool('p', 2)");
    one(&conn, "SELECT litelease_borrow('p', 50, 100)");
    one(&conn, "SELECT litelease_borrow('p', 50, 120)");
    for sql in [
        "SELECT group_concat(n) FROM (SELECT t, count(*) AS n FROM (SELECT 120 AS t UNION ALL SELECT 150),
         litelease_slots('p', t) GROUP BY t)",
        "SELECT group_concat(n) FROM (SELECT t, count(*) AS n FROM (SELECT 120 AS t, 'p' AS pool UNION ALL
         SELECT 150, 'p'), litelease_slots AS s WHERE s.now_ms = t AND s.pool_id = pool GROUP BY t)",
    ] {
        assert_eq!(one(&conn, sql), Value::Text("2,1".into()), "{sql}");
    }
}

#[test]
fn the_table_of_leases_tells_how_each_stands() {
    let conn = memory();
    for sql in [
        "SELECT litelease_claim('live', 'a', 50, 100)",
        "SELECT litelease_claim('expired', 'b', 10, 100)",
        "SELECT litelease_claim('released', 'c', 50, 100), litelease_release('released', 'c', 110)",
    ] {
        one(&conn, sql);
    }
    let sql =
        "SELECT name, owner, token, expires_at_ms, remaining_ms, state FROM litelease_leases(120)";
    let mut leases = conn.prepare(sql).unwrap();
    let mut shown = Vec::new();
    let mut rows = leases.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let columns: Vec<String> = (0..6)
            .map(|index| match row.get::<_, Value>(index).unwrap() {
                Value::Integer(number) => number.to_string(),
                Value::Text(text) => text,
                _ => "-".into(),
            })
            .collect();
        shown.push(columns.join(" "));
    }
    assert_eq!(
        shown,
        ["expired b 1 110 0 expired", "live a 1 150 30 live", "released - 1 - - released"]
    );
    assert_eq!(
        one(&conn, "SELECT count(*) FROM litelease_leases WHERE state = 'live'"),
        Value::Integer(0)
    );
    assert_eq!(one(&conn, "SELECT count(*) FROM litelease_leases(NULL)"), Value::Integer(3));
    // The time may come from another table of the query.
    let joined = "SELECT group_concat(state) FROM (SELECT 149 AS t UNION ALL SELECT 150), litelease_leases(t)
                  WHERE name = 'live'";
    assert_eq!(one(&conn, joined), Value::Text("live,expired".into()));
}

#[test]
fn the_table_of_leases_reads_only_the_rows_that_are_asked_for() {
    let conn = memory();
    for name in ["b", "c/1", "c/2", "d"] {
        conn.query_row("SELECT litelease_claim(?1, 'a', 30000)", [name], |_| Ok(())).unwrap();
    }
    // Two rows that cannot be read, one at each end.
    conn.execute_batch(
        "PRAGMA ignore_check_constraints = ON;
         INSERT INTO litelease_resources VALUES ('a', 'x', 1, 'soon', 0, 0), ('e', 'x', 1, 'soon', 0, 0)",
    )
    .unwrap();
    let names = |condition: &str| {
        let sql = format!("SELECT name FROM litelease_leases WHERE {condition}");
        let mut statement = conn.prepare(&sql).unwrap();
        let names = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        names.collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(names("name >= 'c/' AND name < 'c0'").unwrap(), ["c/1", "c/2"]);
    assert_eq!(names("name = 'd'").unwrap(), ["d"]);
    assert_eq!(names("name >= 'b' AND name <= 'd' ORDER BY name LIMIT 4").unwrap().len(), 4);
    assert_eq!(
        names("name BETWEEN 'b' AND 'd' ORDER BY name DESC").unwrap(),
        ["d", "c/2", "c/1", "b"]
    );
    assert_eq!(names("name IN ('d', 'b')").unwrap(), ["b", "d"]);
    for condition in ["TRUE", "name <= 'b'", "name = 'A' COLLATE NOCASE", "name > 5"] {
        assert!(names(condition).is_err(), "{condition}");
    }
    // Without those two, any comparison finds what it finds in a table.
    conn.execute_batch("DELETE FROM litelease_resources WHERE name IN ('a', 'e')").unwrap();
    assert_eq!(names("name = 'B' COLLATE NOCASE").unwrap(), ["b"]);
    assert_eq!(names("name > 5 AND name >= 'c' AND name >= 'c/2'").unwrap(), ["c/2", "d"]);
    assert_eq!(names("name LIKE 'C/%'").unwrap(), ["c/1", "c/2"]);
    assert_eq!(names("name = NULL").unwrap(), [""; 0]);
}

#[test]
fn odd_text_comes_back_as_it_was() {
    let conn = memory();
    for text in ["", " ", "a'b\"c", "nul\0byte", "🦀", "cafe\u{301}", &"x".repeat(1 << 20)] {
        let sql = "SELECT litelease_claim(?1, ?1, 30000)";
        assert_eq!(conn.query_row(sql, [text], |row| row.get::<_, i64>(0)).unwrap(), 1);
        let owner: String =
            conn.query_row("SELECT litelease_owner(?1)", [text], |row| row.get(0)).unwrap();
        assert_eq!(owner, text);
        let sql = "SELECT name FROM litelease_leases WHERE name = ?1";
        assert_eq!(conn.query_row(sql, [text], |row| row.get::<_, String>(0)).unwrap(), text);
    }
}

#[test]
fn nothing_in_a_shared_file_can_call_a_function_that_writes() {
    let conn = memory();
    conn.execute_batch(
        "CREATE TABLE t (id);
         CREATE VIEW v AS SELECT litelease_claim('x', 'a', 5);
         CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT litelease_break('x'); END",
    )
    .unwrap();
    for sql in ["SELECT * FROM v", "INSERT INTO t VALUES (1) RETURNING id"] {
        let error = refused(&conn, sql);
        assert!(error.contains("unsafe use of"), "{sql}: {error}");
    }
    let generated = "CREATE TABLE u (a, b AS (litelease_purge(0)))";
    assert!(conn.execute_batch(generated).is_err());
    // Those that only read may be used there, even when the schema is not trusted.
    conn.execute_batch("CREATE VIEW w AS SELECT litelease_owner('x'), litelease_now(); PRAGMA trusted_schema = OFF").unwrap();
    one(&conn, "SELECT * FROM w");
    conn.execute_batch("CREATE VIEW y AS SELECT * FROM litelease_leases").unwrap();
    assert_eq!(one(&conn, "SELECT count(*) FROM y"), Value::Integer(0));
}

#[test]
fn calls_inside_other_statements_do_what_they_say() {
    let conn = memory();
    conn.execute_batch(
        "CREATE TABLE jobs (name); INSERT INTO jobs VALUES ('a'), ('b'), ('c'), ('a')",
    )
    .unwrap();
    // One claim per row, while the statement reads.
    assert_eq!(
        one(&conn, "SELECT sum(litelease_claim(name, 'w', 30000)) FROM jobs"),
        Value::Integer(3)
    );
    // Inside a statement that writes, the claim belongs to that statement's transaction.
    conn.execute_batch("CREATE TABLE taken (name, token)").unwrap();
    conn.execute_batch("INSERT INTO taken SELECT 'd', litelease_claim('d', 'w', 30000)").unwrap();
    assert_eq!(one(&conn, "SELECT token FROM taken"), Value::Integer(1));
    conn.execute_batch(
        "BEGIN; INSERT INTO taken SELECT 'e', litelease_claim('e', 'w', 30000); ROLLBACK",
    )
    .unwrap();
    assert_eq!(one(&conn, "SELECT litelease_token('e')"), Value::Null);
    assert!(conn.is_autocommit());
    conn.execute_batch("INSERT INTO taken VALUES (litelease_claim('f', 'w', 30000), 0)").unwrap();
    assert_eq!(one(&conn, "SELECT litelease_owner('f')"), Value::Text("w".into()));
    let returning = "INSERT INTO taken VALUES ('g', 0) RETURNING litelease_claim('g', 'w', 30000)";
    assert_eq!(one(&conn, returning), Value::Integer(1));
}

#[test]
fn sqlites_own_errors_keep_their_codes() {
    let place = TestFolder::new("WAL");
    place.open(Duration::ZERO);
    let extension = extension();
    for load in [false, true] {
        let conn = place.connect(Duration::ZERO);
        match load {
            true => load_extension(&conn, &extension),
            false => litelease::functions::register(&conn).unwrap(),
        }
        let code = |sql: &str| {
            let error = conn.query_row(sql, [], |_| Ok(())).unwrap_err();
            assert!(
                error.to_string().contains("litelease_claim: cannot claim \"x\" in /"),
                "{error}"
            );
            error.sqlite_error().unwrap().extended_code
        };
        let claim = "SELECT litelease_claim('x', 'a', 30000)";
        let writer = place.connect(Duration::ZERO);
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(code(claim), ffi::SQLITE_BUSY);
        writer.execute_batch("ROLLBACK").unwrap();
        conn.execute_batch("BEGIN; SELECT count(*) FROM litelease_resources").unwrap();
        writer
            .execute_batch("CREATE TABLE IF NOT EXISTS t (id); INSERT INTO t VALUES (1)")
            .unwrap();
        assert_eq!(code(claim), ffi::SQLITE_BUSY_SNAPSHOT);
        conn.execute_batch("ROLLBACK; PRAGMA query_only = ON").unwrap();
        assert_eq!(code(claim), ffi::SQLITE_READONLY);
        let conn =
            Connection::open_with_flags(&place.file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
        litelease::functions::register(&conn).unwrap();
        let error = refused(&conn, claim);
        assert!(error.ends_with("attempt to write a readonly database"), "{error}");
        assert_eq!(one(&conn, "SELECT litelease_bootstrap()"), Value::Integer(1), "nothing to do");
    }
}

#[test]
fn a_plain_close_succeeds_whatever_was_called() {
    let extension = extension();
    for load in [false, true] {
        let place = TestFolder::new("WAL");
        let conn = place.connect(Duration::ZERO);
        match load {
            true => load_extension(&conn, &extension),
            false => litelease::functions::register(&conn).unwrap(),
        }
        for sql in [
            "SELECT litelease_bootstrap()",
            "SELECT litelease_claim('x', 'a', 30000)",
            "SELECT litelease_renew('x', 'a', 60000)",
            "SELECT count(*) FROM litelease_leases",
            "SELECT litelease_purge(0)",
            "SELECT litelease_release('x', 'a')",
        ] {
            one(&conn, sql);
        }
        conn.close().unwrap_or_else(|(_, error)| panic!("loaded: {load}: {error}"));
    }
}

#[test]
fn registering_or_loading_again_changes_nothing() {
    let extension = extension();
    let conn = Connection::open_in_memory().unwrap();
    load_extension(&conn, &extension);
    one(&conn, "SELECT litelease_bootstrap()");
    let mut running =
        conn.prepare("SELECT litelease_claim('x', 'a', 30000) UNION ALL SELECT 2").unwrap();
    let mut rows = running.query([]).unwrap();
    rows.next().unwrap();
    load_extension(&conn, &extension);
    litelease::functions::register(&conn).unwrap();
    rows.next().unwrap();
    drop(rows);
    drop(running);
    assert_eq!(one(&conn, "SELECT litelease_owner('x')"), Value::Text("a".into()));
    conn.close().unwrap();
}

#[test]
fn a_schema_change_under_kept_statements_is_noticed() {
    let place = TestFolder::new("WAL");
    let conn = place.connect(Duration::ZERO);
    litelease::functions::register(&conn).unwrap();
    one(&conn, "SELECT litelease_bootstrap()");
    one(&conn, "SELECT litelease_claim('x', 'a', 30000)");
    let other = place.connect(Duration::ZERO);
    other.execute_batch("CREATE TABLE mine (id)").unwrap();
    assert_eq!(one(&conn, "SELECT litelease_renew('x', 'a', 60000)"), Value::Integer(1));
    other.execute_batch("ALTER TABLE litelease_resources ADD COLUMN note").unwrap();
    let error = refused(&conn, "SELECT litelease_renew('x', 'a', 60000)");
    assert!(error.contains("updated_at_ms INTEGER NOT NULL, note, CHECK"), "{error}");
}

#[test]
fn connections_and_threads_do_not_disturb_each_other() {
    let place = TestFolder::new("WAL");
    let extension = extension();
    place.open(Duration::ZERO);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (place, extension) = (&place, &extension);
            scope.spawn(move || {
                let conn = place.connect(Duration::from_secs(60));
                match thread % 2 {
                    0 => load_extension(&conn, extension),
                    _ => litelease::functions::register(&conn).unwrap(),
                }
                for round in 1..=25 {
                    let name = format!("thread {thread}");
                    let claim = "SELECT litelease_claim(?1, 'a', 30000)";
                    let token: i64 = conn.query_row(claim, [&name], |row| row.get(0)).unwrap();
                    assert_eq!(token, round);
                    let release = "SELECT litelease_release(?1, 'a')";
                    let done: i64 = conn.query_row(release, [&name], |row| row.get(0)).unwrap();
                    assert_eq!(done, 1);
                }
                conn.close().unwrap();
            });
        }
    });
}

#[test]
fn the_extension_contains_no_sqlite() {
    let Ok(output) = Command::new("nm").args(["-D"]).arg(extension()).output() else {
        report("SKIPPED: the symbols of the extension, because nm is missing");
        return;
    };
    let symbols = String::from_utf8(output.stdout).unwrap();
    let mut sqlite: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.rsplit(' ').next())
        .filter(|symbol| symbol.starts_with("sqlite3"))
        .collect();
    sqlite.sort_unstable();
    assert_eq!(sqlite, ["sqlite3_extension_init", "sqlite3_liteleaseext_init"]);
}

#[test]
fn the_same_mistake_gives_the_same_error_every_time() {
    let conn = Connection::open_in_memory().unwrap();
    litelease::functions::register(&conn).unwrap();
    for _ in 0..3 {
        for sql in ["SELECT litelease_renew('x', 'a', 5)", "SELECT litelease_break('x')"] {
            let error = refused(&conn, sql);
            assert!(error.contains("call litelease_bootstrap() once first"), "{sql}: {error}");
        }
    }
}

#[test]
fn a_scan_of_the_leases_ends_even_if_it_makes_new_ones() {
    let conn = memory();
    one(&conn, "SELECT litelease_claim('x', 'a', 30000)");
    let sql = "SELECT count(litelease_claim(name || 'x', 'a', 30000)) FROM litelease_leases";
    assert_eq!(one(&conn, sql), Value::Integer(1));
    assert_eq!(one(&conn, "SELECT count(*) FROM litelease_leases"), Value::Integer(2));
    // The time may be given twice.
    assert_eq!(
        one(&conn, "SELECT count(*) FROM litelease_leases(100) WHERE now_ms = 100"),
        Value::Integer(2)
    );
    assert_eq!(
        one(&conn, "SELECT count(*) FROM litelease_leases(100) WHERE now_ms = 101"),
        Value::Integer(0)
    );
}

#[test]
fn the_module_outlives_its_registration() {
    let conn = memory();
    let mut prepared = conn.prepare("SELECT count(*) FROM litelease_leases").unwrap();
    assert_eq!(prepared.query_row([], |row| row.get::<_, i64>(0)).unwrap(), 0);
    // SAFETY: the connection is open.
    unsafe { ffi::sqlite3_drop_modules(conn.handle(), std::ptr::null_mut()) };
    drop(prepared);
    assert_eq!(one(&conn, "SELECT litelease_claim('x', 'a', 30000)"), Value::Integer(1));
    conn.close().unwrap();
}

#[test]
fn an_unknown_outcome_keeps_sqlites_code_and_says_so() {
    let place = TestFolder::new("WAL");
    place.open(Duration::ZERO);
    let conn = place.connect(Duration::ZERO);
    litelease::functions::register(&conn).unwrap();
    let Value::Integer(pages) = one(&conn, "PRAGMA page_count") else { panic!() };
    one(&conn, &format!("PRAGMA max_page_count = {pages}"));
    let sql = "SELECT litelease_claim(?1, 'a', 30000)";
    let error = conn.query_row(sql, ["x".repeat(100_000)], |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("it is not known whether the change was stored"), "{error}");
    assert_eq!(error.sqlite_error().unwrap().extended_code, ffi::SQLITE_FULL);
}

#[test]
fn an_effect_and_its_acknowledgement_are_one_statement_in_the_callers_transaction() {
    let conn = memory();
    conn.execute_batch(
        "CREATE TABLE job (receipt);
         CREATE TABLE effects (id INTEGER NOT NULL UNIQUE);
         BEGIN;
         INSERT INTO effects SELECT litelease_send('mail', 'welcome');
         INSERT INTO job SELECT litelease_receive('mail', 60000);
         COMMIT;",
    )
    .unwrap();
    let items = "SELECT count(*) FROM litelease_items('mail')";
    let effect = "INSERT INTO effects SELECT ?1 FROM job WHERE litelease_ack(receipt)";
    conn.execute_batch("BEGIN").unwrap();
    // The effect fails after the acknowledgement: neither is there.
    conn.execute("INSERT INTO effects VALUES (7)", []).unwrap();
    conn.execute(effect, [7]).unwrap_err();
    assert_eq!(one(&conn, items), Value::Integer(1));
    assert_eq!(conn.execute(effect, [8]).unwrap(), 1);
    assert_eq!(one(&conn, items), Value::Integer(0));
    // A stale receipt ends its statement only.
    let stale = conn.execute(effect, [9]).unwrap_err().to_string();
    assert!(stale.contains("stale receipt: gone"), "{stale}");
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(
        one(&conn, "SELECT group_concat(id) FROM effects WHERE id > 6"),
        Value::Text("7,8".into())
    );
}

#[test]
fn what_fails_halfway_inside_a_writing_statement_rolls_the_transaction_back() {
    let conn = memory();
    conn.execute_batch(
        "CREATE TABLE job (receipt);
         SELECT litelease_send('mail', 'welcome');
         INSERT INTO job SELECT litelease_receive('mail', 60000);
         DELETE FROM litelease_queue_bodies;
         BEGIN;",
    )
    .unwrap();
    // The item goes first, and then its body is not there.
    let error = conn.execute("UPDATE job SET receipt = litelease_ack(receipt)", []).unwrap_err();
    assert!(error.to_string().contains("body"), "{error}");
    assert!(conn.is_autocommit());
    assert_eq!(one(&conn, "SELECT count(*) FROM litelease_items('mail')"), Value::Integer(1));
}
