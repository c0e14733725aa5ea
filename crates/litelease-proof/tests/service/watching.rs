//! Many clients watch one pool: all get the same events, formatted once, and clients that come or
//! go change nothing.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use litelease_proof::rig::TestFolder;
use litelease_proof::server::{Client, POOL, Server};
use serde_json::json;

/// One who watches the pool.
struct Watcher(BufReader<TcpStream>);

impl Watcher {
    fn new(server: &Server) -> Self {
        let mut client = server.client();
        client.send("GET", &format!("/l/{POOL}/events"), "", "").unwrap();
        Watcher(BufReader::new(client.into_stream().unwrap()))
    }

    /// The first line from now on that has these words.
    #[track_caller]
    fn until(&mut self, words: &str) -> String {
        let started = Instant::now();
        loop {
            // Heartbeats come also where nothing else does.
            assert!(started.elapsed() < Duration::from_secs(60), "nothing has {words}");
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "it ended without {words}");
            if line.contains(words) {
                return line;
            }
        }
    }
}

fn borrow(client: &mut Client, times: usize) {
    for _ in 0..times {
        let lent = client.call("POST", "/borrow", &json!({"ttl": 600, "note": "x".repeat(200)}));
        assert_eq!(lent.status, 200, "{lent:?}");
    }
}

#[test]
fn all_who_watch_a_pool_are_told_the_same_text() {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, &["--max-patience", "600"]);
    let mut client = server.client();
    client.register(500);
    borrow(&mut client, 400);
    let mut watchers: Vec<Watcher> = (0..30).map(|_| Watcher::new(&server)).collect();
    for watcher in &mut watchers {
        watcher.until("\"in_use\":400");
    }
    // A client that comes later gets the state at once, and not only when it changes.
    Watcher::new(&server).until("\"in_use\":400");
    // How much time each lease has left is told to the millisecond: who looks for himself is told
    // something else.
    for in_use in 401..=403 {
        borrow(&mut client, 1);
        let words = format!("\"in_use\":{in_use}");
        let texts: HashSet<String> = watchers.iter_mut().map(|one| one.until(&words)).collect();
        assert_eq!(texts.len(), 1);
    }
    // The first ones leave, new ones come, and all leave: who comes then is told what is so, and
    // what happens next.
    watchers.drain(..20);
    watchers.push(Watcher::new(&server));
    borrow(&mut client, 1);
    watchers.iter_mut().for_each(|one| _ = one.until("\"in_use\":404"));
    watchers.clear();
    borrow(&mut client, 1);
    let mut last = Watcher::new(&server);
    last.until("\"in_use\":405");
    borrow(&mut client, 1);
    last.until("\"in_use\":406");
    assert_eq!(client.call("DELETE", "", &json!(null)).status, 200);
    last.until("event: gone");
    client.register(1);
    let mut again = Watcher::new(&server);
    again.until("\"count\":1");
    borrow(&mut client, 1);
    again.until("\"in_use\":1");
    assert!(server.stop(), "it ends in good order");
}
