//! Shards: the members of a group share a number of leases evenly, and move them when members come
//! and go.
//!
//! A member is a session, so its shards end together. [`litelease_core::plan`] decides what it
//! claims, requests and gives up, in the transaction that does it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use litelease_core::CheckpointResult;
use litelease_store::{AssignedShard, OwnedValue, SessionGrants, ShardGroup, Store, Value, When};
use litelease_sys::spawn_without_signals;

use super::aside::STEP;
use super::{
    Aside, DatabaseFile, FileConnection, FileError, OwnConnection, SessionMembers, in_ms,
    open_session,
};
use crate::{Held, HoldError, Loss, Lost, Waiter};

type Result<T, E = HoldError<FileError>> = std::result::Result<T, E>;

/// How often open requests are repeated: several times before they would lapse.
const REPEAT_EVERY: Duration = Duration::from_secs(3);

/// The shortest time between two reads of the group, however often the file is written.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest sleep between two reads, since a wake-up is only a hint.
const SLOW_POLL: Duration = Duration::from_millis(250);

/// Options of a member.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_hold::file::ShardsOptions;
/// let options = ShardsOptions::new("worker-7", Duration::from_secs(10)).drain(Duration::from_secs(60));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct ShardsOptions {
    id: String,
    ttl: Duration,
    drain: Duration,
}

impl ShardsOptions {
    /// Returns options of the member `id`, whose leases last `ttl`. Other members have 30 s to give
    /// up a shard that this one requests.
    pub fn new(id: &str, ttl: Duration) -> Self {
        ShardsOptions { id: id.into(), ttl, drain: Duration::from_secs(30) }
    }

    /// Sets how long other members may take to finish with a shard that this one requests.
    pub fn drain(self, drain: Duration) -> Self {
        ShardsOptions { drain, ..self }
    }
}

/// A change of the shards of a member. `C` is a checkpoint.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ShardEvent<C> {
    /// The shard is this member's, under this token. Go on from the checkpoint.
    Assigned {
        /// The number of the shard.
        shard: usize,
        /// The fencing token.
        token: i64,
        /// The last checkpoint of the shard, by any member.
        checkpoint: Option<C>,
    },
    /// Another member needs the shard: finish, store a checkpoint, and hand it over.
    Requested {
        /// The number of the shard.
        shard: usize,
        /// The time from which on it is not renewed, in Unix milliseconds.
        until_ms: i64,
    },
    /// The shard is another member's now, or free: stop.
    Lost {
        /// The number of the shard.
        shard: usize,
        /// The reason.
        reason: Loss,
    },
}

impl<C> ShardEvent<C> {
    /// Converts the checkpoint.
    pub fn map<D>(self, convert: impl FnOnce(C) -> D) -> ShardEvent<D> {
        match self {
            ShardEvent::Assigned { shard, token, checkpoint } => {
                ShardEvent::Assigned { shard, token, checkpoint: checkpoint.map(convert) }
            }
            ShardEvent::Requested { shard, until_ms } => ShardEvent::Requested { shard, until_ms },
            ShardEvent::Lost { shard, reason } => ShardEvent::Lost { shard, reason },
        }
    }
}

/// A stored checkpoint: its token, its value and its time in Unix milliseconds.
pub type StoredCheckpoint = (i64, OwnedValue, i64);

/// A member of a group that shares shards.
pub struct Shards {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    group: ShardGroup,
    ttl: Duration,
    drain: Duration,
    owner: String,
    file: DatabaseFile,
    members: Arc<SessionMembers>,
    /// The hold of the member's identity, until it leaves.
    session: Mutex<Option<Held>>,
    /// The connection that stores checkpoints and reads the group.
    db: OwnConnection<FileConnection>,
    state: Mutex<State>,
    changed: Condvar,
    is_stopped: AtomicBool,
}

#[derive(Default)]
struct State {
    /// `None` while the shard is being given up.
    held: BTreeMap<usize, Option<Held>>,
    /// The requests that were reported to the caller, by shard.
    passed_on: BTreeMap<usize, i64>,
    events: VecDeque<ShardEvent<StoredCheckpoint>>,
    /// The reason why the member is over.
    over: Option<Lost>,
}

impl Shards {
    /// Joins a group of members that share `count` shards. The member is a session under
    /// `GROUP/member/ID`, and shard number k is the lease `GROUP/shard/k`.
    ///
    /// Fails with [`HoldError::Busy`] if another process is this member, and with
    /// [`FileError::ShardCount`] if a live member has joined with another count. Neither group nor
    /// id may contain a slash or be empty, and `count` is at most 10,000.
    pub fn join(
        caller: &Aside<'_>,
        group: &str,
        count: usize,
        options: ShardsOptions,
    ) -> Result<Self> {
        let ShardsOptions { id, ttl, drain } = options;
        let refused = |what| HoldError::Lease(FileError::InvalidShards(what));
        let shard_group = ShardGroup::new(group, count).map_err(refused)?;
        let member = shard_group.member(&id).map_err(refused)?;
        let (session, members) = open_session(caller, &member, ttl, false)?;
        let join = |store: &Store, session: SessionGrants<'_>, now_ms: i64| {
            store.join_shards(session, &shard_group, now_ms)
        };
        members.change(caller, join, |other| match *other {
            Some(count) => {
                Err(HoldError::Lease(FileError::ShardCount { group: group.into(), count }))
            }
            None => Ok(Vec::new()),
        })?;
        let own = caller.patiently(|| Ok(OwnConnection::open(caller.file, STEP)?))?;
        let shared = Arc::new(Shared {
            group: shard_group,
            ttl,
            drain,
            owner: session.owner().into(),
            file: caller.file.clone(),
            members,
            session: Mutex::new(Some(session)),
            db: own,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_stopped: AtomicBool::new(false),
        });
        let working = shared.clone();
        let thread = spawn_without_signals("litelease shards", move || working.work());
        let thread = thread.map_err(HoldError::NoThread)?;
        Ok(Shards { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Returns the file of the group.
    pub fn file(&self) -> &DatabaseFile {
        &self.shared.file
    }

    /// Returns the owner text of the member and its shards.
    pub fn owner(&self) -> &str {
        &self.shared.owner
    }

    /// Waits for the next event, for at most `timeout`. Once the member is lost and has returned
    /// all events, fails with [`HoldError::Lost`].
    pub fn next(&self, timeout: Duration) -> Result<Option<ShardEvent<StoredCheckpoint>>> {
        let begin = Instant::now();
        let mut state = lock(&self.shared.state);
        loop {
            if let Some(event) = state.events.pop_front() {
                return Ok(Some(event));
            }
            if let Some(lost) = &state.over {
                return Err(lost.clone().into());
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Returns the shards of this member that can be trusted.
    pub fn held(&self) -> Vec<usize> {
        let state = lock(&self.shared.state);
        let is_held = |held: &Option<Held>| held.as_ref().is_some_and(|held| held.check().is_ok());
        let held = state.held.iter().filter(|(_, held)| is_held(held));
        held.map(|(shard, _)| *shard).collect()
    }

    /// Checks whether a shard is this member's and can still be trusted.
    pub fn check(&self, shard: usize) -> Result<(), Lost> {
        self.shared.token(shard).map(drop)
    }

    /// Stores a checkpoint of a shard under its token, from which the next member goes on. Fails
    /// with [`HoldError::Lost`] if the shard is no longer this member's.
    pub fn checkpoint(&self, caller: &Aside<'_>, shard: usize, value: Value<'_>) -> Result<()> {
        let token = self.shared.token(shard)?;
        let name = self.shared.name(shard);
        let stored = caller.patiently(|| {
            self.shared
                .db
                .with(|db| Ok(db.leases().store.checkpoint(&name, token, value, When::Now)?))
        })?;
        match stored {
            CheckpointResult::Stored => Ok(()),
            CheckpointResult::Stale { newest } => {
                let by = newest.unwrap_or(0);
                Err(Lost { name, reason: Loss::Superseded { by, owner: None } }.into())
            }
        }
    }

    /// Hands a shard over to the member that has requested it, in one commit. Returns false if no
    /// member has. Store the last checkpoint before: during the call and after it, the shard is not
    /// trusted.
    pub fn hand_over(&self, caller: &Aside<'_>, shard: usize) -> Result<bool> {
        let (ttl, goes_on) = (self.shared.ttl, || (caller.go_on)().is_ok());
        let (back, error) = match self.shared.take(shard)?.hand_over_while(ttl, goes_on) {
            Ok(_) => {
                self.shared.given_up(shard);
                return Ok(true);
            }
            Err(refused) => refused,
        };
        self.shared.put_back(shard, back);
        match error {
            HoldError::NotRequested => Ok(false),
            error => Err(error),
        }
    }

    /// Gives a shard up. The first member to claim it gets it, which may be this one.
    pub fn release(&self, caller: &Aside<'_>, shard: usize) -> Result<(), Lost> {
        let goes_on = || (caller.go_on)().is_ok();
        let released = self.shared.take(shard)?.release_while(caller.patience, goes_on);
        self.shared.given_up(shard);
        released
    }

    /// Leaves the group: releases the member and all its shards in one commit. Dropping the member
    /// does so, too, and ignores errors.
    pub fn leave(&self, caller: &Aside<'_>) -> Result<(), Lost> {
        let goes_on = || (caller.go_on)().is_ok();
        let left = self.shared.stop();
        let left = left.map_or(Ok(()), |held| held.release_while(caller.patience, goes_on));
        self.join_thread();
        left
    }

    /// Ends the member's thread. Returns the hold of its identity, for the caller to release.
    pub fn stop(&self) -> Option<Held> {
        self.shared.stop()
    }

    fn join_thread(&self) {
        // The release has woken the thread, unless the file is locked.
        if let Some(thread) = lock(&self.thread).take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        if let Some(session) = self.stop() {
            drop(session);
            self.join_thread();
        }
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shards").field("group", &self.shared.group).finish_non_exhaustive()
    }
}

impl Shared {
    fn name(&self, shard: usize) -> String {
        self.group.shard(shard)
    }

    fn not_held(&self, shard: usize) -> Lost {
        Lost { name: self.name(shard), reason: Loss::ReleasedElsewhere }
    }

    fn token(&self, shard: usize) -> Result<i64, Lost> {
        match lock(&self.state).held.get(&shard) {
            Some(Some(held)) => held.check().map(|()| held.token()),
            _ => Err(self.not_held(shard)),
        }
    }

    /// Takes the hold of a shard out, to give the shard up.
    fn take(&self, shard: usize) -> Result<Held, Lost> {
        let mut state = lock(&self.state);
        let held = state.held.get_mut(&shard).and_then(Option::take);
        held.ok_or_else(|| self.not_held(shard))
    }

    fn given_up(&self, shard: usize) {
        let mut state = lock(&self.state);
        // The shard may be this member's again.
        if matches!(state.held.get(&shard), Some(None)) {
            state.held.remove(&shard);
            state.passed_on.remove(&shard);
        }
    }

    fn put_back(&self, shard: usize, back: Held) {
        if let Some(held) = lock(&self.state).held.get_mut(&shard) {
            held.get_or_insert(back);
        }
    }

    fn stop(&self) -> Option<Held> {
        self.is_stopped.store(true, Ordering::SeqCst);
        lock(&self.session).take()
    }

    /// Keeps the member's share, until it leaves or is lost.
    fn work(&self) {
        let waiter = Waiter::at(Path::new(&*self.file));
        let mut last_change = None;
        while !self.is_stopped.load(Ordering::SeqCst) {
            let generation = waiter.generation();
            // If the file is locked or fails, the keeper goes on, and the trust window decides.
            let is_stopped = || self.is_stopped.load(Ordering::SeqCst);
            if let Err(HoldError::Lost(lost)) = self.step(&mut last_change)
                && !is_stopped()
            {
                self.end_all(lost);
                return;
            }
            waiter.wait_for_change(generation, SLOW_POLL.min(self.ttl / 4));
            std::thread::sleep(PAUSE);
        }
        // Dropped without the lock: each hold finds that its session has released it.
        let held = std::mem::take(&mut lock(&self.state).held);
        drop(held);
    }

    fn step(&self, last_change: &mut Option<Instant>) -> Result<()> {
        self.members.check()?;
        self.notice_losses();
        // Read without the write lock, or members would wake one another for ever.
        let seen = self.db.with(|db| {
            let store = db.leases().store;
            Ok::<_, HoldError<FileError>>(store.shards(&self.group, When::Now)?)
        })?;
        let plan = seen.plan(&self.owner);
        self.pass_on(seen.requested(&plan));
        let is_due = |every: Duration| last_change.is_none_or(|last| last.elapsed() >= every);
        let is_held = |shard| lock(&self.state).held.contains_key(&shard);
        if seen.has_work(&self.owner, &plan, is_due(REPEAT_EVERY), is_held) || is_due(self.ttl / 4)
        {
            *last_change = Some(Instant::now());
            let share = |store: &Store, session: SessionGrants<'_>, now_ms: i64| {
                store.share_shards(session, &self.group, in_ms(self.drain), now_ms, checkpoint)
            };
            let leases = |shards: &Vec<AssignedShard<StoredCheckpoint>>| {
                Ok(shards.iter().map(|assigned| assigned.lease.clone()).collect())
            };
            // The next round comes soon if the file is locked.
            let patience = Duration::ZERO;
            let caller =
                Aside { file: &self.file, patience, go_on: &|| Ok(()), longest_sleep: STEP };
            let (held, shards) = self.members.change(&caller, share, leases)?;
            self.assign(held, shards);
        }
        Ok(())
    }

    fn assign(&self, held: Vec<Held>, shards: Vec<AssignedShard<StoredCheckpoint>>) {
        // Dropped without the lock, because it takes time.
        let mut replaced = Vec::new();
        let mut state = lock(&self.state);
        for (held, AssignedShard { shard, checkpoint, .. }) in held.into_iter().zip(shards) {
            let token = held.token();
            // The shard was lost a moment ago, and is granted anew under another token.
            if let Some(Some(old)) = state.held.insert(shard, Some(held)) {
                let reason = old.check().err().map_or(Loss::Expired, |lost| lost.reason);
                state.events.push_back(ShardEvent::Lost { shard, reason });
                replaced.push(old);
            }
            state.passed_on.remove(&shard);
            state.events.push_back(ShardEvent::Assigned { shard, token, checkpoint });
            self.changed.notify_all();
        }
    }

    fn pass_on(&self, requests: Vec<(usize, i64)>) {
        let mut state = lock(&self.state);
        for (shard, until_ms) in requests {
            if state.held.contains_key(&shard)
                && state.passed_on.insert(shard, until_ms) != Some(until_ms)
            {
                state.events.push_back(ShardEvent::Requested { shard, until_ms });
                self.changed.notify_all();
            }
        }
    }

    fn notice_losses(&self) {
        let mut gone = Vec::new();
        let mut state = lock(&self.state);
        let lost = |(shard, held): (&usize, &Option<Held>)| {
            let lost = held.as_ref()?.check().err()?;
            Some((*shard, lost.reason))
        };
        let losses: Vec<(usize, Loss)> = state.held.iter().filter_map(lost).collect();
        for (shard, reason) in losses {
            gone.push(state.held.remove(&shard));
            state.passed_on.remove(&shard);
            state.events.push_back(ShardEvent::Lost { shard, reason });
            self.changed.notify_all();
        }
    }

    fn end_all(&self, lost: Lost) {
        let mut state = lock(&self.state);
        let held = std::mem::take(&mut state.held);
        for (shard, held) in held {
            let own = held.and_then(|held| held.check().err());
            let reason = own.map_or_else(|| lost.reason.clone(), |lost| lost.reason);
            state.events.push_back(ShardEvent::Lost { shard, reason });
        }
        state.over = Some(lost);
        self.changed.notify_all();
    }
}

fn checkpoint(token: i64, value: Value<'_>, updated_at_ms: i64) -> StoredCheckpoint {
    (token, value.into(), updated_at_ms)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
