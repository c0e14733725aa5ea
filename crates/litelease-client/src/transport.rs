//! One request and its answer. An answer that does not belong to the request is none.

use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, RequestBuilder};

use crate::Error;
use crate::access::Place;
use crate::builder;

/// Sends requests to one server.
pub(crate) struct Transport {
    agent: Agent,
    base: String,
    key: Option<String>,
}

/// The largest answer that is read: an item of 1 MiB whose every byte is escaped, and more.
const LONGEST_ANSWER: u64 = 8 * 1024 * 1024;

/// What became of a request.
pub(crate) enum Outcome {
    /// The server has answered 200.
    Done(Value),
    /// The server has answered that it cannot be: 409.
    No(Value),
    /// The server refuses it, and trying again does not help.
    Refused { status: u16, text: String },
    /// The answer is not known, or trying again may help.
    Unknown(String),
}

impl Transport {
    pub(crate) fn new(place: &Place, key: Option<String>, roots: RootCerts) -> Self {
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .http_status_as_error(false)
            // A redirect would take the access key somewhere else.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let config = match place.loopback {
            Some(_) => config.proxy(None),
            None => config,
        };
        Transport { agent: config.build().into(), base: place.base.clone(), key }
    }

    /// Sends a call on names, and waits for its answer for at most `timeout`. `tag` must come back
    /// with the answer: so an answer to another request, which a proxy or a broken connection has
    /// kept, is not taken for this one's.
    pub(crate) fn call(&self, call: &str, tag: &str, body: &Value, timeout: Duration) -> Outcome {
        let request = self.agent.post(format!("{}/v1/{call}", self.base));
        let request = request.config().timeout_global(Some(timeout)).build();
        let request = self.with_key(request, tag).header("content-type", "application/json");
        outcome(request.send(body.to_string()), tag)
    }

    /// Sends a call that only reads.
    pub(crate) fn look(
        &self,
        call: &str,
        tag: &str,
        query: &[(&str, &str)],
        timeout: Duration,
    ) -> Outcome {
        let request = self.agent.get(format!("{}/v1/{call}", self.base));
        let request = request.query_pairs(query.iter().copied());
        let request = request.config().timeout_global(Some(timeout)).build();
        outcome(self.with_key(request, tag).call(), tag)
    }

    fn with_key<B>(&self, request: RequestBuilder<B>, tag: &str) -> RequestBuilder<B> {
        let request = request.header("idempotency-key", tag);
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

/// Reads an answer.
fn outcome(answered: Result<Response<Body>, ureq::Error>, tag: &str) -> Outcome {
    let mut response = match answered {
        Ok(response) => response,
        Err(error) => return Outcome::Unknown(builder::explained(&error)),
    };
    let status = response.status().as_u16();
    let echoed = response.headers().get("idempotency-key").map(|tag| tag.as_bytes().to_vec());
    let text = response.body_mut().with_config().limit(LONGEST_ANSWER).read_to_string();
    let value = match text.map(|text| serde_json::from_str::<Value>(&text)) {
        Ok(Ok(value)) => value,
        Ok(Err(_)) => Value::Null,
        Err(error) => return Outcome::Unknown(error.to_string()),
    };
    let text = value["error"].as_str().unwrap_or("there is no server of leases there");
    match status {
        200 | 409 if echoed.as_deref() != Some(tag.as_bytes()) => {
            Outcome::Unknown("the answer belongs to another request".into())
        }
        200 => Outcome::Done(value),
        409 => Outcome::No(value),
        // Too many wait, a proxy in between, the database, a shutdown.
        408 | 429 | 500..=599 => Outcome::Unknown(format!("{status}: {text}")),
        _ => Outcome::Refused { status, text: text.into() },
    }
}

impl Outcome {
    /// Returns the error of an outcome that ends a call.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Outcome::Refused { status, text } => Error::Refused { status, text },
            Outcome::Unknown(why) => Error::Unreachable(why),
            Outcome::Done(_) | Outcome::No(_) => {
                Error::Unreachable("no answer was expected".into())
            }
        }
    }
}
