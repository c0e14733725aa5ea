//! The file behind a connection: where it is, and how a program that owns it sets it up.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::sqlite::{Connection, TxnState, Value, code};
use crate::statements::execute_once;
use crate::{Error, Failure, Store};

const ANY_TABLE: &str = "SELECT 1 FROM main.sqlite_master LIMIT 1";
const JOURNAL: &str = "PRAGMA main.journal_mode";
const WAL: &str = "PRAGMA main.journal_mode = WAL";

impl Store {
    /// Returns the full path of the main database; none for one in memory or a temporary one.
    pub fn file(&self) -> Option<String> {
        self.connection.file()
    }

    /// Checks whether a transaction is open on the connection, or a statement that keeps one.
    pub fn is_in_transaction(&self) -> bool {
        !self.connection.is_autocommit() || self.connection.txn_state_anywhere() != TxnState::None
    }

    /// Sets how the file is written, for a program that owns it: a new file is put into WAL mode,
    /// an existing one keeps its mode, and in both a power cut takes no grant that was answered.
    pub fn own(&self) -> Result<(), Error> {
        self.with_context("set up leases", None, || {
            // Several processes switch a new file at once, and SQLite does not wait for that.
            let deadline = Instant::now() + Duration::from_secs(10);
            loop {
                match set_up(self.connection) {
                    Err(Error::Sqlite(failure))
                        if failure.code & 0xff == code::BUSY && Instant::now() < deadline =>
                    {
                        sleep(Duration::from_millis(5));
                    }
                    done => return done,
                }
            }
        })
    }
}

fn set_up(connection: Connection) -> Result<(), Error> {
    let mut mode = journal_mode(connection, JOURNAL)?;
    if mode != "wal" && !connection.answers_one(ANY_TABLE)? {
        // It answers with the mode it is in: some files cannot be switched.
        mode = journal_mode(connection, WAL)?;
    }
    let synchronous = if mode == "wal" { "FULL" } else { "EXTRA" };
    execute_once(connection, &format!("PRAGMA main.synchronous = {synchronous}"), &[])
}

fn journal_mode(connection: Connection, sql: &str) -> Result<String, Failure> {
    let mut statement = connection.prepare(sql)?;
    let mut run = statement.run(&[])?;
    run.step()?;
    Ok(run.column(0).and_then(Value::text).unwrap_or_default().to_lowercase())
}
