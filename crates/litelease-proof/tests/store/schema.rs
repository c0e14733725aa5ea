//! The schema check: what is not ours is refused by name, before and after it was used.

use std::time::Duration;

use litelease::RequestResult;
use litelease::rusqlite::Connection;
use litelease::{AdmitResult, CheckpointResult, Error, Guard, Litelease, LiteleaseRef, is_stale};
use litelease_proof::rig::{LONG, TestFolder, acquired};

const RIGHT: &str = "CREATE TABLE litelease_resources (
  name TEXT PRIMARY KEY,
  owner TEXT,
  token INTEGER NOT NULL CHECK (token >= 1),
  lease_expires_at_ms INTEGER,
  created_at_ms INTEGER NOT NULL,
  updated_at_ms INTEGER NOT NULL,
  CHECK (
    (owner IS NULL AND lease_expires_at_ms IS NULL)
    OR (owner IS NOT NULL AND lease_expires_at_ms IS NOT NULL)
  )
)";

fn memory(sql: &str) -> Litelease {
    let conn = Connection::open_in_memory().unwrap();
    conn.execute_batch(sql).unwrap();
    Litelease::from_connection(conn)
}

#[track_caller]
fn mismatch<T: std::fmt::Debug>(result: litelease::Result<T>) -> String {
    match result {
        Err(Error::SchemaMismatch { table, reason }) => format!("{table}: {reason}"),
        other => panic!("not a schema mismatch: {other:?}"),
    }
}

#[test]
fn a_table_written_elsewhere_is_ours_whatever_its_white_space() {
    for sql in [RIGHT.to_owned(), RIGHT.replace('\n', " "), RIGHT.replace(' ', "\n\t")] {
        let db = memory(&sql);
        db.bootstrap().unwrap();
        assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1);
    }
    let db = memory(&RIGHT.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"));
    db.bootstrap().unwrap();
}

/// What may stand in the place of a name in SQL: SQLite takes all of these for the same identifier.
const QUOTES: [(&str, &str); 3] = [("\"", "\""), ("`", "`"), ("[", "]")];

#[test]
fn a_table_written_elsewhere_is_ours_however_its_names_are_quoted() {
    for (open, close) in QUOTES {
        for name in ["litelease_resources", "name", "owner", "token", "lease_expires_at_ms"] {
            let db = memory(&RIGHT.replace(name, &format!("{open}{name}{close}")));
            db.bootstrap().unwrap();
            assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1);
            // Its constraints are those of the columns, and not of strings.
            let row = "INSERT INTO litelease_resources VALUES ('y', 'a', 1, NULL, 0, 0)";
            assert!(db.conn().execute(row, []).is_err(), "{name}");
            let row = "INSERT INTO litelease_resources VALUES ('y', NULL, 0, NULL, 0, 0)";
            assert!(db.conn().execute(row, []).is_err(), "{name}");
        }
    }
}

/// A file that has every table of ours, and guarded tables by connection and by column.
fn with_everything() -> Litelease {
    let db = with_floor();
    db.conn()
        .execute_batch(
            "CREATE TABLE orders (text); CREATE TABLE ledger (text, lease_token INTEGER)",
        )
        .unwrap();
    db.guard("orders", "x", &Guard::by_connection().strict()).unwrap();
    db.guard("ledger", "x", &Guard::by_column("lease_token")).unwrap();
    let lease = acquired(db.claim("x", "a", LONG));
    assert_eq!(db.checkpoint(("x", lease.token), "row 1").unwrap(), CheckpointResult::Stored);
    assert!(db.attach(("x", lease.token), "here").unwrap().is_done());
    assert!(db.limit(("x", lease.token), Some(LONG), None).unwrap().is_done());
    assert!(matches!(db.request("x", "r", LONG).unwrap(), RequestResult::Requested { .. }));
    assert_eq!(db.admit("printer", 7).unwrap(), AdmitResult::Admitted);
    db.pools().register("p", 1000).unwrap();
    db
}

/// Uses every table of ours, through a handle that is new and through one that is not.
#[track_caller]
fn everything_works(db: &Litelease, after: &str) {
    let conn = db.conn();
    let fresh = LiteleaseRef::new(conn);
    for db in [&**db, &*fresh] {
        db.bootstrap().unwrap_or_else(|error| panic!("{after}: {error}"));
        let _ = db.break_lease("x").unwrap();
        let lease = acquired(db.claim("x", "a", LONG));
        let guards = db.guards().unwrap();
        assert!(
            guards.len() == 2 && guards.iter().all(|guard| guard.is_intact),
            "{after}: {guards:?}"
        );
        assert!(db.present(("x", lease.token)).unwrap(), "{after}");
        conn.execute("INSERT INTO orders VALUES ('ours')", []).unwrap();
        let by_column = "INSERT INTO ledger VALUES ('ours', ?1)";
        conn.execute(by_column, [lease.token]).unwrap();
        assert!(is_stale(&conn.execute(by_column, [lease.token - 1]).unwrap_err()), "{after}");
        assert_eq!(
            db.checkpoint(("x", lease.token), "row 2").unwrap(),
            CheckpointResult::Stored,
            "{after}"
        );
        assert!(db.limit(("x", lease.token), Some(LONG), None).unwrap().is_done(), "{after}");
        assert!(db.progress(("x", lease.token)).unwrap().is_done(), "{after}");
        let asked = db.request("x", "r", LONG).unwrap();
        assert!(matches!(asked, RequestResult::Requested { .. }), "{after}");
        assert_eq!(db.requested("x").unwrap().unwrap().token, lease.token, "{after}");
        assert!(db.renew(&lease, LONG).unwrap().renewed().is_some(), "{after}");
        assert!(db.attach(("x", lease.token), 7).unwrap().is_done(), "{after}");
        assert_eq!(db.value("x").unwrap(), Some(7.into()), "{after}");
        assert_eq!(db.admit("printer", 7).unwrap(), AdmitResult::Admitted, "{after}");
        assert!(db.pools().borrow("p", LONG).unwrap().is_some(), "{after}");
        db.purge(0).unwrap();
    }
}

#[test]
fn a_table_that_sqlite_itself_respelled_is_still_ours() {
    let db = with_everything();
    everything_works(&db, "nothing");
    let list = |sql: &str| -> Vec<String> {
        let mut statement = db.conn().prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let tables =
        list("SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'litelease%'");
    assert_eq!(tables.len(), 10, "{tables:?}");
    for table in tables {
        let there_and_back =
            format!("ALTER TABLE {table} RENAME TO away; ALTER TABLE away RENAME TO {table}");
        db.conn().execute_batch(&there_and_back).unwrap();
        let sql = list(&format!("SELECT sql FROM sqlite_schema WHERE name = '{table}'"));
        assert!(sql[0].starts_with(&format!("CREATE TABLE \"{table}\" (")), "{sql:?}");
        everything_works(&db, &there_and_back);
        for column in list(&format!("SELECT name FROM pragma_table_xinfo('{table}')")) {
            for (open, close) in [("", ""), ("\"", "\"")] {
                let there_and_back = format!(
                    "ALTER TABLE {table} RENAME COLUMN {column} TO \"a way\";
                     ALTER TABLE {table} RENAME COLUMN \"a way\" TO {open}{column}{close}"
                );
                db.conn().execute_batch(&there_and_back).unwrap();
                everything_works(&db, &there_and_back);
            }
        }
        // The reason shows what was added, and what was added can be taken away again.
        db.conn().execute_batch(&format!("ALTER TABLE {table} ADD COLUMN notes TEXT")).unwrap();
        let refused = [
            db.bootstrap().err(),
            db.guards().err(),
            db.last_checkpoint("x").err(),
            db.value("x").err(),
            db.renew_by_owner("x", "a", LONG).err(),
            db.admit("printer", 7).err(),
            db.pools().borrow("p", LONG).err(),
        ];
        let reason =
            format!("the table {table} is not as Litelease makes it: it is `CREATE TABLE ");
        let is_it = |error: &Error| {
            let text = error.to_string();
            text.contains(&reason) && text.contains("notes TEXT")
        };
        assert!(refused.iter().flatten().any(is_it), "{refused:?}");
        db.conn().execute_batch(&format!("ALTER TABLE {table} DROP COLUMN notes")).unwrap();
        everything_works(&db, &format!("a column that came to {table} and went"));
    }
}

#[test]
fn an_index_that_changes_no_answer_is_tolerated() {
    let db = memory(&format!("{RIGHT}; CREATE INDEX i ON litelease_resources (owner)"));
    db.bootstrap().unwrap();
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1);
}

#[test]
fn what_bootstrap_makes_is_the_documented_table() {
    let db = memory("");
    db.bootstrap().unwrap();
    let made: String = db
        .conn()
        .query_row("SELECT sql FROM sqlite_schema WHERE name = 'litelease_resources'", [], |row| {
            row.get(0)
        })
        .unwrap();
    assert_eq!(made, RIGHT);
    let tables: i64 = db
        .conn()
        .query_row("SELECT count(*) FROM sqlite_schema WHERE type = 'table'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(tables, 1, "a plain user meets one table");
}

#[test]
fn a_wrong_schema_is_refused_and_the_reason_shows_both_definitions() {
    let with = |from: &str, to: &str| RIGHT.replace(from, to);
    let tables = [
        with("owner TEXT,", "owner TEXT, note TEXT,"),
        with("  name TEXT PRIMARY KEY,\n  owner TEXT,", "  owner TEXT,\n  name TEXT PRIMARY KEY,"),
        with("owner TEXT,", "owner VARCHAR,"),
        with("owner TEXT,", "owner TEXT\u{a0},"),
        with("owner TEXT,", "owner \"TEXT\","),
        with("owner TEXT,", "owner TEXT NOT NULL,"),
        with("name TEXT PRIMARY KEY", "name TEXT UNIQUE"),
        with("name TEXT PRIMARY KEY", "name TEXT COLLATE NOCASE PRIMARY KEY"),
        with("token INTEGER NOT NULL CHECK (token >= 1)", "token INTEGER NOT NULL"),
        with("token >= 1", "token >= 0"),
        with("(token >= 1", "('token' >= 1"),
        with("INTEGER NOT NULL CHECK", "INTEGER CHECK"),
        with("created_at_ms INTEGER NOT NULL", "created_at_ms INTEGER"),
        with("created_at_ms", "born_at_ms"),
        with("(owner IS NULL", "(\"nobody\" IS NULL"),
        with("(owner IS NULL", "('owner' IS NULL"),
        with(
            ",\n  CHECK (\n    (owner IS NULL AND lease_expires_at_ms IS NULL)\n    OR (owner IS NOT NULL AND lease_expires_at_ms IS NOT NULL)\n  )",
            "",
        ),
        with("litelease_resources", "Litelease_Resources"),
        with("litelease_resources", "'litelease_resources'"),
        format!("{RIGHT} WITHOUT ROWID"),
        format!("{RIGHT} STRICT"),
        with("owner TEXT,", "owner TEXT, -- who"),
        with("owner TEXT,", "owner TEXT /* , */,"),
        "CREATE VIRTUAL TABLE litelease_resources USING rtree(a, b, c)".into(),
    ];
    let one_line = |sql: &str| sql.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let tables = tables.map(|sql| {
        assert_ne!(sql, RIGHT);
        let reason = format!("it is `{}`, and should be `{}`", one_line(&sql), one_line(RIGHT));
        (sql, reason)
    });
    let others = [
        ("CREATE VIEW litelease_resources AS SELECT 1 AS name".into(), "it is a view"),
        (
            format!(
                "{RIGHT}; CREATE TRIGGER t BEFORE UPDATE ON litelease_resources BEGIN SELECT RAISE(IGNORE); END"
            ),
            "it has a trigger that is not ours, \"t\"",
        ),
        (
            format!(
                "{RIGHT}; CREATE TEMP TRIGGER t BEFORE INSERT ON main.litelease_resources BEGIN SELECT RAISE(IGNORE); END"
            ),
            "it has a trigger that is not ours, \"t\"",
        ),
        (
            format!("{RIGHT}; CREATE UNIQUE INDEX i ON litelease_resources (owner)"),
            "it has a unique index that is not ours, \"i\"",
        ),
    ];
    let others = others.map(|(sql, reason)| (sql, reason.to_owned()));
    for (sql, expected) in tables.into_iter().chain(others) {
        let db = memory(&sql);
        for reason in [
            mismatch(db.bootstrap()),
            mismatch(db.claim("x", "a", LONG)),
            mismatch(db.renew_by_owner("x", "a", LONG)),
            mismatch(db.inspect("x")),
            mismatch(db.purge(0)),
        ] {
            let reason = reason.strip_prefix("litelease_resources: ").unwrap_or_default();
            assert!(reason.starts_with(&expected), "{sql}: {reason}");
        }
        assert!(db.conn().is_autocommit(), "no transaction is left open");
    }
}

#[test]
fn a_missing_table_says_to_bootstrap() {
    let mut db = memory("CREATE TABLE mine (id)");
    for error in [
        db.claim("x", "a", LONG).unwrap_err(),
        db.renew_by_owner("x", "a", LONG).unwrap_err(),
        db.release_by_owner("x", "a").unwrap_err(),
        db.break_lease("x").unwrap_err(),
        db.inspect("x").unwrap_err(),
        db.token("x").unwrap_err(),
        db.purge(0).unwrap_err(),
        db.transaction().unwrap().claim("x", "a", LONG).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotBootstrapped), "{error:?}");
        assert!(error.to_string().contains("bootstrap()"));
    }
    let conn = db.into_connection();
    conn.execute_batch("BEGIN").unwrap();
    let deferred = LiteleaseRef::new(&conn).claim("x", "a", LONG);
    assert!(matches!(deferred, Err(Error::NotBootstrapped)), "{deferred:?}");
}

#[test]
fn temporary_and_attached_tables_of_our_name_are_never_taken_for_ours() {
    let other = TestFolder::new("DELETE");
    other.open(Duration::ZERO);
    let attach = format!("ATTACH '{}' AS other", other.file.display());
    for disguise in [attach, RIGHT.replace("CREATE TABLE", "CREATE TEMP TABLE")] {
        let db = memory(&disguise);
        let missing = db.claim("x", "a", LONG);
        assert!(matches!(missing, Err(Error::NotBootstrapped)), "{disguise}: {missing:?}");
        db.bootstrap().unwrap();
        assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1, "{disguise}");
        let rows: i64 = db
            .conn()
            .query_row("SELECT count(*) FROM main.litelease_resources", [], |row| row.get(0))
            .unwrap();
        assert_eq!(rows, 1, "{disguise}");
    }
    assert_eq!(other.open(Duration::ZERO).token("x").unwrap(), None);
}

#[test]
fn a_schema_that_drifts_under_an_open_handle_is_noticed_at_the_next_call() {
    let drifts = [
        ("ALTER TABLE litelease_resources ADD COLUMN note TEXT", "NOT NULL, note TEXT, CHECK"),
        ("CREATE TRIGGER t AFTER UPDATE ON litelease_resources BEGIN SELECT 1; END", "trigger"),
        (
            "CREATE TEMP TRIGGER t BEFORE UPDATE ON main.litelease_resources BEGIN SELECT RAISE(IGNORE); END",
            "trigger",
        ),
        (
            "ALTER TABLE litelease_resources RENAME TO old; CREATE VIEW litelease_resources AS SELECT rowid, * FROM old",
            "view",
        ),
    ];
    for (drift, named) in drifts {
        for by_another in [false, true] {
            if by_another && drift.contains("TEMP") {
                continue; // a temporary trigger exists on its own connection only
            }
            let place = TestFolder::new("WAL");
            let db = place.open(Duration::ZERO);
            let lease = acquired(db.claim("x", "a", LONG));
            match by_another {
                true => place.connect(Duration::ZERO).execute_batch(drift).unwrap(),
                false => db.conn().execute_batch(drift).unwrap(),
            }
            for reason in [
                mismatch(db.renew(&lease, LONG)),
                mismatch(db.claim("x", "b", LONG)),
                mismatch(db.inspect("x")),
            ] {
                assert!(reason.contains(named), "{drift}: {reason}");
            }
        }
    }
}

#[test]
fn a_table_dropped_under_an_open_handle_is_missing_and_can_be_made_again() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    acquired(db.claim("x", "a", LONG));
    place.connect(Duration::ZERO).execute_batch("DROP TABLE litelease_resources").unwrap();
    assert!(matches!(db.claim("x", "a", LONG), Err(Error::NotBootstrapped)));
    db.bootstrap().unwrap();
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1);
}

#[test]
fn a_schema_change_that_is_none_of_our_business_changes_nothing() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    let lease = acquired(db.claim("x", "a", LONG));
    let other = place.connect(Duration::ZERO);
    for change in [
        "CREATE TABLE mine (id)",
        "ALTER TABLE mine ADD COLUMN note",
        "DROP TABLE mine",
        "VACUUM",
        "ANALYZE",
    ] {
        other.execute_batch(change).unwrap();
        assert!(
            matches!(db.renew(&lease, LONG), Ok(litelease::RenewResult::Renewed(_))),
            "{change}"
        );
    }
}

/// A file with a token floor, and one free name.
fn with_floor() -> Litelease {
    let db = memory("");
    db.bootstrap().unwrap();
    acquired(db.at(100).claim("old", "a", Duration::from_millis(50)));
    assert_eq!(db.at(200).purge(200).unwrap(), 1);
    db
}

#[test]
fn a_newer_format_is_refused_by_name() {
    for upgrade in [
        "UPDATE litelease_meta SET format = 7",
        "UPDATE litelease_meta SET format = 7; ALTER TABLE litelease_meta ADD COLUMN more",
        "UPDATE litelease_meta SET format = 7; ALTER TABLE litelease_meta DROP COLUMN boot",
        "UPDATE litelease_meta SET format = 7; ALTER TABLE litelease_resources ADD COLUMN more",
        "UPDATE litelease_meta SET format = 7; ALTER TABLE litelease_resources RENAME TO elsewhere",
    ] {
        let db = with_floor();
        acquired(db.claim("y", "a", LONG)); // its statements have met the old one
        db.conn().execute_batch(upgrade).unwrap();
        let refused = db.claim("x", "a", LONG);
        assert!(matches!(refused, Err(Error::NewerFormat { found: 7, known: 1 })), "{refused:?}");
        let refused = db.restore_fence();
        assert!(matches!(refused, Err(Error::NewerFormat { found: 7, known: 1 })), "{refused:?}");
        assert!(matches!(db.bootstrap(), Err(Error::NewerFormat { .. })));
        let reader = Litelease::from_connection(db.into_connection());
        assert!(matches!(reader.inspect("x"), Err(Error::NewerFormat { .. })));
    }
}

#[test]
fn a_damaged_floor_is_refused_and_never_taken_for_no_floor() {
    for damage in [
        "DELETE FROM litelease_meta",
        "UPDATE litelease_meta SET format = 0",
        "UPDATE litelease_meta SET format = 'one'",
        "UPDATE litelease_meta SET token_floor = 'many'",
        "UPDATE litelease_meta SET token_floor = 1.5",
        "PRAGMA ignore_check_constraints = 1; UPDATE litelease_meta SET token_floor = -1",
        "PRAGMA ignore_check_constraints = 1; INSERT INTO litelease_meta VALUES (0, 0, 0, 0)",
        "PRAGMA ignore_check_constraints = 1; INSERT INTO litelease_meta VALUES (0, 1, 0, 0)",
        "PRAGMA ignore_check_constraints = 1; UPDATE litelease_meta SET id = 2",
        "UPDATE litelease_meta SET boot = 'mine'",
        "UPDATE litelease_meta SET boot = 1.5",
        "ALTER TABLE litelease_meta ADD COLUMN more",
        "ALTER TABLE litelease_meta DROP COLUMN boot",
        "ALTER TABLE litelease_meta RENAME COLUMN format TO version",
        "DROP TABLE litelease_meta; CREATE VIEW litelease_meta AS SELECT 1 AS id, 1 AS format, 0 AS token_floor",
        "CREATE TRIGGER t BEFORE UPDATE ON litelease_meta BEGIN SELECT RAISE(IGNORE); END",
    ] {
        let db = with_floor();
        acquired(db.claim("x", "a", LONG)); // its statements have met the floor
        db.conn().execute_batch(damage).unwrap();
        for reason in [
            mismatch(db.claim("new", "a", LONG)),
            mismatch(db.ensure("new", "a", LONG)),
            mismatch(db.transfer_by_owner("x", "a", "b", LONG)),
            mismatch(db.break_lease("x")),
            mismatch(db.purge(0)),
            mismatch(db.raise(5000)),
            mismatch(db.raise_name("x", 5000)),
            mismatch(db.restore_fence()),
        ] {
            assert!(reason.starts_with("litelease_meta: "), "{damage}: {reason}");
        }
    }
}

#[test]
fn statements_are_compiled_once_and_not_for_every_name() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static COMPILED: AtomicUsize = AtomicUsize::new(0);
    use litelease::rusqlite::hooks::{AuthContext, Authorization};
    for purges in [false, true] {
        let mut conn = Connection::open_in_memory().unwrap();
        conn.authorizer(Some(|_: AuthContext<'_>| {
            COMPILED.fetch_add(1, Ordering::Relaxed);
            Authorization::Allow
        }))
        .unwrap();
        let db = Litelease::from_connection(conn);
        db.bootstrap().unwrap();
        if purges {
            acquired(db.at(100).claim("old", "a", Duration::from_millis(50)));
            db.at(200).purge(200).unwrap();
        }
        let cycle = |name: &str| {
            let lease = acquired(db.claim(name, "a", LONG));
            let _ = db.renew(&lease, LONG).unwrap();
            let _ = db.claim(name, "b", LONG).unwrap();
            db.release(&lease).unwrap();
            acquired(db.claim(name, "a", LONG));
            let _ = db.break_lease(name).unwrap();
        };
        cycle("warm");
        COMPILED.store(0, Ordering::Relaxed);
        for name in ["x", "y", "z"] {
            cycle(name);
        }
        assert_eq!(COMPILED.load(Ordering::Relaxed), 0, "with a floor: {purges}");
    }
}

/// A worker that was started before the first item was sent found some of the tables missing, and
/// ended: another connection had made all of them between two of its reads.
#[test]
fn tables_that_another_connection_makes_between_two_reads_are_all_there() {
    use litelease::rusqlite::hooks::{AuthContext, Authorization};
    type Verb = fn(&Litelease) -> litelease::Result<()>;
    let verbs: [(Verb, Verb); 2] = [
        (|db| db.queue("mail").send("x").map(drop), |db| db.queue("mail").next_visible().map(drop)),
        (|db| db.pools().register("p", 2).map(drop), |db| db.pools().info("p").map(drop)),
    ];
    for (make, read) in verbs {
        let mut moments = 0..;
        loop {
            let moment = moments.next().unwrap();
            let folder = TestFolder::new("WAL");
            let maker = folder.open(LONG);
            let mut conn = Connection::open(&folder.file).unwrap();
            let mut compiled = 0;
            let when = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let was_made = when.clone();
            conn.authorizer(Some(move |_: AuthContext<'_>| {
                if compiled == moment {
                    make(&maker).unwrap();
                    was_made.store(true, std::sync::atomic::Ordering::SeqCst);
                }
                compiled += 1;
                Authorization::Allow
            }))
            .unwrap();
            let reader = Litelease::from_connection(conn);
            assert_eq!(read(&reader).map_err(|error| error.to_string()), Ok(()), "at {moment}");
            if !when.load(std::sync::atomic::Ordering::SeqCst) {
                assert!(moment > 10, "it reads more often than {moment} times");
                break;
            }
        }
    }
}
