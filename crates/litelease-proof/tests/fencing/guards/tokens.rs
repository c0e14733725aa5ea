//! Which tokens pass: names, leases that ended, clocks, connections and snapshots.

use litelease::rusqlite::ffi;
use litelease::{Guard, Litelease, functions};
use litelease_proof::rig::{LONG, TestFolder, acquired};

use super::{SCHEMA, guarded, try_write, two_grants};

#[test]
fn names_of_every_kind_can_guard_a_table() {
    for name in
        ["", " ", "it's", "say \"x\"", "a\nb", "nul\0inside", "🚀", "'); DROP TABLE orders; --"]
    {
        let db = guarded(SCHEMA, "orders", &Guard::by_connection());
        db.guard("orders", name, &Guard::by_connection()).unwrap();
        let first = acquired(db.claim(name, "a", LONG));
        let lease = db.transfer(&first, "b", LONG).unwrap().transferred().unwrap();
        assert!(db.present(("writer", 2)).unwrap());
        for (token, passes) in
            [(None, false), (Some(first.token), false), (Some(lease.token), true)]
        {
            if let Some(token) = token {
                db.present((name, token)).unwrap();
            }
            let done = try_write(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]);
            assert_eq!(done.is_ok(), passes, "{name:?}: {done:?}");
        }
        assert!(db.guards().unwrap().iter().all(|guard| guard.is_intact), "{name:?}");
        assert_eq!(db.unguard("orders", Some(name)).unwrap(), 1);
        db.withdraw(name).unwrap();
        try_write(db.conn(), "DELETE FROM orders WHERE id = 2", &["orders"]).unwrap();
    }
}

#[test]
fn names_are_compared_to_the_letter() {
    let db = guarded("CREATE TABLE t (id)", "t", &Guard::by_connection());
    acquired(db.claim("WRITER", "a", LONG));
    db.present(("WRITER", 2)).unwrap();
    try_write(db.conn(), "INSERT INTO t VALUES (1)", &["t"]).unwrap_err();
}

#[test]
fn several_names_must_all_pass_in_either_form() {
    let db = guarded(SCHEMA, "orders", &Guard::by_connection());
    db.conn().execute_batch("ALTER TABLE orders ADD COLUMN tok2 INTEGER").unwrap();
    acquired(db.claim("second", "a", LONG));
    acquired(db.claim("third", "a", LONG));
    db.guard("orders", "second", &Guard::by_column("tok")).unwrap();
    db.guard("orders", "third", &Guard::by_column("tok2")).unwrap();
    for recursive in [false, true] {
        db.conn().pragma_update(None, "recursive_triggers", recursive).unwrap();
        let mut id = if recursive { 100 } else { 200 };
        for (presented, tok, tok2, passes) in [
            (2, 1, 1, true),
            (1, 1, 1, false),
            (2, 2, 1, false),
            (2, 1, 2, false),
            (2, 0, 0, false),
        ] {
            id += 1;
            db.present(("writer", presented)).unwrap();
            for sql in [
                format!("INSERT INTO orders (id, tok, tok2) VALUES ({id}, {tok}, {tok2})"),
                format!("UPDATE orders SET v = 1, tok = {tok}, tok2 = {tok2} WHERE id < 3"),
            ] {
                let done = try_write(db.conn(), &sql, &["orders"]);
                assert_eq!(done.is_ok(), passes, "{sql} presented {presented}: {done:?}");
            }
        }
        db.present(("writer", 2)).unwrap();
        for sql in [
            "UPDATE orders SET v = 1, tok = 1",
            "UPDATE orders SET v = 1, tok2 = 1",
            "DELETE FROM orders",
        ] {
            try_write(db.conn(), sql, &["orders"]).unwrap_err();
        }
    }
    assert_eq!(db.guards().unwrap().len(), 3);
    assert_eq!(db.unguard("orders", None).unwrap(), 3);
    assert_eq!(db.unguard("orders", None).unwrap(), 0);
    try_write(db.conn(), "DELETE FROM orders", &[]).unwrap();
}

#[test]
fn a_name_that_was_never_claimed_closes_the_table_until_its_first_grant() {
    for guard in [Guard::by_connection(), Guard::by_column("tok")] {
        let db = guarded(SCHEMA, "twin", &Guard::by_connection());
        db.guard("orders", "later", &guard).unwrap();
        let insert = |token: &str| {
            let sql = format!("INSERT INTO orders (id, tok) VALUES (10, {token})");
            try_write(db.conn(), &sql, &["orders"])
        };
        assert!(!db.present(("later", 1)).unwrap());
        for token in ["NULL", "0", "1"] {
            insert(token).unwrap_err();
        }
        let lease = acquired(db.claim("later", "a", LONG));
        assert!(db.present(("later", lease.token)).unwrap());
        insert("1").unwrap();
    }
}

#[test]
fn a_lease_that_merely_ended_still_passes_unless_the_guard_is_strict() {
    for (guard, strict) in [
        (Guard::by_connection(), false),
        (Guard::by_connection().strict(), true),
        (Guard::by_column("tok"), false),
        (Guard::by_column("tok").strict(), true),
    ] {
        let db = guarded(SCHEMA, "twin", &Guard::by_connection());
        db.guard("orders", "w", &guard).unwrap();
        let write = |token: i64| {
            db.present(("w", token)).unwrap();
            let sql = format!("UPDATE orders SET v = 1, tok = {token}");
            try_write(db.conn(), &sql, &["orders"])
        };
        let lease = acquired(db.claim("w", "a", LONG));
        write(lease.token).unwrap();
        db.release(&lease).map(drop).unwrap();
        assert_eq!(write(1).is_err(), strict, "released, {guard:?}");
        // A clock that is far behind made this grant, so by now it has expired.
        let lease = acquired(db.at(1_000).claim("w", "a", LONG));
        assert_eq!(write(lease.token).is_err(), strict, "expired, {guard:?}");
        assert!(write(1).is_err(), "superseded, {guard:?}");
        let lease = acquired(db.claim("w", "a", LONG));
        write(lease.token).unwrap();
        let broken = db.break_lease("w").unwrap();
        assert!(write(lease.token).is_err(), "broken: {broken:?}, {guard:?}");
    }
}

#[test]
fn the_clock_may_go_where_it_likes_and_the_fence_holds() {
    let db = guarded(SCHEMA, "orders", &Guard::by_connection());
    let day = 24 * 3_600_000;
    let mut now_ms = 1_000 * day;
    let mut grants = Vec::new();
    for step in [day, -3_600_000, 2 * day, -5 * day, 0, 9 * day] {
        now_ms += step;
        // Take it over, whatever that clock thinks of the one before.
        let _ = db.at(now_ms).break_lease("writer").unwrap();
        grants.push(acquired(db.at(now_ms).claim("writer", "x", LONG)).token);
    }
    assert!(grants.is_sorted(), "{grants:?}");
    let (newest, old) = grants.split_last().unwrap();
    for token in old {
        assert!(!db.present(("writer", *token)).unwrap());
        try_write(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]).unwrap_err();
    }
    assert!(db.present(("writer", *newest)).unwrap());
    try_write(db.conn(), "DELETE FROM orders WHERE id = 1", &["orders"]).unwrap();
}

#[test]
fn a_presentation_belongs_to_one_connection_and_can_be_withdrawn() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(LONG), place.open(LONG));
    db.conn().execute_batch("CREATE TABLE orders (id)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    two_grants(&db);
    assert!(db.present(("writer", 2)).unwrap());
    assert!(!other.present(("another", 2)).unwrap());
    try_write(other.conn(), "INSERT INTO orders VALUES (1)", &["orders"]).unwrap_err();
    // Another handle on the same connection, and the SQL functions, know of it.
    let borrowed = litelease::LiteleaseRef::new(db.conn());
    try_write(borrowed.conn(), "INSERT INTO orders VALUES (1)", &["orders"]).unwrap();
    functions::register(db.conn()).unwrap();
    let presented = "SELECT litelease_presented('writer')";
    let known = |db: &Litelease| -> Option<i64> {
        db.conn().query_row(presented, [], |row| row.get(0)).unwrap()
    };
    assert_eq!(known(&db), Some(2));
    borrowed.withdraw("writer").unwrap();
    assert_eq!(known(&db), None);
    try_write(db.conn(), "INSERT INTO orders VALUES (2)", &["orders"]).unwrap_err();
}

#[test]
fn an_old_snapshot_that_wants_to_write_is_told_so_and_never_passes() {
    let place = TestFolder::new("WAL");
    let (old, db) = (place.open(LONG), place.open(LONG));
    db.conn().execute_batch("CREATE TABLE orders (id, tok)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    let lease = acquired(db.claim("writer", "a", LONG));
    old.conn().execute_batch("BEGIN").unwrap();
    assert!(old.present(("writer", lease.token)).unwrap());
    // Meanwhile another owner is granted the name; the old snapshot does not show it.
    let _ = db.transfer(&lease, "b", LONG).unwrap();
    assert!(old.present(("writer", lease.token)).unwrap());
    let refused = old.conn().execute("INSERT INTO orders VALUES (1, 1)", []).unwrap_err();
    let code = refused.sqlite_error().unwrap().extended_code;
    assert_eq!(code, ffi::SQLITE_BUSY_SNAPSHOT, "{refused}");
    old.conn().execute_batch("ROLLBACK").unwrap();
    try_write(old.conn(), "INSERT INTO orders VALUES (1, 1)", &["orders"]).unwrap_err();
}

#[test]
fn refusals_are_counted_for_guards_by_connection() {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE orders (id); CREATE TABLE other (id)").unwrap();
    db.guard("orders", "writer", &Guard::by_connection()).unwrap();
    db.guard("other", "writer", &Guard::by_connection()).unwrap();
    two_grants(&db);
    db.present(("writer", 1)).unwrap();
    for _ in 0..3 {
        try_write(db.conn(), "INSERT INTO orders VALUES (1), (2)", &["orders"]).unwrap_err();
    }
    db.present(("writer", 2)).unwrap();
    try_write(db.conn(), "INSERT INTO orders VALUES (1), (2)", &["orders"]).unwrap();
    // Another connection of the process sees the same count.
    let counts: Vec<u64> =
        place.open(LONG).guards().unwrap().iter().map(|guard| guard.refusals).collect();
    assert_eq!(counts, [3, 0]);
}
