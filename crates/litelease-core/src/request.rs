//! Handover: a requester asks the live holder to give a lease up, the holder hands it over, and the
//! requester takes it over.
//!
//! A request refuses renewals from a given time on and never shortens a lease: no holder's
//! trust window is cut.

use alloc::string::String;

use crate::rule::grant;
use crate::{Claimant, Lease, Reason, Refusal, Row, Step, Term, TransferResult, is_live, transfer};

/// A request lapses when its requester does not repeat it within this time, so that a dead one
/// evicts no holder.
pub const REQUEST_LAPSES_MS: i64 = 10_000;

/// A request as it is stored, without the text of the requester.
///
/// ```
/// # use litelease_core::{Request, Row, State};
/// let row = Row::new("import", State::stored(2, Some("a"), Some(20_000)));
/// let request = Request { token: 2, until_ms: 500, repeated_at_ms: 100 };
/// assert!(request.is_open(row, 10_099));
/// assert!(!request.is_open(row, 10_100), "lapsed");
/// let next = Row::new("import", State::stored(3, Some("b"), Some(20_000)));
/// assert!(!request.is_open(next, 200), "it has ended with its grant");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The token of the grant that is requested. A request ends with it.
    pub token: i64,
    /// The time from which on renewals are refused.
    pub until_ms: i64,
    /// When the requester last said so.
    pub repeated_at_ms: i64,
}

/// The answer to a request.
///
/// ```
/// # use litelease_core::RequestResult;
/// let answer = RequestResult::RequestedBy { requester: "b", until_ms: 500 }.into_owned();
/// assert!(matches!(answer, RequestResult::RequestedBy { until_ms: 500, .. }));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "another owner may have asked before"]
pub enum RequestResult<S = String> {
    /// The holder has a request to give the lease up.
    Requested {
        /// The token of the grant that is requested.
        token: i64,
        /// The time from which on its renewals are refused. Repeating a request does not change it.
        until_ms: i64,
    },
    /// Another owner has an open request for this grant.
    RequestedBy {
        /// Its owner text.
        requester: S,
        /// The time from which on its renewals are refused.
        until_ms: i64,
    },
    /// There is no holder to ask: the name can be claimed.
    Rejected {
        /// The reason.
        reason: Reason,
    },
}

/// The decision about a request: what to store, if anything, and the answer.
///
/// ```
/// # use litelease_core::{Row, request};
/// let asked = request(Row::new("import", None), None, "b", 50, 100)?;
/// assert_eq!(asked.write, None, "the name is free");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision does nothing until it is stored"]
pub struct RequestStep<'a> {
    /// The request to store instead of the one before; `None` means that nothing may be written.
    pub write: Option<Request>,
    /// The answer.
    pub answer: RequestResult<&'a str>,
}

/// A lease that was taken over, and from whom.
///
/// ```
/// # use litelease_core::{Lease, TakenOver};
/// let lease = Lease { name: "import", owner: "ops", token: 2, expires_at_ms: 200 };
/// let taken = TakenOver { lease, from: None }.into_owned();
/// assert_eq!(taken.lease.owner, "ops");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenOver<S = String> {
    /// The new grant.
    pub lease: Lease<S>,
    /// The live lease that it ended, if there was one.
    pub from: Option<Lease<S>>,
}

impl Request {
    /// Checks whether the request counts at `now_ms`: its grant is live, and its requester has
    /// repeated it in time.
    pub fn is_open(&self, row: Row<'_>, now_ms: i64) -> bool {
        row.on_grant(self.token, now_ms).is_done() && !self.has_lapsed(now_ms)
    }

    /// Returns why a renewal of the grant under `token` is refused at `now_ms`, if it is.
    pub fn refusal(&self, token: i64, now_ms: i64) -> Option<Reason> {
        let is_open = self.token == token && !self.has_lapsed(now_ms);
        (is_open && !is_live(self.until_ms, now_ms)).then_some(Reason::Requested)
    }

    fn has_lapsed(&self, now_ms: i64) -> bool {
        self.repeated_at_ms.saturating_add(REQUEST_LAPSES_MS) <= now_ms
    }
}

/// Requests a lease from its live holder: from `within_ms` from now on its renewals are refused.
/// `found` is the stored request of the name.
///
/// There is one open request per grant. Its own requester repeats it, which keeps it from lapsing
/// and changes nothing else.
///
/// ```
/// # use litelease_core::{Request, RequestResult, Row, State, request};
/// let row = Row::new("import", State::stored(2, Some("a"), Some(150)));
/// let asked = request(row, None, "b", 50, 100)?;
/// assert_eq!(asked.answer, RequestResult::Requested { token: 2, until_ms: 150 });
/// let second = request(row, asked.write.map(|found| ("b", found)), "c", 50, 110)?;
/// assert_eq!(second.answer, RequestResult::RequestedBy { requester: "b", until_ms: 150 });
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn request<'a>(
    row: Row<'_>,
    found: Option<(&'a str, Request)>,
    requester: &str,
    within_ms: i64,
    now_ms: i64,
) -> Result<RequestStep<'a>, Refusal> {
    if within_ms <= 0 {
        return Err(Refusal::InvalidTime { what: "within", ms: within_ms });
    }
    let until_ms =
        now_ms.checked_add(within_ms).ok_or(Refusal::TimeOverflow { now_ms, ttl_ms: within_ms })?;
    let Some(lease) = row.live(now_ms) else {
        let reason = row.why_not(None, now_ms);
        return Ok(RequestStep { write: None, answer: RequestResult::Rejected { reason } });
    };
    let request = match found.filter(|(_, found)| found.is_open(row, now_ms)) {
        Some((other, Request { until_ms, .. })) if other != requester => {
            let answer = RequestResult::RequestedBy { requester: other, until_ms };
            return Ok(RequestStep { write: None, answer });
        }
        Some((_, found)) => Request { repeated_at_ms: now_ms, ..found },
        None => Request { token: lease.token, until_ms, repeated_at_ms: now_ms },
    };
    let Request { token, until_ms, .. } = request;
    let answer = RequestResult::Requested { token, until_ms };
    Ok(RequestStep { write: Some(request), answer })
}

/// Hands a live lease to its requester, under a new token, with no moment in between.
///
/// ```
/// # use litelease_core::{Claimant, Reason, Request, Row, State, Term, TransferResult, hand_over};
/// let row = Row::new("import", State::stored(2, Some("a"), Some(150)));
/// let who = Claimant { owner: "a", token: Some(2) };
/// let request = Request { token: 2, until_ms: 140, repeated_at_ms: 100 };
/// let step = hand_over(row, who, Some(("b", request)), Term::new(50, 110)?, 0)?;
/// assert!(matches!(step.answer, TransferResult::Transferred(lease) if lease.owner == "b"));
/// let step = hand_over(row, who, None, Term::new(50, 110)?, 0)?;
/// assert!(matches!(step.answer, TransferResult::Rejected { reason: Reason::NotRequested, .. }));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn hand_over<'a, 'q: 'a>(
    row: Row<'a>,
    who: Claimant<'_>,
    found: Option<(&'q str, Request)>,
    term: Term,
    floor: i64,
) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
    let now_ms = term.now_ms();
    match (row.live(now_ms), found.filter(|(_, request)| request.is_open(row, now_ms))) {
        (Some(lease), None) if who.is(&lease) => {
            let (reason, current) = (Reason::NotRequested, Some(lease));
            Ok(Step { write: None, answer: TransferResult::Rejected { reason, current } })
        }
        // A caller that is not the holder gets the reason, as from a transfer.
        (_, requested) => {
            transfer(row, who, requested.map_or("", |(requester, _)| requester), term, floor)
        }
    }
}

/// Checks whether a live lease was handed to `requester` since it requested an earlier grant: then
/// the lease is the requester's own.
///
/// ```
/// # use litelease_core::{Request, Row, State, is_handed_to};
/// let request = Request { token: 2, until_ms: 140, repeated_at_ms: 100 };
/// let handed = Row::new("import", State::stored(3, Some("b"), Some(190)));
/// assert!(is_handed_to(handed, "b", request, 120));
/// assert!(!is_handed_to(handed, "c", request, 120));
/// ```
pub fn is_handed_to(row: Row<'_>, requester: &str, request: Request, now_ms: i64) -> bool {
    row.live(now_ms).is_some_and(|lease| lease.owner == requester && lease.token > request.token)
}

/// Ends any holder's live lease and grants the name in one step, under a new token, for operators.
/// The old holder may go on working until it notices: the token distinguishes the two.
///
/// ```
/// # use litelease_core::{Row, State, Term, take_over};
/// let row = Row::new("import", State::stored(2, Some("a"), Some(150)));
/// let step = take_over(row, "ops", Term::new(50, 110)?, 0)?;
/// assert_eq!(step.answer.lease.token, 3);
/// assert_eq!(step.answer.from.map(|lease| lease.owner), Some("a"));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn take_over<'a, 'q: 'a>(
    row: Row<'a>,
    owner: &'q str,
    term: Term,
    floor: i64,
) -> Result<Step<'q, TakenOver<&'a str>>, Refusal> {
    let from = row.live(term.now_ms());
    grant(row, owner, term, floor, |lease| TakenOver { lease, from })
}

/// Checks whether a checkpoint under `token` was made by the grant right before that of `own`. If
/// not, grants in between may have done more.
///
/// ```
/// # use litelease_core::is_from_predecessor;
/// assert!(is_from_predecessor(6, 7));
/// assert!(!is_from_predecessor(5, 7), "the one in between left no checkpoint");
/// ```
pub fn is_from_predecessor(token: i64, own: i64) -> bool {
    token.checked_add(1) == Some(own)
}

impl RequestResult<&str> {
    /// Returns the answer with text of its own.
    pub fn into_owned(self) -> RequestResult {
        match self {
            RequestResult::Requested { token, until_ms } => {
                RequestResult::Requested { token, until_ms }
            }
            RequestResult::RequestedBy { requester, until_ms } => {
                RequestResult::RequestedBy { requester: requester.into(), until_ms }
            }
            RequestResult::Rejected { reason } => RequestResult::Rejected { reason },
        }
    }
}

impl TakenOver<&str> {
    /// Returns it with text of its own.
    pub fn into_owned(self) -> TakenOver {
        let from = self.from.map(Lease::into_owned);
        TakenOver { lease: self.lease.into_owned(), from }
    }
}
