//! The loops that are measured: each verb through the crate, and the bare statement it is compared
//! with.

use std::ffi::{CStr, CString, c_int};
use std::hint::black_box;
use std::ops::Deref;
use std::path::Path;
use std::time::Duration;
use std::{ptr, slice, str};

use litelease::rusqlite::{Connection, ffi};
use litelease::{
    ClaimResult, Guard, Lease, Leases, Litelease, LiteleaseRef, ReleaseResult, RenewResult,
};

use crate::{Result, queue};

const TTL: Duration = Duration::from_secs(3600);
const NAME: &str = "scheduler";
const OWNER: &str = "worker-a";

/// Runs `rounds` of a workload, WHAT@PLACE, on a database of its own: in memory or in `folder`.
pub(crate) fn run(workload: &str, rounds: u32, folder: &Path) -> Result<()> {
    then(workload, rounds, folder, || Ok(()))
}

/// Runs a workload, and then looks at what it left before its database is closed.
pub(crate) fn then<T>(
    workload: &str,
    rounds: u32,
    folder: &Path,
    look: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let (what, place) = workload.split_once('@').ok_or("a workload is WHAT@PLACE")?;
    let db = open(place, folder)?;
    loops(what, rounds, &db)?;
    look()
}

fn loops(what: &str, rounds: u32, db: &Litelease) -> Result<()> {
    match what {
        "cycle" => (0..rounds).try_for_each(|_| cycle(db)),
        // On a connection of the caller's: a handle that is kept, and one that is made for each
        // call.
        "ref-cycle" => {
            let kept = LiteleaseRef::new(db.conn());
            (0..rounds).try_for_each(|_| cycle(&kept))
        }
        "new-ref-cycle" => {
            (0..rounds).try_for_each(|_| cycle_through(|| LiteleaseRef::new(db.conn())))
        }
        // The same inside a transaction.
        "joining-cycle" => in_transaction(db, || {
            let kept = LiteleaseRef::joining(db.conn());
            (0..rounds).try_for_each(|_| cycle(&kept))
        }),
        "new-joining-cycle" => in_transaction(db, || {
            (0..rounds).try_for_each(|_| cycle_through(|| LiteleaseRef::joining(db.conn())))
        }),
        "sql-cycle" => {
            load_extension(db.conn())?;
            let claim = Raw::new(db.conn(), c"SELECT litelease_claim(?1, ?2, ?3)")?;
            let renew = Raw::new(db.conn(), c"SELECT litelease_renew(?1, ?2, ?3, NULL, ?4)")?;
            let release = Raw::new(db.conn(), c"SELECT litelease_release(?1, ?2, NULL, ?3)")?;
            let ttl_ms = TTL.as_millis() as i64;
            (0..rounds).try_for_each(|_| {
                let token = claim.call(&[ttl_ms])?;
                renew.call(&[2 * ttl_ms, token])?;
                release.call(&[token]).map(drop)
            })
        }
        "busy" => claimed(db, |db| {
            (0..rounds).try_for_each(|_| match db.claim(NAME, "worker-b", TTL)? {
                ClaimResult::Busy(_) => Ok(()),
                answer => Err(format!("{answer:?}").into()),
            })
        }),
        "inspect" => claimed(db, |db| {
            (0..rounds).try_for_each(|_| some(db.inspect(NAME)?.map(|lease| lease.token)))
        }),
        "owner" => claimed(db, |db| {
            (0..rounds).try_for_each(|_| some(db.owner(NAME)?.map(|owner| owner.len() as i64)))
        }),
        "token" => claimed(db, |db| (0..rounds).try_for_each(|_| some(db.token(NAME)?))),
        "raw-update" => claimed(db, |db| {
            let update = Raw::new(
                db.conn(),
                c"UPDATE main.litelease_resources SET owner = ?2, token = ?3,
                  lease_expires_at_ms = ?4, updated_at_ms = ?5 WHERE name = ?1",
            )?;
            (0..3 * rounds).try_for_each(|round| update.update(i64::from(round)))
        }),
        // The bare statement that gives a caller the same answer. SQLite's text is gone with the
        // next step, so it is copied.
        "raw-token" => selects(db, rounds, |_, token, _| token),
        "raw-owner" => selects(db, rounds, |owner, _, _| owner.to_owned()),
        "raw-inspect" => selects(db, rounds, |owner, token, expires_at_ms| Lease {
            name: NAME.to_owned(),
            owner: owner.to_owned(),
            token,
            expires_at_ms,
        }),
        "batch" => batches(db, rounds),
        "queue-cycle" => queue::cycles(db, rounds),
        "raw-queue-cycle" => queue::bare_cycles(db, rounds),
        "insert" => inserts(db, rounds, None),
        "insert-by-connection" => inserts(db, rounds, Some(&Guard::by_connection())),
        "insert-by-column" => inserts(db, rounds, Some(&Guard::by_column("lease_token"))),
        _ => Err(format!("no workload {what:?}").into()),
    }
}

/// Reads a row with the bare statement, and keeps what is wanted of owner, token and expiry.
fn selects<T>(db: &Litelease, rounds: u32, keep: fn(&str, i64, i64) -> T) -> Result<()> {
    claimed(db, |db| {
        let select = Raw::new(
            db.conn(),
            c"SELECT owner, token, lease_expires_at_ms FROM main.litelease_resources WHERE name = ?1",
        )?;
        (0..rounds).try_for_each(|_| select.select(keep).map(|kept| drop(black_box(kept))))
    })
}

/// What the service does for 64 clients that borrow, and then return: two commits.
fn batches(db: &Litelease, rounds: u32) -> Result<()> {
    let pools = db.pools();
    pools.at(100).register("p", 64)?;
    for round in 0..rounds {
        let now_ms = 100 + i64::from(round);
        db.begin_batch()?;
        let lend = |_| Ok(pools.at(now_ms).borrow("p", TTL)?.ok_or("the pool is full")?.lease_id);
        let leases = (0..64).map(lend).collect::<Result<Vec<_>>>()?;
        db.commit_batch()?;
        db.begin_batch()?;
        for lease in leases {
            pools.at(now_ms).return_slot("p", &lease)?;
        }
        db.commit_batch()?;
    }
    Ok(())
}

/// Writes to a table that may be guarded, by the holder.
fn inserts(db: &Litelease, rounds: u32, guard: Option<&Guard>) -> Result<()> {
    let orders = "CREATE TABLE orders (id INTEGER PRIMARY KEY, name, owner, lease_token INTEGER)";
    db.conn().execute_batch(orders)?;
    if let Some(guard) = guard {
        db.guard("orders", NAME, guard)?;
    }
    let ClaimResult::Acquired(lease) = db.claim(NAME, OWNER, TTL)? else {
        return Err("busy".into());
    };
    db.present((NAME, lease.token))?;
    let insert = c"INSERT INTO orders (name, owner, lease_token) VALUES (?1, ?2, ?3)";
    let insert = Raw::new(db.conn(), insert)?;
    (0..rounds).try_for_each(|_| insert.write(&[lease.token]))
}

/// Claim, renew and release: three commits.
fn cycle(leases: &Leases) -> Result<()> {
    cycle_through(|| leases)
}

/// The same, with a handle that is asked for before each call.
fn cycle_through<H: Deref<Target = Leases>>(handle: impl Fn() -> H) -> Result<()> {
    let ClaimResult::Acquired(lease) = handle().claim(NAME, OWNER, TTL)? else {
        return Err("busy".into());
    };
    // A longer ttl: after a renewal within the same millisecond SQLite would find the page
    // unchanged, and write nothing.
    let RenewResult::Renewed(lease) = handle().renew(&lease, 2 * TTL)? else {
        return Err("not renewed".into());
    };
    match handle().release(&lease)? {
        ReleaseResult::Released { .. } => Ok(()),
        answer => Err(format!("{answer:?}").into()),
    }
}

fn in_transaction(db: &Litelease, work: impl FnOnce() -> Result<()>) -> Result<()> {
    db.conn().execute_batch("BEGIN IMMEDIATE")?;
    work()?;
    Ok(db.conn().execute_batch("COMMIT")?)
}

fn open(place: &str, folder: &Path) -> Result<Litelease> {
    let pragmas = match place {
        "memory" => "",
        "wal-normal" => "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        "wal-full" => "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL",
        _ => return Err(format!("no place {place:?}").into()),
    };
    let connection = match place {
        "memory" => Connection::open_in_memory()?,
        _ => Connection::open(folder.join("bench.sqlite3"))?,
    };
    connection.execute_batch(pragmas)?;
    let db = Litelease::from_connection(connection);
    db.bootstrap()?;
    cycle(&db)?;
    Ok(db)
}

/// The extension as its users have it: the library next to this program, loaded.
fn load_extension(connection: &Connection) -> Result<()> {
    let library = std::env::current_exe()?.with_file_name("liblitelease_ext");
    let library = CString::new(library.as_os_str().as_encoded_bytes())?;
    // SAFETY: the connection is open, the path ends with a NUL, and the library is ours.
    unsafe {
        expect(ffi::sqlite3_enable_load_extension(connection.handle(), 1), ffi::SQLITE_OK)?;
        let rc = ffi::sqlite3_load_extension(
            connection.handle(),
            library.as_ptr(),
            ptr::null(),
            ptr::null_mut(),
        );
        expect(rc, ffi::SQLITE_OK).map_err(|_| format!("{library:?} cannot be loaded").into())
    }
}

fn claimed(db: &Litelease, work: impl FnOnce(&Litelease) -> Result<()>) -> Result<()> {
    let _ = db.claim(NAME, OWNER, TTL)?;
    work(db)
}

fn some(value: Option<i64>) -> Result<()> {
    match value {
        Some(_) => Ok(()),
        None => Err("nothing there".into()),
    }
}

/// A held statement, driven through SQLite's C functions with nothing in between.
pub(crate) struct Raw(*mut ffi::sqlite3_stmt);

impl Raw {
    pub(crate) fn new(connection: &Connection, sql: &CStr) -> Result<Self> {
        let mut statement = ptr::null_mut();
        // SAFETY: the connection is open and outlives this value in `run`.
        let rc = unsafe {
            ffi::sqlite3_prepare_v2(
                connection.handle(),
                sql.as_ptr(),
                -1,
                &raw mut statement,
                ptr::null_mut(),
            )
        };
        expect(rc, ffi::SQLITE_OK)?;
        Ok(Raw(statement))
    }

    fn update(&self, number: i64) -> Result<()> {
        self.write(&[1 + number, 1_800_000_000_000 + number, 1_700_000_000_000 + number])
    }

    /// Runs a statement that answers no rows, with name, owner and these numbers.
    fn write(&self, numbers: &[i64]) -> Result<()> {
        // SAFETY: the statement is alive and the bound texts live for ever.
        unsafe {
            self.bind(numbers);
            expect(ffi::sqlite3_step(self.0), ffi::SQLITE_DONE)?;
            expect(ffi::sqlite3_reset(self.0), ffi::SQLITE_OK)
        }
    }

    fn select<T>(&self, keep: fn(&str, i64, i64) -> T) -> Result<T> {
        // SAFETY: as above; the text is looked at before the reset.
        unsafe {
            self.bind_text(1, NAME);
            expect(ffi::sqlite3_step(self.0), ffi::SQLITE_ROW)?;
            let owner = ffi::sqlite3_column_text(self.0, 0);
            let length = ffi::sqlite3_column_bytes(self.0, 0);
            let token = ffi::sqlite3_column_int64(self.0, 1);
            let expires = ffi::sqlite3_column_int64(self.0, 2);
            if owner.is_null() || length == 0 || token == 0 || expires == 0 {
                return Err("nothing there".into());
            }
            let owner = slice::from_raw_parts(owner, length as usize);
            let kept = keep(str::from_utf8_unchecked(owner), token, expires);
            expect(ffi::sqlite3_reset(self.0), ffi::SQLITE_OK)?;
            Ok(kept)
        }
    }

    /// Calls a function with name, owner and these numbers; its answer must be a number.
    fn call(&self, numbers: &[i64]) -> Result<i64> {
        // SAFETY: as above.
        unsafe {
            self.bind(numbers);
            expect(ffi::sqlite3_step(self.0), ffi::SQLITE_ROW)?;
            let answer = ffi::sqlite3_column_int64(self.0, 0);
            expect(ffi::sqlite3_reset(self.0), ffi::SQLITE_OK)?;
            if answer == 0 { Err("no".into()) } else { Ok(answer) }
        }
    }

    /// Runs a statement that answers no rows, with these numbers and then these bytes. If it
    /// changes rows, it must change one.
    pub(crate) fn run(&self, numbers: &[i64], bytes: Option<&[u8]>) -> Result<()> {
        // SAFETY: the statement is alive, and the bytes are bound only until the end of this call.
        unsafe {
            self.bind_numbers(1, numbers);
            if let Some(bytes) = bytes {
                let (index, length) = (numbers.len() as c_int + 1, bytes.len() as c_int);
                ffi::sqlite3_bind_blob(self.0, index, bytes.as_ptr().cast(), length, None);
            }
            expect(ffi::sqlite3_step(self.0), ffi::SQLITE_DONE)?;
            expect(ffi::sqlite3_reset(self.0), ffi::SQLITE_OK)?;
            if numbers.is_empty() {
                return Ok(());
            }
            expect(ffi::sqlite3_changes(ffi::sqlite3_db_handle(self.0)), 1)
        }
    }

    /// Runs a query of one row: a number, and bytes and a number if there are such columns.
    pub(crate) fn row(&self, numbers: &[i64]) -> Result<(i64, Vec<u8>, i64)> {
        // SAFETY: the statement is alive, and the bytes are copied before the reset.
        unsafe {
            self.bind_numbers(1, numbers);
            expect(ffi::sqlite3_step(self.0), ffi::SQLITE_ROW)?;
            let first = ffi::sqlite3_column_int64(self.0, 0);
            let (mut bytes, mut last) = (Vec::new(), 0);
            if ffi::sqlite3_data_count(self.0) > 1 {
                let start = ffi::sqlite3_column_blob(self.0, 1);
                let length = ffi::sqlite3_column_bytes(self.0, 1);
                if !start.is_null() {
                    bytes = slice::from_raw_parts(start.cast(), length as usize).to_vec();
                }
                last = ffi::sqlite3_column_int64(self.0, 2);
            }
            expect(ffi::sqlite3_reset(self.0), ffi::SQLITE_OK)?;
            Ok((first, bytes, last))
        }
    }

    /// # Safety
    /// The statement must be alive.
    unsafe fn bind(&self, numbers: &[i64]) {
        // SAFETY: as promised.
        unsafe {
            self.bind_text(1, NAME);
            self.bind_text(2, OWNER);
            self.bind_numbers(3, numbers);
        }
    }

    /// # Safety
    /// The statement must be alive.
    unsafe fn bind_numbers(&self, first: c_int, numbers: &[i64]) {
        for (index, number) in (first..).zip(numbers) {
            // SAFETY: as promised.
            unsafe { ffi::sqlite3_bind_int64(self.0, index, *number) };
        }
    }

    /// # Safety
    /// The statement must be alive.
    unsafe fn bind_text(&self, index: c_int, text: &'static str) {
        // SAFETY: as promised, and the text lives for ever.
        unsafe {
            let length = text.len() as c_int;
            ffi::sqlite3_bind_text(self.0, index, text.as_ptr().cast(), length, None);
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: finalised only here.
        unsafe { ffi::sqlite3_finalize(self.0) };
    }
}

fn expect(rc: c_int, wanted: c_int) -> Result<()> {
    if rc == wanted { Ok(()) } else { Err(format!("SQLite answered {rc}").into()) }
}
