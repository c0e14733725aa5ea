//! Slots of a pool: borrows one, renews it in the background, and returns it.

use litelease_wire::{Borrow, SlotBorrow, SlotLease};
use serde_json::Value;

use crate::Error;
use crate::client::{Client, seconds};
use crate::hold::{Held, HoldOptions};
use crate::kind::Kind;
use crate::mode::{Blocking, Mode};
use crate::transport::{to_json, typed};

/// A pool that is known by its URL, which is a secret. It needs no access key.
///
/// ```
/// # use litelease_client::{Error, Pool};
/// let pool = Pool::open("http://127.0.0.1:7070/l/4f2c8a52-7a4e-4c6b-9d1e-2f6a3b5c7d90")?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct Pool<M: Mode = Blocking> {
    pub(crate) client: Client<M>,
    pub(crate) path: String,
}

/// A slot that this process holds. Dropping it returns the slot.
#[derive(Debug)]
pub struct Slot<M: Mode = Blocking> {
    /// The hold, which knows how long the slot can be trusted.
    pub held: Held<M>,
    /// The number of the slot: 0 is the first.
    pub position: i64,
}

impl Pool {
    /// Prepares to use a pool. Sends nothing yet.
    ///
    /// ```
    /// # use litelease_client::{Error, Pool};
    /// assert!(matches!(Pool::open("http://127.0.0.1:7070/"), Err(Error::InvalidPool)));
    /// ```
    pub fn open(url: &str) -> Result<Self, Error> {
        let (base, id) = url.trim().split_once("/l/").ok_or(Error::InvalidPool)?;
        let is_id =
            id.len() == 36 && id.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if !is_id {
            return Err(Error::InvalidPool);
        }
        // The URL is a secret, so errors do not show it.
        let client = Client::without_key(base).map_err(|error| match error {
            Error::InvalidUrl(_) => Error::InvalidPool,
            error => error,
        })?;
        Ok(Pool { client, path: format!("/l/{id}") })
    }
}

impl<M: Mode> Pool<M> {
    /// Borrows a slot and renews it in the background until it is returned or lost. `note` tells
    /// operators who uses it, and why.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Error, HoldOptions, Pool};
    /// # let pool = Pool::open("http://127.0.0.1:7070/l/4f2c8a52-7a4e-4c6b-9d1e-2f6a3b5c7d90")?;
    /// let slot = pool.hold(HoldOptions::new(Duration::from_secs(30)), "nightly import")?;
    /// slot.held.check()?;
    /// slot.held.release()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hold(&self, options: HoldOptions, note: &str) -> M::Answer<Slot<M>> {
        let kind = Kind::PoolSlot(self.path.clone());
        let borrow = Borrow { ttl: seconds(options.ttl), wait: 0.0, note: Some(note.into()) };
        self.client.borrow(kind, "the pool", to_json(&borrow), options)
    }
}

impl<M: Mode> Client<M> {
    /// Borrows a slot of the pool that has this name, and renews it in the background until it is
    /// returned or lost. The pool is made if it is missing, and resized if it has another number of
    /// slots.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{Client, Error, HoldOptions};
    /// # let client = Client::open("http://127.0.0.1:7070")?;
    /// let options = HoldOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(60));
    /// let slot = client.hold_slot("importers", 3, options, "nightly import")?;
    /// println!("slot {}, token {}", slot.position, slot.held.token());
    /// # Ok::<(), Error>(())
    /// ```
    pub fn hold_slot(
        &self,
        name: &str,
        count: u32,
        options: HoldOptions,
        note: &str,
    ) -> M::Answer<Slot<M>> {
        let borrow = SlotBorrow {
            name: name.into(),
            count: count.into(),
            ttl: seconds(options.ttl),
            wait: 0.0,
            note: Some(note.into()),
        };
        self.borrow(Kind::Slot, name, to_json(&borrow), options)
    }

    fn borrow(
        &self,
        kind: Kind,
        name: &str,
        claim: Value,
        options: HoldOptions,
    ) -> M::Answer<Slot<M>> {
        let (client, name) = (self.clone(), name.to_owned());
        M::obtain(&self.transport, async move {
            let acquired = client.acquire_held(kind, &name, claim, options).await?;
            let (held, answer, taken) = acquired;
            let SlotLease { position, .. } = typed(answer)?;
            Ok((Slot { held, position }, taken))
        })
    }
}
