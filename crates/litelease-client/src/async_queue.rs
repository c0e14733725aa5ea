//! Queues on a server, as futures.

use std::time::Duration;

use crate::{
    AsyncClient, CancelResult, Client, Error, Item, ItemInfo, ItemName, QueueInfo, SendOptions,
    Value,
};

/// A queue on a server, whose calls are futures.
///
/// ```no_run
/// # use std::time::Duration;
/// # use litelease_client::{AsyncClient, Error};
/// # async fn example(client: AsyncClient) -> Result<(), Error> {
/// let mail = client.queue("mail");
/// while let Some(item) = mail.receive(Duration::from_secs(30), Duration::from_secs(60)).await? {
///     println!("{:?}", item.body);
///     mail.ack(&item.receipt).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AsyncQueue {
    pub(crate) client: AsyncClient,
    pub(crate) name: String,
}

/// Gives back an item that nobody has taken.
fn give_back(client: &Client, received: Option<(String, Item)>) {
    if let Some((queue, item)) = received {
        // If this fails, the item is delivered again after its time.
        let _ = client.queue(&queue).give_back(&item.receipt, Duration::ZERO, None);
    }
}

impl AsyncQueue {
    /// Returns the name of the queue.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends an item like [`Queue::send`](crate::Queue::send).
    pub async fn send(&self, body: impl Into<Value>) -> Result<i64, Error> {
        let name = self.name.clone();
        let body = body.into();
        let call = move |client: &Client| client.queue(&name).send(body);
        self.client.run(call).await
    }

    /// Sends an item like [`Queue::send_with`](crate::Queue::send_with).
    pub async fn send_with(
        &self,
        body: impl Into<Value>,
        options: SendOptions<'_>,
    ) -> Result<i64, Error> {
        let name = self.name.clone();
        let (body, delay) = (body.into(), options.delay);
        let key = options.key.map(str::to_owned);
        let call = move |client: &Client| {
            client.queue(&name).send_with(body, SendOptions { delay, key: key.as_deref() })
        };
        self.client.run(call).await
    }

    /// Receives an item like [`Queue::receive`](crate::Queue::receive). If the future is dropped,
    /// an item that comes later is given back at once. Its attempt stays counted.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use litelease_client::*;
    /// # async fn example(client: AsyncClient) -> Result<(), Error> {
    /// # let mail = client.queue("mail");
    /// if let Some(item) = mail.receive(Duration::from_secs(30), Duration::from_secs(60)).await? {
    ///     mail.ack(&item.receipt).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn receive(
        &self,
        visibility: Duration,
        wait: Duration,
    ) -> Result<Option<Item>, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| {
            Ok(client.queue(&name).receive(visibility, wait)?.map(|item| (name, item)))
        };
        let received = self.client.obtain(call, give_back).await?;
        Ok(received.map(|(_, item)| item))
    }

    /// Acknowledges an item like [`Queue::ack`](crate::Queue::ack).
    pub async fn ack(&self, receipt: &str) -> Result<(), Error> {
        let name = self.name.clone();
        let receipt = receipt.to_owned();
        let call = move |client: &Client| client.queue(&name).ack(&receipt);
        self.client.run(call).await
    }

    /// Prolongs a delivery like [`Queue::extend`](crate::Queue::extend).
    pub async fn extend(&self, receipt: &str, visibility: Duration) -> Result<Duration, Error> {
        let name = self.name.clone();
        let receipt = receipt.to_owned();
        let call = move |client: &Client| client.queue(&name).extend(&receipt, visibility);
        self.client.run(call).await
    }

    /// Prolongs a delivery like [`Queue::extend_within`](crate::Queue::extend_within).
    pub async fn extend_within(
        &self,
        receipt: &str,
        visibility: Duration,
        timeout: Duration,
    ) -> Result<Duration, Error> {
        let name = self.name.clone();
        let receipt = receipt.to_owned();
        let call =
            move |client: &Client| client.queue(&name).extend_within(&receipt, visibility, timeout);
        self.client.run(call).await
    }

    /// Makes an item visible again like [`Queue::give_back`](crate::Queue::give_back).
    pub async fn give_back(
        &self,
        receipt: &str,
        delay: Duration,
        note: Option<&str>,
    ) -> Result<(), Error> {
        let name = self.name.clone();
        let receipt = receipt.to_owned();
        let note = note.map(str::to_owned);
        let call =
            move |client: &Client| client.queue(&name).give_back(&receipt, delay, note.as_deref());
        self.client.run(call).await
    }

    /// Makes an item dead at once like [`Queue::bury`](crate::Queue::bury).
    pub async fn bury(&self, receipt: &str, note: Option<&str>) -> Result<(), Error> {
        let name = self.name.clone();
        let receipt = receipt.to_owned();
        let note = note.map(str::to_owned);
        let call = move |client: &Client| client.queue(&name).bury(&receipt, note.as_deref());
        self.client.run(call).await
    }

    /// Returns how many items the queue has, like [`Queue::info`](crate::Queue::info).
    pub async fn info(&self) -> Result<Option<QueueInfo>, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).info();
        self.client.run(call).await
    }

    /// Revives all dead items like [`Queue::redrive`](crate::Queue::redrive).
    pub async fn redrive(&self) -> Result<u64, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).redrive();
        self.client.run(call).await
    }

    /// Revives a dead item like [`Queue::redrive_one`](crate::Queue::redrive_one).
    pub async fn redrive_one(&self, id: i64) -> Result<bool, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).redrive_one(id);
        self.client.run(call).await
    }

    /// Deletes all dead items like [`Queue::discard`](crate::Queue::discard).
    pub async fn discard(&self) -> Result<u64, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).discard();
        self.client.run(call).await
    }

    /// Deletes a dead item like [`Queue::discard_one`](crate::Queue::discard_one).
    pub async fn discard_one(&self, id: i64) -> Result<bool, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).discard_one(id);
        self.client.run(call).await
    }

    /// Deletes the queue like [`Queue::delete`](crate::Queue::delete).
    pub async fn delete(&self) -> Result<bool, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).delete();
        self.client.run(call).await
    }

    /// Lists the items like [`Queue::items`](crate::Queue::items).
    pub async fn items(&self) -> Result<Vec<ItemInfo>, Error> {
        let name = self.name.clone();
        let call = move |client: &Client| client.queue(&name).items();
        self.client.run(call).await
    }

    /// Removes an item that no worker has like [`Queue::cancel`](crate::Queue::cancel).
    pub async fn cancel(&self, name: ItemName<'_>) -> Result<CancelResult, Error> {
        let queue = self.name.clone();
        let (id, key) = match name {
            ItemName::Id(id) => (id, None),
            ItemName::Key(key) => (0, Some(key.to_owned())),
        };
        let call = move |client: &Client| {
            let name = key.as_deref().map_or(ItemName::Id(id), ItemName::Key);
            client.queue(&queue).cancel(name)
        };
        self.client.run(call).await
    }
}
