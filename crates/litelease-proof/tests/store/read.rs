//! Shared reads in the file: texts of every kind, restores, purges, damage, locks and histories.

use std::collections::BTreeMap;
use std::time::Duration;

use litelease::{Error, Litelease, Reader};
use litelease_proof::rig::{Dice, LONG, TestFolder, acquired, memory};

const MS: Duration = Duration::from_millis(1);
const HOUR_MS: i64 = 3_600_000;

#[test]
fn reader_texts_of_any_length_and_with_nul_are_stored_as_they_are() {
    let db = memory();
    let large = "x".repeat(1 << 20);
    let texts = ["", " ", "a\0b", "a", "A", "é", "e\u{301}", "'; DROP TABLE x; --", &large];
    for text in texts {
        assert_eq!(db.at(100).read("config", text, 50 * MS).unwrap(), Some(0));
    }
    let mut listed: Vec<String> =
        db.at(100).readers("config").unwrap().into_iter().map(|reader| reader.reader).collect();
    listed.sort_unstable();
    let mut expected = texts.map(str::to_owned);
    expected.sort_unstable();
    assert_eq!(listed, expected);
    for text in texts {
        assert!(db.unread("config", text).unwrap() && !db.unread("config", text).unwrap());
    }
    // So are names.
    for name in texts {
        assert_eq!(db.at(100).read(name, "r", 50 * MS).unwrap(), Some(0));
        assert_eq!(db.at(100).readers(name).unwrap().len(), 1);
    }
}

#[test]
fn a_ttl_of_more_than_an_hour_is_refused_with_the_limit_in_the_text() {
    let db = memory();
    let refused = db.read("config", "r", Duration::from_secs(3601)).unwrap_err();
    assert_eq!(refused.kind(), "TtlTooLong");
    let text = "\"config\": the ttl of a read is at most 3600000 ms, got 3601000 ms";
    assert_eq!(refused.to_string(), text);
    assert!(!has_table(&db), "nothing was written");
    for longest in [Duration::MAX, Duration::from_millis(u64::MAX)] {
        assert_eq!(db.read("config", "r", longest).unwrap_err().kind(), "TtlTooLong");
    }
}

fn has_table(db: &Litelease) -> bool {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'litelease_reads'";
    db.conn().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() == 1
}

#[test]
fn nothing_is_drained_for_an_hour_after_a_restore_also_where_nobody_had_ever_read() {
    for has_read in [false, true] {
        let db = memory();
        if has_read {
            db.read("config", "r", LONG).unwrap().unwrap();
        }
        let now_ms = litelease::now_ms();
        let floor = db.restore_fence().unwrap();
        let (later, much_later) = (now_ms + HOUR_MS, litelease::now_ms() + HOUR_MS);
        for name in ["config", "another"] {
            let lease = acquired(db.claim(name, "w", Duration::from_secs(9000)));
            assert!(lease.token > floor);
            assert!(!db.drained((name, lease.token)).unwrap());
            assert!(!db.at(later - 1).drained((name, lease.token)).unwrap());
            assert!(db.at(much_later).drained((name, lease.token)).unwrap());
            let readers = db.readers(name).unwrap();
            assert!(matches!(&readers[..], [Reader { reader, .. }] if reader.contains("restore")));
            assert_eq!(db.at(much_later).readers(name).unwrap(), []);
        }
        // It keeps no reader from reading, and a second restore begins anew.
        assert_eq!(db.read("free", "r", LONG).unwrap(), Some(floor));
        db.restore_fence().unwrap();
        assert_eq!(db.readers("free").unwrap().len(), 1);
    }
}

#[test]
fn a_purge_takes_the_readers_that_have_ended_and_no_others() {
    let db = memory();
    db.at(100).read("config", "ended", 50 * MS).unwrap();
    db.at(100).read("config", "lives", 500 * MS).unwrap();
    assert_eq!(db.at(200).purge(i64::MAX).unwrap(), 0, "readers are not counted");
    let left = db.at(0).readers("config").unwrap();
    assert!(matches!(&left[..], [Reader { reader, .. }] if reader == "lives"), "{left:?}");
}

#[test]
fn a_table_of_readers_that_is_not_ours_is_refused_by_name() {
    for damage in [
        "CREATE TABLE litelease_reads (name, reader)",
        "CREATE VIEW litelease_reads AS SELECT 'x' AS name, 'y' AS reader, 1 AS expires_at_ms",
    ] {
        let db = memory();
        let lease = acquired(db.claim("other", "w", LONG));
        db.conn().execute_batch(damage).unwrap();
        let errors = [
            db.read("config", "r", LONG).map(drop).unwrap_err(),
            db.unread("config", "r").map(drop).unwrap_err(),
            db.readers("config").map(drop).unwrap_err(),
            db.drained(("other", lease.token)).map(drop).unwrap_err(),
            db.purge(0).map(drop).unwrap_err(),
            db.restore_fence().map(drop).unwrap_err(),
        ];
        for error in errors {
            let Error::SchemaMismatch { table, .. } = &error else { panic!("{error}") };
            assert_eq!(*table, "litelease_reads");
        }
        assert!(db.renew(&lease, LONG).is_ok(), "plain leases do not need it");
    }
    let db = memory();
    let without = memory_without_tables();
    assert_eq!(without.read("x", "r", LONG).unwrap_err().kind(), "NotBootstrapped");
    assert_eq!(without.readers("x").unwrap_err().kind(), "NotBootstrapped");
    // A trigger could make a read look granted that is not stored.
    db.read("config", "r", LONG).unwrap();
    db.conn()
        .execute_batch(
            "CREATE TRIGGER t BEFORE INSERT ON litelease_reads BEGIN SELECT RAISE(IGNORE); END",
        )
        .unwrap();
    assert_eq!(db.read("config", "s", LONG).unwrap_err().kind(), "SchemaMismatch");
}

fn memory_without_tables() -> Litelease {
    Litelease::from_connection(litelease::rusqlite::Connection::open_in_memory().unwrap())
}

#[test]
fn a_read_under_a_writer_is_refused_without_the_write_lock() {
    let place = TestFolder::new("WAL");
    let (db, other) = (place.open(Duration::ZERO), place.connect(Duration::ZERO));
    let lease = acquired(db.claim("config", "w", LONG));
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(db.read("config", "r", LONG).unwrap(), None);
    assert!(!db.unread("config", "r").unwrap());
    assert_eq!(db.readers("config").unwrap(), []);
    assert!(db.drained(("config", lease.token)).unwrap());
    assert!(db.read("free", "r", LONG).is_err(), "this one must write");
}

#[test]
fn what_the_caller_inserted_last_stays_so_when_somebody_reads() {
    let db = memory();
    db.conn().execute_batch("CREATE TABLE mine (x); INSERT INTO mine VALUES (1), (2)").unwrap();
    for reader in ["a", "b", "a"] {
        db.read("config", reader, LONG).unwrap();
        assert_eq!(db.conn().last_insert_rowid(), 2);
    }
}

/// Random histories of readers and writers at a clock that goes on: whenever a writer is drained,
/// no reader that was told a version may still rely on it.
#[test]
fn no_writer_is_drained_while_a_reader_relies_on_what_it_was_told() {
    let mut dice = Dice::new("readers and writers");
    let mut drained = 0;
    for _ in 0..60 {
        let db = memory();
        // Until when each reader relies on what it was told, as it knows itself.
        let mut relies: BTreeMap<u64, i64> = BTreeMap::new();
        let (mut now_ms, mut token, mut newest_written) = (100, 0, 0);
        for _ in 0..60 {
            now_ms += dice.below(12) as i64;
            let reader = dice.below(3);
            let ttl = 1 + dice.below(40);
            match dice.below(6) {
                0 | 1 => {
                    let text = format!("r{reader}");
                    let told = db.at(now_ms).read("x", &text, MS * ttl as u32).unwrap();
                    if let Some(version) = told {
                        assert!(version >= newest_written, "an old version");
                        let until = relies.entry(reader).or_insert(0);
                        *until = (*until).max(now_ms + ttl as i64);
                    }
                }
                2 => {
                    db.unread("x", &format!("r{reader}")).unwrap();
                    relies.remove(&reader);
                }
                3 => {
                    let claimed = db.at(now_ms).claim("x", "w", MS * ttl as u32).unwrap();
                    token = claimed.acquired().map_or(token, |lease| lease.token);
                }
                4 => drop(db.at(now_ms).release_by_owner("x", "w").unwrap()),
                _ if db.at(now_ms).drained(("x", token)).unwrap() => {
                    drained += 1;
                    newest_written = token;
                    let alive = relies.values().find(|until| **until > now_ms);
                    assert_eq!(alive, None, "at {now_ms}: a reader answers an old value");
                }
                _ => {}
            }
        }
    }
    assert!(drained > 50, "only {drained} writers were drained");
}
