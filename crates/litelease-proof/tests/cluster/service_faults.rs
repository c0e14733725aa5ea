//! Servers on one engine lend slots while servers and engines are killed, stopped and frozen: no
//! slot is lent twice at a time, no grant that was answered is lost, and tokens grow. Servers with
//! planted bugs must be found out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use litelease_proof::careless::Bug;
use litelease_proof::command::kill;
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{Dice, eventually, report};
use litelease_proof::server::{Client, Response};
use serde_json::{Value, json};

use crate::service::Servers;

const SLOTS: i64 = 8;
const CLIENTS: usize = 12;
const TTL: Duration = Duration::from_secs(3);
/// How many slots are lent between two faults, at least: so that it goes on, and so that there is
/// much to be lost.
const FEW: u64 = 20;
const MANY: u64 = 500;

/// What all clients of a pool together see.
#[derive(Default)]
struct Seen {
    /// Who believes to have each slot, and its newest token.
    slots: Mutex<BTreeMap<i64, (Option<Belief>, i64)>>,
    /// What must not happen.
    wrongs: Mutex<Vec<String>>,
    borrowed: AtomicU64,
    renewed: AtomicU64,
    refused: AtomicU64,
    newest: AtomicI64,
    /// When a slot was lent last, and the longest time that none was.
    silence: Mutex<(Option<Instant>, Duration)>,
}

/// A client's belief in its slot, which ends by itself.
struct Belief {
    client: usize,
    until: Instant,
}

impl Seen {
    fn wrong(&self, text: String) {
        self.wrongs.lock().unwrap().push(text);
    }

    /// Takes note of a grant. `newest` is the newest token that was answered before it was asked
    /// for.
    fn lent(&self, client: usize, position: i64, token: i64, newest: i64, until: Instant) {
        let mut slots = self.slots.lock().unwrap();
        let (belief, last) = slots.entry(position).or_default();
        if token <= *last {
            self.wrong(format!("slot {position} has token {token} after {last}"));
        }
        if token <= newest {
            self.wrong(format!("token {token} was granted after {newest}"));
        }
        if let Some(belief) = belief.as_ref().filter(|belief| belief.until > Instant::now()) {
            let other = belief.client;
            self.wrong(format!("slot {position} of client {other} is lent to {client}, too"));
        }
        (*belief, *last) = (Some(Belief { client, until }), token.max(*last));
        drop(slots);
        self.newest.fetch_max(token, Ordering::SeqCst);
        self.borrowed.fetch_add(1, Ordering::SeqCst);
        let mut silence = self.silence.lock().unwrap();
        let since = silence.0.replace(Instant::now()).map_or(Duration::ZERO, |at| at.elapsed());
        silence.1 = silence.1.max(since);
    }

    /// Takes note that a client no longer believes.
    fn left(&self, position: i64) {
        self.slots.lock().unwrap().entry(position).or_default().0 = None;
    }

    fn is_wrong(&self) -> bool {
        !self.wrongs.lock().unwrap().is_empty()
    }

    fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::SeqCst)
    }
}

/// A client that uses all servers.
struct User {
    number: usize,
    addresses: Vec<SocketAddr>,
    seen: Arc<Seen>,
    dice: Dice,
    client: Client,
    requests: u64,
}

impl User {
    fn new(number: usize, addresses: &[SocketAddr], seen: &Arc<Seen>) -> Self {
        let (dice, client) = (Dice::new(&format!("client {number}")), Client::new(addresses[0]));
        let (addresses, seen) = (addresses.to_vec(), Arc::clone(seen));
        let mut user = User { number, addresses, seen, dice, client, requests: 0 };
        user.move_on();
        user
    }

    /// Goes to any server.
    fn move_on(&mut self) {
        let at = usize::try_from(self.dice.below(self.addresses.len() as u64)).unwrap();
        self.client = Client::new(self.addresses[at]).with_patience(Duration::from_millis(900));
    }

    /// Asks until there is an answer that counts, anywhere, for at most a ttl. Returns it, and
    /// whether it was the first time that it was asked.
    fn ask(&mut self, path: &str, body: &Value, headers: &str) -> Option<(Response, bool)> {
        let begun = Instant::now();
        let mut is_first = true;
        while begun.elapsed() < TTL {
            match self.client.try_call("POST", path, body, headers) {
                Ok(answer) if matches!(answer.status, 200 | 409) => {
                    return Some((answer, is_first));
                }
                Ok(answer) if answer.status != 503 => self.seen.wrong(format!("{answer:?}")),
                _ => {}
            }
            is_first = false;
            self.seen.refused.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(20));
            self.move_on();
        }
        None
    }

    /// Borrows a slot, uses it, and returns it.
    fn borrow_once(&mut self) {
        self.requests += 1;
        let key = format!("Idempotency-Key: {}-{}\r\n", self.number, self.requests);
        let newest = self.seen.newest.load(Ordering::SeqCst);
        let mut trusted_since = Instant::now();
        let body = json!({ "ttl": TTL.as_secs(), "wait": 0.5 });
        let lent = self.ask("/borrow", &body, &key);
        let Some((lent, _)) = lent.filter(|(answer, _)| answer.status == 200) else { return };
        let lent = lent.json();
        let number = |field: &str| lent[field].as_i64().unwrap();
        let (position, token) = (number("position"), number("token"));
        let until = |since: Instant| since + TTL - TTL / 10;
        if until(trusted_since) <= Instant::now() {
            return;
        }
        self.seen.lent(self.number, position, token, newest, until(trusted_since));
        thread::sleep(Duration::from_millis(self.dice.below(3)));
        let lease = lent["lease"].clone();
        if self.dice.below(4) == 0 {
            let asked = Instant::now();
            let body = json!({ "lease": lease, "ttl": TTL.as_secs() });
            let renewed = self.ask("/renew", &body, "");
            self.expect_live("renewed", token, until(trusted_since), renewed.as_ref());
            if renewed.is_some_and(|(answer, _)| answer.status == 200) {
                self.seen.renewed.fetch_add(1, Ordering::SeqCst);
                trusted_since = asked;
            }
        }
        self.seen.left(position);
        let returned = self.ask("/return", &json!({ "lease": lease }), "");
        self.expect_live("returned", token, until(trusted_since), returned.as_ref());
    }

    /// Checks that a grant was not lost. If it was asked before, that may have been done.
    fn expect_live(
        &self,
        what: &str,
        token: i64,
        until: Instant,
        answer: Option<&(Response, bool)>,
    ) {
        if let Some((answer, true)) = answer
            && answer.status == 409
            && Instant::now() < until
        {
            self.seen.wrong(format!("token {token} was granted, and cannot be {what}: {answer:?}"));
        }
    }
}

/// An engine that the test may break.
enum Engine {
    Etcd(Etcd),
    Postgres(Postgres),
}

/// What goes wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    WriterKilled,
    WriterStopped,
    WriterTerminated,
    /// A stopped writer wakes up while its successor is stopped, and then that one is killed.
    SuccessorKilled,
    ReplicaKilled,
    /// All of it.
    EngineFrozen,
    /// The leader of etcd, or all of PostgreSQL.
    EngineKilled,
    /// The leader of etcd, or the processes of PostgreSQL that serve our connections. What they
    /// were sent may be done when they go on.
    EngineStopped,
}

use Fault::*;

const ALL: [Fault; 8] = [
    WriterKilled,
    EngineStopped,
    WriterStopped,
    SuccessorKilled,
    WriterTerminated,
    EngineFrozen,
    EngineKilled,
    ReplicaKilled,
];

/// Servers on an engine, and their clients.
struct Trouble {
    servers: Servers,
    engine: Engine,
    seen: Arc<Seen>,
    users: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    dice: Dice,
    counts: BTreeMap<Fault, u64>,
    /// How many times a server was killed while the engine had a fault.
    both: u64,
}

fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

impl Trouble {
    fn start(engine: Engine, bug: Option<Bug>) -> Self {
        let url = match &engine {
            Engine::Etcd(etcd) => etcd.url("served"),
            Engine::Postgres(postgres) => postgres.url("served"),
        };
        let flags = ["--open", "--writer-ttl", "1s", "--log", "warn"];
        let servers = Servers::start_with(&url, 3, &flags, bug);
        servers.wait_for_all();
        servers.client(0).register(SLOTS);
        let (seen, is_over) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(false)));
        let users = (0..CLIENTS).map(|number| {
            let mut user = User::new(number, &servers.addresses, &seen);
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    user.borrow_once();
                }
            })
        });
        let (users, dice) = (users.collect(), Dice::new("service"));
        let counts = BTreeMap::new();
        let trouble = Trouble { servers, engine, seen, users, is_over, dice, counts, both: 0 };
        trouble.wait_for_borrows(MANY);
        trouble
    }

    fn wait_for_borrows(&self, count: u64) {
        let enough = self.seen.borrowed() + count;
        eventually("slots are lent", || self.seen.borrowed() > enough || self.seen.is_wrong());
    }

    fn wait_for_another(&self, than: usize) -> usize {
        eventually("another server writes", || self.servers.writer().filter(|at| *at != than))
    }

    fn kill_server(&mut self, at: usize) {
        self.servers.servers[at].take().unwrap().kill();
    }

    /// Lets one thing go wrong, and waits until all is well again.
    fn play(&mut self, fault: Fault) {
        *self.counts.entry(fault).or_default() += 1;
        match fault {
            EngineFrozen | EngineKilled | EngineStopped => self.play_on_engine(fault),
            _ => self.play_on_servers(fault),
        }
        self.wait_for_borrows(FEW);
    }

    fn play_on_servers(&mut self, fault: Fault) {
        let at = self.servers.wait_for_writer();
        let pid = self.servers.pid(at);
        match fault {
            WriterKilled => {
                self.kill_server(at);
                self.wait_for_another(at);
                self.servers.restart(at);
            }
            WriterTerminated => {
                let server = self.servers.servers[at].take().unwrap();
                assert!(server.stop(), "in good order");
                self.wait_for_another(at);
                self.servers.restart(at);
            }
            WriterStopped => {
                kill(pid, libc::SIGSTOP);
                self.wait_for_another(at);
                kill(pid, libc::SIGCONT);
            }
            SuccessorKilled => {
                kill(pid, libc::SIGSTOP);
                let next = self.wait_for_another(at);
                self.wait_for_borrows(FEW);
                kill(self.servers.pid(next), libc::SIGSTOP);
                kill(pid, libc::SIGCONT);
                pause(200);
                self.kill_server(next);
                self.wait_for_another(next);
                self.servers.restart(next);
            }
            _ => {
                let replica = (at + 1) % 3;
                self.kill_server(replica);
                self.wait_for_borrows(FEW);
                self.servers.restart(replica);
            }
        }
    }

    fn play_on_engine(&mut self, fault: Fault) {
        let at = self.servers.wait_for_writer();
        let time = 500 + self.dice.below(2_000);
        let is_both = self.dice.below(4) == 0;
        let leader = match &self.engine {
            Engine::Etcd(etcd) => etcd.leader().unwrap_or(0),
            Engine::Postgres(_) => 0,
        };
        let sessions = match &self.engine {
            Engine::Postgres(postgres) => postgres.sessions(),
            Engine::Etcd(_) => Vec::new(),
        };
        self.set(fault, leader, &sessions, true);
        pause(time / 2);
        if is_both {
            self.both += 1;
            self.kill_server(at);
        }
        pause(time / 2);
        self.set(fault, leader, &sessions, false);
        if is_both {
            self.servers.restart(at);
        }
    }

    /// Begins a fault of the engine, or ends it.
    fn set(&mut self, fault: Fault, leader: usize, sessions: &[i32], begins: bool) {
        let signal = if begins { libc::SIGSTOP } else { libc::SIGCONT };
        match (&mut self.engine, fault) {
            (Engine::Etcd(etcd), EngineFrozen) => (0..3).for_each(|at| etcd.signal(at, signal)),
            (Engine::Etcd(etcd), EngineKilled) if begins => etcd.kill(leader),
            (Engine::Etcd(etcd), EngineKilled) => etcd.spawn(leader),
            (Engine::Etcd(etcd), _) => etcd.signal(leader, signal),
            (Engine::Postgres(postgres), EngineFrozen) => postgres.freeze(begins),
            (Engine::Postgres(postgres), EngineKilled) if begins => postgres.crash(),
            (Engine::Postgres(postgres), EngineKilled) => postgres.spawn(),
            (Engine::Postgres(postgres), _) => postgres.freeze_sessions(sessions, begins),
        }
    }

    /// Plays faults in turn, once each of the first `least` and for as long as there is time.
    fn play_all(&mut self, least: usize) {
        let until = crate::end_of_stress();
        for (number, fault) in ALL.into_iter().cycle().enumerate() {
            if self.seen.is_wrong() || (number >= least && Instant::now() >= until) {
                break;
            }
            self.play(fault);
            if number >= least {
                self.wait_for_borrows(MANY);
            }
        }
    }

    /// Ends the clients, and checks what must be so after every run.
    fn judge(self, name: &str) {
        self.is_over.store(true, Ordering::SeqCst);
        self.users.into_iter().for_each(|user| user.join().unwrap());
        let Trouble { servers, seen, counts, both, .. } = self;
        let faults: u64 = counts.values().sum::<u64>() + both;
        let [borrowed, renewed, refused] = [&seen.borrowed, &seen.renewed, &seen.refused]
            .map(|count| count.load(Ordering::SeqCst));
        let silence = seen.silence.lock().unwrap().1;
        report(&format!(
            "{name}: {faults} faults {counts:?}, {both} of them during another one; {borrowed} borrows and \
             {renewed} renewals, {refused} asked again, at most {silence:.1?} without a grant"
        ));
        assert_eq!(*seen.wrongs.lock().unwrap(), [""; 0]);
        // What was lent to clients that gave up is over soon, and then every slot can be had again.
        servers.wait_for_all();
        let mut positions: Vec<i64> = (0..SLOTS)
            .map(|number| {
                // The server may just have ceased to write. Clients ask again then, with the same
                // key.
                let body = json!({ "ttl": 60, "wait": 30 });
                let key = format!("Idempotency-Key: last-{number}\r\n");
                let start = Instant::now();
                let lent = loop {
                    match servers.client(1).try_call("POST", "/borrow", &body, &key) {
                        Ok(lent) if lent.status == 200 => break lent,
                        other if start.elapsed() > Duration::from_secs(60) => {
                            panic!("a slot is lost: {other:?}")
                        }
                        _ => thread::sleep(Duration::from_millis(100)),
                    }
                };
                lent.json()["position"].as_i64().unwrap()
            })
            .collect();
        positions.sort_unstable();
        assert_eq!(positions, (0..SLOTS).collect::<Vec<_>>());
    }
}

#[test]
fn servers_on_etcd_that_are_killed_and_stopped_lend_no_slot_twice_and_lose_none() {
    if !etcd::is_installed() {
        return;
    }
    let mut trouble = Trouble::start(Engine::Etcd(Etcd::start(3)), None);
    trouble.play_all(6);
    trouble.judge("etcd");
}

#[test]
fn servers_on_postgres_that_are_killed_and_stopped_lend_no_slot_twice_and_lose_none() {
    if !postgres::is_installed() {
        return;
    }
    let mut trouble = Trouble::start(Engine::Postgres(Postgres::start()), None);
    trouble.play_all(6);
    trouble.judge("PostgreSQL");
}

/// The negative controls.
#[test]
fn servers_with_planted_bugs_are_found_out() {
    if !etcd::is_installed() {
        return;
    }
    for bug in Bug::ALL {
        let mut trouble = Trouble::start(Engine::Etcd(Etcd::start(3)), Some(bug));
        let fault = match bug {
            Bug::AnswersEarly => WriterKilled,
            Bug::TokenIgnored => SuccessorKilled,
        };
        let seen = Arc::clone(&trouble.seen);
        let mut faults = 0;
        while !seen.is_wrong() {
            assert!(faults < 40, "{bug:?} is not found out");
            faults += 1;
            trouble.play(fault);
        }
        let wrong = seen.wrongs.lock().unwrap()[0].clone();
        report(&format!("{bug:?} was found after {faults} faults: {wrong}"));
        trouble.is_over.store(true, Ordering::SeqCst);
        trouble.users.into_iter().for_each(|user| user.join().unwrap());
    }
}
