//! Access keys: which client may make which call. The file has the SHA-256 of each key and its
//! permissions.
//!
//! A request is checked by the hash of its key. The time that the check takes may depend on hashes,
//! which reveal nothing about a key, but never on the keys themselves.

use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter, Write};
use std::io;
use std::sync::Arc;

use litelease::{Permission, Scope};
use litelease_store::AccessRow;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

use crate::job::JobError;
use crate::request::{Head, text};

/// The start of every key, by which people and scanners for leaked secrets recognise one.
const START: &str = "litelease-";

/// How many random bytes a key has.
const RANDOM_BYTES: usize = 32;

/// A new access key. It is shown once, to the user who asked for it, and stored nowhere.
///
/// ```
/// # use litelease_serve::AccessKey;
/// let key = AccessKey::generate().unwrap();
/// println!("{}", key.show());
/// ```
pub struct AccessKey(String);

/// The SHA-256 of a key.
pub(crate) type KeyHash = [u8; 32];

impl AccessKey {
    /// Makes a key from random numbers of the system.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        let no_random = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut bytes).map_err(no_random)?;
        let mut key = String::from(START);
        for byte in bytes {
            // Writing to a String cannot fail.
            let _ = write!(key, "{byte:02x}");
        }
        Ok(AccessKey(key))
    }

    /// Takes a key that was made before.
    pub(crate) fn from_text(text: &str) -> Self {
        AccessKey(text.into())
    }

    /// Returns the text of the key, to be given to the client.
    pub fn show(&self) -> &str {
        &self.0
    }

    /// Returns the SHA-256 of the key, which is what a file stores.
    pub fn hash(&self) -> [u8; 32] {
        hash(self.0.as_bytes())
    }
}

impl Debug for AccessKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(…)")
    }
}

fn hash(key: &[u8]) -> KeyHash {
    let mut hash = KeyHash::default();
    hash.copy_from_slice(digest(&SHA256, key).as_ref());
    hash
}

/// The client of a request, by the key that it brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Caller(Option<KeyHash>);

impl Caller {
    /// Reads the key of a request.
    pub(crate) fn from_head(head: &Head<'_>) -> Self {
        let value = head.one("authorization").ok().flatten().and_then(text);
        let key = value.and_then(|value| value.split_once(' ')).and_then(|(scheme, key)| {
            scheme.eq_ignore_ascii_case("bearer").then(|| key.trim().as_bytes())
        });
        Caller(key.map(hash))
    }

    /// Checks whether the request brings a key, valid or not.
    pub(crate) fn has_key(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the hash of the key, or zeros if there is none.
    pub(crate) fn bytes(&self) -> KeyHash {
        self.0.unwrap_or_default()
    }

    #[cfg(test)]
    pub(crate) fn from_key(key: &str) -> Self {
        Caller(Some(hash(key.as_bytes())))
    }
}

/// The names that a request concerns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Which {
    /// This one.
    One(Arc<str>),
    /// All that begin with this text.
    Under(Arc<str>),
}

impl Which {
    /// Returns the names that a permission must be for.
    pub(crate) fn names(&self) -> Names<'_> {
        match self {
            Which::One(name) => Names::One(name),
            Which::Under(prefix) => Names::Under(prefix),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Which::One(one) => **one == *name,
            Which::Under(prefix) => name.starts_with(&**prefix),
        }
    }
}

/// The names that a client must be allowed to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names<'a> {
    One(&'a str),
    Under(&'a str),
    /// At least one name, whichever.
    Some,
}

/// The access keys of a server, and what each allows.
pub(crate) enum Keys {
    /// The server has no keys: every client may do everything.
    Open,
    /// The keys of a file.
    Known(HashMap<KeyHash, Access>),
    /// The keys cannot be read, so no client may do anything.
    Unreadable,
}

/// The permissions of one key, and when it expires.
pub(crate) struct Access {
    name: Arc<str>,
    allow: Vec<Permission>,
    expires_at_ms: Option<i64>,
}

impl Keys {
    pub(crate) fn from_rows(rows: &[AccessRow]) -> Self {
        let access = |row: &AccessRow| {
            // A line that cannot be parsed allows nothing.
            let allow = row.allow.lines().filter_map(|line| Permission::parse(line).ok());
            let (name, expires_at_ms) = (row.name.as_str().into(), row.expires_at_ms);
            let access = Access { name, allow: allow.collect(), expires_at_ms };
            Some((KeyHash::try_from(&*row.hash).ok()?, access))
        };
        Keys::Known(rows.iter().filter_map(access).collect())
    }

    /// Checks whether a client has a valid key, whatever that allows.
    pub(crate) fn check_key(&self, caller: Caller, now_ms: i64) -> Result<(), JobError> {
        self.access(caller, now_ms).map(drop)
    }

    /// Returns the name of a client's key and what it allows, or `None` if no key is needed.
    pub(crate) fn own(
        &self,
        caller: Caller,
        now_ms: i64,
    ) -> Result<Option<(String, Vec<String>)>, JobError> {
        let texts = |access: &Access| access.allow.iter().map(ToString::to_string).collect();
        let own = self.access(caller, now_ms)?;
        Ok(own.map(|access| (access.name.to_string(), texts(access))))
    }

    /// Checks whether a client may do what it asks for.
    pub(crate) fn check(
        &self,
        caller: Caller,
        scope: Scope,
        names: Names<'_>,
        now_ms: i64,
    ) -> Result<(), JobError> {
        let Some(access) = self.access(caller, now_ms)? else { return Ok(()) };
        let is_enough = |permission: &Permission| match names {
            Names::One(name) => permission.allows(scope, name),
            Names::Under(prefix) => permission.allows_all(scope, prefix),
            Names::Some => permission.allows_some(scope),
        };
        match access.allow.iter().any(is_enough) {
            true => Ok(()),
            false => Err(JobError::NotAllowed(scope)),
        }
    }

    /// Returns the names of all keys, each with the client that has it.
    pub(crate) fn names(&self) -> HashMap<Caller, Arc<str>> {
        let Keys::Known(known) = self else { return HashMap::new() };
        known.iter().map(|(hash, access)| (Caller(Some(*hash)), access.name.clone())).collect()
    }

    /// Returns the name of a client's key, for the history.
    pub(crate) fn name(&self, caller: Caller) -> Option<Arc<str>> {
        match (self, caller.0) {
            (Keys::Known(known), Some(hash)) => known.get(&hash).map(|access| access.name.clone()),
            _ => None,
        }
    }

    /// Returns what a client's key allows, or `None` if no key is needed.
    fn access(&self, caller: Caller, now_ms: i64) -> Result<Option<&Access>, JobError> {
        let known = match self {
            Keys::Open => return Ok(None),
            Keys::Unreadable => return Err(JobError::Database),
            Keys::Known(known) => known,
        };
        let hash = caller.0.ok_or(JobError::NoKey)?;
        let is_valid = |access: &&Access| access.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms);
        known.get(&hash).filter(is_valid).map(Some).ok_or(JobError::WrongKey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, allow: &str, expires_at_ms: Option<i64>) -> AccessRow {
        let (name, hash) = (key.to_owned(), AccessKey::from_text(key).hash().to_vec());
        AccessRow { name, hash, allow: allow.into(), created_at_ms: 0, expires_at_ms }
    }

    fn bearing(value: &str) -> Caller {
        let header = httparse::Header { name: "Authorization", value: value.as_bytes() };
        Caller::from_head(&Head {
            method: "GET",
            path: "/",
            query: "",
            authority: None,
            headers: &[header],
        })
    }

    #[test]
    fn a_key_counts_until_it_expires_and_for_what_it_allows() {
        let keys = Keys::from_rows(&[
            row("k", "observe:a/*\nnonsense\n", Some(150)),
            row("all", "observe:*", None),
        ]);
        let asks = |key: &str, scope, prefix, now_ms| {
            keys.check(bearing(key), scope, Names::Under(prefix), now_ms)
        };
        assert_eq!(asks("Bearer k", Scope::Observe, "a/", 149), Ok(()));
        assert_eq!(asks("bearer  k ", Scope::Observe, "a/", 149), Ok(()));
        assert_eq!(asks("Bearer k", Scope::Observe, "a/", 150), Err(JobError::WrongKey));
        assert_eq!(
            asks("Bearer k", Scope::Observe, "", 149),
            Err(JobError::NotAllowed(Scope::Observe))
        );
        assert_eq!(
            asks("Bearer k", Scope::Operate, "a/", 149),
            Err(JobError::NotAllowed(Scope::Operate))
        );
        assert_eq!(asks("Bearer all", Scope::Observe, "", i64::MAX), Ok(()));
        for wrong in ["Bearer K", "Bearer k k", "Bearer allx"] {
            assert_eq!(asks(wrong, Scope::Observe, "a/", 149), Err(JobError::WrongKey), "{wrong}");
        }
        for none in ["", "k", "Basic k", "Bearer", "Bearer "] {
            assert_eq!(asks(none, Scope::Observe, "a/", 149), Err(JobError::NoKey), "{none}");
        }
    }

    #[test]
    fn a_key_is_not_in_its_debug_text() {
        assert_eq!(format!("{:?}", AccessKey::from_text("secret")), "AccessKey(…)");
    }
}
