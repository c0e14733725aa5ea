//! Every interleaving of a few clients of an engine that fails: at each call others come in
//! between, requests get lost, arrive late or twice, and answers are late.
//!
//! A verb is an ordinary function, so it is stopped at a call and gone on with by running it again
//! from its beginning, with the answers that it has had so far. The whole world can be copied, so
//! that every continuation is tried.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use litelease_cluster::engine::{
    Change, Loaded, LoadedRow, RowChange, SideKind, Stored, StoredRow,
};
use litelease_cluster::{
    BreakResult, ClaimResult, Cluster, Engine, EngineFacts, Error, GrantRef, GrantResult, Host,
    MemoryRows, Options, Reason, ReleaseResult, RenewResult, RowCache, TransferResult,
};

use crate::rig::Dice;

/// A lease has this many milliseconds, of which its holder trusts nine tenths.
const TTL: Duration = Duration::from_millis(10);
const TRUSTED_MS: i64 = 9;
/// How far time goes in one step.
const TICK_MS: i64 = 5;
const START_MS: i64 = 1_000;
/// How much another server's clock is ahead.
const AHEAD_MS: i64 = 1_000;
const NAME: &str = "x";
const OWNERS: [&str; 3] = ["a", "b", "c"];

/// A bug of the engine or of a client. All are planted here, around the shipped verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Bug {
    NoCompare,
    CompareOnToken,
    MarkNotCompared,
    FloorNotRead,
    BootNotRead,
    OwnClock,
    /// A lost answer is taken for a conflict, so the verb decides anew.
    LostIsConflict,
    /// A renewal leaves the version of a row as it is, so observers count on.
    VersionIsToken,
    /// The client counts its trust from the answer.
    TrustFromAnswer,
    /// A purge deletes rows before it raises the floor.
    PurgeBeforeFloor,
    /// A store does not compare what is beside the row.
    SideNotCompared,
}

/// What is walked through.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// How many clients there are: at most three.
    pub clients: usize,
    /// How many verbs each may do.
    pub verbs_each: u8,
    /// How many verbs all of them may do together.
    pub verbs: u8,
    /// How many calls may fail or be answered late.
    pub faults: u8,
    /// How often the clock may tick.
    pub ticks: u8,
    /// Whether the engine may lose commits once, and come up as another incarnation.
    pub failovers: u8,
    /// Whether the engine has a clock of its own, which a failover sets.
    pub has_clock: bool,
    /// Whether clients also limit grants, which are then not to be renewed.
    pub limits: bool,
    /// When to stop, done or not.
    pub until: Option<Instant>,
}

/// What came of a walk.
#[derive(Clone, Debug, Default)]
pub struct Walked {
    /// How many different worlds were seen.
    pub worlds: u64,
    /// Whether these were all.
    pub is_all: bool,
    /// The promise that was broken, and the steps that lead there.
    pub broken: Option<(String, Vec<String>)>,
}

/// Walks through all histories within the bounds.
pub fn walk(bounds: Bounds, bug: Option<Bug>) -> Walked {
    let mut walk = Walk { bounds, seen: HashSet::new(), trail: Vec::new(), is_all: true };
    let broken = walk.on(World::new(bounds, bug)).err().map(|promise| (promise, walk.trail));
    Walked { worlds: walk.seen.len() as u64, is_all: walk.is_all, broken }
}

/// Looks for the history with the fewest verbs that breaks a promise.
pub fn find(bounds: Bounds, bug: Bug) -> Walked {
    let mut walked = Walked::default();
    for verbs in 1..=bounds.verbs {
        walked = walk(Bounds { verbs, ..bounds }, Some(bug));
        if walked.broken.is_some() {
            break;
        }
    }
    walked
}

/// Walks at random, and stops at the first broken promise.
pub fn stroll(bounds: Bounds, bug: Option<Bug>, dice: &mut Dice) -> Walked {
    let mut walked = Walked { is_all: false, ..Walked::default() };
    while bounds.until.is_none_or(|until| Instant::now() < until) {
        let (mut world, mut trail) = (World::new(bounds, bug), Vec::new());
        loop {
            let steps = world.steps();
            if steps.is_empty() {
                break;
            }
            let step = &steps[dice.below(steps.len() as u64) as usize];
            trail.push(format!("{step:?}"));
            walked.worlds += 1;
            if let Err(promise) = world.take(step) {
                walked.broken = Some((promise, trail));
                return walked;
            }
        }
    }
    walked
}

struct Walk {
    bounds: Bounds,
    seen: HashSet<u64>,
    trail: Vec<String>,
    is_all: bool,
}

impl Walk {
    fn on(&mut self, world: World) -> Result<(), String> {
        let mut hasher = DefaultHasher::new();
        world.hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return Ok(());
        }
        if self.seen.len().is_multiple_of(1024)
            && self.bounds.until.is_some_and(|until| Instant::now() > until)
        {
            self.is_all = false;
        }
        if !self.is_all {
            return Ok(());
        }
        for step in world.steps() {
            let mut next = world.clone();
            self.trail.push(format!("{step:?}"));
            next.take(&step)?;
            self.on(next)?;
            self.trail.pop();
        }
        Ok(())
    }
}

/// Everything: the engine, its clients, the time and what is under way.
#[derive(Clone, Hash)]
struct World {
    rows: MemoryRows,
    /// What the engine was like at some earlier time: a failover brings it back.
    earlier: MemoryRows,
    now_ms: i64,
    clients: Vec<Client>,
    /// Stores that the client no longer waits for, and that may still arrive.
    under_way: Vec<Delayed>,
    /// The largest token that was ever stored.
    highest: i64,
    /// An operator has thrown out the holders of smaller tokens, who learn it at the end of their
    /// window.
    thrown_out: i64,
    verbs_left: u8,
    faults_left: u8,
    ticks_left: u8,
    failovers_left: u8,
    has_limits: bool,
    /// A failover lost commits: what was acknowledged before no longer tells who has the name.
    has_lost: bool,
    bug: BugHash,
}

/// Bugs are the same in all worlds of a walk.
#[derive(Clone, Copy)]
struct BugHash(Option<Bug>);

impl Hash for BugHash {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

#[derive(Clone, Hash)]
struct Client {
    verbs_left: u8,
    row_cache: RowCache,
    lease: Option<(i64, i64)>,
    /// Until when it believes to have the name under a token.
    belief: Option<(i64, i64)>,
    running: Option<Running>,
}

#[derive(Clone, Hash)]
struct Running {
    verb: Verb,
    id: i64,
    started_ms: i64,
    /// What it was answered so far, and when.
    tape: Vec<(Reply, i64)>,
    /// The call that it makes now.
    request: Request,
    /// The answer of that call, if the engine has carried it out and the answer is under way.
    late: Option<Reply>,
    /// A failover may have lost what it has stored.
    is_lost: bool,
    /// The token that it has stored, if it has.
    applied: Option<i64>,
    /// How the row was since it began: its token, and its owner if it had one.
    rows: Vec<Seen>,
}

/// How a row is: its token, and its owner if it has one.
type Seen = (i64, Option<String>);

#[derive(Clone, Hash)]
struct Delayed {
    client: usize,
    id: i64,
    seen: Loaded,
    change: Change,
    /// Its verb has returned, with another answer than an unknown outcome.
    is_answered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verb {
    Claim,
    Ensure,
    Renew,
    Release,
    Transfer,
    Break,
    Purge,
    /// Limits the present grant, so that no renewal comes after it.
    Limit,
}

const VERBS: [Verb; 8] = [
    Verb::Claim,
    Verb::Ensure,
    Verb::Renew,
    Verb::Release,
    Verb::Transfer,
    Verb::Break,
    Verb::Purge,
    Verb::Limit,
];

#[derive(Clone, Debug)]
enum Step {
    Begin(usize, Verb),
    /// The engine carries a call out and the answer arrives at once.
    Call(usize),
    /// The request never arrives, and the client knows it.
    Fail(usize),
    /// The request is on its way, and the client gets no answer.
    Lose(usize),
    /// The engine carries a call out, and the answer is under way.
    Execute(usize),
    Answer(usize),
    /// A request arrives whose client no longer waits.
    Arrive(usize),
    Tick,
    /// The state of now is what a failover brings back.
    Copy,
    Failover,
}

#[derive(Clone, Debug, PartialEq, Hash)]
enum Request {
    Load(Vec<String>),
    Store(Loaded, Change),
    List,
    Forget(Vec<LoadedRow>),
}

#[derive(Clone, Debug, Hash)]
enum Reply {
    Loaded(Loaded),
    Stored(Stored),
    Forgotten(u64),
    Unreachable,
    Unknown,
}

/// What a verb has answered.
#[derive(Clone, Debug)]
enum Outcome {
    Granted { token: i64, since_ms: i64 },
    Renewed { token: i64, since_ms: i64 },
    Released { token: i64 },
    Transferred { token: i64 },
    Broken { token: i64 },
    Purged,
    Limited { token: i64 },
    Busy { owner: String, token: i64 },
    Rejected(Reason),
    Failed(Error),
}

impl World {
    fn new(bounds: Bounds, bug: Option<Bug>) -> Self {
        let client = Client {
            verbs_left: bounds.verbs_each,
            row_cache: RowCache::default(),
            lease: None,
            belief: None,
            running: None,
        };
        let mut rows = MemoryRows::new(1);
        rows.server_ms = bounds.has_clock.then_some(START_MS);
        // A new engine cannot show that it has lost rows.
        rows.floor.epoch.boot = i64::from(bounds.failovers > 0);
        World {
            rows: rows.clone(),
            earlier: rows,
            now_ms: START_MS,
            clients: vec![client; bounds.clients],
            under_way: Vec::new(),
            highest: 0,
            thrown_out: 0,
            verbs_left: bounds.verbs,
            faults_left: bounds.faults,
            ticks_left: bounds.ticks,
            failovers_left: bounds.failovers,
            has_limits: bounds.limits,
            has_lost: false,
            bug: BugHash(bug),
        }
    }

    /// Everything that can happen next.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        // What others do between the beginning of a verb and its first read, they could do before
        // it: only time that passes in between makes a difference.
        let begun = self.clients.iter().position(|client| {
            client.running.as_ref().is_some_and(|running| {
                running.tape.is_empty()
                    && matches!(running.request, Request::Load(_) | Request::List)
            })
        });
        for (at, client) in self.clients.iter().enumerate() {
            if begun.is_some_and(|begun| begun != at) {
                continue;
            }
            match &client.running {
                Some(running) if running.late.is_some() => steps.push(Step::Answer(at)),
                Some(running) => {
                    steps.push(Step::Call(at));
                    let is_store = matches!(running.request, Request::Store(..));
                    if self.faults_left > 0 {
                        steps.push(Step::Fail(at));
                    }
                    if self.faults_left > 0 && is_store {
                        steps.extend([Step::Lose(at), Step::Execute(at)]);
                    }
                }
                None if client.verbs_left > 0 && self.verbs_left > 0 => {
                    let fits = |verb: &&Verb| match verb {
                        Verb::Renew | Verb::Release | Verb::Transfer => client.lease.is_some(),
                        Verb::Break => self.highest > 0,
                        Verb::Purge => !self.rows.rows.is_empty(),
                        Verb::Limit => self.has_limits && self.row().1.is_some(),
                        Verb::Claim | Verb::Ensure => true,
                    };
                    let verbs = VERBS.iter().filter(fits);
                    steps.extend(verbs.map(|verb| Step::Begin(at, *verb)));
                }
                None => {}
            }
        }
        if begun.is_none() {
            steps.extend((0..self.under_way.len()).map(Step::Arrive));
        }
        // Time that passes after the last verb changes nothing.
        let goes_on =
            self.verbs_left > 0 || self.clients.iter().any(|client| client.running.is_some());
        if self.ticks_left > 0 && goes_on {
            steps.push(Step::Tick);
        }
        if self.failovers_left > 0 && goes_on && begun.is_none() {
            if self.earlier != self.rows {
                steps.push(Step::Copy);
            }
            steps.push(Step::Failover);
        }
        steps
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Begin(at, verb) => {
                self.verbs_left -= 1;
                let id = i64::from(self.clients[at].verbs_left) + 10 * (at as i64 + 1);
                let rows = vec![self.row()];
                let client = &mut self.clients[at];
                client.verbs_left -= 1;
                if matches!(verb, Verb::Release | Verb::Transfer) {
                    client.belief = None;
                }
                client.running = Some(Running {
                    verb,
                    id,
                    started_ms: self.now_ms,
                    tape: Vec::new(),
                    request: Request::List,
                    late: None,
                    is_lost: false,
                    applied: None,
                    rows,
                });
                self.go_on(at)?;
            }
            Step::Call(at) => {
                let reply = self.execute(at)?;
                self.answer(at, reply)?;
            }
            Step::Fail(at) => {
                self.faults_left -= 1;
                self.answer(at, Reply::Unreachable)?;
            }
            Step::Lose(at) => {
                self.faults_left -= 1;
                let Some(running) = &self.clients[at].running else { return Ok(()) };
                if let Request::Store(seen, change) = &running.request {
                    let (seen, change) = (seen.clone(), change.clone());
                    let id = running.id;
                    self.under_way.push(Delayed {
                        client: at,
                        id,
                        seen,
                        change,
                        is_answered: false,
                    });
                }
                self.answer(at, Reply::Unknown)?;
            }
            Step::Execute(at) => {
                self.faults_left -= 1;
                let reply = self.execute(at)?;
                if let Some(running) = &mut self.clients[at].running {
                    running.late = Some(reply);
                }
            }
            Step::Answer(at) => {
                let late =
                    self.clients[at].running.as_mut().and_then(|running| running.late.take());
                if let Some(reply) = late {
                    self.answer(at, reply)?;
                }
            }
            Step::Arrive(number) => {
                let delayed = self.under_way.remove(number);
                let is_again = self.is_stored_again(&delayed.change);
                let stored = self.store(&delayed.seen, &delayed.change);
                if stored != Stored::Conflict && !is_again {
                    // A floor that is raised late does no harm.
                    let rows = delayed.change.rows.iter().map(|(_, row)| row.attempt);
                    let mut stored =
                        rows.chain(delayed.change.sides.iter().map(|(_, side)| side.attempt));
                    let is_harmless = !stored.any(|attempt| attempt / 1000 == delayed.id);
                    let promise = "nothing is stored after its verb was answered";
                    demand(!delayed.is_answered || is_harmless, promise)?;
                    self.applied(delayed.client, delayed.id, &delayed.change)?;
                }
            }
            Step::Tick => {
                self.ticks_left -= 1;
                self.now_ms += TICK_MS;
                self.rows.server_ms = self.rows.server_ms.map(|ms| ms + TICK_MS);
            }
            Step::Copy => self.earlier = self.rows.clone(),
            Step::Failover => {
                self.failovers_left -= 1;
                self.has_lost |=
                    self.earlier.rows != self.rows.rows || self.earlier.sides != self.rows.sides;
                let (version, server_ms) = (self.rows.version, self.rows.server_ms);
                self.rows = self.earlier.clone();
                self.rows.incarnation += 1;
                // Another history has other versions, and another server has another clock.
                self.rows.version = version + 100;
                self.rows.server_ms = server_ms.map(|ms| ms + AHEAD_MS);
                for client in &mut self.clients {
                    if let Some(running) = &mut client.running {
                        running.is_lost = self.has_lost;
                        running.applied = running.applied.filter(|_| !self.has_lost);
                    }
                }
                self.note_row();
            }
        }
        self.check_one_owner()
    }

    /// The engine carries out the call that a client makes.
    fn execute(&mut self, at: usize) -> Result<Reply, String> {
        let Some(running) = &self.clients[at].running else { return Ok(Reply::Unreachable) };
        let id = running.id;
        Ok(match running.request.clone() {
            Request::Load(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                Reply::Loaded(self.shown(self.rows.load(&names)))
            }
            Request::List => Reply::Loaded(self.shown(self.rows.list())),
            Request::Store(seen, change) => {
                let is_again = self.is_stored_again(&change);
                let stored = self.store(&seen, &change);
                if stored != Stored::Conflict && !is_again {
                    self.applied(at, id, &change)?;
                }
                Reply::Stored(stored)
            }
            Request::Forget(rows) => {
                let deleted = self.rows.forget(&rows);
                self.note_row();
                Reply::Forgotten(deleted)
            }
        })
    }

    /// Checks whether a change only gives a lease its ttl again: the row is there, of the same
    /// attempt.
    fn is_stored_again(&self, change: &Change) -> bool {
        let attempt = |row: &StoredRow| Some(row.attempt);
        let stored = self.rows.rows.get(NAME).and_then(|(_, row)| attempt(row));
        stored.is_some() && change.rows.first().and_then(|(_, row)| attempt(row)) == stored
    }

    fn shown(&self, mut loaded: Loaded) -> Loaded {
        if self.bug.0 == Some(Bug::FloorNotRead) {
            loaded.floor.epoch.floor = 0;
        }
        if self.bug.0 == Some(Bug::BootNotRead) {
            loaded.incarnation = 1;
        }
        if self.bug.0 == Some(Bug::VersionIsToken) {
            for row in &mut loaded.rows {
                row.version = row.row.as_ref().map_or(0, |row| row.token);
            }
        }
        loaded
    }

    fn store(&mut self, seen: &Loaded, change: &Change) -> Stored {
        match self.bug.0 {
            Some(Bug::NoCompare) => self.rows.write(change),
            Some(Bug::CompareOnToken) => {
                let token = |row: &LoadedRow| row.row.as_ref().map(|row| row.token);
                let is_same = |row: &LoadedRow| {
                    self.rows.load(&[&row.name]).rows.first().map(token) == Some(token(row))
                };
                match seen.floor == self.rows.floor && seen.rows.iter().all(is_same) {
                    true => self.rows.write(change),
                    false => Stored::Conflict,
                }
            }
            Some(Bug::MarkNotCompared) => {
                let seen = Loaded { floor: self.rows.floor, ..seen.clone() };
                self.rows.store(&seen, change)
            }
            Some(Bug::BootNotRead) => self
                .rows
                .store(&Loaded { incarnation: self.rows.incarnation, ..seen.clone() }, change),
            Some(Bug::FloorNotRead) => {
                let mut seen = seen.clone();
                if seen.floor.version == self.rows.floor.version {
                    seen.floor = self.rows.floor;
                }
                self.rows.store(&seen, change)
            }
            Some(Bug::VersionIsToken) => {
                // It compares all other columns, so that nothing is overwritten.
                let mut seen = seen.clone();
                for row in &mut seen.rows {
                    let now = self.rows.load(&[&row.name]).rows.remove(0);
                    row.version = if now.row == row.row { now.version } else { -1 };
                }
                self.rows.store(&seen, change)
            }
            Some(Bug::SideNotCompared) => {
                self.rows.store(seen, &Change { beside: false, ..change.clone() })
            }
            _ => self.rows.store(seen, change),
        }
    }

    /// Returns the token whose grant is limited, if it is the newest.
    fn limited(&self) -> Option<i64> {
        let side = self.rows.sides.get(&(NAME.to_owned(), SideKind::Payload))?;
        (side.token == self.row().0).then_some(side.token)
    }

    /// A store of a verb has taken effect.
    fn applied(&mut self, at: usize, id: i64, change: &Change) -> Result<(), String> {
        // How the row was before it, as its client may have seen it.
        let before = self.clients[at].running.as_ref().and_then(|running| running.rows.last());
        let before = before.map_or(0, |(token, _)| *token);
        self.note_row();
        if let Some((_, side)) = change.sides.first() {
            demand(side.token == self.row().0, "a limit is stored under the newest token")?;
        }
        let Some((_, row)) = change.rows.first().filter(|(_, row)| row.attempt / 1000 == id) else {
            return Ok(());
        };
        let (token, highest) = (row.token, self.highest);
        let running = self.clients[at].running.as_mut().filter(|running| running.id == id);
        if let Some(running) = running {
            demand(running.applied.is_none(), "a verb takes effect at most once")?;
            running.applied = Some(token);
            let is_limited = Some(token) == self.rows.sides.values().map(|side| side.token).next();
            let renews_only = token == before && row.tenure.is_some();
            demand(!(is_limited && renews_only), "a grant that is limited is not renewed")?;
            let raises = matches!(running.verb, Verb::Claim | Verb::Transfer | Verb::Break);
            let renews = running.verb == Verb::Ensure && token == before;
            if (raises || running.verb == Verb::Ensure) && !renews {
                demand(token > highest, "every grant has a larger token than all before it")?;
            }
            if running.verb == Verb::Break {
                self.thrown_out = self.thrown_out.max(token);
            }
        } else {
            // Its client gave up, without knowing; a break may have been among those.
            self.thrown_out = self.thrown_out.max(token);
        }
        self.highest = highest.max(token);
        Ok(())
    }

    fn answer(&mut self, at: usize, reply: Reply) -> Result<(), String> {
        if let Some(running) = &mut self.clients[at].running {
            running.tape.push((reply, self.now_ms));
        }
        self.go_on(at)
    }

    /// Runs the verb of a client to its next call, or to its end.
    fn go_on(&mut self, at: usize) -> Result<(), String> {
        let client = &self.clients[at];
        let Some(running) = &client.running else { return Ok(()) };
        let skews = [0, 40, -40];
        let tape = Arc::new(Tape {
            tape: running.tape.clone(),
            started_ms: running.started_ms,
            skew_ms: skews[at],
            attempts: running.id * 1000,
            bug: self.bug.0,
            place: Mutex::default(),
        });
        let options = Options {
            patience: Duration::from_millis(12),
            max_skew: Duration::from_millis(match self.bug.0 {
                Some(Bug::OwnClock) => 0,
                // As wrong as each clock is.
                _ => 40,
            }),
        };
        let (engine, host): (Arc<dyn Engine>, Arc<dyn Host>) = (tape.clone(), tape.clone());
        let cluster = Cluster::remembering(engine, host, options, client.row_cache.clone());
        let outcome = match (self.bug.0, running.verb) {
            (Some(Bug::PurgeBeforeFloor), Verb::Purge) => purge_before_floor(&cluster),
            (_, Verb::Limit) => perform(&cluster, Verb::Limit, at, Some((running.rows[0].0, 0))),
            _ => perform(&cluster, running.verb, at, client.lease),
        };
        let request = tape.place.lock().expect("no panic").request.take();
        if let Some(request) = request {
            if let Some(running) = &mut self.clients[at].running {
                running.request = request;
            }
            return Ok(());
        }
        let row_cache = cluster.row_cache();
        self.clients[at].row_cache = row_cache;
        self.end(at, outcome)
    }

    /// A verb is answered: checks the answer, and what its client believes from now on.
    fn end(&mut self, at: usize, outcome: Outcome) -> Result<(), String> {
        let Some(running) = self.clients[at].running.take() else { return Ok(()) };
        let is_unknown = matches!(outcome, Outcome::Failed(Error::CommitUnknown(_)));
        for delayed in self.under_way.iter_mut().filter(|delayed| delayed.id == running.id) {
            delayed.is_answered = !is_unknown;
        }
        let was = |fits: &dyn Fn(&Seen) -> bool| running.rows.iter().any(fits);
        let took_effect = |token: i64| {
            let is_stored = running.applied == Some(token) || running.is_lost;
            demand(is_stored, "what is answered is what is stored")
        };
        let from_answer = self.bug.0 == Some(Bug::TrustFromAnswer);
        let now_ms = self.now_ms;
        let until_ms = |since_ms| if from_answer { now_ms } else { since_ms } + TRUSTED_MS;
        let client = &mut self.clients[at];
        match outcome {
            Outcome::Granted { token, since_ms } => {
                took_effect(token)?;
                client.lease = Some((token, self.now_ms));
                let before = client.belief.filter(|belief| belief.0 == token);
                let until = before.map_or(0, |belief| belief.1).max(until_ms(since_ms));
                client.belief = Some((token, until));
            }
            Outcome::Renewed { token, since_ms } => {
                took_effect(token)?;
                let before = client.belief.filter(|belief| belief.0 == token);
                let until = before.map_or(0, |belief| belief.1).max(until_ms(since_ms));
                client.belief = Some((token, until));
            }
            Outcome::Released { token } => took_effect(token)?,
            Outcome::Transferred { token } => took_effect(token)?,
            Outcome::Broken { token } => {
                let is_larger = running.applied.is_some_and(|applied| applied > token);
                demand(is_larger || running.is_lost, "what is answered is what is stored")?;
            }
            Outcome::Purged => {}
            Outcome::Limited { token } => {
                let newer = self.limited() == Some(token) || self.row().0 != token;
                demand(newer || running.is_lost, "what is answered is what is stored")?;
            }
            Outcome::Busy { owner, token } => {
                demand(running.applied.is_none(), "a no changes nothing")?;
                let fits = |row: &Seen| *row == (token, Some(owner.clone()));
                demand(was(&fits), "busy is told while somebody has it")?;
            }
            Outcome::Rejected(reason) => {
                demand(running.applied.is_none(), "a no changes nothing")?;
                client.belief = client.belief.filter(|_| running.verb != Verb::Renew);
                let fits = |(token, owner): &Seen| match reason {
                    Reason::NeverClaimed => *token == 0,
                    Reason::Superseded { by } => *token == by,
                    Reason::Released => *token > 0 && owner.is_none(),
                    Reason::HeldBy | Reason::Expired => owner.is_some(),
                    Reason::UnknownToken => true,
                    Reason::TimeIsUp => self.has_limits,
                    _ => false,
                };
                demand(was(&fits), "a rejection names what was so")?;
            }
            Outcome::Failed(Error::CommitUnknown(_)) => {}
            Outcome::Failed(Error::ExpiredOnArrival(lease)) => took_effect(lease.token)?,
            Outcome::Failed(error) => {
                let is_purge = running.verb == Verb::Purge;
                demand(is_purge || running.applied.is_none(), "unreachable: nothing is stored")?;
                demand(!matches!(error, Error::Refused(_)), "no call is left out")?;
            }
        }
        Ok(())
    }

    fn row(&self) -> Seen {
        self.rows.rows.get(NAME).map_or((0, None), |(_, row)| {
            (row.token, row.tenure.as_ref().map(|tenure| tenure.owner.clone()))
        })
    }

    fn note_row(&mut self) {
        let row = self.row();
        for client in &mut self.clients {
            if let Some(running) = &mut client.running
                && running.rows.last() != Some(&row)
            {
                running.rows.push(row.clone());
            }
        }
    }

    fn check_one_owner(&self) -> Result<(), String> {
        let beliefs = self.clients.iter().filter_map(|client| client.belief);
        let believes =
            |(token, until_ms): &(i64, i64)| self.now_ms < *until_ms && *token >= self.thrown_out;
        let believers = beliefs.filter(believes).count();
        demand(believers <= 1 || self.has_lost, "at most one client believes to have the name")
    }
}

fn demand(holds: bool, promise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(promise.to_owned()) }
}

fn perform(cluster: &Cluster, verb: Verb, at: usize, lease: Option<(i64, i64)>) -> Outcome {
    let owner = OWNERS[at];
    let token = lease.map_or(0, |lease| lease.0);
    let lease = GrantRef { name: NAME, token, owner: Some(owner) };
    let since = |since: Duration| since.as_millis() as i64;
    let granted = |claimed| match claimed {
        (ClaimResult::Acquired(lease), from) => {
            Outcome::Granted { token: lease.token, since_ms: since(from) }
        }
        (ClaimResult::Busy(lease), _) => Outcome::Busy { owner: lease.owner, token: lease.token },
    };
    let done = match verb {
        Verb::Claim => cluster.claim_since(NAME, owner, TTL, 0).map(granted),
        Verb::Ensure => cluster.ensure_since(NAME, owner, TTL).map(granted),
        Verb::Renew => cluster.renew_since(lease, TTL).map(|renewed| match renewed {
            (RenewResult::Renewed(lease), from) => {
                Outcome::Renewed { token: lease.token, since_ms: since(from) }
            }
            (RenewResult::Rejected { reason, .. }, _) => Outcome::Rejected(reason),
        }),
        Verb::Release => cluster.release(lease).map(|released| match released {
            ReleaseResult::Released { token, .. } => Outcome::Released { token },
            ReleaseResult::Rejected { reason, .. } => Outcome::Rejected(reason),
        }),
        Verb::Transfer => cluster.transfer(lease, "d", TTL).map(|handed| match handed {
            TransferResult::Transferred(lease) => Outcome::Transferred { token: lease.token },
            TransferResult::Rejected { reason, .. } => Outcome::Rejected(reason),
        }),
        Verb::Break => cluster.break_lease(NAME).map(|broken| match broken {
            BreakResult::Broken { token, .. } => Outcome::Broken { token },
            BreakResult::Rejected { reason, .. } => Outcome::Rejected(reason),
        }),
        Verb::Purge => cluster.purge(i64::MAX).map(|_| Outcome::Purged),
        Verb::Limit => cluster.limit(lease, None, Some(0)).map(|limited| match limited {
            GrantResult::Done => Outcome::Limited { token },
            GrantResult::Stale { reason } => Outcome::Rejected(reason),
        }),
    };
    done.unwrap_or_else(Outcome::Failed)
}

/// Deletes the rows of free names, and raises the floor only then.
fn purge_before_floor(cluster: &Cluster) -> Outcome {
    let purge = || {
        let mut rows = cluster.engine().list()?.rows;
        rows.retain(|row| row.row.as_ref().is_some_and(|row| row.tenure.is_none()));
        cluster.engine().forget(&rows)?;
        let tokens = rows.iter().filter_map(|row| row.row.as_ref()).map(|row| row.token);
        tokens.max().map_or(Ok(()), |largest| cluster.raise(largest))
    };
    purge().map_or_else(Outcome::Failed, |()| Outcome::Purged)
}

/// The engine and the machine of one run of a verb: it repeats the answers that were given, and
/// stops at the next call.
struct Tape {
    tape: Vec<(Reply, i64)>,
    started_ms: i64,
    skew_ms: i64,
    attempts: i64,
    bug: Option<Bug>,
    place: Mutex<Playing>,
}

#[derive(Default)]
struct Playing {
    played: usize,
    request: Option<Request>,
    attempts: i64,
}

impl Tape {
    fn call(&self, request: Request) -> litelease_cluster::Result<Reply> {
        let mut place = self.place.lock().expect("no panic");
        match self.tape.get(place.played) {
            Some((Reply::Unreachable, _)) => {
                place.played += 1;
                Err(Error::Unreachable("planned".into()))
            }
            Some((Reply::Unknown, _)) => {
                place.played += 1;
                Err(Error::CommitUnknown("planned".into()))
            }
            Some((reply, _)) => {
                place.played += 1;
                Ok(reply.clone())
            }
            None => {
                place.request.get_or_insert(request);
                Err(Error::Refused("the tape is at its end".into()))
            }
        }
    }

    fn now_ms(&self) -> i64 {
        let played = self.place.lock().expect("no panic").played;
        played.checked_sub(1).map_or(self.started_ms, |last| self.tape[last].1)
    }
}

fn other<T>() -> litelease_cluster::Result<T> {
    Err(Error::Refused("the tape has another answer".into()))
}

impl Engine for Tape {
    fn load(&self, names: &[&str]) -> litelease_cluster::Result<Loaded> {
        let names = names.iter().map(ToString::to_string).collect();
        match self.call(Request::Load(names))? {
            Reply::Loaded(loaded) => Ok(loaded),
            _ => other(),
        }
    }

    fn store(&self, seen: &Loaded, change: &Change) -> litelease_cluster::Result<Stored> {
        match self.call(Request::Store(seen.clone(), change.clone())) {
            Ok(Reply::Stored(stored)) => Ok(stored),
            Ok(_) => other(),
            Err(Error::CommitUnknown(_)) if self.bug == Some(Bug::LostIsConflict) => {
                Ok(Stored::Conflict)
            }
            Err(error) => Err(error),
        }
    }

    fn list(&self) -> litelease_cluster::Result<Loaded> {
        match self.call(Request::List)? {
            Reply::Loaded(loaded) => Ok(loaded),
            _ => other(),
        }
    }

    fn forget(&self, seen: &[LoadedRow]) -> litelease_cluster::Result<u64> {
        match self.call(Request::Forget(seen.to_vec()))? {
            Reply::Forgotten(deleted) => Ok(deleted),
            _ => other(),
        }
    }

    fn wait_for_change(&self, _: &str, _: i64, _: Duration) {}

    fn load_rows(&self, _: &[u8]) -> litelease_cluster::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        other()
    }

    fn commit_rows(&self, _: &str, _: i64, _: &[RowChange]) -> litelease_cluster::Result<Stored> {
        other()
    }

    fn most_rows(&self, _: bool) -> usize {
        127
    }

    fn facts(&self) -> litelease_cluster::Result<EngineFacts> {
        other()
    }
}

impl Host for Tape {
    fn wall_ms(&self) -> i64 {
        self.now_ms() + self.skew_ms
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.now_ms().unsigned_abs())
    }

    fn random_id(&self) -> i64 {
        let mut place = self.place.lock().expect("no panic");
        place.attempts += 1;
        self.attempts + place.attempts
    }

    fn pause(&self, _: Duration) {}
}
