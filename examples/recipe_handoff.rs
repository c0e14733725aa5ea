//! Handoff: a new version takes over without a gap or an overlap. `cargo run --example
//! recipe_handoff`

use std::thread;
use std::time::Duration;

use litelease::rusqlite::types::Value;
use litelease::{HoldError, HoldOptions, Litelease};

const TTL: Duration = Duration::from_secs(30);

/// The old version: works until another asks for the lease, and then leaves everything in order.
fn old_version() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    let held = db.hold("import", HoldOptions::new(TTL).wait(Duration::MAX))?;
    let mut row = 0;
    while held.requested().is_none() {
        row += 1; // one more row
        thread::sleep(Duration::from_millis(1));
    }
    let _ = db.checkpoint(&held, row)?; // nothing uncommitted is left
    held.hand_over(TTL).map_err(|(_, error)| error)?; // one commit: from now on it is the other's
    println!("old: stopped after some rows");
    Ok(())
}

/// The new version: asks, waits, and goes on where the old one stopped.
fn new_version() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    let drain = Duration::from_secs(300); // how long the old one may take to finish
    let held = db.hold("import", HoldOptions::new(TTL).request(drain).wait(Duration::MAX))?;
    match db.last_checkpoint("import")? {
        Some(last) if last.is_from_predecessor(held.token()) => {
            assert!(matches!(last.value, Value::Integer(row) if row > 0));
            println!("new: goes on after the last row");
        }
        // The predecessor stored none, so what is there may be too old: look at the target.
        _ => println!("new: looks for the last row in the target"),
    }
    Ok(())
}

fn main() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    let old = thread::spawn(old_version);
    while db.owner("import")?.is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    new_version()?;
    old.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
