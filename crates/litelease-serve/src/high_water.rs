//! The high-water mark: the largest token that was answered, in a small file beside the database.
//!
//! A database that was restored from a backup lacks the tokens granted since, and nothing in it
//! shows that. This file does. It is written after the commit, so it may lag behind the database
//! but never leads.
//!
//! The file is created and repaired by replacing it as a whole, synced. A larger number then
//! overwrites the smaller one in place: both have one length and fit in one sector, so that a
//! power cut leaves one or the other. The mark is exact after a kill. It is synced every second,
//! so a power cut makes it lag by up to that.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use litelease_files::{Error, SideFile};

use crate::error::OpenError;

/// The error text for a file that is no mark.
const NO_MARK: &str = "it is not a number; remove it if the database is not from a backup, or start once with \
                       --restore-fence, which ends every lease and replaces it";

/// How many bytes are read: more than a number has.
const LONGEST: u64 = 64;

/// How often the mark is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The mark of one database.
pub(crate) struct HighWater {
    side: SideFile,
    /// The open file, once it has a number in it.
    file: Option<File>,
    token: i64,
    found: Found,
    is_synced: bool,
    synced: Instant,
}

/// What the file held when the service was opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// White space or NULs only, which a power cut can leave of a file.
    Blank,
    Number,
    Garbage,
}

impl HighWater {
    /// Reads the mark beside a database. A missing one begins at 0. Writes nothing yet.
    pub(crate) fn beside(db: &Path) -> Result<Self, OpenError> {
        let side = SideFile::of(db, ".mark");
        let content = side.read(LONGEST)?;
        let (found, token) = content.map_or((Found::Nothing, 0), |content| parse(&content));
        Ok(HighWater { side, file: None, token, found, is_synced: true, synced: Instant::now() })
    }

    /// Checks whether there was a mark: then the database was served before.
    pub(crate) fn was_there(&self) -> bool {
        self.found != Found::Nothing
    }

    /// Refuses a mark that cannot be parsed: the largest token is unknown.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        match self.found {
            Found::Garbage => {
                Err(OpenError::Mark { path: self.path(), error: io::Error::other(NO_MARK) })
            }
            _ => Ok(()),
        }
    }

    /// Begins to keep the mark, from the newest token of the database.
    pub(crate) fn begin(&mut self, newest: i64) -> Result<(), OpenError> {
        if self.found == Found::Blank {
            tracing::warn!(
                mark = %self.side.path().display(),
                "the high-water mark is empty, as after a power cut: a backup that was restored since would not be \
                 noticed this once"
            );
        }
        let is_as_it_should_be = self.found == Found::Number && newest <= self.token;
        self.token = self.token.max(newest);
        match is_as_it_should_be {
            true => self.take_up()?,
            false => self.replace()?,
        }
        Ok(())
    }

    /// Returns the largest token that was answered.
    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    /// Raises the mark to a token, if that is larger.
    pub(crate) fn rise(&mut self, token: i64) -> Result<(), Error> {
        if token <= self.token {
            return Ok(());
        }
        self.token = token;
        self.is_synced = false;
        let Some(file) = &self.file else { return Ok(()) };
        let written = file.write_all_at(&content(token), 0).map_err(|error| self.failed(error));
        if written.is_err() {
            // The next sync replaces the file.
            self.file = None;
        }
        written
    }

    /// Returns how long until the mark is to be synced, or `None` if it is synced.
    pub(crate) fn due(&self) -> Option<Duration> {
        (!self.is_synced).then(|| SYNC_EVERY.saturating_sub(self.synced.elapsed()))
    }

    /// Syncs the mark. Puts the file back if it was removed or replaced.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        if self.is_synced {
            return Ok(());
        }
        // Set before trying, so that a failure is not retried in a tight loop.
        self.synced = Instant::now();
        match &self.file {
            Some(file) if self.side.is_still(file) => {
                file.sync_data().map_err(|error| self.failed(error))?;
            }
            _ => self.replace()?,
        }
        self.is_synced = true;
        Ok(())
    }

    fn replace(&mut self) -> Result<(), Error> {
        self.file = None;
        self.side.replace(&content(self.token))?;
        self.take_up()?;
        self.is_synced = true;
        Ok(())
    }

    fn take_up(&mut self) -> Result<(), Error> {
        // A file that is read-only for us is replaced when the mark rises.
        self.file = match self.side.open() {
            Err(Error::Io { error, .. }) if error.kind() == io::ErrorKind::PermissionDenied => None,
            opened => Some(opened?),
        };
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.side.path().into()
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Io { path: self.path(), error }
    }
}

/// Formats a token, always with the same length.
fn content(token: i64) -> Vec<u8> {
    format!("{token:020}\n").into_bytes()
}

fn parse(content: &[u8]) -> (Found, i64) {
    let is_blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    if content.iter().all(is_blank) {
        return (Found::Blank, 0);
    }
    let number = str::from_utf8(content).ok().and_then(|text| text.trim().parse().ok());
    match number {
        Some(token) if token >= 0 => (Found::Number, token),
        _ => (Found::Garbage, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_number_is_one_and_only_blanks_are_nothing() {
        for (content, found) in [
            (&b""[..], Found::Blank),
            (b"\n", Found::Blank),
            (&[0; 21], Found::Blank),
            (&[0; 64], Found::Blank),
            (b"00000000000000000007\n", Found::Number),
            (b"7", Found::Number),
            (b"seven", Found::Garbage),
            (b"-7\n", Found::Garbage),
            (b"0000000000\0\0\0\0\0\0\0\0\0\0\0", Found::Garbage),
            (b"99999999999999999999\n", Found::Garbage),
            (b"\xff\xfe", Found::Garbage),
            (&[b'1'; 64], Found::Garbage),
        ] {
            assert!(parse(content).0 == found, "{content:?}");
        }
    }
}
