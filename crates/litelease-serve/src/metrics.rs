//! Metrics in the text format of Prometheus. No label has anything of a pool in it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use crate::access::Caller;

/// The counters of one service.
#[derive(Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    grants: AtomicU64,
    commits: AtomicU64,
    jobs: AtomicU64,
    commit_micros: AtomicU64,
    failures: AtomicU64,
    waiters: AtomicUsize,
    connections: AtomicUsize,
    key_changes: AtomicU64,
    /// The names of the access keys, for the log.
    key_names: RwLock<HashMap<Caller, Arc<str>>>,
    /// For each name with ticks: how many began late, and how many were passed by a newer one.
    ticks: Mutex<BTreeMap<String, TickCounts>>,
}

/// How many ticks of a name began late, and how many were begun, not finished, and passed by a
/// newer one.
#[derive(Clone, Copy, Default)]
struct TickCounts {
    late: u64,
    missed: u64,
}

/// The most names that metrics have, and the label of the others together.
pub(crate) const MOST_NAMES: usize = 100;
pub(crate) const OTHERS: &str = "other";

/// A tick that begins later after its time is late.
const LATE_MS: i64 = 60_000;

impl Metrics {
    pub(crate) fn answered(&self, call: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((call, status)).or_default() += 1;
    }

    pub(crate) fn lent(&self) {
        self.grants.fetch_add(1, Relaxed);
    }

    pub(crate) fn committed(&self, jobs: usize, took: Duration) {
        self.commits.fetch_add(1, Relaxed);
        self.jobs.fetch_add(jobs as u64, Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.commit_micros.fetch_add(micros, Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    pub(crate) fn waiters(&self, waiters: usize) {
        self.waiters.store(waiters, Relaxed);
    }

    pub(crate) fn connected(&self, connections: usize) {
        self.connections.store(connections, Relaxed);
    }

    /// Counts that access keys may have changed.
    pub(crate) fn keys_changed(&self) {
        self.key_changes.fetch_add(1, Release);
    }

    /// Sets the names of the access keys.
    pub(crate) fn name_keys(&self, names: HashMap<Caller, Arc<str>>) {
        *self.key_names.write().unwrap_or_else(PoisonError::into_inner) = names;
    }

    /// Returns the name of a client's access key, if it has a valid one.
    pub(crate) fn key_name(&self, caller: Caller) -> Option<Arc<str>> {
        let names = self.key_names.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&caller).cloned()
    }

    /// Returns how often access keys may have changed.
    pub(crate) fn key_changes(&self) -> u64 {
        self.key_changes.load(Acquire)
    }

    /// Counts a tick that has begun.
    pub(crate) fn tick_begun(&self, name: &str, late_ms: i64, has_passed: bool) {
        let mut ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = ticks.contains_key(name) || ticks.len() < MOST_NAMES;
        let counts = ticks.entry(if is_known { name } else { OTHERS }.into()).or_default();
        counts.late += u64::from(late_ms > LATE_MS);
        counts.missed += u64::from(has_passed);
    }

    /// Returns the metrics of ticks as text. `done` has how many seconds ago the newest tick of
    /// each name was planned that was done.
    pub(crate) fn ticks_text(&self, done: &[(String, f64)]) -> String {
        let ticks = self.ticks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: Vec<(&str, String)>| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (of, value) in values {
                let _ = writeln!(text, "{name}{{name=\"{}\"}} {value}", escaped(of));
            }
        };
        let done = done.iter().map(|(of, age)| (of.as_str(), age.to_string()));
        let count = |number: fn(&TickCounts) -> u64| {
            ticks.iter().map(|(of, counts)| (of.as_str(), number(counts).to_string())).collect()
        };
        let help = "How long ago the newest tick was planned that was done.";
        metric("litelease_tick_done_seconds", "gauge", help, done.collect());
        let help = "Ticks that began more than a minute after their time.";
        metric("litelease_ticks_late_total", "counter", help, count(|counts| counts.late));
        let help = "Ticks that were begun, not finished, and passed by a newer one.";
        metric("litelease_ticks_missed_total", "counter", help, count(|counts| counts.missed));
        text
    }

    /// Returns all metrics but those of ticks as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, value: String| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            text.push_str(&value);
        };
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let name = "litelease_requests_total";
        let lines = requests.iter().map(|((call, status), count)| {
            format!("{name}{{call=\"{call}\",status=\"{status}\"}} {count}\n")
        });
        metric(name, "counter", "Requests, by call and status.", lines.collect());
        for (name, kind, help, value) in [
            (
                "litelease_grants_total",
                "counter",
                "Slots lent out, names granted and items delivered.",
                self.grants.load(Relaxed).to_string(),
            ),
            (
                "litelease_commits_total",
                "counter",
                "Durable commits.",
                self.commits.load(Relaxed).to_string(),
            ),
            (
                "litelease_jobs_total",
                "counter",
                "Requests that shared them.",
                self.jobs.load(Relaxed).to_string(),
            ),
            (
                "litelease_commit_seconds_total",
                "counter",
                "Time spent in commits.",
                (self.commit_micros.load(Relaxed) as f64 / 1e6).to_string(),
            ),
            (
                "litelease_failures_total",
                "counter",
                "Commits that failed.",
                self.failures.load(Relaxed).to_string(),
            ),
            (
                "litelease_waiters",
                "gauge",
                "Requests that wait for a slot, a name or an item.",
                self.waiters.load(Relaxed).to_string(),
            ),
            (
                "litelease_connections",
                "gauge",
                "Open connections.",
                self.connections.load(Relaxed).to_string(),
            ),
        ] {
            metric(name, kind, help, format!("{name} {value}\n"));
        }
        text
    }
}

/// Writes a name as the value of a label.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
