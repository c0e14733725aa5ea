//! The verbs as futures: each call of the blocking client runs on a thread of its own.
//!
//! Not on the blocking threads of a runtime. Those are limited: as many waiting claims as there are
//! threads would keep the release that they wait for from being sent. And a runtime that ends waits
//! for them, so a claim whose future was dropped would hold up the end of the program.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::async_queue::AsyncQueue;
use crate::{
    Checkpoint, Client, Error, Grant, Lease, Name, News, PoolOfName, QueueInfo, Request, SlotInfo,
    Value, Watch,
};

/// A client of one server whose calls are futures, for tokio and any other runtime.
///
/// A call is sent when its future is first polled. A future that is dropped after that does not
/// stop its call: a release is still sent, and a lease or an item that arrives for nobody is given
/// back. A dropped claim that waits keeps its place until its turn or the end of its `wait`, so
/// give it no longer a `wait` than it needs.
///
/// A call costs a thread while it is under way; a clone of the client costs nothing.
///
/// ```no_run
/// # use std::time::Duration;
/// use litelease_client::{AsyncClient, Error, HoldOptions};
///
/// async fn back_up() -> Result<(), Error> {
///     let client = AsyncClient::open("http://127.0.0.1:7070")?;
///     let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30))).await?;
///     held.check()?;
///     held.release().await
/// }
/// ```
#[derive(Clone)]
pub struct AsyncClient {
    client: Arc<Client>,
}

/// Hears of every lease that changes. Made by [`AsyncClient::watch`].
///
/// ```no_run
/// # use litelease_client::{AsyncClient, Error};
/// # async fn example(client: AsyncClient) -> Result<(), Error> {
/// let mut watch = client.watch("backup/")?;
/// while let Some(news) = watch.next().await {
///     println!("{:?}", news?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct AsyncWatch {
    news: mpsc::Receiver<Result<News, Error>>,
}

/// How long a thread that passes news on may not notice that nobody listens.
const LISTENING: Duration = Duration::from_secs(1);

/// Something that was granted, until its caller takes it. Otherwise it is given back.
struct Granted<T: Send + 'static> {
    client: Arc<Client>,
    value: Option<T>,
    give_back: fn(&Client, T),
}

impl<T: Send + 'static> Drop for Granted<T> {
    fn drop(&mut self) {
        let (client, give_back) = (Arc::clone(&self.client), self.give_back);
        if let Some(value) = self.value.take() {
            // The future may be dropped on a thread of a runtime, which must not wait. Without a
            // thread, the lease ends with its ttl.
            let _ = start(move || give_back(&client, value));
        }
    }
}

/// Does something on a thread of its own.
pub(crate) fn start(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name("litelease call".into());
    thread.spawn(work).map(drop).map_err(Error::NoThread)
}

/// Waits for something that is done on a thread of its own.
pub(crate) async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, done) = oneshot::channel();
    start(move || _ = sender.send(work()))?;
    let died = |_| Err(Error::NoThread(io::Error::other("the thread of the call has died")));
    done.await.unwrap_or_else(died)
}

/// Releases a grant that nobody has taken.
fn release(client: &Client, grant: Grant) {
    // If this fails, the lease ends with its ttl.
    let _ = client.release(&grant);
}

impl From<Client> for AsyncClient {
    fn from(client: Client) -> Self {
        AsyncClient { client: Arc::new(client) }
    }
}

impl AsyncClient {
    /// Prepares to talk to a server like [`Client::open`]. For one with a CA or a key of its own,
    /// use [`Client::builder`] and `AsyncClient::from`.
    pub fn open(url: &str) -> Result<Self, Error> {
        Client::open(url).map(AsyncClient::from)
    }

    /// Prepares to talk to a server with this access key, like [`Client::with_key`].
    pub fn with_key(url: &str, key: &str) -> Result<Self, Error> {
        Client::with_key(url, key).map(AsyncClient::from)
    }

    /// Returns the queue called `name`.
    pub fn queue(&self, name: &str) -> AsyncQueue {
        AsyncQueue { client: self.clone(), name: name.into() }
    }

    /// Watches leases on names that begin like this, like [`Client::watch`].
    pub fn watch(&self, prefix: &str) -> Result<AsyncWatch, Error> {
        pass_on(self.client.watch(prefix))
    }

    /// Watches the lease on one name, like [`Client::watch_name`].
    pub fn watch_name(&self, name: &str) -> Result<AsyncWatch, Error> {
        pass_on(self.client.watch_name(name))
    }

    /// Claims a name like [`Client::claim`]. If the future is dropped, a grant that comes later is
    /// released.
    pub async fn claim(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Grant, Error> {
        self.claim_above(name, owner, ttl, wait, 0).await
    }

    /// Claims a name like [`Client::claim_above`]. If the future is dropped, a grant that comes
    /// later is released.
    pub async fn claim_above(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
        above: i64,
    ) -> Result<Grant, Error> {
        let name = name.to_owned();
        let owner = owner.to_owned();
        self.obtain(move |client| client.claim_above(&name, &owner, ttl, wait, above), release)
            .await
    }

    /// Prolongs a grant like [`Client::renew`].
    pub async fn renew(&self, grant: &Grant, ttl: Duration) -> Result<Grant, Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.renew(&grant, ttl)).await
    }

    /// Releases a grant like [`Client::release`], also if the future is dropped after its first
    /// poll.
    pub async fn release(&self, grant: &Grant) -> Result<(), Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.release(&grant)).await
    }

    /// Releases a grant like [`Client::end`], and returns its name and token.
    pub async fn end(&self, grant: &Grant) -> Result<(String, i64), Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.end(&grant)).await
    }

    /// Hands a lease to a new owner like [`Client::transfer`].
    pub async fn transfer(&self, grant: &Grant, to: &str, ttl: Duration) -> Result<Lease, Error> {
        let grant = grant.to_owned();
        let to = to.to_owned();
        self.run(move |client| client.transfer(&grant, &to, ttl)).await
    }

    /// Ends the lease of any holder like [`Client::break_lease`].
    pub async fn break_lease(&self, name: &str) -> Result<(String, i64), Error> {
        let name = name.to_owned();
        self.run(move |client| client.break_lease(&name)).await
    }

    /// Returns what is known of a name, like [`Client::inspect`].
    pub async fn inspect(&self, name: &str) -> Result<Name, Error> {
        let name = name.to_owned();
        self.run(move |client| client.inspect(&name)).await
    }

    /// Returns the live leases on names that begin like this, like [`Client::leases`].
    pub async fn leases(&self, prefix: &str) -> Result<Vec<Lease>, Error> {
        let prefix = prefix.to_owned();
        self.run(move |client| client.leases(&prefix)).await
    }

    /// Returns the value that the live grant of a name has attached, like [`Client::value`].
    pub async fn value(&self, name: &str) -> Result<Option<Value>, Error> {
        let name = name.to_owned();
        self.run(move |client| client.value(&name)).await
    }

    /// Returns the latest checkpoint of a name, like [`Client::last_checkpoint`].
    pub async fn last_checkpoint(&self, name: &str) -> Result<Option<Checkpoint>, Error> {
        let name = name.to_owned();
        self.run(move |client| client.last_checkpoint(&name)).await
    }

    /// Returns the open request for a name, like [`Client::requested`].
    pub async fn requested(&self, name: &str) -> Result<Option<Request>, Error> {
        let name = name.to_owned();
        self.run(move |client| client.requested(&name)).await
    }

    /// Lists queues like [`Client::queues`].
    pub async fn queues(&self, prefix: &str) -> Result<Vec<QueueInfo>, Error> {
        let prefix = prefix.to_owned();
        self.run(move |client| client.queues(&prefix)).await
    }

    /// Returns the pools by name of which slots are held, like [`Client::pools`].
    pub async fn pools(&self, prefix: &str) -> Result<Vec<PoolOfName>, Error> {
        let prefix = prefix.to_owned();
        self.run(move |client| client.pools(&prefix)).await
    }

    /// Returns the held slots of the pool that has this name, like [`Client::slots`].
    pub async fn slots(&self, name: &str) -> Result<Vec<SlotInfo>, Error> {
        let name = name.to_owned();
        self.run(move |client| client.slots(&name)).await
    }

    /// Ends any holder's lease on a slot, like [`Client::break_slot`].
    pub async fn break_slot(&self, name: &str, position: i64, token: i64) -> Result<bool, Error> {
        let name = name.to_owned();
        self.run(move |client| client.break_slot(&name, position, token)).await
    }

    /// Attaches a value to a grant like [`Client::attach`].
    pub async fn attach(&self, grant: &Grant, value: impl Into<Value>) -> Result<(), Error> {
        let (grant, value) = (grant.clone(), value.into());
        self.run(move |client| client.attach(&grant, value)).await
    }

    /// Stores progress under a grant like [`Client::checkpoint`].
    pub async fn checkpoint(&self, grant: &Grant, value: impl Into<Value>) -> Result<(), Error> {
        let (grant, value) = (grant.clone(), value.into());
        self.run(move |client| client.checkpoint(&grant, value)).await
    }

    /// Limits a grant like [`Client::limit`].
    pub async fn limit(
        &self,
        grant: &Grant,
        progress_within: Option<Duration>,
        max_time: Option<Duration>,
    ) -> Result<(), Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.limit(&grant, progress_within, max_time)).await
    }

    /// Tells that the holder makes progress, like [`Client::progress`].
    pub async fn progress(&self, grant: &Grant) -> Result<(), Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.progress(&grant)).await
    }

    /// Hands a lease to the client that has requested it, like [`Client::hand_over`].
    pub async fn hand_over(&self, grant: &Grant, ttl: Duration) -> Result<Lease, Error> {
        let grant = grant.to_owned();
        self.run(move |client| client.hand_over(&grant, ttl)).await
    }

    /// Asks the holder of a name to give it up, like [`Client::request`].
    pub async fn request(
        &self,
        name: &str,
        requester: &str,
        within: Duration,
    ) -> Result<Duration, Error> {
        let name = name.to_owned();
        let requester = requester.to_owned();
        self.run(move |client| client.request(&name, &requester, within)).await
    }

    /// Makes a call on a thread of its own.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Client) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let client = Arc::clone(&self.client);
        on_thread(move || call(&client)).await
    }

    /// Makes a call that is granted something. If nobody waits for it any more, it is given back.
    pub(crate) async fn obtain<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Client) -> Result<T, Error> + Send + 'static,
        give_back: fn(&Client, T),
    ) -> Result<T, Error> {
        let client = Arc::clone(&self.client);
        let granted = on_thread(move || {
            let value = Some(call(&client)?);
            Ok(Granted { client, value, give_back })
        });
        granted.await?.value.take().ok_or_else(crate::client::nonsense)
    }
}

impl AsyncWatch {
    /// Returns the next news. `None` after an error: nothing is heard any more.
    pub async fn next(&mut self) -> Option<Result<News, Error>> {
        self.news.recv().await
    }
}

/// Passes on what a watch hears until nobody listens any more.
fn pass_on(watch: Watch) -> Result<AsyncWatch, Error> {
    let (sender, news) = mpsc::channel(64);
    start(move || {
        while !sender.is_closed() {
            let Some(heard) = watch.next(LISTENING).transpose() else { continue };
            let is_over = heard.is_err();
            if sender.blocking_send(heard).is_err() || is_over {
                return;
            }
        }
    })?;
    Ok(AsyncWatch { news })
}
