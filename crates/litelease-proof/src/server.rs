//! Runs `litelease serve` as a process, and has a small HTTP client that can also misbehave.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::rig::litelease;
use crate::tls::{Certificate, tunnel};

/// A server on a port of its own, killed on drop.
pub struct Server {
    child: Child,
    /// The address it listens at.
    pub address: SocketAddr,
    /// The file with its log.
    pub log: PathBuf,
    /// The header with the local access key, which ends with CRLF. Empty if there is none.
    pub access: String,
}

/// The id of the pool that tests use.
pub const POOL: &str = "0b5b1f0e-1111-4222-8333-444455556666";

/// A text that looks like a lease on a slot and is none.
pub const NO_LEASE: &str = "0b5b1f0e-1111-8222-8333-444400000000";

impl Server {
    /// Starts a server on a database file, with these flags.
    pub fn start(db: &Path, flags: &[&str]) -> Self {
        Server::at("127.0.0.1:0", db, flags)
    }

    /// Starts a server that listens at this address.
    pub fn at(listen: &str, db: &Path, flags: &[&str]) -> Self {
        Server::spawn(listen, db.as_os_str(), db, flags)
    }

    /// Starts a server on an engine, whose log and state are in files beside `place`.
    pub fn on(listen: &str, url: &str, place: &Path, flags: &[&str]) -> Self {
        Server::spawn(listen, url.as_ref(), place, flags)
    }

    fn spawn(listen: &str, from: &OsStr, db: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(litelease());
        command.args(["serve", "--listen", listen, "--db"]).arg(from).args(flags);
        Server::run(command, db)
    }

    /// Runs a command that serves, and waits until it says where. Its log and state are in files
    /// beside `db`.
    pub fn run(mut command: Command, db: &Path) -> Self {
        let log = db.with_extension("log");
        let stderr = File::options().create(true).append(true).open(&log).expect("a log");
        // Its access key is not for the user who runs the tests.
        let state = db.with_extension("state");
        command.env("XDG_STATE_HOME", &state);
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).spawn().expect("a server");
        let stdout = child.stdout.take().expect("its output");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        let line = line.replace("https://", "http://");
        let address = line.trim().strip_prefix("listening at http://").unwrap_or_default();
        let address = address.parse().unwrap_or_else(|_| {
            panic!("the server says {line:?}, and in its log is {:?}", fs::read_to_string(&log))
        });
        let access = fs::read_to_string(state.join(format!("litelease/access/{address}")));
        let access = access.unwrap_or_default().replace('\n', "\r\n");
        Server { child, address, log, access }
    }

    /// Starts a server that speaks TLS. Its clients speak to a tunnel that does so for them.
    pub fn with_tls(db: &Path, flags: &[&str]) -> Self {
        let certificate = Certificate::new(&db.with_extension("tls"), "localhost");
        let [cert, key] =
            [&certificate.cert, &certificate.key].map(|path| path.display().to_string());
        let tls = ["--tls-cert", &cert, "--tls-key", &key];
        let mut server = Server::start(db, &[&tls, flags].concat());
        server.address = tunnel(server.address, &certificate);
        server
    }

    /// Returns a new client of this server, with its local access key.
    pub fn client(&self) -> Client {
        Client { access: self.access.clone(), ..Client::new(self.address) }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGTERM, waits for the end, and returns whether it ended with success.
    pub fn stop(mut self) -> bool {
        let asked = Command::new("kill").arg(self.pid().to_string()).status();
        asked.is_ok_and(|asked| asked.success())
            && self.child.wait().is_ok_and(|status| status.success())
    }

    /// Kills it with SIGKILL.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns its resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client with one connection, opened by the first request.
pub struct Client {
    address: SocketAddr,
    access: String,
    patience: Duration,
    stream: Option<TcpStream>,
}

/// A response of the server.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The status line and the headers, unchanged.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// Returns the body as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// Returns the field `error` of the body.
    #[track_caller]
    pub fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }
}

impl Client {
    /// Creates a client of the server at an address.
    pub fn new(address: SocketAddr) -> Self {
        let patience = Duration::from_secs(60);
        Client { address, access: String::new(), patience, stream: None }
    }

    /// Creates another client of the same server.
    pub fn another(&self) -> Self {
        Client { access: self.access.clone(), ..Client::new(self.address) }
    }

    /// Returns the header with its access key, which ends with CRLF. Empty if there is none.
    pub fn access(&self) -> String {
        self.access.clone()
    }

    /// Returns the same client, which waits for an answer for at most this long.
    pub fn with_patience(self, patience: Duration) -> Self {
        Client { patience, ..self }
    }

    /// Returns the same client with another access key.
    pub fn bearing(self, key: &str) -> Self {
        Client { access: format!("Authorization: Bearer {key}\r\n"), ..self }
    }

    /// Sends a call on the pool with a JSON body. `path` follows the pool's id.
    #[track_caller]
    pub fn call(&mut self, method: &str, path: &str, body: &Value) -> Response {
        self.try_call(method, path, body, "").unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Like [`call`](Client::call), with more headers; returns an error if the connection breaks.
    pub fn try_call(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        headers: &str,
    ) -> io::Result<Response> {
        self.ask(method, &format!("/l/{POOL}{path}"), body, headers)
    }

    /// Sends a request to any path and reads the response. Each header ends with CRLF.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &Value,
        headers: &str,
    ) -> io::Result<Response> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.send(method, path, &body, headers)?;
        self.receive()
    }

    /// Sends a request, and does not wait for the response.
    pub fn send(&mut self, method: &str, path: &str, body: &str, headers: &str) -> io::Result<()> {
        let length = body.len();
        let kind = match body {
            "" => "",
            _ if headers.to_lowercase().contains("content-type") => "",
            _ => "Content-Type: application/json\r\n",
        };
        let host = match headers.to_lowercase().contains("host:") {
            true => "",
            false => "Host: localhost\r\n",
        };
        let access = &self.access;
        let text = format!(
            "{method} {path} HTTP/1.1\r\n{host}{kind}{access}{headers}Content-Length: {length}\r\n\r\n{body}"
        );
        self.write(text.as_bytes())
    }

    /// Sends bytes unchanged.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.stream.is_none() {
            let stream = TcpStream::connect(self.address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            self.stream = Some(stream);
        }
        match &mut self.stream {
            Some(stream) => stream.write_all(bytes),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Reads one response.
    pub fn receive(&mut self) -> io::Result<Response> {
        let received = self.read_response();
        let closes = match &received {
            Ok(response) => response.head.to_lowercase().contains("connection: close"),
            Err(_) => true,
        };
        if closes {
            self.stream = None;
        }
        received
    }

    fn read_response(&mut self) -> io::Result<Response> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut bytes = Vec::new();
        let end = loop {
            if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 4096];
            match read(stream, &mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => bytes.extend(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let mut body = bytes.split_off(end);
        while body.len() < length.unwrap_or(0) {
            let mut chunk = [0; 4096];
            match read(stream, &mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => body.extend(&chunk[..read]),
            }
        }
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok(Response { status, head, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// Closes the connection.
    pub fn hang_up(&mut self) {
        self.stream = None;
    }

    /// Returns the stream, for tests that read by hand.
    pub fn into_stream(self) -> Option<TcpStream> {
        self.stream
    }

    /// Registers the pool with this number of slots.
    #[track_caller]
    pub fn register(&mut self, count: i64) {
        let registered = self.call("PUT", "", &json!({ "count": count }));
        assert_eq!(registered.status, 200, "{registered:?}");
    }

    /// Returns how many slots of the pool are in use.
    #[track_caller]
    pub fn in_use(&mut self) -> i64 {
        self.call("GET", "", &Value::Null).json()["in_use"].as_i64().unwrap_or(-1)
    }
}

/// Reads some bytes. Any signal, such as SIGCHLD, interrupts a read that has a timeout.
fn read(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
