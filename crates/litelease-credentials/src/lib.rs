//! Signed grants: a JWT that proves a lease to a service that cannot see its file, signed with
//! Ed25519.
//!
//! A [`Verifier`] checks a credential offline and returns the name and the fencing token in it. A
//! service that only verifies needs this crate and no SQLite. The keys of an issuer are in a
//! folder: [`Keys`]. To issue credentials for leases in a file, use the crate `litelease` with its
//! feature `credentials`.
//!
//! ```
//! use litelease_credentials::{Claims, DEFAULT_MAX_TTL, Keys, Verifier};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! let keys = Keys::at(folder.path().join("keys"));
//! let now_ms = 10_000;
//! keys.rotate(DEFAULT_MAX_TTL, now_ms)?;
//! let issuer = "0123456789abcdef0123456789abcdef"; // the random id of the file
//! let credential = keys.newest()?.sign(&Claims {
//!     iss: issuer.into(),
//!     sub: "upload/7".into(),
//!     owner: "a".into(),
//!     fence: 3,
//!     aud: "storage".into(),
//!     iat: 10,
//!     exp: 70,
//!     nbf: None,
//! })?;
//!
//! // Elsewhere, with the public keys alone:
//! let verifier = Verifier::new(keys.public(now_ms)?, issuer, "storage")?;
//! let shown = verifier.verify_at(&credential, 11_000).unwrap();
//! assert_eq!((shown.name.as_str(), shown.token), ("upload/7", 3));
//! assert!(verifier.verify_at(&credential, 70_000).is_err(), "expired");
//! # Ok::<(), litelease_credentials::Error>(())
//! ```
//!
//! The crate `jsonwebtoken` reads and writes the format, and `ring` signs. `jsonwebtoken` takes one
//! crypto provider per process; this crate installs none, so that the program can choose.

#![forbid(unsafe_code)]

mod claims;
mod error;
mod key;
mod key_set;
mod keys;
mod verifier;

pub use claims::{Claims, MAX_CREDENTIAL};
pub use error::{Error, Refused};
pub use key::SigningKey;
pub use key_set::KeySet;
pub use keys::{DEFAULT_MAX_TTL, Keys};
pub use verifier::{Verified, Verifier};

/// Makes a random id for a file that begins to issue credentials: 32 hexadecimal digits.
///
/// ```
/// assert_ne!(litelease_credentials::new_issuer()?, litelease_credentials::new_issuer()?);
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
pub fn new_issuer() -> Result<String, Error> {
    Ok(key::random::<16>()?.iter().map(|byte| format!("{byte:02x}")).collect())
}
