//! Measures the memory of the server per waiting borrower, for growing numbers of them.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::Server;
use super::http::{Http, POOL};
use crate::Result;
use crate::results::Point;

const WAIT: &str = r#"{"ttl":60,"wait":300}"#;

/// How many borrowers wait on one HTTP/2 connection.
const SHARED: usize = 100;

/// Adds waiting borrowers to a server, and keeps the earlier ones.
pub(crate) trait Waiters {
    fn add(&mut self, address: SocketAddr, more: u32) -> Result<()>;
}

/// Returns the KiB per waiting borrower, for each number of them.
pub(crate) fn each(
    server: &Server,
    mut waiters: impl Waiters,
    counts: &[u32],
) -> Result<Vec<Point>> {
    Http::register(server.address, 0)?;
    let before = resident(server)?;
    let mut waiting = 0;
    let mut points = Vec::new();
    for &count in counts {
        waiters.add(server.address, count - waiting)?;
        waiting = count;
        until_waiting(server, count)?;
        let each = (resident(server)? - before).max(0.0) / f64::from(count);
        points.push(Point { x: f64::from(count), y: each, range: None });
    }
    Ok(points)
}

fn until_waiting(server: &Server, count: u32) -> Result<()> {
    let wanted = format!("litelease_waiters {count}\n");
    let begin = Instant::now();
    loop {
        let metrics = Http::open(server.address)?.get("/metrics")?;
        if String::from_utf8_lossy(&metrics).contains(&wanted) {
            return Ok(());
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Err("not all of them wait".into());
        }
        thread::sleep(Duration::from_millis(50));
    }
}

fn resident(server: &Server) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    Ok(line.split_whitespace().nth(1).unwrap_or("0").parse()?)
}

/// Borrowers with a connection each.
#[derive(Default)]
pub(crate) struct Http1(Vec<Http>);

impl Waiters for Http1 {
    fn add(&mut self, address: SocketAddr, more: u32) -> Result<()> {
        for _ in 0..more {
            let mut client = Http::open(address)?;
            client.send("/borrow", WAIT)?;
            self.0.push(client);
        }
        Ok(())
    }
}

/// Borrowers that share connections.
pub(crate) struct Http2 {
    runtime: tokio::runtime::Runtime,
    waiting: Vec<h2::client::ResponseFuture>,
}

impl Http2 {
    pub(crate) fn new() -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Http2 { runtime, waiting: Vec::new() })
    }
}

impl Waiters for Http2 {
    fn add(&mut self, address: SocketAddr, more: u32) -> Result<()> {
        self.runtime.block_on(async {
            for begin in (0..more).step_by(SHARED) {
                let stream = tokio::net::TcpStream::connect(address).await?;
                let (mut client, connection) = h2::client::handshake(stream).await?;
                tokio::spawn(connection);
                for _ in begin..more.min(begin + SHARED as u32) {
                    client = client.ready().await?;
                    let request = http::Request::post(format!("http://localhost/l/{POOL}/borrow"))
                        .header("content-type", "application/json")
                        .body(())?;
                    let (response, mut body) = client.send_request(request, false)?;
                    body.send_data(WAIT.into(), true)?;
                    self.waiting.push(response);
                }
            }
            // The connections make progress only while this waits.
            tokio::time::sleep(Duration::from_millis(500)).await;
            Ok(())
        })
    }
}
