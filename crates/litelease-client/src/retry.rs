//! Requests that are repeated until they are answered, each under one key.

use std::time::Duration;

use litelease_hold::{Clock, SystemClock, unique};
use litelease_wire::{Refusal, Request};
use serde_json::Value;
use tokio::time::sleep;

use crate::Error;
use crate::client::{Client, PATIENCE, pauses, rejected, seconds};
use crate::mode::Mode;
use crate::tick::refused_tick;
use crate::transport::{Message, Outcome, to_json, typed};

/// How long a request is repeated while the server cannot be reached.
pub(crate) const RETRY: Duration = Duration::from_secs(30);

/// An answer of the server.
pub(crate) struct Reply<A> {
    /// The result, or the reason of the refusal.
    pub(crate) answer: Result<A, Refusal>,
    /// True if an earlier try of the same request may have been carried out.
    pub(crate) is_repeated: bool,
    /// True if the request was about a receipt, and not about a grant.
    is_of_queue: bool,
}

impl<A> Reply<A> {
    /// Returns the result, or the refusal as an error.
    pub(crate) fn done(self) -> Result<A, Error> {
        self.answer.map_err(|no| refused(no, self.is_of_queue))
    }

    /// Checks that the request was carried out.
    pub(crate) fn check(self) -> Result<(), Error> {
        self.done().map(drop)
    }

    /// Checks that the request was carried out. `reason` is the server's word if it was already.
    pub(crate) fn done_or_already(self, reason: &str) -> Result<(), Error> {
        match self.answer {
            Err(no) if self.is_repeated && no.reason == reason => Ok(()),
            answer => answer.map(drop).map_err(|no| refused(no, self.is_of_queue)),
        }
    }
}

impl<M: Mode> Client<M> {
    /// Sends a request until it is answered, and reads the answer. All tries have one key, by which
    /// the server knows them as one request.
    pub(crate) fn ask<R: Request, T: Send + 'static>(
        &self,
        request: R,
        read: impl FnOnce(Reply<R::Answer>) -> Result<T, Error> + Send + 'static,
    ) -> M::Answer<T> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            read(client.retry(&request, unique(), Duration::ZERO, RETRY).await?)
        })
    }

    /// Sends a request until it is answered, and returns a part of the result.
    pub(crate) fn ask_for<R: Request, T: Send + 'static>(
        &self,
        request: R,
        read: impl FnOnce(R::Answer) -> T + Send + 'static,
    ) -> M::Answer<T> {
        self.ask(request, |reply| reply.done().map(read))
    }

    /// Sends a request under this key until it is answered. If its body has a field for the time to
    /// wait, it waits for `wait`.
    pub(crate) async fn retry<R: Request>(
        &self,
        request: &R,
        tag: String,
        wait: Duration,
        patience: Duration,
    ) -> Result<Reply<R::Answer>, Error> {
        let (first, path, mut body) = (SystemClock.now(), R::CALL.path, to_json(request));
        let (mut pauses, mut is_repeated) = (pauses(), false);
        let is_of_queue = path.starts_with(OF_QUEUES);
        loop {
            let waited = SystemClock.now().saturating_sub(first);
            let left = wait.saturating_sub(waited);
            body.get_mut("wait").into_iter().for_each(|field| *field = seconds(left).into());
            let (path, tag, body) = (path.into(), tag.clone(), Some(body.clone()));
            let timeout = left.saturating_add(PATIENCE);
            let why = match self.transport.send(Message { path, tag, body, timeout }).await {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                Outcome::Done(done) => {
                    return Ok(Reply { answer: Ok(typed(done)?), is_repeated, is_of_queue });
                }
                Outcome::No(no) => {
                    return Ok(Reply { answer: Err(refusal(no)), is_repeated, is_of_queue });
                }
                outcome => return Err(outcome.into_error()),
            };
            if waited > wait.saturating_add(patience) {
                return Err(Error::Unreachable(why));
            }
            is_repeated = true;
            sleep(pauses()).await;
        }
    }

    /// Sends a read, and repeats it for this long while the server cannot be reached.
    pub(crate) fn find<R: Request, T: Send + 'static>(
        &self,
        request: R,
        time: Duration,
        read: impl FnOnce(R::Answer) -> T + Send + 'static,
    ) -> M::Answer<T> {
        let client = self.clone();
        M::answer(
            &self.transport,
            async move { Ok(read(client.get::<R>(path(&request), time).await?)) },
        )
    }

    /// Reads a list page by page. `read` returns the entries of a page, and the entry after which
    /// the next page begins.
    pub(crate) fn list<R: Request, T: Send + 'static>(
        &self,
        request: R,
        time: Duration,
        read: fn(R::Answer) -> Page<T>,
    ) -> M::Answer<Vec<T>> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            let (mut all, mut after) = (Vec::new(), None);
            loop {
                let (entries, next) = read(client.page(&request, after.as_deref(), time).await?);
                all.extend(entries);
                after = next;
                if after.is_none() {
                    return Ok(all);
                }
            }
        })
    }

    /// Reads the page that follows an entry.
    pub(crate) async fn page<R: Request>(
        &self,
        request: &R,
        after: Option<&str>,
        time: Duration,
    ) -> Result<R::Answer, Error> {
        let mut path = path(request);
        after.into_iter().for_each(|after| path += &format!("&after={}", encoded(after)));
        self.get::<R>(path, time).await
    }

    async fn get<R: Request>(&self, path: String, time: Duration) -> Result<R::Answer, Error> {
        let (first, mut pauses) = (SystemClock.now(), pauses());
        loop {
            let request =
                Message { path: path.clone(), tag: unique(), body: None, timeout: PATIENCE };
            let why = match self.transport.send(request).await {
                Outcome::Unknown(why) | Outcome::Unreached(why) => why,
                Outcome::Done(found) => return typed(found),
                Outcome::No(no) => return Err(refused(refusal(no), path.starts_with(OF_QUEUES))),
                outcome => return Err(outcome.into_error()),
            };
            if SystemClock.now().saturating_sub(first) > time {
                return Err(Error::Unreachable(why));
            }
            sleep(pauses()).await;
        }
    }
}

/// The entries of a page, and the entry after which the next page begins.
pub(crate) type Page<T> = (Vec<T>, Option<String>);

/// The start of the paths of calls on queues.
const OF_QUEUES: &str = "/v1/queue/";

/// Returns the path of a call with a query.
pub(crate) fn path<R: Request>(request: &R) -> String {
    let fields = match to_json(request) {
        Value::Object(fields) => fields,
        _ => Default::default(),
    };
    let query = fields.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name}={}", encoded(text)),
        value => format!("{name}={value}"),
    });
    format!("{}?{}", R::CALL.path, query.collect::<Vec<_>>().join("&"))
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

/// Parses a refusal. A proxy may have sent another text.
pub(crate) fn refusal(no: Value) -> Refusal {
    typed(no).unwrap_or_else(|_| Refusal::new("rejected", "the server has refused it"))
}

fn refused(no: Refusal, is_of_queue: bool) -> Error {
    if let Some(error) = refused_tick(&no) {
        return error;
    }
    match no.requested {
        _ if is_of_queue => Error::Stale { reason: no.reason },
        Some(requested) => Error::RequestedBy { requester: requested.requester },
        None => rejected(no),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_query_are_encoded() {
        let prefix = Some("a b/ä&=".to_owned());
        let (queue, after) = (None, None);
        let path = path(&litelease_wire::ListQueues { queue, prefix, after, limit: Some(500) });
        assert_eq!(path, "/v1/queues?limit=500&prefix=a%20b%2F%C3%A4%26%3D");
    }
}
