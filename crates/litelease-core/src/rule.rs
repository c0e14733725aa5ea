//! The verbs: functions from the stored row and the call to the row to write and the answer.
//!
//! Each reads top to bottom as its rows of the rule table. `floor` is a token that the next grant
//! must exceed, besides the row's own: 0 gives the dense tokens 1, 2, 3.

use crate::{
    AdmitResult, BreakResult, ClaimResult, Claimant, Conditions, Lease, RaiseResult, Refusal,
    ReleaseResult, RenewResult, Row, State, Tenure, Term, TransferResult, is_live,
};

/// The decision of a verb: the state to store, if any, and the answer to give once it is stored.
///
/// ```
/// # use litelease_core::{Claimant, Row, State, release};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let step = release(row, Claimant { owner: "a", token: None }, 120);
/// assert_eq!(step.write, State::stored(1, None, None), "the token stays");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a decision does nothing until it is stored"]
pub struct Step<'q, A> {
    /// The state to store under the name; `None` means that nothing may be written.
    pub write: Option<State<'q>>,
    /// The answer.
    pub answer: A,
}

impl<'q, A> Step<'q, A> {
    fn write(state: State<'q>, answer: A) -> Self {
        Step { write: Some(state), answer }
    }

    fn keep(answer: A) -> Self {
        Step { write: None, answer }
    }

    /// Returns the decision with its answer in another form.
    pub fn map<B>(self, form: impl FnOnce(A) -> B) -> Step<'q, B> {
        Step { write: self.write, answer: form(self.answer) }
    }
}

/// Decides the part of a claim that needs no write: a live lease is busy, also for its own owner.
///
/// ```
/// # use litelease_core::{Row, State, busy};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// assert!(busy(row, 149).is_some());
/// assert!(busy(row, 150).is_none());
/// ```
#[inline]
pub fn busy(row: Row<'_>, now_ms: i64) -> Option<ClaimResult<&str>> {
    row.live(now_ms).map(ClaimResult::Busy)
}

/// Grants a free name under a new token.
///
/// ```
/// # use litelease_core::{ClaimResult, Row, State, Term, claim};
/// let expired = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let step = claim(expired, "b", Term::new(50, 150)?, 0)?;
/// assert!(matches!(step.answer, ClaimResult::Acquired(lease) if lease.token == 2));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[inline]
pub fn claim<'a, 'q: 'a>(
    row: Row<'a>,
    owner: &'q str,
    term: Term,
    floor: i64,
) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
    match busy(row, term.now_ms()) {
        Some(busy) => Ok(Step::keep(busy)),
        None => grant(row, owner, term, floor, ClaimResult::Acquired),
    }
}

/// Claims a name whose holder is known to be dead: ends exactly that grant and claims in one step,
/// under a new token.
///
/// The caller has examined the holder of `dead` and vouches that it has ended; the rule makes sure
/// that the live lease is exactly that grant, owner and token. Any other live lease is busy, as for
/// [`claim`].
///
/// ```
/// # use litelease_core::{ClaimResult, Claimant, Row, State, Term, claim_from_dead};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let dead = Claimant { owner: "a", token: Some(1) };
/// let step = claim_from_dead(row, "b", Term::new(50, 110)?, 0, dead)?;
/// assert!(matches!(step.answer, ClaimResult::Acquired(lease) if lease.token == 2));
///
/// let claimed_since = Row::new("scheduler", State::stored(2, Some("a"), Some(150)));
/// let step = claim_from_dead(claimed_since, "b", Term::new(50, 110)?, 0, dead)?;
/// assert!(matches!(step.answer, ClaimResult::Busy(_)), "another grant than was examined");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn claim_from_dead<'a, 'q: 'a>(
    row: Row<'a>,
    owner: &'q str,
    term: Term,
    floor: i64,
    dead: Claimant<'_>,
) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
    match row.live(term.now_ms()) {
        // Without a token, any later grant to the same owner text would do, too.
        Some(lease) if dead.token.is_some() && dead.is(&lease) => {
            grant(row, owner, term, floor, ClaimResult::Acquired)
        }
        _ => claim(row, owner, term, floor),
    }
}

/// Returns the part of [`ensure`] that needs no write: a live lease of another owner is busy.
///
/// ```
/// # use litelease_core::{Row, State, busy_for};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// assert!(busy_for(row, "b", 149).is_some());
/// assert!(busy_for(row, "b", 150).is_none());
/// assert!(busy_for(row, "a", 149).is_none());
/// ```
pub fn busy_for<'a>(row: Row<'a>, owner: &str, now_ms: i64) -> Option<ClaimResult<&'a str>> {
    let who = Claimant { owner, token: None };
    row.live(now_ms).filter(|lease| !who.is(lease)).map(ClaimResult::Busy)
}

/// Claims a name, or prolongs the live lease that `owner` already has on it, under the same token.
///
/// A repeated request is thus answered like the first one, and a lease is never shortened. A lease
/// that its conditions do not let be prolonged is busy, for its owner too.
///
/// ```
/// # use litelease_core::{ClaimResult, Conditions, Row, State, Term, ensure};
/// # let plain = Conditions::default();
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let step = ensure(row, "a", Term::new(50, 120)?, 0, plain)?;
/// let ClaimResult::Acquired(lease) = step.answer else { panic!() };
/// assert_eq!((lease.token, lease.expires_at_ms), (1, 170));
///
/// let step = ensure(row, "b", Term::new(50, 120)?, 0, plain)?;
/// assert!(matches!(step.answer, ClaimResult::Busy(_)), "it belongs to another owner");
///
/// let step = ensure(row, "a", Term::new(50, 150)?, 0, plain)?;
/// assert!(matches!(step.answer, ClaimResult::Acquired(lease) if lease.token == 2), "it had expired");
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn ensure<'a, 'q: 'a>(
    row: Row<'a>,
    owner: &'q str,
    term: Term,
    floor: i64,
    conditions: Conditions,
) -> Result<Step<'q, ClaimResult<&'a str>>, Refusal> {
    let Step { write, answer } = renew(row, Claimant { owner, token: None }, term, conditions);
    match answer {
        RenewResult::Renewed(lease) => Ok(Step { write, answer: ClaimResult::Acquired(lease) }),
        RenewResult::Rejected { .. } => claim(row, owner, term, floor),
    }
}

/// Prolongs a live lease under the same token, as far as its conditions admit. It never shortens
/// one and never revives one.
///
/// ```
/// # use litelease_core::{Claimant, Conditions, RenewResult, Row, State, Term, renew};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let who = Claimant { owner: "a", token: None };
/// let step = renew(row, who, Term::new(50, 120)?, Conditions::default());
/// assert!(matches!(step.answer, RenewResult::Renewed(lease) if lease.expires_at_ms == 170));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
#[inline]
pub fn renew<'a, 'q: 'a>(
    row: Row<'a>,
    who: Claimant<'q>,
    term: Term,
    conditions: Conditions,
) -> Step<'q, RenewResult<&'a str>> {
    match row.live(term.now_ms()) {
        Some(lease) if who.is(&lease) => {
            match conditions.admit(&lease, term.now_ms(), term.until_ms()) {
                Ok(until_ms) => {
                    let expires_at_ms = lease.expires_at_ms.max(until_ms);
                    Step::write(
                        State::owned(lease.token, who.owner, expires_at_ms),
                        RenewResult::Renewed(Lease { expires_at_ms, ..lease }),
                    )
                }
                Err(reason) => Step::keep(RenewResult::Rejected { reason, current: Some(lease) }),
            }
        }
        current => {
            let reason = row.why_not(Some(who), term.now_ms());
            Step::keep(RenewResult::Rejected { reason, current })
        }
    }
}

/// Ends a live lease early. The token stays, so the next grant is still larger.
///
/// ```
/// # use litelease_core::{Claimant, Reason, ReleaseResult, Row, State, release};
/// let row = Row::new("scheduler", State::stored(2, Some("a"), Some(150)));
/// let old = release(row, Claimant { owner: "a", token: Some(1) }, 120);
/// assert!(matches!(
///     old.answer,
///     ReleaseResult::Rejected { reason: Reason::Superseded { by: 2 }, .. }
/// ));
/// ```
#[inline]
pub fn release<'a>(
    row: Row<'a>,
    who: Claimant<'_>,
    now_ms: i64,
) -> Step<'static, ReleaseResult<&'a str>> {
    match row.live(now_ms) {
        Some(lease) if who.is(&lease) => Step::write(
            State::free(lease.token),
            ReleaseResult::Released { name: lease.name, token: lease.token },
        ),
        current => {
            let reason = row.why_not(Some(who), now_ms);
            Step::keep(ReleaseResult::Rejected { reason, current })
        }
    }
}

/// Hands a live lease to a new owner under a new token, with no moment in between.
///
/// ```
/// # use litelease_core::{Claimant, Row, State, Term, TransferResult, transfer};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let who = Claimant { owner: "a", token: Some(1) };
/// let step = transfer(row, who, "b", Term::new(10, 120)?, 0)?;
/// assert!(matches!(step.answer, TransferResult::Transferred(lease) if lease.token == 2));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn transfer<'a, 'q: 'a>(
    row: Row<'a>,
    who: Claimant<'_>,
    new_owner: &'q str,
    term: Term,
    floor: i64,
) -> Result<Step<'q, TransferResult<&'a str>>, Refusal> {
    match row.live(term.now_ms()) {
        Some(lease) if who.is(&lease) => {
            grant(row, new_owner, term, floor, TransferResult::Transferred)
        }
        current => {
            let reason = row.why_not(Some(who), term.now_ms());
            Ok(Step::keep(TransferResult::Rejected { reason, current }))
        }
    }
}

/// Ends any holder's live lease and raises the token, so that the broken holder is refused at once.
///
/// ```
/// # use litelease_core::{BreakResult, Row, State, break_lease};
/// let row = Row::new("scheduler", State::stored(1, Some("a"), Some(150)));
/// let step = break_lease(row, 120, 0)?;
/// assert_eq!(step.answer, BreakResult::Broken { owner: "a", token: 1 });
/// assert_eq!(step.write, State::stored(2, None, None));
///
/// // A file that grants nothing any more still has the largest number, which is never granted.
/// let step = break_lease(row, 120, i64::MAX)?;
/// assert_eq!(step.write, State::stored(i64::MAX, None, None));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn break_lease(
    row: Row<'_>,
    now_ms: i64,
    floor: i64,
) -> Result<Step<'static, BreakResult<&str>>, Refusal> {
    match row.live(now_ms) {
        Some(lease) => Ok(Step::write(
            State::free(row.ungranted_token(floor)?),
            BreakResult::Broken { owner: lease.owner, token: lease.token },
        )),
        None => {
            let reason = row.why_not(None, now_ms);
            Ok(Step::keep(BreakResult::Rejected { reason, current: None }))
        }
    }
}

/// Returns the live lease on a name, if there is one.
///
/// ```
/// # use litelease_core::{Row, inspect};
/// assert_eq!(inspect(Row::new("scheduler", None), 100), None);
/// ```
#[inline]
pub fn inspect(row: Row<'_>, now_ms: i64) -> Option<Lease<&str>> {
    row.live(now_ms)
}

/// Decides whether the floor of a file may be raised from `present` to `floor`.
///
/// ```
/// # use litelease_core::{RaiseResult, Refusal, raise};
/// assert_eq!(raise(0, 41), Ok(RaiseResult::Raised));
/// assert_eq!(raise(41, 41), Ok(RaiseResult::Unchanged));
/// assert_eq!(raise(41, 40), Ok(RaiseResult::TooLow { present: 41 }));
/// assert_eq!(raise(0, i64::MAX), Err(Refusal::TokenExhausted), "no token would be larger");
/// ```
pub fn raise(present: i64, floor: i64) -> Result<RaiseResult, Refusal> {
    match floor {
        _ if floor < present => Ok(RaiseResult::TooLow { present }),
        i64::MAX => Err(Refusal::TokenExhausted),
        _ if floor == present => Ok(RaiseResult::Unchanged),
        _ => Ok(RaiseResult::Raised),
    }
}

/// Raises the token of one name above `floor`, and ends its lease: no token up to `floor` is the
/// newest any more.
///
/// `file_floor` is the floor of the file, which every token exceeds.
///
/// ```
/// # use litelease_core::{RaiseResult, Row, State, raise_name};
/// let row = Row::new("scheduler", State::stored(7, Some("a"), Some(150)));
/// // 41 itself may have been granted elsewhere, so it must not become the newest token.
/// let step = raise_name(row, 41, 0)?;
/// assert_eq!(step.write, State::stored(42, None, None));
///
/// let step = raise_name(row, 6, 0)?;
/// assert_eq!((step.write, step.answer), (None, RaiseResult::TooLow { present: 7 }));
/// # Ok::<(), litelease_core::Refusal>(())
/// ```
pub fn raise_name(
    row: Row<'_>,
    floor: i64,
    file_floor: i64,
) -> Result<Step<'static, RaiseResult>, Refusal> {
    let above = floor.checked_add(1).ok_or(Refusal::TokenExhausted)?;
    match row.token().unwrap_or(0).max(file_floor) {
        present if floor < present => Ok(Step::keep(RaiseResult::TooLow { present })),
        _ => Ok(Step::write(State::free(above), RaiseResult::Raised)),
    }
}

/// Decides whether a row may be purged: its last lease expired, or was released, at `limit_ms` or
/// earlier. [`purge_limit`] computes the limit.
///
/// ```
/// # use litelease_core::{State, has_ended};
/// let expired = State::stored(1, Some("a"), Some(150)).unwrap();
/// assert!(has_ended(expired, 100, 150));
/// assert!(!has_ended(expired, 100, 149));
/// // A released row has no expiry: it was released when it was last written.
/// let released = State::stored(1, None, None).unwrap();
/// assert!(has_ended(released, 100, 100));
/// assert!(!has_ended(released, 100, 99));
/// ```
pub fn has_ended(state: State<'_>, updated_at_ms: i64, limit_ms: i64) -> bool {
    !is_live(state.ends_at_ms(updated_at_ms), limit_ms)
}

/// Returns the time up to which rows may be purged. A row whose lease has not ended yet is never
/// purged, however late the time of the call is.
///
/// ```
/// # use litelease_core::purge_limit;
/// assert_eq!(purge_limit(100, 500), 100);
/// assert_eq!(purge_limit(900, 500), 500);
/// ```
pub fn purge_limit(before_ms: i64, now_ms: i64) -> i64 {
    before_ms.min(now_ms)
}

/// Returns a new tenure under a new token: what an acquired claim and a transfer have in common.
#[inline]
pub(crate) fn grant<'a, 'q: 'a, A>(
    row: Row<'a>,
    owner: &'q str,
    term: Term,
    floor: i64,
    answer: impl FnOnce(Lease<&'a str>) -> A,
) -> Result<Step<'q, A>, Refusal> {
    let token = row.next_token(floor)?;
    let tenure = Tenure { owner, expires_at_ms: term.until_ms() };
    let lease = row.lease(token, tenure);
    Ok(Step::write(State::owned(token, owner, term.until_ms()), answer(lease)))
}

/// Checks whether a token is the newest one of a name. This is the whole of a fence: it compares
/// tokens and never reads a clock.
///
/// ```
/// # use litelease_core::{Row, State, is_newest};
/// let expired = Row::new("scheduler", State::stored(2, Some("b"), Some(150)));
/// assert!(is_newest(expired, 2));
/// assert!(!is_newest(expired, 1), "superseded");
/// assert!(!is_newest(Row::new("scheduler", None), 1), "never granted");
/// ```
pub fn is_newest(row: Row<'_>, token: i64) -> bool {
    row.token() == Some(token)
}

/// Decides whether a gate that has admitted up to `largest` admits `token`, and whether it must
/// remember it.
///
/// ```
/// # use litelease_core::{AdmitResult, admit};
/// assert_eq!(admit(Some(7), 8), (AdmitResult::Admitted, true));
/// assert_eq!(admit(Some(7), 7), (AdmitResult::Admitted, false));
/// assert_eq!(admit(Some(7), 6), (AdmitResult::Stale { newest: 7 }, false));
/// ```
pub fn admit(largest: Option<i64>, token: i64) -> (AdmitResult, bool) {
    match largest.unwrap_or(0) {
        // Tokens begin at 1.
        newest if token < newest.max(1) => (AdmitResult::Stale { newest }, false),
        newest => (AdmitResult::Admitted, token > newest),
    }
}
