//! Answers in two forms: one value, which is what a function in SQL can answer, and rows, whose
//! first column is the name of a case where the answer has cases. A value is made of the answer
//! itself and allocates nothing for a number.

use litelease_core::{
    AckResult, AdmitResult, BreakResult, CancelResult, CheckpointResult, ClaimResult, GrantResult,
    Lease, PoolInfo, Reason, ReleaseResult, RenewResult, RequestResult, SlotInfo, TakenOver,
    TransferResult,
};

use super::Answer;
use crate::{Borrowed, Error, OwnedValue, Store};

/// The form of an answer.
pub(super) trait Form: Sized {
    /// An answer that may be a rejection. It needs no row of the file any more.
    type Draft;

    /// Forms an answer that is complete.
    fn plain(answer: impl Plain) -> Self;

    /// Begins to form an answer that may be a rejection.
    fn draft(ruling: impl Ruling) -> Self::Draft;

    /// Completes it, for a verb on this name.
    fn finish(draft: Self::Draft, store: &Store, name: &str) -> Result<Self, Error>;
}

/// An answer that is complete.
pub(super) trait Plain {
    fn value(self) -> OwnedValue;
    fn rows(self) -> Answer;
}

/// An answer that may be a rejection.
pub(super) trait Ruling {
    fn value(self) -> OwnedValue;
    fn row(self) -> Result<Vec<OwnedValue>, Rejection>;
}

/// A rejection: why, and the live lease if there is one.
type Rejection = (Reason, Option<Lease>);

impl Form for OwnedValue {
    type Draft = OwnedValue;

    fn plain(answer: impl Plain) -> Self {
        answer.value()
    }

    fn draft(ruling: impl Ruling) -> OwnedValue {
        ruling.value()
    }

    fn finish(draft: OwnedValue, _: &Store, _: &str) -> Result<Self, Error> {
        Ok(draft)
    }
}

impl Form for Answer {
    type Draft = Result<Vec<OwnedValue>, Rejection>;

    fn plain(answer: impl Plain) -> Self {
        answer.rows()
    }

    fn draft(ruling: impl Ruling) -> Self::Draft {
        ruling.row()
    }

    /// A rejection has the newest token of the name, which may have to be read first.
    fn finish(draft: Self::Draft, store: &Store, name: &str) -> Result<Self, Error> {
        let (reason, current) = match draft {
            Ok(row) => return Ok(vec![row]),
            Err(rejection) => rejection,
        };
        let word = match reason {
            Reason::NeverClaimed => "NEVER_CLAIMED",
            Reason::HeldBy => "HELD_BY",
            Reason::Superseded { .. } => "SUPERSEDED",
            Reason::UnknownToken => "UNKNOWN_TOKEN",
            Reason::Released => "RELEASED",
            Reason::Expired => "EXPIRED",
            Reason::NoProgress => "NO_PROGRESS",
            Reason::TimeIsUp => "TIME_IS_UP",
            Reason::Requested => "REQUESTED",
            Reason::NotRequested => "NOT_REQUESTED",
        };
        let newest = match (reason, &current) {
            (Reason::NeverClaimed, _) => None,
            (Reason::Superseded { by }, _) => Some(by),
            (_, Some(current)) => Some(current.token),
            _ => store.token(name)?,
        };
        let row = vec![text("Rejected"), text(word), optional(newest)];
        Ok(vec![[row, current.map(lease).unwrap_or_default()].concat()])
    }
}

impl Plain for () {
    fn value(self) -> OwnedValue {
        OwnedValue::Integer(1)
    }

    fn rows(self) -> Answer {
        vec![]
    }
}

/// A number, or a truth as 0 or 1. Where there may be none: NULL, or no row.
macro_rules! plain_number {
    ($($answer:ty => |$given:ident| $number:expr;)*) => {$(
        impl Plain for $answer {
            fn value(self) -> OwnedValue {
                let $given = self;
                optional($number)
            }

            fn rows(self) -> Answer {
                let $given = self;
                $number.into_iter().map(|number| vec![OwnedValue::Integer(number)]).collect()
            }
        }
    )*};
}

plain_number! {
    bool => |given| Some(i64::from(given));
    i64 => |given| Some(given);
    u64 => |given| Some(i64::try_from(given).unwrap_or(i64::MAX));
    Option<i64> => |given| given;
}

impl Plain for Option<OwnedValue> {
    fn value(self) -> OwnedValue {
        self.unwrap_or(OwnedValue::Null)
    }

    fn rows(self) -> Answer {
        self.into_iter().map(|value| vec![value]).collect()
    }
}

impl Plain for ClaimResult<&str> {
    fn value(self) -> OwnedValue {
        match self {
            ClaimResult::Acquired(lease) => OwnedValue::Integer(lease.token),
            ClaimResult::Busy(_) => OwnedValue::Null,
        }
    }

    fn rows(self) -> Answer {
        vec![match self {
            ClaimResult::Acquired(lease) => case("Acquired", lease),
            ClaimResult::Busy(current) => case("Busy", current),
        }]
    }
}

/// The new grant, and the one that was ended, if there was one.
impl Plain for TakenOver<&str> {
    fn value(self) -> OwnedValue {
        OwnedValue::Integer(self.lease.token)
    }

    fn rows(self) -> Answer {
        [Some(self.lease), self.from].into_iter().flatten().map(lease).collect()
    }
}

impl Plain for CheckpointResult {
    fn value(self) -> OwnedValue {
        truth(self == CheckpointResult::Stored)
    }

    fn rows(self) -> Answer {
        vec![match self {
            CheckpointResult::Stored => vec![text("Stored")],
            CheckpointResult::Stale { newest } => vec![text("Stale"), optional(newest)],
        }]
    }
}

impl Plain for AdmitResult {
    fn value(self) -> OwnedValue {
        truth(self == AdmitResult::Admitted)
    }

    fn rows(self) -> Answer {
        vec![match self {
            AdmitResult::Admitted => vec![text("Admitted")],
            AdmitResult::Stale { newest } => vec![text("Stale"), OwnedValue::Integer(newest)],
        }]
    }
}

/// 1 if the item is gone, 0 if a worker has it, NULL if there is none.
impl Plain for CancelResult {
    fn value(self) -> OwnedValue {
        match self {
            CancelResult::Cancelled => OwnedValue::Integer(1),
            CancelResult::Leased { .. } => OwnedValue::Integer(0),
            CancelResult::NotFound => OwnedValue::Null,
        }
    }

    fn rows(self) -> Answer {
        vec![match self {
            CancelResult::Cancelled => vec![text("Cancelled")],
            CancelResult::Leased { deadline_ms } => {
                vec![text("Leased"), OwnedValue::Integer(deadline_ms)]
            }
            CancelResult::NotFound => vec![text("NotFound")],
        }]
    }
}

impl Plain for PoolInfo {
    fn value(self) -> OwnedValue {
        OwnedValue::Integer(self.count)
    }

    fn rows(self) -> Answer {
        vec![[self.count, self.in_use].map(OwnedValue::Integer).to_vec()]
    }
}

impl Plain for Option<SlotInfo> {
    fn value(self) -> OwnedValue {
        optional(self.map(|slot| slot.token))
    }

    fn rows(self) -> Answer {
        self.into_iter().map(slot).collect()
    }
}

impl Plain for Option<Borrowed> {
    fn value(self) -> OwnedValue {
        optional_text(self.map(|lent| lent.lease_id))
    }

    fn rows(self) -> Answer {
        let row = self.map(|lent| [vec![text(lent.lease_id)], slot(lent.slot)].concat());
        row.into_iter().collect()
    }
}

/// A grant that a verb has made or prolonged.
macro_rules! ruling_with_lease {
    ($($result:ident::$case:ident;)*) => {$(
        impl Ruling for $result<&str> {
            fn value(self) -> OwnedValue {
                match self {
                    $result::$case(lease) => OwnedValue::Integer(lease.token),
                    $result::Rejected { .. } => OwnedValue::Null,
                }
            }

            fn row(self) -> Result<Vec<OwnedValue>, Rejection> {
                match self.into_owned() {
                    $result::$case(lease) => Ok(case(stringify!($case), lease)),
                    $result::Rejected { reason, current } => Err((reason, current)),
                }
            }
        }
    )*};
}

ruling_with_lease! {
    RenewResult::Renewed;
    TransferResult::Transferred;
}

impl Ruling for ReleaseResult<&str> {
    fn value(self) -> OwnedValue {
        truth(matches!(self, ReleaseResult::Released { .. }))
    }

    fn row(self) -> Result<Vec<OwnedValue>, Rejection> {
        match self.into_owned() {
            ReleaseResult::Released { name, token } => {
                Ok(vec![text("Released"), text(name), OwnedValue::Integer(token)])
            }
            ReleaseResult::Rejected { reason, current } => Err((reason, current)),
        }
    }
}

impl Ruling for BreakResult<&str> {
    fn value(self) -> OwnedValue {
        match self {
            BreakResult::Broken { token, .. } => OwnedValue::Integer(token),
            BreakResult::Rejected { .. } => OwnedValue::Null,
        }
    }

    fn row(self) -> Result<Vec<OwnedValue>, Rejection> {
        match self.into_owned() {
            BreakResult::Broken { owner, token } => {
                Ok(vec![text("Broken"), text(owner), OwnedValue::Integer(token)])
            }
            BreakResult::Rejected { reason, current } => Err((reason, current)),
        }
    }
}

impl Ruling for GrantResult {
    fn value(self) -> OwnedValue {
        truth(self.is_done())
    }

    fn row(self) -> Result<Vec<OwnedValue>, Rejection> {
        match self {
            GrantResult::Done => Ok(vec![text("Done")]),
            GrantResult::Stale { reason } => Err((reason, None)),
        }
    }
}

impl Ruling for RequestResult<&str> {
    fn value(self) -> OwnedValue {
        match self {
            RequestResult::Requested { until_ms, .. } => OwnedValue::Integer(until_ms),
            RequestResult::RequestedBy { .. } | RequestResult::Rejected { .. } => OwnedValue::Null,
        }
    }

    fn row(self) -> Result<Vec<OwnedValue>, Rejection> {
        let number = OwnedValue::Integer;
        match self {
            RequestResult::Requested { token, until_ms } => {
                Ok(vec![text("Requested"), number(token), number(until_ms)])
            }
            RequestResult::RequestedBy { requester, until_ms } => {
                Ok(vec![text("RequestedBy"), text(requester), number(until_ms)])
            }
            RequestResult::Rejected { reason } => Err((reason, None)),
        }
    }
}

pub(super) fn acknowledged(answer: AckResult) -> Vec<OwnedValue> {
    match answer {
        AckResult::Acknowledged => vec![text("Acknowledged")],
        AckResult::Stale { reason } => vec![text("StaleReceipt"), text(reason.word())],
    }
}

pub(super) fn case<S: Into<String>>(word: &str, info: Lease<S>) -> Vec<OwnedValue> {
    [vec![text(word)], lease(info)].concat()
}

pub(super) fn lease<S: Into<String>>(info: Lease<S>) -> Vec<OwnedValue> {
    let Lease { name, owner, token, expires_at_ms } = info;
    let numbers = [token, expires_at_ms].map(OwnedValue::Integer);
    [vec![text(name), text(owner)], numbers.to_vec()].concat()
}

fn slot(slot: SlotInfo) -> Vec<OwnedValue> {
    [slot.position, slot.token, slot.expires_at_ms].map(OwnedValue::Integer).to_vec()
}

pub(super) fn truth(is_so: bool) -> OwnedValue {
    OwnedValue::Integer(i64::from(is_so))
}

pub(super) fn text(text: impl Into<String>) -> OwnedValue {
    OwnedValue::Text(text.into())
}

pub(super) fn optional_text(given: Option<impl Into<String>>) -> OwnedValue {
    given.map_or(OwnedValue::Null, text)
}

/// A number; NULL where there is none.
pub(super) fn optional(number: Option<i64>) -> OwnedValue {
    number.map_or(OwnedValue::Null, OwnedValue::Integer)
}
