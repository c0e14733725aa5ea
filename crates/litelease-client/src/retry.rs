//! Requests that are repeated until they are answered, each under one key.

use std::time::Duration;

use litelease_hold::{Clock, SystemClock, unique};
use serde_json::Value;
use tokio::time::sleep;

use crate::Error;
use crate::client::{Client, PATIENCE, nonsense, pauses, rejected, seconds};
use crate::mode::Mode;
use crate::transport::{Outcome, Request};

/// For how long a request is repeated while the server cannot be reached.
pub(crate) const RETRY: Duration = Duration::from_secs(30);

/// An answer of the server.
pub(crate) struct Reply {
    answer: Result<Value, Value>,
    /// An earlier try of the same request may have been done.
    pub(crate) is_repeated: bool,
    /// It is about a receipt, and not about a grant.
    is_of_queue: bool,
}

impl Reply {
    /// Returns what was done, or why it cannot be.
    pub(crate) fn done(self) -> Result<Value, Error> {
        self.answer.map_err(|no| refusal(&no, self.is_of_queue))
    }

    /// Checks that it was done.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.done().map(drop)
    }

    /// Returns the answer as it is: yes or no.
    pub(crate) fn answer(self) -> Result<Value, Value> {
        self.answer
    }

    /// Checks that a verb was done that gives this reason when it is done twice.
    pub(crate) fn done_or_already(self, reason: &str) -> Result<(), Error> {
        match self.answer {
            Err(no) if self.is_repeated && no["reason"] == *reason => Ok(()),
            answer => answer.map(drop).map_err(|no| refusal(&no, self.is_of_queue)),
        }
    }
}

impl<M: Mode> Client<M> {
    /// Sends a request until it is answered, and reads the answer. The server knows by its key
    /// that it is the same one.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        call: &'static str,
        body: Value,
        read: impl FnOnce(Reply) -> Result<T, Error> + Send + 'static,
    ) -> M::Answer<T> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            let reply = client.retry(call, body, unique(), Duration::ZERO, RETRY).await?;
            read(reply)
        })
    }

    /// Sends a request until it is answered, and reads a part of what was done.
    pub(crate) fn ask_for<T: Send + 'static>(
        &self,
        call: &'static str,
        body: Value,
        read: impl FnOnce(&Value) -> Option<T> + Send + 'static,
    ) -> M::Answer<T> {
        self.ask(call, body, |reply| read(&reply.done()?).ok_or_else(nonsense))
    }

    /// Sends a request under this key until it is answered. It waits for as long as `wait`, if its
    /// body has a field for that time.
    pub(crate) async fn retry(
        &self,
        call: &str,
        mut body: Value,
        tag: String,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply, Error> {
        let (first, path) = (SystemClock.now(), format!("/v1/{call}"));
        let (mut pauses, mut is_repeated) = (pauses(), false);
        loop {
            let waited = SystemClock.now().saturating_sub(first);
            let left = wait.saturating_sub(waited);
            body.get_mut("wait").into_iter().for_each(|field| *field = seconds(left).into());
            let (path, tag, body) = (path.clone(), tag.clone(), Some(body.clone()));
            let request = Request { path, tag, body, timeout: left.saturating_add(PATIENCE) };
            let is_of_queue = call.starts_with("queue/");
            let why = match self.transport.send(request).await {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                Outcome::Done(done) => {
                    return Ok(Reply { answer: Ok(done), is_repeated, is_of_queue });
                }
                Outcome::No(no) => return Ok(Reply { answer: Err(no), is_repeated, is_of_queue }),
                outcome => return Err(outcome.into_error()),
            };
            if waited > wait.saturating_add(patience) {
                return Err(Error::Unreachable(why));
            }
            is_repeated = true;
            sleep(pauses()).await;
        }
    }

    /// Reads something at a path, and tries again for this long while the server cannot be reached.
    pub(crate) fn find<T: Send + 'static>(
        &self,
        path: String,
        time: Duration,
        read: impl FnOnce(&Value) -> Option<T> + Send + 'static,
    ) -> M::Answer<T> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            read(&client.get(&path, time).await?).ok_or_else(nonsense)
        })
    }

    /// Reads a page of a list, whose entries are in this field. Returns what to append to the path
    /// for the next page, if there is one.
    pub(crate) async fn page(
        &self,
        path: &str,
        field: &str,
        time: Duration,
    ) -> Result<(Vec<Value>, Option<String>), Error> {
        let mut page = self.get(path, time).await?;
        let next = page["next"].as_str().map(|next| format!("&after={}", encoded(next)));
        match page[field].take() {
            Value::Array(entries) => Ok((entries, next)),
            _ => Err(nonsense()),
        }
    }

    async fn get(&self, path: &str, time: Duration) -> Result<Value, Error> {
        let (first, mut pauses) = (SystemClock.now(), pauses());
        loop {
            let request =
                Request { path: path.into(), tag: unique(), body: None, timeout: PATIENCE };
            let why = match self.transport.send(request).await {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                Outcome::Done(found) => return Ok(found),
                Outcome::No(no) => return Err(refusal(&no, path.starts_with("/v1/queue/"))),
                outcome => return Err(outcome.into_error()),
            };
            if SystemClock.now().saturating_sub(first) > time {
                return Err(Error::Unreachable(why));
            }
            sleep(pauses()).await;
        }
    }
}

/// Returns the path of a call with a query.
pub(crate) fn path(call: &str, query: &[(&str, &str)]) -> String {
    let query = query.iter().map(|(field, text)| format!("{field}={}", encoded(text)));
    format!("/v1/{call}?{}", query.collect::<Vec<_>>().join("&"))
}

/// Encodes a text for a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            byte => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

fn refusal(no: &Value, is_of_queue: bool) -> Error {
    let text = |field: &str| no[field].as_str();
    match (text("reason"), no["requested"]["requester"].as_str()) {
        (Some(reason), _) if is_of_queue => Error::Stale { reason: reason.into() },
        (_, Some(requester)) => Error::RequestedBy { requester: requester.into() },
        _ => rejected(no),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_query_are_encoded() {
        let path = path("leases", &[("limit", "500"), ("prefix", "a b/ä&=")]);
        assert_eq!(path, "/v1/leases?limit=500&prefix=a%20b%2F%C3%A4%26%3D");
    }
}
