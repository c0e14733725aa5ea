//! The verbs: each is one request, or is repeated until it is answered.

use std::marker::PhantomData;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use litelease_hold::{Cancel, Clock, ProcessKeeper, SystemClock, Window, unique};
use litelease_wire::{self as wire, Refusal};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::access::{Key, ServerUrl};
use crate::builder;
use crate::connection::Connections;
use crate::held_names::HeldNames;
use crate::kind::{GrantCall, Kind};
use crate::mode::{Blocking, Mode, Untaken};
use crate::retry::refusal;
use crate::tick::{self, BegunTick, TickWish};
use crate::transport::{Message, Outcome, Transport, to_json, typed};

/// A client of one server. A clone of it is the same client.
///
/// It blocks unless it is an `AsyncClient`, whose verbs return futures: see [`Mode::Answer`].
///
/// ```
/// # use litelease_client::Client;
/// let client = Client::open("http://127.0.0.1:7070")?;
/// # Ok::<(), litelease_client::Error>(())
/// ```
#[derive(Clone)]
pub struct Client<M: Mode = Blocking> {
    pub(crate) transport: Arc<Transport>,
    /// Renews the holds of this client on a thread of its own, so that a slow server delays no
    /// other holds of the process.
    pub(crate) keeper: Arc<ProcessKeeper>,
    pub(crate) held_names: Arc<HeldNames>,
    pub(crate) note: Option<Arc<str>>,
    pub(crate) mode: PhantomData<M>,
}

/// A live lease, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The name.
    pub name: String,
    /// The owner text of the holder.
    pub owner: String,
    /// The fencing token.
    pub token: i64,
    /// How long the lease had left when the server answered.
    pub expires_in: Duration,
    /// How long ago its grant began when the server answered, where the lease is shown. `None` in
    /// the answer to a claim or a renewal.
    pub held_for: Option<Duration>,
}

/// A grant: a lease, and the secret by which it is renewed and released.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The lease.
    pub lease: Lease,
    pub(crate) secret: String,
    /// The tick that it runs, if it was claimed with one, or such a lease was transferred.
    pub tick: Option<BegunTick>,
    /// The moment from which the grant is trusted, by the system's clock that counts suspend;
    /// `None` if it must be renewed first.
    pub(crate) start: Option<Duration>,
}

/// A claim or a borrow. The server takes all its requests for one, because they have one key.
struct Attempt {
    kind: Kind,
    /// The body, without its times.
    claim: Value,
    ttl: Duration,
    /// The key.
    tag: String,
}

/// How long the server may take to notice that a connection was closed.
pub(crate) const UNTIL_NOTICED: Duration = Duration::from_secs(1);

/// How often a wait asks whether it was cancelled, and how long the try may take that ends it.
const CANCEL_POLL: Duration = Duration::from_millis(20);
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
        Client::trusting(&server, key, None)
    }

    /// Prepares to talk to a server, with this access key.
    ///
    /// ```
    /// # use litelease_client::{Client, Error};
    /// let plain = Client::with_key("http://lease.example", "litelease-…");
    /// assert!(matches!(plain, Err(Error::Insecure)));
    /// ```
    pub fn with_key(url: &str, key: &str) -> Result<Self, Error> {
        Client::trusting(&ServerUrl::parse(url)?, Some(Key::named(key)), None)
    }

    /// Prepares to talk to a server without a key, for calls whose path is a secret.
    pub(crate) fn without_key(url: &str) -> Result<Self, Error> {
        let server = ServerUrl::parse(url)?;
        server.check(Some(""))?;
        Client::trusting(&server, None, None)
    }

    /// Prepares to talk to a server whose certificate comes from a CA in this file, or in the one
    /// that the environment names.
    pub(crate) fn trusting(
        server: &ServerUrl,
        key: Option<Key>,
        ca_file: Option<&Path>,
    ) -> Result<Self, Error> {
        server.check(key.as_ref().map(|key| key.text.as_str()))?;
        let connections = Connections::new(server, key, builder::roots(server, ca_file)?)?;
        let transport = Arc::new(Transport::new(connections));
        let (keeper, held_names) = (Arc::default(), Arc::default());
        Ok(Client { transport, keeper, held_names, note: None, mode: PhantomData })
    }
}

impl<M: Mode> Client<M> {
    /// Returns the same client, which says who asks and why: a claim that waits has this `note`
    /// among the waiters of its name, and a break, a redrive or a discard has it as its `reason` in
    /// the log of the server. At most 200 bytes.
    ///
    /// ```no_run
    /// # use litelease_client::{Client, Error};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// client.with_note("its host is gone").break_lease("backup")?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn with_note(&self, note: &str) -> Self {
        Client { note: Some(note.into()), ..self.clone() }
    }

    /// Returns the note, for a request.
    pub(crate) fn note(&self) -> Option<String> {
        self.note.as_deref().map(str::to_owned)
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
    ) -> M::Answer<Grant> {
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
    ) -> M::Answer<Grant> {
        self.claim_with(name, owner, ttl, wait, above, None)
    }

    pub(crate) fn claim_with(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        wait: Duration,
        above: i64,
        tick: Option<&TickWish>,
    ) -> M::Answer<Grant> {
        let min_token = Some(above).filter(|above| *above > 0);
        let claim = TickWish::claim(tick, self.plain_claim(name, owner, ttl, min_token));
        let client = self.clone();
        M::obtain(&self.transport, async move {
            let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
            let start = SystemClock.now();
            let acquired = client.acquire(Kind::Name, to_json(&claim), ttl, wait, None).await?;
            let (value, untaken) = acquired;
            let tick = begun(&value);
            let (lease, secret) = Kind::Name.granted("", value)?;
            // A grant that was waited for, or nearly so, is not trusted before its first renewal.
            let is_new = SystemClock.now() < start + window.interval(None);
            Ok((Grant { lease, secret, tick, start: is_new.then_some(start) }, untaken))
        })
    }

    /// Returns a claim that does not wait.
    pub(crate) fn plain_claim(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        min_token: Option<i64>,
    ) -> wire::Claim {
        let (name, owner, ttl) = (name.into(), owner.into(), seconds(ttl));
        let (tick_ms, attempts, schedule) = (None, None, None);
        let note = self.note();
        wire::Claim { name, owner, ttl, wait: 0.0, min_token, note, tick_ms, attempts, schedule }
    }

    /// Sends a claim, or a borrow, until it is granted, refused, or the time to wait is over. If
    /// this is dropped meanwhile, or what it returns, nothing stays granted.
    ///
    /// A wait that is cancelled ends with one more try, which does not wait: the server answers
    /// what it has granted to the others, or takes them out of its queue.
    pub(crate) async fn acquire(
        &self,
        kind: Kind,
        claim: Value,
        ttl: Duration,
        wait: Duration,
        cancel: Option<Cancel>,
    ) -> Result<(Value, Untaken), Error> {
        let attempt = Arc::new(Attempt { kind, claim, ttl, tag: unique() });
        let (client, given_up) = (self.clone(), Arc::clone(&attempt));
        let untaken =
            Untaken::new(&self.transport, async move { client.give_back(&given_up).await });
        let mut waited = pin!(self.acquire_once(&attempt, wait));
        let answer = loop {
            let Some(cancel) = &cancel else { break waited.await };
            match timeout(CANCEL_POLL, &mut waited).await {
                Ok(answer) => break answer,
                Err(_) if !cancel.is_cancelled() => {}
                Err(_) => {
                    let last = self.acquire_once(&attempt, Duration::ZERO);
                    let unreached = || Error::Unreachable("the wait was cancelled".into());
                    break timeout(LAST_TRY, last).await.unwrap_or_else(|_| Err(unreached()));
                }
            }
        };
        match answer {
            Ok(value) => Ok((value, untaken)),
            Err(error) => {
                untaken.taken();
                Err(error)
            }
        }
    }

    /// Releases what the server has granted to an attempt that was given up, or is about to.
    ///
    /// Asks for the grant under the same key. The server may notice the end of the connection of
    /// the request that has waited a moment after that, and grant it the name: so asks twice.
    async fn give_back(&self, attempt: &Attempt) {
        let Attempt { kind, claim, .. } = attempt;
        for pause in [Duration::ZERO, UNTIL_NOTICED] {
            sleep(pause).await;
            let Ok(value) = self.acquire_once(attempt, Duration::ZERO).await else { continue };
            let name = claim["name"].as_str().unwrap_or_default();
            let Ok((_, secret)) = kind.granted(name, value) else { return };
            let (begin, mut pauses) = (SystemClock.now(), pauses());
            // If this fails, the lease ends with its ttl.
            while let Err(Error::Unreachable(_)) =
                self.call(kind, GrantCall::Release, name, &secret, PATIENCE).await
                && SystemClock.now() < begin + attempt.ttl
            {
                sleep(pauses()).await;
            }
            return;
        }
    }

    /// Sends the requests of one attempt, which are one request for the server. A refusal that
    /// names no holder is not final: the name has come free just as the wait ended.
    async fn acquire_once(&self, attempt: &Attempt, wait: Duration) -> Result<Value, Error> {
        let Attempt { kind, claim, ttl, tag } = attempt;
        let (first, ttl) = (SystemClock.now(), *ttl);
        let mut body = claim.clone();
        body["ttl"] = ttl.as_secs_f64().into();
        let (mut pauses, mut was_heard, mut trouble) = (pauses(), false, None);
        loop {
            let left = wait.saturating_sub(SystemClock.now().saturating_sub(first));
            let left = left.min(LONGEST_WAIT);
            body["wait"] = left.as_secs_f64().into();
            let (path, tag, body) = (kind.claim_path(), tag.clone(), Some(body.clone()));
            let request = Message { path, tag, body, timeout: left + PATIENCE };
            let outcome = self.transport.send(request).await;
            let now = SystemClock.now();
            was_heard |= !matches!(outcome, Outcome::Unreached(_));
            if let Outcome::No(no) = &outcome
                && let Some(error) = tick::refused(no)
            {
                return Err(error);
            }
            let outcome = match outcome {
                Outcome::No(value) if now.saturating_sub(first) >= wait => match kind.busy(value) {
                    Some(error) => return Err(error),
                    None => Outcome::Unknown("the name has just come free".into()),
                },
                outcome => outcome,
            };
            match outcome {
                Outcome::Done(value) => return Ok(value),
                // The server lets no client wait as long as this one wants to.
                Outcome::No(_) => trouble = None,
                Outcome::Unknown(why) | Outcome::Unreached(why) => {
                    let lasted = now.saturating_sub(*trouble.get_or_insert(now));
                    // What a lost answer has granted ends with its ttl: no need to ask longer. If
                    // nothing was ever sent, there may be no server.
                    let most = if was_heard { ttl.max(PATIENCE) } else { ttl.min(PATIENCE / 2) };
                    if lasted > most || now.saturating_sub(first) > wait.saturating_add(ttl) {
                        return Err(Error::Unreachable(why));
                    }
                }
                refused @ (Outcome::Refused { .. } | Outcome::Misconfigured(_)) => {
                    return Err(refused.into_error());
                }
            }
            sleep(pauses()).await;
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
    pub fn renew(&self, grant: &Grant, ttl: Duration) -> M::Answer<Grant> {
        let (client, grant) = (self.clone(), grant.clone());
        M::answer(&self.transport, async move {
            Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
            let (begin, mut pauses) = (SystemClock.now(), pauses());
            loop {
                // Each try is a request of its own: trust begins with the one that was answered.
                let start = SystemClock.now();
                let secret = &grant.secret;
                let renew = GrantCall::Renew(ttl);
                match client.call(&Kind::Name, renew, "", secret, PATIENCE).await {
                    Ok(value) => {
                        let (lease, _) = Kind::Name.granted("", value)?;
                        return Ok(Grant { lease, start: Some(start), ..grant });
                    }
                    Err(Error::Unreachable(why)) if start.saturating_sub(begin) > ttl => {
                        return Err(Error::Unreachable(why));
                    }
                    Err(Error::Unreachable(_)) => sleep(pauses()).await,
                    Err(error) => return Err(error),
                }
            }
        })
    }

    /// Sends a call on a grant once.
    pub(crate) async fn call(
        &self,
        kind: &Kind,
        call: GrantCall,
        name: &str,
        secret: &str,
        timeout: Duration,
    ) -> Result<Value, Error> {
        let request = kind.request(call, name, secret, timeout);
        kind.read(secret, self.transport.send(request).await)
    }

    /// Releases a grant. That it is over already is fine.
    pub fn release(&self, grant: &Grant) -> M::Answer<()> {
        let (client, grant) = (self.clone(), grant.clone());
        M::answer(&self.transport, async move {
            match client.end_of(&grant).await {
                Ok(_) | Err(Error::Rejected { .. }) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    /// Releases a grant, and returns its name and token. Fails with `Rejected` if it is over
    /// already. If the answer is lost, it is asked for again: then a grant that is over was
    /// released by the first request, also if the name has a new owner by now.
    pub fn end(&self, grant: &Grant) -> M::Answer<(String, i64)> {
        let (client, grant) = (self.clone(), grant.clone());
        M::answer(&self.transport, async move { client.end_of(&grant).await })
    }

    async fn end_of(&self, grant: &Grant) -> Result<(String, i64), Error> {
        let (mut pauses, mut may_be_done) = (pauses(), false);
        for tries in 0.. {
            let release = wire::Release { grant: grant.secret.clone() };
            match self.once(&release).await {
                Outcome::Done(value) => {
                    let released: wire::Released = typed(value)?;
                    return Ok((released.name, released.token));
                }
                Outcome::No(value) => {
                    let no = refusal(value);
                    if may_be_done && ["released", "superseded"].contains(&no.reason.as_str()) {
                        return Ok((grant.lease.name.clone(), grant.lease.token));
                    }
                    return Err(rejected(no));
                }
                Outcome::Unknown(_) if tries < 5 => may_be_done = true,
                Outcome::Unreached(_) if tries < 5 => {}
                outcome => return Err(outcome.into_error()),
            }
            sleep(pauses()).await;
        }
        Err(nonsense())
    }

    /// Sends a request on names once, under a key of its own.
    pub(crate) async fn once<R: wire::Request>(&self, request: &R) -> Outcome {
        self.transport.send(Message::new(request, PATIENCE)).await
    }

    /// Sends a request on names once and not again, and reads its answer.
    fn ask_once<R: wire::Request, T: Send + 'static>(
        &self,
        request: R,
        read: fn(R::Answer) -> T,
    ) -> M::Answer<T> {
        let client = self.clone();
        M::answer(&self.transport, async move {
            match client.once(&request).await {
                Outcome::Done(value) => typed(value).map(read),
                Outcome::No(value) => Err(rejected(refusal(value))),
                outcome => Err(outcome.into_error()),
            }
        })
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
    pub fn transfer(&self, grant: &Grant, to: &str, ttl: Duration) -> M::Answer<Lease> {
        let (grant, new_owner) = (grant.secret.clone(), to.into());
        // Sent only once: if a lost answer was a yes, the grant belongs to the new owner now.
        self.ask_once(wire::Transfer { grant, new_owner, ttl: seconds(ttl) }, Lease::from)
    }

    /// Ends the lease of any holder. Returns its owner and its token, which is superseded.
    pub fn break_lease(&self, name: &str) -> M::Answer<(String, i64)> {
        // Sent only once: another client may have the name before the second request.
        let request = wire::Break { name: name.into(), reason: self.note() };
        self.ask_once(request, |broken| (broken.owner, broken.killed))
    }

    /// Ends any holder's lease on a slot of the pool that has this name. Returns whether the slot
    /// was lent out under this token; [`slots`](Client::slots) shows both. A lost answer is asked
    /// for again: then a lease that has ended counts as ended by the first request.
    pub fn break_slot(&self, name: &str, position: i64, token: i64) -> M::Answer<bool> {
        let (name, reason) = (name.into(), self.note());
        self.ask(wire::SlotBreak { name, position, token, reason }, |reply| {
            let is_repeated = reply.is_repeated;
            Ok(reply.done()?.returned || is_repeated)
        })
    }
}

impl Grant {
    /// Returns the grant that this secret opens, to renew, release or transfer it. Its lease is not
    /// known before that.
    pub fn with_secret(secret: &str) -> Self {
        let (name, owner) = (String::new(), String::new());
        let (expires_in, held_for) = (Duration::ZERO, None);
        let lease = Lease { name, owner, token: 0, expires_in, held_for };
        Grant { lease, secret: secret.into(), tick: None, start: None }
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
        // The secret is not printed.
        f.debug_struct("Grant").field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl From<&Lease> for litelease_core::Lease {
    /// Counts the end of the lease on this machine's wall clock.
    fn from(lease: &Lease) -> Self {
        let Lease { name, owner, token, expires_in, .. } = lease.clone();
        litelease_core::Lease { name, owner, token, expires_at_ms: from_now(expires_in) }
    }
}

impl From<litelease_core::Lease> for Lease {
    fn from(lease: litelease_core::Lease) -> Self {
        let litelease_core::Lease { name, owner, token, expires_at_ms } = lease;
        let left_ms = expires_at_ms.saturating_sub(from_now(Duration::ZERO));
        let expires_in = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0));
        Lease { name, owner, token, expires_in, held_for: None }
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

impl From<wire::Lease> for Lease {
    fn from(lease: wire::Lease) -> Self {
        let wire::Lease { name, owner, token, expires_in, held_for, .. } = lease;
        let (expires_in, held_for) = (expires_in.duration(), Some(held_for.duration()));
        Lease { name, owner, token, expires_in, held_for }
    }
}

pub(crate) fn rejected(no: Refusal) -> Error {
    let current = no.current.map(|current| Box::new(current.into()));
    Error::Rejected { reason: no.reason, by: no.by, current }
}

/// Reads the tick of a new grant.
pub(crate) fn begun(granted: &Value) -> Option<BegunTick> {
    let begun: wire::BegunTick = serde_json::from_value(granted.get("tick")?.clone()).ok()?;
    Some(begun.into())
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

#[cfg(test)]
mod tests;
