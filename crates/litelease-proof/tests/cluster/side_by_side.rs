//! Programs that claim names on an engine, beside a service there: a name has one row, and so one
//! owner, however it is asked for.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::{
    BreakResult, ClaimResult, Cluster, Error, ReleaseResult, RenewResult, TransferResult,
};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{LONG, eventually, report};
use litelease_proof::server::{Client, Response};
use serde_json::{Value, json};

use crate::service::{Engine, Servers};

/// A service on an engine, and a program beside it.
struct Sides {
    engine: &'static str,
    servers: Servers,
    client: Client,
    program: Cluster,
    /// It ends after its clients.
    found: Engine,
}

/// Starts a service on each engine, under this name.
fn on_each(name: &str) -> Vec<Sides> {
    let start = |(engine, found): (&'static str, Engine)| {
        let url = found.url(name);
        let servers = Servers::start(&url, 1, &["--open", "--open-metrics"]);
        servers.wait_for_all();
        let (client, program) = (servers.client(0), Cluster::open(&url).unwrap());
        Sides { engine, servers, client, program, found }
    };
    Engine::all().into_iter().map(start).collect()
}

impl Sides {
    fn ask(&mut self, path: &str, body: &Value) -> Response {
        self.client.ask("POST", path, body, "").unwrap()
    }

    fn claim(&mut self, name: &str, ttl: f64, wait: f64) -> Response {
        self.ask("/v1/claim", &json!({ "name": name, "owner": "http", "ttl": ttl, "wait": wait }))
    }

    /// Claims a name through the service. Returns its token and its secret.
    #[track_caller]
    fn granted(&mut self, name: &str, ttl: f64, wait: f64) -> (i64, String) {
        let granted = self.claim(name, ttl, wait);
        assert_eq!(granted.status, 200, "{}: {granted:?}", self.engine);
        let granted = granted.json();
        (granted["token"].as_i64().unwrap(), granted["grant"].as_str().unwrap().into())
    }

    #[track_caller]
    fn is_busy(&mut self, name: &str, owner: &str, token: i64) {
        let busy = self.claim(name, 60.0, 0.0);
        assert_eq!(busy.status, 409, "{}: {busy:?}", self.engine);
        let current = &busy.json()["current"];
        assert_eq!((&current["owner"], &current["token"]), (&json!(owner), &json!(token)));
    }

    fn release(&mut self, grant: &str) -> Response {
        self.ask("/v1/release", &json!({ "grant": grant }))
    }

    fn owner(&mut self, name: &str) -> Value {
        let name = self.client.ask("GET", &format!("/v1/leases?name={name}"), &Value::Null, "");
        name.unwrap().json()["owner"].clone()
    }
}

#[track_caller]
fn acquired(claimed: litelease_cluster::Result<ClaimResult>) -> litelease_cluster::Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

#[test]
fn a_name_has_one_owner_however_it_is_asked_for() {
    for mut sides in on_each("one_owner") {
        let engine = sides.engine;
        let (token, grant) = sides.granted("pay", 60.0, 0.0);
        assert_eq!(token, 1);
        match sides.program.claim("pay", "program", LONG).unwrap() {
            ClaimResult::Busy(current) => assert_eq!((&*current.owner, current.token), ("http", 1)),
            other => panic!("{engine}: {other:?}"),
        }
        // Each sees what the other does, and tokens go on.
        assert_eq!(sides.release(&grant).status, 200);
        let lease = acquired(sides.program.claim("pay", "program", LONG));
        assert_eq!(lease.token, 2, "{engine}");
        sides.is_busy("pay", "program", 2);
        assert_eq!(sides.owner("pay"), json!("program"));
        let renewed = sides.ask("/v1/renew", &json!({ "grant": grant, "ttl": 60 }));
        assert_eq!((renewed.status, &renewed.json()["reason"]), (409, &json!("superseded")));
        assert!(matches!(sides.program.renew(&lease, LONG), Ok(RenewResult::Renewed(_))));
        assert!(matches!(sides.program.release(&lease), Ok(ReleaseResult::Released { .. })));
        assert_eq!(sides.owner("pay"), Value::Null);
        let (token, grant) = sides.granted("pay", 60.0, 0.0);
        assert_eq!(token, 3, "{engine}");

        // A break and a transfer by the other side end a grant.
        assert!(matches!(sides.program.break_lease("pay"), Ok(BreakResult::Broken { .. })));
        let renewed = sides.ask("/v1/renew", &json!({ "grant": grant, "ttl": 60 }));
        assert_eq!((renewed.status, &renewed.json()["by"]), (409, &json!(4)), "{renewed:?}");
        let lease = acquired(sides.program.claim("pay", "program", LONG));
        let broken = sides.ask("/v1/break", &json!({ "name": "pay" }));
        assert_eq!(broken.json()["owner"], json!("program"), "{engine}: {broken:?}");
        assert!(matches!(sides.program.renew(&lease, LONG), Ok(RenewResult::Rejected { .. })));
        let (token, grant) = sides.granted("pay", 60.0, 0.0);
        assert_eq!(token, 7, "{engine}");
        let to = json!({ "grant": grant, "new_owner": "program", "ttl": 60 });
        assert_eq!(sides.ask("/v1/transfer", &to).status, 200);
        let lease = sides.program.inspect("pay").unwrap().unwrap();
        assert_eq!((&*lease.owner, lease.token), ("program", 8), "{engine}");
        match sides.program.transfer(&lease, "other", LONG) {
            Ok(TransferResult::Transferred(handed)) => assert_eq!(handed.token, 9),
            other => panic!("{engine}: {other:?}"),
        }
        sides.is_busy("pay", "other", 9);
        // Its new owner fetches it at the service, once.
        let other = json!({ "name": "pay", "owner": "other", "ttl": 60 });
        let fetched = sides.ask("/v1/claim", &other);
        assert_eq!((fetched.status, &fetched.json()["token"]), (200, &json!(9)), "{fetched:?}");
        let renewal = json!({ "grant": fetched.json()["grant"], "ttl": 60 });
        assert_eq!(sides.ask("/v1/renew", &renewal).status, 200, "{engine}");
        assert_eq!(sides.ask("/v1/claim", &other).status, 409, "{engine}");
        let listed = sides.client.ask("GET", "/v1/leases?prefix=", &Value::Null, "").unwrap();
        assert_eq!(listed.json()["leases"][0]["token"], json!(9), "{engine}: {listed:?}");
    }
}

/// What a program has claimed is not given to a client that calls itself by the same owner text.
#[test]
fn a_lease_that_a_program_hands_over_goes_to_the_client_that_waits_and_a_takeover_does_not() {
    for mut sides in on_each("hands_over") {
        let engine = sides.engine;
        let lease = acquired(sides.program.claim("x", "program", LONG));
        let mut waiter = sides.servers.client(0);
        let waits = thread::spawn(move || {
            let claim = json!({ "name": "x", "owner": "http", "ttl": 60, "wait": 60 });
            waiter.ask("POST", "/v1/claim", &claim, "").unwrap()
        });
        eventually("it waits", || {
            let metrics = sides.client.ask("GET", "/metrics", &Value::Null, "").unwrap();
            metrics.body.contains("waiters 1\n")
        });
        let handed = sides.program.transfer(&lease, "http", LONG).unwrap();
        assert!(matches!(handed, TransferResult::Transferred(_)), "{engine}: {handed:?}");
        let granted = waits.join().unwrap();
        assert_eq!((granted.status, &granted.json()["token"]), (200, &json!(2)), "{granted:?}");

        let short = Duration::from_millis(100);
        let _ = acquired(sides.program.claim("y", "before", short));
        let other = sides.program.clone();
        let claimed = other.claim_wait("y", "http", LONG, Duration::from_secs(30)).unwrap();
        assert_eq!(acquired(Ok(claimed)).token, 2, "{engine}");
        sides.is_busy("y", "http", 2);
    }
}

#[test]
fn each_side_wakes_those_who_wait_at_the_other() {
    for mut sides in on_each("wakes") {
        let engine = sides.engine;
        for round in 0..3 {
            let lease = acquired(sides.program.claim("x", "program", LONG));
            let mut waiter = sides.servers.client(0);
            let waits = thread::spawn(move || {
                let claim = json!({ "name": "x", "owner": "http", "ttl": 60, "wait": 60 });
                waiter.ask("POST", "/v1/claim", &claim, "").unwrap()
            });
            eventually("it waits", || {
                let metrics = sides.client.ask("GET", "/metrics", &Value::Null, "").unwrap();
                metrics.body.contains("waiters 1\n")
            });
            let released = Instant::now();
            assert!(matches!(sides.program.release(&lease), Ok(ReleaseResult::Released { .. })));
            let granted = waits.join().unwrap();
            assert_eq!(granted.status, 200, "{engine}: {granted:?}");
            assert!(released.elapsed() < Duration::from_secs(5), "{engine}: round {round}");
            let grant = granted.json()["grant"].as_str().unwrap().to_owned();

            let program = sides.program.clone();
            let waits = thread::spawn(move || {
                program.claim_wait("x", "program", LONG, Duration::from_secs(60))
            });
            thread::sleep(Duration::from_millis(200));
            let released = Instant::now();
            assert_eq!(sides.release(&grant).status, 200);
            let lease = waits.join().unwrap().unwrap().acquired().expect("it was released");
            assert!(released.elapsed() < Duration::from_secs(5), "{engine}: round {round}");
            assert!(matches!(sides.program.release(&lease), Ok(ReleaseResult::Released { .. })));
        }
    }
}

#[test]
fn a_lease_that_is_not_renewed_goes_to_the_other_side_and_not_before_its_end() {
    for mut sides in on_each("ends") {
        let engine = sides.engine;
        let ttl = Duration::from_millis(1_500);
        let asked = Instant::now();
        let _ = acquired(sides.program.claim("x", "program", ttl));
        let (token, _) = sides.granted("x", 1.5, 30.0);
        assert!(token == 2 && asked.elapsed() >= ttl, "{engine}: after {:?}", asked.elapsed());
        let asked = Instant::now();
        let left = Duration::from_secs(30);
        let claimed = sides.program.claim_wait("x", "program", LONG, left).unwrap();
        // The service was answered a little before that.
        let (token, waited) = (acquired(Ok(claimed)).token, asked.elapsed());
        assert!(token == 3 && waited > ttl - Duration::from_millis(500), "{engine}: {waited:?}");
        // One that is renewed does not.
        let lease = acquired(sides.program.claim("y", "program", ttl));
        sides.is_busy("y", "program", 1);
        for _ in 0..6 {
            thread::sleep(ttl / 3);
            assert!(matches!(sides.program.renew(&lease, ttl), Ok(RenewResult::Renewed(_))));
        }
        sides.is_busy("y", "program", 1);
    }
}

#[test]
fn a_purge_and_a_raise_work_while_a_server_runs_and_no_token_comes_back() {
    for mut sides in on_each("floors") {
        let engine = sides.engine;
        for (round, floor) in [(0, 1_000), (1, 2 << 32)] {
            let (before, grant) = sides.granted("x", 60.0, 0.0);
            let _ = sides.granted(&format!("other {round}"), 60.0, 0.0);
            assert_eq!(sides.release(&grant).status, 200);
            eventually("it is purged", || sides.program.purge(i64::MAX).unwrap() == 1);
            assert_eq!(sides.program.token("x").unwrap(), None);
            let (token, grant) = sides.granted("x", 60.0, 0.0);
            assert!(token > before, "{engine}: {token} after {before}");
            assert_eq!(sides.release(&grant).status, 200);
            sides.program.raise(floor).unwrap();
            let (token, grant) = sides.granted("x", 60.0, 0.0);
            assert_eq!(token, floor + 1, "{engine}");
            assert_eq!(sides.release(&grant).status, 200);
            assert_eq!(acquired(sides.program.claim("x", "program", LONG)).token, floor + 2);
            assert!(matches!(sides.program.break_lease("x"), Ok(BreakResult::Broken { .. })));
        }
        // That ends the lease of the writer, too.
        let floor = sides.program.restore_fence().unwrap();
        let granted = eventually("it is served again", || {
            let claim = json!({ "name": "x", "owner": "http", "ttl": 60 });
            let granted = sides.client.ask("POST", "/v1/claim", &claim, "").ok();
            granted.filter(|granted| granted.status == 200)
        });
        assert_eq!(granted.json()["token"], json!(floor + 1), "{engine}");
        assert_eq!(acquired(sides.program.claim("new", "program", LONG)).token, floor + 1);
    }
}

#[test]
fn the_names_of_the_service_are_refused_to_all_others() {
    for mut sides in on_each("reserved") {
        for name in ["serve", "serve/access", "serve/x"] {
            let refused = sides.claim(name, 60.0, 0.0);
            assert!(refused.status == 400 && refused.error().contains("belong to the service"));
            let asked = json!({ "name": name, "requester": "r", "within": 60 });
            assert_eq!(sides.ask("/v1/request", &asked).status, 400);
            let refused = sides.program.claim(name, "program", LONG);
            assert!(matches!(refused, Err(Error::InvalidName { .. })), "{refused:?}");
            // Its writer is shown to a client that asks for it by name, and stays in no list.
            let path = format!("/v1/leases?name={name}");
            let shown = sides.client.ask("GET", &path, &Value::Null, "").unwrap();
            assert_eq!(shown.json()["owner"] != Value::Null, name == "serve", "{shown:?}");
            let listed = sides.client.ask("GET", "/v1/leases?prefix=&all=true", &Value::Null, "");
            assert_eq!(listed.unwrap().json()["leases"], json!([]));
            let owner = sides.program.owner(name).unwrap().unwrap_or_default();
            let refused = sides.program.release_by_owner(name, &owner);
            assert!(matches!(refused, Err(Error::InvalidName { .. })), "{refused:?}");
        }
        if let Engine::Postgres(server) = &sides.found {
            let refused =
                server.session("postgres").run("SELECT reserved.claim('serve', 'x', 60000)");
            assert!(refused.unwrap_err().contains("belongs to the service"));
        }
        let _ = sides.granted("server", 60.0, 0.0);
        // An operator may end the lease of its writer.
        assert!(matches!(sides.program.break_lease("serve"), Ok(BreakResult::Broken { .. })));
        eventually("it is served again", || {
            let busy = sides.client.ask(
                "POST",
                "/v1/claim",
                &json!({
                    "name": "server", "owner": "x", "ttl": 60
                }),
                "",
            );
            busy.is_ok_and(|busy| busy.status == 409)
        });
    }
}

/// A grant of a guarded name waits for the transactions that have presented the token before. It
/// must not keep the clients of other names waiting.
#[test]
fn a_guarded_transaction_stops_the_clients_of_its_own_name_alone() {
    if !postgres::is_installed() {
        return;
    }
    let server = Postgres::shared();
    let Some(mut sides) = on_each("guarded_beside").into_iter().find(|it| it.engine != "etcd")
    else {
        return;
    };
    let lease = acquired(sides.program.claim("pay", "program", LONG));
    let schema = "guarded_beside";
    let mut session = server.session("postgres");
    session.sql(&format!(
        "BEGIN; SELECT FROM \"{schema}\".resources WHERE name = 'pay' FOR KEY SHARE"
    ));
    let (_, other) = sides.granted("other", 60.0, 0.0);
    // A renewal does not wait either, and a break does.
    assert!(matches!(sides.program.renew(&lease, LONG), Ok(RenewResult::Renewed(_))));
    let mut breaker = sides.servers.client(0);
    let breaks = thread::spawn(move || {
        breaker.ask("POST", "/v1/break", &json!({ "name": "pay" }), "").unwrap()
    });
    for _ in 0..50 {
        let asked = Instant::now();
        let renewed = sides.ask("/v1/renew", &json!({ "grant": other, "ttl": 60 }));
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert!(asked.elapsed() < Duration::from_millis(400), "{:?}", asked.elapsed());
    }
    assert!(!breaks.is_finished());
    session.sql("COMMIT");
    assert_eq!(breaks.join().unwrap().status, 200);
    assert_eq!(sides.program.token("pay").unwrap(), Some(2));
    // Nor must the clients of a name wait that a transaction has claimed, and not committed.
    session.sql(&format!("BEGIN; SELECT \"{schema}\".claim('new', 'sql', 60000)"));
    let mut claimer = sides.servers.client(0);
    let claims = thread::spawn(move || {
        let claim = json!({ "name": "new", "owner": "http", "ttl": 60, "wait": 20 });
        claimer.ask("POST", "/v1/claim", &claim, "").unwrap()
    });
    // One that does not wait is told in the end that nothing was done.
    let mut client = sides.servers.client(0).with_patience(Duration::from_secs(30));
    let tries = thread::spawn(move || {
        client.ask("POST", "/v1/claim", &json!({ "name": "new", "owner": "http", "ttl": 60 }), "")
    });
    for _ in 0..50 {
        let asked = Instant::now();
        let renewed = sides.ask("/v1/renew", &json!({ "grant": other, "ttl": 60 }));
        assert_eq!(renewed.status, 200, "{renewed:?}");
        assert!(asked.elapsed() < Duration::from_millis(400), "{:?}", asked.elapsed());
    }
    let refused = tries.join().unwrap().unwrap();
    assert!(refused.status == 503 && refused.error().contains("nothing was done"), "{refused:?}");
    assert!(!claims.is_finished());
    session.sql("ROLLBACK");
    assert_eq!(claims.join().unwrap().status, 200);
}

/// The grants of a few names that clients of the service and programs compete for.
#[derive(Default)]
struct Grants(Mutex<BTreeMap<(usize, i64), (Instant, Instant)>>);

/// How long a lease of the competition is, and for how long its holder trusts it.
const SHORT: Duration = Duration::from_secs(2);
const TRUSTED: Duration = Duration::from_millis(1_800);

impl Grants {
    /// Takes note of a grant that was asked for at a moment. No other one may be trusted now.
    fn add(&self, name: usize, token: i64, asked: Instant) {
        let (mut grants, now) = (self.0.lock().unwrap(), Instant::now());
        let trusted = grants.iter().find(|((of, _), (_, until))| *of == name && *until > now);
        let trusted = trusted.filter(|_| asked + TRUSTED > now).map(|((_, other), _)| *other);
        assert_eq!(trusted, None, "n{name}: two believe in it, one under token {token}");
        let before = grants.insert((name, token), (now, asked + TRUSTED));
        assert!(before.is_none(), "n{name}: token {token} was granted twice");
        let newer = grants.iter().find(|((of, newer), (answered, _))| {
            *of == name && *newer > token && *answered < asked
        });
        assert_eq!(newer, None, "n{name}: token {token} came after a larger one");
    }

    /// Its holder gives it up.
    fn end(&self, name: usize, token: i64) {
        if let Some((_, until)) = self.0.lock().unwrap().get_mut(&(name, token)) {
            *until = Instant::now();
        }
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Clients of two servers and programs beside them compete for names, while the server that writes
/// is killed, stopped and terminated. Nothing is believed in twice, and tokens grow.
#[test]
fn servers_die_and_stop_while_programs_and_clients_compete() {
    for (engine, found) in Engine::all() {
        let url = found.url("compete");
        let mut servers = Servers::start(&url, 2, &["--open", "--writer-ttl", "1s"]);
        servers.wait_for_all();
        let (grants, end) = (Grants::default(), Instant::now() + Duration::from_secs(12));
        let (by_service, by_program) = (Mutex::new(0), Mutex::new(0));
        // A busy machine gets more time until both have been granted enough.
        let is_over = |now: Instant| {
            let is_enough =
                [&by_service, &by_program].iter().all(|count| *count.lock().unwrap() > 10);
            now > end && (is_enough || now > end + Duration::from_secs(45))
        };
        thread::scope(|scope| {
            for number in 0..4_usize {
                let (grants, by_service, is_over) = (&grants, &by_service, &is_over);
                let mut client = servers.client(number % 2).with_patience(Duration::from_secs(5));
                scope.spawn(move || {
                    for round in 0.. {
                        let (name, asked) = ((number + round) % 3, Instant::now());
                        if is_over(asked) {
                            break;
                        }
                        let claim = json!({ "name": format!("n{name}"), "owner": "http", "ttl": 2, "wait": 1 });
                        let Ok(granted) = client.ask("POST", "/v1/claim", &claim, "") else {
                            client.hang_up();
                            thread::sleep(Duration::from_millis(50));
                            continue;
                        };
                        if granted.status != 200 {
                            continue;
                        }
                        let granted = granted.json();
                        let token = granted["token"].as_i64().unwrap();
                        grants.add(name, token, asked);
                        *by_service.lock().unwrap() += 1;
                        thread::sleep(Duration::from_millis(5));
                        grants.end(name, token);
                        // Some are left to end by themselves.
                        if round % 5 != 0 {
                            let release = json!({ "grant": granted["grant"] });
                            let _ = client.ask("POST", "/v1/release", &release, "");
                        }
                    }
                });
            }
            for number in 0..2_usize {
                let (grants, by_program, is_over) = (&grants, &by_program, &is_over);
                let program = Cluster::open(&url).unwrap();
                scope.spawn(move || {
                    for round in 0.. {
                        let (name, asked) = ((number + round) % 3, Instant::now());
                        if is_over(asked) {
                            break;
                        }
                        let owner = format!("program {number}");
                        let name_text = format!("n{name}");
                        let Ok(ClaimResult::Acquired(lease)) =
                            program.claim(&name_text, &owner, SHORT)
                        else {
                            thread::sleep(Duration::from_millis(3));
                            continue;
                        };
                        grants.add(name, lease.token, asked);
                        *by_program.lock().unwrap() += 1;
                        thread::sleep(Duration::from_millis(5));
                        grants.end(name, lease.token);
                        if round % 5 != 0 {
                            let _ = program.release(&lease);
                        }
                    }
                });
            }
            for round in 0..3 {
                thread::sleep(Duration::from_millis(2_500));
                let Some(writer) = servers.writer() else { continue };
                if round == 1 {
                    // It wakes up as one that was replaced.
                    let pid = servers.pid(writer);
                    send_signal(pid, "STOP");
                    thread::sleep(Duration::from_millis(2_500));
                    send_signal(pid, "CONT");
                } else {
                    servers.servers[writer].take().unwrap().kill();
                    servers.restart(writer);
                }
            }
        });
        let (by_service, by_program) =
            (by_service.into_inner().unwrap(), by_program.into_inner().unwrap());
        report(&format!("{engine}: {by_service} grants by the service, {by_program} to programs"));
        assert!(by_service > 10 && by_program > 10 && grants.count() == by_service + by_program);
    }
}

/// Sends a signal to a server of this test.
fn send_signal(pid: i32, signal: &str) {
    let sent = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(sent.is_ok_and(|sent| sent.success()));
}
