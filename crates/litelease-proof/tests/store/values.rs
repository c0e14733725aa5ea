//! Values of grants: what is attached is what is read, for as long as the grant is live.

use std::time::Duration;

use litelease::rusqlite::types::Value;
use litelease::{Error, GrantResult, HoldOptions, Litelease, LiteleaseRef, Reason};
use litelease_proof::rig::{LONG, acquired, memory};

fn text(text: &str) -> Option<Value> {
    Some(Value::Text(text.into()))
}

#[test]
fn a_value_is_kept_as_it_is() {
    let db = memory();
    let lease = acquired(db.claim("x", "a", LONG));
    let odd = "\0 '\" \n 🔑 ".repeat(80_000); // more than 1 MB
    for value in [
        Value::Integer(i64::MIN),
        Value::Real(0.1),
        Value::Text(String::new()),
        Value::Text(odd),
        Value::Blob(vec![0, 255, 0]),
    ] {
        assert_eq!(db.attach(("x", lease.token), &value).unwrap(), GrantResult::Done);
        assert_eq!(db.value("x").unwrap(), Some(value));
    }
    assert_eq!(db.attach(("x", lease.token), Value::Null).unwrap(), GrantResult::Done);
    assert_eq!(db.value("x").unwrap(), None);
}

#[test]
fn an_expired_or_foreign_token_attaches_nothing() {
    let db = memory();
    let stale = |reason| GrantResult::Stale { reason };
    assert_eq!(db.attach(("x", 1), "v").unwrap(), stale(Reason::NeverClaimed));
    let first = acquired(db.at(100).claim("x", "a", Duration::from_millis(50)));
    assert_eq!(db.at(150).attach(("x", first.token), "v").unwrap(), stale(Reason::Expired));
    assert_eq!(db.at(100).attach(("x", 2), "v").unwrap(), stale(Reason::UnknownToken));
    assert_eq!(
        db.at(100).attach(("x", i64::MIN), "v").unwrap(),
        stale(Reason::Superseded { by: 1 })
    );
    let tables: i64 = db
        .conn()
        .query_row(
            "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'litelease_values'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(tables, 0, "what was refused has made no table");
}

/// A handle that has looked before the table was there must notice that another one has made it.
#[test]
fn a_value_is_seen_by_handles_that_were_there_before_the_first_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let (writer, reader) =
        (Litelease::open_own(&path).unwrap(), Litelease::open_own(&path).unwrap());
    let lease = acquired(writer.claim("x", "a", LONG));
    assert_eq!(reader.value("x").unwrap(), None);
    assert_eq!(reader.leases_under("x").next().unwrap().unwrap().value, None);
    assert!(writer.attach(("x", lease.token), "here").unwrap().is_done());
    assert_eq!(reader.value("x").unwrap(), text("here"));
    assert_eq!(reader.leases_under("x").next().unwrap().unwrap().value, text("here"));
    // And one that was there before the table was dropped.
    writer.conn().execute_batch("DROP TABLE litelease_values").unwrap();
    assert_eq!(reader.value("x").unwrap(), None);
    assert_eq!(writer.value("x").unwrap(), None);
}

#[test]
fn the_first_value_disappears_with_its_transaction() {
    let mut db = memory();
    let lease = acquired(db.claim("x", "a", LONG));
    let tx = db.transaction().unwrap();
    assert!(tx.attach(("x", lease.token), "lost").unwrap().is_done());
    assert_eq!(tx.value("x").unwrap(), text("lost"));
    tx.rollback().unwrap();
    assert_eq!(db.value("x").unwrap(), None);
    assert!(db.attach(("x", lease.token), "kept").unwrap().is_done());
    assert_eq!(LiteleaseRef::new(db.conn()).value("x").unwrap(), text("kept"));
}

#[test]
fn a_purge_deletes_values_whose_grant_has_ended_and_no_others() {
    let db = memory();
    let attach = |name: &str, ttl_ms| {
        let lease = acquired(db.at(100).claim(name, "a", Duration::from_millis(ttl_ms)));
        assert!(db.at(100).attach((name, lease.token), name).unwrap().is_done());
        lease
    };
    attach("expired", 50);
    let transferred = attach("transferred", 1000);
    attach("live", 1000);
    let _ = db.at(100).transfer(&transferred, "b", Duration::from_secs(1)).unwrap();
    assert_eq!(db.at(200).purge(150).unwrap(), 1);
    let names = "SELECT group_concat(name) FROM litelease_values";
    let left: String = db.conn().query_row(names, [], |row| row.get(0)).unwrap();
    assert_eq!(left, "live");
    assert_eq!(db.at(200).value("live").unwrap(), text("live"));
}

#[test]
fn a_restored_file_shows_no_value() {
    let db = memory();
    let lease = acquired(db.claim("x", "a", LONG));
    assert!(db.attach(("x", lease.token), "before").unwrap().is_done());
    db.restore_fence().unwrap();
    assert_eq!(db.value("x").unwrap(), None);
    acquired(db.claim("x", "b", LONG));
    assert_eq!(db.value("x").unwrap(), None);
}

#[test]
fn names_under_a_prefix_are_listed_and_no_others() {
    let db = memory();
    let names = ["", "a", "a/", "a/\u{10ffff}\u{10ffff}x", "a/1", "a/2", "a0", "b", "A/1"];
    for name in names {
        acquired(db.claim(name, "a", LONG));
    }
    let under = |prefix: &str| -> Vec<String> {
        db.leases_under(prefix).map(|listed| listed.unwrap().lease.name).collect()
    };
    assert_eq!(under("a/"), ["a/", "a/1", "a/2", "a/\u{10ffff}\u{10ffff}x"]);
    assert_eq!(under("a/1"), ["a/1"]);
    assert_eq!(under("c"), [""; 0]);
    assert_eq!(under("").len(), names.len());
}

#[test]
fn an_error_ends_a_walk_along_leases() {
    let db = memory();
    acquired(db.claim("a", "a", LONG));
    acquired(db.claim("b", "a", LONG));
    db.conn().execute_batch("UPDATE litelease_resources SET token = 'x' WHERE name = 'a'").unwrap();
    let mut walk = db.leases_under("");
    assert!(matches!(walk.next(), Some(Err(Error::InvalidLeaseRow(name))) if name == "a"));
    assert!(walk.next().is_none());
}

#[test]
fn a_hold_shows_its_value_from_the_commit_of_its_claim() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let (db, other) = (Litelease::open_own(&path).unwrap(), Litelease::open_own(&path).unwrap());
    let options = HoldOptions::new(LONG).value("here".to_owned());
    let held = db.hold("x", options.clone()).unwrap();
    assert_eq!(other.value("x").unwrap(), text("here"));
    assert!(other.hold("x", options).is_err(), "somebody has it");
    held.release().unwrap();
    assert_eq!(other.value("x").unwrap(), None);
}
