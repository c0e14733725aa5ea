//! TLS: the certificate and its key, read again when their files have changed.

use std::fmt::{self, Debug, Formatter};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use litelease_sys::FileStamp;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::error::OpenError;

/// How often to check whether the files have changed.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The protocol that is spoken inside TLS.
const PROTOCOL: &[u8] = b"http/1.1";

/// A certificate and its key, for a service that speaks TLS.
///
/// ```
/// use litelease_serve::{OpenError, Tls};
///
/// let missing = Tls::load("missing.pem".as_ref(), "missing.key".as_ref());
/// assert!(matches!(missing, Err(OpenError::Tls { .. })));
/// ```
#[derive(Clone)]
pub struct Tls(Arc<Files>);

struct Files {
    certificate: PathBuf,
    key: PathBuf,
    loaded: Mutex<Loaded>,
}

/// The content of the files, when it was read, and their stamps then.
struct Loaded {
    acceptor: TlsAcceptor,
    stamps: Stamps,
    checked: Instant,
}

/// The stamps of the certificate and of the key.
type Stamps = [Option<FileStamp>; 2];

impl Tls {
    /// Reads a certificate with its chain and its key, both as PEM. Later connections use what the
    /// files contain then; while certificate and key do not fit together, they use what was read
    /// last.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, OpenError> {
        let stamps = stamps(certificate, key);
        let acceptor = read(certificate, key)?;
        let loaded = Mutex::new(Loaded { acceptor, stamps, checked: Instant::now() });
        Ok(Tls(Arc::new(Files { certificate: certificate.into(), key: key.into(), loaded })))
    }

    /// Returns the configuration for a new connection, by the current files.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let Files { certificate, key, loaded } = &*self.0;
        let mut loaded = loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.checked.elapsed() >= CHECK_INTERVAL {
            loaded.checked = Instant::now();
            // Checked before the files are read, so that a change meanwhile is found the next time.
            let stamps = stamps(certificate, key);
            if stamps != loaded.stamps {
                loaded.stamps = stamps;
                match read(certificate, key) {
                    Ok(acceptor) => {
                        tracing::info!("the certificate was read again");
                        loaded.acceptor = acceptor;
                    }
                    // Perhaps one of the two files was replaced, and the other one will be.
                    Err(error) => {
                        tracing::warn!(error = %error, "the old certificate stays in use")
                    }
                }
            }
        }
        loaded.acceptor.clone()
    }
}

impl Debug for Tls {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.0.certificate).finish_non_exhaustive()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<TlsAcceptor, OpenError> {
    let refuse = |path: &Path, error: io::Error| OpenError::Tls { path: path.into(), error };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| refuse(certificate, as_io(error)))?;
    if chain.is_empty() {
        return Err(refuse(certificate, io::Error::other("there is no certificate in it")));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| refuse(key, as_io(error)))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|error| refuse(certificate, io::Error::other(error)))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// An error in a PEM file. It names the flaw, and nothing of the content.
fn as_io(error: pem::Error) -> io::Error {
    match error {
        pem::Error::Io(error) => error,
        pem::Error::NoItemsFound => io::Error::other("there is nothing of the kind in it"),
        _ => io::Error::other("it is not PEM"),
    }
}

fn stamps(certificate: &Path, key: &Path) -> Stamps {
    [certificate, key].map(|path| Some(FileStamp::new(&fs::metadata(path).ok()?)))
}
