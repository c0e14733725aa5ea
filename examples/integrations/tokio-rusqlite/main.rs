//! A claim on the connection of `tokio-rusqlite`, which has a thread of its own.

use std::time::Duration;

use litelease::LiteleaseRef;
use litelease::rusqlite::TransactionBehavior;
use tokio_rusqlite::Connection;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let conn = Connection::open("app.sqlite3").await?;
    let claimed = conn.call(|conn| -> litelease::Result<_> {
        LiteleaseRef::new(conn).bootstrap()?;
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let claimed = LiteleaseRef::joining(&tx).claim("import", "a", Duration::from_secs(30))?;
        tx.commit()?;
        Ok(claimed)
    });
    println!("token {:?}", claimed.await?.acquired().map(|lease| lease.token));
    conn.close().await?;
    Ok(())
}
