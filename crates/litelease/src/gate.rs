//! The gate: a file that remembers which tokens a target has seen.

use std::path::Path;

use litelease_sys::create_private;

use crate::error::{failure, into_rusqlite};
use crate::{AdmitResult, Litelease, Result};

/// A check of tokens for a target that is not in the file of the lease: a folder, a device, an
/// interface.
///
/// It remembers the largest token of each name in a SQLite file of its own, durably (WAL,
/// `synchronous=FULL`), and refuses smaller ones. One `admit` is one atomic step, across processes
/// too. It cannot make the check and the change one step: for that, compare in the target itself,
/// as docs/fencing.md shows, or [`admit`](crate::Leases::admit) in the target's own transaction
/// where it is a SQLite file.
///
/// ```
/// use litelease::{AdmitResult, Gate};
///
/// # litelease_doctest::path!(path);
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
    /// Opens the file of a gate. Creates it if it is missing, readable by its owner alone (0600),
    /// as [`open_own`](Litelease::open_own) does.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        create_private(path.as_ref());
        let file = Litelease::open(path)?;
        if file.store().file().is_none() {
            let reason = "a gate needs a file: in memory it would forget what it has admitted";
            return Err(failure(reason));
        }
        into_rusqlite(file.store().own())?;
        Ok(Gate { file })
    }

    /// Admits a token unless a larger one was admitted for `name` before, and remembers it.
    ///
    /// ```
    /// # litelease_doctest::path!(path);
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
