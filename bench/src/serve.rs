//! Compares the service with one transaction per request, with Redis and with PostgreSQL. All are
//! durable, on a disk where every sync takes a millisecond, and clients borrow and return as fast
//! as they are answered.
//!
//! Every peer is measured in every round, so that the state of the machine affects all alike.

mod drive;
pub(crate) mod engines;
mod etcd;
mod http;
mod memory;
pub(crate) mod named;
mod postgres;
pub(crate) mod queue;
mod redis;
mod wake;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::Result;
use crate::figure::{Figure, Reach};
use crate::results::Series;
use crate::writers::build_shim;

const CLIENTS: usize = 64;
const SLOTS: usize = 64;
const WAKE_UP: &str = "how soon a blocked borrower is answered ÷ Redis BLPOP";
/// The numbers of waiters at which memory is measured.
const WAITERS: [u32; 7] = [1, 10, 100, 1_000, 5_000, 10_000, 15_000];

/// A server that is ended when this is dropped.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // PostgreSQL ends at once, with its children, on SIGQUIT.
        let _ = Command::new("kill").args(["-QUIT", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
    }
}

/// Runs only the clients, against a service that is already running: for use with a profiler.
pub(crate) fn drive(address: &str, seconds: &str) -> Result<()> {
    let rate = http_rate(address.parse()?, seconds.parse()?)?;
    println!("{rate:.0} calls/s");
    Ok(())
}

/// A server to compare with: its name, the ratio that the service must reach, and how to measure
/// its calls per second.
struct Peer {
    id: &'static str,
    what: &'static str,
    reach: f64,
    rate: fn(&ServerFolder, f64) -> Result<f64>,
    is_there: fn() -> bool,
}

impl Peer {
    /// Compares the calls per second of all rounds.
    fn figure(&self, ours: &[f64], theirs: &[f64]) -> Figure {
        Figure {
            id: self.id,
            what: self.what,
            reach: Reach::AtLeast(self.reach),
            measured: median(ours) / median(theirs),
            range: Some(range(ours, theirs)),
            detail: format!("{} against {} calls/s", listed(ours, 1.0), listed(theirs, 1.0)),
        }
    }
}

const PEERS: &[Peer] = &[
    Peer {
        id: "B11",
        what: "calls/s of the service ÷ one transaction per request",
        reach: 18.0,
        rate: |place, seconds| http_rate(place.litelease(&["--max-batch", "1"])?.address, seconds),
        is_there: || true,
    },
    Peer {
        id: "B11",
        what: "calls/s of the service ÷ Redis always, its own protocol",
        reach: 1.1,
        rate: |place, seconds| redis_rate(&place.redis()?, seconds),
        is_there: redis::is_there,
    },
    Peer {
        id: "B11",
        what: "calls/s of the service ÷ PostgreSQL",
        reach: 2.5,
        rate: |place, seconds| {
            let server = postgres::start(Some(&place.shim), place.folder.path(), SLOTS)?;
            let clients = (0..CLIENTS).map(|_| postgres::Borrower::default()).collect();
            drive::rate(server.address, clients, seconds)
        },
        is_there: || postgres::programs().is_some(),
    },
];

/// Returns the rows that cannot be measured, because the other server is not installed.
pub(crate) fn absent() -> Vec<(&'static str, &'static str)> {
    let absent = PEERS.iter().filter(|peer| !(peer.is_there)());
    let wake_up = (!redis::is_there()).then_some(("B12", WAKE_UP));
    absent.map(|peer| (peer.id, peer.what)).chain(wake_up).collect()
}

/// Measures all peers, each once per round.
pub(crate) fn figures(folder: &Path, rounds: usize, seconds: f64) -> Result<Vec<Figure>> {
    let place = ServerFolder::new(folder)?;
    let peers: Vec<&Peer> =
        PEERS.iter().filter(|peer| is_there(peer.what, peer.is_there)).collect();
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    let (mut woken, mut popped) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(http_rate(place.litelease(&[])?.address, seconds)?);
        for (peer, rates) in peers.iter().zip(&mut theirs) {
            rates.push((peer.rate)(&place, seconds)?);
        }
        woken.push(wake::litelease(place.litelease(&[])?.address)?);
        if redis::is_there() {
            popped.push(wake::redis(place.redis()?.address)?);
        }
    }
    let mut figures: Vec<Figure> =
        peers.iter().zip(&theirs).map(|(peer, rates)| peer.figure(&ours, rates)).collect();
    if is_there(WAKE_UP, redis::is_there) {
        figures.push(Figure {
            id: "B12",
            what: WAKE_UP,
            reach: Reach::AtMost(1.3),
            measured: median(&woken) / median(&popped),
            range: Some(range(&woken, &popped)),
            detail: format!("{} against {} µs", listed(&woken, 1e6), listed(&popped, 1e6)),
        });
    }
    Ok(figures)
}

/// Measures B14: the memory of waiting borrowers, and how it grows.
pub(crate) fn waiters(folder: &Path) -> Result<(Figure, Vec<Series>)> {
    let place = ServerFolder::new(folder)?;
    let server = place.litelease(&["--max-waiters", "40000", "--max-connections", "40000"])?;
    let points = memory::each(&server, &WAITERS)?;
    let of_ten_thousand = points.iter().find(|point| point.x == 10_000.0);
    let figure = Figure {
        id: "B14",
        what: "KiB of memory for each of 10,000 borrowers that wait",
        reach: Reach::AtMost(8.0),
        measured: of_ten_thousand.map_or(f64::NAN, |point| point.y),
        range: None,
        detail: String::new(),
    };
    let series = Series { plot: "waiter".into(), name: "a connection each".into(), points };
    Ok((figure, vec![series]))
}

fn is_there(what: &str, is_there: fn() -> bool) -> bool {
    let there = is_there();
    if !there {
        eprintln!("SKIPPED: {what}: it is not installed");
    }
    there
}

fn http_rate(address: SocketAddr, seconds: f64) -> Result<f64> {
    http::Http::register(address, SLOTS)?;
    let clients = (0..CLIENTS).map(|_| http::Borrower::default()).collect();
    drive::rate(address, clients, seconds)
}

fn redis_rate(server: &Server, seconds: f64) -> Result<f64> {
    let scripts = redis::Scripts::load(server.address, SLOTS)?;
    let clients = (0..CLIENTS).map(|number| redis::Borrower::new(scripts.clone(), number));
    drive::rate(server.address, clients.collect(), seconds)
}

/// The folder for the files of the servers: on tmpfs, so that only the shim's syncs take time.
struct ServerFolder {
    folder: tempfile::TempDir,
    shim: PathBuf,
}

impl ServerFolder {
    fn new(folder: &Path) -> Result<Self> {
        Ok(ServerFolder { folder: tempfile::tempdir_in(folder)?, shim: build_shim()? })
    }

    /// Starts the service on a new file.
    fn litelease(&self, flags: &[&str]) -> Result<Server> {
        self.litelease_at(&tempfile::tempdir_in(self.folder.path())?.keep(), flags)
    }

    /// Starts the service with all its files in this folder.
    fn litelease_at(&self, home: &Path, flags: &[&str]) -> Result<Server> {
        let program = std::env::current_exe()?.with_file_name("litelease");
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &self.shim).env("XDG_STATE_HOME", home);
        command.args(["serve", "--open-metrics", "--listen", "127.0.0.1:0", "--db"]);
        command.arg(home.join("pools.sqlite3")).args(flags);
        // The log goes to a file, as in production.
        command.stderr(File::create(home.join("log"))?);
        listening(command)
    }

    fn redis(&self) -> Result<Server> {
        redis::start(&self.shim, self.folder.path())
    }
}

/// Starts a program that prints its address.
fn listening(mut command: Command) -> Result<Server> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    let address = line.trim().trim_start_matches("listening at http://").parse();
    match address {
        Ok(address) => Ok(Server { child, address }),
        Err(_) => Err(format!("{command:?} did not start: {line:?}").into()),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

fn median(values: &[f64]) -> f64 {
    sorted(values).get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the smallest and the largest ratio of two measurements in the same round.
fn range(ours: &[f64], theirs: &[f64]) -> [f64; 2] {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let sorted = sorted(&ratios);
    [sorted.first(), sorted.last()].map(|ratio| ratio.copied().unwrap_or(f64::NAN))
}

fn listed(values: &[f64], scale: f64) -> String {
    let texts: Vec<String> = values.iter().map(|value| format!("{:.0}", value * scale)).collect();
    texts.join(", ")
}
