//! Eight processes that send, receive and acknowledge items of one queue, one item per commit:
//! ours, litequeue, Redis Streams and PostgreSQL with `SKIP LOCKED`, on the slow disk.
//!
//! litequeue takes one item per call and its `pop` opens a transaction of its own, so one item per
//! commit is the only number that all of them can do. Redis and PostgreSQL share a sync between the
//! clients that wait for it; processes that write to one SQLite file sync one after the other.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use litelease::Litelease;
use litelease::rusqlite::Connection;

use super::{ServerFolder, listed, median, postgres, range, redis};
use crate::Result;
use crate::figure::{Figure, Reach};
use crate::results::root;
use crate::rows::Outcome;

const PROCESSES: usize = 8;
const ROUNDS: usize = 3;
const SECONDS: u64 = 3;
const VISIBILITY: Duration = Duration::from_secs(60);
const BODY: &str = "{\"to\": \"alice@example.org\", \"template\": \"welcome\"}";

const POSTGRES_SCHEMA: &str = "
CREATE TABLE items (id bigserial PRIMARY KEY, queue integer NOT NULL, visible_at timestamptz NOT NULL,
  attempts integer NOT NULL, token bigint, receipt uuid, body text) WITH (fillfactor = 50);
CREATE INDEX ON items (queue, visible_at, id);
CREATE SEQUENCE item_token;";

const POSTGRES_SEND: &str = "INSERT INTO items (queue, visible_at, attempts, body)
VALUES (1, clock_timestamp(), 0, $1::text)";

const POSTGRES_RECEIVE: &str = "UPDATE items SET visible_at = clock_timestamp() + interval '60 s',
  attempts = attempts + 1, token = nextval('item_token'), receipt = gen_random_uuid()
WHERE id = (SELECT id FROM items WHERE queue = 1 AND visible_at <= clock_timestamp()
  ORDER BY visible_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, receipt, token, attempts, body";

const POSTGRES_ACK: &str = "DELETE FROM items WHERE id = $1::bigint AND receipt = $2::uuid";

/// Another queue to compare with.
struct Peer {
    what: &'static str,
    reach: f64,
    rate: fn(&ServerFolder) -> Result<f64>,
    is_there: fn() -> bool,
}

const PEERS: [Peer; 3] = [
    Peer {
        what: "8 processes, items/s through a queue ÷ litequeue",
        reach: 2.0,
        rate: |place| {
            let file = place.folder.path().join("litequeue.sqlite3");
            delete(&file);
            let script = || {
                let mut worker = Command::new(python());
                worker.arg(root().join("bench/litequeue_rate.py")).arg(&file);
                worker.arg(SECONDS.to_string()).env("LD_PRELOAD", &place.shim);
                worker
            };
            // Makes the tables before eight of them try.
            let made = script().arg("make").status()?;
            if made.success() { race(script) } else { Err("litequeue did not start".into()) }
        },
        is_there: has_litequeue,
    },
    Peer {
        what: "8 processes, items/s through a queue ÷ Redis Streams, always",
        reach: 1.0,
        rate: |place| {
            let server = place.redis()?;
            let group = ["XGROUP", "CREATE", "mail", "workers", "0", "MKSTREAM"];
            redis::Redis::open(server.address)?.ask(&group)?;
            race_of("redis", &server.address.to_string(), None)
        },
        is_there: redis::is_there,
    },
    Peer {
        what: "8 processes, items/s through a queue ÷ PostgreSQL, SKIP LOCKED",
        reach: 1.0,
        rate: |place| {
            let server = postgres::start(Some(&place.shim), place.folder.path(), 1)?;
            postgres::run_once(server.address, POSTGRES_SCHEMA)?;
            race_of("postgres", &server.address.to_string(), None)
        },
        is_there: || postgres::programs().is_some(),
    },
];

/// Measures B18, each once per round.
pub(crate) fn outcome(folder: &Path) -> Result<Outcome> {
    let place = ServerFolder::new(folder)?;
    let (peers, absent): (Vec<&Peer>, Vec<&Peer>) =
        PEERS.iter().partition(|peer| super::is_there(peer.what, peer.is_there));
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    for _ in 0..ROUNDS {
        ours.push(litelease(&place)?);
        for (peer, rates) in peers.iter().zip(&mut theirs) {
            rates.push((peer.rate)(&place)?);
        }
    }
    let figure = |(peer, rates): (&&Peer, &Vec<f64>)| Figure {
        id: "B18",
        what: peer.what,
        reach: Reach::AtLeast(peer.reach),
        measured: median(&ours) / median(rates),
        range: Some(range(&ours, rates)),
        detail: format!(
            "{} against {} items/s, one item per commit",
            listed(&ours, 1.0),
            listed(rates, 1.0)
        ),
    };
    let figures = peers.iter().zip(&theirs).map(figure).collect();
    let absent = absent.iter().map(|peer| ("B18", peer.what)).collect();
    Ok(Outcome { figures, absent, ..Outcome::default() })
}

/// One of the workers: `litelease-bench queue METHOD TARGET`.
pub(crate) fn work(method: &str, target: &str) -> Result<()> {
    let mut cycle: Box<dyn FnMut() -> Result<()>> = match method {
        "litelease" => {
            let db = open(Path::new(target))?;
            Box::new(move || through_file(&db))
        }
        "redis" => through_redis(target.parse()?)?,
        "postgres" => through_postgres(target.parse()?)?,
        _ => return Err(format!("no method {method:?}").into()),
    };
    let (mut items, end) = (0, Instant::now() + Duration::from_secs(SECONDS));
    while Instant::now() < end {
        cycle()?;
        items += 1;
    }
    println!("{items}");
    Ok(())
}

fn litelease(place: &ServerFolder) -> Result<f64> {
    let file = place.folder.path().join("litelease.sqlite3");
    delete(&file);
    through_file(&open(&file)?)?;
    race_of("litelease", &file.display().to_string(), Some(&place.shim))
}

fn open(file: &Path) -> Result<Litelease> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(20))?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")?;
    let db = Litelease::from_connection(connection);
    db.bootstrap()?;
    Ok(db)
}

/// There is an item for each worker: each has sent one more than it has received.
fn through_file(db: &Litelease) -> Result<()> {
    let queue = db.queue("mail");
    queue.send(BODY)?;
    let item = queue.receive(VISIBILITY)?.ok_or("nothing to receive")?;
    match item.ack()?.is_acknowledged() {
        true => Ok(()),
        false => Err("a stale receipt".into()),
    }
}

fn through_redis(address: SocketAddr) -> Result<Box<dyn FnMut() -> Result<()>>> {
    let mut redis = redis::Redis::open(address)?;
    let consumer = std::process::id().to_string();
    Ok(Box::new(move || {
        redis.ask(&["XADD", "mail", "*", "body", BODY])?;
        let receive = ["XREADGROUP", "GROUP", "workers", &consumer, "COUNT", "1", "STREAMS"];
        let received = redis.ask(&[&receive[..], &["mail", ">"]].concat())?;
        // One stream, its name, one entry: its id is the eighth line.
        let received = String::from_utf8_lossy(&received);
        let id = received.lines().nth(7).ok_or_else(|| format!("Redis: {received:?}"))?;
        // Both in one write, so that one sync serves both.
        redis.send(&["XACK", "mail", "workers", id])?;
        redis.send(&["XDEL", "mail", id])?;
        let [acknowledged, deleted] = [redis.receive()?, redis.receive()?];
        match acknowledged.starts_with(b":1") && deleted.starts_with(b":1") {
            true => Ok(()),
            false => Err("Redis: a stale id".into()),
        }
    }))
}

fn through_postgres(address: SocketAddr) -> Result<Box<dyn FnMut() -> Result<()>>> {
    let statements = [("s", POSTGRES_SEND), ("r", POSTGRES_RECEIVE), ("a", POSTGRES_ACK)];
    let mut client = postgres::Client::open(address, &statements)?;
    Ok(Box::new(move || {
        client.call("s", &[BODY.as_bytes()])?;
        let received = loop {
            let answer = client.call("r", &[])?;
            // Other workers may have locked all items that are visible at that moment.
            if postgres::row(&answer).is_some() {
                break answer;
            }
        };
        let [id, receipt] = postgres::row(&received).ok_or("PostgreSQL: no row")?;
        let answer = client.call("a", &[id, receipt])?;
        match postgres::messages(&answer).any(|message| message == (b'C', b"DELETE 1\0")) {
            true => Ok(()),
            false => Err("PostgreSQL: a stale receipt".into()),
        }
    }))
}

fn race_of(method: &str, target: &str, shim: Option<&PathBuf>) -> Result<f64> {
    let program = std::env::current_exe()?;
    race(|| {
        let mut worker = Command::new(&program);
        worker.args(["queue", method, target]);
        worker.envs(shim.map(|shim| ("LD_PRELOAD", shim)));
        worker
    })
}

/// Returns the items per second of eight workers together.
fn race(worker: impl Fn() -> Command) -> Result<f64> {
    let start = |_| worker().stdout(Stdio::piped()).spawn();
    let workers = (0..PROCESSES).map(start).collect::<io::Result<Vec<_>>>()?;
    let mut items = 0.0;
    for worker in workers {
        let output = worker.wait_with_output()?;
        items += String::from_utf8(output.stdout)?.trim().parse::<f64>()?;
    }
    Ok(items / SECONDS as f64)
}

fn delete(file: &Path) {
    for end in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{end}", file.display()));
    }
}

fn python() -> PathBuf {
    root().join("target/python/system/bin/python")
}

fn has_litequeue() -> bool {
    let import = Command::new(python()).args(["-c", "import litequeue"]).output();
    import.is_ok_and(|output| output.status.success())
}
