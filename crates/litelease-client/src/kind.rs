//! The kinds of grants on a server, and the form of the calls on each.

use std::time::Duration;

use litelease_wire::{
    self as wire, Borrow, Claim, Extend, GiveBack, Grant, Progress, Receive, Release, Renew,
    RenewLease, Request as _, Return, Seconds, SlotBorrow, SlotLease, SlotRenew, SlotReturn,
};
use serde::Deserialize;
use serde_json::Value;

use crate::client::{Lease, nonsense, rejected, seconds};
use crate::retry::refusal;
use crate::transport::{Message, Outcome, typed};
use crate::{Error, Loss};

/// The kind of a grant. It decides how the grant is renewed and released.
#[derive(Clone)]
pub(crate) enum Kind {
    /// A name.
    Name,
    /// A slot of a pool that has a name.
    Slot,
    /// A slot of the pool at this path, which is a secret.
    PoolSlot(String),
    /// A delivery of an item. Its name is that of the queue, which may be empty.
    Delivery,
}

/// A call on a grant, whatever its kind is.
#[derive(Clone, Copy)]
pub(crate) enum GrantCall {
    Renew(Duration),
    Release,
    /// Counts progress of a limited grant.
    Progress,
}

impl Kind {
    /// Returns the path that all calls on grants of this kind have in common. It differs between
    /// kinds.
    pub(crate) fn path(&self) -> &str {
        match self {
            Kind::Name => "/v1",
            Kind::Slot => "/v1/slot",
            Kind::PoolSlot(path) => path,
            Kind::Delivery => "/v1/queue",
        }
    }

    /// Checks whether the grant is a slot of a pool.
    pub(crate) fn is_slot(&self) -> bool {
        matches!(self, Kind::Slot | Kind::PoolSlot(_))
    }

    /// Returns the path of the call that grants this kind.
    pub(crate) fn claim_path(&self) -> String {
        match self {
            Kind::Name => Claim::CALL.path.into(),
            Kind::Slot => SlotBorrow::CALL.path.into(),
            Kind::PoolSlot(_) => self.path_of::<Borrow>(),
            Kind::Delivery => Receive::CALL.path.into(),
        }
    }

    /// Returns the error of a claim that was refused because the name or slot has a holder. `None`
    /// if the answer names no holder.
    pub(crate) fn busy(&self, no: Value) -> Option<Error> {
        match self {
            Kind::Name => Some(Error::Busy(Box::new(refusal(no).current?.into()))),
            _ => Some(Error::NoneFree),
        }
    }

    /// Reads a grant and its secret. An answer about a slot lacks the `name` of its pool.
    pub(crate) fn granted(&self, name: &str, value: Value) -> Result<(Lease, String), Error> {
        if let Kind::Name = self {
            let Grant { name, owner, token, expires_in, grant, .. } = typed(value)?;
            let expires_in = expires_in.duration();
            return Ok((Lease { name, owner, token, expires_in, held_for: None }, grant));
        }
        let SlotLease { position, token, expires_in, lease, .. } = typed(value)?;
        let (name, owner) = (name.into(), format!("slot {position}"));
        let expires_in = expires_in.ok_or_else(nonsense)?.duration();
        Ok((Lease { name, owner, token, expires_in, held_for: None }, lease))
    }

    /// Returns a call on a grant.
    pub(crate) fn request(
        &self,
        call: GrantCall,
        name: &str,
        secret: &str,
        timeout: Duration,
    ) -> Message {
        let (name, secret) = (name.to_owned(), secret.to_owned());
        match (self, call) {
            (Kind::Name, GrantCall::Renew(ttl)) => {
                Message::new(&RenewLease { grant: secret, ttl: seconds(ttl) }, timeout)
            }
            (Kind::Name, GrantCall::Release) => Message::new(&Release { grant: secret }, timeout),
            (Kind::Name, GrantCall::Progress) => Message::new(&Progress { grant: secret }, timeout),
            (Kind::Slot, GrantCall::Renew(ttl)) => {
                Message::new(&SlotRenew { name, lease: secret, ttl: seconds(ttl) }, timeout)
            }
            (Kind::Slot, _) => Message::new(&SlotReturn { name, lease: secret }, timeout),
            (Kind::PoolSlot(_), GrantCall::Renew(ttl)) => {
                let request = Message::new(&Renew { lease: secret, ttl: seconds(ttl) }, timeout);
                Message { path: self.path_of::<Renew>(), ..request }
            }
            (Kind::PoolSlot(_), _) => {
                let request = Message::new(&Return { lease: secret }, timeout);
                Message { path: self.path_of::<Return>(), ..request }
            }
            (Kind::Delivery, GrantCall::Renew(ttl)) => {
                let (queue, visibility) =
                    (Some(name).filter(|name| !name.is_empty()), seconds(ttl));
                Message::new(&Extend { queue, receipt: secret, visibility }, timeout)
            }
            (Kind::Delivery, _) => {
                let queue = Some(name).filter(|name| !name.is_empty());
                let give_back = GiveBack { queue, receipt: secret, delay: 0.0, note: None };
                Message::new(&give_back, timeout)
            }
        }
    }

    /// Returns the path of a call on the pool of this path.
    fn path_of<R: wire::Request>(&self) -> String {
        format!("{}{}", self.path(), R::CALL.of_pool().unwrap_or_default())
    }

    /// Reads the answer to a call on the grant that has this secret.
    pub(crate) fn read(&self, secret: &str, outcome: Outcome) -> Result<Value, Error> {
        match (outcome, self) {
            (Outcome::Done(value), _) => match value.get(self.secret_field()) {
                Some(other) if other != secret => Err(nonsense()),
                _ => Ok(value),
            },
            (Outcome::No(value), Kind::Name) => Err(rejected(refusal(value))),
            (Outcome::No(value), Kind::Delivery) => {
                Err(Error::Stale { reason: refusal(value).reason })
            }
            (Outcome::No(_), _) => Err(over("expired")),
            (Outcome::Refused { status: 404, .. }, Kind::Slot | Kind::PoolSlot(_)) => {
                Err(over("deleted"))
            }
            (outcome, _) => Err(outcome.into_error()),
        }
    }

    fn secret_field(&self) -> &'static str {
        match self {
            Kind::Name => "grant",
            Kind::Slot | Kind::PoolSlot(_) => "lease",
            Kind::Delivery => "receipt",
        }
    }
}

/// Reads from the answer to a renewal of any kind how long the grant lasts.
pub(crate) fn renewed_for(value: Value) -> Result<Duration, Error> {
    #[derive(Deserialize)]
    struct Renewed {
        expires_in: Seconds,
    }
    typed(value).map(|Renewed { expires_in }| expires_in.duration())
}

/// Returns the error of a slot that has ended. The server names no reason, so this does.
fn over(reason: &str) -> Error {
    Error::Rejected { reason: reason.into(), by: None, current: None }
}

/// Returns what an error means for the hold of a grant with this token.
pub(crate) fn loss(token: i64, error: Error) -> Loss {
    match error {
        // The pool was deleted.
        Error::Rejected { reason, .. } if reason == "deleted" => Loss::Broken,
        Error::Rejected { reason, by, current } => {
            match litelease_core::Reason::from_word(&reason, by) {
                Some(reason) => {
                    let current = current.map(|current| (current.token, current.owner));
                    Loss::from_rejection(token, reason, current, Loss::FileReplaced)
                }
                None => Loss::FileReplaced,
            }
        }
        Error::Stale { reason } if reason == "expired" => Loss::Expired,
        Error::Stale { reason } => Loss::Stale { reason: reason.replace('_', " ") },
        // An operator may give an access key back, so the hold is not lost before its trust window
        // ends.
        error => Loss::CannotRenew { error: error.to_string() },
    }
}
