//! A pooler between the verbs and PostgreSQL, which gives a connection to another client after each
//! transaction.

use std::time::Duration;

use litelease_cluster::{ClaimResult, Cluster, LeaseInfo};
use litelease_proof::postgres::{Pooler, Postgres, is_installed};

const LONG: Duration = Duration::from_secs(60);

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> LeaseInfo {
    claimed.unwrap().acquired().expect("nobody has it")
}

/// The settings of a session stayed with a connection that the pooler then gave to others, while the
/// verbs went on over another one, with the defaults of the role: a crash lost their commits.
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
