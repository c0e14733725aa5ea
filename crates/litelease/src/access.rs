//! The access keys of the service, as they are stored in the file that it serves.

use std::time::Duration;

use litelease_store::AccessRow;

use crate::error::lift;
use crate::leases::in_ms;
use crate::{Leases, Result};

/// For the service and the command `litelease access`, which make and hash the keys.
#[doc(hidden)]
impl Leases {
    /// Stores the hash of a key. False if there is a key of that name already: it stays as it is.
    pub fn add_access(
        &self,
        name: &str,
        hash: &[u8],
        allow: &str,
        ttl: Option<Duration>,
    ) -> Result<bool> {
        let now_ms = self.when().now_ms();
        let expires_at_ms = ttl.map(|ttl| now_ms.saturating_add(in_ms(ttl)));
        lift(self.verbs()?.add_access(name, hash, allow, expires_at_ms, self.when()))
    }

    /// Lists all keys. `None` if there was never one.
    pub fn access(&self) -> Result<Option<Vec<AccessRow>>> {
        lift(self.verbs()?.access())
    }

    /// Removes a key. False if there is none of that name.
    pub fn remove_access(&self, name: &str) -> Result<bool> {
        lift(self.verbs()?.remove_access(name))
    }
}
