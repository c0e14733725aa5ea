//! The ways in which a caller waits. Each verb is written once, as a future that the transport
//! runs.

use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use crate::transport::{EndsWithOwner, Transport, died};
use crate::{Client, Error, Pool};

/// How the caller of a verb waits: [`Blocking`] or [`Async`].
pub trait Mode: Clone + Send + Sync + 'static {
    /// The answer of a verb: a `Result`, or a future of one.
    type Answer<T: Send + 'static>;

    /// Runs a verb, which is completed even if its future is dropped after a first poll.
    fn answer<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Self::Answer<T>;

    /// Runs a verb that is granted something. Dropping its future ends the verb, and a grant that
    /// the caller has not taken is given back.
    fn obtain<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<(T, Untaken), Error>> + Send + 'static,
    ) -> Self::Answer<T>;

    /// Does work that blocks, without a result.
    fn detach(transport: &Arc<Transport>, work: impl FnOnce() + Send + 'static);
}

/// The caller blocks: a verb returns its `Result` when it is done.
#[derive(Clone, Debug)]
pub enum Blocking {}

/// The caller awaits: a verb returns a future of its `Result`.
///
/// Nothing is sent before the future is first polled. A future that is dropped ends a claim, a
/// hold, a borrow or a receive, and what arrives for it later is given back. All other verbs are
/// completed: a release is still sent.
#[derive(Clone, Debug)]
pub enum Async {}

/// A client whose verbs return futures, for tokio and any other runtime. [`Client::into_async`]
/// makes one.
///
/// ```no_run
/// # use std::time::Duration;
/// use litelease_client::{AsyncClient, Client, Error, HoldOptions};
///
/// async fn back_up() -> Result<(), Error> {
///     let client: AsyncClient = Client::open("http://127.0.0.1:7070")?.into_async();
///     let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30))).await?;
///     held.check()?;
///     held.release().await
/// }
/// ```
pub type AsyncClient = Client<Async>;

/// A grant that no caller has taken yet. If it is dropped before that, it is given back in the
/// background.
pub struct Untaken {
    transport: Arc<Transport>,
    give_back: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Untaken {
    pub(crate) fn new(
        transport: &Arc<Transport>,
        give_back: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Untaken { transport: Arc::clone(transport), give_back: Some(Box::pin(give_back)) }
    }

    /// Records that the caller has taken it, so that nothing is given back.
    pub(crate) fn taken(mut self) -> Self {
        self.give_back = None;
        self
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(give_back) = self.give_back.take() {
            // Fails only in a process that has sent no request.
            let _ = self.transport.start(give_back);
        }
    }
}

impl Mode for Blocking {
    type Answer<T: Send + 'static> = Result<T, Error>;

    fn answer<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        transport.wait(verb)?
    }

    fn obtain<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<(T, Untaken), Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (value, untaken) = transport.wait(verb)??;
        untaken.taken();
        Ok(value)
    }

    fn detach(_: &Arc<Transport>, work: impl FnOnce()) {
        work();
    }
}

impl Mode for Async {
    type Answer<T: Send + 'static> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

    fn answer<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Self::Answer<T> {
        let transport = Arc::clone(transport);
        Box::pin(async move { transport.start(verb)?.await.unwrap_or_else(|_| Err(died())) })
    }

    fn obtain<T: Send + 'static>(
        transport: &Arc<Transport>,
        verb: impl Future<Output = Result<(T, Untaken), Error>> + Send + 'static,
    ) -> Self::Answer<T> {
        let transport = Arc::clone(transport);
        Box::pin(async move {
            let mut task = EndsWithOwner(transport.start(verb)?);
            let (value, untaken) = (&mut task.0).await.map_err(|_| died())??;
            untaken.taken();
            Ok(value)
        })
    }

    fn detach(transport: &Arc<Transport>, work: impl FnOnce() + Send + 'static) {
        let same = Arc::clone(transport);
        // Fails only in a forked process, which has nothing to release.
        let _ = transport.start_blocking(move || {
            work();
            drop(same);
        });
    }
}

impl Client {
    /// Returns the client with verbs that are futures.
    pub fn into_async(self) -> AsyncClient {
        let Client { transport, keeper, held_names, .. } = self;
        Client { transport, keeper, held_names, mode: PhantomData }
    }
}

impl Pool {
    /// Returns the pool with verbs that are futures.
    pub fn into_async(self) -> Pool<Async> {
        Pool { client: self.client.into_async(), path: self.path }
    }
}
