//! One grant: a name and a token.

use alloc::borrow::Cow;
use alloc::string::String;

use crate::{Claimant, Lease};

/// One grant of a name, for a caller that keeps it.
///
/// ```
/// # use litelease_core::{Grant, GrantRef};
/// let grant = Grant { name: "scheduler".into(), token: 7 };
/// assert_eq!(GrantRef::from(&grant), GrantRef::from(("scheduler", 7)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The name.
    pub name: String,
    /// The fencing token.
    pub token: i64,
}

/// One grant, as a verb on it takes it: the name and the token, and the owner if the caller knows
/// it.
///
/// A verb on a grant takes whatever converts into this: the lease that a claim returned, or the
/// name and the token. Without the owner, a verb reads the row first. So in a transaction that you
/// have begun and that has not written yet, pass the lease: after a read, SQLite does not wait for
/// the write lock.
///
/// ```
/// # use litelease_core::{GrantRef, Lease};
/// let lease = Lease { name: "scheduler", owner: "a", token: 7, expires_at_ms: 150 };
/// assert_eq!(GrantRef::from(&lease).owner, Some("a"));
/// assert_eq!(GrantRef::from(("scheduler", 7)).owner, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRef<'a> {
    /// The name.
    pub name: &'a str,
    /// The fencing token.
    pub token: i64,
    /// The owner text. If it is given, `renew`, `release`, `transfer` and `hand_over` compare it
    /// too: after a restore, another grant can have the same token.
    pub owner: Option<&'a str>,
}

impl<'a> GrantRef<'a> {
    /// Returns the owner, or reads the present owner of the name if the caller gave none: whether
    /// the grant is still current then depends on the token alone.
    pub fn owner_or<E>(
        self,
        read: impl FnOnce(&str) -> Result<Option<String>, E>,
    ) -> Result<Cow<'a, str>, E> {
        match self.owner {
            Some(owner) => Ok(Cow::Borrowed(owner)),
            None => Ok(Cow::Owned(read(self.name)?.unwrap_or_default())),
        }
    }

    /// Returns the claimant of exactly this grant.
    pub fn of_owner<'o>(self, owner: &'o str) -> Claimant<'o> {
        Claimant { owner, token: Some(self.token) }
    }
}

impl<'a, S: AsRef<str>> From<&'a Lease<S>> for GrantRef<'a> {
    fn from(lease: &'a Lease<S>) -> Self {
        let (name, owner) = (lease.name.as_ref(), Some(lease.owner.as_ref()));
        GrantRef { name, token: lease.token, owner }
    }
}

impl<'a> From<&'a Grant> for GrantRef<'a> {
    fn from(grant: &'a Grant) -> Self {
        (&grant.name, grant.token).into()
    }
}

impl<'a, S: AsRef<str> + ?Sized> From<(&'a S, i64)> for GrantRef<'a> {
    fn from((name, token): (&'a S, i64)) -> Self {
        GrantRef { name: name.as_ref(), token, owner: None }
    }
}
