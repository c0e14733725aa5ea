//! The real committer and the real verbs of programs on one engine in memory, in random orders: at
//! every call of the engine others come in between, requests get lost or arrive late, answers get
//! lost, and clocks are set. Planted bugs must be found.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use litelease::{Scope, TickOutcome, TickRequest};
use litelease_cluster::engine::{
    Change, Commit, Committed, Condition, EngineFacts, Error as EngineError, Loaded, LoadedRow,
    Part, RowChange, Stored, StoredRow,
};
use litelease_cluster::{
    BreakResult, ClaimResult, Cluster, Engine, Host, Lease, MemoryEngine, ReleaseResult,
    RenewResult,
};
use litelease_hold::{Acquired, Clock, Granted, Home, Keeper, SystemClock, keep};
use litelease_wire::BegunTick;
use tokio::sync::{mpsc, oneshot};

use super::super::names;
use super::super::*;
use crate::access::Caller;
use crate::answer::NameAnswer;
use crate::job::{Claim, GrantJob, Jobs, Task, TickWish, WaitState, Wanted, Work, channel};
use crate::mirror::Mirror;
use crate::pending_grant::deliver;
use crate::planted::{Planted, plant};
use crate::replica::WRITER_LEASE;
use crate::replica::writer_lease::WriterLease;

type Outcome<T> = litelease_cluster::engine::Result<T>;

const TTL: Duration = Duration::from_secs(10);
const TTL_MS: i64 = 10_000;
/// The owner texts of programs and of the clients of servers: one of them is used by both.
const OWNERS: [&str; 2] = ["a", HTTP];
const HTTP: &str = "http";
const TICK_MS: i64 = 2_500;
const START_MS: i64 = 1_000_000_000;
/// How often a tick is planned.
const PERIOD_MS: i64 = 20_000;
const NAMES: [&str; 2] = ["x", "y"];
/// No wall clock is wrong by more.
const MOST_SKEW_MS: i64 = 50_000;
/// How deep calls come in between calls.
const DEEPEST: u32 = 2;
const STEPS: u32 = 60;

/// A wrong version of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// It stores a name if its own token is the newest.
    WriterAlone,
    /// It compares the floor as well, and not the row.
    NoRow,
    /// It compares the token of the row, and not its version.
    TokenOfRow,
    /// It compares the row, and not the floor.
    NoFloor,
    /// A purge deletes rows by their names.
    PurgeByName,
    /// It has a floor of its own.
    OwnFloor,
    /// Its wall clock decides whether a lease is over.
    WallClock,
    /// It stores the time of the service, which stands still while no server writes.
    ServiceTime,
    /// It stores its own time where the engine has a clock.
    OwnTime,
    /// It says no from memory.
    NoFromMemory,
    /// It stores ticks whether or not the row of the name is the same.
    TicksApart,
    /// One that is planted in the service itself.
    Planted(Planted),
}

/// A request that arrives after its client has given up.
#[derive(Clone)]
enum Request {
    Store(Loaded, Change),
    Forget(Vec<LoadedRow>),
    Commit {
        token: i64,
        floor_version: i64,
        incarnation: i64,
        parts: Vec<Part>,
        rows: Vec<RowChange>,
    },
    Rows(i64, Vec<RowChange>),
}

/// The answer to a request.
enum Reply {
    Stored(Stored),
    Forgotten(u64),
    Committed(Committed),
}

impl Request {
    fn carry_out(&self, engine: &MemoryEngine) -> Outcome<Reply> {
        Ok(match self {
            Request::Store(seen, change) => Reply::Stored(engine.store(seen, change)?),
            Request::Forget(seen) => Reply::Forgotten(engine.forget(seen)?),
            Request::Commit { token, floor_version, incarnation, parts, rows } => {
                let (floor_version, incarnation) = (*floor_version, *incarnation);
                let writer = (WRITER_LEASE, *token);
                let commit = Commit { writer, floor_version, incarnation, parts, rows };
                Reply::Committed(engine.commit_parts(&commit)?)
            }
            Request::Rows(token, rows) => {
                Reply::Stored(engine.commit_rows(WRITER_LEASE, *token, rows)?)
            }
        })
    }
}

/// A client that believes to have a name until a moment.
struct Believer {
    token: i64,
    until_ms: i64,
}

/// The history of one name.
#[derive(Default)]
struct Track {
    believers: Vec<Believer>,
    granted: BTreeSet<i64>,
    /// Smaller tokens were broken, also if their clients have not heard of the grant yet.
    broken_below: i64,
    /// Since which step the name has had no owner.
    free_since: Option<u64>,
    /// The breaks that a service was asked for: it may grant the name in the same commit.
    breaks: u32,
    /// The newest row, and since which step its token is the newest.
    row: Option<(StoredRow, u64)>,
    /// The tokens of grants with a tick, and that of each attempt of each tick.
    with_tick: BTreeSet<i64>,
    begun: BTreeMap<(i64, i64), i64>,
    /// The newest tick that was finished, the token that did it, and the step at which that was
    /// answered.
    finished: Option<(i64, i64, u64)>,
}

struct World {
    engine: MemoryEngine,
    bug: Option<Bug>,
    has_clock: bool,
    dice: Cell<u64>,
    now_ms: Cell<i64>,
    /// How wrong the wall clock of the servers is.
    skew_ms: Cell<i64>,
    step: Cell<u64>,
    depth: Cell<u32>,
    programs: [RefCell<Option<Program>>; 2],
    servers: [RefCell<Option<Served>>; 2],
    /// The grants of the clients of servers: name, token and secret.
    grants: RefCell<Vec<(&'static str, i64, String)>>,
    /// The keys that grants were answered to.
    keys: RefCell<BTreeMap<(&'static str, i64), &'static str>>,
    late: RefCell<Vec<Request>>,
    names: RefCell<BTreeMap<&'static str, Track>>,
    /// No token that is granted from now on may be as small.
    raised: Cell<i64>,
    broken: RefCell<Option<String>>,
    /// The events, for people who look for the reason.
    trail: RefCell<Vec<String>>,
    /// The rows that the servers have read, for a bug.
    read: RefCell<BTreeMap<String, LoadedRow>>,
}

thread_local! {
    static WORLD: RefCell<Option<Rc<World>>> = const { RefCell::new(None) };
}

fn world() -> Rc<World> {
    WORLD.with_borrow(|world| Rc::clone(world.as_ref().unwrap()))
}

/// The wall clock of the servers, by which slots and times for people go.
fn service_clock() -> i64 {
    let world = world();
    world.now_ms.get() + world.skew_ms.get()
}

impl World {
    fn below(&self, limit: u64) -> u64 {
        let mut seed = self.dice.get();
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        self.dice.set(seed);
        (seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }

    fn breaks(&self, promise: String) {
        self.notes(|| promise.clone());
        self.broken.borrow_mut().get_or_insert(promise);
    }

    fn notes(&self, what: impl FnOnce() -> String) {
        let (now_ms, step) = (self.now_ms.get() - START_MS, self.step.get());
        self.trail.borrow_mut().push(format!("{step} at {now_ms}: {}", what()));
    }

    fn pass(&self, time_ms: i64) {
        self.now_ms.set(self.now_ms.get() + time_ms);
        if self.has_clock {
            self.engine.edit(|rows| rows.server_ms = Some(self.now_ms.get()));
        }
    }

    /// Lets others come in between two calls.
    fn between(&self) {
        match self.below(24) {
            0 => self.pass(TICK_MS),
            1 => self.arrive(),
            2 if self.below(4) == 0 => {
                let skew = self.below(2 * MOST_SKEW_MS.unsigned_abs()).cast_signed();
                self.skew_ms.set(skew - MOST_SKEW_MS);
            }
            3..=7 if self.depth.get() < DEEPEST => {
                self.depth.set(self.depth.get() + 1);
                self.act();
                self.depth.set(self.depth.get() - 1);
            }
            _ => {}
        }
    }

    fn arrive(&self) {
        let count = self.late.borrow().len() as u64;
        if count > 0 {
            let at = self.below(count);
            let request = self.late.borrow_mut().remove(usize::try_from(at).unwrap());
            let _ = request.carry_out(&self.engine);
            self.observe();
        }
    }

    /// Sends a request, whose answer may be lost, or which may be lost itself or come late.
    fn send(&self, request: Request) -> Outcome<Reply> {
        self.between();
        let reply = match self.below(40) {
            0 => Err(EngineError::Unreachable("lost".into())),
            1 => {
                let _ = request.carry_out(&self.engine)?;
                Err(EngineError::CommitUnknown("its answer is lost".into()))
            }
            2 => {
                self.late.borrow_mut().push(request);
                Err(EngineError::CommitUnknown("it is late".into()))
            }
            _ => request.carry_out(&self.engine),
        };
        self.observe();
        self.between();
        reply
    }

    /// Takes note of what is stored.
    fn observe(&self) {
        self.step.set(self.step.get() + 1);
        let step = self.step.get();
        let rows = self.engine.load(&NAMES).unwrap().rows;
        let mut names = self.names.borrow_mut();
        for (name, seen) in NAMES.iter().zip(rows) {
            let track = names.entry(name).or_default();
            let is_free = seen.row.as_ref().is_none_or(|row| row.tenure.is_none());
            track.free_since = if is_free { track.free_since.or(Some(step)) } else { None };
            let Some(row) = seen.row else {
                track.row = None;
                continue;
            };
            let before = track.row.as_ref();
            let is_same = before.is_some_and(|(before, _)| before.token == row.token);
            let newest = before.map_or(0, |(before, _)| before.token);
            let is_regranted = track.breaks > 0 && row.token > newest + 1;
            if is_regranted || (row.tenure.is_none() && !is_same) {
                // A break: an operator has ended it, and only tokens tell its holder.
                track.believers.retain(|believer| believer.token >= row.token);
                track.broken_below = row.token;
            }
            let since = before.filter(|_| is_same).map_or(step, |(_, since)| *since);
            if before.is_none_or(|(before, _)| *before != row) {
                self.notes(|| format!("{name} is {row:?}"));
            }
            track.row = Some((row, since));
        }
    }

    /// Takes note of a grant that was answered, to a client that asked at a moment. It trusts its
    /// lease for nine tenths of the time that it was told, from that moment.
    fn granted(&self, name: &'static str, token: i64, asked: &Start, left_ms: i64) {
        self.notes(|| {
            let asked_ms = asked.at_ms - START_MS;
            format!("{name}: {token} is granted for {left_ms}, asked at {asked_ms}")
        });
        let mut names = self.names.borrow_mut();
        let track = names.entry(name).or_default();
        if !track.granted.insert(token) {
            self.breaks(format!("{name}: token {token} was granted twice"));
        }
        if token <= asked.floor {
            self.breaks(format!("{name}: token {token} is not above {}", asked.floor));
        }
        if token < track.broken_below {
            return;
        }
        let now_ms = self.now_ms.get();
        let until_ms = asked.trusts(left_ms);
        let is_other = |other: &&Believer| other.until_ms > now_ms && other.token != token;
        if until_ms > now_ms
            && let Some(other) = track.believers.iter().find(is_other)
        {
            self.breaks(format!("{name}: {} and {token} are believed in", other.token));
        }
        track.believers.push(Believer { token, until_ms });
    }

    /// Takes note of the tick of a grant. `asked` is there if it was not granted before.
    fn begun(&self, name: &'static str, token: i64, tick: &BegunTick, asked: Option<&Start>) {
        let mut names = self.names.borrow_mut();
        let track = names.entry(name).or_default();
        track.with_tick.insert(token);
        let BegunTick { tick_ms, attempt, .. } = *tick;
        let Some(asked) = asked else { return };
        // Claims with one key share their answer.
        if track.begun.insert((tick_ms, attempt), token).is_some_and(|other| other != token) {
            self.breaks(format!("{name}: attempt {attempt} of {tick_ms} was granted twice"));
        }
        let is_over = |(done_ms, _, step): (i64, i64, u64)| done_ms >= tick_ms && step < asked.step;
        if track.finished.is_some_and(is_over) {
            self.breaks(format!("{name}: {tick_ms} was granted after it was finished"));
        }
    }

    /// Takes note of a tick that was finished.
    fn finished(&self, name: &str, tick_ms: i64, token: i64, asked: &Start) {
        let mut names = self.names.borrow_mut();
        let track = names.get_mut(name).unwrap();
        if token < asked.broken_below {
            self.breaks(format!("{name}: {token} has finished {tick_ms}, though it was broken"));
        }
        let is_other = |(done_ms, by, _): (i64, i64, u64)| done_ms == tick_ms && by != token;
        if track.finished.is_some_and(is_other) {
            self.breaks(format!("{name}: {tick_ms} was finished twice"));
        }
        let newest_ms = track.finished.map_or(i64::MIN, |(done_ms, ..)| done_ms);
        if tick_ms > newest_ms {
            track.finished = Some((tick_ms, token, self.step.get()));
        }
    }

    fn renewed(&self, name: &str, token: i64, asked: &Start, left_ms: i64) {
        self.notes(|| format!("{name}: {token} is told to last for {left_ms}"));
        let mut names = self.names.borrow_mut();
        let (now_ms, until_ms) = (self.now_ms.get(), asked.trusts(left_ms));
        let track = names.get_mut(name).unwrap();
        let is_other = |other: &&Believer| other.until_ms > now_ms && other.token != token;
        // Its holder may have given it up since.
        if track.believers.iter().any(|believer| believer.token == token)
            && until_ms > now_ms
            && let Some(other) = track.believers.iter().find(is_other)
        {
            self.breaks(format!("{name}: {} and {token} are believed in", other.token));
        }
        for believer in track.believers.iter_mut().filter(|it| it.token == token) {
            believer.until_ms = believer.until_ms.max(until_ms);
        }
    }

    /// Takes note of a claim with a key that was answered with a grant, which may be news.
    fn granted_to_key(
        &self,
        (name, key): (&'static str, &'static str),
        token: i64,
        asked: &Start,
        left_ms: i64,
    ) {
        let before = self.keys.borrow_mut().insert((name, token), key);
        match before {
            Some(before) if before == key => self.renewed(name, token, asked, left_ms),
            _ => self.granted(name, token, asked, left_ms),
        }
    }

    /// Its holder gives it up.
    fn gives_up(&self, name: &str, token: i64) {
        self.notes(|| format!("{name}: {token} is given up"));
        if let Some(track) = self.names.borrow_mut().get_mut(name) {
            track.believers.retain(|believer| believer.token != token);
        }
    }

    /// Checks a `Busy`.
    fn busy(&self, name: &str, asked: &Start) {
        let names = self.names.borrow();
        let Some(track) = names.get(name) else { return };
        // A grant and a break may have been stored together.
        let is_same = track.row.as_ref().is_none_or(|(_, since)| *since < asked.step);
        if is_same && track.free_since.is_some_and(|since| since < asked.step) {
            self.breaks(format!("{name}: busy, though it was free all the time"));
        }
    }

    /// Checks the refusal of a verb on a grant.
    fn rejected(&self, name: &str, token: i64, asked: &Start) {
        let names = self.names.borrow();
        let Some((row, since)) = names.get(name).and_then(|track| track.row.as_ref()) else {
            return;
        };
        let is_live = row
            .tenure
            .as_ref()
            .is_some_and(|tenure| tenure.until_ms - MOST_SKEW_MS * 2 > self.now_ms.get());
        if row.token == token && *since < asked.step && is_live {
            self.breaks(format!("{name}: {token} is refused, though it is the newest"));
        }
    }

    /// One client does something, if one is idle.
    fn act(&self) {
        match self.below(9) {
            0 => self.pass(TICK_MS),
            1 => self.arrive(),
            2 if self.depth.get() == 0 && self.below(3) == 0 => self.take_over(),
            at @ 2..=5 => {
                let place = &self.programs[usize::try_from(at % 2).unwrap()];
                let Some(mut program) = place.borrow_mut().take() else { return };
                program.act(self);
                *place.borrow_mut() = Some(program);
            }
            at => {
                let place = &self.servers[usize::try_from(at % 2).unwrap()];
                let Some(mut server) = place.borrow_mut().take() else { return };
                server.act(self);
                *place.borrow_mut() = Some(server);
            }
        }
    }

    /// Begins to serve in the place of a server, while the other one may not know.
    fn take_over(&self) {
        self.notes(|| "another server takes over".into());
        let at = usize::try_from(self.below(2)).unwrap();
        let old = self.servers[at].borrow_mut().take();
        drop(old);
        *self.servers[at].borrow_mut() = Some(Served::begin(self));
    }

    fn asked(&self, name: &str) -> Start {
        let granted = self.names.borrow().get(name).and_then(|track| track.granted.last().copied());
        let broken_below = self.names.borrow().get(name).map_or(0, |track| track.broken_below);
        Start {
            at_ms: self.now_ms.get(),
            step: self.step.get(),
            floor: self.raised.get().max(granted.unwrap_or(0)),
            broken_below,
        }
    }
}

/// The moment at which a client asks.
struct Start {
    at_ms: i64,
    step: u64,
    floor: i64,
    /// Smaller tokens were broken by then.
    broken_below: i64,
}

impl Start {
    fn trusts(&self, left_ms: i64) -> i64 {
        self.at_ms + left_ms / 10 * 9
    }
}

/// The engine as a program or a server reaches it.
struct Line {
    is_server: bool,
}

/// The machine of a program or of the servers.
struct Machine {
    is_server: bool,
}

impl Host for Machine {
    fn wall_ms(&self) -> i64 {
        if self.is_server { service_clock() } else { world().now_ms.get() }
    }

    fn monotonic(&self) -> Duration {
        let world = world();
        let is_wrong = self.is_server && world.bug == Some(Bug::WallClock);
        let skew_ms = if is_wrong { world.skew_ms.get() } else { 0 };
        Duration::from_millis((world.now_ms.get() + skew_ms).unsigned_abs())
    }

    fn random_id(&self) -> i64 {
        world().below(1 << 32).cast_signed() + 1
    }

    fn pause(&self, time: Duration) {
        world().pass(i64::try_from(time.as_millis()).unwrap().max(1));
    }
}

impl Engine for Line {
    fn load(&self, names: &[&str]) -> Outcome<Loaded> {
        let world = world();
        world.between();
        let mut loaded = world.engine.load(names)?;
        world.between();
        if self.is_server {
            self.misread(&world, &mut loaded, names.len() == 1);
        }
        Ok(loaded)
    }

    fn list(&self) -> Outcome<Loaded> {
        let world = world();
        world.between();
        let mut loaded = world.engine.list()?;
        if self.is_server {
            self.misread(&world, &mut loaded, false);
        }
        Ok(loaded)
    }

    fn store(&self, seen: &Loaded, change: &Change) -> Outcome<Stored> {
        match world().send(Request::Store(seen.clone(), change.clone()))? {
            Reply::Stored(stored) => Ok(stored),
            _ => panic!("another reply"),
        }
    }

    fn forget(&self, seen: &[LoadedRow]) -> Outcome<u64> {
        let (world, mut seen) = (world(), seen.to_vec());
        if world.bug == Some(Bug::PurgeByName) {
            world.between();
            let names: Vec<&str> = seen.iter().map(|row| row.name.as_str()).collect();
            seen = world.engine.load(&names)?.rows;
        }
        match world.send(Request::Forget(seen))? {
            Reply::Forgotten(count) => Ok(count),
            _ => panic!("another reply"),
        }
    }

    fn wait_for_change(&self, _: &str, _: i64, _: Duration) {}

    fn load_rows(&self, prefix: &[u8]) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
        let world = world();
        world.between();
        world.engine.load_rows(prefix)
    }

    fn commit_rows(&self, _: &str, token: i64, rows: &[RowChange]) -> Outcome<Stored> {
        match world().send(Request::Rows(token, rows.to_vec()))? {
            Reply::Stored(stored) => Ok(stored),
            _ => panic!("another reply"),
        }
    }

    fn commit_parts(&self, commit: &Commit<'_>) -> Outcome<Committed> {
        let world = world();
        let (token, incarnation) = (commit.writer.1, commit.incarnation);
        let mut floor_version = commit.floor_version;
        let (mut parts, mut rows) = (commit.parts.to_vec(), commit.rows.to_vec());
        world.between();
        let now = |name: &str| world.engine.load(&[name]).unwrap().rows.remove(0);
        if let Some(Bug::WriterAlone | Bug::NoFloor | Bug::OwnFloor) = world.bug {
            floor_version = world.engine.load(&[]).unwrap().floor.version;
        }
        for part in &mut parts {
            let newest = now(part.name());
            let token = |row: &LoadedRow| row.row.as_ref().map(|row| row.token);
            match world.bug {
                Some(Bug::WriterAlone | Bug::NoRow) => {
                    (part.before, part.condition) = (newest, Condition::None);
                }
                Some(Bug::TokenOfRow) if token(&newest) == token(&part.before) => {
                    (part.before, part.condition) = (newest, Condition::None);
                }
                Some(Bug::OwnTime) if part.condition != Condition::None => {
                    part.condition = Condition::None;
                }
                Some(Bug::ServiceTime) => {
                    let tenure = part.row.as_mut().and_then(|row| row.tenure.as_mut());
                    tenure.into_iter().for_each(|tenure| tenure.until_ms -= 600_000);
                }
                Some(Bug::NoFromMemory) if part.row.is_none() => part.before = newest,
                _ => {}
            }
        }
        if world.bug == Some(Bug::TicksApart) {
            let is_of_tick = |(key, _): &RowChange| {
                let key = String::from_utf8_lossy(key);
                key.contains("litelease_newest_ticks") || key.contains("litelease_finished")
            };
            for part in &mut parts {
                rows.extend(part.rows.extract_if(.., |row| is_of_tick(row)));
            }
        }
        match world.send(Request::Commit { token, floor_version, incarnation, parts, rows })? {
            Reply::Committed(committed) => Ok(committed),
            _ => panic!("another reply"),
        }
    }

    fn most_rows(&self, _: bool) -> usize {
        127
    }

    fn facts(&self) -> Outcome<EngineFacts> {
        Ok(EngineFacts::default())
    }
}

impl Line {
    /// Changes what was read as a wrong version takes it.
    fn misread(&self, world: &World, loaded: &mut Loaded, is_look: bool) {
        if world.bug == Some(Bug::OwnFloor) {
            loaded.floor.epoch.floor = 0;
        }
        let mut read = world.read.borrow_mut();
        for row in &mut loaded.rows {
            // Where nothing is to be stored, it looks at names alone.
            match read.get(&row.name) {
                Some(known) if is_look && world.bug == Some(Bug::NoFromMemory) => {
                    *row = known.clone()
                }
                _ => _ = read.insert(row.name.clone(), row.clone()),
            }
        }
    }
}

fn on_line(is_server: bool) -> Cluster {
    let options = litelease_cluster::Options {
        patience: Duration::from_secs(2),
        ..litelease_cluster::Options::default()
    };
    Cluster::with(Arc::new(Line { is_server }), Arc::new(Machine { is_server }), options)
}

/// A program with leases of its own.
struct Program {
    cluster: Cluster,
    owner: &'static str,
    leases: Vec<(&'static str, Lease)>,
}

impl Program {
    fn act(&mut self, world: &World) {
        let name = NAMES[usize::try_from(world.below(2)).unwrap()];
        let asked = world.asked(name);
        match world.below(10) {
            0..=3 => match self.cluster.claim(name, self.owner, TTL) {
                Ok(ClaimResult::Acquired(lease)) => {
                    world.granted(name, lease.token, &asked, TTL_MS);
                    self.leases.push((name, lease));
                }
                Ok(ClaimResult::Busy(_)) => world.busy(name, &asked),
                Err(_) => {}
            },
            4..=5 => {
                let Some((name, lease)) = self.leases.last().cloned() else { return };
                let asked = world.asked(name);
                match self.cluster.renew(&lease, TTL) {
                    Ok(RenewResult::Renewed(_)) => {
                        world.renewed(name, lease.token, &asked, TTL_MS);
                    }
                    Ok(RenewResult::Rejected { .. }) => {
                        world.rejected(name, lease.token, &asked);
                        self.leases.pop();
                    }
                    Err(_) => {}
                }
            }
            6..=7 => {
                let Some((name, lease)) = self.leases.pop() else { return };
                let asked = world.asked(name);
                world.gives_up(name, lease.token);
                if let Ok(ReleaseResult::Rejected { .. }) = self.cluster.release(&lease) {
                    world.rejected(name, lease.token, &asked);
                }
            }
            8 if world.below(2) == 0 => {
                // It hands its lease over to a client of a server, which may fetch it there.
                let Some((name, lease)) = self.leases.pop() else { return };
                world.gives_up(name, lease.token);
                let _ = self.cluster.transfer(&lease, HTTP, TTL);
            }
            8 if world.below(2) == 0 => _ = self.cluster.purge(i64::MAX),
            8 => {
                let floor = asked.floor + 10;
                if self.cluster.raise(floor).is_ok() {
                    world.raised.set(world.raised.get().max(floor));
                }
            }
            _ => {
                if let Ok(BreakResult::Broken { token, .. }) = self.cluster.break_lease(name) {
                    world.gives_up(name, token);
                }
            }
        }
    }
}

/// A request that is under way.
struct Pending {
    name: &'static str,
    key: Option<&'static str>,
    kind: Kind,
    asked: Start,
    answer: oneshot::Receiver<Result<Answer, JobError>>,
}

#[derive(Debug)]
enum Kind {
    Claim,
    Renew(i64),
    Release(i64),
    Finish(i64),
    Transfer,
    Break,
}

/// A server and its clients.
struct Served {
    committer: Committer,
    jobs: Jobs,
    todo: Receiver<Job>,
    answers: mpsc::UnboundedReceiver<Vec<Answered>>,
    pending: Vec<Pending>,
    sequence: u64,
}

impl Served {
    fn begin(world: &World) -> Self {
        let own = Cluster::on(world.engine.clone()).of_service();
        let _ = own.break_lease(WRITER_LEASE).unwrap();
        let lease = own.claim(WRITER_LEASE, "w", TTL * 10_000).unwrap().acquired().unwrap();
        let granted = (lease, SystemClock.now());
        let (keeper, rows) = (Arc::new(Keeper::new(Arc::new(SystemClock))), own.clone());
        let keep = move |lease, start| {
            let home = Home { keeper: keeper.clone(), key: String::new() };
            let acquired = Acquired { granted: Granted::whole(lease), start };
            keep(&home, acquired, TTL * 10_000, || Ok(rows.kept_rows()))
        };
        let (ttl, time) = (TTL * 10_000, Arc::new(SystemClock));
        let lease = WriterLease::new(own, ttl, time, Box::new(keep), granted, Arc::default());
        let mirror = Mirror::new(on_line(true), Arc::new(lease.unwrap()), service_clock, false);
        let (jobs, todo) = channel();
        let (handed, answers) = mpsc::unbounded_channel();
        let options = Options { clock: service_clock, open: true, ..Options::default() };
        let (changes, metrics) = (broadcast::channel(16).0, Arc::new(Metrics::default()));
        let committer = Committer::mirrored(mirror, &options, handed, changes, metrics).unwrap();
        Served { committer, jobs, todo, answers, pending: Vec::new(), sequence: 0 }
    }

    fn act(&mut self, world: &World) {
        for _ in 0..=world.below(2) {
            self.ask(world);
        }
        for _ in 0..=world.below(2) {
            self.committer.turn(&self.todo);
            self.take_answers(world);
        }
    }

    fn ask(&mut self, world: &World) {
        let name = NAMES[usize::try_from(world.below(2)).unwrap()];
        let (reply, answer) = oneshot::channel();
        let work = |task, reply| {
            let (caller, scope) = (Caller::default(), Scope::Operate);
            Job::Work(Box::new(Work { caller, scope, task, reply }))
        };
        let on = |secret: &str, renews| -> Task {
            let grant = secret.to_owned();
            Task::Grant(
                secret.into(),
                Box::new(move |file, on, now_ms| match renews {
                    true => names::renew(file, on, &grant, TTL_MS, now_ms),
                    false => names::release(file, on, now_ms),
                }),
            )
        };
        let hand_over = |secret: String| -> Task {
            Task::Grant(
                secret,
                Box::new(|file, on, now_ms| names::transfer(file, on, HTTP, TTL_MS, now_ms)),
            )
        };
        let asked = world.asked(name);
        let (mut grants, mut key) = (world.grants.borrow_mut(), None);
        // Clients that were cut off go on at another server.
        let (name, kind, job) = match (world.below(12), grants.last().cloned()) {
            (5..=6, Some((name, token, secret))) => {
                (name, Kind::Renew(token), work(on(&secret, true), reply))
            }
            (7..=8, Some((name, token, secret))) => {
                grants.pop();
                world.gives_up(name, token);
                let has_tick = world.names.borrow()[name].with_tick.contains(&token);
                if has_tick && world.below(4) > 0 {
                    return self.finish(world, (name, token), secret);
                }
                (name, Kind::Release(token), work(on(&secret, false), reply))
            }
            (10, Some((name, token, secret))) => {
                grants.pop();
                world.gives_up(name, token);
                (name, Kind::Transfer, work(hand_over(secret), reply))
            }
            (9, _) => {
                world.names.borrow_mut().entry(name).or_default().breaks += 1;
                let operator = Operator { caller: Caller::default(), reason: None };
                let broken = move |file: &super::super::Served<'_>, name: &str, now_ms| {
                    names::break_lease(file, name, None, &operator, now_ms)
                };
                let task = Task::Name(Id::Name(name.into()), Box::new(broken));
                (name, Kind::Break, work(task, reply))
            }
            (at, _) => {
                self.sequence += 1;
                let caller = Caller::default();
                let tick_ms = service_clock() / PERIOD_MS * PERIOD_MS;
                let request = TickRequest { tick_ms, attempts: 3 };
                let wish = Box::new(TickWish { asked: request, schedule: None });
                let tick = (world.below(2) == 0).then_some(wish);
                let claim = Claim { tick, ..Claim::new(caller, HTTP.into(), 0, None) };
                key = ["k", "l"].get(usize::try_from(world.below(4)).unwrap()).copied();
                let job = GrantJob {
                    id: Id::Name(name.into()),
                    wanted: Wanted::Name(Box::new(claim)),
                    ttl_ms: TTL_MS,
                    key: key.map(str::to_owned),
                    wait: (at == 0).then(WaitState::default),
                    sequence: self.sequence,
                    share: None,
                    reply,
                };
                (name, Kind::Claim, Job::Grant(job))
            }
        };
        world.notes(|| format!("{name}: a client asks to {kind:?}"));
        let asked = Start { floor: world.asked(name).floor, ..asked };
        self.pending.push(Pending { name, key, kind, asked, answer });
        assert!(self.jobs.send(job).is_ok());
    }

    /// Asks to finish the tick of a grant.
    fn finish(&mut self, world: &World, (name, token): (&'static str, i64), secret: String) {
        let (reply, answer) = oneshot::channel();
        let same = secret.clone();
        let task = Task::Grant(
            secret,
            Box::new(move |file, on, now_ms| {
                ticks::finish(file, on, &same, TickOutcome::Done, now_ms)
            }),
        );
        let (caller, scope, kind) = (Caller::default(), Scope::Operate, Kind::Finish(token));
        let (asked, key) = (world.asked(name), None);
        self.pending.push(Pending { name, key, kind, asked, answer });
        let job = Job::Work(Box::new(Work { caller, scope, task, reply }));
        assert!(self.jobs.send(job).is_ok());
    }

    fn take_answers(&mut self, world: &World) {
        while let Ok(answers) = self.answers.try_recv() {
            deliver(answers, |grant| self.committer.undelivered.push(grant));
        }
        for mut pending in std::mem::take(&mut self.pending) {
            let Ok(answer) = pending.answer.try_recv() else {
                self.pending.push(pending);
                continue;
            };
            let Pending { name, key, kind, asked, .. } = pending;
            world.notes(|| format!("{name}: {kind:?} is answered {answer:?}"));
            if let (Kind::Break, Ok(_)) = (&kind, &answer) {
                // One whose outcome is unknown may come late.
                world.names.borrow_mut().get_mut(name).unwrap().breaks -= 1;
            }
            match (kind, answer) {
                (_, Ok(Answer::Name(NameAnswer::Granted(granted)))) => {
                    let (token, left_ms) = (granted.lease.lease.token, granted.lease.left_ms);
                    let is_old = granted.is_fetched || granted.number.is_none();
                    let asked = Start { floor: if is_old { 0 } else { asked.floor }, ..asked };
                    match key {
                        Some(key) => world.granted_to_key((name, key), token, &asked, left_ms),
                        None => world.granted(name, token, &asked, left_ms),
                    }
                    if let Some(tick) = &granted.tick {
                        world.begun(name, token, tick, (!is_old).then_some(&asked));
                    }
                    world.grants.borrow_mut().push((name, token, granted.grant));
                }
                (Kind::Finish(token), Ok(Answer::Name(NameAnswer::Finished(finished)))) => {
                    world.finished(name, finished.tick_ms, token, &asked);
                }
                (Kind::Claim, Ok(Answer::Name(NameAnswer::Busy(..)))) => world.busy(name, &asked),
                (Kind::Renew(token), Ok(Answer::Name(NameAnswer::Renewed(renewed)))) => {
                    world.renewed(name, token, &asked, renewed.expires_in.ms);
                }
                (
                    Kind::Renew(token) | Kind::Release(token),
                    Ok(Answer::Name(NameAnswer::Refused(_))),
                ) => world.rejected(name, token, &asked),
                (Kind::Break, Ok(Answer::Name(NameAnswer::Broken(broken)))) => {
                    world.gives_up(name, broken.killed);
                }
                _ => {}
            }
        }
    }
}

/// Walks once. Returns the promise that was broken.
fn walk(seed: u64, has_clock: bool, bug: Option<Bug>) -> Option<String> {
    let engine = MemoryEngine::new();
    let world = Rc::new(World {
        engine,
        bug,
        has_clock,
        dice: Cell::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
        now_ms: Cell::new(START_MS),
        skew_ms: Cell::new(0),
        step: Cell::new(0),
        depth: Cell::new(0),
        programs: [RefCell::new(None), RefCell::new(None)],
        servers: [RefCell::new(None), RefCell::new(None)],
        grants: RefCell::default(),
        keys: RefCell::default(),
        late: RefCell::default(),
        names: RefCell::default(),
        raised: Cell::new(0),
        broken: RefCell::default(),
        trail: RefCell::default(),
        read: RefCell::default(),
    });
    WORLD.set(Some(Rc::clone(&world)));
    plant(match bug {
        Some(Bug::Planted(bug)) => Some(bug),
        _ => None,
    });
    (0..8).for_each(|_| _ = world.below(2));
    world.pass(0);
    for (place, owner) in world.programs.iter().zip(OWNERS) {
        *place.borrow_mut() = Some(Program { cluster: on_line(false), owner, leases: Vec::new() });
    }
    world.take_over();
    for _ in 0..STEPS {
        world.act();
        if world.broken.borrow().is_some() {
            break;
        }
    }
    // What is under way ends with the world.
    world.servers.iter().for_each(|server| drop(server.borrow_mut().take()));
    let broken = world.broken.take();
    if broken.is_some() && std::env::var_os("LITELEASE_TRAIL").is_some() {
        world.trail.borrow().iter().for_each(|line| eprintln!("{line}"));
    }
    broken
}

pub(super) fn alone(play: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.stack_size = 4 * 1024 * 1024;
    config.max_steps = shuttle::MaxSteps::None;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(1), config).run(play);
}

fn walks(count: u64) -> u64 {
    let asked = std::env::var("LITELEASE_WALKS").ok().and_then(|count| count.parse().ok());
    asked.unwrap_or(count)
}

#[test]
fn nothing_is_granted_twice_in_any_order_of_programs_and_servers() {
    alone(|| {
        for has_clock in [false, true] {
            for seed in 0..walks(300) {
                let broken = walk(seed, has_clock, None);
                assert_eq!(broken, None, "seed {seed}, has_clock {has_clock}");
            }
        }
    });
}

/// Looks for a walk that a bug breaks.
fn check_finds(bug: Bug, clocks: &[bool]) {
    for has_clock in clocks {
        let found =
            (0..walks(20_000)).find_map(|seed| Some((seed, walk(seed, *has_clock, Some(bug))?)));
        let (seed, promise) = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        eprintln!("{bug:?}, has_clock {has_clock}, seed {seed}: {promise}");
    }
}

#[test]
fn planted_bugs_are_found() {
    alone(|| {
        const BOTH: &[bool] = &[false, true];
        check_finds(Bug::WriterAlone, BOTH);
        check_finds(Bug::NoRow, BOTH);
        check_finds(Bug::TokenOfRow, BOTH);
        check_finds(Bug::NoFloor, BOTH);
        check_finds(Bug::PurgeByName, BOTH);
        check_finds(Bug::OwnFloor, BOTH);
        check_finds(Bug::NoFromMemory, BOTH);
        check_finds(Bug::TicksApart, BOTH);
        check_finds(Bug::Planted(Planted::AnyIsHandedOver), BOTH);
        check_finds(Bug::Planted(Planted::AgainFromMemory), &[false]);
        check_finds(Bug::WallClock, &[false]);
        check_finds(Bug::Planted(Planted::CountsOn), &[false]);
        check_finds(Bug::ServiceTime, &[false]);
        check_finds(Bug::OwnTime, &[true]);
    });
}
