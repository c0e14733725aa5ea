//! A claim through the oldest version of `rusqlite` that works.

use std::time::Duration;

use litelease::LiteleaseRef;
use rusqlite::{Connection, TransactionBehavior};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut conn = Connection::open("app.sqlite3")?; // the same type as `litelease::rusqlite::Connection`
    LiteleaseRef::new(&conn).bootstrap()?;
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let lease =
        LiteleaseRef::joining(&tx).claim("import", "a", Duration::from_secs(30))?.acquired();
    tx.commit()?;
    println!("token {:?}", lease.map(|lease| lease.token));
    conn.close().map_err(|(_, error)| error)?;
    Ok(())
}
