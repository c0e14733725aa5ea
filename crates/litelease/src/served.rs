//! Grants that the service has made, and the pages of leases that it shows.

use litelease_store::{Secret, ServedRow};

use crate::error::lift;
use crate::{LeaseInfo, Leases, Result};

/// For the service.
#[doc(hidden)]
impl Leases {
    /// Returns the served grant with this number, if there is one.
    pub fn served(&self, number: i64) -> Result<Option<ServedRow>> {
        lift(self.verbs()?.served(number))
    }

    /// Returns the newest served grant of a name, if there is one.
    pub fn served_by_name(&self, name: &str) -> Result<Option<ServedRow>> {
        lift(self.verbs()?.served_by_name(name))
    }

    /// Stores the secret of a grant. `secret` gets the number under which it is stored: the one that
    /// was found for this name, or a new one.
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
    /// found among the next `rows` rows. Returns them, and the name to go on after if there may be
    /// more.
    pub fn live_page(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
        rows: usize,
    ) -> Result<(Vec<LeaseInfo>, Option<String>)> {
        lift(self.verbs()?.live_page(prefix, after, limit, rows, self.when()))
    }
}
