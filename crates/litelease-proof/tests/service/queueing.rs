//! Waiting for a slot of a served pool: in order, through hang-ups, kills and restarts, and no slot
//! is lost or lent twice.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use litelease::Litelease;
use litelease_proof::command::ended;
use litelease_proof::rig::{Dice, LONG, TestFolder, eventually, litelease, report};
use litelease_proof::server::{Client, POOL, Server};
use serde_json::{Value, json};

fn served(count: i64) -> (TestFolder, Server, Client) {
    let place = TestFolder::new("WAL");
    // It hangs up on no client, however slow this machine is.
    let server = Server::start(&place.file, &["--max-patience", "600"]);
    let mut client = server.client();
    client.register(count);
    (place, server, client)
}

fn waiters(server: &Server) -> i64 {
    let text = server.client().ask("GET", "/metrics", &Value::Null, "").unwrap().body;
    let line = text.lines().find(|line| line.starts_with("litelease_waiters ")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[track_caller]
fn borrow(client: &mut Client) -> Value {
    let lent = client.call("POST", "/borrow", &json!({"ttl": 600}));
    assert_eq!(lent.status, 200, "{lent:?}");
    lent.json()
}

/// A client that waits in the queue; its answer can be received.
fn waiting(server: &Server, headers: &str) -> Client {
    let before = waiters(server);
    let mut client = server.client();
    client
        .send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":600,"wait":300}"#, headers)
        .unwrap();
    let started = Instant::now();
    while waiters(server) != before + 1 {
        let is_late = started.elapsed() > Duration::from_secs(30);
        assert!(!is_late, "it does not wait, it is told {:?}", client.receive());
        thread::sleep(Duration::from_millis(5));
    }
    client
}

#[track_caller]
fn give_back(client: &mut Client, lent: &Value) {
    let returned = client.call("POST", "/return", &json!({"lease": lent["lease"]}));
    assert_eq!(returned.json(), json!({"returned": true}));
}

#[test]
fn who_waits_is_served_in_order() {
    let (_place, server, mut client) = served(1);
    let mut lent = borrow(&mut client);
    let mut queue: Vec<Client> = (0..5).map(|_| waiting(&server, "")).collect();
    for (served, waiter) in queue.iter_mut().enumerate() {
        // No other client overtakes them.
        assert_eq!(client.call("POST", "/borrow", &json!({"ttl": 1})).status, 409);
        give_back(&mut client, &lent);
        lent = waiter.receive().unwrap().json();
        assert_eq!(lent["position"], json!(0));
        assert_eq!(lent["token"], json!(served + 2));
    }
}

#[test]
fn as_many_are_served_as_slots_come_free() {
    let (_place, server, mut client) = served(3);
    let lent: Vec<Value> = (0..3).map(|_| borrow(&mut client)).collect();
    let mut queue: Vec<Client> = (0..4).map(|_| waiting(&server, "")).collect();
    lent.iter().for_each(|lent| give_back(&mut client, lent));
    let positions: HashSet<i64> = queue[..3]
        .iter_mut()
        .map(|waiter| waiter.receive().unwrap().json()["position"].as_i64().unwrap())
        .collect();
    assert_eq!(positions.len(), 3);
    assert_eq!(waiters(&server), 1);
    // A larger pool serves at once; a smaller one takes no slot from its borrower.
    client.register(4);
    assert_eq!(queue[3].receive().unwrap().json()["position"], json!(3));
    client.register(1);
    assert_eq!(client.in_use(), 4);
}

#[test]
fn a_waiter_that_hangs_up_is_forgotten_and_the_next_one_is_served() {
    let (_place, server, mut client) = served(1);
    let lent = borrow(&mut client);
    let mut gone = waiting(&server, "");
    let mut next = waiting(&server, "");
    gone.hang_up();
    eventually("it is forgotten", || waiters(&server) == 1);
    give_back(&mut client, &lent);
    assert_eq!(next.receive().unwrap().json()["token"], json!(2));
}

#[test]
fn a_client_that_hangs_up_with_its_answer_under_way_gives_the_slot_back() {
    let (_place, server, mut client) = served(1);
    for _ in 0..200 {
        let mut hasty = server.client();
        hasty.send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":600,"wait":300}"#, "").unwrap();
        let lent = hasty.receive();
        // The answer came, so this one is its client's.
        if let Ok(lent) = lent {
            give_back(&mut client, &lent.json());
        }
    }
    assert_eq!(client.in_use(), 0);
    // These hang up without reading: before, while or after the grant. What the server has sent in
    // full is theirs.
    let mut lost = 0;
    for _ in 0..200 {
        let mut hasty = server.client();
        hasty.send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":0.2,"wait":300}"#, "").unwrap();
        hasty.hang_up();
        lost += i64::from(client.in_use() > 0);
    }
    report(&format!("200 clients hung up at once; {lost} times the slot was in use then"));
    eventually("all are over", || client.in_use() == 0 && waiters(&server) == 0);
}

#[test]
fn a_wait_that_is_up_is_told_and_takes_nothing() {
    let (_place, server, mut client) = served(1);
    let lent = borrow(&mut client);
    let late = server.client().call("POST", "/borrow", &json!({"ttl": 60, "wait": 0.05}));
    assert_eq!((late.status, late.error()), (409, "no resource available".into()));
    give_back(&mut client, &lent);
    assert_eq!(client.in_use(), 0);
    // A wait that ends when a slot comes free: a no or a whole lease, and never both.
    for _ in 0..50 {
        let short = client.call("POST", "/borrow", &json!({"ttl": 0.03})).json();
        let answer = server.client().call("POST", "/borrow", &json!({"ttl": 60, "wait": 0.03}));
        match answer.status {
            200 => give_back(&mut client, &answer.json()),
            409 => eventually("it is over", || client.in_use() == 0),
            _ => panic!("{answer:?}"),
        }
        assert_eq!(client.in_use(), 0, "after {short} and {answer:?}");
    }
}

#[test]
fn waits_that_end_when_slots_come_free_are_told_one_thing_and_no_slot_is_lost() {
    const MANY: usize = 40;
    let (_place, server, mut client) = served(MANY as i64);
    let path = format!("/l/{POOL}/borrow");
    let mut clients: Vec<Client> = (0..MANY).map(|_| server.client()).collect();
    let (mut granted, mut refused) = (0, 0);
    for round in 0..12 {
        // All slots come free at about one instant, and all waits end around it.
        let until = Instant::now() + Duration::from_millis(150);
        for _ in 0..MANY {
            let left = until.saturating_duration_since(Instant::now()).as_secs_f64().max(0.001);
            client.call("POST", "/borrow", &json!({"ttl": left}));
        }
        for (at, waiter) in clients.iter_mut().enumerate() {
            let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
            let wait = left + at as f64 * 0.0002;
            waiter.send("POST", &path, &json!({"ttl": 600, "wait": wait}).to_string(), "").unwrap();
        }
        let mut leases = Vec::new();
        for waiter in &mut clients {
            let answer = waiter.receive().unwrap();
            match answer.status {
                200 => leases.push(answer.json()),
                409 => refused += 1,
                _ => panic!("{answer:?}"),
            }
        }
        granted += leases.len();
        let held: HashSet<&Value> = leases.iter().map(|lent| &lent["position"]).collect();
        assert_eq!(held.len(), leases.len(), "a slot twice in round {round}");
        let told = leases.len() as i64;
        eventually("who was told no has nothing", || client.in_use() == told);
        leases.iter().for_each(|lent| give_back(&mut client, lent));
    }
    report(&format!("waits that ended when slots came free: {granted} got one, {refused} did not"));
}

#[test]
fn a_key_takes_one_slot_however_often_it_asks() {
    let (_place, server, mut client) = served(2);
    let ask = |client: &mut Client, key: &str, ttl: f64| {
        let key = format!("Idempotency-Key: {key}\r\n");
        client.try_call("POST", "/borrow", &json!({"ttl": ttl, "wait": 60}), &key).unwrap().json()
    };
    let first = ask(&mut client, "a", 600.0);
    let again = ask(&mut client, "a", 5.0);
    assert_eq!((&first["lease"], &first["token"]), (&again["lease"], &again["token"]));
    assert!(again["expires_in"].as_f64().unwrap() > 500.0, "{again}");
    let other = ask(&mut client, "b", 600.0);
    assert_eq!(client.in_use(), 2);

    // Two that wait with one key share a place and an outcome, and keep it while one of them stays.
    let mut one = waiting(&server, "Idempotency-Key: c\r\n");
    let mut between = waiting(&server, "");
    let mut two = waiting(&server, "Idempotency-Key: c\r\n");
    let mut three = waiting(&server, "Idempotency-Key: c\r\n");
    one.hang_up();
    eventually("it is forgotten", || waiters(&server) == 3);
    give_back(&mut client, &other);
    let (two, three) = (two.receive().unwrap().json(), three.receive().unwrap().json());
    assert_eq!(two["lease"], three["lease"]);
    assert_eq!(waiters(&server), 1);
    give_back(&mut client, &first);
    assert_eq!(between.receive().unwrap().status, 200);

    // With a key, a grant stays for the retry when its client is gone.
    give_back(&mut client, &two);
    let mut gone = server.client();
    let path = format!("/l/{POOL}/borrow");
    gone.send("POST", &path, r#"{"ttl":600}"#, "Idempotency-Key: d\r\n").unwrap();
    eventually("it is granted", || client.in_use() == 2);
    gone.hang_up();
    let retried = ask(&mut client, "d", 600.0);
    assert_eq!(client.in_use(), 2);
    give_back(&mut client, &retried);
}

#[test]
fn expiry_another_process_and_deletion_end_a_wait() {
    let (place, server, mut client) = served(1);
    let short = client.call("POST", "/borrow", &json!({"ttl": 0.3}));
    assert_eq!(short.status, 200);
    let late = server.client().call("POST", "/borrow", &json!({"ttl": 600, "wait": 300}));
    assert_eq!(late.json()["token"], json!(2), "served when the lease was over");

    // Another process works on the same file, without asking the server.
    let mut waiter = waiting(&server, "");
    let db = Litelease::from_connection(place.connect(LONG));
    let held = db.conn().query_row(
        "SELECT lease FROM litelease_pool_slots WHERE lease IS NOT NULL",
        [],
        |row| row.get::<_, String>(0),
    );
    assert!(db.pools().return_slot(POOL, &held.unwrap()).unwrap());
    assert_eq!(waiter.receive().unwrap().json()["token"], json!(3));
    let mut waiter = waiting(&server, "");
    db.pools().register(POOL, 2).unwrap();
    assert_eq!(waiter.receive().unwrap().json()["position"], json!(1));

    let mut waiter = waiting(&server, "");
    let mut other = waiting(&server, "");
    assert_eq!(client.call("DELETE", "", &Value::Null).status, 200);
    assert_eq!(waiter.receive().unwrap().status, 404);
    assert_eq!(other.receive().unwrap().status, 404);
    client.register(1);
    borrow(&mut client);
    let mut waiter = waiting(&server, "");
    assert!(db.pools().delete(POOL).unwrap());
    assert_eq!(waiter.receive().unwrap().status, 404, "deleted by another process");
}

#[test]
fn a_shutdown_answers_who_waits_and_a_restart_loses_nothing() {
    let (place, server, mut client) = served(2);
    let first = borrow(&mut client);
    let second = borrow(&mut client);
    let mut waiter = waiting(&server, "");
    let mut watcher = server.client();
    watcher.send("GET", &format!("/l/{POOL}/events"), "", "").unwrap();
    let started = Instant::now();
    assert!(server.stop(), "it ends in good order");
    report(&format!("a shutdown with a waiter and a watcher took {:?}", started.elapsed()));
    let answer = waiter.receive().unwrap();
    assert_eq!(
        (answer.status, answer.error()),
        (503, "the server is shutting down: ask again when it is back".into())
    );

    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    assert_eq!(client.in_use(), 2);
    let renewed = client.call("POST", "/renew", &json!({"lease": first["lease"], "ttl": 1})).json();
    assert_eq!(renewed["expires_at_unix"], first["expires_at_unix"], "the same instant as before");
    assert_eq!(renewed["token"], first["token"]);
    give_back(&mut client, &second);
    assert_eq!(borrow(&mut client)["token"], json!(3), "tokens go on");
}

#[test]
fn a_restored_backup_is_refused_until_it_is_fenced() {
    let (place, server, mut client) = served(3);
    borrow(&mut client);
    let backup = place.folder.path().join("backup.sqlite3");
    place.connect(LONG).execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    let newest = borrow(&mut client);
    assert!(server.stop());
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(format!("{}{suffix}", place.file.display()));
    }
    fs::copy(&backup, &place.file).unwrap();

    let told = refusal(&place);
    assert!(told.contains("its newest token is 1, and 2 was granted"), "{told}");

    let server = Server::start(&place.file, &["--restore-fence"]);
    let mut client = server.client();
    assert_eq!(client.in_use(), 0, "every lease of the backup is over");
    let next = borrow(&mut client);
    assert!(
        next["token"].as_i64() > newest["token"].as_i64().map(|token| token + (1 << 45)),
        "{next}"
    );
    assert!(next["token"].as_i64() < Some(1 << 53), "readers of JSON have it exactly: {next}");
    assert!(server.stop());
    assert!(Server::start(&place.file, &[]).stop(), "once is enough");
}

#[test]
fn a_copy_without_its_wal_is_refused_until_it_is_fenced() {
    let (place, server, mut client) = served(5);
    let lent: Vec<Value> = (0..5).map(|_| borrow(&mut client)).collect();
    // Killed, so that what was granted is in the -wal only.
    server.kill();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(format!("{}{suffix}", place.file.display())).unwrap();
    }
    let told = refusal(&place);
    assert!(told.contains("its newest token is 0, and 5 was granted"), "{told}");
    let server = Server::start(&place.file, &["--restore-fence"]);
    let mut client = server.client();
    client.register(1);
    assert!(borrow(&mut client)["token"].as_i64() > lent[4]["token"].as_i64());
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

#[test]
fn a_database_that_is_locked_fails_all_and_works_again() {
    let (place, server, mut client) = served(1);
    let other = place.connect(LONG);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut second = server.client();
    second.send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":60}"#, "").unwrap();
    let failed = client.call("POST", "/borrow", &json!({"ttl": 60}));
    assert_eq!((failed.status, second.receive().unwrap().status), (502, 502));
    assert_eq!(
        failed.error(),
        "the database failed: it is safe to try again; the server's log says more"
    );
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(borrow(&mut client)["token"], json!(1), "nothing was lent out meanwhile");
}

/// Clients that borrow, hold and return, and hang up now and then. Answers how many grants they
/// have got.
fn crowd(server: &Server, borrows: i64, clients: u64, slots: usize) -> i64 {
    let (left, grants) = (AtomicI64::new(borrows), AtomicI64::new(0));
    let held: Vec<AtomicBool> = (0..slots).map(|_| AtomicBool::new(false)).collect();
    let tokens = std::sync::Mutex::new(HashSet::new());
    let (left, grants, held, tokens) = (&left, &grants, &held, &tokens);
    thread::scope(|scope| {
        for number in 0..clients {
            scope.spawn(move || {
                let mut dice = Dice::from(number + 1);
                let mut client = server.client();
                while left.fetch_sub(1, Ordering::SeqCst) > 0 {
                    if dice.below(5) == 0 {
                        // It hangs up at a random moment. If it was answered, its lease ends by
                        // itself.
                        let path = format!("/l/{POOL}/borrow");
                        let body = r#"{"ttl":0.05,"wait":60}"#;
                        client.send("POST", &path, body, "").unwrap();
                        thread::sleep(Duration::from_micros(dice.below(3_000)));
                        client.hang_up();
                        continue;
                    }
                    let lent = client.call("POST", "/borrow", &json!({"ttl": 60, "wait": 60}));
                    assert_eq!(lent.status, 200, "{lent:?}");
                    let lent = lent.json();
                    let slot = &held[usize::try_from(lent["position"].as_u64().unwrap()).unwrap()];
                    assert!(!slot.swap(true, Ordering::SeqCst), "lent twice: {lent}");
                    assert!(
                        tokens.lock().unwrap().insert(lent["token"].as_i64().unwrap()),
                        "{lent}"
                    );
                    slot.store(false, Ordering::SeqCst);
                    give_back(&mut client, &lent);
                    grants.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    grants.load(Ordering::SeqCst)
}

#[test]
fn a_fifth_of_the_clients_hang_up_and_no_slot_is_lost_or_lent_twice() {
    let borrows = std::env::var("LITELEASE_BORROWS").ok().and_then(|given| given.parse().ok());
    let borrows = borrows.unwrap_or(3_000);
    let (_place, server, _) = served(4);
    let started = Instant::now();
    let grants = crowd(&server, borrows, 16, 4);
    report(&format!("{borrows} borrows, {grants} kept, in {:?}", started.elapsed()));
    // On a fresh connection: the server closes one that was idle for long.
    let mut client = server.client();
    eventually("all slots are back", || client.in_use() == 0 && waiters(&server) == 0);
    assert!(grants > borrows / 2);
}

#[test]
fn after_a_kill_the_books_balance() {
    let mut dice = Dice::new("kills of the server");
    let place = TestFolder::new("WAL");
    let mut all_tokens: HashSet<i64> = HashSet::new();
    let (mut kept, rounds) = (0, 6);
    for round in 0..rounds {
        let server = Server::start(&place.file, &[]);
        server.client().register(8);
        let (is_over, answers) = (AtomicBool::new(false), AtomicI64::new(0));
        let (address, is_over, answers) = (&server, &is_over, &answers);
        // What each client has been told, in the order it was: a lease, and whether it was told to
        // be returned.
        type Leases = Vec<(Value, Option<bool>)>;
        let told: Vec<Leases> = thread::scope(|scope| {
            let clients: Vec<_> = (0..8)
                .map(|number| {
                    scope.spawn(move || {
                        let mut client = address.client();
                        let mut told: Leases = Vec::new();
                        while !is_over.load(Ordering::SeqCst) {
                            let body = json!({"ttl": 600, "wait": 1});
                            let Ok(lent) = client.try_call("POST", "/borrow", &body, "") else {
                                break;
                            };
                            if lent.status != 200 {
                                break;
                            }
                            let lent = lent.json();
                            answers.fetch_add(1, Ordering::SeqCst);
                            // Some keep theirs.
                            if number < 3 && told.len() == 3 + number {
                                told.push((lent, None));
                                break;
                            }
                            let body = json!({"lease": lent["lease"]});
                            let returned = client.try_call("POST", "/return", &body, "");
                            told.push((lent, Some(returned.is_ok())));
                            if returned.is_err() {
                                break;
                            }
                        }
                        told
                    })
                })
                .collect();
            eventually("some are answered", || answers.load(Ordering::SeqCst) > 20);
            thread::sleep(Duration::from_millis(dice.below(200)));
            let killed = std::process::Command::new("kill")
                .args(["-9", &address.pid().to_string()])
                .status();
            assert!(killed.unwrap().success());
            is_over.store(true, Ordering::SeqCst);
            clients.into_iter().map(|client| client.join().unwrap()).collect()
        });
        server.kill();

        let db = Litelease::from_connection(place.connect(LONG));
        let answered: i64 = told.iter().map(|told| told.len() as i64).sum();
        assert!(answered > 0, "nobody got anything in round {round}");
        let mut positions = HashSet::new();
        for (lent, returned) in told.into_iter().flatten() {
            let token = lent["token"].as_i64().unwrap();
            assert!(all_tokens.insert(token), "token {token} was given twice");
            let slot = db.pools().slot(POOL, lent["lease"].as_str().unwrap()).unwrap();
            match returned {
                Some(true) => assert_eq!(slot, None, "it was returned: {lent}"),
                // The answer got lost; so it is returned or it is not.
                Some(false) => {}
                None => {
                    let slot = slot.unwrap_or_else(|| panic!("a lease is lost: {lent}"));
                    assert_eq!(slot.token, token);
                    assert!(positions.insert(slot.position), "position {} twice", slot.position);
                    kept += 1;
                }
            }
        }
        // The file agrees with itself, and what is left is freed for the next round.
        let used: i64 = db
            .conn()
            .query_row("SELECT used = (SELECT count(lease) FROM litelease_pool_slots) FROM litelease_pools", [], |row| row.get(0))
            .unwrap();
        assert_eq!(used, 1, "the count of used slots is wrong");
        for lease in db
            .conn()
            .prepare("SELECT lease FROM litelease_pool_slots WHERE lease IS NOT NULL")
            .unwrap()
            .query_map([], |row| row.get::<_, String>(0))
            .unwrap()
            .map(Result::unwrap)
            .collect::<Vec<_>>()
        {
            assert!(db.pools().return_slot(POOL, &lease).unwrap());
        }
    }
    report(&format!(
        "{rounds} kills, {} grants answered, {kept} held over a kill",
        all_tokens.len()
    ));
}

/// A client with an idempotency key waited, and what it waited for came free just as its wait
/// ended. The server told it no, and the grant that it did not hear of stayed for its whole ttl.
#[test]
fn a_wait_that_ends_as_its_grant_is_stored_is_answered_with_it_or_stores_nothing() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--max-patience", "600"]);
    thread::scope(|scope| {
        for at in 0..4 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..12 {
                    let early = Duration::from_micros(400 * round);
                    end_a_wait_for_a_name(server, &format!("n{at}-{round}"), early);
                    end_a_wait_for_a_slot(server, &format!("s{at}-{round}"), early);
                    end_a_wait_for_an_item(server, &format!("q{at}-{round}"), early);
                }
            });
        }
    });
}

const WAIT: Duration = Duration::from_millis(40);

/// Sends a request that waits, with a key, and frees what it waits for so long before its wait
/// ends. Returns its answer.
fn end_a_wait(
    server: &Server,
    path: &str,
    mut body: Value,
    early: Duration,
    free: impl FnOnce(),
) -> Value {
    let mut waiter = server.client();
    body["wait"] = json!(WAIT.as_secs_f64());
    waiter.send("POST", path, &body.to_string(), "Idempotency-Key: k\r\n").unwrap();
    thread::sleep(WAIT - early);
    free();
    let answer = waiter.receive().unwrap();
    assert!([200, 409].contains(&answer.status), "{answer:?}");
    answer.json()
}

fn v1(server: &Server, call: &str, body: Value) -> Value {
    let done = server.client().ask("POST", &format!("/v1/{call}"), &body, "").unwrap();
    assert_eq!(done.status, 200, "{done:?}");
    done.json()
}

fn end_a_wait_for_a_name(server: &Server, name: &str, early: Duration) {
    let held = v1(server, "claim", json!({"name": name, "owner": "a", "ttl": 600}));
    let wanted = json!({"name": name, "owner": "b", "ttl": 600});
    let answer = end_a_wait(server, "/v1/claim", wanted, early, || {
        v1(server, "release", json!({"grant": held["grant"]}));
    });
    let path = format!("/v1/leases?name={name}");
    let owner = server.client().ask("GET", &path, &Value::Null, "").unwrap().json();
    let expected = if answer["grant"].is_string() { json!("b") } else { Value::Null };
    assert_eq!(owner["owner"], expected, "{answer}");
}

fn end_a_wait_for_a_slot(server: &Server, pool: &str, early: Duration) {
    let wanted = json!({"name": pool, "count": 1, "ttl": 600});
    let held = v1(server, "slot/borrow", wanted.clone());
    let answer = end_a_wait(server, "/v1/slot/borrow", wanted.clone(), early, || {
        v1(server, "slot/return", json!({"name": pool, "lease": held["lease"]}));
    });
    let next = server.client().ask("POST", "/v1/slot/borrow", &wanted, "").unwrap();
    assert_eq!(next.status == 200, answer["lease"].is_null(), "{answer} {next:?}");
}

fn end_a_wait_for_an_item(server: &Server, queue: &str, early: Duration) {
    let wanted = json!({"queue": queue, "visibility": 600});
    let answer = end_a_wait(server, "/v1/queue/receive", wanted.clone(), early, || {
        v1(server, "queue/send", json!({"queue": queue, "body": 1}));
    });
    let next = v1(server, "queue/receive", wanted);
    assert_eq!(next["item"].is_object(), answer["item"].is_null(), "{answer} {next}");
}
