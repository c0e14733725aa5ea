//! Responses. An error is one clear sentence without secrets.

use std::borrow::Cow;

use bytes::Bytes;
use litelease::Scope;
use litelease_wire::{Invalid, LONGEST, Refusal};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::answer::UndeliveredGrant;
use crate::job::{Job, JobError, Jobs};

/// The response to a request.
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The content type of the body.
    pub(crate) kind: &'static str,
    headers: Vec<(&'static str, Cow<'static, str>)>,
    /// The number of the request, for its id.
    pub(crate) number: u64,
    pub(crate) body: Body,
}

/// The headers that every response has, besides its request id.
pub(crate) const ALWAYS: [(&str, &str); 3] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
];

/// The body of a response.
pub(crate) enum Body {
    Whole {
        text: Bytes,
        unsent: Option<Unsent>,
    },
    /// Texts, sent one after the other until the sender is gone.
    Stream(mpsc::Receiver<Bytes>),
}

impl Response {
    pub(crate) fn new(status: u16, kind: &'static str, text: impl Into<Bytes>) -> Self {
        let body = Body::Whole { text: text.into(), unsent: None };
        Response { status, kind, headers: Vec::new(), number: 0, body }
    }

    /// Checks whether the response lends a slot that is returned if the response is not sent.
    pub(crate) fn is_grant(&self) -> bool {
        matches!(self.body, Body::Whole { unsent: Some(_), .. })
    }

    /// Returns an answer as JSON, whose members are in alphabetical order.
    pub(crate) fn json(status: u16, value: &impl Serialize) -> Self {
        // Answers have no maps with other keys than texts, so this cannot fail.
        Response::new(status, JSON, serde_json::to_vec(value).unwrap_or_default())
    }

    /// Returns the answer to a valid request that is refused.
    pub(crate) fn refusal(refusal: &Refusal) -> Self {
        Response::json(409, refusal)
    }

    /// Returns an answer with a grant, which is taken back if the response is not sent.
    pub(crate) fn granting(
        value: &impl Serialize,
        grant: Option<UndeliveredGrant>,
        jobs: &Jobs,
    ) -> Self {
        let unsent = grant.map(|grant| Unsent { jobs: jobs.clone(), grant: Some(grant) });
        let mut response = Response::json(200, value);
        if let Body::Whole { unsent: place, .. } = &mut response.body {
            *place = unsent;
        }
        response
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Cow<'static, str>>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the headers besides those that every response has.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.headers.iter().map(|(name, value)| (*name, &**value))
    }
}

pub(crate) const JSON: &str = "application/json";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// The reason why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpError {
    pub(crate) status: u16,
    pub(crate) text: String,
    /// A header that belongs to the status.
    header: Option<(&'static str, Cow<'static, str>)>,
}

impl HttpError {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        HttpError { status, text: text.into(), header: None }
    }

    pub(crate) fn method(allow: &str) -> Self {
        let refused = HttpError::new(
            405,
            "this path does not take that method: the header Allow names those that it takes",
        );
        HttpError { header: Some(("allow", allow.to_owned().into())), ..refused }
    }

    /// Refuses a client that has sent no access key, and tells it how.
    fn unauthorized(text: &str, challenge: &'static str) -> Self {
        let header = Some(("www-authenticate", challenge.into()));
        HttpError { header, ..HttpError::new(401, text) }
    }

    /// Refuses a request that will soon be possible.
    fn later(text: &str) -> Self {
        HttpError { header: Some(("retry-after", "1".into())), ..HttpError::new(503, text) }
    }

    pub(crate) fn nothing_there() -> Self {
        HttpError::new(404, "there is nothing at this path: /docs lists the calls")
    }

    pub(crate) fn too_long(longest: usize) -> Self {
        let text = match longest {
            LONGEST => "the body is longer than 16 KiB: send a shorter one",
            _ => {
                "the body is longer than 1.5 MiB: an item has at most 1 MiB, and bytes are shortest as base64"
            }
        };
        HttpError::new(413, text)
    }

    pub(crate) fn too_slow() -> Self {
        HttpError::new(408, "the body took too long to arrive: send the request again")
    }
}

impl From<Invalid> for HttpError {
    fn from(invalid: Invalid) -> Self {
        HttpError::new(invalid.status, invalid.text)
    }
}

const UNCONFIRMED: &str = "the engine has not confirmed it, so it may or may not be done: try again, with the same \
Idempotency-Key if there is one";

const CONTENDED: &str = "nothing was done: a transaction keeps this name locked at the engine, or programs change it \
all the time; try again";

impl From<JobError> for HttpError {
    fn from(error: JobError) -> Self {
        let (status, text) = match error {
            JobError::NoSuchPool => {
                (404, "there is no such pool: it was never registered, or it was deleted")
            }
            JobError::OfService => {
                (400, "name must be another one: serve and serve/… belong to the service")
            }
            JobError::TooMany(exceeded) => return HttpError::new(429, exceeded.to_string()),
            JobError::TooShort => {
                (409, "the ttl was over before the grant could be handed out: ask for a longer one")
            }
            JobError::TooLong => {
                (400, "the time is too long: it would end after the last one that can be stored")
            }
            JobError::Exhausted => (
                502,
                "no larger token exists in this file: on its machine, litelease doctor says more",
            ),
            JobError::Damaged => (
                502,
                "what is stored for this name is invalid: on the server's machine, litelease doctor says more",
            ),
            JobError::Database => {
                (502, "the database failed: it is safe to try again; the server's log says more")
            }
            JobError::Engine => return HttpError::later(UNCONFIRMED),
            JobError::Contended => return HttpError::later(CONTENDED),
            JobError::Moved(to) => {
                let text = format!("the leases of this server went to {to}: use a server there");
                return HttpError::new(410, text);
            }
            JobError::NoWriter => {
                return HttpError::later(
                    "no server writes at the moment: one takes over within seconds, so try again",
                );
            }
            JobError::NotReady(reason) => (503, reason),
            JobError::Stopping => (503, "the server is shutting down: ask again when it is back"),
            JobError::NoKey => {
                return HttpError::unauthorized(
                    "this call needs an access key: send Authorization: Bearer KEY",
                    "Bearer realm=\"litelease\"",
                );
            }
            JobError::WrongKey => {
                return HttpError::unauthorized(
                    "the access key is not known, or has expired or was removed: ask the operator for another",
                    "Bearer realm=\"litelease\", error=\"invalid_token\"",
                );
            }
            JobError::NotAllowed(scope) => return not_allowed(scope),
        };
        HttpError::new(status, text)
    }
}

fn not_allowed(scope: Scope) -> HttpError {
    let text = format!(
        "the access key does not allow {scope} for these names: the operator makes one that does \
         with litelease access add NAME --allow '{scope}:PATTERN'"
    );
    HttpError::new(403, text)
}

impl From<HttpError> for Response {
    fn from(refused: HttpError) -> Self {
        let response = match refused.status {
            // The only one of the errors that is a refusal.
            409 => Response::refusal(&Refusal::new("too_short", refused.text)),
            status => Response::json(status, &json!({ "error": refused.text })),
        };
        refused
            .header
            .into_iter()
            .fold(response, |response, (name, value)| response.with(name, value))
    }
}

/// A grant whose response was not sent yet. Dropping it takes the grant back.
pub(crate) struct Unsent {
    pub(crate) jobs: Jobs,
    pub(crate) grant: Option<UndeliveredGrant>,
}

impl Unsent {
    /// Leaves the grant to the client: the response was sent.
    pub(crate) fn sent(mut self) {
        self.grant = None;
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            // An error means that the committer is gone: then the lease expires.
            let _ = self.jobs.send(Job::GiveBack(grant));
        }
    }
}
