//! Guarded tables on PostgreSQL: every form of write, by every kind of token, on plain and on
//! partitioned tables; open transactions against grants; roles, search paths, replica mode and
//! poolers.

use std::fmt::Write as _;
use std::thread;
use std::time::Duration;

use litelease_cluster::{Cluster, Error, Guard, Lease, MemoryEngine};
use litelease_proof::command::{Desk, ended, outcome};
use litelease_proof::postgres::{Pooler, Postgres, Session, is_installed};
use litelease_proof::rig::eventually;

const LONG: Duration = Duration::from_secs(60);

/// How a write stands to the newest token, which is 2. The newest one of another name is 5.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Fresh,
    Stale,
    Missing,
    TooLarge,
    AnotherNames,
}

use Token::*;

const TOKENS: [Token; 5] = [Fresh, Stale, Missing, TooLarge, AnotherNames];

impl Token {
    /// As an expression in a statement.
    fn sql(self) -> &'static str {
        match self {
            Fresh => "2",
            Stale => "1",
            Missing => "NULL",
            TooLarge => "3",
            AnotherNames => "5",
        }
    }

    /// As a transaction presents it, and what that answers.
    fn presents(self, schema: &str) -> Option<(String, &'static str)> {
        match self {
            Missing => None,
            AnotherNames => Some((format!("SELECT {schema}.present('other', 5)"), "t")),
            token => {
                let answer = if token == Fresh { "t" } else { "f" };
                Some((format!("SELECT {schema}.present('writer', {})", token.sql()), answer))
            }
        }
    }
}

/// What a form of write does on a table that is guarded by column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ByColumn {
    /// Only the newest token passes.
    Fresh,
    /// Nothing passes: there is nowhere to present a token.
    Nothing,
}

/// Tables that every form writes to. `{orders}` is the end of the guarded one.
const SCHEMA: &str = "
CREATE TABLE parents (id int PRIMARY KEY);
CREATE TABLE patrons (id int PRIMARY KEY);
CREATE TABLE orders (id int PRIMARY KEY, v text DEFAULT 'd',
  parent int REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE,
  tok bigint, patron int REFERENCES patrons ON DELETE SET NULL) {orders};
CREATE TABLE twin (id int PRIMARY KEY, v text, parent int, tok bigint);
CREATE TABLE inbox (id int, tok bigint);
CREATE TABLE ruled (id int, tok bigint);
CREATE VIEW shown AS SELECT * FROM orders;
CREATE VIEW steered AS SELECT * FROM orders;
CREATE FUNCTION steer() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN DELETE FROM orders WHERE id = OLD.id; RETURN OLD; END IF;
  INSERT INTO orders (id, v, tok) VALUES (NEW.id, 'steered', NEW.tok); RETURN NEW; END $$;
CREATE TRIGGER steer INSTEAD OF INSERT OR DELETE ON steered FOR EACH ROW EXECUTE FUNCTION steer();
CREATE TRIGGER steer AFTER INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION steer();
CREATE RULE steer AS ON INSERT TO ruled DO INSTEAD INSERT INTO orders (id, tok) VALUES (NEW.id, NEW.tok);
INSERT INTO parents VALUES (1), (2);
INSERT INTO patrons VALUES (1), (2);
INSERT INTO orders VALUES (1, 'a', 1, -1, 1), (2, 'b', 2, -1, 2);
INSERT INTO twin VALUES (1, 'ta'), (2, 'tb')";

const PARTITIONED: &str = "PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (5);
CREATE TABLE high PARTITION OF orders FOR VALUES FROM (5) TO (500) PARTITION BY RANGE (id);
CREATE TABLE highest PARTITION OF high FOR VALUES FROM (5) TO (500)";

/// Every form: what it is called, the statement with `{t}` where a token goes, and what a guard by
/// column does.
#[rustfmt::skip]
const FORMS: &[(&str, &str, ByColumn)] = &[
    ("INSERT", "INSERT INTO orders (id, v, tok) VALUES (10, 'x', {t})", ByColumn::Fresh),
    ("INSERT, many rows", "INSERT INTO orders (id, tok) VALUES (10, {t}), (11, {t}), (3, {t})", ByColumn::Fresh),
    ("INSERT … SELECT", "INSERT INTO orders (id, v, tok) SELECT id + 20, v, {t} FROM orders", ByColumn::Fresh),
    ("INSERT, no column", "INSERT INTO orders (id) VALUES (10)", ByColumn::Nothing),
    ("INSERT … RETURNING", "INSERT INTO orders (id, tok) VALUES (10, {t}) RETURNING id", ByColumn::Fresh),
    ("WITH … INSERT", "WITH new AS (SELECT 30 AS id) INSERT INTO orders (id, tok) SELECT id, {t} FROM new", ByColumn::Fresh),
    ("INSERT in a WITH", "WITH new AS (INSERT INTO orders (id, tok) VALUES (10, {t}) RETURNING id) SELECT count(*) FROM new", ByColumn::Fresh),
    ("UPDATE in a WITH", "WITH new AS (UPDATE orders SET v = 'z', tok = {t} RETURNING id) INSERT INTO twin SELECT id + 50 FROM new", ByColumn::Fresh),
    ("DELETE in a WITH", "WITH gone AS (DELETE FROM orders RETURNING id) SELECT count(*) FROM gone", ByColumn::Nothing),
    ("UPSERT, no conflict", "INSERT INTO orders (id, tok) VALUES (10, {t}) ON CONFLICT (id) DO UPDATE SET v = 'y'", ByColumn::Fresh),
    ("UPSERT that presents it again", "INSERT INTO orders (id, tok) VALUES (1, {t}) ON CONFLICT (id) DO UPDATE SET v = 'y', tok = {t}", ByColumn::Fresh),
    ("UPSERT with what is used up", "INSERT INTO orders (id, tok) VALUES (1, {t}) ON CONFLICT (id) DO UPDATE SET tok = excluded.tok", ByColumn::Nothing),
    ("UPSERT that does not", "INSERT INTO orders (id, tok) VALUES (1, {t}) ON CONFLICT (id) DO UPDATE SET v = 'y'", ByColumn::Nothing),
    ("UPSERT, DO NOTHING", "INSERT INTO orders (id, tok) VALUES (1, {t}) ON CONFLICT DO NOTHING", ByColumn::Fresh),
    ("UPDATE", "UPDATE orders SET v = 'z', tok = {t} WHERE id = 1", ByColumn::Fresh),
    ("UPDATE all rows", "UPDATE orders SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("UPDATE the column alone", "UPDATE orders SET tok = {t}", ByColumn::Fresh),
    ("UPDATE without the column", "UPDATE orders SET v = 'z'", ByColumn::Nothing),
    ("UPDATE the key", "UPDATE orders SET id = 4, tok = {t} WHERE id = 1", ByColumn::Fresh),
    ("UPDATE … FROM", "UPDATE orders SET v = twin.v, tok = {t} FROM twin WHERE twin.id = orders.id", ByColumn::Fresh),
    ("UPDATE … RETURNING", "UPDATE orders SET v = 'z', tok = {t} RETURNING id", ByColumn::Fresh),
    ("UPDATE … CURRENT OF", "DECLARE c CURSOR FOR SELECT * FROM orders FOR UPDATE; MOVE c; UPDATE orders SET tok = {t} WHERE CURRENT OF c", ByColumn::Fresh),
    ("DELETE", "DELETE FROM orders WHERE id = 1", ByColumn::Nothing),
    ("DELETE all rows", "DELETE FROM orders", ByColumn::Nothing),
    ("DELETE … USING", "DELETE FROM orders USING twin WHERE twin.id = orders.id RETURNING orders.v", ByColumn::Nothing),
    ("TRUNCATE", "TRUNCATE orders", ByColumn::Nothing),
    ("TRUNCATE … CASCADE", "TRUNCATE parents CASCADE", ByColumn::Nothing),
    ("MERGE, INSERT", "MERGE INTO orders o USING (VALUES (10)) AS n (id) ON o.id = n.id WHEN NOT MATCHED THEN INSERT (id, tok) VALUES (n.id, {t})", ByColumn::Fresh),
    ("MERGE, UPDATE", "MERGE INTO orders o USING twin n ON o.id = n.id WHEN MATCHED THEN UPDATE SET v = n.v, tok = {t}", ByColumn::Fresh),
    ("MERGE, DELETE", "MERGE INTO orders o USING twin n ON o.id = n.id WHEN MATCHED THEN DELETE", ByColumn::Nothing),
    ("COPY", "COPY orders (id, tok) FROM PROGRAM 'echo 10,{t}' WITH (FORMAT csv, NULL 'NULL')", ByColumn::Fresh),
    ("prepared", "PREPARE p AS INSERT INTO orders (id, tok) VALUES ($1, $2); EXECUTE p (10, {t})", ByColumn::Fresh),
    ("DO", "DO $$ BEGIN EXECUTE 'UPDATE orders SET tok = {t}'; END $$", ByColumn::Fresh),
    ("foreign key, ON DELETE CASCADE", "DELETE FROM parents WHERE id = 1", ByColumn::Nothing),
    ("foreign key, ON UPDATE CASCADE", "UPDATE parents SET id = 7 WHERE id = 1", ByColumn::Nothing),
    ("foreign key, ON DELETE SET NULL", "DELETE FROM patrons WHERE id = 1", ByColumn::Nothing),
    ("view, INSERT", "INSERT INTO shown (id, v, tok) VALUES (10, 'x', {t})", ByColumn::Fresh),
    ("view, UPDATE", "UPDATE shown SET v = 'z', tok = {t} WHERE id = 1", ByColumn::Fresh),
    ("view, DELETE", "DELETE FROM shown WHERE id = 1", ByColumn::Nothing),
    ("view, INSTEAD OF INSERT", "INSERT INTO steered (id, tok) VALUES (10, {t})", ByColumn::Fresh),
    ("view, INSTEAD OF DELETE", "DELETE FROM steered WHERE id = 1", ByColumn::Nothing),
    ("trigger of another table", "INSERT INTO inbox VALUES (10, {t})", ByColumn::Fresh),
    ("rule of another table", "INSERT INTO ruled VALUES (10, {t})", ByColumn::Fresh),
];

/// Forms that name a partition.
#[rustfmt::skip]
const PARTITION_FORMS: &[(&str, &str, ByColumn)] = &[
    ("partition, INSERT", "INSERT INTO highest (id, tok) VALUES (10, {t})", ByColumn::Fresh),
    ("partition, UPDATE", "UPDATE low SET v = 'z', tok = {t}", ByColumn::Fresh),
    ("partition, DELETE", "DELETE FROM low", ByColumn::Nothing),
    ("partition, TRUNCATE", "TRUNCATE low", ByColumn::Nothing),
    ("partition below one, TRUNCATE", "TRUNCATE highest", ByColumn::Nothing),
    ("row that moves", "UPDATE orders SET id = 10, tok = {t} WHERE id = 1", ByColumn::Nothing),
];

/// A schema of leases whose newest token of `writer` is 2 and of `other` is 5.
fn two_grants(server: &Postgres, schema: &str) -> (Cluster, Lease) {
    let cluster = Cluster::open(&server.url(schema)).unwrap();
    cluster.bootstrap().unwrap();
    let first = cluster.claim("writer", "a", LONG).unwrap().acquired().unwrap();
    let second = cluster.transfer(&first, "b", LONG).unwrap().transferred().unwrap();
    cluster.claim_above("other", "a", LONG, 4).unwrap().acquired().unwrap();
    assert_eq!((first.token, second.token), (1, 2));
    (cluster, second)
}

/// A session with tables of its own, in a schema that is first in its search path.
fn tables(server: &Postgres, own: &str, schema: &str) -> Session {
    let mut session = server.session("postgres");
    session.sql(&format!("CREATE SCHEMA {own}; SET search_path = {own}"));
    session.sql(schema);
    session
}

#[track_caller]
fn is_stale(error: &str) -> bool {
    assert!(error.contains("23000: stale fencing token"), "{error}");
    true
}

#[test]
fn every_form_of_write_is_refused_unless_it_presents_the_newest_token() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let _ = two_grants(&server, "matrix");
    let has_merge = server.sql("SHOW server_version_num").parse::<i64>().unwrap() >= 150_000;
    let mut matrix = String::new();
    for (number, (how, guard, partitioned)) in [
        ("connection", "NULL", false),
        ("column", "'tok'", false),
        ("connection, partitions", "NULL", true),
        ("column, partitions", "'tok'", true),
    ]
    .into_iter()
    .enumerate()
    {
        let schema = SCHEMA.replace("{orders}", if partitioned { PARTITIONED } else { "" });
        let mut session = tables(&server, &format!("matrix{number}"), &schema);
        session.sql(&format!("SELECT matrix.guard('orders', 'writer', {guard})"));
        let more: &[_] = if partitioned { PARTITION_FORMS } else { &[] };
        for (what, sql, by_column) in FORMS.iter().chain(more) {
            if what.starts_with("MERGE") && !has_merge {
                continue;
            }
            write!(matrix, "{what:<33} {how:<22}").unwrap();
            for token in TOKENS {
                session.sql("BEGIN");
                if guard == "NULL"
                    && let Some((present, answer)) = token.presents("matrix")
                {
                    assert_eq!(session.sql(&present), answer);
                }
                let expected = match (guard, by_column) {
                    ("NULL", _) | (_, ByColumn::Fresh) => token == Fresh,
                    (_, ByColumn::Nothing) => false,
                };
                let sql = sql.replace("{t}", token.sql());
                let done = session.run(&sql);
                let passed = done.as_ref().map_or_else(|error| !is_stale(error), |_| true);
                assert_eq!(passed, expected, "{what}, {how}, {token:?}: {done:?}");
                // What was presented in a column is used up, whatever wrote it.
                if passed && guard != "NULL" {
                    assert_eq!(session.sql("SELECT count(*) FROM orders WHERE tok > 0"), "0");
                }
                session.sql("ROLLBACK; DEALLOCATE ALL");
                write!(matrix, " {:<9}", if passed { "passes" } else { "refused" }).unwrap();
            }
            matrix.push('\n');
        }
        // The same statements pass without a guard.
        assert_eq!(session.sql("SELECT matrix.unguard('orders')"), "1");
        session
            .sql("INSERT INTO orders (id) VALUES (10); UPDATE orders SET tok = 7; TRUNCATE orders");
    }
    println!("{matrix}");
}

/// A grant that waited for a guarded transaction once stored a token that it had taken before,
/// below a raise that was answered meanwhile.
#[test]
fn a_grant_behind_a_guarded_transaction_is_above_every_raise_that_was_answered() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, mut lease) = two_grants(&server, "raised_behind");
    let mut session = server.session("postgres");
    let raiser = Cluster::open(&server.url("raised_behind")).unwrap();
    for round in 1..=5 {
        session
            .sql("BEGIN; SELECT FROM raised_behind.resources WHERE name = 'writer' FOR KEY SHARE");
        lease = thread::scope(|scope| {
            let next = scope.spawn(|| cluster.transfer(&lease, "c", LONG));
            eventually("the grant waits", || {
                let sql = "SELECT count(*) FROM pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE \"raised_behind\".resources%'";
                server.sql(sql) == "1"
            });
            raiser.raise(round * 1_000).unwrap();
            session.sql("COMMIT");
            next.join().unwrap().unwrap().transferred().unwrap()
        });
        assert!(lease.token > round * 1_000, "token {} after the raise", lease.token);
    }
}

/// A write passes until its transaction ends, or not at all: a grant waits for it, and a renewal
/// does not.
#[test]
fn a_grant_waits_for_an_open_guarded_transaction_and_a_renewal_does_not() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    for (guard, column, write) in [
        (Guard::by_connection(), "", "INSERT INTO orders VALUES (1)"),
        (Guard::by_column("tok"), "column", "INSERT INTO orders VALUES (1, 2)"),
    ] {
        let schema = format!("waits{column}");
        let (cluster, lease) = two_grants(&server, &schema);
        let table = "CREATE TABLE orders (id int, tok bigint)";
        let mut session = tables(&server, &format!("waiting{column}"), table);
        cluster.guard(&format!("waiting{column}.orders"), "writer", &guard).unwrap();
        let present = format!("SELECT {schema}.present('writer', 2)");
        session.sql(&format!("BEGIN; {present}; {write}"));
        // The holder's own renewals go on.
        let renewed = cluster.renew(&lease, LONG).unwrap();
        assert!(matches!(renewed, litelease_cluster::RenewResult::Renewed(_)), "{renewed:?}");
        thread::scope(|scope| {
            let next = scope.spawn(|| cluster.transfer(&lease, "c", LONG));
            eventually("the grant waits", || {
                let sql = format!(
                    "SELECT count(*) FROM pg_stat_activity
                     WHERE wait_event_type = 'Lock' AND query LIKE '%UPDATE \"{schema}\".resources%'"
                );
                assert!(!next.is_finished(), "a grant was stored next to an open guarded write");
                server.sql(&sql) == "1"
            });
            session.sql("COMMIT");
            let next = next.join().unwrap().unwrap().transferred().unwrap();
            assert_eq!(next.token, 3);
        });
        let refused = session.run(&format!("BEGIN; {present}; {write}")).unwrap_err();
        assert!(is_stale(&refused));
        session.sql("ROLLBACK");

        // The other way round: the write waits for the grant, and is refused once that is there.
        let mut other = server.session("postgres");
        let lease = format!("SELECT {schema}.transfer('writer', 'c', 'd', 60000)");
        assert_eq!(other.sql(&format!("BEGIN; {lease}")), "4");
        let pid = session.pid();
        let write = write.replace('2', "3");
        session.sql(&format!("BEGIN; {}", present.replace('2', "3")));
        session.send(&write);
        let sql = format!("SELECT wait_event_type FROM pg_stat_activity WHERE pid = {pid}");
        eventually("the write waits", || server.sql(&sql) == "Lock");
        other.sql("COMMIT");
        assert!(is_stale(&session.answer().unwrap_err()));
        session.sql("ROLLBACK");
        // A rollback of the grant lets it pass.
        assert_eq!(other.sql(&format!("BEGIN; {}", lease.replace("'c', 'd'", "'d', 'e'"))), "5");
        session.sql(&format!("BEGIN; {}", present.replace('2', "4")));
        session.send(&write.replace('3', "4"));
        eventually("the write waits", || server.sql(&sql) == "Lock");
        other.sql("ROLLBACK");
        session.answer().unwrap();
        session.sql("COMMIT");

        // An old snapshot never passes, whatever it still sees; a renewal since does not disturb
        // it.
        session.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders");
        other.sql(&format!("SELECT {schema}.renew('writer', 'd', 90000)"));
        session.sql(&format!("{}; {}", present.replace('2', "4"), write.replace('3', "4")));
        session.sql("ROLLBACK");
        session.sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM orders");
        other.sql(&format!("SELECT {schema}.break('writer')"));
        session.sql(&present.replace('2', "4"));
        let error = session.run(&write.replace('3', "4")).unwrap_err();
        assert!(error.contains("40001"), "{error}");
        session.sql("ROLLBACK");
    }
}

#[test]
fn a_presentation_lasts_for_its_transaction_and_its_savepoint() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "lasts");
    let mut session = tables(&server, "lasting", "CREATE TABLE orders (id int)");
    cluster.guard("lasting.orders", "writer", &Guard::by_connection()).unwrap();
    let write = "INSERT INTO orders VALUES (1)";
    let refused = |session: &mut Session| {
        session.sql("SAVEPOINT try");
        assert!(is_stale(&session.run(write).unwrap_err()));
        session.sql("ROLLBACK TO try");
    };
    session.sql(&format!("BEGIN; SELECT lasts.present('writer', 2); {write}; COMMIT; BEGIN"));
    refused(&mut session);
    session.sql("SAVEPOINT s; SELECT lasts.present('writer', 2); ROLLBACK TO s");
    refused(&mut session);
    session.sql(&format!("SAVEPOINT s; SELECT lasts.present('writer', 2); RELEASE s; {write}"));
    assert_eq!(session.sql("SELECT lasts.presented('writer')"), "2");
    session.sql("SELECT lasts.withdraw('writer')");
    refused(&mut session);
    // A token that was granted in this transaction passes in it.
    assert_eq!(session.sql("SELECT lasts.transfer('writer', 'b', 'c', 60000)"), "3");
    session.sql(&format!("SELECT lasts.present('writer', 3); {write}; COMMIT"));
    // Another schema has leases of the same name, and its tokens count for nothing here.
    let (_, _) = two_grants(&server, "LASTS2");
    session.sql("BEGIN; SELECT \"LASTS2\".present('writer', 3)");
    refused(&mut session);
    session.sql("ROLLBACK");
    // One statement is a transaction, so what it presents ends with it.
    session.sql("SELECT lasts.present('writer', 3)");
    assert!(is_stale(&session.run(write).unwrap_err()));
}

#[test]
fn a_strict_guard_is_closed_by_a_release_and_several_names_must_all_pass() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, lease) = two_grants(&server, "strict");
    let mut session = tables(&server, "stricter", "CREATE TABLE orders (id int, tok bigint)");
    cluster.guard("stricter.orders", "writer", &Guard::by_connection().strict()).unwrap();
    cluster.guard("stricter.orders", "other", &Guard::by_column("tok")).unwrap();
    for (presented, tok, passes) in [(2, 5, true), (1, 5, false), (2, 4, false), (2, 2, false)] {
        let write = format!("INSERT INTO orders VALUES (1, {tok})");
        session.sql(&format!("BEGIN; SELECT strict.present('writer', {presented})"));
        let done = session.run(&write);
        assert_eq!(done.is_ok(), passes, "{presented} {tok}: {done:?}");
        session.sql("ROLLBACK");
    }
    let _ = cluster.release(&lease).unwrap();
    session.sql("BEGIN; SELECT strict.present('writer', 2)");
    let error = session.run("INSERT INTO orders VALUES (1, 5)").unwrap_err();
    assert!(is_stale(&error) && error.contains("or its lease is over"), "{error}");
    session.sql("ROLLBACK");
    // A name that was never claimed closes the table until its first grant.
    assert_eq!(cluster.unguard("stricter.orders", None).unwrap(), 2);
    cluster.guard("stricter.orders", "it's \"later\"; \\ --", &Guard::by_connection()).unwrap();
    assert!(is_stale(&session.run("INSERT INTO orders VALUES (1, 5)").unwrap_err()));
    let name = "'it''s \"later\"; \\ --'";
    session
        .sql(&format!("BEGIN; SELECT strict.claim({name}, 'a', 1000), strict.present({name}, 1)"));
    session.sql("INSERT INTO orders VALUES (1, 5); COMMIT");
    assert!(cluster.guards().unwrap().iter().all(|guard| guard.is_intact));
}

/// What a session has in front of its search path must not be asked: neither tables nor functions
/// nor operators.
#[test]
fn a_hostile_search_path_and_temporary_tables_open_nothing() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "hostile");
    let mut session = tables(
        &server,
        "evil",
        "CREATE TABLE orders (id int, tok bigint); CREATE TABLE more (id int)",
    );
    session.sql(
        "CREATE TABLE resources AS SELECT * FROM hostile.resources; UPDATE resources SET token = 1;
         CREATE FUNCTION current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT '{\"hostile.writer\": 2}' $$;
         CREATE FUNCTION yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
         CREATE FUNCTION yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
         CREATE OPERATOR = (FUNCTION = yes, LEFTARG = text, RIGHTARG = text);
         CREATE OPERATOR = (FUNCTION = yes, LEFTARG = bigint, RIGHTARG = bigint);
         CREATE OPERATOR > (FUNCTION = yes, LEFTARG = bigint, RIGHTARG = bigint);
         SET search_path = pg_temp, evil, hostile, pg_catalog;
         CREATE TEMP TABLE resources AS SELECT * FROM evil.resources;
         CREATE TEMP TABLE guarded AS SELECT * FROM hostile.guarded",
    );
    session.sql(
        "SELECT hostile.guard('evil.orders', 'writer', 'tok'), hostile.guard('more', 'writer')",
    );
    assert!(cluster.guards().unwrap().iter().all(|guard| guard.is_intact));
    for (token, passes) in [(1, false), (3, false), (2, true)] {
        session.sql(&format!("BEGIN; SELECT hostile.present('writer', {token})"));
        for write in [
            format!("INSERT INTO evil.orders VALUES (1, {token})"),
            "INSERT INTO more VALUES (1)".into(),
        ] {
            session.sql("SAVEPOINT s");
            let done = session.run(&write);
            assert_eq!(done.is_ok(), passes, "{write}: {done:?}");
            session.sql(if passes { "RELEASE s" } else { "ROLLBACK TO s" });
        }
        session.sql("COMMIT");
    }
    assert!(is_stale(&session.run("INSERT INTO more VALUES (1)").unwrap_err()));
    assert_eq!(
        session.sql("SELECT hostile.claim('writer', 'x', 1000) OPERATOR(pg_catalog.=) 1"),
        ""
    );
    assert_eq!(
        session.sql("SELECT hostile.unguard('more'), hostile.unguard('evil.orders')"),
        "1|1"
    );
}

/// Writers need no right on the leases: by column none at all, by connection the use of the schema.
#[test]
fn roles_without_rights_are_refused_or_pass_as_everybody_else() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "roles");
    let mut owner = tables(
        &server,
        "public_tables",
        "CREATE TABLE orders (id int, tok bigint); CREATE TABLE more (id int)",
    );
    owner.sql(
        "CREATE ROLE outsider LOGIN; GRANT USAGE ON SCHEMA public_tables TO outsider;
         GRANT ALL ON orders, more TO outsider",
    );
    cluster.guard("public_tables.orders", "writer", &Guard::by_column("tok")).unwrap();
    cluster.guard("public_tables.more", "writer", &Guard::by_connection()).unwrap();
    let mut session = server.session("outsider");
    session.sql("INSERT INTO public_tables.orders VALUES (1, 2)");
    for write in [
        "INSERT INTO public_tables.orders VALUES (1, 1)",
        "INSERT INTO public_tables.more VALUES (1)",
    ] {
        assert!(is_stale(&session.run(write).unwrap_err()));
    }
    let error = session.run("SELECT roles.present('writer', 2)").unwrap_err();
    assert!(error.contains("permission denied for schema roles"), "{error}");
    owner.sql("GRANT USAGE ON SCHEMA roles TO outsider");
    session.sql("BEGIN; SELECT roles.present('writer', 2); INSERT INTO public_tables.more VALUES (1); COMMIT");
    session.sql("BEGIN; SELECT roles.present('writer', 1)");
    assert!(is_stale(&session.run("INSERT INTO public_tables.more VALUES (1)").unwrap_err()));
    session.sql("ROLLBACK");
    // The right to present is not the right to claim, to read leases or to take guards off.
    for sql in [
        "SELECT roles.claim('x', 'a', 1)",
        "SELECT * FROM roles.resources",
        "SELECT roles.unguard('public_tables.more')",
        "ALTER TABLE public_tables.more DISABLE TRIGGER ALL",
        "SET session_replication_role = replica",
    ] {
        let error = session.run(sql).unwrap_err();
        assert!(error.contains("42501"), "{sql}: {error}");
    }
}

/// A guard whose triggers do not fire is named, and `present` fails instead of leaving the door
/// open.
#[test]
fn triggers_fire_in_replica_mode_and_guards_that_are_gone_are_named() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "gone");
    let mut session = tables(&server, "going", "CREATE TABLE orders (id int, tok bigint)");
    for (column, trigger) in [("NULL", 1), ("'tok'", 12)] {
        session.sql(&format!("SELECT gone.guard('orders', 'writer', {column})"));
        session.sql("SET session_replication_role = replica");
        for write in
            ["INSERT INTO orders VALUES (1, 1)", "UPDATE orders SET id = 2", "TRUNCATE orders"]
        {
            // An UPDATE of no row is nothing to a trigger for each row.
            if column == "NULL" || !write.starts_with("UPDATE") {
                assert!(is_stale(&session.run(write).unwrap_err()));
            }
        }
        session.sql("RESET session_replication_role");
        let is_intact = || cluster.guards().unwrap().iter().all(|guard| guard.is_intact);
        let number = session.sql("SELECT max(number) FROM gone.guarded");
        assert!(number.parse::<i64>().unwrap() >= trigger.min(2) - 1);
        let guard = format!("litelease_guard_{number}");
        for (harm, is_noticed) in [
            (format!("DROP TRIGGER {guard} ON orders"), true),
            (format!("ALTER TABLE orders DISABLE TRIGGER {guard}"), true),
            (
                "ALTER TABLE orders DISABLE TRIGGER ALL; ALTER TABLE orders ENABLE TRIGGER ALL"
                    .into(),
                true,
            ),
            (format!("ALTER TABLE orders ENABLE REPLICA TRIGGER {guard}"), true),
            (
                "ALTER TABLE orders RENAME TO old; CREATE TABLE orders (LIKE old); DROP TABLE old"
                    .into(),
                true,
            ),
            (format!("ALTER TABLE orders DROP CONSTRAINT {guard}"), false),
            (format!("DROP TRIGGER {guard}_truncate ON orders"), false),
            (
                "ALTER TABLE orders RENAME tok TO token; ALTER TABLE orders ADD tok bigint".into(),
                false,
            ),
        ] {
            let number = session.sql("SELECT max(number) FROM gone.guarded");
            let harm = harm.replace(&guard, &format!("litelease_guard_{number}"));
            if column == "NULL" && !is_noticed {
                continue;
            }
            assert!(is_intact(), "before {harm}");
            session.sql(&harm);
            assert!(!is_intact(), "{harm}");
            let warnings = cluster.facts().unwrap().warnings;
            let named = |warning: &String| {
                warning.contains("going.orders") && warning.contains("guard it again")
            };
            assert!(warnings.iter().any(named), "{harm}: {warnings:?}");
            let present = session.run("SELECT gone.present('writer', 2)");
            assert_eq!(present.is_err(), is_noticed, "{harm}: {present:?}");
            if let Err(error) = present {
                assert!(
                    error.contains("GuardMissing") && error.contains("going.orders"),
                    "{error}"
                );
            }
            session.sql(&format!("SELECT gone.guard('orders', 'writer', {column})"));
            assert!(is_intact(), "after {harm}");
            assert!(is_stale(&session.run("INSERT INTO orders VALUES (1, 1)").unwrap_err()));
        }
        // A table that moves takes its guard along.
        session.sql("ALTER TABLE orders RENAME TO moved");
        assert!(is_intact());
        assert_eq!(cluster.guards().unwrap()[0].table, "going.moved");
        assert!(is_stale(&session.run("INSERT INTO moved VALUES (1, 1)").unwrap_err()));
        // One that is dropped is missed until it is unguarded.
        session.sql("DROP TABLE moved");
        assert!(!is_intact());
        let table = cluster.guards().unwrap()[0].table.clone();
        assert_eq!(cluster.unguard(&table, None).unwrap(), 1);
        session.sql("CREATE TABLE orders (id int, tok bigint)");
    }
}

#[test]
fn partitions_that_come_later_are_guarded_and_truncate_of_them_is_named() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "parts");
    let mut session = tables(
        &server,
        "parting",
        "CREATE TABLE orders (id int, tok bigint) PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (5)",
    );
    cluster.guard("parting.orders", "writer", &Guard::by_connection()).unwrap();
    session.sql("CREATE TABLE high (id int, tok bigint); ALTER TABLE orders ATTACH PARTITION high FOR VALUES FROM (5) TO (9)");
    for write in [
        "INSERT INTO high VALUES (6)",
        "INSERT INTO orders VALUES (6)",
        "TRUNCATE orders",
        "TRUNCATE low",
    ] {
        session.sql("SET session_replication_role = replica");
        assert!(is_stale(&session.run(write).unwrap_err()));
        session.sql("RESET session_replication_role");
    }
    assert!(!cluster.guards().unwrap()[0].is_intact, "TRUNCATE of the new partition is open");
    cluster.guard("parting.orders", "writer", &Guard::by_connection()).unwrap();
    assert!(cluster.guards().unwrap()[0].is_intact);
    assert!(is_stale(&session.run("TRUNCATE high").unwrap_err()));
    // A table that was guarded alone and becomes a partition is written to under another name.
    session.sql("CREATE TABLE alone (id int, tok bigint); CREATE TABLE all_orders (id int, tok bigint) PARTITION BY RANGE (id)");
    cluster.guard("parting.alone", "writer", &Guard::by_connection()).unwrap();
    session.sql("ALTER TABLE all_orders ATTACH PARTITION alone DEFAULT");
    assert!(cluster.guards().unwrap().iter().any(|guard| !guard.is_intact));
    cluster.guard("parting.alone", "writer", &Guard::by_connection()).unwrap();
    assert!(cluster.guards().unwrap().iter().all(|guard| guard.is_intact));
    assert!(is_stale(&session.run("INSERT INTO all_orders VALUES (6)").unwrap_err()));
    assert_eq!(cluster.unguard("parting.orders", None).unwrap(), 1);
    session.sql("INSERT INTO orders VALUES (6); TRUNCATE high, low");
    let left = "SELECT count(*) FROM pg_trigger t WHERE tgrelid IN ('orders'::regclass, 'low'::regclass, 'high'::regclass)";
    assert_eq!(session.sql(left), "0");
}

#[test]
fn what_cannot_be_guarded_is_refused_with_the_reason() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "cannot");
    let mut session = tables(
        &server,
        "odd",
        "CREATE TABLE t (id int, tok bigint, small int, made bigint GENERATED ALWAYS AS (tok) STORED, one bigint UNIQUE,
           two bigint, PRIMARY KEY (id));
         CREATE UNIQUE INDEX ON t ((two + 1));
         CREATE VIEW v AS SELECT * FROM t; CREATE MATERIALIZED VIEW m AS SELECT * FROM t;
         CREATE TABLE child () INHERITS (t); CREATE TABLE used (tok bigint); INSERT INTO used VALUES (7);
         CREATE TABLE \"x\"\"; DROP TABLE t; --\" (\"a\"\"b\" bigint); CREATE TABLE plain (tok bigint, two bigint)",
    );
    let column = |column: &str| Guard::by_column(column);
    for (table, guard, reason) in [
        ("odd.none", Guard::by_connection(), "no such table"),
        ("odd.v", Guard::by_connection(), "it is a view"),
        ("odd.m", Guard::by_connection(), "no ordinary table"),
        ("odd.t", Guard::by_connection(), "inherits"),
        ("odd.child", Guard::by_connection(), "inherits"),
        ("cannot.resources", Guard::by_connection(), "belongs to"),
        ("pg_class", Guard::by_connection(), "belongs to"),
        ("odd.used", column("tok"), "SET tok = -tok"),
        ("odd.plain", column("none"), "does not exist"),
    ] {
        let error = cluster.guard(table, "writer", &guard).unwrap_err();
        assert!(
            matches!(&error, Error::CannotGuard { reason: why, .. } if why.contains(reason)),
            "{table}: {error}"
        );
    }
    session.sql("DROP TABLE child");
    for (name, reason) in [
        ("small", "declare it bigint"),
        ("made", "generated"),
        ("one", "unique"),
        ("two", "unique"),
        ("TOK", "does not exist"),
    ] {
        let error = cluster.guard("odd.t", "writer", &column(name)).unwrap_err().to_string();
        assert!(error.contains(reason), "{name}: {error}");
    }
    // The same again is no change; another way, or another name in the same column, is refused.
    cluster.guard("odd.plain", "writer", &column("tok")).unwrap();
    cluster.guard("odd.plain", "writer", &column("tok")).unwrap();
    for (name, guard, reason) in [
        ("writer", Guard::by_connection(), "in another way"),
        ("writer", column("tok").strict(), "in another way"),
        ("other", column("tok"), "already presents"),
    ] {
        let error = cluster.guard("odd.plain", name, &guard).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(cluster.guards().unwrap().len(), 1);
    // Any name that SQL can quote will do.
    let odd = "odd.\"x\"\"; DROP TABLE t; --\"";
    cluster.guard(odd, "writer", &column("a\"b")).unwrap();
    assert!(cluster.guards().unwrap().iter().all(|guard| guard.is_intact));
    session.sql(&format!("INSERT INTO {odd} VALUES (2)"));
    assert!(is_stale(&session.run(&format!("INSERT INTO {odd} VALUES (1)")).unwrap_err()));
    assert_eq!(cluster.unguard(odd, Some("other")).unwrap(), 0);
    assert_eq!(cluster.unguard(odd, Some("writer")).unwrap(), 1);
    session.sql(&format!("SELECT 1 FROM t; INSERT INTO {odd} VALUES (1)"));

    let error = Cluster::on(MemoryEngine::new()).guards().unwrap_err().to_string();
    assert!(error.contains("guarded tables need SQLite or PostgreSQL; use a Gate"), "{error}");
}

/// A writer that presents nothing must not pass because the server fills a token in.
#[test]
fn a_column_whose_default_could_be_a_token_cannot_be_guarded() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "defaults");
    let mut session = tables(&server, "defaulting", "CREATE SEQUENCE numbers");
    for (default, is_harmless) in [
        ("DEFAULT 2", false),
        ("DEFAULT 7::bigint", false),
        ("DEFAULT '2'", false),
        ("DEFAULT -(-2)", false),
        ("DEFAULT nextval('numbers')", false),
        ("GENERATED BY DEFAULT AS IDENTITY", false),
        ("GENERATED ALWAYS AS IDENTITY", false),
        ("NOT NULL DEFAULT 0", true),
        ("DEFAULT 0::bigint", true),
        ("DEFAULT -1", true),
        ("DEFAULT (-1)::bigint", true),
        ("DEFAULT '-7'", true),
        ("DEFAULT NULL", true),
    ] {
        session.sql(&format!("CREATE TABLE orders (id int, tok bigint {default})"));
        let guarded = cluster.guard("defaulting.orders", "writer", &Guard::by_column("tok"));
        let why = "has a default, which would present a token";
        match guarded {
            Ok(()) => {
                assert!(is_harmless, "{default}");
                let write = "INSERT INTO orders (id) VALUES (1)";
                assert!(is_stale(&session.run(write).unwrap_err()), "{default}");
                session.sql("INSERT INTO orders (id, tok) VALUES (1, 2)");
            }
            Err(error) => assert!(!is_harmless && error.to_string().contains(why), "{error}"),
        }
        session.sql("SELECT defaults.unguard('orders'); DROP TABLE orders");
    }
    // A partition has defaults of its own.
    session.sql(
        "CREATE TABLE orders (id int, tok bigint) PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (5);
         ALTER TABLE low ALTER tok SET DEFAULT 2",
    );
    let error = cluster.guard("defaulting.orders", "writer", &Guard::by_column("tok")).unwrap_err();
    assert!(error.to_string().contains("drop the default"), "{error}");
}

/// Triggers and a CHECK stayed on a partition that was detached, and `unguard` failed because of
/// them.
#[test]
fn a_partition_that_was_detached_keeps_nothing_of_a_guard_that_is_taken_off() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "detach");
    for (guard, own) in
        [(Guard::by_connection(), "detaching"), (Guard::by_column("tok"), "detaching_column")]
    {
        let mut session = tables(
            &server,
            own,
            "CREATE TABLE orders (id int, tok bigint) PARTITION BY RANGE (id);
             CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (5);
             CREATE TABLE high PARTITION OF orders FOR VALUES FROM (5) TO (9)",
        );
        let table = format!("{own}.orders");
        cluster.guard(&table, "writer", &guard).unwrap();
        session.sql("ALTER TABLE orders DETACH PARTITION low");
        assert!(cluster.guards().unwrap().iter().all(|guard| guard.is_intact));
        assert!(is_stale(&session.run("INSERT INTO orders VALUES (6, 1)").unwrap_err()));
        assert_eq!(cluster.unguard(&table, None).unwrap(), 1, "{guard:?}");
        session.sql("INSERT INTO low VALUES (1, 7); INSERT INTO orders VALUES (6, 7)");
        session.sql("TRUNCATE low; TRUNCATE high");
    }
    // A trigger that was renamed is found by what it calls.
    let mut session = tables(&server, "renaming", "CREATE TABLE orders (id int, tok bigint)");
    cluster.guard("renaming.orders", "writer", &Guard::by_column("tok")).unwrap();
    let number = session.sql("SELECT max(number) FROM detach.guarded");
    session.sql(&format!("ALTER TRIGGER litelease_guard_{number} ON orders RENAME TO mine"));
    assert_eq!(cluster.unguard("renaming.orders", None).unwrap(), 1);
    session.sql("INSERT INTO orders VALUES (1, 7)");
}

/// Guards of two schemas of leases have numbers of their own, which are the same.
#[test]
fn leases_in_two_schemas_may_guard_one_table() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (first, _) = two_grants(&server, "guards_a");
    let (second, _) = two_grants(&server, "guards_b");
    let mut session = tables(&server, "twofold", "CREATE TABLE orders (id int, tok bigint)");
    first.guard("twofold.orders", "writer", &Guard::by_connection()).unwrap();
    second.guard("twofold.orders", "writer", &Guard::by_column("tok")).unwrap();
    session.sql("BEGIN; SELECT guards_a.present('writer', 2)");
    session.sql("INSERT INTO orders VALUES (1, 2); COMMIT");
    assert!(is_stale(&session.run("INSERT INTO orders VALUES (1, 2)").unwrap_err()));
    assert_eq!(second.unguard("twofold.orders", None).unwrap(), 1);
    assert!(first.guards().unwrap()[0].is_intact);
    assert!(is_stale(&session.run("INSERT INTO orders VALUES (1, 7)").unwrap_err()));
    assert_eq!(first.unguard("twofold.orders", None).unwrap(), 1);
    session.sql("INSERT INTO orders VALUES (1, 7)");
}

/// Settings that change how SQL is read and written change nothing about guards.
#[test]
fn a_guard_is_the_same_in_a_session_with_other_settings_and_in_a_schema_with_quotes() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "settings");
    let mut session = tables(&server, "\"My \"\"own\"", "CREATE TABLE t (id int, tok bigint)");
    let table = "\"My \"\"own\".t";
    cluster.guard(table, "writer", &Guard::by_column("tok")).unwrap();
    for setting in ["standard_conforming_strings = off", "quote_all_identifiers = on"] {
        session.sql(&format!("SET {setting}"));
        let state = "SELECT state, (SELECT max(number) FROM settings.guarded) FROM settings.guards";
        assert_eq!(session.sql(state), "intact|1", "{setting}");
        session.sql("SELECT settings.guard('t', 'writer', 'tok')");
        assert_eq!(session.sql(state), "intact|1", "{setting}: it was not guarded anew");
        session.sql("INSERT INTO t VALUES (1, 2)");
        assert!(is_stale(&session.run("INSERT INTO t VALUES (1, 1)").unwrap_err()));
        session.sql("RESET standard_conforming_strings; RESET quote_all_identifiers");
    }
    // A column that was renamed closes the table until it is guarded again, by its new name.
    session.sql("ALTER TABLE t RENAME tok TO token");
    let error = session.run("INSERT INTO t VALUES (1, 2)").unwrap_err();
    assert!(error.contains("42703"), "{error}");
    cluster.guard(table, "writer", &Guard::by_column("token")).unwrap();
    session.sql("INSERT INTO t VALUES (1, 2)");
    assert!(is_stale(&session.run("INSERT INTO t VALUES (1, 1)").unwrap_err()));
    let guards = cluster.guards().unwrap();
    assert!(guards.len() == 1 && guards[0].is_intact && guards[0].table == table, "{guards:?}");
    // One that is gone keeps its name.
    session.sql("DROP TABLE t");
    assert_eq!(cluster.guards().unwrap()[0].table, table);
    assert_eq!(cluster.unguard(table, None).unwrap(), 1);
}

#[test]
fn guards_come_back_with_a_dump() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    let (cluster, _) = two_grants(&server, "litelease");
    let mut session = tables(
        &server,
        "kept",
        "CREATE TABLE orders (id int, tok bigint); CREATE TABLE by_column (id int, tok bigint);
         CREATE TABLE parts (id int, tok bigint) PARTITION BY RANGE (id);
         CREATE TABLE low PARTITION OF parts FOR VALUES FROM (0) TO (5);
         CREATE TABLE parts_by_column (id int, tok bigint) PARTITION BY RANGE (id);
         CREATE TABLE low_by_column PARTITION OF parts_by_column FOR VALUES FROM (0) TO (5)",
    );
    for (table, column) in [
        ("orders", "NULL"),
        ("by_column", "'tok'"),
        ("parts", "NULL"),
        ("parts_by_column", "'tok'"),
    ] {
        session.sql(&format!("SELECT litelease.guard('{table}', 'writer', {column})"));
    }
    server.dump_and_restore(&["litelease", "kept"]);
    let guards = cluster.guards().unwrap();
    assert!(guards.len() == 4 && guards.iter().all(|guard| guard.is_intact), "{guards:?}");
    for table in ["orders", "by_column", "parts", "low", "parts_by_column", "low_by_column"] {
        session.sql("SET session_replication_role = replica");
        for write in ["INSERT INTO {t} VALUES (1, 1)", "TRUNCATE {t}"] {
            assert!(is_stale(&session.run(&write.replace("{t}", table)).unwrap_err()), "{table}");
        }
        session.sql("RESET session_replication_role; BEGIN; SELECT litelease.present('writer', 2)");
        session.sql(&format!("INSERT INTO {table} VALUES (1, 2); COMMIT"));
    }
}

/// Triggers of the user's that put a used-up token back are caught by the CHECK.
#[test]
fn a_token_that_another_trigger_puts_back_is_refused() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    let (cluster, _) = two_grants(&server, "back");
    let mut session = tables(
        &server,
        "backing",
        "CREATE TABLE orders (id int, tok bigint);
         CREATE FUNCTION put_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.tok := abs(NEW.tok); RETURN NEW; END $$;
         CREATE TRIGGER z BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION put_back()",
    );
    cluster.guard("backing.orders", "writer", &Guard::by_column("tok")).unwrap();
    let error = session.run("INSERT INTO orders VALUES (1, 2)").unwrap_err();
    assert!(error.contains("litelease_guard_"), "{error}");
    assert_eq!(session.sql("SELECT count(*) FROM orders"), "0");
}

/// With a transaction pooler, each transaction may be on another connection of the server.
#[test]
fn a_transaction_pooler_may_be_in_between() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    let Some(pooler) = Pooler::start(&server) else { return };
    let (direct, _) = two_grants(&server, "litelease");
    server.sql("CREATE TABLE orders (id int)");
    let cluster = Cluster::open(&pooler.url()).unwrap();
    cluster.bootstrap().unwrap();
    cluster.guard("orders", "writer", &Guard::by_connection()).unwrap();
    assert!(direct.guards().unwrap()[0].is_intact);
    let mut sessions = [pooler.session(), pooler.session(), pooler.session()];
    for _ in 0..5 {
        for session in &mut sessions {
            session.sql("BEGIN; SELECT litelease.present('writer', 2); INSERT INTO orders VALUES (1); COMMIT");
            assert!(is_stale(&session.run("INSERT INTO orders VALUES (2)").unwrap_err()));
        }
    }
    // The token that one client has presented is not there for the next one on the same connection.
    let [a, b, _] = &mut sessions;
    a.sql("BEGIN; SELECT litelease.present('writer', 2)");
    b.sql("BEGIN");
    assert!(is_stale(&b.run("INSERT INTO orders VALUES (2)").unwrap_err()));
    b.sql("ROLLBACK");
    a.sql("INSERT INTO orders VALUES (1); COMMIT");
    assert_eq!(server.sql("SELECT count(*) FROM orders WHERE id = 2"), "0");
    // The verbs of the engine work through it, too.
    let lease = cluster.claim("x", "a", LONG).unwrap().acquired().unwrap();
    assert!(cluster.renew(&lease, LONG).is_ok() && cluster.release(&lease).is_ok());
}

/// Runs the SQL of docs/cluster.md: statements, each with its answer under it.
#[test]
fn the_sql_of_the_documents_runs() {
    if !is_installed() {
        return;
    }
    let server = Postgres::start();
    Cluster::open(&server.url("litelease")).unwrap().bootstrap().unwrap();
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks =
        page.split("```sql postgres\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    let mut session = server.session("postgres");
    let mut at = 0;
    while at < lines.len() {
        let answers = lines[at + 1..].iter().map_while(|line| line.strip_prefix("-- "));
        let expected: Vec<&str> = answers.collect();
        let said = match session.run(lines[at].trim_end_matches(';')) {
            Ok(text) => text,
            Err(text) => {
                let first = text.lines().next().unwrap_or_default();
                first.replace("ERROR:  23000: ", "error: ")
            }
        };
        assert_eq!(said, expected.join("\n"), "{}", lines[at]);
        at += 1 + expected.len();
    }
    assert!(at > 40, "only {at} lines were found");
}

#[test]
fn the_command_guards_tables_in_postgres_and_refuses_on_etcd() {
    if !is_installed() {
        return;
    }
    let server = Postgres::shared();
    server.sql("CREATE SCHEMA shell; CREATE TABLE shell.orders (id int, lease_token bigint)");
    let desk = Desk::new();
    let ask = |url: &str, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        outcome(&ended(desk.command(&words).env("LITELEASE_DB", url)))
    };
    let url = server.url("commanded");
    for (words, code, out) in [
        (
            "guard add shell.orders order-writer --column lease_token",
            0,
            "shell.orders is guarded by order-writer\n",
        ),
        (
            "guard add shell.orders order-writer --column lease_token",
            0,
            "shell.orders is guarded by order-writer\n",
        ),
        ("claim order-writer --owner a", 0, "1\n"),
        ("guard list", 0, "shell.orders  order-writer  column lease_token  no      intact\n"),
        ("guard list --json", 0, "\"state\":\"intact\""),
    ] {
        let (ended, told, error) = ask(&url, words);
        assert!((ended, told.contains(out)) == (code, true), "{words}: {ended} {told} {error}");
    }
    server.sql("INSERT INTO shell.orders VALUES (1, 1)");
    assert!(server.query("INSERT INTO shell.orders VALUES (1, 2)").is_none());
    server.sql("ALTER TABLE shell.orders DISABLE TRIGGER ALL");
    let (code, told, _) = ask(&url, "guard list");
    assert!(code == 1 && told.contains("missing"), "{code} {told}");
    let (_, told, error) = ask(&url, "doctor");
    assert!(told.contains("shell.orders was guarded by \"order-writer\""), "{told} {error}");
    let (code, told, _) = ask(&url, "guard remove shell.orders");
    assert_eq!((code, told.as_str()), (0, "shell.orders: 1 removed\n"));
    let (code, ..) = ask(&url, "guard remove shell.orders");
    assert_eq!(code, 1);
    let (code, _, error) = ask(&url, "guard add shell.none order-writer");
    assert!(code == 69 && error.contains("the table \"shell.none\" cannot be guarded"), "{error}");
    for words in ["guard add orders order-writer", "guard remove orders", "guard list"] {
        let (code, _, error) = ask("etcd://127.0.0.1:1", words);
        let reason = "guarded tables need SQLite or PostgreSQL; use a Gate";
        assert!(code == 69 && error.contains(reason), "{words}: {code} {error}");
    }
}
