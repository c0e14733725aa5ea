//! The verbs, each as one request or as often as it takes.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Duration;

use litelease_keeper::{Clock, Keeper, SystemClock, Window, unique};
use serde_json::{Value, json};

use crate::Error;
use crate::access::Place;
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
    pub(crate) secrets: OnceLock<Secrets>,
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
    pub(crate) secret: String,
    /// Until when the client may act on it, by the system's clock that counts suspend; `None` if it
    /// must be renewed first.
    pub(crate) trusted_until: Option<Duration>,
}

/// How long one request may take besides the time that it waits for a name.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The pause after a first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

impl Client {
    /// Prepares to talk to a server, and finds the access key: in the file `$LITELEASE_ACCESS_FILE`,
    /// or the local key that a server on this machine has made for its user. Sends nothing yet.
    ///
    /// ```
    /// # use litelease_client::{Client, Error};
    /// let client = Client::open("http://127.0.0.1:7070")?;
    /// # Ok::<(), Error>(())
    /// ```
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
        Client::of(&Place::parse(url)?, Some(key.into()))
    }

    fn of(place: &Place, key: Option<String>) -> Result<Self, Error> {
        Client::trusting(place, key, None)
    }

    /// Prepares to talk to a server whose certificate comes from a CA in this file, or in the one
    /// that the environment names.
    pub(crate) fn trusting(
        place: &Place,
        key: Option<String>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Error> {
        place.check(key.as_deref())?;
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
        let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        let (first, tag) = (SystemClock.now(), unique());
        let mut pauses = pauses();
        loop {
            let waited = SystemClock.now().saturating_sub(first);
            let left = wait.saturating_sub(waited);
            let body = json!({
                "name": name, "owner": owner, "ttl": ttl.as_secs_f64(), "wait": left.as_secs_f64(),
            });
            let outcome = self.transport.call("claim", &tag, &body, left + PATIENCE);
            let why = match outcome {
                Outcome::Done(value) => {
                    let now = SystemClock.now();
                    return grant(&value, ttl, window, first, now).ok_or_else(nonsense);
                }
                Outcome::No(value) => {
                    return Err(match lease(&value["current"]) {
                        Some(current) => Error::Busy(Box::new(current)),
                        // It has just come free.
                        None if waited < wait => continue,
                        None => Error::Unreachable("the name has just come free".into()),
                    });
                }
                Outcome::Unknown(why) => why,
                refused @ Outcome::Refused { .. } => return Err(refused.into_error()),
            };
            // What the lost answer has granted ends with its ttl. Nobody has to ask longer.
            if waited > wait + ttl {
                return Err(Error::Unreachable(why));
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
                Ok(renewed) => {
                    let end = window.end_of(start, renewed.granted(ttl));
                    let trusted_until = Some(grant.trusted_until.map_or(end, |old| old.max(end)));
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
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let grant = client.claim("backup", "host-a", Duration::from_secs(30), Duration::ZERO)?;
    /// client.release(&grant)?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn release(&self, grant: &Grant) -> Result<(), Error> {
        let mut pauses = pauses();
        for _ in 0..5 {
            match release_once(&self.transport, &grant.secret, PATIENCE) {
                Err(Error::Unreachable(_)) => sleep(pauses()),
                Ok(()) | Err(Error::Rejected { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        release_once(&self.transport, &grant.secret, PATIENCE)
    }
}

impl Grant {
    /// Checks whether the client may act on the grant now: no other client can have been granted the
    /// name. False for a grant that was waited for, until it is renewed.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let grant = client.claim("backup", "host-a", Duration::from_secs(30), Duration::ZERO)?;
    /// assert!(grant.is_trusted());
    /// # Ok::<(), Error>(())
    /// ```
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
    secret: &str,
    ttl: Duration,
    timeout: Duration,
) -> Result<Lease, Error> {
    let body = json!({ "grant": secret, "ttl": ttl.as_secs_f64() });
    match transport.call("renew", &unique(), &body, timeout) {
        Outcome::Done(value) if value["grant"] == *secret => lease(&value).ok_or_else(nonsense),
        Outcome::Done(_) => Err(nonsense()),
        Outcome::No(value) => Err(rejected(&value)),
        outcome => Err(outcome.into_error()),
    }
}

/// Sends one release.
pub(crate) fn release_once(
    transport: &Transport,
    secret: &str,
    timeout: Duration,
) -> Result<(), Error> {
    match transport.call("release", &unique(), &json!({ "grant": secret }), timeout) {
        Outcome::Done(_) => Ok(()),
        Outcome::No(value) => Err(rejected(&value)),
        outcome => Err(outcome.into_error()),
    }
}

/// Makes the grant of an answer to a claim whose first request was sent at `first`.
///
/// It is trusted from then on, unless so much time has passed that it was waited for, or nearly so:
/// then it is not trusted before its first renewal.
fn grant(
    value: &Value,
    ttl: Duration,
    window: Window,
    first: Duration,
    now: Duration,
) -> Option<Grant> {
    let (lease, secret) = (lease(value)?, value["grant"].as_str()?.to_owned());
    let end = window.end_of(first, lease.granted(ttl));
    let trusted_until = (now < first + window.interval()).then_some(end);
    Some(Grant { lease, secret, trusted_until })
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
    Error::Rejected { reason, current: lease(&value["current"]).map(Box::new) }
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
