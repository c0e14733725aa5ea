//! Workers that claim, renew, work and release on an engine that fails, and the judge of what they believed.
//!
//! Each worker writes down from when until when it believed to have a name, all on one clock of this machine.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use litelease_cluster::{
    ClaimResult, Cluster, Error, Host, LeaseInfo, ReleaseResult, RenewResult, System,
};
use litelease_core::{AdmitResult, admit};

use crate::rig::Dice;

/// How long leases are.
pub const TTL: Duration = Duration::from_millis(1500);
const TRUSTED: Duration = Duration::from_millis(1350);

/// What the workers wrote down.
#[derive(Default)]
pub struct Record {
    /// Every grant: the name, the token, and from when until when its holder believed in it.
    pub beliefs: Vec<Belief>,
    /// What a gate in front of each name was asked, and what it said.
    gates: BTreeMap<String, i64>,
    /// Writes that the gates let pass, and that they refused.
    pub admitted: u64,
    /// Writes under a token that was no longer the newest.
    pub refused: u64,
    /// Errors by their kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// The longest time in which nobody got an answer.
    pub longest_silence: Duration,
    last_answer: Option<Duration>,
}

/// A grant, as its holder saw it.
#[derive(Clone, Debug)]
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

/// Lets workers work until they are told to stop.
pub struct Workers {
    stop: Arc<AtomicBool>,
    record: Arc<Mutex<Record>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Workers {
    /// Starts workers, each with a client of its own, on some names.
    pub fn start(count: usize, names: usize, connect: impl Fn(usize) -> Cluster) -> Self {
        let (stop, record) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let worker = |number: usize| {
            let cluster = connect(number);
            let (stop, record) = (Arc::clone(&stop), Arc::clone(&record));
            thread::spawn(move || work(number, names, &cluster, &stop, &record))
        };
        let threads = (0..count).map(worker).collect();
        Workers { stop, record, threads }
    }

    /// Ends the work, and returns what was written down.
    pub fn end(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no worker panics"));
        Arc::into_inner(self.record).expect("all have ended").into_inner().expect("no panic")
    }
}

fn work(number: usize, names: usize, cluster: &Cluster, stop: &AtomicBool, record: &Mutex<Record>) {
    let mut dice = Dice::from(number as u64 + 1);
    let owner = format!("worker {number}");
    while !stop.load(Ordering::Relaxed) {
        let name = format!("name {}", dice.below(names as u64));
        let claimed = cluster.claim_since(&name, &owner, TTL, 0);
        let now = System.counted();
        note(record, now, &claimed);
        match claimed {
            Ok((ClaimResult::Acquired(lease), since)) => {
                let belief = Belief { name, token: lease.token, from: now, until: since + TRUSTED };
                let belief = hold(cluster, &lease, belief, &mut dice, stop, record);
                record.lock().expect("no panic").beliefs.push(belief);
            }
            // Whoever waits looks often: a row that nobody looks at is not seen unchanged.
            Ok((ClaimResult::Busy(_), _)) => pause(50 + dice.below(100)),
            Err(_) => pause(20),
        }
    }
}

/// Holds a lease for a while, and then releases it, forgets it, or writes once more although it is over.
fn hold(
    cluster: &Cluster,
    lease: &LeaseInfo,
    mut belief: Belief,
    dice: &mut Dice,
    stop: &AtomicBool,
    record: &Mutex<Record>,
) -> Belief {
    let end = System.counted() + Duration::from_millis(dice.below(3000));
    while System.counted() < end && !stop.load(Ordering::Relaxed) {
        record.lock().expect("no panic").pass(lease);
        pause(100 + dice.below(200));
        if System.counted() >= belief.until {
            return belief;
        }
        let renewed = cluster.renew_since(lease, TTL);
        note(record, System.counted(), &renewed);
        match renewed {
            Ok((RenewResult::Renewed(_), since)) => {
                belief.until = belief.until.max(since + TRUSTED)
            }
            Ok((RenewResult::Rejected { .. }, _)) => {
                belief.until = belief.until.min(System.counted());
                return belief;
            }
            Err(_) => {}
        }
    }
    match dice.below(3) {
        0 => {}
        1 => {
            // As if the machine had slept: it writes after its lease is over.
            pause(2_500);
            record.lock().expect("no panic").pass(lease);
        }
        _ => {
            belief.until = belief.until.min(System.counted());
            let released: litelease_cluster::Result<ReleaseResult> = cluster.release(lease);
            note(record, System.counted(), &released);
        }
    }
    belief
}

fn pause(ms: u64) {
    thread::sleep(Duration::from_millis(ms));
}

fn note<T>(record: &Mutex<Record>, now: Duration, answer: &Result<T, Error>) {
    let mut record = record.lock().expect("no panic");
    match answer {
        Ok(_) => {
            let silence = now.saturating_sub(record.last_answer.unwrap_or(now));
            record.longest_silence = record.longest_silence.max(silence);
            record.last_answer = Some(now);
        }
        Err(error) => *record.errors.entry(error.kind()).or_default() += 1,
    }
}

impl Record {
    /// Writes through the gate of a name.
    pub fn pass(&mut self, lease: &LeaseInfo) {
        let largest = self.gates.get(&lease.name).copied();
        match admit(largest, lease.token) {
            (AdmitResult::Admitted, _) => {
                self.gates.insert(lease.name.clone(), lease.token);
                self.admitted += 1;
            }
            (AdmitResult::Stale { .. }, _) => self.refused += 1,
        }
    }

    /// Returns every pair of grants that were believed in at the same time, and every token that came twice or out of
    /// order.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut names: BTreeMap<&str, Vec<&Belief>> = BTreeMap::new();
        self.beliefs.iter().for_each(|belief| names.entry(&belief.name).or_default().push(belief));
        for beliefs in names.values_mut() {
            beliefs.sort_by_key(|belief| belief.from);
            for pair in beliefs.windows(2) {
                if pair[0].token >= pair[1].token {
                    faults.push(format!("a token twice or out of order: {pair:?}"));
                }
            }
            for (at, belief) in beliefs.iter().enumerate() {
                let later = &beliefs[at + 1..];
                let overlap = later.iter().find(|later| later.from < belief.until);
                faults.extend(overlap.map(|later| format!("two believers: {belief:?} {later:?}")));
            }
        }
        faults
    }

    /// Tells how it went, in one line.
    pub fn summary(&self) -> String {
        let Record { admitted, refused, errors, longest_silence, .. } = self;
        let (grants, ms) = (self.beliefs.len(), longest_silence.as_millis());
        format!(
            "{grants} grants, {admitted} writes, {refused} refused as stale, errors {errors:?}, at most {ms} ms without an answer"
        )
    }
}
