//! The long proofs, within a time budget: the list, and running it.
//!
//! A proof is a line in [`PROOFS`] and a function that tries until its time is up.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease_core::plan;

use crate::model::{PROTECTIONS, search};
use crate::mutant::TheRule;
use crate::power_cut::{Epoch, Journals, Setting, Tally, cut_power, cut_power_of_shared};
use crate::queue_cut::cut_power_of_queues;
use crate::rig::{Dice, report};
use crate::shards::history;
use crate::tick_model;

/// A long proof.
pub struct Proof {
    /// What it is called, on the command line too.
    pub name: &'static str,
    /// Its part of the time.
    pub share: u32,
    /// Tries until the time is up.
    pub run: fn(&Watch) -> Outcome,
}

/// Every long proof.
pub const PROOFS: &[Proof] = &[
    Proof { name: "power-cuts", share: 12, run: power_cuts },
    Proof { name: "power-cuts-shared", share: 4, run: power_cuts_shared },
    Proof { name: "power-cuts-without-epoch", share: 1, run: power_cuts_without_epoch },
    Proof { name: "power-cuts-queues", share: 4, run: power_cuts_queues },
    Proof {
        name: "queue-workers",
        share: 3,
        run: |watch| again_and_again(watch, "store", "queues::eight_workers"),
    },
    Proof { name: "model", share: 2, run: model },
    Proof { name: "kills", share: 3, run: |watch| again_and_again(watch, "store", "processes::") },
    Proof {
        name: "system-calls",
        share: 2,
        run: |watch| again_and_again(watch, "store", "system_calls::"),
    },
    Proof {
        name: "zombies",
        share: 3,
        run: |watch| again_and_again(watch, "fencing", "zombies::"),
    },
    Proof {
        name: "single-writer",
        share: 1,
        run: |watch| again_and_again(watch, "single_writer", "sixteen"),
    },
    Proof { name: "shards", share: 1, run: shards },
    Proof {
        name: "shards-processes",
        share: 2,
        run: |watch| again_and_again(watch, "holding", "shards::checkpoints_never_go_back"),
    },
    Proof {
        name: "sessions",
        share: 1,
        run: |watch| again_and_again(watch, "holding", "sessions::"),
    },
    Proof {
        name: "handoff",
        share: 1,
        run: |watch| again_and_again(watch, "rules", "handoff_model::"),
    },
    Proof { name: "ticks", share: 1, run: ticks },
    Proof { name: "ticks-processes", share: 2, run: ticks_of_processes },
    Proof { name: "schedules", share: 1, run: schedules },
    Proof {
        name: "shared-reads",
        share: 1,
        run: |watch| again_and_again(watch, "holding", "cached::no_reader"),
    },
    Proof { name: "forks", share: 1, run: |watch| again_and_again(watch, "sql", "holds::no_fork") },
    Proof {
        name: "agreement",
        share: 2,
        run: |watch| again_and_again(watch, "rules", "agreement::"),
    },
    Proof {
        name: "journeys",
        share: 2,
        run: |watch| again_and_again(watch, "store", "journeys::the_journeys_hold_under_stress"),
    },
];

/// How long a proof may take, and its luck.
pub struct Watch {
    /// When to stop.
    pub until: Instant,
    /// Where its random numbers begin.
    pub seed: u64,
    name: &'static str,
}

/// What came of a proof.
pub struct Outcome {
    /// What was tried, and how often.
    pub tried: String,
    /// What was found: nothing, if all is well.
    pub found: Vec<String>,
}

impl Watch {
    /// Whether the time is up.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Shows how far a proof has come.
    pub fn show(&self, progress: &str) {
        let left = self.until.saturating_duration_since(Instant::now()).as_secs();
        report(&format!("  {}: {progress} ({left} s left)", self.name));
    }
}

/// Runs all proofs, or those that are named, and prints one table. Answers whether nothing was
/// found.
pub fn run(minutes: f64, seed: u64, names: &[&str]) -> bool {
    let chosen = |proof: &&Proof| names.is_empty() || names.contains(&proof.name);
    let shares: u32 = PROOFS.iter().filter(chosen).map(|proof| proof.share).sum();
    report(&format!("torture: {minutes} minutes, LITELEASE_SEED={seed}"));
    let mut table = Vec::new();
    for proof in PROOFS.iter().filter(chosen) {
        let start = Instant::now();
        let time =
            Duration::from_secs_f64(60.0 * minutes * f64::from(proof.share) / f64::from(shares));
        report(&format!("{} ({} s)", proof.name, time.as_secs()));
        let watch = Watch { until: start + time, seed, name: proof.name };
        let outcome = (proof.run)(&watch);
        table.push((proof.name, start.elapsed(), outcome));
    }
    println!("\n{:<26} {:>6}  {:<8} tried", "proof", "s", "found");
    let mut is_well = true;
    for (name, took, Outcome { tried, found }) in &table {
        is_well &= found.is_empty();
        let word = if found.is_empty() { "nothing" } else { "FAULT" };
        println!("{name:<26} {:>6}  {word:<8} {tried}", took.as_secs());
        found.iter().for_each(|found| println!("    {found}"));
    }
    is_well
}

/// The most files that are looked at: after that, more of the same proves little.
const IMAGES: u64 = 1_000_000;

fn power_cuts(watch: &Watch) -> Outcome {
    let tallies = cut_everywhere(watch, Epoch::On);
    let mut all = Tally::default();
    let mut found = Vec::new();
    for (setting, tally) in tallies {
        let is_damaged = tally.damaged > 0 && !setting.may_be_damaged();
        let is_lost = tally.lost > 0 && setting.is_strong();
        if tally.repeated > 0 || is_damaged || is_lost {
            found.push(format!("{setting}: {tally}: {}", tally.first.clone().unwrap_or_default()));
        }
        report(&format!("  {setting}: {tally}"));
        all.add(tally);
    }
    Outcome { tried: all.to_string(), found }
}

/// Connections of different strength on one file.
fn power_cuts_shared(watch: &Watch) -> Outcome {
    let kinds = vec![Journals::Wal, Journals::Rollback];
    let cut =
        |journals, seed| cut_power_of_shared(journals, Epoch::On, 500, Some(watch.until), seed);
    let mut all = Tally::default();
    let mut found = Vec::new();
    for (journals, tally) in cut_in_turn(watch, kinds, cut) {
        if tally.repeated > 0 || tally.damaged > 0 {
            let first = tally.first.clone().unwrap_or_default();
            found.push(format!("{journals:?}: {tally}: {first}"));
        }
        report(&format!("  {journals:?}: {tally}"));
        all.add(tally);
    }
    Outcome { tried: all.to_string(), found }
}

/// Queues in every setting.
fn power_cuts_queues(watch: &Watch) -> Outcome {
    let cut = |setting, seed| cut_power_of_queues(setting, Epoch::On, 500, Some(watch.until), seed);
    let mut all = Tally::default();
    let mut found = Vec::new();
    for (setting, tally) in cut_in_turn(watch, Setting::all().collect(), cut) {
        let is_damaged = tally.damaged > 0 && !setting.may_be_damaged();
        let is_lost = tally.lost > 0 && setting.is_strong();
        if tally.repeated > 0 || is_damaged || is_lost {
            found.push(format!("{setting}: {tally}: {}", tally.first.clone().unwrap_or_default()));
        }
        report(&format!("  {setting}: {tally}"));
        all.add(tally);
    }
    Outcome { tried: all.to_string(), found }
}

/// The negative control: where commits get lost, tokens must come back.
fn power_cuts_without_epoch(watch: &Watch) -> Outcome {
    let mut all = Tally::default();
    let mut found = Vec::new();
    for (setting, tally) in cut_everywhere(watch, Epoch::Off) {
        let expects = matches!(
            (setting.journal, setting.synchronous),
            ("WAL", "NORMAL") | ("DELETE", "FULL")
        );
        if expects && tally.images > 1_000 && tally.repeated == 0 {
            found
                .push(format!("{setting}: no token came back, so the cuts prove nothing: {tally}"));
        }
        report(&format!("  {setting}: {tally}"));
        all.add(tally);
    }
    Outcome { tried: format!("{all}, as must be"), found }
}

/// Cuts the power in all settings.
fn cut_everywhere(watch: &Watch, epoch: Epoch) -> Vec<(Setting, Tally)> {
    let cut = |setting, seed| cut_power(setting, epoch, 500, Some(watch.until), seed);
    cut_in_turn(watch, Setting::all().collect(), cut)
}

/// Cuts the power in each of these ways in turn, with ever another seed, on all processors.
fn cut_in_turn<T: Copy + Sync>(
    watch: &Watch,
    kinds: Vec<T>,
    cut: impl Fn(T, u64) -> Tally + Sync,
) -> Vec<(T, Tally)> {
    let tallies = Mutex::new(vec![Tally::default(); kinds.len()]);
    let (next, images) = (AtomicU64::new(0), AtomicU64::new(0));
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !watch.is_over() && images.load(Ordering::Relaxed) < IMAGES {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let which = number as usize % kinds.len();
                    let seed = watch.seed.wrapping_add(number / kinds.len() as u64);
                    let tally = cut(kinds[which], seed);
                    let before = images.fetch_add(tally.images, Ordering::Relaxed);
                    if before / 50_000 != (before + tally.images) / 50_000 {
                        watch.show(&format!("{} files", before + tally.images));
                    }
                    tallies.lock().expect("no panic")[which].add(tally);
                }
            });
        }
    });
    kinds.into_iter().zip(tallies.into_inner().expect("no panic")).collect()
}

fn model(watch: &Watch) -> Outcome {
    let mut found = Vec::new();
    for protection in PROTECTIONS {
        if search(Some(protection), 3, watch.left()).violation.is_none() {
            found.push(format!("{protection:?} is not needed, or the time was too short"));
        }
    }
    let all = search(None, 4, watch.left());
    found.extend(all.violation);
    let part = if all.is_all { "all there are" } else { "before the time was up" };
    let tried =
        format!("{} states, {part}; {} protections taken away", all.states, PROTECTIONS.len());
    Outcome { tried, found }
}

/// Every history of ticks, as long as the time and eight events allow.
fn ticks(watch: &Watch) -> Outcome {
    let (mut length, mut states, mut found) = (0, 0, Vec::new());
    while length < 8 && found.is_empty() && !watch.is_over() {
        length += 1;
        let searched = tick_model::search(&TheRule, length);
        states = searched.states;
        found.extend(searched.broken.map(|broken| format!("{broken:?}")));
        watch.show(&format!("histories of up to {length} events, {states} states"));
    }
    Outcome { tried: format!("all histories of up to {length} events, {states} states"), found }
}

/// Schedulers in eight processes, programs and commands, with clocks that differ by ten seconds.
fn ticks_of_processes(watch: &Watch) -> Outcome {
    let mut pytest = Command::new("target/python/system/bin/python");
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "no_effect_comes_twice"]);
    pytest.arg("python/tests/test_ticks.py").env("LITELEASE_STRESS_PROCESSES", "8");
    pytest.env("LITELEASE_STRESS_SECONDS", watch.left().as_secs().max(10).to_string());
    pytest.env("LITELEASE_SEED", watch.seed.to_string());
    once(pytest, "eight processes that are killed and stopped, once")
}

/// Every change of forty years in twelve zones, against a count of its minutes.
fn schedules(_: &Watch) -> Outcome {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "-q", "-p", "litelease-hold", "--features", "schedules"]);
    cargo.args(["--test", "schedule", "every_change"]).env("LITELEASE_THOROUGH", "1");
    once(cargo, "all changes of twelve zones in forty years")
}

/// Runs a command of the project once, in its folder.
fn once(mut command: Command, tried: &str) -> Outcome {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let found = match command.current_dir(root).output() {
        Ok(output) if output.status.success() => Vec::new(),
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            report(&String::from_utf8_lossy(&text));
            vec!["it failed: see above".into()]
        }
        Err(error) => vec![format!("it does not run: {error}")],
    };
    Outcome { tried: tried.into(), found }
}

/// Random histories of a group that shares shards.
fn shards(watch: &Watch) -> Outcome {
    let (mut dice, mut histories, mut found) = (Dice::from(watch.seed), 0u64, Vec::new());
    while found.is_empty() && histories < 1_000_000 && !watch.is_over() {
        found.extend(history(plan, &mut dice).err());
        histories += 1;
        if histories % 100_000 == 0 {
            watch.show(&format!("{histories} histories"));
        }
    }
    Outcome { tried: format!("{histories} histories of a group"), found }
}

impl Watch {
    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now()).max(Duration::from_secs(1))
    }
}

/// Runs some tests of a test program of this crate until the time is up, each time with another
/// seed. `filter` selects them by the beginning or any other part of their names.
pub fn again_and_again(watch: &Watch, test: &str, filter: &str) -> Outcome {
    let (mut rounds, mut found) = (0, Vec::new());
    while found.is_empty() && (rounds == 0 || !watch.is_over()) {
        let seed = watch.seed.wrapping_add(rounds);
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["proof", "-q", "--test", test, "--", filter]);
        cargo.env("LITELEASE_SEED", seed.to_string());
        cargo.env("LITELEASE_ITEMS", "10000");
        cargo.env("LITELEASE_WRITES", "1000");
        cargo.env("LITELEASE_ZOMBIES", "100");
        cargo.env("LITELEASE_STRESS_SECONDS", watch.left().as_secs().clamp(1, 60).to_string());
        match cargo.output() {
            // A filter that fits no test would succeed, and prove nothing.
            Ok(output) if has_run_no_test(&output.stdout) => {
                found.push(format!("no test of {test} is called {filter}"));
            }
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text).into_owned();
                let panic = text.lines().skip_while(|line| !line.contains("panicked")).take(3);
                found.push(format!("seed {seed}: {}", panic.collect::<Vec<_>>().join(" ")));
                report(&text);
            }
            Err(error) => found.push(format!("cargo does not run: {error}")),
        }
        rounds += 1;
        watch.show(&format!("{rounds} rounds"));
    }
    Outcome { tried: format!("{rounds} rounds of {test} {filter}"), found }
}

fn has_run_no_test(stdout: &[u8]) -> bool {
    stdout.windows(16).any(|words| words == b"running 0 tests\n")
}
