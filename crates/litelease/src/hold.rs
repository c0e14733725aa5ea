//! Held leases: claimed, kept alive by the keeper, and released at the end.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::file::{
    BegunTick, DatabaseFile, FilePlace, More, SessionMembers, granted, loss,
};
use litelease_hold::{
    Cancel, Clock, HandoverRequest, Hold, HolderKind, Identity, Renewal, SystemClock, Wish,
    abandon, hold, hold_of,
};
use litelease_store::TickClaim;
use rusqlite::ToSql;
use rusqlite::types::Value;

use crate::fences::as_value;
use crate::{
    FinishTickResult, GrantRef, HoldError, Lease, Leases, Litelease, LiteleaseRef, Loss, Lost,
    RenewResult, RequestInfo, TickOutcome, TickRequest, Transaction,
};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// Options of a hold.
///
/// ```
/// use std::time::Duration;
/// use litelease::HoldOptions;
///
/// let options = HoldOptions::new(Duration::from_secs(60)).wait(Duration::from_secs(5));
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct HoldOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) kind: HolderKind,
    pub(crate) value: Option<Value>,
    pub(crate) progress_within: Option<Duration>,
    pub(crate) max_time: Option<Duration>,
    pub(crate) request: Option<Duration>,
    pub(crate) cancel: Option<Cancel>,
    pub(crate) tick: Option<TickRequest>,
    pub(crate) schedule: Option<String>,
}

/// A lease that is kept alive in the background until this is dropped; then it is released, also on
/// panic.
///
/// It is trusted until the start of the last successful renewal + ttl - margin, on a clock that
/// counts the time a machine is suspended. The margin is a tenth of the ttl, at least 50 ms. After
/// that it is lost, whatever the file says, and stays lost: stop the work that needed it.
///
/// ```
/// use std::time::Duration;
/// use litelease::{HoldOptions, Litelease};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let held = db.hold("books", HoldOptions::new(Duration::from_secs(60)).wait(Duration::from_secs(5)))?;
/// for shelf in ["fiction", "poetry"] {
///     held.check()?; // Err(Lost { reason }) once it can no longer be trusted
///     println!("{shelf}, under token {}", held.token());
/// }
/// drop(held); // released; a superseded grant is left alone
/// assert_eq!(db.owner("books")?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a hold that is dropped is released"]
pub struct Held {
    held: litelease_hold::Held,
    file: DatabaseFile,
    /// The session that it belongs to, if it does.
    session: Option<Arc<SessionMembers>>,
    begun: Option<BegunTick>,
}

impl HoldOptions {
    /// Returns options for a hold whose renewals last `ttl` each, and which does not wait for the
    /// name.
    pub fn new(ttl: Duration) -> Self {
        HoldOptions {
            ttl,
            wait: Duration::ZERO,
            kind: HolderKind::Hold,
            value: None,
            progress_within: None,
            max_time: None,
            request: None,
            cancel: None,
            tick: None,
            schedule: None,
        }
    }

    /// Waits for the name for at most this long; `Duration::MAX` is for ever.
    pub fn wait(self, wait: Duration) -> Self {
        HoldOptions { wait, ..self }
    }

    /// Ends the wait early when this is cancelled.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # let _held = db.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
    /// let cancel = Cancel::default();
    /// let options = HoldOptions::new(Duration::from_secs(60)).wait(Duration::MAX);
    /// let ctrl_c = cancel.clone();
    /// std::thread::spawn(move || ctrl_c.cancel());
    /// assert!(matches!(db.hold("books", options.cancel(cancel)), Err(HoldError::Busy(_))));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn cancel(self, cancel: Cancel) -> Self {
        HoldOptions { cancel: Some(cancel), ..self }
    }

    /// Names a process group that does the work. If this process dies, a successor waits until that
    /// group has ended, too, or until the ttl is over.
    pub fn group(self, group: u32) -> Self {
        HoldOptions { kind: HolderKind::Run { group }, ..self }
    }

    /// Attaches a value in the commit of the claim, such as the address of a leader: see
    /// [`attach`](Leases::attach). No reader sees the grant without it.
    pub fn value(self, value: impl Into<Value>) -> Self {
        HoldOptions { value: Some(value.into()), ..self }
    }

    /// Renews the lease only if [`progress`](litelease_hold::Held::progress) or a checkpoint came
    /// within this time, so that a stuck holder is out within it and one ttl. The limit is stored
    /// in the commit of the claim: see [`limit`](Leases::limit).
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let options = HoldOptions::new(Duration::from_secs(60)).progress_within(Duration::from_secs(300));
    /// let held = db.hold("import", options)?;
    /// for page in 1..=3 {
    ///     println!("page {page}");
    ///     held.progress()?; // fails once the lease is lost
    /// }
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn progress_within(self, time: impl Into<Option<Duration>>) -> Self {
        HoldOptions { progress_within: time.into(), ..self }
    }

    /// Ends the lease after this time at the latest, however often it is renewed. The limit is
    /// stored in the commit of the claim: see [`limit`](Leases::limit).
    pub fn max_time(self, time: impl Into<Option<Duration>>) -> Self {
        HoldOptions { max_time: time.into(), ..self }
    }

    /// Holds a [tick](Leases::claim_tick), too, which is claimed in the same commit. If it is
    /// taken, the hold fails with [`TickTaken`](HoldError::TickTaken) and does not wait. End it
    /// with [`finish`](Held::finish): a release leaves the tick to others.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # let options = || HoldOptions::new(Duration::from_secs(60));
    /// let held = db.hold("nightly", options().tick(60_000))?;
    /// assert_eq!(held.tick_attempt(), Some(1));
    /// assert!(held.finish(&db, TickOutcome::Done)?.is_finished());
    /// let late = db.hold("nightly", options().tick(60_000)).unwrap_err();
    /// assert!(matches!(late, HoldError::TickTaken(newest) if newest.state == TickState::Done));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn tick(self, tick: impl Into<TickRequest>) -> Self {
        HoldOptions { tick: Some(tick.into()), ..self }
    }

    /// Names the schedule that has planned the tick, for [`ticks`](Leases::ticks) to show.
    pub fn schedule(self, schedule: impl Into<String>) -> Self {
        HoldOptions { schedule: Some(schedule.into()), ..self }
    }

    /// Asks the present holder to give the lease up within this time, while waiting for it: see
    /// [`request`](Leases::request). Withdraws the request if the time to [wait](HoldOptions::wait)
    /// is over.
    pub fn request(self, within: Duration) -> Self {
        HoldOptions { request: Some(within), ..self }
    }
}

macro_rules! holding {
    () => {
        /// Claims `name` and keeps it alive in the background until the result is dropped.
        ///
        /// The owner text is unique to this hold: host, process and a random part. A thread of the
        /// process renews all its holds, on a connection of its own, every third of their ttl. It
        /// fails inside a transaction, and for a database in memory.
        ///
        /// On Linux, a holder whose process has ended is taken over at once, under a new token, if
        /// it held the name on this host and in this container.
        ///
        /// Before this process forks, the keeper closes its connections, and opens them again for
        /// the next renewal. A child that goes on without `exec` must not use or drop a connection
        /// that was open at the fork, such as the one of this handle, and must not open its file:
        /// SQLite takes no lock there, and what the child commits can be lost when the parent
        /// closes the file. Close your connections before you fork, or start a program instead.
        pub fn hold(
            &self,
            name: &str,
            options: HoldOptions,
        ) -> std::result::Result<Held, HoldError> {
            Held::take(self, name, options)
        }
    };
}

impl Litelease {
    holding!();
}

impl LiteleaseRef<'_> {
    holding!();
}

impl Held {
    fn take(leases: &Leases, name: &str, options: HoldOptions) -> Result<Self> {
        let HoldOptions { ttl, wait, kind, value, progress_within, max_time, request, .. } =
            options;
        let value = value.as_ref().map(|value| value.to_sql()).transpose()?;
        let value = value.as_ref().map(|value| as_value(value, "a value")).transpose()?;
        let schedule = options.schedule.as_deref();
        let tick = options.tick.map(|asked| TickClaim { asked, schedule });
        let more = More { value, progress_within, max_time, tick };
        let mut place = FilePlace::new(leases.of_file()?, more)?;
        let owner = Identity::new(kind).to_string();
        // What is granted ends with the limit, too.
        let first = max_time.map_or(ttl, |time| time.min(ttl));
        let wish =
            Wish { request, cancel: options.cancel.as_ref(), ..Wish::new(name, &owner, first) };
        let held = hold(&mut place, &wish, ttl, wait)?;
        Ok(Held { held, begun: place.begun, file: place.file, session: None })
    }

    /// Presents the token of this hold for the writes of a connection to tables that its name
    /// guards by connection. Returns whether it is the newest one, as [`present`](Leases::present)
    /// does.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.conn().execute_batch("CREATE TABLE orders (id)").map_err(litelease::Error::from)?;
    /// # db.guard("orders", "orders", &Guard::by_connection())?;
    /// let held = db.hold("orders", HoldOptions::new(Duration::from_secs(60)))?;
    /// assert!(held.present_on(&db)?);
    /// db.conn().execute("INSERT INTO orders VALUES (1)", []).map_err(litelease::Error::from)?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn present_on(&self, leases: &Leases) -> crate::Result<bool> {
        leases.present(self)
    }

    /// Renews inside a transaction of the holder's own, which keeps the keeper from renewing as
    /// long as it is open. Trust is prolonged when the transaction has been committed, and only
    /// then.
    ///
    /// In a transaction that outlasts the ttl, call it again before the ttl is over: the last
    /// renewal must be live at the COMMIT.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let held = db.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
    /// let tx = db.transaction()?;
    /// tx.conn().execute_batch("CREATE TABLE shelves (name)")?; // or something longer
    /// held.renew_in(&tx)?;
    /// tx.commit()?;
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn renew_in(&self, tx: &Transaction<'_>) -> Result<()> {
        let hold = hold_of(&self.held);
        if hold.is_forked() {
            return Err(self.as_lost(Loss::Forked).into());
        }
        if let Some(reason) = hold.loss() {
            return Err(self.as_lost(reason).into());
        }
        if tx.store().file().as_deref() != Some(&*self.file) {
            return Err(HoldError::OtherFile);
        }
        if let Some(session) = &self.session {
            let pending = |hold, lease, renewal, start| {
                tx.with_renewal(PendingRenewal::new(hold, lease, renewal, start));
            };
            return Ok(session.renew_in(tx.store(), pending)?);
        }
        let (start, asked_at_ms) = (SystemClock.now(), crate::now_ms());
        match tx.renew(&self.lease(), hold.grant().ttl)? {
            RenewResult::Renewed(lease) => {
                let renewal = granted(asked_at_ms, hold.grant().ttl, &lease);
                tx.with_renewal(PendingRenewal::new(hold.clone(), lease, renewal, start));
                Ok(())
            }
            RenewResult::Rejected { reason, current } => {
                Err(self.as_lost(loss(self.token(), reason, current)).into())
            }
        }
    }

    /// Returns the open request for this lease, if there is one: see
    /// [`request`](Leases::request). Finish what you are doing, store a checkpoint, and
    /// [hand it over](Held::hand_over).
    pub fn requested(&self) -> Option<RequestInfo> {
        Some(info(&self.held.request()?, self.token()))
    }

    /// Calls `callback` on a thread of its own whenever an owner asks for this lease; at once if
    /// one already does.
    pub fn on_requested(&self, mut callback: impl FnMut(&RequestInfo) + Send + 'static) {
        let token = self.token();
        self.held.on_request(move |request| callback(&info(request, token)));
    }

    /// Hands the lease to the owner that has requested it, under a new token and for `ttl` from
    /// now, and ends the hold. Returns the requester's grant. The two do not overlap: stop the work
    /// before.
    ///
    /// If there is no request, or it cannot be done, the hold comes back with the error.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let ttl = Duration::from_secs(60);
    /// let held = db.hold("books", HoldOptions::new(ttl))?;
    /// let (held, error) = held.hand_over(ttl).unwrap_err();
    /// assert!(matches!(error, HoldError::NotRequested));
    ///
    /// let _ = db.request("books", "b", Duration::from_secs(20))?;
    /// let handed = held.hand_over(ttl).map_err(|(_, error)| error)?;
    /// assert_eq!((handed.owner.as_str(), handed.token), ("b", 2));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    #[allow(clippy::result_large_err)] // the hold comes back
    pub fn hand_over(self, ttl: Duration) -> Result<Lease, (Held, HoldError)> {
        let Held { held, file, session, begun } = self;
        held.hand_over(ttl).map_err(|(held, error)| {
            let error: litelease_hold::HoldError<HoldError> = error;
            (Held { held, file, session, begun }, error.into())
        })
    }

    /// Returns the number of this grant among those of the tick that is held, from 1.
    pub fn tick_attempt(&self) -> Option<i64> {
        self.begun.map(|begun| begun.attempt)
    }

    /// Returns the newest tick before the held one that was done.
    pub fn previous_tick_ms(&self) -> Option<i64> {
        self.begun.and_then(|begun| begun.previous_ms)
    }

    /// Finishes the tick that is held, and ends the hold. It passes as long as no newer grant of
    /// the name exists, also if this one is lost by now: tokens decide, not clocks.
    pub fn finish(self, leases: &Leases, outcome: TickOutcome) -> crate::Result<FinishTickResult> {
        // A renewal that comes after the end would look like a loss.
        abandon(&self.held);
        leases.finish_tick(&self, outcome)
    }

    /// Releases the lease and returns whether that worked. Dropping the hold releases it, too, and
    /// ignores errors.
    ///
    /// If the file is locked, it waits for a few seconds; after that the keeper keeps trying.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let held = db.hold("books", HoldOptions::new(Duration::from_secs(60)))?;
    /// held.release()?;
    /// assert_eq!(db.owner("books")?, None);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn release(self) -> Result<(), Lost> {
        self.held.release()
    }

    /// Returns a lease that belongs to a session.
    pub(crate) fn of_session(
        held: litelease_hold::Held,
        file: DatabaseFile,
        session: Arc<SessionMembers>,
    ) -> Self {
        Held { held, file, session: Some(session), begun: None }
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.name().into(), reason }
    }
}

impl Deref for Held {
    type Target = litelease_hold::Held;

    fn deref(&self) -> &Self::Target {
        &self.held
    }
}

/// Without what only files have.
impl From<Held> for litelease_hold::Held {
    fn from(held: Held) -> Self {
        held.held
    }
}

impl<'h> From<&'h Held> for GrantRef<'h> {
    fn from(held: &'h Held) -> Self {
        (&held.held).into()
    }
}

fn info(request: &HandoverRequest, token: i64) -> RequestInfo {
    RequestInfo::new(request.requester.clone(), request.until_ms, token)
}

/// A renewal inside a transaction of the holder's, until that ends.
#[derive(Debug)]
pub(crate) struct PendingRenewal {
    hold: Arc<Hold>,
    lease: Lease,
    renewal: Renewal,
    start: Duration,
    done: bool,
}

impl PendingRenewal {
    pub(crate) fn new(hold: Arc<Hold>, lease: Lease, renewal: Renewal, start: Duration) -> Self {
        hold.renewing(start, renewal);
        PendingRenewal { hold, lease, renewal, start, done: false }
    }

    /// Checks whether the row still has what the renewal wrote.
    pub(crate) fn is_still_in(&self, leases: &Leases) -> bool {
        let found = leases.inspect(&self.lease.name);
        found.is_ok_and(|found| {
            found.is_some_and(|found| {
                (found.token, &found.owner) == (self.lease.token, &self.lease.owner)
                    && found.expires_at_ms >= self.lease.expires_at_ms
            })
        })
    }

    pub(crate) fn committed(mut self) {
        self.done = true;
        self.hold.committed(self.start, SystemClock.now(), self.renewal);
    }
}

impl Drop for PendingRenewal {
    fn drop(&mut self) {
        if !self.done {
            self.hold.rolled_back();
        }
    }
}
