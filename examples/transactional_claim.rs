//! The claim and the work it allows, committed together or not at all.
//!
//! `cargo run --example transactional_claim [FILE]`: run it again, and the next batch is imported.

use std::time::Duration;

use litelease::{ClaimResult, Lease, Litelease};

const TTL: Duration = Duration::from_secs(30);

fn main() -> litelease::Result<()> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "app.sqlite3".into());
    let mut db = Litelease::open(file)?;
    db.bootstrap()?;
    db.conn().execute_batch(
        "CREATE TABLE IF NOT EXISTS batches (id INTEGER PRIMARY KEY, imported_under INTEGER)",
    )?;

    let Some((lease, batch)) = start_batch(&mut db, "importer-1")? else {
        println!("somebody else imports");
        return Ok(());
    };
    println!("batch {batch} is ours, under token {}", lease.token);

    // The last write checks, in its own transaction, that there is no newer grant.
    let tx = db.transaction()?;
    if tx.token(&lease.name)? != Some(lease.token) {
        println!("superseded: another process has taken over, and nothing was written");
        return Ok(());
    }
    tx.conn()
        .execute("UPDATE batches SET imported_under = ?1 WHERE id = ?2", (lease.token, batch))?;
    tx.release(&lease)?;
    tx.commit()?;
    println!("batch {batch} is imported, and the lease released, in one commit");
    Ok(())
}

/// Claims the import and records its batch. Both are stored, or neither is.
fn start_batch(db: &mut Litelease, owner: &str) -> litelease::Result<Option<(Lease, i64)>> {
    let tx = db.transaction()?;
    let ClaimResult::Acquired(lease) = tx.claim("import", owner, TTL)? else {
        return Ok(None);
    };
    tx.conn().execute("INSERT INTO batches DEFAULT VALUES", [])?;
    let batch = tx.conn().last_insert_rowid();
    tx.commit()?; // only now is the token ours
    Ok(Some((lease, batch)))
}
