//! The claims of a credential, and its compact form: three parts in base64, with dots between them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use serde::{Deserialize, Serialize};

use crate::Error;

/// The one algorithm that credentials are signed with, and the only one that a verifier accepts.
pub(crate) const ALGORITHM: Algorithm = Algorithm::EdDSA;

/// The longest credential in bytes: many HTTP servers take no header that is longer.
pub const MAX_CREDENTIAL: usize = 8 * 1024;

/// The content of a credential. A claim that is there twice makes the credential invalid.
///
/// ```
/// use litelease_credentials::Claims;
///
/// let claims = Claims {
///     iss: "0123456789abcdef0123456789abcdef".into(),
///     sub: "upload/7".into(),
///     owner: "a".into(),
///     fence: 3,
///     aud: "storage".into(),
///     iat: 10,
///     exp: 70,
///     nbf: None,
/// };
/// assert!(claims.exp - claims.iat <= 300);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The issuer: the random id of the file with the lease.
    pub iss: String,
    /// The name that is leased.
    pub sub: String,
    /// The owner of the lease.
    pub owner: String,
    /// The fencing token of the grant.
    pub fence: i64,
    /// The service that the credential is for. A verifier refuses those for others.
    pub aud: String,
    /// When it was issued, in Unix seconds.
    pub iat: i64,
    /// The first Unix second at which it is no longer valid.
    pub exp: i64,
    /// The first Unix second at which it is valid. Credentials of this crate have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
}

/// Returns the first two parts of a credential: what is signed.
pub(crate) fn message(key_id: &str, claims: &Claims) -> Result<String, Error> {
    let header = Header { kid: Some(key_id.to_owned()), ..Header::new(ALGORITHM) };
    let header = serde_json::to_vec(&header).map_err(|error| Error::Claims(error.to_string()))?;
    let claims = serde_json::to_vec(claims).map_err(|error| Error::Claims(error.to_string()))?;
    Ok(format!("{}.{}", encode(&header), encode(&claims)))
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}
