//! The high-water mark: the largest token that was answered, in a small file beside the database.
//!
//! A database that was restored from a backup has forgotten what it granted since, and nothing in it can tell. This
//! file can: it is written after the commit, so the database is never behind it by itself.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// What is said of a file that is none.
const NO_MARK: &str = "it is not a number; remove it if the database is not from a backup";

/// The mark of one database.
pub(crate) struct HighWater {
    file: File,
    token: i64,
}

impl HighWater {
    /// Whether there is one beside a database: then it was served before.
    pub(crate) fn is_beside(db: &Path) -> bool {
        HighWater::path(db).exists()
    }

    /// Opens the mark beside a database; one that is missing begins at 0.
    pub(crate) fn beside(db: &Path) -> Result<Self, OpenError> {
        let path = HighWater::path(db);
        HighWater::open(&path).map_err(|error| OpenError::Mark { path, error })
    }

    fn open(path: &Path) -> io::Result<Self> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let token = match text.trim() {
            "" => 0,
            number => number.parse().map_err(|_| io::Error::other(NO_MARK))?,
        };
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        Ok(HighWater { file, token })
    }

    fn path(db: &Path) -> PathBuf {
        let mut name = db.as_os_str().to_owned();
        name.push(".mark");
        name.into()
    }

    /// The largest token that was answered.
    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    /// Remembers a larger one.
    pub(crate) fn rise(&mut self, token: i64) -> io::Result<()> {
        if token > self.token {
            // Of one length, so that it is replaced as a whole.
            self.file.write_all_at(format!("{token:020}\n").as_bytes(), 0)?;
            self.token = token;
        }
        Ok(())
    }
}
