//! TLS by `rustls`: whom to trust, and the certificate to show.

use std::fs;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::engine::{Error, EtcdUrl, Result};

/// The protocol that both sides must agree on.
pub(crate) const HTTP2: &[u8] = b"h2";

/// Reads the files that a URL names.
pub(crate) fn connector(url: &EtcdUrl) -> Result<TlsConnector> {
    let broken = |error: rustls::Error| Error::InvalidUrl(format!("TLS: {error}"));
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().map_err(broken)?;
    let builder = builder.with_root_certificates(roots(url)?);
    let mut config = match &url.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let private = PrivateKeyDer::from_pem_slice(&read("key", key)?);
            let private = private.map_err(|error| unreadable("key", key, &error))?;
            let certificates = certificates("cert", certificate)?;
            builder.with_client_auth_cert(certificates, private).map_err(broken)?
        }
    };
    config.alpn_protocols.push(HTTP2.into());
    Ok(TlsConnector::from(Arc::new(config)))
}

fn roots(url: &EtcdUrl) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &url.ca {
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(file) => {
            for certificate in certificates("ca", file)? {
                roots.add(certificate).map_err(|error| unreadable("ca", file, &error))?;
            }
        }
    }
    Ok(roots)
}

/// Reads the certificates in the file that a parameter of the URL names.
fn certificates(parameter: &str, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(parameter, file)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<_, _>>();
    certificates.map_err(|error| unreadable(parameter, file, &error))
}

fn read(parameter: &str, file: &str) -> Result<Vec<u8>> {
    fs::read(file).map_err(|error| unreadable(parameter, file, &error))
}

fn unreadable(parameter: &str, file: &str, error: &dyn std::fmt::Display) -> Error {
    Error::InvalidUrl(format!("{parameter} {file} cannot be read: {error}"))
}
