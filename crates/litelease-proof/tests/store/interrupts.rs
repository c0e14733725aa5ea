//! `sqlite3_interrupt` while a statement of the caller's is running: it stops ROLLBACK too, and still no transaction of
//! ours may stay open, nor may a later verb join one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease::rusqlite::{Connection, ffi};
use litelease::{Error, Litelease, LiteleaseRef, RawLitelease, functions};
use litelease_proof::rig::{LONG, TestFolder, acquired, sqlite_code};
use litelease_store::boot::{Boot, pretend};

const TTL: Duration = Duration::from_millis(50);

/// A file with the lease table and a pool, and a connection to it that no handle has used yet.
fn file() -> (TestFolder, Litelease, Connection) {
    let place = TestFolder::new("DELETE");
    let other = place.open(Duration::ZERO);
    other.pools().register("p", 5).unwrap();
    other.conn().execute_batch("CREATE TABLE mine (id); INSERT INTO mine VALUES (1), (2)").unwrap();
    let conn = place.connect(Duration::ZERO);
    (place, other, conn)
}

/// Interrupts the connection once, when a row of ours is written. `expires` makes SQLite compile every statement again
/// after that, which the interrupt stops.
fn interrupt_next_write(conn: &mut Connection, expires: bool) {
    let armed = AtomicBool::new(true);
    let handle = conn.get_interrupt_handle();
    // SAFETY: it is used in this thread only, by a hook that goes with the connection.
    let db = unsafe { conn.handle() } as usize;
    let hook = move |_, _: &str, table: &str, _| {
        if table.starts_with("litelease") && armed.swap(false, Ordering::Relaxed) {
            handle.interrupt();
            if expires {
                // SAFETY: the connection is open: it is calling.
                unsafe { ffi::sqlite3_set_authorizer(db as *mut _, None, std::ptr::null_mut()) };
            }
        }
    };
    conn.update_hook(Some(hook)).unwrap();
}

/// Interrupts a call of several statements while rows of the caller's are being read.
fn interrupted(
    conn: &mut Connection,
    call: impl FnOnce(&LiteleaseRef<'_>) -> litelease::Result<()>,
) {
    interrupt_next_write(conn, false);
    interrupted_by_hook(conn, call);
}

fn interrupted_by_hook(
    conn: &Connection,
    call: impl FnOnce(&LiteleaseRef<'_>) -> litelease::Result<()>,
) {
    let mut reading = conn.prepare("SELECT id FROM mine").unwrap();
    let mut rows = reading.query([]).unwrap();
    rows.next().unwrap();
    assert_eq!(sqlite_code(call(&LiteleaseRef::new(conn))), ffi::SQLITE_INTERRUPT);
}

fn synchronous(conn: &Connection) -> i64 {
    conn.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
}

#[test]
fn an_interrupted_call_leaves_no_transaction_open_while_rows_are_read() {
    // SQLite refused our ROLLBACK, because the interrupt lasted as long as the caller's read. The transaction stayed
    // open, a claim through the next handle joined it, and was told as granted although nobody ever committed it.
    for (what, call) in [
        ("raise", (|db| db.raise(5)) as fn(&LiteleaseRef<'_>) -> litelease::Result<()>),
        ("borrow", |db| db.pools().borrow("p", TTL).map(drop)),
        ("restore_fence", |db| db.restore_fence().map(drop)),
    ] {
        for expires in [false, true] {
            for is_used_before in [false, true] {
                let what = format!("{what}, expires {expires}, used before {is_used_before}");
                let (_place, other, mut conn) = file();
                if is_used_before {
                    acquired(LiteleaseRef::new(&conn).claim("z", "a", TTL));
                }
                let before = synchronous(&conn);
                interrupt_next_write(&mut conn, expires);
                interrupted_by_hook(&conn, call);
                assert!(conn.is_autocommit(), "{what}: a transaction is left open");
                assert_eq!(synchronous(&conn), before, "{what}");
                acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
                assert!(other.inspect("x").unwrap().is_some(), "{what}: a grant that nobody sees");
            }
        }
    }
}

#[test]
fn joining_joins_no_transaction_that_an_interrupted_call_has_left() {
    // The rollback was owed by the handle for plain verbs, and the one for joined verbs did not know.
    for is_used_before in [false, true] {
        let (_place, other, mut conn) = file();
        if is_used_before {
            acquired(LiteleaseRef::new(&conn).claim("z", "a", TTL));
        }
        interrupted(&mut conn, |db| db.raise(5));
        let claimed = LiteleaseRef::joining(&conn).claim("x", "a", LONG);
        assert!(matches!(claimed, Err(Error::NotInTransaction)), "{claimed:?}");
        // SAFETY: the connection stays open and in this thread while it is borrowed.
        let raw = unsafe { RawLitelease::joining(conn.handle(), &mut conn) }.claim("x", "a", LONG);
        assert!(matches!(raw, Err(Error::NotInTransaction)), "{raw:?}");
        assert_eq!(other.token("x").unwrap(), None);
    }
}

#[test]
fn an_owner_joins_no_transaction_that_an_interrupted_call_has_left() {
    // A connection was interrupted under a borrowed handle, and then given to a handle that owns it.
    let (_place, other, mut conn) = file();
    interrupted(&mut conn, |db| db.raise(5));
    let db = Litelease::from_connection(conn);
    acquired(db.claim("x", "a", LONG));
    assert!(other.inspect("x").unwrap().is_some(), "a grant that nobody sees");
}

#[test]
fn the_first_claim_of_a_boot_that_is_interrupted_takes_no_row_of_the_callers_with_it() {
    // The first claim of a boot records it, in a transaction of its own. The caller went on in what they took for
    // autocommit, and the next verb joined.
    let (_place, other, mut conn) = file();
    pretend(Some(Boot::Known(77)));
    interrupted(&mut conn, |db| db.claim("job 1", "a", LONG).map(drop));
    conn.execute("INSERT INTO mine VALUES (4)", []).unwrap();
    let seen: i64 =
        other.conn().query_row("SELECT count(*) FROM mine", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, 3, "the caller's row is not committed");
    acquired(LiteleaseRef::new(&conn).claim("job 9", "a", LONG));
    assert!(other.inspect("job 9").unwrap().is_some(), "a grant that nobody sees");
    pretend(None);
}

#[test]
fn an_interrupted_sql_function_takes_no_row_of_the_callers_with_it() {
    // The transaction of an interrupted function stayed open, the caller wrote a row into it, and the next call rolled
    // it back.
    let (_place, other, mut conn) = file();
    functions::register(&conn).unwrap();
    interrupt_next_write(&mut conn, false);
    let raised = conn.query_row("SELECT litelease_raise(5)", [], |row| row.get::<_, i64>(0));
    assert!(raised.is_err());
    assert!(conn.is_autocommit());
    conn.execute("INSERT INTO mine VALUES (3)", []).unwrap();
    acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
    let claim = "SELECT litelease_claim('y', 'a', 30000)";
    assert_eq!(conn.query_row(claim, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    let seen: i64 =
        other.conn().query_row("SELECT count(*) FROM mine", [], |row| row.get(0)).unwrap();
    assert_eq!(seen, 3, "the caller's row is gone");
    assert!(other.inspect("x").unwrap().is_some(), "a grant that nobody sees");
}
