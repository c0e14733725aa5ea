//! Uses of handles that must not compile, each on a line that names the error; `misuse.rs` compiles
//! this file. Without these lines it must compile.

use std::thread::spawn;
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{Litelease, LiteleaseRef, RawLitelease, SingleWriter};

const TTL: Duration = Duration::from_secs(30);

fn the_connection_is_closed_before_a_handle_on_it(conn: Connection) -> litelease::Result<()> {
    let leases = LiteleaseRef::new(&conn);
    let _ = leases.claim("x", "a", TTL)?;
    drop(conn); //~ E0505
    Ok(())
}

fn the_owner_is_dropped_before_a_walk_along_its_leases(db: Litelease) {
    let mut walk = db.leases_under("x");
    let _ = walk.next();
    drop(db); //~ E0505
}

fn a_handle_is_moved_to_a_thread_before_its_view_at_a_time_is_gone(db: Litelease) {
    let early = db.at(100);
    let _ = early.bootstrap();
    spawn(move || drop(db)); //~ E0505
    let _ = early.bootstrap();
}

fn the_connection_is_moved_to_a_thread_before_the_handle_is_gone(conn: Connection) {
    let leases = LiteleaseRef::new(&conn);
    let _ = leases.bootstrap();
    spawn(move || drop(conn)); //~ E0505
}

fn the_transaction_ends_before_a_handle_on_it(mut conn: Connection) -> litelease::Result<()> {
    let tx = conn.transaction()?;
    let leases = LiteleaseRef::joining(&tx);
    let _ = leases.claim("x", "a", TTL)?;
    tx.commit()?; //~ E0505
    Ok(())
}

fn a_handle_outlives_the_function_of_its_connection() -> litelease::Result<()> {
    fn open<'c>() -> litelease::Result<Option<LiteleaseRef<'c>>> {
        let conn = Connection::open_in_memory()?;
        let leases = LiteleaseRef::new(&conn);
        leases.bootstrap()?;
        return Ok(Some(leases)); //~ E0515
        Ok(None)
    }
    open().map(drop)
}

fn the_owner_gives_its_connection_away_before_a_borrowed_handle_is_gone(db: Litelease) {
    let leases = db.borrowed();
    let _ = leases.bootstrap();
    db.into_connection(); //~ E0505
}

fn the_owner_is_dropped_before_its_transaction(mut db: Litelease) -> litelease::Result<()> {
    let tx = db.transaction()?;
    let _ = tx.claim("x", "a", TTL)?;
    drop(db); //~ E0505
    Ok(())
}

fn two_transactions_of_one_owner(mut db: Litelease) -> litelease::Result<()> {
    let tx = db.transaction()?;
    db.transaction()?; //~ E0499
    tx.commit()
}

fn the_transaction_ends_before_its_savepoint(mut db: Litelease) -> litelease::Result<()> {
    let mut tx = db.transaction()?;
    let savepoint = tx.savepoint()?;
    savepoint.bootstrap()?;
    tx.commit()?; //~ E0505
    Ok(())
}

fn two_savepoints_side_by_side(mut db: Litelease) -> litelease::Result<()> {
    let mut tx = db.transaction()?;
    let savepoint = tx.savepoint()?;
    tx.savepoint()?; //~ E0499
    savepoint.commit()
}

fn the_owner_is_dropped_before_its_pools(db: Litelease) -> litelease::Result<()> {
    let pools = db.pools();
    drop(db); //~ E0505
    pools.register("p", 1).map(drop)
}

fn a_raw_connection_is_closed_before_a_handle_on_it(mut conn: Connection) {
    // SAFETY: the handle is open as long as `conn` is.
    let leases = unsafe { RawLitelease::new(conn.handle(), &mut conn) };
    let _ = leases.bootstrap();
    drop(conn); //~ E0505
}

fn a_raw_connection_is_used_beside_a_handle_on_it(mut conn: Connection) -> litelease::Result<()> {
    // SAFETY: the handle is open as long as `conn` is.
    let leases = unsafe { RawLitelease::joining(conn.handle(), &mut conn) };
    conn.execute_batch("COMMIT")?; //~ E0502
    leases.bootstrap()
}

fn the_writer_is_dropped_before_its_transaction(writer: SingleWriter) -> Result<(), Box<dyn std::error::Error>> {
    let tx = writer.begin()?;
    LiteleaseRef::joining(&tx).bootstrap()?;
    drop(writer); //~ E0505
    Ok(())
}

fn main() {}
