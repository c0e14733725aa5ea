//! Event streams of held names, so that a hold hears of a break before its next renewal.

use std::convert::Infallible;
use std::io::BufReader;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use litelease_hold::{Attach, Notice};

use crate::Lease;
use crate::look::{SILENCE, events, path_of_name};
use crate::transport::{Outcome, Transport};

/// Watches the names that a client holds: each on a thread and a connection of its own, which end
/// with the hold. A name that is not watched is lost at its next renewal.
#[derive(Default)]
pub(crate) struct HeldNames {
    notice: Mutex<Option<Notice>>,
    /// Every open stream has a reference.
    streams: Arc<()>,
}

/// The most streams of one client. Others of its access key need some, too.
const MOST_STREAMS: usize = 8;

/// The time before the first connection, and the longest one between two. Most holds are shorter
/// than the first, and cost no stream.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A hold whose renewals are no further apart than this hears of a break soon enough.
const SOON: Duration = Duration::from_secs(1);

impl HeldNames {
    /// Sets what is notified of changes from now on.
    pub(crate) fn notify(&self, notice: Notice) {
        *self.notice.lock().unwrap_or_else(PoisonError::into_inner) = Some(notice);
    }

    /// Returns a function that watches a name until its result is dropped.
    pub(crate) fn follow(
        self: Arc<Self>,
        transport: Arc<Transport>,
        lease: Lease,
        ttl: Duration,
    ) -> Attach {
        Box::new(move || {
            let (holder, ended) = channel::<Infallible>();
            if ttl / 3 > SOON && Arc::strong_count(&self.streams) <= MOST_STREAMS {
                let (stream, Lease { name, token, .. }) = (Arc::clone(&self.streams), lease);
                let body = move || {
                    let _stream = stream;
                    watch(&transport, &name, token, &ended, || {
                        let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner);
                        notice.iter().for_each(|notice| notice.changed(Some(&name), None));
                    });
                };
                // Without a thread, renewals tell.
                let _ = thread::Builder::new().name("litelease watch".into()).spawn(body);
            }
            Box::new(holder)
        })
    }
}

/// Calls `changed` whenever the grant with this token is no longer current, until its holder has
/// given it up, or the server refuses the stream.
///
/// It goes on after that: a replica that lags behind does not know the grant yet. The release of
/// the name is an event, too. So the thread ends soon after the hold, although it cannot interrupt
/// a read.
fn watch(
    transport: &Transport,
    name: &str,
    token: i64,
    ended: &Receiver<Infallible>,
    changed: impl Fn(),
) {
    let (mut pause, path) = (PAUSES.0, path_of_name(name));
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(pause) {
        pause = (2 * pause).min(PAUSES.1);
        let stream = match transport.stream(&path, SILENCE) {
            Ok(stream) => stream,
            Err(Outcome::Unknown(_) | Outcome::Unreached(_)) => continue,
            // The access key may not watch.
            Err(_) => return,
        };
        for news in events(BufReader::new(stream)) {
            if let Err(TryRecvError::Disconnected) = ended.try_recv() {
                return;
            }
            pause = PAUSES.0;
            let is_current = |lease: &Lease| lease.token == token;
            if news.is_some_and(|news| !news.live.iter().any(is_current)) {
                changed();
            }
        }
    }
}
