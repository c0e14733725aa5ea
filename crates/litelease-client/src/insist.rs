//! Requests that are repeated until they are answered, each under one key.

use std::thread::sleep;
use std::time::Duration;

use litelease_hold::{Clock, SystemClock, unique};
use serde_json::Value;

use crate::Error;
use crate::client::{Client, PATIENCE, pauses, rejected, seconds};
use crate::transport::Outcome;

/// For how long a request is repeated while the server cannot be reached.
const INSIST: Duration = Duration::from_secs(30);

/// An answer of the server.
pub(crate) struct Told {
    answer: Result<Value, Value>,
    /// An earlier try of the same request may have been done.
    pub(crate) is_repeated: bool,
    /// It is about a receipt, and not about a grant.
    is_of_queue: bool,
}

impl Told {
    /// Returns what was done, or why it cannot be.
    pub(crate) fn done(self) -> Result<Value, Error> {
        self.answer.map_err(|no| refusal(&no, self.is_of_queue))
    }

    /// Returns the answer as it is: yes or no.
    pub(crate) fn answer(self) -> Result<Value, Value> {
        self.answer
    }

    /// The same for a verb that gives this reason when it is done twice.
    pub(crate) fn done_or(self, reason: &str) -> Result<(), Error> {
        match self.answer {
            Err(no) if self.is_repeated && no["reason"] == *reason => Ok(()),
            answer => answer.map(drop).map_err(|no| refusal(&no, self.is_of_queue)),
        }
    }
}

impl Client {
    /// Sends a request until it is answered. The server knows by its key that it is the same one.
    pub(crate) fn insist(&self, call: &str, body: &Value) -> Result<Told, Error> {
        self.insist_waiting(call, body.clone(), Duration::ZERO, INSIST)
    }

    /// The same for a request that waits, if its body has a field for that time.
    pub(crate) fn insist_waiting(
        &self,
        call: &str,
        mut body: Value,
        wait: Duration,
        patience: Duration,
    ) -> Result<Told, Error> {
        let (first, tag) = (SystemClock.now(), unique());
        let (mut pauses, mut is_repeated) = (pauses(), false);
        loop {
            let waited = SystemClock.now().saturating_sub(first);
            let left = wait.saturating_sub(waited);
            body.get_mut("wait").into_iter().for_each(|field| *field = seconds(left).into());
            let why = match self.transport.call(call, &tag, &body, left.saturating_add(PATIENCE)) {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                outcome => return told(call, outcome, is_repeated),
            };
            if waited > wait.saturating_add(patience) {
                return Err(Error::Unreachable(why));
            }
            is_repeated = true;
            sleep(pauses());
        }
    }

    /// Reads something, and tries again while the server cannot be reached.
    pub(crate) fn look(&self, call: &str, query: &[(&str, &str)]) -> Result<Value, Error> {
        self.look_within(call, query, INSIST)
    }

    /// Reads something, and tries again for this long while the server cannot be reached.
    pub(crate) fn look_within(
        &self,
        call: &str,
        query: &[(&str, &str)],
        time: Duration,
    ) -> Result<Value, Error> {
        let (first, mut pauses) = (SystemClock.now(), pauses());
        loop {
            let why = match self.transport.look(call, &unique(), query, PATIENCE) {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                outcome => return told(call, outcome, false)?.done(),
            };
            if SystemClock.now().saturating_sub(first) > time {
                return Err(Error::Unreachable(why));
            }
            sleep(pauses());
        }
    }
}

fn told(call: &str, outcome: Outcome, is_repeated: bool) -> Result<Told, Error> {
    let is_of_queue = call.starts_with("queue/");
    match outcome {
        Outcome::Done(value) => Ok(Told { answer: Ok(value), is_repeated, is_of_queue }),
        Outcome::No(value) => Ok(Told { answer: Err(value), is_repeated, is_of_queue }),
        outcome => Err(outcome.into_error()),
    }
}

fn refusal(no: &Value, is_of_queue: bool) -> Error {
    let text = |field: &str| no[field].as_str();
    match (text("reason"), no["requested"]["requester"].as_str()) {
        (Some(reason), _) if is_of_queue => Error::Stale { reason: reason.into() },
        (_, Some(requester)) => Error::RequestedBy { requester: requester.into() },
        _ => rejected(no),
    }
}
