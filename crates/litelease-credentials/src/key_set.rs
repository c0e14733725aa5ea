//! The public keys of an issuer as a JWK set, for verifiers.

use std::io::Write;
use std::path::Path;

use jsonwebtoken::jwk::{
    AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm,
    OctetKeyPairParameters, OctetKeyPairType, PublicKeyUse,
};
use litelease_sys::readable_by_all;
use ring::signature::{ED25519, UnparsedPublicKey};

use crate::Error;
use crate::claims::{decode, encode};
use crate::key::KEY_BYTES;

/// Public keys, by their ids.
///
/// ```
/// use litelease_credentials::{DEFAULT_MAX_TTL, KeySet, Keys};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let keys = Keys::at(folder.path().join("keys"));
/// keys.rotate(DEFAULT_MAX_TTL, 10_000)?;
/// let set = keys.public(10_000)?;
/// assert_eq!(KeySet::from_json(&set.to_json())?.ids().count(), 1);
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<(String, [u8; KEY_BYTES])>,
}

/// More than a set of keys has.
const LONGEST: u64 = 1 << 20;

impl KeySet {
    pub(crate) fn new(keys: Vec<(String, [u8; KEY_BYTES])>) -> Self {
        KeySet { keys }
    }

    /// Reads a JWK set. Ignores keys that are not Ed25519 keys for signatures or have no id.
    ///
    /// ```
    /// use litelease_credentials::KeySet;
    ///
    /// assert_eq!(KeySet::from_json(r#"{"keys":[]}"#)?.ids().count(), 0);
    /// assert!(KeySet::from_json("[]").is_err());
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let set: JwkSet = serde_json::from_str(text)
            .map_err(|error| Error::Damaged { path: None, reason: error.to_string() })?;
        Ok(KeySet { keys: set.keys.iter().filter_map(public_key).collect() })
    }

    /// Returns the JWK set as JSON, as it is served at `/.well-known/jwks.json`.
    ///
    /// ```
    /// # use litelease_credentials::KeySet;
    /// assert_eq!(KeySet::default().to_json(), r#"{"keys":[]}"#);
    /// ```
    pub fn to_json(&self) -> String {
        let keys = self.keys.iter().map(|(id, public)| jwk(id, public)).collect();
        // Texts and lists of texts can always be written as JSON.
        serde_json::to_string(&JwkSet { keys }).unwrap_or_default()
    }

    /// Reads a JWK set from a file.
    ///
    /// ```
    /// # use litelease_credentials::KeySet;
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("jwks.json");
    /// KeySet::default().save(&path)?;
    /// assert_eq!(KeySet::load(&path)?, KeySet::default());
    /// # Ok::<(), litelease_credentials::Error>(())
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let failed = |error| Error::io(path, error);
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut text = String::new();
        use std::io::Read;
        file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
        KeySet::from_json(&text).map_err(|error| match error {
            Error::Damaged { reason, .. } => Error::Damaged { path: Some(path.into()), reason },
            error => error,
        })
    }

    /// Writes the JWK set to a file, as a whole: a reader finds the old set or the new one. Every
    /// user may read the file (0644, less the umask).
    ///
    /// See [`load`](KeySet::load).
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}.new", std::process::id()));
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            let options = options.write(true).create_new(true);
            let mut file = readable_by_all(options).open(&new)?;
            file.write_all(self.to_json().as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&new, path)
        };
        // A process of this number that was killed may have left one behind.
        let _ = std::fs::remove_file(&new);
        write().map_err(|error| {
            let _ = std::fs::remove_file(&new);
            Error::io(path, error)
        })
    }

    /// Lists the ids of the keys, oldest first.
    ///
    /// ```
    /// # use litelease_credentials::KeySet;
    /// assert_eq!(KeySet::default().ids().count(), 0);
    /// ```
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(id, _)| id.as_str())
    }

    /// Checks a signature with the key of this id. Returns `None` if there is no such key.
    pub(crate) fn verifies(&self, id: &str, message: &[u8], signature: &[u8]) -> Option<bool> {
        let (_, public) = self.keys.iter().find(|(known, _)| known == id)?;
        Some(UnparsedPublicKey::new(&ED25519, public).verify(message, signature).is_ok())
    }
}

fn jwk(id: &str, public: &[u8]) -> Jwk {
    Jwk {
        common: CommonParameters {
            public_key_use: Some(PublicKeyUse::Signature),
            key_algorithm: Some(KeyAlgorithm::EdDSA),
            key_id: Some(id.to_owned()),
            ..CommonParameters::default()
        },
        algorithm: AlgorithmParameters::OctetKeyPair(OctetKeyPairParameters {
            key_type: OctetKeyPairType::OctetKeyPair,
            curve: EllipticCurve::Ed25519,
            x: encode(public),
        }),
    }
}

fn public_key(jwk: &Jwk) -> Option<(String, [u8; KEY_BYTES])> {
    let AlgorithmParameters::OctetKeyPair(pair) = &jwk.algorithm else { return None };
    let for_other_use = |found: &PublicKeyUse| *found != PublicKeyUse::Signature;
    if pair.curve != EllipticCurve::Ed25519
        || jwk.common.public_key_use.as_ref().is_some_and(for_other_use)
    {
        return None;
    }
    Some((jwk.common.key_id.clone()?, decode(&pair.x)?.try_into().ok()?))
}
