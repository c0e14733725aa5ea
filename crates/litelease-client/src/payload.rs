//! Calls on the payload of a grant: values, limits, checkpoints, and the handover on request.

use std::time::Duration;

use litelease_wire::{
    Attach, HandOver, LastCheckpoint, Leases, Limit, Name, Progress, RequestLease, StoreCheckpoint,
};

use crate::client::seconds;
use crate::look::one;
use crate::mode::Mode;
use crate::retry::{RETRY, Reply};
use crate::{Client, Grant, Lease, Value};

/// A checkpoint: progress that was stored under a grant.
///
/// ```no_run
/// # use litelease_client::{Client, Error};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// if let Some(checkpoint) = client.last_checkpoint("import")? {
///     println!("go on after {:?}, of token {}", checkpoint.value, checkpoint.token);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The token of the grant that it was stored under.
    pub token: i64,
    /// The stored value.
    pub value: Value,
}

/// A request for a lease: another client asks the holder to give it up.
///
/// ```no_run
/// # use litelease_client::{Client, Error};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// if let Some(request) = client.requested("import")? {
///     println!("{} wants it within {:?}", request.requester, request.within);
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The owner text of that client.
    pub requester: String,
    /// The time after which the holder's renewals are refused, counted from the answer.
    pub within: Duration,
}

impl<M: Mode> Client<M> {
    /// Attaches a value to a grant, instead of the one before. Every client that may observe the
    /// name sees it until the grant ends.
    pub fn attach(&self, grant: &Grant, value: impl Into<Value>) -> M::Answer<()> {
        let (grant, value) = (grant.secret().into(), value.into());
        self.ask(Attach { grant, value }, Reply::check)
    }

    /// Returns the value that the live grant of a name has attached.
    pub fn value(&self, name: &str) -> M::Answer<Option<Value>> {
        self.find(one(name), RETRY, |found| match found {
            Leases::One(name) => name.value,
            Leases::Page(_) => None,
        })
    }

    /// Limits a grant: its renewals are refused if no [`progress`](Client::progress) or checkpoint
    /// came within `progress_within`, and none goes beyond `max_time` from now. `None` is no limit.
    pub fn limit(
        &self,
        grant: &Grant,
        progress_within: Option<Duration>,
        max_time: Option<Duration>,
    ) -> M::Answer<()> {
        let (progress_within, max_time) = (progress_within.map(seconds), max_time.map(seconds));
        let grant = grant.secret().into();
        self.ask(Limit { grant, progress_within, max_time }, Reply::check)
    }

    /// Records that the holder of a limited grant makes progress.
    pub fn progress(&self, grant: &Grant) -> M::Answer<()> {
        self.ask(Progress { grant: grant.secret().into() }, Reply::check)
    }

    /// Stores progress under a grant. Refused if a newer grant of the name exists.
    pub fn checkpoint(&self, grant: &Grant, value: impl Into<Value>) -> M::Answer<()> {
        let (grant, value) = (grant.secret().into(), value.into());
        self.ask(StoreCheckpoint { grant, value }, Reply::check)
    }

    /// Returns the latest checkpoint of a name, from which a successor continues.
    pub fn last_checkpoint(&self, name: &str) -> M::Answer<Option<Checkpoint>> {
        self.find(LastCheckpoint { name: name.into() }, RETRY, |found| {
            found.token.map(|token| Checkpoint { token, value: found.value })
        })
    }

    /// Asks the holder of a name to give it up, and then waits for it with a
    /// [`claim`](Client::claim) under the owner text `requester`, which repeats the request.
    /// Without such a claim the request lapses after 10 s. Use a text that is fresh for each
    /// attempt.
    ///
    /// Returns the time after which renewals of the holder are refused.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let me = "host-b, attempt 1";
    /// let within = client.request("import", me, Duration::from_secs(60))?;
    /// let ttl = Duration::from_secs(30);
    /// let grant = client.claim("import", me, ttl, within + ttl)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn request(&self, name: &str, requester: &str, within: Duration) -> M::Answer<Duration> {
        let (name, requester, within) = (name.into(), requester.into(), seconds(within));
        self.ask_for(RequestLease { name, requester, within }, |open| open.within.duration())
    }

    /// Returns the open request for the live grant of a name.
    pub fn requested(&self, name: &str) -> M::Answer<Option<Request>> {
        self.find(one(name), RETRY, |found| match found {
            Leases::One(Name { requested: Some(open), .. }) => {
                Some(Request { requester: open.requester, within: open.within.duration() })
            }
            Leases::One(_) | Leases::Page(_) => None,
        })
    }

    /// Hands a lease to the client that has requested it, under a new token and without a gap. That
    /// client's waiting claim is answered with a grant of its own.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// # let grant = client.claim("import", "host-a", Duration::from_secs(30), Duration::ZERO)?;
    /// if client.requested("import")?.is_some() {
    ///     client.hand_over(&grant, Duration::from_secs(30))?;
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hand_over(&self, grant: &Grant, ttl: Duration) -> M::Answer<Lease> {
        let (grant, ttl) = (grant.secret().into(), seconds(ttl));
        self.ask_for(HandOver { grant, ttl }, Lease::from)
    }
}
