//! Ways around a guard: those that are closed, and those that the documents name.

use litelease::rusqlite::config::DbConfig;
use litelease::{Error, Guard, Litelease};
use litelease_proof::rig::{LONG, TestFolder, acquired};

use super::{SCHEMA, guarded, try_write, two_grants};

#[test]
fn a_zombie_is_refused_where_the_guarded_file_is_attached_to_another_one() {
    let (ours, other) = (TestFolder::new("WAL"), TestFolder::new("DELETE"));
    let db = ours.open(LONG);
    db.conn()
        .execute_batch("CREATE TABLE orders (id, tok); CREATE TABLE orders2 (id, tok)")
        .unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("orders2", "writer", &Guard::by_column("tok")).unwrap();
    two_grants(&db);
    // The other file has a lease of the same name, and there the old token is the newest.
    let main = other.open(LONG);
    acquired(main.claim("writer", "a", LONG));
    main.conn().execute("ATTACH ?1 AS ours", [ours.file.to_str().unwrap()]).unwrap();
    assert!(main.present(("writer", 1)).unwrap(), "the newest one of the main file");
    try_write(main.conn(), "INSERT INTO ours.orders VALUES (1, 1)", &["ours.orders"]).unwrap_err();
    try_write(main.conn(), "INSERT INTO ours.orders2 VALUES (1, 1)", &["ours.orders2"])
        .unwrap_err();
    // And the holder of the newest one passes there.
    assert!(!main.present(("writer", 2)).unwrap(), "no such token in the main file");
    try_write(main.conn(), "INSERT INTO ours.orders VALUES (1, 2)", &["ours.orders"]).unwrap();
    try_write(main.conn(), "INSERT INTO ours.orders2 VALUES (1, 2)", &["ours.orders2"]).unwrap();
}

#[test]
fn a_connection_without_the_functions_is_refused_by_one_form_and_free_to_use_the_other() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn()
        .execute_batch("CREATE TABLE orders (id, tok); CREATE TABLE orders2 (id, tok)")
        .unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("orders2", "writer", &Guard::by_column("tok")).unwrap();
    two_grants(&db);
    let plain = place.connect(LONG);
    let refused = plain.execute("INSERT INTO orders VALUES (1, 2)", []).unwrap_err().to_string();
    assert!(refused.contains("no such function: litelease_presented"), "{refused}");
    try_write(&plain, "INSERT INTO orders2 VALUES (1, 2)", &["orders2"]).unwrap();
    try_write(&plain, "INSERT INTO orders2 VALUES (1, 1)", &["orders2"]).unwrap_err();
    // What it does to the schema does not open the fence.
    plain.execute("ALTER TABLE orders RENAME TO renamed", []).unwrap();
    assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact));
}

/// Changes that a trigger cannot see. A program that makes one of these goes around the fence on
/// purpose, or by a tool that works below SQL; the docs name each.
#[test]
fn known_ways_around_the_fence_are_as_the_docs_tell() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let stale = || {
            let db = guarded(SCHEMA, "orders", &guard);
            db.present(("writer", 1)).unwrap();
            try_write(db.conn(), "UPDATE orders SET v = 'stale', tok = 1", &["orders"])
                .unwrap_err();
            db
        };
        let is_written = |db: &Litelease| {
            let first = "SELECT v FROM orders WHERE id = 1";
            db.conn().query_row(first, [], |row| row.get::<_, String>(0)).unwrap()
        };
        // Incremental blob I/O writes into a row below SQL.
        let db = stale();
        let mut blob = db.conn().blob_open("main", "orders", "v", 1, false).unwrap();
        std::io::Write::write_all(&mut blob, b"B").unwrap();
        drop(blob);
        assert_eq!(is_written(&db), "B");
        // The schema is the caller's: dropping triggers, or the table, or editing it.
        let db = stale();
        db.conn()
            .execute_batch("DROP TRIGGER litelease_guard_1_update; UPDATE orders SET v = 'dropped'")
            .unwrap();
        assert_eq!(is_written(&db), "dropped");
        assert!(
            matches!(db.present(("writer", 2)), Err(Error::GuardMissing { .. })),
            "and noticed"
        );
        let db = stale();
        db.conn()
            .execute_batch(
                "DROP TABLE orders; CREATE TABLE orders (id, v); INSERT INTO orders VALUES (1, 'made')",
            )
            .unwrap();
        assert_eq!(is_written(&db), "made");
        let db = stale();
        db.conn()
            .execute_batch(
                "PRAGMA writable_schema = ON; DELETE FROM sqlite_schema WHERE type = 'trigger';
                 PRAGMA writable_schema = RESET; UPDATE orders SET v = 'schema'",
            )
            .unwrap();
        assert_eq!(is_written(&db), "schema");
        assert!(
            matches!(db.present(("writer", 2)), Err(Error::GuardMissing { .. })),
            "and noticed"
        );
        // Triggers can be switched off for a connection.
        let db = stale();
        db.conn().set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).unwrap();
        db.conn().execute_batch("UPDATE orders SET v = 'off'").unwrap();
        assert_eq!(is_written(&db), "off");
    }
}
