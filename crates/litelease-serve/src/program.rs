//! A service as a program of its own: it runs until a signal asks it to end.

use std::io;
use std::net;

use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::server::{Service, run};

/// How many may have come and not be let in yet.
const ROOM: i32 = 4096;

/// Serves until SIGINT or SIGTERM, and calls `ready` as soon as those end it in good order. Whoever calls this needs
/// not know async.
///
/// ```no_run
/// use litelease_serve::{Options, Service, run_until_signal};
///
/// let listener = std::net::TcpListener::bind("127.0.0.1:7070")?;
/// let service = Service::open("pools.sqlite3".as_ref(), Options::default())?;
/// run_until_signal(listener, service, || println!("listening"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_until_signal(
    listener: net::TcpListener,
    service: Service,
    ready: impl FnOnce(),
) -> io::Result<()> {
    // The standard library leaves room for 128; who comes when that is full is let in a second later.
    SockRef::from(&listener).listen(ROOM)?;
    listener.set_nonblocking(true)?;
    // One thread has all connections and another one writes: more would only wake each other.
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::from_std(listener)?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        ready();
        let shutdown = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        run(listener, service, shutdown).await
    })
}
