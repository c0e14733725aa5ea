//! A pooler between the verbs and PostgreSQL, which gives a connection to another client after each
//! transaction, and keeps its clients through a failover.

use std::time::Duration;

use litelease_cluster::engine::{Change, Stored};
use litelease_cluster::{ClaimResult, Cluster, Lease};
use litelease_proof::postgres::{Pooler, Postgres, is_installed};
use litelease_proof::rig::eventually;

const LONG: Duration = Duration::from_secs(60);

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

/// The settings of a session stayed with a connection that the pooler then gave to others, while
/// the verbs went on over another one, with the defaults of the role: a crash lost their commits.
#[test]
fn settings_end_with_the_transaction_and_grants_are_durable() {
    if !is_installed() {
        return;
    }
    let mut server = Postgres::start();
    server.sql("ALTER SYSTEM SET wal_writer_delay = '10s'");
    server.sql("ALTER ROLE postgres SET synchronous_commit = off");
    for (isolation, name) in [("read committed", "x"), ("serializable", "y")] {
        server.sql(&format!(
            "ALTER ROLE postgres SET default_transaction_isolation = '{isolation}'; SELECT pg_reload_conf()"
        ));
        let Some(pooler) = Pooler::start(&server) else { return };
        let cluster = Cluster::open(&pooler.url()).unwrap();
        cluster.bootstrap().unwrap();
        acquired(cluster.claim("before", "a", LONG));
        // It takes the connection that was used last, so the verbs go on over another one.
        let (mut one, mut two) = (pooler.session(), pooler.session());
        one.sql("BEGIN; SELECT 1");
        let lease = acquired(cluster.claim(name, "a", LONG));
        assert!(cluster.renew(&lease, LONG).is_ok());
        two.sql("BEGIN; SELECT 1");
        for session in [&mut one, &mut two] {
            for (setting, value) in [
                ("lock_timeout", "0"),
                ("synchronous_commit", "off"),
                ("default_transaction_isolation", isolation),
                ("transaction_isolation", isolation),
                ("plan_cache_mode", "auto"),
            ] {
                assert_eq!(session.sql(&format!("SHOW {setting}")), value, "{setting}");
            }
            session.sql("COMMIT");
        }
        assert!(cluster.release(&lease).is_ok());
        acquired(cluster.claim(name, "b", LONG));
        server.crash();
        server.spawn();
        let newest = format!("SELECT token FROM litelease.resources WHERE name = '{name}'");
        assert_eq!(server.sql(&newest), "2", "{isolation}");
        server.sql("DELETE FROM litelease.resources");
    }
}

/// The pooler goes on with the server that has taken over, over the same connection of the client,
/// which asked for the server's incarnation only once: a token came back.
#[test]
fn a_failover_behind_a_pooler_brings_no_token_back() {
    if !is_installed() {
        return;
    }
    let mut primary = Postgres::start();
    let Some(pooler) = Pooler::start(&primary) else { return };
    let cluster = Cluster::open(&pooler.url()).unwrap();
    cluster.bootstrap().unwrap();
    // It takes the connection that was used last. So the client finds out that statements with
    // names do not work here, and gets over the failover without a new connection.
    let mut other = pooler.session();
    other.sql("BEGIN; SELECT 1");
    let first = acquired(cluster.claim("x", "a", LONG));
    assert!(cluster.release(&first).is_ok());
    let load = || cluster.engine().load(&["x"]);
    eventually("the client finds out", || load().is_ok());
    let seen = load().unwrap();
    other.sql("COMMIT");
    let mut standby = primary.standby();
    standby.wait("SELECT 1 / count(*) FROM litelease.resources WHERE owner IS NULL");
    // From here on the standby hears nothing.
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    standby.wait("SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM pg_stat_wal_receiver");
    assert_eq!(acquired(cluster.claim("x", "b", LONG)).token, 2);
    primary.crash();
    standby.start_at(primary.port());
    standby.promote();

    eventually("the new server answers", || load().is_ok());
    // What was decided before the failover is not stored after it: the row and the floor are the
    // same.
    let mut row = seen.rows[0].row.clone().unwrap();
    (row.token, row.attempt) = (2, 7);
    let rows = vec![("x".to_owned(), row.clone())];
    let change = Change { rows, ..Change::default() };
    assert_eq!(cluster.engine().store(&seen, &change), Ok(Stored::Conflict));
    assert_eq!(cluster.engine().store_each(&seen, &[row], LONG), Ok(vec![Stored::Conflict]));
    let next = acquired(cluster.claim("x", "c", LONG));
    assert!(next.token > 1 << 32, "{next:?}");
}
