//! The kinds of grants on a server, and how the calls on each are written.

use std::time::Duration;

use litelease_hold::unique;
use serde_json::{Value, json};

use crate::client::{Lease, duration, lease, nonsense, rejected};
use crate::transport::{Outcome, Request};
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

impl Kind {
    /// Returns the path of the calls. No two kinds have the same.
    pub(crate) fn path(&self) -> &str {
        match self {
            Kind::Name => "/v1",
            Kind::Slot => "/v1/slot",
            Kind::PoolSlot(path) => path,
            Kind::Delivery => "/v1/queue",
        }
    }

    /// Checks whether it is a slot of a pool.
    pub(crate) fn is_slot(&self) -> bool {
        matches!(self, Kind::Slot | Kind::PoolSlot(_))
    }

    /// Returns the path of the call that grants it.
    pub(crate) fn claim_path(&self) -> String {
        let call = match self {
            Kind::Name => "claim",
            Kind::Slot | Kind::PoolSlot(_) => "borrow",
            Kind::Delivery => "receive",
        };
        format!("{}/{call}", self.path())
    }

    /// Returns the error of a claim that was refused because there is a holder, or `None` if the
    /// answer names none.
    pub(crate) fn busy(&self, value: &Value) -> Option<Error> {
        match self {
            Kind::Name => Some(Error::Busy(Box::new(lease(&value["current"])?))),
            _ => Some(Error::NoneFree),
        }
    }

    /// Reads what was granted, and the secret that opens it. An answer about a slot does not say
    /// the `name` of its pool.
    pub(crate) fn granted(&self, name: &str, value: &Value) -> Option<(Lease, String)> {
        let lease = match self {
            Kind::Name => lease(value)?,
            _ => Lease {
                name: name.into(),
                owner: format!("slot {}", value["position"].as_i64()?),
                token: value["token"].as_i64()?,
                expires_in: duration(&value["expires_in"])?,
            },
        };
        Some((lease, value[self.secret_field()].as_str()?.into()))
    }

    /// Returns a call on a grant: `renew`, `release` or another one on names. `ttl` is for a
    /// renewal.
    pub(crate) fn request(
        &self,
        call: &str,
        name: &str,
        secret: &str,
        ttl: Option<Duration>,
        timeout: Duration,
    ) -> Request {
        let mut body = json!({ self.secret_field(): secret });
        let (call, time) = match (self, call) {
            (Kind::Delivery, "renew") => ("extend", "visibility"),
            (Kind::Slot | Kind::PoolSlot(_), "release") => ("return", "ttl"),
            (_, call) => (call, "ttl"),
        };
        ttl.into_iter().for_each(|ttl| body[time] = ttl.as_secs_f64().into());
        match self {
            Kind::Slot => body["name"] = name.into(),
            Kind::Delivery if !name.is_empty() => body["queue"] = name.into(),
            _ => {}
        }
        let path = format!("{}/{call}", self.path());
        Request { path, tag: unique(), body: Some(body), timeout }
    }

    /// Reads the answer to a call on the grant that has this secret.
    pub(crate) fn read(&self, secret: &str, outcome: Outcome) -> Result<Value, Error> {
        match (outcome, self) {
            (Outcome::Done(value), _) => match value.get(self.secret_field()) {
                Some(other) if other != secret => Err(nonsense()),
                _ => Ok(value),
            },
            (Outcome::No(value), Kind::Name) => Err(rejected(&value)),
            (Outcome::No(value), Kind::Delivery) => {
                Err(Error::Stale { reason: value["reason"].as_str().unwrap_or("unknown").into() })
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

/// Returns the error of a slot that is over, for which the server has no word.
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
        // An access key that was taken back may be given again: the trust window decides.
        error => Loss::CannotRenew { error: error.to_string() },
    }
}
