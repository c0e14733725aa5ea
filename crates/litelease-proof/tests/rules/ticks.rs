//! Every short history of ticks keeps every promise, and each planted bug breaks one.

use std::env;
use std::time::Instant;

use litelease_proof::mutant::{Rules, TheRule};
use litelease_proof::rig::report;
use litelease_proof::tick_model::*;
use litelease_proof::tick_mutant::*;

/// How many events the longest histories have, unless `LITELEASE_HISTORIES` says otherwise. The
/// long form in `make torture` has eight.
const LENGTH: usize = 6;

#[test]
fn every_short_history_of_ticks_keeps_every_promise() {
    let length = env::var("LITELEASE_HISTORIES").map_or(LENGTH, |length| length.parse().unwrap());
    let start = Instant::now();
    let found = search(&TheRule, length);
    let seconds = start.elapsed().as_secs_f32();
    let states = found.states;
    report(&format!(
        "ticks: histories of up to {length} events, {states} states in {seconds:.1} s"
    ));
    assert_eq!(found.broken, None);
    assert!(states > 20_000, "only {states} states");
}

#[track_caller]
fn check_finds(rules: impl Rules, promise: Broken) {
    let (broken, history) = search(&rules, LENGTH).broken.expect("the bug was not found");
    report(&format!("ticks: {broken}: broken by {history:?}"));
    assert_eq!(broken, promise);
}

#[test]
fn a_bare_lease_is_found() {
    check_finds(TickByLeaseAlone, FORWARD);
}

#[test]
fn attempts_per_caller_are_found() {
    check_finds(AttemptsPerCaller, ATTEMPTS);
}

#[test]
fn attempts_that_are_not_counted_are_found() {
    check_finds(AttemptsNotCounted, ATTEMPTS);
}

#[test]
fn a_transfer_without_the_tick_is_found() {
    check_finds(TransferForgetsTick, HOLDER_FINISHES);
}

#[test]
fn a_purge_with_the_tick_is_found() {
    check_finds(PurgeForgetsTick, FORWARD);
}

#[test]
fn a_skip_that_lowers_is_found() {
    check_finds(SkipLowers, FORWARD);
}

#[test]
fn a_zombie_that_finishes_is_found() {
    check_finds(FinishByZombie, HOLDER_FINISHES);
}

#[test]
fn a_finish_that_asks_the_clock_is_found() {
    check_finds(FinishByClock, HOLDER_FINISHES);
}

#[test]
fn a_claimant_that_waits_for_a_taken_tick_is_found() {
    check_finds(BusyBeforeTaken, BUSY_HELPS);
}

#[test]
fn a_tick_of_the_future_is_found() {
    check_finds(FutureGranted, NEAR);
}

#[test]
fn a_tick_opened_again_under_its_old_token_is_found() {
    check_finds(AgainKeepsToken, HOLDER_FINISHES);
}
