//! TLS by `rustls`, with the meanings that libpq gives to `sslmode`.

use std::fs;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::engine::{Error, PostgresUrl, Result};

/// Makes encrypted connections.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    pub(crate) fn new(url: &PostgresUrl) -> Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let broken = |error: rustls::Error| Error::Refused(format!("TLS: {error}"));
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(broken)?;
        let checks = match url.sslmode.as_str() {
            "verify-full" | "verify-ca" => true,
            // As in libpq: these modes encrypt, and verify only if authorities are given.
            _ => url.sslrootcert.is_some(),
        };
        let (mut chain, mut trusted) = (None, Vec::new());
        if checks {
            trusted = certificates(url)?;
            let mut roots = RootCertStore::empty();
            match url.sslrootcert {
                Some(_) => trusted.iter().try_for_each(|certificate| {
                    roots.add(certificate.clone()).map_err(|error| unreadable(url, &error))
                })?,
                None => _ = roots.add_parsable_certificates(trusted.drain(..)),
            }
            let verifier =
                WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone());
            chain = Some(verifier.build().map_err(|error| {
                Error::InvalidUrl(format!("sslrootcert has no certificate to trust: {error}"))
            })?);
        }
        let checks_name = url.sslmode == "verify-full";
        let verifier = Arc::new(Verifier { provider, chain, trusted, checks_name });
        let config =
            builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Tls { config: Arc::new(config) })
    }
}

/// Reads the certificates of `sslrootcert`, or those that the system trusts.
fn certificates(url: &PostgresUrl) -> Result<Vec<CertificateDer<'static>>> {
    let Some(file) = &url.sslrootcert else {
        return Ok(rustls_native_certs::load_native_certs().certs);
    };
    let text = fs::read(file).map_err(|error| unreadable(url, &error))?;
    let found = CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<_, _>>();
    found.map_err(|error| unreadable(url, &error))
}

fn unreadable(url: &PostgresUrl, error: &dyn std::fmt::Display) -> Error {
    let file = url.sslrootcert.as_deref().unwrap_or_default();
    Error::InvalidUrl(format!("sslrootcert {file} cannot be read: {error}"))
}

/// Verifies the signature of a certificate, if there are authorities to trust, and its name, if the
/// mode demands that.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of `sslrootcert`. A server may have one of them itself, signed by itself,
    /// as the manual of PostgreSQL makes it.
    trusted: Vec<CertificateDer<'static>>,
    checks_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            match chain.verify_server_cert(certificate, intermediates, name, stapled, now) {
                // Its dates were checked before this. Names were not.
                Err(error) if is_signed_by_itself(&error) && self.trusted.contains(certificate) => {
                    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
                        .map(|()| ServerCertVerified::assertion())
                }
                verified => verified,
            };
        match verified {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name || has_common_name(certificate, &name.to_str()) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Checks whether this is the error of a server that has the certificate of an authority.
fn is_signed_by_itself(error: &rustls::Error) -> bool {
    let text = "CaUsedAsEndEntity";
    matches!(error, rustls::Error::InvalidCertificate(CertificateError::Other(other))
        if format!("{other:?}").contains(text))
}

/// Checks whether a certificate is for this host by its common name, which counts as in libpq: only
/// if there are no alternative names.
fn has_common_name(certificate: &[u8], host: &str) -> bool {
    const ALTERNATIVE_NAMES: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x11];
    let has_others = certificate.windows(ALTERNATIVE_NAMES.len()).any(|at| at == ALTERNATIVE_NAMES);
    let name = if has_others { None } else { common_name(certificate) };
    name.is_some_and(|name| name.eq_ignore_ascii_case(host.as_bytes()))
}

/// Returns the common name of the subject of a certificate.
fn common_name(certificate: &[u8]) -> Option<&[u8]> {
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let (_, signed, _) = element(certificate)?;
    let (_, mut rest, _) = element(signed)?;
    // The version, if it is there, comes before the serial number, the algorithm, the issuer and
    // the dates.
    if rest.first() == Some(&0xa0) {
        rest = element(rest)?.2;
    }
    for _ in 0..4 {
        rest = element(rest)?.2;
    }
    let (_, mut names, _) = element(rest)?;
    while let Some((_, set, more)) = element(names) {
        let (_, pair, _) = element(set)?;
        let (_, kind, value) = element(pair)?;
        if kind == COMMON_NAME {
            return element(value).map(|(_, name, _)| name);
        }
        names = more;
    }
    None
}

/// Returns the tag and the content of the first element of some DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(first) {
        short @ 0..=0x7f => (short, rest),
        long @ 0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// A connector for one server.
pub(crate) struct Connector {
    connector: TlsConnector,
    name: Option<ServerName<'static>>,
}

/// An encrypted connection.
pub(crate) struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type TlsConnect = Connector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connector> {
        let name = ServerName::try_from(host.to_owned()).ok();
        Ok(Connector { connector: TlsConnector::from(Arc::clone(&self.config)), name })
    }
}

impl<S> TlsConnect<S> for Connector
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = self.name.ok_or_else(|| io::Error::other("the host is no name for TLS"))?;
            Ok(Stream(self.connector.connect(name, stream).await?))
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
