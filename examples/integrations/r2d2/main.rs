//! A claim on a connection from an `r2d2` pool.

use std::thread;
use std::time::Duration;

use litelease::LiteleaseRef;
use litelease::rusqlite::TransactionBehavior;
use r2d2_sqlite::SqliteConnectionManager;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool =
        r2d2::Pool::builder().max_size(2).build(SqliteConnectionManager::file("app.sqlite3"))?;
    LiteleaseRef::new(&*pool.get()?).bootstrap()?;

    let of_thread = pool.clone();
    let worker =
        thread::spawn(move || -> Result<Option<i64>, Box<dyn std::error::Error + Send + Sync>> {
            let mut conn = of_thread.get()?;
            let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let claimed =
                LiteleaseRef::joining(&tx).claim("import", "a", Duration::from_secs(30))?;
            tx.commit()?;
            Ok(claimed.acquired().map(|lease| lease.token))
        });
    let token =
        worker.join().expect("the thread does not panic").map_err(|error| error.to_string())?;
    println!("token {token:?}");
    Ok(())
}
