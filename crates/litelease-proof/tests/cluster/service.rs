//! The service on several machines: one server writes, others pass connections on, and any may end.

use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use litelease_cluster::engine::Stored;
use litelease_cluster::{BreakResult, Cluster, MemoryEngine, TransferResult};
use litelease_proof::careless::Bug;
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::http_player::HttpPlayer;
use litelease_proof::play::{Tally, play};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::proxy::Proxy;
use litelease_proof::rig::{eventually, litelease, report};
use litelease_proof::scenario::{self, Scenario};
use litelease_proof::server::{Client, Server};
use litelease_proof::tls::{Certificate, tunnel};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A real engine, for a URL of its own per test.
pub(crate) enum Engine {
    Etcd(Arc<Etcd>),
    Postgres(Arc<Postgres>),
}

impl Engine {
    pub(crate) fn all() -> Vec<(&'static str, Engine)> {
        let etcd = etcd::is_installed().then(|| ("etcd", Engine::Etcd(Etcd::shared())));
        let postgres =
            postgres::is_installed().then(|| ("PostgreSQL", Engine::Postgres(Postgres::shared())));
        etcd.into_iter().chain(postgres).collect()
    }

    fn any() -> Option<Engine> {
        Engine::all().into_iter().map(|(_, engine)| engine).next()
    }

    pub(crate) fn url(&self, name: &str) -> String {
        match self {
            Engine::Etcd(etcd) => etcd.url(name),
            Engine::Postgres(postgres) => postgres.url(name),
        }
    }
}

/// All of them on the engine in memory, and those about pools on the others, where each takes
/// longer.
#[test]
fn a_server_on_an_engine_plays_the_scenarios() {
    let mut number = 0;
    let mut next = |engine: &Engine| {
        number += 1;
        Cluster::open(&engine.url(&format!("served{number}"))).unwrap()
    };
    // The players share a clock, so they play one after the other.
    check("memory", "", 500, || Cluster::on(MemoryEngine::new()));
    let only = if std::env::var_os("LITELEASE_STRESS_SECONDS").is_some() { "" } else { "pool" };
    for (name, engine) in Engine::all() {
        check(name, only, 100, || next(&engine));
        check(name, "tick", 100, || next(&engine));
    }
}

/// Plays the files whose names begin with `only`, and expects more than `least` steps.
fn check(engine: &str, only: &str, least: usize, mut new_cluster: impl FnMut() -> Cluster) {
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    let is_meant = |scenario: &Scenario| {
        scenario.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(only))
    };
    for scenario in scenario::all().unwrap().into_iter().filter(is_meant) {
        let mut player = HttpPlayer::on(new_cluster());
        failures.extend(play(&scenario, &mut player, &mut tally).err());
    }
    report(&format!("HTTP on {engine}: {tally}"));
    assert!(failures.is_empty(), "{engine}:\n{}", failures.join("\n"));
    assert!(tally.played > least, "only {} steps were played on {engine}", tally.played);
}

/// Servers on one engine.
pub(crate) struct Servers {
    url: String,
    pub(crate) servers: Vec<Option<Server>>,
    pub(crate) addresses: Vec<SocketAddr>,
    cluster: Cluster,
    folder: TempDir,
    flags: Vec<&'static str>,
    bug: Option<Bug>,
}

impl Servers {
    pub(crate) fn start(url: &str, count: usize, flags: &[&'static str]) -> Self {
        Servers::start_with(url, count, flags, None)
    }

    /// Starts servers with a planted bug.
    pub(crate) fn start_with(
        url: &str,
        count: usize,
        flags: &[&'static str],
        bug: Option<Bug>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(url).unwrap();
        let mut servers = Servers {
            url: url.into(),
            servers: Vec::new(),
            addresses: Vec::new(),
            cluster,
            folder,
            flags: flags.to_vec(),
            bug,
        };
        for at in 0..count {
            let server = servers.spawn(at, "127.0.0.1:0");
            servers.addresses.push(server.address);
            servers.servers.push(Some(server));
        }
        servers.wait_for_writer();
        servers
    }

    fn place(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("s{at}"))
    }

    fn spawn(&self, at: usize, listen: &str) -> Server {
        let Some(bug) = self.bug else {
            return Server::on(listen, &self.url, &self.place(at), &self.flags);
        };
        let mut command = Command::new(env!("CARGO_BIN_EXE_worker"));
        command.args(["serve", &self.url, listen, &format!("{bug:?}")]);
        Server::run(command, &self.place(at))
    }

    /// Starts a server again that has ended, at the address of before.
    pub(crate) fn restart(&mut self, at: usize) {
        let listen = self.addresses[at].to_string();
        self.servers[at] = Some(self.spawn(at, &listen));
    }

    /// Returns the number of the server that has the lease, if it is one that runs.
    pub(crate) fn writer(&self) -> Option<usize> {
        let lease = self.cluster.inspect("serve").ok()??;
        let mut words = lease.owner.split(' ');
        let address: SocketAddr = words.next()?.parse().ok()?;
        let pid: u32 = words.next()?.parse().ok()?;
        let at = self.addresses.iter().position(|known| *known == address)?;
        self.servers[at].as_ref().filter(|server| server.pid() == pid).map(|_| at)
    }

    pub(crate) fn wait_for_writer(&self) -> usize {
        eventually("a server writes", || self.writer())
    }

    /// Waits until every server leads to the writer.
    pub(crate) fn wait_for_all(&self) {
        for address in &self.addresses {
            eventually("a server is ready", || {
                let ready = Client::new(*address).ask("GET", "/readyz", &Value::Null, "");
                ready.is_ok_and(|ready| ready.status == 200)
            });
        }
    }

    pub(crate) fn pid(&self, at: usize) -> i32 {
        i32::try_from(self.servers[at].as_ref().unwrap().pid()).unwrap()
    }

    pub(crate) fn client(&self, at: usize) -> Client {
        Client::new(self.addresses[at])
    }
}

impl Drop for Servers {
    /// Shows how the logs end, if the test fails.
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        for (at, address) in self.addresses.iter().enumerate() {
            let log = fs::read_to_string(self.place(at).with_extension("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines.len().saturating_sub(20);
            report(&format!("the log of {address} ends with:\n{}", lines[last..].join("\n")));
        }
    }
}

#[test]
fn who_waits_first_is_served_first_on_whichever_server() {
    let Some(engine) = Engine::any() else { return };
    let servers = Servers::start(&engine.url("fifo"), 3, &["--open", "--open-metrics"]);
    servers.wait_for_all();
    let mut client = servers.client(0);
    client.register(1);
    let borrow = json!({ "ttl": 60, "wait": 60 });
    let held = client.call("POST", "/borrow", &borrow).json();
    let (served, mut waiting) = (Arc::new(Mutex::new(Vec::new())), Vec::new());
    for number in [0_usize, 1, 2, 1, 0] {
        let (mut waiter, served) = (servers.client(number), Arc::clone(&served));
        let (borrow, place) = (borrow.clone(), waiting.len());
        waiting.push(thread::spawn(move || {
            let lent = waiter.call("POST", "/borrow", &borrow).json();
            served.lock().unwrap().push(place);
            let returned = waiter.call("POST", "/return", &json!({ "lease": lent["lease"] }));
            assert_eq!(returned.status, 200, "{returned:?}");
        }));
        let expected = format!("waiters {}\n", waiting.len());
        eventually("it waits", || {
            let metrics = client.ask("GET", "/metrics", &Value::Null, "").unwrap();
            metrics.body.contains(&expected)
        });
    }
    client.call("POST", "/return", &json!({ "lease": held["lease"] }));
    waiting.into_iter().for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3, 4]);
}

#[test]
fn a_server_that_knows_no_writer_answers_503_and_says_when_to_ask_again() {
    let Some(engine) = Engine::any() else { return };
    // Building the command may take longer than the lease lasts.
    litelease();
    let url = engine.url("unknown");
    let cluster = Cluster::open(&url).unwrap().of_service();
    cluster.bootstrap().unwrap();
    // The lease is of a server that is not there.
    let ttl = Duration::from_secs(60);
    let lease = cluster.claim("serve", "127.0.0.1:1 1 x", ttl).unwrap().acquired().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--open", "--log", "off"];
    let [one, other] = ["one", "other"]
        .map(|name| Server::on("127.0.0.1:0", &url, &folder.path().join(name), &flags));
    // A server that has just learned of another writer cuts the connections of before.
    let is_refused = |server: &Server| {
        let mut answer = None;
        eventually("it is answered", || {
            answer = Client::new(server.address).try_call("GET", "", &Value::Null, "").ok();
            answer.is_some()
        });
        let answer = answer.unwrap();
        let is_told = answer.head.to_lowercase().contains("retry-after: 1\r\n");
        assert!(answer.status == 503 && is_told, "{answer:?}");
        assert!(answer.error().contains("no server writes"), "{answer:?}");
    };
    is_refused(&one);
    // The lease names a server that does not write: what is passed on to it stays there.
    let named = format!("{} 1 x", one.address);
    assert!(matches!(cluster.transfer(&lease, &named, ttl), Ok(TransferResult::Transferred(_))));
    eventually("it is followed", || {
        let health = Client::new(other.address).ask("GET", "/healthz", &Value::Null, "");
        health.is_ok_and(|health| health.status == 200)
    });
    is_refused(&other);
    is_refused(&one);
    // A release is noticed at once, and one of both takes over.
    assert!(matches!(cluster.break_lease("serve"), Ok(BreakResult::Broken { .. })));
    for server in [&one, &other] {
        eventually("it is served", || {
            let answer = Client::new(server.address).try_call("GET", "", &Value::Null, "");
            answer.is_ok_and(|answer| answer.status == 404)
        });
    }
}

#[test]
fn a_connection_with_tls_is_passed_on_to_a_server_with_the_same_certificate() {
    let Some(engine) = Engine::any() else { return };
    let url = engine.url("tls");
    let folder = tempfile::tempdir().unwrap();
    let certificate = Certificate::new(&folder.path().join("tls"), "localhost");
    let [cert, key] = [&certificate.cert, &certificate.key].map(|path| path.display().to_string());
    let flags = ["--tls-cert", &cert, "--tls-key", &key, "--open"];
    let servers = ["one", "other"]
        .map(|name| Server::on("127.0.0.1:0", &url, &folder.path().join(name), &flags));
    let tunnels = servers.each_ref().map(|server| tunnel(server.address, &certificate));
    for address in tunnels {
        eventually("it is ready", || {
            let ready = Client::new(address).ask("GET", "/readyz", &Value::Null, "");
            ready.is_ok_and(|ready| ready.status == 200)
        });
    }
    Client::new(tunnels[0]).register(2);
    let tokens = tunnels.map(|address| {
        let lent = Client::new(address).call("POST", "/borrow", &json!({ "ttl": 60 }));
        assert_eq!(lent.status, 200, "{lent:?}");
        lent.json()["token"].as_i64().unwrap()
    });
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

#[test]
fn access_keys_are_made_on_the_engine_and_count_on_every_server() {
    let Some(engine) = Engine::any() else { return };
    let url = engine.url("access");
    let servers = Servers::start(&url, 2, &[]);
    let access = |words: &[&str]| {
        let mut command = Command::new(litelease());
        let output = command.arg("access").args(words).args(["--db", &url]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, key) = access(&["add", "ci", "--allow", "claim:*"]);
    assert_eq!(code, Some(0), "{key}");
    let claim = |at: usize, key: &str, name: &str| {
        let body = json!({ "name": name, "owner": "a", "ttl": 30 });
        let mut client = servers.client(at).bearing(key);
        client.ask("POST", "/v1/claim", &body, "").map_or(0, |answer| answer.status)
    };
    for at in [0, 1] {
        eventually("the key counts", || claim(at, key.trim(), &format!("n{at}")) == 200);
        // Each server has a key for its own user, too.
        let local = servers.servers[at].as_ref().unwrap().client();
        let listed = { local }.ask("GET", "/v1/leases?prefix=", &Value::Null, "").unwrap();
        assert_eq!(listed.status, 200, "{listed:?}");
        assert_eq!(claim(at, "litelease-wrong", "n"), 401);
    }
    let (_, listed) = access(&["list"]);
    assert!(listed.contains("ci") && listed.contains("local 127.0.0.1:"), "{listed}");
    assert_eq!(access(&["remove", "ci"]).0, Some(0));
    for at in [0, 1] {
        eventually("the key is refused", || claim(at, key.trim(), "n") == 401);
    }
}

/// A program that changes the keys may be stopped for long after it has begun, and killed right
/// after it is done.
#[test]
fn an_access_key_that_is_removed_slowly_is_refused_all_the_same() {
    let Some(engine) = Engine::any() else { return };
    let url = engine.url("slow_access");
    let servers = Servers::start(&url, 1, &[]);
    let mut client = servers.servers[0].as_ref().unwrap().client();
    let mut listed = move || {
        let listed = client.ask("GET", "/v1/leases?prefix=", &Value::Null, "");
        listed.map_or(0, |listed| listed.status)
    };
    eventually("the key counts", || listed() == 200);
    let engine = servers.cluster.engine();
    let keys = engine.load_rows(b"a").unwrap();
    let [(key, _)] = &keys[..] else { panic!("{keys:?}") };
    let of_service = servers.cluster.of_service();
    let lease = of_service.claim("serve/access", "x", Duration::from_secs(60)).unwrap();
    let lease = lease.acquired().unwrap();
    // The writer looks twice a second.
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(listed(), 200);
    let removed = engine.commit_rows("serve/access", lease.token, &[(key.clone(), None)]);
    assert!(matches!(removed, Ok(Stored::Done { .. })), "{removed:?}");
    eventually("the key is refused", || listed() == 401);
}

#[test]
fn a_writer_whose_engine_does_not_answer_says_503_and_rests() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = Etcd::start(1);
    let servers = Servers::start(&etcd.url("frozen"), 1, &["--open", "--writer-ttl", "1s"]);
    servers.wait_for_all();
    etcd.signal(0, libc::SIGSTOP);
    // The thread that renews the lease waits for the engine for much longer than the lease lasts.
    let (mut refused, mut cut_off) = (0, 0);
    eventually("it knows no writer", || {
        match servers.client(0).try_call("GET", "", &Value::Null, "") {
            Ok(answer) => refused += i32::from(answer.status == 503),
            Err(_) => cut_off += 1,
        }
        refused == 50
    });
    // Those are cut off that come while it stops to write.
    assert!(cut_off < 5, "{cut_off} were cut off");
    let log = fs::read_to_string(&servers.servers[0].as_ref().unwrap().log).unwrap();
    let lines = log.lines().filter(|line| !line.contains("\"request\"")).count();
    assert!(lines < 20, "{lines} lines: {log}");
    etcd.signal(0, libc::SIGCONT);
    servers.wait_for_all();
}

#[test]
fn a_client_that_never_hangs_up_keeps_no_place_on_a_replica() {
    let Some(engine) = Engine::any() else { return };
    let flags = ["--open", "--max-connections", "8"];
    let servers = Servers::start(&engine.url("hang_up"), 2, &flags);
    servers.wait_for_all();
    let replica = 1 - servers.wait_for_writer();
    let silent: Vec<_> = (0..8)
        .map(|_| {
            let mut client = servers.client(replica).with_patience(Duration::from_secs(10));
            let closing = "Connection: close\r\n";
            let text = format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\n{closing}\r\n");
            client.write(text.as_bytes()).unwrap();
            let mut stream = client.into_stream().unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            stream
        })
        .collect();
    let ready = servers.client(replica).ask("GET", "/readyz", &Value::Null, "");
    assert_eq!(ready.unwrap().status, 200);
    drop(silent);
}

/// A request to an engine has less than a second. Whatever the service has stored, the next writer
/// must be able to load it.
#[test]
fn rows_are_loaded_over_a_slow_line_however_many_bytes_they_have() {
    for (name, engine) in Engine::all() {
        let (url, address) = match &engine {
            Engine::Etcd(etcd) => (etcd.url("slow"), etcd.address(0)),
            Engine::Postgres(postgres) => {
                (postgres.url("slow"), postgres.address().parse().unwrap())
            }
        };
        let cluster = Cluster::open(&url).unwrap();
        cluster.bootstrap().unwrap();
        let lease = cluster.claim("n", "a", Duration::from_secs(60)).unwrap().acquired().unwrap();
        let key = |number: u8| vec![b'r', number];
        for number in 0..30 {
            let row = (key(number), Some(vec![number; 1_000_000]));
            let stored = cluster.engine().commit_rows("n", lease.token, &[row]).unwrap();
            assert!(matches!(stored, Stored::Done { .. }));
        }
        let proxy = Proxy::slow(address, Duration::from_millis(3));
        let slow = url.replace(&address.to_string(), &proxy.address().to_string());
        let rows = Cluster::open(&slow).unwrap().engine().load_rows(b"").unwrap();
        assert!(rows.iter().map(|(key, _)| key.clone()).eq((0..30).map(key)), "{name}");
        assert!(rows.iter().all(|(key, value)| *value == vec![key[1]; 1_000_000]), "{name}");
        let some = cluster.engine().load_rows(&key(7)).unwrap();
        assert_eq!(some.len(), 1, "{name}");
        let gone: Vec<_> = (0..30).map(|number| (key(number), None)).collect();
        let gone = cluster.engine().commit_rows("n", lease.token, &gone).unwrap();
        assert!(matches!(gone, Stored::Done { .. }));
    }
}

#[test]
fn what_other_servers_cannot_reach_is_refused_with_what_to_say() {
    let refused = |words: &[&str]| {
        let mut command = Command::new(litelease());
        let output = command.args(["serve", "--db", "etcd://127.0.0.1:1"]).args(words).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let everywhere = ["--listen", "0.0.0.0:0", "--insecure"];
    assert!(refused(&everywhere).contains("add --advertise HOST:PORT"));
    for wrong in ["host", ":1", "a b:1", "host:0", "http://host:1"] {
        let said = refused(&[&everywhere[..], &["--advertise", wrong]].concat());
        assert!(said.contains("write HOST:PORT"), "{said}");
    }
    let said = refused(&["--listen", "127.0.0.1:0", "--restore-fence"]);
    assert!(said.contains("litelease restore-fence --db"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:0", "--writer-ttl", "61s"]);
    assert!(said.contains("from 1s to 60s"), "{said}");
}
