//! Clients that are many, slow or silent: the server keeps its limits, and answers everybody else.
//!
//! A test program of its own: it raises the limit of open files of this process, and opens 10,000
//! of them.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use litelease_proof::command::stat;
use litelease_proof::rig::{TestFolder, eventually, report};
use litelease_proof::server::{POOL, Server};
use serde_json::Value;

fn served(flags: &[&str]) -> (TestFolder, Server) {
    let place = TestFolder::new("WAL");
    let server = Server::start(&place.file, flags);
    (place, server)
}

/// What the server says until it hangs up, while it is sent a little more now and then.
#[track_caller]
fn until_hung_up(what: &str, server: &Server, first: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    stream.write_all(first.as_bytes()).unwrap();
    let started = Instant::now();
    let mut said = Vec::new();
    loop {
        assert!(started.elapsed() < Duration::from_secs(30), "{what}: it still waits");
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => said.extend(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // It may hang up in this very moment.
                let _ = stream.write_all(more.as_bytes());
            }
            // It had something left to read when it hung up.
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_client_that_does_not_get_on_is_hung_up_on() {
    let (_place, server) = served(&["--max-patience", "0.3"]);
    let head = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n";
    let body = format!(
        "PUT /l/{POOL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
    );
    for (what, first, more, answer) in [
        ("silent", "", "", ""),
        ("a letter", "G", "", " 408 "),
        ("part of what HTTP/2 begins with", "PRI * HT", "", " 408 "),
        ("half a head", head, "", " 408 "),
        ("a head that comes in drops", head, "X: y\r\n", " 408 "),
        ("half a body", &*format!("{body}{{"), "", " 408 "),
        ("a body that comes in drops", &body, " ", " 408 "),
        ("silent after its answer", &format!("{head}\r\n"), "", " 200 "),
    ] {
        let said = until_hung_up(what, &server, first, more);
        let status = said.split("\r\n").next().unwrap_or_default();
        assert!(
            status.contains(answer) && status.is_empty() == answer.is_empty(),
            "{what}: {said}"
        );
    }
    eventually("all their places are free", || (connections(&server) <= 1).then_some(()));

    // Who is slow within the time is served.
    let (_place, server) = served(&["--max-patience", "60"]);
    let mut client = server.client();
    for part in
        [&body[..1], &body[1..40], &body[40..], r#"{"count":1"#, &format!("}}{}", " ".repeat(88))]
    {
        client.write(part.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.receive().unwrap().status, 200);
}

#[test]
fn a_stop_waits_for_nobody_who_has_not_asked_for_anything() {
    let (_place, server) = served(&[]);
    server.client().register(1);
    let put = format!(
        "PUT /l/{POOL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{{"
    );
    let events = format!("GET /l/{POOL}/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let ok = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut firsts = vec!["", "P", "GET /healthz HTTP/1.1\r\nHo", &put, ok];
    // In which order they hear of the stop is left to chance.
    firsts.extend([&*events; 20]);
    let mut streams: Vec<_> = firsts
        .iter()
        .map(|first| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            stream.write_all(first.as_bytes()).unwrap();
            stream
        })
        .collect();
    // Those that are answered have been, so the others have been read as well.
    for stream in &mut streams[4..] {
        assert_eq!(stream.read(&mut [0; 4096]).unwrap().min(1), 1);
    }
    let log = server.log.clone();
    assert!(server.stop());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("shutting down") && !log.contains("cut off"), "{log}");
    // The stream has come to its end as it should.
    let mut rest = String::new();
    streams[5].read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest}");
}

/// How many connections the server has, with the one that asks.
fn connections(server: &Server) -> usize {
    let text = server.client().ask("GET", "/metrics", &Value::Null, "").unwrap().body;
    let line = text.lines().find_map(|line| line.strip_prefix("litelease_connections "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_connection_beyond_the_limit_is_served_when_another_one_ends() {
    let (_place, server) = served(&["--max-connections", "5", "--max-patience", "600"]);
    let mut idle: Vec<_> = (0..5).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let mut late = TcpStream::connect(server.address).unwrap();
    late.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    late.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    let mut byte = [0];
    assert!(late.read(&mut byte).is_err(), "the sixth is served beside five others");
    drop(idle.pop());
    late.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(late.read(&mut byte).unwrap(), 1, "it is served when there is room");
}

/// Lets this process, and what it starts, open so many files. False where that is not allowed.
fn may_open(files: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls are given one limit to fill in or to read.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        let wanted = libc::rlimit { rlim_cur: files, rlim_max: limit.rlim_max.max(files) };
        limit.rlim_cur >= files || libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) == 0
    }
}

/// How long a process has run on a CPU, in hundredths of a second.
fn cpu(pid: u32) -> u64 {
    let fields = stat(format!("/proc/{pid}")).unwrap();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn clients_that_could_begin_either_version_cost_nothing_while_they_say_no_more() {
    let (_place, server) = served(&["--max-patience", "600"]);
    let silent: Vec<_> = (0..800)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(b"P").unwrap();
            stream
        })
        .collect();
    eventually("all are there", || (connections(&server) > silent.len()).then_some(()));
    thread::sleep(Duration::from_millis(200));
    let before = cpu(server.pid());
    thread::sleep(Duration::from_secs(2));
    let used = cpu(server.pid()) - before;
    assert!(used < 20, "{used} hundredths of a second in two seconds");
}

#[test]
fn ten_thousand_idle_connections_are_kept_and_cost_little() {
    const MANY: usize = 10_000;
    if !may_open(MANY as u64 + 500) {
        return report(
            "SKIPPED: 10,000 idle connections, because so many files may not be open here",
        );
    }
    let (_place, server) = served(&["--max-patience", "600"]);
    let mut client = server.client();
    client.register(1);
    let before = server.memory_kib();
    let started = Instant::now();
    let mut idle: Vec<_> = (0..MANY)
        .map(|at| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            // Half of them are silent, and half have begun to say something.
            stream.write_all(&b"GET /"[..5 * (at % 2)]).unwrap();
            stream
        })
        .collect();
    eventually("all are there", || (connections(&server) > MANY).then_some(()));
    assert_eq!(client.in_use(), 0, "who was there is served");
    assert_eq!(server.client().in_use(), 0, "who comes is served");
    let each = server.memory_kib().saturating_sub(before) as f64 / MANY as f64;
    let told = format!("{MANY} idle connections in {:?}: {each:.1} KiB each", started.elapsed());
    report(&told);
    assert!(each < 32.0, "{told}");
    // Each of them can still become a request.
    idle[0].write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    idle[0].set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(idle[0].read(&mut [0]).unwrap(), 1);
    drop(idle);
    eventually("all have gone", || (connections(&server) < 5).then_some(()));
}
