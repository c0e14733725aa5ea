//! One key of an issuer: how it is stored, and signing with it.

use std::fmt;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde::{Deserialize, Serialize};

use crate::claims::{decode, encode, message};
use crate::{Claims, Error, MAX_CREDENTIAL};

/// The length of an Ed25519 seed and of a public key.
pub(crate) const KEY_BYTES: usize = 32;

/// A key that signs credentials. It is a secret, and not shown by `Debug`.
///
/// ```
/// use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let keys = Keys::at(folder.path().join("keys"));
/// let made = keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
/// assert_eq!(keys.newest()?.id(), made.id());
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
pub struct SigningKey {
    id: String,
    pair: Ed25519KeyPair,
    pub(crate) created_at_ms: i64,
    pub(crate) max_ttl_ms: i64,
}

/// A key as it is stored: a private JWK, with two members of our own.
#[derive(Serialize, Deserialize)]
struct Stored {
    kty: String,
    crv: String,
    kid: String,
    x: String,
    d: String,
    created_at_ms: i64,
    max_ttl_ms: i64,
}

const KEY_TYPE: &str = "OKP";
const CURVE: &str = "Ed25519";

impl SigningKey {
    /// Makes a key, and returns it with the text to store.
    pub(crate) fn generate(created_at_ms: i64, max_ttl_ms: i64) -> Result<(Self, String), Error> {
        let seed = random::<KEY_BYTES>()?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| Error::Random)?;
        let id = thumbprint(pair.public_key().as_ref());
        let stored = Stored {
            kty: KEY_TYPE.into(),
            crv: CURVE.into(),
            kid: id.clone(),
            x: encode(pair.public_key().as_ref()),
            d: encode(&seed),
            created_at_ms,
            max_ttl_ms,
        };
        let text = serde_json::to_string(&stored).map_err(|e| Error::Claims(e.to_string()))?;
        Ok((SigningKey { id, pair, created_at_ms, max_ttl_ms }, text + "\n"))
    }

    /// Reads a stored key. The reason why it cannot be read never shows a part of it.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, &'static str> {
        let stored: Stored = serde_json::from_slice(text).map_err(|_| "it is no key of ours")?;
        if stored.kty != KEY_TYPE || stored.crv != CURVE {
            return Err("it is no Ed25519 key");
        }
        let (Some(seed), Some(public)) = (decode(&stored.d), decode(&stored.x)) else {
            return Err("it is not base64");
        };
        let pair = Ed25519KeyPair::from_seed_and_public_key(&seed, &public)
            .map_err(|_| "its public and its private part do not fit together")?;
        if stored.kid != thumbprint(&public) {
            return Err("its id is not its own");
        }
        let Stored { kid: id, created_at_ms, max_ttl_ms, .. } = stored;
        Ok(SigningKey { id, pair, created_at_ms, max_ttl_ms })
    }

    /// Returns the id of the key (`kid`): its thumbprint by RFC 7638.
    ///
    /// ```
    /// # use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let keys = Keys::at(folder.path().join("keys"));
    /// assert_eq!(keys.rotate(DEFAULT_MAX_TTL, 10_000)?.id().len(), 43);
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the longest time in milliseconds that a credential under this key may last.
    ///
    /// ```
    /// # use litelease_credentials::{DEFAULT_MAX_TTL, Keys};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let keys = Keys::at(folder.path().join("keys"));
    /// assert_eq!(keys.rotate(DEFAULT_MAX_TTL, 10_000)?.max_ttl_ms(), 300_000);
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn max_ttl_ms(&self) -> i64 {
        self.max_ttl_ms
    }

    /// Signs claims without checking them: the caller checks whether the grant is live.
    ///
    /// See the [example of the crate](crate).
    pub fn sign(&self, claims: &Claims) -> Result<String, Error> {
        if claims.aud.is_empty() {
            return Err(Error::NoAudience);
        }
        let message = message(&self.id, claims)?;
        let signature = encode(self.pair.sign(message.as_bytes()).as_ref());
        let credential = format!("{message}.{signature}");
        match credential.len() {
            bytes if bytes > MAX_CREDENTIAL => Err(Error::TooLong { bytes }),
            _ => Ok(credential),
        }
    }

    pub(crate) fn public(&self) -> [u8; KEY_BYTES] {
        let mut public = [0; KEY_BYTES];
        public.copy_from_slice(self.pair.public_key().as_ref());
        public
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns the thumbprint of a public key by RFC 7638.
fn thumbprint(public: &[u8]) -> String {
    let canonical = format!(r#"{{"crv":"{CURVE}","kty":"{KEY_TYPE}","x":"{}"}}"#, encode(public));
    encode(digest(&SHA256, canonical.as_bytes()).as_ref())
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and its thumbprint of RFC 8037, appendix A.3.
    #[test]
    fn the_id_of_a_key_is_the_thumbprint_of_the_standard() {
        let public = decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap_or_default();
        assert_eq!(thumbprint(&public), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn debug_shows_no_part_of_the_secret() -> Result<(), Error> {
        let (key, text) = SigningKey::generate(1, 1000)?;
        let stored: Stored =
            serde_json::from_str(&text).map_err(|e| Error::Claims(e.to_string()))?;
        assert!(text.contains(&stored.d));
        assert!(!format!("{key:?}").contains(&stored.d));
        Ok(())
    }
}
