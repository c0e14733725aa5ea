//! Claims and receives that are given up at each of their await points.

#![allow(clippy::unwrap_used)]

use std::future::poll_fn;
use std::sync::Mutex;
use std::task::Poll;

use serde_json::json;

use super::*;
use crate::stub::{Reply, Stub, eventually, refusal};

const TTL: Duration = Duration::from_secs(60);

/// What happens to the first request of an attempt. All others are answered.
#[derive(Clone, Copy, Debug)]
enum First {
    Answered,
    /// It is done, and its answer is lost.
    Lost,
    /// It is refused for now, although it could wait.
    Refused,
    Failed,
}

/// Grants one thing at a time, to the request with one key.
#[derive(Default)]
struct Granted {
    requests: usize,
    key: Option<Value>,
}

fn server(first: First) -> (Stub, Arc<Mutex<Granted>>) {
    let granted = Arc::new(Mutex::new(Granted::default()));
    let state = Arc::clone(&granted);
    let stub = Stub::new(move |path, body| {
        let mut state = state.lock().unwrap();
        let (tag, secret) = (&body["tag"], state.key.clone());
        if ["/v1/release", "/v1/queue/give-back"].contains(&path) {
            assert!([&body["grant"], &body["receipt"]].contains(&&secret.unwrap()));
            state.key = None;
            let given = json!({
                "name": "n", "token": 1, "released": true,
                "queue": "mail", "id": 1, "given_back": true,
            });
            return Reply::Json(200, given);
        }
        state.requests += 1;
        match (first, state.requests) {
            (First::Refused, 1) => {
                let status = if path == "/v1/claim" { 409 } else { 503 };
                return Reply::Json(status, refusal("busy", None, Some("b")));
            }
            (First::Failed, 1) => return Reply::Json(503, json!({ "error": "not now" })),
            _ => {}
        }
        assert_eq!(*secret.as_ref().unwrap_or(tag), *tag, "one key for all requests");
        state.key = Some(tag.clone());
        if let (First::Lost, 1) = (first, state.requests) {
            return Reply::HangUp;
        }
        let item = json!({
            "id": 1, "queue": "mail", "receipt": tag, "attempt": 1, "token": 1, "expires_in": 60,
            "expires_at_unix": 60, "body": null,
        });
        Reply::Json(
            200,
            match path {
                "/v1/claim" => json!({
                    "name": "n", "owner": "a", "token": 1, "grant": tag, "expires_in": 60,
                    "expires_at_unix": 60,
                }),
                _ => json!({ "item": item }),
            },
        )
    });
    (stub, granted)
}

/// Polls a future so many times, or until it is ready.
async fn poll_times<T>(times: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (Box::pin(future), times);
    poll_fn(|context| {
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[test]
fn whatever_is_given_up_at_any_await_point_is_given_back() {
    for first in [First::Answered, First::Lost, First::Refused, First::Failed] {
        for is_claim in [true, false] {
            for times in 1.. {
                let (stub, granted) = server(first);
                let client = stub.client();
                let same = client.clone();
                let is_done = client.transport.wait(async move {
                    let claim = json!({ "name": "n", "owner": "a" });
                    match is_claim {
                        true => {
                            let acquire = same.acquire(Kind::Name, claim, TTL, TTL, None);
                            poll_times(times, acquire).await.map(|done| done.is_ok())
                        }
                        false => {
                            let mail = same.queue("mail");
                            let receive = mail.deliver(TTL, TTL, TTL);
                            poll_times(times, receive).await.map(|done| done.is_ok())
                        }
                    }
                });
                // Each task has a reference.
                eventually("all tasks end", || Arc::strong_count(&client.transport) == 1);
                assert_eq!(granted.lock().unwrap().key, None, "{first:?}, {is_claim}, {times}");
                if let Some(is_granted) = is_done.unwrap() {
                    assert!(is_granted, "{first:?}");
                    break;
                }
            }
        }
    }
}
