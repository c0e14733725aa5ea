//! Shards: the members of a group share a number of leases evenly, and move them when members come
//! and go.
//!
//! A member is a session, so its shards end together. What it claims, requests and gives up is
//! decided by [`litelease_core::plan`], in the transaction that does it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use litelease_hold::Waiter;
use litelease_hold::file::{DatabaseFile, OwnConnection};
use litelease_store::{AssignedShard, SessionGrants, ShardGroup, Store, Value, When};
use rusqlite::ToSql;

use crate::error::lift;
use crate::fences::owned;
use crate::file::file_of;
use crate::leases::in_ms;
use crate::{Checkpoint, CheckpointResult, Held, HoldError, Litelease, Loss, Lost, Session};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// How long reading and checkpoints wait for a lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How often open requests are repeated: several times before they would lapse.
const REPEAT_EVERY: Duration = Duration::from_secs(3);

/// The shortest time between two looks, however often the file is written.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest sleep between two looks, since a wake-up is only a hint.
const SLOW_POLL: Duration = Duration::from_millis(250);

/// Options of a member.
///
/// ```
/// # use litelease_doctest::prelude::*;
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
    /// Returns options of the member `id`, which is renewed by `ttl`. Others have 30 s to give a
    /// shard up.
    pub fn new(id: &str, ttl: Duration) -> Self {
        ShardsOptions { id: id.into(), ttl, drain: Duration::from_secs(30) }
    }

    /// Gives other members this long to finish their work on a shard that this one requests.
    pub fn drain(self, drain: Duration) -> Self {
        ShardsOptions { drain, ..self }
    }
}

/// What happens to the shards of a member.
///
/// ```
/// # use litelease::{Loss, ShardEvent};
/// let lost = ShardEvent::Lost { shard: 3, reason: Loss::Expired };
/// assert_ne!(lost, ShardEvent::Requested { shard: 3, until_ms: 1_000 });
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ShardEvent {
    /// The shard is this member's, under this token. Go on from the checkpoint.
    Assigned {
        /// The number of the shard.
        shard: usize,
        /// The fencing token.
        token: i64,
        /// The last checkpoint of the shard, whoever stored it.
        checkpoint: Option<Checkpoint>,
    },
    /// Another member needs the shard: finish, store a checkpoint, and [hand it
    /// over](Shards::hand_over).
    Requested {
        /// The number of the shard.
        shard: usize,
        /// From when on it is not renewed any more, in Unix milliseconds.
        until_ms: i64,
    },
    /// The shard is no longer this member's: stop.
    Lost {
        /// The number of the shard.
        shard: usize,
        /// Why.
        reason: Loss,
    },
}

/// A member of a group that shares shards. Made by [`Shards::join`].
///
/// ```
/// use std::time::Duration;
/// use litelease::{Litelease, ShardEvent, Shards, ShardsOptions};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let shards = Shards::join(&db, "orders", 2, ShardsOptions::new("a", Duration::from_secs(10)))?;
/// for _ in 0..2 {
///     match shards.next(Duration::from_secs(60))? {
///         Some(ShardEvent::Assigned { shard, .. }) => shards.checkpoint(shard, 17)?,
///         other => panic!("{other:?}"),
///     }
/// }
/// shards.leave()?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a member that is dropped leaves"]
pub struct Shards {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    group: ShardGroup,
    ttl: Duration,
    drain: Duration,
    owner: String,
    file: DatabaseFile,
    session: Mutex<Option<Session>>,
    /// Where checkpoints are stored and read.
    db: OwnConnection<Litelease>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    held: BTreeMap<usize, Held>,
    /// The requests that were passed on, by shard.
    told: BTreeMap<usize, i64>,
    events: VecDeque<ShardEvent>,
    /// Why the member is over.
    over: Option<Lost>,
    stopped: bool,
}

impl Shards {
    /// Joins a group of members that share `count` shards. The member is a [`Session`] under
    /// `GROUP/member/ID`, and shard number k is the lease `GROUP/shard/k`.
    ///
    /// Fails with [`HoldError::Busy`] if another process is this member, and with
    /// [`HoldError::ShardCount`] if a live member has joined with another count. Neither group nor
    /// id may contain a slash or be empty, and `count` is at most 10,000.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let options = |id| ShardsOptions::new(id, Duration::from_secs(10));
    /// let a = Shards::join(&db, "orders", 8, options("a"))?;
    /// let b = Shards::join(&db, "orders", 9, options("b"));
    /// assert!(matches!(b, Err(HoldError::ShardCount { count: 8, .. })));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn join(db: &Litelease, group: &str, count: usize, options: ShardsOptions) -> Result<Self> {
        let ShardsOptions { id, ttl, drain } = options;
        let refused = HoldError::InvalidShards;
        let shard_group = ShardGroup::new(group, count).map_err(refused)?;
        let member = shard_group.member(&id).map_err(refused)?;
        let session = Session::open(db, &member, ttl)?;
        let file = file_of(db)?;
        let own = OwnConnection::open(&file, BUSY_TIMEOUT)?;
        let shared = Arc::new(Shared {
            group: shard_group,
            ttl,
            drain,
            owner: session.owner().into(),
            file,
            db: own,
            session: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let join = |store: &Store, session: SessionGrants<'_>, now_ms: i64| {
            store.join_shards(session, &shared.group, now_ms)
        };
        session.members().change(join, |other| match *other {
            Some(count) => Err(HoldError::ShardCount { group: group.into(), count }),
            None => Ok(Vec::new()),
        })?;
        *lock(&shared.session) = Some(session);
        let working = shared.clone();
        let thread = std::thread::Builder::new().name("litelease shards".into());
        let thread = thread.spawn(move || working.work()).map_err(HoldError::NoThread)?;
        Ok(Shards { shared, thread: Some(thread) })
    }

    /// Waits for the next event, for at most `timeout`. Once the member is lost, and all events
    /// were returned, it fails with [`HoldError::Lost`].
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// let event = shards.next(Duration::from_secs(60))?;
    /// assert_eq!(event, Some(ShardEvent::Assigned { shard: 0, token: 1, checkpoint: None }));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn next(&self, timeout: Duration) -> Result<Option<ShardEvent>> {
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

    /// Checks whether a shard is this member's and can still be trusted.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.check(0)?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn check(&self, shard: usize) -> Result<(), Lost> {
        self.shared.token(shard).map(drop)
    }

    /// Stores a checkpoint of a shard under its token: where the next member goes on. Fails with
    /// [`HoldError::Lost`] if the shard is no longer this member's.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.checkpoint(0, "page 17")?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn checkpoint(&self, shard: usize, value: impl ToSql) -> Result<()> {
        let token = self.shared.token(shard)?;
        let name = self.shared.name(shard);
        match self.shared.db.with(|db| db.checkpoint((&name, token), value))? {
            CheckpointResult::Stored => Ok(()),
            CheckpointResult::Stale { newest } => {
                let by = newest.unwrap_or(0);
                Err(Lost { name, reason: Loss::Superseded { by, owner: None } }.into())
            }
        }
    }

    /// Hands a shard over to the member that has requested it, in one commit. Returns whether one
    /// had. Store the last checkpoint before.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// assert!(!shards.hand_over(0)?, "nobody asks");
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn hand_over(&self, shard: usize) -> Result<bool> {
        let mut state = lock(&self.shared.state);
        let Some(held) = state.held.remove(&shard) else {
            let name = self.shared.name(shard);
            return Err(Lost { name, reason: Loss::ReleasedElsewhere }.into());
        };
        match held.hand_over(self.shared.ttl) {
            Ok(_) => {
                state.told.remove(&shard);
                Ok(true)
            }
            Err((held, error)) => {
                state.held.insert(shard, held);
                match error {
                    HoldError::NotRequested => Ok(false),
                    error => Err(error),
                }
            }
        }
    }

    /// Leaves the group: releases the member and all its shards in one commit. Dropping it does so,
    /// too, and ignores errors.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let shards = Shards::join(&db, "orders", 1, ShardsOptions::new("a", Duration::from_secs(10)))?;
    /// shards.next(Duration::from_secs(60))?;
    /// shards.leave()?;
    /// assert_eq!([db.owner("orders/member/a")?, db.owner("orders/shard/0")?], [None, None]);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn leave(mut self) -> Result<(), Lost> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Lost> {
        lock(&self.shared.state).stopped = true;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let session = lock(&self.shared.session).take();
        let closed = session.map_or(Ok(()), Session::close);
        lock(&self.shared.state).held.clear();
        closed
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("group", &self.shared.group).finish_non_exhaustive()
    }
}

impl Shared {
    fn name(&self, shard: usize) -> String {
        self.group.shard(shard)
    }

    fn token(&self, shard: usize) -> Result<i64, Lost> {
        match lock(&self.state).held.get(&shard) {
            Some(held) => held.check().map(|()| held.token()),
            None => Err(Lost { name: self.name(shard), reason: Loss::ReleasedElsewhere }),
        }
    }

    /// Keeps the member's share, until it leaves or is lost.
    fn work(&self) {
        let waiter = Waiter::at(Path::new(&*self.file));
        let mut last_change = None;
        while !lock(&self.state).stopped {
            let heard = waiter.heard();
            // If the file is locked or fails, the keeper goes on, and the trust window decides.
            if let Err(HoldError::Lost(lost)) = self.step(&mut last_change) {
                self.end_all(lost);
                return;
            }
            waiter.nap(heard, SLOW_POLL.min(self.ttl / 4));
            std::thread::sleep(PAUSE);
        }
    }

    fn step(&self, last_change: &mut Option<Instant>) -> Result<()> {
        let session = lock(&self.session);
        let Some(session) = &*session else { return Ok(()) };
        session.check()?;
        self.notice_losses();
        // A look that takes no write lock: members must not wake one another for ever.
        let seen = self.db.with(|db| lift(db.store().shards(&self.group, When::Now)))?;
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
            let leases = |shards: &Vec<AssignedShard<Checkpoint>>| {
                Ok(shards.iter().map(|assigned| assigned.lease.clone()).collect())
            };
            let (held, shards) = session.members().change(share, leases)?;
            self.assign(held, shards);
        }
        Ok(())
    }

    fn assign(&self, held: Vec<Held>, shards: Vec<AssignedShard<Checkpoint>>) {
        let mut state = lock(&self.state);
        for (held, AssignedShard { shard, checkpoint, .. }) in held.into_iter().zip(shards) {
            let token = held.token();
            // It was lost a moment ago, and is granted anew under another token.
            if let Some(old) = state.held.insert(shard, held) {
                let reason = old.check().err().map_or(Loss::Expired, |lost| lost.reason);
                state.events.push_back(ShardEvent::Lost { shard, reason });
            }
            state.told.remove(&shard);
            state.events.push_back(ShardEvent::Assigned { shard, token, checkpoint });
            self.changed.notify_all();
        }
    }

    fn pass_on(&self, requests: Vec<(usize, i64)>) {
        let mut state = lock(&self.state);
        for (shard, until_ms) in requests {
            if state.held.contains_key(&shard)
                && state.told.insert(shard, until_ms) != Some(until_ms)
            {
                state.events.push_back(ShardEvent::Requested { shard, until_ms });
                self.changed.notify_all();
            }
        }
    }

    fn notice_losses(&self) {
        let mut state = lock(&self.state);
        let lost =
            |(shard, held): (&usize, &Held)| held.check().err().map(|lost| (*shard, lost.reason));
        let losses: Vec<(usize, Loss)> = state.held.iter().filter_map(lost).collect();
        for (shard, reason) in losses {
            state.held.remove(&shard);
            state.told.remove(&shard);
            state.events.push_back(ShardEvent::Lost { shard, reason });
            self.changed.notify_all();
        }
    }

    fn end_all(&self, lost: Lost) {
        let mut state = lock(&self.state);
        let held = std::mem::take(&mut state.held);
        for (shard, held) in held {
            let reason = held.check().err().map_or_else(|| lost.reason.clone(), |lost| lost.reason);
            state.events.push_back(ShardEvent::Lost { shard, reason });
        }
        state.over = Some(lost);
        self.changed.notify_all();
    }
}

fn checkpoint(token: i64, value: Value<'_>, updated_at_ms: i64) -> Checkpoint {
    Checkpoint { token, value: owned(value), updated_at_ms }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
