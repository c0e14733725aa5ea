//! Every interleaving of a few verbs on an engine whose requests and answers get lost, late or
//! doubled.
//!
//! Not a sample: all histories within the bounds, with the promises checked after each step. The
//! same walk over engines and clients with planted bugs must find each of them.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use litelease_proof::interleave::{Bounds, Bug, find, stroll, walk};
use litelease_proof::rig::{Dice, report};

/// Two clients do four verbs, two of them each, while time goes on twice, and no call fails.
const SMALL: Bounds = Bounds {
    clients: 2,
    verbs_each: 2,
    verbs: 4,
    faults: 0,
    ticks: 2,
    failovers: 0,
    has_clock: false,
    limits: false,
    until: None,
};

/// Three clients do three verbs each, and much goes wrong.
const LARGE: Bounds =
    Bounds { clients: 3, verbs_each: 3, verbs: 9, faults: 3, ticks: 6, failovers: 1, ..SMALL };

/// Walks through all histories within several bounds.
fn walk_all(bounds: &[Bounds]) {
    let next = Mutex::new(bounds.iter());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(bounds) = { next.lock().unwrap().next() } {
                    let start = Instant::now();
                    let walked = walk(*bounds, None);
                    let (worlds, seconds) = (walked.worlds, start.elapsed().as_secs_f32());
                    report(&format!(
                        "interleavings: {bounds:?}: {worlds} worlds in {seconds:.1} s"
                    ));
                    assert_eq!(walked.broken, None);
                    assert!(walked.is_all);
                }
            });
        }
    });
}

#[test]
fn every_short_history_keeps_every_promise() {
    let two = Bounds { verbs: 2, ..SMALL };
    walk_all(&[
        Bounds { verbs: 3, ..SMALL },
        Bounds { clients: 3, verbs: 3, verbs_each: 1, ..SMALL },
        Bounds { faults: 1, ..two },
        Bounds { faults: 1, has_clock: true, ..two },
        Bounds { limits: true, ticks: 1, verbs: 3, ..SMALL },
        Bounds { limits: true, faults: 1, ticks: 1, has_clock: true, ..two },
        Bounds { failovers: 1, ticks: 1, ..two },
        Bounds { failovers: 1, ticks: 1, has_clock: true, ..two },
        // A renewal is stored, its answer is lost, and a failover sets the clock past its lease.
        Bounds { clients: 1, faults: 1, failovers: 1, ticks: 0, has_clock: true, ..two },
    ]);
}

/// Some millions of worlds: only with `LITELEASE_STRESS_SECONDS`, which `make torture-cluster`
/// sets.
#[test]
fn every_history_that_is_a_little_longer_keeps_every_promise() {
    if std::env::var_os("LITELEASE_STRESS_SECONDS").is_none() {
        return;
    }
    let three = Bounds { verbs: 3, ..SMALL };
    let two = Bounds { verbs: 2, ..SMALL };
    walk_all(&[
        Bounds { failovers: 1, ..two },
        Bounds { failovers: 1, has_clock: true, ..two },
        Bounds { clients: 3, verbs_each: 2, faults: 1, ..three },
        SMALL,
        Bounds { faults: 1, ..SMALL },
        Bounds { faults: 1, has_clock: true, ..three },
        Bounds { limits: true, faults: 1, ticks: 1, ..three },
        Bounds { verbs: 2, faults: 2, ticks: 3, ..SMALL },
        Bounds { verbs: 2, faults: 1, failovers: 1, ..SMALL },
        Bounds { verbs: 2, faults: 1, failovers: 1, has_clock: true, ..SMALL },
    ]);
}

/// Histories that are too many to try all: as many as the time allows, each time others.
#[test]
fn longer_histories_keep_every_promise() {
    let until = Some(crate::end_of_stress() + Duration::from_secs(3));
    thread::scope(|scope| {
        for has_clock in [false, true] {
            scope.spawn(move || {
                let bounds = Bounds { has_clock, until, limits: true, ..LARGE };
                let mut dice = Dice::new("interleavings");
                let walked = stroll(bounds, None, &mut dice);
                report(&format!("interleavings: {bounds:?}: {} random steps", walked.worlds));
                assert_eq!(walked.broken, None);
            });
        }
    });
}

#[track_caller]
fn check_finds(bug: Bug, bounds: Bounds, promise: &str) {
    let found = find(bounds, bug);
    let (broken, history) = found.broken.expect("the planted bug was not found");
    report(&format!("interleavings: {bug:?}: {broken}: by {}", history.join(" ")));
    assert_eq!(broken, promise);
}

const ONE_OWNER: &str = "at most one client believes to have the name";
const TOKENS_GROW: &str = "every grant has a larger token than all before it";
const NO_MEANS_NO: &str = "a no changes nothing";

#[test]
fn a_store_that_does_not_compare_is_found() {
    check_finds(Bug::NoCompare, SMALL, TOKENS_GROW);
}

#[test]
fn a_compare_on_the_token_alone_is_found() {
    check_finds(Bug::CompareOnToken, SMALL, ONE_OWNER);
}

#[test]
fn a_mark_that_is_not_compared_is_found() {
    check_finds(Bug::MarkNotCompared, Bounds { verbs_each: 3, ..SMALL }, TOKENS_GROW);
}

#[test]
fn a_floor_that_is_not_read_is_found() {
    check_finds(Bug::FloorNotRead, SMALL, TOKENS_GROW);
}

#[test]
fn an_incarnation_that_is_not_read_is_found() {
    check_finds(Bug::BootNotRead, Bounds { failovers: 1, ..SMALL }, TOKENS_GROW);
}

#[test]
fn a_claimant_that_trusts_its_own_clock_is_found() {
    check_finds(Bug::OwnClock, SMALL, ONE_OWNER);
}

#[test]
fn a_lost_answer_that_is_taken_for_a_conflict_is_found() {
    let bounds = Bounds { faults: 1, ..SMALL };
    check_finds(Bug::LostIsConflict, bounds, NO_MEANS_NO);
}

#[test]
fn a_version_that_does_not_change_with_a_renewal_is_found() {
    check_finds(Bug::VersionIsToken, SMALL, ONE_OWNER);
}

#[test]
fn trust_that_is_counted_from_the_answer_is_found() {
    let bounds = Bounds { faults: 1, ..SMALL };
    check_finds(Bug::TrustFromAnswer, bounds, ONE_OWNER);
}

#[test]
fn a_purge_that_deletes_before_it_raises_the_floor_is_found() {
    check_finds(Bug::PurgeBeforeFloor, SMALL, TOKENS_GROW);
}

#[test]
fn a_limit_that_is_not_compared_is_found() {
    let bounds = Bounds { limits: true, ..SMALL };
    check_finds(Bug::SideNotCompared, bounds, "a grant that is limited is not renewed");
}
