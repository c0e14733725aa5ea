//! Options for opening a client: a given access key, and CAs to trust.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::access::{Key, ServerUrl};
use crate::{Client, Error};

/// Options for opening a client. [`Client::builder`] makes one.
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
    /// Returns a builder for a client of this server. Without other options, its client is that of
    /// [`Client::open`].
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder { url: url.into(), key: None, ca_file: None }
    }
}

impl ClientBuilder {
    /// Sets the access key. Without it, the client finds one as [`Client::open`] does.
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
pub(crate) fn roots(server: &ServerUrl, ca_file: Option<&Path>) -> Result<RootCertStore, Error> {
    let named = || env::var_os("LITELEASE_CA_FILE").filter(|path| !path.is_empty());
    let path = ca_file.map(Path::to_owned).or_else(|| named().map(PathBuf::from));
    match path.filter(|_| server.is_https) {
        Some(path) => read(&path).map_err(|error| Error::CaFile { path, error }),
        None => Ok(webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()),
    }
}

/// Parts of error texts of TLS and HTTP, each with the remedy to name.
const CURES: [(&str, &str); 5] = [
    ("UnknownIssuer", NAME_THE_CA),
    // A CA of the same name with another key.
    ("BadSignature", NAME_THE_CA),
    ("not valid for", "use a name in the URL that the certificate is for"),
    ("InvalidContentType", "if the server speaks no TLS, say http:// in its URL"),
    ("the answer is not HTTP", "if the server speaks TLS, say https:// in its URL"),
];
const NAME_THE_CA: &str = "name the file with the CA of its certificate in LITELEASE_CA_FILE";

/// Describes a failure that lasts until a setting is changed, with what to change.
pub(crate) fn misconfigured(error: &str) -> Option<String> {
    let (_, cure) = CURES.iter().find(|(known, _)| error.contains(known))?;
    Some(format!("{error}: {cure}"))
}

fn read(path: &Path) -> io::Result<RootCertStore> {
    let (pem, mut roots) = (fs::read(path)?, RootCertStore::empty());
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        // Other lines of the file are not shown: one may be a key.
        let certificate = certificate.map_err(|_| io::Error::other("it is not valid PEM"))?;
        let number = roots.len() + 1;
        roots
            .add(certificate)
            .map_err(|_| io::Error::other(format!("certificate {number} in it is damaged")))?;
    }
    match roots.is_empty() {
        true => Err(io::Error::other("there is no certificate in it (as PEM)")),
        false => Ok(roots),
    }
}
