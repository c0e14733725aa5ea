//! The verbs, under the names that they have everywhere.

use std::time::Duration;

use litelease_core::{self as rule, Claimant, LeaseRow, RaiseResult, Term};
use litelease_hold::HeldGrant;

use crate::change::{Answered, Decision, Kind, Operation, RowAtNow, has_ended_by, missing_row};
use crate::cluster::Cluster;
use crate::engine::{Error, Result};
use crate::limits::in_ms;
use crate::value::Value;
use crate::{
    BreakResult, ClaimResult, GrantRef, Lease, ReleaseResult, RenewResult, TransferResult,
};

impl Cluster {
    /// Grants `name` to `owner` for `ttl`, if the name is free.
    ///
    /// Returns `Busy` while a lease is live, also to its own owner. On an engine without a clock,
    /// such as etcd, a holder that died is succeeded once this handle has seen its row unchanged
    /// for a whole ttl, or if its lease ended longer than twice
    /// [`max_skew`](crate::Options::max_skew) ago. So a fresh process that asks only once may get
    /// `Busy` for a lease that has just ended.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// match cluster.claim("scheduler", "a", Duration::from_secs(30))? {
    ///     ClaimResult::Acquired(lease) => assert_eq!(lease.token, 1),
    ///     ClaimResult::Busy(current) => println!("{} has it", current.owner),
    /// }
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn claim(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        self.claim_since(name, owner, ttl, 0).map(|(answer, _)| answer)
    }

    /// Claims like [`claim`](Cluster::claim), with a token larger than `min_token`.
    pub fn claim_above(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
    ) -> Result<ClaimResult> {
        self.claim_since(name, owner, ttl, min_token).map(|(answer, _)| answer)
    }

    /// Claims, and also returns the moment from which a holder may count its trust, on the host's
    /// monotonic clock: before the first request was sent.
    #[doc(hidden)]
    pub fn claim_since(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
    ) -> Result<(ClaimResult, Duration)> {
        self.claim_once(name, owner, ttl, min_token, &Value::Null).map(Answered::since)
    }

    /// Claims, and also returns what a waiter needs.
    pub(crate) fn claim_once(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: i64,
        value: &Value,
    ) -> Result<Answered<ClaimResult>> {
        self.grant(name, owner, ttl, false, &|at_now, term, floor| {
            let step = rule::claim(at_now.row(), owner, term, floor.max(min_token))?;
            Ok(Decision::new(step, |answer| answer.into_owned()).with_value(value))
        })
    }

    /// Claims a name, or prolongs the live lease that `owner` already has on it, under the same
    /// token. A repeated request is thus answered like the first one.
    ///
    /// Two processes that use one owner text would share the lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let ttl = Duration::from_secs(30);
    /// let first = cluster.ensure("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// let again = cluster.ensure("scheduler", "a", ttl)?.acquired().expect("it has it");
    /// assert_eq!(again.token, first.token);
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn ensure(&self, name: &str, owner: &str, ttl: Duration) -> Result<ClaimResult> {
        self.ensure_since(name, owner, ttl).map(|(answer, _)| answer)
    }

    /// Claims or prolongs, and also returns the moment from which a holder may count its trust.
    #[doc(hidden)]
    pub fn ensure_since(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<(ClaimResult, Duration)> {
        let granted = self.grant(name, owner, ttl, true, &|at_now, term, floor| {
            let row = at_now.row();
            let step = match at_now.is_between_ends() {
                // It is not prolonged any more, and not granted yet.
                true => rule::claim(row, owner, term, floor)?,
                false => rule::ensure(row, owner, term, floor, at_now.payload()?.conditions())?,
            };
            Ok(Decision::new(step, |answer| answer.into_owned()))
        });
        granted.map(Answered::since)
    }

    /// Ends exactly the grant `dead`, whose holder has ended, and claims its name in one step,
    /// under a new token. Returns `Busy` if another grant is live by now.
    #[doc(hidden)]
    pub fn claim_from_dead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: GrantRef<'_>,
    ) -> Result<ClaimResult> {
        let claimed = self.claim_once_from_dead(name, owner, ttl, dead, &Value::Null);
        claimed.map(|answered| answered.answer)
    }

    /// Takes a dead holder's grant over, and also returns what a waiter needs.
    pub(crate) fn claim_once_from_dead(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        dead: GrantRef<'_>,
        value: &Value,
    ) -> Result<Answered<ClaimResult>> {
        self.grant(name, owner, ttl, false, &|at_now, term, floor| {
            let dead = dead.of_owner(dead.owner.unwrap_or_default());
            let step = rule::claim_from_dead(at_now.row(), owner, term, floor, dead)?;
            Ok(Decision::new(step, |answer| answer.into_owned()).with_value(value))
        })
    }

    /// Prolongs this grant to at least `ttl` from now. It never shortens a lease and never revives
    /// one.
    ///
    /// It takes the lease that a claim returned, or name and token. A later grant to the same owner
    /// text is not renewed.
    pub fn renew<'g>(&self, grant: impl Into<GrantRef<'g>>, ttl: Duration) -> Result<RenewResult> {
        self.renew_since(grant, ttl).map(|(answer, _)| answer)
    }

    /// Renews, and also returns the moment from which a holder may count its trust.
    #[doc(hidden)]
    pub fn renew_since<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        ttl: Duration,
    ) -> Result<(RenewResult, Duration)> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        self.renew_when(grant.name, grant.of_owner(&owner), ttl)
    }

    /// Prolongs whichever lease `owner` has now, for a caller that knows only the owner text.
    pub fn renew_by_owner(&self, name: &str, owner: &str, ttl: Duration) -> Result<RenewResult> {
        self.renew_when(name, any_grant_of(owner), ttl).map(|(answer, _)| answer)
    }

    /// Ends this grant early. The next grant's token is still larger.
    pub fn release<'g>(&self, grant: impl Into<GrantRef<'g>>) -> Result<ReleaseResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        self.release_when(grant.name, grant.of_owner(&owner), self.shared.host.random_id())
    }

    /// Ends whichever lease `owner` has now, for a caller that knows only the owner text.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// cluster.claim("scheduler", "a", Duration::from_secs(30))?;
    /// let released = cluster.release_by_owner("scheduler", "a")?;
    /// assert!(matches!(released, ReleaseResult::Released { token: 1, .. }));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn release_by_owner(&self, name: &str, owner: &str) -> Result<ReleaseResult> {
        self.release_when(name, any_grant_of(owner), self.shared.host.random_id())
    }

    /// Hands this grant to `new_owner`, under a new token and for `ttl` from now.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// # let ttl = Duration::from_secs(30);
    /// let lease = cluster.claim("scheduler", "a", ttl)?.acquired().expect("it is free");
    /// let handed = cluster.transfer(&lease, "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.owner == "b"));
    /// # Ok::<(), litelease_cluster::Error>(())
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

    /// Hands on whichever lease `owner` has now, for a caller that knows only the owner text.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// # let ttl = Duration::from_secs(30);
    /// cluster.claim("scheduler", "a", ttl)?;
    /// let handed = cluster.transfer_by_owner("scheduler", "a", "b", ttl)?;
    /// assert!(matches!(handed, TransferResult::Transferred(lease) if lease.token == 2));
    /// # Ok::<(), litelease_cluster::Error>(())
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

    /// Ends any holder's live lease, for operators, and raises the token, so that the holder is
    /// superseded at once. (Elsewhere the verb is called `break`, which is a keyword in Rust.)
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// cluster.claim("scheduler", "a", Duration::from_secs(30))?;
    /// assert!(matches!(cluster.break_lease("scheduler")?, BreakResult::Broken { token: 1, .. }));
    /// assert_eq!(cluster.token("scheduler")?, Some(2));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn break_lease(&self, name: &str) -> Result<BreakResult> {
        self.check_name(name)?;
        let decide = |at_now: &RowAtNow, floor| {
            let step = rule::break_lease(at_now.row(), at_now.now_ms, floor)?;
            Ok(Decision::new(step, |answer| answer.into_owned()))
        };
        let verb =
            Operation { name, kind: Kind::OnLive, ttl_ms: None, beside: false, decide: &decide };
        self.change(&verb).map(|answered| answered.answer)
    }

    /// Returns the live lease on `name`, if there is one.
    pub fn inspect(&self, name: &str) -> Result<Option<Lease>> {
        self.read(name, |at_now| {
            rule::inspect(at_now.holders_row(), at_now.now_ms).map(Lease::into_owned)
        })
    }

    /// Returns the row of `name`, live or not, as [`list`](Cluster::list) has it.
    pub fn row(&self, name: &str) -> Result<Option<LeaseRow>> {
        self.read(name, RowAtNow::shown)
    }

    /// Returns the lease that keeps others from a claim. On an engine without a clock it may be one
    /// that has ended: see [`claim`](Cluster::claim).
    #[doc(hidden)]
    pub fn in_the_way(&self, name: &str) -> Result<Option<Lease>> {
        self.read(name, |at_now| rule::inspect(at_now.row(), at_now.now_ms).map(Lease::into_owned))
    }

    /// Returns the owner of `name`, if it is leased.
    pub fn owner(&self, name: &str) -> Result<Option<String>> {
        self.inspect(name).map(|lease| lease.map(|lease| lease.owner))
    }

    /// Returns the newest token of `name`, live or not.
    pub fn token(&self, name: &str) -> Result<Option<i64>> {
        self.read(name, |at_now| at_now.row.as_ref().map(|row| row.token))
    }

    /// Lists all rows, live or not, in the order of their names.
    pub fn list(&self) -> Result<Vec<LeaseRow>> {
        let loaded = self.load_all(&mut self.patience())?;
        let rows = loaded.rows.iter().map(|row| Ok(self.row_at_now(&loaded, row)?.shown()));
        rows.filter_map(Result::transpose).collect()
    }

    /// Raises the token of one name above `floor`, and ends its lease if it is live.
    pub fn raise_name(&self, name: &str, floor: i64) -> Result<()> {
        self.check_name(name)?;
        let decide = |at_now: &RowAtNow, file_floor| {
            Ok(Decision::new(rule::raise_name(at_now.row(), floor, file_floor)?, |answer| answer))
        };
        let verb =
            Operation { name, kind: Kind::Always, ttl_ms: None, beside: false, decide: &decide };
        match self.change(&verb)?.answer {
            RaiseResult::Raised | RaiseResult::Unchanged => Ok(()),
            RaiseResult::TooLow { present } => Err(Error::FloorTooLow { floor, present }),
        }
    }

    fn grant(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        beside: bool,
        decide: &Grants<'_>,
    ) -> Result<Answered<ClaimResult>> {
        self.check_name_to_hold(name)?;
        self.check_owner(owner)?;
        let ttl_ms = in_ms(ttl)?;
        let decide =
            |at_now: &RowAtNow, floor| decide(at_now, Term::new(ttl_ms, at_now.now_ms)?, floor);
        let ttl_ms = Some(ttl_ms);
        let verb = Operation { name, kind: Kind::Grant, ttl_ms, beside, decide: &decide };
        self.change(&verb)
    }

    fn renew_when(
        &self,
        name: &str,
        who: Claimant<'_>,
        ttl: Duration,
    ) -> Result<(RenewResult, Duration)> {
        self.check_name_to_hold(name)?;
        self.check_owner(who.owner)?;
        let ttl_ms = in_ms(ttl)?;
        let (decide, ttl_ms) = (renews(who, ttl_ms), Some(ttl_ms));
        let verb = Operation { name, kind: Kind::OnLive, ttl_ms, beside: true, decide: &decide };
        self.change(&verb).map(Answered::since)
    }

    /// Releases under this attempt. A lease that the same attempt has ended before is released.
    pub(crate) fn release_as(&self, grant: &HeldGrant, attempt: i64) -> Result<ReleaseResult> {
        let HeldGrant { name, owner, token, .. } = grant;
        let who = Claimant { owner, token: Some(*token) };
        let answer = self.release_when(name, who, attempt)?;
        let ReleaseResult::Rejected { .. } = answer else { return Ok(answer) };
        let loaded = self.load(&[name], &mut self.patience())?;
        match loaded.rows.first().is_some_and(|row| has_ended_by(row, attempt)) {
            true => Ok(ReleaseResult::Released { name: name.clone(), token: *token }),
            false => Ok(answer),
        }
    }

    fn release_when(&self, name: &str, who: Claimant<'_>, attempt: i64) -> Result<ReleaseResult> {
        self.check_name_to_hold(name)?;
        self.check_owner(who.owner)?;
        let decide = |at_now: &RowAtNow, _| {
            let step = rule::release(at_now.row(), who, at_now.now_ms);
            Ok(Decision::new(step, |answer| answer.into_owned()))
        };
        let verb =
            Operation { name, kind: Kind::OnLive, ttl_ms: None, beside: false, decide: &decide };
        self.change_as(&verb, attempt).map(|answered| answered.answer)
    }

    fn transfer_when(
        &self,
        name: &str,
        who: Claimant<'_>,
        new_owner: &str,
        ttl: Duration,
    ) -> Result<TransferResult> {
        self.check_name_to_hold(name)?;
        self.check_owner(who.owner)?;
        self.check_owner(new_owner)?;
        let ttl_ms = in_ms(ttl)?;
        let decide = |at_now: &RowAtNow, floor| {
            let (row, term) = (at_now.holders_row(), Term::new(ttl_ms, at_now.now_ms)?);
            let step = rule::transfer(row, who, new_owner, term, floor)?;
            Ok(Decision::new(step, |answer| answer.into_owned()))
        };
        let ttl_ms = Some(ttl_ms);
        let verb = Operation { name, kind: Kind::OnLive, ttl_ms, beside: false, decide: &decide };
        self.change(&verb).map(|answered| answered.answer)
    }

    /// Loads one row and shows it as the rule sees it, with the time.
    pub(crate) fn read<A>(&self, name: &str, see: impl FnOnce(RowAtNow) -> A) -> Result<A> {
        self.check_name(name)?;
        let mut patience = self.patience();
        let loaded = loop {
            let loaded = self.load(&[name], &mut patience)?;
            if !self.begins_epoch(&loaded, &mut patience)? {
                break loaded;
            }
        };
        let row = loaded.rows.first().ok_or_else(|| missing_row(name))?;
        Ok(see(self.row_at_now(&loaded, row)?))
    }
}

/// Asks the rule for a grant, with the row, the term and the floor.
type Grants<'a> = dyn Fn(&RowAtNow, Term, i64) -> Result<Decision<ClaimResult>> + 'a;

fn any_grant_of(owner: &str) -> Claimant<'_> {
    Claimant { owner, token: None }
}

/// Asks the rule for a renewal.
pub(crate) fn renews(
    who: Claimant<'_>,
    ttl_ms: i64,
) -> impl Fn(&RowAtNow, i64) -> Result<Decision<RenewResult>> {
    move |at_now, _| {
        let (row, term) = (at_now.holders_row(), Term::new(ttl_ms, at_now.now_ms)?);
        let step = rule::renew(row, who, term, at_now.payload()?.conditions());
        Ok(Decision::new(step, |answer| answer.into_owned()))
    }
}
