//! Handles on connections of the caller's: what is kept with a connection between calls, and
//! handles that demand a transaction.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use litelease::rusqlite::functions::FunctionFlags;
use litelease::rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use litelease::rusqlite::trace::{TraceEvent, TraceEventCodes};
use litelease::rusqlite::{Connection, TransactionBehavior, ffi};
use litelease::{
    Checkpoint, ClaimResult, Error, GrantRef, Guard, HoldError, HoldOptions, Leases, Litelease,
    LiteleaseRef, RawLitelease, Reason, ReleaseResult, RenewResult, functions,
};
use litelease_proof::rig::{LONG, TestFolder, acquired, extension, load_extension, memory};

/// A connection of the caller's to a database with the lease table in it.
fn connection() -> Connection {
    let conn = Connection::open_in_memory().unwrap();
    LiteleaseRef::new(&conn).bootstrap().unwrap();
    conn
}

fn once(conn: &Connection) -> i64 {
    let lease = acquired(LiteleaseRef::new(conn).claim("x", "a", LONG));
    let _ = LiteleaseRef::new(conn).release(&lease).unwrap();
    lease.token
}

/// Closes a connection as strictly as SQLite can: a statement that is left would make it fail.
#[track_caller]
fn close(conn: Connection) {
    conn.close().map_err(|(_, error)| error).unwrap();
}

#[test]
fn a_handle_that_is_made_for_each_call_compiles_nothing_after_the_first_one() {
    let mut conn = connection();
    let compiled = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&compiled);
    // SQLite asks the authorizer whenever it compiles a statement.
    conn.authorizer(Some(move |_: AuthContext<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        Authorization::Allow
    }))
    .unwrap();
    once(&conn);
    assert!(compiled.swap(0, Ordering::Relaxed) > 0, "the first handle does");
    // The second claim finds a row, so it needs another statement than the first.
    once(&conn);
    compiled.store(0, Ordering::Relaxed);
    for token in 3..100 {
        assert_eq!(once(&conn), token);
    }
    let tx = conn.unchecked_transaction().unwrap();
    let _ = acquired(LiteleaseRef::joining(&tx).claim("x", "a", LONG));
    tx.rollback().unwrap();
    compiled.store(0, Ordering::Relaxed);
    for _ in 0..100 {
        conn.execute_batch("SAVEPOINT mine").unwrap();
        let before = compiled.load(Ordering::Relaxed);
        let _ = acquired(LiteleaseRef::joining(&conn).claim("x", "a", LONG));
        assert_eq!(compiled.load(Ordering::Relaxed), before);
        conn.execute_batch("ROLLBACK TO mine; RELEASE mine").unwrap();
    }
    // It still sees that the schema has changed.
    conn.execute_batch("ALTER TABLE litelease_resources ADD COLUMN note").unwrap();
    let refused = LiteleaseRef::new(&conn).claim("x", "a", LONG);
    assert!(matches!(refused, Err(Error::SchemaMismatch { .. })), "{refused:?}");
    close(conn);
}

#[test]
fn a_connection_closes_whatever_was_done_on_it() {
    let place = TestFolder::new("WAL");
    let extension = extension();
    type Step<'a> = (&'a str, &'a dyn Fn(Connection) -> Connection);
    let steps: [Step<'_>; 6] = [
        ("a handle for each call", &|conn| {
            once(&conn);
            conn
        }),
        ("two handles at once", &|conn| {
            let (one, other) = (LiteleaseRef::new(&conn), LiteleaseRef::new(&conn));
            let lease = acquired(one.claim("y", "a", LONG));
            assert!(matches!(other.claim("y", "b", LONG), Ok(ClaimResult::Busy(_))));
            let third = LiteleaseRef::new(&conn);
            let _ = third.release(&lease).unwrap();
            drop((one, other, third));
            conn
        }),
        ("an owner in between", &|conn| {
            let mut db = Litelease::from_connection(conn);
            let tx = db.transaction().unwrap();
            let lease = acquired(tx.claim("z", "a", LONG));
            let joined = LiteleaseRef::joining(tx.conn()).release(&lease);
            assert!(joined.is_ok());
            tx.commit().unwrap();
            let _ = LiteleaseRef::new(db.conn()).inspect("z").unwrap();
            db.into_connection()
        }),
        ("the SQL functions", &|conn| {
            functions::register(&conn).unwrap();
            let sql =
                "SELECT litelease_claim('sql', 'a', 1000), (SELECT count(*) FROM litelease_leases)";
            conn.query_row(sql, [], |_| Ok(())).unwrap();
            conn
        }),
        ("the extension, another copy of the same code", &|conn| {
            load_extension(&conn, &extension);
            conn.query_row("SELECT litelease_claim('ext', 'a', 1000)", [], |_| Ok(())).unwrap();
            conn
        }),
        ("a raw handle", &|mut conn| {
            // SAFETY: the connection stays open and in this thread while it is borrowed.
            let raw = unsafe { RawLitelease::new(conn.handle(), &mut conn) };
            let lease = acquired(raw.claim("raw", "a", LONG));
            let _ = raw.release(&lease).unwrap();
            drop(raw);
            conn
        }),
    ];
    for (first, before) in &steps {
        for (second, after) in &steps {
            let conn = place.connect(Duration::ZERO);
            LiteleaseRef::new(&conn).bootstrap().unwrap();
            let conn = after(before(conn));
            let closed = conn.close().map_err(|(_, error)| error);
            assert!(closed.is_ok(), "{first}, then {second}: {closed:?}");
        }
    }
}

#[test]
fn connections_move_between_threads_with_what_is_kept_with_them() {
    let place = TestFolder::new("WAL");
    let mut pool: Vec<Connection> =
        (0..3).map(|_| place.connect(Duration::from_secs(60))).collect();
    LiteleaseRef::new(&pool[0]).bootstrap().unwrap();
    let mut newest = 0;
    for round in 0..20 {
        // Each thread uses the connection that another one had before; some are closed, and
        // replaced by new ones.
        let threads: Vec<_> = pool
            .into_iter()
            .map(|conn| {
                thread::spawn(move || {
                    let name = format!("{:?}", thread::current().id());
                    let lease = acquired(LiteleaseRef::new(&conn).claim(&name, "a", LONG));
                    let busy = LiteleaseRef::new(&conn).claim(&name, "b", LONG).unwrap();
                    assert_eq!(busy, ClaimResult::Busy(lease));
                    let lease = loop {
                        match LiteleaseRef::new(&conn).claim("x", "a", LONG).unwrap() {
                            ClaimResult::Acquired(lease) => break lease,
                            ClaimResult::Busy(_) => thread::yield_now(),
                        }
                    };
                    let _ = LiteleaseRef::new(&conn).release(&lease).unwrap();
                    (conn, lease.token)
                })
            })
            .collect();
        let done: Vec<(Connection, i64)> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let mut tokens: Vec<i64> = done.iter().map(|(_, token)| *token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [newest + 1, newest + 2, newest + 3]);
        newest += 3;
        pool = done.into_iter().map(|(conn, _)| conn).collect();
        pool.rotate_left(1);
        if round % 3 == 0 {
            let old = pool.remove(0);
            thread::spawn(move || close(old)).join().unwrap();
            pool.push(place.connect(Duration::from_secs(60)));
        }
    }
    pool.into_iter().for_each(close);
}

#[test]
fn a_close_that_is_refused_leaves_a_connection_that_works() {
    let mut conn = connection();
    assert_eq!(once(&conn), 1);
    for token in 2..5 {
        let mut statement = std::ptr::null_mut();
        // SAFETY: the connection is open; the statement is finalised below, once.
        unsafe {
            let sql = c"SELECT 1".as_ptr();
            let tail = std::ptr::null_mut();
            ffi::sqlite3_prepare_v2(conn.handle(), sql, -1, &raw mut statement, tail);
        }
        let (refused, error) = conn.close().unwrap_err();
        assert!(error.to_string().contains("unfinalized"), "{error}");
        conn = refused;
        assert_eq!(once(&conn), token);
        assert_eq!(LiteleaseRef::new(&conn).token("x").unwrap(), Some(token));
        // SAFETY: as above.
        unsafe { ffi::sqlite3_finalize(statement) };
    }
    close(conn);
}

#[test]
fn a_function_of_the_callers_may_use_the_connection_that_calls_it() {
    let conn = connection();
    let flags = FunctionFlags::SQLITE_UTF8;
    conn.create_scalar_function("claim", 1, flags, |context| {
        // SAFETY: the connection is used only during this call.
        let conn = unsafe { context.get_connection() }?;
        let name: String = context.get(0)?;
        let answer = LiteleaseRef::new(&conn).claim(&name, "a", LONG);
        // Inside a writing statement there is a transaction: that of the statement.
        let joined = LiteleaseRef::joining(&conn).token(&name);
        Ok(format!(
            "{} {}",
            answer.unwrap().acquired().map_or(0, |lease| lease.token),
            joined.map_or_else(|error| error.kind().to_owned(), |token| format!("{token:?}")),
        ))
    })
    .unwrap();
    let call = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    let outer = LiteleaseRef::new(&conn);
    let lease = acquired(outer.claim("x", "a", LONG));
    assert_eq!(call("SELECT claim('x')"), "0 NotInTransaction");
    let _ = outer.release(&lease).unwrap();
    assert_eq!(call("SELECT claim('x')"), "2 NotInTransaction");
    conn.execute_batch("CREATE TABLE mine (answer)").unwrap();
    assert_eq!(call("INSERT INTO mine VALUES (claim('y')) RETURNING answer"), "1 Some(1)");
    assert_eq!(outer.token("y").unwrap(), Some(1));
    conn.execute_batch("BEGIN; SELECT claim('z'); ROLLBACK").unwrap();
    assert_eq!(outer.token("z").unwrap(), None);
    drop(outer);
    close(conn);
}

thread_local! {
    /// The connection that is traced, while its trace may use it.
    static TRACED: Cell<Option<*mut ffi::sqlite3>> = const { Cell::new(None) };
    static NESTED: Cell<i64> = const { Cell::new(0) };
}

#[test]
fn a_verb_in_the_middle_of_another_one_disturbs_neither() {
    fn trace(_: TraceEvent<'_>) {
        let Some(db) = TRACED.take() else { return };
        let mut guard = ();
        // SAFETY: the connection is open, and this thread is in the middle of a call on it.
        let nested = unsafe { RawLitelease::new(db, &mut guard) };
        let name = format!("nested {}", NESTED.get());
        assert_eq!(nested.token(&name).unwrap(), None);
        NESTED.set(NESTED.get() + 1);
        drop(nested);
        TRACED.set(Some(db));
    }
    for is_kept_before in [true, false] {
        let mut conn = connection();
        if is_kept_before {
            once(&conn);
            once(&conn);
        }
        conn.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(trace)).unwrap();
        // SAFETY: it is used by `trace` alone, and only until it is taken back.
        TRACED.set(Some(unsafe { conn.handle() }));
        NESTED.set(0);
        for round in 0..20 {
            let leases = LiteleaseRef::new(&conn);
            let lease = acquired(leases.claim("traced", "a", LONG));
            assert_eq!(lease.token, round + 1);
            assert_eq!(leases.inspect("traced").unwrap(), Some(lease.clone()));
            drop(leases);
            let _ = LiteleaseRef::new(&conn).release(&lease).unwrap();
        }
        TRACED.set(None);
        conn.trace_v2(TraceEventCodes::empty(), None::<fn(TraceEvent<'_>)>).unwrap();
        assert!(NESTED.get() >= 60, "{}", NESTED.get());
        close(conn);
    }
}

#[test]
fn an_authorizer_that_allows_nothing_else_is_no_obstacle() {
    let mut conn = connection();
    conn.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::Read { table_name, .. } if table_name.starts_with("litelease_closing") => {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }))
    .unwrap();
    (1..10).for_each(|token| assert_eq!(once(&conn), token));
    close(conn);
}

#[test]
fn the_table_that_notices_a_close_cannot_be_used() {
    let conn = connection();
    once(&conn);
    let sql = "SELECT name FROM pragma_module_list WHERE name LIKE 'litelease_closing%'";
    let name: String = conn.query_row(sql, [], |row| row.get(0)).unwrap();
    for sql in [
        format!("SELECT * FROM {name}"),
        format!("DELETE FROM {name}"),
        format!("DROP TABLE {name}"),
        format!("CREATE VIRTUAL TABLE mine USING {name}"),
    ] {
        conn.execute_batch(&sql).expect_err(&sql);
    }
    assert_eq!(once(&conn), 2);
    close(conn);
}

#[test]
fn a_handle_waits_for_a_lock_no_longer_than_an_owner_does() {
    static WAITED: AtomicUsize = AtomicUsize::new(0);
    let place = TestFolder::new("DELETE");
    place.open(Duration::ZERO);
    let other = place.connect(Duration::ZERO);
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let count = |claim: fn(Connection) -> bool| {
        let mut conn = Connection::open(&place.file).unwrap();
        conn.busy_handler(Some(|times| {
            WAITED.fetch_add(1, Ordering::Relaxed);
            times < 2
        }))
        .unwrap();
        WAITED.store(0, Ordering::Relaxed);
        assert!(claim(conn));
        WAITED.load(Ordering::Relaxed)
    };
    let owner = count(|conn| Litelease::from_connection(conn).claim("x", "a", LONG).is_err());
    let borrowed = count(|conn| LiteleaseRef::new(&conn).claim("x", "a", LONG).is_err());
    assert_eq!(borrowed, owner);
}

#[test]
fn an_interrupt_leaves_nothing_behind_for_the_next_handle() {
    let mut conn = connection();
    conn.execute_batch("CREATE TABLE mine (id)").unwrap();
    let left = Arc::new(AtomicI64::new(i64::MAX));
    let countdown = Arc::clone(&left);
    let interrupt = move || countdown.fetch_sub(1, Ordering::Relaxed) <= 0;
    conn.progress_handler(1, Some(interrupt)).unwrap();
    let mut interrupted = 0;
    for step in 0..400 {
        left.store(step, Ordering::Relaxed);
        // More than one statement: a transaction of its own.
        let purged = LiteleaseRef::new(&conn).at(900).purge(900);
        let claimed = LiteleaseRef::new(&conn).claim("x", "a", LONG);
        left.store(i64::MAX, Ordering::Relaxed);
        interrupted += usize::from(purged.is_err()) + usize::from(claimed.is_err());

        // The next caller's transaction is their own, and stays so.
        assert!(conn.is_autocommit(), "step {step}");
        conn.execute_batch("BEGIN; INSERT INTO mine VALUES (1)").unwrap();
        let _ = acquired(LiteleaseRef::joining(&conn).claim("mine", "a", LONG));
        assert!(!conn.is_autocommit(), "step {step}");
        conn.execute_batch("ROLLBACK").unwrap();

        match claimed {
            Ok(ClaimResult::Acquired(lease)) => {
                assert_eq!(LiteleaseRef::new(&conn).inspect("x").unwrap(), Some(lease));
                let _ = LiteleaseRef::new(&conn).break_lease("x").unwrap();
            }
            Ok(ClaimResult::Busy(_)) => panic!("step {step}: nobody has it"),
            Err(_) => assert_eq!(LiteleaseRef::new(&conn).inspect("x").unwrap(), None),
        }
    }
    assert!(interrupted > 100, "{interrupted}");
    close(conn);
}

#[test]
fn a_grant_may_be_named_by_its_name_and_token_alone() {
    let conn = connection();
    let db = LiteleaseRef::new(&conn);
    let first = db.claim("x", "a", LONG).unwrap().acquired().unwrap();
    assert!(db.renew(("x", first.token), LONG).unwrap().renewed().is_some());
    assert!(db.attach(("x", first.token), "v").unwrap().is_done());
    let second = db.transfer(("x", first.token), "b", LONG).unwrap().transferred().unwrap();
    // The old token is superseded, and not merely another owner's.
    let reason = Reason::Superseded { by: second.token };
    let rejected = db.renew(("x", first.token), LONG).unwrap();
    assert!(matches!(rejected, RenewResult::Rejected { reason: why, .. } if why == reason));
    let rejected = db.release(("x", first.token)).unwrap();
    assert!(matches!(rejected, ReleaseResult::Rejected { reason: why, .. } if why == reason));
    // With its owner, it is exactly that owner's grant.
    let other = GrantRef { name: "x", token: second.token, owner: Some("c") };
    assert!(matches!(db.release(other).unwrap(), ReleaseResult::Rejected { .. }));
    let released = db.release(("x", second.token)).unwrap();
    assert!(matches!(released, ReleaseResult::Released { token: 2, .. }));
}

type Verb = fn(&Leases) -> litelease::Result<()>;

/// Every verb of every handle.
fn verbs() -> Vec<(&'static str, Verb)> {
    const GRANT: GrantRef<'_> = GrantRef { name: "x", token: 1, owner: Some("a") };
    vec![
        ("bootstrap", |db| db.bootstrap()),
        ("claim", |db| db.claim("x", "a", LONG).map(drop)),
        ("claim_at", |db| db.at(100).claim("x", "a", LONG).map(drop)),
        ("claim_above", |db| db.claim_above("x", "a", LONG, 7).map(drop)),
        ("ensure", |db| db.ensure("x", "a", LONG).map(drop)),
        ("renew_by_owner", |db| db.renew_by_owner("x", "a", LONG).map(drop)),
        ("renew", |db| db.renew(GRANT, LONG).map(drop)),
        ("release_by_owner", |db| db.release_by_owner("x", "a").map(drop)),
        ("release", |db| db.release(GRANT).map(drop)),
        ("transfer_by_owner", |db| db.transfer_by_owner("x", "a", "b", LONG).map(drop)),
        ("transfer", |db| db.transfer(GRANT, "b", LONG).map(drop)),
        ("break_lease", |db| db.break_lease("x").map(drop)),
        ("inspect", |db| db.inspect("x").map(drop)),
        ("owner", |db| db.owner("x").map(drop)),
        ("token", |db| db.token("x").map(drop)),
        ("list", |db| db.list().map(drop)),
        ("purge", |db| db.purge(0).map(drop)),
        ("raise", |db| db.raise(1 << 40).map(drop)),
        ("raise_name", |db| db.raise_name("x", 1 << 40).map(drop)),
        ("restore_fence", |db| db.restore_fence().map(drop)),
        ("restore_fence_above", |db| db.restore_fence_above(0).map(drop)),
        ("epoch", |db| db.epoch().map(drop)),
        ("claim_from_dead", |db| db.claim_from_dead("x", "b", LONG, GRANT).map(drop)),
        ("guard", |db| db.guard("mine", "x", &Guard::by_connection())),
        ("unguard", |db| db.unguard("mine", Some("x")).map(drop)),
        ("guards", |db| db.guards().map(drop)),
        ("present", |db| db.present(("x", 1)).map(drop)),
        ("withdraw", |db| db.withdraw("x")),
        ("checkpoint", |db| db.checkpoint(("x", 1), "done").map(drop)),
        ("last_checkpoint", |db| db.last_checkpoint("x").map(|_: Option<Checkpoint>| ())),
        ("attach", |db| db.attach(("x", 1), "here").map(drop)),
        ("value", |db| db.value("x").map(drop)),
        ("leases_under", |db| {
            db.leases_under("x").collect::<litelease::Result<Vec<_>>>().map(drop)
        }),
        ("limit", |db| db.limit(("x", 1), None, Some(1 << 60)).map(drop)),
        ("progress", |db| db.progress(("x", 1)).map(drop)),
        ("request", |db| db.request("x", "r", LONG).map(drop)),
        ("requested", |db| db.requested("x").map(drop)),
        ("hand_over", |db| db.hand_over(GRANT, LONG).map(drop)),
        ("withdraw_request", |db| db.withdraw_request("x", "r").map(drop)),
        ("take_over", |db| db.take_over("x", "a", LONG).map(drop)),
        ("admit", |db| db.admit("x", 1).map(drop)),
        ("register", |db| db.pools().register("p", 2).map(drop)),
        ("borrow", |db| db.pools().borrow("p", LONG).map(drop)),
        ("slots", |db| db.pools().slots("p").map(drop)),
        ("info", |db| db.pools().info("p").map(drop)),
        ("return_slot", |db| db.pools().return_slot("p", "a").map(drop)),
        ("delete", |db| db.pools().delete("p").map(drop)),
    ]
}

/// All that is stored.
fn dump(conn: &Connection) -> String {
    let mut tables = conn.prepare("SELECT sql FROM sqlite_master ORDER BY 1").unwrap();
    let tables: Vec<Option<String>> =
        tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let sql = "SELECT group_concat(name || coalesce(owner, '-') || token) FROM litelease_resources";
    let rows: Option<String> = conn.query_row(sql, [], |row| row.get(0)).unwrap();
    format!("{tables:?} {rows:?} {}", conn.total_changes())
}

#[test]
fn a_handle_that_joins_does_nothing_without_a_transaction() {
    let conn = connection();
    conn.execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY)").unwrap();
    let endings = ["", "COMMIT", "ROLLBACK", "INSERT OR ROLLBACK INTO mine VALUES (1), (1)"];
    for ending in endings {
        for (verb, call) in verbs() {
            if !ending.is_empty() {
                conn.execute_batch("BEGIN IMMEDIATE").unwrap();
                let _ = LiteleaseRef::joining(&conn).token("x").unwrap();
                let _ = conn.execute_batch(ending);
            }
            let before = dump(&conn);
            let answer = call(&LiteleaseRef::joining(&conn));
            assert!(matches!(answer, Err(Error::NotInTransaction)), "{verb}: {answer:?}");
            // A statement that only reads is no transaction to join.
            let mut reading = conn.prepare("SELECT 1 FROM mine UNION SELECT 2").unwrap();
            let mut rows = reading.query([]).unwrap();
            rows.next().unwrap().unwrap();
            let answer = call(&LiteleaseRef::joining(&conn));
            assert!(matches!(answer, Err(Error::NotInTransaction)), "{verb}: {answer:?}");
            drop(rows);
            drop(reading);
            assert_eq!(dump(&conn), before, "{verb}");
        }
    }
    let held = LiteleaseRef::joining(&conn).hold("x", HoldOptions::new(LONG));
    assert!(matches!(held, Err(HoldError::Lease(Error::NotInTransaction))), "{held:?}");
    close(conn);
}

#[test]
fn a_handle_that_joins_has_every_verb_inside_a_transaction() {
    for begin in ["BEGIN", "BEGIN IMMEDIATE", "SAVEPOINT mine"] {
        for (verb, call) in verbs() {
            let conn = connection();
            conn.execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY)").unwrap();
            LiteleaseRef::new(&conn).pools().register("p", 2).unwrap();
            conn.execute_batch(begin).unwrap();
            let joined = call(&LiteleaseRef::joining(&conn)).map_err(|error| error.to_string());
            conn.execute_batch("ROLLBACK").unwrap();
            conn.execute_batch(begin).unwrap();
            let plain = call(&LiteleaseRef::new(&conn)).map_err(|error| error.to_string());
            assert_eq!(joined, plain, "{begin}, {verb}");
            assert!(!conn.is_autocommit(), "{begin}, {verb}");
        }
    }
}

#[test]
fn a_claim_after_sqlite_has_ended_the_transaction_is_not_committed_alone() {
    // The application's table says ON CONFLICT ROLLBACK, and its code goes on after the error.
    let mut conn = connection();
    conn.execute_batch("CREATE TABLE jobs (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)").unwrap();
    let tx = conn.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO jobs VALUES (7)", []).unwrap();
    tx.execute("INSERT INTO jobs VALUES (7)", []).unwrap_err();
    let claimed = LiteleaseRef::joining(&tx).claim("job 7", "a", LONG);
    assert!(matches!(claimed, Err(Error::NotInTransaction)), "{claimed:?}");
    assert!(claimed.unwrap_err().to_string().contains("begin again"));
    tx.commit().unwrap_err();
    assert_eq!(LiteleaseRef::new(&conn).token("job 7").unwrap(), None);
}

#[test]
fn a_transaction_of_an_owner_is_no_business_of_other_handles() {
    let mut db = memory();
    db.conn().execute_batch("CREATE TABLE mine (id INTEGER PRIMARY KEY)").unwrap();
    let tx = db.transaction().unwrap();
    let _ = acquired(LiteleaseRef::new(tx.conn()).claim("x", "a", LONG));
    tx.conn().execute_batch("INSERT OR ROLLBACK INTO mine VALUES (1), (1)").unwrap_err();
    assert!(matches!(tx.claim("x", "a", LONG), Err(Error::TransactionEnded)));
    let joined = LiteleaseRef::joining(tx.conn()).claim("x", "a", LONG);
    assert!(matches!(joined, Err(Error::NotInTransaction)));
    // A plain handle never asked for a transaction.
    assert_eq!(acquired(LiteleaseRef::new(tx.conn()).claim("x", "a", LONG)).token, 1);
    assert!(matches!(tx.commit(), Err(Error::TransactionEnded)));
    // And none is left over for the next ones.
    std::mem::forget(db.transaction().unwrap());
    db.conn().execute_batch("ROLLBACK").unwrap();
    assert_eq!(LiteleaseRef::new(db.conn()).token("x").unwrap(), Some(1));
    let _ = LiteleaseRef::new(db.conn()).break_lease("x").unwrap();
}
