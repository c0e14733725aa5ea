//! The verbs, written once for every handle.

use std::time::Duration;

use litelease_core::Claimant;
use litelease_store::{Connection, Store, When};

use crate::error::lift;
use crate::kept::Kind;
use crate::notify::Notifier;
use crate::{
    BootRecord, BreakResult, ClaimResult, EpochInfo, Error, LeaseInfo, LeaseRow, ReleaseResult,
    RenewResult, Result, TransferResult,
};

/// The verbs on leases, as every handle of this crate has them.
///
/// It is reached through a [`Litelease`](crate::Litelease), a [`LiteleaseRef`](crate::LiteleaseRef), a
/// [`Transaction`](crate::Transaction) or a [`Savepoint`](crate::Savepoint), which differ in who owns the
/// transaction and not in what a claim is. Each verb reads the system clock once it holds the write lock;
/// its `_at` form takes the time instead. The `_exact` forms mean one grant and not just one owner text.
///
/// ```
/// use std::time::Duration;
/// use litelease::{ClaimResult, Leases, Litelease};
///
/// fn try_to_lead(leases: &Leases, me: &str) -> litelease::Result<bool> {
///     let claimed = leases.claim("leader", me, Duration::from_secs(30))?;
///     Ok(matches!(claimed, ClaimResult::Acquired(_)))
/// }
///
/// # fn main() -> litelease::Result<()> {
/// # let mut db = Litelease::from_connection(litelease::rusqlite::Connection::open_in_memory()?);
/// db.bootstrap()?;
/// assert!(try_to_lead(&db, "a")?);
/// let tx = db.transaction()?;
/// assert!(!try_to_lead(&tx, "b")?);
/// # Ok(())
/// # }
/// ```
pub struct Leases {
    store: Store,
    notifier: Notifier,
    kind: Kind,
}

impl Leases {
    /// Creates the lease table if it is missing, and checks it strictly if it is there.
    ///
    /// On a database that has the right table this changes nothing, with one exception: outside a transaction it records
    /// the present boot of the machine, once, so that no power cut can take that. From then on all grants of this boot are
    /// in order after a power cut, whatever the `synchronous` of the connection that makes them. So call it at every start.
    ///
    /// It may run inside a transaction, but there it records nothing: it cannot be made durable.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// db.bootstrap()?;
    /// db.bootstrap()?; // as often as you like
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn bootstrap(&self) -> Result<()> {
        lift(self.verbs()?.bootstrap())
    }

    /// Grants `name` to `owner` for `ttl`, if nobody has it.
    ///
    /// A live lease is `Busy`, whoever asks, the same owner too. Inside a transaction of the caller's, the token
    /// is the caller's only after COMMIT; open such a transaction with `BEGIN IMMEDIATE`, or the claim may fail
    /// with SQLite's own BUSY.
    ///
    /// One case is not in order after a power cut: a claim inside a transaction that the caller has begun, on a connection
    /// whose commits a power cut can take, in a boot that nobody has recorded. [`bootstrap`](Leases::bootstrap) records it,
    /// and so do [`transaction`](crate::Litelease::transaction), a [`SingleWriter`](crate::SingleWriter) and a claim outside
    /// a transaction on such a connection.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// match db.claim("scheduler", "a", Duration::from_secs(30))? {
    ///     ClaimResult::Acquired(lease) => assert_eq!(lease.token, 1),
    ///     ClaimResult::Busy(current) => println!("{} has it", current.owner),
    /// }
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, When::Now, 0)
    }

    /// [`claim`](Leases::claim) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// db.claim_at("scheduler", "a", Duration::from_millis(50), 100)?;
    /// let next = db.claim_at("scheduler", "b", Duration::from_millis(50), 150)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_at(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now_ms: i64,
    ) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, When::At(now_ms), 0)
    }

    /// [`claim`](Leases::claim) with a token larger than `min_token`, one that was seen elsewhere.
    ///
    /// For a file that may be older than what it protects, such as one restored from a backup. As with any
    /// claim, inside a transaction the token is the caller's only after COMMIT. A `min_token` of a later epoch than the file's
    /// is recorded first, as a boot is; inside a transaction of the caller's it cannot be, so call [`raise`](Leases::raise)
    /// before.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// let lease = db.claim_above("scheduler", "a", Duration::from_secs(30), 41)?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 42));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_above(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
    ) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, When::Now, min_token)
    }

    /// [`claim_above`](Leases::claim_above) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// let lease = db.claim_above_at("scheduler", "a", Duration::from_millis(50), 100, 41)?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 42));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_above_at(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now_ms: i64,
        min_token: i64,
    ) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, When::At(now_ms), min_token)
    }

    /// Claims a name whose holder the caller knows to be dead: ends exactly the grant `dead` and claims in one commit,
    /// under a new token. If another grant is live by now, the answer is `Busy`.
    ///
    /// Only the process that has seen the holder end may use it, such as a supervisor that has waited for its child.
    /// [`hold`](crate::Litelease::hold) and [`claim_wait`](crate::Litelease::claim_wait) examine holders by themselves.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// let dead = db.claim("scheduler", "a", ttl)?.acquired().unwrap();
    /// // a ends, and its parent is told.
    /// let next = db.claim_from_dead("scheduler", "b", ttl, &dead)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// assert!(matches!(db.claim_from_dead("scheduler", "c", ttl, &dead)?, ClaimResult::Busy(_)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_from_dead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: &LeaseInfo,
    ) -> Result<ClaimResult> {
        self.claim_from_dead_when(name, owner, ttl, dead, When::Now)
    }

    /// [`claim_from_dead`](Leases::claim_from_dead) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// let dead = db.claim_at("scheduler", "a", ttl, 100)?.acquired().unwrap();
    /// let next = db.claim_from_dead_at("scheduler", "b", ttl, &dead, 110)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim_from_dead_at(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: &LeaseInfo,
        now_ms: i64,
    ) -> Result<ClaimResult> {
        self.claim_from_dead_when(name, owner, ttl, dead, When::At(now_ms))
    }

    /// Prolongs a live lease of `owner` to at least `ttl` from now. It never shortens one and never revives one.
    ///
    /// Two processes may use one owner text, and then each would renew the other's lease: prefer
    /// [`renew_exact`](Leases::renew_exact).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.renew("scheduler", "a", ttl)?, RenewResult::Renewed(_)));
    /// assert!(matches!(
    ///     db.renew("scheduler", "b", ttl)?,
    ///     RenewResult::Rejected { reason: Reason::HeldBy, .. }
    /// ));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew(&self, name: &str, owner: &str, ttl: Duration) -> Result<RenewResult> {
        self.renew_when(name, any_grant_of(owner), ttl, When::Now)
    }

    /// [`renew`](Leases::renew) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// let late = db.renew_at("scheduler", "a", ttl, 150)?;
    /// assert!(matches!(late, RenewResult::Rejected { reason: Reason::Expired, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew_at(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now_ms: i64,
    ) -> Result<RenewResult> {
        self.renew_when(name, any_grant_of(owner), ttl, When::At(now_ms))
    }

    /// Prolongs exactly this grant: owner and token must both match.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// let lease = db.claim("scheduler", "a", ttl)?.acquired().expect("nobody has it");
    /// assert!(matches!(db.renew_exact(&lease, ttl)?, RenewResult::Renewed(_)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew_exact(&self, lease: &LeaseInfo, ttl: Duration) -> Result<RenewResult> {
        self.renew_when(&lease.name, exactly(lease), ttl, When::Now)
    }

    /// [`renew_exact`](Leases::renew_exact) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// let lease = db.claim_at("scheduler", "a", ttl, 100)?.acquired().expect("nobody has it");
    /// db.claim_at("scheduler", "a", ttl, 150)?; // the same owner text, another grant
    /// let old = db.renew_exact_at(&lease, ttl, 160)?;
    /// assert!(matches!(old, RenewResult::Rejected { reason: Reason::Superseded { by: 2 }, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew_exact_at(
        &self,
        lease: &LeaseInfo,
        ttl: Duration,
        now_ms: i64,
    ) -> Result<RenewResult> {
        self.renew_when(&lease.name, exactly(lease), ttl, When::At(now_ms))
    }

    /// Ends a live lease of `owner` early. The next grant's token is still larger.
    ///
    /// Prefer [`release_exact`](Leases::release_exact) where two processes may use one owner text.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.release("scheduler", "a")?, ReleaseResult::Released { token: 1, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn release(&self, name: &str, owner: &str) -> Result<ReleaseResult> {
        self.release_when(name, any_grant_of(owner), When::Now)
    }

    /// [`release`](Leases::release) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// assert!(matches!(db.release_at("scheduler", "a", 120)?, ReleaseResult::Released { .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn release_at(&self, name: &str, owner: &str, now_ms: i64) -> Result<ReleaseResult> {
        self.release_when(name, any_grant_of(owner), When::At(now_ms))
    }

    /// Ends exactly this grant early: owner and token must both match.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// let lease = db.claim("scheduler", "a", ttl)?.acquired().expect("nobody has it");
    /// assert!(matches!(db.release_exact(&lease)?, ReleaseResult::Released { .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn release_exact(&self, lease: &LeaseInfo) -> Result<ReleaseResult> {
        self.release_when(&lease.name, exactly(lease), When::Now)
    }

    /// [`release_exact`](Leases::release_exact) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// let lease = db.claim_at("scheduler", "a", ttl, 100)?.acquired().expect("nobody has it");
    /// let late = db.release_exact_at(&lease, 150)?;
    /// assert!(matches!(late, ReleaseResult::Rejected { reason: Reason::Expired, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn release_exact_at(&self, lease: &LeaseInfo, now_ms: i64) -> Result<ReleaseResult> {
        self.release_when(&lease.name, exactly(lease), When::At(now_ms))
    }

    /// Hands a live lease of `owner` to `new_owner`, under a new token and for `ttl` from now.
    ///
    /// Owner and token change in one step: from it on the old owner's token is superseded. Inside a
    /// transaction of the caller's, the new token may be used only after COMMIT.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// let handed = db.transfer("scheduler", "a", "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer(
        &self,
        name: &str,
        owner: &str,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        self.transfer_when(name, any_grant_of(owner), new_owner, ttl, When::Now)
    }

    /// [`transfer`](Leases::transfer) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// let handed = db.transfer_at("scheduler", "a", "b", ttl, 120)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.lease_expires_at_ms == 170));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer_at(
        &self,
        name: &str,
        owner: &str,
        new_owner: &str,
        ttl: Duration,
        now_ms: i64,
    ) -> Result<TransferResult> {
        self.transfer_when(name, any_grant_of(owner), new_owner, ttl, When::At(now_ms))
    }

    /// Hands exactly this grant to `new_owner`: owner and token must both match.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// let lease = db.claim("scheduler", "a", ttl)?.acquired().expect("nobody has it");
    /// let handed = db.transfer_exact(&lease, "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.owner == "b"));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer_exact(
        &self,
        lease: &LeaseInfo,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        self.transfer_when(&lease.name, exactly(lease), new_owner, ttl, When::Now)
    }

    /// [`transfer_exact`](Leases::transfer_exact) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// let lease = db.claim_at("scheduler", "a", ttl, 100)?.acquired().expect("nobody has it");
    /// let handed = db.transfer_exact_at(&lease, "b", ttl, 120)?;
    /// assert!(matches!(handed, TransferResult::Transferred(_)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer_exact_at(
        &self,
        lease: &LeaseInfo,
        new_owner: &str,
        ttl: Duration,
        now_ms: i64,
    ) -> Result<TransferResult> {
        self.transfer_when(&lease.name, exactly(lease), new_owner, ttl, When::At(now_ms))
    }

    /// The operator's way to end anybody's live lease. It raises the token too, so that the broken holder is
    /// superseded at once and not only when somebody else claims.
    ///
    /// (`break` is a word of the language; everywhere else the verb is called that.)
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.break_lease("scheduler")?, BreakResult::Broken { killed: 1, .. }));
    /// assert_eq!(db.token("scheduler")?, Some(2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn break_lease(&self, name: &str) -> Result<BreakResult> {
        self.break_when(name, When::Now)
    }

    /// [`break_lease`](Leases::break_lease) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// let nothing = db.break_lease_at("scheduler", 150)?;
    /// assert!(matches!(nothing, BreakResult::Rejected { reason: Reason::Expired, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn break_lease_at(&self, name: &str, now_ms: i64) -> Result<BreakResult> {
        self.break_when(name, When::At(now_ms))
    }

    /// The live lease on `name`, if there is one. Takes no write lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(db.inspect("scheduler")?.is_some_and(|lease| lease.owner == "a"));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn inspect(&self, name: &str) -> Result<Option<LeaseInfo>> {
        lift(self.verbs()?.inspect(name, When::Now, |lease| lease.into_owned()))
    }

    /// [`inspect`](Leases::inspect) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// assert!(db.inspect_at("scheduler", 149)?.is_some());
    /// assert!(db.inspect_at("scheduler", 150)?.is_none());
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn inspect_at(&self, name: &str, now_ms: i64) -> Result<Option<LeaseInfo>> {
        lift(self.verbs()?.inspect(name, When::At(now_ms), |lease| lease.into_owned()))
    }

    /// Who has `name` right now. Takes no write lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert_eq!(db.owner("scheduler")?.as_deref(), Some("a"));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn owner(&self, name: &str) -> Result<Option<String>> {
        lift(self.verbs()?.inspect(name, When::Now, |lease| lease.owner.into()))
    }

    /// [`owner`](Leases::owner) at a given Unix time in milliseconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// assert_eq!(db.owner_at("scheduler", 150)?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn owner_at(&self, name: &str, now_ms: i64) -> Result<Option<String>> {
        lift(self.verbs()?.inspect(name, When::At(now_ms), |lease| lease.owner.into()))
    }

    /// The newest token of `name`, whether its lease is live or not. Takes no write lock.
    ///
    /// A holder whose token is smaller has been superseded.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert_eq!(db.token("scheduler")?, Some(1));
    /// assert_eq!(db.token("never claimed")?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn token(&self, name: &str) -> Result<Option<i64>> {
        lift(self.verbs()?.token(name))
    }

    /// All names that were ever granted and not purged since, live or not, in their order. Takes no write lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// db.claim_at("scheduler", "a", Duration::from_millis(50), 100)?;
    /// let all: Vec<LeaseRow> = db.list()?;
    /// assert_eq!((all[0].name.as_str(), all[0].token), ("scheduler", 1));
    /// assert_eq!(all[0].status(149), Some(Status::Live));
    /// assert_eq!(all[0].status(150), Some(Status::Expired));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn list(&self) -> Result<Vec<LeaseRow>> {
        lift(self.verbs()?.list())
    }

    /// Deletes the rows of names that have not been live since `before_ms` (Unix time in milliseconds), and
    /// answers how many.
    ///
    /// The same commit raises the file's token floor to the largest token deleted, so that no number returns.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// db.claim_at("job 1", "a", Duration::from_millis(50), 100)?;
    /// assert_eq!(db.purge(150)?, 1);
    /// let again = db.claim("job 1", "a", Duration::from_secs(30))?;
    /// assert!(matches!(again, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn purge(&self, before_ms: i64) -> Result<u64> {
        lift(self.verbs()?.purge(before_ms, When::Now))
    }

    /// [`purge`](Leases::purge) at a given Unix time in milliseconds: what is live then is kept.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_millis(50);
    /// db.claim_at("scheduler", "a", ttl, 100)?;
    /// assert_eq!(db.purge_at(900, 149)?, 0);
    /// assert_eq!(db.purge_at(900, 150)?, 1);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn purge_at(&self, before_ms: i64, now_ms: i64) -> Result<u64> {
        lift(self.verbs()?.purge(before_ms, When::At(now_ms)))
    }

    /// Raises the floor of the file: every token granted from now on, of any name, is larger than `floor`.
    ///
    /// For a file that may be older than what it protects, when the largest token seen elsewhere is known. Tokens
    /// that are in the file already stay as they are; [`restore_fence`](Leases::restore_fence) raises those too.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// db.raise(1000)?;
    /// let lease = db.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 1001));
    /// assert!(matches!(db.raise(999), Err(Error::FloorTooLow { present: 1000, .. })));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn raise(&self, floor: i64) -> Result<()> {
        lift(self.verbs()?.raise(floor))
    }

    /// Raises the token of one name above `floor`, and ends its lease if it is live: whoever has a token up to the
    /// floor is superseded at once, and the next grant is larger.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// db.raise_name("scheduler", 1000)?;
    /// assert_eq!(db.token("scheduler")?, Some(1001));
    /// let lease = db.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 1002));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn raise_name(&self, name: &str, floor: i64) -> Result<()> {
        lift(self.verbs()?.raise_name(name, floor, When::Now))
    }

    /// Fences off whatever was granted before this file was restored from a backup, and answers the new floor.
    ///
    /// Call it once, after putting the backup in place and before anybody uses it. It ends every lease, and raises
    /// every token and the floor far above all that can have been granted since the backup was made: by 2⁴⁶, which
    /// is more than 16,000 boots of the machine with 2³² grants each. There is room for 127 such calls below 2⁵³, where
    /// JavaScript and JSON have every number, and for 131,000 in all.
    ///
    /// Where the system has no boot id, each start of a process takes an epoch, and so this is
    /// [`LargestTokenNeeded`](crate::Error::LargestTokenNeeded): use [`restore_fence_above`](Leases::restore_fence_above).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// # let ttl = Duration::from_secs(30);
    /// let old = db.claim("scheduler", "a", ttl)?.acquired().unwrap();
    /// let floor = db.restore_fence()?;
    /// assert!(matches!(db.renew_exact(&old, ttl)?, RenewResult::Rejected { .. }));
    /// let lease = db.claim("scheduler", "b", ttl)?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == floor + 1));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn restore_fence(&self) -> Result<i64> {
        lift(self.verbs()?.restore_fence(None, When::Now))
    }

    /// [`restore_fence`](Leases::restore_fence) that raises tokens far above `token` as well: the largest one that was seen
    /// anywhere, in a log or in a gate; 0 if none was.
    ///
    /// ```
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// let floor = db.restore_fence_above(1 << 48)?;
    /// assert!(floor > 1 << 48);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn restore_fence_above(&self, token: i64) -> Result<i64> {
        lift(self.verbs()?.restore_fence(Some(token), When::Now))
    }

    /// Returns what the file knows of its epoch: how far tokens have come, and whether the present boot is recorded.
    ///
    /// ```
    /// # use litelease::*;
    /// # let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    /// # db.bootstrap()?;
    /// assert_eq!(db.epoch()?.boot, BootRecord::Durable);
    /// assert!(db.epoch()?.epochs_left() > 2_000_000);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn epoch(&self) -> Result<EpochInfo> {
        lift(self.verbs()?.epoch())
    }

    /// Records the present boot, as [`bootstrap`](Leases::bootstrap) does, if the file has leases. Returns whether
    /// it is recorded.
    pub(crate) fn record_boot(&self) -> Result<bool> {
        lift(self.store.record_boot_before_transaction())
    }

    /// Returns whether the present boot is known to be recorded, without the write lock.
    pub(crate) fn has_recorded_boot(&self) -> bool {
        self.store.boot_record().is_ok_and(|record| record == BootRecord::Durable)
    }

    /// The verbs on a connection.
    ///
    /// # Safety
    /// They must be dropped before the connection is closed, and used by one thread at a time with it.
    pub(crate) unsafe fn on(connection: Connection, kind: Kind) -> Self {
        Leases { store: Store::new(connection), notifier: Notifier::default(), kind }
    }

    /// The store, for everything but a verb.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The store, for a verb: an error where the handle demands a transaction and none is open.
    pub(crate) fn verbs(&self) -> Result<&Store> {
        match self.kind {
            Kind::Joining if !self.store.joins_transaction() => Err(Error::NotInTransaction),
            _ => Ok(&self.store),
        }
    }

    /// A transaction of ours has committed: whatever was freed in it is free now.
    pub(crate) fn committed(&self) {
        self.notifier.committed(&self.store);
    }

    fn claim_when(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        when: When,
        min_token: i64,
    ) -> Result<ClaimResult> {
        let ttl_ms = in_ms(ttl);
        lift(
            self.verbs()?.claim(name, owner, ttl_ms, when, min_token, |answer| answer.into_owned()),
        )
    }

    fn claim_from_dead_when(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: &LeaseInfo,
        when: When,
    ) -> Result<ClaimResult> {
        let (ttl_ms, dead) = (in_ms(ttl), exactly(dead));
        lift(
            self.verbs()?
                .claim_from_dead(name, owner, ttl_ms, when, dead, |answer| answer.into_owned()),
        )
    }

    fn renew_when(
        &self,
        name: &str,
        who: Claimant<'_>,
        ttl: Duration,
        when: When,
    ) -> Result<RenewResult> {
        lift(self.verbs()?.renew(name, who, in_ms(ttl), when, |answer| answer.into_owned()))
    }

    fn release_when(&self, name: &str, who: Claimant<'_>, when: When) -> Result<ReleaseResult> {
        let answer = lift(self.verbs()?.release(name, who, when, |answer| answer.into_owned()))?;
        if matches!(answer, ReleaseResult::Released { .. }) {
            self.notifier.freed(&self.store);
        }
        Ok(answer)
    }

    fn transfer_when(
        &self,
        name: &str,
        who: Claimant<'_>,
        new_owner: &str,
        ttl: Duration,
        when: When,
    ) -> Result<TransferResult> {
        let ttl_ms = in_ms(ttl);
        lift(
            self.verbs()?
                .transfer(name, who, new_owner, ttl_ms, when, |answer| answer.into_owned()),
        )
    }

    fn break_when(&self, name: &str, when: When) -> Result<BreakResult> {
        let answer = lift(self.verbs()?.break_lease(name, when, |answer| answer.into_owned()))?;
        if matches!(answer, BreakResult::Broken { .. }) {
            self.notifier.freed(&self.store);
        }
        Ok(answer)
    }
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").finish_non_exhaustive()
    }
}

fn any_grant_of(owner: &str) -> Claimant<'_> {
    Claimant { owner, token: None }
}

fn exactly(lease: &LeaseInfo) -> Claimant<'_> {
    Claimant { owner: &lease.owner, token: Some(lease.token) }
}

/// A ttl in whole milliseconds, rounded up: a lease never ends earlier than was asked for. One beyond 64
/// bits becomes the largest, which the rule refuses as an overflow at any time after 1970.
pub(crate) fn in_ms(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}
