//! The verbs on an engine without a clock: what is counted, what the wall clock may decide, and
//! what is refused before anything is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use std::time::Duration;

use litelease_cluster::engine::{Change, Loaded, LoadedRow, RowChange, Stored};
use litelease_cluster::{
    ClaimResult, Cluster, Engine, EngineFacts, Error, GrantRef, Host, Lease, MemoryEngine, Options,
    Reason, ReleaseResult, RenewResult, Result, Status, TransferResult,
};

/// A machine whose clocks a test steps.
#[derive(Default)]
struct Machine {
    wall_ms: AtomicI64,
    counted_ms: AtomicI64,
    attempts: AtomicI64,
}

impl Machine {
    fn at(wall_ms: i64) -> Arc<Self> {
        let machine = Machine::default();
        machine.wall_ms.store(wall_ms, Ordering::Relaxed);
        machine.attempts.store(wall_ms * 1_000, Ordering::Relaxed);
        Arc::new(machine)
    }

    fn passes(&self, ms: i64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
        self.counted_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Host for Machine {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.counted_ms.load(Ordering::Relaxed).unsigned_abs())
    }

    fn random_id(&self) -> i64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn pause(&self, time: Duration) {
        self.passes(time.as_millis().max(1) as i64);
    }
}

const TTL: Duration = Duration::from_millis(1_000);
const NOW: i64 = 1_000_000;

fn client(engine: &MemoryEngine, machine: &Arc<Machine>) -> Cluster {
    Cluster::with(Arc::new(engine.clone()), machine.clone(), Options::default())
}

#[track_caller]
fn acquired(claimed: Result<ClaimResult>) -> Lease {
    claimed.unwrap().acquired().expect("nobody has it")
}

#[track_caller]
fn busy(claimed: Result<ClaimResult>) -> Lease {
    match claimed.unwrap() {
        ClaimResult::Busy(lease) => lease,
        acquired => panic!("{acquired:?}"),
    }
}

#[test]
fn a_dead_holder_is_succeeded_once_its_row_was_seen_unchanged_for_a_whole_ttl() {
    let engine = MemoryEngine::new();
    let (one, other) = (Machine::at(NOW), Machine::at(NOW));
    let (a, b) = (client(&engine, &one), client(&engine, &other));
    acquired(a.claim("x", "a", TTL));
    // The lease ended long ago by the clock of b, but b has only just seen it.
    other.passes(5_000);
    busy(b.claim("x", "b", TTL));
    other.passes(999);
    busy(b.claim("x", "b", TTL));
    other.passes(1);
    assert_eq!(acquired(b.claim("x", "b", TTL)).token, 2);
}

#[test]
fn every_renewal_that_a_claimant_sees_starts_its_count_again() {
    let engine = MemoryEngine::new();
    let (one, other) = (Machine::at(NOW), Machine::at(NOW));
    let (a, b) = (client(&engine, &one), client(&engine, &other));
    let lease = acquired(a.claim("x", "a", TTL));
    for _ in 0..5 {
        busy(b.claim("x", "b", TTL));
        [&one, &other].iter().for_each(|machine| machine.passes(600));
        assert!(matches!(a.renew(&lease, TTL).unwrap(), RenewResult::Renewed(_)));
    }
    busy(b.claim("x", "b", TTL));
}

#[test]
fn a_renewal_with_a_shorter_ttl_leaves_the_holder_what_it_had() {
    let engine = MemoryEngine::new();
    let (one, other) = (Machine::at(NOW), Machine::at(NOW));
    let (a, b) = (client(&engine, &one), client(&engine, &other));
    let lease = acquired(a.claim("x", "a", 10 * TTL));
    one.passes(1_000);
    // The clock of a is set: the ttl that is stored must not depend on it.
    one.wall_ms.fetch_add(3_600_000, Ordering::Relaxed);
    assert!(matches!(a.renew(&lease, TTL).unwrap(), RenewResult::Renewed(_)));
    busy(b.claim("x", "b", TTL));
    other.passes(8_999);
    busy(b.claim("x", "b", TTL));
    other.passes(1);
    acquired(b.claim("x", "b", TTL));
}

/// The clock of the holder was 60 s slow, and that of the claimant 60 s fast: the lease seemed to
/// have ended long ago when it had just begun.
#[test]
fn a_lease_is_taken_at_once_only_if_two_clocks_that_are_both_wrong_agree_that_it_has_ended() {
    let engine = MemoryEngine::new();
    let slow = Machine::at(NOW - 60_000);
    acquired(client(&engine, &slow).claim("x", "a", TTL));
    let fast = |ms: i64| client(&engine, &Machine::at(NOW + ms + 60_000));
    busy(fast(0).claim("x", "b", TTL));
    busy(fast(999).claim("x", "b", TTL));
    assert_eq!(acquired(fast(1_000).claim("x", "b", TTL)).token, 2);
}

#[test]
fn a_holder_renews_whatever_its_wall_clock_says() {
    let engine = MemoryEngine::new();
    let machine = Machine::at(NOW);
    let a = client(&engine, &machine);
    let lease = acquired(a.claim("x", "a", TTL));
    for hours in [1, -2, 24] {
        machine.passes(500);
        machine.wall_ms.fetch_add(hours * 3_600_000, Ordering::Relaxed);
        assert!(matches!(a.renew(&lease, TTL).unwrap(), RenewResult::Renewed(_)), "{hours} h");
    }
    machine.passes(1_000);
    let late = a.renew(&lease, TTL).unwrap();
    assert!(matches!(late, RenewResult::Rejected { reason: Reason::Expired, .. }), "{late:?}");
}

/// A process that sees a row for the first time must not claim the name before a whole ttl has
/// passed. It took that for a lease that was live, and prolonged it.
#[test]
fn a_fresh_process_revives_nothing_and_takes_nothing_early() {
    for later_ms in [1_000, 43_000, 200_000] {
        let engine = MemoryEngine::new();
        let lease = acquired(client(&engine, &Machine::at(NOW)).claim("x", "a", TTL));
        let fresh = || client(&engine, &Machine::at(NOW + later_ms));
        for _ in 0..2 {
            let renewed = fresh().renew(&lease, TTL).unwrap();
            let is_expired =
                matches!(renewed, RenewResult::Rejected { reason: Reason::Expired, .. });
            assert!(is_expired, "{later_ms}: {renewed:?}");
            let renewed = fresh().renew_all(std::slice::from_ref(&lease), TTL).remove(0).unwrap();
            let is_expired =
                matches!(renewed, RenewResult::Rejected { reason: Reason::Expired, .. });
            assert!(is_expired, "{later_ms}: {renewed:?}");
            let handed = fresh().transfer(&lease, "b", TTL).unwrap();
            assert!(matches!(handed, TransferResult::Rejected { reason: Reason::Expired, .. }));
        }
        assert_eq!(fresh().inspect("x").unwrap(), None, "{later_ms}");
        let shown = fresh().list().unwrap();
        assert_eq!(shown[0].status(NOW + later_ms), Some(Status::Expired), "{later_ms}");
        if later_ms < 120_000 {
            busy(fresh().claim("x", "b", TTL));
            assert_eq!(busy(fresh().ensure("x", "a", TTL)).token, 1);
            // Its holder may still end it for others.
            assert!(matches!(fresh().release(&lease).unwrap(), ReleaseResult::Released { .. }));
        }
        assert_eq!(acquired(fresh().ensure("x", "a", TTL)).token, 2);
    }
}

/// The holder counts from before its request, and others from after they have seen the answer.
#[test]
fn a_holder_revives_nothing_either() {
    let machine = Machine::at(NOW);
    let a = slow_client(&Slow::on(&machine, 300));
    let lease = acquired(a.claim("x", "a", TTL));
    // 600 ms have passed since the claim was begun.
    machine.passes(399);
    assert_eq!(a.inspect("x").unwrap(), None, "the look took 300 ms");
    let late = a.renew(&lease, TTL).unwrap();
    assert!(matches!(late, RenewResult::Rejected { reason: Reason::Expired, .. }), "{late:?}");
}

#[test]
fn another_incarnation_raises_every_token_and_gives_every_lease_its_ttl_again() {
    let engine = MemoryEngine::new();
    let (one, other) = (Machine::at(NOW), Machine::at(NOW));
    let (a, b) = (client(&engine, &one), client(&engine, &other));
    let lease = acquired(a.claim("x", "a", TTL));
    busy(b.claim("x", "b", TTL));
    engine.edit(|rows| rows.incarnation = 2);
    [&one, &other].iter().for_each(|machine| machine.passes(999));
    busy(b.claim("x", "b", TTL));
    [&one, &other].iter().for_each(|machine| machine.passes(999));
    busy(b.claim("x", "b", TTL));
    other.passes(1);
    let next = acquired(b.claim("x", "b", TTL));
    assert_eq!(next.token, (1 << 32) + 1);
    let late = a.renew(&lease, TTL).unwrap();
    assert!(matches!(late, RenewResult::Rejected { reason: Reason::HeldBy, .. }), "{late:?}");
}

#[test]
fn a_thousand_leases_get_their_ttl_again_in_steps() {
    let engine = MemoryEngine::new();
    let machine = Machine::at(NOW);
    let a = client(&engine, &machine);
    (0..1_000).for_each(|number| drop(acquired(a.claim(&number.to_string(), "a", TTL))));
    engine.edit(|rows| rows.incarnation = 2);
    machine.passes(900);
    let b = client(&engine, &Machine::at(NOW + 900));
    assert_eq!(b.list().unwrap().len(), 1_000);
    let is_anew = engine.edit(|rows| {
        let mut tenures = rows.rows.values().filter_map(|(_, row)| row.tenure.as_ref());
        tenures.all(|tenure| tenure.until_ms == NOW + 1_900) && rows.floor.epoch.boot == 2
    });
    assert!(is_anew);
}

#[test]
fn fencing_off_a_restored_engine_reaches_every_row() {
    let engine = MemoryEngine::new();
    let a = client(&engine, &Machine::at(NOW));
    (0..300).for_each(|number| drop(acquired(a.claim(&number.to_string(), "a", TTL))));
    let floor = a.restore_fence().unwrap();
    assert_eq!(floor, 1 << 46);
    assert!(a.list().unwrap().iter().all(|row| row.token == floor && row.tenure.is_none()));
    assert_eq!(acquired(a.claim("0", "b", TTL)).token, floor + 1);
    assert!(a.restore_fence_above(floor * 3).unwrap() > floor * 3);
}

/// An engine that takes its time, and counts calls.
struct Slow {
    engine: MemoryEngine,
    machine: Arc<Machine>,
    ms: i64,
    calls: AtomicU32,
    fails: AtomicU32,
}

impl Slow {
    fn on(machine: &Arc<Machine>, ms: i64) -> Arc<Self> {
        let (calls, fails) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Slow { engine: MemoryEngine::new(), machine: machine.clone(), ms, calls, fails })
    }

    fn call(&self) -> Result<&MemoryEngine> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.machine.passes(self.ms);
        let fails = self.fails.load(Ordering::Relaxed);
        if fails > 0 {
            self.fails.store(fails - 1, Ordering::Relaxed);
            return Err(Error::Unreachable("nobody is there".into()));
        }
        Ok(&self.engine)
    }
}

impl Engine for Slow {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.call()?.load(names)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        self.call()?.store(seen, change)
    }

    fn list(&self) -> Result<Loaded> {
        self.call()?.list()
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        self.call()?.forget(seen)
    }

    fn wait_for_change(&self, _: &str, _: i64, _: Duration) {}

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.call()?.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        self.call()?.commit_rows(name, token, rows)
    }

    fn most_rows(&self, _: bool) -> usize {
        127
    }

    fn facts(&self) -> Result<EngineFacts> {
        self.call()?.facts()
    }
}

fn slow_client(slow: &Arc<Slow>) -> Cluster {
    Cluster::with(slow.clone(), slow.machine.clone(), Options::default())
}

#[test]
fn a_lease_that_is_over_before_its_answer_arrives_is_no_grant() {
    let machine = Machine::at(NOW);
    let slow = Slow::on(&machine, 500);
    let claimed = slow_client(&slow).claim("x", "a", TTL);
    assert!(
        matches!(&claimed, Err(Error::ExpiredOnArrival(lease)) if lease.token == 1),
        "{claimed:?}"
    );
    let claimed = slow_client(&slow).claim("y", "a", TTL + Duration::from_millis(1));
    assert!(matches!(claimed, Ok(ClaimResult::Acquired(_))), "{claimed:?}");
}

#[test]
fn rows_that_the_handle_wrote_last_are_renewed_by_one_request_also_where_the_engine_has_a_clock() {
    let slow = Slow::on(&Machine::at(NOW), 1);
    slow.engine.edit(|rows| rows.server_ms = Some(NOW));
    let cluster = slow_client(&slow);
    let leases = ["x", "y"].map(|name| acquired(cluster.claim(name, "a", TTL)));
    for turn in 0..2 {
        slow.calls.store(0, Ordering::Relaxed);
        let renewed = cluster.renew_all(&leases, TTL);
        assert!(
            renewed.iter().all(|one| matches!(one, Ok(RenewResult::Renewed(_)))),
            "{renewed:?}"
        );
        assert_eq!(slow.calls.load(Ordering::Relaxed), 1, "turn {turn}");
    }
    // What another handle has changed is loaded.
    assert!(Cluster::on(slow.engine.clone()).break_lease("x").is_ok());
    let renewed = cluster.renew_all(&leases, TTL);
    assert!(matches!(renewed[0], Ok(RenewResult::Rejected { .. })), "{renewed:?}");
    assert!(matches!(renewed[1], Ok(RenewResult::Renewed(_))), "{renewed:?}");
}

#[test]
fn each_verb_makes_as_few_requests_as_it_can() {
    let slow = Slow::on(&Machine::at(NOW), 1);
    let cluster = slow_client(&slow);
    let requests = |verb: &dyn Fn()| {
        slow.calls.store(0, Ordering::Relaxed);
        verb();
        slow.calls.load(Ordering::Relaxed)
    };
    let lease = GrantRef { name: "x", token: 1, owner: Some("a") };
    assert_eq!(requests(&|| drop(acquired(cluster.claim("x", "a", TTL)))), 2);
    assert_eq!(requests(&|| drop(busy(cluster.claim("x", "b", TTL)))), 1);
    assert_eq!(requests(&|| drop(cluster.inspect("x").unwrap())), 1);
    assert_eq!(requests(&|| drop(cluster.renew(lease, TTL).unwrap())), 1);
    // Another handle does not know the row, and afterwards this one does not either.
    let other = slow_client(&slow);
    assert_eq!(requests(&|| drop(other.renew(lease, TTL).unwrap())), 2);
    assert_eq!(requests(&|| drop(cluster.renew(lease, TTL).unwrap())), 3);
    assert_eq!(requests(&|| drop(cluster.release(lease).unwrap())), 1);
}

/// A handle renews a row that it wrote last without loading it, so it guesses the engine's clock.
/// That clock had been set forward, and the renewal was stored as much too short.
#[test]
fn a_renewal_lasts_its_whole_ttl_by_the_engines_clock_also_when_that_was_set() {
    for set_ms in [-300, 0, 1, 700] {
        let slow = Slow::on(&Machine::at(NOW), 1);
        let cluster = slow_client(&slow);
        let set = |ms: i64| slow.engine.edit(|rows| rows.server_ms = Some(NOW + ms));
        let row = || slow.engine.edit(|rows| rows.rows["x"].1.clone());
        set(0);
        let mut lease = acquired(cluster.claim("x", "a", TTL));
        slow.machine.passes(10);
        set(10 + set_ms);
        let mut least = NOW + 10 + set_ms + 1_000;
        slow.calls.store(0, Ordering::Relaxed);
        for verb in ["renew", "again", "transfer"] {
            lease = match verb {
                "transfer" => cluster.transfer(&lease, "b", TTL).unwrap().transferred().unwrap(),
                _ => match cluster.renew(&lease, TTL).unwrap() {
                    RenewResult::Renewed(lease) => lease,
                    rejected => panic!("{set_ms}: {rejected:?}"),
                },
            };
            let row = row();
            let tenure = row.tenure.unwrap();
            assert!(tenure.until_ms >= least, "{set_ms}, {verb}: {} {least}", tenure.until_ms);
            assert_eq!(lease.expires_at_ms, tenure.until_ms, "{set_ms}, {verb}");
            assert!(row.at_ms >= NOW + 10 + set_ms, "{set_ms}, {verb}");
        }
        assert_eq!(slow.calls.load(Ordering::Relaxed), 3, "{set_ms}: one request each");
        // From now on the handle goes by the clock that it was told, also where that was set back.
        least = NOW + 10 + set_ms;
        assert!((least + 1_000..=least + 1_010).contains(&lease.expires_at_ms), "{set_ms}");
    }
}

#[test]
fn an_engine_that_comes_back_in_time_is_waited_for_and_one_that_does_not_is_unreachable() {
    let machine = Machine::at(NOW);
    let slow = Slow::on(&machine, 10);
    slow.fails.store(5, Ordering::Relaxed);
    acquired(slow_client(&slow).claim("x", "a", 10 * TTL));

    slow.fails.store(u32::MAX, Ordering::Relaxed);
    let before = machine.monotonic();
    let error = slow_client(&slow).claim("y", "a", TTL).unwrap_err();
    assert_eq!(error.kind(), "Unreachable");
    assert!(machine.monotonic() - before >= Duration::from_secs(5));
    assert!(machine.monotonic() - before < Duration::from_millis(5_500));
}

#[test]
fn what_is_out_of_bounds_is_refused_before_anything_is_sent() {
    let slow = Slow::on(&Machine::at(NOW), 1);
    let cluster = slow_client(&slow);
    let (long, most) = ("x".repeat(1_025), "x".repeat(1_024));
    for (refused, kind) in [
        (cluster.claim(&long, "a", TTL), "InvalidName"),
        (cluster.claim("x", &long, TTL), "InvalidName"),
        (cluster.claim("x", "a", Duration::ZERO), "InvalidTtl"),
        (cluster.renew_by_owner(&long, "a", TTL).map(|_| unreachable()), "InvalidName"),
        (cluster.renew_by_owner("x", "a", Duration::ZERO).map(|_| unreachable()), "InvalidTtl"),
        (cluster.release_by_owner("x", &long).map(|_| unreachable()), "InvalidName"),
        (cluster.transfer_by_owner("x", "a", &long, TTL).map(|_| unreachable()), "InvalidName"),
        (cluster.break_lease(&long).map(|_| unreachable()), "InvalidName"),
        (cluster.inspect(&long).map(|_| unreachable()), "InvalidName"),
        (cluster.raise_name(&long, 1).map(|_| unreachable()), "InvalidName"),
    ] {
        assert_eq!(refused.unwrap_err().kind(), kind);
    }
    assert_eq!(slow.calls.load(Ordering::Relaxed), 0);
    let endless = cluster.claim("x", "a", Duration::MAX).unwrap_err();
    assert_eq!(endless.kind(), "TimeOverflow");
    acquired(cluster.claim(&most, &most, TTL));
}

fn unreachable() -> ClaimResult {
    panic!("it was not refused")
}

#[test]
fn a_row_that_breaks_what_every_writer_promises_is_reported_and_left_alone() {
    let engine = MemoryEngine::new();
    let cluster = client(&engine, &Machine::at(NOW));
    acquired(cluster.claim("x", "a", TTL));
    engine.edit(|rows| {
        if let Some((_, row)) = rows.rows.get_mut("x") {
            row.token = 0;
        }
    });
    assert_eq!(cluster.claim("x", "b", TTL).unwrap_err().kind(), "InvalidLeaseRow");
    assert_eq!(cluster.inspect("x").unwrap_err().kind(), "InvalidLeaseRow");
    assert_eq!(cluster.list().unwrap_err().kind(), "InvalidLeaseRow");
    assert_eq!(cluster.purge(i64::MAX).unwrap_err().kind(), "InvalidLeaseRow");
}
