//! The high-water mark: the newest grants that were answered, in a small file beside the database.
//!
//! A database that was restored from a backup lacks the tokens granted since, and nothing in it
//! shows that. This file does. It is written after the commit, so it may lag behind the database
//! but never leads.
//!
//! Slots of all pools share one count, so the largest token is enough. Names count on their own;
//! for them the last grant is enough, because a backup that has it has all grants before it as
//! well.
//!
//! The file is created and repaired by replacing it as a whole, synced. A larger number then
//! overwrites the smaller one in place: both have one length and fit in one sector, so that a
//! power cut leaves one or the other. The mark is exact after a kill. It is synced every second,
//! so a power cut makes it lag by up to that.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use litelease_sys::{Error, SideFile, write_at_start};

use crate::error::OpenError;

/// The error text for a file that has no high-water mark.
const NOT_HIGH_WATER: &str = "it is not a high-water mark; remove it if the database is not from a backup, or start once with \
                       --restore-fence, which ends every lease and replaces it";

/// The most bytes to read: more than a high-water mark has.
const LONGEST: u64 = 64;

/// How often the mark is synced.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The high-water mark of one database.
pub(crate) struct HighWater {
    side: SideFile,
    /// The open file, once it has a number in it.
    file: Option<File>,
    answered: Answered,
    found: Found,
    is_synced: bool,
    synced: Instant,
}

/// The newest grants that were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answered {
    /// The largest token of a slot.
    token: i64,
    /// The last grant of a name.
    name: NameGrant,
}

/// A grant of a name, by the row of the name in the table of served grants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NameGrant {
    pub(crate) number: i64,
    /// 0 if there was none.
    pub(crate) token: i64,
}

/// The content of the file when the service was opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Nothing,
    /// White space or NULs only, which a power cut can leave of a file.
    Blank,
    HighWater,
    Garbage,
}

impl HighWater {
    /// Reads the mark beside a database. A missing one begins at 0. Writes nothing yet.
    pub(crate) fn beside(db: &Path) -> Result<Self, OpenError> {
        let side = SideFile::new(db, ".high-water");
        let content = side.read(LONGEST)?;
        let (found, answered) =
            content.map_or((Found::Nothing, Answered::default()), |content| parse(&content));
        Ok(HighWater { side, file: None, answered, found, is_synced: true, synced: Instant::now() })
    }

    /// Checks whether there was a file: then the database was served before.
    pub(crate) fn was_there(&self) -> bool {
        self.found != Found::Nothing
    }

    /// Refuses a mark that cannot be parsed: the largest token is unknown.
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        match self.found {
            Found::Garbage => Err(OpenError::HighWater {
                path: self.path(),
                error: io::Error::other(NOT_HIGH_WATER),
            }),
            _ => Ok(()),
        }
    }

    /// Begins to keep the mark, from the newest token of the database.
    pub(crate) fn begin(&mut self, newest: i64) -> Result<(), OpenError> {
        if self.found == Found::Blank {
            tracing::warn!(
                file = %self.side.path().display(),
                "the high-water mark is empty, as after a power cut: a backup that was restored since would not be \
                 noticed this once"
            );
        }
        let is_current = self.found == Found::HighWater && newest <= self.answered.token;
        self.answered.token = self.answered.token.max(newest);
        match is_current {
            true => self.take_up()?,
            false => self.replace()?,
        }
        Ok(())
    }

    /// Returns the largest token of a slot that was answered.
    pub(crate) fn token(&self) -> i64 {
        self.answered.token
    }

    /// Returns the last grant of a name that was answered.
    pub(crate) fn name(&self) -> NameGrant {
        self.answered.name
    }

    /// Raises the mark to a token of a slot, if that is larger, and to the last grant of a name, if
    /// there is a new one.
    pub(crate) fn rise(&mut self, token: i64, name: Option<NameGrant>) -> Result<(), Error> {
        let token = self.answered.token.max(token);
        let answered = Answered { token, name: name.unwrap_or(self.answered.name) };
        if answered == self.answered {
            return Ok(());
        }
        self.answered = answered;
        self.is_synced = false;
        let Some(file) = &self.file else { return Ok(()) };
        let written = write_at_start(file, &content(answered)).map_err(|error| self.failed(error));
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
        self.side.replace(&content(self.answered))?;
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

/// Formats a mark, always with the same length.
fn content(answered: Answered) -> Vec<u8> {
    let Answered { token, name } = answered;
    format!("{token:020} {:010} {:020}\n", name.number, name.token).into_bytes()
}

fn parse(content: &[u8]) -> (Found, Answered) {
    let nothing = Answered::default();
    let is_blank = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
    if content.iter().all(is_blank) {
        return (Found::Blank, nothing);
    }
    // A truncated file may still parse, so its numbers must format to the very same bytes.
    match numbers(content).filter(|answered| self::content(*answered) == content) {
        Some(answered) => (Found::HighWater, answered),
        None => (Found::Garbage, nothing),
    }
}

fn numbers(content: &[u8]) -> Option<Answered> {
    let mut words = str::from_utf8(content).ok()?.trim_end().split(' ');
    let mut next = || i64::try_from(words.next()?.parse::<u64>().ok()?).ok();
    let (token, number, of_name) = (next()?, next()?, next()?);
    Some(Answered { token, name: NameGrant { number, token: of_name } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_are_a_mark_and_only_blanks_are_nothing() {
        for (content, found) in [
            (&b""[..], Found::Blank),
            (b"\n", Found::Blank),
            (&[0; 21], Found::Blank),
            (&[0; 64], Found::Blank),
            (b"00000000000000000007\n", Found::Garbage),
            (b"7", Found::Garbage),
            (b"00000000000000000007 0000000002 00000000000000000009\n", Found::HighWater),
            (b"7 2 9", Found::Garbage),
            (b"-0000000000000000007 0000000002 00000000000000000009\n", Found::Garbage),
            (b"+0000000000000000007 0000000002 00000000000000000009\n", Found::Garbage),
            (b"7 2", Found::Garbage),
            (b"7  2", Found::Garbage),
            (b"7 2 -9", Found::Garbage),
            (b"7 2 9 1", Found::Garbage),
            (b"00000000000000000007 00000000\0\0 00000000000000000009\n", Found::Garbage),
            (b"seven", Found::Garbage),
            (b"-7\n", Found::Garbage),
            (b"0000000000\0\0\0\0\0\0\0\0\0\0\0", Found::Garbage),
            (b"99999999999999999999\n", Found::Garbage),
            (b"\xff\xfe", Found::Garbage),
            (&[b'1'; 64], Found::Garbage),
        ] {
            assert!(parse(content).0 == found, "{content:?}");
        }
        let name = NameGrant { number: i64::from(u32::MAX), token: i64::MAX };
        for answered in [Answered::default(), Answered { token: i64::MAX, name }] {
            let (text, (found, read)) = (content(answered), parse(&content(answered)));
            assert!(found == Found::HighWater && read == answered, "{read:?}");
            assert_eq!(text.len(), content(Answered::default()).len());
            for length in 1..text.len() {
                assert!(parse(&text[..length]).0 == Found::Garbage, "cut to {length}");
            }
            assert!(text.len() < LONGEST as usize);
        }
    }
}
