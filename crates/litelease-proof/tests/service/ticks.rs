//! Ticks on a server: waiters whose tick is taken, requests that are repeated, keys, and commands
//! of several machines, which are killed, and so is their server.

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use libc::SIGKILL;
use litelease_client::{
    Client as RustClient, Error, HoldOptions, NewestTick, TickChange, TickOutcome, TickRequest,
    TickResult, TickState,
};
use litelease_proof::command::{Desk, Run, outcome};
use litelease_proof::rig::{TestFolder, eventually};
use litelease_proof::server::{Client, Response, Server};
use serde_json::{Value, json};

use super::client::{Fault, Proxy};

fn v1(client: &mut Client, call: &str, body: Value) -> Response {
    client.ask("POST", &format!("/v1/{call}"), &body, "").unwrap()
}

fn keyed(client: &mut Client, call: &str, body: &Value, key: &str) -> Response {
    let header = format!("Idempotency-Key: {key}\r\n");
    client.ask("POST", &format!("/v1/{call}"), body, &header).unwrap()
}

fn claim(name: &str, owner: &str, tick_ms: i64) -> Value {
    json!({"name": name, "owner": owner, "ttl": 60, "tick_ms": tick_ms})
}

/// Sends a claim that waits, and comes back once it does.
fn wait_for(server: &Server, mut body: Value) -> Client {
    let path = format!("/v1/leases?name={}", body["name"].as_str().unwrap());
    let mut other = server.client();
    let mut waiters =
        || other.ask("GET", &path, &Value::Null, "").unwrap().json()["waiters"].as_u64().unwrap();
    let before = waiters();
    body["wait"] = json!(60);
    let mut client = server.client();
    client.send("POST", "/v1/claim", &body.to_string(), "").unwrap();
    eventually("it waits", || (waiters() > before).then_some(()));
    client
}

fn reason(answer: &Response) -> (u16, String) {
    (answer.status, answer.json()["reason"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn clients_that_wait_for_a_tick_are_told_at_once_when_it_is_taken() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    let now_ms = litelease::now_ms();
    let (older, newer) = (now_ms - 2000, now_ms - 1000);
    let taken = (409, "already_taken".to_owned());

    // The holder finishes: all that wait for its tick are told, and a plain claim is granted.
    let first = v1(&mut client, "claim", claim("x", "a", older)).json();
    assert_eq!(first["tick"], json!({"attempt": 1, "tick_ms": older}));
    let mut same = wait_for(&server, claim("x", "b", older));
    let mut plain = wait_for(&server, json!({"name": "x", "owner": "c", "ttl": 60}));
    let mut behind = wait_for(&server, claim("x", "d", older));
    let finished = v1(&mut client, "finish", json!({"grant": first["grant"]}));
    let done = json!({"name": "x", "state": "done", "tick_ms": older, "token": 1});
    assert_eq!(finished.json(), done);
    assert_eq!(reason(&same.receive().unwrap()), taken);
    assert_eq!(reason(&behind.receive().unwrap()), taken);
    let plain = plain.receive().unwrap().json();
    assert_eq!((&plain["token"], plain.get("tick")), (&json!(2), None));

    // A newer tick is granted behind a plain lease: the older one is not waited for any more.
    let mut late = wait_for(&server, claim("x", "e", newer));
    v1(&mut client, "release", json!({"grant": plain["grant"]}));
    let granted = late.receive().unwrap().json();
    let tick = json!({"attempt": 1, "previous_ms": older, "tick_ms": newer});
    assert_eq!(granted["tick"], tick);
    let old = v1(&mut client, "claim", claim("x", "f", older));
    assert_eq!(reason(&old), taken);
    assert_eq!(old.json()["newest"], json!({"state": "open", "tick_ms": newer}));
    let busy = v1(&mut client, "claim", claim("x", "f", newer));
    assert_eq!((reason(&busy).1.as_str(), &busy.json()["tick_ms"]), ("busy", &json!(newer)));

    // An operator skips what is waited for, while a plain lease lives on.
    let held = v1(&mut client, "claim", json!({"name": "y", "owner": "a", "ttl": 60})).json();
    let mut skipped = wait_for(&server, claim("y", "b", newer));
    let skip = json!({"name": "y", "reason": "a holiday"});
    assert_eq!(v1(&mut client, "ticks/skip", skip).json()["state"], "skipped");
    assert_eq!(reason(&skipped.receive().unwrap()), taken);
    assert_eq!(v1(&mut client, "release", json!({"grant": held["grant"]})).status, 200);
    let log = std::fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("skip_ticks") && log.contains("a holiday"), "{log}");

    // A tick that is done in one step, too.
    let _held = v1(&mut client, "claim", json!({"name": "z", "owner": "a", "ttl": 60}));
    let mut waits = wait_for(&server, claim("z", "b", newer));
    assert_eq!(v1(&mut client, "tick", json!({"name": "z", "tick_ms": newer})).status, 200);
    assert_eq!(reason(&waits.receive().unwrap()), taken);
    let future = json!({"name": "z", "tick_ms": now_ms + 3_600_000});
    assert_eq!(reason(&v1(&mut client, "tick", future)).1, "in_future");
}

#[test]
fn a_repeated_claim_finish_or_tick_is_answered_the_same() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let mut client = server.client();
    let now_ms = litelease::now_ms();
    let (older, newer) = (now_ms - 2000, now_ms - 1000);
    let body = claim("x", "a", older);
    let first = keyed(&mut client, "claim", &body, "k1").json();
    let again = keyed(&mut client, "claim", &body, "k1").json();
    let what = |granted: &Value| (granted["grant"].clone(), granted["tick"].clone());
    assert_eq!(what(&first), what(&again));
    assert_eq!(reason(&keyed(&mut client, "claim", &body, "k2")).1, "busy");

    // The answer was lost, and the name has another holder by now.
    let finish = json!({"grant": first["grant"]});
    let answer = v1(&mut client, "finish", finish.clone());
    assert_eq!(answer.status, 200);
    let next = v1(&mut client, "claim", claim("x", "b", newer)).json();
    assert_eq!(v1(&mut client, "finish", finish.clone()).json(), answer.json());
    let failed = json!({"grant": first["grant"], "outcome": "failed"});
    assert_eq!(reason(&v1(&mut client, "finish", failed)).1, "stale_tick");
    // The holder of an older grant has not done what another one did.
    let lost = v1(&mut client, "finish", json!({"grant": next["grant"]}));
    assert_eq!((lost.status, &lost.json()["tick_ms"]), (200, &json!(newer)));
    assert_eq!(reason(&v1(&mut client, "finish", finish)).1, "stale_tick");
    v1(&mut client, "ticks/again", json!({"name": "x"}));
    let reopened = v1(&mut client, "finish", json!({"grant": next["grant"]}));
    assert_eq!(reason(&reopened).1, "stale_tick", "an operator has opened it once more");

    let body = json!({"name": "digest", "tick_ms": older});
    assert_eq!(keyed(&mut client, "tick", &body, "k").json()["first"], true);
    assert_eq!(keyed(&mut client, "tick", &body, "k").json()["first"], true);
    assert_eq!(reason(&keyed(&mut client, "tick", &body, "other")).1, "already_taken");
    assert_eq!(reason(&v1(&mut client, "tick", body)).1, "already_taken");

    // A lease that was handed on takes its tick along, and says so.
    let first = v1(&mut client, "claim", claim("t", "a", older)).json();
    let to_b = json!({"grant": first["grant"], "new_owner": "b", "ttl": 60});
    assert_eq!(v1(&mut client, "transfer", to_b).status, 200);
    let fetched = v1(&mut client, "claim", json!({"name": "t", "owner": "b", "ttl": 60})).json();
    assert_eq!(fetched["tick"], json!({"attempt": 1, "tick_ms": older}));
    let old = v1(&mut client, "finish", json!({"grant": first["grant"]}));
    assert_eq!(reason(&old).1, "stale_tick");
    assert_eq!(v1(&mut client, "finish", json!({"grant": fetched["grant"]})).status, 200);
    let wrong = json!({"name": "t", "owner": "b", "ttl": 60, "min_token": 5, "tick_ms": newer});
    assert_eq!(v1(&mut client, "claim", wrong).status, 400);
}

#[test]
fn a_key_that_may_claim_runs_ticks_and_only_one_that_may_operate_skips_them() {
    let desk = Desk::new();
    let server = Server::start(&desk.file, &[]);
    let client = |name: &str, allow: &str| {
        let (code, key, _) = outcome(&desk.run(&["access", "add", name, "--allow", allow]));
        assert_eq!(code, 0);
        Client::new(server.address).bearing(key.trim())
    };
    let mut worker = client("worker", "claim:job/*");
    let mut operator = client("operator", "operate:job/*");
    let tick_ms = litelease::now_ms() - 1000;
    let tick = |name: &str| json!({"name": name, "tick_ms": tick_ms});
    assert_eq!(v1(&mut worker, "tick", tick("job/a")).status, 200);
    assert_eq!(v1(&mut worker, "tick", tick("other")).status, 403);
    assert_eq!(v1(&mut worker, "ticks/install", tick("job/b")).status, 200);
    for (call, status) in [("skip", 200), ("again", 200), ("forget", 200)] {
        let (call, body) = (format!("ticks/{call}"), json!({"name": "job/a"}));
        assert_eq!(v1(&mut worker, &call, body.clone()).status, 403, "{call}");
        assert_eq!(v1(&mut operator, &call, body).status, status, "{call}");
    }
    let read = |client: &mut Client, query: &str| {
        client.ask("GET", &format!("/v1/ticks?{query}"), &Value::Null, "").unwrap()
    };
    assert_eq!(read(&mut worker, "name=job%2Fb").json()["ticks"][0]["state"], "skipped");
    assert_eq!(read(&mut worker, "prefix=").status, 403);
    assert_eq!(read(&mut operator, "name=job%2Fb").status, 403);
    assert_eq!(read(&mut Client::new(server.address), "").status, 401);
}

/// The answers to a claim and to a finish are lost, and the client asks again.
#[test]
fn no_tick_runs_twice_when_answers_are_lost() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &[]);
    let proxy = Proxy::to(server.address);
    let key = server.access.trim().trim_start_matches("Authorization: Bearer ").to_owned();
    let open = |address| RustClient::with_key(&format!("http://{address}"), &key).unwrap();
    let (client, direct) = (open(proxy.address), open(server.address));
    let (ttl, tick_ms) = (Duration::from_secs(30), litelease::now_ms() - 1000);
    let once = TickRequest { tick_ms, attempts: 1 };
    proxy.plan(&[Fault::Lose]);
    let grant = client.claim_tick("x", "a", ttl, Duration::ZERO, once).unwrap();
    assert_eq!(grant.tick.as_ref().map(|tick| tick.attempt), Some(1));
    proxy.plan(&[Fault::Lose, Fault::Cut]);
    client.finish_tick(&grant, TickOutcome::Done).unwrap();
    let newest = NewestTick { tick_ms, state: TickState::Done };
    let taken = direct.claim_tick("x", "b", ttl, Duration::from_secs(60), tick_ms).unwrap_err();
    assert!(matches!(taken, Error::TickTaken(found) if found == newest), "{taken}");
    assert_eq!(direct.ticks("").unwrap()[0].tick.newest(), newest);

    proxy.plan(&[Fault::Lose]);
    assert_eq!(client.tick("y", tick_ms).unwrap(), TickResult::First);
    assert_eq!(direct.tick("y", tick_ms).unwrap(), TickResult::AlreadyTaken(newest));
    assert!(matches!(direct.tick("y", tick_ms + 3_600_000), Ok(TickResult::InFuture { .. })));
    assert_eq!(direct.skip_ticks("nothing", Some(5), false).unwrap(), {
        TickChange::Changed(NewestTick { tick_ms: 5, state: TickState::Skipped })
    });
    assert_eq!(direct.tick_again("never").unwrap(), TickChange::Unknown);

    // A hold that is finished, and one that is released.
    let held = client.hold("z", HoldOptions::new(ttl).tick(tick_ms).schedule("1h")).unwrap();
    let busy = direct.skip_ticks("z", None, false).unwrap();
    assert!(matches!(&busy, TickChange::Busy(lease) if lease.token == held.token()), "{busy:?}");
    held.release().unwrap();
    let held = client.hold("z", HoldOptions::new(ttl).tick(tick_ms)).unwrap();
    assert_eq!(held.grant().tick.as_ref().unwrap().attempt, 2);
    proxy.plan(&[Fault::Lose]);
    held.finish(&client, TickOutcome::Failed).unwrap();
    let info = direct.newest_tick("z").unwrap().unwrap();
    assert_eq!((info.tick.state, info.schedule.as_deref()), (TickState::Failed, Some("1h")));
}

/// Two machines, each with a crontab, and a server that both reach.
struct Machines {
    desk: Desk,
    url: String,
    key: String,
}

impl Machines {
    fn new(server: &Server, desk: Desk) -> Self {
        let key = desk.folder.path().join("key").display().to_string();
        let access = server.access.trim().trim_start_matches("Authorization: Bearer ");
        std::fs::write(&key, access).unwrap();
        let private = Command::new("chmod").args(["600", &key]).status().unwrap();
        assert!(private.success());
        Machines { url: format!("http://{}", server.address), desk, key }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.desk.command(words);
        command.env_remove("LITELEASE_DB").env("LITELEASE_SERVER", &self.url);
        command.env("LITELEASE_ACCESS_FILE", &self.key);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> (i32, String, String) {
        outcome(&self.command(words).output().unwrap())
    }

    fn start(&self, words: &[&str], script: &str) -> Run {
        let words = [words, &["--", "sh", "-c", script]].concat();
        Run { child: self.command(&words).spawn().expect("it starts") }
    }
}

#[test]
fn the_crontabs_of_two_machines_run_a_job_once_and_the_second_takes_over_when_the_first_dies() {
    let desk = Desk::new();
    let file = desk.folder.path().join("served.sqlite3");
    let server = Server::start(&file, &[]);
    let machines = Machines::new(&server, desk);
    let words = ["run", "--once-per", "0 0 1 1 *", "--ttl", "2s", "nightly"];
    let first = machines.start(&words, "echo ran >> log");
    thread::sleep(Duration::from_millis(500));
    let second = machines.start(&words, "echo ran >> log");
    assert_eq!((first.end().0, second.end().0), (0, 0));
    assert_eq!(machines.desk.read("log"), "ran");
    assert_eq!(
        machines.run(&["run", "-E", "7", "--once-per", "0 0 1 1 *", "nightly", "--", "true"]).0,
        7
    );
    let (code, said, _) = machines.run(&["--json", "ticks"]);
    let ticks: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &ticks[0]["state"], &ticks[0]["attempt"]), (0, &json!("done"), &json!(1)));
    assert!(ticks[0]["next"].as_str().unwrap().contains("-01-01T00:00:00Z"), "{ticks}");
    assert_eq!(machines.run(&["ticks", "nightly", "--late", "1s"]).0, 1);

    // A client that is killed: the other one takes over when its lease has run out.
    assert_eq!(machines.run(&["ticks", "again", "nightly", "--reason", "the disk was full"]).0, 0);
    let first = machines.start(&words, "echo $$ > pid; sleep 100");
    machines.desk.pid("pid");
    let second = machines.start(&words, "echo second $LITELEASE_PREVIOUS_TICK >> other");
    let (code, said, _) =
        machines.run(&["run", "-n", "--once-per", "0 0 1 1 *", "nightly", "--", "echo", "x"]);
    assert_eq!((code, said.as_str()), (0, ""), "a tick under way is taken");
    first.signal(SIGKILL);
    assert_eq!(second.end().0, 0);
    assert_eq!(machines.desk.read("other"), "second");
    assert_eq!(machines.run(&["ticks", "forget", "nightly"]).0, 0);
    assert_eq!(machines.run(&["ticks", "forget", "nightly"]).0, 1);
}

/// The server is killed while a job is under way, and another one comes in its place.
#[test]
fn a_server_that_is_killed_loses_no_tick_and_runs_none_twice() {
    let desk = Desk::new();
    let file = desk.folder.path().join("served.sqlite3");
    let server = Server::start(&file, &[]);
    let address = server.address.to_string();
    let machines = Machines::new(&server, desk);
    let words = ["run", "--once-per", "0 0 1 1 *", "nightly"];
    let job = "echo began >> log; while [ ! -e go ]; do sleep 0.05; done";
    let (first, second) = (machines.start(&words, job), machines.start(&words, job));
    machines.desk.read("log");
    server.kill();
    std::fs::write(machines.desk.folder.path().join("go"), "").unwrap();
    thread::sleep(Duration::from_millis(300));
    let server = Server::at(&address, &file, &[]);
    let ends = (first.end(), second.end());
    assert_eq!((ends.0.0, ends.1.0), (0, 0), "{ends:?}");
    assert_eq!(machines.desk.read("log"), "began");
    drop(server);
}

#[test]
fn every_runs_each_tick_once_among_machines_and_waits_for_a_server_that_is_away() {
    let desk = Desk::new();
    let file = desk.folder.path().join("served.sqlite3");
    let server = Server::start(&file, &[]);
    let address = server.address.to_string();
    let machines = Machines::new(&server, desk);
    let words = ["every", "1s", "fast"];
    let runs: Vec<Run> =
        (0..2).map(|_| machines.start(&words, "echo $LITELEASE_TICK >> log")).collect();
    let lines = || machines.desk.peek("log").lines().count();
    eventually("two ticks", || (lines() >= 2).then_some(()));
    server.kill();
    let server = Server::at(&address, &file, &[]);
    let before = lines();
    let begun = Instant::now();
    eventually("two more", || (lines() >= before + 2).then_some(()));
    let log = machines.desk.peek("log");
    let mut ticks: Vec<&str> = log.lines().collect();
    let count = ticks.len();
    ticks.dedup();
    assert_eq!(ticks.len(), count, "after {:?}: {log}", begun.elapsed());
    for run in runs {
        run.signal(libc::SIGTERM);
        assert_eq!(run.end().0, 128 + libc::SIGTERM);
    }
    drop(server);
}
