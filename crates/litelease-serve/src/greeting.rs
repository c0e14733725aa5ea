//! The first bytes of a connection, which tell HTTP/1 from HTTP/2.
//!
//! hyper waits for them without a limit, so whoever says nothing, or only part of them, would keep a place for good.

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How often to look for the rest of a preface that came in parts, which hardly anybody sends.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until a client has said enough, and leaves it to be read. False if it has not in time, or has gone.
pub(crate) async fn is_heard(stream: &TcpStream, patience: Duration) -> bool {
    let heard = timeout(patience, async {
        let mut bytes = [0; PREFACE.len()];
        loop {
            match stream.peek(&mut bytes).await {
                Ok(read) if read > 0 && !is_partial(&bytes[..read]) => return true,
                Ok(1..) => sleep(PAUSE).await,
                _ => return false,
            }
        }
    });
    heard.await.unwrap_or(false)
}

fn is_partial(bytes: &[u8]) -> bool {
    bytes.len() < PREFACE.len() && PREFACE.starts_with(bytes)
}
