//! Session: one heartbeat keeps many names, and all end together. `cargo run --example
//! recipe_session`

use std::time::Duration;

use litelease::{Guard, HoldError, Litelease, Session};

fn main() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    db.conn().execute_batch("CREATE TABLE IF NOT EXISTS fiction (title)")?;
    db.guard("fiction", "fiction", &Guard::by_connection())?;

    // One process per identity. A second one gets Busy, or replaces the first: `Session::replace`.
    let session = match Session::open(&db, "worker-7", Duration::from_secs(30)) {
        Err(HoldError::Busy(current)) => {
            println!("{} is worker-7", current.owner);
            return Ok(());
        }
        opened => opened?,
    };
    let lost = session.lost();
    std::thread::spawn(move || {
        if let Some(reason) = lost.wait() {
            eprintln!("stop everything: {reason}");
        }
    });

    let fiction = session.claim("fiction")?;
    let poetry = session.claim("poetry")?;
    fiction.present_on(&db)?;
    for title in ["Emma", "Persuasion"] {
        fiction.check()?; // told: fails before another process can have the name
        db.conn().execute("INSERT INTO fiction VALUES (?1)", [title])?; // refused, if that was too early
    }
    println!("{} under token {}, {} too", fiction.name(), fiction.token(), poetry.name());

    session.close()?; // all names in one commit
    Ok(())
}
