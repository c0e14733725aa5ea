//! Only one of many may do the work: claim, work, renew, release.
//!
//! `cargo run --example basic_claim [FILE]`: start it twice at once. One works, the other says who
//! does.

use std::time::Duration;

use litelease::{ClaimResult, Litelease, RenewResult};

const TTL: Duration = Duration::from_secs(30);

fn main() -> litelease::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "app.sqlite3".into());
    let owner = format!("process-{}", std::process::id());

    let db = Litelease::open(file)?;
    db.bootstrap()?;
    let mut lease = match db.claim("nightly-report", &owner, TTL)? {
        ClaimResult::Acquired(lease) => lease,
        ClaimResult::Busy(current) => {
            println!("{} is already at it", current.owner);
            return Ok(());
        }
    };
    println!("{owner} works under token {}", lease.token);

    for page in 1..=3 {
        println!("page {page}");
        std::thread::sleep(Duration::from_millis(100));

        // Stay the owner while there is work, and stop as soon as another process is.
        lease = match db.renew(&lease, TTL)? {
            RenewResult::Renewed(lease) => lease,
            RenewResult::Rejected { reason, .. } => {
                println!("lost the lease: {reason}");
                return Ok(());
            }
        };
    }

    db.release(&lease)?;
    println!("done");
    Ok(())
}
