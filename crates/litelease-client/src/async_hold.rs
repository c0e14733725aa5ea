//! Names and slots that are held across awaits.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::async_client::{on_thread, start};
use crate::{AsyncClient, Client, Error, Held, HoldOptions, Lost, Pool, Slot};

/// A name that this process holds. Dropping it releases the name, on a thread of its own.
///
/// The methods that do not wait are those of [`Held`]: `check`, `token`, `grant`, `trusted_for`.
/// `check` asks the clock and not the server: call it after each `await` that may have taken long.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{AsyncClient, Error, HoldOptions};
/// # async fn example(client: AsyncClient) -> Result<(), Error> {
/// let held = client.hold("leader", HoldOptions::new(Duration::from_secs(30))).await?;
/// client.attach(held.grant(), "10.0.0.7:5000").await?;
/// held.check()?;
/// held.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncHeld {
    /// There until this is released or dropped.
    held: Option<Held>,
    lost: watch::Receiver<Option<Lost>>,
}

/// A slot that this process holds. Dropping it returns the slot.
#[derive(Debug)]
pub struct AsyncSlot {
    /// The hold: whether it is lost, and how long it can be trusted.
    pub held: AsyncHeld,
    /// The number of the slot: 0 is the first.
    pub position: i64,
}

/// A pool that is known by its URL, as [`Pool`] is.
///
/// ```
/// # use litelease_client::{AsyncPool, Error};
/// let pool = AsyncPool::open("http://127.0.0.1:7070/l/4f2c8a52-7a4e-4c6b-9d1e-2f6a3b5c7d90")?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone)]
pub struct AsyncPool {
    pool: Arc<Pool>,
}

impl AsyncClient {
    /// Claims a name and renews it in the background like [`Client::hold`]. If the future is
    /// dropped, a lease that comes later is released.
    pub async fn hold(&self, name: &str, options: HoldOptions) -> Result<AsyncHeld, Error> {
        let name = name.to_owned();
        self.run(move |client| client.hold(&name, options).map(AsyncHeld::of)).await
    }

    /// Borrows a slot of a pool by its name like [`Client::hold_slot`]. If the future is dropped, a
    /// slot that comes later is returned.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::{AsyncClient, Error, HoldOptions};
    /// # async fn example(client: AsyncClient) -> Result<(), Error> {
    /// let options = HoldOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(60));
    /// let slot = client.hold_slot("importers", 3, options, "nightly import").await?;
    /// slot.held.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn hold_slot(
        &self,
        name: &str,
        count: u32,
        options: HoldOptions,
        note: &str,
    ) -> Result<AsyncSlot, Error> {
        let (name, note) = (name.to_owned(), note.to_owned());
        let call = move |client: &Client| client.hold_slot(&name, count, options, &note);
        self.run(move |client| call(client).map(AsyncSlot::of)).await
    }
}

impl AsyncPool {
    /// Prepares to use a pool like [`Pool::open`]. Sends nothing yet.
    ///
    /// ```
    /// # use litelease_client::{AsyncPool, Error};
    /// assert!(matches!(AsyncPool::open("http://127.0.0.1:7070/"), Err(Error::InvalidPool)));
    /// ```
    pub fn open(url: &str) -> Result<Self, Error> {
        Ok(AsyncPool { pool: Arc::new(Pool::open(url)?) })
    }

    /// Borrows a slot like [`Pool::hold`]. If the future is dropped, a slot that comes later is
    /// returned.
    pub async fn hold(&self, options: HoldOptions, note: &str) -> Result<AsyncSlot, Error> {
        let (pool, note) = (Arc::clone(&self.pool), note.to_owned());
        on_thread(move || pool.hold(options, &note).map(AsyncSlot::of)).await
    }
}

impl AsyncSlot {
    fn of(slot: Slot) -> Self {
        AsyncSlot { held: AsyncHeld::of(slot.held), position: slot.position }
    }
}

impl AsyncHeld {
    fn of(held: Held) -> Self {
        let (sender, lost) = watch::channel(None);
        held.on_lost(move |lost| _ = sender.send(Some(lost.clone())));
        AsyncHeld { held: Some(held), lost }
    }

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
        let mut lost = self.lost.clone();
        if let Ok(lost) = lost.wait_for(Option::is_some).await
            && let Some(lost) = lost.as_ref()
        {
            return lost.clone();
        }
        // The hold has ended otherwise, and will not be lost.
        std::future::pending().await
    }

    /// Releases the name like [`Held::release`], also if the future is dropped.
    pub async fn release(mut self) -> Result<(), Error> {
        let held = self.held.take();
        on_thread(move || held.map_or(Ok(()), Held::release)).await
    }

    /// Releases the name like [`Held::release_within`].
    pub async fn release_within(mut self, time: Duration) -> Result<(), Error> {
        let held = self.held.take();
        on_thread(move || held.map_or(Ok(()), |held| held.release_within(time))).await
    }
}

impl Deref for AsyncHeld {
    type Target = Held;

    fn deref(&self) -> &Held {
        self.held.as_ref().unwrap_or_else(|| unreachable!("it is taken out at the end"))
    }
}

impl Drop for AsyncHeld {
    fn drop(&mut self) {
        // It may be dropped on a thread of a runtime, which must not wait for a server. If no
        // thread can be had, it is released here: nobody would end its renewals.
        if let Some(held) = self.held.take() {
            let _ = start(move || drop(held));
        }
    }
}
