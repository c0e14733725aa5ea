//! The life of a guard: put on, rebuilt, renamed, dumped, dropped, interrupted.

use litelease::rusqlite::Connection;
use litelease::{Error, Guard, Litelease};
use litelease_proof::rig::{LONG, TestFolder, memory};

use super::{SCHEMA, contents, guarded, try_write, two_grants};

#[test]
fn a_guard_joins_the_transaction_of_its_caller() {
    let mut db = guarded(SCHEMA, "twin", &Guard::by_connection());
    let before = contents(db.conn(), "sqlite_schema");
    let rowid = db.conn().last_insert_rowid();
    let tx = db.transaction().unwrap();
    tx.guard("orders", "writer", &Guard::by_connection()).unwrap();
    tx.rollback().unwrap();
    assert_eq!(before, contents(db.conn(), "sqlite_schema"));
    try_write(db.conn(), "DELETE FROM orders", &[]).unwrap();
    assert_eq!(db.conn().last_insert_rowid(), rowid);
}

/// A guard is put on whole or not at all, also inside the caller's transaction.
#[test]
fn a_guard_that_fails_half_way_leaves_nothing() {
    use litelease::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
    let mut connection = guarded(SCHEMA, "twin", &Guard::by_connection()).into_connection();
    let forbid = |context: AuthContext<'_>| match context.action {
        AuthAction::CreateTrigger { trigger_name, .. } if trigger_name.ends_with("delete") => {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    };
    connection.authorizer(Some(forbid)).unwrap();
    let db = Litelease::from_connection(connection);
    let before = contents(db.conn(), "sqlite_schema");
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap_err();
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(before, contents(db.conn(), "sqlite_schema"));
    assert_eq!(db.guards().unwrap().len(), 1);
}

/// An interrupt is an error of its own, and never means that a guard is missing.
#[test]
fn an_interrupted_look_at_the_guards_is_told_as_such() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let mut connection = guarded(SCHEMA, "orders", &Guard::by_column("tok")).into_connection();
    let countdown = Arc::new(AtomicU32::new(u32::MAX));
    let mut interrupted = 0;
    let left = Arc::clone(&countdown);
    let is_over = move || left.fetch_sub(1, Ordering::SeqCst) == 0;
    connection.progress_handler(1, Some(is_over)).unwrap();
    let db = Litelease::from_connection(connection);
    for step in 0..2_000 {
        countdown.store(step, Ordering::SeqCst);
        let listed = db.guards();
        let done = countdown.swap(u32::MAX, Ordering::SeqCst) < u32::MAX / 2;
        match listed {
            Ok(guards) => assert!(guards[0].is_intact, "after {step} steps"),
            Err(Error::Sqlite(error)) => {
                assert_eq!(
                    error.sqlite_error_code(),
                    Some(litelease::rusqlite::ErrorCode::OperationInterrupted)
                );
                interrupted += 1;
            }
            Err(error) => panic!("after {step} steps: {error}"),
        }
        if done {
            break;
        }
    }
    assert!(interrupted > 100, "{interrupted}");
}

#[test]
fn a_rebuild_of_the_table_is_noticed_and_guarding_again_restores_the_fence() {
    let rebuilds = [
        "CREATE TABLE new (id INTEGER PRIMARY KEY, v, extra, tok INTEGER); INSERT INTO new (id, v, tok)
         SELECT id, v, tok FROM orders; DROP TABLE orders; ALTER TABLE new RENAME TO orders",
        "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok INTEGER);
         INSERT INTO orders SELECT id, v, tok FROM old; DROP TABLE old",
        "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (id INTEGER PRIMARY KEY, v, tok INTEGER)",
        "DROP TABLE orders",
        "DROP TRIGGER litelease_guard_1_update",
        "DROP TRIGGER litelease_guard_1_delete; CREATE TRIGGER litelease_guard_1_delete
         AFTER DELETE ON orders BEGIN SELECT 1; END",
        "PRAGMA legacy_alter_table = ON; ALTER TABLE orders RENAME TO elsewhere; ALTER TABLE twin RENAME TO orders",
    ];
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        for rebuild in rebuilds {
            let db = guarded(SCHEMA, "orders", &guard);
            db.conn()
                .execute_batch(
                    "DROP VIEW shown; DROP TRIGGER inbox_insert; PRAGMA foreign_keys = OFF",
                )
                .unwrap();
            assert!(db.present(("writer", 2)).unwrap());
            db.conn().execute_batch(rebuild).unwrap();
            for _ in 0..2 {
                let missing = db.present(("writer", 2));
                assert!(
                    matches!(&missing, Err(Error::GuardMissing { table }) if table == "orders"),
                    "{rebuild}: {missing:?}"
                );
            }
            let missing = db.guards().unwrap();
            assert!(
                missing.iter().any(|guard| guard.table == "orders" && !guard.is_intact),
                "{rebuild}"
            );
            // Another name's guards are not in question, and a failed presentation leaves none
            // behind.
            db.present(("another", 2)).unwrap();
            let presented: Option<i64> = db
                .conn()
                .query_row("SELECT litelease_presented('writer')", [], |row| row.get(0))
                .unwrap();
            assert_eq!(presented, None);
            if rebuild.starts_with("DROP TABLE") {
                assert_eq!(db.unguard("orders", None).unwrap(), 1);
                assert!(db.present(("writer", 2)).unwrap());
                continue;
            }
            db.guard("orders", "writer", &guard)
                .unwrap_or_else(|error| panic!("{rebuild}: {error}"));
            assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact), "{rebuild}");
            assert!(db.present(("writer", 2)).unwrap());
            try_write(
                db.conn(),
                "INSERT INTO orders (id, v, tok) VALUES (90, 'x', 2)",
                &["orders"],
            )
            .unwrap();
            db.present(("writer", 1)).unwrap();
            try_write(
                db.conn(),
                "INSERT INTO orders (id, v, tok) VALUES (91, 'x', 1)",
                &["orders"],
            )
            .unwrap_err();
        }
    }
}

#[test]
fn guards_survive_renames_vacuum_and_dump() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let by_column = guard != Guard::by_connection();
        let place = TestFolder::new("DELETE");
        let db = place.open(LONG);
        db.conn()
            .execute_batch(
                "CREATE TABLE orders (k1, k2, v, tok INTEGER, PRIMARY KEY (k1, k2)) WITHOUT ROWID",
            )
            .unwrap();
        two_grants(&db);
        db.guard("orders", "writer", &guard).unwrap();
        assert!(db.present(("writer", 2)).unwrap());
        db.conn()
            .execute_batch(
                "ALTER TABLE orders RENAME TO \"new \"\"orders\"\"\";
                 ALTER TABLE \"new \"\"orders\"\"\" RENAME COLUMN tok TO \"my \"\"token\"\"\";
                 ALTER TABLE \"new \"\"orders\"\"\" RENAME COLUMN k2 TO second;
                 ALTER TABLE \"new \"\"orders\"\"\" ADD COLUMN more;
                 VACUUM",
            )
            .unwrap();
        let check = |db: &Litelease| {
            let guards = db.guards().unwrap();
            assert!(guards[0].is_intact, "{guards:?}");
            assert_eq!(guards[0].table, "new \"orders\"");
            assert_eq!(guards[0].column.as_deref(), by_column.then_some("my \"token\""));
            for (key, token, passes) in [("x", 1, false), ("y", 2, true)] {
                db.present(("writer", token)).unwrap();
                let sql = format!(
                    "INSERT INTO \"new \"\"orders\"\"\" VALUES ('{key}', 1, 1, {token}, 1)"
                );
                assert_eq!(try_write(db.conn(), &sql, &[]).is_ok(), passes, "{sql}");
            }
            if by_column {
                try_write(db.conn(), "UPDATE \"new \"\"orders\"\"\" SET more = 1", &[])
                    .unwrap_err();
            }
        };
        check(&db);
        // Guarding it under its new names changes nothing; a table of the old name is another
        // table.
        let renamed = if by_column { Guard::by_column("my \"token\"") } else { guard.clone() };
        db.guard("new \"orders\"", "writer", &renamed).unwrap();
        db.conn().execute_batch("CREATE TABLE orders (k1, tok)").unwrap();
        db.present(("writer", 2)).unwrap();

        let dump = std::process::Command::new("sqlite3").arg(&place.file).arg(".dump").output();
        match dump {
            Ok(dump) if dump.status.success() => {
                let restored = Litelease::from_connection(Connection::open_in_memory().unwrap());
                let sql = String::from_utf8(dump.stdout).unwrap();
                restored.conn().execute_batch(&sql).unwrap();
                restored.conn().execute_batch("DELETE FROM orders").unwrap();
                restored.present(("writer", 2)).unwrap();
                if !by_column {
                    restored.conn().execute_batch("DELETE FROM \"new \"\"orders\"\"\"").unwrap();
                    check(&restored);
                }
            }
            _ => println!("SKIPPED: there is no sqlite3 to dump with"),
        }
    }
}

#[test]
fn a_table_that_got_the_old_name_of_a_renamed_one_does_not_inherit_its_guard() {
    let db = guarded(SCHEMA, "twin", &Guard::by_connection());
    db.conn().execute_batch("ALTER TABLE twin RENAME TO moved; CREATE TABLE twin (id, v)").unwrap();
    let missing = db.present(("writer", 2));
    assert!(matches!(missing, Err(Error::GuardMissing { table }) if table == "twin"));
}

#[test]
fn a_table_that_was_renamed_keeps_its_guard_whatever_takes_its_place() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let moved = || {
            let db = guarded("CREATE TABLE t (id, tok)", "t", &guard);
            db.conn().execute_batch("ALTER TABLE t RENAME TO u; CREATE TABLE t (id, tok)").unwrap();
            assert!(
                matches!(db.present(("writer", 2)), Err(Error::GuardMissing { table }) if table == "t")
            );
            try_write(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
            db
        };
        let check = |db: &Litelease, t_is_open: bool| {
            assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact));
            db.present(("writer", 1)).unwrap();
            try_write(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
            assert_eq!(
                try_write(db.conn(), "INSERT INTO t VALUES (1, 1)", &["t"]).is_ok(),
                t_is_open
            );
            assert!(db.present(("writer", 2)).unwrap());
            try_write(db.conn(), "INSERT INTO u VALUES (1, 2)", &["u"]).unwrap();
        };
        let db = moved();
        db.guard("t", "writer", &guard).unwrap();
        check(&db, false);
        let db = moved();
        assert_eq!(db.unguard("T", Some("writer")).unwrap(), 1);
        check(&db, true);
        // A view in the old place writes to the guarded table.
        let db = guarded("CREATE TABLE t (id, tok)", "t", &guard);
        db.conn()
            .execute_batch("ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u")
            .unwrap();
        assert!(db.present(("writer", 2)).unwrap());
        // Two that change places are both guarded.
        let db = guarded("CREATE TABLE t (id, tok); CREATE TABLE u (id, tok)", "t", &guard);
        db.guard("u", "writer", &guard).unwrap();
        db.conn()
            .execute_batch(
                "ALTER TABLE t RENAME TO x; ALTER TABLE u RENAME TO t; ALTER TABLE x RENAME TO u",
            )
            .unwrap();
        check(&db, false);
    }
}

#[test]
fn triggers_without_a_record_are_left_alone() {
    let db = guarded(
        "CREATE TABLE t (id, tok); CREATE TABLE u (id, tok)",
        "t",
        &Guard::by_column("tok"),
    );
    db.conn().execute_batch("DELETE FROM litelease_guarded").unwrap();
    db.guard("u", "writer", &Guard::by_column("tok")).unwrap();
    try_write(db.conn(), "INSERT INTO t VALUES (1, 1)", &["t"]).unwrap_err();
    try_write(db.conn(), "INSERT INTO u VALUES (1, 1)", &["u"]).unwrap_err();
}

#[test]
fn what_is_left_of_a_dropped_table_can_be_forgotten_name_by_name() {
    let db = guarded("CREATE TABLE t (id, tok)", "t", &Guard::by_connection());
    db.guard("t", "second", &Guard::by_connection()).unwrap();
    db.conn().execute_batch("DROP TABLE t").unwrap();
    assert!(matches!(db.present(("second", 1)), Err(Error::GuardMissing { .. })));
    assert_eq!(db.unguard("T", Some("second")).unwrap(), 1);
    // What was found missing for one name says nothing about another.
    assert!(!db.present(("second", 1)).unwrap());
    assert!(matches!(db.present(("writer", 2)), Err(Error::GuardMissing { .. })));
    assert_eq!(db.unguard("t", None).unwrap(), 1);
    assert!(db.present(("writer", 2)).unwrap());
}

/// A migration that comes late drops a column: no trigger fires for that, and it once passed.
#[test]
fn no_column_of_a_guarded_table_can_be_dropped() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let db = memory();
        let drop_column = |column: &str| {
            let sql = format!("ALTER TABLE orders DROP COLUMN {column}");
            db.conn().execute_batch(&sql).map_err(|error| error.to_string())
        };
        let add = "CREATE TABLE orders (id INTEGER PRIMARY KEY, v, \"a \"\"b\"\"\", w AS (id + 1), tok INTEGER)";
        db.conn().execute_batch(add).unwrap();
        db.guard("orders", "writer", &guard).unwrap();
        two_grants(&db);
        db.present(("writer", 1)).unwrap();
        for column in ["v", "\"a \"\"b\"\"\"", "w", "tok"] {
            let refused = drop_column(column).unwrap_err();
            assert!(refused.contains("litelease_guard_1_"), "{column}: {refused}");
        }
        // What is added or renamed later is kept, too: from the next guard on, or at once.
        db.conn()
            .execute_batch(
                "ALTER TABLE orders ADD COLUMN x; ALTER TABLE orders RENAME COLUMN v TO u",
            )
            .unwrap();
        drop_column("u").unwrap_err();
        db.guard("orders", "writer", &guard).unwrap();
        drop_column("x").unwrap_err();
        assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact));
        // Without its trigger, the guard is not whole.
        db.conn().execute_batch("DROP TRIGGER litelease_guard_1_columns").unwrap();
        assert!(matches!(db.present(("writer", 2)), Err(Error::GuardMissing { .. })));
        db.guard("orders", "writer", &guard).unwrap();
        drop_column("x").unwrap_err();
        // A migration takes the guard off.
        assert_eq!(db.unguard("orders", None).unwrap(), 1);
        drop_column("x").unwrap();
    }
}
