//! Clients that claim and release names over HTTP, each its own one, next to etcd and Redis.
//!
//! The service is as `litelease serve` starts it: every request brings an access key, and every
//! grant has a token that only grows and a secret. Redis gives neither. Clients of etcd lock with a
//! lease that they have got before, so its claims do not set a ttl.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;

use super::{CLIENTS, Peer, ServerFolder, drive, etcd, http, is_there, redis};
use crate::Result;
use crate::peers::etcd_is_there;
use crate::rows::Outcome;

const ROUNDS: usize = 5;
const SECONDS: f64 = 2.0;

const PEERS: [Peer; 2] = [
    Peer {
        id: "B20",
        what: "claim + release of names over HTTP, calls/s ÷ etcd",
        reach: 2.0,
        rate: |place, seconds| {
            let server = etcd::start(place.folder.path())?;
            etcd::rate(server.address, CLIENTS, seconds)
        },
        is_there: etcd_is_there,
    },
    Peer {
        id: "B20",
        what: "claim + release of names over HTTP, calls/s ÷ Redis always",
        reach: 1.0,
        rate: |place, seconds| {
            let server = place.redis()?;
            let clients = redis::Claimant::all(server.address, CLIENTS)?;
            drive::rate(server.address, clients, seconds)
        },
        is_there: redis::is_there,
    },
];

/// Returns the name that a client claims, whichever server it asks. Each run has its own names:
/// when the clients stop, some of them have a lease.
pub(super) fn name(client: usize) -> String {
    format!("jobs/{}/{client}", std::process::id())
}

/// Measures B20, each once per round.
pub(crate) fn outcome(folder: &Path) -> Result<Outcome> {
    let place = ServerFolder::new(folder)?;
    let (peers, absent): (Vec<&Peer>, Vec<&Peer>) =
        PEERS.iter().partition(|peer| is_there(peer.what, peer.is_there));
    let mut ours = Vec::new();
    let mut theirs = vec![Vec::new(); peers.len()];
    for _ in 0..ROUNDS {
        ours.push(litelease(&place)?);
        for (peer, rates) in peers.iter().zip(&mut theirs) {
            rates.push((peer.rate)(&place, SECONDS)?);
        }
    }
    let figures =
        peers.iter().zip(&theirs).map(|(peer, rates)| peer.figure(&ours, rates)).collect();
    let absent = absent.iter().map(|peer| (peer.id, peer.what)).collect();
    Ok(Outcome { figures, absent, ..Outcome::default() })
}

/// Runs only the clients, against a service that is already running: for use with a profiler.
pub(crate) fn drive_clients(address: &str, seconds: &str, key_file: &Path) -> Result<()> {
    let rate = rate(address.parse()?, key_file, seconds.parse()?)?;
    println!("{rate:.0} calls/s");
    Ok(())
}

fn litelease(place: &ServerFolder) -> Result<f64> {
    let home = tempfile::tempdir_in(place.folder.path())?.keep();
    let server = place.litelease_at(&home, &[])?;
    let key_file = home.join(format!("litelease/access/{}", server.address));
    rate(server.address, &key_file, SECONDS)
}

fn rate(address: SocketAddr, key_file: &Path, seconds: f64) -> Result<f64> {
    let access: Rc<str> = fs::read_to_string(key_file)?.trim_end().into();
    let clients = (0..CLIENTS).map(|number| http::Claimant::new(Rc::clone(&access), number));
    drive::rate(address, clients.collect(), seconds)
}
