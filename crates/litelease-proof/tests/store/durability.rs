//! The epoch that keeps tokens in order after a power cut, and floors raised by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use litelease::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use litelease::rusqlite::{Connection, OpenFlags, ffi};
use litelease::{BootRecord, Error, Leases, Litelease, LiteleaseRef, RenewResult, SingleWriter};
use litelease_proof::boot::{Boot, pretend};
use litelease_proof::rig::{LONG, TestFolder, acquired, sqlite_code};

const TTL: Duration = Duration::from_millis(50);
const EPOCH: i64 = 1 << 32;

/// The settings in which an acknowledged commit can get lost, and those in which it cannot.
const WEAK: [(&str, i64); 9] = [
    ("WAL", 0),
    ("WAL", 1),
    ("DELETE", 0),
    ("DELETE", 1),
    ("DELETE", 2),
    ("TRUNCATE", 1),
    ("PERSIST", 1),
    ("MEMORY", 2),
    ("MEMORY", 3),
];
const STRONG: [(&str, i64); 7] = [
    ("WAL", 2),
    ("WAL", 3),
    ("DELETE", 3),
    ("TRUNCATE", 2),
    ("TRUNCATE", 3),
    ("PERSIST", 2),
    ("PERSIST", 3),
];

/// A handle in this boot of the machine, on a file that has its lease table already.
fn in_boot(boot: i64, place: &TestFolder, synchronous: i64) -> Litelease {
    pretend(Some(Boot::Known(boot)));
    let conn = place.connect(Duration::ZERO);
    conn.pragma_update(None, "synchronous", synchronous).unwrap();
    Litelease::from_connection(conn)
}

/// A file with nothing but the lease table, as an older version or another program has left it.
fn plain(journal: &'static str) -> TestFolder {
    let place = TestFolder::new(journal);
    let memory = litelease_proof::rig::memory();
    let sql = "SELECT sql FROM sqlite_schema WHERE name = 'litelease_resources'";
    let sql: String = memory.conn().query_row(sql, [], |row| row.get(0)).unwrap();
    place.connect(Duration::ZERO).execute_batch(&sql).unwrap();
    place
}

fn claim_at(db: &Leases, name: &str, now_ms: i64) -> i64 {
    acquired(db.at(now_ms).claim(name, "a", TTL)).token
}

/// The floor and the boot that a file keeps.
fn epoch_row(conn: &Connection) -> Option<(i64, i64)> {
    let sql = "SELECT token_floor, boot FROM litelease_meta";
    conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).ok()
}

fn synchronous(conn: &Connection) -> i64 {
    conn.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_weak_connection_leaves_a_mark_once_per_boot_and_goes_on_in_a_new_epoch() {
    for (journal, level) in WEAK {
        for bootstraps in [true, false] {
            let case = format!("{journal}, synchronous {level}, bootstraps {bootstraps}");
            let place = plain(journal);
            for boot in [7, 8, 9] {
                let db = in_boot(boot, &place, level);
                let epoch = (boot - 7) * EPOCH;
                if bootstraps {
                    db.bootstrap().unwrap();
                    assert_eq!(epoch_row(db.conn()), Some((epoch, boot)), "{case}");
                }
                for (number, now_ms) in [(1, 0), (2, 100), (3, 200)] {
                    let now_ms = boot * 1_000 + now_ms;
                    let expected = epoch + number;
                    assert_eq!(claim_at(&db, "x", now_ms), expected, "{case}, boot {boot}");
                    assert_eq!(epoch_row(db.conn()), Some((epoch, boot)), "{case}");
                }
                assert_eq!(synchronous(db.conn()), level, "{case}");
                // Another process of the same boot finds everything in place.
                let other = in_boot(boot, &place, level);
                other.bootstrap().unwrap();
                assert_eq!(claim_at(&other, "y", boot * 1_000), epoch + 1, "{case}");
            }
        }
    }
}

#[test]
fn bootstrap_records_each_boot_on_a_strong_connection_too() {
    for (journal, level) in STRONG {
        let place = TestFolder::new(journal);
        for boot in [7, 8, 9] {
            let case = format!("{journal}, synchronous {level}, boot {boot}");
            let db = in_boot(boot, &place, level);
            db.bootstrap().unwrap();
            let epoch = (boot - 7) * EPOCH;
            assert_eq!(epoch_row(db.conn()), Some((epoch, boot)), "{case}");
            assert_eq!(claim_at(&db, "x", boot * 1_000), epoch + 1, "{case}");
            in_boot(boot, &place, level).bootstrap().unwrap();
            assert_eq!(epoch_row(db.conn()), Some((epoch, boot)), "{case}: once per boot");
            assert_eq!(synchronous(db.conn()), level, "{case}");
        }
    }
}

#[test]
fn a_strong_claim_outside_a_transaction_records_nothing_and_its_numbers_stay_dense() {
    for (journal, level) in STRONG {
        let place = plain(journal);
        for boot in [7, 8, 9] {
            let db = in_boot(boot, &place, level);
            assert_eq!(claim_at(&db, "x", boot * 1_000), boot - 6, "{journal}, {level}");
            assert_eq!(epoch_row(db.conn()), None, "{journal}, {level}");
        }
    }
    pretend(None);
    let memory = litelease_proof::rig::memory();
    acquired(memory.claim("x", "a", LONG));
    assert_eq!(epoch_row(memory.conn()), None, "nothing in memory outlives a boot");
    assert_eq!(memory.epoch().unwrap().boot, BootRecord::Durable);
}

#[test]
fn a_strong_connection_minds_what_a_weak_one_may_have_lost_in_another_boot() {
    for (journal, level) in STRONG {
        let place = TestFolder::new(journal);
        let weak = in_boot(7, &place, 1);
        weak.bootstrap().unwrap();
        assert_eq!(claim_at(&weak, "x", 0), 1);
        drop(weak);
        let strong = in_boot(8, &place, level);
        assert_eq!(claim_at(&strong, "x", 1_000), EPOCH + 1, "{journal}, {level}");
        assert_eq!(claim_at(&strong, "x", 2_000), EPOCH + 2, "{journal}, {level}");
    }
}

#[test]
fn a_connection_that_becomes_weak_is_noticed_at_its_next_grant() {
    let place = plain("WAL");
    let db = in_boot(7, &place, 2);
    claim_at(&db, "x", 0);
    assert_eq!(epoch_row(db.conn()), None);
    db.conn().pragma_update(None, "synchronous", 1).unwrap();
    claim_at(&db, "x", 1_000);
    assert_eq!(epoch_row(db.conn()), Some((0, 7)));
}

#[test]
fn every_verb_that_raises_a_token_goes_on_in_the_new_epoch_and_no_other_needs_a_mark() {
    type Verb = fn(&Leases) -> litelease::Result<Option<i64>>;
    let verbs: [(&str, Verb); 7] = [
        ("transfer", |db| db.at(10).transfer_by_owner("x", "a", "b", TTL).map(|_| None)),
        ("break", |db| db.at(10).break_lease("x").map(|_| None)),
        ("claim", |db| db.at(100).claim("x", "b", TTL).map(|_| None)),
        ("renew", |db| db.at(10).renew_by_owner("x", "a", TTL).map(|_| Some(1))),
        ("release", |db| db.at(10).release_by_owner("x", "a").map(|_| Some(1))),
        ("ensure, claiming", |db| db.at(100).ensure("x", "a", TTL).map(|_| None)),
        ("ensure, renewing", |db| db.at(10).ensure("x", "a", TTL).map(|_| Some(1))),
    ];
    for (verb, call) in verbs {
        let place = TestFolder::new("DELETE");
        let before = in_boot(7, &place, 2);
        before.bootstrap().unwrap();
        claim_at(&before, "x", 0);
        let db = in_boot(8, &place, 2);
        let kept = call(&db).unwrap();
        assert_eq!(db.token("x").unwrap(), kept.or(Some(EPOCH + 1)), "{verb}");
        let expected = if kept.is_some() { (0, 7) } else { (EPOCH, 8) };
        assert_eq!(epoch_row(db.conn()), Some(expected), "{verb}");
    }
}

/// Begins a transaction as a caller does: without the library.
fn begin(db: &Litelease) {
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
}

#[test]
fn in_a_transaction_of_the_callers_the_mark_comes_and_goes_with_it_and_the_next_grant_makes_sure() {
    for journal in ["WAL", "DELETE"] {
        let place = plain(journal);
        let db = in_boot(7, &place, 1);
        begin(&db);
        assert_eq!(claim_at(&db, "x", 0), 1);
        assert_eq!(epoch_row(db.conn()), Some((0, -7)), "it may still get lost");
        db.conn().execute_batch("ROLLBACK").unwrap();
        assert_eq!(epoch_row(db.conn()), None, "{journal}");
        assert_eq!(db.epoch().unwrap().boot, BootRecord::Missing, "{journal}");

        db.conn().execute_batch("BEGIN IMMEDIATE; SAVEPOINT s").unwrap();
        assert_eq!(claim_at(&db, "x", 0), 1);
        db.conn().execute_batch("RELEASE s").unwrap();
        assert_eq!(claim_at(&db, "x", 1_000), 2, "{journal}");
        db.conn().execute_batch("COMMIT").unwrap();
        assert_eq!(epoch_row(db.conn()), Some((0, -7)), "{journal}");
        assert_eq!(db.epoch().unwrap().boot, BootRecord::AtRisk, "{journal}");

        assert_eq!(claim_at(&db, "y", 0), 1);
        assert_eq!(epoch_row(db.conn()), Some((0, 7)), "{journal}: sure now");
        assert_eq!(db.epoch().unwrap().boot, BootRecord::Durable, "{journal}");
        // And then a transaction finds it so.
        begin(&db);
        claim_at(&db, "z", 0);
        assert_eq!(epoch_row(db.conn()), Some((0, 7)), "{journal}");
        db.conn().execute_batch("COMMIT").unwrap();

        let next = in_boot(8, &place, 1);
        begin(&next);
        assert_eq!(claim_at(&next, "x", 5_000), EPOCH + 1, "{journal}");
        assert_eq!(epoch_row(next.conn()), Some((EPOCH, -8)), "{journal}");
        next.conn().execute_batch("ROLLBACK").unwrap();
        next.bootstrap().unwrap();
        assert_eq!(epoch_row(next.conn()), Some((EPOCH, 8)), "{journal}");
    }
}

#[test]
fn in_a_strong_transaction_of_the_callers_the_mark_stays_unsure_until_it_is_confirmed() {
    // A process that is killed between writing and syncing records an epoch that others see, and
    // that can still get lost.
    let place = TestFolder::new("WAL");
    in_boot(7, &place, 1).bootstrap().unwrap();
    let db = in_boot(8, &place, 2);
    begin(&db);
    assert_eq!(claim_at(&db, "x", 0), EPOCH + 1);
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(epoch_row(db.conn()), Some((EPOCH, -8)));
    begin(&db);
    assert_eq!(claim_at(&db, "x", 1_000), EPOCH + 2, "which is no new epoch");
    db.conn().execute_batch("COMMIT").unwrap();
    db.bootstrap().unwrap();
    assert_eq!(epoch_row(db.conn()), Some((EPOCH, 8)));
}

#[test]
fn whoever_bootstraps_covers_every_weaker_connection_that_joins() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let strong = in_boot(7, &place, 3);
        strong.bootstrap().unwrap();
        strong.pools().register("p", 9).unwrap();
        let weak = in_boot(7, &place, 1);
        begin(&weak);
        assert_eq!(claim_at(&weak, "x", 0), 1);
        assert_eq!(weak.pools().at(0).borrow("p", TTL).unwrap().unwrap().slot.token, 1);
        assert_eq!(epoch_row(weak.conn()), Some((0, 7)), "{journal}: recorded before, and durably");
        weak.conn().execute_batch("COMMIT").unwrap();
        // The same connection, after its pragma was changed.
        strong.conn().pragma_update(None, "synchronous", 1).unwrap();
        begin(&strong);
        assert_eq!(claim_at(&strong, "y", 0), 1);
        assert_eq!(epoch_row(strong.conn()), Some((0, 7)), "{journal}");
        strong.conn().execute_batch("COMMIT").unwrap();
    }
}

#[test]
fn a_transaction_that_the_library_begins_is_recorded_before_it_begins() {
    for (journal, level) in [("WAL", 1), ("WAL", 2), ("DELETE", 2)] {
        let place = plain(journal);
        let mut db = in_boot(7, &place, level);
        let tx = db.transaction().unwrap();
        assert_eq!(epoch_row(tx.conn()), Some((0, 7)), "{journal}, {level}");
        assert_eq!(claim_at(&tx, "x", 0), 1);
        tx.rollback().unwrap();
        assert_eq!(epoch_row(db.conn()), Some((0, 7)), "{journal}, {level}: it is not part of it");
        assert_eq!(synchronous(db.conn()), level);
        let next = in_boot(8, &place, level);
        next.begin_batch().unwrap();
        assert_eq!(epoch_row(next.conn()), Some((EPOCH, 8)), "{journal}, {level}");
        next.rollback_batch().unwrap();
    }
    // Where there are no leases, there is nothing to record.
    let place = TestFolder::new("WAL");
    let mut db = in_boot(7, &place, 1);
    db.transaction().unwrap().commit().unwrap();
    let tables = "SELECT count(*) FROM sqlite_schema";
    assert_eq!(db.conn().query_row(tables, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
}

#[test]
fn a_single_writer_records_the_boot_by_itself() {
    pretend(Some(Boot::Known(7)));
    let place = plain("WAL");
    let writer = SingleWriter::open(&place.file).unwrap();
    let reader = writer.reader().unwrap();
    assert_eq!(epoch_row(&reader), Some((0, 7)), "when it is opened");
    let token = writer.write(|tx| Ok(claim_at(&LiteleaseRef::new(tx), "x", 0))).unwrap();
    assert_eq!((token, epoch_row(&reader)), (1, Some((0, 7))));
    // In the next boot it need not be the one who bootstraps.
    pretend(Some(Boot::Known(8)));
    let next = SingleWriter::open(&place.file).unwrap();
    assert_eq!(epoch_row(&reader), Some((EPOCH, 8)));
    let token = next.write(|tx| Ok(claim_at(&LiteleaseRef::new(tx), "x", 100))).unwrap();
    assert_eq!(token, EPOCH + 1);

    // Leases that are made inside a write are recorded before the next one.
    let place = TestFolder::new("WAL");
    let writer = SingleWriter::open(&place.file).unwrap();
    let tx = writer.begin().unwrap();
    LiteleaseRef::new(&tx).bootstrap().unwrap();
    tx.commit().unwrap();
    let reader = writer.reader().unwrap();
    assert_eq!(epoch_row(&reader), None, "inside a transaction nothing can be recorded");
    let tx = writer.begin().unwrap();
    assert_eq!(epoch_row(&reader), Some((0, 8)), "in a commit of its own");
    drop(tx);
    // Tables of that name which are not ours stop no other program's writes.
    let place = TestFolder::new("WAL");
    place.connect(Duration::ZERO).execute_batch("CREATE TABLE litelease_resources (id)").unwrap();
    let writer = SingleWriter::open(&place.file).unwrap();
    writer.write(|tx| tx.execute("INSERT INTO litelease_resources VALUES (1)", [])).unwrap();
}

/// Puts the record of the boot at risk, as a transaction that a caller begins does if it crosses
/// into a later epoch.
fn put_at_risk(place: &TestFolder, epoch: i64) {
    let conn = place.connect(Duration::ZERO);
    conn.execute_batch("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE").unwrap();
    let now_ms = epoch * 1_000;
    acquired(LiteleaseRef::joining(&conn).at(now_ms).claim_above("z", "a", TTL, epoch * EPOCH));
    conn.execute_batch("COMMIT").unwrap();
    assert_eq!(epoch_row(&conn), Some((epoch * EPOCH, -7)));
}

/// A handle that had seen the record once never looked at it again.
#[test]
fn whoever_begins_a_transaction_looks_at_the_record_each_time() {
    let place = plain("WAL");
    let mut db = in_boot(7, &place, 1);
    let served = in_boot(7, &place, 1);
    db.bootstrap().unwrap();
    served.begin_batch().unwrap();
    served.commit_batch().unwrap();
    let writer = SingleWriter::open(&place.file).unwrap();
    for round in 0..3 {
        put_at_risk(&place, 3 * round + 1);
        let tx = db.transaction().unwrap();
        assert_eq!(epoch_row(tx.conn()), Some(((3 * round + 1) * EPOCH, 7)), "a transaction");
        tx.commit().unwrap();
        put_at_risk(&place, 3 * round + 2);
        served.begin_batch().unwrap();
        assert_eq!(epoch_row(served.conn()), Some(((3 * round + 2) * EPOCH, 7)), "a batch");
        served.commit_batch().unwrap();
        put_at_risk(&place, 3 * round + 3);
        let tx = writer.begin().unwrap();
        assert_eq!(epoch_row(&tx), Some(((3 * round + 3) * EPOCH, 7)), "a single writer");
        tx.commit().unwrap();
    }
    // Tables that are gone, or came back without a record, are looked at anew.
    place.connect(Duration::ZERO).execute_batch("DROP TABLE litelease_meta").unwrap();
    let tx = db.transaction().unwrap();
    assert_eq!(epoch_row(tx.conn()), Some((0, 7)));
    tx.commit().unwrap();
    let both = "DROP TABLE litelease_meta; DROP TABLE litelease_resources";
    place.connect(Duration::ZERO).execute_batch(both).unwrap();
    db.transaction().unwrap().commit().unwrap();
    served.begin_batch().unwrap();
    served.commit_batch().unwrap();
    writer.begin().unwrap().commit().unwrap();
    assert_eq!(epoch_row(db.conn()), None);
}

/// `query_only` can be switched off again, so an answer that everything is recorded would be wrong
/// then.
#[test]
fn a_boot_that_cannot_be_recorded_for_query_only_is_an_error() {
    let place = plain("WAL");
    let db = in_boot(7, &place, 1);
    db.conn().execute_batch("PRAGMA query_only = ON").unwrap();
    assert_eq!(sqlite_code(db.bootstrap()), ffi::SQLITE_READONLY);
    assert_eq!(db.epoch().unwrap().boot, BootRecord::Missing);
    db.conn().execute_batch("PRAGMA query_only = OFF").unwrap();
    db.bootstrap().unwrap();
    db.conn().execute_batch("PRAGMA query_only = ON").unwrap();
    db.bootstrap().unwrap();
    assert_eq!(epoch_row(db.conn()), Some((0, 7)), "there is nothing to write");
    // A connection that was opened for reading grants nothing.
    pretend(Some(Boot::Known(8)));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let read_only = Connection::open_with_flags(&place.file, flags).unwrap();
    LiteleaseRef::new(&read_only).bootstrap().unwrap();
    assert_eq!(epoch_row(&read_only), Some((0, 7)));
}

/// Each way to a new token, at the last token of an epoch: the next epoch is recorded, durably, and
/// the token is above it.
#[test]
fn a_grant_that_crosses_into_the_next_epoch_records_it() {
    let newest: fn(&Litelease) -> i64 = |db| db.token("x").unwrap().unwrap();
    let ask = |db: &Litelease, sql: &str| -> i64 {
        litelease::functions::register(db.conn()).unwrap();
        db.conn().query_row(sql, [], |row| row.get(0)).unwrap()
    };
    type Verb = Box<dyn Fn(&Litelease) -> i64>;
    let verbs: [(&str, Verb); 12] = [
        ("claim", Box::new(|db| claim_at(db, "x", 1_000))),
        ("ensure", Box::new(|db| acquired(db.at(1_000).ensure("x", "a", TTL)).token)),
        ("claim of a new name above", {
            Box::new(|db| acquired(db.at(0).claim_above("new", "a", TTL, EPOCH - 1)).token)
        }),
        ("transfer", {
            Box::new(move |db| {
                let _ = db.at(10).transfer_by_owner("x", "a", "b", TTL).unwrap();
                newest(db)
            })
        }),
        ("break", {
            Box::new(move |db| {
                let _ = db.at(10).break_lease("x").unwrap();
                newest(db)
            })
        }),
        ("raise_name", {
            Box::new(move |db| {
                db.raise_name("x", EPOCH).unwrap();
                newest(db)
            })
        }),
        ("raise", {
            Box::new(|db| {
                db.raise(EPOCH).unwrap();
                claim_at(db, "new", 0)
            })
        }),
        ("borrow", {
            Box::new(|db| db.pools().at(1_000).borrow("p", TTL).unwrap().unwrap().slot.token)
        }),
        ("SQL claim", Box::new(move |db| ask(db, "SELECT litelease_claim('x', 'a', 50, 1000)"))),
        ("SQL transfer", {
            Box::new(move |db| ask(db, "SELECT litelease_transfer('x', 'a', 'b', 50, 10)"))
        }),
        ("SQL borrow", {
            Box::new(move |db| {
                let lease = "SELECT token FROM litelease_pool_slots ORDER BY token DESC LIMIT 1";
                let lent = "SELECT litelease_borrow('p', 50, 1000) IS NOT NULL";
                assert_eq!(ask(db, lent), 1);
                ask(db, lease)
            })
        }),
        ("a batch", {
            Box::new(|db| {
                db.begin_batch().unwrap();
                let lent = db.pools().at(1_000).borrow("p", TTL).unwrap().unwrap();
                db.commit_batch().unwrap();
                lent.slot.token
            })
        }),
    ];
    for (journal, level) in [("WAL", 1), ("WAL", 2), ("DELETE", 2)] {
        for (verb, call) in &verbs {
            let case = format!("{verb}, {journal}, {level}");
            let place = TestFolder::new(journal);
            let db = in_boot(7, &place, level);
            db.bootstrap().unwrap();
            acquired(db.at(0).claim_above("x", "a", TTL, EPOCH - 2));
            db.pools().register("p", 2).unwrap();
            db.pools().at(0).borrow("p", TTL).unwrap().unwrap();
            let last = format!("UPDATE litelease_pools SET newest = {}", EPOCH - 1);
            db.conn().execute_batch(&last).unwrap();
            assert_eq!(epoch_row(db.conn()).unwrap(), (0, 7), "{case}");
            let token = call(&db);
            assert!(token > EPOCH, "{case}: {token}");
            let (floor, boot) = epoch_row(db.conn()).unwrap();
            assert_eq!(floor >> 32, 1, "{case}");
            // In a batch, which is a transaction, it cannot be durable before: the next call makes
            // sure.
            assert_eq!(boot, if *verb == "a batch" { -7 } else { 7 }, "{case}");
            assert_eq!(synchronous(db.conn()), level, "{case}");
            let next = in_boot(8, &place, level);
            assert!(claim_at(&next, "x", 5_000) > 2 * EPOCH, "{case}");
        }
    }
}

/// A file with epochs of another size: a boot that passes only 2³² tokens is not above those that a
/// cut took.
#[test]
fn a_file_with_epochs_of_another_size_is_refused_by_its_column() {
    let place = plain("WAL");
    let db = in_boot(7, &place, 1);
    db.conn()
        .execute_batch(
            "CREATE TABLE litelease_meta (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  format INTEGER NOT NULL,
  token_floor INTEGER NOT NULL CHECK (token_floor >= 0),
  epoch INTEGER AS (token_floor >> 40),
  boot INTEGER NOT NULL
);
INSERT INTO litelease_meta (id, format, token_floor, boot) VALUES (1, 1, 0, 7);
INSERT INTO litelease_resources VALUES ('x', NULL, 5 << 32, NULL, 0, 0)",
        )
        .unwrap();
    for refused in [db.bootstrap(), db.claim("x", "a", LONG).map(drop)] {
        assert!(
            matches!(&refused, Err(Error::SchemaMismatch { table: "litelease_meta", .. })),
            "{refused:?}"
        );
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("40") && text.contains("32"), "{text}");
    }
}

#[test]
fn where_boots_cannot_be_told_apart_a_fence_wants_the_largest_token() {
    let place = TestFolder::new("WAL");
    pretend(Some(Boot::Unknown(101)));
    let db = Litelease::from_connection(place.connect(Duration::ZERO));
    db.bootstrap().unwrap();
    let lease = acquired(db.claim("x", "a", LONG));
    let refused = db.restore_fence();
    assert!(matches!(refused, Err(Error::LargestTokenNeeded)), "{refused:?}");
    assert!(refused.unwrap_err().to_string().contains("--above TOKEN"));
    assert_eq!(db.inspect("x").unwrap(), Some(lease), "nothing was done");
    litelease::functions::register(db.conn()).unwrap();
    let ask = |sql: &str| db.conn().query_row(sql, [], |row| row.get::<_, i64>(0));
    let refused = ask("SELECT litelease_restore_fence()").unwrap_err().to_string();
    assert!(refused.contains("litelease_restore_fence(token)"), "{refused}");
    let seen = 20_000 * EPOCH + 3;
    let floor = db.restore_fence_above(seen).unwrap();
    assert!(floor > seen && floor < 1 << 53, "{floor}");
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, floor + 1);
    assert!(ask("SELECT litelease_restore_fence(0)").unwrap() > floor);
    // In memory no epochs are taken.
    pretend(Some(Boot::Unknown(102)));
    litelease_proof::rig::memory().restore_fence().unwrap();
    pretend(None);
}

#[test]
fn a_fence_is_above_the_token_that_was_seen_and_tokens_stay_below_two_to_the_53() {
    let place = TestFolder::new("WAL");
    let db = in_boot(7, &place, 2);
    db.bootstrap().unwrap();
    assert_eq!(db.restore_fence().unwrap(), 1 << 46);
    let unrecorded = plain("WAL");
    in_boot(7, &unrecorded, 2).restore_fence().unwrap();
    assert_eq!(epoch_row(&unrecorded.connect(Duration::ZERO)), Some((1 << 46, 7)), "recorded, too");
    let seen = (1 << 50) + 17;
    let floor = db.restore_fence_above(seen).unwrap();
    assert_eq!(floor, (1 << 50) + (1 << 46));
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, floor + 1);
    assert!(db.restore_fence_above(0).unwrap() > floor + 1, "never lower");
    assert!(matches!(db.restore_fence_above(i64::MAX), Err(Error::TokenExhausted { .. })));
    let place = TestFolder::new("WAL");
    let db = in_boot(7, &place, 2);
    db.bootstrap().unwrap();
    let (mut calls, mut newest) = (0, 0);
    while newest < 1 << 53 {
        assert_eq!(db.epoch().unwrap().newest, newest);
        (calls, newest) = (calls + 1, db.restore_fence().unwrap());
    }
    assert_eq!(calls, 128, "so there is room for 127");
    assert_eq!(db.epoch().unwrap().epochs_left(), 0);
}

#[test]
fn a_grant_from_inside_a_statement_of_the_callers_leaves_its_mark_too() {
    let place = plain("DELETE");
    let db = in_boot(7, &place, 2);
    litelease::functions::register(db.conn()).unwrap();
    let conn = db.conn();
    conn.execute_batch("CREATE TABLE mine (name); INSERT INTO mine VALUES ('x'), ('y')").unwrap();
    let mut statement = conn.prepare("SELECT litelease_claim(name, 'a', 50, 0) FROM mine").unwrap();
    let tokens: Vec<i64> =
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(tokens, [1, 1]);
    assert_eq!(epoch_row(conn), Some((0, 7)));
    assert_eq!(synchronous(conn), 2);

    // A statement that writes is a transaction of the caller's.
    let place = plain("DELETE");
    let db = in_boot(7, &place, 2);
    litelease::functions::register(db.conn()).unwrap();
    let conn = db.conn();
    conn.execute_batch(
        "CREATE TABLE mine (token); INSERT INTO mine SELECT litelease_claim('x', 'a', 50, 0)",
    )
    .unwrap();
    assert_eq!(epoch_row(conn), Some((0, -7)));
}

#[test]
fn synchronous_is_put_back_when_the_mark_cannot_be_left() {
    // Another connection has the write lock.
    let place = plain("DELETE");
    let db = in_boot(7, &place, 2);
    let other = place.connect(Duration::ZERO);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_BUSY);
    assert_eq!(sqlite_code(db.bootstrap()), ffi::SQLITE_BUSY, "success would mean that it is safe");
    assert_eq!(sqlite_code(db.purge(0)), ffi::SQLITE_BUSY);
    assert_eq!(sqlite_code(db.raise(9)), ffi::SQLITE_BUSY);
    assert_eq!(synchronous(db.conn()), 2);
    other.execute_batch("ROLLBACK").unwrap();

    // The caller's commit hook refuses.
    let refuses = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&refuses);
    let mut conn = db.into_connection();
    conn.commit_hook(Some(move || told.load(Ordering::Relaxed))).unwrap();
    let db = Litelease::from_connection(conn);
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_CONSTRAINT_COMMITHOOK);
    assert_eq!((synchronous(db.conn()), epoch_row(db.conn())), (2, None));
    assert!(db.conn().is_autocommit());
    refuses.store(false, Ordering::Relaxed);
    assert_eq!(acquired(db.claim("x", "a", LONG)).token, 1);
    assert_eq!((synchronous(db.conn()), epoch_row(db.conn())), (2, Some((0, 7))));
}

#[test]
fn a_change_is_no_error_if_only_the_commit_that_confirms_its_epoch_fails() {
    // The change was stored, and its verb returned the error of the second commit.
    type Call = fn(&Litelease) -> litelease::Result<()>;
    let calls: [(&str, Call); 3] = [
        ("raise", |db| db.raise(500)),
        ("restore_fence", |db| db.restore_fence().map(drop)),
        ("delete", |db| db.pools().delete("p").map(drop)),
    ];
    for (what, call) in calls {
        let place = plain("DELETE");
        let db = in_boot(7, &place, 2);
        db.bootstrap().unwrap();
        db.pools().register("p", 1).unwrap();
        db.pools().borrow("p", LONG).unwrap();
        let mut conn = db.into_connection();
        let commits = AtomicU32::new(0);
        conn.commit_hook(Some(move || commits.fetch_add(1, Ordering::Relaxed) == 1)).unwrap();
        let db = Litelease::from_connection(conn);
        call(&db).unwrap_or_else(|error| panic!("{what}: {error}"));
        let others = in_boot(7, &place, 2);
        assert_eq!(others.epoch().unwrap().boot, BootRecord::AtRisk, "{what}: it is confirmed");
        assert_eq!(others.pools().info("p").unwrap().is_none(), what == "delete");
        // The next grant confirms it.
        acquired(db.claim("x", "a", LONG));
        assert_eq!(others.epoch().unwrap().boot, BootRecord::Durable, "{what}");
    }
}

#[test]
fn synchronous_is_put_back_after_an_interrupt_at_any_step() {
    let (mut interrupted, mut owed) = (0, 0);
    for step in (1..).step_by(3) {
        let place = plain("DELETE");
        let db = in_boot(7, &place, 2);
        litelease::functions::register(db.conn()).unwrap();
        let mut conn = db.into_connection();
        // From inside a statement, an interrupt lasts until that has ended.
        let (handle, mut steps) = (conn.get_interrupt_handle(), 0);
        let stop = move || {
            steps += 1;
            if steps == step {
                handle.interrupt();
            }
            false
        };
        conn.progress_handler(1, Some(stop)).unwrap();
        let claimed: Result<i64, _> =
            conn.query_row("SELECT litelease_claim('x', 'a', 50, 0)", [], |row| row.get(0));
        conn.progress_handler(0, None::<fn() -> bool>).unwrap();
        if claimed.is_ok() {
            assert_eq!(synchronous(&conn), 2);
            break;
        }
        interrupted += 1;
        assert!(conn.is_autocommit(), "interrupted at step {step}: a transaction is left open");
        // SQLite must read the schema again before a pragma after a rollback that has changed it.
        // While it is interrupted it does not: then this is made up for at the next call.
        owed += u32::from(synchronous(&conn) != 2);
        let again = "SELECT litelease_claim('x', 'b', 50, 100)";
        let token = conn.query_row(again, [], |row| row.get::<_, i64>(0));
        assert!(
            token.as_ref().is_ok_and(|token| *token <= 2),
            "interrupted at step {step}: {token:?}"
        );
        assert_eq!(synchronous(&conn), 2, "interrupted at step {step}");
        assert!(conn.is_autocommit(), "interrupted at step {step}");
        assert_eq!(epoch_row(&conn), Some((0, 7)), "interrupted at step {step}");
    }
    assert!(0 < owed && owed < interrupted / 2, "{owed} of {interrupted} had to be made up for");
    assert!(interrupted > 50, "only {interrupted} steps");
}

#[test]
fn an_authorizer_that_forbids_pragmas_gets_an_error_and_no_unsafe_grant() {
    let place = plain("DELETE");
    let mut conn = place.connect(Duration::ZERO);
    pretend(Some(Boot::Known(7)));
    conn.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Pragma { pragma_name: "synchronous", .. } => Authorization::Deny,
        _ => Authorization::Allow,
    }))
    .unwrap();
    let db = Litelease::from_connection(conn);
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_AUTH);
    assert_eq!(db.token("x").unwrap(), None);
}

#[test]
fn a_process_that_cannot_tell_boots_apart_begins_one_epoch_and_shares_it() {
    let place = TestFolder::new("DELETE");
    let open = |process: i64| {
        pretend(Some(Boot::Unknown(process)));
        Litelease::from_connection(place.connect(Duration::ZERO))
    };
    let first = open(101);
    first.bootstrap().unwrap();
    assert_eq!(claim_at(&first, "x", 0), 1);
    assert_eq!(claim_at(&first, "x", 1_000), 2);
    // The memory of who has left an epoch is the process's, so one more process here is one more
    // file.
    let moved = TestFolder::new("DELETE");
    drop(first);
    std::fs::copy(&place.file, &moved.file).unwrap();
    pretend(Some(Boot::Unknown(102)));
    let second = Litelease::from_connection(moved.connect(Duration::ZERO));
    assert_eq!(claim_at(&second, "x", 2_000), EPOCH + 1, "it may have been another boot");
    assert_eq!(claim_at(&second, "x", 3_000), EPOCH + 2, "and now it is not");
    // Another program's epoch of a later start is no news.
    second.conn().execute_batch("UPDATE litelease_meta SET boot = 103").unwrap();
    assert_eq!(claim_at(&second, "x", 4_000), EPOCH + 3);
}

#[test]
fn a_token_seen_elsewhere_raises_the_epoch_of_the_whole_file() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = in_boot(7, &place, 2);
        db.bootstrap().unwrap();
        let seen = 5 * EPOCH + 7;
        let lease = acquired(db.at(0).claim_above("x", "a", TTL, seen));
        assert_eq!(lease.token, seen + 1);
        assert_eq!(claim_at(&db, "y", 0), 5 * EPOCH + 1, "{journal}: the file is older than that");
        let weak = in_boot(7, &place, 1);
        assert_eq!(claim_at(&weak, "x", 1_000), seen + 2, "{journal}");
        let next = in_boot(8, &place, 1);
        assert_eq!(claim_at(&next, "x", 2_000), 6 * EPOCH + 1, "{journal}");
    }
}

#[test]
fn the_last_epoch_is_the_end_and_says_so() {
    let place = TestFolder::new("DELETE");
    let db = in_boot(7, &place, 2);
    db.bootstrap().unwrap();
    acquired(db.at(0).claim_above("x", "a", TTL, i64::MAX - 1));
    assert_eq!(claim_at(&db, "y", 0), (i64::MAX >> 32 << 32) + 1, "there are others left");
    let next = in_boot(8, &place, 2);
    for refused in [
        next.at(1_000).claim("y", "a", TTL).map(drop),
        next.bootstrap(),
        next.restore_fence().map(drop),
    ] {
        assert!(matches!(refused, Err(Error::TokenExhausted { .. })), "{refused:?}");
    }
    assert_eq!(next.token("y").unwrap(), Some((i64::MAX >> 32 << 32) + 1));
}

#[test]
fn a_floor_is_raised_for_every_name_and_never_lowered() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let mut db = in_boot(7, &place, 2);
        db.bootstrap().unwrap();
        assert_eq!(claim_at(&db, "x", 0), 1);
        db.raise(41).unwrap();
        db.raise(41).unwrap();
        assert_eq!((claim_at(&db, "x", 100), claim_at(&db, "y", 100)), (42, 42));
        for floor in [40, 0, -1, i64::MIN] {
            let refused = db.raise(floor);
            assert!(matches!(refused, Err(Error::FloorTooLow { present: 41, .. })), "{refused:?}");
        }
        assert!(matches!(db.raise(i64::MAX), Err(Error::TokenExhausted { .. })));
        assert_eq!(epoch_row(db.conn()).unwrap().0, 41, "{journal}: nothing changed");
        let tx = db.transaction().unwrap();
        tx.raise(99).unwrap();
        assert_eq!(claim_at(&tx, "z", 0), 100);
        tx.rollback().unwrap();
        assert_eq!(claim_at(&db, "z", 0), 42, "{journal}");
        db.raise(3 * EPOCH + 5).unwrap();
        assert_eq!(claim_at(&db, "z", 100), 3 * EPOCH + 6, "{journal}");
    }
}

#[test]
fn raising_a_name_supersedes_its_holder_and_leaves_the_others_alone() {
    let db = litelease_proof::rig::memory();
    let lease = acquired(db.claim("x", "a", LONG));
    db.raise_name("x", 500).unwrap();
    assert_eq!((db.owner("x").unwrap(), db.token("x").unwrap()), (None, Some(501)));
    assert!(!db.present(("x", 500)).unwrap(), "somebody may have it");
    assert!(matches!(db.renew(&lease, LONG).unwrap(), RenewResult::Rejected { .. }));
    assert_eq!(acquired(db.claim("x", "b", LONG)).token, 502);
    assert_eq!(acquired(db.claim("y", "b", LONG)).token, 1);
    for floor in [501, 0, -3] {
        let refused = db.raise_name("x", floor);
        assert!(matches!(refused, Err(Error::FloorTooLow { present: 502, .. })), "{refused:?}");
    }
    assert!(matches!(db.raise_name("x", i64::MAX), Err(Error::TokenExhausted { .. })));
    assert_eq!(db.owner("x").unwrap().as_deref(), Some("b"), "nothing changed");
    db.raise_name("new", 7).unwrap();
    assert_eq!(acquired(db.claim("new", "b", LONG)).token, 9);
    // What a purge has raised the floor of the file to counts for every name.
    let _ = db.break_lease("x").unwrap();
    assert_eq!(db.purge(i64::MAX).unwrap(), 1);
    let refused = db.raise_name("x", 400);
    assert!(matches!(refused, Err(Error::FloorTooLow { present: 503, .. })), "{refused:?}");
}

#[test]
fn a_restored_backup_grants_nothing_twice_once_it_is_fenced() {
    for journal in ["WAL", "DELETE"] {
        let place = TestFolder::new(journal);
        let db = in_boot(7, &place, 2);
        db.bootstrap().unwrap();
        let old = acquired(db.claim("x", "a", LONG));
        db.conn().execute_batch("VACUUM").unwrap();
        let backup = TestFolder::new(journal);
        db.conn().execute("VACUUM INTO ?1", [backup.file.to_str().unwrap()]).unwrap();

        // After the backup: a hundred boots, and a successor.
        let _ = db.break_lease("x").unwrap();
        db.raise(100 * EPOCH).unwrap();
        let newer = acquired(db.claim("x", "b", LONG));

        let restored = in_boot(8, &backup, 2);
        assert_eq!(restored.owner("x").unwrap().as_deref(), Some("a"), "as it was");
        let floor = restored.restore_fence().unwrap();
        assert!(floor > newer.token, "{journal}");
        assert_eq!(
            (restored.owner("x").unwrap(), restored.token("x").unwrap()),
            (None, Some(floor))
        );
        for zombie in [&old, &newer] {
            let renewed = restored.renew(zombie, LONG).unwrap();
            assert!(matches!(renewed, RenewResult::Rejected { .. }), "{journal}: {renewed:?}");
        }
        assert_eq!(acquired(restored.claim("x", "c", LONG)).token, floor + 1);
        assert_eq!(acquired(restored.claim("never seen", "c", LONG)).token, floor + 1);
        let again = restored.restore_fence().unwrap();
        assert!(again > floor + 1, "a second restore is fenced again");
    }
}

#[test]
fn a_copy_without_its_log_is_an_older_file_and_is_fenced_like_one() {
    let place = TestFolder::new("WAL");
    let db = in_boot(7, &place, 2);
    db.bootstrap().unwrap();
    db.conn().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let newest = [0, 100, 200].map(|now_ms| claim_at(&db, "x", now_ms))[2];
    let copy = TestFolder::new("WAL");
    std::fs::copy(&place.file, &copy.file).unwrap();
    let copied = in_boot(7, &copy, 2);
    assert_eq!(copied.token("x").unwrap(), None, "all of it was in the log");
    let floor = copied.restore_fence().unwrap();
    assert!(floor > newest);
    assert_eq!(claim_at(&copied, "x", 300), floor + 1);
}

/// Before 3.51.3, writes and checkpoints that race could lose committed transactions.
#[test]
fn the_sqlite_that_is_built_in_does_not_lose_commits_by_itself() {
    let version = litelease::rusqlite::version();
    assert!(litelease::rusqlite::version_number() >= 3_051_003, "SQLite {version} is too old");
}

#[test]
fn what_cannot_be_fenced_says_why_and_stays_as_it_is() {
    pretend(Some(Boot::Known(7)));
    let foreign = Litelease::from_connection(Connection::open_in_memory().unwrap());
    foreign.conn().execute_batch("CREATE TABLE mine (id)").unwrap();
    assert!(matches!(foreign.restore_fence(), Err(Error::NotBootstrapped)));
    assert!(matches!(foreign.raise(5), Err(Error::NotBootstrapped)));
    assert!(matches!(foreign.raise_name("x", 5), Err(Error::NotBootstrapped)));
    let tables = "SELECT count(*) FROM sqlite_schema";
    let tables: i64 = foreign.conn().query_row(tables, [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 1, "nothing was made");

    let place = plain("DELETE");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let read_only = Connection::open_with_flags(&place.file, flags).unwrap();
    let db = LiteleaseRef::new(&read_only);
    db.bootstrap().unwrap();
    assert_eq!(sqlite_code(db.restore_fence()), ffi::SQLITE_READONLY);
    assert_eq!(sqlite_code(db.raise(5)), ffi::SQLITE_READONLY);
    assert_eq!(sqlite_code(db.claim("x", "a", LONG)), ffi::SQLITE_READONLY);

    let text = TestFolder::new("DELETE");
    std::fs::write(
        &text.file,
        "this is no database, and it is long enough to look like one".repeat(20),
    )
    .unwrap();
    let db = Litelease::open(&text.file).unwrap();
    assert_eq!(sqlite_code(db.restore_fence()), ffi::SQLITE_NOTADB);

    let place = plain("WAL");
    let db = in_boot(7, &place, 2);
    acquired(db.claim("x", "a", LONG));
    db.conn()
        .execute_batch(
            "PRAGMA ignore_check_constraints = 1; UPDATE litelease_resources SET token = 0",
        )
        .unwrap();
    assert!(matches!(db.restore_fence(), Err(Error::InvalidLeaseRow(_))));
    assert_eq!(epoch_row(db.conn()), None, "nothing changed");
    assert!(db.conn().is_autocommit());
}

/// What `litelease doctor` says of one thing.
fn doctor(place: &TestFolder, what: &str) -> String {
    let mut doctor = std::process::Command::new(litelease_proof::rig::litelease());
    let output = doctor.arg("doctor").arg("--db").arg(&place.file).output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let found = told.lines().find(|line| line.split_whitespace().nth(1) == Some(what));
    found.unwrap_or_else(|| panic!("nothing about {what}: {told}")).to_owned()
}

#[test]
fn the_doctor_names_a_boot_that_is_not_recorded_and_tokens_that_come_near_two_to_the_53() {
    pretend(None);
    let place = plain("WAL");
    assert!(doctor(&place, "boot").starts_with("warn"), "nobody has recorded it");
    assert!(doctor(&place, "boot").contains("not recorded since the machine was started"));
    let db = Litelease::from_connection(place.connect(Duration::ZERO));
    db.conn().pragma_update(None, "synchronous", 1).unwrap();
    begin(&db);
    acquired(db.claim("x", "a", LONG));
    db.conn().execute_batch("COMMIT").unwrap();
    assert!(doctor(&place, "boot").contains("inside a transaction before this boot"));
    db.bootstrap().unwrap();
    assert!(doctor(&place, "boot").starts_with("ok"));
    assert!(doctor(&place, "tokens").starts_with("ok"));

    let few = (1_i64 << 53) - (1 << 18) * EPOCH;
    db.raise(few - 1).unwrap();
    assert!(doctor(&place, "tokens").starts_with("ok"), "262,144 are left");
    // A single name may be far above the others.
    db.raise_name("x", few).unwrap();
    let told = doctor(&place, "tokens");
    assert!(told.starts_with("warn") && told.contains("262143 epochs are left"), "{told}");
}
