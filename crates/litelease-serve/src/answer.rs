//! Responses. An error is one clear sentence without secrets.

use std::borrow::Cow;

use bytes::Bytes;
use litelease::rusqlite::types;
use litelease::{PoolInfo, SlotInfo, SlotRow, Status};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::body::LONGEST;
use crate::job::{
    Answer, AnyLease, Delivered, Grant, Id, Job, JobError, Jobs, Requested, Stale, State, Timed,
    Why,
};
use crate::value::to_json;

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

    pub(crate) fn json(status: u16, value: &Value) -> Self {
        Response::new(status, JSON, value.to_string())
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

/// Why a request is refused.
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

    /// Refuses a client that has not said who it is, with how to say it.
    fn unauthorized(text: &str, challenge: &'static str) -> Self {
        let header = Some(("www-authenticate", challenge.into()));
        HttpError { header, ..HttpError::new(401, text) }
    }

    /// Refuses what will soon be possible.
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

impl From<JobError> for HttpError {
    fn from(error: JobError) -> Self {
        let (status, text) = match error {
            JobError::NoSuchPool => {
                (404, "there is no such pool: it was never registered, or it was deleted")
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
            JobError::Engine => {
                return HttpError::later(
                    "the engine has not confirmed it, so it may or may not be done: try again, with the \
                 same Idempotency-Key if there is one",
                );
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
            JobError::NotAllowed(scope) => {
                let text = format!(
                    "the access key does not allow {scope} for these names: the operator makes one that \
                     does with litelease access add NAME --allow '{scope}:PATTERN'"
                );
                return HttpError::new(403, text);
            }
        };
        HttpError::new(status, text)
    }
}

impl From<HttpError> for Response {
    fn from(refused: HttpError) -> Self {
        let response = Response::json(refused.status, &json!({ "error": refused.text }));
        refused
            .header
            .into_iter()
            .fold(response, |response, (name, value)| response.with(name, value))
    }
}

/// Turns an answer of the committer into a response.
pub(crate) fn respond(answer: Answer, id: &Id, jobs: &Jobs) -> Response {
    match answer {
        Answer::Pool(info) | Answer::State(State { info, .. }) => {
            Response::json(200, &pool(id, info))
        }
        Answer::Queues(page) => Response::json(200, &page),
        Answer::Admitted => Response::new(200, TEXT, ""),
        Answer::Ready => Response::new(200, TEXT, "ready\n"),
        Answer::Deleted => Response::json(200, &json!({ "deleted": true })),
        Answer::Nothing => HttpError::new(409, "no resource available").into(),
        Answer::Returned(true) => {
            Response::new(200, JSON, Bytes::from_static(b"{\"returned\":true}"))
        }
        Answer::Returned(false) => {
            Response::new(200, JSON, Bytes::from_static(b"{\"returned\":false}"))
        }
        Answer::Renewed { lease, slot, ttl_ms } => {
            Response::new(200, JSON, lent(&lease, slot, ttl_ms))
        }
        Answer::Kept => Response::json(200, &json!({ "kept": true })),
        Answer::Over => HttpError::new(
            409,
            "the lease is no longer live: it has expired or was returned, so borrow again",
        )
        .into(),
        Answer::Lent { ref borrowed, ttl_ms, .. } => {
            let text = lent(&borrowed.lease_id, borrowed.slot, ttl_ms);
            granted(text, answer, id, jobs)
        }
        Answer::Granted { ref lease, ref grant, .. } => {
            granted(timed(lease, Some(grant)), answer, id, jobs)
        }
        Answer::Busy(current) => {
            busy("the name has a live owner: ask again later, or wait for it with wait", &current)
        }
        Answer::RenewedName { lease, grant } => {
            Response::new(200, JSON, timed(&lease, Some(&grant)))
        }
        Answer::Transferred(lease) => Response::new(200, JSON, timed(&lease, None)),
        Answer::Released { name, token } => {
            Response::json(200, &json!({ "released": true, "name": name, "token": token }))
        }
        Answer::Broken { name, owner, killed } => {
            Response::json(200, &json!({ "name": name, "owner": owner, "killed": killed }))
        }
        Answer::Rejected { why, current } => rejected(why, current.as_ref()),
        Answer::Name { name, token, current, waiters } => {
            let mut value = current.as_ref().map_or_else(|| ended(&name), lease);
            value["token"] = token.into();
            value["waiters"] = waiters.into();
            Response::json(200, &value)
        }
        Answer::Stored { word, name, token } => {
            Response::json(200, &json!({ word: true, "name": name, "token": token }))
        }
        Answer::Requested(asked) => Response::json(200, &requested(&asked)),
        Answer::RequestedBy(other) => {
            let text = "another client has asked for it before: wait for the name, or ask later";
            let value =
                json!({ "error": text, "reason": "requested_by", "requested": requested(&other) });
            Response::json(409, &value)
        }
        Answer::Checkpoint { name, checkpoint } => {
            let value = checkpoint.as_ref().map(|checkpoint| to_json(&checkpoint.value));
            let at = checkpoint.as_ref().map(|found| found.updated_at_ms.div_euclid(1000));
            let token = checkpoint.map(|checkpoint| checkpoint.token);
            let value =
                json!({ "name": name, "token": token, "value": value, "updated_at_unix": at });
            Response::json(200, &value)
        }
        Answer::Sent { queue, id } => Response::json(200, &json!({ "queue": queue, "id": id })),
        Answer::NoItem => no_item(),
        Answer::Delivered(ref item) => granted(delivered(item), answer, id, jobs),
        Answer::ItemDone { word, queue, id } => {
            Response::json(200, &json!({ word: true, "queue": queue, "id": id }))
        }
        Answer::Extended { queue, id, deadline_ms, left_ms } => Response::json(
            200,
            &json!({
                "queue": queue,
                "id": id,
                "expires_at_unix": deadline_ms.div_euclid(1000),
                "expires_in": seconds(left_ms),
            }),
        ),
        Answer::StaleReceipt(why) => stale(why),
        Answer::Counted { word, queue, count } => {
            Response::json(200, &json!({ word: count, "queue": queue }))
        }
        Answer::ItemLeased { left_ms } => {
            let (text, left) = (
                "a worker has the item: it can be cancelled when its delivery is over",
                seconds(left_ms),
            );
            Response::json(409, &json!({ "error": text, "reason": "leased", "expires_in": left }))
        }
        Answer::NoSuchItem => {
            let text =
                "there is no such item: it was acknowledged, cancelled, discarded or never sent";
            Response::json(409, &json!({ "error": text, "reason": "not_found" }))
        }
        Answer::QueueDeleted { queue, is_done } => {
            Response::json(200, &json!({ "deleted": is_done, "queue": queue }))
        }
        Answer::AllLeases { leases, next } => {
            let leases: Vec<Value> = leases.iter().map(any_lease).collect();
            Response::json(200, &json!({ "leases": leases, "next": next }))
        }
        Answer::Leases { leases, next } => {
            let leases: Vec<Value> = leases.iter().map(lease).collect();
            Response::json(200, &json!({ "leases": leases, "next": next }))
        }
    }
}

/// Returns the response of a grant, which is taken back if the response is not sent.
fn granted(text: Vec<u8>, answer: Answer, id: &Id, jobs: &Jobs) -> Response {
    let grant = answer.undelivered(id);
    let unsent = grant.map(|grant| Unsent { jobs: jobs.clone(), grant: Some(grant) });
    let mut response = Response::new(200, JSON, Bytes::new());
    response.body = Body::Whole { text: text.into(), unsent };
    response
}

/// Returns the response of a claim that was not granted.
pub(crate) fn busy(text: &str, current: &Timed) -> Response {
    Response::json(409, &json!({ "error": text, "current": lease(current) }))
}

/// Returns the response of a receive for which there was nothing.
pub(crate) fn no_item() -> Response {
    Response::new(200, JSON, Bytes::from_static(b"{\"item\":null}"))
}

/// Writes a delivery as JSON. By hand: a body may be long.
fn delivered(item: &Delivered) -> Vec<u8> {
    let mut text = Vec::with_capacity(256);
    put(&mut text, "{\"item\":{\"attempt\":", item.attempt);
    put(&mut text, ",\"body\":", to_json(&item.body));
    put(&mut text, ",\"expires_at_unix\":", item.deadline_ms.div_euclid(1000));
    put(&mut text, ",\"expires_in\":", seconds(item.left_ms));
    put(&mut text, ",\"id\":", item.id);
    put(&mut text, ",\"queue\":", &item.queue);
    put(&mut text, ",\"receipt\":", &item.receipt);
    put(&mut text, ",\"token\":", item.token);
    text.extend_from_slice(b"}}");
    text
}

fn stale(why: Stale) -> Response {
    let words = match why {
        Stale::Rule(reason) => reason.word(),
        Stale::Expired => "expired",
        Stale::Dead => "dead",
    };
    let text = format!("stale receipt: {words}; stop working on this item");
    Response::json(409, &json!({ "error": text, "reason": words.replace(' ', "_") }))
}

/// Writes a request for a lease as JSON.
fn requested(asked: &Requested) -> Value {
    json!({
        "name": asked.name,
        "requester": asked.requester,
        "token": asked.token,
        "until_unix": asked.until_ms.div_euclid(1000),
        "within": seconds(asked.left_ms),
    })
}

fn rejected(why: Why, current: Option<&Timed>) -> Response {
    let (reason, by, text) = match why {
        Why::UnknownGrant => (
            "unknown_grant",
            None,
            "there is no such grant: send the UUID from the answer to the claim".into(),
        ),
        Why::Rule(reason) => (reason.word(), reason.superseded_by(), format!("rejected: {reason}")),
    };
    let current = current.map(lease);
    let answer = json!({ "error": text, "reason": reason, "by": by, "current": current });
    Response::json(409, &answer)
}

/// Writes a live lease as JSON.
pub(crate) fn lease(timed: &Timed) -> Value {
    let Timed { lease, left_ms, riders } = timed;
    let mut value = json!({
        "name": lease.name,
        "owner": lease.owner,
        "token": lease.token,
        "expires_at_unix": lease.expires_at_ms.div_euclid(1000),
        "expires_in": seconds(*left_ms),
    });
    if let Some(riders) = riders {
        match &riders.value {
            Some(attached) if *attached == types::Value::Null => {}
            Some(attached) => value["value"] = to_json(attached),
            None => value["value_left_out"] = true.into(),
        }
        if let Some(asked) = &riders.requested {
            value["requested"] = requested(asked);
        }
    }
    value
}

/// Writes a name of a page as JSON.
fn any_lease(any: &AnyLease) -> Value {
    let (row, now_ms) = match any {
        AnyLease::Live(timed) => return lease(timed),
        AnyLease::Ended { row, now_ms } => (row, *now_ms),
    };
    let mut value = ended(&row.name);
    value["token"] = row.token.into();
    value["state"] = row.status(now_ms).unwrap_or(Status::Released).word().into();
    if let Some((owner, end_ms)) = &row.tenure {
        value["last_owner"] = owner.as_str().into();
        value["expired_for"] = seconds(now_ms.saturating_sub(*end_ms));
    }
    value
}

/// Writes a name that nobody has as JSON.
pub(crate) fn ended(name: &str) -> Value {
    json!({ "name": name, "owner": null, "expires_at_unix": null, "expires_in": null })
}

/// Writes a lease, and the secret of its grant, as JSON. By hand: this is the answer to most
/// requests.
fn timed(timed: &Timed, grant: Option<&str>) -> Vec<u8> {
    let Timed { lease, left_ms, .. } = timed;
    let mut text = Vec::with_capacity(256);
    put(&mut text, "{\"expires_at_unix\":", lease.expires_at_ms.div_euclid(1000));
    put(&mut text, ",\"expires_in\":", seconds(*left_ms));
    if let Some(grant) = grant {
        put(&mut text, ",\"grant\":", grant);
    }
    put(&mut text, ",\"name\":", &lease.name);
    put(&mut text, ",\"owner\":", &lease.owner);
    put(&mut text, ",\"token\":", lease.token);
    text.push(b'}');
    text
}

/// A grant whose response was not sent yet. Dropping it takes the grant back.
pub(crate) struct Unsent {
    pub(crate) jobs: Jobs,
    pub(crate) grant: Option<Grant>,
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

/// Writes the public state of a pool as JSON.
pub(crate) fn state(state: &State) -> Value {
    let mut value = counts(state.info);
    value["waiters"] = state.waiters.into();
    value["slots"] = state.slots.iter().map(|row| held_slot(row, state.now_ms)).collect();
    value
}

/// Writes how many slots a pool has and how many are lent out.
pub(crate) fn counts(info: PoolInfo) -> Value {
    json!({ "count": info.count, "in_use": info.in_use, "available": info.available() })
}

/// Writes a slot that is lent out, as every client may see it.
pub(crate) fn held_slot(row: &SlotRow, now_ms: i64) -> Value {
    let left_ms = row.slot.expires_at_ms.saturating_sub(now_ms).max(0);
    let mut slot = json!({
        "position": row.slot.position,
        "token": row.slot.token,
        "expires_in": (!row.slot.is_kept()).then(|| seconds(left_ms)),
        "note": row.note,
    });
    if row.slot.is_kept() {
        let kept_ms = row.kept_since_ms.map(|since| now_ms.saturating_sub(since).max(0));
        slot["kept_for"] = kept_ms.map_or(Value::Null, seconds);
    }
    slot
}

fn pool(id: &Id, info: PoolInfo) -> Value {
    let mut value = counts(info);
    value["id"] = (**id).into();
    value
}

/// Writes a lease as JSON. By hand: this is the answer to most requests.
fn lent(lease: &str, slot: SlotInfo, ttl_ms: i64) -> Vec<u8> {
    let mut text = Vec::with_capacity(192);
    match slot.is_kept() {
        true => text.extend_from_slice(b"{\"expires_at_unix\":null,\"expires_in\":null"),
        false => {
            put(&mut text, "{\"expires_at_unix\":", slot.expires_at_ms.div_euclid(1000));
            put(&mut text, ",\"expires_in\":", seconds(ttl_ms));
        }
    }
    put(&mut text, ",\"lease\":", lease);
    put(&mut text, ",\"position\":", slot.position);
    put(&mut text, ",\"token\":", slot.token);
    text.push(b'}');
    text
}

fn put(text: &mut Vec<u8>, before: &str, value: impl serde::Serialize) {
    text.extend_from_slice(before.as_bytes());
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(text, &value);
}

/// Converts milliseconds to seconds, as a whole number if it is one.
pub(crate) fn seconds(ms: i64) -> Value {
    match ms % 1000 {
        0 => (ms / 1000).into(),
        _ => (ms as f64 / 1000.0).into(),
    }
}
