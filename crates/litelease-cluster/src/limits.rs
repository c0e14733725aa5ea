//! Limits that are checked before anything is sent.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::engine::{Error, Result};

/// The longest name and the longest owner text, in bytes: what every engine can store.
const MAX_BYTES: usize = 1024;

impl Cluster {
    /// Checks a name.
    pub(crate) fn check_name(&self, name: &str) -> Result<()> {
        check("name", name)?;
        self.shared.engine.check_text("name", name)
    }

    /// Checks a name that is to be granted, or whose grant is to be changed.
    pub(crate) fn check_name_to_hold(&self, name: &str) -> Result<()> {
        self.check_name(name)?;
        match self.is_of_service || !is_of_service(name) {
            true => Ok(()),
            false => {
                let reason = "belongs to the service: only its servers hold it (break works)";
                Err(Error::InvalidName { what: "name", reason: reason.into() })
            }
        }
    }

    /// Checks an owner text.
    pub(crate) fn check_owner(&self, owner: &str) -> Result<()> {
        check("owner", owner)?;
        self.shared.engine.check_text("owner", owner)
    }
}

/// Checks whether a name on an engine belongs to the service: a program that claimed `serve` would
/// stop it.
#[doc(hidden)]
pub fn is_of_service(name: &str) -> bool {
    name.strip_prefix("serve").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn check(what: &'static str, text: &str) -> Result<()> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        bytes => {
            let reason = format!("has {bytes} bytes: at most {MAX_BYTES} are allowed");
            Err(Error::InvalidName { what, reason })
        }
    }
}

/// Converts a ttl to whole milliseconds, rounded up, so that a lease never ends early. A ttl beyond
/// 64 bits becomes the largest one, which the rule refuses as an overflow at any time after 1970.
pub(crate) fn in_ms(ttl: Duration) -> Result<i64> {
    match i64::try_from(ttl.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX) {
        0 => Err(Error::InvalidTtl { ttl_ms: 0 }),
        ttl_ms => Ok(ttl_ms),
    }
}
