//! Measures how soon a blocked borrower is answered after the slot was returned.

use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use super::http::{Http, field};
use super::redis::Redis;

/// How many times one round measures it.
const TRIES: usize = 150;

/// Long enough for the waiter to be in the queue.
const PAUSE: Duration = Duration::from_millis(4);

/// Returns the median for the service, in seconds.
pub(crate) fn litelease(address: SocketAddr) -> io::Result<f64> {
    Http::register(address, 1)?;
    let (mut holder, mut waiter) = (Http::open(address)?, Http::open(address)?);
    holder.send("/borrow", r#"{"ttl":60}"#)?;
    let mut lent = holder.receive()?;
    median(|| {
        waiter.send("/borrow", r#"{"ttl":60,"wait":10}"#)?;
        thread::sleep(PAUSE);
        let lease = field(&lent, "lease").unwrap_or_default();
        let started = Instant::now();
        holder.send("/return", &format!("{{\"lease\":\"{lease}\"}}"))?;
        lent = waiter.receive()?;
        let took = started.elapsed();
        holder.receive()?;
        Ok(took)
    })
}

/// Returns the median for BLPOP, which promises less: neither a token nor an expiry.
pub(crate) fn redis(address: SocketAddr) -> io::Result<f64> {
    let (mut holder, mut waiter) = (Redis::open(address)?, Redis::open(address)?);
    median(|| {
        waiter.send(&["BLPOP", "woken", "10"])?;
        thread::sleep(PAUSE);
        let started = Instant::now();
        holder.send(&["RPUSH", "woken", "0"])?;
        waiter.receive()?;
        let took = started.elapsed();
        holder.receive()?;
        Ok(took)
    })
}

fn median(mut once: impl FnMut() -> io::Result<Duration>) -> io::Result<f64> {
    let mut times = (0..TRIES).map(|_| once()).collect::<io::Result<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times.get(TRIES / 2).copied().unwrap_or_default().as_secs_f64())
}
