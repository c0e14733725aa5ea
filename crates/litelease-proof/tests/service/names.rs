//! Named leases over HTTP: every call, waiting in order, hand-overs, retries, restarts, and other
//! processes on the file.

use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use litelease::Litelease;
use litelease_proof::command::{Desk, outcome};
use litelease_proof::rig::{TestFolder, eventually};
use litelease_proof::server::{Client, POOL, Response, Server};
use serde_json::{Value, json};

fn served(flags: &[&str]) -> (TestFolder, Server) {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, flags);
    (place, server)
}

fn v1(client: &mut Client, call: &str, body: Value) -> Response {
    client.ask("POST", &format!("/v1/{call}"), &body, "").unwrap()
}

fn read_leases(client: &mut Client, query: &str) -> Value {
    client.ask("GET", &format!("/v1/leases?{query}"), &Value::Null, "").unwrap().json()
}

fn claim(client: &mut Client, name: &str, owner: &str) -> Value {
    let claimed = v1(client, "claim", json!({"name": name, "owner": owner, "ttl": 60}));
    assert_eq!(claimed.status, 200, "{claimed:?}");
    claimed.json()
}

/// Sends a claim that waits, and comes back once it does.
fn wait_for(server: &Server, name: &str, owner: &str) -> Client {
    let waiters = |client: &mut Client| {
        read_leases(client, &format!("name={name}"))["waiters"].as_u64().unwrap()
    };
    let (mut client, mut other) = (server.client(), server.client());
    let before = waiters(&mut other);
    let body = json!({"name": name, "owner": owner, "ttl": 60, "wait": 60}).to_string();
    client.send("POST", "/v1/claim", &body, "").unwrap();
    eventually("it waits", || (waiters(&mut other) > before).then_some(()));
    client
}

#[test]
fn every_call_on_names_answers_as_the_contract_says() {
    let (_place, server) = served(&[]);
    let mut client = server.client();
    let never = read_leases(&mut client, "name=backup%2Fdb");
    assert_eq!((&never["owner"], &never["token"]), (&Value::Null, &Value::Null));
    assert_eq!(never["held_for"], Value::Null);
    let now = || litelease::now_ms() / 1000;
    let (before, begin) = (now(), Instant::now());
    let granted = v1(
        &mut client,
        "claim",
        json!({"name": "backup/db", "owner": "a", "ttl": 60.5, "min_token": 40}),
    );
    let granted = granted.json();
    assert_eq!((&granted["name"], &granted["owner"]), (&json!("backup/db"), &json!("a")));
    assert_eq!((&granted["token"], &granted["expires_in"]), (&json!(41), &json!(60.5)));
    let until = granted["expires_at_unix"].as_i64().unwrap();
    assert!((before + 60..=now() + 61).contains(&until), "{until}");
    let grant = &granted["grant"];
    assert_eq!(grant.as_str().map(str::len), Some(36));

    let renewed = v1(&mut client, "renew", json!({"grant": grant, "ttl": 90}));
    assert_eq!((renewed.status, &renewed.json()["grant"]), (200, grant));
    assert_eq!(renewed.json()["expires_in"], json!(90));
    // The same owner text is no exception.
    for owner in ["b", "a"] {
        let busy = v1(&mut client, "claim", json!({"name": "backup/db", "owner": owner, "ttl": 1}));
        assert_eq!(
            (busy.status, busy.error()),
            (409, "the name has a live owner: ask again later, or wait for it with wait".into())
        );
        let current = &busy.json()["current"];
        assert_eq!((&current["owner"], &current["token"]), (&json!("a"), &json!(41)));
        let held_for = current["held_for"].as_f64().unwrap();
        assert!((0.0..=begin.elapsed().as_secs_f64() + 0.1).contains(&held_for), "{current}");
        assert!(!busy.body.contains(grant.as_str().unwrap()), "the secret is shown to nobody else");
    }
    assert_eq!(read_leases(&mut client, "name=backup%2Fdb")["owner"], json!("a"));
    assert!(read_leases(&mut client, "prefix=back")["leases"][0].get("grant").is_none());

    let released = v1(&mut client, "release", json!({"grant": grant}));
    let expected = json!({"released": true, "name": "backup/db", "token": 41});
    assert_eq!(released.json(), expected);
    for call in ["renew", "release", "transfer"] {
        let mut body = json!({"grant": grant});
        if call != "release" {
            body["ttl"] = json!(1);
        }
        if call == "transfer" {
            body["new_owner"] = json!("b");
        }
        let late = v1(&mut client, call, body);
        assert_eq!((late.status, &late.json()["reason"]), (409, &json!("released")), "{call}");
    }
    claim(&mut client, "backup/db", "b");
    let late = v1(&mut client, "renew", json!({"grant": grant, "ttl": 1}));
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("superseded")));
    assert_eq!(late.json()["current"]["owner"], json!("b"));
    let broken = v1(&mut client, "break", json!({"name": "backup/db"}));
    assert_eq!(broken.json(), json!({"name": "backup/db", "owner": "b", "killed": 42}));
    assert_eq!(v1(&mut client, "break", json!({"name": "backup/db"})).status, 409);
    let free = read_leases(&mut client, "name=backup%2Fdb");
    assert_eq!((&free["owner"], &free["token"]), (&Value::Null, &json!(43)));
    for grant in ["x", "00000000-0000-4000-8000-00000000ffff"] {
        let unknown = v1(&mut client, "release", json!({"grant": grant}));
        assert_eq!((unknown.status, &unknown.json()["reason"]), (409, &json!("unknown_grant")));
    }
    // Names are any text: what a path could not carry is no exception.
    for name in ["", "/../", "a//b", "%2F", "\u{0}", "日本 \"x\"\n", &"n".repeat(4096)] {
        let granted = claim(&mut client, name, "a");
        assert_eq!(granted["name"], json!(name));
        assert_eq!(v1(&mut client, "release", json!({"grant": granted["grant"]})).status, 200);
    }
}

#[test]
fn bad_input_on_names_is_refused_with_one_sentence_and_changes_nothing() {
    let (_place, server) = served(&[]);
    let mut client = server.client();
    let of_hold = litelease::Identity::new(litelease_hold::HolderKind::Hold).to_string();
    let held = json!({"name": "x", "owner": of_hold, "ttl": 1});
    let noted = json!({"name": "x", "count": 1, "ttl": 1, "note": of_hold});
    for (call, body, words) in [
        ("claim", json!({"name": "x", "owner": "a"}), "ttl is missing"),
        ("claim", json!({"name": "x", "ttl": 1}), "owner is missing"),
        ("claim", json!({"owner": "a", "ttl": 1}), "name is missing"),
        ("claim", json!({"name": 7, "owner": "a", "ttl": 1}), "name must be a text"),
        ("claim", json!({"name": "x", "owner": null, "ttl": 1}), "owner must be a text"),
        ("claim", json!({"name": "x", "owner": "a", "ttl": 0}), "ttl must be"),
        ("claim", json!({"name": "x", "owner": "a", "ttl": 1, "wait": -1}), "wait must be"),
        ("claim", json!({"name": "x", "owner": "a", "ttl": 1, "min_token": -1}), "min_token must"),
        ("claim", json!({"name": "x", "owner": "a", "ttl": 1, "min_token": 1_i64 << 53}), "2^53"),
        ("claim", json!({"name": "x", "owner": "a", "ttl": 1, "token": 1}), "unknown field"),
        ("claim", held, "those of this form belong to hold and run"),
        ("slot/borrow", noted, "those of this form belong to hold and run"),
        ("renew", json!({"grant": "x"}), "ttl is missing"),
        ("renew", json!({"name": "x", "owner": "a", "ttl": 1}), "known are grant, ttl"),
        ("release", json!({}), "grant is missing"),
        ("transfer", json!({"grant": "x", "ttl": 1}), "new_owner is missing"),
        ("break", json!({"name": "x", "token": "1"}), "token must"),
        ("break", json!({"name": "x", "owner": "a"}), "unknown field"),
    ] {
        let refused = v1(&mut client, call, body.clone());
        assert_eq!(refused.status, 400, "{call} {body}: {refused:?}");
        assert!(refused.error().contains(words), "{call} {body}: {}", refused.error());
    }
    for (query, words) in [
        ("name=a&prefix=b", "not both"),
        ("name=a&name=b", "given twice"),
        ("nme=a", "unknown field \"nme\""),
        ("prefix=%ff", "percent-encoded UTF-8"),
        ("prefix=%2", "percent-encoded UTF-8"),
        ("prefix=%zz", "percent-encoded UTF-8"),
        ("limit=0", "limit must be"),
        ("limit=1001", "limit must be"),
        ("limit=x", "limit must be"),
    ] {
        let path = format!("/v1/leases?{query}");
        let refused = client.ask("GET", &path, &Value::Null, "").unwrap();
        assert_eq!(refused.status, 400, "{query}");
        assert!(refused.error().contains(words), "{query}: {}", refused.error());
    }
    for (method, path, status) in [
        ("GET", "/v1/claim", 405),
        ("POST", "/v1/leases", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v12/leases", 404),
        ("GET", "/v1/leases/", 404),
        ("GET", "/v1//leases", 404),
        ("GET", "/v1/%6ceases", 404),
        ("POST", "/v1/claim?name=x", 400),
    ] {
        let answer = client.ask(method, path, &Value::Null, "Content-Type: application/json\r\n");
        assert_eq!(answer.unwrap().status, status, "{method} {path}");
    }
    assert_eq!(read_leases(&mut client, ""), json!({"leases": [], "next": null}));
}

#[test]
fn waiting_claims_are_served_in_the_order_in_which_they_came() {
    let (_place, server) = served(&[]);
    let mut client = server.client();
    let first = claim(&mut client, "x", "a");
    let mut waiting: Vec<Client> =
        ["b", "c", "d"].iter().map(|owner| wait_for(&server, "x", owner)).collect();
    // A newcomer does not overtake, and one that hangs up is skipped.
    let busy = v1(&mut client, "claim", json!({"name": "x", "owner": "e", "ttl": 60}));
    assert_eq!(busy.status, 409);
    waiting.remove(1).hang_up();
    eventually("it has left", || {
        (read_leases(&mut client, "name=x")["waiters"] == 2).then_some(())
    });
    let mut grant = first["grant"].clone();
    for (next, owner) in waiting.iter_mut().zip(["b", "d"]) {
        assert_eq!(v1(&mut client, "release", json!({"grant": grant})).status, 200);
        let granted = next.receive().unwrap().json();
        assert_eq!(granted["owner"], json!(owner));
        grant = granted["grant"].clone();
    }
    // A wait that is over is answered with who has it.
    let late = v1(&mut client, "claim", json!({"name": "x", "owner": "z", "ttl": 1, "wait": 0.05}));
    assert_eq!((late.status, &late.json()["current"]["owner"]), (409, &json!("d")));
    assert_eq!(late.error(), "the name did not come free in time: ask again");
    // One that waits for a lease to end on its own.
    let short = v1(&mut client, "claim", json!({"name": "y", "owner": "a", "ttl": 0.2}));
    assert_eq!(short.status, 200);
    let next = v1(&mut client, "claim", json!({"name": "y", "owner": "b", "ttl": 1, "wait": 30}));
    assert_eq!((next.status, &next.json()["token"]), (200, &json!(2)));
    // Breaking hands over as well.
    claim(&mut client, "z", "a");
    let mut waiter = wait_for(&server, "z", "b");
    assert_eq!(v1(&mut client, "break", json!({"name": "z"})).status, 200);
    assert_eq!(waiter.receive().unwrap().json()["owner"], json!("b"));
}

#[test]
fn a_grant_whose_client_hangs_up_is_released_unless_a_key_keeps_it() {
    let (_place, server) = served(&[]);
    let mut client = server.client();
    for round in 0..20 {
        let name = format!("hang-up {round}");
        let body = json!({"name": name, "owner": "a", "ttl": 600}).to_string();
        let mut gone = server.client();
        gone.send("POST", "/v1/claim", &body, "").unwrap();
        gone.hang_up();
        let mut waiter = server.client();
        let body = json!({"name": name, "owner": "b", "ttl": 600, "wait": 1});
        let answer = v1(&mut waiter, "claim", body);
        // If the answer was on its way already, the grant belongs to the client that is gone.
        assert!(answer.status == 200 || answer.json()["current"]["owner"] == "a", "{answer:?}");
    }
    // One that hangs up while it waits is never granted.
    let held = claim(&mut client, "x", "a");
    wait_for(&server, "x", "b").hang_up();
    eventually("it has left", || {
        (read_leases(&mut client, "name=x")["waiters"] == 0).then_some(())
    });
    v1(&mut client, "release", json!({"grant": held["grant"]}));
    assert_eq!(read_leases(&mut client, "name=x")["token"], json!(1));
}

#[test]
fn a_claim_that_is_repeated_with_its_key_gets_the_same_grant_and_nobody_else_does() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let key = "Idempotency-Key: attempt-17\r\n";
    let mut client = server.client();
    let body = json!({"name": "x", "owner": "a", "ttl": 60});
    let mut ask =
        |body: &Value, headers: &str| client.ask("POST", "/v1/claim", body, headers).unwrap();
    let first = ask(&body, key).json();
    let again = ask(&body, key);
    assert_eq!((again.status, &again.json()["grant"]), (200, &first["grant"]));
    assert_eq!(again.json()["token"], json!(1));
    // Another key, another owner, another access key, or none.
    assert_eq!(ask(&body, "Idempotency-Key: attempt-18\r\n").status, 409);
    assert_eq!(ask(&body, "").status, 409);
    assert_eq!(ask(&json!({"name": "x", "owner": "b", "ttl": 60}), key).status, 409);
    let (_, other, _) = outcome(&desk.run(&["access", "add", "other", "--allow", "claim:*"]));
    let mut stranger = Client::new(server.address).bearing(other.trim());
    assert_eq!(stranger.ask("POST", "/v1/claim", &body, key).unwrap().status, 409);
    // The same after a restart; and of a lease that is over, nothing is left.
    let address = server.address;
    assert!(server.stop());
    let server = Server::at(&address.to_string(), &desk.file, &[]);
    let mut client = server.client();
    let again = client.ask("POST", "/v1/claim", &body, key).unwrap().json();
    assert_eq!(again["grant"], first["grant"]);
    assert_eq!(v1(&mut client, "release", json!({"grant": first["grant"]})).status, 200);
    let next = client.ask("POST", "/v1/claim", &body, key).unwrap().json();
    assert_eq!(next["token"], json!(2));
    assert_ne!(next["grant"], first["grant"]);
    // Repeated while the first still waits, both share one place and one grant.
    let body = json!({"name": "x", "owner": "b", "ttl": 60, "wait": 30}).to_string();
    let mut waiting: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for one in &mut waiting {
        one.send("POST", "/v1/claim", &body, key).unwrap();
    }
    eventually("both wait", || (read_leases(&mut client, "name=x")["waiters"] == 2).then_some(()));
    v1(&mut client, "release", json!({"grant": next["grant"]}));
    let [one, two] = [0, 1].map(|at: usize| waiting[at].receive().unwrap().json());
    assert_eq!((&one["grant"], &one["token"]), (&two["grant"], &json!(3)));
}

#[test]
fn a_transferred_lease_is_fetched_by_its_new_owner_once() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let held = claim(&mut client, "x", "a");
    let [mut stranger, mut heir] = ["stranger", "heir"].map(|owner| wait_for(&server, "x", owner));
    let body = json!({"grant": held["grant"], "new_owner": "heir", "ttl": 60});
    let handed = v1(&mut client, "transfer", body.clone());
    assert_eq!((handed.status, &handed.json()["token"]), (200, &json!(2)));
    assert!(handed.json().get("grant").is_none(), "the secret is its new owner's");
    let fetched = heir.receive().unwrap().json();
    assert_eq!((&fetched["owner"], &fetched["token"]), (&json!("heir"), &json!(2)));
    assert_eq!(v1(&mut client, "renew", json!({"grant": held["grant"], "ttl": 1})).status, 409);
    assert_eq!(v1(&mut client, "transfer", body).status, 409);
    let twice = v1(&mut client, "claim", json!({"name": "x", "owner": "heir", "ttl": 1}));
    assert_eq!(twice.status, 409, "it was fetched");
    let renewed = v1(&mut client, "renew", json!({"grant": fetched["grant"], "ttl": 60}));
    assert_eq!(renewed.status, 200);
    v1(&mut client, "release", json!({"grant": fetched["grant"]}));
    let next = stranger.receive().unwrap().json();
    assert_eq!((&next["owner"], &next["token"]), (&json!("stranger"), &json!(3)));

    // A new owner that comes later fetches it, too; and one that hangs up has not fetched it.
    let body = json!({"grant": next["grant"], "new_owner": "late", "ttl": 60});
    assert_eq!(v1(&mut client, "transfer", body).status, 200);
    assert_eq!(
        v1(&mut client, "claim", json!({"name": "x", "owner": "other", "ttl": 1})).status,
        409
    );
    assert_eq!(claim(&mut client, "x", "late")["token"], json!(4));

    // A lease that was claimed or transferred in the file itself cannot be fetched by naming its
    // owner.
    let beside = place.open(Duration::from_secs(5));
    let own = beside.claim("y", "local", Duration::from_secs(60)).unwrap().acquired().unwrap();
    let body = json!({"name": "y", "owner": "local", "ttl": 1});
    assert_eq!(v1(&mut client, "claim", body).status, 409);
    assert!(beside.renew(&own, Duration::from_secs(60)).unwrap().renewed().is_some());
}

#[test]
fn grants_survive_a_restart_and_waiting_claims_are_told() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let held = claim(&mut client, "x", "a");
    let mut waiter = wait_for(&server, "x", "b");
    assert!(server.stop());
    assert_eq!(waiter.receive().unwrap().status, 503);
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    let renewed = v1(&mut client, "renew", json!({"grant": held["grant"], "ttl": 60}));
    assert_eq!((renewed.status, &renewed.json()["token"]), (200, &json!(1)));
    server.kill();
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    assert_eq!(v1(&mut client, "release", json!({"grant": held["grant"]})).status, 200);
    // What a purge has removed is unknown, and the name goes on with larger tokens.
    let beside = place.open(Duration::from_secs(5));
    assert_eq!(beside.purge(litelease::now_ms() + 1).unwrap(), 1);
    let unknown = v1(&mut client, "renew", json!({"grant": held["grant"], "ttl": 60}));
    assert_eq!(unknown.json()["reason"], json!("unknown_grant"));
    assert_eq!(claim(&mut client, "x", "a")["token"], json!(2));
    // A restored backup is fenced: its grants are over.
    let held = claim(&mut client, "z", "a");
    beside.restore_fence().unwrap();
    let fenced = v1(&mut client, "renew", json!({"grant": held["grant"], "ttl": 60}));
    assert_eq!((fenced.status, &fenced.json()["reason"]), (409, &json!("superseded")));
}

#[test]
fn clients_of_the_server_and_processes_on_its_file_take_turns() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut client = server.client();
    let db = Litelease::open(&desk.file).unwrap();
    let own = db.claim("x", "local", Duration::from_secs(60)).unwrap().acquired().unwrap();
    let mut waiter = wait_for(&server, "x", "remote");
    db.release(&own).unwrap();
    let granted = waiter.receive().unwrap().json();
    assert_eq!((&granted["owner"], &granted["token"]), (&json!("remote"), &json!(2)));
    // And the other way round: a command that waits in the file is woken by a release over HTTP.
    let mut waits = desk.command(&["wait", "x", "-w", "60s"]);
    let mut waits = waits.stdout(Stdio::null()).spawn().unwrap();
    thread::sleep(Duration::from_millis(500));
    assert_eq!(waits.try_wait().unwrap(), None, "it waits");
    let begin = Instant::now();
    v1(&mut client, "release", json!({"grant": granted["grant"]}));
    assert!(waits.wait().unwrap().success());
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
}

#[test]
fn one_row_that_is_damaged_concerns_nobody_else() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    for name in ["good", "bad"] {
        claim(&mut client, name, "a");
    }
    let db = litelease::rusqlite::Connection::open(&place.file).unwrap();
    let damage = "PRAGMA ignore_check_constraints = 1;
                  UPDATE litelease_resources SET token = 'x' WHERE name = 'bad'";
    db.execute_batch(damage).unwrap();
    // All of them together: the bad ones must not spoil the commit of the others.
    let bodies = (0..40).map(|at| match at % 2 {
        0 => json!({"name": "bad", "owner": "b", "ttl": 60}),
        _ => json!({"name": format!("name {at}"), "owner": "b", "ttl": 60}),
    });
    let mut clients: Vec<(Client, Value)> = bodies.map(|body| (server.client(), body)).collect();
    for (client, body) in &mut clients {
        client.send("POST", "/v1/claim", &body.to_string(), "").unwrap();
    }
    for (client, body) in &mut clients {
        let answer = client.receive().unwrap();
        let expected = if body["name"] == "bad" { 502 } else { 200 };
        assert_eq!(answer.status, expected, "{body}: {answer:?}");
    }
}

#[test]
fn leases_are_listed_in_pages_by_prefix() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let beside = place.open(Duration::from_secs(5));
    for number in 0..25 {
        let lease = beside.claim(&format!("a/{number:02}"), "w", Duration::from_secs(600)).unwrap();
        if number % 5 == 0 {
            beside.release(&lease.acquired().unwrap()).unwrap();
        }
    }
    for name in ["a", "a/", "b/1", "日本/1"] {
        claim(&mut client, name, "w");
    }
    let mut names = Vec::new();
    let mut after = String::new();
    for _ in 0..20 {
        let page = read_leases(&mut client, &format!("prefix=a%2f&limit=3{after}"));
        let leases = page["leases"].as_array().unwrap().clone();
        assert!(leases.len() <= 3);
        names.extend(leases.iter().map(|lease| lease["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = format!("&after={}", next.replace('/', "%2F")),
            None => break,
        }
    }
    assert_eq!(names.len(), 21, "{names:?}");
    assert!(names.is_sorted() && names.iter().all(|name| name.starts_with("a/")), "{names:?}");
    let other = read_leases(&mut client, "prefix=%E6%97%A5");
    assert_eq!(other["leases"][0]["name"], json!("日本/1"));
    assert_eq!(read_leases(&mut client, "")["leases"].as_array().unwrap().len(), 24);
}

/// A stream of events that is read until something comes.
struct Events {
    stream: std::net::TcpStream,
    text: String,
}

impl Events {
    fn open(mut client: Client, query: &str) -> Self {
        client.send("GET", &format!("/v1/events?{query}"), "", "").unwrap();
        let stream = client.into_stream().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Events { stream, text: String::new() }
    }

    /// Reads until these words come, and returns what came before and with them.
    fn until(&mut self, words: &str) -> String {
        while !self.text.contains(words) {
            let mut chunk = [0; 4096];
            let read = self.stream.read(&mut chunk).unwrap();
            assert!(read > 0, "it ended without {words}: {}", self.text);
            self.text += &String::from_utf8_lossy(&chunk[..read]);
        }
        std::mem::take(&mut self.text)
    }

    /// Waits until the server ends the stream.
    fn end(mut self) {
        self.until("0\r\n\r\n");
    }
}

#[test]
fn events_tell_the_present_state_and_then_what_changes() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let first = claim(&mut client, "a/1", "one");
    claim(&mut client, "b/1", "stranger");
    let mut many = Events::open(server.client(), "prefix=a/");
    let mut one = Events::open(server.client(), "name=a%2F1");
    let told = many.until("\n\n\r\n");
    assert!(told.contains("event: state") && told.contains("\"owner\":\"one\""), "{told}");
    one.until("\"owner\":\"one\"");
    let second = claim(&mut client, "a/2", "two");
    let told = many.until("\"owner\":\"two\"");
    assert!(told.contains("event: change") && !told.contains("\"one\""), "only the change: {told}");
    v1(&mut client, "release", json!({"grant": first["grant"]}));
    let told = many.until("\"name\":\"a/1\"");
    assert!(told.contains("\"owner\":null") && told.contains("\"token\":1"), "{told}");
    one.until("\"owner\":null");
    // Leases that end on their own, and those that another process takes, are told as well.
    v1(&mut client, "claim", json!({"name": "a/3", "owner": "short", "ttl": 2}));
    many.until("\"owner\":\"short\"");
    many.until("\"name\":\"a/3\",\"owner\":null");
    let beside = place.open(Duration::from_secs(5));
    let _ = beside.claim("a/4", "local", Duration::from_secs(60)).unwrap();
    let told = many.until("\"owner\":\"local\"");
    for secret in [&first["grant"], &second["grant"]] {
        assert!(!told.contains(secret.as_str().unwrap()) && !told.contains("stranger"), "{told}");
    }
    // After a reconnect the present state comes again.
    let told = Events::open(server.client(), "prefix=a/").until("\n\n\r\n");
    assert!(told.contains("event: state") && told.contains("two") && told.contains("local"));
}

#[test]
fn held_slots_of_pools_by_name_are_listed_in_pages_and_without_secrets() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let mut borrow = |name: &str, note: &str| {
        let ask = json!({"name": name, "count": 3, "ttl": 60, "note": note});
        let lent = v1(&mut client, "slot/borrow", ask);
        assert_eq!(lent.status, 200, "{lent:?}");
        lent.json()["lease"].as_str().unwrap().to_owned()
    };
    let leases = [borrow("b", "one"), borrow("b", "two"), borrow("a%/x", ""), borrow("c", "gone")];
    v1(&mut client, "slot/return", json!({"name": "c", "lease": leases[3]}));
    // A pool that is known by its UUID, and one of another program in the same file.
    client.ask("PUT", &format!("/l/{POOL}"), &json!({"count": 1}), "").unwrap();
    client.ask("POST", &format!("/l/{POOL}/borrow"), &json!({"ttl": 60}), "").unwrap();
    let beside = place.open(Duration::from_secs(5));
    beside.pools().register("zebra", 1).unwrap();
    beside.pools().borrow("zebra", Duration::from_secs(60)).unwrap();
    let mut slots = |query: &str| {
        let answer = client.ask("GET", &format!("/v1/slots?{query}"), &Value::Null, "").unwrap();
        let hidden = leases.iter().map(String::as_str).chain([POOL, "zebra", "name:"]);
        for secret in hidden {
            assert!(!answer.body.contains(secret), "{query}: {}", answer.body);
        }
        answer.json()
    };
    let pool = |name: &str, in_use: i64| json!({"name": name, "count": 3, "in_use": in_use, "available": 3 - in_use});
    assert_eq!(slots(""), json!({"pools": [pool("a%/x", 1), pool("b", 2)], "next": null}));
    let page = slots("limit=1");
    assert_eq!(page, json!({"pools": [pool("a%/x", 1)], "next": "a%/x"}));
    assert_eq!(slots("limit=1&after=a%25/x")["pools"], json!([pool("b", 2)]));
    assert_eq!(slots("prefix=b")["pools"], json!([pool("b", 2)]));
    assert_eq!(slots("prefix=%25")["pools"], json!([]));

    let held = slots("name=b");
    let (first, second) = (&held["pools"][0]["slots"][0], &held["pools"][0]["slots"][1]);
    assert_eq!(first["position"], json!(0));
    assert_eq!((&first["token"], &first["note"]), (&json!(1), &json!("one")));
    assert!(first["expires_in"].as_f64().is_some_and(|left| left > 0.0 && left <= 60.0), "{first}");
    assert_eq!((&second["position"], &held["next"]), (&json!(1), &Value::Null));
    let page = slots("name=b&limit=1");
    assert_eq!((&page["pools"][0]["in_use"], &page["next"]), (&json!(2), &json!("0")));
    let rest = slots("name=b&limit=1&after=0");
    assert_eq!(rest["pools"][0]["slots"].as_array().unwrap().len(), 1);
    assert_eq!(rest["pools"][0]["slots"][0]["note"], json!("two"));
    assert_eq!(slots("name=b&after=1")["pools"][0]["slots"], json!([]));
    assert_eq!(slots("name=nothing"), json!({"pools": [], "next": null}));
    // An operator ends the first lease: its holder is refused, and a client that waits is served.
    let ask = json!({"name": "b", "count": 2, "ttl": 60, "wait": 60}).to_string();
    let mut waiter = server.client();
    waiter.send("POST", "/v1/slot/borrow", &ask, "").unwrap();
    let mut end = |position: i64, token: i64| {
        v1(&mut client, "slot/break", json!({"name": "b", "position": position, "token": token}))
            .json()
    };
    assert_eq!(end(0, 2), json!({"returned": false}));
    assert_eq!(end(0, 1), json!({"returned": true}));
    assert_eq!(end(0, 1), json!({"returned": false}));
    let next = waiter.receive().unwrap().json();
    assert_eq!(next["position"], json!(0));
    assert!(next["token"].as_i64() > Some(4), "{next}");
    let renewed = v1(&mut client, "slot/renew", json!({"name": "b", "lease": leases[0], "ttl": 1}));
    assert_eq!(renewed.status, 409);
    let nothing = v1(&mut client, "slot/break", json!({"name": "z", "position": 0, "token": 1}));
    assert_eq!(nothing.status, 404);
    let refused = client.ask("GET", "/v1/slots?name=b&after=x", &Value::Null, "").unwrap();
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn all_pools_are_listed_by_label_with_holders_and_waiters_and_without_uuids() {
    let (place, server) = served(&[]);
    let mut client = server.client();
    let ask = json!({"name": "b", "count": 1, "ttl": 60, "note": "one"});
    assert_eq!(v1(&mut client, "slot/borrow", ask).status, 200);
    client.ask("PUT", &format!("/l/{POOL}"), &json!({"count": 1}), "").unwrap();
    let borrow = |note: &str, wait: i64| json!({"ttl": 60, "note": note, "wait": wait});
    let path = format!("/l/{POOL}/borrow");
    let lent = client.ask("POST", &path, &borrow("import of today", 0), "").unwrap().json();
    let (mut waiter, mut next) = (server.client(), server.client());
    waiter.send("POST", &path, &borrow("import of tomorrow", 60).to_string(), "").unwrap();
    let beside = place.open(Duration::from_secs(5));
    beside.pools().register("zebra", 7).unwrap();
    let mut pools = |query: &str| {
        let answer = next.ask("GET", &format!("/v1/pools?{query}"), &Value::Null, "").unwrap();
        for secret in [POOL, lent["lease"].as_str().unwrap(), "name:"] {
            assert!(!answer.body.contains(secret), "{query}: {}", answer.body);
        }
        answer.json()
    };
    eventually("it waits", || (pools("")["pools"][1]["waiters"] == 1).then_some(()));
    let all = pools("");
    let labels: Vec<&str> = (0..3).map(|at| all["pools"][at]["label"].as_str().unwrap()).collect();
    assert_eq!((labels[0], labels[1].len(), labels[2]), ("b", 4, "zebra"));
    assert_eq!(labels[1], litelease::pool_label(POOL));
    assert!(!POOL.contains(labels[1]), "it is no part of the id: {labels:?}");
    let (named, secret, empty) = (&all["pools"][0], &all["pools"][1], &all["pools"][2]);
    assert_eq!(named["slots"][0]["note"], json!("one"));
    assert_eq!((&named["waiters"], named.get("waiting")), (&json!(0), None));
    assert_eq!((&secret["count"], &secret["in_use"]), (&json!(1), &json!(1)));
    assert_eq!(secret["slots"][0]["note"], json!("import of today"));
    assert_eq!(secret["waiting"], json!([{"note": "import of tomorrow"}]));
    let counts = json!({"count": 7, "in_use": 0, "available": 7, "label": "zebra", "slots": [], "waiters": 0});
    assert_eq!((empty, &all["next"]), (&counts, &Value::Null));
    // In pages.
    let first = pools("limit=2");
    assert_eq!(first["pools"].as_array().unwrap().len(), 2);
    let rest = pools(&format!("limit=2&after={}", first["next"].as_str().unwrap()));
    assert_eq!((&rest["pools"][0]["label"], &rest["next"]), (&json!("zebra"), &Value::Null));
    let refused = client.ask("GET", "/v1/pools?after=x", &Value::Null, "").unwrap();
    assert_eq!(refused.status, 400);
}

#[test]
fn a_claim_that_waits_says_who_and_why_and_the_log_has_the_reason_of_an_operator() {
    let (_place, server) = served(&[]);
    let mut client = server.client();
    claim(&mut client, "n", "a");
    let mut waiters: Vec<Client> = Vec::new();
    for (owner, note) in [("b", json!("the report of today")), ("c", Value::Null)] {
        let mut body = json!({"name": "n", "owner": owner, "ttl": 60, "wait": 60});
        if note.is_string() {
            body["note"] = note;
        }
        let mut waiter = server.client();
        waiter.send("POST", "/v1/claim", &body.to_string(), "").unwrap();
        waiters.push(waiter);
        let wait = waiters.len();
        eventually("it waits", || {
            (read_leases(&mut client, "name=n")["waiters"] == wait).then_some(())
        });
    }
    let found = read_leases(&mut client, "name=n");
    let (first, second) = (&found["waiting"][0], &found["waiting"][1]);
    assert_eq!((&first["owner"], &first["note"]), (&json!("b"), &json!("the report of today")));
    assert_eq!((&second["owner"], second.get("note")), (&json!("c"), None));
    assert!(first["waits_for"].as_f64() >= second["waits_for"].as_f64(), "{found}");
    let too_long = json!({"name": "n", "reason": "x".repeat(201)});
    assert_eq!(v1(&mut client, "break", too_long).status, 400);

    let reason = "its host is \"gone\"\n2026 INFO a line of its own";
    let broken = v1(&mut client, "break", json!({"name": "n", "reason": reason}));
    assert_eq!((broken.status, &broken.json()["owner"]), (200, &json!("a")));
    assert_eq!(waiters[0].receive().unwrap().json()["owner"], json!("b"));
    assert!(read_leases(&mut client, "name=n")["waiting"].as_array().unwrap().len() == 1);
    v1(&mut client, "queue/send", json!({"queue": "q", "body": 1}));
    for call in ["redrive", "discard"] {
        let body = json!({"queue": "q", "reason": format!("why {call}")});
        assert_eq!(v1(&mut client, &format!("queue/{call}"), body).status, 200);
    }
    v1(&mut client, "slot/borrow", json!({"name": "s", "count": 1, "ttl": 60}));
    let ended = json!({"name": "s", "position": 0, "token": 1, "reason": "why slot"});
    assert_eq!(v1(&mut client, "slot/break", ended).json(), json!({"returned": true}));
    let log = std::fs::read_to_string(&server.log).unwrap();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("\"reason\"") && line.contains("\"status\":200"))
        .collect();
    assert_eq!(lines.len(), 4, "{log}");
    assert!(lines[0].contains("break") && lines[0].contains("its host is"), "{lines:?}");
    assert!(lines.iter().all(|line| line.contains("\"key\":") && line.contains("\"name\":")));
    let told =
        client.ask("GET", "/v1/history?name=n&kind=broken", &Value::Null, "").unwrap().json();
    let event = &told["events"][0];
    assert_eq!((&event["owner"], &event["note"]), (&json!("a"), &json!(reason)), "{told}");
    assert!(event["actor"].is_string() && told["keeps"] == json!(100_000), "{told}");
    for (line, words) in lines[1..].iter().zip(["why redrive", "why discard", "why slot"]) {
        assert!(line.contains(words), "{line}");
    }
}

/// All calls on names, as a client with the right key would make them.
fn calls(grant: &Value) -> Vec<(&'static str, String, Value, &'static str)> {
    vec![
        ("POST", "/v1/claim".into(), json!({"name": "n", "owner": "b", "ttl": 60}), "claim"),
        ("POST", "/v1/renew".into(), json!({"grant": grant, "ttl": 60}), "claim"),
        (
            "POST",
            "/v1/transfer".into(),
            json!({"grant": grant, "new_owner": "b", "ttl": 60}),
            "claim",
        ),
        ("POST", "/v1/release".into(), json!({"grant": grant}), "claim"),
        ("POST", "/v1/break".into(), json!({"name": "n"}), "operate"),
        ("GET", "/v1/leases?name=n".into(), Value::Null, "observe"),
        ("GET", "/v1/leases?prefix=n".into(), Value::Null, "observe"),
        ("GET", "/v1/leases".into(), Value::Null, "observe"),
        ("GET", "/v1/events?name=n".into(), Value::Null, "observe"),
        ("GET", "/v1/events?prefix=n".into(), Value::Null, "observe"),
        ("GET", "/v1/events".into(), Value::Null, "observe"),
        ("POST", "/v1/attach".into(), json!({"grant": grant, "value": 1}), "claim"),
        ("POST", "/v1/limit".into(), json!({"grant": grant, "max_time": 0.001}), "claim"),
        ("POST", "/v1/progress".into(), json!({"grant": grant}), "claim"),
        ("POST", "/v1/checkpoint".into(), json!({"grant": grant, "value": 1}), "claim"),
        (
            "POST",
            "/v1/request".into(),
            json!({"name": "n", "requester": "b", "within": 1}),
            "claim",
        ),
        ("POST", "/v1/hand-over".into(), json!({"grant": grant, "ttl": 60}), "claim"),
        ("POST", "/v1/queue/send".into(), json!({"queue": "n", "body": 1}), "send"),
        ("POST", "/v1/queue/receive".into(), json!({"queue": "n", "visibility": 1}), "receive"),
        ("POST", "/v1/queue/ack".into(), json!({"queue": "n", "receipt": "x"}), "receive"),
        (
            "POST",
            "/v1/queue/extend".into(),
            json!({"queue": "n", "receipt": "x", "visibility": 1}),
            "receive",
        ),
        ("POST", "/v1/queue/give-back".into(), json!({"queue": "n", "receipt": "x"}), "receive"),
        ("POST", "/v1/queue/bury".into(), json!({"queue": "n", "receipt": "x"}), "receive"),
        ("GET", "/v1/queues?queue=n".into(), Value::Null, "observe"),
        ("GET", "/v1/queues?prefix=n".into(), Value::Null, "observe"),
        ("GET", "/v1/queues".into(), Value::Null, "observe"),
        ("GET", "/v1/history?name=n".into(), Value::Null, "observe"),
        ("GET", "/v1/history".into(), Value::Null, "observe"),
        (
            "POST",
            "/v1/slot/break".into(),
            json!({"name": "n", "position": 0, "token": 1}),
            "operate",
        ),
        ("GET", "/v1/slots?name=n".into(), Value::Null, "observe"),
        ("GET", "/v1/slots?prefix=n".into(), Value::Null, "observe"),
        ("GET", "/v1/slots".into(), Value::Null, "observe"),
        ("GET", "/v1/pools".into(), Value::Null, "observe"),
    ]
}

#[test]
fn no_call_on_names_is_answered_without_a_key_that_allows_it() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut owner = server.client();
    let held = claim(&mut owner, "n", "a");
    let add = |name: &str, words: &[&str]| {
        let (code, key, errors) = outcome(&desk.run(&[&["access", "add", name], words].concat()));
        assert_eq!(code, 0, "{errors}");
        key.trim().to_owned()
    };
    let expired = add("expired", &["--allow", "claim:*", "--expires", "1ms"]);
    let removed = add("removed", &["--allow", "claim:*", "--allow", "observe:*"]);
    assert_eq!(outcome(&desk.run(&["access", "remove", "removed"])).0, 0);
    for (method, path, body, scope) in calls(&held["grant"]) {
        let mut nobody = Client::new(server.address);
        assert_eq!(nobody.ask(method, &path, &body, "").unwrap().status, 401, "{path}");
        for key in ["wrong", &expired, &removed] {
            let mut client = Client::new(server.address).bearing(key);
            let refused = client.ask(method, &path, &body, "").unwrap();
            assert_eq!(refused.status, 401, "{path}");
            assert!(refused.head.contains("www-authenticate: Bearer"), "{refused:?}");
        }
        // All that is allowed but this; and this, for names that are nearly the one.
        let mut words = Vec::new();
        for other in ["observe", "claim", "send", "receive", "operate"] {
            match other == scope {
                false => words.push(format!("{other}:*")),
                true => {
                    let near = ["N", "n/*", "*n*n", "nn*", "m*", "?", "[n]", "n ", ".", "%6e"];
                    words.extend(near.iter().map(|name| format!("{other}:{name}")));
                }
            }
        }
        let words: Vec<&str> = words.iter().flat_map(|word| ["--allow", word]).collect();
        let weak = add(&path, &words);
        let mut client = Client::new(server.address).bearing(&weak);
        let refused = client.ask(method, &path, &body, "").unwrap();
        assert_eq!(refused.status, 403, "{path}: {refused:?}");
        assert!(refused.error().contains(scope), "{refused:?}");
    }
    let current = read_leases(&mut owner, "name=n");
    assert_eq!((&current["owner"], &current["token"]), (&json!("a"), &json!(1)), "nothing is done");

    assert!(current.get("value").is_none() && current.get("requested").is_none(), "{current}");
    let counted = owner.ask("GET", "/v1/queues", &Value::Null, "").unwrap().json();
    assert_eq!(counted["queues"], json!([]), "nothing was sent");
    // A client that may observe or claim a name may read its checkpoint, and no other client.
    for (allow, status) in [
        ("observe:n", 200),
        ("claim:n", 200),
        ("observe:m", 403),
        ("operate:*", 403),
        ("send:*", 403),
    ] {
        let key = add(&format!("checkpoint {allow}"), &["--allow", allow]);
        let mut client = Client::new(server.address).bearing(&key);
        let read = client.ask("GET", "/v1/checkpoint?name=n", &Value::Null, "").unwrap();
        assert_eq!(read.status, status, "{allow}");
    }
    let mut nobody = Client::new(server.address);
    let read = nobody.ask("GET", "/v1/checkpoint?name=n", &Value::Null, "").unwrap();
    assert_eq!(read.status, 401);

    // The least that is enough: for one name, and for a prefix a pattern that covers all of it.
    let one = add("one", &["--allow", "observe:n", "--allow", "claim:n"]);
    let mut client = Client::new(server.address).bearing(&one);
    for (path, status) in [
        ("/v1/leases?name=n", 200),
        ("/v1/leases?name=nn", 403),
        ("/v1/leases?prefix=n", 403),
        ("/v1/leases?prefix=", 403),
    ] {
        assert_eq!(client.ask("GET", path, &Value::Null, "").unwrap().status, status, "{path}");
    }
    let renewed = v1(&mut client, "renew", json!({"grant": held["grant"], "ttl": 60}));
    assert_eq!(renewed.status, 200);
    for name in ["n/../n", "n\u{0}", " n", "n%00", "N"] {
        let refused = v1(&mut client, "claim", json!({"name": name, "owner": "b", "ttl": 60}));
        assert_eq!(refused.status, 403, "{name:?}");
    }
    // A token far above raises those of every name in the file, so it is an operator's.
    v1(&mut client, "release", json!({"grant": held["grant"]}));
    let far = json!({"name": "n", "owner": "b", "ttl": 60, "min_token": 1_i64 << 50});
    let refused = v1(&mut client, "claim", far.clone());
    assert_eq!((refused.status, refused.error().contains("operate")), (403, true));
    assert_eq!(v1(&mut owner, "claim", far).status, 200);
}

/// Only the epoch of `min_token` itself was compared. The last number of the epoch passed, and the
/// grant after it raised the tokens of all names: one epoch per claim, and 2^53 within minutes.
#[test]
fn a_key_for_some_names_cannot_raise_the_tokens_of_others() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut owner = server.client();
    let (_, key, _) = outcome(&desk.run(&["access", "add", "ci", "--allow", "claim:a/*"]));
    let mut tenant = Client::new(server.address).bearing(key.trim());
    let ask = |name: &str, min_token: i64| json!({"name": name, "owner": "ci", "ttl": 60, "min_token": min_token});
    let epoch = 1_i64 << 32;
    for min_token in [epoch / 2, epoch - 2, epoch - 1, epoch, 2 * epoch - 1] {
        let refused = v1(&mut tenant, "claim", ask("a/x", min_token));
        assert_eq!((refused.status, refused.error().contains("operate")), (403, true));
    }
    let granted = v1(&mut tenant, "claim", ask("a/x", epoch / 2 - 1)).json();
    assert_eq!(granted["token"], json!(epoch / 2));
    // Its next grant is as ordinary, also if the client repeats what it has seen last.
    v1(&mut tenant, "release", json!({"grant": granted["grant"]}));
    let next = v1(&mut tenant, "claim", ask("a/x", epoch / 2)).json();
    assert_eq!(next["token"], json!(epoch / 2 + 1));
    let handed = json!({"grant": next["grant"], "new_owner": "b", "ttl": 60});
    assert_eq!(v1(&mut tenant, "transfer", handed).status, 200);
    assert_eq!(claim(&mut owner, "b", "b")["token"], json!(1), "the others have not moved");
}

#[test]
fn a_key_that_is_taken_back_ends_its_waiting_claims_and_its_streams() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let mut owner = server.client();
    let held = claim(&mut owner, "n", "a");
    let words = ["access", "add", "ci", "--allow", "claim:*", "--allow", "observe:*"];
    let (_, key, _) = outcome(&desk.run(&words));
    let mut waiter = Client::new(server.address).bearing(key.trim());
    let body = json!({"name": "n", "owner": "ci", "ttl": 60, "wait": 60}).to_string();
    waiter.send("POST", "/v1/claim", &body, "").unwrap();
    eventually("it waits", || (read_leases(&mut owner, "name=n")["waiters"] == 1).then_some(()));
    let mut stream = Events::open(Client::new(server.address).bearing(key.trim()), "name=n");
    stream.until("\"owner\":\"a\"");
    let mut other = Events::open(server.client(), "name=n");
    other.until("\"owner\":\"a\"");
    assert_eq!(outcome(&desk.run(&["access", "remove", "ci"])).0, 0);
    stream.end();
    v1(&mut owner, "release", json!({"grant": held["grant"]}));
    assert_eq!(waiter.receive().unwrap().status, 401, "nothing is granted to it any more");
    other.until("\"owner\":null");
    assert_eq!(read_leases(&mut owner, "name=n")["token"], json!(1));
}
