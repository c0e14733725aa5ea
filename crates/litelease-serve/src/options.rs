//! The limits of a service.

use std::time::Duration;

use litelease::credentials::Issuer;
use litelease_core::Thresholds;

use crate::tls::Tls;

/// The limits of a service.
///
/// ```
/// # use litelease_serve::Options;
/// let options = Options { max_count: 10_000, ..Options::default() };
/// assert_eq!(options.max_waiters, 20_000);
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The largest number of slots that a pool may be given.
    pub max_count: i64,
    /// The longest ttl; longer ones are cut to it.
    pub max_ttl: Duration,
    /// The longest wait; longer ones are cut to it.
    pub max_wait: Duration,
    /// The largest number of requests that wait at a time for slots, names and items. Clients
    /// without an access key have a half of this and of the limits below, each key a share.
    pub max_waiters: usize,
    /// The largest number of open connections. More are accepted only when one is closed. A
    /// connection beyond its client's share is closed after each answer.
    pub max_connections: usize,
    /// The largest number of open event streams.
    pub max_streams: usize,
    /// The largest number of bytes of long requests and responses that are under way.
    pub max_bytes: usize,
    /// The largest number of pools that clients may store.
    pub max_pools: usize,
    /// The largest number of answers to requests with an idempotency key that are stored in a day.
    pub max_answers: usize,
    /// The share of each access key, in percent of each limit.
    pub key_percent: u8,
    /// The longest time that the head of a request may take, and also its body.
    pub patience: Duration,
    /// The largest number of requests that share a commit; 1 gives each its own, for comparison.
    pub max_batch: usize,
    /// Host names that clients may use for this server, besides `localhost` and IP addresses.
    pub hosts: Vec<String>,
    /// The certificate to speak TLS with; without one, HTTP is spoken in the clear.
    pub tls: Option<Tls>,
    /// Lets every client call everything, without an access key.
    pub open: bool,
    /// Shows the metrics without an access key.
    pub open_metrics: bool,
    /// The issuer whose public keys are served at `/.well-known/jwks.json`.
    pub credentials: Option<Issuer>,
    /// When the overview says that something is stuck or late.
    pub thresholds: Thresholds,
    /// How many rows the history of a file keeps; 0 for none. `None` leaves a history as it is, and
    /// begins one where there is none.
    pub history: Option<u32>,
    /// The clock for expiry, in Unix milliseconds. Tests replace it.
    pub clock: fn() -> i64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            max_count: 1_000,
            max_ttl: Duration::from_secs(24 * 60 * 60),
            max_wait: Duration::from_secs(300),
            max_waiters: 20_000,
            max_connections: 20_000,
            max_streams: 4_000,
            max_bytes: 256 * 1024 * 1024,
            max_pools: 100_000,
            max_answers: 20_000_000,
            key_percent: 25,
            patience: Duration::from_secs(10),
            max_batch: 1_000,
            hosts: Vec::new(),
            tls: None,
            open: false,
            open_metrics: false,
            credentials: None,
            thresholds: Thresholds::default(),
            history: None,
            clock: litelease::now_ms,
        }
    }
}
