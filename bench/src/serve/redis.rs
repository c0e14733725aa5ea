//! Redis with the same promises: the lowest free slot, a lease that expires, a token that only
//! grows, and every answer on the disk (`appendfsync always`).
//!
//! One script per call, called by its digest, as an expert in Redis would write it. The free slots
//! are a sorted set, so the lowest is popped. Work that its clients could do is left to them: they
//! create the id of a lease, and a missing pool looks like a full one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use super::Server;
use super::drive::Talk;
use super::named::name;
use crate::Result;

/// KEYS: free slots, leases by their ends, slots by lease, the token. ARGV: the lease, its ttl in
/// milliseconds.
const BORROW: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, over in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  local slot = redis.call('HGET', KEYS[3], over)
  redis.call('ZREM', KEYS[2], over)
  redis.call('HDEL', KEYS[3], over)
  redis.call('ZADD', KEYS[1], slot, slot)
end
local free = redis.call('ZPOPMIN', KEYS[1])
if not free[1] then return false end
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], free[1])
return {free[1], redis.call('INCR', KEYS[4]), now + ARGV[2]}";

/// The same KEYS. ARGV: the lease.
const RETURN: &str = "
local ends = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not ends then return 0 end
local time = redis.call('TIME')
if tonumber(ends) <= time[1] * 1000 + math.floor(time[2] / 1000) then return 0 end
local slot = redis.call('HGET', KEYS[3], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('ZADD', KEYS[1], slot, slot)
return 1";

/// Checks whether Redis is installed.
pub(crate) fn is_there() -> bool {
    Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// Starts a server on a port of its own.
pub(crate) fn start(shim: &Path, folder: &Path) -> Result<Server> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let data = tempfile::tempdir_in(folder)?.keep();
    let port = address.port().to_string();
    let mut command = Command::new("redis-server");
    command.env("LD_PRELOAD", shim).args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(data);
    let child = command.stdout(Stdio::null()).spawn()?;
    let server = Server { child, address };
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        if started.elapsed() > Duration::from_secs(20) {
            return Err("redis-server did not start".into());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(server)
}

/// The digests of the two scripts.
#[derive(Clone)]
pub(crate) struct Scripts {
    borrow: String,
    give_back: String,
}

impl Scripts {
    /// Loads the scripts and fills the pool.
    pub(crate) fn load(address: SocketAddr, slots: usize) -> io::Result<Self> {
        let mut redis = Redis::open(address)?;
        for slot in 0..slots {
            redis.ask(&["ZADD", "free", &slot.to_string(), &slot.to_string()])?;
        }
        let mut load = |script| redis.ask(&["SCRIPT", "LOAD", script]).map(|told| digest(&told));
        Ok(Scripts { borrow: load(BORROW)?, give_back: load(RETURN)? })
    }

    pub(crate) fn borrow(&self, request: &mut Vec<u8>, lease: &str, ttl_ms: &str) {
        let words = ["EVALSHA", &self.borrow, "4", "free", "ends", "slots", "token", lease, ttl_ms];
        write_command(request, &words);
    }

    pub(crate) fn give_back(&self, request: &mut Vec<u8>, lease: &str) {
        let words = ["EVALSHA", &self.give_back, "4", "free", "ends", "slots", "token", lease];
        write_command(request, &words);
    }
}

/// Returns a bulk string without its framing.
fn digest(told: &[u8]) -> String {
    String::from_utf8_lossy(told).lines().nth(1).unwrap_or_default().to_owned()
}

/// A client that borrows and returns.
pub(crate) struct Borrower {
    scripts: Scripts,
    number: usize,
    calls: u64,
}

impl Borrower {
    pub(crate) fn new(scripts: Scripts, number: usize) -> Self {
        Borrower { scripts, number, calls: 0 }
    }
}

impl Talk for Borrower {
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()> {
        // A grant is a list; the answer to a return is 1.
        let expected: &[u8] = if self.calls % 2 == 1 { b"*3" } else { b":1" };
        if self.calls > 0 && !answer.starts_with(expected) {
            return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        let lease = unique(self.number, self.calls / 2);
        match self.calls % 2 {
            0 => self.scripts.borrow(request, &lease, "60000"),
            _ => self.scripts.give_back(request, &lease),
        }
        self.calls += 1;
        Ok(())
    }

    fn whole(&self, received: &[u8]) -> Option<usize> {
        whole(received)
    }
}

/// A client that claims and releases a name of its own, as the documentation of Redis has it: `SET`
/// with `NX` and `PX`, and a script that deletes the key if it still has the client's value. The
/// value is new for each claim. There is no token.
pub(crate) struct Claimant {
    release: Rc<str>,
    number: usize,
    calls: u64,
}

/// KEYS: the name. ARGV: the value that the client has set.
const RELEASE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

impl Claimant {
    /// Loads the script, and returns so many clients.
    pub(crate) fn all(address: SocketAddr, count: usize) -> io::Result<Vec<Self>> {
        let loaded = Redis::open(address)?.ask(&["SCRIPT", "LOAD", RELEASE])?;
        let release: Rc<str> = digest(&loaded).into();
        let claimant = |number| Claimant { release: Rc::clone(&release), number, calls: 0 };
        Ok((0..count).map(claimant).collect())
    }
}

impl Talk for Claimant {
    fn ask(&mut self, answer: &[u8], request: &mut Vec<u8>) -> io::Result<()> {
        let expected: &[u8] = if self.calls % 2 == 1 { b"+OK" } else { b":1" };
        if self.calls > 0 && !answer.starts_with(expected) {
            return Err(io::Error::other(String::from_utf8_lossy(answer).into_owned()));
        }
        let (name, value) = (name(self.number), unique(self.number, self.calls / 2));
        match self.calls % 2 {
            0 => write_command(request, &["SET", &name, &value, "NX", "PX", "60000"]),
            _ => write_command(request, &["EVALSHA", &self.release, "1", &name, &value]),
        }
        self.calls += 1;
        Ok(())
    }

    fn whole(&self, received: &[u8]) -> Option<usize> {
        whole(received)
    }
}

/// Returns a text as long as a UUID, and unique.
fn unique(client: usize, round: u64) -> String {
    format!("{client:08x}-{round:027x}")
}

pub(crate) fn write_command(request: &mut Vec<u8>, words: &[&str]) {
    // Writing to a vector cannot fail.
    let _ = write!(request, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(request, "${}\r\n{word}\r\n", word.len());
    }
}

/// Returns the length of the answer at the start of `received`, once it is complete.
pub(crate) fn whole(received: &[u8]) -> Option<usize> {
    let line = received.iter().position(|byte| *byte == b'\n')? + 1;
    let number =
        || -> Option<i64> { std::str::from_utf8(received.get(1..line)?).ok()?.trim().parse().ok() };
    match received.first()? {
        b'$' => match usize::try_from(number()?) {
            Ok(length) => Some(line + length + 2).filter(|whole| *whole <= received.len()),
            Err(_) => Some(line),
        },
        b'*' => {
            let mut at = line;
            for _ in 0..number()?.max(0) {
                at += whole(received.get(at..)?)?;
            }
            Some(at)
        }
        _ => Some(line),
    }
}

/// A connection that waits for each answer.
pub(crate) struct Redis {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl Redis {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Redis { stream, received: Vec::new() })
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Vec<u8>> {
        self.send(words)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = Vec::new();
        write_command(&mut request, words);
        self.stream.write_all(&request)
    }

    /// Reads one answer.
    pub(crate) fn receive(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(length) = whole(&self.received) {
                let rest = self.received.split_off(length);
                let answer = std::mem::replace(&mut self.received, rest);
                return match answer.first() {
                    Some(b'-') => Err(io::Error::other(String::from_utf8_lossy(&answer))),
                    _ => Ok(answer),
                };
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => self.received.extend(chunk.get(..read).unwrap_or_default()),
            }
        }
    }
}
