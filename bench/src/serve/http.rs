//! A minimal HTTP client.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use super::drive::Talk;
use super::named::name;

/// The pool of the measurements.
pub(crate) const POOL: &str = "00000000-0000-4000-8000-000000000001";

/// A client that borrows and returns.
#[derive(Default)]
pub(crate) struct Borrower {
    has_borrowed: bool,
}

impl Talk for Borrower {
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()> {
        if !answer.is_empty() && !answer.starts_with(b"HTTP/1.1 200") {
            return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        match self.has_borrowed {
            false => write_call(request, "/borrow", r#"{"ttl":60,"wait":10}"#),
            true => {
                let lease = field(answer, "lease")
                    .ok_or_else(|| io::Error::other("there is no lease in the answer"))?;
                write_call(request, "/return", &format!("{{\"lease\":\"{lease}\"}}"));
            }
        }
        self.has_borrowed = !self.has_borrowed;
        Ok(())
    }

    fn whole(&self, received: &[u8]) -> Option<usize> {
        whole(received)
    }
}

/// Returns the length of the answer at the start of `received`, once it is complete.
fn whole(received: &[u8]) -> Option<usize> {
    let mut lines = 0;
    let mut length = 0;
    for line in received.split_inclusive(|byte| *byte == b'\n') {
        lines += line.len();
        match line {
            b"\r\n" => return (received.len() >= lines + length).then_some(lines + length),
            _ => {
                let name = b"content-length: ";
                if line.len() > name.len() && line[..name.len()].eq_ignore_ascii_case(name) {
                    length = std::str::from_utf8(&line[name.len()..]).ok()?.trim().parse().ok()?;
                }
            }
        }
    }
    None
}

fn write_call(request: &mut Vec<u8>, path: &str, body: &str) {
    // Writing to a vector cannot fail.
    let _ = write!(
        request,
        "POST /l/{POOL}{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
}

/// A client that claims and releases a name of its own.
pub(crate) struct Claimant {
    /// The line of the head that has the access key, as the key file has it.
    access: Rc<str>,
    number: usize,
    has_claimed: bool,
}

impl Claimant {
    pub(crate) fn new(access: Rc<str>, number: usize) -> Self {
        Claimant { access, number, has_claimed: false }
    }
}

impl Talk for Claimant {
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()> {
        if !answer.is_empty() && !answer.starts_with(b"HTTP/1.1 200") {
            return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        let (path, body) = match self.has_claimed {
            false => {
                let number = self.number;
                let name = name(number);
                (
                    "claim",
                    format!("{{\"name\":\"{name}\",\"owner\":\"client-{number}\",\"ttl\":60}}"),
                )
            }
            true => {
                let grant = field(answer, "grant")
                    .ok_or_else(|| io::Error::other("there is no grant in the answer"))?;
                ("release", format!("{{\"grant\":\"{grant}\"}}"))
            }
        };
        self.has_claimed = !self.has_claimed;
        write!(
            request,
            "POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\n{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.access,
            body.len()
        )
    }

    fn whole(&self, received: &[u8]) -> Option<usize> {
        whole(received)
    }
}

/// Returns the text of a field of a flat JSON object.
pub(crate) fn field<'a>(answer: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(answer).ok()?;
    let at = text.find(&format!("\"{name}\":\""))? + name.len() + 4;
    text.get(at..)?.split('"').next()
}

/// A connection that waits for each answer.
pub(crate) struct Http {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Http {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Http { stream, received: Vec::new() })
    }

    /// Creates the pool, or changes its size.
    pub(crate) fn register(address: SocketAddr, count: usize) -> io::Result<()> {
        let body = format!("{{\"count\":{count}}}");
        let request = format!(
            "PUT /l/{POOL} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut http = Http::open(address)?;
        http.stream.write_all(request.as_bytes())?;
        let answer = http.receive()?;
        match answer.starts_with(b"HTTP/1.1 200") {
            true => Ok(()),
            false => Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned())),
        }
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Vec<u8>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.stream.write_all(request.as_bytes())?;
        self.receive()
    }

    /// Sends a call on the pool.
    pub(crate) fn send(&mut self, path: &str, body: &str) -> io::Result<()> {
        let mut request = Vec::new();
        write_call(&mut request, path, body);
        self.stream.write_all(&request)
    }

    /// Reads one answer: its head and its body.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(length) = whole(&self.received) {
                let rest = self.received.split_off(length);
                return Ok(std::mem::replace(&mut self.received, rest));
            }
            let mut chunk = [0; 4096];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.received.extend(chunk.get(..read).unwrap_or_default()),
            }
        }
    }
}
