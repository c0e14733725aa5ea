//! Slots of a pool: borrowed, renewed in the background, and returned.

use std::time::Duration;

use litelease_hold::Window;
use serde_json::{Value, json};

use crate::Error;
use crate::client::{Client, Grant, Secret, nonsense, slot};
use crate::hold::{Held, HoldOptions};

/// A pool that is known by its URL, which is its secret. It needs no access key.
///
/// ```
/// # use litelease_client::{Error, Pool};
/// let pool = Pool::open("http://127.0.0.1:7070/l/4f2c8a52-7a4e-4c6b-9d1e-2f6a3b5c7d90")?;
/// # Ok::<(), Error>(())
/// ```
pub struct Pool {
    client: Client,
    path: String,
}

/// A slot that this process holds. Dropping it returns the slot.
#[derive(Debug)]
pub struct Slot {
    /// The hold: whether it is lost, and how long it can be trusted.
    pub held: Held,
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
        // The URL is a secret, so no error may show it.
        let client = Client::without_key(base).map_err(|error| match error {
            Error::InvalidUrl(_) => Error::InvalidPool,
            error => error,
        })?;
        Ok(Pool { client, path: format!("/l/{id}") })
    }

    /// Borrows a slot and renews it in the background until it is returned or lost. `note` tells
    /// operators who and why.
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
    pub fn hold(&self, options: HoldOptions, note: &str) -> Result<Slot, Error> {
        let ask = json!({ "note": note });
        self.client.borrow(&self.path, None, "the pool", &ask, &options)
    }
}

impl Client {
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
    ) -> Result<Slot, Error> {
        let ask = json!({ "name": name, "count": count, "note": note });
        self.borrow("/v1/slot", Some(name), name, &ask, &options)
    }

    fn borrow(
        &self,
        base: &str,
        pool: Option<&str>,
        shown: &str,
        ask: &Value,
        options: &HoldOptions,
    ) -> Result<Slot, Error> {
        let HoldOptions { ttl, wait, .. } = *options;
        let window = Window::new(ttl).ok_or(Error::TtlTooShort(ttl))?;
        let body = |wait: f64| {
            let mut body = ask.clone();
            body["ttl"] = Duration::as_secs_f64(&ttl).into();
            body["wait"] = wait.into();
            body
        };
        let none = |_: &Value| Some(Error::NoneFree);
        let (value, times) = self.acquire(&format!("{base}/borrow"), ttl, wait, &body, &none)?;
        let read = || {
            let (mut lease, secret) = slot(&value).zip(value["lease"].as_str())?;
            lease.name = shown.into();
            Some((lease, secret.to_owned(), value["position"].as_i64()?))
        };
        let (lease, secret, position) = read().ok_or_else(nonsense)?;
        let (base, pool) = (base.to_owned(), pool.map(str::to_owned));
        let secret = Secret::Slot { base, pool, lease: secret };
        let trusted_until = times.trusted_until(&lease, ttl, window);
        let held = self.keep(Grant { lease, secret, trusted_until }, ttl, window)?;
        Ok(Slot { held, position })
    }
}
