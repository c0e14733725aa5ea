//! Held leases: claimed, kept alive by the keeper, and released at the end.

use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{
    Asked, Clock, Handed, HeldGrant, Hold, HolderKind, Identity, Keeper, Kept, ProcessKeeper,
    Renewal, Rows, SystemClock, Window,
};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::kept_rows::{KeptRows, is_busy, loss, renewal};
use crate::session::Members;
use crate::wait::{Claim, Waited, claim_wait};
use crate::{
    ClaimResult, GrantRef, HoldError, Lease, Leases, Litelease, LiteleaseRef, Loss, LossSignal,
    Lost, RenewResult, RequestInfo, Transaction,
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
    ttl: Duration,
    wait: Duration,
    kind: HolderKind,
    value: Option<Value>,
    progress_within: Option<Duration>,
    max_time: Option<Duration>,
    request: Option<Duration>,
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
    kept: Kept,
    file: String,
    released: bool,
    /// The session that it belongs to, if it does.
    session: Option<Arc<Members>>,
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
        }
    }

    /// Waits for the name for at most this long; `Duration::MAX` is for ever.
    pub fn wait(self, wait: Duration) -> Self {
        HoldOptions { wait, ..self }
    }

    /// Names a process group that does the work. If this process dies, a successor waits until that
    /// group has ended, too, or until the ttl is over.
    pub fn group(self, group: u32) -> Self {
        HoldOptions { kind: HolderKind::Run { group }, ..self }
    }

    /// Attaches a value in the commit of the claim, such as the address of a leader: see
    /// [`attach`](Leases::attach). Whoever sees the grant sees the value.
    pub fn value(self, value: impl Into<Value>) -> Self {
        HoldOptions { value: Some(value.into()), ..self }
    }

    /// Renews the lease only if [`progress`](Held::progress) or a checkpoint came within this time,
    /// so that a stuck holder is out within it and one ttl. The limit is stored in the commit of
    /// the claim: see [`limit`](Leases::limit).
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
    pub fn progress_within(self, time: Duration) -> Self {
        HoldOptions { progress_within: Some(time), ..self }
    }

    /// Ends the lease after this time at the latest, however often it is renewed. The limit is
    /// stored in the commit of the claim: see [`limit`](Leases::limit).
    pub fn max_time(self, time: Duration) -> Self {
        HoldOptions { max_time: Some(time), ..self }
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
            Held::take(self, self.conn(), name, options)
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
    fn take(
        leases: &Leases,
        connection: &Connection,
        name: &str,
        options: HoldOptions,
    ) -> Result<Self> {
        let HoldOptions { ttl, wait, kind, value, progress_within, max_time, request } = options;
        let window = Window::new(ttl).ok_or(HoldError::TtlTooShort(ttl))?;
        // What is granted ends with the limit, too.
        let first = max_time.map_or(ttl, |time| time.min(ttl));
        Window::new(first).ok_or(HoldError::TtlTooShort(first))?;
        let keeper = HOLDS.get()?;
        let owner = Identity::new(kind).to_string();
        let value = value.as_ref();
        let claim =
            Claim { value, progress_within, max_time, request, ..Claim::new(name, &owner, first) };
        let waited = claim_wait(leases, connection, &claim, wait);
        let Waited { answer, start } = waited.inspect_err(|_| {
            // It may have been stored all the same, and the owner text tells: nobody else uses it.
            let stored = leases.inspect(name).ok().flatten().filter(|lease| lease.owner == owner);
            if let Some(lease) = stored {
                let _ = leases.release(&lease);
            }
        })?;
        let lease = match answer {
            ClaimResult::Acquired(lease) => lease,
            ClaimResult::Busy(current) => return Err(HoldError::Busy(current)),
        };
        let file = leases.store().file().ok_or(HoldError::InMemory)?;
        let grant = HeldGrant { name: name.into(), owner, token: lease.token, ttl };
        let granted = Renewal {
            granted: (first < ttl).then_some(first),
            ..Renewal::whole(lease.expires_at_ms)
        };
        let hold = || Hold::new(grant.clone(), window, start, granted);
        let open = || Ok(Box::new(KeptRows::open(&file)?) as Box<dyn Rows>);
        match keep(&keeper, &file, hold, open, busy_timeout(connection)) {
            Ok(kept) => Ok(Held { kept, file, released: false, session: None }),
            Err(error) => {
                // Nobody would keep it alive.
                let _ = leases.release(&lease);
                Err(error)
            }
        }
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

    /// Returns the name that is held.
    pub fn name(&self) -> &str {
        &self.kept.hold.grant().name
    }

    /// Returns the owner text, which is unique to this hold: host, process and a random part.
    pub fn owner(&self) -> &str {
        &self.kept.hold.grant().owner
    }

    /// Returns the fencing token of this grant.
    pub fn token(&self) -> i64 {
        self.kept.hold.grant().token
    }

    /// Returns the grant as the verbs take it, with the expiry of the last renewal.
    pub fn lease(&self) -> Lease {
        let HeldGrant { name, owner, token, .. } = self.kept.hold.grant().clone();
        Lease { name, owner, token, expires_at_ms: self.kept.hold.expires_at_ms() }
    }

    /// Checks whether the lease can still be trusted. Once this has failed it always fails, with
    /// one exception: while a transaction with [`renew_in`](Held::renew_in) is open, its COMMIT
    /// decides.
    pub fn check(&self) -> std::result::Result<(), Lost> {
        self.kept.hold.check(SystemClock.now()).map_err(|reason| self.as_lost(reason))
    }

    /// Notes that the work has made progress, for a hold with
    /// [`progress_within`](HoldOptions::progress_within), and checks whether the lease can still be
    /// trusted.
    ///
    /// Call it as often as you like: it writes nothing itself. The keeper stores it with its next
    /// renewal. A [`checkpoint`](Leases::checkpoint) counts as progress, too.
    pub fn progress(&self) -> std::result::Result<(), Lost> {
        self.kept.progress(SystemClock.now());
        self.check()
    }

    /// Returns for how long the lease can be trusted from now on if no further renewal succeeds.
    pub fn trusted_for(&self) -> Duration {
        self.lost().trusted_for()
    }

    /// Returns why the last renewal failed, or was granted less than the ttl, if it was. The lease
    /// is not lost yet: the keeper keeps trying.
    pub fn trouble(&self) -> Option<Loss> {
        self.kept.hold.trouble()
    }

    /// Returns a signal on which another thread can wait until the lease is lost.
    pub fn lost(&self) -> LossSignal {
        LossSignal::new(self.kept.hold.clone())
    }

    /// Calls `callback` on a thread of its own when the lease is lost; at once if it already is.
    pub fn on_lost(&self, callback: impl FnOnce(&Lost) + Send + 'static) {
        let name = self.name().to_owned();
        self.kept.hold.on_lost(move |reason| callback(&Lost { name, reason: reason.clone() }));
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
        let hold = &self.kept.hold;
        if hold.is_forked() {
            return Err(self.as_lost(Loss::Forked).into());
        }
        if let Some(reason) = hold.loss() {
            return Err(self.as_lost(reason).into());
        }
        if tx.store().file().as_ref() != Some(&self.file) {
            return Err(HoldError::OtherFile);
        }
        if let Some(session) = &self.session {
            return session.renew_in(tx);
        }
        let (start, asked_at_ms) = (SystemClock.now(), crate::now_ms());
        match tx.renew(&self.lease(), hold.grant().ttl)? {
            RenewResult::Renewed(lease) => {
                let renewal = renewal(asked_at_ms, hold.grant().ttl, &lease);
                tx.with_renewal(PendingRenewal::new(hold.clone(), lease, renewal, start));
                Ok(())
            }
            RenewResult::Rejected { reason, current } => {
                Err(self.as_lost(loss(self.token(), reason, current)).into())
            }
        }
    }

    /// Returns the open request for this lease, if somebody asks for it: see
    /// [`request`](Leases::request). Finish what you are doing, store a checkpoint, and
    /// [hand it over](Held::hand_over).
    pub fn requested(&self) -> Option<RequestInfo> {
        let Asked { requester, until_ms } = self.kept.hold.asked()?;
        Some(RequestInfo::new(requester, until_ms, self.token()))
    }

    /// Calls `callback` on a thread of its own whenever somebody asks for this lease; at once if
    /// somebody already does.
    pub fn on_requested(&self, mut callback: impl FnMut(&RequestInfo) + Send + 'static) {
        let token = self.token();
        self.kept.hold.on_asked(move |Asked { requester, until_ms }| {
            callback(&RequestInfo::new(requester.clone(), *until_ms, token));
        });
    }

    /// Hands the lease to who has asked for it, under a new token and for `ttl` from now, and ends
    /// the hold. Returns the requester's grant. The two do not overlap: stop the work before.
    ///
    /// If nobody asks, or it cannot be done, the hold comes back with the error.
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
    pub fn hand_over(mut self, ttl: Duration) -> Result<Lease, (Held, HoldError)> {
        match self.kept.hand_over(ttl, Duration::from_secs(5)) {
            Ok(Some(Handed { owner, token, expires_at_ms })) => {
                self.released = true;
                let name = self.name().to_owned();
                Ok(Lease { name, owner, token, expires_at_ms })
            }
            Ok(None) => Err((self, HoldError::NotRequested)),
            Err(reason) => {
                let lost = self.as_lost(reason);
                Err((self, lost.into()))
            }
        }
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
    pub fn release(mut self) -> std::result::Result<(), Lost> {
        self.released = true;
        self.kept.release(Duration::from_secs(5)).map_err(|reason| self.as_lost(reason))
    }

    /// A lease that belongs to a session.
    pub(crate) fn of_session(kept: Kept, file: String, session: Arc<Members>) -> Self {
        Held { kept, file, released: false, session: Some(session) }
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.name().into(), reason }
    }
}

impl<'h> From<&'h Held> for GrantRef<'h> {
    fn from(held: &'h Held) -> Self {
        GrantRef { name: held.name(), token: held.token(), owner: Some(held.owner()) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.released {
            // A drop cannot tell, and must not take long; what was superseded is left alone.
            let _ = self.kept.release(Duration::from_millis(100));
        }
    }
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

/// Hands a grant to the keeper.
///
/// The keeper's own connection waits for nobody, since other files wait for the keeper. So a writer
/// that is in the way of its first look is waited for here, for at most `patience`.
pub(crate) fn keep(
    keeper: &Keeper,
    file: &str,
    hold: impl Fn() -> Hold,
    open: impl Fn() -> Result<Box<dyn Rows>>,
    patience: Duration,
) -> Result<Kept> {
    let begin = SystemClock.now();
    loop {
        let hold = hold();
        let trusted_until = hold.trusted_until();
        match keeper.keep(file, hold, &open) {
            Err(HoldError::Lease(error))
                if is_busy(&error) && SystemClock.now() < trusted_until.min(begin + patience) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            kept => return kept,
        }
    }
}

/// Returns the busy timeout of a connection.
pub(crate) fn busy_timeout(connection: &Connection) -> Duration {
    let ms = connection.pragma_query_value(None, "busy_timeout", |row| row.get::<_, u32>(0));
    Duration::from_millis(ms.unwrap_or_default().into())
}

/// The keeper of the holds of this process.
pub(crate) static HOLDS: ProcessKeeper = ProcessKeeper::new();
