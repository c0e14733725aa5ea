//! A lease that is held across awaits, and work that ends at once when the lease is lost.

use std::error::Error;
use std::time::Duration;

use litelease::{HoldOptions, Litelease, Lost};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Opening and claiming wait for locks, so they belong on a thread that may block.
    let held = spawn_blocking(|| -> Result<_, litelease::HoldError> {
        let db = Litelease::open_own("app.sqlite3")?;
        db.hold("import", HoldOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(5)))
    });
    let held = held.await??; // from here on a thread of the crate renews it; no other thread has to block

    let (tell, lost) = oneshot::channel::<Lost>();
    held.on_lost(move |lost| _ = tell.send(lost.clone()));
    tokio::select! {
        done = import(held.token()) => println!("token {:?}", Some(done)),
        Ok(lost) = lost => return Err(lost.into()), // the work was stopped at its last await
    }
    held.check()?; // nothing was lost up to the last moment
    spawn_blocking(move || held.release()).await??; // releasing writes, too
    Ok(())
}

/// Stands for work with awaits in it. What it writes carries the token.
async fn import(token: i64) -> i64 {
    for _ in 0..3 {
        sleep(Duration::from_millis(20)).await;
    }
    token
}
