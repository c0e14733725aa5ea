//! Holds on a server that cuts, breaks and delays.

#![allow(clippy::unwrap_used)]

mod stub;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use litelease_client::{HoldOptions, Loss};
use serde_json::json;
use stub::{Reply, Stub, eventually, grant, refusal};

const TTL: Duration = Duration::from_secs(30);

/// Long before a renewal would be due: after a third of the ttl.
const SOON: Duration = Duration::from_secs(8);

/// The token of the lease that this event shows, if it is live.
fn event(kind: &str, token: Option<i64>) -> String {
    let lease = match token {
        Some(token) => json!({
            "name": "x", "owner": "a", "token": token, "expires_in": 30, "held_for": 1,
            "expires_at_unix": 60,
        }),
        // The server says the token of the lease that has ended.
        None => json!({
            "name": "x", "owner": null, "token": 1, "expires_in": null, "expires_at_unix": null,
        }),
    };
    format!("event: {kind}\ndata: {}\n\n", json!({ "leases": [lease] }))
}

/// Answers claims and renewals as a server whose leases on the name end at this moment.
fn limited(end: Instant) -> Stub {
    Stub::new(move |path, body| match grant(path, body) {
        Reply::Json(status, mut value) if ["/v1/claim", "/v1/renew"].contains(&path) => {
            let left = end.saturating_duration_since(Instant::now());
            value["expires_in"] = json!(left.as_secs_f64());
            Reply::Json(status, value)
        }
        reply => reply,
    })
}

/// A lease that the server had cut was lost as if its renewals had failed.
#[test]
fn the_holder_of_a_lease_that_was_cut_is_told_that_its_time_is_up() {
    let server = limited(Instant::now() + Duration::from_secs(2));
    let held = server.client().hold("x", HoldOptions::new(TTL)).unwrap();
    assert!(held.trusted_for() < Duration::from_secs(2), "{:?}", held.trusted_for());
    assert_eq!(held.lost().wait_timeout(SOON), Some(Loss::TimeIsUp));
}

/// A server that grants little at a time lost every hold before its first renewal.
#[test]
fn a_lease_that_was_cut_is_renewed_while_it_is_trusted() {
    let server = Stub::new(|path, body| match grant(path, body) {
        Reply::Json(status, mut value) if path == "/v1/claim" => {
            value["expires_in"] = json!(2);
            Reply::Json(status, value)
        }
        reply => reply,
    });
    let held = server.client().hold("x", HoldOptions::new(TTL)).unwrap();
    eventually("it is renewed", || server.count("/v1/renew") == 1);
    eventually("it is trusted for longer", || held.trusted_for() > Duration::from_secs(2));
}

#[test]
fn a_hold_hears_of_a_break_or_a_successor_before_its_next_renewal() {
    for successor in [None, Some(2)] {
        let streams = Arc::new(Mutex::new(Vec::<Sender<String>>::new()));
        let opened = Arc::clone(&streams);
        let server = Stub::new(move |path, body| match path {
            "/v1/events?name=x" => {
                let (sender, events) = channel();
                sender.send(event("state", Some(1))).unwrap();
                opened.lock().unwrap().push(sender);
                Reply::Events(events)
            }
            "/v1/renew" => Reply::Json(409, refusal("superseded", Some(2), None)),
            path => grant(path, body),
        });
        let held = server.client().hold("x", HoldOptions::new(TTL)).unwrap();
        eventually("its name is watched", || !streams.lock().unwrap().is_empty());
        // Its own renewals, and what is attached to it, are events as well.
        let say = |text: String| streams.lock().unwrap()[0].send(text).unwrap();
        say(event("change", Some(1)));
        assert_eq!(held.lost().wait_timeout(Duration::from_millis(200)), None);
        assert_eq!(server.count("/v1/renew"), 0);
        say(event("change", successor));
        assert_eq!(held.lost().wait_timeout(SOON), Some(Loss::Broken));
        assert_eq!(server.count("/v1/renew"), 1, "the one that told why");
    }
}

#[test]
fn a_hold_whose_access_key_may_not_watch_goes_on_without() {
    let server = Stub::new(|path, body| match path {
        "/v1/events?name=x" => Reply::Json(403, json!({ "error": "the key may not observe x" })),
        path => grant(path, body),
    });
    let held = server.client().hold("x", HoldOptions::new(Duration::from_secs(4))).unwrap();
    eventually("it was renewed", || server.count("/v1/renew") > 1);
    held.check().unwrap();
    assert_eq!(server.count("/v1/events"), 1, "it is asked for once");
    held.release().unwrap();
}

/// A client that could not reach the server to renew one name could hold no other, and release
/// none, until that renewal was over.
#[test]
fn neither_a_hold_nor_a_release_waits_for_a_renewal_that_is_under_way() {
    let (answer, answers) = channel::<()>();
    let answers = Mutex::new(answers);
    let server = Stub::new(move |path, body| match path {
        // Renewed at once, because it seems to have ended.
        "/v1/events?name=x" => {
            let (sender, events) = channel();
            sender.send(event("state", None)).unwrap();
            Reply::Events(events)
        }
        "/v1/renew" => {
            let _ = answers.lock().unwrap().recv();
            grant(path, body)
        }
        path => grant(path, body),
    });
    let client = server.client();
    let held = client.hold("x", HoldOptions::new(TTL)).unwrap();
    eventually("a renewal is under way", || server.count("/v1/renew") == 1);
    let begin = Instant::now();
    client.hold("y", HoldOptions::new(TTL)).unwrap().release().unwrap();
    held.release().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(3), "it takes {:?}", begin.elapsed());
    assert_eq!(server.count("/v1/renew"), 1);
    drop(answer);
}

#[test]
fn the_progress_of_a_holder_is_stored_with_its_next_renewal() {
    let server = Stub::new(|path, body| match path {
        "/v1/progress" => Reply::Json(200, json!({ "progressed": true, "name": "x", "token": 1 })),
        path => grant(path, body),
    });
    let held = server.client().hold("x", HoldOptions::new(Duration::from_secs(2))).unwrap();
    held.progress().unwrap();
    eventually("it was renewed twice", || server.count("/v1/renew") == 2);
    assert_eq!(server.count("/v1/progress"), 1);
}
