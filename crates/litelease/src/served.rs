//! Grants that the service has made, and the pages of leases that it shows.

use litelease_core::Row;
use litelease_store::{Secret, ServedRow, Value};
use rusqlite::types;

use crate::error::lift;
use crate::fences::owned;
use crate::{
    AckResult, ItemInfo, ItemPlace, LeaseInfo, LeaseRow, Leases, Queue, QueueInfo, Result,
};

/// For the service.
#[doc(hidden)]
impl Leases {
    /// Returns the served grant with this number, if there is one.
    pub fn served(&self, number: i64) -> Result<Option<ServedRow>> {
        lift(self.verbs()?.served(number))
    }

    /// Returns the token that the next grant of the name with this number will exceed.
    pub fn served_token(&self, number: i64) -> Result<i64> {
        lift(self.verbs()?.served_token(number))
    }

    /// Returns the newest served grant of a name, if there is one.
    pub fn served_by_name(&self, name: &str) -> Result<Option<ServedRow>> {
        lift(self.verbs()?.served_by_name(name))
    }

    /// Stores the secret of a grant. `secret` gets the number under which it is stored: the one
    /// that was found for this name, or a new one.
    pub fn serve<T>(
        &self,
        name: &str,
        found: Option<i64>,
        token: i64,
        secret: impl FnOnce(i64) -> Secret<T>,
    ) -> Result<T> {
        lift(self.verbs()?.serve(name, found, token, secret))
    }

    /// Lists live leases whose name begins with `prefix` and comes after `after`: at most `limit`,
    /// found among the next `rows` rows. With `all` also names that nobody has. Returns them with
    /// what they have attached, up to so many bytes, and the name to go on after if there may be
    /// more.
    pub fn page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        rows: usize,
        most_bytes: usize,
        all: bool,
    ) -> Result<(Vec<PageRow>, Option<String>)> {
        let now_ms = self.when().now_ms();
        let keep = |row: Row<'_>, value: Value<'_>| {
            let Some(lease) = row.live(now_ms) else {
                return all.then(|| PageRow::Ended(LeaseRow::of(row)));
            };
            let bytes = match value {
                Value::Text(text) => text.len(),
                Value::Blob(bytes) => bytes.len(),
                _ => 0,
            };
            let value = (bytes <= most_bytes).then(|| owned(value));
            Some(PageRow::Live { lease: lease.into_owned(), value })
        };
        lift(self.verbs()?.page(prefix, after, limit, rows, keep))
    }

    /// Returns the answer that was given to a request after `since_ms`, if there is one.
    pub fn answered(&self, request: &[u8], since_ms: i64) -> Result<Option<String>> {
        lift(self.verbs()?.answered(request, since_ms))
    }

    /// Stores the answer to a request, and deletes two that were given before `since_ms`.
    pub fn remember_answer(
        &self,
        request: &[u8],
        answer: &str,
        now_ms: i64,
        since_ms: i64,
    ) -> Result<()> {
        lift(self.verbs()?.remember_answer(request, answer, now_ms, since_ms))
    }

    /// Keeps an open request from lapsing. Returns the token of the grant that it is for, if there
    /// is such a request.
    pub fn repeat_request_of(&self, name: &str, requester: &str) -> Result<Option<i64>> {
        self.repeat_request(name, requester)
    }

    /// Returns the name of the queue that the item of a receipt is in, if it is in one.
    pub fn queue_of(&self, receipt: &str) -> Result<Option<String>> {
        lift(self.verbs()?.queue_of(receipt))
    }

    /// Lists queues by name with how many items each has: at most `limit` whose name begins with
    /// `prefix` and comes after `after`.
    pub fn queues_under(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<QueueInfo>> {
        lift(self.verbs()?.queues_under(prefix, after, limit, self.when()))
    }
}

/// A name of a page.
#[doc(hidden)]
pub enum PageRow {
    /// It has a lease.
    Live {
        /// The lease.
        lease: LeaseInfo,
        /// What it has attached, or NULL. `None` if that is too long for a page.
        value: Option<types::Value>,
    },
    /// Nobody has it.
    Ended(LeaseRow),
}

/// For the service.
#[doc(hidden)]
impl Queue<'_> {
    /// Undoes a delivery that no worker has heard of, without counting the attempt.
    pub fn undeliver(&self, receipt: &str, visible_at_ms: i64) -> Result<bool> {
        let undone = lift(self.leases.verbs()?.undeliver(receipt, visible_at_ms, self.when()))?;
        if undone {
            self.leases.notify();
        }
        Ok(undone)
    }

    /// Lists at most `limit` items after a place, dead ones first and then in the order of their
    /// delivery. Returns the place to go on after, if there may be more.
    pub fn items_page(
        &self,
        after: Option<ItemPlace>,
        limit: usize,
    ) -> Result<(Vec<ItemInfo>, Option<ItemPlace>)> {
        lift(self.leases.verbs()?.items_page(self.name, after, limit, self.when()))
    }

    /// Returns the item that uses a key, if there is one.
    pub fn id_of_key(&self, key: &str) -> Result<Option<i64>> {
        lift(self.leases.verbs()?.id_of_key(self.name, key, self.when()))
    }

    /// Returns what an acknowledgement would, and changes nothing.
    pub fn check_receipt(&self, receipt: &str) -> Result<AckResult> {
        lift(self.leases.verbs()?.check_receipt(receipt))
    }

    /// Checks that a receipt is not of an item of another queue. One that is gone is of none.
    pub fn is_mine(&self, receipt: &str) -> Result<bool> {
        lift(self.leases.verbs()?.is_of_queue(self.name, receipt))
    }
}
