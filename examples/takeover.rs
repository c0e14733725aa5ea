use litelease::*;
use std::time::Duration;
fn main() -> Result<()> {
    let db = Litelease::from_connection(rusqlite::Connection::open_in_memory()?);
    println!("{:?}", db.claim("x", "a", Duration::from_secs(1)).map_err(|e| e.to_string()));
    db.bootstrap()?;
    println!("boot");
    println!("{:?}", db.claim("x", "a", Duration::from_secs(1)));
    println!("{:?}", db.claim_at("y", "a", Duration::from_millis(50), 100));
    println!("{:?}", db.purge(150));
    println!("{:?}", db.claim_at("y", "a", Duration::from_millis(50), 100));
    Ok(())
}
