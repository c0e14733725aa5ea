//! Answers about names.

use litelease::{Error, Lease, LeaseRow, Litelease, Reason, Status};
use litelease_wire as wire;
use litelease_wire::{
    Attached, BegunTick, Broken, CheckpointStored, EndedLease, Finished, Grant, KnownLease,
    Limited, OpenRequest, Progressed, Refusal, Released, TickChanged, Ticked, Value,
};
use serde::Serialize;

use super::{Effect, UndeliveredGrant, seconds};
use crate::job::Jobs;
use crate::response::Response;

/// The outcome of a job on a name.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum NameAnswer {
    #[serde(skip)]
    Granted(Box<Granted>),
    /// The name has a live lease, whose holder may run a tick.
    #[serde(skip)]
    Busy(Box<LeaseWithRemaining>, Option<i64>),
    #[serde(skip)]
    Refused(Box<Refusal>),
    Renewed(Grant),
    Released(Released),
    Transferred(Box<wire::Lease>),
    Broken(Broken),
    Attached(Attached),
    Limited(Limited),
    Progressed(Progressed),
    CheckpointStored(CheckpointStored),
    Requested(Box<OpenRequest>),
    Finished(Finished),
    Ticked(Ticked),
    TickChanged(TickChanged),
}

/// A name was granted.
#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) lease: LeaseWithRemaining,
    /// The secret of the grant.
    pub(crate) grant: String,
    /// True if an idempotency key keeps the grant when its client is gone.
    pub(crate) has_key: bool,
    /// It was transferred to its owner, who has fetched it.
    pub(crate) is_fetched: bool,
    /// The number of its row, unless this answer was given before.
    pub(crate) number: Option<i64>,
    /// The tick that it runs.
    pub(crate) tick: Option<BegunTick>,
}

/// A lease, the time that it has left, and the time since its grant began.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeaseWithRemaining {
    pub(crate) lease: Lease,
    pub(crate) left_ms: i64,
    pub(crate) held_ms: i64,
    /// The value and the request of the lease, if they were read and exist.
    pub(crate) attachments: Option<Box<Attachments>>,
}

/// The value of a lease, and the request for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Attachments {
    /// The value, or NULL; `None` if it is too long for a page.
    pub(crate) value: Option<Value>,
    pub(crate) requested: Option<OpenRequest>,
}

impl NameAnswer {
    pub(super) fn undelivered(&self) -> Option<UndeliveredGrant> {
        match self {
            NameAnswer::Granted(granted) if !granted.has_key => {
                let lease = granted.lease.lease.clone();
                Some(match granted.is_fetched {
                    true => UndeliveredGrant::Fetched(lease),
                    false => UndeliveredGrant::Name(lease),
                })
            }
            _ => None,
        }
    }

    /// Returns the name of a tick that this answer begins, the tick, and whether it passes an older
    /// one that was open.
    pub(crate) fn begun_tick(&self) -> Option<(&str, i64, bool)> {
        match self {
            NameAnswer::Granted(granted) if !granted.is_fetched && granted.number.is_some() => {
                let tick = granted.tick.as_ref().filter(|tick| tick.attempt == 1)?;
                let name = &granted.lease.lease.name;
                Some((name, tick.tick_ms, tick.passed_ms.is_some()))
            }
            NameAnswer::Ticked(Ticked { name, tick_ms, .. }) => Some((name, *tick_ms, false)),
            _ => None,
        }
    }

    pub(super) fn effect(&self) -> Effect {
        match self {
            NameAnswer::Granted(_) | NameAnswer::Busy(..) | NameAnswer::Refused(_) => {
                Effect::Nothing
            }
            NameAnswer::Released(_) | NameAnswer::Broken(_) | NameAnswer::Finished(_) => {
                Effect::Freed
            }
            // Clients may wait for a tick that is taken now.
            NameAnswer::Ticked(_) | NameAnswer::TickChanged(_) => Effect::Freed,
            NameAnswer::Transferred(_) => Effect::HandedOver,
            NameAnswer::Renewed(_)
            | NameAnswer::Attached(_)
            | NameAnswer::Limited(_)
            | NameAnswer::Progressed(_)
            | NameAnswer::CheckpointStored(_)
            | NameAnswer::Requested(_) => Effect::Changed,
        }
    }

    pub(super) fn respond(self, grant: Option<UndeliveredGrant>, jobs: &Jobs) -> Response {
        match self {
            NameAnswer::Granted(granted) => {
                let Granted { lease, grant: secret, tick, .. } = *granted;
                let answer = Grant { tick, ..lease.with_secret(secret) };
                Response::granting(&answer, grant, jobs)
            }
            NameAnswer::Busy(current, tick_ms) => {
                let text = "the name has a live owner: ask again later, or wait for it with wait";
                Response::refusal(&Refusal { tick_ms, ..current.busy(text) })
            }
            NameAnswer::Refused(refusal) => Response::refusal(&refusal),
            answer => Response::json(200, &answer),
        }
    }
}

impl LeaseWithRemaining {
    /// Returns a lease whose grant begins at this time.
    pub(crate) fn at(now_ms: i64, lease: Lease) -> Self {
        let left_ms = lease.expires_at_ms.saturating_sub(now_ms);
        LeaseWithRemaining { lease, left_ms, held_ms: 0, attachments: None }
    }

    /// Returns a lease whose grant began earlier.
    pub(crate) fn since(since_ms: Option<i64>, now_ms: i64, lease: Lease) -> Self {
        let held_ms = since_ms.map_or(0, |since_ms| now_ms.saturating_sub(since_ms).max(0));
        LeaseWithRemaining { held_ms, ..LeaseWithRemaining::at(now_ms, lease) }
    }

    /// Looks up when the grant of the live lease on a name began.
    pub(crate) fn found(db: &Litelease, now_ms: i64, lease: Lease) -> Result<Self, Error> {
        let since_ms = db.row(&lease.name)?.and_then(|row| row.since_ms);
        Ok(LeaseWithRemaining::since(since_ms, now_ms, lease))
    }

    /// Returns the refusal of a claim because of this lease.
    pub(crate) fn busy(self, text: &str) -> Refusal {
        Refusal { current: Some(self.into_wire()), ..Refusal::new("busy", text) }
    }

    /// Adds the secret of the grant.
    pub(crate) fn with_secret(self, grant: String) -> Grant {
        let wire::Lease { expires_at_unix, expires_in, name, owner, token, .. } = self.into_wire();
        Grant { expires_at_unix, expires_in, grant, name, owner, tick: None, token }
    }

    pub(crate) fn into_wire(self) -> wire::Lease {
        let LeaseWithRemaining { lease, left_ms, held_ms, attachments } = self;
        let Lease { name, owner, token, expires_at_ms, .. } = lease;
        let (value, requested, value_left_out) = match attachments.map(|all| *all) {
            None => (None, None, None),
            Some(Attachments { value: None, requested }) => (None, requested, Some(true)),
            Some(Attachments { value, requested }) => {
                (value.filter(|value| *value != Value::Null), requested, None)
            }
        };
        wire::Lease {
            expires_at_unix: expires_at_ms.div_euclid(1000),
            expires_in: seconds(left_ms),
            held_for: seconds(held_ms),
            name,
            owner,
            requested,
            token,
            value,
            value_left_out,
        }
    }

    /// Checks whether two leases differ only in times that pass.
    pub(crate) fn is_same(&self, other: &LeaseWithRemaining) -> bool {
        let requester = |lease: &LeaseWithRemaining| {
            let requested = lease.attachments.as_ref().and_then(|all| all.requested.as_ref());
            requested.map(|requested| (requested.requester.clone(), requested.until_unix))
        };
        let value = |lease: &LeaseWithRemaining| {
            lease.attachments.as_ref().and_then(|all| all.value.clone())
        };
        self.lease == other.lease
            && self.attachments.is_some() == other.attachments.is_some()
            && requester(self) == requester(other)
            && value(self) == value(other)
    }
}

impl Attachments {
    /// Returns the value and the request of a lease, or `None` if it has neither.
    pub(crate) fn new(value: Option<Value>, requested: Option<OpenRequest>) -> Option<Box<Self>> {
        let is_plain = value == Some(Value::Null) && requested.is_none();
        (!is_plain).then(|| Box::new(Attachments { value, requested }))
    }
}

/// Returns the refusal of a verb on a grant.
pub(crate) fn rejected(
    db: &Litelease,
    reason: Reason,
    current: Option<Lease>,
    now_ms: i64,
) -> Result<NameAnswer, Error> {
    let found = |current| LeaseWithRemaining::found(db, now_ms, current);
    Ok(NameAnswer::Refused(Box::new(Refusal {
        by: reason.superseded_by(),
        current: current.map(found).transpose()?.map(LeaseWithRemaining::into_wire),
        ..Refusal::new(reason.word(), format!("rejected: {reason}"))
    })))
}

/// Returns a name of a page: with its lease, or with the reason why it has none.
pub(crate) fn known(row: Result<LeaseWithRemaining, LeaseRow>, now_ms: i64) -> KnownLease {
    let row = match row {
        Ok(lease) => return KnownLease::Live(lease.into_wire()),
        Err(row) => row,
    };
    let state = row.status(now_ms).unwrap_or(Status::Released).word().to_owned();
    let (last_owner, end_ms) = row.tenure.unzip();
    KnownLease::Ended(EndedLease {
        expired_for: end_ms.map(|end_ms| seconds(now_ms.saturating_sub(end_ms))),
        expires_at_unix: (),
        expires_in: (),
        last_owner,
        name: row.name,
        owner: (),
        state: Some(state),
        token: row.token,
    })
}
