//! Where a connection goes: it is served here, or passed on to the server that writes.
//!
//! A replica passes on bytes as they come, before TLS, so both servers need the same certificate.
//! It sends a mark first, which no client can begin with. A connection with the mark is not passed
//! on a second time: two replicas that each take the other for the writer would do so for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::http::App;

/// What a replica sends before the bytes of a client. TLS begins with 22, and HTTP with a letter.
const MARK: &[u8; 13] = b"\0litelease 1\n";

/// How long a replica tries to reach the writer.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a client may take to hang up after the writer has.
const LINGER: Duration = Duration::from_secs(1);

/// Where connections go.
#[derive(Default)]
pub(crate) enum Door {
    /// All are served here, and nobody passes any on.
    #[default]
    Open,
    /// All are served here, also those that other replicas pass on.
    Writer,
    /// They are passed on to the writer, if it is known.
    Replica { writer: Option<String>, has_warned: AtomicBool },
}

impl Door {
    /// Returns the door of a replica that knows this writer, or none.
    pub(crate) fn replica(writer: Option<String>) -> Self {
        Door::Replica { writer, has_warned: AtomicBool::new(false) }
    }

    /// Returns the connection if it is to be served here. Otherwise passes it on, until it ends.
    pub(crate) async fn enter(
        &self,
        mut stream: TcpStream,
        app: &Arc<App>,
        patience: Duration,
    ) -> Option<TcpStream> {
        let writer = match self {
            Door::Open => return Some(stream),
            Door::Writer => None,
            Door::Replica { writer, .. } => writer.as_deref(),
        };
        let is_marked = tokio::select! {
            found = timeout(patience, take_mark(&mut stream)) => found.ok()?.ok()?,
            () = app.stopped() => return None,
        };
        let Some(writer) = writer.filter(|_| !is_marked) else { return Some(stream) };
        let connected = tokio::select! {
            connected = timeout(PATIENCE, connect(writer)) => connected,
            () = app.stopped() => return None,
        };
        // A writer that has just ended is known for some seconds more: then no writer is known.
        let Ok(Ok(mut writer)) = connected else {
            self.warn(writer);
            return Some(stream);
        };
        tokio::select! {
            () = pass(&mut stream, &mut writer) => {}
            // Another server writes now, or this one ends.
            () = app.stopped() => {}
        }
        None
    }

    /// Says once that the writer cannot be reached: if it lives, its address is wrong.
    fn warn(&self, writer: &str) {
        let Door::Replica { has_warned, .. } = self else { return };
        if !has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                writer,
                "the server that writes cannot be reached; is --advertise right there?"
            );
        }
    }
}

/// Passes bytes on in both directions, until both sides have nothing more to say. When the writer
/// has hung up, the client has a moment to do so, too: one that never does would keep its place
/// here.
async fn pass(client: &mut TcpStream, writer: &mut TcpStream) {
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
        Ok(false) => _ = timeout(LINGER, there).await,
        Err(_) => {}
    }
}

async fn connect(writer: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(writer).await?;
    stream.set_nodelay(true)?;
    stream.write_all(MARK).await?;
    Ok(stream)
}

/// Takes the mark off the front of a connection, if it is there.
async fn take_mark(stream: &mut TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        _ if first[0] != MARK[0] => return Ok(false),
        _ => {}
    }
    let mut found = [0; MARK.len()];
    stream.read_exact(&mut found).await?;
    match &found == MARK {
        true => Ok(true),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}
