//! Accepts a connection, or forwards it to the server that writes.
//!
//! A replica forwards bytes as they come, before TLS, so both servers need the same certificate. It
//! first sends a preamble whose first byte (0) no HTTP or TLS client sends. A connection with the
//! preamble is not forwarded again: two replicas that each take the other for the writer would
//! forward it to each other for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::App;

/// The bytes that a replica sends before those of a client. TLS begins with 22, HTTP with a letter.
const PREAMBLE: &[u8; 13] = b"\0litelease 1\n";

/// How long a replica tries to reach the writer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a client may take to close the connection after the writer has closed it.
const HALF_CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Decides which server answers a connection.
#[derive(Default)]
pub(crate) enum Forwarding {
    /// The only server of a file: it accepts every connection.
    #[default]
    Never,
    /// The server that writes to an engine: it accepts every connection, forwarded or not.
    Writer,
    /// A replica: it forwards connections to the writer, if it knows that.
    Replica { writer: Option<String>, has_warned: AtomicBool },
}

impl Forwarding {
    /// Returns the forwarding of a replica that knows this writer, or none.
    pub(crate) fn replica(writer: Option<String>) -> Self {
        Forwarding::Replica { writer, has_warned: AtomicBool::new(false) }
    }

    /// Returns the connection if this server answers it. Otherwise forwards it until it ends.
    pub(crate) async fn accept_or_forward(
        &self,
        mut stream: TcpStream,
        app: &Arc<App>,
        patience: Duration,
    ) -> Option<TcpStream> {
        let writer = match self {
            Forwarding::Never => return Some(stream),
            Forwarding::Writer => None,
            Forwarding::Replica { writer, .. } => writer.as_deref(),
        };
        let is_forwarded = tokio::select! {
            found = timeout(patience, strip_preamble(&mut stream)) => found.ok()?.ok()?,
            () = app.stopped() => return None,
        };
        let Some(writer) = writer.filter(|_| !is_forwarded) else { return Some(stream) };
        let connected = tokio::select! {
            connected = timeout(CONNECT_TIMEOUT, connect(writer)) => connected,
            () = app.stopped() => return None,
        };
        // The engine names a writer for some seconds after it has ended. Then this server answers
        // itself, as it does when it knows no writer.
        let Ok(Ok(mut writer)) = connected else {
            self.warn(writer);
            return Some(stream);
        };
        tokio::select! {
            () = forward(&mut stream, &mut writer) => {}
            // Another server writes now, or this one ends.
            () = app.stopped() => {}
        }
        None
    }

    /// Says once that the writer cannot be reached: if it lives, its address is wrong.
    fn warn(&self, writer: &str) {
        let Forwarding::Replica { has_warned, .. } = self else { return };
        if !has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                writer,
                "the server that writes cannot be reached; is --advertise right there?"
            );
        }
    }
}

/// Copies bytes in both directions until both sides have closed theirs. Once the writer has, the
/// client has a moment to do so, too: a client that never did would keep its connection here.
async fn forward(client: &mut TcpStream, writer: &mut TcpStream) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_writer, mut to_writer) = writer.split();
    let there = async {
        match copy(&mut from_client, &mut to_writer).await {
            Ok(_) => to_writer.shutdown().await,
            Err(error) => Err(error),
        }
    };
    let back = async {
        match copy(&mut from_writer, &mut to_client).await {
            Ok(_) => to_client.shutdown().await,
            Err(error) => Err(error),
        }
    };
    tokio::pin!(there, back);
    // An error means that one of both is gone.
    let has_client_ended = tokio::select! {
        ended = &mut there => ended.map(|()| true),
        ended = &mut back => ended.map(|()| false),
    };
    match has_client_ended {
        Ok(true) => _ = back.await,
        Ok(false) => _ = timeout(HALF_CLOSE_TIMEOUT, there).await,
        Err(_) => {}
    }
}

async fn connect(writer: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(writer).await?;
    stream.set_nodelay(true)?;
    stream.write_all(PREAMBLE).await?;
    Ok(stream)
}

/// Removes the preamble from the front of a connection. Returns whether it was there.
async fn strip_preamble(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        _ if first[0] != PREAMBLE[0] => return Ok(false),
        _ => {}
    }
    let mut found = [0; PREAMBLE.len()];
    stream.read_exact(&mut found).await?;
    match &found == PREAMBLE {
        true => Ok(true),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
