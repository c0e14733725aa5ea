//! What is said on a connection of HTTP/1, byte by byte.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use litelease_serve::{Options, Service, run};
use tokio::sync::oneshot;

const POOL: &str = "/l/0b5b1f0e-1111-4222-8333-444455556666";

/// Lets `work` talk to a server, and stops it then.
fn served(work: impl FnOnce(SocketAddr)) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { patience: Duration::from_secs(2), ..Options::default() };
    let service = Service::open(&folder.path().join("pools.sqlite3"), options).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            run(listener, service, async { _ = stopped.await }).await.unwrap();
        });
    });
    work(address);
    drop(stop);
    server.join().unwrap();
}

/// Sends bytes, in parts, and reads all that comes until the connection is closed.
fn say(address: SocketAddr, parts: &[&str]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for part in parts {
        // It may have been closed for what came before.
        let _ = stream.write_all(part.as_bytes());
        thread::sleep(Duration::from_millis(20));
    }
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    String::from_utf8(told).unwrap()
}

fn statuses(told: &str) -> Vec<&str> {
    let lines = told.split("HTTP/1.1 ").skip(1);
    lines.map(|line| line.split(' ').next().unwrap_or_default()).collect()
}

#[test]
fn every_way_to_put_a_request_is_answered_as_it_must_be() {
    let last = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let ok = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let put =
        format!("PUT {POOL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n");
    let known = format!("{put}Content-Length: 11\r\n\r\n{{\"count\":2}}");
    let chunked = format!(
        "{put}Transfer-Encoding: chunked\r\n\r\n5\r\n{{\"cou\r\n6;x=y\r\nnt\":2}}\r\n0\r\nX: y\r\n\r\n"
    );
    let expects = format!("{put}Content-Length: 11\r\nExpect: 100-continue\r\n\r\n");
    let text = put.replace("application/json", "text/plain");
    let refused = format!("{text}Content-Length: 11\r\nExpect: 100-continue\r\n\r\n");
    let short = format!("{put}Content-Length: 11\r\n\r\n{{\"cou");
    let both = format!("{put}Content-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    let huge = format!("{put}Content-Length: 1073741824\r\n\r\n{{");
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    served(|address| {
        for (parts, expected) in [
            (vec![last], vec!["200"]),
            // One after the other on one connection, and all at once.
            (vec![ok, &known, last], vec!["200", "200", "200"]),
            (vec![&format!("{ok}{known}{chunked}{last}")], vec!["200", "200", "200", "200"]),
            // In pieces.
            (
                vec!["GET /hea", "lthz HTTP/1.1\r\nHost: loc", "alhost\r\n\r\n", last],
                vec!["200"; 2],
            ),
            (vec![&short, "nt\":2}", last], vec!["200", "200"]),
            // Who asks first is told to go on, or is refused at once.
            (vec![&expects, "{\"count\":2}", last], vec!["100", "200", "200"]),
            (vec![&refused], vec!["415"]),
            // Two lengths, one that is too long, no length at all.
            (vec![&both], vec!["400"]),
            (vec![&huge], vec!["413"]),
            (vec![&long], vec!["431"]),
            (vec!["nonsense\r\n\r\n"], vec!["400"]),
            (vec!["GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n"], vec!["400"]),
            (vec!["GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n"], vec!["400"]),
            // What proxies are sent, where the host stands in the address and must be no other than the header.
            (
                vec![
                    "GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                ],
                vec!["200"],
            ),
            (
                vec![
                    "GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                ],
                vec!["421"],
            ),
            // HTTP/1.0 is answered and closed.
            (vec!["GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n"], vec!["200"]),
            // A head and a body that never end.
            (vec!["GET /healthz HTTP/1.1\r\nHost: loc"], vec!["408"]),
            (vec![&short], vec!["408"]),
        ] {
            let told = say(address, &parts);
            assert_eq!(statuses(&told), expected, "{parts:.200?}: {told}");
        }
    });
}

#[test]
fn a_head_is_answered_without_a_body_and_a_wrong_method_with_those_that_there_are() {
    served(|address| {
        let told = say(
            address,
            &["HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"],
        );
        assert!(told.contains("content-length: 3\r\n") && told.ends_with("\r\n\r\n"), "{told}");
        for word in ["date: ", "x-request-id: ", "cache-control: no-store", "connection: close"] {
            assert!(told.contains(word), "{word} in {told}");
        }
        let patch =
            format!("PATCH {POOL} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let told = say(address, &[&patch]);
        assert!(told.contains("allow: PUT, GET, DELETE\r\n"), "{told}");
    });
}
