//! One request and its answer. An answer that does not belong to the request is none.

use std::io;
use std::time::Duration;

use serde_json::Value;
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body, RequestBuilder};

use crate::Error;
use crate::access::{Key, ServerUrl};
use crate::builder;
use crate::local_socket::LocalConnector;

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
    /// The URL or the certificate is wrong: trying again does not help until one is changed.
    Misconfigured(String),
    /// The answer is not known, or trying again may help.
    Unknown(String),
    /// Nothing was sent: there is no connection.
    Unreached(String),
}

impl Transport {
    pub(crate) fn new(server: &ServerUrl, key: Option<Key>, roots: RootCerts) -> Self {
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .http_status_as_error(false)
            // A redirect would take the access key somewhere else.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let config = match server.loopback {
            Some(_) => config.proxy(None),
            None => config,
        };
        let (key, socket) = key.map_or((None, None), |key| (Some(key.text), key.socket));
        let agent = match socket {
            Some(socket) => {
                let connector = LocalConnector(socket);
                Agent::with_parts(config.build(), connector, DefaultResolver::default())
            }
            None => config.build().into(),
        };
        Transport { agent, base: server.base.clone(), key }
    }

    /// Sends a call on names, and waits for its answer for at most `timeout`.
    pub(crate) fn call(&self, call: &str, tag: &str, body: &Value, timeout: Duration) -> Outcome {
        self.post(&format!("/v1/{call}"), tag, body, timeout)
    }

    /// Sends a request to a path, and waits for its answer for at most `timeout`. `tag` must come
    /// back with the answer: so an answer to another request, which a proxy or a broken connection
    /// has kept, is not taken for this one's.
    pub(crate) fn post(&self, path: &str, tag: &str, body: &Value, timeout: Duration) -> Outcome {
        let request = self.agent.post(format!("{}{path}", self.base));
        let request = self.with_key(request.config().timeout_global(Some(timeout)).build());
        let request =
            request.header("content-type", "application/json").header("idempotency-key", tag);
        read(request.send(body.to_string()), tag)
    }

    /// Opens a stream of events. A read fails if nothing comes for `patience`.
    pub(crate) fn stream(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<ureq::BodyReader<'static>, Outcome> {
        let request = self.agent.get(format!("{}{path}", self.base));
        let request = request
            .config()
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .build();
        match self.with_key(request).call() {
            Ok(response) if response.status().as_u16() == 200 => {
                Ok(response.into_body().into_with_config().limit(u64::MAX).reader())
            }
            answer => Err(read(answer, "")),
        }
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
        let request = self.with_key(request.config().timeout_global(Some(timeout)).build());
        read(request.header("idempotency-key", tag).call(), tag)
    }

    fn with_key<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

/// Reads the answer to the request that was sent with this tag.
fn read(answer: Result<Response<Body>, ureq::Error>, tag: &str) -> Outcome {
    let mut response = match answer {
        Ok(response) => response,
        Err(error) if is_unsent(&error) => return Outcome::Unreached(error.to_string()),
        Err(error) => {
            let lasting = builder::misconfigured(&error).map(Outcome::Misconfigured);
            return lasting.unwrap_or_else(|| Outcome::Unknown(error.to_string()));
        }
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

/// Checks whether a request has failed before anything was sent.
fn is_unsent(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Io(error) => {
            matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
        }
        _ => false,
    }
}

impl Outcome {
    /// Returns the error of an outcome that ends a call.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Outcome::Refused { status, text } => Error::Refused { status, text },
            Outcome::Misconfigured(why) | Outcome::Unknown(why) | Outcome::Unreached(why) => {
                Error::Unreachable(why)
            }
            Outcome::Done(_) | Outcome::No(_) => {
                Error::Unreachable("no answer was expected".into())
            }
        }
    }
}
