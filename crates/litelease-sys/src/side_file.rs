//! Opens, reads and replaces one side file.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::system::{self, Access, FileId};

/// A small file, by its path; usually beside a database.
///
/// ```
/// use litelease_sys::SideFile;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let database = folder.path().join("app.sqlite3");
/// # std::fs::write(&database, "").unwrap();
/// let file = SideFile::new(&database, ".high-water"); // app.sqlite3.high-water
/// assert_eq!(file.read(64)?, None);
/// file.replace(b"7\n")?;
/// assert_eq!(file.read(64)?, Some(b"7\n".to_vec()));
/// # Ok::<(), litelease_sys::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SideFile {
    path: PathBuf,
    database: Option<PathBuf>,
}

/// A process that creates a file needs a moment to set its mode. How often, and after which pause,
/// others try again.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

impl SideFile {
    /// Names the file beside a database: its path with `ending` at its end.
    pub fn new(database: &Path, ending: &str) -> Self {
        SideFile { path: with_ending(database, ending), database: Some(database.into()) }
    }

    /// Names a file at any path. The umask decides about its mode, unless it is
    /// [`like`](SideFile::like) a database.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        SideFile { path: path.into(), database: None }
    }

    /// Lets the file take the group of a database, and a mode that fits, when it is created.
    pub fn like(self, database: impl Into<PathBuf>) -> Self {
        SideFile { database: Some(database.into()), ..self }
    }

    /// Names a file beside this one, with the same permissions.
    pub fn and(&self, ending: &str) -> Self {
        SideFile { path: with_ending(&self.path, ending), database: self.database.clone() }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for reading and writing. Creates it if it is missing; never truncates it.
    pub fn open(&self) -> Result<File, Error> {
        for _ in 1..TRIES {
            match self.open_or_create() {
                Err(Error::Io { error, .. }) if is_new(&error) => thread::sleep(PAUSE),
                opened => return opened,
            }
        }
        self.open_or_create()
    }

    /// Opens the file for reading and writing, if it exists.
    pub fn open_existing(&self) -> Result<Option<File>, Error> {
        let opened = self.open_with(reading().write(true))?;
        Ok(opened.map(|(file, found)| self.adjusted(file, &found)))
    }

    /// Opens the file for reading, if it exists.
    pub fn open_to_read(&self) -> Result<Option<File>, Error> {
        Ok(self.open_with(&mut reading())?.map(|(file, _)| file))
    }

    /// Reads at most `most` bytes from the start of the file. Returns `None` if it does not exist.
    pub fn read(&self, most: u64) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = self.open_to_read()? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(|error| self.failed(error))?;
        Ok(Some(bytes))
    }

    /// Replaces the file as a whole. A reader finds either the old content or the new one, even
    /// after a power cut. Only one process at a time may do that.
    pub fn replace(&self, content: &[u8]) -> Result<(), Error> {
        let new = self.and(".new");
        // A killed process may have left one behind. If it is a link, only the link is removed.
        match fs::remove_file(&new.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(new.failed(error)),
            _ => {}
        }
        let written = new.create().and_then(|mut file| {
            let synced = file.write_all(content).and_then(|()| file.sync_all());
            synced.and_then(|()| fs::rename(&new.path, &self.path)).map_err(|e| self.failed(e))
        });
        if written.is_err() {
            let _ = fs::remove_file(&new.path);
        }
        written
    }

    /// Checks whether the path still leads to this open file. If the file was removed or replaced,
    /// other processes open another one.
    ///
    /// ```
    /// # use litelease_sys::SideFile;
    /// # let folder = tempfile::tempdir().unwrap();
    /// let lock = SideFile::at(folder.path().join("lock"));
    /// let file = lock.open()?;
    /// assert!(lock.is_still(&file));
    /// # Ok::<(), litelease_sys::Error>(())
    /// ```
    pub fn is_still(&self, file: &File) -> bool {
        let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(&self.path)) else {
            return false;
        };
        there.is_file() && FileId::new(&ours) == FileId::new(&there)
    }

    fn open_or_create(&self) -> Result<File, Error> {
        match self.open_existing()? {
            Some(file) => Ok(file),
            None => self.create(),
        }
    }

    /// Updates the permissions, in case those of the database have changed.
    fn adjusted(&self, file: File, found: &Metadata) -> File {
        if let Some(access) = self.database.as_deref().and_then(Access::from_database) {
            // On failure the file can be used as it is.
            let _ = access.adjust(&file, found);
        }
        file
    }

    /// Opens the path if it is an ordinary file. Anything else is not opened: opening a device can
    /// have effects.
    fn open_with(&self, options: &mut OpenOptions) -> Result<Option<(File, Metadata)>, Error> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match fs::symlink_metadata(&self.path) {
            Ok(found) => self.refuse(&found)?,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        }
        let file = match options.open(&self.path) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(self.failed(error)),
        };
        let found = file.metadata().map_err(|error| self.failed(error))?;
        self.refuse(&found)?;
        Ok(Some((file, found)))
    }

    fn create(&self) -> Result<File, Error> {
        let access = self.database.as_deref().map(Access::from_database);
        let mode = match &access {
            // Not beside a database: the umask decides.
            None => 0o666,
            // The database does not exist yet. The next process that opens this file sets its
            // mode.
            Some(None) => 0o600,
            Some(Some(access)) => access.mode(),
        };
        if matches!(access, Some(Some(_)))
            && self.database.as_deref().is_some_and(system::may_not_write)
        {
            return Err(self.failed(io::ErrorKind::PermissionDenied.into()));
        }
        let mut options = reading();
        system::set_mode(options.write(true).create_new(true), mode);
        let file = options.open(&self.path).map_err(|error| self.failed(error))?;
        if let Some(Some(access)) = access {
            access.give(&file).map_err(|error| self.failed(error))?;
        }
        Ok(file)
    }

    fn refuse(&self, found: &Metadata) -> Result<(), Error> {
        let what = match found.file_type() {
            kind if kind.is_file() && system::is_linked(found) => {
                "a file with a second name (a hard link)"
            }
            kind if kind.is_file() => return Ok(()),
            kind if kind.is_symlink() => "a symbolic link",
            kind if kind.is_dir() => "a folder",
            kind => system::special(kind),
        };
        Err(Error::NotAFile { path: self.path.clone(), what })
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), error }
    }
}

/// Checks whether another process may have created the file just now and not set its mode yet.
fn is_new(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::PermissionDenied)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    system::refuse_odd(options.read(true));
    options
}
