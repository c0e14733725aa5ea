//! The limits of a service.

use std::time::Duration;

/// What a service allows.
///
/// ```
/// # use litelease_serve::Options;
/// let options = Options { max_count: 10_000, ..Options::default() };
/// assert_eq!(options.max_waiters, 10_000);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest number of slots that a pool may be given.
    pub max_count: i64,
    /// A longer ttl is cut to this.
    pub max_ttl: Duration,
    /// A longer wait is cut to this.
    pub max_wait: Duration,
    /// How many borrows may wait at a time, in all pools together.
    pub max_waiters: usize,
    /// How many connections may be open at a time; more are not accepted before one is closed.
    pub max_connections: usize,
    /// How long the head of a request may take, and how long its body.
    pub patience: Duration,
    /// How many requests may share a commit; 1 gives each one of its own, to compare with.
    pub max_batch: usize,
    /// Names by which clients may call this server, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The clock that leases are judged by, in Unix milliseconds; another one is for tests.
    pub clock: fn() -> i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_count: 1_000,
            max_ttl: Duration::from_secs(24 * 60 * 60),
            max_wait: Duration::from_secs(300),
            max_waiters: 10_000,
            max_connections: 20_000,
            patience: Duration::from_secs(10),
            max_batch: 1_000,
            hosts: Vec::new(),
            clock: litelease::now_ms,
        }
    }
}
