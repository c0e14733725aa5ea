//! Workers on engines that fail, each worker a process: no two share a lease, no token comes twice
//! or out of order, and no gate lets a stale write pass. Workers with planted bugs must be found
//! out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::Cluster;
use litelease_proof::believers::{Crew, Job, Planted, Record, TTL, faketime};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::machines::Network;
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::proxy::Proxy;
use litelease_proof::rig::{Dice, eventually, free_port, report};

const WORKER: &str = env!("CARGO_BIN_EXE_worker");
const NAMES: u64 = 4;

fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

/// A crew of so many workers, some of them with clocks that are wrong by half a minute.
fn crew(workers: usize, job: impl Fn(usize) -> Job) -> Crew {
    let mut crew = Crew::new(WORKER, NAMES);
    let clocks = ["", "+30s", "-30s", ""];
    (0..workers).for_each(|at| crew.hire(Job { clock: clocks[at % 4], ..job(at) }));
    let has_clocks = faketime().is_some();
    eventually("every kind of clock is seen, and a worker has a grant", || {
        let record = crew.record();
        let clocks = &record.clocks;
        let is_ahead = clocks.last().is_some_and(|ahead| *ahead >= 29);
        let is_behind = clocks.first().is_some_and(|ahead| *ahead <= -29);
        record.grants() > 0 && (!has_clocks || clocks.len() >= 3 && is_ahead && is_behind)
    });
    crew
}

/// Ends the work once it went on after the last fault: a run that ended by time might have seen no
/// grant at all.
fn end(crew: Crew) -> Record {
    let before = crew.record().grants();
    eventually("workers are granted names after the last fault", || {
        let grants = crew.record().grants();
        grants > before && grants as u64 > NAMES
    });
    crew.end()
}

/// Checks what must be so after every run.
#[track_caller]
fn judge(what: &str, record: &Record) {
    report(&format!("{what}: {}", record.summary()));
    assert_eq!(record.faults(), [""; 0]);
}

/// What goes wrong for a while, and where.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    MemberKilled(usize),
    MemberStopped(usize),
    /// It reaches its clients, and no other member.
    NoPeers(usize),
    /// It receives no messages.
    Deaf(usize),
    /// Its messages do not arrive, so that its answers are lost.
    Mute(usize),
    MemberCutOff(usize),
    ClientCutOff(usize),
    /// Its workers die, and it comes back with new ones.
    ClientGone(usize),
    /// For longer than its lease.
    WorkerStopped(usize),
}

/// Three members on machines of their own, and four machines with two workers each; or all on one
/// machine.
struct Trouble {
    crew: Crew,
    etcd: Etcd,
    network: Option<Arc<Network>>,
    dice: Dice,
    counts: BTreeMap<String, u64>,
}

const MEMBERS: usize = 3;
const CLIENTS: usize = 4;

impl Trouble {
    fn start() -> Self {
        let network = Network::new(MEMBERS + CLIENTS).map(Arc::new);
        let etcd = match &network {
            Some(network) => Etcd::start_on(network),
            None => Etcd::start(MEMBERS),
        };
        let url = etcd.url("trouble");
        let machine = |at| Some((Arc::clone(network.as_ref()?), MEMBERS + at % CLIENTS));
        let job = |at| Job { url: url.clone(), machine: machine(at), ..Job::default() };
        let crew = crew(2 * CLIENTS, job);
        let (dice, counts) = (Dice::new("etcd"), BTreeMap::new());
        Trouble { crew, etcd, network, dice, counts }
    }

    /// The leader three times out of four.
    fn member(&mut self) -> usize {
        let leader = self.etcd.leader().unwrap_or(0);
        if self.dice.below(4) == 0 { (leader + 1) % MEMBERS } else { leader }
    }

    fn choose(&mut self) -> Fault {
        let member = self.member();
        let client = self.dice.below(CLIENTS as u64) as usize;
        let worker = self.dice.below(self.crew.len() as u64) as usize;
        // Without network namespaces, no member can be cut off.
        let kinds = if self.network.is_some() { 9 } else { 4 };
        match self.dice.below(kinds) {
            0 => Fault::MemberKilled(member),
            1 => Fault::MemberStopped(member),
            2 => Fault::WorkerStopped(worker),
            3 => Fault::ClientGone(client),
            4 => Fault::NoPeers(member),
            5 => Fault::Deaf(member),
            6 => Fault::Mute(member),
            7 => Fault::MemberCutOff(member),
            _ => Fault::ClientCutOff(client),
        }
    }

    /// Begins a fault, or ends it.
    fn set(&mut self, fault: Fault, begins: bool) {
        let signal = if begins { libc::SIGSTOP } else { libc::SIGCONT };
        let network = self.network.as_deref();
        let block = |from, to| network.map_or((), |network| network.block(from, to, begins));
        let plug = |machine| network.map_or((), |network| network.plug(machine, !begins));
        let others = |at| (0..MEMBERS + CLIENTS).filter(move |other| *other != at);
        match fault {
            Fault::MemberKilled(at) if begins => self.etcd.kill(at),
            Fault::MemberKilled(at) => self.etcd.spawn(at),
            Fault::MemberStopped(at) => self.etcd.signal(at, signal),
            Fault::NoPeers(at) => others(at).filter(|other| *other < MEMBERS).for_each(|other| {
                block(at, other);
                block(other, at);
            }),
            Fault::Deaf(at) => others(at).for_each(|other| block(other, at)),
            Fault::Mute(at) => others(at).for_each(|other| block(at, other)),
            Fault::MemberCutOff(at) => plug(at),
            Fault::ClientCutOff(at) => plug(MEMBERS + at),
            Fault::ClientGone(at) => {
                plug(MEMBERS + at);
                for worker in (0..self.crew.len()).filter(|worker| worker % CLIENTS == at) {
                    match begins {
                        true => self.crew.kill(worker),
                        false => self.crew.spawn(worker),
                    }
                }
            }
            Fault::WorkerStopped(at) => self.crew.signal(at, signal),
        }
    }

    /// Lets one thing go wrong, or two at once.
    fn once(&mut self) {
        let mut faults = vec![self.choose()];
        if self.dice.below(3) == 0 {
            let (first, second) = (faults[0], self.choose());
            // The same thing twice, or two things to one part, would be one fault.
            if first.part() != second.part() {
                faults.push(second);
            }
        }
        for fault in &faults {
            self.set(*fault, true);
            let text = format!("{fault:?}");
            let kind = text.split('(').next().unwrap_or_default();
            *self.counts.entry(kind.into()).or_default() += 1;
        }
        if faults.len() == 2 {
            *self.counts.entry("(two at once)".into()).or_default() += 1;
        }
        let outlasts = faults.iter().any(|fault| matches!(fault, Fault::WorkerStopped(_)));
        let least = if outlasts { TTL.as_millis() as u64 + 200 } else { 300 };
        let time = least + self.dice.below(1_800);
        pause(time);
        faults.iter().for_each(|fault| self.set(*fault, false));
        let quiet = 200 + self.dice.below(600);
        pause(quiet);
    }
}

impl Fault {
    /// What it happens to: a member, or a machine with its workers.
    fn part(self) -> usize {
        use Fault::*;
        match self {
            MemberKilled(at) | MemberStopped(at) | NoPeers(at) | Deaf(at) | Mute(at)
            | MemberCutOff(at) => at,
            ClientCutOff(at) | ClientGone(at) => MEMBERS + at,
            WorkerStopped(at) => MEMBERS + at % CLIENTS,
        }
    }
}

#[test]
fn nobody_shares_a_lease_while_members_and_clients_are_killed_stopped_and_cut_off() {
    if !etcd::is_installed() {
        return;
    }
    let mut trouble = Trouble::start();
    let end_at = crate::end_of_stress();
    let mut rounds = 0;
    while rounds < 8 || Instant::now() < end_at {
        trouble.once();
        rounds += 1;
    }
    let Trouble { crew, counts, .. } = trouble;
    let faults = counts.iter().filter(|(kind, _)| !kind.starts_with('(')).map(|(_, count)| count);
    let faults: u64 = faults.sum();
    judge(&format!("etcd: {faults} faults {counts:?}"), &end(crew));
}

#[test]
fn nobody_shares_a_lease_while_the_server_crashes_and_freezes() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    let url = server.url("trouble");
    Cluster::open(&url).unwrap().bootstrap().unwrap();
    let crew = crew(8, |_| Job { url: url.clone(), ..Job::default() });
    let mut dice = Dice::new("postgres");
    let end_at = crate::end_of_stress();
    let mut faults = 0;
    while faults < 5 || Instant::now() < end_at {
        pause(300 + dice.below(700));
        match dice.below(3) {
            0 => {
                server.crash();
                pause(dice.below(1_000));
                server.spawn();
            }
            1 => {
                server.freeze(true);
                pause(1_000 + dice.below(1_500));
                server.freeze(false);
            }
            _ => {
                let worker = dice.below(crew.len() as u64) as usize;
                crew.signal(worker, libc::SIGSTOP);
                pause(TTL.as_millis() as u64 + dice.below(500));
                crew.signal(worker, libc::SIGCONT);
            }
        }
        faults += 1;
    }
    judge(&format!("PostgreSQL: {faults} crashes and freezes"), &end(crew));
}

/// A request arrives, and its answer does not: the worker finds out what became of it, or does not
/// believe in it.
#[test]
fn answers_that_get_lost_make_no_second_grant() {
    let mut proxies = Vec::new();
    // They must outlive the workers.
    let (mut nodes, mut servers) = (Vec::new(), Vec::new());
    if etcd::is_installed() {
        let etcd = Etcd::shared();
        let proxy = Proxy::start(etcd.address(0));
        proxies.push(("etcd", format!("etcd://{}/lost", proxy.address()), proxy));
        nodes.push(etcd);
    }
    if postgres::is_installed() {
        let server = Postgres::shared();
        let url = server.url("lost");
        Cluster::open(&url).unwrap().bootstrap().unwrap();
        let proxy = Proxy::start(server.address().parse().unwrap());
        let url = url.replace(&server.address(), &proxy.address().to_string());
        proxies.push(("PostgreSQL", url, proxy));
        servers.push(server);
    }
    let end_at = crate::end_of_stress();
    thread::scope(|scope| {
        for (what, url, proxy) in &proxies {
            scope.spawn(move || {
                let crew = crew(8, |_| Job { url: url.clone(), ..Job::default() });
                let (mut dice, mut lost) = (Dice::new("lost answers"), 0);
                while lost < 30 || Instant::now() < end_at {
                    proxy.lose(1);
                    lost += 1;
                    eventually("an answer is lost", || proxy.left() == 0);
                    pause(dice.below(200));
                }
                judge(&format!("{what}: {lost} answers lost"), &end(crew));
            });
        }
    });
}

/// The primary dies, and its standby, which lags and whose clock is 20 s ahead or behind, takes
/// over.
struct Failovers {
    primary: Postgres,
    standby: Postgres,
    is_synchronous: bool,
    clock: &'static str,
}

/// A standby that has a commit on its disk applies it later.
const LAGS: &str = "recovery_min_apply_delay = '300ms'";

impl Failovers {
    fn start(is_synchronous: bool) -> Self {
        let primary = Postgres::start();
        let url = primary.url("litelease");
        Cluster::open(&url).unwrap().bootstrap().unwrap();
        let clock = "+20s";
        let standby = primary.standby_at(free_port(), LAGS, clock);
        let pair = Failovers { primary, standby, is_synchronous, clock };
        pair.wait_for_commits();
        pair
    }

    fn url(&self) -> String {
        let both = format!("{},{}", self.primary.address(), self.standby.address());
        self.primary.url("litelease").replace(&self.primary.address(), &both)
    }

    /// Waits until the standby streams. From then on, a commit of a synchronous pair waits for it.
    fn wait_for_commits(&self) {
        self.primary.wait("SELECT 1 / count(*) FROM pg_stat_replication WHERE state = 'streaming'");
        let names = if self.is_synchronous { "*" } else { "" };
        self.primary.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        self.primary.sql("SELECT pg_reload_conf()");
    }

    fn once(&mut self, dice: &mut Dice) {
        if !self.is_synchronous {
            // From here on the standby hears nothing, and what is granted gets lost.
            self.standby.sql("ALTER SYSTEM SET primary_conninfo = ''");
            self.standby.sql("SELECT pg_reload_conf()");
            pause(200 + dice.below(600));
        }
        self.primary.crash();
        self.standby.promote();
        self.clock = if self.clock.is_empty() { "+20s" } else { "" };
        let next = self.standby.standby_at(self.primary.port(), LAGS, self.clock);
        self.primary = std::mem::replace(&mut self.standby, next);
        self.wait_for_commits();
    }
}

fn fail_over(is_synchronous: bool, least: u64) -> (u64, Record) {
    let mut pair = Failovers::start(is_synchronous);
    let url = pair.url();
    let crew = crew(8, |_| Job { url: url.clone(), ..Job::default() });
    let mut dice = Dice::new("failovers");
    let end_at = crate::end_of_stress();
    let mut failovers = 0;
    while failovers < least || Instant::now() < end_at {
        pause(500 + dice.below(1_000));
        pair.once(&mut dice);
        failovers += 1;
    }
    (failovers, end(crew))
}

#[test]
fn nobody_shares_a_lease_across_synchronous_failovers_to_clocks_that_are_wrong() {
    if !postgres::is_installed() {
        return;
    }
    let (failovers, record) = fail_over(true, 2);
    judge(&format!("PostgreSQL: {failovers} synchronous failovers"), &record);
}

/// Grants get lost, so two may believe in a name. The tokens tell them apart.
#[test]
fn asynchronous_failovers_bring_no_token_back() {
    if !postgres::is_installed() {
        return;
    }
    let (failovers, record) = fail_over(false, 1);
    report(&format!("PostgreSQL: {failovers} asynchronous failovers: {}", record.summary()));
    assert_eq!(record.bad_tokens(), [""; 0]);
}

/// The negative controls: with these bugs and clocks, the judge must find two believers, and gates
/// hold where tokens do.
#[test]
fn workers_with_planted_bugs_are_found_out() {
    if !etcd::is_installed() || faketime().is_none() {
        return;
    }
    let etcd = Etcd::shared();
    let run = |prefix: &str, clock: &'static str, planted| {
        let mut crew = Crew::new(WORKER, 1);
        let url = etcd.url(prefix);
        for clock in ["", clock, "", ""] {
            crew.hire(Job { url: url.clone(), clock, planted, machine: None });
        }
        eventually("the bug is found", || !crew.record().two_believers().is_empty());
        let is_refused = || crew.record().refused > 0;
        let has_to_refuse = planted != Planted::NoCompare;
        eventually("a gate refuses a stale write", || !has_to_refuse || is_refused());
        let record = crew.end();
        report(&format!("{prefix}: {}", record.summary()));
        record
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let record = run("own-clock", "+30s", Planted::OwnClock);
            assert_eq!(record.bad_tokens(), [""; 0]);
        });
        scope.spawn(|| {
            let record = run("an-hour-ahead", "+1h", Planted::Nothing);
            assert_eq!(record.bad_tokens(), [""; 0]);
        });
        scope.spawn(|| {
            let record = run("no-compare", "", Planted::NoCompare);
            assert_eq!(record.stale_accepts(), [""; 0]);
            assert!(!record.bad_tokens().is_empty(), "a token is granted twice");
        });
    });
}
