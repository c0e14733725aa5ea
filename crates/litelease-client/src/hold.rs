//! Holds of a name or a slot: claims it, renews it in the background, and releases it.

use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use litelease_core::TickRequest;
use litelease_hold::{
    Acquired, Cancel, Clock, Granted, HoldError, HoldLimits, HolderKind, Home, Identity, Lost,
    NoKeeper, SystemClock, Window, keep,
};
use serde_json::Value;
use tokio::sync::watch;

use crate::client::{Client, Grant, begun};
use crate::error::Error;
use crate::kind::{GrantCall, Kind};
use crate::mode::{Async, Blocking, Mode, Untaken};
use crate::rows::ServerRows;
use crate::tick::TickWish;
use crate::transport::{Transport, died, to_json};

/// Options for holding a name.
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
    pub(crate) tick: Option<TickWish>,
}

impl HoldOptions {
    /// Returns options that do not wait, with an owner text that names this process.
    pub fn new(ttl: Duration) -> Self {
        let (wait, limits) = (Duration::ZERO, HoldLimits::default());
        HoldOptions { ttl, wait, owner: None, limits, cancel: None, tick: None }
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

    /// Ends the hold after this long. The hold keeps this limit itself, too.
    pub fn max_time(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.limits.max_time = time.into();
        self
    }

    /// Ends the wait early when this is cancelled: the client leaves the queue of the server.
    pub fn cancel(mut self, cancel: Cancel) -> Self {
        self.cancel = Some(cancel);
        self
    }

    /// Holds a [tick](Client::claim_tick), too. If it is taken, the hold fails with
    /// [`TickTaken`](Error::TickTaken) and does not wait. End it with [`finish`](Held::finish): a
    /// release leaves the tick to others.
    pub fn tick(mut self, tick: impl Into<TickRequest>) -> Self {
        let schedule = self.tick.and_then(|wish| wish.schedule);
        self.tick = Some(TickWish { asked: tick.into(), schedule });
        self
    }

    /// Names the schedule that has planned the tick, for [`ticks`](Client::ticks) to show. It
    /// follows [`tick`](HoldOptions::tick).
    pub fn schedule(mut self, text: &str) -> Self {
        if let Some(wish) = &mut self.tick {
            wish.schedule = Some(text.into());
        }
        self
    }

    /// Sets the owner text, which every client may see.
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
#[must_use = "a hold that is dropped is released"]
pub struct Held<M: Mode = Blocking> {
    /// `None` once the grant is released, and in `drop`.
    held: Option<litelease_hold::Held>,
    grant: Grant,
    transport: Arc<Transport>,
    losses: OnceLock<watch::Receiver<Option<Lost>>>,
    mode: PhantomData<M>,
}

impl<M: Mode> Client<M> {
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
    pub fn hold(&self, name: &str, options: HoldOptions) -> M::Answer<Held<M>> {
        // The server knows no processes of other machines, so this owner is never judged dead.
        let owner = || Identity::new(HolderKind::Claim).to_string();
        let owner = options.owner.clone().unwrap_or_else(owner);
        let (client, name) = (self.clone(), name.to_owned());
        M::obtain(&self.transport, async move {
            let claim = client.plain_claim(&name, &owner, options.ttl, None);
            let claim = to_json(&TickWish::claim(options.tick.as_ref(), claim));
            let acquired = client.acquire_held(Kind::Name, &name, claim, options).await?;
            let (mut held, answer, taken): (Held<M>, _, _) = acquired;
            held.grant.tick = begun(&answer);
            Ok((held, taken))
        })
    }

    /// Claims or borrows, and keeps the grant. Also returns the answer of the server.
    pub(crate) async fn acquire_held(
        &self,
        kind: Kind,
        name: &str,
        claim: Value,
        options: HoldOptions,
    ) -> Result<(Held<M>, Value, Untaken), Error> {
        let HoldOptions { ttl, wait, limits, cancel, .. } = options;
        // The grant itself ends with the limit, too.
        let first = limits.first(ttl);
        Window::new(first).ok_or(Error::TtlTooShort(first))?;
        // Checked before the claim: a process without a keeper must not be granted anything.
        let home = self.home(&kind).map_err(HoldError::<Error>::from)?;
        let start = SystemClock.now();
        let (answer, untaken) = self.acquire(kind.clone(), claim, first, wait, cancel).await?;
        let (lease, secret) = kind.granted(name, answer.clone())?;
        let Client { transport, held_names, .. } = self.clone();
        let attach = match kind {
            Kind::Name => Some(held_names.follow(transport.clone(), lease.clone(), ttl)),
            _ => None,
        };
        let lasts = (lease.expires_in < ttl).then_some(lease.expires_in);
        let release = kind.request(GrantCall::Release, name, &secret, TAKE_BACK);
        let granted = Granted { lease: (&lease).into(), secret, lasts, limits, attach };
        let rows = ServerRows::new(self, kind);
        let taken = untaken.taken();
        let keep = move || {
            let kept = keep(&home, Acquired { granted, start }, ttl, || Ok(Box::new(rows) as _));
            // No keeper would renew it. If this release fails, the lease ends with its ttl.
            let same = Arc::clone(&transport);
            let give_back = async move { same.send(release).await };
            let held = kept.inspect_err(|_| drop(transport.wait(give_back)))?;
            Ok::<_, Error>(Held::new(transport, held))
        };
        let kept = self.transport.start_blocking(keep)?.await;
        Ok((kept.map_err(|_| died())??, answer, taken))
    }

    /// Returns the keeper of grants of this kind.
    pub(crate) fn home(&self, kind: &Kind) -> Result<Home, NoKeeper> {
        Ok(Home { keeper: self.keeper.get()?, key: kind.path().into() })
    }
}

impl<M: Mode> Held<M> {
    fn new(transport: Arc<Transport>, held: litelease_hold::Held) -> Self {
        let secret = held.grant().secret.clone();
        let grant = Grant { lease: held.lease().into(), secret, tick: None, start: None };
        let (losses, mode) = (OnceLock::new(), PhantomData);
        Held { held: Some(held), grant, transport, losses, mode }
    }

    /// Returns the secret of the grant. Everyone who knows it may renew and release it.
    pub fn secret(&self) -> &str {
        self.grant.secret()
    }

    /// Returns the grant of a name, for the calls on it: [`Client::attach`], [`Client::progress`],
    /// [`Client::checkpoint`], [`Client::hand_over`]. It does not say whether it can be trusted:
    /// `check` does.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Releases it, and tries for a few seconds if the server cannot be reached. Then the keeper
    /// goes on trying until the lease is over.
    pub fn release(self) -> M::Answer<()> {
        self.end(litelease_hold::Held::release)
    }

    /// Releases it like [`release`](Held::release), but tries here for this long: for a program
    /// that ends afterwards.
    pub fn release_within(self, time: Duration) -> M::Answer<()> {
        self.end(move |held| held.release_within(time))
    }

    fn end(
        mut self,
        release: impl FnOnce(litelease_hold::Held) -> Result<(), Lost> + Send + 'static,
    ) -> M::Answer<()> {
        let transport = Arc::clone(&self.transport);
        M::answer(&transport, async move {
            let held = self.held.take();
            let released = move || held.map_or(Ok(()), release);
            Ok(self.transport.start_blocking(released)?.await.map_err(|_| died())??)
        })
    }
}

impl Held<Async> {
    /// Waits until the name is lost, and returns why. Dropping the future costs nothing, so it fits
    /// into a `tokio::select!`.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{AsyncClient, Error, HoldOptions};
    /// # async fn example(client: AsyncClient) -> Result<(), Error> {
    /// let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30))).await?;
    /// let lost = held.lost().await;
    /// eprintln!("stop what needs the name: {lost}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) -> Lost {
        let losses = self.losses.get_or_init(|| {
            let (sender, losses) = watch::channel(None);
            self.on_lost(move |lost| _ = sender.send(Some(lost.clone())));
            losses
        });
        if let Ok(lost) = losses.clone().wait_for(Option::is_some).await
            && let Some(lost) = lost.as_ref()
        {
            return lost.clone();
        }
        // The hold has ended otherwise, and will not be lost.
        std::future::pending().await
    }
}

/// Leaves out the secret of the grant.
impl From<Held> for litelease_hold::Held {
    fn from(mut held: Held) -> Self {
        held.held.take().unwrap_or_else(|| unreachable!("it is taken out at the end"))
    }
}

impl<M: Mode> Deref for Held<M> {
    type Target = litelease_hold::Held;

    fn deref(&self) -> &litelease_hold::Held {
        self.held.as_ref().unwrap_or_else(|| unreachable!("it is taken out at the end"))
    }
}

impl<M: Mode> Drop for Held<M> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            M::detach(&self.transport, move || drop(held));
        }
    }
}

impl<M: Mode> std::fmt::Debug for Held<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("grant", &self.grant).finish_non_exhaustive()
    }
}

/// How long to try to release a grant that cannot be kept.
const TAKE_BACK: Duration = Duration::from_secs(2);
