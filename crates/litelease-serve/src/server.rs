//! The server: accepts connections within limits, and shuts down without losing a slot.

use std::borrow::Borrow;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use litelease::DEFAULT_KEEP;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::access::Caller;
use crate::committer::{Changed, Committer};
use crate::error::OpenError;
use crate::file::{self, Opened};
use crate::forwarding::Forwarding;
use crate::http::App;
use crate::http1;
use crate::job::{Answers, Job, Receiver, channel};
use crate::local_key;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::pending_grant::deliver_all;
use crate::shares::Share;
use crate::stream::Stream;
use crate::tls::Tls;

/// How long a shutdown waits for connections that still send a response.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A file that is open to be served, and the limits.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("pools.sqlite3");
/// use litelease_serve::{Options, Service};
///
/// let service = Service::open(&path, Options::default())?;
/// # Ok::<(), litelease_serve::OpenError>(())
/// ```
pub struct Service {
    opened: Opened,
    options: Options,
}

impl Service {
    /// Opens a file. A missing file is created for its owner alone (0600), since its readers know
    /// the UUIDs of its pools. An existing file keeps its mode, and the files beside it take that
    /// mode.
    ///
    /// The file is locked against other servers until the service is dropped or its process ends.
    /// A second server gets [`OpenError::Served`].
    ///
    /// A database that lacks tokens of the file `.high-water` beside it was restored from a backup
    /// and is refused: see [`open_restored`](Service::open_restored).
    pub fn open(path: &Path, options: Options) -> Result<Self, OpenError> {
        let opened = file::open(path)?;
        opened.high_water.check()?;
        Service::ready(opened, options)
    }

    /// Opens a file that was restored from a backup. Ends every lease in it, and lets tokens go on
    /// far above all that were granted since. Needed once.
    pub fn open_restored(path: &Path, options: Options) -> Result<Self, OpenError> {
        let opened = file::open(path)?;
        match opened.high_water.token().max(opened.high_water.name().token) {
            // If a token must be given, the error says so.
            0 => opened.db.restore_fence()?,
            answered => opened.db.restore_fence_above(answered)?,
        };
        Service::ready(opened, options)
    }

    fn ready(opened: Opened, options: Options) -> Result<Self, OpenError> {
        let opened = opened.check_age()?;
        let keeps = opened.db.history_keeps()?;
        if options.history.is_some() || keeps.is_none() {
            opened.db.keep_history(options.history.unwrap_or(DEFAULT_KEEP))?;
        }
        Ok(Service { opened, options })
    }
}

impl Service {
    /// Writes an access key for the user of this process into `folder`, where only this user can
    /// read it, for a server that listens at `address`. Returns its file: the header to send, as
    /// `curl -H @FILE` takes it.
    ///
    /// Makes a new key if the file was never served, or if the key of before is gone from the
    /// folder. Returns `None` where there is no key: an operator has removed it, or no loopback
    /// address leads to the server.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("pools.sqlite3");
    /// # use litelease_serve::{Options, Service};
    /// let service = Service::open(&path, Options::default())?;
    /// let address = "127.0.0.1:7070".parse().unwrap();
    /// let file = service.keep_local_key(&folder.path().join("access"), address)?.unwrap();
    /// assert!(std::fs::read_to_string(file).unwrap().starts_with("Authorization: Bearer "));
    /// # Ok::<(), litelease_serve::OpenError>(())
    /// ```
    pub fn keep_local_key(
        &self,
        folder: &Path,
        address: SocketAddr,
    ) -> Result<Option<PathBuf>, OpenError> {
        match local_key::loopback(address) {
            Some(address) => local_key::keep(&self.opened.db, folder, address),
            None => Ok(None),
        }
    }
}

/// Serves until `shutdown` completes. Then answers waiting borrows with 503 and finishes the
/// requests that are under way. No slot is lost.
///
/// ```
/// use litelease_serve::{Options, Service, run};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("pools.sqlite3");
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
/// # runtime.block_on(async {
/// let service = Service::open(&path, Options::default()).unwrap();
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
/// run(listener, service, async { /* until a signal comes */ }).await.unwrap();
/// # });
/// ```
pub async fn run(
    listener: TcpListener,
    service: Service,
    shutdown: impl Future<Output = ()>,
) -> io::Result<()> {
    let Service { opened: Opened { path, db, high_water, mut lock }, options } = service;
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    lock.note(scheme, listener.local_addr()?);
    let limits = options.clone();
    let front = Front { file: Some(path), ..Front::new(options) };
    let shutdown = async {
        shutdown.await;
        tracing::info!("shutting down");
    };
    run_before(listener, front, shutdown, move |todo, answers, changes, metrics| {
        Committer::new(db, high_water, Some(lock), &limits, answers, changes, metrics).work(&todo);
    })
    .await
}

/// The options, counters and forwarding of a server, in front of its committer.
pub(crate) struct Front {
    pub(crate) options: Options,
    /// The served file, if there is one.
    pub(crate) file: Option<PathBuf>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) forwarding: Forwarding,
}

impl Front {
    pub(crate) fn new(options: Options) -> Self {
        Front { options, file: None, metrics: Arc::default(), forwarding: Forwarding::default() }
    }
}

/// Accepts connections, and runs `work` on a thread of its own, which does the jobs until every
/// sender of jobs is gone.
///
/// Closes the listener at the stop, if it owns it.
pub(crate) async fn run_before(
    listener: impl Borrow<TcpListener>,
    front: Front,
    shutdown: impl Future<Output = ()>,
    work: impl FnOnce(Receiver<Job>, Answers, broadcast::Sender<Changed>, Arc<Metrics>) + Send + 'static,
) -> io::Result<()> {
    let Front { options, file, metrics, forwarding } = front;
    let forwarding = Arc::new(forwarding);
    let (changes, _) = broadcast::channel(1024);
    let (stopping, stop) = watch::channel(false);
    let (jobs, todo) = channel();
    let (answers, answered) = unbounded_channel();
    let (sender, counters) = (changes.clone(), Arc::clone(&metrics));
    let work = move || work(todo, answers, sender, counters);
    let committer = thread::Builder::new().name("writer".into()).spawn(work)?;
    let delivery = tokio::spawn(deliver_all(answered, jobs.clone()));
    let permits = Arc::new(Semaphore::new(options.max_connections));
    let app = Arc::new(App::new(jobs.clone(), options, Arc::clone(&metrics), changes, stop, file));

    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(listener.borrow(), &permits) => accepted,
            Some(_) = connections.join_next() => {
                metrics.connected(connections.len());
                continue;
            }
        };
        let (stream, permit) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // For example, out of file descriptors: that passes.
                tracing::warn!(error = %error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (app, forwarding) = (Arc::clone(&app), Arc::clone(&forwarding));
        connections.spawn(async move {
            // It counts as one without an access key until the client has sent a key.
            let share = app.connections.take(Caller::default(), 1).ok();
            let patience = patience(&app, share.as_ref());
            if let Some(stream) = forwarding.accept_or_forward(stream, &app, patience).await {
                serve(stream, app, share).await;
            }
            drop(permit);
        });
        metrics.connected(connections.len());
    }
    drop(listener);
    // Waiters are answered, and later jobs are refused.
    let _ = jobs.send(Job::Stop);
    let _ = stopping.send(true);
    drain(connections).await;
    drop((app, jobs));
    // The committer sends no answers after the stop. Undelivered grants are returned before it
    // ends.
    let delivered = delivery.await;
    match (delivered, tokio::task::spawn_blocking(move || committer.join()).await) {
        (Ok(()), Ok(Ok(()))) => Ok(()),
        _ => Err(io::Error::other("the thread that commits has ended unexpectedly")),
    }
}

/// Waits until all connections have ended, and cuts off those that take too long.
async fn drain(mut connections: JoinSet<()>) {
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_TIMEOUT, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "cut off");
        connections.shutdown().await;
    }
}

/// How long a connection beyond its client's share may take for what it sends.
const HASTE: Duration = Duration::from_secs(1);

/// Returns how long a client may take for what it sends. Connections beyond the share of their
/// clients must not keep others from connecting.
pub(crate) fn patience(app: &App, share: Option<&Share>) -> Duration {
    let patience = app.options.patience;
    if share.is_some() { patience } else { patience.min(HASTE) }
}

/// Serves one connection.
async fn serve(stream: TcpStream, app: Arc<App>, share: Option<Share>) {
    let patience = patience(&app, share.as_ref());
    let begun = tokio::select! {
        begun = timeout(patience, begin(stream, app.options.tls.as_ref())) => begun,
        // A client that has not sent a request yet gets no answer.
        () = app.stopped() => return,
    };
    // Otherwise the client was too slow, does not speak TLS, or has hung up: nothing to report.
    if let Ok(Ok(stream)) = begun {
        http1::serve(stream, app, share).await;
    }
}

/// Begins TLS if it is to be spoken.
async fn begin(stream: TcpStream, tls: Option<&Tls>) -> io::Result<Stream> {
    Ok(match tls {
        Some(tls) => Stream::Tls(Box::new(tls.acceptor().accept(stream).await?)),
        None => Stream::Plain(stream),
    })
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, permit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many bytes the future of a function takes.
    const fn room<A, B, C, F>(_: &impl FnOnce(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_connection_needs_no_room_for_calls_that_it_does_not_make() {
        // The future of a connection has room for the largest call that is not in a box. Calls on
        // names once doubled the memory of every waiting borrower.
        let bytes = room(&serve);
        assert!(bytes <= 3 * 1024, "{bytes} bytes");
    }
}
