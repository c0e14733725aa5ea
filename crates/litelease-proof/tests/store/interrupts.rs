//! `sqlite3_interrupt` while a statement of the caller's is running: it stops ROLLBACK too, and
//! still no transaction of ours may stay open, nor may a later verb join one.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease::rusqlite::{Connection, ffi};
use litelease::{Error, Litelease, LiteleaseRef, RawLitelease, functions};
use litelease_proof::rig::{LONG, TestFolder, acquired, sqlite_code};
use litelease_store::boot::{Boot, pretend};

/// A file with the lease table and a pool, and a connection to it that no handle has used yet.
fn file() -> (TestFolder, Litelease, Connection) {
    let place = TestFolder::new("DELETE");
    let other = place.open(Duration::ZERO);
    other.pools().register("p", 5).unwrap();
    other.conn().execute_batch("CREATE TABLE mine (id); INSERT INTO mine VALUES (1), (2)").unwrap();
    let conn = place.connect(Duration::ZERO);
    (place, other, conn)
}

/// What else happens at the time of the interrupt.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Besides {
    Nothing,
    /// SQLite must compile every statement again, which the interrupt stops at white space.
    Expires,
    /// The same, and an authorizer forbids what would still help: the transaction stays open.
    Forbids,
}

/// Interrupts the connection once, when a row of ours is written.
fn interrupt_next_write(conn: &mut Connection, besides: Besides) {
    unsafe extern "C" fn forbid(
        _: *mut c_void,
        action: c_int,
        _: *const c_char,
        _: *const c_char,
        _: *const c_char,
        _: *const c_char,
    ) -> c_int {
        if action == ffi::SQLITE_PRAGMA { ffi::SQLITE_DENY } else { ffi::SQLITE_OK }
    }
    let armed = AtomicBool::new(true);
    let handle = conn.get_interrupt_handle();
    // SAFETY: it is used in this thread only, by a hook that goes with the connection.
    let db = unsafe { conn.handle() } as usize;
    let hook = move |_, _: &str, table: &str, _| {
        if table.starts_with("litelease") && armed.swap(false, Ordering::Relaxed) {
            handle.interrupt();
            let db = db as *mut ffi::sqlite3;
            // SAFETY: the connection is open: it is calling.
            unsafe {
                match besides {
                    Besides::Nothing => {}
                    Besides::Expires => drop(ffi::sqlite3_set_authorizer(db, None, null_mut())),
                    Besides::Forbids => {
                        ffi::sqlite3_set_authorizer(db, Some(forbid), null_mut());
                    }
                }
            }
        }
    };
    conn.update_hook(Some(hook)).unwrap();
}

/// A file, and a connection on which the transaction of an interrupted `raise` is still open.
fn left_open(is_used_before: bool) -> (TestFolder, Litelease, Connection) {
    let (place, other, mut conn) = file();
    if is_used_before {
        acquired(LiteleaseRef::new(&conn).claim("z", "a", LONG));
    }
    interrupt_next_write(&mut conn, Besides::Forbids);
    interrupted_by_hook(&conn, |db| db.raise(5));
    // SAFETY: the connection is open.
    unsafe { ffi::sqlite3_set_authorizer(conn.handle(), None, null_mut()) };
    assert!(!conn.is_autocommit(), "nothing is left open");
    (place, other, conn)
}

/// Interrupts a call of several statements while rows of the caller's are being read.
fn interrupted(
    conn: &mut Connection,
    call: impl FnOnce(&LiteleaseRef<'_>) -> litelease::Result<()>,
) {
    interrupt_next_write(conn, Besides::Nothing);
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
    // SQLite refused our ROLLBACK, because the interrupt lasted as long as the caller's read. The
    // transaction stayed open, a claim through the next handle joined it, and was told as granted
    // although nobody ever committed it.
    for (what, call) in [
        ("raise", (|db| db.raise(5)) as fn(&LiteleaseRef<'_>) -> litelease::Result<()>),
        ("borrow", |db| db.pools().borrow("p", LONG).map(drop)),
        ("restore_fence", |db| db.restore_fence().map(drop)),
    ] {
        for besides in [Besides::Nothing, Besides::Expires] {
            for is_used_before in [false, true] {
                let what = format!("{what}, {besides:?}, used before {is_used_before}");
                let (_place, other, mut conn) = file();
                if is_used_before {
                    acquired(LiteleaseRef::new(&conn).claim("z", "a", LONG));
                }
                let before = synchronous(&conn);
                interrupt_next_write(&mut conn, besides);
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
    // The rollback was owed by the handle for plain verbs, and the one for joined verbs did not
    // know.
    for is_used_before in [false, true] {
        let (_place, other, mut conn) = file();
        if is_used_before {
            acquired(LiteleaseRef::new(&conn).claim("z", "a", LONG));
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
    // A connection was interrupted under a borrowed handle, and then given to a handle that owns
    // it.
    let (_place, other, mut conn) = file();
    interrupted(&mut conn, |db| db.raise(5));
    let db = Litelease::from_connection(conn);
    acquired(db.claim("x", "a", LONG));
    assert!(other.inspect("x").unwrap().is_some(), "a grant that nobody sees");
}

#[test]
fn the_first_claim_of_a_boot_that_is_interrupted_takes_no_row_of_the_callers_with_it() {
    // The first claim of a boot records it, in a transaction of its own. The caller went on in what
    // they took for autocommit, and the next verb joined.
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
    // The transaction of an interrupted function stayed open, the caller wrote a row into it, and
    // the next call rolled it back.
    let (_place, other, mut conn) = file();
    functions::register(&conn).unwrap();
    interrupt_next_write(&mut conn, Besides::Nothing);
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

#[test]
fn no_handle_joins_a_transaction_that_could_not_be_rolled_back() {
    // The debt belonged to one handle, and the open transaction to the connection.
    type Next = fn(&mut Connection) -> litelease::Result<bool>;
    let handles: [(&str, Next); 4] = [
        ("plain", |conn| LiteleaseRef::new(conn).claim("x", "a", LONG).map(|_| true)),
        ("raw", |conn| {
            // SAFETY: the connection stays open and in this thread while it is borrowed.
            unsafe { RawLitelease::new(conn.handle(), conn) }.claim("x", "a", LONG).map(|_| true)
        }),
        ("function", |conn| {
            functions::register(conn)?;
            Ok(conn.query_row("SELECT litelease_claim('x', 'a', 30000)", [], |_| Ok(true))?)
        }),
        ("joining", |conn| match LiteleaseRef::joining(conn).claim("x", "a", LONG) {
            Err(Error::NotInTransaction) => Ok(false),
            claimed => panic!("{claimed:?}"),
        }),
    ];
    for is_used_before in [false, true] {
        for (what, next) in handles {
            let (_place, other, mut conn) = left_open(is_used_before);
            let is_granted = next(&mut conn).unwrap();
            assert!(conn.is_autocommit(), "{what}");
            assert_eq!(other.inspect("x").unwrap().is_some(), is_granted, "{what}");
            assert_eq!(other.epoch().unwrap(), LiteleaseRef::new(&conn).epoch().unwrap(), "{what}");
        }
        let (_place, other, conn) = left_open(is_used_before);
        let mut db = Litelease::from_connection(conn);
        assert_eq!(db.epoch().unwrap(), other.epoch().unwrap(), "it reads what is committed");
        let tx = db.transaction().unwrap();
        acquired(tx.claim("x", "a", LONG));
        tx.commit().unwrap();
        assert!(other.inspect("x").unwrap().is_some());
    }
}

#[test]
fn rows_of_the_callers_in_a_transaction_that_was_left_open_are_not_lost_silently() {
    for is_used_before in [false, true] {
        let (_place, other, conn) = left_open(is_used_before);
        conn.execute("INSERT INTO mine VALUES (3)", []).unwrap();
        for _ in 0..2 {
            let refused = LiteleaseRef::new(&conn).claim("x", "a", LONG);
            assert!(refused.as_ref().unwrap_err().to_string().contains("run ROLLBACK"));
            assert_eq!(sqlite_code(refused), ffi::SQLITE_INTERRUPT);
            assert!(LiteleaseRef::joining(&conn).token("x").is_err());
            assert!(!conn.is_autocommit());
        }
        conn.execute_batch("ROLLBACK; BEGIN IMMEDIATE; INSERT INTO mine VALUES (3)").unwrap();
        acquired(LiteleaseRef::joining(&conn).claim("x", "a", LONG));
        conn.execute_batch("COMMIT").unwrap();
        assert!(other.inspect("x").unwrap().is_some());
    }
}

/// A file, and a connection whose `synchronous` was NORMAL and is still raised after an interrupt.
///
/// After a rollback that changes the schema SQLite must read that again, and does not while it is
/// interrupted.
fn left_raised() -> (TestFolder, Connection) {
    let (place, other, mut conn) = file();
    other.conn().execute_batch("DROP TABLE litelease_meta").unwrap();
    pretend(Some(Boot::Known(78)));
    conn.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    interrupted(&mut conn, |db| db.claim("x", "a", LONG).map(drop));
    assert_eq!(synchronous(&conn), 3, "nothing is owed");
    (place, conn)
}

#[test]
fn synchronous_is_put_back_through_another_handle() {
    let (_place, conn) = left_raised();
    acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
    assert_eq!(synchronous(&conn), 1);
    pretend(None);
}

#[test]
fn what_is_owed_ends_with_its_connection() {
    // A new connection often has the address of one that was closed.
    let mut reused = 0;
    for _ in 0..20 {
        let (place, conn) = left_raised();
        // SAFETY: only the address is used.
        let address = |conn: &Connection| unsafe { conn.handle() } as usize;
        let before = address(&conn);
        conn.close().map_err(|(_, error)| error).unwrap();
        let conn = place.connect(Duration::ZERO);
        reused += u32::from(address(&conn) == before);
        assert_eq!(synchronous(&conn), 2);
        acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
        assert_eq!(synchronous(&conn), 2);
    }
    assert!(reused > 0, "no address was used again");
    pretend(None);
}
