//! The verbs, each as one request or as often as it takes.

use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use litelease_hold::{Cancel, Clock, ProcessKeeper, SystemClock, Window, unique};
use serde_json::{Value, json};

use crate::Error;
use crate::access::{Key, ServerUrl};
use crate::builder;
use crate::held_names::HeldNames;
use crate::kind::Kind;
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
    /// Renews the holds of this client, on a thread of its own: a slow server keeps no other holds
    /// of the process from being renewed.
    pub(crate) keeper: ProcessKeeper,
    pub(crate) held_names: Arc<HeldNames>,
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
    /// The moment from which it is trusted, by the system's clock that counts suspend; `None` if it
    /// must be renewed first.
    pub(crate) start: Option<Duration>,
}

/// How long the try may take that ends a wait.
const LAST_TRY: Duration = Duration::from_secs(2);

/// How long one request may take besides the time that it waits for a name.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The longest time that one request waits. Proxies end those that take longer.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The pause after a first failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(1));

impl Client {
    /// Prepares to talk to a server, and finds the access key: in the file
    /// `$LITELEASE_ACCESS_FILE`, or the local key that a server on this machine has made for its
    /// user. Sends nothing yet.
    pub fn open(url: &str) -> Result<Self, Error> {
        let server = ServerUrl::parse(url)?;
        let key = server.find_key()?;
        Client::of(&server, key)
    }

    /// Prepares to talk to a server with this access key.
    ///
    /// ```
    /// # use litelease_client::{Client, Error};
    /// let plain = Client::with_key("http://lease.example", "litelease-…");
    /// assert!(matches!(plain, Err(Error::Insecure)));
    /// ```
    pub fn with_key(url: &str, key: &str) -> Result<Self, Error> {
        Client::of(&ServerUrl::parse(url)?, Some(Key::named(key)))
    }

    /// Prepares to talk to a server without a key, about something whose path is a secret.
    pub(crate) fn without_key(url: &str) -> Result<Self, Error> {
        let server = ServerUrl::parse(url)?;
        server.check(Some(""))?;
        Client::of(&server, None)
    }

    fn of(server: &ServerUrl, key: Option<Key>) -> Result<Self, Error> {
        Client::trusting(server, key, None)
    }

    /// Prepares to talk to a server whose certificate comes from a CA in this file, or in the one
    /// that the environment names.
    pub(crate) fn trusting(
        server: &ServerUrl,
        key: Option<Key>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Error> {
        server.check(key.as_ref().map(|key| key.text.as_str()))?;
        let transport = Arc::new(Transport::new(server, key, builder::roots(server, ca_file)?));
        Ok(Client { transport, keeper: ProcessKeeper::new(), held_names: Arc::default() })
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
        let mut claim = json!({ "name": name, "owner": owner });
        if above > 0 {
            claim["min_token"] = above.into();
        }
        let start = SystemClock.now();
        let value = self.acquire(&Kind::Name, &claim, ttl, wait, None)?;
        let (lease, secret) = Kind::Name.granted(name, &value).ok_or_else(nonsense)?;
        // A grant that was waited for, or nearly so, is not trusted before its first renewal.
        let is_new = SystemClock.now() < start + window.interval(None);
        Ok(Grant { lease, secret, start: is_new.then_some(start) })
    }

    /// Sends a claim, or a borrow, until it is granted, refused, or the time to wait is over. All
    /// tries are one request for the server. A refusal that names no holder is not final: the name
    /// has come free just as the wait ended.
    ///
    /// A wait that is cancelled ends with one more try, which does not wait: the server answers
    /// what it has granted to the others, or takes them out of its queue.
    pub(crate) fn acquire(
        &self,
        kind: &Kind,
        claim: &Value,
        ttl: Duration,
        wait: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<Value, Error> {
        let (first, tag, path) = (SystemClock.now(), unique(), kind.claim_path());
        let mut body = claim.clone();
        body["ttl"] = ttl.as_secs_f64().into();
        let (mut pauses, mut was_heard, mut trouble) = (pauses(), false, None);
        loop {
            let left = wait.saturating_sub(SystemClock.now().saturating_sub(first));
            let is_last = cancel.is_some_and(Cancel::is_cancelled);
            let left = if is_last { Duration::ZERO } else { left.min(LONGEST_WAIT) };
            body["wait"] = left.as_secs_f64().into();
            let timeout = if is_last { LAST_TRY } else { left + PATIENCE };
            let outcome = match cancel {
                Some(cancel) if !left.is_zero() => {
                    self.post_unless(cancel, path.clone(), tag.clone(), body.clone(), timeout)
                }
                _ => self.transport.post(&path, &tag, &body, timeout),
            };
            let now = SystemClock.now();
            was_heard |= !matches!(outcome, Outcome::Unreached(_));
            let outcome = match outcome {
                Outcome::No(value) if is_last || now.saturating_sub(first) >= wait => {
                    match kind.busy(&value) {
                        Some(error) => return Err(error),
                        None => Outcome::Unknown("the name has just come free".into()),
                    }
                }
                outcome => outcome,
            };
            match outcome {
                Outcome::Done(value) => return Ok(value),
                // The server lets nobody wait as long as this client wants to.
                Outcome::No(_) => trouble = None,
                Outcome::Unknown(why) | Outcome::Unreached(why) => {
                    let lasted = now.saturating_sub(*trouble.get_or_insert(now));
                    // What a lost answer has granted ends with its ttl: nobody has to ask longer.
                    // If nothing was ever sent, there may be no server.
                    let most = if was_heard { ttl.max(PATIENCE) } else { ttl.min(PATIENCE / 2) };
                    let is_over = now.saturating_sub(first) > wait.saturating_add(ttl);
                    if is_last || lasted > most || is_over {
                        return Err(Error::Unreachable(why));
                    }
                }
                refused @ (Outcome::Refused { .. } | Outcome::Misconfigured(_)) => {
                    return Err(refused.into_error());
                }
            }
            match cancel {
                Some(cancel) => cancel.sleep(pauses()),
                None => sleep(pauses()),
            }
        }
    }

    /// Sends a request that waits, and leaves it alone when the wait is cancelled.
    fn post_unless(
        &self,
        cancel: &Cancel,
        path: String,
        tag: String,
        body: Value,
        timeout: Duration,
    ) -> Outcome {
        let transport = Arc::clone(&self.transport);
        let posted = cancel.unless_cancelled(move || transport.post(&path, &tag, &body, timeout));
        posted.unwrap_or_else(|| Outcome::Unknown("the wait was cancelled".into()))
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
        Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        let (begin, mut pauses) = (SystemClock.now(), pauses());
        loop {
            // Each try is a request of its own: trust begins with the one that was answered.
            let start = SystemClock.now();
            let secret = &grant.secret;
            match Kind::Name.call(&self.transport, "renew", "", secret, Some(ttl), PATIENCE) {
                Ok(value) => {
                    let lease = lease(&value).ok_or_else(nonsense)?;
                    return Ok(Grant { lease, start: Some(start), ..grant.clone() });
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
        let body = json!({ "grant": grant.secret });
        let (mut pauses, mut may_be_done) = (pauses(), false);
        for tries in 0.. {
            match self.transport.call("release", &unique(), &body, PATIENCE) {
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
        let body = json!({ "grant": grant.secret, "new_owner": to, "ttl": ttl.as_secs_f64() });
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
    /// was lent out under this token; [`slots`](Client::slots) shows both. If the answer is lost,
    /// it is asked for again: then a lease that is over was ended by the first request.
    pub fn break_slot(&self, name: &str, position: i64, token: i64) -> Result<bool, Error> {
        let body = json!({ "name": name, "position": position, "token": token });
        let told = self.insist("slot/break", &body)?;
        let is_repeated = told.is_repeated;
        let was_lent = told.done()?["returned"].as_bool().ok_or_else(nonsense)?;
        Ok(was_lent || is_repeated)
    }
}

impl Grant {
    /// Returns the grant that this secret opens, to renew, release or transfer it. Its lease is not
    /// known before that.
    pub fn with_secret(secret: &str) -> Self {
        let (name, owner) = (String::new(), String::new());
        let lease = Lease { name, owner, token: 0, expires_in: Duration::ZERO };
        Grant { lease, secret: secret.into(), start: None }
    }

    /// Returns the secret. Everyone who knows it may renew and release the lease.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Checks whether the client may act on the grant now: no other client can have been granted
    /// the name. False for a grant that was waited for, until it is renewed.
    pub fn is_trusted(&self) -> bool {
        self.start.is_some_and(|start| is_trusted(start, self.lease.expires_in))
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The secret is nobody else's.
        f.debug_struct("Grant").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl From<&Lease> for litelease_core::Lease {
    /// Counts the end of the lease on this machine's wall clock.
    fn from(lease: &Lease) -> Self {
        let Lease { name, owner, token, expires_in } = lease.clone();
        litelease_core::Lease { name, owner, token, expires_at_ms: from_now(expires_in) }
    }
}

impl From<litelease_core::Lease> for Lease {
    fn from(lease: litelease_core::Lease) -> Self {
        let litelease_core::Lease { name, owner, token, expires_at_ms } = lease;
        let left_ms = expires_at_ms.saturating_sub(from_now(Duration::ZERO));
        let expires_in = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        Lease { name, owner, token, expires_in }
    }
}

/// Returns a time on this machine's wall clock, in Unix milliseconds.
pub(crate) fn from_now(left: Duration) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.saturating_add(left).as_millis()).unwrap_or(i64::MAX)
}

/// Checks whether something that was asked for at `start`, and granted for `lasts`, is trusted.
pub(crate) fn is_trusted(start: Duration, lasts: Duration) -> bool {
    Window::new(lasts).is_some_and(|window| SystemClock.now() < window.end(start))
}

pub(crate) fn lease(value: &Value) -> Option<Lease> {
    Some(Lease {
        name: value["name"].as_str()?.into(),
        owner: value["owner"].as_str()?.into(),
        token: value["token"].as_i64()?,
        expires_in: duration(&value["expires_in"])?,
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

/// Reads a time as the service writes it.
pub(crate) fn duration(seconds: &Value) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds.as_f64()?).ok()
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
