//! PostgreSQL with the same promises: the lowest free slot, a lease that expires, a token that
//! only grows, and every answer on the disk (`fsync` and `synchronous_commit` are on).
//!
//! One prepared statement per call, as an expert in PostgreSQL would write it: slots that others
//! are taking are skipped instead of waited for, no indexed column changes, and the page has room
//! for the new row. Work that its clients could do is left to them: they return a slot by its
//! position as well, so leases need no index.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Server;
use super::drive::Talk;
use super::http::POOL;
use crate::Result;

const SCHEMA: &str = "
CREATE TABLE pools (id uuid PRIMARY KEY, count integer NOT NULL);
CREATE TABLE slots (pool uuid NOT NULL, position integer NOT NULL, token bigint, lease uuid, expires_at timestamptz,
  PRIMARY KEY (pool, position)) WITH (fillfactor = 50);
CREATE SEQUENCE token;";

const BORROW: &str = "UPDATE slots
SET token = nextval('token'), lease = gen_random_uuid(), expires_at = clock_timestamp() + $2::interval
WHERE pool = $1::uuid AND position = (SELECT position FROM slots WHERE pool = $1::uuid
  AND position < (SELECT count FROM pools WHERE id = $1::uuid)
  AND (lease IS NULL OR expires_at <= clock_timestamp()) ORDER BY position LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING position, lease, token, expires_at";

const RETURN: &str = "UPDATE slots SET lease = NULL, expires_at = NULL
WHERE pool = $1::uuid AND position = $2::integer AND lease = $3::uuid AND expires_at > clock_timestamp()";

/// Returns the folder of its programs, if it is installed.
pub(crate) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    folders.filter(|folder| folder.join("initdb").exists()).max()
}

/// Starts a server on a port of its own, with a pool. With a shim, its disk is slow.
pub(crate) fn start(shim: Option<&Path>, folder: &Path, slots: usize) -> Result<Server> {
    let programs = programs().ok_or("PostgreSQL is not installed")?;
    let home = tempfile::tempdir_in(folder)?.keep();
    // It refuses to run as root, and the user that it runs as needs access to its files.
    let is_root = Command::new("id").arg("-u").output()?.stdout == b"0\n";
    let run = |program: &str| {
        let mut command =
            Command::new(if is_root { "setpriv".into() } else { programs.join(program) });
        if is_root {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
            command.arg(programs.join(program));
        }
        command.current_dir(&home);
        command
    };
    let copy = home.join("slow_disk.so");
    if let Some(shim) = shim {
        fs::copy(shim, &copy)?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    if is_root && !Command::new("chown").args(["-R", "postgres"]).arg(&home).status()?.success() {
        return Err("there is no user postgres".into());
    }
    let data = home.join("data");
    let made = run("initdb")
        .args(["-A", "trust", "-U", "postgres", "--no-sync", "-D"])
        .arg(&data)
        .output()?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into());
    }
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut server = run("postgres");
    if shim.is_some() {
        server.env("LD_PRELOAD", copy);
    }
    server.arg("-D").arg(&data).arg("-k").arg(&home);
    server.args(["-h", "127.0.0.1", "-p", &address.port().to_string()]);
    server.args(["-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "max_connections=100"]);
    // Otherwise its shared memory stays behind in /dev/shm when it is killed.
    server.args(["-c", "dynamic_shared_memory_type=mmap"]);
    let child = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let server = Server { child, address };
    let started = Instant::now();
    let fill = format!(
        "{SCHEMA} INSERT INTO pools VALUES ('{POOL}', {slots});
         INSERT INTO slots SELECT '{POOL}', generate_series(0, {slots} - 1);"
    );
    // It listens before it is ready, and answers with an error until then.
    while let Err(error) = run_once(address, &fill) {
        if started.elapsed() > Duration::from_secs(20) {
            return Err(format!("PostgreSQL did not start: {error}").into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}

/// Runs statements in one transaction.
pub(crate) fn run_once(address: SocketAddr, sql: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let mut request = Vec::new();
    write_start(&mut request);
    stream.write_all(&request)?;
    receive(&mut stream)?;
    request.clear();
    write_message(&mut request, b'Q', &[sql.as_bytes(), b"\0"]);
    stream.write_all(&request)?;
    receive(&mut stream).map(|_| ())
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut received = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => received.extend(chunk.get(..read).unwrap_or_default()),
        }
        if messages(&received).any(|(kind, _)| kind == b'E') {
            return Err(io::Error::other(String::from_utf8_lossy(&received)));
        }
        if whole(&received).is_some() {
            return Ok(received);
        }
    }
}

/// A connection that waits for each answer.
pub(crate) struct Client(TcpStream);

impl Client {
    /// Connects, and prepares statements: their names and their SQL.
    pub(crate) fn open(address: SocketAddr, statements: &[(&str, &str)]) -> io::Result<Self> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut request = Vec::new();
        write_start(&mut request);
        stream.write_all(&request)?;
        receive(&mut stream)?;
        request.clear();
        write_prepare(&mut request, statements);
        stream.write_all(&request)?;
        receive(&mut stream)?;
        Ok(Client(stream))
    }

    /// Runs a prepared statement, and returns its whole answer.
    pub(crate) fn call(&mut self, name: &str, values: &[&[u8]]) -> io::Result<Vec<u8>> {
        let mut request = Vec::new();
        write_call(&mut request, name, values);
        self.0.write_all(&request)?;
        receive(&mut self.0)
    }
}

/// A client that borrows and returns.
#[derive(Default)]
pub(crate) struct Borrower {
    state: State,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    #[default]
    Started,
    Connected,
    Prepared,
    Borrowed,
    Returned,
}

impl Talk for Borrower {
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()> {
        let failed = || io::Error::other(String::from_utf8_lossy(answer).into_owned());
        if messages(answer).any(|(kind, _)| kind == b'E') {
            return Err(failed());
        }
        self.state = match self.state {
            State::Started => {
                write_start(request);
                State::Connected
            }
            State::Connected => {
                write_prepare(request, &[("b", BORROW), ("r", RETURN)]);
                State::Prepared
            }
            State::Borrowed => match row(answer) {
                Some([position, lease]) => {
                    write_call(request, "r", &[POOL.as_bytes(), position, lease]);
                    State::Returned
                }
                // Other clients were taking all free slots at that moment: try again.
                None => {
                    write_call(request, "b", &[POOL.as_bytes(), b"60 s"]);
                    State::Borrowed
                }
            },
            State::Returned
                if !messages(answer).any(|message| message == (b'C', b"UPDATE 1\0")) =>
            {
                return Err(failed());
            }
            State::Prepared | State::Returned => {
                write_call(request, "b", &[POOL.as_bytes(), b"60 s"]);
                State::Borrowed
            }
        };
        Ok(())
    }

    fn whole(&self, received: &[u8]) -> Option<usize> {
        whole(received)
    }
}

fn write_start(request: &mut Vec<u8>) {
    let text = b"user\0postgres\0database\0postgres\0\0";
    request.extend(u32::try_from(8 + text.len()).unwrap_or(0).to_be_bytes());
    request.extend(196_608_u32.to_be_bytes());
    request.extend(text);
}

fn write_prepare(request: &mut Vec<u8>, statements: &[(&str, &str)]) {
    for (name, sql) in statements {
        let parts = [name.as_bytes(), b"\0", sql.as_bytes(), b"\0", &[0, 0]];
        write_message(request, b'P', &parts);
    }
    write_message(request, b'S', &[]);
}

/// Runs a prepared statement.
fn write_call(request: &mut Vec<u8>, name: &str, values: &[&[u8]]) {
    let mut bind = Vec::new();
    bind.push(0);
    bind.extend(name.as_bytes());
    bind.extend([0, 0, 0]);
    bind.extend(u16::try_from(values.len()).unwrap_or(0).to_be_bytes());
    for value in values {
        bind.extend(u32::try_from(value.len()).unwrap_or(0).to_be_bytes());
        bind.extend(*value);
    }
    bind.extend([0, 0]);
    write_message(request, b'B', &[&bind]);
    write_message(request, b'E', &[&[0, 0, 0, 0, 0]]);
    write_message(request, b'S', &[]);
}

fn write_message(request: &mut Vec<u8>, kind: u8, parts: &[&[u8]]) {
    let length: usize = 4 + parts.iter().map(|part| part.len()).sum::<usize>();
    request.push(kind);
    request.extend(u32::try_from(length).unwrap_or(0).to_be_bytes());
    parts.iter().for_each(|part| request.extend(*part));
}

/// Returns the messages that were received completely.
pub(crate) fn messages(mut received: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let kind = *received.first()?;
        let length = u32::from_be_bytes(received.get(1..5)?.try_into().ok()?) as usize;
        let body = received.get(5..1 + length)?;
        received = received.get(1 + length..)?;
        Some((kind, body))
    })
}

/// Returns the length of the answer: it ends with `ReadyForQuery`.
fn whole(received: &[u8]) -> Option<usize> {
    let mut at = 0;
    for (kind, body) in messages(received) {
        at += 5 + body.len();
        if kind == b'Z' {
            return Some(at);
        }
    }
    None
}

/// Returns the first two columns of the first row.
pub(crate) fn row(answer: &[u8]) -> Option<[&[u8]; 2]> {
    let (_, row) = messages(answer).find(|(kind, _)| *kind == b'D')?;
    let column = |at: usize| -> Option<&[u8]> {
        let length = u32::from_be_bytes(row.get(at..at + 4)?.try_into().ok()?) as usize;
        row.get(at + 4..at + 4 + length)
    };
    let first = column(2)?;
    Some([first, column(2 + 4 + first.len())?])
}
