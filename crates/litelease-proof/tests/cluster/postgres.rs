//! A real PostgreSQL: its tables, a failover with lost commits, and standbys that do not answer.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::engine::{Change, Stored, StoredRow};
use litelease_cluster::{ClaimResult, Cluster, Error, Lease, Options, Reason, RenewResult};
use litelease_proof::believers::faketime;
use litelease_proof::postgres::{Postgres, is_installed};
use litelease_proof::proxy::Proxy;
use litelease_proof::rig::eventually;

const LONG: Duration = Duration::from_secs(60);

fn open(url: &str) -> Cluster {
    Cluster::open(url).unwrap()
}

fn ready(url: &str) -> Cluster {
    let cluster = open(url);
    cluster.bootstrap().unwrap();
    cluster
}

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

/// The standby lags, so that the failover loses two grants; its clock does not matter, because it
/// is the same machine's.
#[test]
fn a_failover_that_loses_grants_brings_no_token_back_and_leases_get_their_ttl_again() {
    if !is_installed() {
        return;
    }
    let mut primary = Postgres::start();
    let cluster = ready(&primary.url("litelease"));
    let ttl = Duration::from_secs(4);
    let kept = acquired(cluster.claim("kept", "a", ttl));
    let lost = acquired(cluster.claim("lost", "a", ttl));
    assert!(cluster.release(&lost).is_ok());
    let standby = primary.standby();
    standby.wait("SELECT 1 / count(*) FROM litelease.resources WHERE name = 'lost'");
    // From here on the standby hears nothing.
    standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
    standby.sql("SELECT pg_reload_conf()");
    standby.wait("SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM pg_stat_wal_receiver");
    let newest = acquired(cluster.claim("lost", "b", LONG)).token;
    assert_eq!(newest, 2);

    let both = primary
        .url("litelease")
        .replace(&primary.address(), &format!("{},{}", primary.address(), standby.address()));
    let client = open(&both);
    assert_eq!(client.token("lost").unwrap(), Some(2));
    primary.crash();
    standby.promote();
    let next = acquired(client.claim("lost", "c", LONG));
    assert!(next.token > 1 << 32, "{next:?}");
    // The holder of the other lease has its whole ttl again, and goes on.
    let left = client.inspect("kept").unwrap().expect("its lease is live");
    assert_eq!(left.token, kept.token);
    assert!(matches!(client.renew(&kept, ttl).unwrap(), RenewResult::Renewed(_)));
    let late = Lease { name: "lost".into(), owner: "b".into(), token: newest, ..kept };
    assert!(matches!(client.renew(&late, ttl).unwrap(), RenewResult::Rejected { .. }));
}

/// A commit that is visible here and not at the synchronous standby is no grant, even if an
/// operator ends the wait.
#[test]
fn a_grant_that_did_not_reach_its_synchronous_standby_is_not_answered() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    let patience = Duration::from_millis(2_500);
    let options = Options { patience, ..Options::default() };
    let cluster = Cluster::open_with(&server.url("litelease"), options).unwrap();
    cluster.bootstrap().unwrap();
    acquired(cluster.claim("before", "a", LONG));
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'");
    server.sql("SELECT pg_reload_conf()");
    let mut number = 0;
    let (name, error) = eventually("the server waits for its standby", || {
        number += 1;
        let name = format!("x{number}");
        let claimed = thread::scope(|scope| {
            let claim = scope.spawn(|| cluster.claim(&name, "a", LONG));
            while !claim.is_finished() {
                thread::sleep(Duration::from_millis(100));
                let waiting = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
                    WHERE wait_event = 'SyncRep'";
                server.sql(waiting);
            }
            claim.join().unwrap()
        });
        Some((name, claimed.err()?))
    });
    assert_eq!(error.kind(), "CommitUnknown", "{error}");
    // It is there, which is what the client must not conclude anything from.
    let token = format!("SELECT token FROM litelease.resources WHERE name = '{name}'");
    assert_eq!(server.sql(&token), "1");
    server.sql("ALTER SYSTEM SET synchronous_standby_names = ''");
    server.sql("SELECT pg_reload_conf()");
    let again = eventually("the server answers", || cluster.claim(&name, "b", LONG).ok());
    assert!(matches!(again, ClaimResult::Busy(_)), "{again:?}");
}

#[test]
fn tables_are_made_once_and_checked_strictly() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    let url = server.url("litelease");
    assert_eq!(open(&url).claim("x", "a", LONG).unwrap_err().kind(), "NotBootstrapped");
    thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| drop(ready(&url)))));
    });
    let cluster = ready(&url);
    acquired(cluster.claim("x", "a", LONG));
    cluster.bootstrap().unwrap();
    assert_eq!(cluster.token("x").unwrap(), Some(1));

    for (change, back, named) in [
        ("ALTER TABLE litelease.resources ADD color text", "ALTER TABLE litelease.resources DROP color", "color"),
        ("ALTER TABLE litelease.resources ALTER owner TYPE text COLLATE \"default\"", "ALTER TABLE litelease.resources ALTER owner TYPE text COLLATE \"C\"", "owner text collate C"),
        ("ALTER TABLE litelease.resources ALTER attempt DROP NOT NULL", "ALTER TABLE litelease.resources ALTER attempt SET NOT NULL", "attempt bigint not null"),
        ("ALTER TABLE litelease.resources DROP CONSTRAINT resources_name_token_key", "ALTER TABLE litelease.resources ADD UNIQUE (name, token)", "UNIQUE (name, token)"),
        ("CREATE FUNCTION public.nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
          CREATE TRIGGER nothing BEFORE INSERT ON litelease.resources FOR EACH ROW EXECUTE FUNCTION public.nothing()", "DROP TRIGGER nothing ON litelease.resources", "trigger nothing"),
        ("CREATE RULE nothing AS ON DELETE TO litelease.resources DO INSTEAD NOTHING", "DROP RULE nothing ON litelease.resources", "rule nothing"),
        ("ALTER TABLE litelease.resources ENABLE ROW LEVEL SECURITY", "ALTER TABLE litelease.resources DISABLE ROW LEVEL SECURITY", "kind r"),
        // A crash empties a table that is unlogged, and tokens would come back.
        ("ALTER TABLE litelease.resources SET UNLOGGED", "ALTER TABLE litelease.resources SET LOGGED", "kind r"),
        // A table that inherits shows its rows, and its tokens, in ours.
        ("CREATE TABLE public.more () INHERITS (litelease.resources)", "DROP TABLE public.more", "kind r"),
        ("ALTER TABLE litelease.meta ALTER boot TYPE int", "ALTER TABLE litelease.meta ALTER boot TYPE bigint", "boot bigint"),
        ("ALTER TABLE litelease.meta RENAME TO other; CREATE VIEW litelease.meta AS SELECT * FROM litelease.other", "DROP VIEW litelease.meta; ALTER TABLE litelease.other RENAME TO meta", "kind r"),
    ] {
        // The boot fits into an int only if it is small.
        let boot = server.sql("SELECT boot FROM litelease.meta");
        server.sql(&format!("UPDATE litelease.meta SET boot = 7; {change}"));
        let error = open(&url).claim("y", "a", LONG).unwrap_err();
        assert!(matches!(&error, Error::SchemaMismatch { reason, .. } if reason.contains(named)), "{change}: {error}");
        server.sql(&format!("{back}; UPDATE litelease.meta SET boot = {boot}"));
        assert_eq!(open(&url).token("x").unwrap(), Some(1), "{back}");
    }
    server.sql("UPDATE litelease.meta SET format = 2");
    assert_eq!(open(&url).claim("y", "a", LONG).unwrap_err().kind(), "NewerFormat");
    server.sql("UPDATE litelease.meta SET format = 1; DELETE FROM litelease.meta");
    assert_eq!(open(&url).claim("y", "a", LONG).unwrap_err().kind(), "SchemaMismatch");
}

/// A purge between the load and the first insert of a name must not bring a token back.
#[test]
fn a_first_grant_that_was_decided_before_a_purge_is_not_stored() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server.url("first"));
    let engine = cluster.engine();
    let seen = engine.load(&["x"]).unwrap();
    assert_eq!(seen.rows[0].row, None);
    let lease = acquired(cluster.claim("x", "a", LONG));
    assert!(cluster.release(&lease).is_ok());
    thread::sleep(Duration::from_millis(5));
    assert_eq!(cluster.purge(i64::MAX).unwrap(), 1);
    let row = StoredRow { token: 1, tenure: None, since_ms: 1, at_ms: 1, attempt: 1, ended: 0 };
    let change = Change { rows: vec![("x".into(), row)], ..Change::default() };
    assert_eq!(engine.store(&seen, &change), Ok(Stored::Conflict));

    // The same while the purge is not committed yet: the insert waits for it.
    let mut other = server.session("postgres");
    let (mut stored, mut purges) = (Err(Error::Locked("it was not asked yet".into())), 0);
    // A busy machine may take longer to see that it waits than it waits.
    while matches!(stored, Err(Error::Locked(_))) && purges < 20 {
        purges += 1;
        let seen = engine.load(&["x"]).unwrap();
        other.sql("BEGIN");
        other.sql("UPDATE first.meta SET floor = floor + 1");
        stored = thread::scope(|scope| {
            let store = scope.spawn(|| engine.store(&seen, &change));
            let waits = "SELECT count(*) FROM pg_stat_activity
                WHERE wait_event_type = 'Lock' AND query LIKE '%first%'";
            while !store.is_finished() && server.sql(waits) == "0" {}
            other.sql("COMMIT");
            store.join().unwrap()
        });
    }
    assert_eq!(stored, Ok(Stored::Conflict));
    assert_eq!(acquired(cluster.claim("x", "a", LONG)).token, 2 + purges);
}

/// What was live when it was decided must be live when it is stored: the server's clock is asked
/// again.
#[test]
fn a_renewal_that_arrives_after_the_expiry_is_not_stored() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let cluster = ready(&server.url("late"));
    let ttl = Duration::from_secs(1);
    let lease = acquired(cluster.claim("x", "a", ttl));
    let engine = cluster.engine();
    let seen = engine.load(&["x"]).unwrap();
    let mut row = seen.rows[0].row.clone().unwrap();
    row.attempt += 1;
    let rows = vec![("x".to_owned(), row)];
    let renewal = Change { rows, while_live: true, ..Change::default() };
    thread::sleep(ttl);
    assert_eq!(engine.store(&seen, &renewal), Ok(Stored::Conflict));
    let late = cluster.renew(&lease, ttl).unwrap();
    assert!(matches!(late, RenewResult::Rejected { reason: Reason::Expired, .. }), "{late:?}");
    // No client has changed it: without the clock it would be stored.
    let anyway = Change { while_live: false, ..renewal };
    assert!(matches!(engine.store(&seen, &anyway), Ok(Stored::Done { .. })));
}

/// The handle guesses the server's clock, which was set forward meanwhile. What it stores must last
/// its whole ttl by the clock that others go by.
#[test]
fn a_renewal_lasts_its_whole_ttl_when_the_servers_clock_was_set_forward() {
    if !is_installed() || faketime().is_none() {
        return;
    }
    let mut server = Postgres::start();
    let cluster = ready(&server.url("set"));
    let ttl = Duration::from_secs(1_000);
    let mut lease = acquired(cluster.claim("x", "a", ttl));
    let left = "SELECT lease_expires_at_ms / 1000 - extract(epoch FROM clock_timestamp())::bigint
        FROM set.resources";
    for (clock, verb) in [("+700s", "renew"), ("+1400s", "renew_all"), ("+2100s", "transfer")] {
        server.set_clock(clock);
        assert!(server.sql(left).parse::<i64>().unwrap() < 400, "{clock}");
        lease = match verb {
            "renew" => match cluster.renew(&lease, ttl).unwrap() {
                RenewResult::Renewed(lease) => lease,
                rejected => panic!("{clock}: {rejected:?}"),
            },
            "renew_all" => match cluster.renew_all(&[lease], ttl).remove(0).unwrap() {
                RenewResult::Renewed(lease) => lease,
                rejected => panic!("{clock}: {rejected:?}"),
            },
            _ => cluster.transfer(&lease, "b", ttl).unwrap().transferred().unwrap(),
        };
        assert!(server.sql(left).parse::<i64>().unwrap() > 800, "{clock}");
        let stored = server.sql("SELECT lease_expires_at_ms FROM set.resources");
        assert_eq!(stored, lease.expires_at_ms.to_string());
    }
}

/// A stopped process does not take the signal that ends it.
#[test]
fn a_server_that_is_frozen_can_crash() {
    if !is_installed() {
        return;
    }
    let mut server = Postgres::start();
    server.sql("CREATE TABLE kept (id int)");
    server.freeze(true);
    let crashed = thread::spawn(move || {
        server.crash();
        server
    });
    eventually("it has ended", || crashed.is_finished());
    let mut server = crashed.join().unwrap();
    server.spawn();
    assert_eq!(server.sql("SELECT count(*) FROM kept"), "0");
}

#[test]
fn connections_are_encrypted_and_certificates_checked() {
    let folder = tempfile::tempdir().unwrap();
    if !is_installed() || !crate::make_certificates(folder.path()) {
        return;
    }
    let mut server = Postgres::start();
    let file = |name: &str| folder.path().join(name);
    let (cert, key) = (server.give(&file("server.pem")), server.give(&file("server.key")));
    let (cert, key) = (cert.display(), key.display());
    server.configure(&format!("ssl = on\nssl_cert_file = '{cert}'\nssl_key_file = '{key}'"));
    server.crash();
    server.spawn();
    let (ca, other) = (file("ca.pem"), file("client.pem"));
    let with = |words: &str| format!("{}&{words}", server.url("litelease"));
    let trusting = |mode: &str| with(&format!("sslmode={mode}&sslrootcert={}", ca.display()));
    let _ = ready(&with("sslmode=require"));
    for url in [
        with("sslmode=disable"),
        with("sslmode=prefer"),
        trusting("verify-ca"),
        trusting("verify-full"),
    ] {
        let cluster = open(&url);
        let _ = cluster.claim("x", "a", LONG).unwrap();
        let sql = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
            WHERE application_name = 'litelease'";
        let is_encrypted = server.sql(sql) == "t";
        assert_eq!(is_encrypted, !url.contains("disable"), "{url}");
        drop(cluster);
        server.wait(
            "SELECT 1 / (CASE WHEN count(*) = 0 THEN 1 ELSE 0 END) FROM pg_stat_activity
            WHERE application_name = 'litelease'",
        );
    }
    let wrong = with(&format!("sslmode=verify-ca&sslrootcert={}", other.display()));
    for url in [with("sslmode=verify-full"), wrong] {
        let error = open(&url).claim("y", "a", LONG).unwrap_err();
        assert!(matches!(&error, Error::Refused(text) if text.contains("sslrootcert")), "{error}");
    }
    let missing = Cluster::open(&with("sslmode=verify-ca&sslrootcert=/none")).err();
    assert!(matches!(missing, Some(Error::InvalidUrl(text)) if text.contains("/none")));
}

/// The certificate that the manual of PostgreSQL makes is its own authority, and has the name of
/// the host as its common name only. `psql` accepts it in all these modes.
#[test]
fn the_certificate_of_postgresqls_manual_is_accepted_as_psql_does() {
    let folder = tempfile::tempdir().unwrap();
    let script = "set -e
        for host in localhost other; do
          openssl req -new -x509 -days 365 -nodes -out $host.crt -keyout $host.key -subj /CN=$host
        done";
    let made = Command::new("sh").args(["-c", script]).current_dir(folder.path()).output();
    if !is_installed() || !made.is_ok_and(|made| made.status.success()) {
        return;
    }
    let mut server = Postgres::start();
    let file = |name: &str| folder.path().join(name);
    let (cert, key) = (server.give(&file("localhost.crt")), server.give(&file("localhost.key")));
    let (cert, key) = (cert.display(), key.display());
    server.configure(&format!("ssl = on\nssl_cert_file = '{cert}'\nssl_key_file = '{key}'"));
    server.crash();
    server.spawn();
    let url = server.url("litelease").replace("127.0.0.1", "localhost");
    let trusting = |mode: &str, name: &str| {
        format!("{url}&sslmode={mode}&sslrootcert={}", file(name).display())
    };
    let own = |mode: &str| trusting(mode, "localhost.crt");
    for url in [
        format!("{url}&sslmode=prefer"),
        format!("{url}&sslmode=require"),
        own("require"),
        own("verify-ca"),
        own("verify-full"),
    ] {
        let cluster = ready(&url);
        let lease = acquired(cluster.claim("x", "a", LONG));
        assert!(cluster.release(&lease).is_ok(), "{url}");
    }
    // By another name, and with another authority, it is refused as before.
    let by_address = own("verify-full").replace("localhost:", "127.0.0.1:");
    for url in [by_address, trusting("verify-ca", "other.crt"), format!("{url}&sslmode=verify-ca")]
    {
        let error = open(&url).claim("y", "a", LONG).unwrap_err();
        assert!(matches!(&error, Error::Refused(text) if text.contains("sslrootcert")), "{error}");
    }
    let ca = own("verify-ca").replace("localhost:", "127.0.0.1:");
    acquired(ready(&ca).claim("x", "a", LONG));
}

#[test]
fn a_release_wakes_those_who_wait() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (a, b) = (ready(&server.url("wakes")), open(&server.url("wakes")));
    let version = |cluster: &Cluster| cluster.engine().load(&["x"]).unwrap().rows[0].version;
    // Only the poll would end the waiting later. A busy machine may be late now and then.
    eventually("a release wakes a waiter", || {
        let lease = acquired(a.claim("x", "a", LONG));
        let seen = version(&b);
        // The first nap begins to listen.
        b.engine().wait_for_change("x", seen, Duration::from_millis(300));
        let waiter = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                b.engine().wait_for_change("x", seen, Duration::from_secs(5));
                Instant::now()
            });
            thread::sleep(Duration::from_millis(100));
            let released = Instant::now();
            assert!(a.release(&lease).is_ok());
            waiter.join().unwrap().saturating_duration_since(released)
        });
        waiter < Duration::from_millis(200)
    });
}

#[test]
fn standbys_are_passed_over_and_bad_input_is_refused() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    let cluster = ready(&server.url("litelease"));
    for (name, owner) in [("a\0b", "a"), ("x", "a\0b")] {
        let error = cluster.claim(name, owner, LONG).unwrap_err();
        assert!(matches!(&error, Error::InvalidName { .. }), "{error}");
        assert!(error.to_string().contains("NUL"), "{error}");
    }
    let long = "x".repeat(1_024);
    acquired(cluster.claim(&long, &long, LONG));

    let standby = server.standby();
    let hasty = Options { patience: Duration::from_secs(2), ..Options::default() };
    let only = Cluster::open_with(&standby.url("litelease"), hasty).unwrap();
    let error = only.claim("x", "a", LONG).unwrap_err();
    assert!(matches!(&error, Error::Unreachable(text) if text.contains("standby")), "{error}");
    let both = format!("{},{}", standby.address(), server.address());
    let both = server.url("litelease").replace(&server.address(), &both);
    acquired(open(&both).claim("x", "a", LONG));

    server.sql(
        "CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on;
        ALTER ROLE reader SET default_transaction_isolation = 'serializable'",
    );
    let reader = server.url("litelease").replace("postgres@", "reader:geheim@");
    let error = open(&reader).claim("y", "a", LONG).unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("grant")), "{error}");
    server.sql(
        "GRANT USAGE ON SCHEMA litelease TO reader;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA litelease TO reader",
    );
    acquired(open(&reader).claim("y", "a", LONG));
    // What tells a failover and confirms a commit is allowed to everybody.
    server.sql(
        "SET ROLE reader; SELECT pg_logical_emit_message(true, 'x', ''), system_identifier,
        pg_walfile_name(pg_current_wal_lsn()) FROM pg_control_system()",
    );
    let strict = format!("{reader}&sslmode=require");
    let error = open(&strict).claim("z", "a", LONG).unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("sslmode")), "{error}");
    let nobody = server.url("litelease").replace("/postgres?", "/nothing?");
    let error = open(&nobody).claim("z", "a", LONG).unwrap_err();
    assert!(matches!(&error, Error::Refused(_)), "{error}");
    assert!(!format!("{error:?}").contains("geheim"));
}

/// One of two users could not see the number that tells one server from another. To each, the other
/// one's epochs were another server's: both began a new one in turn, and every lease got its ttl
/// again.
#[test]
fn users_with_and_without_the_right_to_see_the_servers_number_share_one_epoch() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    server.sql(
        "CREATE ROLE limited LOGIN; REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
    );
    let all = ready(&server.url("litelease"));
    server.sql(
        "GRANT USAGE ON SCHEMA litelease TO limited;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA litelease TO limited",
    );
    let limited = open(&server.url("litelease").replace("postgres@", "limited@"));
    let mut session = server.session("limited");
    for turn in 0..3 {
        let lease = acquired(all.claim("x", "a", LONG));
        assert!(all.release(&lease).is_ok());
        let lease = acquired(limited.claim("x", "b", LONG));
        assert!(limited.release(&lease).is_ok());
        session.sql("SELECT litelease.claim('x', 'c', 60000), litelease.release('x', 'c')");
        assert_eq!(server.sql("SELECT floor FROM litelease.meta"), "0", "turn {turn}");
    }
}

#[test]
fn other_schemas_and_search_paths_do_not_matter_and_many_rows_are_changed_at_once() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    server.sql(
        "ALTER DATABASE postgres SET search_path = other;
        CREATE SCHEMA other; CREATE TABLE other.resources (x int); CREATE TABLE other.meta (x int)",
    );
    let (one, two) = (ready(&server.url("select")), ready(&server.url("two")));
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    thread::scope(|scope| {
        for names in names.chunks(100) {
            let one = &one;
            scope.spawn(move || {
                names.iter().for_each(|name| drop(acquired(one.claim(name, "a", LONG))));
            });
        }
    });
    assert_eq!(two.list().unwrap(), []);
    assert!(one.list().unwrap().iter().map(|row| &row.name).eq(&names));
    let floor = one.restore_fence().unwrap();
    assert!(one.list().unwrap().iter().all(|row| row.token == floor && row.tenure.is_none()));
    acquired(one.claim("007", "b", LONG));
    thread::sleep(Duration::from_millis(5));
    assert_eq!(one.purge(i64::MAX).unwrap(), 299);

    let engine = one.engine();
    let rows: Vec<_> = names.iter().map(|name| (name.clone().into(), Some(vec![7]))).collect();
    assert_eq!(engine.commit_rows("007", floor, &rows), Ok(Stored::Conflict));
    assert!(matches!(engine.commit_rows("007", floor + 1, &rows), Ok(Stored::Done { .. })));
    assert_eq!(engine.load_rows(b"").unwrap().len(), 300);
    let gone: Vec<_> = names.iter().map(|name| (name.clone().into(), None)).collect();
    assert!(matches!(engine.commit_rows("007", floor + 1, &gone), Ok(Stored::Done { .. })));
    assert_eq!(engine.load_rows(b"").unwrap(), []);
    // After a failover, rows may be changes to what was lost in it.
    let boot = engine.load(&["007"]).unwrap().incarnation;
    let other = engine.commit_rows_of(boot + 1, "007", floor + 1, &rows);
    assert_eq!(other, Ok(Stored::Conflict));
    assert_eq!(engine.load_rows(b"").unwrap(), []);
    let same = engine.commit_rows_of(boot, "007", floor + 1, &gone);
    assert!(matches!(same, Ok(Stored::Done { .. })), "{same:?}");

    // A commit is one statement. A client that is stopped between two would keep all others from a
    // grant.
    let proxy = Proxy::start(server.address().parse().unwrap());
    let url = server.url("select").replace(&server.address(), &proxy.address().to_string());
    let lossy = open(&url);
    for row in [b"a", b"b"] {
        proxy.lose(u64::from(row == b"b"));
        let stored = lossy.engine().commit_rows("007", floor + 1, &[(row.to_vec(), Some(vec![7]))]);
        assert_eq!(matches!(stored, Err(Error::CommitUnknown(_))), row == b"b", "{stored:?}");
    }
    assert_eq!(engine.load_rows(b"").unwrap().len(), 2);
    let facts = one.facts().unwrap();
    assert!(facts.facts.iter().any(|(_, value)| value.contains("takes writes")), "{facts:?}");
    assert!(facts.warnings.iter().any(|warning| warning.contains("synchronous")), "{facts:?}");
}
