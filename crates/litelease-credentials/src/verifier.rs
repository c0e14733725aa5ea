//! Verifying credentials, offline: the signature with a pinned algorithm, then every claim.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::decode_header;
use litelease_core::{CredentialTerm, Untimely, check_times};
use litelease_sys::FileStamp;

use crate::claims::{ALGORITHM, decode};
use crate::{Claims, Error, KeySet, MAX_CREDENTIAL, Refused};

/// A check of credentials, for a service that cannot see the file with the leases.
///
/// It accepts credentials of one issuer for one audience, signed with EdDSA by a key in its set. It
/// does not ask the issuer: a credential of a lease that was released since is valid until it
/// expires.
///
/// ```
/// use litelease_credentials::{KeySet, Refused, Verifier};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("jwks.json");
/// # KeySet::default().save(&path)?;
/// let verifier = Verifier::reading(&path, "0123456789abcdef0123456789abcdef", "storage")?;
/// # let credential = "x.y.z";
/// match verifier.verify(credential) {
///     Ok(shown) => println!("{} may write {}, under token {}", shown.owner, shown.name, shown.token),
///     Err(refused) => println!("403: {refused}"),
/// }
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Verifier {
    keys: Source,
    issuer: String,
    audience: String,
    leeway: Duration,
}

/// The grant that a credential has proved.
///
/// ```
/// # use litelease_credentials::Verified;
/// fn allows(shown: &Verified, path: &str) -> bool {
///     path.strip_prefix("/files/") == Some(&shown.name)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// The issuer: the id of the file with the lease.
    pub issuer: String,
    /// The name that is leased.
    pub name: String,
    /// The owner of the lease.
    pub owner: String,
    /// The fencing token. Compare it with the newest one that the target has seen of this issuer
    /// and name, never with a token of another issuer.
    pub token: i64,
    /// When the credential was issued, as Unix time in milliseconds, rounded down to a second.
    pub issued_at_ms: i64,
    /// The first millisecond at which it is no longer valid.
    pub expires_at_ms: i64,
    /// The key that has signed it.
    pub key_id: String,
}

/// The source of the keys.
#[derive(Clone, Debug)]
enum Source {
    Set(KeySet),
    File { path: PathBuf, read: Arc<Mutex<Option<(FileStamp, KeySet)>>> },
}

impl Verifier {
    /// Makes a verifier with a fixed set of keys.
    ///
    /// ```
    /// use litelease_credentials::{Error, KeySet, Verifier};
    ///
    /// let keys = KeySet::from_json(r#"{"keys":[]}"#)?;
    /// let verifier = Verifier::new(keys.clone(), "0123456789abcdef0123456789abcdef", "storage")?;
    /// assert!(matches!(Verifier::new(keys, "me", "storage"), Err(Error::InvalidIssuer(_))));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn new(keys: KeySet, issuer: &str, audience: &str) -> Result<Self, Error> {
        Verifier::with_keys(Source::Set(keys), issuer, audience)
    }

    /// Makes a verifier with the JWK set in a file. When the file has changed, it is read again;
    /// while it cannot be read, nothing is accepted.
    ///
    /// Fails if the file cannot be read now.
    ///
    /// See the [example of the type](Verifier).
    pub fn reading(path: impl Into<PathBuf>, issuer: &str, audience: &str) -> Result<Self, Error> {
        let keys = Source::File { path: path.into(), read: Arc::default() };
        keys.with(|_| ())?;
        Verifier::with_keys(keys, issuer, audience)
    }

    fn with_keys(keys: Source, issuer: &str, audience: &str) -> Result<Self, Error> {
        let is_issuer = issuer.len() == 32 && issuer.bytes().all(|byte| byte.is_ascii_hexdigit());
        match audience {
            _ if !is_issuer => Err(Error::InvalidIssuer(issuer.into())),
            "" => Err(Error::NoAudience),
            _ => Ok(Verifier {
                keys,
                issuer: issuer.into(),
                audience: audience.into(),
                leeway: Duration::ZERO,
            }),
        }
    }

    /// Accepts credentials for this long after they have expired and before they were issued, for
    /// clocks that disagree. Without it, the leeway is 0.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use litelease_credentials::{KeySet, Verifier};
    /// # let issuer = "0123456789abcdef0123456789abcdef";
    /// let verifier = Verifier::new(KeySet::default(), issuer, "storage")?;
    /// let lenient = verifier.leeway(Duration::from_secs(2));
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn leeway(self, leeway: Duration) -> Self {
        Verifier { leeway, ..self }
    }

    /// Verifies a credential at the time of the system clock.
    ///
    /// See the [example of the type](Verifier).
    pub fn verify(&self, credential: &str) -> Result<Verified, Refused> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.verify_at(credential, i64::try_from(now.as_millis()).unwrap_or(i64::MAX))
    }

    /// Verifies a credential at a given Unix time in milliseconds, for tests.
    ///
    /// See the [example of the crate](crate).
    pub fn verify_at(&self, credential: &str, now_ms: i64) -> Result<Verified, Refused> {
        if credential.len() > MAX_CREDENTIAL {
            return Err(Refused::TooLong);
        }
        let header = decode_header(credential).map_err(malformed)?;
        // The header never chooses the algorithm.
        if header.alg != ALGORITHM {
            return Err(Refused::Algorithm);
        }
        if header.crit.is_some() {
            return Err(malformed("its header demands what is not known here"));
        }
        let key_id = header.kid.ok_or_else(|| malformed("its header names no key"))?;
        self.check_signature(credential, &key_id)?;
        // Not insecure: the signature has been checked above, under the key of the header's id.
        let claims = insecure_decode_claims(credential).map_err(malformed)?;
        self.check(claims, key_id, now_ms)
    }

    fn check_signature(&self, credential: &str, key_id: &str) -> Result<(), Refused> {
        let parts = credential.rsplit_once('.');
        let (message, signature) = parts.ok_or_else(|| malformed("it has no signature"))?;
        let signature =
            decode(signature).ok_or_else(|| malformed("its signature is not base64"))?;
        let verifies =
            self.keys.with(|keys| keys.verifies(key_id, message.as_bytes(), &signature))?;
        match verifies {
            Some(true) => Ok(()),
            Some(false) => Err(Refused::Signature),
            None => Err(Refused::UnknownKey { key_id: key_id.into() }),
        }
    }

    /// Checks the claims of a credential whose signature fits.
    fn check(&self, claims: Claims, key_id: String, now_ms: i64) -> Result<Verified, Refused> {
        let Claims { iss, sub, owner, fence, aud, iat, exp, nbf } = claims;
        if iss != self.issuer {
            return Err(Refused::Issuer { found: iss, expected: self.issuer.clone() });
        }
        if aud != self.audience {
            return Err(Refused::Audience { found: aud, expected: self.audience.clone() });
        }
        let term = CredentialTerm { issued_at: iat, expires_at: exp };
        let leeway_ms = i64::try_from(self.leeway.as_millis()).unwrap_or(i64::MAX);
        match check_times(term, nbf, leeway_ms, now_ms) {
            Err(Untimely::Expired) => Err(Refused::Expired { at: exp }),
            Err(Untimely::Early) => Err(Refused::Early),
            // Tokens begin at 1.
            Ok(()) if fence < 1 => Err(malformed("its fence is no token")),
            Ok(()) => Ok(Verified {
                issuer: iss,
                name: sub,
                owner,
                token: fence,
                issued_at_ms: iat.saturating_mul(1000),
                expires_at_ms: exp.saturating_mul(1000),
                key_id,
            }),
        }
    }
}

impl Source {
    /// Uses the keys as they are now.
    fn with<T>(&self, work: impl FnOnce(&KeySet) -> T) -> Result<T, Error> {
        let (path, read) = match self {
            Source::Set(keys) => return Ok(work(keys)),
            Source::File { path, read } => (path, read),
        };
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        // Before the file is read: a change meanwhile is then found the next time.
        let found = fs::metadata(path).map_err(|error| Error::io(path, error))?;
        let stamp = FileStamp::new(&found);
        let known = read.take().filter(|(known, _)| *known == stamp);
        let (_, keys) = match known {
            Some(known) => read.insert(known),
            None => read.insert((stamp, KeySet::load(path)?)),
        };
        Ok(work(keys))
    }
}

fn malformed(reason: impl std::fmt::Display) -> Refused {
    Refused::Malformed { reason: reason.to_string() }
}
