//! A claim on a connection from a `deadpool` pool.

use std::time::Duration;

use deadpool_sqlite::{Config, Runtime};
use litelease::LiteleaseRef;
use litelease::rusqlite::TransactionBehavior;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Config::new("app.sqlite3").create_pool(Runtime::Tokio1)?;
    let conn = pool.get().await?;
    conn.interact(|conn| LiteleaseRef::new(conn).bootstrap())
        .await
        .map_err(|error| error.to_string())??;

    // The closure runs on a thread that may block.
    let claimed = conn.interact(|conn| -> litelease::Result<_> {
        let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let claimed = LiteleaseRef::joining(&tx).claim("import", "a", Duration::from_secs(30))?;
        tx.commit()?;
        Ok(claimed)
    });
    let claimed = claimed.await.map_err(|error| error.to_string())??;
    println!("token {:?}", claimed.acquired().map(|lease| lease.token));
    Ok(())
}
