//! Deliveries that are extended in the background while a worker has them.

use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use litelease_hold::{
    Clock, Due, HeldGrant, Hold, Kept, Loss, Renewal, Rows, Seen, SystemClock, Window,
};
use serde_json::{Value as Json, json};

use crate::client::PATIENCE;
use crate::queue::duration;
use crate::transport::{Outcome, Transport};
use crate::{Error, Item, Queue};

/// An item whose delivery is extended in the background, until the last copy of this is dropped. It
/// has the fields of [`Item`]. Dropping it settles nothing: acknowledge the item or give it back.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{Client, Error};
/// # let client = Client::open("http://127.0.0.1:7070")?;
/// let (mail, visibility) = (client.queue("mail"), Duration::from_secs(30));
/// if let Some(item) = mail.receive(visibility, Duration::ZERO)? {
///     let held = mail.keep(item, visibility)?;
///     for page in 0..100 {
///         held.check()?; // fails before another worker can have the item
///         println!("page {page} of item {}", held.id);
///     }
///     mail.ack(&held.receipt)?;
/// }
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct HeldItem(Arc<Inner>);

struct Inner {
    item: Item,
    kept: Kept,
}

impl Queue<'_> {
    /// Extends the delivery of an item in the background, as [`Client::hold`](crate::Client::hold)
    /// renews a lease. One that was waited for is extended before this returns.
    pub fn keep(&self, mut item: Item, visibility: Duration) -> Result<HeldItem, Error> {
        let window = Window::new(visibility).ok_or(Error::TtlTooShort(visibility))?;
        let whole = window.end(Duration::ZERO);
        let now = SystemClock.now();
        if now + whole > item.trusted_until + window.interval() {
            let left = self.extend_within(&item.receipt, visibility, PATIENCE)?;
            let end = window.end_of(now, (left < visibility).then_some(left));
            item.trusted_until = item.trusted_until.max(end);
        }
        if SystemClock.now() >= item.trusted_until {
            return Err(Error::Lost(Loss::Expired));
        }
        let grant = HeldGrant {
            name: self.name().into(),
            owner: item.receipt.clone(),
            token: item.token,
            ttl: visibility,
        };
        // The window of a hold that began at `start` ends when the item is trusted no more.
        let start = item.trusted_until.saturating_sub(whole);
        let hold = Hold::new(grant, window, start, Renewal::whole(0));
        let group = format!("{} items", self.client().base);
        let transport = Arc::clone(&self.client().transport);
        let open = || Ok::<_, Infallible>(Box::new(ItemRows { transport }) as _);
        match self.client().keeper()?.keep(&group, hold, open) {
            Ok(kept) => Ok(HeldItem(Arc::new(Inner { item, kept }))),
            Err(never) => match never {},
        }
    }
}

impl HeldItem {
    /// Checks whether the item can be trusted to be this worker's. Fails in time: before another
    /// worker can receive it.
    pub fn check(&self) -> Result<(), Error> {
        Ok(self.0.kept.hold.check(SystemClock.now())?)
    }

    /// Returns for how long it can be trusted from now on if no further extension succeeds.
    pub fn trusted_for(&self) -> Duration {
        let (now, hold) = (SystemClock.now(), &self.0.kept.hold);
        match hold.check(now) {
            Ok(()) => hold.trusted_until().saturating_sub(now),
            Err(_) => Duration::ZERO,
        }
    }

    /// Returns why it is lost or, before that, why the last extension failed, if it did.
    pub fn trouble(&self) -> Option<Loss> {
        let hold = &self.0.kept.hold;
        hold.check(SystemClock.now()).err().or_else(|| hold.trouble())
    }
}

impl Deref for HeldItem {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.0.item
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Nothing is extended any more. The server is not asked.
        let _ = self.kept.release(Duration::ZERO);
    }
}

impl fmt::Debug for HeldItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldItem").field(&self.0.item).finish()
    }
}

/// The deliveries of one client, as the keeper extends them.
struct ItemRows {
    transport: Arc<Transport>,
}

/// The shortest and the longest time that a request of the keeper may take.
const TIMEOUT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

impl ItemRows {
    fn extend(&self, grant: &HeldGrant) -> Result<Renewal, Loss> {
        let mut request = json!({ "receipt": grant.owner, "visibility": grant.ttl.as_secs_f64() });
        if !grant.name.is_empty() {
            request["queue"] = grant.name.as_str().into();
        }
        // While a request is under way the keeper does nothing else, and there is time for a few.
        let timeout = (grant.ttl / 6).clamp(TIMEOUT.0, TIMEOUT.1);
        let tag = litelease_hold::unique();
        match self.transport.call("queue/extend", &tag, &request, timeout) {
            Outcome::Done(told) => {
                let left = duration(&told["expires_in"]);
                // The deadline by the server's clock is never compared with this machine's.
                let granted = left.filter(|left| *left < grant.ttl);
                Ok(Renewal { expires_at_ms: 0, granted })
            }
            Outcome::No(no) => Err(loss(&no)),
            outcome => Err(Loss::CannotRenew { error: outcome.into_error().to_string() }),
        }
    }
}

/// Returns why a delivery was not extended.
fn loss(no: &Json) -> Loss {
    match no["reason"].as_str() {
        Some("expired") => Loss::Expired,
        reason => Loss::Stale { reason: reason.unwrap_or("unknown").replace('_', " ") },
    }
}

impl Rows for ItemRows {
    fn renew(&mut self, due: &[Due<'_>]) -> Vec<Result<Renewal, Loss>> {
        let mut trouble: Option<Loss> = None;
        let extend = |due: &Due<'_>| match &trouble {
            // A server that does not answer one request in time will not answer the next one.
            Some(trouble) => Err(trouble.clone()),
            None => {
                let extended = self.extend(due.grant);
                trouble = extended.as_ref().err().filter(|loss| loss.may_pass()).cloned();
                extended
            }
        };
        due.iter().map(extend).collect()
    }

    /// The worker ends its deliveries itself.
    fn release(&mut self, _: &HeldGrant) -> Result<(), Loss> {
        Ok(())
    }

    fn look(&mut self, _: &HeldGrant) -> Seen {
        // The server is asked by extensions only.
        Seen { is_current: true, asked: None }
    }

    fn is_moved(&self) -> bool {
        false
    }
}
