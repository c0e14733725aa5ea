//! Writers on an engine in memory that fails at every call, before and after it has stored.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use litelease::{BorrowOptions, SendOptions};
use litelease_cluster::engine::{
    Change, Commit, Committed, EngineFacts, Error as EngineError, Loaded, LoadedRow, Part, Stored,
};
use litelease_cluster::{Cluster, MemoryEngine, Options, System};
use litelease_hold::{Acquired, Clock, Granted, Home, Keeper, SystemClock, keep};

use super::table::MOMENTS;
use super::*;
use crate::cluster_access::ClusterAccess;
use crate::replica::WRITER_LEASE;
use crate::served_rows::Secret;
use crate::{answered_rows, served_rows};

type Outcome<T> = litelease_cluster::engine::Result<T>;

/// Moments that are for people only, times that are no moments, and dates of access keys.
const OTHER_TIMES: [(&str, &str); 17] = [
    ("litelease_access", "created_at_ms"),
    ("litelease_access", "expires_at_ms"),
    ("litelease_checkpoints", "updated_at_ms"),
    // An engine keeps no history.
    ("litelease_history_rows", "at_ms"),
    ("litelease_history_rows", "since_ms"),
    ("litelease_kept_slots", "since_ms"),
    ("litelease_limits", "progress_within_ms"),
    ("litelease_newest_ticks", "began_ms"),
    ("litelease_newest_ticks", "ended_ms"),
    ("litelease_newest_ticks", "previous_ms"),
    ("litelease_newest_ticks", "skipped_ms"),
    ("litelease_newest_ticks", "tick_ms"),
    ("litelease_pools", "created_at_ms"),
    ("litelease_pools", "updated_at_ms"),
    ("litelease_resources", "created_at_ms"),
    ("litelease_resources", "lease_expires_at_ms"),
    ("litelease_resources", "updated_at_ms"),
];

const TTL: Duration = Duration::from_secs(30);

/// When a call of the engine fails.
#[derive(Clone, Copy, PartialEq)]
enum Fails {
    Never,
    Before(usize),
    After(usize),
    /// Its answer is lost, and it arrives when [`Failing::arrive`] is called.
    Late(usize),
}

/// An engine in memory whose n-th commit fails.
struct Failing {
    rows: MemoryEngine,
    fails: Mutex<Fails>,
    commits: AtomicUsize,
    late: Mutex<Option<Late>>,
}

/// A request that arrives after its client has given up.
enum Late {
    Rows(String, i64, Vec<RowChange>),
    Parts(LateCommit),
}

struct LateCommit {
    token: i64,
    floor_version: i64,
    incarnation: i64,
    parts: Vec<Part>,
    rows: Vec<RowChange>,
}

impl Engine for Failing {
    fn load(&self, names: &[&str]) -> Outcome<Loaded> {
        self.rows.load(names)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Outcome<Stored> {
        self.rows.store(seen, change)
    }

    fn list(&self) -> Outcome<Loaded> {
        self.rows.list()
    }

    fn forget(&self, seen: &[LoadedRow]) -> Outcome<u64> {
        self.rows.forget(seen)
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.rows.wait_for_change(name, version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
        self.rows.load_rows(prefix)
    }

    fn commit_rows_of(
        &self,
        boot: i64,
        name: &str,
        token: i64,
        rows: &[RowChange],
    ) -> Outcome<Stored> {
        match self.rows.load(&[name])?.incarnation == boot {
            true => self.commit_rows(name, token, rows),
            false => Ok(Stored::Conflict),
        }
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Outcome<Stored> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        let fails = *self.fails.lock().unwrap();
        assert!(rows.len() <= self.most_rows(false), "too many operations");
        match fails {
            Fails::Before(at) if at == number => Err(EngineError::Unreachable("test".into())),
            Fails::After(at) if at == number => {
                let _ = self.rows.commit_rows(name, token, rows)?;
                Err(EngineError::CommitUnknown("test".into()))
            }
            Fails::Late(at) if at == number => {
                *self.late.lock().unwrap() = Some(Late::Rows(name.into(), token, rows.to_vec()));
                Err(EngineError::CommitUnknown("test".into()))
            }
            _ => self.rows.commit_rows(name, token, rows),
        }
    }

    fn commit_parts(&self, commit: &Commit<'_>) -> Outcome<Committed> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        let fails = *self.fails.lock().unwrap();
        let operations = commit.parts.len() + commit.rows.len();
        let largest = commit.parts.iter().map(|part| part.rows.len() + 2).max().unwrap_or(0);
        assert!(operations + largest <= 128, "too many operations");
        match fails {
            Fails::Before(at) if at == number => Err(EngineError::Unreachable("test".into())),
            Fails::After(at) if at == number => {
                let _ = self.rows.commit_parts(commit)?;
                Err(EngineError::CommitUnknown("test".into()))
            }
            Fails::Late(at) if at == number => {
                let (parts, rows) = (commit.parts.to_vec(), commit.rows.to_vec());
                let commit = LateCommit {
                    token: commit.writer.1,
                    floor_version: commit.floor_version,
                    incarnation: commit.incarnation,
                    parts,
                    rows,
                };
                *self.late.lock().unwrap() = Some(Late::Parts(commit));
                Err(EngineError::CommitUnknown("test".into()))
            }
            _ => self.rows.commit_parts(commit),
        }
    }

    fn most_parts(&self, rows_each: usize) -> usize {
        self.rows.most_parts(rows_each)
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        self.rows.most_rows(new_tokens)
    }

    fn facts(&self) -> Outcome<EngineFacts> {
        self.rows.facts()
    }
}

fn failing() -> Arc<Failing> {
    let (rows, fails) = (MemoryEngine::new(), Mutex::new(Fails::Never));
    Arc::new(Failing { rows, fails, commits: AtomicUsize::new(0), late: Mutex::new(None) })
}

impl Failing {
    /// Makes a call fail, counted from now on.
    fn fail(&self, fails: Fails) {
        self.commits.store(0, Ordering::SeqCst);
        *self.fails.lock().unwrap() = fails;
    }

    /// Lets the commit arrive that is late, if there is one. Returns whether it was stored.
    fn arrive(&self) -> bool {
        let late = self.late.lock().unwrap().take();
        late.is_some_and(|late| match late {
            Late::Rows(name, token, rows) => {
                matches!(self.rows.commit_rows(&name, token, &rows), Ok(Stored::Done { .. }))
            }
            Late::Parts(LateCommit { token, floor_version, incarnation, parts, rows }) => {
                let writer = (WRITER_LEASE, token);
                let (parts, rows) = (&parts, &rows);
                let commit = Commit { writer, floor_version, incarnation, parts, rows };
                self.rows.commit_parts(&commit).unwrap() != Committed::Replaced
            }
        })
    }
}

/// Claims the writer's lease. No thread renews it: each test is over long before its ttl is.
fn claim(cluster: Cluster) -> WriterLease {
    let granted = cluster.claim(WRITER_LEASE, "w", TTL).unwrap().acquired().unwrap();
    let granted = (granted, SystemClock.now());
    let (keeper, rows) = (Arc::new(Keeper::new(Arc::new(SystemClock))), cluster.clone());
    let keep = move |lease, start| {
        let home = Home { keeper: keeper.clone(), key: String::new() };
        let acquired = Acquired { granted: Granted::whole(lease), start };
        keep(&home, acquired, TTL, || Ok(rows.kept_rows()))
    };
    let clock = Arc::new(SystemClock);
    WriterLease::new(cluster, TTL, clock, Box::new(keep), granted, Arc::default()).unwrap()
}

/// A writer, with its memory.
struct Writer {
    mirror: Mirror,
    lease: Arc<WriterLease>,
    db: Litelease,
}

impl Writer {
    /// Takes over from the writer. The times of leases are those of the clock.
    fn take_over(engine: &Arc<Failing>, clock: fn() -> i64) -> Self {
        Writer::take_over_with(engine, clock, true)
    }

    /// Takes over, and counts leases anew.
    fn take_over_counting(engine: &Arc<Failing>, clock: fn() -> i64) -> Self {
        Writer::take_over_with(engine, clock, false)
    }

    fn take_over_with(engine: &Arc<Failing>, clock: fn() -> i64, is_one_clock: bool) -> Self {
        let cluster = Cluster::on(engine.rows.clone()).of_service();
        let _ = cluster.break_lease("serve").unwrap();
        let lease = Arc::new(claim(cluster));
        let engine: Arc<dyn Engine> = engine.clone();
        let cluster = Cluster::with(engine, Arc::new(System), Options::default());
        let mut mirror = Mirror::new(cluster, lease.clone(), clock, is_one_clock);
        let db = mirror.load().unwrap();
        Writer { mirror, lease, db }
    }

    /// Does work in a commit. After an error, everything is loaded again.
    fn commit(&mut self, work: impl FnOnce(&Litelease)) -> Result<(), Failure> {
        self.db.begin_batch()?;
        work(&self.db);
        let stored = self.mirror.commit(&self.db, &BTreeSet::new());
        let stored = stored.and_then(|()| Ok(self.db.commit_batch()?));
        if stored.is_err() {
            let _ = self.db.rollback_batch();
            self.mirror.distrust();
            if let Ok(db) = self.mirror.load() {
                self.db = db;
            }
        }
        stored
    }
}

/// All rows of all tables, as text.
fn everything(db: &Litelease) -> Vec<String> {
    let mut tables =
        db.conn().prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
    let tables = tables.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut found = Vec::new();
    for table in tables.map(Result::unwrap) {
        let mut rows = db.conn().prepare(&format!("SELECT * FROM {table}")).unwrap();
        let count = rows.column_count();
        let rows = rows.query_map([], |row| {
            let values = (0..count).map(|at| row.get::<_, litelease::rusqlite::types::Value>(at));
            Ok(format!("{table} {:?}", values.collect::<Result<Vec<_>, _>>()?))
        });
        found.extend(rows.unwrap().map(Result::unwrap));
    }
    found.sort();
    found
}

/// Uses every table that the service uses.
fn use_everything(db: &Litelease, round: i64) {
    let at = |offset: i64| 1_000 + offset;
    let (pools, queue, name) = (db.pools(), db.queue("q"), format!("n{}", round % 3));
    pools.at(at(0)).register("p", 500).unwrap();
    let lent = pools.at(at(0)).borrow("p", TTL).unwrap().unwrap();
    match round % 3 {
        0 => assert!(pools.at(at(1)).return_slot("p", &lent.lease_id).unwrap()),
        1 => assert!(pools.at(at(1)).keep("p", &lent.lease_id).unwrap()),
        _ => {}
    }
    let lease = db.at(at(2)).claim(&name, "a", TTL).unwrap().acquired();
    if let Some(lease) = lease {
        let secret = |made| Secret { hash: Some(vec![1; 32]), salt: None, made };
        served_rows::store(db, &name, None, lease.token, secret).unwrap();
    }
    let key = format!("key{}", round % 2);
    queue.at(at(3)).send_with("body", SendOptions::new().key(&key)).unwrap();
    if round % 2 == 1 {
        let item = queue.at(at(4)).receive(TTL).unwrap();
        if let Some(item) = item {
            let _ = queue.at(at(5)).ack(&item.receipt).unwrap();
        }
    }
    let request = [u8::try_from(round % 2).unwrap(); 4];
    answered_rows::store(db, &request, "yes", at(6)).unwrap();
}

#[test]
fn what_one_writer_has_stored_the_next_one_loads() {
    let engine = failing();
    let mut writer = Writer::take_over(&engine, || 2_000);
    for round in 0..12 {
        writer.commit(|db| use_everything(db, round)).unwrap();
    }
    let before = everything(&writer.db);
    assert!(before.iter().any(|row| row.starts_with("litelease_queue_keys")), "{before:?}");
    assert_eq!(before.iter().filter(|row| row.starts_with("litelease_answered")).count(), 2);
    let mut next = Writer::take_over(&engine, || 2_000);
    assert_eq!(everything(&next.db), before);
    // Nothing is left over of what was deleted or replaced, once the next writer has written.
    next.commit(|db| drop(db.at(1_000).claim("m", "a", TTL).unwrap())).unwrap();
    let rows = engine.load_rows(b"").unwrap();
    let rows = rows.iter().filter(|(key, _)| key.starts_with(b"r")).count();
    let is_ours = |row: &&String| !row.contains("queue_keys") && !row.contains("_resources");
    let stored = everything(&next.db).iter().filter(is_ours).count();
    assert_eq!(rows, stored);
}

#[test]
fn the_writer_before_stores_nothing_any_more() {
    let engine = failing();
    let mut before = Writer::take_over(&engine, || 2_000);
    before.commit(|db| use_everything(db, 0)).unwrap();
    let next = Writer::take_over(&engine, || 2_000);
    let refused = before.commit(|db| use_everything(db, 1));
    assert!(refused.unwrap_err().to_string().contains("another server has taken over"));
    assert!(!before.lease.is_trusted(), "it gives up");
    assert!(before.mirror.check().is_err(), "and answers nothing from memory");
    let stored = everything(&Writer::take_over(&engine, || 2_000).db);
    assert_eq!(stored, everything(&next.db));
}

#[test]
fn a_commit_that_fails_is_there_as_a_whole_or_not_at_all_and_never_answered_as_done() {
    // So many rows need a journal of one part, and items of that size one of several parts.
    let small = |db: &Litelease| use_everything(db, 1);
    let many = |db: &Litelease| {
        for number in 0..400 {
            let key = number.to_string();
            let options = BorrowOptions { note: None, key: Some(&key) };
            db.pools().at(1_000).borrow_with("p", TTL, options).unwrap().unwrap();
        }
    };
    let large = |db: &Litelease| {
        for _ in 0..3 {
            db.queue("q").at(1_000).send("x".repeat(1 << 20)).unwrap();
        }
    };
    type Work<'a> = (&'a str, &'a dyn Fn(&Litelease));
    let works: [Work<'_>; 3] = [("small", &small), ("many", &many), ("large", &large)];
    for (what, work) in works {
        let mut calls = 1;
        for fails in (0..).flat_map(|at| [Fails::Before(at), Fails::After(at)]) {
            let engine = failing();
            let mut writer = Writer::take_over(&engine, || 2_000);
            let register = |db: &Litelease| {
                db.pools().at(1_000).register("p", 500).unwrap();
            };
            writer.commit(register).unwrap();
            let before = everything(&writer.db);
            engine.fail(fails);
            let mut done = Vec::new();
            let committed = writer.commit(|db| {
                work(db);
                db.with_store(|store| store.store_counts()).unwrap();
                done = everything(db);
            });
            let (Fails::Before(at) | Fails::After(at)) = fails else { panic!("it fails") };
            let was_reached = engine.commits.load(Ordering::SeqCst) > at;
            if !was_reached {
                // No call is left to fail.
                assert!(committed.is_ok());
                calls = at;
                break;
            }
            assert!(committed.is_err(), "{what}: answered as done");
            engine.fail(Fails::Never);
            let mine = everything(&writer.db);
            let next = everything(&Writer::take_over(&engine, || 2_000).db);
            assert!(next == before || next == done, "{what}: a part of it is there");
            assert_eq!(mine, next, "{what}: the writer's memory is not what is stored");
            if fails == Fails::Before(0) {
                assert_eq!(next, before, "{what}: nothing was stored");
            }
            let journal = engine.load_rows(b"").unwrap();
            assert!(journal.iter().all(|(key, _)| **key != *b"j"), "{what}: not finished");
        }
        match what {
            "small" => assert_eq!(calls, 1),
            "many" => assert!((4..8).contains(&calls), "{calls}"),
            _ => assert!(calls > 6, "{calls}"),
        }
    }
}

/// Sends so much that a journal of several parts is needed.
fn send_much(db: &Litelease) {
    for _ in 0..3 {
        db.queue("q").at(1_000).send("x".repeat(1 << 20)).unwrap();
    }
}

/// A member of etcd that was stopped, or a backend of PostgreSQL, may carry out a request long
/// after its client has given up. By then the writer has loaded what was there, and has stored
/// more.
#[test]
fn a_commit_that_arrives_late_is_not_mixed_with_later_ones() {
    let small = |db: &Litelease| use_everything(db, 2);
    let works: [&dyn Fn(&Litelease); 2] = [&small, &send_much];
    for (work, arrives_before_the_next) in
        works.into_iter().flat_map(|work| [(work, true), (work, false)])
    {
        for at in 0.. {
            let engine = failing();
            let mut writer = Writer::take_over(&engine, || 2_000);
            writer.commit(|db| use_everything(db, 0)).unwrap();
            engine.fail(Fails::Late(at));
            if writer.commit(work).is_ok() {
                assert!(at > 0, "no call was late");
                break;
            }
            engine.fail(Fails::Never);
            let was_stored = arrives_before_the_next && engine.arrive();
            assert!(!was_stored, "it was sent under an older token");
            writer.commit(|db| use_everything(db, 3)).unwrap();
            assert!(!engine.arrive(), "it was sent under an older token");
            let mine = everything(&writer.db);
            assert_eq!(everything(&Writer::take_over(&engine, || 2_000).db), mine);
        }
    }
}

/// What was left of one journal was deleted with the rows of the next commit, whose journal had
/// parts of the same names. After a crash in between, that one had lost a part, and no server could
/// load any more.
#[test]
fn a_journal_after_one_that_was_not_completed_survives_a_crash_at_every_call() {
    // So many rows that each boundary between transactions is met.
    for count in (124..260).step_by(3) {
        for fails in (0..).map(Fails::After) {
            let engine = failing();
            let mut first = Writer::take_over(&engine, || 2_000);
            let register = |db: &Litelease| _ = db.pools().at(1_000).register("p", 500).unwrap();
            first.commit(register).unwrap();
            let part = |number: u8| (vec![b'j', 0, 0, 0, number], Some(vec![7]));
            let parts = [0, 1, 2].map(part);
            let _ = engine.commit_rows("serve", first.lease.token(), &parts).unwrap();
            let mut writer = Writer::take_over(&engine, || 2_000);
            let before = everything(&writer.db);
            engine.fail(fails);
            let mut done = Vec::new();
            let committed = writer.commit(|db| {
                let pools = db.pools();
                (0..count).for_each(|_| drop(pools.at(1_000).borrow("p", TTL).unwrap()));
                db.with_store(|store| store.store_counts()).unwrap();
                done = everything(db);
            });
            engine.fail(Fails::Never);
            let next = everything(&Writer::take_over(&engine, || 2_000).db);
            assert!(next == before || next == done, "a part of it is there");
            if committed.is_ok() {
                assert_eq!(next, done);
                break;
            }
        }
    }
}

#[test]
fn nothing_is_stored_on_an_engine_that_may_have_lost_what_was_loaded() {
    let engine = failing();
    let mut writer = Writer::take_over(&engine, || 2_000);
    writer.commit(|db| use_everything(db, 0)).unwrap();
    let before = engine.load_rows(b"").unwrap();
    // A failover, and the lease of the writer is there.
    engine.rows.edit(|rows| rows.incarnation += 1);
    assert!(writer.commit(|db| use_everything(db, 1)).is_err());
    assert_eq!(engine.load_rows(b"").unwrap(), before);
    assert!(!writer.lease.is_trusted(), "it must load again, under a lease of its own");
    let mut next = Writer::take_over(&engine, || 2_000);
    next.commit(|db| use_everything(db, 1)).unwrap();
}

/// Claims a name, and gives the grant a value.
fn claim_with_value(db: &Litelease, name: &str) {
    let lease = db.at(1_000).claim(name, "a", TTL).unwrap().acquired().unwrap();
    let _ = db.at(1_000).attach(&lease, "value").unwrap();
}

/// Returns the names of which the engine has a value.
fn names_with_value(engine: &Failing) -> Vec<u8> {
    let rows = engine.load_rows(&encoding::row_prefix("litelease_values")).unwrap();
    // Every name is one letter, and the value has none of them.
    rows.iter().flat_map(|(_, row)| row.iter().copied().filter(|at| b"xyz".contains(at))).collect()
}

/// A row was deleted with the service's own, so it was gone although its name was not changed.
#[test]
fn a_row_that_belongs_to_a_name_is_deleted_only_with_a_change_of_that_name() {
    let engine = failing();
    let mut writer = Writer::take_over_counting(&engine, || 2_000);
    writer.commit(|db| claim_with_value(db, "x")).unwrap();
    assert_eq!(names_with_value(&engine), b"x");
    let forget = |db: &Litelease, name: &str| {
        let sql = "DELETE FROM main.litelease_values WHERE name = ?1";
        assert_eq!(db.conn().execute(sql, [name]).unwrap(), 1);
    };
    // A program has changed the name meanwhile.
    let program = Cluster::on(engine.rows.clone());
    let renewed = program.at(1_000).renew_by_owner("x", "a", TTL * 2).unwrap();
    assert!(matches!(renewed, litelease_cluster::RenewResult::Renewed(_)));
    let before = everything(&writer.db);
    writer.commit(|db| forget(db, "x")).unwrap();
    let refused = writer.mirror.settle(&writer.db);
    assert_eq!(refused.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["x"]);
    assert_eq!(names_with_value(&engine), b"x");
    let values = |rows: &[String]| rows.iter().filter(|row| row.contains("_values ")).count();
    assert_eq!((values(&before), values(&everything(&writer.db))), (1, 1), "in memory, too");
    writer.commit(|db| forget(db, "x")).unwrap();
    assert!(writer.mirror.settle(&writer.db).is_empty());
    assert_eq!(names_with_value(&engine), b"");

    // Its number goes to a row of another name in the same commit: that comes with the next.
    writer.commit(|db| claim_with_value(db, "y")).unwrap();
    let swap = |db: &Litelease| {
        forget(db, "y");
        claim_with_value(db, "z");
    };
    let renewed = program.at(1_000).renew_by_owner("y", "a", TTL * 2).unwrap();
    assert!(matches!(renewed, litelease_cluster::RenewResult::Renewed(_)));
    writer.commit(swap).unwrap();
    let refused = writer.mirror.settle(&writer.db);
    assert_eq!(refused.iter().map(|it| &*it.name).collect::<Vec<_>>(), ["z", "y"]);
    assert_eq!(names_with_value(&engine), b"y");
    assert_eq!(program.token("z").unwrap(), None, "it was not granted without its row");
    writer.commit(swap).unwrap();
    assert_eq!(writer.mirror.settle(&writer.db).len(), 1);
    assert_eq!(names_with_value(&engine), b"");
    writer.commit(|db| claim_with_value(db, "z")).unwrap();
    assert!(writer.mirror.settle(&writer.db).is_empty());
    let (rows, everything) = (names_with_value(&engine), everything(&writer.db));
    assert_eq!((&*rows, values(&everything)), (&b"z"[..], 1));
}

#[test]
fn a_row_that_meant_nothing_and_is_written_again_is_kept() {
    let engine = failing();
    let mut writer = Writer::take_over(&engine, || 2_000);
    writer.commit(|db| _ = db.pools().at(1_000).register("p", 5).unwrap()).unwrap();
    let mut changed = Vec::new();
    let key = |rows: Vec<(Vec<u8>, Vec<u8>)>| {
        let of_pool = |(key, _): &(Vec<u8>, Vec<u8>)| key.starts_with(b"rlitelease_pools\0");
        rows.into_iter().find(of_pool).unwrap().0
    };
    let pool = key(engine.load_rows(b"r").unwrap());
    writer.mirror.unwanted.push((pool.clone(), None));
    writer
        .commit(|db| {
            let _ = db.pools().at(1_000).register("p", 6).unwrap();
            changed = everything(db);
        })
        .unwrap();
    assert!(engine.load_rows(&pool).unwrap().len() == 1, "the row that was written is deleted");
    assert_eq!(everything(&Writer::take_over(&engine, || 2_000).db), changed);
}

#[test]
fn definitions_on_the_engine_that_are_not_of_their_table_are_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("made");
    let attach = format!("ATTACH '{}' AS other; CREATE TABLE other.t (a)", file.display());
    let table = "CREATE TABLE litelease_x (a)";
    for sql in
        [&attach, &format!("{table}; {attach}"), "CREATE TABLE litelease_y (a)", "", "PRAGMA x"]
    {
        let engine = failing();
        let mut writer = Writer::take_over(&engine, || 2_000);
        let row = (b"slitelease_x".to_vec(), Some(sql.as_bytes().to_vec()));
        let _ = engine.commit_rows("serve", writer.lease.token(), &[row]).unwrap();
        writer.mirror.distrust();
        let refused = writer.mirror.load().map(drop).unwrap_err();
        assert!(refused.to_string().contains("not valid"), "{sql}: {refused}");
        assert!(!file.exists(), "{sql}");
    }
}

#[test]
fn what_was_left_at_the_last_commit_begins_anew_on_the_clock_of_the_next_writer() {
    let engine = failing();
    let until = |db: &Litelease, now_ms: i64| {
        let slots = db.pools().at(now_ms).slots("p").unwrap();
        let slots = slots.iter().map(|row| row.slot.expires_at_ms);
        slots.collect::<Vec<_>>()
    };
    // Its clock is at 2,000. One slot has 30 s left, and one is kept.
    let mut first = Writer::take_over_counting(&engine, || 2_000);
    first
        .commit(|db| {
            let pools = db.pools();
            pools.at(2_000).register("p", 3).unwrap();
            pools.at(2_000).borrow("p", TTL).unwrap().unwrap();
            let kept = pools.at(2_000).borrow("p", TTL).unwrap().unwrap();
            assert!(pools.at(2_000).keep("p", &kept.lease_id).unwrap());
            let _ = db.at(2_000).claim("n", "a", TTL).unwrap();
            db.queue("q").at(2_000).send("x").unwrap();
            db.queue("q").at(2_000).receive(TTL).unwrap().unwrap();
        })
        .unwrap();
    // Its clock is a minute and a half ahead.
    let mut second = Writer::take_over_counting(&engine, || 90_000);
    assert_eq!(until(&second.db, 90_000), [120_000, i64::MAX]);
    let lease = second.db.at(90_000).inspect("n").unwrap().unwrap();
    assert_eq!(lease.expires_at_ms, 120_000);
    assert_eq!(second.db.queue("q").at(90_000).items().unwrap().len(), 1);
    assert_eq!(second.db.queue("q").next_visible().unwrap(), Some(120_000));
    // A row that is not written again is still counted by the service's time.
    second.commit(|db| drop(db.at(90_000).claim("m", "a", TTL).unwrap())).unwrap();
    // Its clock is far behind.
    let third = Writer::take_over_counting(&engine, || 50);
    assert_eq!(until(&third.db, 50), [30_050, i64::MAX]);
    assert_eq!(third.db.at(50).inspect("m").unwrap().unwrap().expires_at_ms, 30_050);
    assert_eq!(third.db.queue("q").next_visible().unwrap(), Some(30_050));
}

#[test]
fn every_time_in_a_table_is_a_moment_or_known_not_to_be_one() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../litelease-store/src");
    let mut found = Vec::new();
    for file in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let Ok(text) = std::fs::read_to_string(file.path()) else { continue };
        for table in
            text.split("    name: \"").skip(1).filter(|text| text.starts_with("litelease_"))
        {
            let (name, rest) = table.split_once('"').unwrap();
            let columns = rest.split("\n)").next().unwrap();
            let times = columns.lines().filter_map(|line| {
                let column = line.trim().split(' ').next()?;
                (line.contains("_ms INTEGER")).then_some((name.to_owned(), column.to_owned()))
            });
            found.extend(times);
        }
    }
    let mut known: Vec<_> = MOMENTS.iter().chain(&OTHER_TIMES).collect();
    known.sort();
    found.sort();
    let found: Vec<_> = found.iter().map(|(table, column)| (&**table, &**column)).collect();
    assert_eq!(found, known.into_iter().copied().collect::<Vec<_>>());
}

#[test]
fn tokens_go_on_above_the_floor_of_the_engine() {
    let engine = failing();
    let mut writer = Writer::take_over(&engine, || 2_000);
    let register = |db: &Litelease| {
        db.pools().at(2_000).register("p", 3).unwrap();
    };
    writer.commit(register).unwrap();
    Cluster::on(engine.rows.clone()).raise(1 << 40).unwrap();
    let mut next = Writer::take_over(&engine, || 2_000);
    next.commit(|db| {
        let lent = db.pools().at(2_000).borrow("p", TTL).unwrap().unwrap();
        assert_eq!(lent.slot.token, (1 << 40) + 1);
    })
    .unwrap();
}

#[test]
fn rows_of_a_newer_format_and_damaged_rows_are_refused_and_the_lease_is_given_up() {
    for (key, value) in
        [(&b"m"[..], &b"\x03........"[..]), (b"rlitelease_pools\0........", b"\x09")]
    {
        let engine = failing();
        let mut writer = Writer::take_over(&engine, || 2_000);
        writer.commit(|db| use_everything(db, 0)).unwrap();
        let token = writer.lease.token();
        let _ =
            engine.commit_rows("serve", token, &[(key.to_vec(), Some(value.to_vec()))]).unwrap();
        writer.mirror.distrust();
        let refused = writer.mirror.load().map(drop).unwrap_err().to_string();
        let expected =
            if key == b"m" { "update this server" } else { "litelease_pools\\x00......" };
        assert!(refused.contains(expected), "{refused}");
        assert!(!writer.lease.is_trusted());
    }
}

/// A key was added, loaded with everything else after a commit that failed, and removed, all
/// between two looks at the engine. The two looks saw no difference, and the key counted for ever.
#[test]
fn a_key_that_was_loaded_and_removed_between_two_looks_at_the_engine_is_refused() {
    let engine = failing();
    let mut writer = Writer::take_over(&engine, || 1_000);
    let access = ClusterAccess::new(Cluster::on(engine.rows.clone()));
    let look = |writer: &Writer| {
        let rows = engine.rows.load_rows(encoding::ACCESS).unwrap();
        writer.lease.compare_access(&rows.into_iter().collect());
    };
    look(&writer);
    assert!(access.add("ci", &[1; 32], "claim:*", None).unwrap());
    writer.mirror.distrust();
    writer.db = writer.mirror.load().unwrap();
    assert_eq!(writer.mirror.access().0.len(), 1);

    assert!(access.remove("ci").unwrap());
    look(&writer);
    writer.mirror.refresh_access();
    assert_eq!(writer.mirror.access().0.len(), 0);
    // What has not changed is not read again.
    let version = writer.mirror.access().1;
    look(&writer);
    writer.mirror.refresh_access();
    assert_eq!(writer.mirror.access().1, version);
}
