//! Workers that claim, renew, work and release on an engine that fails, and the judge of what they
//! believed.
//!
//! Each worker is a process of its own, `worker believe`. It tells from when until when it believes
//! to have a name, on the one clock of this machine that no test sets.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use litelease_cluster::engine::{Change, Loaded, LoadedRow, RowChange, Stored};
use litelease_cluster::{
    ClaimResult, Cluster, Engine, EngineFacts, Error, Host, Options, RenewResult, System,
};
use litelease_core::{AdmitResult, admit};

use crate::command::kill;
use crate::machines::Network;
use crate::rig::{Dice, report};

/// How long leases are.
pub const TTL: Duration = Duration::from_millis(1500);
const TRUSTED: Duration = Duration::from_millis(1350);

/// What a worker does wrong on purpose, so that the judge has something to find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// Nothing.
    #[default]
    Nothing,
    /// It trusts its own wall clock, and allows for no difference.
    OwnClock,
    /// It stores without comparing.
    NoCompare,
}

impl Planted {
    const ALL: [Planted; 3] = [Planted::Nothing, Planted::OwnClock, Planted::NoCompare];

    /// Finds it by its name.
    pub fn parse(text: &str) -> Option<Self> {
        Planted::ALL.into_iter().find(|planted| format!("{planted:?}") == text)
    }
}

/// Something that a worker tells, as a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The offset of its wall clock from the clock that is never set.
    Clock(i64, Duration),
    /// It believes to have a name. The same grant is told again when it ends later, or earlier.
    Believes(Belief),
    /// It writes through the gate of a name, under a token.
    Writes(String, i64),
    /// The engine has answered.
    Answered(Duration),
    /// The engine has not: the kind of the error.
    Failed(String),
}

/// A grant, as its holder saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Belief {
    /// The name.
    pub name: String,
    /// The token.
    pub token: i64,
    /// When the answer arrived.
    pub from: Duration,
    /// The end of the last window, or the moment at which the holder gave it up.
    pub until: Duration,
}

impl Event {
    fn line(&self) -> String {
        match self {
            Event::Clock(ms, at) => format!("clock {ms} {}", at.as_nanos()),
            Event::Believes(Belief { name, token, from, until }) => {
                format!("believes {name} {token} {} {}", from.as_nanos(), until.as_nanos())
            }
            Event::Writes(name, token) => format!("writes {name} {token}"),
            Event::Answered(at) => format!("answered {}", at.as_nanos()),
            Event::Failed(kind) => format!("failed {kind}"),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        let time = |text: &str| text.parse().ok().map(Duration::from_nanos);
        Some(match line.split(' ').collect::<Vec<_>>()[..] {
            ["clock", ms, at] => Event::Clock(ms.parse().ok()?, time(at)?),
            ["believes", name, token, from, until] => {
                let (name, token) = (name.into(), token.parse().ok()?);
                Event::Believes(Belief { name, token, from: time(from)?, until: time(until)? })
            }
            ["writes", name, token] => Event::Writes(name.into(), token.parse().ok()?),
            ["answered", at] => Event::Answered(time(at)?),
            ["failed", kind] => Event::Failed(kind.into()),
            _ => return None,
        })
    }
}

/// Works without end, as `worker believe URL NUMBER NAMES PLANTED` does.
pub fn believe(url: &str, number: u64, names: u64, planted: Planted) -> Result<(), Error> {
    let options = match planted {
        Planted::OwnClock => Options { max_skew: Duration::ZERO, ..Options::default() },
        _ => Options::default(),
    };
    let mut cluster = Cluster::open_with(url, options)?;
    if planted == Planted::NoCompare {
        let blind = Blind(Arc::clone(cluster.engine()));
        cluster = Cluster::with(Arc::new(blind), Arc::new(System), options);
    }
    // Each start has its own luck.
    let dice = Dice::from(System.monotonic().as_nanos() as u64 ^ number);
    let mut worker = Worker { cluster, owner: format!("worker {number}"), dice };
    tell_event(&Event::Clock(System.wall_ms(), System.monotonic()));
    loop {
        let name = format!("name{}", worker.dice.below(names));
        worker.once(&name);
    }
}

fn tell_event(event: &Event) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    // The receiver is gone: the test is over.
    if writeln!(out, "{}", event.line()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

struct Worker {
    cluster: Cluster,
    owner: String,
    dice: Dice,
}

impl Worker {
    /// Claims a name, and works on it for a while if it is granted.
    fn once(&mut self, name: &str) {
        let claimed = self.cluster.claim_since(name, &self.owner, TTL, 0);
        let now = System.monotonic();
        tell_answer(now, &claimed);
        match claimed {
            Ok((ClaimResult::Acquired(lease), since)) => {
                let (name, token) = (lease.name.clone(), lease.token);
                self.hold(&lease, Belief { name, token, from: now, until: since + TRUSTED });
            }
            // A waiter reads often: a row that is not read is not seen unchanged.
            Ok((ClaimResult::Busy(_), _)) => self.pause(50, 100),
            Err(_) => self.pause(20, 20),
        }
    }

    /// Holds a lease for a while, and then releases it, forgets it, or writes once more although it
    /// is over.
    fn hold(&mut self, lease: &litelease_cluster::Lease, mut belief: Belief) {
        let end = System.monotonic() + Duration::from_millis(self.dice.below(3000));
        let write = || tell_event(&Event::Writes(lease.name.clone(), lease.token));
        loop {
            tell_event(&Event::Believes(belief.clone()));
            let now = System.monotonic();
            if now >= belief.until {
                break;
            }
            write();
            if now >= end {
                break;
            }
            self.pause(100, 200);
            if System.monotonic() >= belief.until {
                break;
            }
            write();
            let renewed = self.cluster.renew_since(lease, TTL);
            tell_answer(System.monotonic(), &renewed);
            match renewed {
                Ok((RenewResult::Renewed(_), since)) => {
                    belief.until = belief.until.max(since + TRUSTED);
                }
                Ok((RenewResult::Rejected { .. }, _)) => {
                    belief.until = belief.until.min(System.monotonic());
                }
                Err(_) => {}
            }
        }
        match self.dice.below(3) {
            0 => {}
            1 => {
                // As if it did not know: it writes after its lease is over.
                self.pause(2_500, 100);
                write();
            }
            _ => {
                belief.until = belief.until.min(System.monotonic());
                tell_event(&Event::Believes(belief));
                tell_answer(System.monotonic(), &self.cluster.release(lease));
            }
        }
    }

    fn pause(&mut self, ms: u64, luck: u64) {
        thread::sleep(Duration::from_millis(ms + self.dice.below(luck)));
    }
}

fn tell_answer<T>(now: Duration, answer: &Result<T, Error>) {
    tell_event(&match answer {
        Ok(_) => Event::Answered(now),
        Err(error) => Event::Failed(error.kind().into()),
    });
}

/// The planted engine: it stores whatever it is given, on top of whatever is there.
struct Blind(Arc<dyn Engine>);

impl Engine for Blind {
    fn load(&self, names: &[&str]) -> Result<Loaded, Error> {
        self.0.load(names)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored, Error> {
        thread::sleep(Duration::from_millis(20));
        let names: Vec<&str> = seen.rows.iter().map(|row| row.name.as_str()).collect();
        self.0.store(&self.0.load(&names)?, change)
    }

    fn list(&self) -> Result<Loaded, Error> {
        self.0.list()
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64, Error> {
        self.0.forget(seen)
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.0.wait_for_change(name, version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Error> {
        self.0.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored, Error> {
        self.0.commit_rows(name, token, rows)
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        self.0.most_rows(new_tokens)
    }

    fn facts(&self) -> Result<EngineFacts, Error> {
        self.0.facts()
    }
}

/// What the workers wrote down.
#[derive(Default)]
pub struct Record {
    /// Every grant by the worker and the moment at which it was told.
    beliefs: BTreeMap<(usize, Duration), Belief>,
    /// The largest token that each gate has let pass.
    gates: BTreeMap<String, i64>,
    /// Every write that a gate has let pass, in order: the name and its token.
    admitted: Vec<(String, i64)>,
    /// Writes under a token that was no longer the newest.
    pub refused: u64,
    /// By how much each worker's wall clock was ahead of this machine's, in seconds.
    pub clocks: BTreeSet<i64>,
    errors: BTreeMap<String, u64>,
    longest_silence: Duration,
    last_answer: Option<Duration>,
}

impl Record {
    /// Takes down what a worker tells.
    pub fn take(&mut self, worker: usize, event: Event) {
        match event {
            Event::Clock(wall_ms, counted) => {
                let here = System.wall_ms() - (System.monotonic() - counted).as_millis() as i64;
                self.clocks.insert((wall_ms - here + 500).div_euclid(1_000));
            }
            Event::Believes(belief) => _ = self.beliefs.insert((worker, belief.from), belief),
            Event::Writes(name, token) => match admit(self.gates.get(&name).copied(), token) {
                (AdmitResult::Admitted, _) => {
                    self.gates.insert(name.clone(), token);
                    self.admitted.push((name, token));
                }
                (AdmitResult::Stale { .. }, _) => self.refused += 1,
            },
            Event::Answered(at) => {
                let silence = at.saturating_sub(self.last_answer.unwrap_or(at));
                self.longest_silence = self.longest_silence.max(silence);
                self.last_answer = self.last_answer.max(Some(at));
            }
            Event::Failed(kind) => *self.errors.entry(kind).or_default() += 1,
        }
    }

    /// How many grants there were.
    pub fn grants(&self) -> usize {
        self.beliefs.len()
    }

    /// Returns every pair of grants that were believed in at the same time.
    pub fn two_believers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for beliefs in self.by_name().values() {
            // What was over when it arrived was never believed in.
            let live: Vec<_> = beliefs.iter().filter(|belief| belief.from < belief.until).collect();
            for (at, belief) in live.iter().enumerate() {
                let overlap = live[at + 1..].iter().find(|later| later.from < belief.until);
                found.extend(overlap.map(|later| format!("two believers: {belief:?} {later:?}")));
            }
        }
        found
    }

    /// Returns every token that came twice or out of order, and every write that a gate let pass
    /// after one under a newer token.
    pub fn bad_tokens(&self) -> Vec<String> {
        let mut found = Vec::new();
        for beliefs in self.by_name().values() {
            for pair in beliefs.windows(2).filter(|pair| pair[0].token >= pair[1].token) {
                found.push(format!("a token twice or out of order: {pair:?}"));
            }
        }
        found.extend(self.stale_accepts());
        found
    }

    /// Returns every write that a gate let pass after one under a newer token.
    pub fn stale_accepts(&self) -> Vec<String> {
        let mut largest: BTreeMap<&str, i64> = BTreeMap::new();
        let mut found = Vec::new();
        for (name, token) in &self.admitted {
            let newest = largest.entry(name).or_insert(*token);
            if token < newest {
                found.push(format!("a stale write to {name} under {token}, after {newest}"));
            }
            *newest = *token.max(newest);
        }
        found
    }

    /// Returns everything that must not happen.
    pub fn faults(&self) -> Vec<String> {
        [self.two_believers(), self.bad_tokens()].concat()
    }

    fn by_name(&self) -> BTreeMap<&str, Vec<&Belief>> {
        let mut names: BTreeMap<&str, Vec<&Belief>> = BTreeMap::new();
        for belief in self.beliefs.values() {
            names.entry(&belief.name).or_default().push(belief);
        }
        names.values_mut().for_each(|beliefs| beliefs.sort_by_key(|belief| belief.from));
        names
    }

    /// Tells how it went, in one line.
    pub fn summary(&self) -> String {
        let Record { refused, errors, longest_silence, .. } = self;
        format!(
            "{} grants, {} times two believers, {} tokens or writes out of order, {} writes, {refused} refused as stale, \
             errors {errors:?}, at most {} ms without an answer",
            self.grants(),
            self.two_believers().len(),
            self.bad_tokens().len(),
            self.admitted.len(),
            longest_silence.as_millis()
        )
    }
}

/// Where and how a worker works.
#[derive(Clone, Default)]
pub struct Job {
    /// The engine.
    pub url: String,
    /// How far its wall clock is ahead, as faketime has it: `+30s`; right if it is empty.
    pub clock: &'static str,
    /// What it does wrong.
    pub planted: Planted,
    /// The machine, and its number.
    pub machine: Option<(Arc<Network>, usize)>,
}

/// Workers, and what they tell. They end with the value.
pub struct Crew {
    program: &'static str,
    names: u64,
    workers: Vec<(Job, Option<Child>)>,
    readers: Vec<JoinHandle<()>>,
    record: Arc<Mutex<Record>>,
}

impl Crew {
    /// Gathers a crew without workers. `program` is the worker program.
    pub fn new(program: &'static str, names: u64) -> Self {
        let (workers, readers) = (Vec::new(), Vec::new());
        Crew { program, names, workers, readers, record: Arc::default() }
    }

    /// Starts a worker.
    pub fn hire(&mut self, job: Job) {
        self.workers.push((job, None));
        self.spawn(self.workers.len() - 1);
    }

    /// How many workers there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Checks whether there is no worker.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Starts a worker that was killed.
    pub fn spawn(&mut self, at: usize) {
        let (job, _) = &self.workers[at];
        let mut command = match &job.machine {
            Some((network, machine)) => network.command(*machine, self.program),
            None => Command::new(self.program),
        };
        command.args(["believe", &job.url, &at.to_string(), &self.names.to_string()]);
        command.arg(format!("{:?}", job.planted));
        let variables = clock(job.clock);
        command.envs(variables.iter().filter_map(|variable| variable.split_once('=')));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the worker starts");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let record = Arc::clone(&self.record);
        self.readers.push(thread::spawn(move || {
            // The last line of a worker that was killed may be a part of one.
            for event in lines.map_while(Result::ok).filter_map(|line| Event::parse(&line)) {
                record.lock().expect("no panic").take(at, event);
            }
        }));
        self.workers[at].1 = Some(child);
    }

    /// Sends a signal to a worker.
    pub fn signal(&self, at: usize, signal: i32) {
        if let Some(child) = &self.workers[at].1 {
            kill(child.id() as i32, signal);
        }
    }

    /// Kills a worker.
    pub fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.workers[at].1.take() {
            let _ = child.kill();
            let _ = child.wait();
            forget_clock(child.id());
        }
    }

    /// What they have told so far.
    pub fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().expect("no panic")
    }

    /// Ends the work, and returns what was written down.
    pub fn end(mut self) -> Record {
        (0..self.len()).for_each(|at| self.kill(at));
        self.readers.drain(..).for_each(|reader| reader.join().expect("no panic"));
        std::mem::take(&mut self.record())
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        (0..self.len()).for_each(|at| self.kill(at));
    }
}

/// Returns the variables that let a program see another wall clock, as faketime has it, or none if
/// the clock is to be right. The monotonic clocks stay as they are.
pub fn clock(clock: &str) -> Vec<String> {
    match (clock, faketime()) {
        ("", _) | (_, None) => Vec::new(),
        (clock, Some(library)) => vec![
            format!("LD_PRELOAD={}", library.display()),
            format!("FAKETIME={clock}"),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".into(),
            "DONT_FAKE_MONOTONIC=1".into(),
        ],
    }
}

/// Removes what faketime leaves behind of a process that was killed.
pub fn forget_clock(pid: u32) {
    for file in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        let _ = fs::remove_file(PathBuf::from("/dev/shm").join(file));
    }
}

/// Returns the library of faketime.
pub fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut files = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    let found = files.find(|file| file.exists());
    if found.is_none() {
        report("SKIPPED: wrong clocks, because faketime is not installed");
    }
    found
}
