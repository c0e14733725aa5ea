//! A connection between clients and a server that is slow, or on which answers get lost: the
//! request arrives, and then it breaks.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// Passes everything on, except for answers that the test wants lost. It ends with the process.
pub struct Proxy {
    address: SocketAddr,
    /// Answers that are to be lost.
    to_lose: Arc<AtomicU64>,
}

/// How many bytes are passed on at a time, at most.
const CHUNK: usize = 65_536;

impl Proxy {
    /// Begins to listen in front of a server.
    pub fn start(server: SocketAddr) -> Self {
        Proxy::slow(server, Duration::ZERO)
    }

    /// The same, and rests for a while before it passes on each 64 KiB of an answer.
    pub fn slow(server: SocketAddr, rest: Duration) -> Self {
        Proxy::resting(server, Duration::ZERO, rest)
    }

    /// The same for each 64 KiB of a request, too.
    pub fn narrow(server: SocketAddr, rest: Duration) -> Self {
        Proxy::resting(server, rest, rest)
    }

    fn resting(server: SocketAddr, before: Duration, rest: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its number");
        let to_lose = Arc::new(AtomicU64::new(0));
        let lose = Arc::clone(&to_lose);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let (to, from) = (client.try_clone(), server.try_clone());
                let (Ok(to), Ok(from)) = (to, from) else { continue };
                let lose = Arc::clone(&lose);
                let is_kept = move || {
                    thread::sleep(before);
                    false
                };
                thread::spawn(move || pass(client, server, is_kept));
                let is_lost = move || {
                    thread::sleep(rest);
                    is_lost(&lose)
                };
                thread::spawn(move || pass(from, to, is_lost));
            }
        });
        Proxy { address, to_lose }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses the next answers, and breaks the connections that they were to come by.
    pub fn lose(&self, answers: u64) {
        self.to_lose.fetch_add(answers, Ordering::Relaxed);
    }

    /// How many answers are still to be lost.
    pub fn left(&self) -> u64 {
        self.to_lose.load(Ordering::Relaxed)
    }
}

fn is_lost(to_lose: &AtomicU64) -> bool {
    to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}

/// Passes on what comes, until an end, or until something is lost.
fn pass(mut from: TcpStream, mut to: TcpStream, is_lost: impl Fn() -> bool) {
    let mut bytes = vec![0; CHUNK];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if is_lost() || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
