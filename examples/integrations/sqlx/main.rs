//! A claim inside a transaction of `sqlx`, committed together with the work it allows.

use std::error::Error;
use std::time::Duration;

use litelease::{Leases, RawLitelease};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};

/// Runs verbs on a connection. Where a transaction is open, they join it.
async fn leases<T>(
    conn: &mut SqliteConnection,
    verbs: impl FnOnce(&Leases) -> litelease::Result<T>,
) -> Result<T, Box<dyn Error>> {
    let mut locked = conn.lock_handle().await?;
    let db = locked.as_raw_handle().as_ptr();
    // SAFETY: `locked` keeps the connection open, and the thread of `sqlx` away from it, until it
    // is dropped.
    let leases = unsafe { RawLitelease::new(db, &mut locked) };
    Ok(verbs(&leases)?)
}

/// Runs verbs inside the open transaction of a connection; without one, they are an error.
async fn joining<T>(
    conn: &mut SqliteConnection,
    verbs: impl FnOnce(&Leases) -> litelease::Result<T>,
) -> Result<T, Box<dyn Error>> {
    let mut locked = conn.lock_handle().await?;
    let db = locked.as_raw_handle().as_ptr();
    // SAFETY: as above.
    let leases = unsafe { RawLitelease::joining(db, &mut locked) };
    Ok(verbs(&leases)?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = SqliteConnectOptions::new().filename("app.sqlite3").create_if_missing(true);
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options).await?;
    leases(&mut *pool.acquire().await?, |leases| leases.bootstrap()).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS jobs (token INTEGER)").execute(&pool).await?;

    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
    let ttl = Duration::from_secs(30);
    let claimed = joining(&mut tx, |leases| leases.claim("import", "a", ttl)).await?;
    let token = claimed.acquired().map(|lease| lease.token);
    sqlx::query("INSERT INTO jobs VALUES (?1)").bind(token).execute(&mut *tx).await?;
    tx.commit().await?; // only now is the token ours
    println!("token {token:?}");

    let outside =
        joining(&mut *pool.acquire().await?, |leases| leases.release_by_owner("import", "a")).await;
    assert!(outside.is_err(), "no transaction is open");
    pool.close().await;
    Ok(())
}
