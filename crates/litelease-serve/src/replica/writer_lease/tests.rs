//! All orders of renewals, fences and accidents, on an engine in memory and a clock that is
//! stepped.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicU64;

use litelease_cluster::MemoryEngine;
use litelease_hold::{
    Acquired, Current, Due, Granted, HeldGrant, Home, Keeper, Notice, Rows, keep,
};

use super::super::WRITER_LEASE;
use super::*;

const TTL: Duration = Duration::from_millis(900);
const OWNER: &str = "a:1 7 x";
const DEPTH: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A renewal.
    Renewal,
    /// A fence.
    Fence,
    /// A renewal that is carried out after the engine has stored a fence, and before that is
    /// answered.
    RenewalInFence,
    /// A fence between the moment a renewal is sent and the moment it arrives.
    FenceBeforeRenewal,
    /// A fence between the moment a renewal is stored and the moment it is answered.
    FenceBeforeAnswer,
    /// A fence that is stored, and whose answer is lost.
    LostFence,
    /// Another server takes the lease, after an operator has broken it.
    Takeover,
    /// This server gives the lease up.
    GiveUp,
    /// No renewal for longer than the ttl.
    Pause,
}

use Event::*;

const EVENTS: [Event; 9] = [
    Renewal,
    Fence,
    RenewalInFence,
    FenceBeforeRenewal,
    FenceBeforeAnswer,
    LostFence,
    Takeover,
    GiveUp,
    Pause,
];

#[derive(Clone, Default)]
struct Stepped(Arc<AtomicU64>);

impl Clock for Stepped {
    fn now(&self) -> Duration {
        Duration::from_millis(1_000_000 + self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

fn run(hook: &Hook) {
    let taken = hook.lock().unwrap().take();
    if let Some(hook) = taken {
        hook();
    }
}

/// The rows of the engine, with something that happens before a renewal arrives or is answered.
struct Hooked {
    rows: Box<dyn Rows>,
    before: Hook,
    after: Hook,
}

impl Rows for Hooked {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<litelease_hold::Renewal, Loss>> {
        run(&self.before);
        let answers = self.rows.renew(due);
        run(&self.after);
        answers
    }

    fn release(&mut self, grant: &HeldGrant, time: Duration) -> Result<(), Loss> {
        self.rows.release(grant, time)
    }

    fn read(&mut self, grant: &HeldGrant) -> Current {
        self.rows.read(grant)
    }

    fn hand_over(&mut self, grant: &HeldGrant, ttl: Duration) -> Result<Option<Lease>, Loss> {
        self.rows.hand_over(grant, ttl)
    }

    fn listen(&mut self, _: Notice) {}

    fn beside(&self) -> Option<Box<dyn Rows>> {
        self.rows.beside()
    }

    fn is_moved(&mut self) -> bool {
        false
    }
}

/// A writer, and the keeper that its test steps.
struct World {
    cluster: Cluster,
    clock: Stepped,
    keeper: Arc<Keeper>,
    lease: Arc<WriterLease>,
    /// What happens before a renewal arrives, before it is answered, and before a fence is.
    before: Hook,
    after: Hook,
    in_fence: Hook,
}

impl World {
    fn new() -> Self {
        World::with_ttl(TTL)
    }

    /// A writer whose fences ask for this ttl.
    fn with_ttl(ttl: Duration) -> Self {
        let (cluster, clock) = (Cluster::on(MemoryEngine::new()).of_service(), Stepped::default());
        let keeper = Arc::new(Keeper::new(Arc::new(clock.clone())));
        let [before, after, in_fence] = [(); 3].map(|()| Hook::default());
        let keep: Keep = {
            let (keeper, cluster) = (keeper.clone(), cluster.clone());
            let (before, after, in_fence) = (before.clone(), after.clone(), in_fence.clone());
            Box::new(move |lease, start| {
                run(&in_fence);
                let home = Home { keeper: keeper.clone(), key: String::new() };
                let (before, after) = (before.clone(), after.clone());
                let rows = || {
                    let rows = cluster.kept_rows();
                    Ok(Box::new(Hooked { rows, before, after }) as Box<dyn Rows>)
                };
                keep(&home, Acquired { granted: Granted::whole(lease), start }, TTL, rows)
            })
        };
        let granted = cluster.claim(WRITER_LEASE, OWNER, TTL).unwrap().acquired().unwrap();
        let (granted, time) = ((granted, clock.now()), Arc::new(clock.clone()));
        let stop = Arc::default();
        let lease = WriterLease::new(cluster.clone(), ttl, time, keep, granted, stop).unwrap();
        World { cluster, clock, keeper, lease: Arc::new(lease), before, after, in_fence }
    }

    /// Lets a third of the ttl pass and the keeper renew.
    fn renew(&self) {
        self.clock.sleep(TTL / 3);
        self.keeper.step();
    }

    /// Fences during the next renewal.
    fn renew_with(&self, hook: &Hook) {
        let lease = self.lease.clone();
        *hook.lock().unwrap() = Some(Box::new(move || drop(lease.fence())));
        self.renew();
        hook.lock().unwrap().take();
    }

    fn play(&self, event: Event) {
        match event {
            Renewal => self.renew(),
            Fence => drop(self.lease.fence()),
            RenewalInFence => {
                let (keeper, clock) = (self.keeper.clone(), self.clock.clone());
                *self.in_fence.lock().unwrap() = Some(Box::new(move || {
                    clock.sleep(TTL / 3);
                    keeper.step();
                }));
                let _ = self.lease.fence();
                self.in_fence.lock().unwrap().take();
            }
            FenceBeforeRenewal => self.renew_with(&self.before),
            FenceBeforeAnswer => self.renew_with(&self.after),
            LostFence => drop(self.cluster.transfer_by_owner(WRITER_LEASE, OWNER, OWNER, TTL)),
            Takeover => {
                let _ = self.cluster.break_lease(WRITER_LEASE).unwrap();
                let _ = self.cluster.claim(WRITER_LEASE, "b:1 8 y", TTL * 100).unwrap();
            }
            GiveUp => self.lease.give_up(),
            Pause => self.clock.sleep(TTL * 2),
        }
    }

    fn is_ours(&self) -> bool {
        self.cluster.owner(WRITER_LEASE).unwrap().as_deref() == Some(OWNER)
    }

    fn is_current(&self) -> bool {
        self.cluster.token(WRITER_LEASE).unwrap() == Some(self.lease.token())
    }
}

/// Returns what is wrong after these events.
fn fault(events: &[Event]) -> Option<&'static str> {
    let world = World::new();
    let (mut is_over, mut is_unnoticed) = (false, false);
    for event in events {
        world.play(*event);
        match event {
            GiveUp | Pause => is_over = true,
            LostFence | Takeover => is_unnoticed = true,
            // The answer of each of these tells.
            _ if is_unnoticed => is_over = true,
            _ => {}
        }
        let is_trusted = world.lease.is_trusted();
        if is_over && is_trusted {
            return Some("a lease that is over is trusted");
        }
        if !is_over && !is_trusted {
            return Some("a lease was lost by a fence of its own");
        }
        let is_known = !is_over && !is_unnoticed;
        if is_known && !(world.is_current() && world.is_ours()) {
            return Some("the writer uses a token that is not its own newest one");
        }
    }
    None
}

#[test]
fn every_order_of_renewals_fences_and_accidents() {
    for number in 0..EVENTS.len().pow(DEPTH) {
        let event = |place: u32| EVENTS[number / EVENTS.len().pow(place) % EVENTS.len()];
        let events: Vec<Event> = (0..DEPTH).map(event).collect();
        assert_eq!(fault(&events), None, "{events:?}");
    }
}

/// Given up while the engine stores a new token: the row does not stay until its ttl is over.
#[test]
fn a_lease_that_is_given_up_during_a_fence_is_released() {
    let world = World::new();
    let lease = world.lease.clone();
    *world.in_fence.lock().unwrap() = Some(Box::new(move || lease.give_up()));
    assert!(world.lease.fence().is_err());
    assert!(!world.lease.is_trusted());
    assert_eq!(world.cluster.owner(WRITER_LEASE).unwrap(), None);
}

#[test]
fn after_a_fence_that_failed_the_next_renewal_decides() {
    // Such a ttl is an error.
    let world = World::with_ttl(Duration::ZERO);
    assert!(world.lease.fence().is_err());
    world.play(Renewal);
    assert!(world.lease.is_trusted());
    world.play(Takeover);
    world.play(Renewal);
    assert!(!world.lease.is_trusted());
}

/// A short ttl left a writer less than the 50 ms that every other holder keeps for its clock.
#[test]
fn a_writer_keeps_as_much_of_its_ttl_for_its_clock_as_any_holder() {
    assert_eq!(World::new().lease.trusted_for(), TTL - TTL / 10);
}
