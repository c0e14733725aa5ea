//! The gate: a file that remembers which tokens a target has seen.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use crate::error::failure;
use crate::{AdmitResult, Litelease, Result};

/// A check of tokens for a target that is not in the file of the lease: a folder, a device, an interface.
///
/// It remembers the largest token of each name in a SQLite file of its own, durably (WAL, `synchronous=FULL`),
/// and refuses smaller ones. One `admit` is one atomic step, across processes too. What it cannot do is make
/// the check and the change one step: for that, compare in the target itself, as docs/fencing.md shows, or
/// [`admit`](crate::Leases::admit) in the target's own transaction where it is a SQLite file.
///
/// ```
/// use litelease::{AdmitResult, Gate};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("gate.sqlite3");
/// let gate = Gate::open(&path)?;
/// assert_eq!(gate.admit("printer", 7)?, AdmitResult::Admitted);
/// assert_eq!(gate.admit("printer", 8)?, AdmitResult::Admitted);
/// assert_eq!(gate.admit("printer", 7)?, AdmitResult::Stale { newest: 8 });
/// # Ok::<(), litelease::Error>(())
/// ```
#[derive(Debug)]
pub struct Gate {
    file: Litelease,
}

impl Gate {
    /// Opens the file of a gate, which is created if it is missing.
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("gate.sqlite3");
    /// let gate = litelease::Gate::open(&path)?;
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let connection = Connection::open(path.as_ref())?;
        // SQLite keeps the mode that it can have, and does not complain.
        let mode = set_wal(&connection)?;
        if mode != "wal" {
            return Err(failure(&format!(
                "{} cannot be used as a gate: its journal mode stays {mode} instead of wal",
                path.as_ref().display()
            )));
        }
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        Ok(Gate { file: Litelease::from_connection(connection) })
    }

    /// Admits a token unless a larger one was admitted for `name` before, and remembers it.
    ///
    /// ```
    /// # use litelease::{AdmitResult, Gate};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("gate.sqlite3");
    /// # let gate = Gate::open(&path)?;
    /// # let token = 7;
    /// match gate.admit("printer", token)? {
    ///     AdmitResult::Admitted => println!("go ahead"),
    ///     AdmitResult::Stale { newest } => println!("token {newest} was here before"),
    /// }
    /// # Ok::<(), litelease::Error>(())
    /// ```
    pub fn admit(&self, name: &str, token: i64) -> Result<AdmitResult> {
        self.file.admit(name, token)
    }
}

/// Switches to WAL, and answers the mode that it is now. While another process does the same to a new file, SQLite says
/// BUSY at once, whatever the busy timeout is.
fn set_wal(connection: &Connection) -> Result<String> {
    let start = Instant::now();
    loop {
        match connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)) {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < Duration::from_secs(5) =>
            {
                thread::sleep(Duration::from_millis(5));
            }
            done => return Ok(done?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_gate_remembers_is_on_the_disk() -> std::result::Result<(), Box<dyn std::error::Error>>
    {
        let folder = tempfile::tempdir()?;
        let gate = Gate::open(folder.path().join("gate.sqlite3"))?;
        let full: i64 = gate.file.conn().query_row("PRAGMA synchronous", [], |row| row.get(0))?;
        assert_eq!(full, 2);
        Ok(())
    }
}
