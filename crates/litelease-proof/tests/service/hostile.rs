//! Clients that want more than they may have: the slot of another client, what a removed or expired
//! key still opens, and tokens that a restored file would grant again.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use litelease::Litelease;
use litelease::credentials::{DEFAULT_MAX_TTL, Issuer};
use litelease_client::{Client as Holder, HoldOptions};
use litelease_proof::command::{Desk, ended, outcome};
use litelease_proof::rig::{TestFolder, eventually, litelease};
use litelease_proof::server::{Client, POOL, Response, Server};
use serde_json::{Value, json};

/// A served file, and the command on it.
fn served() -> (Desk, Server) {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    (desk, server)
}

/// A client with a key that allows this.
fn with_key(desk: &Desk, server: &Server, name: &str, words: &[&str]) -> Client {
    let (code, key, errors) = outcome(&desk.run(&[&["access", "add", name], words].concat()));
    assert_eq!((code, errors.as_str()), (0, ""), "{key}");
    Client::new(server.address).bearing(key.trim())
}

fn v1(client: &mut Client, call: &str, body: &Value, headers: &str) -> Response {
    client.ask("POST", &format!("/v1/{call}"), body, headers).unwrap()
}

fn waiters(server: &Server) -> i64 {
    let text = server.client().ask("GET", "/metrics", &Value::Null, "").unwrap().body;
    let count = text.lines().find_map(|line| line.strip_prefix("litelease_waiters "));
    count.unwrap().parse().unwrap()
}

// A slot of a named pool was found by its idempotency key alone. So a client with another access
// key that sent the same one, `attempt-1` say, was given the lease of the first: two clients in one
// slot, and each could return it.
#[test]
fn a_client_does_not_get_the_slot_of_another_one_that_has_sent_the_same_key() {
    let (desk, server) = served();
    let [mut a, mut b] =
        ["a", "b"].map(|name| with_key(&desk, &server, name, &["--allow", "claim:importers"]));
    let ask = json!({"name": "importers", "count": 2, "ttl": 60});
    let header = "Idempotency-Key: attempt-1\r\n";
    let first = v1(&mut a, "slot/borrow", &ask, header).json();
    let again = v1(&mut a, "slot/borrow", &ask, header);
    assert!(again.head.contains("idempotency-key: attempt-1\r\n"), "{again:?}");
    assert_eq!(again.json()["lease"], first["lease"]);
    let second = v1(&mut b, "slot/borrow", &ask, header).json();
    assert_ne!((&second["lease"], &second["position"]), (&first["lease"], &first["position"]));
    // The same while both wait: each gets a slot of its own, in order.
    let waiting = json!({"name": "importers", "count": 2, "ttl": 60, "wait": 60}).to_string();
    for client in [&mut a, &mut b] {
        let before = waiters(&server);
        let header = "Idempotency-Key: attempt-2\r\n";
        client.send("POST", "/v1/slot/borrow", &waiting, header).unwrap();
        eventually("it waits", || (waiters(&server) > before).then_some(()));
    }
    let mut own = server.client();
    for lent in [&first, &second] {
        let returned =
            v1(&mut own, "slot/return", &json!({"name": "importers", "lease": lent["lease"]}), "");
        assert_eq!(returned.json()["returned"], json!(true));
    }
    let (third, fourth) = (a.receive().unwrap().json(), b.receive().unwrap().json());
    assert_ne!(third["lease"], fourth["lease"]);
    assert_eq!(
        (&third["position"], &fourth["position"]),
        (&first["position"], &second["position"])
    );
}

// The key of a borrow that waited for a slot by name was checked after the slot was lent. If it had
// been removed meanwhile, the client was refused, and the slot, which an idempotency key kept for a
// retry, was lost until its ttl.
#[test]
fn a_borrow_whose_access_key_is_removed_while_it_waits_takes_no_slot() {
    let (desk, server) = served();
    let mut own = server.client();
    let ask = json!({"name": "importers", "count": 1, "ttl": 600});
    let lent = v1(&mut own, "slot/borrow", &ask, "").json();
    let mut gone = with_key(&desk, &server, "ci", &["--allow", "claim:*"]);
    let waits = json!({"name": "importers", "count": 1, "ttl": 600, "wait": 60}).to_string();
    gone.send("POST", "/v1/slot/borrow", &waits, "Idempotency-Key: k\r\n").unwrap();
    eventually("it waits", || (waiters(&server) == 1).then_some(()));
    let mut next = server.client();
    next.send("POST", "/v1/slot/borrow", &waits, "").unwrap();
    eventually("two wait", || (waiters(&server) == 2).then_some(()));
    assert_eq!(outcome(&desk.run(&["access", "remove", "ci"])).0, 0);
    v1(&mut own, "slot/return", &json!({"name": "importers", "lease": lent["lease"]}), "");
    assert_eq!(gone.receive().unwrap().status, 401);
    assert_eq!(next.receive().unwrap().json()["token"], json!(2), "the next one has it");
}

// A claim whose time to wait was over was told who has the name, whatever had become of its access
// key meanwhile.
#[test]
fn a_claim_whose_access_key_is_removed_while_it_waits_is_not_told_who_has_the_name() {
    let (desk, server) = served();
    let mut own = server.client();
    v1(&mut own, "claim", &json!({"name": "n", "owner": "secret", "ttl": 600}), "");
    let mut gone = with_key(&desk, &server, "ci", &["--allow", "claim:*"]);
    let waits = json!({"name": "n", "owner": "b", "ttl": 600, "wait": 4}).to_string();
    gone.send("POST", "/v1/claim", &waits, "").unwrap();
    eventually("it waits", || (waiters(&server) == 1).then_some(()));
    assert_eq!(outcome(&desk.run(&["access", "remove", "ci"])).0, 0);
    let refused = gone.receive().unwrap();
    assert_eq!((refused.status, refused.body.contains("secret")), (401, false), "{refused:?}");
}

// A stream looked at its key again when keys changed in the file, or when nothing had happened for
// 15 seconds. An expiry changes nothing in the file, so on a busy name the stream of an expired key
// went on for ever.
#[test]
fn a_stream_ends_when_its_key_expires_however_much_there_is_to_tell() {
    let (desk, server) = served();
    let words = ["--allow", "observe:*", "--expires", "6s"];
    let mut watcher = with_key(&desk, &server, "short", &words);
    watcher.send("GET", "/v1/events?name=n", "", "").unwrap();
    let mut stream = watcher.into_stream().unwrap();
    let mut own = server.client();
    let begun = Instant::now();
    let mut said = String::new();
    // Something changes in every round, and is told, unless it is over within one report.
    stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while !said.ends_with("0\r\n\r\n") {
        assert!(begun.elapsed() < Duration::from_secs(60), "it goes on");
        let held = v1(&mut own, "claim", &json!({"name": "n", "owner": "a", "ttl": 60}), "").json();
        v1(&mut own, "release", &json!({"grant": held["grant"]}), "");
        let mut chunk = [0; 4096];
        let Ok(read) = stream.read(&mut chunk) else { continue };
        said += &String::from_utf8_lossy(&chunk[..read]);
    }
    assert!(said.matches("event: ").count() > 1, "{said}");
}

/// Puts a copy in the place of the file.
fn restore(backup: &Path, file: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{suffix}", file.display()));
    }
    fs::copy(backup, file).unwrap();
}

/// Why the server does not start.
#[track_caller]
fn refusal(place: &TestFolder) -> String {
    let mut refused = Command::new(litelease());
    refused.args(["serve", "--listen", "127.0.0.1:0", "--db"]).arg(&place.file);
    let refused = ended(&mut refused);
    assert_eq!(refused.status.code(), Some(69), "{refused:?}");
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

// The high-water mark was that of slots. A file with names only could be restored from a backup and
// served again, and granted each token that had been granted since for a second time.
#[test]
fn a_restored_backup_of_a_file_with_names_is_refused_until_it_is_fenced() {
    let place = TestFolder::new("WAL");
    let db = |place: &TestFolder| Litelease::open_own(&place.file).unwrap();
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    let mut claim = |name: &str, key: &str| {
        let body = json!({"name": name, "owner": "a", "ttl": 600});
        v1(&mut client, "claim", &body, &format!("Idempotency-Key: {key}\r\n")).json()
    };
    // Another name has a larger token than the one that is granted last.
    let held = claim("n", "1");
    for _ in 0..3 {
        let held = claim("other", "2");
        let mut client = server.client();
        v1(&mut client, "release", &json!({"grant": held["grant"]}), "");
    }
    claim("third", "3");
    let backup = place.folder.path().join("backup.sqlite3");
    db(&place).conn().execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    // Only a transfer comes after the backup, and then the answer to an older claim once more.
    let mut own = server.client();
    let handed = json!({"grant": held["grant"], "new_owner": "b", "ttl": 600});
    assert_eq!(v1(&mut own, "transfer", &handed, "").json()["token"], json!(2));
    claim("third", "3");
    server.kill();
    restore(&backup, &place.file);
    let said = refusal(&place);
    assert!(
        said.contains("older than what was served from it") && said.contains("--restore-fence"),
        "{said}"
    );

    let server = Server::start(&place.file, &["--restore-fence"]);
    let mut client = server.client();
    let next = v1(&mut client, "claim", &json!({"name": "n", "owner": "c", "ttl": 600}), "").json();
    assert!(next["token"].as_i64() > Some(1 << 45), "{next}");
    assert!(server.stop());
    assert!(Server::start(&place.file, &[]).stop(), "once is enough");

    // A file that was not restored is not refused after a purge of the last name.
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    let last =
        v1(&mut client, "claim", &json!({"name": "last", "owner": "a", "ttl": 600}), "").json();
    v1(&mut client, "release", &json!({"grant": last["grant"]}), "");
    eventually("it is purged", || {
        db(&place).purge(i64::MAX).unwrap();
        db(&place).token("last").unwrap().is_none().then_some(())
    });
    assert!(server.stop());
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    v1(&mut client, "claim", &json!({"name": "last", "owner": "a", "ttl": 600}), "");
    server.kill();
    restore(&backup, &place.file);
    assert!(refusal(&place).contains("--restore-fence"));
}

// A slot that had expired could have been kept for ever: no test would have noticed.
#[test]
fn a_slot_that_has_expired_cannot_be_kept() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    client.register(1);
    let lent = client.call("POST", "/borrow", &json!({"ttl": 0.2})).json();
    let lease = json!({"lease": lent["lease"]});
    eventually("it is over", || (client.in_use() == 0).then_some(()));
    let late = client.call("POST", "/keep", &lease);
    assert_eq!(
        (late.status, late.error()),
        (
            409,
            "the lease is no longer live: it has expired or was returned, so borrow again".into()
        )
    );
    assert_eq!(client.in_use(), 0, "it is free");
    // Nor can the old lease keep the slot of its successor.
    let next = client.call("POST", "/borrow", &json!({"ttl": 0.4}));
    assert_eq!((next.status, &next.json()["position"]), (200, &json!(0)));
    assert_eq!(client.call("POST", "/keep", &lease).status, 409);
    eventually("its successor ends", || (client.in_use() == 0).then_some(()));
    let next = json!({"lease": next.json()["lease"]});
    assert_eq!(client.call("POST", "/keep", &next).status, 409);
    let url = format!("/l/{POOL}");
    assert_eq!(client.ask("GET", &url, &Value::Null, "").unwrap().json()["available"], json!(1));
}

// A client renews its holds one after the other. A renewal that the server refused, because of a
// damaged row or of the access key, stopped all that came behind it in the same round, and so again
// in every round: they were lost as well.
#[test]
fn a_hold_that_cannot_be_renewed_takes_no_other_hold_with_it() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let key = server.access.trim().trim_start_matches("Authorization: Bearer ").to_owned();
    let client = Holder::with_key(&format!("http://{}", server.address), &key).unwrap();
    let ttl = Duration::from_secs(3);
    let holds: Vec<_> =
        ["a", "b", "c"].map(|name| client.hold(name, HoldOptions::new(ttl)).unwrap()).into();
    let db = litelease::rusqlite::Connection::open(&place.file).unwrap();
    db.busy_timeout(Duration::from_secs(10)).unwrap();
    db.execute_batch("PRAGMA ignore_check_constraints = ON").unwrap();
    db.execute("UPDATE litelease_resources SET token = -1 WHERE name = 'a'", []).unwrap();
    // The others would be lost at the same time.
    eventually("it is lost", || holds[0].check().is_err().then_some(()));
    for held in &holds[1..] {
        assert!(held.check().is_ok(), "{:?}", held.trouble());
    }
}

fn waits(client: &mut Client, path: &str, body: &Value) {
    client.send("POST", path, &body.to_string(), "").unwrap();
}

/// All clients shared one limit of waiting requests: 10,000 borrows without an access key kept
/// every other client from waiting.
#[test]
fn clients_without_a_key_leave_half_of_the_waiting_places_and_a_key_three_quarters() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &["--max-waiters", "8"]);
    let mut tenant = with_key(&desk, &server, "a", &["--allow", "claim:*"]);
    let mut other = with_key(&desk, &server, "b", &["--allow", "claim:*"]);
    let mut owner = server.client();
    owner.register(1);
    owner.call("POST", "/borrow", &json!({"ttl": 600}));
    v1(&mut owner, "claim", &json!({"name": "n", "owner": "a", "ttl": 600}), "");
    let borrow = (format!("/l/{POOL}/borrow"), json!({"ttl": 600, "wait": 600}));
    let claim =
        ("/v1/claim".to_owned(), json!({"name": "n", "owner": "b", "ttl": 600, "wait": 600}));
    let mut all = Vec::new();
    for (client, (path, body), places) in [(&mut owner, &borrow, 4), (&mut tenant, &claim, 2)] {
        for place in 0..places {
            let before = waiters(&server);
            let mut waiter = client.another();
            waits(&mut waiter, path, body);
            eventually("it waits", || (waiters(&server) > before).then_some(place));
            all.push(waiter);
        }
        let refused = client.ask("POST", path, body, "").unwrap();
        assert_eq!(refused.status, 429, "{refused:?}");
        assert!(refused.error().contains("--max-waiters"), "{refused:?}");
    }
    waits(&mut other, &claim.0, &claim.1);
    eventually("another key has places of its own", || (waiters(&server) == 7).then_some(()));
}

/// Event streams held every place under --max-connections for ever.
#[test]
fn streams_and_connections_without_a_key_leave_room_for_clients_with_one() {
    let desk = Desk::new();
    let flags = ["--max-streams", "4", "--max-connections", "8"];
    let server = Server::start(&desk.file, &flags);
    let mut keyed = with_key(&desk, &server, "a", &["--allow", "observe:*"]);
    server.client().register(1);
    let stream = |mut client: Client, path: &str| {
        client.send("GET", path, "", "").unwrap();
        client
    };
    let path = format!("/l/{POOL}/events");
    let mut open: Vec<Client> =
        (0..2).map(|_| stream(Client::new(server.address), &path)).collect();
    eventually("the streams are open", || {
        let text = server.client().ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        text.contains("litelease_streams 2\n").then_some(())
    });
    let refused = Client::new(server.address).ask("GET", &path, &Value::Null, "").unwrap();
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.error().contains("--max-streams"), "{refused:?}");
    // Two more connections stay open, and then one without a key is closed after its answer.
    open.extend((0..2).map(|_| {
        let mut client = Client::new(server.address);
        let answer = client.ask("GET", "/healthz", &Value::Null, "").unwrap();
        assert!(!answer.head.contains("connection: close"), "{answer:?}");
        client
    }));
    let mut late = Client::new(server.address);
    let answer = late.ask("GET", "/healthz", &Value::Null, "").unwrap();
    assert_eq!((answer.status, answer.head.contains("connection: close")), (200, true));
    // It may not stay for long either.
    let mut late = Client::new(server.address);
    let body = json!({"ttl": 1, "wait": 60});
    let answer = late.ask("POST", &format!("/l/{POOL}/borrow"), &body, "").unwrap();
    assert_eq!(answer.status, 429, "{answer:?}");
    assert!(answer.error().contains("--max-connections"), "{answer:?}");
    // A key that was not checked does not count as one.
    let mut bogus = Client::new(server.address).bearing("litelease-bogus");
    let answer = bogus.ask("POST", "/v1/claim", &json!({"nonsense": true}), "").unwrap();
    assert_eq!((answer.status, answer.head.contains("connection: close")), (400, true));
    let answer = keyed.ask("GET", "/v1/leases?name=n", &Value::Null, "").unwrap();
    assert_eq!((answer.status, answer.head.contains("connection: close")), (200, false));
}

/// Pools were stored without limit, for unknown clients.
#[test]
fn clients_without_a_key_store_half_of_the_pools() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &["--max-pools", "4"]);
    let mut client = Client::new(server.address);
    let mut register = |at: i64| {
        let path = format!("/l/00000000-0000-4000-8000-{at:012}");
        client.ask("PUT", &path, &json!({"count": 1}), "").unwrap()
    };
    assert_eq!([1, 2, 1].map(|at| register(at).status), [200, 200, 200]);
    let refused = register(3);
    assert_eq!(refused.status, 429);
    assert!(refused.error().contains("--max-pools"), "{refused:?}");
    let mut keyed = with_key(&desk, &server, "a", &["--allow", "claim:*"]);
    let ask = |name: &str| json!({"name": name, "count": 1, "ttl": 60});
    assert_eq!(v1(&mut keyed, "slot/borrow", &ask("x"), "").status, 200);
    assert_eq!(v1(&mut keyed, "slot/borrow", &ask("y"), "").status, 429, "a quarter is one");
}

#[test]
fn answers_are_stored_within_the_share_of_a_key_and_acknowledgements_are_never_refused() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &["--max-answers", "8"]);
    let allow = ["--allow", "send:*", "--allow", "receive:*"];
    let mut client = with_key(&desk, &server, "a", &allow);
    let mut ask = |call: &str, body: Value, key: &str| {
        v1(&mut client, &format!("queue/{call}"), &body, &format!("Idempotency-Key: {key}\r\n"))
    };
    let send = json!({"queue": "q", "body": 1});
    let first = ask("send", send.clone(), "1").json()["id"].clone();
    let item = ask("receive", json!({"queue": "q", "visibility": 60}), "2").json()["item"].clone();
    let refused = ask("send", send.clone(), "3");
    assert_eq!(refused.status, 429);
    assert!(refused.error().contains("--max-answers"), "{refused:?}");
    assert_eq!(ask("send", send, "1").json()["id"], first, "what is stored is answered again");
    let receipt = json!({"queue": "q", "receipt": item["receipt"]});
    let extended = json!({"queue": "q", "receipt": item["receipt"], "visibility": 90});
    assert_eq!(ask("extend", extended, "4").status, 200);
    assert_eq!(ask("ack", receipt, "5").status, 200);
}

/// Each request read the keys on a thread of its own: 10,000 of them made 514 threads.
/// A chunked request does not say how long it is. Each counted as the longest that is allowed, so a
/// few small ones used up the share of their client.
#[test]
fn a_chunked_request_takes_of_its_clients_share_only_if_it_is_long() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &["--max-bytes", "4194304"]);
    let head = format!(
        "POST /v1/queue/send HTTP/1.1\r\nHost: localhost\r\n{}Transfer-Encoding: chunked\r\n\r\n",
        server.access
    );
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let used = || {
        let text = server.client().ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        let used = text.lines().find_map(|line| line.strip_prefix("litelease_bytes_under_way "));
        used.unwrap().parse::<usize>().unwrap()
    };
    // One that goes on, and has sent little.
    let mut small = server.client();
    small.write(format!("{head}{}", chunk(r#"{"queue":"q","#)).as_bytes()).unwrap();
    let body = json!({"queue": "q", "body": "x".repeat(20_000)}).to_string();
    for text in [r#"{"queue":"q","body":"b"}"#, &body] {
        let mut other = server.client();
        other.write(format!("{head}{}0\r\n\r\n", chunk(text)).as_bytes()).unwrap();
        let sent = other.receive().unwrap();
        assert_eq!(sent.status, 200, "{sent:?}");
    }
    // One that has sent much keeps others of its client out, until it is done.
    let mut long = server.client();
    long.write(format!("{head}{}", chunk(&body[..18_000])).as_bytes()).unwrap();
    eventually("the long one counts", || (used() > 1_000_000).then_some(()));
    let refused = server.client().ask(
        "POST",
        "/v1/queue/send",
        &json!({"queue": "q", "body": "x".repeat(20_000)}),
        "",
    );
    assert_eq!(refused.unwrap().status, 429);
    long.write(format!("{}0\r\n\r\n", chunk(&body[18_000..])).as_bytes()).unwrap();
    assert_eq!(long.receive().unwrap().status, 200);
    small.write(format!("{}0\r\n\r\n", chunk(r#""body":"b"}"#)).as_bytes()).unwrap();
    assert_eq!(small.receive().unwrap().status, 200);
    eventually("nothing is under way", || (used() == 0).then_some(()));
}

#[test]
fn requests_for_the_public_keys_do_not_make_threads() {
    let desk = Desk::new();
    let folder = desk.file.with_file_name("issuer");
    Issuer::at(&folder).rotate(DEFAULT_MAX_TTL).unwrap();
    let server = Server::start(&desk.file, &["--credentials", folder.to_str().unwrap()]);
    let mut clients: Vec<Client> = (0..300).map(|_| Client::new(server.address)).collect();
    for _ in 0..3 {
        for client in &mut clients {
            client.send("GET", "/.well-known/jwks.json", "", "").unwrap();
        }
        for client in &mut clients {
            assert_eq!(client.receive().unwrap().status, 200);
        }
    }
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let threads = status.lines().find_map(|line| line.strip_prefix("Threads:")).unwrap();
    assert!(threads.trim().parse::<u32>().unwrap() < 20, "{threads} threads");
}

/// A stream asked for its key once a second. What happened after its removal was still told.
#[test]
fn a_stream_tells_nothing_that_happened_after_its_key_was_removed() {
    let (desk, server) = served();
    for round in 0..5 {
        let name = format!("ci{round}");
        let mut watcher = with_key(&desk, &server, &name, &["--allow", "observe:*"]);
        watcher.send("GET", "/v1/events?prefix=", "", "").unwrap();
        let mut stream = watcher.into_stream().unwrap();
        let mut heard = vec![0; 4096];
        let first = stream.read(&mut heard).unwrap();
        assert!(first > 0);
        assert_eq!(outcome(&desk.run(&["access", "remove", &name])).0, 0);
        let secret = format!("secret-{round}");
        let claim = json!({"name": secret, "owner": "a", "ttl": 60});
        assert_eq!(v1(&mut server.client(), "claim", &claim, "").status, 200);
        // The stream ends with an empty chunk; the connection stays open.
        let mut rest = String::new();
        while !rest.ends_with("0\r\n\r\n") {
            let read = stream.read(&mut heard).unwrap();
            assert!(read > 0, "{rest}");
            rest += &String::from_utf8_lossy(&heard[..read]);
        }
        assert!(!rest.contains(&secret), "{rest}");
    }
}
