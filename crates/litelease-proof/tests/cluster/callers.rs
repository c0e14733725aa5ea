//! Who calls a verb, and when: on any kind of thread, after a rest, after a fork, and with less
//! time than it takes.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use litelease_cluster::engine::{Change, Error, Loaded, RowChange, Stored, StoredRow};
use litelease_cluster::{ClaimResult, Cluster, Lease};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{eventually, worker};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_blocking};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const LONG: Duration = Duration::from_secs(60);

fn ready(url: &str) -> Cluster {
    let cluster = Cluster::open(url).unwrap();
    cluster.bootstrap().unwrap();
    cluster
}

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

/// Returns the rows of `seen` with another attempt: a renewal that leaves everything as it is.
fn again(seen: &Loaded) -> Vec<StoredRow> {
    let again = |row: StoredRow| StoredRow { attempt: row.attempt + 1, ..row };
    seen.rows.iter().filter_map(|seen| seen.row.clone()).map(again).collect()
}

fn renewal(seen: &Loaded) -> Change {
    let names = seen.rows.iter().map(|row| row.name.clone());
    Change { rows: names.zip(again(seen)).collect(), while_live: true, ..Change::default() }
}

#[track_caller]
fn is_stored(stored: litelease_cluster::Result<Stored>) {
    assert!(matches!(stored, Ok(Stored::Done { .. })), "{stored:?}");
}

fn claims_on_every_kind_of_thread(url: &str) {
    let cluster = Arc::new(ready(url));
    let claim = |cluster: &Cluster, name: &str| drop(acquired(cluster.claim(name, "a", LONG)));
    claim(&cluster, "no runtime");
    let one = Builder::new_current_thread().enable_all().build().unwrap();
    one.block_on(async { claim(&cluster, "the only thread") });
    LocalSet::new().block_on(&one, async { claim(&cluster, "a local task") });
    let many = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (a, b) = (Arc::clone(&cluster), Arc::clone(&cluster));
    many.block_on(async move {
        tokio::spawn(async move { claim(&a, "a task") }).await.unwrap();
        spawn_blocking(move || claim(&b, "a blocking thread")).await.unwrap();
        let held = cluster.hold("held", litelease_cluster::HoldOptions::new(LONG)).unwrap();
        held.release().unwrap();
        assert_eq!(cluster.list().unwrap().len(), 6);
        drop(cluster);
    });
}

#[test]
fn verbs_on_etcd_work_on_every_kind_of_thread() {
    if etcd::is_installed() {
        claims_on_every_kind_of_thread(&Etcd::shared().url("threads"));
    }
}

#[test]
fn verbs_on_postgresql_work_on_every_kind_of_thread() {
    if postgres::is_installed() {
        claims_on_every_kind_of_thread(&Postgres::shared().url("threads"));
    }
}

/// The connection was not driven since, so this side does not know that it is closed. The engine
/// does not try again: had the write been sent there, its answer would be lost.
#[test]
fn a_write_after_a_restart_of_etcd_is_not_sent_over_the_old_connection() {
    if !etcd::is_installed() {
        return;
    }
    let mut etcd = Etcd::start(1);
    let cluster = ready(&etcd.url(""));
    acquired(cluster.claim("x", "a", LONG));
    let engine = cluster.engine();
    let seen = engine.load(&["x"]).unwrap();
    etcd.kill(0);
    etcd.spawn(0);
    etcd.wait_for_leader();
    is_stored(engine.store(&seen, &renewal(&seen)));
}

#[test]
fn a_write_after_a_restart_of_postgresql_is_not_sent_over_the_old_connection() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    let cluster = ready(&server.url("litelease"));
    acquired(cluster.claim("x", "a", LONG));
    let engine = cluster.engine();
    let seen = engine.load(&["x"]).unwrap();
    server.crash();
    server.spawn();
    is_stored(engine.store(&seen, &renewal(&seen)));
}

/// The copy is refused at once, and what it closes stays open in its parent, whose next write goes
/// over the same connection.
fn a_fork_is_refused_and_harms_nobody(url: &str) {
    let mut parent = worker(WORKER, &["engine-forked"], Path::new(url));
    let mut told = String::new();
    parent.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(parent.wait().unwrap().success(), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 3, "{told}");
    assert!(lines[0].starts_with("Refused") && lines[0].contains("forked"), "{told}");
    assert!(lines[1].starts_with("Refused") && lines[1].contains("forked"), "{told}");
    assert_eq!(lines[2], "stored", "{told}");
}

#[test]
fn a_fork_does_not_use_its_parents_connections_to_etcd() {
    if etcd::is_installed() {
        a_fork_is_refused_and_harms_nobody(&Etcd::shared().url("forked"));
    }
}

#[test]
fn a_fork_does_not_use_its_parents_connections_to_postgresql() {
    if postgres::is_installed() {
        a_fork_is_refused_and_harms_nobody(&Postgres::shared().url("forked"));
    }
}

/// A member that gave no answer in the caller's time is not asked first by the next caller.
#[test]
fn a_caller_with_little_time_finds_out_for_others_that_a_member_of_etcd_does_not_answer() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::start(3);
    let leader = etcd.wait_for_leader();
    let follower = (leader + 1) % 3;
    let url = format!("etcd://{},{}", etcd.address(follower), etcd.address(leader));
    // On a busy machine the first member may be late, so that the other one is asked already.
    let (cluster, late) = eventually("the first member is asked", || {
        etcd.signal(follower, libc::SIGCONT);
        let cluster = ready(&url);
        cluster.inspect("x").unwrap();
        etcd.signal(follower, libc::SIGSTOP);
        let late = cluster.engine().load_within(&["x"], Duration::from_millis(100)).err()?;
        Some((cluster, late))
    });
    assert_eq!(late.kind(), "Unreachable", "{late}");
    // One try, over the next member.
    assert_eq!(cluster.engine().load(&["x"]).unwrap().rows.len(), 1);
}

/// No other request goes to this member, and it does not close the connection.
#[test]
fn a_watch_leaves_a_member_of_etcd_that_has_fallen_silent() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::start(3);
    let leader = etcd.wait_for_leader();
    let follower = (leader + 1) % 3;
    let url = |at: usize| format!("etcd://{}", etcd.address(at));
    let writer = ready(&url(leader));
    let watching = ready(&format!("{},{}", url(follower), etcd.address(leader)));
    let watch = watching.watch();
    let notices = |name: &str| {
        let seen = watch.changes();
        for number in 0..600 {
            acquired(writer.claim(&format!("{name}{number}"), "a", LONG));
            watch.wait(seen, i64::MAX, Duration::from_millis(100));
            if watch.changes() != seen {
                return true;
            }
        }
        false
    };
    assert!(notices("before"));
    // What it has told already comes first.
    thread::sleep(Duration::from_millis(500));
    etcd.signal(follower, libc::SIGSTOP);
    assert!(notices("after"));
}

/// A server of PostgreSQL that takes connections and says nothing is left, too.
#[test]
fn callers_with_little_time_come_past_a_server_that_does_not_answer() {
    if !postgres::is_installed() {
        return;
    }
    let (server, silent) = (Postgres::shared(), TcpListener::bind("127.0.0.1:0").unwrap());
    let url = server.url("silent");
    drop(ready(&url));
    let both = format!("{},{}", silent.local_addr().unwrap(), server.address());
    let cluster = Cluster::open(&url.replace(&server.address(), &both)).unwrap();
    let some = Duration::from_millis(500);
    // Less time than the first server gets, however often it is asked.
    let answered = (0..60).any(|_| cluster.engine().load_within(&["x"], some).is_ok());
    assert!(answered, "the first server was asked each time");
}

/// Otherwise it keeps its place at the server, and its locks, until the next call.
#[test]
fn a_connection_that_is_given_up_is_closed_though_nobody_calls_again() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::start();
    let cluster = ready(&server.url("litelease"));
    acquired(cluster.claim("x", "a", LONG));
    let mut other = server.session("postgres");
    other.sql("BEGIN");
    other.sql("LOCK TABLE litelease.resources");
    let late = cluster.engine().load_within(&["x"], Duration::from_millis(100)).unwrap_err();
    assert!(late.to_string().contains("100 ms"), "{late}");
    other.sql("COMMIT");
    server.wait(
        "SELECT 1 / (count(*) = 0)::int FROM pg_stat_activity
        WHERE application_name = 'litelease'",
    );
    assert!(cluster.engine().load(&["x"]).is_ok());
}

/// It is visible here, and may not be at the standby: the next caller waits for that before it
/// believes what it reads.
#[test]
fn what_a_caller_gave_up_waiting_for_is_confirmed_before_it_is_read() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::start();
    let cluster = ready(&server.url("litelease"));
    acquired(cluster.claim("x", "a", LONG));
    let engine = cluster.engine();
    let standby = |name: &str| {
        server.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
        server.sql("SELECT pg_reload_conf()");
    };
    standby("nobody");
    let given_up = (0..100).find_map(|_| {
        let seen = engine.load(&["x"]).unwrap();
        // The server takes a moment to read its configuration.
        thread::sleep(Duration::from_millis(50));
        engine.store_each(&seen, &again(&seen), Duration::from_millis(300)).err()
    });
    assert_eq!(given_up.map(|error| error.kind()), Some("CommitUnknown"));
    let unconfirmed = engine.load(&["x"]).unwrap_err();
    assert_eq!(unconfirmed.kind(), "Unreachable", "{unconfirmed}");
    standby("");
    let confirmed = (0..30).any(|_| engine.load(&["x"]).is_ok());
    assert!(confirmed);
}

/// The grant of the next token is not committed yet when the rows of the old one are sent. They
/// wait for it, and are not stored.
#[test]
fn rows_of_the_service_wait_for_a_grant_and_compare_again() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server.url("granting"));
    let token = acquired(cluster.of_service().claim("serve", "a", LONG)).token;
    let engine = cluster.engine();
    let rows: [RowChange; 2] = [(vec![1], Some(vec![7])), (vec![2], Some(vec![7]))];
    let mut other = server.session("postgres");
    let mut outcome = Err(Error::Locked("it was not asked yet".into()));
    // A busy machine may take longer to see that it waits than it waits.
    for _ in 0..20 {
        other.sql("BEGIN");
        other.sql("UPDATE granting.resources SET token = token + 1 WHERE name = 'serve'");
        outcome = thread::scope(|scope| {
            let commit = scope.spawn(|| engine.commit_rows("serve", token, &rows));
            let waits = "SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE '%granting%service%'";
            while !commit.is_finished() && server.sql(waits) == "0" {}
            other.sql("COMMIT");
            commit.join().unwrap()
        });
        if !matches!(outcome, Err(Error::Locked(_))) {
            break;
        }
        other.sql(&format!("UPDATE granting.resources SET token = {token} WHERE name = 'serve'"));
    }
    assert_eq!(outcome, Ok(Stored::Conflict));
    assert_eq!(engine.load_rows(b"").unwrap(), []);

    // A renewal is not in their way.
    other.sql("BEGIN");
    other.sql("UPDATE granting.resources SET updated_at_ms = 1 WHERE name = 'serve'");
    is_stored(engine.commit_rows("serve", token + 1, &rows));
    let change: [RowChange; 2] = [(vec![1], None), (vec![2], Some(vec![8]))];
    is_stored(engine.commit_rows("serve", token + 1, &change));
    is_stored(engine.commit_rows("serve", token + 1, &[]));
    assert_eq!(engine.commit_rows("serve", token, &[]), Ok(Stored::Conflict));
    assert_eq!(engine.load_rows(b"").unwrap(), [(vec![2], vec![8])]);
    other.sql("ROLLBACK");
}
