//! What is the caller's stays the caller's: pragmas, hooks, `last_insert_rowid()`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use litelease::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use litelease::rusqlite::{Connection, types::Value};
use litelease::{Leases, Litelease};
use litelease_proof::rig::{LONG, TestFolder, acquired, report};

/// Every verb, with every kind of answer: grants, noes, deletions, first rows and later ones.
fn every_verb(leases: &Leases) {
    type Call = fn(&Leases) -> litelease::Result<()>;
    let calls: [(&str, Call); 18] = [
        ("bootstrap", |db| db.bootstrap()),
        ("claim, first", |db| db.claim("x", "a", LONG).map(drop)),
        ("claim, busy", |db| db.claim("x", "b", LONG).map(drop)),
        ("renew", |db| db.renew_by_owner("x", "a", 2 * LONG).map(drop)),
        ("renew, rejected", |db| db.renew_by_owner("x", "b", LONG).map(drop)),
        ("transfer", |db| db.transfer_by_owner("x", "a", "b", LONG).map(drop)),
        ("inspect", |db| db.inspect("x").map(drop)),
        ("owner", |db| db.owner("x").map(drop)),
        ("token", |db| db.token("x").map(drop)),
        ("break", |db| db.break_lease("x").map(drop)),
        ("claim, later", |db| db.claim("x", "c", LONG).map(drop)),
        ("release", |db| db.release_by_owner("x", "c").map(drop)),
        ("release, rejected", |db| db.release_by_owner("x", "c").map(drop)),
        ("purge", |db| db.purge(i64::MAX).map(drop)),
        ("claim, after purge", |db| db.claim("x", "d", LONG).map(drop)),
        ("ensure, first", |db| db.ensure("z", "a", LONG).map(drop)),
        ("ensure, renewing", |db| db.ensure("z", "a", 2 * LONG).map(drop)),
        ("ensure, busy", |db| db.ensure("z", "b", LONG).map(drop)),
    ];
    for (verb, call) in calls {
        call(leases).unwrap_or_else(|error| panic!("{verb}: {error}"));
    }
}

fn pragma(conn: &Connection, name: &str) -> Value {
    conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap()
}

#[test]
fn pragmas_are_the_callers() {
    let mut tried = 0;
    for journal in ["WAL", "DELETE", "TRUNCATE", "PERSIST", "MEMORY"] {
        for (name, values) in [
            ("synchronous", ["0", "1", "2", "3"].as_slice()),
            ("busy_timeout", &["0", "1234"]),
            ("locking_mode", &["normal", "exclusive"]),
            ("foreign_keys", &["0", "1"]),
            ("recursive_triggers", &["0", "1"]),
            ("trusted_schema", &["0", "1"]),
            ("case_sensitive_like", &["0", "1"]),
            ("cache_size", &["-100", "7"]),
            ("wal_autocheckpoint", &["0", "3"]),
            ("user_version", &["0", "9"]),
            ("application_id", &["0", "9"]),
        ] {
            for value in values {
                let place = TestFolder::new(journal);
                let conn = place.connect(Duration::ZERO);
                conn.execute_batch(&format!("PRAGMA {name} = {value}")).unwrap();
                let watched = [
                    "journal_mode",
                    "synchronous",
                    "busy_timeout",
                    "locking_mode",
                    "foreign_keys",
                    "recursive_triggers",
                    "trusted_schema",
                    "cache_size",
                    "wal_autocheckpoint",
                    "user_version",
                    "application_id",
                    "query_only",
                    "defer_foreign_keys",
                ];
                let before = watched.map(|name| pragma(&conn, name));
                let db = Litelease::from_connection(conn);
                every_verb(&db);
                let after = watched.map(|name| pragma(db.conn(), name));
                assert_eq!(before, after, "{journal}, {name} = {value}: {watched:?}");
                tried += 1;
            }
        }
    }
    report(&format!(
        "neutrality: {tried} settings of pragmas, the same before and after every verb"
    ));
}

#[test]
fn last_insert_rowid_is_the_callers() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    db.conn().execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY)").unwrap();
    for rowid in [41, -7, i64::MAX] {
        db.conn().execute("INSERT INTO mine VALUES (?1)", [rowid]).unwrap();
        let name = format!("name {rowid}");
        acquired(db.claim(&name, "a", Duration::from_millis(1_000)));
        assert_eq!(db.conn().last_insert_rowid(), rowid, "after a first claim");
        every_verb(&db);
        assert_eq!(db.conn().last_insert_rowid(), rowid, "after every verb");
    }
    // An insert that fails leaves it alone as well.
    let mut db = db;
    let tx = db.transaction().unwrap();
    tx.conn().execute_batch("PRAGMA query_only = 1").unwrap();
    tx.claim("never", "a", LONG).unwrap_err();
    tx.conn().execute_batch("PRAGMA query_only = 0").unwrap();
    assert_eq!(tx.conn().last_insert_rowid(), i64::MAX);
}

#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it went up since the last time it was asked.
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn hooks_are_the_callers() {
    let place = TestFolder::new("WAL");
    let mut conn = place.connect(Duration::ZERO);
    conn.execute_batch("CREATE TABLE mine (id)").unwrap();
    let [commit, rollback, update, authorizer, progress] = [(); 5].map(|()| Count::default());
    let count = commit.clone();
    conn.commit_hook(Some(move || (count.up(), false).1)).unwrap();
    let count = rollback.clone();
    conn.rollback_hook(Some(move || count.up())).unwrap();
    let count = update.clone();
    conn.update_hook(Some(move |_, _: &str, _: &str, _| count.up())).unwrap();
    let count = authorizer.clone();
    conn.authorizer(Some(move |context: AuthContext<'_>| {
        if matches!(context.action, AuthAction::Insert { table_name: "mine" }) {
            count.up();
        }
        Authorization::Allow
    }))
    .unwrap();
    let count = progress.clone();
    conn.progress_handler(1, Some(move || (count.up(), false).1)).unwrap();

    let db = Litelease::from_connection(conn);
    every_verb(&db);
    let conn = db.conn();
    let _ = [&commit, &rollback, &update, &authorizer, &progress].map(Count::take);

    conn.execute_batch("INSERT INTO mine VALUES (1); BEGIN; INSERT INTO mine VALUES (2); ROLLBACK")
        .unwrap();
    assert_eq!(commit.take(), 1, "commit hook");
    assert_eq!(rollback.take(), 1, "rollback hook");
    assert_eq!(update.take(), 2, "update hook");
    assert!(authorizer.take() > 0, "authorizer");
    assert!(progress.take() > 0, "progress handler");
}

static TRACED: AtomicUsize = AtomicUsize::new(0);
static WAITED: AtomicUsize = AtomicUsize::new(0);

#[test]
fn the_trace_and_the_busy_handler_are_the_callers() {
    use litelease::rusqlite::trace::{TraceEvent, TraceEventCodes};
    let place = TestFolder::new("WAL");
    let mut conn = place.connect(Duration::ZERO);
    conn.execute_batch("CREATE TABLE mine (id)").unwrap();
    conn.trace_v2(
        TraceEventCodes::SQLITE_TRACE_STMT,
        Some(|_: TraceEvent<'_>| {
            TRACED.fetch_add(1, Ordering::Relaxed);
        }),
    )
    .unwrap();
    conn.busy_handler(Some(|_| {
        WAITED.fetch_add(1, Ordering::Relaxed);
        false
    }))
    .unwrap();
    let db = Litelease::from_connection(conn);
    every_verb(&db);
    let conn = db.conn();
    TRACED.store(0, Ordering::Relaxed);
    assert_eq!(WAITED.load(Ordering::Relaxed), 0);

    conn.execute_batch("INSERT INTO mine VALUES (1)").unwrap();
    assert_eq!(TRACED.load(Ordering::Relaxed), 1, "trace");
    let other = place.connect(Duration::ZERO);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    conn.execute_batch("INSERT INTO mine VALUES (1)").unwrap_err();
    assert_eq!(WAITED.load(Ordering::Relaxed), 1, "busy handler");
    db.claim("y", "a", LONG).unwrap_err();
    assert_eq!(WAITED.load(Ordering::Relaxed), 2, "a verb waits as the caller's handler says");
}

#[test]
fn the_connection_comes_back_clean() {
    let place = TestFolder::new("WAL");
    let db = place.open(Duration::ZERO);
    every_verb(&db);
    let conn = db.into_connection();
    assert!(conn.is_autocommit());
    // A statement that was left behind would make the close fail.
    conn.close().unwrap();
}
