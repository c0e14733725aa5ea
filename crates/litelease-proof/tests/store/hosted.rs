//! A store whose statements a host runs: whatever the host fails at, nothing is left behind, and
//! the host's errors and settings stay its own.

use std::cell::Cell;
use std::rc::Rc;

use litelease_proof::hosted_player::{RusqliteHost, call};
use litelease_proof::values;
use litelease_store::{Error, Failure, Host, HostedStore, OwnedValue, Rows, Value};
use rusqlite::Connection;
use tempfile::TempDir;

/// Which statement fails, and how.
#[derive(Clone, Copy, Debug, Default)]
struct Fault {
    /// Statements that still succeed.
    after: Option<u32>,
    /// Whether the statement has its effect all the same, as when an exception comes late.
    is_late: bool,
    /// Whether all later ones fail too.
    stays: bool,
}

struct FaultyHost {
    host: RusqliteHost,
    fault: Rc<Cell<Fault>>,
    failed: Rc<Cell<u32>>,
}

impl Host for FaultyHost {
    fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure> {
        let mut fault = self.fault.get();
        let fails = fault.after == Some(0);
        if !fails || !fault.stays {
            fault.after = fault.after.and_then(|after| after.checked_sub(1));
        }
        self.fault.set(fault);
        if !fails {
            return self.host.run(sql, values);
        }
        self.failed.set(self.failed.get() + 1);
        if fault.is_late {
            let _ = self.host.run(sql, values);
        }
        Err(Failure { code: 9, message: "the host has failed".into() })
    }

    fn is_in_transaction(&self) -> bool {
        self.host.is_in_transaction()
    }

    fn changes(&self) -> i64 {
        self.host.changes()
    }

    fn total_changes(&self) -> i64 {
        self.host.total_changes()
    }
}

/// A host that is told of a missing table just before another connection makes it.
struct LateHost {
    host: RusqliteHost,
    other: HostedStore,
    made: Rc<Cell<u32>>,
}

impl Host for LateHost {
    fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure> {
        let done = self.host.run(sql, values);
        if done.as_ref().is_err_and(|failure| failure.message.contains("no such table")) {
            call(&self.other, "send", &values!["mail", "body"]).unwrap();
            call(&self.other, "pool", &values!["p", 2i64]).unwrap();
            self.made.set(self.made.get() + 1);
        }
        done
    }

    fn is_in_transaction(&self) -> bool {
        self.host.is_in_transaction()
    }

    fn changes(&self) -> i64 {
        self.host.changes()
    }

    fn total_changes(&self) -> i64 {
        self.host.total_changes()
    }
}

/// A worker that looked at a queue just before its first item was sent was told of a missing table.
#[test]
fn tables_that_are_made_while_a_verb_looks_for_them_are_seen_the_next_time() {
    for (verb, values) in [("next_visible", values!["mail"]), ("queue_info", values!["mail"])] {
        let folder = tempfile::tempdir().unwrap();
        let host = || RusqliteHost(Rc::new(Connection::open(folder.path().join("db")).unwrap()));
        let other = HostedStore::new(Box::new(host())).unwrap();
        call(&other, "bootstrap", &[]).unwrap();
        let made = Rc::new(Cell::new(0));
        let late = LateHost { host: host(), other, made: Rc::clone(&made) };
        let store = HostedStore::new(Box::new(late)).unwrap();
        let first = call(&store, verb, &values).unwrap();
        assert_eq!(made.get(), 1, "{verb}");
        assert_ne!(call(&store, verb, &values).unwrap(), first, "{verb}");
    }
}

/// A file with some leases, and a connection that loses commits, so that grants need an epoch.
struct Bench {
    folder: TempDir,
    connection: Rc<Connection>,
    fault: Rc<Cell<Fault>>,
    failed: Rc<Cell<u32>>,
    store: HostedStore,
}

impl Bench {
    fn new(mode: &str) -> Self {
        // Where a sync costs nothing, if there is such a place.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let connection = Connection::open(folder.path().join("db")).unwrap();
        connection.pragma_update(None, "journal_mode", mode).unwrap();
        connection.pragma_update(None, "synchronous", 2).unwrap();
        let connection = Rc::new(connection);
        let (fault, failed) = (Rc::default(), Rc::default());
        let host = FaultyHost {
            host: RusqliteHost(Rc::clone(&connection)),
            fault: Rc::clone(&fault),
            failed: Rc::clone(&failed),
        };
        let store = HostedStore::new(Box::new(host)).unwrap();
        let bench = Bench { folder, connection, fault, failed, store };
        bench.connection.execute_batch("CREATE TABLE results (n, token INTEGER)").unwrap();
        bench.call("bootstrap", &[]).unwrap();
        bench.call("claim", &values!["x", "a", 3_600_000i64]).unwrap();
        bench.call("claim", &values!["old", "a", 1i64, 1i64]).unwrap();
        bench.call("pool", &values!["p", 2i64]).unwrap();
        bench.call("claim_tick", &values!["job", "a", 3_600_000i64, 1000i64]).unwrap();
        bench.connection.pragma_update(None, "synchronous", 1).unwrap();
        bench
    }

    fn call(&self, verb: &str, values: &[OwnedValue]) -> Result<Vec<Vec<OwnedValue>>, Error> {
        call(&self.store, verb, values)
    }

    fn number(&self, sql: &str) -> i64 {
        self.connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// What another connection finds, apart from times and random numbers.
    fn stored(&self) -> Vec<String> {
        let other = Connection::open(self.folder.path().join("db")).unwrap();
        let rows = |sql: &str| -> Vec<String> {
            let Ok(mut statement) = other.prepare(sql) else { return vec![] };
            statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
        };
        [
            rows("SELECT concat(name, owner, token) FROM litelease_resources ORDER BY name"),
            rows("SELECT concat(name, token, value) FROM litelease_checkpoints"),
            rows("SELECT concat(name, token) FROM litelease_gates"),
            rows("SELECT concat(name, tick_ms, state, token, owner) FROM litelease_newest_ticks"),
            rows("SELECT concat(id, count, used) FROM litelease_pools"),
            rows("SELECT concat(slot, token, lease IS NULL) FROM litelease_pool_slots"),
            rows("SELECT concat(table_name, name) FROM litelease_guarded"),
            rows("SELECT concat(id) FROM litelease_queue_items"),
            rows("SELECT concat(body) FROM litelease_queue_bodies"),
        ]
        .concat()
    }

    fn can_be_written(&self) -> bool {
        let other = Connection::open(self.folder.path().join("db")).unwrap();
        other.busy_timeout(std::time::Duration::ZERO).unwrap();
        other.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }
}

fn cases() -> Vec<(&'static str, Vec<OwnedValue>)> {
    vec![
        ("bootstrap", vec![]),
        ("claim", values!["y", "a", 3_600_000i64].to_vec()),
        ("renew", values!["x", "a", 7_200_000i64].to_vec()),
        ("release", values!["x", "a"].to_vec()),
        ("transfer", values!["x", "a", "b", 3_600_000i64].to_vec()),
        ("break", values!["x"].to_vec()),
        ("purge", values![10i64].to_vec()),
        ("raise", values![1000i64].to_vec()),
        ("raise", values!["x", 1000i64].to_vec()),
        ("restore_fence", vec![]),
        ("checkpoint", values!["x", 1i64, "v"].to_vec()),
        ("admit", values!["x", 7i64].to_vec()),
        ("borrow", values!["p", 3_600_000i64].to_vec()),
        ("guard", values!["results", "x", "token"].to_vec()),
        ("send", values!["mail", "body"].to_vec()),
        ("tick", values!["digest", 1000i64].to_vec()),
        ("claim_tick", values!["y", "a", 3_600_000i64, 1000i64].to_vec()),
        ("finish_tick", values!["job", 1i64].to_vec()),
        ("transfer", values!["job", "a", "b", 3_600_000i64].to_vec()),
        ("tick_skip", values!["job", None::<i64>, 1i64].to_vec()),
    ]
}

#[test]
fn a_host_that_fails_at_any_statement_leaves_nothing_behind() {
    let in_delete = cases().into_iter().filter(|(verb, _)| ["claim", "purge"].contains(verb));
    let all = cases().into_iter().map(|case| ("wal", case));
    for (mode, (verb, values)) in all.chain(in_delete.map(|case| ("delete", case))) {
        let bench = Bench::new(mode);
        let before = bench.stored();
        bench.call(verb, &values).unwrap();
        let after = bench.stored();
        for (is_late, stays) in [(false, false), (true, false), (false, true)] {
            for number in 0.. {
                let bench = Bench::new(mode);
                let place = format!("{verb}, {mode}, statement {number}, {is_late} {stays}");
                bench.fault.set(Fault { after: Some(number), is_late, stays });
                let done = bench.call(verb, &values);
                bench.fault.set(Fault::default());
                let has_failed = bench.failed.get() > 0;
                // What could not be undone is made up for, and told at most once.
                let is_open = !bench.connection.is_autocommit();
                assert!(!is_open || !bench.store.is_settled(), "{place}");
                match bench.call("token", &values!["nobody's"]) {
                    Err(Error::TransactionEnded) if is_open => {}
                    told => assert!(told.unwrap().is_empty(), "{place}"),
                }
                assert!(bench.connection.is_autocommit(), "{place}");
                assert!(bench.store.is_settled(), "{place}");
                assert_eq!(bench.number("PRAGMA synchronous"), 1, "{place}");
                assert!(bench.can_be_written(), "{place}");
                let stored = bench.stored();
                assert!(stored == before || stored == after, "{place}: {stored:?}");
                if done.is_ok() {
                    assert_eq!(stored, after, "{place}");
                }
                let next = bench.call("claim", &values!["next", "n", 3_600_000i64]).unwrap();
                assert_eq!(next[0][0], OwnedValue::Text("Acquired".into()), "{place}");
                if !has_failed {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_host_that_fails_in_the_callers_transaction_leaves_it_open_and_theirs() {
    for (verb, values) in cases() {
        if verb == "bootstrap" {
            continue; // it writes nothing there
        }
        let bench = Bench::new("wal");
        let before = bench.stored();
        bench.call(verb, &values).unwrap();
        let after = bench.stored();
        for number in 0.. {
            let bench = Bench::new("wal");
            bench.connection.execute_batch("BEGIN IMMEDIATE; CREATE TABLE mine (n)").unwrap();
            bench.fault.set(Fault { after: Some(number), is_late: false, stays: false });
            let done = bench.call(verb, &values);
            bench.fault.set(Fault::default());
            let place = format!("{verb}, statement {number}");
            assert!(!bench.connection.is_autocommit(), "{place}");
            assert!(done.is_ok() || bench.failed.get() > 0, "{place}: {done:?}");
            bench.connection.execute_batch("COMMIT").unwrap();
            assert_eq!(bench.number("SELECT count(*) FROM mine"), 0, "{place}");
            // What the verb did is all there, or nothing of it.
            let stored = bench.stored();
            assert!(stored == if done.is_ok() { after.clone() } else { before.clone() }, "{place}");
            if bench.failed.get() == 0 {
                break;
            }
        }
    }
}

#[test]
fn a_schema_that_was_only_seen_inside_a_transaction_is_checked_again() {
    // A rolled back schema has a number that another one gets next.
    let bench = Bench::new("wal");
    let claim = |name: &str| bench.call("claim", &values![name, "a", 3_600_000i64]);
    claim("one").unwrap();
    let other = Connection::open(bench.folder.path().join("db")).unwrap();
    bench.connection.execute_batch("BEGIN IMMEDIATE; CREATE TABLE harmless (n)").unwrap();
    claim("two").unwrap();
    bench.connection.execute_batch("ROLLBACK").unwrap();
    let trigger = "CREATE TRIGGER theirs AFTER UPDATE ON litelease_resources BEGIN SELECT 1; END";
    other.execute_batch(trigger).unwrap();
    for _ in 0..2 {
        let refused = bench.call("renew", &values!["one", "a", 7_200_000i64]).unwrap_err();
        assert_eq!(refused.kind(), "SchemaMismatch", "{refused}");
    }
    other.execute_batch("DROP TRIGGER theirs").unwrap();
    bench.connection.execute_batch(&trigger.replace("TRIGGER", "TEMP TRIGGER")).unwrap();
    assert_eq!(claim("three").unwrap_err().kind(), "SchemaMismatch");
    bench.connection.execute_batch("DROP TRIGGER theirs").unwrap();
    claim("three").unwrap();
}

#[test]
fn an_unchanged_schema_is_checked_once() {
    struct Counting(RusqliteHost, Rc<Cell<u32>>);
    impl Host for Counting {
        fn run(&self, sql: &str, values: &[Value<'_>]) -> Result<Rows, Failure> {
            self.1.set(self.1.get() + 1);
            self.0.run(sql, values)
        }
        fn is_in_transaction(&self) -> bool {
            self.0.is_in_transaction()
        }
        fn changes(&self) -> i64 {
            self.0.changes()
        }
        fn total_changes(&self) -> i64 {
            self.0.total_changes()
        }
    }
    let connection = Rc::new(Connection::open_in_memory().unwrap());
    let statements: Rc<Cell<u32>> = Rc::default();
    let host = Counting(RusqliteHost(Rc::clone(&connection)), Rc::clone(&statements));
    let store = HostedStore::new(Box::new(host)).unwrap();
    call(&store, "bootstrap", &[]).unwrap();
    let count = |verb: &str, values: &[OwnedValue]| {
        let before = statements.get();
        call(&store, verb, values).unwrap();
        statements.get() - before
    };
    let ttl = 3_600_000i64;
    for _ in 0..3 {
        count("claim", &values!["x", "a", ttl]);
        count("renew", &values!["x", "a", ttl]);
        count("release", &values!["x", "a"]);
    }
    // Looks, then BEGIN, load, two numbers of the schema, UPDATE, COMMIT.
    assert_eq!(count("claim", &values!["x", "a", ttl]), 9);
    assert_eq!(count("renew", &values!["x", "a", ttl]), 6);
    assert_eq!(count("release", &values!["x", "a"]), 6);
    call(&store, "claim", &values!["x", "a", ttl]).unwrap();
    // A connection that only ever renews, as a keeper's does.
    let host = Counting(RusqliteHost(connection), Rc::clone(&statements));
    let store = HostedStore::new(Box::new(host)).unwrap();
    let before = statements.get();
    for _ in 0..10 {
        call(&store, "renew", &values!["x", "a", ttl]).unwrap();
    }
    assert!(statements.get() - before < 90, "{}", statements.get() - before);
}
