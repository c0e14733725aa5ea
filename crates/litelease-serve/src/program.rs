//! Blocking entry point: runs a service until a signal.

use std::future::Future;
use std::io;
use std::net;
use std::pin::Pin;

use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::local_key;
use crate::local_socket::LocalSocket;
use crate::replica::{Replica, run_replica};
use crate::server::{Service, run};

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 4096;

/// Blocking entry point; serves until SIGINT or SIGTERM, also on a local socket if there is one.
/// Calls `ready` once these signals lead to an orderly shutdown.
///
/// ```no_run
/// use litelease_serve::{Options, Service, run_until_signal};
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:7070")?;
/// let service = Service::open("pools.sqlite3".as_ref(), Options::default())?;
/// run_until_signal(listener, None, service, || println!("listening"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_until_signal(
    listener: net::TcpListener,
    local: Option<LocalSocket>,
    service: Service,
    ready: impl FnOnce(),
) -> io::Result<()> {
    until_signal(listener, local, ready, |listener, shutdown| run(listener, service, shutdown))
}

/// Blocking entry point; serves as one of several servers on an engine until SIGINT or SIGTERM.
/// Calls `ready` once these signals lead to an orderly shutdown.
///
/// ```no_run
/// use litelease_cluster::Cluster;
/// use litelease_serve::{Options, Replica, run_replica_until_signal};
///
/// let listener = std::net::TcpListener::bind("10.0.0.7:7070")?;
/// let cluster = Cluster::open("etcd://10.0.0.1:2379")?;
/// let replica = Replica::new(cluster, "10.0.0.7:7070", Options::default())?;
/// run_replica_until_signal(listener, None, replica, || println!("listening"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_replica_until_signal(
    listener: net::TcpListener,
    local: Option<LocalSocket>,
    replica: Replica,
    ready: impl FnOnce(),
) -> io::Result<()> {
    until_signal(listener, local, ready, |listener, shutdown| {
        run_replica(listener, replica, shutdown)
    })
}

fn until_signal<F: Future<Output = io::Result<()>>>(
    listener: net::TcpListener,
    local: Option<LocalSocket>,
    ready: impl FnOnce(),
    run: impl FnOnce(TcpListener, Pin<Box<dyn Future<Output = ()>>>) -> F,
) -> io::Result<()> {
    // The standard library's backlog is 128. A client that finds it full tries again a second
    // later.
    SockRef::from(&listener).listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    // One thread serves all connections and another one writes. More would only wake each other.
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let address = local_key::loopback(listener.local_addr()?);
        let passing = async {
            match local.as_ref().zip(address) {
                Some((local, address)) => local.pass_on(address).await,
                None => std::future::pending().await,
            }
        };
        ready();
        let shutdown = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        tokio::select! {
            served = run(listener, Box::pin(shutdown)) => served,
            failed = passing => failed,
        }
    })
}
