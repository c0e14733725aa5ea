//! Certificates for tests, and a tunnel through which clients that do not speak TLS reach a server
//! that does.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rcgen::generate_simple_self_signed;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A certificate and its key, in two files.
pub struct Certificate {
    /// The certificate, which is also the one to trust.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Certificate {
    /// Makes a new certificate for a host name, in the place of the one that is in this folder.
    pub fn new(folder: &Path, host: &str) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        let made = generate_simple_self_signed([host.to_owned()]).expect("a certificate");
        let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
        fs::write(&cert, made.cert.pem()).expect("it is written");
        fs::write(&key, made.signing_key.serialize_pem()).expect("it is written");
        Certificate { cert, key }
    }

    /// Makes a new CA, and a certificate for a host name that it has signed. Returns the file with
    /// the CA's certificate too.
    pub fn of_ca(folder: &Path, host: &str) -> (Self, PathBuf) {
        let certificate = Certificate::new(folder, host);
        let mut params = CertificateParams::new([]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, folder.display().to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = KeyPair::generate().and_then(|key| CertifiedIssuer::self_signed(params, key));
        let ca = ca.expect("a CA");
        let key = fs::read_to_string(&certificate.key).expect("its key");
        let key = KeyPair::from_pem(&key).expect("a key");
        let params = CertificateParams::new([host.to_owned()]).expect("parameters");
        let signed = params.signed_by(&key, &ca).expect("a certificate");
        fs::write(&certificate.cert, signed.pem()).expect("it is written");
        let file = folder.join("ca.pem");
        fs::write(&file, ca.as_ref().pem()).expect("it is written");
        (certificate, file)
    }

    fn trusted(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let cert = CertificateDer::from_pem_file(&self.cert).expect("a certificate");
        roots.add(cert).expect("it is trusted");
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth()
    }
}

/// Opens a connection through TLS. It reads an error at the end of a connection that was cut.
pub fn connect(
    server: SocketAddr,
    certificate: &Certificate,
) -> StreamOwned<ClientConnection, std::net::TcpStream> {
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(certificate.trusted()), name).expect("a client");
    let stream = std::net::TcpStream::connect(server).expect("a connection");
    stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a limit");
    StreamOwned::new(client, stream)
}

/// Listens for clients, and passes their bytes on to a server through TLS, unchanged, until the
/// test ends.
pub fn tunnel(server: SocketAddr, certificate: &Certificate) -> SocketAddr {
    let connector = TlsConnector::from(Arc::new(certificate.trusted()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    listener.set_nonblocking(true).expect("it does not block");
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((client, _)) = listener.accept().await {
                let connector = connector.clone();
                // Either end may hang up at any time.
                tokio::spawn(async move { _ = pass_on(client, server, connector).await });
            }
        });
    });
    address
}

async fn pass_on(
    mut client: TcpStream,
    server: SocketAddr,
    connector: TlsConnector,
) -> std::io::Result<()> {
    let name = ServerName::try_from("localhost").map_err(std::io::Error::other)?;
    client.set_nodelay(true)?;
    let mut stream = connector.connect(name, TcpStream::connect(server).await?).await?;
    tokio::io::copy_bidirectional(&mut client, &mut stream).await.map(drop)
}
