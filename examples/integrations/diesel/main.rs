//! A claim inside a transaction of `diesel`, which does not hand out its connection: through the
//! SQL functions.

use diesel::prelude::*;
use diesel::sql_types::{BigInt, Nullable, Text};

diesel::define_sql_function! {
    fn litelease_claim(name: Text, owner: Text, ttl_ms: BigInt) -> Nullable<BigInt>;
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    litelease::functions::register_everywhere()?; // before the first connection
    let mut conn = SqliteConnection::establish("app.sqlite3")?;
    diesel::sql_query("SELECT litelease_bootstrap()").execute(&mut conn)?;
    diesel::sql_query("CREATE TABLE IF NOT EXISTS jobs (token BIGINT)").execute(&mut conn)?;

    let token = conn.immediate_transaction(|conn| {
        let claim = diesel::select(litelease_claim("import", "a", 30_000));
        let token: Option<i64> = claim.get_result(conn)?; // None: another owner has it
        diesel::sql_query("INSERT INTO jobs VALUES (?)")
            .bind::<Nullable<BigInt>, _>(token)
            .execute(conn)?;
        QueryResult::Ok(token)
    })?;
    println!("token {token:?}");
    Ok(())
}
