//! Ticks through the service on an engine: beside programs that claim the same names, and across
//! servers of which one is killed.

use litelease_cluster::{BreakResult, ClaimResult, Cluster};
use litelease_proof::rig::{LONG, eventually};
use litelease_proof::server::{Client, Response};
use serde_json::{Value, json};

use crate::service::{Engine, Servers};

fn v1(client: &mut Client, call: &str, body: Value) -> Response {
    client.ask("POST", &format!("/v1/{call}"), &body, "").unwrap()
}

fn claim(tick_ms: i64) -> Value {
    json!({"name": "nightly", "owner": "http", "ttl": 60, "tick_ms": tick_ms})
}

fn newest(client: &mut Client) -> Value {
    let found = client.ask("GET", "/v1/ticks?name=nightly", &Value::Null, "").unwrap();
    assert_eq!(found.status, 200, "{found:?}");
    found.json()["ticks"][0].clone()
}

#[test]
fn a_tick_is_run_once_beside_programs_and_when_a_server_is_killed() {
    for (engine, found) in Engine::all() {
        let url = found.url("ticks");
        let mut servers = Servers::start(&url, 2, &["--open", "--open-metrics"]);
        servers.wait_for_all();
        let (mut client, program) = (servers.client(0), Cluster::open(&url).unwrap());
        let (first, second) = (litelease::now_ms() - 2000, litelease::now_ms() - 1000);

        // A program on the engine has the name, and its holder is as any other.
        let lease = program.claim("nightly", "program", LONG).unwrap().acquired().unwrap();
        let busy = v1(&mut client, "claim", claim(first));
        assert_eq!((busy.status, &busy.json()["reason"]), (409, &json!("busy")), "{engine}");
        program.release(&lease).unwrap();
        let granted = v1(&mut client, "claim", claim(first)).json();
        assert_eq!(granted["tick"]["attempt"], 1, "{engine}: {granted}");
        let held = program.claim("nightly", "program", LONG).unwrap();
        assert!(matches!(held, ClaimResult::Busy(current) if current.owner == "http"), "{engine}");

        // A break by a program leaves the tick to others, and its token cannot finish it.
        let broken = program.break_lease("nightly").unwrap();
        assert!(matches!(broken, BreakResult::Broken { .. }));
        let late = v1(&mut client, "finish", json!({"grant": granted["grant"]}));
        assert_eq!(late.json()["reason"], "stale_tick", "{engine}: {late:?}");
        let again = v1(&mut client, "claim", claim(first)).json();
        assert_eq!(again["tick"]["attempt"], 2, "{engine}: {again}");

        // The server that writes is killed, and another one finishes the tick.
        let writer = servers.wait_for_writer();
        servers.servers[writer].take().unwrap().kill();
        eventually("another server writes", || servers.writer().filter(|at| *at != writer));
        let finish = json!({"grant": again["grant"]});
        let done = eventually("it is finished", || {
            // A connection that went to the server that was killed is closed.
            let answer = servers.client(1 - writer).ask("POST", "/v1/finish", &finish, "");
            answer.ok().filter(|done| done.status == 200)
        });
        let mut other = servers.client(1 - writer);
        assert_eq!(done.json()["tick_ms"], first, "{engine}");
        assert_eq!(v1(&mut other, "finish", finish).json(), done.json(), "{engine}");
        let taken = v1(&mut other, "claim", claim(first));
        assert_eq!(taken.json()["reason"], "already_taken", "{engine}");

        // A purge by a program deletes the row of the lease, and no tick.
        eventually("the row is purged", || program.purge(litelease::now_ms()).unwrap() > 0);
        assert_eq!(newest(&mut other)["state"], "done", "{engine}");
        let taken = v1(&mut other, "claim", claim(first));
        assert_eq!(taken.json()["reason"], "already_taken", "{engine}");
        let ticked = v1(&mut other, "tick", json!({"name": "nightly", "tick_ms": second}));
        assert_eq!(ticked.status, 200, "{engine}: {ticked:?}");
        let metrics = other.ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        assert!(metrics.contains("litelease_tick_done_seconds{name=\"nightly\"}"), "{metrics}");
    }
}
