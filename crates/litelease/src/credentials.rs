//! Signed grants: a JWT that proves a live lease to a service that cannot see its file.
//!
//! An [`Issuer`] signs a credential for a grant that is live in the file, until the lease ends at
//! the latest. A [`Verifier`] checks it offline and returns name and fencing token; with a gate
//! ([`Gate::admit_credential`]) it also refuses a token older than the newest one it has seen. This
//! module needs the feature `credentials`.
//!
//! ```
//! use std::time::Duration;
//! use litelease::credentials::{DEFAULT_MAX_TTL, Issuer, Verifier};
//! use litelease::{Gate, Litelease};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = |name: &str| folder.path().join(name);
//! let db = Litelease::open_own(path("app.sqlite3"))?;
//! let issuer = Issuer::at(path("keys"));
//! issuer.rotate(DEFAULT_MAX_TTL)?; // once, and then as often as you like
//!
//! let lease = db.claim("upload/7", "a", Duration::from_secs(60))?.acquired().expect("it is free");
//! let issued = issuer.issue(&db, &lease, "storage", Duration::from_secs(30))?.issued().expect("it is live");
//!
//! // At the storage service, which has the public keys and the id of the issuer:
//! let verifier = Verifier::new(issuer.keys()?, &issued.issuer, "storage")?;
//! let gate = Gate::open(path("gate.sqlite3"))?;
//! let shown = gate.admit_credential(&verifier, &issued.credential)?;
//! assert_eq!((shown.name.as_str(), shown.token), ("upload/7", lease.token));
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::time::Duration;

use litelease_core::CredentialResult;
use litelease_store::When;

pub use litelease_credentials::{
    Claims, DEFAULT_MAX_TTL, Error as KeyError, KeySet, Keys, MAX_CREDENTIAL, Refused, SigningKey,
    Verified, Verifier, new_issuer,
};

use crate::error::into_rusqlite;
use crate::leases::in_ms;
use crate::{AdmitResult, Gate, GrantRef, Lease, Leases, Reason};

/// Signs credentials for live grants, with the keys in a folder.
///
/// The keys are never in the database: a reader of the file, or of a backup of it, cannot sign.
///
/// ```
/// use litelease::credentials::{DEFAULT_MAX_TTL, Issuer};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let issuer = Issuer::at(folder.path().join("keys"));
/// issuer.rotate(DEFAULT_MAX_TTL)?;
/// println!("{}", issuer.keys()?.to_json());
/// # Ok::<(), litelease::credentials::KeyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Issuer {
    keys: Keys,
}

/// A credential that was signed.
///
/// It is a secret: it is all that one needs to use the grant. `Debug` does not show it.
///
/// ```
/// # use litelease::credentials::*;
/// # use litelease_doctest::prelude::{Duration, Litelease, Reason};
/// # let folder = tempfile::tempdir()?;
/// # let db = Litelease::open_own(folder.path().join("app.sqlite3"))?;
/// # let issuer = Issuer::at(folder.path().join("keys"));
/// # issuer.rotate(DEFAULT_MAX_TTL)?;
/// # let lease = db.claim("upload/7", "a", Duration::from_secs(60))?.acquired().unwrap();
/// let issued = issuer.issue(&db, &lease, "storage", Duration::from_secs(30))?.issued().unwrap();
/// assert!(issued.expires_at_ms <= lease.expires_at_ms);
/// assert!(!format!("{issued:?}").contains(&issued.credential));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Issued {
    /// The JWT.
    pub credential: String,
    /// The id of the file, which the credential names as its issuer.
    pub issuer: String,
    /// The id of the key that has signed it.
    pub key_id: String,
    /// The first millisecond at which it is no longer valid.
    pub expires_at_ms: i64,
}

/// The answer to a request for a credential.
///
/// ```
/// # use litelease::credentials::*;
/// # use litelease_doctest::prelude::{Duration, Litelease, Reason};
/// # let folder = tempfile::tempdir()?;
/// # let db = Litelease::open_own(folder.path().join("app.sqlite3"))?;
/// # let issuer = Issuer::at(folder.path().join("keys"));
/// # issuer.rotate(DEFAULT_MAX_TTL)?;
/// # let lease = db.claim("upload/7", "a", Duration::from_secs(60))?.acquired().unwrap();
/// db.release(&lease)?;
/// let late = issuer.issue(&db, &lease, "storage", Duration::from_secs(30))?;
/// assert_eq!(late, IssueResult::Rejected { reason: Reason::Released });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the grant may have ended"]
pub enum IssueResult {
    /// It is signed.
    Issued(Issued),
    /// Nothing was signed: no whole second of the lease is left, or less than one was asked for.
    /// Renew the lease, or ask for more.
    TooShort(Lease),
    /// Nothing was signed: the grant is not live.
    Rejected {
        /// The reason.
        reason: Reason,
    },
}

/// The reason why no credential was issued or admitted.
///
/// ```
/// # use litelease::credentials::*;
/// # use litelease_doctest::prelude::{Duration, Litelease, Reason};
/// # let folder = tempfile::tempdir()?;
/// # let mut db = Litelease::open_own(folder.path().join("app.sqlite3"))?;
/// # let issuer = Issuer::at(folder.path().join("keys"));
/// # issuer.rotate(DEFAULT_MAX_TTL)?;
/// let tx = db.transaction()?;
/// let lease = tx.claim("upload/7", "a", Duration::from_secs(60))?.acquired().unwrap();
/// let early = issuer.issue(&tx, &lease, "storage", Duration::from_secs(30));
/// assert!(matches!(early, Err(Error::InTransaction)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file with the leases, or that of the gate, cannot be used.
    Lease(crate::Error),
    /// The keys cannot be used.
    Keys(KeyError),
    /// The credential is not accepted.
    Refused(Refused),
    /// A transaction is open. If it is rolled back, its tokens are granted again, but a credential
    /// cannot be taken back. Issue it after COMMIT.
    InTransaction,
}

impl Issuer {
    /// Returns an issuer with its keys in this folder. Reads and makes nothing yet.
    ///
    /// ```
    /// let issuer = litelease::credentials::Issuer::at("/var/lib/app/credentials");
    /// ```
    pub fn at(folder: impl Into<std::path::PathBuf>) -> Self {
        Issuer { keys: Keys::at(folder) }
    }

    /// Makes a new key, which signs from now on in every process that uses the folder. Makes the
    /// folder if it is missing (0700). Returns the id of the key.
    ///
    /// Credentials under the new key last for `max_ttl` at most; longer ones are cut to it. The key
    /// before stays among the public [`keys`](Issuer::keys) until its last credential has expired.
    /// A later rotation deletes it.
    pub fn rotate(&self, max_ttl: Duration) -> Result<String, KeyError> {
        Ok(self.keys.rotate(max_ttl, crate::now_ms())?.id().to_owned())
    }

    /// Returns the public keys that verifiers need now.
    pub fn keys(&self) -> Result<KeySet, KeyError> {
        self.keys.public(crate::now_ms())
    }

    /// Signs a credential for a live grant, for the service `audience`. Reads the lease from the
    /// file: owner and token must match.
    ///
    /// It lasts for `ttl`, but not past the expiry of the lease and not longer than the issuer
    /// allows. Its end is rounded down to a second. A renewal of the lease does not prolong it:
    /// issue another.
    ///
    /// See the [example of the module](crate::credentials).
    pub fn issue<'g>(
        &self,
        leases: &Leases,
        grant: impl Into<GrantRef<'g>>,
        audience: &str,
        ttl: Duration,
    ) -> Result<IssueResult, Error> {
        if leases.verbs()?.joins_transaction() {
            return Err(Error::InTransaction);
        }
        // The clock is read before the key: a key counts for its longest time after its successor
        // was made, and the end of a credential is counted from the clock.
        let now_ms = leases.when().now_ms();
        let key = self.keys.newest()?;
        // The issuer is read before the grant: restore_fence removes the one and ends the other.
        let issuer = leases.issuer()?;
        let (ttl_ms, most_ms) = (in_ms(ttl), key.max_ttl_ms());
        let grant = grant.into();
        let owner = grant.owner_or(|name| leases.owner(name))?;
        let (who, when) = (grant.of_owner(&owner), When::At(now_ms));
        let decided = leases.verbs()?.credential(grant.name, who, ttl_ms, most_ms, when);
        let (lease, term) = match into_rusqlite(decided)? {
            CredentialResult::Granted { lease, term } => (lease, term),
            CredentialResult::TooShort { lease } => return Ok(IssueResult::TooShort(lease)),
            CredentialResult::Rejected { reason } => return Ok(IssueResult::Rejected { reason }),
        };
        let credential = key.sign(&Claims {
            iss: issuer.clone(),
            sub: lease.name,
            owner: lease.owner,
            fence: lease.token,
            aud: audience.into(),
            iat: term.issued_at,
            exp: term.expires_at,
            nbf: None,
        })?;
        let expires_at_ms = term.expires_at.saturating_mul(1000);
        Ok(IssueResult::Issued(Issued {
            credential,
            issuer,
            key_id: key.id().to_owned(),
            expires_at_ms,
        }))
    }
}

impl IssueResult {
    /// Returns the credential, if one was issued.
    pub fn issued(self) -> Option<Issued> {
        match self {
            IssueResult::Issued(issued) => Some(issued),
            IssueResult::TooShort(_) | IssueResult::Rejected { .. } => None,
        }
    }
}

impl Leases {
    /// Returns the id of the file, which its credentials name as their issuer: 32 hexadecimal
    /// digits.
    ///
    /// The first call makes a random one and stores it. [`restore_fence`](Leases::restore_fence)
    /// removes it, so that copies of one backup become different issuers; a file that was copied
    /// without it has the same id as the original.
    ///
    /// ```
    /// # use litelease::Litelease;
    /// # let folder = tempfile::tempdir()?;
    /// let db = Litelease::open_own(folder.path().join("app.sqlite3"))?;
    /// let issuer = db.issuer()?;
    /// assert_eq!(db.issuer()?, issuer);
    /// db.restore_fence()?;
    /// assert_ne!(db.issuer()?, issuer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn issuer(&self) -> Result<String, Error> {
        let new = new_issuer()?;
        Ok(self.run(|store| store.issuer(&new))?)
    }
}

impl Gate {
    /// Verifies a credential, and admits its token unless the gate has admitted a larger one of the
    /// same issuer and name. Then it is refused as [`Refused::Stale`].
    ///
    /// Tokens of two issuers are never compared: a verifier refuses those of every issuer but one,
    /// and gates remember tokens by issuer and name.
    ///
    /// See the [example of the module](crate::credentials).
    pub fn admit_credential(
        &self,
        verifier: &Verifier,
        credential: &str,
    ) -> Result<Verified, Error> {
        self.admit_verified(verifier.verify(credential)?)
    }

    fn admit_verified(&self, shown: Verified) -> Result<Verified, Error> {
        // The id of an issuer has a fixed length and no slash.
        let name = format!("{}/{}", shown.issuer, shown.name);
        match self.admit(&name, shown.token)? {
            AdmitResult::Admitted => Ok(shown),
            AdmitResult::Stale { newest } => {
                Err(Error::Refused(Refused::Stale { token: shown.token, newest }))
            }
        }
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued")
            .field("issuer", &self.issuer)
            .field("key_id", &self.key_id)
            .field("expires_at_ms", &self.expires_at_ms)
            .finish_non_exhaustive()
    }
}

impl Error {
    /// Returns the name of the error.
    ///
    /// ```
    /// assert_eq!(litelease::credentials::Error::InTransaction.kind(), "InTransaction");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Error::Lease(error) => error.kind(),
            Error::Keys(error) => error.kind(),
            Error::Refused(refused) => refused.kind(),
            Error::InTransaction => "InTransaction",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Lease(error) => error.fmt(f),
            Error::Keys(error) => error.fmt(f),
            Error::Refused(refused) => refused.fmt(f),
            Error::InTransaction => f.write_str(
                "a transaction is open, and a credential cannot be rolled back: issue it after COMMIT",
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Lease(error) => Some(error),
            Error::Keys(error) => Some(error),
            Error::Refused(refused) => Some(refused),
            Error::InTransaction => None,
        }
    }
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Error::Lease(error)
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Error::Keys(error)
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        Error::Refused(refused)
    }
}
