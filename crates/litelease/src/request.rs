//! Handoff: asking for a lease, handing it over, taking it over.

use std::time::Duration;

use crate::leases::in_ms;
use crate::{GrantRef, Leases, RequestResult, Result, TakenOver, TransferResult};

/// An open request for a live grant.
///
/// ```
/// # litelease_doctest::memory!(db);
/// let lease = db.claim("import", "a", Duration::from_secs(30))?.acquired().unwrap();
/// let _ = db.request("import", "b", Duration::from_secs(20))?;
/// let request: RequestInfo = db.requested("import")?.unwrap();
/// assert_eq!((request.requester.as_str(), request.token), ("b", lease.token));
/// # Ok::<(), litelease::Error>(())
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

impl RequestInfo {
    pub(crate) fn new(requester: String, until_ms: i64, token: i64) -> Self {
        RequestInfo { requester, until_ms, token }
    }
}

/// Handoff.
impl Leases {
    /// Asks the live holder of `name` to give it up. From `within` from now on its renewals are
    /// rejected with [`Requested`](crate::Reason::Requested), so that a holder that ignores the
    /// request is out within one more ttl. It never shortens the present lease.
    ///
    /// There is one open request per grant: a second requester learns whose it is and until when.
    /// It ends with the grant, is [withdrawn](Leases::withdraw_request), or lapses when its
    /// requester does not repeat it within 10 seconds. [`claim_wait`](crate::Litelease::claim_wait)
    /// under the text of the requester repeats it; asking again does, too, and leaves the time as
    /// it was. Use a fresh text for each attempt, such as [`Identity`](crate::Identity)'s: a lease
    /// that carries it is the requester's.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ms = Duration::from_millis;
    /// let lease = db.at(100).claim("import", "a", ms(100))?.acquired().unwrap();
    /// let asked = db.at(110).request("import", "b", ms(50))?;
    /// assert_eq!(asked, RequestResult::Requested { token: 1, until_ms: 160 });
    ///
    /// assert!(matches!(
    ///     db.at(160).renew(&lease, ms(100))?,
    ///     RenewResult::Rejected { reason: Reason::Requested, .. }
    /// ));
    /// let handed = db.at(170).hand_over(&lease, ms(100))?.transferred().unwrap();
    /// assert_eq!((handed.owner.as_str(), handed.token), ("b", 2));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn request(&self, name: &str, requester: &str, within: Duration) -> Result<RequestResult> {
        let within_ms = in_ms(within);
        self.run(|store| {
            store.request(name, requester, within_ms, self.when(), |answer| answer.into_owned())
        })
    }

    /// Withdraws the request of `requester` for the newest grant of `name`, and returns whether
    /// there was one.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let lease = db.claim("import", "a", Duration::from_secs(30))?.acquired().unwrap();
    /// let _ = db.request("import", "b", Duration::from_secs(20))?;
    /// assert!(db.withdraw_request("import", "b")?);
    /// assert_eq!(db.requested("import")?, None);
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn withdraw_request(&self, name: &str, requester: &str) -> Result<bool> {
        self.run(|store| store.withdraw_request(name, requester))
    }

    /// Returns the open request for the live grant of `name`, if there is one. Takes no write lock.
    pub fn requested(&self, name: &str) -> Result<Option<RequestInfo>> {
        self.run(|store| {
            store.requested(name, self.when(), |requester, request| {
                RequestInfo::new(requester.into(), request.until_ms, request.token)
            })
        })
    }

    /// Hands this grant to the requester who has asked for it, under a new token and for `ttl` from
    /// now, in one commit: no other claim can come in between, and the two do not overlap. Without
    /// an open request it is rejected with [`NotRequested`](crate::Reason::NotRequested).
    ///
    /// Store a [`checkpoint`](Leases::checkpoint) before: the successor starts from it.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// let ttl = Duration::from_secs(30);
    /// let lease = db.claim("import", "a", ttl)?.acquired().unwrap();
    /// assert!(matches!(
    ///     db.hand_over(&lease, ttl)?,
    ///     TransferResult::Rejected { reason: Reason::NotRequested, .. }
    /// ));
    /// let _ = db.request("import", "b", Duration::from_secs(20))?;
    /// let handed = db.hand_over(&lease, ttl)?.transferred().unwrap();
    /// assert_eq!(handed.owner, "b");
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn hand_over<'g>(
        &self,
        grant: impl Into<GrantRef<'g>>,
        ttl: Duration,
    ) -> Result<TransferResult> {
        let grant = grant.into();
        let owner = grant.owner_or(|name| self.owner(name))?;
        let (ttl_ms, who, when) = (in_ms(ttl), grant.of_owner(&owner), self.when());
        let owned = |answer: TransferResult<&str>| answer.into_owned();
        let answer = self.run(|store| store.hand_over(grant.name, who, ttl_ms, when, owned))?;
        if matches!(answer, TransferResult::Transferred(_)) {
            // The requester waits for it.
            self.notify();
        }
        Ok(answer)
    }

    /// Ends any holder's live lease and grants `name` to `owner` in one commit, under a new token,
    /// for operators. If the name is free, it is a claim.
    ///
    /// There is no gap. The old holder learns of it at its next renewal or check, and works on
    /// until then: what the two may both write to must be fenced by the token.
    ///
    /// ```
    /// # litelease_doctest::memory!(db);
    /// # let ttl = Duration::from_secs(30);
    /// let old = db.claim("import", "a", ttl)?.acquired().unwrap();
    /// let taken: TakenOver = db.take_over("import", "ops", ttl)?;
    /// assert_eq!((taken.lease.token, taken.from), (2, Some(old.clone())));
    /// assert!(matches!(db.renew(&old, ttl)?, RenewResult::Rejected { .. }));
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn take_over(&self, name: &str, owner: &str, ttl: Duration) -> Result<TakenOver> {
        let ttl_ms = in_ms(ttl);
        self.run(|store| {
            store.take_over(name, owner, ttl_ms, self.when(), |taken| taken.into_owned())
        })
    }
}
