//! The file of a service, opened so that every answer is on the disk before it is sent.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{Error, Litelease, LockError};
use litelease_sys::{create_private, is_linked};

use crate::error::OpenError;
use crate::failure::Failure;
use crate::high_water::HighWater;
use crate::served_rows;
use crate::server_lock::ServerLock;

/// How long to wait for the locks of other processes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// A file that is ready to be served.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) db: Litelease,
    pub(crate) high_water: HighWater,
    pub(crate) lock: ServerLock,
}

/// Opens the file in WAL mode, synced with every commit, and locks it against other servers. A
/// missing file is created for its owner alone: its readers know the UUIDs of its pools.
pub(crate) fn open(path: &Path) -> Result<Opened, OpenError> {
    create_private(path);
    let connection = Connection::open(path).map_err(Error::from)?;
    // The canonical path of the file.
    let file = match connection.path() {
        Some(path) if !path.is_empty() => PathBuf::from(path),
        _ => path.to_owned(),
    };
    if fs::metadata(&file).is_ok_and(|found| is_linked(&found)) {
        return Err(OpenError::Linked { path: path.into() });
    }
    let high_water = HighWater::beside(&file)?;
    if !high_water.was_there() && has_tables(&connection)? {
        // The file of another program keeps its journal mode and gets none of our tables.
        check_mode(&connection, path)?;
    }
    let lock = ServerLock::take(&file).map_err(|error| match error {
        LockError::Timeout { holder, .. } => OpenError::Served { path: path.into(), holder },
        error => OpenError::Lock(error),
    })?;
    if high_water.was_there() {
        // The file was served before. A backup that was restored may have another journal mode.
        switch(&connection)?;
    }
    drop(connection);
    let db = Litelease::open_own(path)?;
    // SQLite does not report that it could not change the mode.
    check_mode(db.conn(), path)?;
    db.conn().busy_timeout(TIMEOUT).map_err(Error::from)?;
    if let Some(retirement) = db.retirement()? {
        return Err(OpenError::Moved { path: path.into(), to: retirement.moved_to });
    }
    Ok(Opened { path: path.into(), db, high_water, lock })
}

fn switch(connection: &Connection) -> Result<(), Error> {
    connection.busy_timeout(TIMEOUT)?;
    Ok(connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?)
}

fn has_tables(connection: &Connection) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema)";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

fn check_mode(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let mode: String =
        connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(Error::from)?;
    match mode.as_str() {
        "wal" => Ok(()),
        _ => Err(OpenError::NotWal { path: path.into(), mode }),
    }
}

impl Opened {
    /// Checks that the file has every token that was answered, and begins to keep the high-water
    /// mark.
    pub(crate) fn check_age(mut self) -> Result<Self, OpenError> {
        let (newest, granted) = (self.db.pools().newest_token()?, self.high_water.token());
        if newest < granted {
            return Err(OpenError::Older { path: self.path, newest, granted });
        }
        let last = self.high_water.name();
        let newest_of_name = served_rows::newest_token(&self.db, last.number)?;
        if newest_of_name < last.token {
            let (newest, granted) = (newest_of_name, last.token);
            return Err(OpenError::Older { path: self.path, newest, granted });
        }
        self.high_water.begin(newest)?;
        Ok(self)
    }
}

/// Sets how long SQLite waits for the locks of other processes.
pub(crate) fn set_timeout(db: &Litelease, timeout: Duration) -> Result<(), Error> {
    Ok(db.conn().busy_timeout(timeout)?)
}

/// Writes a page without changing it, in the open transaction: only a write shows whether writing
/// works.
pub(crate) fn touch(db: &Litelease) -> Result<(), Error> {
    // SQLite writes page 1 even if the number stays the same. It would not write an unchanged row.
    let version: i64 = db.conn().query_row("PRAGMA user_version", [], |row| row.get(0))?;
    Ok(db.conn().execute_batch(&format!("PRAGMA user_version = {version}"))?)
}

/// Checks that the file is still where it was opened. Grants in a file that was deleted or
/// replaced would be invisible to other processes.
pub(crate) fn check_place(db: &Litelease) -> Result<(), Failure> {
    if db.has_moved() { Err(Failure::FileMoved) } else { Ok(()) }
}
