//! etcd, which keeps leases too: as something to know, for it promises more than a file can and
//! costs a server.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::figure::Rounds;
use crate::measure::{cpu, cpu_of};
use crate::results::Note;
use crate::{Result, workload};

const ROUNDS: usize = 5;
const CYCLES: u32 = 300;

/// What claim, renew and release take through its JSON gateway, next to ours. Its syncs are free
/// here, as ours: it calls the system past the library that the slow disk is made of.
pub(crate) fn etcd(folder: &Path) -> Result<Note> {
    let what = "claim, renew and release next to etcd".to_owned();
    if !etcd_is_there() {
        return Ok(Note { what, text: "SKIPPED: etcd is not installed".into() });
    }
    let mut etcd = Etcd::start(folder)?;
    etcd.cycles()?;
    let (mut ours, mut theirs, mut waited) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (begin, used) = (Instant::now(), cpu_of(&etcd.child)?);
        etcd.cycles()?;
        theirs.push(each(cpu_of(&etcd.child)? - used));
        waited.push(each(begin.elapsed()));
        let place = tempfile::tempdir_in(folder)?;
        let start = cpu();
        workload::run("cycle@wal-full", CYCLES, place.path())?;
        ours.push(each(cpu() - start));
    }
    let ratio = Rounds::ratios(&theirs, &ours)?;
    let [ours, theirs, waited] = [ours, theirs, waited].map(Rounds::new);
    let text = format!(
        "one client, one node, JSON: each takes {:.0} µs of its CPU and {:.0} µs in all; ours in the same process, WAL FULL, \
         {:.0} µs of CPU, {:.0} times less",
        theirs?.median(),
        waited?.median(),
        ours?.median(),
        ratio.median()
    );
    Ok(Note { what, text })
}

/// Checks whether etcd is installed.
pub(crate) fn etcd_is_there() -> bool {
    Command::new("etcd").arg("--version").output().is_ok()
}

/// Microseconds for each of three calls in a cycle.
fn each(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(3 * CYCLES)
}

/// A server that is killed when this is dropped, and a connection to it.
struct Etcd {
    child: Child,
    stream: BufReader<TcpStream>,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Etcd {
    fn start(folder: &Path) -> Result<Self> {
        let (child, stream) = start_etcd(folder)?;
        stream.set_nodelay(true)?;
        Ok(Etcd { child, stream: BufReader::new(stream) })
    }

    /// As its users do it: a lease of its own, a key that must not be there yet, and the lease's
    /// end takes the key along.
    fn cycles(&mut self) -> Result<()> {
        for _ in 0..CYCLES {
            // A claim takes two of its calls.
            let lease = self.call("lease/grant", &json!({"TTL": 60}))?["ID"].clone();
            let claim = json!({
                "compare": [{"key": "eA==", "target": "CREATE", "create_revision": "0"}],
                "success": [{"request_put": {"key": "eA==", "value": "YQ==", "lease": lease}}],
            });
            if self.call("kv/txn", &claim)?["succeeded"] != json!(true) {
                return Err("etcd: the key is there already".into());
            }
            self.call("lease/keepalive", &json!({"ID": lease}))?;
            self.call("lease/revoke", &json!({"ID": lease}))?;
        }
        Ok(())
    }

    fn call(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let head = format!(
            "POST /v3/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.get_mut().write_all((head + &body).as_bytes())?;
        let answer = self.receive()?;
        let value: Value = serde_json::from_slice(&answer)?;
        match value.get("error") {
            Some(error) => Err(format!("etcd: {error}").into()),
            None => Ok(value),
        }
    }

    /// The body of an answer, which comes with its length or in chunks.
    fn receive(&mut self) -> Result<Vec<u8>> {
        let mut length = None;
        loop {
            let line = self.line()?;
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "" => break,
                "content-length" => length = Some(value.trim().parse()?),
                _ => {}
            }
        }
        match length {
            Some(length) => self.bytes(length),
            None => self.chunks(),
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line()?, 16)?;
            body.extend(self.bytes(length)?);
            self.line()?;
            if length == 0 {
                return Ok(body);
            }
        }
    }

    fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match std::io::BufRead::read_line(&mut self.stream, &mut line)? {
            0 => Err("etcd hung up".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

/// Starts one node, and connects to it.
pub(crate) fn start_etcd(folder: &Path) -> Result<(Child, TcpStream)> {
    let [client, peer] = [free_address()?, free_address()?];
    let [client_url, peer_url] = [client, peer].map(|address| format!("http://{address}"));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(tempfile::tempdir_in(folder)?.keep());
    command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
    command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
    command.args(["--initial-cluster", &format!("default={peer_url}")]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begin = Instant::now();
    loop {
        // It listens before it has elected itself, and answers after.
        if let Ok(stream) = TcpStream::connect(client) {
            return Ok((child, stream));
        }
        if begin.elapsed() > Duration::from_secs(20) || child.try_wait()?.is_some() {
            let _ = child.kill();
            let _ = child.wait();
            return Err("etcd did not start".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns an address without a listener.
pub(crate) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
