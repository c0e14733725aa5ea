//! The verbs, written once for every handle.

use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use litelease_core::Claimant;
use litelease_hold::Notifier;
use litelease_hold::file::FileLeases;
pub(crate) use litelease_hold::file::in_ms;
use litelease_store::{Connection, Store, When};

use crate::connection_cache::Kind;
use crate::error::into_rusqlite;
use crate::{
    BreakResult, ClaimResult, EpochInfo, Error, GrantRef, Lease, LeaseRow, ReleaseResult,
    RenewResult, Result, TransferResult,
};

/// The verbs on leases. Every handle of this crate has them.
///
/// Reach it through a [`Litelease`](crate::Litelease), a [`LiteleaseRef`](crate::LiteleaseRef), a
/// [`Transaction`](crate::Transaction) or a [`Savepoint`](crate::Savepoint), which differ only in
/// who owns the transaction. Each verb reads the system clock once it holds the write lock; through
/// [`at`](Leases::at) it takes the time that the caller gives instead. `renew`, `release` and
/// `transfer` take the lease that was granted; their `_by_owner` forms take an owner text, which
/// two processes may share.
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
    shared: Rc<Shared>,
    when: When,
}

/// The parts that a handle shares with its views at given times.
struct Shared {
    store: Store,
    notifier: Notifier,
    kind: Kind,
}

// `Litelease` may move between threads because this may.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Shared>();
};

/// The verbs of a handle at a given time: see [`Leases::at`].
///
/// ```
/// # litelease_doctest::memory!(db);
/// let early: LeasesAt<'_> = db.at(100);
/// early.claim("scheduler", "a", Duration::from_millis(50))?;
/// assert_eq!(early.owner("scheduler")?.as_deref(), Some("a"));
/// assert_eq!(db.owner("scheduler")?, None, "which ended in 1970");
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Debug)]
pub struct LeasesAt<'l> {
    leases: Leases,
    /// Keeps the handle alive and in this thread.
    borrowed: PhantomData<&'l Leases>,
}

impl Leases {
    /// Returns the same verbs at a given Unix time in milliseconds, for tests and simulations.
    ///
    /// They decide and write as if the system clock said `now_ms`. The handle itself still reads
    /// the clock.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_millis(50);
    /// db.at(100).claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.at(149).claim("scheduler", "b", ttl)?, ClaimResult::Busy(_)));
    /// let next = db.at(150).claim("scheduler", "b", ttl)?;
    /// assert!(matches!(next, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn at(&self, now_ms: i64) -> LeasesAt<'_> {
        let leases = Leases { shared: Rc::clone(&self.shared), when: When::At(now_ms) };
        LeasesAt { leases, borrowed: PhantomData }
    }

    /// Creates the lease table if it is missing; otherwise checks it strictly.
    ///
    /// Call it at every start. If the table is there, it changes nothing, with one exception:
    /// outside a transaction it durably records the present boot of the machine, once. From then on
    /// all grants of this boot stay in order after a power cut, whatever the `synchronous` setting
    /// of the connection that makes them.
    ///
    /// Inside a transaction it does not record the boot, because it could not make the record
    /// durable. So a token that is granted in the transaction that creates the table may come back
    /// after a power cut, if the connection can lose commits. Call it before you begin.
    ///
    /// On a connection that was opened for reading it only checks the table. With `PRAGMA
    /// query_only` it fails if the boot is not recorded yet.
    pub fn bootstrap(&self) -> Result<()> {
        self.run(|store| store.bootstrap())
    }

    /// Grants `name` to `owner` for `ttl`, if it is free.
    ///
    /// Returns `Busy` while a lease is live, also to its own owner. Inside a transaction of the
    /// caller's, use the token only after COMMIT, and open the transaction with `BEGIN IMMEDIATE`:
    /// otherwise the claim may fail with SQLITE_BUSY.
    ///
    /// After a power cut, tokens may be out of order in one case: a claim inside a transaction that
    /// the caller has begun, on a connection whose commits a power cut can lose, in a boot that is
    /// not recorded. [`bootstrap`](Leases::bootstrap) records the boot, and so do
    /// [`transaction`](crate::Litelease::transaction), a [`SingleWriter`](crate::SingleWriter) and
    /// a claim outside a transaction on such a connection.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// match db.claim("scheduler", "a", Duration::from_secs(30))? {
    ///     ClaimResult::Acquired(lease) => assert_eq!(lease.token, 1),
    ///     ClaimResult::Busy(current) => println!("{} has it", current.owner),
    /// }
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn claim(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, 0)
    }

    /// Claims like [`claim`](Leases::claim), with a token larger than `min_token`.
    ///
    /// Use it for a file that may be older than what it protects, such as one restored from a
    /// backup. Inside a transaction, use the token only after COMMIT. If `min_token` belongs to a
    /// later epoch than the file's, that epoch is recorded first; inside a transaction of the
    /// caller's this is impossible, so call [`raise`](Leases::raise) before.
    pub fn claim_above(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
    ) -> Result<ClaimResult> {
        self.claim_when(name, owner, ttl, min_token)
    }

    /// Claims `name` for `owner`, or prolongs the lease that `owner` already has on it, under the
    /// same token. It never shortens a lease.
    ///
    /// Returns `Busy` only while another owner has a live lease. So a request may be repeated: by a
    /// caller that does not know whether its first one was carried out, or by one that comes back
    /// after a restart and kept nothing but its owner text. Two processes that use one owner text
    /// would share the lease.
    ///
    /// Inside a transaction of the caller's, see [`claim`](Leases::claim).
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_millis(50);
    /// let first = db.at(100).ensure("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// let again = db.at(120).ensure("scheduler", "a", ttl)?.acquired().expect("it is its own");
    /// assert_eq!((first.token, first.expires_at_ms), (1, 150));
    /// assert_eq!((again.token, again.expires_at_ms), (1, 170));
    /// assert!(matches!(db.at(120).ensure("scheduler", "b", ttl)?, ClaimResult::Busy(_)));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn ensure(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        let ttl_ms = in_ms(ttl);
        self.run(|store| store.ensure(name, owner, ttl_ms, self.when, |answer| answer.into_owned()))
    }

    /// Ends exactly the grant `dead`, whose holder has ended, and claims its name in one commit,
    /// under a new token. Returns `Busy` if another grant is live by now.
    ///
    /// Hidden, because [`hold`](crate::Litelease::hold),
    /// [`claim_wait`](crate::Litelease::claim_wait) and `litelease run` examine holders by
    /// themselves; public for the scenarios, which play every row of the rule.
    #[doc(hidden)]
    pub fn claim_from_dead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: GrantRef<'_>,
    ) -> Result<ClaimResult> {
        self.claim_from_dead_when(name, owner, ttl, dead)
    }

    /// Prolongs this grant to at least `ttl` from now. It never shortens a lease and never revives
    /// one.
    ///
    /// It takes the lease that a claim returned, or name and token: `db.renew(("n", 7), ttl)`. A
    /// later grant to the same owner text is not renewed.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// let lease = db.claim("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// assert!(matches!(db.renew(&lease, ttl)?, RenewResult::Renewed(_)));
    ///
    /// let later = litelease::now_ms() + 60_000;
    /// db.at(later).claim("scheduler", "a", ttl)?; // the same owner text, another grant
    /// let old = db.at(later).renew(&lease, ttl)?;
    /// assert!(matches!(old, RenewResult::Rejected { reason: Reason::Superseded { by: 2 }, .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew<'g>(&self, grant: impl Into<GrantRef<'g>>, ttl: Duration) -> Result<RenewResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        self.renew_when(grant.name, grant.of_owner(&owner), ttl)
    }

    /// Prolongs whichever lease `owner` has now, for a caller that knows only the owner text. See
    /// [`renew`](Leases::renew).
    ///
    /// Two processes that use one owner text would renew each other's leases.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.renew_by_owner("scheduler", "a", ttl)?, RenewResult::Renewed(_)));
    /// assert!(matches!(
    ///     db.renew_by_owner("scheduler", "b", ttl)?,
    ///     RenewResult::Rejected { reason: Reason::HeldBy, .. }
    /// ));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn renew_by_owner(&self, name: &str, owner: &str, ttl: Duration) -> Result<RenewResult> {
        self.renew_when(name, any_grant_of(owner), ttl)
    }

    /// Ends this grant early. The next grant's token is still larger.
    ///
    /// It takes the lease that a claim returned, or name and token. A later grant to the same owner
    /// text is not released.
    pub fn release<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<ReleaseResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        self.release_when(grant.name, grant.of_owner(&owner))
    }

    /// Ends whichever lease `owner` has now, for a caller that knows only the owner text. See
    /// [`release`](Leases::release).
    ///
    /// Two processes that use one owner text would release each other's leases.
    pub fn release_by_owner(&self, name: &str, owner: &str) -> Result<ReleaseResult> {
        self.release_when(name, any_grant_of(owner))
    }

    /// Hands this grant to `new_owner`, under a new token and for `ttl` from now.
    ///
    /// Owner and token change in one step, and the old token is superseded from then on. Inside a
    /// transaction of the caller's, the new token may be used only after COMMIT.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// let lease = db.claim("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// let handed = db.transfer(&lease, "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.owner == "b"));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        self.transfer_when(grant.name, grant.of_owner(&owner), new_owner, ttl)
    }

    /// Hands on whichever lease `owner` has now, for a caller that knows only the owner text. See
    /// [`transfer`](Leases::transfer).
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// let handed = db.transfer_by_owner("scheduler", "a", "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn transfer_by_owner(
        &self,
        name: &str,
        owner: &str,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        self.transfer_when(name, any_grant_of(owner), new_owner, ttl)
    }

    /// Ends any holder's live lease, for operators. It also raises the token, so that the holder is
    /// superseded at once and not only at the next claim.
    ///
    /// (In SQL and in the command the verb is called `break`, which is a keyword in Rust.)
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert!(matches!(db.break_lease("scheduler")?, BreakResult::Broken { token: 1, .. }));
    /// assert_eq!(db.token("scheduler")?, Some(2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn break_lease(&self, name: &str) -> Result<BreakResult> {
        self.break_when(name)
    }

    /// Returns the live lease on `name`, if there is one. Takes no write lock.
    pub fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        self.run(|store| store.inspect(name, self.when, |lease| lease.into_owned()))
    }

    /// Returns the row of `name`, live or not, as [`list`](Leases::list) has it. Takes no write
    /// lock.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let lease = db.at(100).claim("scheduler", "a", Duration::from_millis(50))?;
    /// db.at(120).renew(&lease.acquired().unwrap(), Duration::from_millis(50))?;
    /// let row = db.row("scheduler")?.unwrap();
    /// assert_eq!(row.since_ms, Some(100), "renewals do not change it");
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn row(&self, name: &str) -> Result<Option<LeaseRow>> {
        self.run(|store| store.row(name))
    }

    /// Returns the owner of the live lease on `name`, if there is one. Takes no write lock.
    pub fn owner(&self, name: &str) -> Result<Option<String>> {
        self.run(|store| store.inspect(name, self.when, |lease| lease.owner.into()))
    }

    /// Returns the newest token of `name`, whether its lease is live or not. Takes no write lock.
    ///
    /// A holder whose token is smaller has been superseded.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// db.claim("scheduler", "a", ttl)?;
    /// assert_eq!(db.token("scheduler")?, Some(1));
    /// assert_eq!(db.token("never claimed")?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn token(&self, name: &str) -> Result<Option<i64>> {
        self.run(|store| store.token(name))
    }

    /// Lists all names that were ever granted and not purged since, live or not, sorted by name.
    /// Takes no write lock.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.at(100).claim("scheduler", "a", Duration::from_millis(50))?;
    /// let all: Vec<LeaseRow> = db.list()?;
    /// assert_eq!((all[0].name.as_str(), all[0].token), ("scheduler", 1));
    /// assert_eq!(all[0].status(149), Some(Status::Live));
    /// assert_eq!(all[0].status(150), Some(Status::Expired));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn list(&self) -> Result<Vec<LeaseRow>> {
        self.run(|store| store.list())
    }

    /// Deletes the rows of names that have not been live since `before_ms` (Unix time in
    /// milliseconds), and returns how many. Items of queues stay, also dead ones:
    /// [`Queue::discard`](crate::Queue::discard) deletes those.
    ///
    /// The same commit raises the file's token floor to the largest token deleted, so that no token
    /// is ever granted again. Outside a transaction, every thousand names are a commit, so that
    /// other writers get their turn.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.at(100).claim("job 1", "a", Duration::from_millis(50))?;
    /// assert_eq!(db.purge(150)?, 1);
    /// let again = db.claim("job 1", "a", Duration::from_secs(30))?;
    /// assert!(matches!(again, ClaimResult::Acquired(lease) if lease.token == 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn purge(&self, before_ms: i64) -> Result<u64> {
        self.run(|store| store.purge(before_ms, self.when))
    }

    /// Raises the floor of the file: every token granted from now on, of any name, is larger than
    /// `floor`.
    ///
    /// Use it for a file that may be older than what it protects, if you know the largest token
    /// seen elsewhere. Tokens that are in the file already stay as they are;
    /// [`restore_fence`](Leases::restore_fence) raises those too.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.raise(1000)?;
    /// let lease = db.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 1001));
    /// assert!(matches!(db.raise(999), Err(Error::FloorTooLow { present: 1000, .. })));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn raise(&self, floor: i64) -> Result<()> {
        self.run(|store| store.raise(floor))
    }

    /// Raises the token of one name above `floor`, and ends its lease if it is live. Holders of
    /// tokens up to the floor are superseded at once, and the next grant is larger.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// db.raise_name("scheduler", 1000)?;
    /// assert_eq!(db.token("scheduler")?, Some(1001));
    /// let lease = db.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == 1002));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn raise_name(&self, name: &str, floor: i64) -> Result<()> {
        self.run(|store| store.raise_name(name, floor, self.when))
    }

    /// Fences off everything that was granted before this file was restored from a backup, and
    /// returns the new floor.
    ///
    /// Call it once, after putting the backup in place and before any program uses it. It ends
    /// every lease, and raises every token and the floor by 2⁴⁶, far above everything that can have
    /// been granted since the backup was made: that is more than 16,000 boots of the machine with
    /// 2³² grants each. There is room for 127 such calls below 2⁵³, the limit of exact integers in
    /// JavaScript and JSON, and for 131,000 in all.
    ///
    /// Where the system has no boot id, each start of a process takes an epoch, and this fails with
    /// [`LargestTokenNeeded`](crate::Error::LargestTokenNeeded): use
    /// [`restore_fence_above`](Leases::restore_fence_above).
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// let old = db.claim("scheduler", "a", ttl)?.acquired().unwrap();
    /// let floor = db.restore_fence()?;
    /// assert!(matches!(db.renew(&old, ttl)?, RenewResult::Rejected { .. }));
    /// let lease = db.claim("scheduler", "b", ttl)?;
    /// assert!(matches!(lease, ClaimResult::Acquired(lease) if lease.token == floor + 1));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn restore_fence(&self) -> Result<i64> {
        self.run(|store| store.restore_fence(None, self.when))
    }

    /// Fences off like [`restore_fence`](Leases::restore_fence), and raises tokens far above
    /// `token`: the largest one that was seen anywhere, in a log or in a gate, or 0.
    pub fn restore_fence_above(&self, token: i64) -> Result<i64> {
        self.run(|store| store.restore_fence(Some(token), self.when))
    }

    /// Returns what the file knows of its epoch: how far tokens have come, and whether the present
    /// boot is recorded.
    pub fn epoch(&self) -> Result<EpochInfo> {
        self.run(|store| store.epoch())
    }

    /// Records the present boot, as [`bootstrap`](Leases::bootstrap) does, if the file has leases.
    /// Returns whether it is recorded.
    pub(crate) fn record_boot(&self) -> Result<bool> {
        into_rusqlite(self.shared.store.record_boot_before_transaction())
    }

    /// Returns whether the present boot is durably recorded, without the write lock.
    pub(crate) fn has_recorded_boot(&self) -> Result<bool> {
        into_rusqlite(self.shared.store.is_boot_still_recorded())
    }

    /// Returns the verbs on a connection.
    ///
    /// # Safety
    /// The result must be dropped before the connection is closed, and only one thread at a time
    /// may use either.
    pub(crate) unsafe fn on(connection: Connection, kind: Kind) -> Self {
        let (store, notifier) = (Store::new(connection), Notifier::default());
        Leases { shared: Rc::new(Shared { store, notifier, kind }), when: When::Now }
    }

    /// Returns another handle on the same store, which reads the system clock.
    ///
    /// # Safety
    /// As for [`on`](Leases::on).
    pub(crate) unsafe fn share(&self) -> Self {
        Leases { shared: Rc::clone(&self.shared), when: When::Now }
    }

    /// Returns the time at which the verbs decide.
    pub(crate) fn when(&self) -> When {
        self.when
    }

    /// Returns the store, for functions other than verbs.
    pub(crate) fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Returns the leases as holds and waits use them. Fails as [`verbs`](Leases::verbs) does.
    pub(crate) fn of_file(&self) -> Result<FileLeases<'_>> {
        self.verbs().map(|_| self.in_file())
    }

    /// Returns the leases as holds and workers use them, on a handle that demands no transaction.
    pub(crate) fn in_file(&self) -> FileLeases<'_> {
        FileLeases { store: &self.shared.store, notifier: &self.shared.notifier }
    }

    /// Returns the store, for a verb. Fails if the handle demands a transaction and none is open.
    pub(crate) fn verbs(&self) -> Result<&Store> {
        match self.shared.kind {
            Kind::Joining if !self.shared.store.joins_transaction() => Err(Error::NotInTransaction),
            _ => Ok(&self.shared.store),
        }
    }

    /// Calls a verb of the store, and returns its error as one of this crate.
    pub(crate) fn run<T>(
        &self,
        verb: impl FnOnce(&Store) -> Result<T, litelease_store::Error>,
    ) -> Result<T> {
        into_rusqlite(verb(self.verbs()?))
    }

    /// Notifies the processes that wait at this file, once what was just done is committed.
    pub(crate) fn notify(&self) {
        self.shared.notifier.freed_in(&self.shared.store);
    }

    /// Notifies waiters of the names that a transaction of ours has freed, after its commit.
    pub(crate) fn committed(&self) {
        self.shared.notifier.committed_in(&self.shared.store);
    }

    fn claim_when(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
    ) -> Result<ClaimResult> {
        let ttl_ms = in_ms(ttl);
        self.run(|store| {
            store.claim(name, owner, ttl_ms, self.when, min_token, |answer| answer.into_owned())
        })
    }

    fn claim_from_dead_when(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: GrantRef<'_>,
    ) -> Result<ClaimResult> {
        let (ttl_ms, dead) = (in_ms(ttl), dead.of_owner(dead.owner.unwrap_or_default()));
        self.run(|store| {
            store
                .claim_from_dead(name, owner, ttl_ms, self.when, dead, |answer| answer.into_owned())
        })
    }

    fn renew_when(&self, name: &str, who: Claimant<'_>, ttl: Duration) -> Result<RenewResult> {
        self.run(|store| {
            store.renew(name, who, in_ms(ttl), self.when, |answer| answer.into_owned())
        })
    }

    fn release_when(&self, name: &str, who: Claimant<'_>) -> Result<ReleaseResult> {
        let answer =
            self.run(|store| store.release(name, who, self.when, |answer| answer.into_owned()))?;
        if matches!(answer, ReleaseResult::Released { .. }) {
            self.shared.notifier.freed_in(&self.shared.store);
        }
        Ok(answer)
    }

    fn transfer_when(
        &self,
        name: &str,
        who: Claimant<'_>,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        let ttl_ms = in_ms(ttl);
        self.run(|store| {
            store.transfer(name, who, new_owner, ttl_ms, self.when, |answer| answer.into_owned())
        })
    }

    fn break_when(&self, name: &str) -> Result<BreakResult> {
        let answer =
            self.run(|store| store.break_lease(name, self.when, |answer| answer.into_owned()))?;
        if matches!(answer, BreakResult::Broken { .. }) {
            self.shared.notifier.freed_in(&self.shared.store);
        }
        Ok(answer)
    }
}

impl Deref for LeasesAt<'_> {
    type Target = Leases;

    fn deref(&self) -> &Leases {
        &self.leases
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
