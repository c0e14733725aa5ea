//! Event streams of held names, which report a break to the hold before its next renewal.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litelease_hold::{Attach, Notice};
use tokio::time::sleep;

use crate::Lease;
use crate::look::{Events, SILENCE, path_of_name};
use crate::transport::{EndsWithOwner, Outcome, Transport};

/// Watches the names that a client holds, each on a connection that ends with the hold. A hold
/// whose name is not watched learns of a break at its next renewal.
#[derive(Default)]
pub(crate) struct HeldNames {
    notice: Mutex<Option<Notice>>,
    /// Every open stream has a reference to it.
    streams: Arc<()>,
}

/// The most streams of one client. Other clients with its access key need some, too.
const MOST_STREAMS: usize = 8;

/// The time before the first connection, and the longest one between two. Most holds end before the
/// first, and so cost no stream.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A hold that renews at least this often learns of a break soon enough without a stream.
const SOON: Duration = Duration::from_secs(1);

impl HeldNames {
    /// Sets the notice through which later changes reach the keeper.
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
            if ttl / 3 <= SOON || Arc::strong_count(&self.streams) > MOST_STREAMS {
                return Box::new(());
            }
            let (stream, same) = (Arc::clone(&self.streams), Arc::clone(&transport));
            let task = transport.start(async move {
                let _stream = stream;
                watch(&same, &lease, || {
                    let notice = self.notice.lock().unwrap_or_else(PoisonError::into_inner);
                    notice.iter().for_each(|notice| notice.changed(Some(&lease.name), None));
                })
                .await;
            });
            // Without a stream, the next renewal reports a break.
            Box::new(task.map(EndsWithOwner))
        })
    }
}

/// Calls `changed` whenever this grant is no longer current, until the server refuses the stream.
///
/// Goes on after that: a replica that lags behind does not know the grant yet.
async fn watch(transport: &Transport, grant: &Lease, changed: impl Fn()) {
    let (mut pause, path) = (PAUSES.0, path_of_name(&grant.name));
    loop {
        sleep(pause).await;
        pause = (2 * pause).min(PAUSES.1);
        let mut stream = match transport.stream(&path, SILENCE).await {
            Ok(stream) => stream,
            Err(Outcome::Unknown(_) | Outcome::Unreached(_)) => continue,
            // The access key may not watch.
            Err(_) => return,
        };
        let mut events = Events::default();
        while let Some(line) = stream.line().await
            && let Some(news) = events.read(&line)
        {
            pause = PAUSES.0;
            let is_current = |lease: &Lease| lease.token == grant.token;
            if news.is_some_and(|news| !news.live.iter().any(is_current)) {
                changed();
            }
        }
    }
}
