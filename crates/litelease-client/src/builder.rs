//! How to open a client that is not like most: with its own key, or with CAs of its own to trust.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

use crate::access::{Key, ServerUrl};
use crate::{Client, Error};

/// How to open a client. [`Client::builder`] makes one.
///
/// ```no_run
/// # use litelease_client::{Client, Error};
/// let client = Client::builder("https://lease.example").ca_file("/etc/ssl/our-ca.pem").open()?;
/// # Ok::<(), Error>(())
/// ```
pub struct ClientBuilder {
    url: String,
    key: Option<String>,
    ca_file: Option<PathBuf>,
}

impl Client {
    /// Returns a builder for a client of this server. Without more said, its client is that of
    /// [`Client::open`].
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder { url: url.into(), key: None, ca_file: None }
    }
}

impl ClientBuilder {
    /// Sets the access key, in the place of the one that [`Client::open`] finds.
    pub fn key(mut self, key: &str) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Trusts the CAs whose certificates are in this file, as PEM, and no others. Without it, the
    /// client trusts those in the file `$LITELEASE_CA_FILE`, or the CAs that Mozilla trusts.
    ///
    /// ```
    /// # use litelease_client::{Client, Error};
    /// let opened = Client::builder("https://lease.example").ca_file("missing.pem").open();
    /// assert!(matches!(opened, Err(Error::CaFile { .. })));
    /// ```
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Opens the client. Sends nothing yet.
    pub fn open(self) -> Result<Client, Error> {
        let server = ServerUrl::parse(&self.url)?;
        let key = match self.key {
            None => server.find_key()?,
            Some(key) => Some(Key::named(&key)),
        };
        Client::trusting(&server, key, self.ca_file.as_deref())
    }
}

impl std::fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The key is a secret.
        let ClientBuilder { url, ca_file, .. } = self;
        f.debug_struct("ClientBuilder")
            .field("url", url)
            .field("ca_file", ca_file)
            .finish_non_exhaustive()
    }
}

/// Returns the CAs to trust: those in this file, in `$LITELEASE_CA_FILE`, or those that Mozilla
/// trusts. A server without TLS needs none.
pub(crate) fn roots(server: &ServerUrl, ca_file: Option<&Path>) -> Result<RootCerts, Error> {
    let named = || env::var_os("LITELEASE_CA_FILE").filter(|path| !path.is_empty());
    let path = ca_file.map(Path::to_owned).or_else(|| named().map(PathBuf::from));
    match path.filter(|_| server.is_https) {
        Some(path) => read(&path).map_err(|error| Error::CaFile { path, error }),
        None => Ok(RootCerts::WebPki),
    }
}

/// What an error of TLS or HTTP says, and what cures it.
const CURES: [(&str, &str); 5] = [
    ("UnknownIssuer", NAME_THE_CA),
    // A CA of the same name with another key.
    ("BadSignature", NAME_THE_CA),
    ("not valid for", "use a name in the URL that the certificate is for"),
    ("InvalidContentType", "if the server speaks no TLS, say http:// in its URL"),
    ("http parse fail", "if the server speaks TLS, say https:// in its URL"),
];
const NAME_THE_CA: &str = "name the file with the CA of its certificate in LITELEASE_CA_FILE";

/// Describes a failure that lasts until a setting is changed, with what to change.
pub(crate) fn misconfigured(error: &ureq::Error) -> Option<String> {
    let text = error.to_string();
    let (_, cure) = CURES.iter().find(|(known, _)| text.contains(known))?;
    Some(format!("{text}: {cure}"))
}

fn read(path: &Path) -> io::Result<RootCerts> {
    let pem = fs::read(path)?;
    let mut certificates = Vec::new();
    for item in parse_pem(&pem) {
        // What else is in the file is not repeated: it may be a key.
        match item.map_err(|_| io::Error::other("it is not valid PEM"))? {
            PemItem::Certificate(certificate) if is_whole(&certificate) => {
                certificates.push(certificate)
            }
            PemItem::Certificate(_) => {
                let number = certificates.len() + 1;
                return Err(io::Error::other(format!("certificate {number} in it is damaged")));
            }
            _ => {}
        }
    }
    match certificates.is_empty() {
        true => Err(io::Error::other("there is no certificate in it (as PEM)")),
        false => Ok(RootCerts::from(certificates)),
    }
}

/// Checks that a certificate is one DER sequence from its first to its last byte. Others would be
/// left out without a word, and then no server would be trusted.
fn is_whole(certificate: &Certificate<'_>) -> bool {
    match certificate.der() {
        [0x30, 0x82, high, low, rest @ ..] => {
            usize::from(u16::from_be_bytes([*high, *low])) == rest.len()
        }
        [0x30, 0x81, length, rest @ ..] => usize::from(*length) == rest.len(),
        _ => false,
    }
}
