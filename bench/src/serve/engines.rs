//! Leases on etcd and PostgreSQL, next to one plain write to the same server: a put, or an UPDATE.
//!
//! Each server has one node and its files on this machine's disk. The plain writes go over one
//! connection, by a client that does nothing else.

pub(crate) mod held;
pub(crate) mod service;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use litelease_cluster::engine::{Change, Stored};
use litelease_cluster::{ClaimResult, Cluster, Lease, RenewResult};

use super::{Server, etcd, postgres};
use crate::Result;
use crate::figure::{Figure, Reach, Rounds, grouped};
use crate::peers::{etcd_is_there, free_address};
use crate::results::Note;
use crate::rows::Outcome;

const ROUNDS: usize = 5;
const TIMES: usize = 200;
const LONG: Duration = Duration::from_secs(600);
/// What a plain write stores: as many bytes as a lease.
const VALUE: &str = r#"{"token":1,"owner":"bench","until":1794873356877,"at":1794873356877,"ttl":600000,"attempt":"1"}"#;

/// A server that keeps leases.
struct Target {
    claim: &'static str,
    busy: &'static str,
    renew: &'static str,
    wake: &'static str,
    requests: &'static str,
    share: &'static str,
    start: fn(&Path) -> Result<Server>,
    url: fn(SocketAddr) -> String,
    writer: fn(SocketAddr) -> Result<Box<Put>>,
    /// How many requests it has got so far.
    count: fn(SocketAddr) -> Result<f64>,
    is_there: fn() -> bool,
}

/// Makes one plain write, and waits for its answer.
type Put = dyn FnMut() -> Result<()>;

const TARGETS: [Target; 2] = [
    Target {
        claim: "claim on etcd ÷ a plain put",
        busy: "busy claim on etcd ÷ a plain put",
        renew: "renewal by the holder on etcd ÷ a plain put",
        wake: "released on etcd: a waiter has it after ÷ a plain put",
        requests: "1,000 holds of 30 s on etcd: requests/s",
        share: "1,000 holds of 30 s on etcd: % of a core",
        start: etcd::start,
        url: |address| format!("etcd://{address}/bench"),
        writer: |address| {
            let mut puts = etcd::Puts::open(address)?;
            Ok(Box::new(move || puts.put("plain", VALUE)))
        },
        count: held::etcd_requests,
        is_there: etcd_is_there,
    },
    Target {
        claim: "claim on PostgreSQL ÷ a plain UPDATE",
        busy: "busy claim on PostgreSQL ÷ a plain UPDATE",
        renew: "renewal by the holder on PostgreSQL ÷ a plain UPDATE",
        wake: "released on PostgreSQL: a waiter has it after ÷ a plain UPDATE",
        requests: "1,000 holds of 30 s on PostgreSQL: transactions/s",
        share: "1,000 holds of 30 s on PostgreSQL: % of a core",
        start: |folder| postgres::start(None, folder, 1),
        url: |address| format!("postgres://postgres@{address}/postgres?schema=bench"),
        writer: |address| {
            let table = format!(
                "CREATE TABLE plain (name text COLLATE \"C\" PRIMARY KEY, value text);
                 INSERT INTO plain VALUES ('plain', '{VALUE}')"
            );
            postgres::run_once(address, &table)?;
            let update = "UPDATE plain SET value = $2::text WHERE name = $1::text";
            let mut client = postgres::Client::open(address, &[("u", update)])?;
            Ok(Box::new(move || {
                client.call("u", &[b"plain", VALUE.as_bytes()])?;
                Ok(())
            }))
        },
        count: held::postgres_requests,
        is_there: || postgres::programs().is_some(),
    },
];

impl Target {
    fn open(&self, server: &Server) -> Result<Cluster> {
        let cluster = Cluster::open(&(self.url)(server.address))?;
        cluster.bootstrap()?;
        Ok(cluster)
    }
}

/// Starts an etcd of three members, and returns them and the URL of all.
fn three_members(folder: &Path) -> Result<(Vec<Server>, String)> {
    let addresses: Vec<[SocketAddr; 2]> =
        (0..3).map(|_| Ok([free_address()?, free_address()?])).collect::<Result<_>>()?;
    let cluster: Vec<String> =
        (0..).zip(&addresses).map(|(at, [_, peer])| format!("m{at}=http://{peer}")).collect();
    let mut members = Vec::new();
    for (at, [client, peer]) in (0..).zip(&addresses) {
        let [client_url, peer_url] = [client, peer].map(|address| format!("http://{address}"));
        let mut command = Command::new("etcd");
        command.args(["--name", &format!("m{at}"), "--data-dir"]);
        command.arg(tempfile::tempdir_in(folder)?.keep());
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
        command.args(["--initial-cluster", &cluster.join(",")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        members.push(Server { child, address: *client });
    }
    let all: Vec<String> = addresses.iter().map(|[client, _]| client.to_string()).collect();
    let url = format!("etcd://{}/bench", all.join(","));
    let begin = Instant::now();
    // They answer when they have elected a leader.
    while let Err(error) = Cluster::open(&url)?.inspect("x") {
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(error.into());
        }
    }
    Ok((members, url))
}

/// Measures how many renewals an etcd of three members takes: one by one, and as many as fit into a
/// transaction.
fn capacity(folder: &Path) -> Result<Note> {
    let (_members, url) = three_members(folder)?;
    let alone = rate(&url, 32, 1)?;
    let rows = Cluster::open(&url)?.engine().most_rows(false);
    let batches = rate(&url, 8, rows)?;
    let text = format!(
        "{} a second one by one from 32 clients, {} in transactions of {rows} from 8 clients, all on this machine",
        grouped(alone),
        grouped(batches)
    );
    Ok(Note { what: "renewals on an etcd of three members".into(), text })
}

/// Returns how many rows per second so many clients renew, each so many at once.
fn rate(url: &str, clients: usize, rows: usize) -> Result<f64> {
    let time = Duration::from_secs(4);
    let client = |number: usize| -> std::result::Result<usize, String> {
        let text = |error: litelease_cluster::Error| error.to_string();
        let cluster = Cluster::open(url).map_err(text)?;
        let names: Vec<String> = (0..rows).map(|row| format!("{clients}/{number}/{row}")).collect();
        for name in &names {
            let _ = cluster.claim(name, "bench", LONG).map_err(text)?;
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut seen = cluster.engine().load(&names).map_err(text)?;
        let (begin, mut renewed) = (Instant::now(), 0);
        while begin.elapsed() < time {
            let new = seen.rows.iter_mut().filter_map(|row| {
                let stored = row.row.as_mut()?;
                stored.attempt += 1;
                Some((row.name.clone(), stored.clone()))
            });
            let rows: Vec<_> = new.collect();
            let change = Change { rows, while_live: true, ..Change::default() };
            match cluster.engine().store(&seen, &change).map_err(text)? {
                Stored::Done { version } | Stored::DoneAt { version, .. } => {
                    seen.rows.iter_mut().for_each(|row| row.version = version);
                    renewed += seen.rows.len();
                }
                Stored::Conflict => return Err("somebody else renews".into()),
            }
        }
        Ok(renewed)
    };
    let renewed: usize = thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> =
            (0..clients).map(|number| scope.spawn(move || client(number))).collect();
        clients
            .into_iter()
            .map(|client| client.join().map_err(|_| "a client panicked")?)
            .sum::<std::result::Result<usize, String>>()
    })?;
    Ok(renewed as f64 / time.as_secs_f64())
}

/// Measures B21: verbs of one client next to plain writes, in turns.
pub(crate) fn verbs() -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let mut outcome = Outcome::default();
    for target in &TARGETS {
        if !(target.is_there)() {
            outcome.absent.push(("B21", target.claim));
            continue;
        }
        let server = (target.start)(folder.path())?;
        outcome.figures.extend(of_target(target, &server)?);
    }
    if etcd_is_there() {
        outcome.notes.push(capacity(folder.path())?);
    }
    Ok(outcome)
}

fn of_target(target: &Target, server: &Server) -> Result<[Figure; 3]> {
    let mut write = (target.writer)(server.address)?;
    let (holder, other) = (target.open(server)?, target.open(server)?);
    let (mut writes, mut claims, mut busy, mut renewals) = (vec![], vec![], vec![], vec![]);
    for round in 0..=ROUNDS {
        let [mut written, mut claimed, mut answered, mut renewed] = [const { Vec::new() }; 4];
        for _ in 0..TIMES {
            written.push(time(&mut write)?);
            let (lease, took) = claim(&holder)?;
            claimed.push(took);
            answered.push(time(|| match other.claim("x", "b", LONG)? {
                ClaimResult::Busy(_) => Ok(()),
                ClaimResult::Acquired(_) => Err("two have it".into()),
            })?);
            renewed.push(time(|| match holder.renew(&lease, LONG)? {
                RenewResult::Renewed(_) => Ok(()),
                RenewResult::Rejected { .. } => Err("the lease is lost".into()),
            })?);
            let _ = holder.release(&lease)?;
        }
        // The first round warms up.
        if round > 0 {
            writes.push(median(written)?);
            claims.push(median(claimed)?);
            busy.push(median(answered)?);
            renewals.push(median(renewed)?);
        }
    }
    let figure = |what, most, times: &[f64]| -> Result<Figure> {
        let detail = format!(
            "{:.2} / {:.2} ms, medians of {ROUNDS} × {TIMES}",
            median(times.to_vec())?,
            median(writes.clone())?
        );
        Ok(Rounds::ratios(times, &writes)?.figure("B21", what, Reach::AtMost(most), detail))
    };
    Ok([
        figure(target.claim, 2.0, &claims)?,
        figure(target.busy, 0.8, &busy)?,
        figure(target.renew, 1.1, &renewals)?,
    ])
}

fn claim(cluster: &Cluster) -> Result<(Lease, f64)> {
    let begin = Instant::now();
    let claimed = cluster.claim("x", "a", LONG)?;
    let took = ms(begin.elapsed());
    Ok((claimed.acquired().ok_or("somebody has it")?, took))
}

/// How long something takes, in milliseconds.
fn time(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(ms(begin.elapsed()))
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn median(values: Vec<f64>) -> Result<f64> {
    Ok(Rounds::new(values)?.median())
}
