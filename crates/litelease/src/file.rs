//! The file behind a connection: whether it is still there, and who is writing it.
//!
//! The database is never opened here: closing it again would drop SQLite's locks on it.

use std::ffi::c_int;
use std::fs;
use std::path::Path;

use rusqlite::{Connection, ffi};

/// Checks whether the file of a connection was moved, deleted or replaced since it was opened.
/// SQLite still uses the old file, where no other process sees what is granted.
pub(crate) fn has_moved(connection: &Connection) -> bool {
    let mut moved: c_int = 0;
    // SAFETY: the connection is open, and SQLite writes one int.
    let told = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_HAS_MOVED,
            (&raw mut moved).cast(),
        )
    };
    told == ffi::SQLITE_OK && moved != 0
}

/// The bytes that SQLite's writers lock: in the -shm of a file in WAL mode, in the file itself
/// otherwise.
const WAL_WRITE_LOCK: u64 = 120;
const RESERVED_LOCK: u64 = 0x4000_0001;

/// Returns the process that holds the write lock of a database file, if the system tells.
pub(crate) fn write_lock_pid(path: &str) -> Option<u32> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let holder = |path: &Path, byte: u64| {
        let file = inode(path)?;
        locks.lines().find_map(|line| Lock::parse(line)?.holder(file, byte))
    };
    let shm = format!("{path}-shm");
    holder(Path::new(&shm), WAL_WRITE_LOCK).or_else(|| holder(Path::new(path), RESERVED_LOCK))
}

/// A line of /proc/locks.
struct Lock<'a> {
    pid: u32,
    /// Device and inode, as `08:01:1234`.
    file: &'a str,
    first: u64,
    last: u64,
}

impl<'a> Lock<'a> {
    /// `12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`; none for one that is read, waited for
    /// or no lock of SQLite's kind.
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let is_write =
            words.next()? == "POSIX" && words.next().is_some() && words.next()? == "WRITE";
        let (pid, file) = (words.next()?.parse().ok()?, words.next()?);
        let first = words.next()?.parse().ok()?;
        let last = words.next()?.parse().unwrap_or(u64::MAX); // or EOF
        is_write.then_some(Lock { pid, file, first, last })
    }

    fn holder(&self, inode: u64, byte: u64) -> Option<u32> {
        let of_file = self.file.rsplit(':').next()?.parse() == Ok(inode);
        (of_file && (self.first..=self.last).contains(&byte)).then_some(self.pid)
    }
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<u64> {
    Some(std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).ok()?))
}

#[cfg(not(unix))]
fn inode(_: &Path) -> Option<u64> {
    None
}
