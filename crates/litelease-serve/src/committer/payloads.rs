//! The payload of a grant: values, limits, checkpoints, and the handover on request.

use litelease::{
    CheckpointResult, Error, Grant, GrantResult, Lease, Litelease, Reason, RequestResult,
};
use litelease_wire::{
    Attached, CheckpointStored, Limited, OpenRequest, Progressed, Refusal, Value,
};

use super::batch::{Batch, Done, Served, duration};
use super::names;
use crate::answer::{Answer, Attachments, NameAnswer, rejected, seconds};
use crate::job::Id;
use crate::value::{from_stored, to_stored};

/// Attaches a value to a grant.
pub(crate) fn attach(file: &Served<'_>, grant: &Grant, value: Value, now_ms: i64) -> Done {
    let result = file.db.at(now_ms).attach(grant, to_stored(value))?;
    done(file, grant, result, now_ms, |name, token| {
        NameAnswer::Attached(Attached { attached: true, name, token })
    })
}

/// Limits a grant.
pub(crate) fn limit(
    file: &Served<'_>,
    grant: &Grant,
    progress_within_ms: Option<i64>,
    max_time_ms: Option<i64>,
    now_ms: i64,
) -> Done {
    let not_after_ms = max_time_ms.map(|ms| now_ms.saturating_add(ms));
    let within = progress_within_ms.map(duration);
    let result = file.db.at(now_ms).limit(grant, within, not_after_ms)?;
    done(file, grant, result, now_ms, |name, token| {
        NameAnswer::Limited(Limited { limited: true, name, token })
    })
}

/// Counts progress of a grant.
pub(crate) fn progress(file: &Served<'_>, grant: &Grant, now_ms: i64) -> Done {
    let result = file.db.at(now_ms).progress(grant)?;
    done(file, grant, result, now_ms, |name, token| {
        NameAnswer::Progressed(Progressed { name, progressed: true, token })
    })
}

/// Stores a checkpoint under a grant.
pub(crate) fn checkpoint(file: &Served<'_>, grant: &Grant, value: Value, now_ms: i64) -> Done {
    let result = match file.db.at(now_ms).checkpoint(grant, to_stored(value))? {
        CheckpointResult::Stored => GrantResult::Done,
        CheckpointResult::Stale { newest } => GrantResult::Stale {
            reason: newest.map_or(Reason::NeverClaimed, |by| Reason::Superseded { by }),
        },
    };
    done(file, grant, result, now_ms, |name, token| {
        NameAnswer::CheckpointStored(CheckpointStored { name, stored: true, token })
    })
}

fn done(
    file: &Served<'_>,
    grant: &Grant,
    result: GrantResult,
    now_ms: i64,
    answer: fn(String, i64) -> NameAnswer,
) -> Done {
    Ok(Answer::Name(match result {
        GrantResult::Done => answer(grant.name.clone(), grant.token),
        GrantResult::Stale { reason } => {
            rejected(file.db, reason, file.db.at(now_ms).inspect(&grant.name)?, now_ms)?
        }
    }))
}

/// Asks the holder of a name to give it up.
pub(crate) fn request(
    file: &Served<'_>,
    name: &str,
    requester: &str,
    within_ms: i64,
    now_ms: i64,
) -> Done {
    names::check_own(file, name)?;
    let requested = file.db.at(now_ms).request(name, requester, duration(within_ms))?;
    Ok(Answer::Name(match requested {
        RequestResult::Requested { token, until_ms } => {
            let open = open_request(name, requester.into(), token, until_ms, now_ms);
            NameAnswer::Requested(Box::new(open))
        }
        RequestResult::RequestedBy { requester, until_ms } => {
            let token = file.db.token(name)?.unwrap_or_default();
            let text = "another client has asked for it before: wait for the name, or ask later";
            NameAnswer::Refused(Box::new(Refusal {
                requested: Some(open_request(name, requester, token, until_ms, now_ms)),
                ..Refusal::new("requested_by", text)
            }))
        }
        RequestResult::Rejected { reason } => rejected(file.db, reason, None, now_ms)?,
    }))
}

impl Batch {
    /// Records that a waiting claim has an open request, which is to be repeated.
    pub(super) fn note_requester(&mut self, id: &Id, owner: &str, file: &Served<'_>) {
        // An error only means that the request lapses.
        let requested = file.db.at(self.now_ms).requested(id).ok().flatten();
        if requested.is_some_and(|requested| requested.requester == owner) {
            self.requesters.push((id.clone(), owner.into()));
        }
    }
}

/// Reads the value of a live lease, and the request for it.
pub(super) fn attachments(
    db: &Litelease,
    lease: &Lease,
    now_ms: i64,
) -> Result<Option<Box<Attachments>>, Error> {
    let value = db.at(now_ms).value(&lease.name)?.map_or(Value::Null, from_stored);
    let requested = db
        .at(now_ms)
        .requested(&lease.name)?
        .map(|open| open_request(&lease.name, open.requester, open.token, open.until_ms, now_ms));
    Ok(Attachments::new(Some(value), requested))
}

fn open_request(
    name: &str,
    requester: String,
    token: i64,
    until_ms: i64,
    now_ms: i64,
) -> OpenRequest {
    let (until_unix, left_ms) = (until_ms.div_euclid(1000), until_ms.saturating_sub(now_ms));
    OpenRequest { name: name.into(), requester, token, until_unix, within: seconds(left_ms.max(0)) }
}
