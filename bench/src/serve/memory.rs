//! How much memory the server takes for each borrower that waits.

use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use super::Server;
use super::http::{Http, POOL};
use crate::Result;

/// How many wait.
pub(crate) const WAITERS: usize = 10_000;

const WAIT: &str = r#"{"ttl":60,"wait":300}"#;

/// In KiB, where each has a connection of its own.
pub(crate) fn of_http1(server: &Server) -> Result<f64> {
    each(server, wait_http1)
}

/// In KiB, where they share connections, a hundred each.
pub(crate) fn of_http2(server: &Server) -> Result<f64> {
    each(server, wait_http2)
}

fn each<T>(server: &Server, wait: fn(SocketAddr) -> Result<T>) -> Result<f64> {
    Http::register(server.address, 0)?;
    let resident = || -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", server.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
        Ok(line.split_whitespace().nth(1).unwrap_or("0").parse()?)
    };
    let before = resident()?;
    let waiting = wait(server.address)?;
    let after = resident()?;
    let metrics = Http::open(server.address)?.get("/metrics")?;
    let wanted = format!("litelease_waiters {WAITERS}\n");
    if !String::from_utf8_lossy(&metrics).contains(&wanted) {
        return Err("not all of them wait".into());
    }
    drop(waiting);
    Ok((after - before) / WAITERS as f64)
}

fn wait_http1(address: SocketAddr) -> Result<Vec<Http>> {
    let mut waiting = Vec::new();
    for _ in 0..WAITERS {
        let mut client = Http::open(address)?;
        client.send("/borrow", WAIT)?;
        waiting.push(client);
    }
    thread::sleep(Duration::from_secs(1));
    Ok(waiting)
}

fn wait_http2(
    address: SocketAddr,
) -> Result<(tokio::runtime::Runtime, Vec<h2::client::ResponseFuture>)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let waiting = runtime.block_on(async {
        let mut waiting = Vec::new();
        for _ in 0..WAITERS / 100 {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let (mut client, connection) = h2::client::handshake(stream).await?;
            tokio::spawn(connection);
            for _ in 0..100 {
                client = client.ready().await?;
                let request = http::Request::post(format!("http://localhost/l/{POOL}/borrow"))
                    .header("content-type", "application/json")
                    .body(())?;
                let (response, mut body) = client.send_request(request, false)?;
                body.send_data(WAIT.into(), true)?;
                waiting.push(response);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        Result::Ok(waiting)
    })?;
    Ok((runtime, waiting))
}
