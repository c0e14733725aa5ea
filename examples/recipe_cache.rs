//! Cache: answer from memory, and never an old value. `cargo run --example recipe_cache`

use std::time::Duration;

use litelease::{Cached, HoldError, Litelease};

fn main() -> Result<(), HoldError> {
    let db = Litelease::open_own("app.sqlite3")?;
    db.conn().execute_batch(
        "CREATE TABLE IF NOT EXISTS prices (tea INTEGER);
         INSERT INTO prices SELECT 300 WHERE NOT EXISTS (SELECT 1 FROM prices)",
    )?;

    // A reader, in each process that answers. A writer waits at most a minute for one that is
    // stopped.
    let price: Cached<i64> = db.cached("prices", Duration::from_secs(60), |conn| {
        Ok(conn.query_row("SELECT tea FROM prices", [], |row| row.get(0))?)
    })?;
    println!("tea costs {}", price.get()?); // from the file
    println!("tea costs {}", price.get()?); // from memory

    // A writer, in any process. It commits when no reader answers from memory any more.
    price.write(Duration::from_secs(90), |tx| {
        tx.conn().execute("UPDATE prices SET tea = tea + 20", [])?;
        Ok(())
    })?;
    println!("tea costs {}", price.get()?);
    Ok(())
}
