//! `sqlite3_interrupt` while a statement of the caller's is running stops ROLLBACK too, and an
//! authorizer can forbid it. Still a change whose verb returned an error is never committed.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litelease::rusqlite::{Connection, ffi};
use litelease::{Error, Litelease, LiteleaseRef, RawLitelease, functions};
use litelease_proof::boot::{Boot, pretend};
use litelease_proof::rig::{LONG, TestFolder, acquired, sqlite_code};

/// A file with the lease table and a pool, and a connection to it that no handle has used yet.
fn file() -> (TestFolder, Litelease, Connection) {
    let place = TestFolder::new("DELETE");
    let other = place.open(Duration::ZERO);
    other.pools().register("p", 5).unwrap();
    other.conn().execute_batch("CREATE TABLE mine (id); INSERT INTO mine VALUES (1), (2)").unwrap();
    let conn = place.connect(Duration::ZERO);
    (place, other, conn)
}

/// What happens when a row of ours is written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Interrupt,
    /// SQLite must also compile every statement again, which the interrupt stops at white space.
    InterruptAndExpire,
    /// An authorizer also forbids every statement that is compiled from then on.
    InterruptAndForbid,
    /// Only the authorizer.
    Forbid,
}

impl Trouble {
    const ALL: [Trouble; 4] = [
        Trouble::Interrupt,
        Trouble::InterruptAndExpire,
        Trouble::InterruptAndForbid,
        Trouble::Forbid,
    ];

    fn forbids(self) -> bool {
        matches!(self, Trouble::InterruptAndForbid | Trouble::Forbid)
    }
}

/// Has the connection meet trouble once, when a row of ours is written.
fn at_next_write(conn: &mut Connection, trouble: Trouble) {
    unsafe extern "C" fn forbid(
        _: *mut c_void,
        _: c_int,
        _: *const c_char,
        _: *const c_char,
        _: *const c_char,
        _: *const c_char,
    ) -> c_int {
        ffi::SQLITE_DENY
    }
    let armed = AtomicBool::new(true);
    let handle = conn.get_interrupt_handle();
    // SAFETY: it is used in this thread only, by a hook that goes with the connection.
    let db = unsafe { conn.handle() } as usize;
    let hook = move |_, _: &str, table: &str, _| {
        if !table.starts_with("litelease") || !armed.swap(false, Ordering::Relaxed) {
            return;
        }
        if trouble != Trouble::Forbid {
            handle.interrupt();
        }
        if trouble != Trouble::Interrupt {
            let authorizer = trouble.forbids().then_some(forbid as _);
            // SAFETY: the connection is open: it is calling.
            unsafe { ffi::sqlite3_set_authorizer(db as *mut ffi::sqlite3, authorizer, null_mut()) };
        }
    };
    conn.update_hook(Some(hook)).unwrap();
}

fn allow_everything(conn: &Connection) {
    // SAFETY: the connection is open.
    unsafe { ffi::sqlite3_set_authorizer(conn.handle(), None, null_mut()) };
}

/// Interrupts a call of several statements while rows of the caller's are being read.
fn interrupted(
    conn: &mut Connection,
    call: impl FnOnce(&LiteleaseRef<'_>) -> litelease::Result<()>,
) {
    at_next_write(conn, Trouble::Interrupt);
    fails_while_reading(conn, call);
}

fn fails_while_reading(
    conn: &Connection,
    call: impl FnOnce(&LiteleaseRef<'_>) -> litelease::Result<()>,
) {
    let mut reading = conn.prepare("SELECT id FROM mine").unwrap();
    let mut rows = reading.query([]).unwrap();
    rows.next().unwrap();
    let code = sqlite_code(call(&LiteleaseRef::new(conn)));
    assert!([ffi::SQLITE_INTERRUPT, ffi::SQLITE_AUTH].contains(&code), "{code}");
}

fn synchronous(conn: &Connection) -> i64 {
    conn.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
}

/// What a verb of several statements stores.
type Call = fn(&LiteleaseRef<'_>) -> litelease::Result<()>;

const CALLS: [(&str, Call); 3] = [
    ("raise", |db| db.raise(5)),
    ("borrow", |db| db.pools().borrow("p", LONG).map(drop)),
    ("restore_fence", |db| db.restore_fence().map(drop)),
];

/// What all of them change.
fn stored(db: &Litelease) -> (i64, i64) {
    (db.epoch().unwrap().newest, db.pools().info("p").unwrap().unwrap().in_use)
}

#[test]
fn a_call_that_failed_leaves_no_transaction_open_while_rows_are_read() {
    // SQLite refused our ROLLBACK, because the interrupt lasted as long as the caller's read. The
    // transaction stayed open, a claim through the next handle joined it, and was answered as
    // granted although it was never committed.
    for (what, call) in CALLS {
        for trouble in Trouble::ALL {
            for is_used_before in [false, true] {
                let what = format!("{what}, {trouble:?}, used before {is_used_before}");
                let (_place, other, mut conn) = file();
                if is_used_before {
                    acquired(LiteleaseRef::new(&conn).claim("z", "a", LONG));
                }
                let before = (stored(&other), synchronous(&conn));
                at_next_write(&mut conn, trouble);
                fails_while_reading(&conn, call);
                assert!(conn.is_autocommit(), "{what}: a transaction is left open");
                allow_everything(&conn);
                // Nothing is left to commit.
                assert!(conn.execute_batch("COMMIT").is_err(), "{what}");
                assert_eq!(stored(&other), before.0, "{what}: it is committed");
                acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
                assert!(other.inspect("x").unwrap().is_some(), "{what}: a grant that nobody sees");
                // An authorizer that forbids pragmas keeps the first handle from putting it back.
                if is_used_before || !trouble.forbids() {
                    assert_eq!(synchronous(&conn), before.1, "{what}");
                }
            }
        }
    }
}

#[test]
fn nothing_of_a_call_that_failed_is_committed_with_the_callers_transaction() {
    // The interrupt stopped ROLLBACK TO as well, and the caller committed half of the change.
    for (what, call) in CALLS {
        for trouble in Trouble::ALL {
            let what = format!("{what}, {trouble:?}");
            let (_place, other, mut conn) = file();
            let before = stored(&other);
            conn.execute_batch("BEGIN IMMEDIATE; INSERT INTO mine VALUES (3)").unwrap();
            at_next_write(&mut conn, trouble);
            fails_while_reading(&conn, call);
            allow_everything(&conn);
            let is_ended = conn.is_autocommit();
            assert_eq!(conn.execute_batch("COMMIT").is_err(), is_ended, "{what}");
            assert_eq!(stored(&other), before, "{what}: it is committed");
            let count = "SELECT count(*) FROM mine";
            let mine: i64 = other.conn().query_row(count, [], |row| row.get(0)).unwrap();
            assert_eq!(mine, if is_ended { 2 } else { 3 }, "{what}");
        }
    }
}

/// A progress handler stops a statement after any of its steps. After the last ones the change was
/// made already: the verb failed, and the caller's COMMIT stored it.
#[test]
fn a_verb_that_is_stopped_after_its_last_step_is_not_committed_either() {
    type Call = fn(&LiteleaseRef<'_>) -> litelease::Result<()>;
    let calls: [(&str, Call); 4] = [
        ("claim", |db| db.claim("new", "a", LONG).map(drop)),
        ("renew", |db| db.renew_by_owner("old", "a", LONG * 2).map(drop)),
        ("release", |db| db.release_by_owner("old", "a").map(drop)),
        ("break", |db| db.break_lease("old").map(drop)),
    ];
    for (what, call) in calls {
        let mut failures = 0;
        for steps in 1.. {
            let (_place, other, mut conn) = file();
            acquired(other.claim("old", "a", LONG));
            // Compiles what the verb runs.
            let _ = LiteleaseRef::new(&conn).inspect("old").unwrap();
            let rows = || format!("{:?}", other.list().unwrap());
            let before = rows();
            conn.execute_batch("BEGIN IMMEDIATE").unwrap();
            let mut left = steps;
            let stop = move || {
                left -= 1;
                left == 0
            };
            conn.progress_handler(1, Some(stop)).unwrap();
            let done = call(&LiteleaseRef::new(&conn));
            conn.progress_handler(0, None::<fn() -> bool>).unwrap();
            let is_committed = conn.execute_batch("COMMIT").is_ok();
            if done.is_ok() {
                assert!(is_committed && rows() != before, "{what}");
                break;
            }
            failures += 1;
            assert_eq!(rows(), before, "{what} was stopped at step {steps}: {done:?}");
        }
        assert!(failures > 20, "{what}");
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
    at_next_write(&mut conn, Trouble::Interrupt);
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
fn synchronous_is_put_back_by_the_next_handle() {
    // After a rollback that changes the schema SQLite must read that again, and does not while it
    // is interrupted.
    let (_place, other, mut conn) = file();
    acquired(LiteleaseRef::new(&conn).claim("z", "a", LONG));
    other.conn().execute_batch("DROP TABLE litelease_meta").unwrap();
    pretend(Some(Boot::Known(78)));
    conn.execute_batch("PRAGMA synchronous = NORMAL").unwrap();
    interrupted(&mut conn, |db| db.claim("x", "a", LONG).map(drop));
    assert_eq!(synchronous(&conn), 3, "nothing is owed");
    acquired(LiteleaseRef::new(&conn).claim("x", "a", LONG));
    assert_eq!(synchronous(&conn), 1);
    pretend(None);
}
