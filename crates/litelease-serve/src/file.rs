//! The file of a service: opened so that what was answered is on the disk.

use std::path::Path;
use std::time::Duration;

use litelease::rusqlite::{self, Connection, ffi};
use litelease::{Error, Litelease};

use crate::error::OpenError;
use crate::high_water::HighWater;

/// How long to wait for the locks of others.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens the file, which is created if it is missing: in WAL mode, and synced with every commit.
pub(crate) fn open(path: &Path) -> Result<(Litelease, HighWater), OpenError> {
    let connection = Connection::open(path).map_err(Error::from)?;
    if HighWater::is_beside(path) {
        // It was served before, and a backup of it may have come back in another mode.
        switch(&connection)?;
    } else if has_tables(&connection)? {
        // The file of another program keeps its mode, and gets no table of ours.
        check_mode(&connection, path)?;
    }
    drop(connection);
    let db = Litelease::open_own(path)?;
    // SQLite keeps the mode that it can have, and does not complain.
    check_mode(db.conn(), path)?;
    db.conn().busy_timeout(PATIENCE).map_err(Error::from)?;
    Ok((db, HighWater::beside(path)?))
}

fn switch(connection: &Connection) -> Result<(), Error> {
    connection.busy_timeout(PATIENCE)?;
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

/// Makes sure that the file has not forgotten a token that was answered.
pub(crate) fn check_age(path: &Path, db: &Litelease, mark: &HighWater) -> Result<(), OpenError> {
    let (newest, granted) = (db.pools().newest_token()?, mark.token());
    match newest >= granted {
        true => Ok(()),
        false => Err(OpenError::Older { path: path.into(), newest, granted }),
    }
}

/// Makes sure that the file is still where it was opened: one that was deleted or replaced would take grants that
/// nobody else ever sees.
pub(crate) fn check_place(db: &Litelease) -> Result<(), Error> {
    match db.has_moved() {
        false => Ok(()),
        true => {
            let text = "the database file was moved, deleted or replaced while it was served: nothing is granted \
                        in it any more; put it back, or start again";
            let code = ffi::Error::new(ffi::SQLITE_IOERR);
            Err(Error::Sqlite(rusqlite::Error::SqliteFailure(code, Some(text.into()))))
        }
    }
}
