//! Connections to a server: through the network, a proxy or the socket that it has left for its own
//! user.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Response, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::Error;
use crate::access::{Key, ServerUrl};
use crate::transport::{EndsWithOwner, Message, Outcome};

/// The connections of one client.
pub(crate) struct Connections {
    /// The URL of the server.
    uri: Uri,
    tls: TlsConnector,
    proxy: Option<Intercept>,
    key: Option<Key>,
    /// Connections that no request uses.
    idle: Mutex<Vec<Connection>>,
}

/// The most idle connections to keep, and for how long: routers in between drop idle connections
/// silently.
const MOST_IDLE: (usize, Duration) = (8, Duration::from_secs(15));

/// The largest answer that is read. It exceeds an item of 1 MiB with every byte escaped.
const LONGEST_ANSWER: usize = 8 * 1024 * 1024;

/// The longest answer of a proxy to a request for a tunnel.
const LONGEST_HEAD: usize = 16 * 1024;

/// An open connection. It is closed when this is dropped.
struct Connection {
    requests: SendRequest<Full<Bytes>>,
    /// When it was used last.
    used: Instant,
    _task: EndsWithOwner<()>,
}

/// An open stream of events.
pub(crate) struct EventStream {
    _connection: Connection,
    body: Incoming,
    /// Bytes that were received and not returned yet.
    received: Vec<u8>,
    patience: Duration,
}

trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

impl Connections {
    pub(crate) fn new(
        server: &ServerUrl,
        key: Option<Key>,
        roots: RootCertStore,
    ) -> Result<Self, Error> {
        let invalid = || Error::InvalidUrl(server.base.clone());
        let uri: Uri = server.base.parse().map_err(|_| invalid())?;
        let proxy = match server.loopback {
            Some(_) => None,
            None => Matcher::from_env().intercept(&uri),
        };
        // Only HTTP/1.1 is spoken here.
        let proxy =
            proxy.filter(|proxy| ["http", "https"].map(Some).contains(&proxy.uri().scheme_str()));
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| invalid())?;
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        Ok(Connections { uri, tls: Arc::new(tls).into(), proxy, key, idle: Mutex::default() })
    }

    /// Sends a request, and reads its answer. Closes the connection if it is dropped meanwhile.
    pub(crate) async fn send(&self, request: &Message) -> Result<Outcome, Outcome> {
        let (mut connection, answer) = self.exchange(request).await?;
        let outcome = read(answer, &request.tag).await?;
        connection.used = Instant::now();
        let mut idle = self.idle();
        if idle.len() < MOST_IDLE.0 {
            idle.push(connection);
        }
        Ok(outcome)
    }

    /// Opens a stream of events, which ends if nothing comes for `patience`.
    pub(crate) async fn stream(
        &self,
        path: &str,
        patience: Duration,
    ) -> Result<EventStream, Outcome> {
        let (path, tag) = (path.into(), String::new());
        let request = Message { path, tag, body: None, timeout: patience };
        let (connection, answer) = self.exchange(&request).await?;
        if answer.status() != 200 {
            return Err(read(answer, "").await?);
        }
        let (body, received) = (answer.into_body(), Vec::new());
        Ok(EventStream { _connection: connection, body, received, patience })
    }

    /// Sends a request, and returns the head of its answer.
    async fn exchange(
        &self,
        request: &Message,
    ) -> Result<(Connection, Response<Incoming>), Outcome> {
        let Message { path, tag, body, .. } = request;
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        let method = if body.is_some() { "POST" } else { "GET" };
        let mut http = hyper::Request::builder().method(method).uri(path).header(HOST, host);
        if let Some(key) = &self.key {
            http = http.header(AUTHORIZATION, format!("Bearer {}", key.text));
        }
        if body.is_some() {
            http = http.header(CONTENT_TYPE, "application/json");
        }
        if !tag.is_empty() {
            http = http.header("idempotency-key", tag);
        }
        let body = body.as_ref().map_or_else(String::new, |body| body.to_string());
        let http = http.body(Full::from(body));
        let http = http.map_err(Outcome::failed)?;
        let idle = self.take_idle();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        match connection.requests.send_request(http).await {
            Ok(answer) => Ok((connection, answer)),
            Err(error) if error.is_parse() => {
                Err(Outcome::failed(format!("the answer is not HTTP: {error}")))
            }
            Err(error) => Err(Outcome::failed(error)),
        }
    }

    /// Returns an idle connection that the server has not closed.
    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|Connection { requests, used, .. }| {
            !requests.is_closed() && used.elapsed() < MOST_IDLE.1
        });
        let ready = idle.iter().position(|connection| connection.requests.is_ready())?;
        Some(idle.swap_remove(ready))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Connection, Outcome> {
        let local: Option<&PathBuf> = self.key.as_ref().and_then(|key| key.socket.as_ref());
        let socket: Box<dyn Socket> = match (local, &self.proxy) {
            (Some(path), _) => Box::new(UnixStream::connect(path).await.map_err(failed)?),
            (None, Some(proxy)) => self.tunnel(proxy).await?,
            (None, None) => self.tcp(&self.uri).await?,
        };
        let socket = self.encrypt(&self.uri, socket).await?;
        let (requests, connection) =
            handshake(TokioIo::new(socket)).await.map_err(Outcome::failed)?;
        // An error here also makes the request fail, which reports it.
        let task = tokio::spawn(async move { _ = connection.await });
        Ok(Connection { requests, used: Instant::now(), _task: EndsWithOwner(task) })
    }

    async fn tcp(&self, to: &Uri) -> Result<Box<dyn Socket>, Outcome> {
        let unreached = |error: io::Error| Outcome::Unreached(error.to_string());
        let found = lookup_host((host(to), port(to))).await.map_err(unreached)?;
        let found: Vec<_> = found.collect();
        let stream = TcpStream::connect(&found[..]).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(Box::new(stream))
    }

    /// Speaks TLS if the URL says so.
    async fn encrypt(&self, to: &Uri, socket: Box<dyn Socket>) -> Result<Box<dyn Socket>, Outcome> {
        if to.scheme_str() != Some("https") {
            return Ok(socket);
        }
        let name = ServerName::try_from(host(to).to_owned()).map_err(Outcome::failed)?;
        Ok(Box::new(self.tls.connect(name, socket).await.map_err(failed)?))
    }

    /// Connects to a proxy, and requests a tunnel to the server.
    async fn tunnel(&self, proxy: &Intercept) -> Result<Box<dyn Socket>, Outcome> {
        let socket = self.tcp(proxy.uri()).await?;
        let mut socket = self.encrypt(proxy.uri(), socket).await?;
        let host = self.uri.host().unwrap_or_default();
        let server = format!("{host}:{}", port(&self.uri));
        let mut head = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n").into_bytes();
        if let Some(basic) = proxy.basic_auth() {
            head.extend([b"Proxy-Authorization: ", basic.as_bytes(), b"\r\n"].concat());
        }
        head.extend(b"\r\n");
        socket.write_all(&head).await.map_err(failed)?;
        let mut answer = Vec::new();
        // Reads single bytes, because the bytes after the head come from the server.
        while !answer.ends_with(b"\r\n\r\n") && answer.len() < LONGEST_HEAD {
            answer.push(socket.read_u8().await.map_err(failed)?);
        }
        let answer = String::from_utf8_lossy(&answer);
        match answer.split(' ').nth(1) {
            Some("200") => Ok(socket),
            _ => {
                let line = answer.lines().next().unwrap_or_default();
                Err(Outcome::Unknown(format!("the proxy answers {line:?}")))
            }
        }
    }
}

impl EventStream {
    /// Returns the next line, or `None` if the stream is over.
    pub(crate) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                return String::from_utf8(line).ok().map(|line| line.trim_end().to_owned());
            }
            let frame = timeout(self.patience, self.body.frame()).await.ok()??.ok()?;
            self.received.extend(frame.into_data().unwrap_or_default());
        }
    }
}

fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_matches(['[', ']'])
}

fn port(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
}

/// Returns the outcome of a request for which there is no connection.
fn failed(error: io::Error) -> Outcome {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            Outcome::Unreached(error.to_string())
        }
        _ => Outcome::failed(error),
    }
}

/// Reads the answer to the request that was sent with this tag.
async fn read(answer: Response<Incoming>, tag: &str) -> Result<Outcome, Outcome> {
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST_ANSWER).collect().await;
    let body = body.map_err(|error| Outcome::Unknown(error.to_string()))?.to_bytes();
    Ok(Outcome::read(&Response::from_parts(head, ()), &body, tag))
}

#[cfg(test)]
mod tests;
