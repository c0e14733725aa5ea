//! What rides on a grant: values, limits, checkpoints, and the handoff on request.

use std::time::Duration;

use serde_json::{Value as Json, json};

use crate::client::{lease, nonsense, seconds};
use crate::{Client, Error, Grant, Lease, Value};

/// Progress that was stored under a grant.
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
    /// What was stored.
    pub value: Value,
}

/// A request for a lease: somebody asks its holder to give it up.
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
    /// Who asks.
    pub requester: String,
    /// After this time, counted from the answer, renewals are refused.
    pub within: Duration,
}

impl Client {
    /// Attaches a value to a grant, in the place of the one before. Everybody who may observe the
    /// name sees it, until the grant ends.
    pub fn attach(&self, grant: &Grant, value: impl Into<Value>) -> Result<(), Error> {
        let request = json!({ "grant": grant.secret(), "value": value.into().to_json() });
        self.insist("attach", &request)?.done().map(drop)
    }

    /// Returns the value that the live grant of a name has attached.
    pub fn value(&self, name: &str) -> Result<Option<Value>, Error> {
        let found = self.look("leases", &[("name", name)])?;
        match Value::of_json(&found["value"]).ok_or_else(nonsense)? {
            Value::Null => Ok(None),
            value => Ok(Some(value)),
        }
    }

    /// Limits a grant: its renewals are refused if no [`progress`](Client::progress) or checkpoint
    /// came within `progress_within`, and none goes beyond `max_time` from now. `None` is no limit.
    pub fn limit(
        &self,
        grant: &Grant,
        progress_within: Option<Duration>,
        max_time: Option<Duration>,
    ) -> Result<(), Error> {
        let request = json!({
            "grant": grant.secret(),
            "progress_within": progress_within.map(seconds),
            "max_time": max_time.map(seconds),
        });
        self.insist("limit", &request)?.done().map(drop)
    }

    /// Tells that the holder of a limited grant makes progress.
    pub fn progress(&self, grant: &Grant) -> Result<(), Error> {
        self.insist("progress", &json!({ "grant": grant.secret() }))?.done().map(drop)
    }

    /// Stores progress under a grant. Refused if a newer grant of the name exists.
    pub fn checkpoint(&self, grant: &Grant, value: impl Into<Value>) -> Result<(), Error> {
        let request = json!({ "grant": grant.secret(), "value": value.into().to_json() });
        self.insist("checkpoint", &request)?.done().map(drop)
    }

    /// Returns the latest checkpoint of a name, from which a successor continues.
    pub fn last_checkpoint(&self, name: &str) -> Result<Option<Checkpoint>, Error> {
        let found = self.look("checkpoint", &[("name", name)])?;
        if found["token"].is_null() {
            return Ok(None);
        }
        let checkpoint = |found: &Json| {
            let (token, value) = (found["token"].as_i64()?, Value::of_json(&found["value"])?);
            Some(Checkpoint { token, value })
        };
        checkpoint(&found).map(Some).ok_or_else(nonsense)
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
    pub fn request(
        &self,
        name: &str,
        requester: &str,
        within: Duration,
    ) -> Result<Duration, Error> {
        let request = json!({ "name": name, "requester": requester, "within": seconds(within) });
        let asked = self.insist("request", &request)?.done()?;
        Duration::try_from_secs_f64(asked["within"].as_f64().unwrap_or(-1.0))
            .map_err(|_| nonsense())
    }

    /// Returns the open request for the live grant of a name.
    pub fn requested(&self, name: &str) -> Result<Option<Request>, Error> {
        let found = self.look("leases", &[("name", name)])?;
        let request = |asked: &Json| {
            let within = Duration::try_from_secs_f64(asked["within"].as_f64()?).ok()?;
            Some(Request { requester: asked["requester"].as_str()?.into(), within })
        };
        match &found["requested"] {
            Json::Null => Ok(None),
            asked => request(asked).map(Some).ok_or_else(nonsense),
        }
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
    pub fn hand_over(&self, grant: &Grant, ttl: Duration) -> Result<Lease, Error> {
        let request = json!({ "grant": grant.secret(), "ttl": seconds(ttl) });
        lease(&self.insist("hand-over", &request)?.done()?).ok_or_else(nonsense)
    }
}
