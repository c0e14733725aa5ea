//! Leader: one process decides, and clients find its address. `cargo run --example recipe_leader`

use std::time::Duration;

use litelease::{Election, Guard, HoldError, HoldOptions, Litelease};

fn main() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    db.conn().execute_batch("CREATE TABLE IF NOT EXISTS decisions (text)")?;
    db.guard("decisions", "leader", &Guard::by_connection())?; // every target of a decision

    // The candidate: returns once this process leads.
    let election = Election::new(&db, "leader")?;
    let options = HoldOptions::new(Duration::from_secs(10)).wait(Duration::MAX);
    let leader = election.campaign("10.0.0.7:4000", options)?;
    leader.held().on_lost(|lost| eprintln!("stop leading: {lost}"));

    // A client, in any process: where is the leader? `election.observe()` follows changes.
    if let Some(known) = election.leader()? {
        println!("term {} is at {:?}", known.term, known.value);
    }

    // A decision in the file: refused once there is a later leader.
    leader.held().present_on(&db)?;
    db.conn().execute("INSERT INTO decisions VALUES ('begin')", [])?;

    // An answer from the file, and one from memory. Both fail once this leader may have a
    // successor.
    let count: i64 =
        leader.read(|tx| tx.query_row("SELECT count(*) FROM decisions", [], |row| row.get(0)))?;
    let answer = format!("{count} decision"); // computed from memory: check after, and then serve
    leader.check()?;
    println!("{answer}");

    leader.resign()?;
    Ok(())
}
