//! The file of a service: opened so that what was answered is on the disk.

use std::path::Path;
use std::time::Duration;

use litelease::rusqlite::{self, Connection, ffi};
use litelease::{Error, Litelease};

use crate::high_water::HighWater;

/// Opens the file, which is created if it is missing: in WAL mode, and synced with every commit.
pub(crate) fn open(path: &Path) -> Result<(Litelease, HighWater), Error> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    // SQLite keeps the mode that it can have, and does not complain.
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(failure(format!(
            "{} cannot be served: its journal mode stays {mode} instead of wal",
            path.display()
        )));
    }
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    let db = Litelease::from_connection(connection);
    db.bootstrap()?;
    let mark = HighWater::beside(path).map_err(|error| failure(error.to_string()))?;
    Ok((db, mark))
}

/// Makes sure that the file has not forgotten a token that was answered.
pub(crate) fn check_age(path: &Path, db: &Litelease, mark: &HighWater) -> Result<(), Error> {
    let newest = db.pools().newest_token()?;
    if newest >= mark.token() {
        return Ok(());
    }
    Err(failure(format!(
        "{} is older than what was served from it: its newest token is {newest}, and {} was granted; if it was \
         restored from a backup, start once with --restore-fence, which ends every lease in it",
        path.display(),
        mark.token()
    )))
}

/// Makes sure that the file is still where it was opened: one that was deleted or replaced would take grants that
/// nobody else ever sees.
pub(crate) fn check_place(db: &Litelease) -> Result<(), Error> {
    match db.has_moved() {
        false => Ok(()),
        true => Err(failure(
            "the database file was moved, deleted or replaced while it was served: nothing is granted in it any \
             more; put it back, or start again"
                .into(),
        )),
    }
}

fn failure(message: String) -> Error {
    let code = ffi::Error::new(ffi::SQLITE_IOERR);
    Error::Sqlite(rusqlite::Error::SqliteFailure(code, Some(message)))
}
