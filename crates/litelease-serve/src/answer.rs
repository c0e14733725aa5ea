//! Answers as HTTP has them. An error is one clear sentence, with nothing secret in it.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use litelease::{PoolInfo, SlotInfo};
use serde_json::{Value, json};

use crate::job::{Answer, Id, Job, Jobs, State, Trouble};

/// A request that is not done, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Refused {
    pub(crate) fn new(status: u16, text: impl Into<String>) -> Self {
        Refused { status, text: text.into() }
    }
}

impl From<Trouble> for Refused {
    fn from(trouble: Trouble) -> Self {
        let (status, text) = match trouble {
            Trouble::NoSuchPool => (404, "there is no such pool"),
            Trouble::TooManyWaiters => (429, "too many borrows wait already"),
            Trouble::TooShort => (409, "the ttl was over before the slot could be handed out"),
            Trouble::Exhausted => (502, "no larger token exists in this file"),
            Trouble::Database => (502, "the database failed; it is safe to try again"),
            Trouble::Stopping => (503, "the server is shutting down"),
        };
        Refused::new(status, text)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        json_response(self.status, &json!({ "error": self.text }))
    }
}

/// The response to an answer of the writer.
pub(crate) fn respond(answer: Answer, id: &Id, jobs: &Jobs) -> Response {
    match answer {
        Answer::Pool(info) | Answer::State(State { info, .. }) => {
            json_response(200, &pool(id, info))
        }
        Answer::Deleted => json_response(200, &json!({ "deleted": true })),
        Answer::Nothing => Refused::new(409, "no resource available").into_response(),
        Answer::Returned(returned) => json_response(200, &json!({ "returned": returned })),
        Answer::Renewed { lease, slot, ttl_ms } => json_response(200, &lent(&lease, slot, ttl_ms)),
        Answer::Over => Refused::new(409, "the lease is no longer live").into_response(),
        Answer::Lent(grant) => {
            let borrowed = grant.borrowed;
            let text = lent(&borrowed.lease, borrowed.slot, grant.ttl_ms);
            let unsent = (!grant.has_key).then(|| Unsent {
                jobs: jobs.clone(),
                id: id.clone(),
                lease: Some(borrowed.lease),
            });
            with_type(200, Body::new(GrantBody { data: Some(text.to_string().into()), unsent }))
        }
    }
}

/// A grant whose answer nobody has begun to send. If nobody does, it is given back.
pub(crate) struct Unsent {
    pub(crate) jobs: Jobs,
    pub(crate) id: Id,
    pub(crate) lease: Option<String>,
}

impl Drop for Unsent {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            // Where the writer is gone, the lease ends by itself.
            let _ = self.jobs.send(Job::GiveBack { id: self.id.clone(), lease });
        }
    }
}

/// The body of a grant, which knows whether it was sent.
struct GrantBody {
    data: Option<Bytes>,
    unsent: Option<Unsent>,
}

impl HttpBody for GrantBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(unsent) = &mut self.unsent {
            unsent.lease = None;
        }
        Poll::Ready(self.data.take().map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.as_ref().map_or(0, |data| data.len() as u64))
    }
}

/// The state of a pool for everybody to see.
pub(crate) fn state(state: &State) -> Value {
    let slots = state.slots.iter().map(|row| {
        let left_ms = row.slot.expires_at_ms.saturating_sub(state.now_ms).max(0);
        json!({
            "position": row.slot.position,
            "token": row.slot.token,
            "expires_in": seconds(left_ms),
            "note": row.note,
        })
    });
    json!({
        "count": state.info.count,
        "in_use": state.info.in_use,
        "available": state.info.available(),
        "waiters": state.waiters,
        "slots": slots.collect::<Vec<_>>(),
    })
}

pub(crate) fn json_response(status: u16, value: &Value) -> Response {
    with_type(status, Body::from(value.to_string()))
}

fn with_type(status: u16, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

fn pool(id: &Id, info: PoolInfo) -> Value {
    let (count, in_use, available) = (info.count, info.in_use, info.available());
    json!({ "id": &**id, "count": count, "in_use": in_use, "available": available })
}

fn lent(lease: &str, slot: SlotInfo, ttl_ms: i64) -> Value {
    json!({
        "lease": lease,
        "position": slot.position,
        "expires_at_unix": slot.expires_at_ms.div_euclid(1000),
        "expires_in": seconds(ttl_ms),
        "token": slot.token,
    })
}

/// Milliseconds as seconds, without a fraction where there is none.
fn seconds(ms: i64) -> Value {
    match ms % 1000 {
        0 => (ms / 1000).into(),
        _ => (ms as f64 / 1000.0).into(),
    }
}
