//! Queues over HTTP: every call, waiting in order, answers that are lost or repeated, long bodies,
//! and other processes on the file.

use std::time::Duration;

use litelease_proof::command::{Desk, outcome};
use litelease_proof::rig::{TestFolder, eventually};
use litelease_proof::server::{Client, Response, Server};
use serde_json::{Value, json};

fn served() -> (TestFolder, Server) {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    (place, server)
}

fn ask(client: &mut Client, call: &str, body: Value) -> Response {
    client.ask("POST", &format!("/v1/queue/{call}"), &body, "").unwrap()
}

fn send(client: &mut Client, queue: &str, body: Value) -> i64 {
    let sent = ask(client, "send", json!({"queue": queue, "body": body}));
    assert_eq!(sent.status, 200, "{sent:?}");
    sent.json()["id"].as_i64().unwrap()
}

fn receive(client: &mut Client, queue: &str) -> Value {
    let received = ask(client, "receive", json!({"queue": queue, "visibility": 60}));
    assert_eq!(received.status, 200, "{received:?}");
    received.json()["item"].clone()
}

fn queues(client: &mut Client, query: &str) -> Value {
    client.ask("GET", &format!("/v1/queues?{query}"), &Value::Null, "").unwrap().json()
}

#[test]
fn every_call_on_queues_answers_as_the_contract_says() {
    let (_place, server) = served();
    let mut client = server.client();
    assert_eq!(receive(&mut client, "mail"), Value::Null, "a queue that nobody has used is empty");
    for (at, body) in [
        json!("hello"),
        json!({"base64": "AP8="}),
        json!(7),
        json!(0.5),
        Value::Null,
        json!("\u{0}é\"\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = send(&mut client, "mail", body.clone());
        let item = receive(&mut client, "mail");
        assert_eq!((&item["id"], &item["body"]), (&json!(id), &body), "{at}");
        assert_eq!((&item["attempt"], &item["queue"]), (&json!(1), &json!("mail")));
        assert_eq!(item["expires_in"], json!(60));
        assert!(item["token"].as_i64().unwrap() > id);
        let acked =
            ask(&mut client, "ack", json!({"queue": "mail", "receipt": item["receipt"]})).json();
        assert_eq!(acked, json!({"acknowledged": true, "queue": "mail", "id": id}));
    }
    let id = send(&mut client, "mail", json!("x"));
    let first = receive(&mut client, "mail")["receipt"].clone();
    let extended =
        ask(&mut client, "extend", json!({"queue": "mail", "receipt": first, "visibility": 90.5}));
    assert_eq!(extended.json()["expires_in"], json!(90.5));
    let back = json!({"queue": "mail", "receipt": first, "delay": 0, "note": "busy"});
    let back = ask(&mut client, "give-back", back);
    assert_eq!(back.json(), json!({"given_back": true, "queue": "mail", "id": id}));
    let second = receive(&mut client, "mail");
    assert_eq!((&second["id"], &second["attempt"]), (&json!(id), &json!(2)));
    for (call, more) in [("ack", json!({})), ("extend", json!({"visibility": 1}))] {
        let mut body = json!({"queue": "mail", "receipt": first});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let late = ask(&mut client, call, body);
        assert_eq!((late.status, &late.json()["reason"]), (409, &json!("delivered_again")));
        assert_eq!(late.error(), "stale receipt: delivered again; stop working on this item");
    }
    let counted = queues(&mut client, "queue=mail");
    let queue = json!({
        "queue": "mail", "visible": 0, "delayed": 0, "leased": 1, "dead": 0, "oldest": null,
        "max_attempts": 20,
    });
    assert_eq!(counted, json!({"queues": [queue], "next": null}));
    let buried = json!({"queue": "mail", "receipt": second["receipt"], "note": "no such address"});
    assert_eq!(ask(&mut client, "bury", buried.clone()).json()["buried"], json!(true));
    let twice = ask(&mut client, "bury", buried);
    assert_eq!((twice.status, &twice.json()["reason"]), (409, &json!("buried")));
    assert_eq!(queues(&mut client, "queue=mail")["queues"][0]["dead"], json!(1));
    // A delay and a key.
    let keyed = json!({"queue": "later", "body": "x", "delay": 60, "key": "order-17"});
    let id = ask(&mut client, "send", keyed.clone()).json()["id"].clone();
    assert_eq!(ask(&mut client, "send", keyed).json()["id"], id);
    assert_eq!(receive(&mut client, "later"), Value::Null);
    // Queues are listed in pages.
    for name in ["a/1", "a/2", "a/3", "x'; DROP TABLE y; --"] {
        send(&mut client, name, json!(1));
    }
    let page = queues(&mut client, "prefix=a/&limit=2");
    assert_eq!(page["next"], json!("a/2"));
    let rest = queues(&mut client, "prefix=a/&limit=2&after=a/2");
    assert_eq!((&rest["queues"][0]["queue"], &rest["next"]), (&json!("a/3"), &Value::Null));
    assert_eq!(queues(&mut client, "")["queues"].as_array().unwrap().len(), 6);
}

#[test]
fn bad_input_on_queues_is_refused_with_one_sentence_and_changes_nothing() {
    let (_place, server) = served();
    let mut client = server.client();
    for (call, body, words) in [
        ("send", json!({"queue": "q"}), "body is missing"),
        ("send", json!({"body": "x"}), "queue is missing"),
        ("send", json!({"queue": "q", "body": true}), "body must be a text"),
        ("send", json!({"queue": "q", "body": {"base64": "?"}}), "body must be a text"),
        ("send", json!({"queue": "q", "body": {"base64": "AA==", "x": 1}}), "body must be"),
        ("send", json!({"queue": "q", "body": "x", "key": ""}), "key must be"),
        ("send", json!({"queue": "q", "body": "x", "delay": -1}), "delay must be"),
        ("send", json!({"queue": "q", "body": "x", "delay": 1e300}), "the time is too long"),
        ("send", json!({"queue": "q", "body": "x", "id": 7}), "unknown field \"id\""),
        ("receive", json!({"queue": "q"}), "visibility is missing"),
        ("receive", json!({"queue": "q", "visibility": 0}), "visibility must be"),
        ("ack", json!({"queue": "q"}), "receipt is missing"),
        ("give-back", json!({"queue": "q", "receipt": "x", "note": "n".repeat(1001)}), "note must"),
        ("bury", json!({"queue": "q", "receipt": "x", "delay": 1}), "unknown field"),
    ] {
        let refused = ask(&mut client, call, body.clone());
        assert_eq!(refused.status, 400, "{call} {body}: {refused:?}");
        assert!(refused.error().contains(words), "{call} {body}: {}", refused.error());
    }
    for receipt in ["", "x", "1-x", "1-00000000-0000-4000-8000-000000000000"] {
        for (call, more) in [("ack", 0), ("extend", 1), ("give-back", 0), ("bury", 0)] {
            let mut body = json!({"queue": "q", "receipt": receipt});
            if more == 1 {
                body["visibility"] = json!(1);
            }
            let unknown = ask(&mut client, call, body);
            assert_eq!((unknown.status, &unknown.json()["reason"]), (409, &json!("unknown")));
        }
    }
    assert_eq!(queues(&mut client, ""), json!({"queues": [], "next": null}));
}

#[test]
fn an_item_has_at_most_a_mebibyte_and_only_a_valid_key_may_send_a_long_body() {
    let (_place, server) = served();
    let mut client = server.client();
    let most = "x".repeat(1024 * 1024);
    let id = send(&mut client, "q", json!(most));
    let item = receive(&mut client, "q");
    assert_eq!((&item["id"], item["body"].as_str() == Some(&most)), (&json!(id), true));
    for longer in [format!("{most}x"), most.repeat(2)] {
        let refused = ask(&mut server.client(), "send", json!({"queue": "q", "body": longer}));
        assert_eq!(refused.status, 413);
        assert!(refused.error().contains("1 MiB"), "{}", refused.error());
    }
    let zeros = json!({"base64": "A".repeat(4 * 1024 * 1024 / 3 / 4 * 4)});
    send(&mut client, "q", zeros.clone());
    assert_eq!(receive(&mut client, "q")["body"], zeros);
    // Everywhere else a long body is refused as before.
    let long = json!({"queue": "q", "receipt": "x".repeat(20_000)});
    assert_eq!(ask(&mut server.client(), "ack", long).status, 413);
    // A client with a wrong key is refused before its body is read.
    let body = json!({"queue": "q", "body": most}).to_string();
    let head = format!("Content-Length: {}\r\nAuthorization: Bearer wrong\r\n", body.len());
    let mut stranger = Client::new(server.address);
    let request = format!(
        "POST /v1/queue/send HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{head}\r\n"
    );
    stranger.write(request.as_bytes()).unwrap();
    assert_eq!(stranger.receive().unwrap().status, 401);
}

#[test]
fn waiting_receives_are_served_in_the_order_in_which_they_came() {
    let (place, server) = served();
    let mut client = server.client();
    let waiters = |client: &mut Client| {
        let metrics = client.ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        let line = metrics.lines().find(|line| line.starts_with("litelease_waiters ")).unwrap();
        line.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
    };
    let body = json!({"queue": "q", "visibility": 60, "wait": 60}).to_string();
    let mut waiting = Vec::new();
    for count in 1..=4 {
        let mut one = server.client();
        one.send("POST", "/v1/queue/receive", &body, "").unwrap();
        eventually("it waits", || (waiters(&mut client) == count).then_some(()));
        waiting.push(one);
    }
    // One that hangs up is skipped.
    waiting.remove(1).hang_up();
    eventually("it has left", || (waiters(&mut client) == 3).then_some(()));
    let first = send(&mut client, "q", json!("first"));
    assert_eq!(waiting[0].receive().unwrap().json()["item"]["id"], json!(first));
    // A process on the file wakes the next one, and an item that becomes visible the last one.
    let beside = place.open(Duration::from_secs(5));
    beside.queue("q").send("second").unwrap();
    assert_eq!(waiting[1].receive().unwrap().json()["item"]["body"], json!("second"));
    let delayed = json!({"queue": "q", "body": "third", "delay": 0.2});
    assert_eq!(ask(&mut client, "send", delayed).status, 200);
    assert_eq!(waiting[2].receive().unwrap().json()["item"]["body"], json!("third"));
    // A wait that is over has no item.
    let late = ask(&mut client, "receive", json!({"queue": "q", "visibility": 1, "wait": 0.05}));
    assert_eq!((late.status, late.json()), (200, json!({"item": null})));
    // An item that is given back goes to the one who waits; and one whose time is over.
    let id = send(&mut client, "r", json!("x"));
    let short = ask(&mut client, "receive", json!({"queue": "r", "visibility": 0.2})).json();
    assert_eq!(short["item"]["id"], json!(id));
    let again = ask(&mut client, "receive", json!({"queue": "r", "visibility": 60, "wait": 30}));
    assert_eq!(again.json()["item"]["attempt"], json!(2));
    // At a stop, who waits is told.
    let mut waiter = server.client();
    waiter.send("POST", "/v1/queue/receive", &body, "").unwrap();
    eventually("it waits", || (waiters(&mut client) == 1).then_some(()));
    assert!(server.stop());
    assert_eq!(waiter.receive().unwrap().status, 503);
}

#[test]
fn a_receipt_opens_only_the_queue_of_its_item() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut owner = server.client();
    send(&mut owner, "theirs", json!("secret"));
    let receipt = receive(&mut owner, "theirs")["receipt"].clone();
    send(&mut owner, "mine", json!("x"));
    let (_, key, _) = outcome(&desk.run(&["access", "add", "worker", "--allow", "receive:mine"]));
    let mut worker = Client::new(server.address).bearing(key.trim());
    for (call, more) in [("ack", 0), ("extend", 1), ("give-back", 0), ("bury", 0)] {
        let body = |queue: &str| {
            let mut body = json!({"queue": queue, "receipt": receipt});
            if more == 1 {
                body["visibility"] = json!(600);
            }
            body
        };
        assert_eq!(ask(&mut worker, call, body("theirs")).status, 403, "{call}");
        for queue in ["mine", "nothing"] {
            let other = ask(&mut owner, call, body(queue));
            assert_eq!((other.status, &other.json()["reason"]), (409, &json!("unknown")), "{call}");
        }
    }
    let acked = ask(&mut owner, "ack", json!({"queue": "theirs", "receipt": receipt}));
    assert_eq!(acked.status, 200, "nothing was done to it");
    assert_eq!(ask(&mut worker, "send", json!({"queue": "mine", "body": 1})).status, 403);
    assert_eq!(receive(&mut worker, "mine")["body"], json!("x"));
}

#[test]
fn a_request_that_is_repeated_with_its_key_is_done_once() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let key = "Idempotency-Key: attempt-17\r\n";
    let keyed = |client: &mut Client, call: &str, body: &Value| {
        client.ask("POST", &format!("/v1/queue/{call}"), body, key).unwrap()
    };
    let mut client = server.client();
    let message = json!({"queue": "q", "body": "x"});
    let id = keyed(&mut client, "send", &message).json()["id"].clone();
    assert_eq!(keyed(&mut client, "send", &message).json()["id"], id);
    // The same key in another queue, or of another client, is another request.
    assert_ne!(keyed(&mut client, "send", &json!({"queue": "r", "body": "x"})).json()["id"], id);
    let words = ["access", "add", "other", "--allow", "send:*", "--allow", "receive:*"];
    let (_, other, _) = outcome(&desk.run(&words));
    let mut stranger = Client::new(server.address).bearing(other.trim());
    let second = keyed(&mut stranger, "send", &message).json()["id"].clone();
    assert_ne!(second, id);

    let wanted = json!({"queue": "q", "visibility": 60});
    let first = keyed(&mut client, "receive", &wanted).json()["item"].clone();
    assert_eq!(first["id"], id);
    let again = keyed(&mut client, "receive", &wanted).json()["item"].clone();
    for field in ["receipt", "attempt", "token", "body"] {
        assert_eq!(again[field], first[field], "{field}");
    }
    assert_eq!(keyed(&mut stranger, "receive", &wanted).json()["item"]["id"], second);
    // Also after a restart.
    let address = server.address;
    assert!(server.stop());
    let server = Server::at(&address.to_string(), &desk.file, &[]);
    let mut client = server.client();
    let again = keyed(&mut client, "receive", &wanted).json()["item"].clone();
    assert_eq!(again["receipt"], first["receipt"]);
    let ack = json!({"queue": "q", "receipt": first["receipt"]});
    for _ in 0..2 {
        let acked = keyed(&mut client, "ack", &ack);
        assert_eq!((acked.status, &acked.json()["id"]), (200, &id), "{acked:?}");
    }
    let gone = ask(&mut client, "ack", ack);
    assert_eq!((gone.status, &gone.json()["reason"]), (409, &json!("gone")));
    // The delivery is over, so nothing is left of that request; a new key gets a new item.
    assert_eq!(keyed(&mut client, "receive", &wanted).json()["item"], Value::Null);
    send(&mut client, "q", json!("next"));
    assert_eq!(keyed(&mut client, "receive", &wanted).json()["item"], Value::Null);
    assert_eq!(receive(&mut client, "q")["body"], json!("next"));
}

#[test]
fn a_client_that_hangs_up_before_its_item_comes_counts_no_attempt() {
    let (_place, server) = served();
    let mut client = server.client();
    let body = json!({"queue": "q", "visibility": 600, "wait": 0.0}).to_string();
    let mut delivered = 0;
    for round in 0..60 {
        if round >= 20 && delivered > 0 {
            break;
        }
        let id = send(&mut client, "q", json!(round));
        let mut gone = server.client();
        gone.send("POST", "/v1/queue/receive", &body, "").unwrap();
        gone.hang_up();
        let wanted = json!({"queue": "q", "visibility": 600, "wait": 1});
        let item = ask(&mut client, "receive", wanted).json()["item"].clone();
        // If the answer was on its way already, the item belongs to the client that is gone.
        if !item.is_null() {
            assert_eq!((&item["id"], &item["attempt"]), (&json!(id), &json!(1)));
            delivered += 1;
            let acked = ask(&mut client, "ack", json!({"queue": "q", "receipt": item["receipt"]}));
            assert_eq!(acked.status, 200);
        }
    }
    assert!(delivered > 0, "it was never undone in time");
}

#[test]
fn operators_redrive_discard_cancel_and_list_what_is_in_a_queue() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut client = server.client();
    let ids: Vec<i64> = (0..5).map(|at| send(&mut client, "q", json!(at))).collect();
    let keyed = json!({"queue": "q", "body": "later", "delay": 60, "key": "order-17"});
    let delayed = ask(&mut client, "send", keyed).json()["id"].clone();
    for _ in 0..2 {
        let receipt = receive(&mut client, "q")["receipt"].clone();
        let buried = ask(&mut client, "bury", json!({"receipt": receipt, "note": "no"}));
        assert_eq!(buried.json()["queue"], json!("q"), "the receipt says which queue: {buried:?}");
    }
    let leased = receive(&mut client, "q");
    // Pages of every size show the same, dead ones first and then in the order of their delivery.
    let list = |client: &mut Client, limit: usize| {
        let (mut items, mut after) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/queue/items?queue=q&limit={limit}{after}");
            let page = client.ask("GET", &path, &Value::Null, "").unwrap().json();
            let found = page["items"].as_array().unwrap();
            assert!(found.len() <= limit);
            items.extend(found.iter().map(|item| (item["id"].clone(), item["state"].clone())));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return items,
            }
        }
    };
    let all = list(&mut client, 1000);
    let states: Vec<&str> = all.iter().map(|(_, state)| state.as_str().unwrap()).collect();
    assert_eq!(states, ["dead", "dead", "visible", "visible", "delayed", "leased"]);
    for limit in 1..8 {
        assert_eq!(list(&mut client, limit), all, "pages of {limit}");
    }
    let first = client.ask("GET", "/v1/queue/items?queue=q&limit=1", &Value::Null, "").unwrap();
    let first = first.json()["items"][0].clone();
    assert_eq!((&first["note"], &first["visible_in"]), (&json!("no"), &Value::Null));
    assert!(first["age"].as_f64().unwrap() >= 0.0 && first.get("body").is_none());
    for query in ["", "?queue=q&after=x", "?queue=q&limit=0", "?prefix=q"] {
        let path = format!("/v1/queue/items{query}");
        assert_eq!(client.ask("GET", &path, &Value::Null, "").unwrap().status, 400, "{query}");
    }

    let cancel = |client: &mut Client, meant: Value| {
        let mut body = json!({"queue": "q"});
        body.as_object_mut().unwrap().extend(meant.as_object().unwrap().clone());
        ask(client, "cancel", body)
    };
    let busy = cancel(&mut client, json!({"id": leased["id"]}));
    assert_eq!((busy.status, &busy.json()["reason"]), (409, &json!("leased")));
    assert!(busy.json()["expires_in"].as_f64().unwrap() > 0.0);
    let gone = cancel(&mut client, json!({"key": "order-17"}));
    assert_eq!(gone.json(), json!({"cancelled": true, "queue": "q", "id": delayed}));
    let twice = cancel(&mut client, json!({"key": "order-17"}));
    assert_eq!((twice.status, &twice.json()["reason"]), (409, &json!("not_found")));
    for meant in [json!({}), json!({"id": 1, "key": "k"}), json!({"id": 0})] {
        assert_eq!(cancel(&mut client, meant).status, 400);
    }
    // A redrive wakes a client that waits, and a request that is repeated under its key is done
    // once.
    let mut waiter = server.client();
    let emptied: Vec<Value> = (0..2).map(|_| receive(&mut client, "q")).collect();
    assert!(emptied.iter().all(|item| !item.is_null()));
    let wanted = json!({"queue": "q", "visibility": 60, "wait": 60}).to_string();
    waiter.send("POST", "/v1/queue/receive", &wanted, "").unwrap();
    let key = "Idempotency-Key: again\r\n";
    let one = json!({"queue": "q", "id": ids[0]});
    for _ in 0..2 {
        let redriven = client.ask("POST", "/v1/queue/redrive", &one, key).unwrap();
        assert_eq!(redriven.json(), json!({"queue": "q", "redriven": 1}));
    }
    assert_eq!(waiter.receive().unwrap().json()["item"]["id"], json!(ids[0]));
    let none = ask(&mut client, "redrive", one);
    assert_eq!(none.json(), json!({"queue": "q", "redriven": 0}));
    let discarded = ask(&mut client, "discard", json!({"queue": "q"}));
    assert_eq!(discarded.json(), json!({"queue": "q", "discarded": 1}));
    for is_there in [true, false] {
        let deleted = ask(&mut client, "delete", json!({"queue": "q"}));
        assert_eq!(deleted.json(), json!({"queue": "q", "deleted": is_there}));
    }
    let late = ask(&mut client, "ack", json!({"receipt": leased["receipt"]}));
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("gone")));
}

#[test]
fn a_key_that_may_not_is_told_the_scope_and_a_receipt_alone_opens_nothing_to_others() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut owner = server.client();
    send(&mut owner, "theirs", json!("secret"));
    let receipt = receive(&mut owner, "theirs")["receipt"].clone();
    let with = |name: &str, allow: &str| {
        let (_, key, _) = outcome(&desk.run(&["access", "add", name, "--allow", allow]));
        Client::new(server.address).bearing(key.trim())
    };
    let mut worker = with("worker", "receive:mine");
    let mut sender = with("sender", "send:*");
    for (call, body) in [
        ("redrive", json!({"queue": "theirs"})),
        ("discard", json!({"queue": "theirs"})),
        ("cancel", json!({"queue": "theirs", "id": 1})),
        ("delete", json!({"queue": "theirs"})),
    ] {
        for client in [&mut worker, &mut sender] {
            let refused = ask(client, call, body.clone());
            assert_eq!(refused.status, 403, "{call}");
            assert!(refused.error().contains("operate"), "{call}: {}", refused.error());
        }
    }
    let items = worker.ask("GET", "/v1/queue/items?queue=mine", &Value::Null, "").unwrap();
    assert!(items.status == 403 && items.error().contains("observe"), "{items:?}");
    for (call, more) in [("ack", 0), ("extend", 1), ("give-back", 0), ("bury", 0)] {
        let mut body = json!({"receipt": receipt});
        if more == 1 {
            body["visibility"] = json!(600);
        }
        // Without the scope for any queue, the scope is told. With it for another queue, nothing
        // is.
        let refused = ask(&mut sender, call, body.clone());
        assert!(refused.status == 403 && refused.error().contains("receive"), "{refused:?}");
        let unknown = ask(&mut worker, call, body);
        assert_eq!((unknown.status, &unknown.json()["reason"]), (409, &json!("unknown")), "{call}");
    }
    let acked = ask(&mut owner, "ack", json!({"receipt": receipt}));
    assert_eq!(acked.json()["queue"], json!("theirs"), "nothing was done to it");
}
