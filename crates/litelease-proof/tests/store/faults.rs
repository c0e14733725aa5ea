//! What must be survived: bad rows, bad disks, bad input. Refused means a typed error and nothing
//! written.

use std::fs;
use std::thread;
use std::time::Duration;

use litelease::rusqlite::{Connection, OpenFlags, ffi};
use litelease::{Error, Litelease, LiteleaseRef, Reason, RenewResult};
use litelease_proof::rig::{LONG, TestFolder, acquired, memory, report, sqlite_code};
use litelease_proof::trouble::SmallDisk;

#[test]
fn the_linked_sqlite_has_the_fix_for_the_wal_reset_bug() {
    // SQLite 3.7.0 to 3.51.2 can lose committed transactions when writes and checkpoints race.
    assert!(
        litelease::rusqlite::version_number() >= 3_051_003,
        "{}",
        litelease::rusqlite::version()
    );
}

#[test]
fn a_stored_row_that_is_not_valid_is_reported_and_left_alone() {
    let set =
        |column: &str, value: &str| format!("UPDATE litelease_resources SET {column} = {value}");
    let damages = [
        set("token", "0"),
        set("token", "-3"),
        set("token", "1.5"),
        set("token", "'many'"),
        set("token", "x'01'"),
        set("lease_expires_at_ms", "NULL"),
        set("lease_expires_at_ms", "'later'"),
        set("lease_expires_at_ms", "2.5"),
        set("owner", "NULL"),
        set("owner", "x'61'"),
        set("owner", "CAST(x'ff' AS TEXT)"),
    ];
    for damage in damages {
        let mut db = memory();
        let lease = acquired(db.at(100).claim("x", "a", Duration::from_millis(50)));
        db.conn().execute_batch("PRAGMA ignore_check_constraints = 1").unwrap();
        db.conn().execute_batch(&damage).unwrap();
        let stored = |conn: &Connection| -> Vec<String> {
            let all =
                "SELECT hex(quote(name) || quote(owner) || quote(token) || quote(lease_expires_at_ms)
                       || quote(created_at_ms) || quote(updated_at_ms)) FROM litelease_resources";
            let mut rows = conn.prepare(all).unwrap();
            rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        let before = stored(db.conn());
        let tx = db.transaction().unwrap();
        let in_transaction = tx.at(900).claim("x", "b", LONG).unwrap_err();
        tx.rollback().unwrap();
        for error in [
            in_transaction,
            db.at(120).claim("x", "b", LONG).unwrap_err(),
            db.at(900).claim("x", "b", LONG).unwrap_err(),
            db.at(120).renew_by_owner("x", "a", LONG).unwrap_err(),
            db.at(120).renew(&lease, LONG).unwrap_err(),
            db.at(120).release_by_owner("x", "a").unwrap_err(),
            db.at(120).ensure("x", "a", LONG).unwrap_err(),
            db.at(120).transfer_by_owner("x", "a", "b", LONG).unwrap_err(),
            db.at(120).break_lease("x").unwrap_err(),
            db.at(120).inspect("x").unwrap_err(),
            db.at(120).owner("x").unwrap_err(),
            db.token("x").unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::InvalidLeaseRow(name) if name == "x"),
                "{damage}: {error:?}"
            );
        }
        match db.at(900).purge(900) {
            // An expiry that is no number never counts as ended.
            Ok(0) => assert!(damage.contains("'later'"), "{damage}"),
            outcome => {
                assert!(matches!(outcome, Err(Error::InvalidLeaseRow(_))), "{damage}: {outcome:?}")
            }
        }
        assert_eq!(stored(db.conn()), before, "{damage}");
        assert!(db.conn().is_autocommit());
        assert_eq!(acquired(db.claim("y", "a", LONG)).token, 1, "other names work on");
    }
}

#[test]
fn every_kind_of_database_works() {
    for setup in [
        "PRAGMA encoding = 'UTF-16le'",
        "PRAGMA encoding = 'UTF-16be'",
        "PRAGMA page_size = 512",
        "PRAGMA page_size = 65536",
        "PRAGMA auto_vacuum = FULL",
        "PRAGMA auto_vacuum = INCREMENTAL",
        "PRAGMA secure_delete = ON",
        "PRAGMA cell_size_check = ON",
    ] {
        for journal in ["WAL", "DELETE"] {
            let place = TestFolder::new(journal);
            let conn = Connection::open(&place.file).unwrap();
            conn.execute_batch(setup).unwrap();
            conn.execute_batch(&format!("PRAGMA journal_mode = {journal}")).unwrap();
            life_cycle(&Litelease::from_connection(conn));
        }
    }
    life_cycle(&memory());
}

/// Names and owners that are bytes like any others.
fn life_cycle(db: &Litelease) {
    db.bootstrap().unwrap();
    let (four_kib, megabyte) = ("é".repeat(2048), "x".repeat(1 << 20));
    for text in [
        "plain",
        "",
        " ",
        "a'b\"c",
        "new\nline",
        "nul\0byte",
        "🦀",
        "cafe\u{301}",
        &four_kib,
        &megabyte,
    ] {
        let lease = acquired(db.claim(text, text, LONG));
        assert_eq!((lease.name.as_str(), lease.owner.as_str(), lease.token), (text, text, 1));
        assert_eq!(db.inspect(text).unwrap(), Some(lease.clone()));
        assert!(matches!(db.renew(&lease, 2 * LONG).unwrap(), RenewResult::Renewed(_)));
        db.release(&lease).unwrap();
        assert_eq!(acquired(db.claim(text, "other", LONG)).token, 2);
    }
    assert_eq!(db.token("cafe").unwrap(), None);
    assert_eq!(db.token("caf\u{e9}").unwrap(), None, "text is never normalised");
}

#[test]
fn durations_and_times_at_their_ends_are_refused_or_work() {
    let db = memory();
    assert!(matches!(db.claim("x", "a", Duration::ZERO), Err(Error::InvalidTtl { ttl_ms: 0, .. })));
    let endless =
        [Duration::MAX, Duration::from_millis(i64::MAX as u64), Duration::from_secs(u64::MAX)];
    for endless in endless {
        assert!(matches!(db.claim("x", "a", endless), Err(Error::TimeOverflow { .. })));
    }
    assert!(matches!(db.at(i64::MAX).claim("x", "a", LONG), Err(Error::TimeOverflow { .. })));
    assert_eq!(db.token("x").unwrap(), None, "nothing was written");
    // Less than a millisecond is one: a lease never ends earlier than was asked for.
    let brief = acquired(db.at(100).claim("x", "a", Duration::from_nanos(1)));
    assert_eq!(brief.expires_at_ms, 101);
    let error = db.claim("x", "a", Duration::ZERO).unwrap_err();
    assert_eq!(error.to_string(), r#""x": the ttl must be at least 1 ms, got 0 ms"#);
}

#[test]
fn a_grant_that_is_over_when_it_arrives_is_not_reported_as_acquired() {
    // The caller's own commit hook takes longer than the ttl.
    let place = TestFolder::new("WAL");
    let mut conn = place.connect(Duration::ZERO);
    LiteleaseRef::new(&conn).bootstrap().unwrap();
    conn.commit_hook(Some(|| (thread::sleep(Duration::from_millis(30)), false).1)).unwrap();
    let db = Litelease::from_connection(conn);
    let claimed = db.claim("x", "a", Duration::from_millis(10));
    let Err(Error::ExpiredOnArrival(lease)) = claimed else { panic!("{claimed:?}") };
    assert_eq!((lease.owner.as_str(), lease.token), ("a", 1));
    let lease = acquired(db.claim("x", "b", LONG));
    assert_eq!(lease.token, 2, "the number that nobody used is never given again");
}

#[test]
fn a_read_only_database_answers_and_refuses_to_grant() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let writer = place.open(Duration::ZERO);
        acquired(writer.claim("live", "a", LONG));
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let conn = Connection::open_with_flags(&place.file, flags).unwrap();
        let db = Litelease::from_connection(conn);
        db.bootstrap().unwrap();
        assert_eq!(db.owner("live").unwrap().as_deref(), Some("a"));
        let busy = db.claim("live", "b", LONG).unwrap();
        assert!(matches!(busy, litelease::ClaimResult::Busy(_)));
        let error = db.claim("free", "b", LONG).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot claim \"free\" in /") && text.contains("test.sqlite3: "),
            "{text}"
        );
        assert_eq!(sqlite_code::<()>(Err(error)), ffi::SQLITE_READONLY);
        assert_eq!(sqlite_code(db.release_by_owner("live", "a")), ffi::SQLITE_READONLY);
        assert!(db.conn().is_autocommit());
        // Inside a deferred transaction, too.
        db.conn().execute_batch("BEGIN").unwrap();
        db.bootstrap().unwrap();
        assert_eq!(sqlite_code(db.claim("free", "b", LONG)), ffi::SQLITE_READONLY);
    }
}

#[test]
fn what_is_no_database_is_refused_and_not_touched() {
    let place = TestFolder::new("DELETE");
    fs::write(&place.file, "these are not the pages you are looking for".repeat(50)).unwrap();
    let before = fs::read(&place.file).unwrap();
    let db = Litelease::open(&place.file).unwrap();
    assert_eq!(sqlite_code(db.bootstrap()), ffi::SQLITE_NOTADB);
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_NOTADB);
    assert_eq!(fs::read(&place.file).unwrap(), before);
    let missing =
        Litelease::open(place.folder.path().join("no/such/folder/app.sqlite3")).unwrap_err();
    assert!(missing.to_string().contains("no/such/folder/app.sqlite3"), "{missing}");
}

#[test]
fn a_file_that_is_full_means_no_grant_and_works_again_when_there_is_room() {
    // SQLite's own limit on pages: the write itself fails, so the outcome is known.
    let place = TestFolder::new("WAL");
    let mut db = place.open(Duration::ZERO);
    let pages: i64 = db.conn().query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    let limit = |db: &Litelease, pages: i64| {
        db.conn().query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(())).unwrap()
    };
    limit(&db, pages);
    let name = "x".repeat(100_000);
    let claimed = db.claim(&name, "a", LONG);
    // A statement that is its own transaction may fail while it commits, so the outcome is unknown.
    let Err(Error::CommitUnknown(error)) = &claimed else { panic!("{claimed:?}") };
    assert_eq!(error.sqlite_error().unwrap().extended_code, ffi::SQLITE_FULL);
    assert!(error.to_string().len() < 300, "a long name is cut in messages");
    assert!(db.conn().is_autocommit());
    let tx = db.transaction().unwrap();
    assert_eq!(sqlite_code(tx.claim(&name, "a", LONG)), ffi::SQLITE_FULL);
    drop(tx);
    assert_eq!(db.token(&name).unwrap(), None);
    limit(&db, 100_000);
    assert_eq!(acquired(db.claim(&name, "a", LONG)).token, 1);
}

#[test]
fn a_full_disk_means_no_grant_and_works_again_when_there_is_room() {
    for journal in ["WAL", "DELETE"] {
        let Some(disk) = SmallDisk::new("256k") else {
            report("SKIPPED: a full disk, because mounting a tmpfs is not allowed here");
            return;
        };
        let db = Litelease::open(disk.path().join("app.sqlite3")).unwrap();
        db.conn()
            .execute_batch(&format!("PRAGMA journal_mode = {journal}; PRAGMA synchronous = FULL"))
            .unwrap();
        db.bootstrap().unwrap();
        let lease = acquired(db.claim("held", "a", LONG));
        let ballast = disk.path().join("ballast");
        let mut size = 256 * 1024;
        while size > 0 && fs::write(&ballast, vec![1; size]).is_err() {
            size -= 1024;
        }
        let mut failures = 0;
        for round in 0..40 {
            match db.claim(&format!("{round}"), "a", LONG) {
                Ok(_) => {}
                // The frames of a commit did not fit: SQLite cannot say what a crash would bring
                // back.
                Err(Error::CommitUnknown(error)) => {
                    failures += 1;
                    assert!(error.to_string().contains("full"), "{error}");
                }
                Err(Error::Sqlite(error)) => {
                    failures += 1;
                    assert!(error.to_string().contains("full"), "{error}");
                }
                Err(error) => panic!("{journal}: {error:?}"),
            }
            assert!(db.conn().is_autocommit(), "no transaction is left open");
        }
        assert!(failures > 0, "{journal}: the disk never was full");
        assert_eq!(db.owner("held").unwrap().as_deref(), Some("a"), "{journal}");
        fs::remove_file(&ballast).unwrap();
        assert!(matches!(db.renew(&lease, 2 * LONG).unwrap(), RenewResult::Renewed(_)));
        let _ = db.claim("afterwards", "a", LONG).unwrap();
    }
}

#[test]
fn an_error_from_commit_is_an_unknown_outcome_and_never_a_grant() {
    // With a WAL, the frames of a transaction are written by its COMMIT: let that meet a full disk.
    let Some(disk) = SmallDisk::new("128k") else {
        report("SKIPPED: a failing COMMIT, because mounting a tmpfs is not allowed here");
        return;
    };
    let mut db = Litelease::open(disk.path().join("app.sqlite3")).unwrap();
    db.conn().execute_batch("PRAGMA journal_mode = WAL").unwrap();
    db.bootstrap().unwrap();
    acquired(db.claim("x", "a", LONG));
    let ballast = disk.path().join("ballast");
    let mut size = 128 * 1024;
    while fs::write(&ballast, vec![1; size]).is_err() {
        size -= 1024;
    }
    let name = "n".repeat(20_000);
    let claimed = db.claim(&name, "a", LONG);
    let Err(Error::CommitUnknown(_)) = &claimed else { panic!("{claimed:?}") };
    assert!(claimed.unwrap_err().to_string().contains("inspect before trying again"));
    assert!(db.conn().is_autocommit());
    let tx = db.transaction().unwrap();
    acquired(tx.claim(&name, "a", LONG));
    let committed = tx.commit();
    assert!(matches!(committed, Err(Error::CommitUnknown(_))), "{committed:?}");
    fs::remove_file(&ballast).unwrap();
    assert_eq!(db.inspect(&name).unwrap(), None, "what was unknown can be looked up");
    assert_eq!(acquired(db.claim(&name, "b", LONG)).token, 1);
}

#[test]
fn a_write_that_something_swallows_is_an_error_and_not_a_grant() {
    // A trigger that came after the schema was looked at, hidden from the check by writable_schema.
    let mut db = memory();
    acquired(db.at(100).claim("x", "a", Duration::from_millis(50)));
    let tx = db.transaction().unwrap();
    tx.conn()
        .execute_batch(
            "CREATE TRIGGER swallow BEFORE UPDATE ON litelease_resources BEGIN SELECT RAISE(IGNORE); END;
             PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET tbl_name = 'elsewhere' WHERE name = 'swallow'",
        )
        .unwrap();
    let claimed = tx.at(200).claim("x", "b", LONG);
    let Err(Error::UnexpectedChange { what, expected: 1, changed: 0 }) = &claimed else {
        panic!("{claimed:?}")
    };
    assert_eq!(what, "the row of \"x\"");
}

#[test]
fn an_old_process_with_the_same_owner_text_cannot_touch_its_successor() {
    let place = TestFolder::new("WAL");
    let (old, new) = (place.open(Duration::ZERO), place.open(Duration::ZERO));
    let first = acquired(old.at(100).claim("x", "worker", Duration::from_millis(50)));
    let second = acquired(new.at(150).claim("x", "worker", Duration::from_millis(50)));
    let renewed = old.at(160).renew(&first, LONG).unwrap();
    assert!(matches!(renewed, RenewResult::Rejected { reason: Reason::Superseded { by: 2 }, .. }));
    let released = old.at(160).release(&first).unwrap();
    assert!(matches!(
        released,
        litelease::ReleaseResult::Rejected { reason: Reason::Superseded { by: 2 }, .. }
    ));
    assert_eq!(new.at(160).inspect("x").unwrap(), Some(second));
}

#[test]
fn handles_can_move_between_threads() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    acquired(db.claim("x", "a", LONG));
    let db = thread::spawn(move || {
        db.release_by_owner("x", "a").unwrap();
        db
    })
    .join()
    .unwrap();
    assert_eq!(acquired(db.claim("x", "b", LONG)).token, 2);
}

#[test]
fn the_private_function_is_private() {
    let db = memory();
    acquired(db.claim("x", "a", LONG));
    let name: String = db
        .conn()
        .query_row(
            "SELECT name FROM pragma_function_list WHERE name LIKE 'litelease_rule%'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    for arguments in ["", "NULL", "0", "3", "1, 0", "NULL, 'a', 1, 150", "NULL, 1, 2, 3, 4, 5"] {
        let called = db.conn().query_row(&format!("SELECT {name}({arguments})"), [], |_| Ok(()));
        assert!(called.unwrap_err().to_string().contains("private to Litelease"), "{arguments}");
    }
    // No view, trigger or generated column in a shared file can call it either.
    let view = format!("CREATE TEMP VIEW v AS SELECT {name}(NULL, 0); SELECT * FROM v");
    assert!(db.conn().execute_batch(&view).is_err());
}
