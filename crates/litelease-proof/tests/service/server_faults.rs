//! The server in trouble: a full or failing disk, no file descriptors, kill -9 between commit and
//! answer.
//!
//! No client gets the answer that a slot is its own unless it is, no slot is lost or lent twice,
//! and all is well when the cause is gone.

use std::collections::HashSet;
use std::io::Read;
use std::time::Duration;

use litelease_proof::rig::{TestFolder, eventually, report};
use litelease_proof::server::{Client, NO_LEASE, POOL, Response, Server};
use litelease_proof::trouble::{Injected, SmallDisk};
use serde_json::{Value, json};

/// A server that hangs up on no client, however slow this machine is.
fn start(place: &TestFolder) -> Server {
    Server::start(&place.file, &["--max-patience", "600"])
}

fn borrow(client: &mut Client, headers: &str) -> Response {
    client.try_call("POST", "/borrow", &json!({"ttl": 600}), headers).unwrap()
}

fn lent(answer: &Response) -> Value {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// Two slots, one of them lent out before the trouble begins.
struct Books {
    client: Client,
    first: Value,
}

impl Books {
    fn open(server: &Server) -> Self {
        let mut client = server.client();
        client.register(2);
        let first = lent(&borrow(&mut client, ""));
        Books { client, first }
    }

    /// Checks what must hold while nothing can be stored: no client is granted anything.
    fn refuses(&mut self, what: &str) {
        for headers in ["", "Idempotency-Key: a\r\n", "", "Idempotency-Key: a\r\n"] {
            let refused = borrow(&mut self.client, headers);
            assert_eq!(refused.status, 502, "{what}: {refused:?}");
            assert_eq!(
                refused.error(),
                "the database failed: it is safe to try again; the server's log says more"
            );
        }
        let body = json!({"lease": self.first["lease"], "ttl": 6000});
        let refused = self.client.call("POST", "/renew", &body);
        assert_eq!(refused.status, 502, "{what}: {refused:?}");
    }

    /// What must be so when the cause is gone: the slot that is free is lent once, under a new
    /// token.
    fn balance(&mut self, what: &str) {
        eventually("it works again", || {
            let returned = self.client.call("POST", "/return", &json!({"lease": NO_LEASE}));
            (returned.status == 200).then_some(())
        });
        eventually("what nobody got is back", || (self.client.in_use() == 1).then_some(()));
        let second = lent(&borrow(&mut self.client, "Idempotency-Key: a\r\n"));
        assert_eq!((&self.first["position"], &second["position"]), (&json!(0), &json!(1)));
        assert!(second["token"].as_i64() > self.first["token"].as_i64(), "{what}: {second}");
        assert_eq!(borrow(&mut self.client, "").status, 409, "{what}: both are lent out");
        let body = json!({"lease": self.first["lease"], "ttl": 6000});
        assert_eq!(self.client.call("POST", "/renew", &body).json()["token"], self.first["token"]);
        let returned = self.client.call("POST", "/return", &json!({"lease": second["lease"]}));
        assert_eq!(returned.json(), json!({"returned": true}), "{what}");
    }
}

#[test]
fn a_full_disk_grants_nothing_and_works_again_when_there_is_room() {
    let Some(disk) = SmallDisk::new("1m") else {
        return report(
            "SKIPPED: a full disk under the server, because nothing may be mounted here",
        );
    };
    let server = Server::start(
        &disk.path().join("pools.sqlite3"),
        &["--log", "off", "--max-patience", "600"],
    );
    let mut books = Books::open(&server);
    let ballast = disk.fill();
    // Where there is still room in the -wal, a few are served.
    let failed = (0..5_000).find(|_| {
        let answer = borrow(&mut books.client, "");
        if answer.status == 200 {
            let body = json!({"lease": answer.json()["lease"]});
            return books.client.call("POST", "/return", &body).status == 502;
        }
        answer.status == 502
    });
    assert!(failed.is_some(), "the disk was never full");
    std::fs::remove_file(ballast).unwrap();
    eventually("it works again", || {
        (borrow(&mut books.client, "Idempotency-Key: z\r\n").status == 200).then_some(())
    });
    let kept = lent(&borrow(&mut books.client, "Idempotency-Key: z\r\n"));
    books.client.call("POST", "/return", &json!({"lease": kept["lease"]}));
    books.balance("a full disk");
}

fn readiness(client: &mut Client) -> (u16, String) {
    client.send("GET", "/readyz", "", "").unwrap();
    let answer = client.receive().unwrap();
    (answer.status, answer.body)
}

#[test]
fn a_server_on_a_full_disk_is_not_ready_and_is_again_when_there_is_room() {
    let Some(disk) = SmallDisk::new("1m") else {
        return report("SKIPPED: readiness on a full disk, because nothing may be mounted here");
    };
    let server = Server::start(&disk.path().join("pools.sqlite3"), &["--max-patience", "600"]);
    let mut books = Books::open(&server);
    let mut other = server.client();
    let full =
        (503, r#"{"error":"the disk is full: nothing can be lent out until there is room"}"#);
    let full = (full.0, full.1.to_owned());
    assert_eq!(readiness(&mut other), (200, "ready\n".into()));
    for round in 0..2 {
        // In the first round no client borrows: asking is enough to find out.
        let ballast = disk.fill();
        if round == 1 {
            eventually("a borrow fails", || {
                let answer = borrow(&mut books.client, "Idempotency-Key: a\r\n");
                let body = json!({"lease": NO_LEASE});
                // A commit of nothing works on any disk, and is no reason to believe that it is
                // well.
                assert_eq!(books.client.call("POST", "/return", &body).status, 200);
                (answer.status == 502 && readiness(&mut other) == full).then_some(())
            });
        }
        eventually("it is not ready", || (readiness(&mut other) == full).then_some(()));
        assert_eq!(readiness(&mut other), full, "and that stays so");
        std::fs::remove_file(ballast).unwrap();
        eventually("it is ready", || (readiness(&mut other).0 == 200).then_some(()));
    }
    eventually("what nobody got is back", || (books.client.in_use() == 1).then_some(()));
    books.balance("a full disk");
}

#[test]
fn a_server_on_a_disk_that_fails_or_without_its_file_is_not_ready() {
    let place = TestFolder::new("WAL");
    let server = start(&place);
    let mut client = server.client();
    client.register(1);
    for calls in ["pwrite64:error=EIO", "fsync,fdatasync:error=EIO"] {
        let Some(injected) = Injected::into(server.pid(), calls) else {
            return report(
                "SKIPPED: readiness on a failing disk, because strace may not trace here",
            );
        };
        eventually("it is not ready", || {
            let (status, body) = readiness(&mut client);
            (status == 503 && body.contains("the disk fails")).then_some(())
        });
        drop(injected);
        eventually("it is ready", || (readiness(&mut client).0 == 200).then_some(()));
    }
    let aside = place.folder.path().join("aside");
    std::fs::rename(&place.file, &aside).unwrap();
    assert_eq!(readiness(&mut client).0, 503);
    std::fs::rename(&aside, &place.file).unwrap();
    assert_eq!(readiness(&mut client).0, 200);
    // A program that keeps the file locked blocks every borrow.
    let other = place.connect(Duration::ZERO);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    eventually("it is not ready", || {
        let (status, reason) = readiness(&mut client);
        status == 503 && reason.contains("locked")
    });
    other.execute_batch("ROLLBACK").unwrap();
    eventually("it is ready", || (readiness(&mut client).0 == 200).then_some(()));
}

#[test]
fn asking_whether_it_is_ready_writes_at_most_once_a_second() {
    let place = TestFolder::new("WAL");
    let server = start(&place);
    let mut client = server.client();
    client.register(1);
    let version = |connection: &rusqlite::Connection| -> i64 {
        connection.query_row("PRAGMA data_version", [], |row| row.get(0)).unwrap()
    };
    let watcher = place.connect(Duration::from_secs(5));
    let (mut seen, mut writes) = (version(&watcher), 0);
    let began = std::time::Instant::now();
    for _ in 0..300 {
        assert_eq!(readiness(&mut client).0, 200);
        let now = version(&watcher);
        writes += u64::from(now != seen);
        seen = now;
        std::thread::sleep(Duration::from_millis(5));
    }
    let most = began.elapsed().as_secs() + 1;
    assert!((1..=most).contains(&writes), "{writes} writes in {:?}", began.elapsed());
}

#[test]
fn a_disk_that_fails_grants_nothing_and_the_books_balance_when_it_works_again() {
    for calls in [
        "pwrite64:error=EIO",
        "pwrite64:error=ENOSPC",
        "fsync,fdatasync:error=EIO",
        "pwrite64:error=EIO:when=2+",
    ] {
        let place = TestFolder::new("WAL");
        let server = start(&place);
        let mut books = Books::open(&server);
        let Some(injected) = Injected::into(server.pid(), calls) else {
            return report(
                "SKIPPED: a failing disk under the server, because strace may not trace here",
            );
        };
        books.refuses(calls);
        drop(injected);
        books.balance(calls);
        assert!(server.stop(), "{calls}: it ends in good order");
        // What was told is what is stored.
        let server = start(&place);
        assert_eq!(server.client().in_use(), 1, "{calls}");
    }
}

#[test]
fn a_disk_that_fails_now_and_then_never_lends_a_slot_twice() {
    let place = TestFolder::new("WAL");
    let server = start(&place);
    server.client().register(3);
    let Some(injected) = Injected::into(server.pid(), "fsync,fdatasync:error=EIO:when=3+4") else {
        return report(
            "SKIPPED: a disk that fails now and then, because strace may not trace here",
        );
    };
    let (mut tokens, mut failures) = (HashSet::new(), 0);
    let mut clients: Vec<Client> = (0..6).map(|_| server.client()).collect();
    for _ in 0..20 {
        clients.iter_mut().for_each(|client| {
            client
                .send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":600,"wait":0.2}"#, "")
                .unwrap();
        });
        let mut held = HashSet::new();
        let answers: Vec<Response> =
            clients.iter_mut().map(|client| client.receive().unwrap()).collect();
        for answer in &answers {
            match answer.status {
                200 => {
                    let lent = answer.json();
                    assert!(tokens.insert(lent["token"].as_i64()), "a token twice: {lent}");
                    assert!(held.insert(lent["position"].as_i64()), "a slot twice: {lent}");
                }
                502 => failures += 1,
                status => assert_eq!(status, 409, "{answer:?}"),
            }
        }
        for answer in answers.iter().filter(|answer| answer.status == 200) {
            // Tried until it is told.
            let body = json!({"lease": answer.json()["lease"]});
            eventually("it is returned", || {
                (clients[0].call("POST", "/return", &body).status == 200).then_some(())
            });
        }
    }
    drop(injected);
    report(&format!("a failing disk: {} grants, {failures} times 502", tokens.len()));
    assert!(failures > 0 && tokens.len() > 5);
    eventually("no slot is lost", || (clients[0].in_use() == 0).then_some(()));
}

/// Sets how many files a process may have open, and answers how many it might before.
fn limit_files(pid: u32, files: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let (pid, none) = (pid as i32, std::ptr::null_mut());
    // SAFETY: the first call is given one limit to fill in, the second one to read.
    let is_set = unsafe {
        libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &mut limit);
        let wanted = libc::rlimit { rlim_cur: files, ..limit };
        libc::prlimit(pid, libc::RLIMIT_NOFILE, &wanted, none) == 0
    };
    assert!(is_set, "{}", std::io::Error::last_os_error());
    limit.rlim_cur
}

/// The number that the next file of a process would get.
fn lowest_free(pid: u32) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open: HashSet<String> =
        open.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    (0..).find(|number: &u64| !open.contains(&number.to_string())).unwrap()
}

#[test]
fn without_file_descriptors_who_is_connected_is_served_and_others_are_when_there_are_some() {
    let place = TestFolder::new("WAL");
    let server = start(&place);
    let mut books = Books::open(&server);
    let before = limit_files(server.pid(), lowest_free(server.pid()));
    let mut strangers: Vec<_> = (0..5)
        .map(|_| {
            let mut stranger = server.client();
            stranger.send("GET", "/healthz", "", "").unwrap();
            stranger.into_stream().unwrap()
        })
        .collect();
    strangers[0].set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(strangers[0].read(&mut [0]).is_err(), "there was a descriptor left");
    books.balance("without file descriptors");
    limit_files(server.pid(), before);
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stranger.read(&mut [0]).unwrap(), 1, "who has waited is served");
    }
    assert!(server.stop());
}

/// Sends a request to a server that is killed when it begins to answer. `None` on a system that
/// forbids tracing.
fn killed_at_its_answer(server: Server, ask: impl FnOnce(&mut Client)) -> Option<()> {
    let mut client = server.client();
    // Connected, and answered once, before the trap is set.
    assert_eq!(client.ask("GET", "/healthz", &Value::Null, "").unwrap().status, 200);
    let _trap = Injected::into(server.pid(), "sendto,sendmsg,writev:signal=KILL:when=1")?;
    ask(&mut client);
    assert!(client.receive().is_err(), "it was answered all the same");
    server.kill();
    Some(())
}

#[test]
fn after_a_kill_between_commit_and_answer_nothing_is_lost_or_lent_twice() {
    let send = |path: &'static str, body: Value, headers: &'static str| {
        move |client: &mut Client| {
            client.send("POST", &format!("/l/{POOL}{path}"), &body.to_string(), headers).unwrap();
        }
    };
    let place = TestFolder::new("WAL");
    let server = start(&place);
    server.client().register(2);
    let (key, other) = ("Idempotency-Key: k\r\n", "Idempotency-Key: w\r\n");
    if killed_at_its_answer(server, send("/borrow", json!({"ttl": 600}), key)).is_none() {
        return report(
            "SKIPPED: a kill between commit and answer, because strace may not trace here",
        );
    }

    // What was stored before the answer is the retry's: one slot, one token.
    let server = start(&place);
    let mut client = server.client();
    assert_eq!(client.in_use(), 1, "it was stored before it was told");
    let first = lent(&borrow(&mut client, key));
    assert_eq!((&first["position"], &first["token"]), (&json!(0), &json!(1)));
    assert_eq!(client.in_use(), 1);

    // Without a key no client can know the lease; it ends with its ttl, and is granted to no other
    // client before.
    killed_at_its_answer(server, send("/borrow", json!({"ttl": 5}), "")).unwrap();
    let server = start(&place);
    let mut client = server.client();
    let early = client.call("POST", "/borrow", &json!({"ttl": 600}));
    if early.status == 409 {
        let second = client.call("POST", "/borrow", &json!({"ttl": 600, "wait": 60}));
        assert_eq!((&lent(&second)["position"], &second.json()["token"]), (&json!(1), &json!(3)));
    } else {
        // On a machine so slow that the five seconds were over.
        assert_eq!(lent(&early)["token"], json!(3));
    }

    // A slot that is returned is the next waiter's in the same commit, even if no client gets the
    // answer.
    let mut waiter = server.client();
    waiter.send("POST", &format!("/l/{POOL}/borrow"), r#"{"ttl":600,"wait":60}"#, other).unwrap();
    eventually("it waits", || {
        let text = client.ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        text.contains("litelease_waiters 1\n").then_some(())
    });
    killed_at_its_answer(server, send("/return", json!({"lease": first["lease"]}), "")).unwrap();
    let server = start(&place);
    let mut client = server.client();
    assert_eq!(client.in_use(), 2, "handed on in the commit that freed it");
    let third = lent(&borrow(&mut client, other));
    assert_eq!((&third["position"], &third["token"]), (&json!(0), &json!(4)));
    let again = client.call("POST", "/return", &json!({"lease": first["lease"]}));
    assert_eq!(again.json(), json!({"returned": false}), "it was returned");
}
