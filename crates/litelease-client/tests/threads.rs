//! The threads that holds leave behind: none. Alone in its program, because it counts them.

#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

mod stub;

use std::fs;
use std::time::Duration;

use litelease_client::HoldOptions;
use stub::{Reply, Stub, eventually, grant};

/// The system keeps 15 bytes of a thread's name.
fn threads(name: &str) -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|of| *of.trim_end() == name[..name.len().min(15)]).count()
}

/// Every client that had held something left the thread of its keeper behind.
#[test]
fn clients_and_holds_that_are_dropped_leave_no_thread_behind() {
    let server = Stub::new(|path, body| match path {
        path if path.starts_with("/v1/events") => Reply::Json(503, "not now".into()),
        path => grant(path, body),
    });
    let ttl = Duration::from_secs(30);
    let holds: Vec<_> = (0..20)
        .map(|number| server.client().hold(&format!("n{number}"), HoldOptions::new(ttl)).unwrap())
        .collect();
    eventually("each has a keeper", || threads("litelease keeper") == 20);
    eventually("all are watched", || server.count("/v1/events") >= 20);
    drop(holds);
    eventually("the threads end", || {
        threads("litelease keeper") == 0 && threads("litelease watch") == 0
    });
    assert_eq!(server.count("/v1/release"), 20);

    let client = server.client();
    let holds: Vec<_> = (0..20)
        .map(|number| client.hold(&format!("n{number}"), HoldOptions::new(ttl)).unwrap())
        .collect();
    eventually("they share a keeper", || threads("litelease keeper") == 1);
    assert!(server.count("/v1/events") <= 28, "a client takes a few streams only");
    drop(client);
    holds.iter().for_each(|held| held.check().unwrap());
    drop(holds);
    eventually("the threads end", || {
        threads("litelease keeper") == 0 && threads("litelease watch") == 0
    });
}
