//! Leases on engines that several machines share.

mod callers;
mod command;
mod etcd;
mod faults;
mod guards;
mod holding;
mod interleavings;
mod kept;
mod lost_answers;
mod moving;
mod pooler;
mod postgres;
mod scale;
mod service;
mod service_faults;
mod shared_scenarios;
mod side_by_side;
mod slow_lines;
mod ticks;
mod transactions;
mod verbs;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use litelease_proof::rig::report;

/// Returns until when a test that could go on for ever does more than it must: now, or after
/// `LITELEASE_STRESS_SECONDS`.
fn end_of_stress() -> Instant {
    let asked = std::env::var("LITELEASE_STRESS_SECONDS").ok();
    let seconds = asked.and_then(|asked| asked.parse().ok()).unwrap_or(0);
    Instant::now() + Duration::from_secs(seconds)
}

/// Makes an authority, and certificates of it for a server on loopback and for a client.
fn make_certificates(folder: &Path) -> bool {
    let script = "set -e
        key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2'
        openssl req -x509 $key -keyout ca.key -out ca.pem -subj /CN=authority
        for name in server client; do
          openssl req $key -keyout $name.key -out $name.csr -subj /CN=$name
          printf 'subjectAltName=IP:127.0.0.1\\nextendedKeyUsage=serverAuth,clientAuth' > $name.ext
          openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \\
            -extfile $name.ext -out $name.pem
        done";
    let made = Command::new("sh").args(["-c", script]).current_dir(folder).output();
    let is_made = made.is_ok_and(|made| made.status.success());
    if !is_made {
        report("SKIPPED: encryption, because openssl is missing");
    }
    is_made
}
