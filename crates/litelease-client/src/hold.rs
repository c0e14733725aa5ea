//! Holding a name or a slot: claimed, renewed in the background, and given back.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use litelease_core::Lease;
use litelease_hold::{
    Cancel, Claimed, Clock, Granted, HoldLimits, HolderKind, Home, Identity, NoKeeper, Place, Rows,
    SystemClock, Wish, hold,
};
use serde_json::{Value, json};

use crate::client::{Client, Grant, nonsense};
use crate::error::Error;
use crate::kind::Kind;
use crate::rows::ServerRows;

/// How to hold a name.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_client::HoldOptions;
/// let options = HoldOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(300)).owner("ci");
/// ```
#[derive(Clone, Debug)]
pub struct HoldOptions {
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) owner: Option<String>,
    pub(crate) limits: HoldLimits,
    pub(crate) cancel: Option<Cancel>,
}

impl HoldOptions {
    /// Returns options that do not wait, with an owner text that names this process.
    pub fn new(ttl: Duration) -> Self {
        HoldOptions {
            ttl,
            wait: Duration::ZERO,
            owner: None,
            limits: HoldLimits::default(),
            cancel: None,
        }
    }

    /// Waits for the name, first come, first served.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Renews only while [`progress`](litelease_hold::Held::progress) is noted within this time.
    /// The hold keeps this limit itself; one that the server keeps is [`Client::limit`].
    pub fn progress_within(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.progress_within = time.into();
        self
    }

    /// Holds for this long at the most. The hold keeps this limit itself, too.
    pub fn max_time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.max_time = time.into();
        self
    }

    /// Ends the wait early when this is cancelled: the client leaves the queue of the server.
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Sets the owner text, which everybody may see.
    pub fn owner(mut self, owner: &str) -> Self {
        self.owner = Some(owner.into());
        self
    }
}

/// A name or a slot that this process holds, with the methods of
/// [`litelease_hold::Held`](litelease_hold::Held): `check`, `token`, `lost`, `on_lost`. Dropping it
/// releases it.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{Client, Error, HoldOptions};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30)))?;
/// held.check()?; // fails before another client can be granted the name
/// println!("trusted for {:?}, under token {}", held.trusted_for(), held.token());
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
#[must_use = "a hold that is dropped is released"]
pub struct Held {
    held: litelease_hold::Held,
    grant: Grant,
}

impl Client {
    /// Claims a name and renews it in the background until it is released or lost.
    ///
    /// A grant that was waited for is renewed before this returns, and trusted from the start of
    /// that renewal on. A break, or a grant to another owner, is reported within about a second if
    /// the access key may observe the name, and at the next renewal otherwise.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error, HoldOptions};
    /// let client = Client::open("http://127.0.0.1:7070")?;
    /// let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30)))?;
    /// held.check()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hold(&self, name: &str, options: HoldOptions) -> Result<Held, Error> {
        let HoldOptions { ttl, wait, owner, limits, cancel } = options;
        // The server knows no processes of other machines, so this owner is never judged dead.
        let owner = owner.unwrap_or_else(|| Identity::new(HolderKind::Claim).to_string());
        let claim = json!({ "name": name, "owner": owner });
        let mut place = ServerPlace::new(self, Kind::Name, claim);
        let wish = Wish { limits, cancel: cancel.as_ref(), ..Wish::new(name, &owner, ttl) };
        Ok(hold(&mut place, &wish, ttl, wait)?.into())
    }

    /// Returns the keeper of what is of this kind.
    pub(crate) fn home(&self, kind: &Kind) -> Result<Home, NoKeeper> {
        Ok(Home { keeper: self.keeper.get()?, key: kind.path().into() })
    }
}

impl Held {
    /// Returns the secret of the grant. Everyone who knows it may renew and release it.
    pub fn secret(&self) -> &str {
        self.grant.secret()
    }

    /// Returns the grant of a name, for the calls on it: [`Client::attach`], [`Client::progress`],
    /// [`Client::checkpoint`], [`Client::hand_over`]. Whether it can be trusted is for `check` to
    /// say.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Releases it, and tries for a few seconds if the server cannot be reached. After that it is
    /// tried in the background until the lease is over.
    pub fn release(self) -> Result<(), Error> {
        Ok(self.held.release()?)
    }

    /// Releases it like [`release`](Held::release), and tries here for this long: for a program
    /// that ends then.
    pub fn release_within(self, time: Duration) -> Result<(), Error> {
        Ok(self.held.release_within(time)?)
    }
}

impl From<litelease_hold::Held> for Held {
    fn from(held: litelease_hold::Held) -> Self {
        let secret = held.grant().secret.clone();
        let grant = Grant { lease: held.lease().into(), secret, start: None };
        Held { held, grant }
    }
}

/// Without the secret of its grant.
impl From<Held> for litelease_hold::Held {
    fn from(held: Held) -> Self {
        held.held
    }
}

impl Deref for Held {
    type Target = litelease_hold::Held;

    fn deref(&self) -> &litelease_hold::Held {
        &self.held
    }
}

/// A server as a place, for one hold.
pub(crate) struct ServerPlace<'c> {
    client: &'c Client,
    kind: Kind,
    /// The body of the claim, without its times.
    claim: Value,
    /// The answer to the claim that was granted.
    pub(crate) answer: Value,
}

/// How long a grant that cannot be kept is tried to be given back.
const TAKE_BACK: Duration = Duration::from_secs(2);

impl<'c> ServerPlace<'c> {
    pub(crate) fn new(client: &'c Client, kind: Kind, claim: Value) -> Self {
        ServerPlace { client, kind, claim, answer: Value::Null }
    }
}

impl Place for ServerPlace<'_> {
    type Error = Error;

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    fn home(&self) -> Result<Home, NoKeeper> {
        self.client.home(&self.kind)
    }

    fn claim(&mut self, wish: &Wish<'_>) -> Result<Claimed, Error> {
        let Wish { name, ttl, wait, cancel, .. } = *wish;
        if let Some(dead) = wish.dead {
            // No call of the service takes the place of a holder that is not its client.
            return Ok(Claimed::Busy(dead.clone()));
        }
        self.answer = match self.client.acquire(&self.kind, &self.claim, ttl, wait, cancel) {
            Err(Error::Busy(current)) => return Ok(Claimed::Busy((&*current).into())),
            answer => answer?,
        };
        let (lease, secret) = self.kind.granted(name, &self.answer).ok_or_else(nonsense)?;
        let Client { transport, held_names, .. } = self.client;
        let attach = match self.kind {
            Kind::Name => Some(held_names.clone().follow(transport.clone(), lease.clone(), ttl)),
            _ => None,
        };
        let lasts = (lease.expires_in < ttl).then_some(lease.expires_in);
        let granted = Granted::whole((&lease).into());
        Ok(Claimed::Granted(Granted { secret, lasts, attach, ..granted }))
    }

    fn request(&mut self, _: &Wish<'_>) -> Result<Option<i64>, Error> {
        Ok(None)
    }

    fn accept(
        &mut self,
        _: &Wish<'_>,
        _: &Lease,
        _: Option<i64>,
    ) -> Result<Option<Granted>, Error> {
        Ok(None)
    }

    fn withdraw(&mut self, _: &Wish<'_>) -> Result<Option<Lease>, Error> {
        Ok(None)
    }

    fn take_back(&mut self, wish: &Wish<'_>) {
        if let Some((_, secret)) = self.kind.granted(wish.name, &self.answer) {
            // If this fails, the lease ends with its ttl.
            let (transport, name) = (&self.client.transport, wish.name);
            let _ = self.kind.call(transport, "release", name, &secret, None, TAKE_BACK);
        }
    }

    /// The claim itself has waited.
    fn wait(&mut self, _: &Wish<'_>, _: &Lease, _: Duration) {}

    /// The claim itself has tried again.
    fn pause(&mut self, _: &Error, _: Duration) -> bool {
        false
    }

    fn rows(&self) -> Result<Box<dyn Rows>, Error> {
        Ok(Box::new(ServerRows::new(self.client, self.kind.clone())))
    }
}
