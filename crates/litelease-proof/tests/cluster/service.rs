//! The service on several machines: one server writes, others pass connections on, and any may end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::{BreakResult, Cluster, MemoryEngine, TransferResult};
use litelease_proof::command::kill;
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::http_player::HttpPlayer;
use litelease_proof::play::{Tally, play};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{Dice, eventually, litelease, tell};
use litelease_proof::scenario::{self, Scenario};
use litelease_proof::server::{Client, Server};
use litelease_proof::tls::{Certificate, tunnel};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stress;

/// A real engine, for a URL of its own per test.
enum Engine {
    Etcd(Arc<Etcd>),
    Postgres(Arc<Postgres>),
}

impl Engine {
    fn all() -> Vec<(&'static str, Engine)> {
        let etcd = etcd::is_installed().then(|| ("etcd", Engine::Etcd(Etcd::shared())));
        let postgres =
            postgres::is_installed().then(|| ("PostgreSQL", Engine::Postgres(Postgres::shared())));
        etcd.into_iter().chain(postgres).collect()
    }

    fn any() -> Option<Engine> {
        Engine::all().into_iter().map(|(_, engine)| engine).next()
    }

    fn url(&self, name: &str) -> String {
        match self {
            Engine::Etcd(etcd) => etcd.url(name),
            Engine::Postgres(postgres) => postgres.url(name),
        }
    }
}

/// All of them on the engine in memory, and those about pools on the others, where each takes longer.
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
    tell(&format!("HTTP on {engine}: {tally}"));
    assert!(failures.is_empty(), "{engine}:\n{}", failures.join("\n"));
    assert!(tally.played > least, "only {} steps were played on {engine}", tally.played);
}

/// Servers on one engine.
struct Servers {
    url: String,
    servers: Vec<Option<Server>>,
    addresses: Vec<SocketAddr>,
    cluster: Cluster,
    folder: TempDir,
    flags: Vec<&'static str>,
}

impl Servers {
    fn start(url: &str, count: usize, flags: &[&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::open(url).unwrap();
        let mut servers = Servers {
            url: url.into(),
            servers: Vec::new(),
            addresses: Vec::new(),
            cluster,
            folder,
            flags: flags.to_vec(),
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
        Server::on(listen, &self.url, &self.place(at), &self.flags)
    }

    /// Starts a server again that has ended, at the address of before.
    fn restart(&mut self, at: usize) {
        let listen = self.addresses[at].to_string();
        self.servers[at] = Some(self.spawn(at, &listen));
    }

    /// Returns the number of the server that has the lease, if it is one that runs.
    fn writer(&self) -> Option<usize> {
        let lease = self.cluster.inspect("serve").ok()??;
        let mut words = lease.owner.split(' ');
        let address: SocketAddr = words.next()?.parse().ok()?;
        let pid: u32 = words.next()?.parse().ok()?;
        let at = self.addresses.iter().position(|known| *known == address)?;
        self.servers[at].as_ref().filter(|server| server.pid() == pid).map(|_| at)
    }

    fn wait_for_writer(&self) -> usize {
        eventually("a server writes", || self.writer())
    }

    /// Waits until every server leads to the writer.
    fn wait_for_all(&self) {
        for address in &self.addresses {
            eventually("a server is ready", || {
                let ready = Client::of(*address).ask("GET", "/readyz", &Value::Null, "");
                ready.is_ok_and(|ready| ready.status == 200)
            });
        }
    }

    fn pid(&self, at: usize) -> i32 {
        i32::try_from(self.servers[at].as_ref().unwrap().pid()).unwrap()
    }

    fn client(&self, at: usize) -> Client {
        Client::of(self.addresses[at])
    }
}

/// What all clients of a pool together see.
#[derive(Default)]
struct Seen {
    /// Who believes to have each slot, and its newest token.
    slots: Mutex<BTreeMap<i64, (Option<Belief>, i64)>>,
    borrowed: AtomicU64,
    refused: AtomicU64,
    newest: AtomicI64,
}

/// A client's belief in its slot, which ends by itself.
struct Belief {
    client: usize,
    until: Instant,
}

impl Seen {
    /// Takes note of a grant. `newest` is the newest token that was answered before it was asked for.
    fn lent(&self, client: usize, position: i64, token: i64, newest: i64, until: Instant) {
        let mut slots = self.slots.lock().unwrap();
        let (belief, last) = slots.entry(position).or_default();
        assert!(token > *last, "slot {position} has token {token} after {last}");
        assert!(token > newest, "token {token} was granted after {newest}");
        if let Some(belief) = belief.as_ref().filter(|belief| belief.until > Instant::now()) {
            panic!("slot {position} of client {} is lent to client {client}, too", belief.client);
        }
        (*belief, *last) = (Some(Belief { client, until }), token);
        self.newest.fetch_max(token, Ordering::SeqCst);
        self.borrowed.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes note that a client no longer believes.
    fn left(&self, position: i64) {
        self.slots.lock().unwrap().entry(position).or_default().0 = None;
    }
}

const SLOTS: i64 = 5;
const TTL: Duration = Duration::from_secs(3);

/// Borrows and returns until the time is over. Asks again after every error, anywhere, with the same key.
fn use_pool(number: usize, addresses: &[SocketAddr], seen: &Seen, is_over: &AtomicBool) {
    let mut dice = Dice::new(&format!("client {number}"));
    let anywhere = |dice: &mut Dice| {
        let at = usize::try_from(dice.below(addresses.len() as u64)).unwrap();
        Client::of(addresses[at]).with_patience(Duration::from_millis(900))
    };
    let mut client = anywhere(&mut dice);
    let mut requests = 0;
    while !is_over.load(Ordering::SeqCst) {
        requests += 1;
        let key = format!("Idempotency-Key: {number}-{requests}\r\n");
        let newest = seen.newest.load(Ordering::SeqCst);
        let begun = Instant::now();
        let body = json!({ "ttl": TTL.as_secs(), "wait": 0.5 });
        let lent = loop {
            match client.try_call("POST", "/borrow", &body, &key) {
                Ok(answer) if answer.status == 200 => break Some(answer.json()),
                Ok(answer) if answer.status == 409 => break None,
                failed => {
                    if let Ok(answer) = failed {
                        assert!(matches!(answer.status, 502 | 503), "{answer:?}");
                        let has_cause = answer.head.contains("retry-after") || answer.status == 503;
                        assert!(has_cause, "{answer:?}");
                    }
                    seen.refused.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(Duration::from_millis(20));
                    client = anywhere(&mut dice);
                    if begun.elapsed() > TTL {
                        // What the key has found by now may be over: this request is given up.
                        break None;
                    }
                }
            }
        };
        let Some(lent) = lent else { continue };
        let (position, token) =
            (lent["position"].as_i64().unwrap(), lent["token"].as_i64().unwrap());
        let until = begun + TTL - TTL / 10;
        if until <= Instant::now() {
            continue;
        }
        seen.lent(number, position, token, newest, until);
        thread::sleep(Duration::from_millis(dice.below(4)));
        seen.left(position);
        let lease = json!({ "lease": lent["lease"] });
        while begun.elapsed() < TTL {
            match client.try_call("POST", "/return", &lease, "") {
                Ok(answer) if answer.status == 200 => break,
                _ => client = anywhere(&mut dice),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A fault of the server that writes.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Terminate,
    Stop,
}

/// Ends or stops the writer, waits for another one, and puts things right again.
fn play_fault(servers: &mut Servers, fault: Fault) {
    let at = servers.wait_for_writer();
    let pid = servers.pid(at);
    match fault {
        Fault::Kill => servers.servers[at].take().unwrap().kill(),
        Fault::Terminate => assert!(servers.servers[at].take().unwrap().stop(), "in good order"),
        Fault::Stop => kill(pid, libc::SIGSTOP),
    }
    eventually("another server writes", || servers.writer().filter(|next| *next != at));
    match fault {
        Fault::Stop => kill(pid, libc::SIGCONT),
        Fault::Kill | Fault::Terminate => servers.restart(at),
    }
}

#[test]
fn servers_that_are_killed_and_stopped_lend_no_slot_twice_and_lose_none() {
    for (name, engine) in Engine::all() {
        let url = engine.url("faults");
        let mut servers =
            Servers::start(&url, 3, &["--open", "--writer-ttl", "1s", "--log", "warn"]);
        servers.wait_for_all();
        servers.client(0).register(SLOTS);
        let (seen, is_over) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let clients: Vec<_> = (0..8)
            .map(|number| {
                let (addresses, seen) = (servers.addresses.clone(), Arc::clone(&seen));
                let is_over = Arc::clone(&is_over);
                thread::spawn(move || use_pool(number, &addresses, &seen, &is_over))
            })
            .collect();
        let (begun, mut faults) = (Instant::now(), 0);
        // Each fault at least once.
        while faults < 3 || begun.elapsed() < stress(0) / 2 {
            let before = seen.borrowed.load(Ordering::SeqCst);
            eventually("slots are lent", || seen.borrowed.load(Ordering::SeqCst) > before + 20);
            play_fault(&mut servers, [Fault::Kill, Fault::Stop, Fault::Terminate][faults % 3]);
            faults += 1;
        }
        let before = seen.borrowed.load(Ordering::SeqCst);
        eventually("slots are lent", || seen.borrowed.load(Ordering::SeqCst) > before + 20);
        is_over.store(true, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        let (borrowed, refused) = (seen.borrowed.load(Ordering::SeqCst), &seen.refused);
        tell(&format!("{name}: {faults} faults, {borrowed} borrows, {refused:?} asked again"));
        // What was lent to clients that gave up is over soon, and then every slot can be had again.
        servers.wait_for_all();
        let mut client = servers.client(1);
        let mut positions: Vec<i64> = (0..SLOTS)
            .map(|_| {
                let body = json!({ "ttl": 60, "wait": 30 });
                let lent = client.call("POST", "/borrow", &body);
                assert_eq!(lent.status, 200, "a slot is lost: {lent:?}");
                lent.json()["position"].as_i64().unwrap()
            })
            .collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..SLOTS).collect::<Vec<_>>());
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
    let cluster = Cluster::open(&url).unwrap();
    cluster.bootstrap().unwrap();
    // The lease is of a server that is not there.
    let ttl = Duration::from_secs(60);
    let lease = cluster.claim("serve", "127.0.0.1:1 1 x", ttl).unwrap().acquired().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--open", "--log", "off"];
    let [one, other] = ["one", "other"]
        .map(|name| Server::on("127.0.0.1:0", &url, &folder.path().join(name), &flags));
    let is_refused = |server: &Server| {
        let answer = Client::of(server.address).try_call("GET", "", &Value::Null, "").unwrap();
        let is_told = answer.head.to_lowercase().contains("retry-after: 1\r\n");
        assert!(answer.status == 503 && is_told, "{answer:?}");
        assert!(answer.error().contains("no server writes"), "{answer:?}");
    };
    is_refused(&one);
    // The lease names a server that does not write: what is passed on to it stays there.
    let named = format!("{} 1 x", one.address);
    assert!(matches!(cluster.transfer(&lease, &named, ttl), Ok(TransferResult::Transferred(_))));
    eventually("it is followed", || {
        let health = Client::of(other.address).ask("GET", "/healthz", &Value::Null, "");
        health.is_ok_and(|health| health.status == 200)
    });
    is_refused(&other);
    is_refused(&one);
    // A release is noticed at once, and one of both takes over.
    assert!(matches!(cluster.break_lease("serve"), Ok(BreakResult::Broken { .. })));
    for server in [&one, &other] {
        eventually("it is served", || {
            let answer = Client::of(server.address).try_call("GET", "", &Value::Null, "");
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
            let ready = Client::of(address).ask("GET", "/readyz", &Value::Null, "");
            ready.is_ok_and(|ready| ready.status == 200)
        });
    }
    Client::of(tunnels[0]).register(2);
    let tokens = tunnels.map(|address| {
        let lent = Client::of(address).call("POST", "/borrow", &json!({ "ttl": 60 }));
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
        assert!(said.contains("say HOST:PORT"), "{said}");
    }
    let said = refused(&["--listen", "127.0.0.1:0", "--restore-fence"]);
    assert!(said.contains("litelease restore-fence --db"), "{said}");
    let said = refused(&["--listen", "127.0.0.1:0", "--writer-ttl", "61s"]);
    assert!(said.contains("from 1s to 60s"), "{said}");
}
