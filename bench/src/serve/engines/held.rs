//! Held and awaited leases on etcd and PostgreSQL: how soon a waiter has what was released, and
//! what a thousand holds cost while nothing happens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::{Cluster, HoldOptions};

use super::super::{Server, postgres};
use super::{LONG, TARGETS, Target, median, ms, time};
use crate::Result;
use crate::figure::{Figure, Reach, Rounds};
use crate::measure::cpu_of;
use crate::rows::Outcome;

const ROUNDS: usize = 5;
const TIMES: usize = 30;
const HOLDS: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);
const WATCHED: Duration = Duration::from_secs(40);

/// Measures B22 and B23.
pub(crate) fn outcome() -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let mut outcome = Outcome::default();
    let mut watched = Vec::new();
    for target in &TARGETS {
        if !(target.is_there)() {
            outcome.absent.extend([("B22", target.wake), ("B23", target.requests)]);
            continue;
        }
        let server = (target.start)(folder.path())?;
        outcome.figures.push(wake(target, &server)?);
        watched.push((target, Holder::start(target, &server)?, server));
    }
    // The first renewals bring them together.
    thread::sleep(TTL / 2);
    // Both at once: they have nothing to do most of the time.
    let before: Vec<_> = watched
        .iter()
        .map(|(target, holder, server)| {
            Ok((Instant::now(), (target.count)(server.address)?, cpu_of(&holder.child)?))
        })
        .collect::<Result<_>>()?;
    thread::sleep(WATCHED);
    for ((target, holder, server), (begin, requests, cpu)) in watched.iter_mut().zip(before) {
        let requests = (target.count)(server.address)? - requests;
        let cpu = cpu_of(&holder.child)? - cpu;
        let seconds = begin.elapsed().as_secs_f64();
        holder.check()?;
        let detail = format!("{requests} in {seconds:.0} s, counted by the server");
        outcome.figures.push(figure(target.requests, 3.0, requests / seconds, detail));
        let share = 100.0 * cpu.as_secs_f64() / seconds;
        let detail = "processor time of the process with the holds".into();
        outcome.figures.push(figure(target.share, 0.5, share, detail));
    }
    Ok(outcome)
}

fn figure(what: &'static str, most: f64, measured: f64, detail: String) -> Figure {
    Figure { id: "B23", what, reach: Reach::AtMost(most), measured, range: None, detail }
}

fn wake(target: &Target, server: &Server) -> Result<Figure> {
    let mut write = (target.writer)(server.address)?;
    let (holder, waiter) = (target.open(server)?, target.open(server)?);
    let (mut writes, mut wakes) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (mut written, mut woken) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let lease = holder.claim("w", "a", LONG)?.acquired().ok_or("somebody has it")?;
            let (next, took) = thread::scope(|scope| -> Result<_> {
                let waiting = scope.spawn(|| {
                    let claimed = waiter.claim_wait("w", "b", LONG, LONG);
                    (claimed.map_err(|error| error.to_string()), Instant::now())
                });
                thread::sleep(Duration::from_millis(30)); // it is asleep now
                let _ = holder.release(&lease)?;
                let released = Instant::now();
                let (claimed, at) = waiting.join().map_err(|_| "the waiter panicked")?;
                Ok((claimed?, ms(at.saturating_duration_since(released))))
            })?;
            woken.push(took);
            let _ = waiter.release(&next.acquired().ok_or("it waited in vain")?)?;
            written.push(time(&mut write)?);
        }
        wakes.push(median(woken)?);
        writes.push(median(written)?);
    }
    let detail = format!(
        "{:.2} / {:.2} ms, medians of {ROUNDS} × {TIMES}",
        median(wakes.clone())?,
        median(writes.clone())?
    );
    Ok(Rounds::ratios(&wakes, &writes)?.figure("B22", target.wake, Reach::AtMost(3.5), detail))
}

/// A process with a thousand holds.
struct Holder {
    child: Child,
    out: Box<dyn BufRead>,
}

impl Holder {
    fn start(target: &Target, server: &Server) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hold", &(target.url)(server.address)]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or("the holder has no output")?);
        let mut holder = Holder { child, out: Box::new(out) };
        holder.line("held")?;
        Ok(holder)
    }

    /// Fails if a hold was lost.
    fn check(&mut self) -> Result<()> {
        self.child.stdin.take();
        self.line("all")
    }

    fn line(&mut self, expected: &str) -> Result<()> {
        let mut line = String::new();
        self.out.read_line(&mut line)?;
        match line.trim_end() {
            told if told == expected => Ok(()),
            told => Err(format!("the holder tells {told:?} instead of {expected:?}").into()),
        }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Holds a thousand names until its input ends, and then tells whether it still has all of them.
pub(crate) fn hold(url: &str) -> Result<()> {
    let cluster = Cluster::open(url)?;
    cluster.bootstrap()?;
    let hold = |number: usize| cluster.hold(&format!("hold/{number}"), HoldOptions::new(TTL));
    let holds = (0..HOLDS).map(hold).collect::<std::result::Result<Vec<_>, _>>()?;
    println!("held");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    let kept = holds.iter().filter(|held| held.check().is_ok()).count();
    println!("{}", if kept == HOLDS { "all".to_owned() } else { format!("{kept} of {HOLDS}") });
    // They need not be released one by one.
    std::process::exit(0);
}

/// How many calls an etcd has got, as it tells itself.
pub(super) fn etcd_requests(address: SocketAddr) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let calls = text.lines().filter(|line| line.starts_with("grpc_server_started_total"));
    Ok(calls.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
}

/// How many transactions a PostgreSQL has ended.
pub(super) fn postgres_requests(address: SocketAddr) -> Result<f64> {
    let sql = "SELECT (xact_commit + xact_rollback)::text, '' FROM pg_stat_database
        WHERE datname = 'postgres'";
    let mut client = postgres::Client::open(address, &[("s", sql)])?;
    let answer = client.call("s", &[])?;
    let [count, _] = postgres::row(&answer).ok_or("PostgreSQL counts nothing")?;
    Ok(String::from_utf8(count.to_vec())?.parse()?)
}
