//! The verbs, each as one request or as often as it takes.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use litelease_hold::{Clock, Keeper, SystemClock, Window, unique};
use serde_json::{Value, json};

use crate::Error;
use crate::access::{Key, Place};
use crate::builder;
use crate::rows::Secrets;
use crate::transport::{Outcome, Transport};

/// A client of one server.
///
/// ```
/// # use litelease_client::Client;
/// let client = Client::open("http://127.0.0.1:7070")?;
/// # Ok::<(), litelease_client::Error>(())
/// ```
pub struct Client {
    pub(crate) transport: Arc<Transport>,
    pub(crate) base: String,
    pub(crate) keeper: OnceLock<Arc<Keeper>>,
    /// The secrets of names, and of slots.
    pub(crate) secrets: OnceLock<[Secrets; 2]>,
}

/// A live lease, as everybody may see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The name.
    pub name: String,
    /// Who has it.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// How long the lease had left when the server answered.
    pub expires_in: Duration,
}

/// A grant: a lease, and the secret by which it is renewed and released.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The lease.
    pub lease: Lease,
    pub(crate) secret: Secret,
    /// Until when the client may act on it, by the system's clock that counts suspend; `None` if it
    /// must be renewed first.
    pub(crate) trusted_until: Option<Duration>,
}

/// What opens a grant, and where.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Secret {
    /// A grant of a name.
    Grant(String),
    /// A lease on a slot of a pool.
    Slot {
        /// The path of the pool's calls.
        base: String,
        /// The name of the pool, where the path does not say which it is.
        pool: Option<String>,
        lease: String,
    },
}

/// When something was asked for first, and when the answer came.
pub(crate) struct Times {
    pub(crate) first: Duration,
    pub(crate) now: Duration,
}

/// How long one request may take besides the time that it waits for a name.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest time that one request waits. Proxies end those that take longer.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The pause after a first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

impl Client {
    /// Prepares to talk to a server, and finds the access key: in the file
    /// `$LITELEASE_ACCESS_FILE`, or the local key that a server on this machine has made for its
    /// user. Sends nothing yet.
    pub fn open(url: &str) -> Result<Self, Error> {
        let place = Place::parse(url)?;
        let key = place.find_key()?;
        Client::of(&place, key)
    }

    /// Prepares to talk to a server with this access key.
    ///
    /// ```
    /// # use litelease_client::{Client, Error};
    /// let plain = Client::with_key("http://lease.example", "litelease-…");
    /// assert!(matches!(plain, Err(Error::Insecure)));
    /// ```
    pub fn with_key(url: &str, key: &str) -> Result<Self, Error> {
        Client::of(&Place::parse(url)?, Some(Key::named(key)))
    }

    /// Prepares to talk to a server without a key, about something whose path is a secret.
    pub(crate) fn without_key(url: &str) -> Result<Self, Error> {
        let place = Place::parse(url)?;
        place.check(Some(""))?;
        Client::of(&place, None)
    }

    fn of(place: &Place, key: Option<Key>) -> Result<Self, Error> {
        Client::trusting(place, key, None)
    }

    /// Prepares to talk to a server whose certificate comes from a CA in this file, or in the one
    /// that the environment names.
    pub(crate) fn trusting(
        place: &Place,
        key: Option<Key>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Error> {
        place.check(key.as_ref().map(|key| key.text.as_str()))?;
        let transport = Arc::new(Transport::new(place, key, builder::roots(place, ca_file)?));
        let (base, keeper, secrets) = (place.base.clone(), OnceLock::new(), OnceLock::new());
        Ok(Client { transport, base, keeper, secrets })
    }

    /// Claims a name, and waits for it for at most `wait`. A lost answer is asked for again, with
    /// the same key, so that no grant is lost.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// let client = Client::open("http://127.0.0.1:7070")?;
    /// match client.claim("backup", "host-a", Duration::from_secs(30), Duration::ZERO) {
    ///     Ok(grant) => client.release(&grant)?,
    ///     Err(Error::Busy(lease)) => println!("{} has it", lease.owner),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn claim(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Grant, Error> {
        self.claim_above(name, owner, ttl, wait, 0)
    }

    /// Claims a name like [`claim`](Client::claim), under a token larger than `above`, which was
    /// seen elsewhere.
    pub fn claim_above(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
        above: i64,
    ) -> Result<Grant, Error> {
        let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        let body = |wait: f64| {
            let mut body =
                json!({ "name": name, "owner": owner, "ttl": ttl.as_secs_f64(), "wait": wait });
            if above > 0 {
                body["min_token"] = above.into();
            }
            body
        };
        let busy = |value: &Value| Some(Error::Busy(Box::new(lease(&value["current"])?)));
        let (value, times) = self.acquire("/v1/claim", ttl, wait, &body, &busy)?;
        let (lease, secret) = lease(&value).zip(value["grant"].as_str()).ok_or_else(nonsense)?;
        let secret = Secret::Grant(secret.into());
        let trusted_until = times.trusted_until(&lease, ttl, window);
        Ok(Grant { lease, secret, trusted_until })
    }

    /// Asks for something until it is granted, refused, or the time to wait is over. `body` makes a
    /// request from the seconds to wait, and `no` an error from the answer that nothing is free. An
    /// answer from which it makes none is not final: a name has come free just as the wait ended.
    pub(crate) fn acquire(
        &self,
        path: &str,
        ttl: Duration,
        wait: Duration,
        body: &dyn Fn(f64) -> Value,
        no: &dyn Fn(&Value) -> Option<Error>,
    ) -> Result<(Value, Times), Error> {
        let (first, tag) = (SystemClock.now(), unique());
        let (mut pauses, mut was_heard, mut trouble) = (pauses(), false, None);
        loop {
            let left = wait.saturating_sub(SystemClock.now().saturating_sub(first));
            let left = left.min(LONGEST_WAIT);
            let outcome =
                self.transport.post(path, &tag, &body(left.as_secs_f64()), left + PATIENCE);
            let now = SystemClock.now();
            was_heard |= !matches!(outcome, Outcome::Unreached(_));
            let outcome = match outcome {
                Outcome::No(value) if now.saturating_sub(first) >= wait => match no(&value) {
                    Some(error) => return Err(error),
                    None => Outcome::Unknown("the name has just come free".into()),
                },
                outcome => outcome,
            };
            match outcome {
                Outcome::Done(value) => return Ok((value, Times { first, now })),
                // The server lets nobody wait as long as this client wants to.
                Outcome::No(_) => trouble = None,
                Outcome::Unknown(why) | Outcome::Unreached(why) => {
                    let lasted = now.saturating_sub(*trouble.get_or_insert(now));
                    // What a lost answer has granted ends with its ttl: nobody has to ask longer.
                    // If nothing was ever sent, there may be no server.
                    let most = if was_heard { ttl.max(PATIENCE) } else { ttl.min(PATIENCE / 2) };
                    if lasted > most || now.saturating_sub(first) > wait.saturating_add(ttl) {
                        return Err(Error::Unreachable(why));
                    }
                }
                refused @ (Outcome::Refused { .. } | Outcome::Misconfigured(_)) => {
                    return Err(refused.into_error());
                }
            }
            sleep(pauses());
        }
    }

    /// Prolongs a grant to at least `ttl` from now. Returns it with its new end.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let ttl = Duration::from_secs(30);
    /// let grant = client.claim("backup", "host-a", ttl, Duration::ZERO)?;
    /// let grant = client.renew(&grant, ttl)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn renew(&self, grant: &Grant, ttl: Duration) -> Result<Grant, Error> {
        let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        let (begin, mut pauses) = (SystemClock.now(), pauses());
        loop {
            // Each try is a request of its own: trust begins with the one that was answered.
            let start = SystemClock.now();
            match renew_once(&self.transport, &grant.secret, ttl, PATIENCE) {
                Ok(mut renewed) => {
                    let end = window.end_of(start, renewed.granted(ttl));
                    let trusted_until = Some(grant.trusted_until.map_or(end, |old| old.max(end)));
                    if let Secret::Slot { .. } = grant.secret {
                        renewed.name.clone_from(&grant.lease.name);
                    }
                    return Ok(Grant { lease: renewed, trusted_until, ..grant.clone() });
                }
                Err(Error::Unreachable(why)) if start.saturating_sub(begin) > ttl => {
                    return Err(Error::Unreachable(why));
                }
                Err(Error::Unreachable(_)) => sleep(pauses()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases a grant. That it is over already is fine.
    pub fn release(&self, grant: &Grant) -> Result<(), Error> {
        match self.end(grant) {
            Ok(_) | Err(Error::Rejected { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Releases a grant, and returns its name and token. Fails with `Rejected` if it is over
    /// already. If the answer is lost, it is asked for again: then a grant that is over was
    /// released by the first request, also if the name has a new owner by now.
    pub fn end(&self, grant: &Grant) -> Result<(String, i64), Error> {
        let (path, body) = grant.secret.call("release", "return");
        let (mut pauses, mut may_be_done) = (pauses(), false);
        for tries in 0.. {
            match self.transport.post(&path, &unique(), &body, PATIENCE) {
                Outcome::Done(value) => {
                    let (name, token) = (value["name"].as_str(), value["token"].as_i64());
                    return name.map(str::to_owned).zip(token).ok_or_else(nonsense);
                }
                Outcome::No(value)
                    if may_be_done
                        && ["released", "superseded"]
                            .iter()
                            .any(|why| value["reason"] == **why) =>
                {
                    return Ok((grant.lease.name.clone(), grant.lease.token));
                }
                Outcome::No(value) => return Err(rejected(&value)),
                Outcome::Unknown(_) if tries < 5 => may_be_done = true,
                Outcome::Unreached(_) if tries < 5 => {}
                outcome => return Err(outcome.into_error()),
            }
            sleep(pauses());
        }
        Err(nonsense())
    }

    /// Hands a lease to a new owner under a larger token. The new owner gets its grant by claiming
    /// the name under that owner text.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let ttl = Duration::from_secs(30);
    /// let grant = client.claim("backup", "a", ttl, Duration::ZERO)?;
    /// client.transfer(&grant, "b", ttl)?;
    /// let fetched = client.claim("backup", "b", ttl, Duration::ZERO)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn transfer(&self, grant: &Grant, to: &str, ttl: Duration) -> Result<Lease, Error> {
        let Secret::Grant(secret) = &grant.secret else { return Err(nonsense()) };
        let body = json!({ "grant": secret, "new_owner": to, "ttl": ttl.as_secs_f64() });
        match self.transport.call("transfer", &unique(), &body, PATIENCE) {
            Outcome::Done(value) => lease(&value).ok_or_else(nonsense),
            Outcome::No(value) => Err(rejected(&value)),
            // Not asked again: if it was done, the grant is another one's now.
            outcome => Err(outcome.into_error()),
        }
    }

    /// Ends the lease of any holder. Returns its owner and the token that counts no more.
    pub fn break_lease(&self, name: &str) -> Result<(String, i64), Error> {
        // Not asked again: somebody else may have the name by then.
        match self.transport.call("break", &unique(), &json!({ "name": name }), PATIENCE) {
            Outcome::Done(value) => {
                let (owner, killed) = (value["owner"].as_str(), value["killed"].as_i64());
                owner.map(str::to_owned).zip(killed).ok_or_else(nonsense)
            }
            Outcome::No(value) => Err(rejected(&value)),
            outcome => Err(outcome.into_error()),
        }
    }
}

impl Client {
    /// Ends any holder's lease on a slot of the pool that has this name. Returns whether the slot
    /// was lent out under this token; [`slots`](Client::slots) shows both.
    pub fn break_slot(&self, name: &str, position: i64, token: i64) -> Result<bool, Error> {
        let body = json!({ "name": name, "position": position, "token": token });
        match self.transport.call("slot/break", &unique(), &body, PATIENCE) {
            Outcome::Done(value) => value["returned"].as_bool().ok_or_else(nonsense),
            outcome => Err(outcome.into_error()),
        }
    }
}

impl Times {
    /// Returns until when the client may act on what was granted: from the start of the first
    /// request on. `None` if so much time has passed that it was waited for, or nearly so: then it
    /// is not trusted before its first renewal.
    pub(crate) fn trusted_until(
        &self,
        lease: &Lease,
        ttl: Duration,
        window: Window,
    ) -> Option<Duration> {
        let end = window.end_of(self.first, lease.granted(ttl));
        (self.now < self.first + window.interval()).then_some(end)
    }
}

impl Secret {
    pub(crate) fn text(&self) -> &str {
        match self {
            Secret::Grant(secret) | Secret::Slot { lease: secret, .. } => secret,
        }
    }

    /// Returns the path and the body of a call on what it opens.
    fn call(&self, on_grant: &str, on_slot: &str) -> (String, Value) {
        match self {
            Secret::Grant(grant) => (format!("/v1/{on_grant}"), json!({ "grant": grant })),
            Secret::Slot { base, pool, lease } => {
                let mut body = json!({ "lease": lease });
                if let Some(pool) = pool {
                    body["name"] = pool.as_str().into();
                }
                (format!("{base}/{on_slot}"), body)
            }
        }
    }

    /// Reads the answer to a renewal.
    fn renewed(&self, value: &Value) -> Option<Lease> {
        match self {
            Secret::Grant(grant) => lease(value).filter(|_| value["grant"] == **grant),
            Secret::Slot { lease, .. } => slot(value).filter(|_| value["lease"] == **lease),
        }
    }
}

impl Grant {
    /// Returns the grant that this secret opens, to renew, release or transfer it. Its lease is not
    /// known before that.
    pub fn with_secret(secret: &str) -> Self {
        let (name, owner) = (String::new(), String::new());
        let lease = Lease { name, owner, token: 0, expires_in: Duration::ZERO };
        Grant { lease, secret: Secret::Grant(secret.into()), trusted_until: None }
    }

    /// Returns the secret. Everyone who knows it may renew and release the lease.
    pub fn secret(&self) -> &str {
        self.secret.text()
    }

    /// Checks whether the client may act on the grant now: no other client can have been granted
    /// the name. False for a grant that was waited for, until it is renewed.
    pub fn is_trusted(&self) -> bool {
        self.trusted_until.is_some_and(|until| SystemClock.now() < until)
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret is nobody else's.
        f.debug_struct("Grant").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Lease {
    /// Returns how long the lease was granted for, if that is less than the ttl.
    pub(crate) fn granted(&self, ttl: Duration) -> Option<Duration> {
        (self.expires_in < ttl).then_some(self.expires_in)
    }
}

/// Sends one renewal.
pub(crate) fn renew_once(
    transport: &Transport,
    secret: &Secret,
    ttl: Duration,
    timeout: Duration,
) -> Result<Lease, Error> {
    let (path, mut body) = secret.call("renew", "renew");
    body["ttl"] = ttl.as_secs_f64().into();
    match (transport.post(&path, &unique(), &body, timeout), secret) {
        (Outcome::Done(value), _) => secret.renewed(&value).ok_or_else(nonsense),
        (Outcome::No(value), Secret::Grant(_)) => Err(rejected(&value)),
        (Outcome::No(_), Secret::Slot { .. }) => Err(over("expired")),
        (Outcome::Refused { status: 404, .. }, Secret::Slot { .. }) => Err(over("deleted")),
        (outcome, _) => Err(outcome.into_error()),
    }
}

/// Sends one release.
pub(crate) fn release_once(
    transport: &Transport,
    secret: &Secret,
    timeout: Duration,
) -> Result<Value, Error> {
    let (path, body) = secret.call("release", "return");
    match transport.post(&path, &unique(), &body, timeout) {
        Outcome::Done(value) => Ok(value),
        Outcome::No(value) => Err(rejected(&value)),
        outcome => Err(outcome.into_error()),
    }
}

/// Reads a lease on a slot. Its name is not in the answer.
pub(crate) fn slot(value: &Value) -> Option<Lease> {
    Some(Lease {
        name: String::new(),
        owner: format!("slot {}", value["position"].as_i64()?),
        token: value["token"].as_i64()?,
        expires_in: Duration::try_from_secs_f64(value["expires_in"].as_f64()?).ok()?,
    })
}

/// A lease that is over, for a reason that the server has no word for.
fn over(reason: &str) -> Error {
    Error::Rejected { reason: reason.into(), by: None, current: None }
}

pub(crate) fn lease(value: &Value) -> Option<Lease> {
    Some(Lease {
        name: value["name"].as_str()?.into(),
        owner: value["owner"].as_str()?.into(),
        token: value["token"].as_i64()?,
        expires_in: Duration::try_from_secs_f64(value["expires_in"].as_f64()?).ok()?,
    })
}

pub(crate) fn rejected(value: &Value) -> Error {
    let reason = value["reason"].as_str().unwrap_or("rejected").into();
    let by = value["by"].as_i64();
    Error::Rejected { reason, by, current: lease(&value["current"]).map(Box::new) }
}

pub(crate) fn nonsense() -> Error {
    Error::Unreachable("the answer makes no sense".into())
}

/// Writes a time as the service takes it.
pub(crate) fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

/// Returns growing pauses between tries, each different in every process.
pub(crate) fn pauses() -> impl FnMut() -> Duration {
    let (mut pause, longest) = PAUSES;
    move || {
        let now = SystemClock.now().subsec_nanos() ^ std::process::id();
        let dice = f64::from(now.wrapping_mul(0x9E37_79B9) >> 22) / 1024.0;
        let this = pause.mul_f64(0.5 + dice);
        pause = (pause * 2).min(longest);
        this
    }
}
