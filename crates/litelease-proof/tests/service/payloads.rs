//! What rides on grants over HTTP: values, limits, checkpoints, and the handoff on request.

use std::io::Read;
use std::time::Duration;

use litelease_proof::rig::{TestFolder, eventually};
use litelease_proof::server::{Client, Response, Server};
use serde_json::{Value, json};

fn served() -> (TestFolder, Server) {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    (place, server)
}

fn v1(client: &mut Client, call: &str, body: Value) -> Response {
    client.ask("POST", &format!("/v1/{call}"), &body, "").unwrap()
}

fn get(client: &mut Client, path: &str) -> Value {
    client.ask("GET", &format!("/v1/{path}"), &Value::Null, "").unwrap().json()
}

fn claim(client: &mut Client, name: &str, owner: &str) -> Value {
    let claimed = v1(client, "claim", json!({"name": name, "owner": owner, "ttl": 60}));
    assert_eq!(claimed.status, 200, "{claimed:?}");
    claimed.json()["grant"].clone()
}

#[test]
fn a_value_is_seen_while_its_grant_lives() {
    let (place, server) = served();
    let mut client = server.client();
    let grant = claim(&mut client, "leader", "a");
    assert!(get(&mut client, "leases?name=leader").get("value").is_none());
    let mut watcher = server.client();
    watcher.send("GET", "/v1/events?prefix=lead", "", "").unwrap();
    let mut stream = watcher.into_stream().unwrap();
    let mut text = String::new();
    let mut until = |words: &str| {
        while !text.contains(words) {
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "it ended without {words}: {text}");
            text += &String::from_utf8_lossy(&chunk[..read]);
        }
        text.clear();
    };
    until("event: state");
    for value in [json!("10.0.0.7:5000"), json!({"base64": "AP8="}), json!(7)] {
        let attached = v1(&mut client, "attach", json!({"grant": grant, "value": value}));
        assert_eq!(attached.json(), json!({"attached": true, "name": "leader", "token": 1}));
        assert_eq!(get(&mut client, "leases?name=leader")["value"], value);
        assert_eq!(get(&mut client, "leases?prefix=l")["leases"][0]["value"], value);
        until(&format!("\"value\":{value}"));
    }
    // A long value is shown where one name is asked for.
    let long = json!("x".repeat(5000));
    assert_eq!(v1(&mut client, "attach", json!({"grant": grant, "value": long})).status, 200);
    assert_eq!(get(&mut client, "leases?name=leader")["value"], long);
    let listed = get(&mut client, "leases")["leases"][0].clone();
    assert_eq!((listed.get("value"), &listed["value_left_out"]), (None, &json!(true)));
    // It is the value of the file.
    let beside = place.open(Duration::from_secs(5));
    assert!(beside.value("leader").unwrap().is_some());
    v1(&mut client, "attach", json!({"grant": grant, "value": null}));
    assert!(get(&mut client, "leases?name=leader").get("value").is_none());
    v1(&mut client, "attach", json!({"grant": grant, "value": "last"}));
    v1(&mut client, "release", json!({"grant": grant}));
    assert!(get(&mut client, "leases?name=leader").get("value").is_none());
    let late = v1(&mut client, "attach", json!({"grant": grant, "value": "late"}));
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("released")));
    claim(&mut client, "leader", "b");
    let late = v1(&mut client, "attach", json!({"grant": grant, "value": "late"}));
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("superseded")));
    assert_eq!(late.json()["current"]["owner"], json!("b"));
    assert!(get(&mut client, "leases?name=leader").get("value").is_none());
}

#[test]
fn a_checkpoint_outlives_its_grant_and_a_late_one_is_refused() {
    let (_place, server) = served();
    let mut client = server.client();
    let none = get(&mut client, "checkpoint?name=import");
    assert_eq!((&none["token"], &none["value"]), (&Value::Null, &Value::Null));
    let first = claim(&mut client, "import", "a");
    let stored = v1(&mut client, "checkpoint", json!({"grant": first, "value": 4711}));
    assert_eq!(stored.json(), json!({"stored": true, "name": "import", "token": 1}));
    v1(&mut client, "release", json!({"grant": first}));
    let second = claim(&mut client, "import", "b");
    let found = get(&mut client, "checkpoint?name=import");
    assert_eq!((&found["token"], &found["value"]), (&json!(1), &json!(4711)));
    let late = v1(&mut client, "checkpoint", json!({"grant": first, "value": 1}));
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("superseded")));
    assert_eq!(v1(&mut client, "checkpoint", json!({"grant": second, "value": "z"})).status, 200);
    let found = get(&mut client, "checkpoint?name=import");
    assert_eq!((&found["token"], &found["value"]), (&json!(2), &json!("z")));
}

#[test]
fn a_limited_grant_is_renewed_only_with_progress_and_not_beyond_its_end() {
    let (_place, server) = served();
    let mut client = server.client();
    let grant = claim(&mut client, "a", "a");
    let limited = v1(&mut client, "limit", json!({"grant": grant, "max_time": 0.5}));
    assert_eq!(limited.json(), json!({"limited": true, "name": "a", "token": 1}));
    // It never shortens what was granted, and prolongs nothing beyond the end.
    let renewed = v1(&mut client, "renew", json!({"grant": grant, "ttl": 600})).json();
    assert!(renewed["expires_in"].as_f64().unwrap() <= 60.0, "{renewed}");
    let grant = claim(&mut client, "b", "a");
    let body = json!({"grant": grant, "progress_within": 0.1, "max_time": null});
    assert_eq!(v1(&mut client, "limit", body).status, 200);
    let refused = eventually("there was no progress", || {
        let renewed = v1(&mut client, "renew", json!({"grant": grant, "ttl": 600}));
        (renewed.status == 409).then_some(renewed)
    });
    assert_eq!(refused.json()["reason"], json!("no_progress"));
    let progress = v1(&mut client, "progress", json!({"grant": grant})).json();
    assert_eq!(progress, json!({"progressed": true, "name": "b", "token": 1}));
    for (body, words) in [
        (json!({"grant": grant, "progress_within": 0}), "progress_within must be"),
        (json!({"grant": grant, "max_time": "1"}), "max_time must be"),
        (json!({"grant": grant, "not_after": 1}), "unknown field"),
    ] {
        let refused = v1(&mut client, "limit", body);
        assert_eq!(refused.status, 400);
        assert!(refused.error().contains(words), "{}", refused.error());
    }
    let unknown = v1(&mut client, "progress", json!({"grant": "x"}));
    assert_eq!((unknown.status, &unknown.json()["reason"]), (409, &json!("unknown_grant")));
}

#[test]
fn a_lease_is_handed_to_the_client_that_has_requested_it_and_waits() {
    let (_place, server) = served();
    let mut client = server.client();
    let nobody = json!({"name": "n", "requester": "b", "within": 60});
    let free = v1(&mut client, "request", nobody.clone());
    assert_eq!((free.status, &free.json()["reason"]), (409, &json!("never_claimed")));
    let grant = claim(&mut client, "n", "a");
    let early = v1(&mut client, "hand-over", json!({"grant": grant, "ttl": 60}));
    assert_eq!((early.status, &early.json()["reason"]), (409, &json!("not_requested")));
    let asked = v1(&mut client, "request", nobody).json();
    assert_eq!((&asked["requester"], &asked["token"]), (&json!("b"), &json!(1)));
    assert_eq!(asked["within"], json!(60));
    let second = v1(&mut client, "request", json!({"name": "n", "requester": "c", "within": 1}));
    assert_eq!((second.status, &second.json()["reason"]), (409, &json!("requested_by")));
    assert_eq!(second.json()["requested"]["requester"], json!("b"));
    assert_eq!(get(&mut client, "leases?name=n")["requested"]["requester"], json!("b"));
    // The requester waits, and a stranger longer than it.
    let wait = |owner: &str, count: u64| {
        let (mut waiter, mut other) = (server.client(), server.client());
        let body = json!({"name": "n", "owner": owner, "ttl": 60, "wait": 60}).to_string();
        waiter.send("POST", "/v1/claim", &body, "").unwrap();
        eventually("it waits", || {
            (get(&mut other, "leases?name=n")["waiters"] == count).then_some(())
        });
        waiter
    };
    let mut stranger = wait("stranger", 1);
    let mut requester = wait("b", 2);
    let handed = v1(&mut client, "hand-over", json!({"grant": grant, "ttl": 60}));
    assert_eq!((handed.status, &handed.json()["token"]), (200, &json!(2)), "{handed:?}");
    assert!(handed.json().get("grant").is_none(), "the secret is the requester's");
    let fetched = requester.receive().unwrap().json();
    assert_eq!((&fetched["owner"], &fetched["token"]), (&json!("b"), &json!(2)));
    assert_eq!(v1(&mut client, "renew", json!({"grant": grant, "ttl": 1})).status, 409);
    let released = v1(&mut client, "release", json!({"grant": fetched["grant"]}));
    assert_eq!(released.status, 200);
    assert_eq!(stranger.receive().unwrap().json()["owner"], json!("stranger"));
}
