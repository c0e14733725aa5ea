//! Measures the memory of the server per waiting borrower, for growing numbers of them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::Server;
use super::http::Http;
use crate::Result;
use crate::results::Point;

const WAIT: &str = r#"{"ttl":60,"wait":300}"#;

/// Returns the KiB per waiting borrower, for each number of them.
pub(crate) fn each(server: &Server, counts: &[u32]) -> Result<Vec<Point>> {
    Http::register(server.address, 0)?;
    let before = resident(server)?;
    let (mut waiting, mut points) = (Vec::new(), Vec::new());
    for &count in counts {
        while waiting.len() < count as usize {
            let mut client = Http::open(server.address)?;
            client.send("/borrow", WAIT)?;
            waiting.push(client);
        }
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
