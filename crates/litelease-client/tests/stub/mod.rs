//! A server that answers as a test says.

#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use litelease_client::Client;
use serde_json::{Value, json};

pub(crate) enum Reply {
    Json(u16, Value),
    /// A stream of events, which ends with the channel.
    Events(Receiver<String>),
    /// No answer: the connection is closed.
    HangUp,
}

pub(crate) struct Stub {
    url: String,
    /// The paths of all requests that were answered or are about to be.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    pub(crate) fn new(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stub, answer) = (Stub { url, requests: Arc::default() }, Arc::new(answer));
        let requests = Arc::clone(&stub.requests);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                // The client may hang up at any time.
                thread::spawn(move || _ = serve(client, &requests, &*answer));
            }
        });
        stub
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn client(&self) -> Client {
        Client::with_key(&self.url, "litelease-stub").unwrap()
    }

    /// Returns how many requests for this path have come.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|of| of.starts_with(path)).count()
    }
}

/// Grants what is asked for, and renews and releases it.
pub(crate) fn grant(path: &str, body: &Value) -> Reply {
    let secret = body["grant"].as_str().or(body["name"].as_str()).unwrap_or_default();
    Reply::Json(
        200,
        match path {
            "/v1/release" => json!({ "released": true, "name": secret, "token": 1 }),
            _ => json!({
                "name": secret, "owner": "a", "token": 1, "grant": secret, "expires_in": body["ttl"],
                "expires_at_unix": 60,
            }),
        },
    )
}

/// Refuses a request, because of a newer token or of the lease of an owner.
pub(crate) fn refusal(reason: &str, by: Option<i64>, owner: Option<&str>) -> Value {
    let current = owner.map(|owner| {
        json!({ "name": "n", "owner": owner, "token": 1, "expires_in": 60, "expires_at_unix": 60 })
    });
    json!({ "error": "refused", "reason": reason, "by": by, "current": current })
}

fn serve(
    mut client: TcpStream,
    requests: &Mutex<Vec<String>>,
    answer: &dyn Fn(&str, &Value) -> Reply,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    loop {
        let (mut head, mut length, mut tag) = (String::new(), 0, String::new());
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        for (name, value) in head.lines().filter_map(|line| line.split_once(": ")) {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap(),
                "idempotency-key" => tag = value.to_owned(),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let path = head.split(' ').nth(1).unwrap();
        requests.lock().unwrap().push(path.to_owned());
        let mut body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if body.is_object() {
            body["tag"] = json!(tag);
        }
        match answer(path, &body) {
            Reply::Json(status, value) => {
                let (text, head) = (value.to_string(), format!("HTTP/1.1 {status} x\r\n"));
                let (tag, length) = (format!("idempotency-key: {tag}\r\n"), text.len());
                write!(client, "{head}{tag}content-length: {length}\r\n\r\n{text}")?;
            }
            Reply::Events(events) => {
                write!(client, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
                for event in events {
                    client.write_all(event.as_bytes())?;
                }
                return Ok(());
            }
            Reply::HangUp => return Ok(()),
        }
    }
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
