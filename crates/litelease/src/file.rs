//! The file behind a connection of `rusqlite`, and connections of our own to it.

use std::time::Duration;

use litelease_hold::file::{DatabaseFile, FileHandle, OpenFile, read_once};
use litelease_store::OpenConnection;
use rusqlite::{Connection, ffi};

use crate::error::{into_rusqlite, rusqlite_error};
use crate::{Error, HoldError, Leases, Litelease, Result};

/// Returns the file of a handle. Fails for a database in memory.
pub(crate) fn file_of(leases: &Leases) -> Result<DatabaseFile, HoldError> {
    DatabaseFile::behind(leases.store()).ok_or(HoldError::InMemory)
}

/// Opens another connection to a file that is there.
pub(crate) fn connect(file: &DatabaseFile, busy_timeout: Duration) -> Result<Connection> {
    let open = OpenConnection::open(file.api, &file.path, file.vfs.as_deref());
    let open = into_rusqlite(open.map_err(litelease_store::Error::from))?;
    open.connection().set_busy_timeout(busy_timeout);
    // SAFETY: it is open, a connection of the library that `rusqlite` links, and no other code
    // closes it. `rusqlite` sets the codes like this where it opens a connection itself.
    unsafe {
        let db = open.into_raw().cast();
        ffi::sqlite3_extended_result_codes(db, 1);
        Ok(Connection::from_handle_owned(db)?)
    }
}

/// Opens another handle to a file that is there.
pub(crate) fn open_existing(file: &DatabaseFile, busy_timeout: Duration) -> Result<Litelease> {
    let db = Litelease::from_connection(connect(file, busy_timeout)?);
    into_rusqlite(read_once(db.store()))?;
    Ok(db)
}

impl OpenFile for Litelease {
    type Error = Error;

    fn error(error: litelease_store::Error) -> Error {
        rusqlite_error(error)
    }

    fn open(file: &DatabaseFile, busy_timeout: Duration) -> Result<Self> {
        open_existing(file, busy_timeout)
    }
}

impl FileHandle for Litelease {
    fn connection(&self) -> litelease_store::Connection {
        self.store().connection()
    }
}
