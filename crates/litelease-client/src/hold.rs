//! Holding a name: claimed, renewed in the background, and given back.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use litelease_hold::{
    Clock, Hold, HolderKind, Identity, Keeper, Kept, Loss, Renewal, SystemClock, Window,
};

use crate::client::{Client, Grant, Secret};
use crate::error::Error;
use crate::rows::{Secrets, ServerRows};

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
}

impl HoldOptions {
    /// Returns options that do not wait, with an owner text that names this process.
    pub fn new(ttl: Duration) -> Self {
        HoldOptions { ttl, wait: Duration::ZERO, owner: None }
    }

    /// Waits for the name, first come, first served.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the owner text, which everybody may see.
    pub fn owner(mut self, owner: &str) -> Self {
        self.owner = Some(owner.into());
        self
    }
}

/// A name or a slot that this process holds. Dropping it releases it.
pub struct Held {
    pub(crate) kept: Arc<Kept>,
    grant: Grant,
    pub(crate) is_released: bool,
}

impl Client {
    /// Claims a name and renews it in the background until it is released or lost.
    ///
    /// A grant that was waited for is renewed before this returns, and trusted from the start of
    /// that renewal on.
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
        let HoldOptions { ttl, wait, owner } = options;
        let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        // The server knows no processes of other machines, so this owner is never judged dead.
        let owner = owner.unwrap_or_else(|| Identity::new(HolderKind::Claim).to_string());
        self.keep(self.claim(name, &owner, ttl, wait)?, ttl, window)
    }

    /// Begins to renew a grant in the background. One that is not trusted yet is renewed first.
    pub(crate) fn keep(
        &self,
        mut grant: Grant,
        ttl: Duration,
        window: Window,
    ) -> Result<Held, Error> {
        if grant.trusted_until.is_none() {
            grant = match self.renew(&grant, ttl) {
                // It was over before it could be trusted.
                Err(Error::Rejected { .. }) => return Err(Error::Lost(Loss::Expired)),
                renewed => renewed?,
            };
        }
        let until = grant.trusted_until.unwrap_or_default();
        if SystemClock.now() >= until {
            let _ = self.release(&grant);
            return Err(Error::Lost(Loss::Expired));
        }
        let (name, token) = (grant.lease.name.clone(), grant.lease.token);
        let owner = grant.lease.owner.clone();
        let kept = litelease_hold::HeldGrant { name: name.clone(), owner, token, ttl };
        // The window of a hold that began at `start` ends at `until`.
        let start = until.saturating_sub(window.end(Duration::ZERO));
        let hold = Hold::new(kept, window, start, Renewal::whole(0));
        // Names and slots are numbered apart from each other.
        let is_slot = matches!(grant.secret, Secret::Slot { .. });
        let (secrets, group) = match is_slot {
            false => (self.secrets(0), self.base.clone()),
            true => (self.secrets(1), format!("{} slots", self.base)),
        };
        secrets
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((name, token), (grant.secret.clone(), until));
        let transport = Arc::clone(&self.transport);
        let open = || Ok::<_, Infallible>(Box::new(ServerRows::new(transport, secrets)) as _);
        let kept = match self.keeper()?.keep(&group, hold, open) {
            Ok(kept) => kept,
            Err(never) => match never {},
        };
        Ok(Held { kept: Arc::new(kept), grant, is_released: false })
    }

    /// Returns the keeper of this client. It has a thread of its own, so that a slow server keeps
    /// no other holds of the process from being renewed.
    pub(crate) fn keeper(&self) -> Result<Arc<Keeper>, Error> {
        if let Some(keeper) = self.keeper.get() {
            return Ok(keeper.clone());
        }
        let keeper = Arc::new(Keeper::new(Arc::new(SystemClock)));
        keeper.clone().start().map_err(Error::NoThread)?;
        Ok(self.keeper.get_or_init(|| keeper).clone())
    }
}

impl Held {
    /// Checks whether the name can be trusted to be this process's. Fails in time: before another
    /// client can be granted it.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.kept.hold.check(SystemClock.now())?)
    }

    /// Returns the fencing token.
    pub fn token(&self) -> i64 {
        self.kept.hold.grant().token
    }

    /// Returns the name that is held, or that of the pool.
    pub fn name(&self) -> &str {
        &self.kept.hold.grant().name
    }

    /// Returns the owner text, which everybody may see.
    pub fn owner(&self) -> &str {
        &self.kept.hold.grant().owner
    }

    /// Returns the secret of the grant. Everyone who knows it may renew and release it.
    pub fn secret(&self) -> &str {
        self.grant.secret.text()
    }

    /// Returns for how long it can be trusted from now on if no further renewal succeeds.
    pub fn trusted_for(&self) -> Duration {
        let now = SystemClock.now();
        match self.kept.hold.check(now) {
            Ok(()) => self.kept.hold.trusted_until().saturating_sub(now),
            Err(_) => Duration::ZERO,
        }
    }

    /// Returns why it is lost or, before that, why the last renewal failed, if it did.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error, HoldOptions};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// # let held = client.hold("backup", HoldOptions::new(Duration::from_secs(30)))?;
    /// if let Some(trouble) = held.trouble() {
    ///     eprintln!("{trouble}");
    /// }
    /// # Ok::<(), Error>(())
    /// ```
    pub fn trouble(&self) -> Option<Loss> {
        let hold = &self.kept.hold;
        hold.check(SystemClock.now()).err().or_else(|| hold.trouble())
    }

    /// Returns the grant, for the calls on it: [`Client::attach`], [`Client::progress`],
    /// [`Client::checkpoint`], [`Client::hand_over`]. Whether it can be trusted is for
    /// [`check`](Held::check) to say.
    pub fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Calls `callback` on a thread of its own when the name is lost; at once if it already is.
    pub fn on_lost(&self, callback: impl FnOnce(&Loss) + Send + 'static) {
        self.kept.hold.on_lost(callback);
    }

    /// Releases the name. If the server cannot be reached, it is tried again in the background
    /// until the lease is over.
    pub fn release(self) -> Result<(), Error> {
        self.release_within(Duration::ZERO)
    }

    /// Releases it like [`release`](Held::release), and tries again here for so long if the server
    /// cannot be reached: for a program that ends then.
    pub fn release_within(mut self, patience: Duration) -> Result<(), Error> {
        self.is_released = true;
        Ok(self.kept.release(patience)?)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_released {
            // If this fails, the keeper tries again until the lease is over.
            let _ = self.kept.release(Duration::ZERO);
        }
    }
}

impl Client {
    /// Returns the secrets that the keeper uses: 0 for names, 1 for slots.
    fn secrets(&self, kind: usize) -> Secrets {
        let new = || Arc::new(Mutex::new(HashMap::new()));
        self.secrets.get_or_init(|| [new(), new()])[kind].clone()
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret is nobody else's.
        f.debug_struct("Held").field("kept", &self.kept).finish_non_exhaustive()
    }
}
