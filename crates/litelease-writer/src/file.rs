//! The lock file: opening it without harming anything that is there instead, and its holder's line.

use std::fs::{self, File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::holder::LONGEST;
use crate::{Error, Holder};

/// Opens the lock file, which is created if it is missing and never truncated. Whatever else is at the path is
/// refused, and not even opened: opening can do something to a device.
pub(crate) fn open(path: &Path) -> Result<File, Error> {
    let failed = |error| Error::Io { path: path.into(), error };
    match fs::symlink_metadata(path) {
        Ok(found) => refuse(path, found.file_type())?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let mut options = reading();
    let file = options.write(true).create(true).truncate(false).open(path).map_err(failed)?;
    refuse(path, file.metadata().map_err(failed)?.file_type())?;
    Ok(file)
}

/// Opens a file that is there, to see whether it is locked.
pub(crate) fn open_to_look(path: &Path) -> io::Result<File> {
    reading().open(path)
}

fn reading() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Should it be a link or a FIFO: neither follow nor wait.
        options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    options
}

/// Waits until the file is locked.
pub(crate) fn lock(file: &File, path: &Path) -> Result<(), Error> {
    loop {
        match file.lock() {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::Io { path: path.into(), error }),
        }
    }
}

/// Locks the file if nobody else has.
pub(crate) fn try_lock(file: &File, path: &Path) -> Result<bool, Error> {
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(Error::Io { path: path.into(), error }),
        }
    }
}

/// Whether the path still leads to the file: it may have been removed while it was waited for, and then somebody
/// else locks another one.
pub(crate) fn is_still_at(file: &File, path: &Path) -> bool {
    let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    there.is_file() && identity(&ours) == identity(&there)
}

/// What tells a file from every other one that is there at the same time.
#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

/// A file that is open cannot be removed there, so there is only one.
#[cfg(not(unix))]
fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// Whether somebody holds a lock on the file, where the system tells without one being tried.
pub(crate) fn is_locked(file: &File) -> Option<bool> {
    let (_, inode) = identity(&file.metadata().ok()?);
    let locks = fs::read_to_string("/proc/locks").ok()?;
    // "12: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF"; one that is waited for has an arrow before FLOCK.
    let is_ours = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(1);
        words.next() == Some("FLOCK")
            && words.nth(3).and_then(|file| file.rsplit(':').next()?.parse().ok()) == Some(inode)
    };
    Some(locks.lines().any(is_ours))
}

/// Leaves the holder's line. The lock holds without it, so a full disk is no reason to give up.
pub(crate) fn sign(mut file: &File, holder: &Holder) {
    let _ = file.set_len(0).and_then(|()| file.rewind());
    let _ = file.write_all(format!("{holder}\n").as_bytes());
}

/// Who signed last, if that can be told.
pub(crate) fn signed(path: &Path) -> Option<Holder> {
    let mut line = Vec::new();
    let file = open(path).ok()?;
    file.take(LONGEST as u64).read_to_end(&mut line).ok()?;
    Holder::parse(str::from_utf8(&line).ok()?)
}

fn refuse(path: &Path, kind: FileType) -> Result<(), Error> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a folder",
        _ => special(kind),
    };
    Err(Error::NotALockFile { path: path.into(), what })
}

#[cfg(unix)]
fn special(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

#[cfg(not(unix))]
fn special(_kind: FileType) -> &'static str {
    "no ordinary file"
}
