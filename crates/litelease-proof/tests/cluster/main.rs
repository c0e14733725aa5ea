//! Leases on engines that several machines share.

mod etcd;
mod interleavings;
mod shared_scenarios;
mod verbs;

use std::time::Duration;

/// How long a test that could go on for ever does so: some seconds, or `LITELEASE_STRESS_SECONDS`.
fn stress(seconds: u64) -> Duration {
    let asked = std::env::var("LITELEASE_STRESS_SECONDS").ok();
    Duration::from_secs(asked.and_then(|asked| asked.parse().ok()).unwrap_or(seconds))
}
