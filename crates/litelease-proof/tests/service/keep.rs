//! Slots that are kept, over HTTP: the answers, the events, and a queue before a pool of which all
//! is kept.

use std::io::{BufRead, BufReader};
use std::thread;
use std::time::{Duration, Instant};

use litelease_proof::rig::TestFolder;
use litelease_proof::server::{Client, NO_LEASE, POOL, Server};
use serde_json::{Value, json};

fn kept(client: &mut Client) -> Value {
    let lent = client.call("POST", "/borrow", &json!({"ttl": 2, "note": "Ada"})).json();
    let lease = json!({"lease": lent["lease"]});
    let answer = client.call("POST", "/keep", &lease);
    assert_eq!((answer.status, answer.json()), (200, json!({"kept": true})));
    lease
}

/// The state of the pool, as a new watcher gets it.
fn state(server: &Server) -> Value {
    let mut client = server.client();
    client.send("GET", &format!("/l/{POOL}/events"), "", "").unwrap();
    let mut lines = BufReader::new(client.into_stream().unwrap()).lines();
    let data = lines.find_map(|line| line.unwrap().strip_prefix("data: ").map(str::to_owned));
    serde_json::from_str(&data.unwrap()).unwrap()
}

#[test]
fn a_kept_slot_outlives_its_ttl_and_is_returned_like_any_other() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    assert_eq!(client.call("POST", "/keep", &json!({"lease": NO_LEASE})).status, 404);
    client.register(1);
    let lease = kept(&mut client);
    thread::sleep(Duration::from_millis(2100));
    assert_eq!(client.call("POST", "/keep", &lease).json(), json!({"kept": true}));
    assert_eq!(client.call("POST", "/borrow", &json!({"ttl": 30})).status, 409);

    let slot = &state(&server)["slots"][0];
    assert_eq!((&slot["expires_in"], &slot["note"]), (&Value::Null, &json!("Ada")));
    let since = slot["kept_for"].as_f64().unwrap();
    assert!((2.0..60.0).contains(&since), "{since}");

    let renewed =
        client.call("POST", "/renew", &json!({"lease": lease["lease"], "ttl": 30})).json();
    assert_eq!((&renewed["expires_in"], &renewed["expires_at_unix"]), (&Value::Null, &Value::Null));
    assert_eq!(client.call("POST", "/return", &lease).json(), json!({"returned": true}));
    let late = client.call("POST", "/keep", &lease);
    assert_eq!(
        (late.status, late.error()),
        (
            409,
            "the lease is no longer live: it has expired or was returned, so borrow again".into()
        )
    );
    let lent = client.call("POST", "/borrow", &json!({"ttl": 30}));
    assert_eq!((lent.status, &lent.json()["expires_in"]), (200, &json!(30)));
    assert_eq!(state(&server)["slots"][0].get("kept_for"), None);
}

#[test]
fn malformed_keeps_are_refused_with_a_sentence() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    client.register(1);
    for body in [
        json!({}),
        json!({"lease": 4}),
        json!({"lease": "x"}),
        json!({"lease": "x", "ttl": 1}),
        json!([]),
    ] {
        let refused = client.call("POST", "/keep", &body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
        assert!(!refused.error().is_empty());
    }
    assert_eq!(client.call("POST", "/keep", &json!({"lease": NO_LEASE})).status, 409);
    assert_eq!(client.call("GET", "/keep", &Value::Null).status, 405);
}

#[test]
fn a_borrow_waits_quietly_before_a_pool_of_which_all_is_kept_and_gets_what_is_returned() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    client.register(2);
    let leases = [kept(&mut client), kept(&mut client)];
    let commits = |client: &mut Client| {
        let text = client.ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        let line = text.lines().find(|line| line.starts_with("litelease_commits_total"));
        let line = line.unwrap_or_else(|| panic!("{text}")).to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let mut waiter = server.client();
    waiter.send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":30,"wait":60}"#, "").unwrap();
    thread::sleep(Duration::from_millis(300));
    let before = commits(&mut client);
    thread::sleep(Duration::from_millis(700));
    let after = commits(&mut client);
    assert!(after <= before + 2, "{} commits while nothing happened", after - before);
    let started = Instant::now();
    assert_eq!(client.call("POST", "/return", &leases[1]).json(), json!({"returned": true}));
    let lent = waiter.receive().unwrap();
    assert_eq!((lent.status, &lent.json()["position"]), (200, &json!(1)));
    assert!(started.elapsed() < Duration::from_secs(30));
    // A short lease among the kept ones is waited for until it expires.
    let short = json!({"lease": lent.json()["lease"]});
    client.call("POST", "/return", &short);
    assert_eq!(client.call("POST", "/borrow", &json!({"ttl": 0.3})).status, 200);
    let next = client.call("POST", "/borrow", &json!({"ttl": 30, "wait": 60}));
    assert_eq!((next.status, &next.json()["position"]), (200, &json!(1)));
}

#[test]
fn a_restart_leaves_what_is_kept() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    client.register(1);
    let lease = kept(&mut client);
    server.kill();
    let server = Server::start(&place.file, &[]);
    thread::sleep(Duration::from_millis(2100));
    let mut client = server.client();
    assert_eq!(client.in_use(), 1);
    assert_eq!(client.call("POST", "/return", &lease).json(), json!({"returned": true}));
}
