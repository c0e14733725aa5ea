//! Errors of keys, and the reasons to refuse a credential.

use std::path::PathBuf;
use std::{fmt, io};

/// The reason why keys cannot be used, or a credential cannot be signed.
///
/// ```
/// use litelease_credentials::{Error, Keys};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let keys = Keys::at(folder.path().join("missing"));
/// assert!(matches!(keys.newest(), Err(Error::NoKey { .. })));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// There is no key in the folder yet.
    NoKey {
        /// The folder.
        folder: PathBuf,
    },
    /// Other users could read or change the folder or a key.
    Exposed {
        /// The path.
        path: PathBuf,
        /// How it is exposed.
        what: &'static str,
    },
    /// A key or a set of keys cannot be read.
    Damaged {
        /// The path, if it is a file.
        path: Option<PathBuf>,
        /// The flaw.
        reason: String,
    },
    /// Something other than an ordinary file is in the place of a key, or the system reports an
    /// error.
    File(litelease_sys::Error),
    /// The longest time of a credential must be at least a second and at most ten years.
    InvalidMaxTtl,
    /// The id of an issuer must be 32 hexadecimal digits.
    InvalidIssuer(String),
    /// The audience is empty, so no service could accept the credential.
    NoAudience,
    /// Name, owner and audience are so long that the credential would be longer than
    /// [`MAX_CREDENTIAL`](crate::MAX_CREDENTIAL).
    TooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The claims cannot be written as JSON.
    Claims(String),
    /// The system has no random numbers.
    Random,
}

impl Error {
    /// Returns the name of the error.
    ///
    /// ```
    /// assert_eq!(litelease_credentials::Error::NoAudience.kind(), "NoAudience");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Error::NoKey { .. } => "NoKey",
            Error::Exposed { .. } => "Exposed",
            Error::Damaged { .. } => "DamagedKey",
            Error::File(_) => "KeyFile",
            Error::InvalidMaxTtl => "InvalidMaxTtl",
            Error::InvalidIssuer(_) => "InvalidIssuer",
            Error::NoAudience => "NoAudience",
            Error::TooLong { .. } => "TooLong",
            Error::Claims(_) => "Claims",
            Error::Random => "Random",
        }
    }

    pub(crate) fn io(path: impl Into<PathBuf>, error: io::Error) -> Self {
        Error::File(litelease_sys::Error::Io { path: path.into(), error })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoKey { folder } => write!(
                f,
                "there is no key in {}: make one with litelease credential rotate, or Issuer::rotate",
                folder.display()
            ),
            Error::Exposed { path, what } => write!(
                f,
                "{} {what}, who could sign credentials with it: chown it and chmod it to 700 (the folder) or 600 (a \
                 key), and rotate if it was open to others before",
                path.display()
            ),
            Error::Damaged { path: Some(path), reason } => {
                write!(f, "{} cannot be used: {reason}", path.display())
            }
            Error::Damaged { path: None, reason } => {
                write!(f, "the set of keys cannot be used: {reason}")
            }
            Error::File(error) => error.fmt(f),
            Error::InvalidMaxTtl => f.write_str(
                "the longest time of a credential must be at least a second and at most ten years",
            ),
            Error::InvalidIssuer(found) => write!(
                f,
                "{found:?} is no issuer: give the 32 hexadecimal digits that litelease credential issuer prints"
            ),
            Error::NoAudience => f.write_str(
                "the audience is empty: name the service that is to accept the credential",
            ),
            Error::TooLong { bytes } => write!(
                f,
                "the credential would have {bytes} bytes, and {} is the most: use a shorter name, owner or audience",
                crate::MAX_CREDENTIAL
            ),
            Error::Claims(reason) => write!(f, "the claims cannot be written: {reason}"),
            Error::Random => f.write_str("the system has no random numbers"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::File(error) => Some(error),
            _ => None,
        }
    }
}

impl From<litelease_sys::Error> for Error {
    fn from(error: litelease_sys::Error) -> Self {
        Error::File(error)
    }
}

/// The reason why a credential is not accepted.
///
/// ```
/// use litelease_credentials::{KeySet, Refused, Verifier};
///
/// let issuer = "0123456789abcdef0123456789abcdef";
/// let verifier = Verifier::new(KeySet::from_json(r#"{"keys":[]}"#)?, issuer, "storage")?;
/// assert!(matches!(verifier.verify("x"), Err(Refused::Malformed { .. })));
/// # Ok::<(), litelease_credentials::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Refused {
    /// It is longer than any credential.
    TooLong,
    /// It cannot be parsed: cut off, not base64, not JSON, or a claim is missing or there twice.
    Malformed {
        /// The flaw.
        reason: String,
    },
    /// It is signed with another algorithm than EdDSA.
    Algorithm,
    /// The verifier does not know the key that it names: it was deleted, or is newer than the set.
    UnknownKey {
        /// The id of the key.
        key_id: String,
    },
    /// The signature does not fit.
    Signature,
    /// It is of another issuer: another file, or the same one before `restore_fence`.
    Issuer {
        /// The issuer that it names.
        found: String,
        /// The issuer that the verifier accepts.
        expected: String,
    },
    /// It is for another audience.
    Audience {
        /// The audience that it names.
        found: String,
        /// The audience of the verifier.
        expected: String,
    },
    /// It has expired.
    Expired {
        /// The first Unix second at which it was no longer valid.
        at: i64,
    },
    /// It was issued in the future, or is not valid yet.
    Early,
    /// A gate has admitted a newer token of the same issuer and name.
    Stale {
        /// The token that it shows.
        token: i64,
        /// The newest token that was admitted.
        newest: i64,
    },
    /// The verifier cannot read its keys, so it accepts nothing.
    Keys(Error),
}

impl Refused {
    /// Returns the name of the reason.
    ///
    /// ```
    /// assert_eq!(litelease_credentials::Refused::Signature.kind(), "Signature");
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Refused::TooLong => "TooLong",
            Refused::Malformed { .. } => "Malformed",
            Refused::Algorithm => "Algorithm",
            Refused::UnknownKey { .. } => "UnknownKey",
            Refused::Signature => "Signature",
            Refused::Issuer { .. } => "Issuer",
            Refused::Audience { .. } => "Audience",
            Refused::Expired { .. } => "Expired",
            Refused::Early => "Early",
            Refused::Stale { .. } => "Stale",
            Refused::Keys(error) => error.kind(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::TooLong => {
                write!(f, "it is longer than any credential ({} bytes)", crate::MAX_CREDENTIAL)
            }
            Refused::Malformed { reason } => write!(f, "it is no credential: {reason}"),
            Refused::Algorithm => f.write_str("it is not signed with EdDSA"),
            Refused::UnknownKey { key_id } => {
                write!(f, "its key {key_id:?} is not in the set: fetch the set again")
            }
            Refused::Signature => f.write_str("its signature does not fit"),
            Refused::Issuer { found, expected } => write!(
                f,
                "it is of issuer {found:?}, not of {expected:?}: tokens of two issuers cannot be compared"
            ),
            Refused::Audience { found, expected } => {
                write!(f, "it is for {found:?}, not for {expected:?}")
            }
            Refused::Expired { at } => write!(f, "it has expired at {at} (Unix seconds)"),
            Refused::Early => f.write_str("it is from the future: compare the clocks"),
            Refused::Stale { token, newest } => {
                write!(f, "its token {token} is stale: {newest} was admitted before")
            }
            Refused::Keys(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refused::Keys(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Keys(error)
    }
}
