//! How many holders an engine carries, simulated: processes whose keepers renew in batches, engines
//! that do one transaction after another at the speed that was measured, and a few seconds without
//! a leader.
//!
//! Nothing here is random: the same fleet gives the same numbers on every machine.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rig::Dice;

/// What an engine was measured to do. `make bench ROWS=B21` measures it.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Renewals per second, each in a transaction of its own.
    pub alone: f64,
    /// Renewals per second in transactions of [`BATCH`] rows.
    pub in_batches: f64,
}

/// Three members of etcd on one machine of two cores, together with their clients.
pub const THREE_MEMBERS: Speed = Speed { alone: 3_683.0, in_batches: 59_595.0 };

/// How many rows a transaction of etcd renews: `--max-txn-ops` is 128.
pub const BATCH: u32 = 127;

/// What a renewal adds to etcd's history until it is compacted, in bytes.
pub const HISTORY: f64 = 300.0;

const TTL_MS: f64 = 30_000.0;
/// A keeper renews three times per ttl, and up to a tenth earlier.
const INTERVAL_MS: f64 = TTL_MS / 3.0;
/// How long a holder trusts a renewal, from when it was asked for.
const TRUSTED_MS: f64 = 0.9 * TTL_MS;
/// How long no member answers when a leader dies, and when that happens.
const SILENCE_MS: f64 = 3_000.0;
const LEADER_DIES_MS: f64 = 40_000.0;
const END_MS: f64 = 80_000.0;

/// Holders, the processes that they are in, and the engines that their names are spread over.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many holds there are in all.
    pub holders: u32,
    /// How many of them each process has.
    pub in_each: u32,
    /// Over how many engines the names are spread, by prefix.
    pub engines: u32,
}

/// What became of a fleet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Requests per second to each engine.
    pub requests: f64,
    /// The part of its time that an engine works, before the leader dies.
    pub busy: f64,
    /// The slowest round of renewals before the leader dies, in ms.
    pub slowest_ms: f64,
    /// The slowest one after that, in ms.
    pub slowest_after_ms: f64,
    /// Holds that were lost.
    pub lost: u64,
    /// How fast each engine's history grows, in MB per minute.
    pub history: f64,
}

impl Speed {
    /// How long a transaction of so many rows takes: a part for itself, and a part for each row.
    fn transaction_ms(self, rows: u32) -> f64 {
        let (alone, batch) = (1_000.0 / self.alone, 1_000.0 * f64::from(BATCH) / self.in_batches);
        let row = (batch - alone) / f64::from(BATCH - 1);
        alone + row * f64::from(rows - 1)
    }
}

/// A process that renews what it has.
struct Process {
    rows: u32,
    /// How many rows of this round are renewed.
    done: u32,
    /// When this round began, and when the last one did that is answered.
    began: f64,
    trusted_from: f64,
    has_lost: bool,
}

impl Fleet {
    /// Lets one of the engines work, which is like the others.
    pub fn simulate(self, speed: Speed) -> Outcome {
        let holders = self.holders.div_ceil(self.engines);
        let mut dice = Dice::from(u64::from(holders) ^ u64::from(self.in_each) << 32);
        let mut processes = Vec::new();
        // Requests by when they arrive, in microseconds, and by process.
        let mut requests = BinaryHeap::new();
        let mut left = holders;
        while left > 0 {
            let rows = left.min(self.in_each);
            left -= rows;
            let began = INTERVAL_MS * dice.below(1_000_000) as f64 / 1e6;
            // It was granted when the last process was, at the latest.
            let trusted_from = began - INTERVAL_MS;
            requests.push(Reverse(((began * 1e3) as u64, processes.len())));
            processes.push(Process { rows, done: 0, began, trusted_from, has_lost: false });
        }
        let mut outcome = Outcome::default();
        let (mut free_at, mut worked, mut count) = (0.0_f64, 0.0, 0_u64);
        while let Some(Reverse((at, number))) = requests.pop() {
            let at = at as f64 / 1e3;
            if at > END_MS {
                break;
            }
            let process = &mut processes[number];
            let rows = (process.rows - process.done).min(BATCH);
            let takes = speed.transaction_ms(rows);
            let mut start = at.max(free_at);
            if (LEADER_DIES_MS..LEADER_DIES_MS + SILENCE_MS).contains(&start) {
                start = LEADER_DIES_MS + SILENCE_MS;
            }
            free_at = start + takes;
            if free_at < LEADER_DIES_MS {
                worked += takes;
                count += 1;
            }
            if free_at > process.trusted_from + TRUSTED_MS && !process.has_lost {
                process.has_lost = true;
                outcome.lost += u64::from(process.rows);
            }
            process.done += rows;
            // A keeper hears of its renewals when all of them are made.
            if process.done == process.rows {
                let slowest = match free_at < LEADER_DIES_MS {
                    true => &mut outcome.slowest_ms,
                    false => &mut outcome.slowest_after_ms,
                };
                *slowest = slowest.max(free_at - process.began);
            }
            let next = if process.done < process.rows {
                free_at
            } else {
                process.trusted_from = process.began;
                let early = 0.1 * dice.below(1_000_000) as f64 / 1e6;
                process.began = free_at.max(process.began + INTERVAL_MS * (1.0 - early));
                process.done = 0;
                process.began
            };
            requests.push(Reverse(((next * 1e3) as u64, number)));
        }
        outcome.requests = count as f64 / (LEADER_DIES_MS / 1e3);
        outcome.busy = worked / LEADER_DIES_MS;
        let renewals = f64::from(holders) / (0.95 * INTERVAL_MS / 1e3);
        outcome.history = 60.0 * renewals * HISTORY / 1e6;
        outcome
    }
}

/// The fleets that docs/cluster.md shows.
pub const FLEETS: [Fleet; 7] = [
    Fleet { holders: 1_000, in_each: 1_000, engines: 1 },
    Fleet { holders: 10_000, in_each: 1, engines: 1 },
    Fleet { holders: 100_000, in_each: 1_000, engines: 1 },
    Fleet { holders: 100_000, in_each: 1, engines: 1 },
    Fleet { holders: 100_000, in_each: 1, engines: 4 },
    Fleet { holders: 1_000_000, in_each: 1_000, engines: 1 },
    Fleet { holders: 1_000_000, in_each: 1_000, engines: 4 },
];

/// The table of docs/cluster.md.
pub fn table(speed: Speed) -> String {
    let mut text = "| holders | in each process | engines | requests/s to each | each works | slowest renewal | \
                    after a leader's death | holds lost | history of each |\n|---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for fleet in FLEETS {
        let Outcome { requests, busy, slowest_ms, slowest_after_ms, lost, history } =
            fleet.simulate(speed);
        text += &format!(
            "| {} | {} | {} | {} | {:.0}% | {} | {} | {} | {} MB/min |\n",
            grouped(fleet.holders.into()),
            grouped(fleet.in_each.into()),
            fleet.engines,
            grouped(requests.round() as u64),
            100.0 * busy,
            seconds(slowest_ms),
            seconds(slowest_after_ms),
            grouped(lost),
            grouped(history.round() as u64),
        );
    }
    text
}

fn seconds(ms: f64) -> String {
    format!("{:.1} s", ms / 1e3)
}

/// With a comma before every three digits.
fn grouped(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", grouped(number / 1_000), number % 1_000),
    }
}
