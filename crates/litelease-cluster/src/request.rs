//! Handoff: asking for a lease, handing it over, taking it over.

use std::time::Duration;

use litelease_core::{
    self as rule, GrantRef, Lease, RenewResult, Request, RequestResult, TakenOver, Term,
    TransferResult,
};

use crate::change::{Answered, Decision, Kind, Operation, RowAtNow};
use crate::cluster::Cluster;
use crate::engine::Result;
use crate::limits::in_ms;
use crate::payload::Payload;

/// An open request for a live grant.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_cluster::*;
/// # let cluster = Cluster::on(MemoryEngine::new());
/// cluster.claim("import", "a", Duration::from_secs(30))?;
/// let _ = cluster.request("import", "b", Duration::from_secs(20))?;
/// let request: RequestInfo = cluster.requested("import")?.expect("it was just made");
/// assert_eq!((request.requester.as_str(), request.token), ("b", 1));
/// # Ok::<(), litelease_cluster::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The owner text of the requester.
    pub requester: String,
    /// The time from which on renewals are refused, in Unix milliseconds.
    pub until_ms: i64,
    /// The token of the grant that is asked for.
    pub token: i64,
}

/// Handoff.
impl Cluster {
    /// Asks the live holder of `name` to give it up. From `within` from now on its renewals are
    /// rejected with [`Requested`](crate::Reason::Requested), so that a holder that ignores the
    /// request is out within one more ttl. It never shortens the present lease.
    ///
    /// There is one open request per grant: a second requester learns whose it is and until when.
    /// It ends with the grant, is [withdrawn](Cluster::withdraw_request), or lapses when its
    /// requester does not repeat it within 10 seconds. On an engine without a clock it lapses as
    /// much later as [`max_skew`](crate::Options::max_skew) allows two clocks to differ.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// let ms = Duration::from_millis;
    /// let lease = cluster.at(100).claim("import", "a", ms(100))?.acquired().expect("it is free");
    /// let asked = cluster.at(110).request("import", "b", ms(50))?;
    /// assert_eq!(asked, RequestResult::Requested { token: 1, until_ms: 160 });
    ///
    /// let refused = cluster.at(160).renew(&lease, ms(100))?;
    /// assert!(matches!(refused, RenewResult::Rejected { reason: Reason::Requested, .. }));
    /// let handed = cluster.at(170).hand_over(&lease, ms(100))?.transferred().expect("to b");
    /// assert_eq!((handed.owner.as_str(), handed.token), ("b", 2));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn request(&self, name: &str, requester: &str, within: Duration) -> Result<RequestResult> {
        self.check_owner(requester)?;
        // The rule refuses a time of zero.
        let within_ms = in_ms(within).unwrap_or(0);
        self.change_payload(name, Kind::OnLive, |at_now, payload| {
            let found = payload.request.as_ref().map(|(other, request)| (other.as_str(), *request));
            let (row, now_ms) = (at_now.holders_row(), at_now.now_ms);
            let step = rule::request(row, found, requester, within_ms, now_ms)?;
            let answer = step.answer.into_owned();
            let written = step.write.map(|request| Some((requester.to_owned(), request)));
            Ok((written.map(|request| Payload { request, ..payload }), answer))
        })
    }

    /// Keeps an open request of this requester's from lapsing. Answers the token of the grant that
    /// it is for, or none if there is no such request.
    pub(crate) fn repeat_request(&self, name: &str, requester: &str) -> Result<Option<i64>> {
        self.change_payload(name, Kind::OnLive, |at_now, payload| {
            let (row, now_ms) = (at_now.holders_row(), at_now.now_ms);
            let is_ours = |(other, request): &(String, Request)| {
                other == requester && request.is_open(row, now_ms)
            };
            let found = payload.request.clone().filter(is_ours);
            let repeated = found
                .map(|(other, request)| (other, Request { repeated_at_ms: now_ms, ..request }));
            let token = repeated.as_ref().map(|(_, request)| request.token);
            let payload = repeated.map(|request| Payload { request: Some(request), ..payload });
            Ok((payload, token))
        })
    }

    /// Withdraws the request of `requester` for the newest grant of `name`, and returns whether
    /// there was one.
    pub fn withdraw_request(&self, name: &str, requester: &str) -> Result<bool> {
        self.check_owner(requester)?;
        self.change_payload(name, Kind::Always, |_, payload| {
            let found = payload.request.as_ref().is_some_and(|(other, _)| other == requester);
            Ok((found.then_some(Payload { request: None, ..payload }), found))
        })
    }

    /// Returns the open request for the live grant of `name`, if there is one.
    pub fn requested(&self, name: &str) -> Result<Option<RequestInfo>> {
        self.read(name, |at_now| open_request(&at_now))?
    }

    /// Returns the open request that this handle has seen when it wrote the row last.
    pub(crate) fn found_request(&self, name: &str) -> Option<RequestInfo> {
        let known = self.known(name)?;
        let at_now = self.row_at_now(&known, known.rows.first()?).ok()?;
        open_request(&at_now).ok()?
    }

    /// Hands this grant to the requester who has asked for it, under a new token and for `ttl` from
    /// now, in one step: no other claim can come in between, and the two do not overlap. Without an
    /// open request it is rejected with [`NotRequested`](crate::Reason::NotRequested).
    pub fn hand_over<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        ttl: Duration,
    ) -> Result<TransferResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        let (name, who) = (grant.name, grant.of_owner(&owner));
        self.check_name_to_hold(name)?;
        self.check_owner(who.owner)?;
        let ttl_ms = in_ms(ttl)?;
        let decide = |at_now: &RowAtNow, floor| {
            let (row, term) = (at_now.holders_row(), Term::new(ttl_ms, at_now.now_ms)?);
            let found = at_now.payload()?.request;
            let found = found.as_ref().map(|(requester, request)| (requester.as_str(), *request));
            let step = rule::hand_over(row, who, found, term, floor)?;
            Ok(Decision::new(step, |answer| answer.into_owned()))
        };
        let (kind, ttl_ms) = (Kind::OnLive, Some(ttl_ms));
        let verb = Operation { name, kind, ttl_ms, beside: true, decide: &decide };
        self.change(&verb).map(|answered| answered.answer)
    }

    /// Ends any holder's live lease and grants `name` to `owner` in one step, under a new token,
    /// for operators. If the name is free, it is a claim.
    ///
    /// There is no gap. The old holder learns of it at its next renewal or check, and works on
    /// until then: what the two may both write to must be fenced by the token.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_cluster::*;
    /// # let cluster = Cluster::on(MemoryEngine::new());
    /// # let ttl = Duration::from_secs(30);
    /// let old = cluster.claim("import", "a", ttl)?.acquired().expect("it is free");
    /// let taken: TakenOver = cluster.take_over("import", "ops", ttl)?;
    /// assert_eq!((taken.lease.token, taken.from), (2, Some(old)));
    /// # Ok::<(), litelease_cluster::Error>(())
    /// ```
    pub fn take_over(&self, name: &str, owner: &str, ttl: Duration) -> Result<TakenOver> {
        self.check_name_to_hold(name)?;
        self.check_owner(owner)?;
        let ttl_ms = in_ms(ttl)?;
        let decide = |at_now: &RowAtNow, floor| {
            let term = Term::new(ttl_ms, at_now.now_ms)?;
            let step = rule::take_over(at_now.holders_row(), owner, term, floor)?;
            Ok(Decision::new(step, |taken| taken.into_owned()))
        };
        let (kind, ttl_ms) = (Kind::Always, Some(ttl_ms));
        let verb = Operation { name, kind, ttl_ms, beside: false, decide: &decide };
        self.change(&verb).map(|answered| answered.answer)
    }

    /// Takes a lease that was handed to this requester since its request, and renews it. Answers
    /// only once, unless the caller knows that it has asked for an earlier grant.
    pub(crate) fn accept(
        &self,
        name: &str,
        requester: &str,
        ttl: Duration,
        is_asked: bool,
    ) -> Result<Option<Answered<Lease>>> {
        let ttl_ms = in_ms(ttl)?;
        let decide = |at_now: &RowAtNow, _| {
            let (row, now_ms) = (at_now.holders_row(), at_now.now_ms);
            let payload = at_now.latest_payload()?;
            let found = payload.request.filter(|(other, _)| other == requester);
            let is_handed =
                found.is_some_and(|(_, found)| rule::is_handed_to(row, requester, found, now_ms));
            if !is_handed && !is_asked {
                return Ok(Decision::of_payload(None, None));
            }
            let who = litelease_core::Claimant { owner: requester, token: row.token() };
            let conditions = at_now.payload()?.conditions();
            let step = rule::renew(row, who, Term::new(ttl_ms, now_ms)?, conditions);
            let lease = |answer: RenewResult<&str>| answer.into_owned().renewed();
            let payload = step.write.is_some().then(Payload::default);
            Ok(Decision { payload, ..Decision::new(step, lease) })
        };
        let (kind, ttl_ms) = (Kind::OnLive, Some(ttl_ms));
        let verb = Operation { name, kind, ttl_ms, beside: true, decide: &decide };
        Ok(self.change(&verb)?.transposed())
    }
}

fn open_request(at_now: &RowAtNow) -> Result<Option<RequestInfo>> {
    let (row, now_ms) = (at_now.holders_row(), at_now.now_ms);
    let open = at_now.payload()?.request.filter(|(_, request)| request.is_open(row, now_ms));
    Ok(open.map(|(requester, Request { token, until_ms, .. })| RequestInfo {
        requester,
        until_ms,
        token,
    }))
}
