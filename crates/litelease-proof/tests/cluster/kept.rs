//! What a keeper of holds believes while every single call to its engine fails, is late, or meets
//! others.
//!
//! Nothing sleeps: the clock is stepped, and a rival tries to get one of the two names all the
//! time.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use litelease_cluster::engine::{Change, Loaded, LoadedRow, RowChange, Stored, StoredRow};
use litelease_cluster::{
    ClaimResult, Cluster, Engine, EngineFacts, Error, Host, Lease, MemoryEngine, Options,
    RenewResult, Result, System,
};
use litelease_hold::{Clock, HeldGrant, Hold, Keeper, Renewal, Window};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::report;

const TTL: Duration = Duration::from_millis(1_000);
const TICK: i64 = 50;
const LONG: Duration = Duration::from_secs(60);

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// It is known not to have been carried out.
    Lost,
    /// It was not carried out, and the outcome is unknown.
    Unknown,
    /// It was carried out, and the outcome is unknown.
    StoredUnknown,
    /// It is carried out this many milliseconds later.
    Late(i64),
    /// It is carried out, and answered this many milliseconds later.
    AnsweredLate(i64),
    /// It is carried out this many milliseconds later, and the outcome is unknown.
    LateUnknown(i64),
    /// Before it is carried out, an operator breaks the lease that the rival wants.
    Broken,
}

const FAULTS: [Fault; 12] = [
    Fault::Lost,
    Fault::Unknown,
    Fault::StoredUnknown,
    Fault::Late(200),
    Fault::Late(800),
    Fault::Late(1_500),
    Fault::AnsweredLate(200),
    Fault::AnsweredLate(500),
    Fault::AnsweredLate(800),
    Fault::AnsweredLate(1_500),
    Fault::LateUnknown(500),
    Fault::Broken,
];

/// A bug of the engine or of the holder, planted around the shipped verbs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// The holder counts its trust from the answer.
    TrustFromAnswer,
    /// The engine takes a batch whose answer was lost for stored.
    UnknownIsRenewed,
    /// The engine takes one row of a batch that has changed for all of them.
    ConflictForAll,
}

/// Which calls go wrong, counted from 0.
#[derive(Clone, Copy, Debug)]
struct Plan {
    fault: Fault,
    first: usize,
    calls: usize,
    /// Afterwards every call is lost.
    then_silence: bool,
    has_clock: bool,
}

/// Time, and everybody but the holder.
struct World {
    engine: MemoryEngine,
    now_ms: AtomicI64,
    attempts: AtomicI64,
    has_clock: bool,
    /// A holder learns of a break a little later, so the test must not look for two believers.
    is_patient: bool,
    rival: Mutex<Option<Cluster>>,
    granted: Mutex<Option<i64>>,
    holds: Mutex<Vec<Arc<Hold>>>,
    broken: Mutex<Option<String>>,
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let world = Arc::new(World {
            engine: MemoryEngine::new(),
            now_ms: AtomicI64::new(1_000_000),
            attempts: AtomicI64::new(0),
            has_clock: plan.has_clock,
            is_patient: plan.fault == Fault::Broken,
            rival: Mutex::default(),
            granted: Mutex::default(),
            holds: Mutex::default(),
            broken: Mutex::default(),
        });
        world.pass(TICK);
        let rival =
            Cluster::with(Arc::new(world.engine.clone()), world.clone(), Options::default());
        *world.rival.lock().unwrap() = Some(rival);
        world
    }

    fn pass(&self, ms: i64) {
        for _ in 0..ms / TICK {
            let now_ms = self.now_ms.fetch_add(TICK, Ordering::Relaxed) + TICK;
            if self.has_clock {
                self.engine.edit(|rows| rows.server_ms = Some(now_ms));
            }
            self.check_rival();
        }
    }

    /// Lets the rival try, and checks that no other client believes in its grant.
    fn check_rival(&self) {
        let Some(rival) = self.rival.lock().unwrap().clone() else { return };
        let mut granted = self.granted.lock().unwrap();
        let is_taken = self.engine.load(&["x"]).unwrap().rows[0].row.is_some();
        if granted.is_none() && is_taken && !self.is_patient {
            let claimed = rival.claim("x", "rival", LONG).unwrap();
            *granted = claimed.acquired().map(|lease| lease.token);
        }
        let now = self.monotonic();
        for hold in self.holds.lock().unwrap().iter() {
            let trusted = hold.loss().is_none() && now < hold.trusted_until();
            if hold.grant().name == "x" && trusted && granted.is_some() {
                let token = hold.grant().token;
                let told = format!("token {token} is trusted at {now:?}, and {granted:?} granted");
                self.broken.lock().unwrap().get_or_insert(told);
            }
        }
    }
}

impl Host for World {
    fn wall_ms(&self) -> i64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.wall_ms().unsigned_abs())
    }

    fn random_id(&self) -> i64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn pause(&self, _: Duration) {
        self.pass(TICK);
    }
}

struct WorldClock(Arc<World>);

impl Clock for WorldClock {
    fn now(&self) -> Duration {
        self.0.monotonic()
    }

    fn sleep(&self, time: Duration) {
        self.0.pause(time);
    }
}

/// An engine whose calls are counted, and go wrong as planned.
struct Faulty {
    engine: Arc<dyn Engine>,
    calls: AtomicUsize,
    plan: Option<(Plan, Arc<World>)>,
    bug: Option<Bug>,
}

impl Faulty {
    fn new(engine: Arc<dyn Engine>) -> Self {
        Faulty { engine, calls: AtomicUsize::new(0), plan: None, bug: None }
    }

    fn call<T>(&self, call: impl Fn() -> Result<T>) -> Result<T> {
        let at = self.calls.fetch_add(1, Ordering::Relaxed);
        let Some((plan, world)) = &self.plan else { return call() };
        if at >= plan.first.saturating_add(plan.calls) && plan.then_silence {
            return Err(Error::Unreachable("planned".into()));
        }
        if at < plan.first || at - plan.first >= plan.calls {
            return call();
        }
        let unknown = || Err(Error::CommitUnknown("planned".into()));
        match plan.fault {
            Fault::Lost => Err(Error::Unreachable("planned".into())),
            Fault::Unknown => unknown(),
            Fault::StoredUnknown => call().and_then(|_| unknown()),
            Fault::Late(ms) => {
                world.pass(ms);
                call()
            }
            Fault::AnsweredLate(ms) => {
                let answer = call();
                world.pass(ms);
                answer
            }
            Fault::LateUnknown(ms) => {
                world.pass(ms);
                call().and_then(|_| unknown())
            }
            Fault::Broken => {
                let rival = world.rival.lock().unwrap().clone().unwrap();
                let _ = rival.break_lease("x").unwrap();
                call()
            }
        }
    }
}

impl Engine for Faulty {
    fn load(&self, names: &[&str]) -> Result<Loaded> {
        self.call(|| self.engine.load(names))
    }

    fn load_within(&self, names: &[&str], time: Duration) -> Result<Loaded> {
        self.call(|| self.engine.load_within(names, time))
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Result<Stored> {
        self.call(|| self.engine.store(seen, change))
    }

    fn store_each(&self, seen: &Loaded, rows: &[StoredRow], time: Duration) -> Result<Vec<Stored>> {
        let stored = self.call(|| self.engine.store_each(seen, rows, time));
        match (stored, self.bug) {
            (Err(Error::CommitUnknown(_)), Some(Bug::UnknownIsRenewed)) => {
                Ok(vec![Stored::Done { version: 0 }; rows.len()])
            }
            (Ok(stored), Some(Bug::ConflictForAll)) if stored.contains(&Stored::Conflict) => {
                Err(Error::Locked("somebody was faster".into()))
            }
            (stored, _) => stored,
        }
    }

    fn list(&self) -> Result<Loaded> {
        self.call(|| self.engine.list())
    }

    fn forget(&self, seen: &[LoadedRow]) -> Result<u64> {
        self.call(|| self.engine.forget(seen))
    }

    fn wait_for_change(&self, name: &str, version: i64, time: Duration) {
        self.engine.wait_for_change(name, version, time);
    }

    fn load_rows(&self, prefix: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.engine.load_rows(prefix)
    }

    fn commit_rows(&self, name: &str, token: i64, rows: &[RowChange]) -> Result<Stored> {
        self.engine.commit_rows(name, token, rows)
    }

    fn most_rows(&self, new_tokens: bool) -> usize {
        self.engine.most_rows(new_tokens)
    }

    fn facts(&self) -> Result<EngineFacts> {
        self.engine.facts()
    }
}

/// Holds two names for three ttls while the plan goes wrong. Returns what is broken, if anything
/// is.
fn hold_through(plan: Plan, bug: Option<Bug>) -> Option<String> {
    let world = World::new(plan);
    let engine: Arc<dyn Engine> = Arc::new(world.engine.clone());
    let faulty = Faulty { plan: Some((plan, world.clone())), bug, ..Faulty::new(engine) };
    let holder = Cluster::with(Arc::new(faulty), world.clone(), Options::default());
    let keeper = Arc::new(Keeper::new(Arc::new(WorldClock(world.clone()))));
    let mut kept = Vec::new();
    for name in ["x", "y"] {
        let (owner, ttl) = (name.to_owned(), TTL);
        let Ok((ClaimResult::Acquired(lease), since)) = holder.claim_since(name, &owner, TTL, 0)
        else {
            continue;
        };
        let from_answer = bug == Some(Bug::TrustFromAnswer);
        let since = if from_answer { world.monotonic() } else { since };
        let secret = String::new();
        let grant = HeldGrant { name: name.into(), owner, token: lease.token, ttl, secret };
        let window = Window::new(ttl).unwrap();
        let hold = Hold::new(grant, window, since, Renewal::whole(lease.expires_at_ms));
        let open = || Ok::<_, ()>(holder.kept_rows());
        kept.push(keeper.keep("", hold, open).unwrap());
        world.holds.lock().unwrap().push(kept[kept.len() - 1].hold.clone());
        world.check_rival();
    }
    for _ in 0..60 {
        keeper.step();
        world.pass(TICK);
    }
    let broken = world.broken.lock().unwrap().take();
    let is_short = match plan.fault {
        Fault::Lost | Fault::Unknown | Fault::StoredUnknown | Fault::Broken => true,
        Fault::Late(ms) | Fault::AnsweredLate(ms) | Fault::LateUnknown(ms) => ms <= 200,
    };
    let lost = |kept: &&litelease_hold::Kept| {
        let HeldGrant { name, .. } = kept.hold.grant();
        let is_meant = name == "y" || plan.fault != Fault::Broken;
        kept.hold.loss().filter(|_| is_meant).map(|loss| format!("{name} is lost: {loss}"))
    };
    // A short failure costs no holder its lease, and a break costs only the holder that is broken.
    let costs_nothing = is_short && plan.calls == 1 && !plan.then_silence;
    let lost = || kept.iter().find_map(|kept| lost(&kept)).filter(|_| costs_nothing);
    broken.or_else(lost)
}

/// Holds through every plan. Returns the first that breaks something.
fn every_plan(bug: Option<Bug>) -> (usize, Option<String>) {
    let mut tried = 0;
    for has_clock in [false, true] {
        for fault in FAULTS {
            for first in 0..12 {
                for (calls, then_silence) in
                    [(1, false), (2, false), (4, false), (usize::MAX, false), (1, true), (2, true)]
                {
                    let plan = Plan { fault, first, calls, then_silence, has_clock };
                    tried += 1;
                    if let Some(broken) = hold_through(plan, bug) {
                        return (tried, Some(format!("{plan:?}: {broken}")));
                    }
                }
            }
        }
    }
    (tried, None)
}

#[test]
fn no_hold_is_trusted_after_another_was_granted_its_name_whatever_call_fails() {
    let (tried, broken) = every_plan(None);
    report(&format!("kept: two holds through {tried} plans"));
    assert_eq!(broken, None);
}

#[test]
fn trust_in_a_hold_that_is_counted_from_the_answer_is_found() {
    let (_, broken) = every_plan(Some(Bug::TrustFromAnswer));
    report(&format!("kept: {broken:?}"));
    assert!(broken.is_some_and(|broken| broken.contains("is trusted")));
}

#[test]
fn a_renewal_without_an_answer_that_is_believed_is_found() {
    let (_, broken) = every_plan(Some(Bug::UnknownIsRenewed));
    report(&format!("kept: {broken:?}"));
    assert!(broken.is_some_and(|broken| broken.contains("is trusted")));
}

fn claim_all(cluster: &Cluster, names: &[String]) -> Vec<Lease> {
    let claim = |name: &String| cluster.claim(name, "a", LONG).unwrap().acquired().unwrap();
    let claim = |names: &[String]| names.iter().map(claim).collect::<Vec<_>>();
    thread::scope(|scope| {
        let some = names.chunks(names.len().div_ceil(16));
        let threads: Vec<_> = some.map(|names| scope.spawn(move || claim(names))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

/// Renews many grants of which others have taken two, and returns the answers for those and for the
/// rest.
fn renew_with_two_lost(bug: Option<Bug>) -> (Vec<Result<RenewResult>>, Vec<Result<RenewResult>>) {
    let engine = MemoryEngine::new();
    let faulty = Faulty { bug, ..Faulty::new(Arc::new(engine.clone())) };
    let a = Cluster::with(Arc::new(faulty), Arc::new(System), Options::default());
    let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
    let leases = claim_all(&a, &names);
    let b = Cluster::on(engine);
    let _ = (b.break_lease("007").unwrap(), b.break_lease("250").unwrap());
    let answers = a.renew_all(&leases, LONG).into_iter().zip(names);
    let (lost, kept): (Vec<_>, Vec<_>) =
        answers.partition(|(_, name)| ["007", "250"].contains(&name.as_str()));
    let only = |some: Vec<(Result<RenewResult>, String)>| some.into_iter().map(|(one, _)| one);
    (only(lost).collect(), only(kept).collect())
}

#[test]
fn one_conflict_in_a_batch_does_not_make_the_others_fail() {
    let (lost, kept) = renew_with_two_lost(None);
    assert!(lost.iter().all(|one| matches!(one, Ok(RenewResult::Rejected { .. }))), "{lost:?}");
    assert!(kept.iter().all(|one| matches!(one, Ok(RenewResult::Renewed(_)))));
    assert_eq!((lost.len(), kept.len()), (2, 298));
}

#[test]
fn a_batch_that_takes_one_conflict_for_all_is_found() {
    let (_, kept) = renew_with_two_lost(Some(Bug::ConflictForAll));
    assert!(kept.iter().any(|one| one.is_err()));
}

#[test]
fn a_thousand_renewals_are_eight_requests_to_etcd_and_one_to_postgresql() {
    let names: Vec<String> = (0..1_000).map(|number| format!("{number:04}")).collect();
    let counted = |url: &str| {
        let engine = Cluster::open(url).unwrap().engine().clone();
        Arc::new(Faulty::new(engine))
    };
    let on = |counted: &Arc<Faulty>| {
        Cluster::with(counted.clone(), Arc::new(System), Options::default())
    };
    let renew = |cluster: &Cluster, leases: &[Lease]| {
        let answers = cluster.renew_all(leases, LONG);
        assert!(
            answers.iter().all(|one| matches!(one, Ok(RenewResult::Renewed(_)))),
            "{answers:?}"
        );
    };
    if etcd::is_installed() {
        let etcd = Etcd::start(1);
        let cluster = Cluster::open(&etcd.url("")).unwrap();
        let leases = claim_all(&cluster, &names);
        // On a busy machine, one that is not answered in time is sent again. So the fewest count.
        let fewest = |renews: &dyn Fn()| {
            let counts = (0..3).map(|_| {
                let before = etcd.transactions();
                renews();
                etcd.transactions() - before
            });
            counts.min()
        };
        assert_eq!(fewest(&|| renew(&cluster, &leases)), Some(8));
        // Another handle must load them first.
        let other = || renew(&Cluster::open(&etcd.url("")).unwrap(), &leases);
        assert_eq!(fewest(&other), Some(16));
        // And after that this one does not know them. Those it asks first are found out to be
        // changed.
        renew(&cluster, &leases);
        assert_eq!(fewest(&|| renew(&cluster, &leases)), Some(8));
    }
    if postgres::is_installed() {
        let server = Postgres::shared();
        let url = server.url("thousand");
        Cluster::open(&url).unwrap().bootstrap().unwrap();
        let counted = counted(&url);
        let cluster = on(&counted);
        let leases = claim_all(&cluster, &names);
        counted.calls.store(0, Ordering::Relaxed);
        renew(&cluster, &leases);
        assert_eq!(counted.calls.load(Ordering::Relaxed), 1);
    }
}
