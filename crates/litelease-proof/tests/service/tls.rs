//! TLS: who may listen without it, certificates that are replaced while they
//! are served, and clients that misbehave inside and outside of it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use litelease_proof::command::{Desk, ended, outcome};
use litelease_proof::rig::{TestFolder, eventually};
use litelease_proof::server::{Client, POOL, Server};
use litelease_proof::tls::{Certificate, connect};
use serde_json::{Value, json};

/// Asks for a path with curl, which trusts only this certificate. Returns status and version, or
/// the error.
fn curl(server: &Server, cert: &Path, path: &str, words: &[&str]) -> Result<String, String> {
    let port = server.address.port();
    let output = Command::new("curl")
        .args(["-sS", "-m", "20", "-o", "/dev/null", "-w", "%{http_code} %{http_version}"])
        .args(["--resolve", &format!("localhost:{port}:127.0.0.1"), "--cacert"])
        .arg(cert)
        .args(words)
        .arg(format!("https://localhost:{port}{path}"))
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Starts a server with a certificate. Clients speak TLS to it themselves.
fn start(place: &TestFolder, certificate: &Certificate, flags: &[&str]) -> Server {
    let [cert, key] = [&certificate.cert, &certificate.key].map(|path| path.display().to_string());
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    Server::start(&place.file, &[&tls, flags].concat())
}

#[test]
fn beyond_loopback_a_certificate_is_needed_or_a_word_that_it_is_not() {
    let desk = Desk::new();
    let certificate = Certificate::new(desk.folder.path(), "localhost");
    let [cert, key] = [&certificate.cert, &certificate.key].map(|path| path.display().to_string());
    let garbage = desk.folder.path().join("garbage.pem");
    fs::write(&garbage, "-----BEGIN CERTIFICATE-----\nsecret\n").unwrap();
    let garbage = garbage.display().to_string();
    let other = Certificate::new(&desk.folder.path().join("other"), "localhost");
    let other = other.key.display().to_string();
    let free = "127.0.0.1:0";
    for (words, code, says) in [
        (
            &["--listen", "0.0.0.0:0"][..],
            64,
            &["--tls-cert cert.pem --tls-key key.pem", "--insecure"][..],
        ),
        (&["--listen", "[::]:0"], 64, &["--tls-cert", "--insecure"]),
        (&["--listen", free, "--tls-cert", &cert], 64, &["--tls-key"]),
        (&["--listen", free, "--tls-key", &key], 64, &["--tls-cert"]),
        (&["--listen", free, "--tls-cert", "no.pem", "--tls-key", &key], 69, &["no.pem"]),
        (&["--listen", free, "--tls-cert", &garbage, "--tls-key", &key], 69, &["garbage.pem"]),
        (&["--listen", free, "--tls-cert", &key, "--tls-key", &key], 69, &["key.pem"]),
        (&["--listen", free, "--tls-cert", &cert, "--tls-key", &other], 69, &["cert.pem"]),
    ] {
        let mut command = desk.command(&["serve"]);
        let (found, said, errors) = outcome(&ended(command.args(words)));
        assert_eq!((found, said.as_str()), (code, ""), "{words:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(says.iter().all(|part| errors.contains(part)), "{words:?}: {errors}");
        assert!(!desk.file.exists(), "nothing was made");
    }
    for flags in [&["--tls-cert", cert.as_str(), "--tls-key", &key][..], &["--insecure"]] {
        let server = Server::at("0.0.0.0:0", &desk.file, flags);
        assert!(server.stop(), "{flags:?}");
    }
}

#[test]
fn http_is_spoken_inside_tls_and_nothing_outside() {
    let place = TestFolder::new("WAL");
    let certificate = Certificate::new(place.folder.path(), "localhost");
    let server = start(&place, &certificate, &["--host", "lease.example"]);
    let asks = |words: &[&str]| curl(&server, &certificate.cert, "/healthz", words);
    assert_eq!(asks(&[]).as_deref(), Ok("200 1.1"));
    assert_eq!(asks(&["--tls-max", "1.2"]).as_deref(), Ok("200 1.1"));
    assert_eq!(asks(&["-H", "Host: lease.example"]).as_deref(), Ok("200 1.1"));
    assert_eq!(asks(&["-H", "Host: evil.example"]).as_deref(), Ok("421 1.1"));
    let own = format!("Origin: https://localhost:{}", server.address.port());
    assert_eq!(asks(&["-H", &own]).as_deref(), Ok("200 1.1"));
    // In the clear, and with a certificate that is not trusted, nothing is said.
    let mut plain = Client::new(server.address);
    assert!(plain.ask("GET", "/healthz", &Value::Null, "").is_err());
    let stranger = Certificate::new(&place.folder.path().join("stranger"), "localhost");
    assert!(curl(&server, &stranger.cert, "/healthz", &[]).is_err());
    // The local key and every call work as without.
    let key = server.access.trim().to_owned();
    let body = json!({"name": "n", "owner": "a", "ttl": 60}).to_string();
    let words = ["-H", &key, "-H", "Content-Type: application/json", "-d", &body];
    assert_eq!(curl(&server, &certificate.cert, "/v1/claim", &words).as_deref(), Ok("200 1.1"));
    assert_eq!(curl(&server, &certificate.cert, "/v1/claim", &words).as_deref(), Ok("409 1.1"));
    assert!(server.stop());
}

#[test]
fn a_certificate_that_is_replaced_is_served_without_a_restart() {
    let place = TestFolder::new("WAL");
    let served = place.folder.path().join("served");
    let old = Certificate::new(&served, "localhost");
    let trusted = place.folder.path().join("old.pem");
    fs::copy(&old.cert, &trusted).unwrap();
    let server = start(&place, &old, &[]);
    assert!(curl(&server, &trusted, "/healthz", &[]).is_ok());
    // A stream that is open stays.
    let new = Certificate::new(&place.folder.path().join("new"), "localhost");
    // Between the two files the pair does not fit: then the old one stays in use.
    fs::rename(&new.cert, &old.cert).unwrap();
    thread::sleep(Duration::from_millis(1_100));
    assert!(curl(&server, &trusted, "/healthz", &[]).is_ok());
    fs::rename(&new.key, &old.key).unwrap();
    eventually("the new certificate is served", || {
        curl(&server, &old.cert, "/healthz", &[]).is_ok().then_some(())
    });
    assert!(curl(&server, &trusted, "/healthz", &[]).is_err(), "the old one is not");
    // Files that are gone or damaged change nothing.
    let kept = place.folder.path().join("kept.pem");
    fs::copy(&old.cert, &kept).unwrap();
    fs::write(&old.cert, "nonsense").unwrap();
    fs::remove_file(&old.key).unwrap();
    thread::sleep(Duration::from_millis(1_100));
    assert!(curl(&server, &kept, "/healthz", &[]).is_ok());
    let log = fs::read_to_string(&server.log).unwrap();
    assert!(log.contains("was read again") && log.contains("stays in use"), "{log}");
    assert!(!log.contains("PRIVATE KEY"), "{log}");
}

#[test]
fn clients_that_stall_before_or_inside_the_handshake_are_let_go() {
    let place = TestFolder::new("WAL");
    let certificate = Certificate::new(place.folder.path(), "localhost");
    let server =
        start(&place, &certificate, &["--max-patience", "500ms", "--max-connections", "20"]);
    let begin = Instant::now();
    // The record of a hello that never ends, half a byte of it, nothing at all, and plain HTTP.
    let starts: [&[u8]; 4] =
        [b"\x16\x03\x01\x02\x00\x01\x00", b"\x16", b"", b"GET / HTTP/1.1\r\n\r\n"];
    let mut stalled: Vec<TcpStream> = (0..20)
        .map(|at| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(starts[at % starts.len()]).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream
        })
        .collect();
    for stream in &mut stalled {
        let mut said = Vec::new();
        // Reset or closed, perhaps with an alert.
        let _ = stream.read_to_end(&mut said);
        assert!(said.len() < 64, "{said:?}");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }
    assert!(curl(&server, &certificate.cert, "/healthz", &[]).is_ok());
}

#[test]
fn a_waiting_client_that_hangs_up_inside_tls_loses_nothing() {
    let place = TestFolder::new("WAL");
    let server = Server::with_tls(&place.file, &[]);
    let mut client = server.client();
    client.register(1);
    let lent = client.call("POST", "/borrow", &json!({"ttl": 60})).json();
    let waiters = |client: &mut Client| {
        let text = client.ask("GET", "/metrics", &Value::Null, "").unwrap().body;
        text.lines().find_map(|line| line.strip_prefix("litelease_waiters ")).unwrap().to_owned()
    };
    let mut gone = server.client();
    let body = r#"{"ttl":60,"wait":60}"#;
    gone.send("POST", &format!("/l/{POOL}/borrow"), body, "").unwrap();
    eventually("it waits", || (waiters(&mut client) == "1").then_some(()));
    gone.hang_up();
    eventually("it has left", || (waiters(&mut client) == "0").then_some(()));
    let mut next = server.client();
    next.send("POST", &format!("/l/{POOL}/borrow"), body, "").unwrap();
    eventually("another waits", || (waiters(&mut client) == "1").then_some(()));
    client.call("POST", "/return", &json!({"lease": lent["lease"]}));
    assert_eq!(next.receive().unwrap().json()["token"], json!(2));
    assert!(server.stop());
}

/// What a client reads until the end, which must not look like a cut.
fn read_to_the_end(stream: &mut impl Read) -> String {
    let mut said = Vec::new();
    stream.read_to_end(&mut said).unwrap_or_else(|error| panic!("it was cut: {error}"));
    String::from_utf8_lossy(&said).into_owned()
}

// The server closed the socket without ending TLS: `close_notify` was missing after `Connection:
// close`, after a client had closed its side, when an idle client was let go, and at a shutdown. A
// client cannot tell such an end from an attacker who cuts an answer short, and OpenSSL reports an
// error.
#[test]
fn tls_is_ended_before_the_connection_whatever_ends_it() {
    let place = TestFolder::new("WAL");
    let certificate = Certificate::new(place.folder.path(), "localhost");
    let server = start(&place, &certificate, &["--max-patience", "300ms"]);
    let healthz = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
    // The client asks for the end, closes its side, sends nothing more, and sends what is no HTTP.
    let asked = format!("{healthz}Connection: close\r\n\r\n");
    let kept = format!("{healthz}\r\n");
    for (request, closes, answer) in [
        (asked.as_str(), false, "ok\n"),
        (kept.as_str(), true, "ok\n"),
        (kept.as_str(), false, "ok\n"),
        ("nonsense\r\n\r\n", false, "HTTP/1.1 400"),
    ] {
        let mut stream = connect(server.address, &certificate);
        stream.write_all(request.as_bytes()).unwrap();
        if closes {
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
        let said = read_to_the_end(&mut stream);
        assert!(said.contains(answer), "{request:?}: {said:?}");
    }
    assert!(server.stop());

    let server = start(&place, &certificate, &[]);
    let mut idle = connect(server.address, &certificate);
    idle.write_all(kept.as_bytes()).unwrap();
    let mut said = [0; 1024];
    assert!(idle.read(&mut said).unwrap() > 0);
    let mut streams = connect(server.address, &certificate);
    let register = format!(
        "PUT /l/{POOL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{{\"count\":1}}"
    );
    streams.write_all(register.as_bytes()).unwrap();
    assert!(streams.read(&mut said).unwrap() > 0);
    let events = format!("GET /l/{POOL}/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    streams.write_all(events.as_bytes()).unwrap();
    assert!(streams.read(&mut said).unwrap() > 0);
    assert!(server.stop());
    read_to_the_end(&mut idle);
    assert!(read_to_the_end(&mut streams).ends_with("0\r\n\r\n"));
}
