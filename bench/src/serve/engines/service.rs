//! The service on etcd and PostgreSQL next to the service on a file: clients borrow and return as
//! fast as they are answered, and every answer is stored first.
//!
//! All files are on this machine's disk, as syncs of etcd cannot be slowed down as on a synthetic
//! disk.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use super::super::http::Http;
use super::super::{
    CLIENTS, SLOTS, Server, drive, http, listed, listening, median, postgres, range,
};
use super::{TARGETS, three_members};
use crate::Result;
use crate::figure::{Figure, Reach};
use crate::peers::etcd_is_there;
use crate::rows::Outcome;

const ROUNDS: usize = 5;
const SECONDS: f64 = 2.0;

/// What runs of an engine, and its URL.
type Started = (Vec<Server>, String);

/// An engine below the service.
struct Below {
    what: &'static str,
    reach: f64,
    start: fn(&Path) -> Result<Started>,
    is_there: fn() -> bool,
}

const BELOW: [Below; 3] = [
    Below {
        what: "calls/s of the service on etcd ÷ on a file",
        reach: 0.5,
        start: |folder| one(folder, 0),
        is_there: etcd_is_there,
    },
    Below {
        what: "calls/s of the service on an etcd of three members ÷ on a file",
        reach: 0.33,
        start: three_members,
        is_there: etcd_is_there,
    },
    Below {
        what: "calls/s of the service on PostgreSQL ÷ on a file",
        reach: 0.5,
        start: |folder| one(folder, 1),
        is_there: || postgres::programs().is_some(),
    },
];

/// Starts one of the targets.
fn one(folder: &Path, target: usize) -> Result<Started> {
    let server = (TARGETS[target].start)(folder)?;
    let url = (TARGETS[target].url)(server.address);
    Ok((vec![server], url))
}

/// Measures B24. Only the engine that is measured runs.
pub(crate) fn outcome() -> Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let mut outcome = Outcome::default();
    for below in &BELOW {
        if !(below.is_there)() {
            outcome.absent.push(("B24", below.what));
            continue;
        }
        let (engine, url) = (below.start)(folder.path())?;
        let (mut ours, mut files) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            // Each round has a file, a prefix or a schema of its own: the slots of the last round
            // are still lent out.
            let file = tempfile::tempdir_in(folder.path())?.keep().join("pools.sqlite3");
            files.push(rate(folder.path(), &file.to_string_lossy())?);
            ours.push(rate(folder.path(), &format!("{url}{round}"))?);
        }
        drop(engine);
        outcome.figures.push(Figure {
            id: "B24",
            what: below.what,
            reach: Reach::AtLeast(below.reach),
            measured: median(&ours) / median(&files),
            range: Some(range(&ours, &files)),
            detail: format!("{} against {} calls/s", listed(&ours, 1.0), listed(&files, 1.0)),
        });
    }
    Ok(outcome)
}

/// Starts the service, and returns how many calls per second it answers.
fn rate(folder: &Path, db: &str) -> Result<f64> {
    let home = tempfile::tempdir_in(folder)?;
    let mut command = Command::new(std::env::current_exe()?.with_file_name("litelease"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--db", db]);
    command.env("XDG_STATE_HOME", home.path()).stderr(File::create(home.path().join("log"))?);
    let server = listening(command)?;
    register(server.address)?;
    let clients = (0..CLIENTS).map(|_| http::Borrower::default()).collect();
    drive::rate(server.address, clients, SECONDS)
}

/// Creates the pool. A server on an engine answers as soon as it writes.
fn register(address: SocketAddr) -> Result<()> {
    let begin = Instant::now();
    while let Err(error) = Http::register(address, SLOTS) {
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(error.into());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
