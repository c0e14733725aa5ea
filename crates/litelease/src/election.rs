//! Elections: one leader at a time, whose term is the fencing token of its lease.

use std::time::Duration;

use litelease_core::is_live;
use litelease_hold::file::{DatabaseFile, loss};
use rusqlite::types::Value;
use rusqlite::{Connection, ToSql};

use crate::fences::{as_value, owned};
use crate::file::{file_of, open_existing};
use crate::{
    GrantResult, Held, HoldError, HoldOptions, Litelease, Loss, Lost, Reason, Watch, now_ms,
};

type Result<T, E = HoldError> = std::result::Result<T, E>;

/// How long reads and proclamations wait for a lock on the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// An election under a name: the holder of the lease leads, and its value says what others should
/// know of the leader, such as its address.
///
/// ```
/// use std::time::Duration;
/// use litelease::{Election, HoldOptions, Litelease};
///
/// # fn main() -> Result<(), litelease::HoldError> {
/// # litelease_doctest::path!(path);
/// let db = Litelease::open_own(&path)?;
/// let election = Election::new(&db, "leader")?;
/// let leader = election.campaign("10.0.0.7:4000", HoldOptions::new(Duration::from_secs(30)))?;
///
/// let known = election.leader()?.expect("there is a leader");
/// assert_eq!((known.term, known.value), (leader.term(), Some("10.0.0.7:4000".to_owned().into())));
/// leader.resign()?;
/// assert_eq!(election.leader()?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Election {
    name: String,
    file: DatabaseFile,
    db: Litelease,
}

/// The leader of an election as others see it.
///
/// ```
/// # litelease_doctest::file!(db);
/// let election = Election::new(&db, "leader")?;
/// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
/// let known: LeaderInfo = election.leader()?.unwrap();
/// assert_eq!(known.term, 1);
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct LeaderInfo {
    /// The term: the fencing token of its lease. A later leader has a larger one.
    pub term: i64,
    /// The owner text of its lease.
    pub owner: String,
    /// The value that it has proclaimed last; none if that was NULL.
    pub value: Option<Value>,
    /// Until when its lease lasts if it is not renewed, in Unix milliseconds.
    pub expires_at_ms: i64,
}

/// The answer of an [`Observer`].
///
/// ```
/// # litelease_doctest::file!(db);
/// let mut observer = Election::new(&db, "leader")?.observe()?;
/// assert_eq!(observer.next(Duration::ZERO)?, Observed::Vacant);
/// assert_eq!(observer.next(Duration::ZERO)?, Observed::Unchanged);
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Observed {
    /// This leader was elected, or has proclaimed this value.
    Leads(LeaderInfo),
    /// There is no leader.
    Vacant,
    /// Nothing has changed in that time.
    Unchanged,
}

/// Follows an election. Made by [`Election::observe`].
///
/// ```
/// # litelease_doctest::file!(db);
/// let election = Election::new(&db, "leader")?;
/// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
/// let mut observer = election.observe()?;
/// for value in ["b", "c"] {
///     leader.proclaim(value)?;
/// }
/// match observer.next(Duration::from_secs(1))? {
///     Observed::Leads(leader) => assert_eq!(leader.value, Some("c".to_owned().into())),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Debug)]
pub struct Observer {
    election: Election,
    watch: Watch,
    /// The leader in the last answer; none before the first.
    last: Option<Option<LeaderInfo>>,
}

/// The leader of an election, until this is dropped or it is lost. Made by [`Election::campaign`].
///
/// ```
/// # litelease_doctest::file!(db);
/// let election = Election::new(&db, "leader")?;
/// let leader: Leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
/// leader.check()?;
/// # Ok::<(), litelease::HoldError>(())
/// ```
#[derive(Debug)]
#[must_use = "a leader that is dropped resigns"]
pub struct Leader {
    held: Held,
    db: Litelease,
}

impl Election {
    /// Returns the election under `name`, on a connection of its own. Fails for a database in
    /// memory.
    pub fn new(db: &Litelease, name: &str) -> Result<Self> {
        let file = file_of(db)?;
        Ok(Election { name: name.into(), db: open(&file)?, file })
    }

    /// Runs for leader: waits as long as `options` say, and leads under a new term. The commit that
    /// makes the leader also stores the value. Fails with [`HoldError::Busy`] if another candidate
    /// leads until then.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// let patience = HoldOptions::new(Duration::from_secs(30)).wait(Duration::from_millis(10));
    /// let leader = election.campaign("a", patience.clone())?;
    /// assert!(matches!(election.campaign("b", patience), Err(HoldError::Busy(_))));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn campaign(&self, value: impl ToSql, options: HoldOptions) -> Result<Leader> {
        let output = value.to_sql()?;
        let value = owned(as_value(&output, "a value")?);
        let db = open(&self.file)?;
        Ok(Leader { held: self.db.hold(&self.name, options.value(value))?, db })
    }

    /// Returns the present leader, if there is one: its term and its value in one snapshot.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
    /// assert_eq!(election.leader()?.map(|known| known.term), Some(leader.term()));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn leader(&self) -> Result<Option<LeaderInfo>> {
        if self.db.has_moved() {
            return Err(HoldError::FileMoved(self.file.path.clone()));
        }
        // The name itself comes before all others that begin with it.
        let Some(first) = self.db.leases_under(&self.name).next().transpose()? else {
            return Ok(None);
        };
        let (lease, now_ms) = (first.lease, now_ms());
        let live =
            lease.tenure.filter(|(_, expiry)| lease.name == self.name && is_live(*expiry, now_ms));
        Ok(live.map(|(owner, expires_at_ms)| LeaderInfo {
            term: lease.token,
            owner,
            value: first.value,
            expires_at_ms,
        }))
    }

    /// Follows the election: the present state first, and then its changes.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
    /// let mut observer = election.observe()?;
    /// assert!(matches!(observer.next(Duration::ZERO)?, Observed::Leads(known) if known.term == 1));
    /// leader.resign()?;
    /// assert_eq!(observer.next(Duration::from_secs(5))?, Observed::Vacant);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn observe(&self) -> Result<Observer> {
        let election = Election::new(&self.db, &self.name)?;
        Ok(Observer { watch: election.db.watch(), election, last: None })
    }
}

impl Observer {
    /// Returns the present state at the first call, and then waits for a change, for at most
    /// `timeout`.
    ///
    /// Changes come in order. Each answer is the newest state, so it may skip states between two
    /// calls. Renewals are no change.
    pub fn next(&mut self, timeout: Duration) -> Result<Observed> {
        let begin = std::time::Instant::now();
        loop {
            let seen = self.watch.changes();
            let found = self.election.leader()?;
            if self.last.as_ref().is_none_or(|last| is_change(last.as_ref(), found.as_ref())) {
                self.last = Some(found.clone());
                return Ok(found.map_or(Observed::Vacant, Observed::Leads));
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(Observed::Unchanged);
            }
            // When the leader's lease expires there is no leader, although no row is written.
            let until_ms = found.map_or(i64::MAX, |leader| leader.expires_at_ms);
            self.watch.wait(seen, until_ms, left);
        }
    }
}

/// Checks whether observers see the change. A renewal of the leader is no change.
fn is_change(last: Option<&LeaderInfo>, found: Option<&LeaderInfo>) -> bool {
    match (last, found) {
        (Some(last), Some(found)) => (last.term, &last.value) != (found.term, &found.value),
        (last, found) => last.is_some() != found.is_some(),
    }
}

impl Leader {
    /// Returns the term: the fencing token of the lease.
    pub fn term(&self) -> i64 {
        self.held.token()
    }

    /// Returns the hold on the lease, to present its token, or to learn when it is lost.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
    /// leader.held().on_lost(|lost| eprintln!("stop: {lost}"));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Checks whether the lease can still be trusted. Call it before you serve a result that was
    /// computed from memory.
    pub fn check(&self) -> Result<(), Lost> {
        self.held.check()
    }

    /// Proclaims a new value. Fails with [`HoldError::Lost`] if this is no longer the leader.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
    /// leader.proclaim("b")?;
    /// assert_eq!(election.leader()?.unwrap().value, Some("b".to_owned().into()));
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn proclaim(&self, value: impl ToSql) -> Result<()> {
        self.check()?;
        match self.db.attach((self.held.name(), self.term()), value)? {
            GrantResult::Done => Ok(()),
            GrantResult::Stale { reason } => {
                let current = self.db.inspect(self.held.name())?;
                Err(self.as_lost(loss(self.term(), reason, current)).into())
            }
        }
    }

    /// Reads in one snapshot that shows that this term is the newest one. Fails with
    /// [`HoldError::Lost`] if it is not. So what `work` reads was not overwritten by a later leader
    /// at the time of the snapshot.
    ///
    /// The writes of `work` are rolled back: write with the token presented, to tables that the
    /// name guards.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// # db.conn().execute_batch("CREATE TABLE config (rate INTEGER); INSERT INTO config VALUES (5)")?;
    /// let election = Election::new(&db, "leader")?;
    /// let leader = election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?;
    /// let rate: i64 = leader.read(|tx| tx.query_row("SELECT rate FROM config", [], |row| row.get(0)))?;
    /// assert_eq!(rate, 5);
    /// db.break_lease("leader")?;
    /// assert!(leader.read(|_| Ok(())).is_err());
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> std::result::Result<T, rusqlite::Error>,
    ) -> Result<T> {
        if self.db.has_moved() {
            return Err(self.as_lost(Loss::FileReplaced).into());
        }
        let snapshot = self.db.conn().unchecked_transaction()?;
        // The first statement takes the snapshot.
        match self.db.token(self.held.name())? {
            Some(newest) if newest == self.term() => Ok(work(&snapshot)?),
            Some(by) if by > self.term() => {
                let current = self.db.inspect(self.held.name())?;
                Err(self.as_lost(loss(self.term(), Reason::Superseded { by }, current)).into())
            }
            _ => Err(self.as_lost(Loss::FileReplaced).into()),
        }
    }

    /// Resigns: releases the lease, so that another candidate leads at once. Dropping the leader
    /// does it, too, and ignores errors.
    ///
    /// ```
    /// # litelease_doctest::file!(db);
    /// let election = Election::new(&db, "leader")?;
    /// election.campaign("a", HoldOptions::new(Duration::from_secs(30)))?.resign()?;
    /// assert_eq!(election.leader()?, None);
    /// # Ok::<(), litelease::HoldError>(())
    /// ```
    pub fn resign(self) -> Result<(), Lost> {
        self.held.release()
    }

    fn as_lost(&self, reason: Loss) -> Lost {
        Lost { name: self.held.name().into(), reason }
    }
}

fn open(file: &DatabaseFile) -> Result<Litelease> {
    Ok(open_existing(file, BUSY_TIMEOUT)?)
}
