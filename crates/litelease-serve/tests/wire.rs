//! What is said on a connection, byte by byte, without TLS and inside it.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use litelease_serve::{Options, Service, Tls, run};
use rustls::crypto::ring;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::sync::oneshot;

const POOL: &str = "/l/0b5b1f0e-1111-4222-8333-444455556666";

/// How to reach a server: with or without TLS.
struct Wire {
    address: SocketAddr,
    tls: Option<Arc<ClientConfig>>,
}

trait Connection: Read + Write {
    /// Says that nothing more will be said.
    fn end(&mut self);
}

impl Connection for TcpStream {
    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }
}

impl Connection for StreamOwned<ClientConnection, TcpStream> {
    fn end(&mut self) {
        self.conn.send_close_notify();
        self.flush().unwrap();
        self.sock.shutdown(Shutdown::Write).unwrap();
    }
}

impl Wire {
    fn connect(&self) -> Box<dyn Connection> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = "localhost".try_into().unwrap();
                let tls = ClientConnection::new(tls.clone(), name).unwrap();
                Box::new(StreamOwned::new(tls, stream))
            }
        }
    }
}

/// Makes a certificate for a server, and what its clients trust.
fn certificate(folder: &Path) -> (Tls, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (Tls::load(&cert, &key).unwrap(), Arc::new(config))
}

/// Lets `work` talk to a server without TLS and to one with it, at the same time.
fn served(work: impl Fn(&Wire) + Sync) {
    thread::scope(|scope| {
        scope.spawn(|| until_stopped(true, &work));
        until_stopped(false, &work);
    });
}

/// Lets `work` talk to a server, and stops it then.
fn until_stopped<T>(has_tls: bool, work: impl FnOnce(&Wire) -> T) -> T {
    let folder = tempfile::tempdir().unwrap();
    let (tls, trusted) = has_tls.then(|| certificate(folder.path())).unzip();
    let options = Options { patience: Duration::from_secs(2), tls, ..Options::default() };
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
    let done = work(&Wire { address, tls: trusted });
    drop(stop);
    server.join().unwrap();
    done
}

/// Sends bytes, in parts, and reads all that comes until the connection is closed.
fn say(wire: &Wire, parts: &[&str]) -> String {
    let mut stream = wire.connect();
    for part in parts {
        // It may have been closed for what came before.
        let _ = stream.write_all(part.as_bytes());
        thread::sleep(Duration::from_millis(20));
    }
    let mut told = Vec::new();
    // It may have had something left to read when it was closed, but closed it must be.
    let ended = stream
        .read_to_end(&mut told)
        .map_or_else(|error| error.kind(), |_| ErrorKind::UnexpectedEof);
    assert!(
        !matches!(ended, ErrorKind::WouldBlock | ErrorKind::TimedOut),
        "not closed: {parts:.200?}"
    );
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
    let text = put.replace("application/json", "text/html");
    let refused = format!("{text}Content-Length: 11\r\nExpect: 100-continue\r\n\r\n");
    let short = format!("{put}Content-Length: 11\r\n\r\n{{\"cou");
    let both = format!("{put}Content-Length: 11\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
    let huge = format!("{put}Content-Length: 1073741824\r\n\r\n{{");
    let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(20_000));
    served(|wire| {
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
            // A client that expects `100 Continue` gets it, or is refused at once.
            (vec![&expects, "{\"count\":2}", last], vec!["100", "200", "200"]),
            (vec![&refused], vec!["415"]),
            // Two lengths, one that is too long, no length at all.
            (vec![&both], vec!["400"]),
            (vec![&huge], vec!["413"]),
            (vec![&long], vec!["431"]),
            (vec!["nonsense\r\n\r\n"], vec!["400"]),
            (vec!["GET / HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n"], vec!["400"]),
            (vec!["GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n"], vec!["400"]),
            // What proxies are sent, where the host stands in the address and must be no other
            // than the header.
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
            let told = say(wire, &parts);
            assert_eq!(statuses(&told), expected, "{parts:.200?}: {told}");
        }
    });
}

#[test]
fn a_head_is_answered_without_a_body_and_a_wrong_method_with_those_that_there_are() {
    served(|wire| {
        let told =
            say(wire, &["HEAD /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]);
        assert!(told.contains("content-length: 3\r\n") && told.ends_with("\r\n\r\n"), "{told}");
        for word in ["date: ", "x-request-id: ", "cache-control: no-store", "connection: close"] {
            assert!(told.contains(word), "{word} in {told}");
        }
        let patch =
            format!("PATCH {POOL} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let told = say(wire, &[&patch]);
        assert!(told.contains("allow: PUT, GET, DELETE\r\n"), "{told}");
    });
}

/// A request with a body of JSON.
fn asks(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {POOL}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// One request, and the body of its answer.
fn answer_to(wire: &Wire, method: &str, path: &str, body: &str) -> String {
    let asked = asks(method, path, body).replacen("\r\n", "\r\nConnection: close\r\n", 1);
    say(wire, &[&asked]).split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Borrows the slot of a pool that has one, and answers its lease as a body to give it back with.
fn borrowed(wire: &Wire) -> String {
    answer_to(wire, "PUT", "", "{\"count\":1}");
    let lent = answer_to(wire, "POST", "/borrow", "{\"ttl\":600}");
    let lease = lent.split("\"lease\":\"").nth(1).and_then(|rest| rest.get(..36));
    format!("{{\"lease\":\"{}\"}}", lease.unwrap())
}

#[track_caller]
fn is_free_again(wire: &Wire) {
    let free = |_: &u32| {
        thread::sleep(Duration::from_millis(20));
        answer_to(wire, "GET", "", "").contains("\"in_use\":0")
    };
    assert!((0..500).any(|at| free(&at)), "a slot is in use that nobody has");
}

#[test]
fn who_sends_too_much_behind_a_borrow_that_waits_is_hung_up_on_and_takes_no_slot() {
    // The server would not read from it any more, so it would not notice that the client hangs up,
    // and its grant would be lost.
    served(|wire| {
        let lease = borrowed(wire);
        let healthy =
            format!("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(900));
        let waits = asks("POST", "/borrow", "{\"ttl\":600,\"wait\":300}");
        for sent in
            [vec![&*waits, &healthy.repeat(20)], vec![&format!("{waits}{}", healthy.repeat(40))]]
        {
            assert_eq!(say(wire, &sent), "", "it was answered");
        }
        assert_eq!(answer_to(wire, "POST", "/return", &lease), "{\"returned\":true}");
        is_free_again(wire);
        // Behind anything else as much may come as a client likes.
        let last = healthy.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        let said = say(wire, &[&format!("{}{last}", healthy.repeat(99))]);
        assert_eq!(statuses(&said), vec!["200"; 100]);
    });
}

#[test]
fn who_has_said_all_it_wants_to_say_is_answered_and_only_a_slot_is_not_lent_to_it() {
    let half_closed = |wire: &Wire, text: &str| {
        let mut stream = wire.connect();
        stream.write_all(text.as_bytes()).unwrap();
        stream.end();
        let mut told = String::new();
        match stream.read_to_string(&mut told) {
            // Closed without the word of TLS for it. The answers have lengths, so none is cut.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {}
            read => _ = read.unwrap(),
        }
        told
    };
    served(|wire| {
        let lease = borrowed(wire);
        let healthy = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let full = asks("POST", "/borrow", "{\"ttl\":600}");
        for (text, expected) in [
            (healthy.to_owned(), vec!["200"]),
            (healthy.repeat(50), vec!["200"; 50]),
            (asks("PUT", "", "{\"count\":1}"), vec!["200"]),
            (full.clone(), vec!["409"]),
            (format!("{full}{full}"), vec!["409"; 2]),
            (asks("POST", "/borrow", "{\"ttl\":600,\"wait\":300}"), vec![]),
            (format!("{healthy}{}", &full[..40]), vec!["200"]),
        ] {
            for _ in 0..5 {
                let told = half_closed(wire, &text);
                assert_eq!(statuses(&told), expected, "{text:.200}: {told}");
            }
        }
        // A stream tells how it is now, and ends.
        let told = half_closed(wire, &asks("GET", "/events", ""));
        assert!(told.contains("\"in_use\":1") && told.ends_with("\r\n0\r\n\r\n"), "{told}");
        self::answer_to(wire, "POST", "/return", &lease);
        // It may be gone, and the slot with it. (On a slow machine an answer may be there before.)
        let unanswered = |_: &u32| {
            let told = half_closed(wire, &asks("POST", "/borrow", "{\"ttl\":0.5}"));
            is_free_again(wire);
            told.is_empty()
        };
        assert!((0..20).filter(unanswered).count() > 10, "slots are lent to who may be gone");
    });
}

#[test]
fn a_client_that_begins_with_http2_is_told_what_is_spoken() {
    served(|wire| {
        let told = say(wire, &["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]);
        assert_eq!(statuses(&told), ["400"]);
        assert!(told.contains("is not HTTP/1.1"), "{told}");
    });
}
