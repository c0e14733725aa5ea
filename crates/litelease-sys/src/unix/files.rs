//! Files: telling two apart, finding odd ones, creating private ones.

use std::ffi::{CString, OsStr};
use std::fs::{self, DirBuilder, File, FileType, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Device and inode of a file, which identify it while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the id of the file with this metadata.
    pub fn new(found: &Metadata) -> Self {
        FileId { device: found.dev(), inode: found.ino() }
    }

    /// Returns the number of the file on its device.
    pub(crate) fn inode(self) -> u64 {
        self.inode
    }
}

/// The id, length and times of a file, which change when it is written or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    id: FileId,
    length: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    /// Returns the stamp of the file with this metadata.
    pub fn new(found: &Metadata) -> Self {
        FileStamp {
            id: FileId::new(found),
            length: found.len(),
            written: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        }
    }
}

/// Checks for a second name. It may be that of a file which must not be written.
pub fn is_linked(found: &Metadata) -> bool {
    found.nlink() > 1
}

/// Names a kind of file that is no ordinary one, for people.
pub(crate) fn special(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_fifo() => "a FIFO",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// Has a file refused that has become a link since it was checked, and not waited for if it has
/// become a FIFO.
pub(crate) fn refuse_odd(options: &mut OpenOptions) {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
}

/// Has a file created with this mode, less what the umask takes away.
pub(crate) fn set_mode(options: &mut OpenOptions, mode: u32) {
    options.mode(mode);
}

/// Has a file created that only its owner may read and write.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o600)
}

/// Has a file created that all users may read, less what the umask takes away.
pub fn readable_by_all(options: &mut OpenOptions) -> &mut OpenOptions {
    options.mode(0o644)
}

/// Writes at the start of a file, without moving the position that its readers and writers share.
pub fn write_at_start(file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, 0)
}

/// Returns the path that a C function was given.
pub fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Creates a folder that only its owner may enter, and those above it that are missing.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file without opening it. If it were opened and closed here, and another thread let
/// SQLite lock it in between, closing it would drop those locks.
pub(crate) fn create_unopened(path: &Path) {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return };
    // SAFETY: the path ends with a NUL and lives until the call returns.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFREG | 0o600, 0) };
    let error = io::Error::last_os_error().raw_os_error();
    // Some systems and file systems allow that only to root, or not at all.
    let is_odd = [libc::EPERM, libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP].map(Some);
    if made != 0 && is_odd.contains(&error) {
        let _ = private(OpenOptions::new().write(true).create_new(true)).open(path);
    }
}

/// Lets the children that are started from now on keep an open file.
pub(crate) fn inherit(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Creates a named pipe that only programs of this user can write to. Nothing that is there already
/// is followed or changed.
pub fn create_pipe(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a NUL and lives until the call returns.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a named pipe for writing. Fails, instead of waiting, if no process reads it.
pub fn open_pipe(path: &Path) -> io::Result<File> {
    let pipe = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match pipe.metadata()?.file_type().is_fifo() {
        true => Ok(pipe),
        false => Err(io::Error::other("it is no pipe")),
    }
}

/// Checks that a path is a socket in a folder that only this user can change.
pub fn is_own_socket(path: &Path) -> bool {
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok());
    let is_private = folder.is_some_and(|found| found.mode() & 0o022 == 0);
    let is_socket = |found: Metadata| found.file_type().is_socket();
    is_private && fs::symlink_metadata(path).is_ok_and(is_socket)
}

/// Checks whether users who share a file through its group cannot read each other's writes: SQLite
/// gives its log the mode of the database, and the group that the folder gives.
pub fn is_group_lost(file: &Metadata, folder: &Metadata) -> bool {
    file.mode() & 0o022 == 0o020 && folder.mode() & 0o2000 == 0
}
