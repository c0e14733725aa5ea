//! Deliveries that are extended in the background while a worker has them.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use litelease_core::Lease;
use litelease_hold::{Acquired, Granted, Held, HoldError, LossSignal, Lost, keep};

use crate::client::from_now;
use crate::kind::Kind;
use crate::mode::Mode;
use crate::rows::ServerRows;
use crate::transport::died;
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
    held: Held,
}

impl<M: Mode> Queue<M> {
    /// Extends the delivery of an item in the background, as [`Client::hold`](crate::Client::hold)
    /// renews a lease. An item that was waited for is extended before this returns.
    pub fn keep(&self, item: Item, visibility: Duration) -> M::Answer<HeldItem> {
        let queue = self.clone();
        M::answer(&self.client().transport, async move {
            let transport = Arc::clone(&queue.client().transport);
            let keep = move || {
                let held = queue.held(&item, visibility)?;
                Ok(HeldItem(Arc::new(Inner { item, held })))
            };
            transport.start_blocking(keep)?.await.map_err(|_| died())?
        })
    }

    /// Begins to extend the delivery of an item.
    pub(crate) fn held(&self, item: &Item, visibility: Duration) -> Result<Held, HoldError<Error>> {
        let home = self.client().home(&Kind::Delivery).map_err(HoldError::from)?;
        let lease = Lease {
            name: self.name().into(),
            owner: String::new(),
            token: item.token,
            expires_at_ms: from_now(item.expires_in),
        };
        let lasts = (item.expires_in < visibility).then_some(item.expires_in);
        let granted = Granted { secret: item.receipt.clone(), lasts, ..Granted::whole(lease) };
        let acquired = Acquired { granted, start: item.start };
        let rows = || Ok(Box::new(ServerRows::new(self.client(), Kind::Delivery)) as _);
        keep(&home, acquired, visibility, rows)
    }
}

impl HeldItem {
    /// Checks whether the item can be trusted to be this worker's. Fails in time: before another
    /// worker can receive it.
    pub fn check(&self) -> Result<(), Lost> {
        self.0.held.check()
    }

    /// Returns a signal that tells for how long the item can be trusted, and why not.
    pub fn lost(&self) -> LossSignal {
        self.0.held.lost()
    }
}

impl Deref for HeldItem {
    type Target = Item;

    fn deref(&self) -> &Item {
        &self.0.item
    }
}

impl fmt::Debug for HeldItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HeldItem").field(&self.0.item).finish()
    }
}
