//! Locks on files, as Linux lists them in `/proc/locks`.

use std::fs::{self, Metadata};

use crate::FileId;

/// A lock that a process holds on a part of a file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct FileLock {
    /// The kind of lock.
    pub kind: LockKind,
    /// It excludes every other lock.
    pub is_exclusive: bool,
    /// The process that took it, if it belongs to one.
    pub pid: Option<u32>,
    /// The first byte that it covers.
    pub first: u64,
    /// The last byte that it covers.
    pub last: u64,
    inode: u64,
}

/// The system call that took a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockKind {
    /// `flock`, on whole files.
    Flock,
    /// `fcntl`, as SQLite does.
    Posix,
    /// Any other.
    Other,
}

/// Returns every lock that is held on this machine, or `None` if the system does not show them.
pub fn held_locks() -> Option<Vec<FileLock>> {
    let list = fs::read_to_string("/proc/locks").ok()?;
    Some(list.lines().filter_map(FileLock::parse).collect())
}

impl FileLock {
    /// Checks whether this lock is on the file with this metadata.
    pub fn is_on(&self, file: &Metadata) -> bool {
        self.inode == FileId::new(file).inode()
    }

    /// Parses a line such as `12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 120`. An arrow before
    /// the kind means that the process only waits for the lock: that line is skipped.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = match words.next()? {
            "->" => return None,
            "FLOCK" => LockKind::Flock,
            "POSIX" => LockKind::Posix,
            _ => LockKind::Other,
        };
        let is_exclusive = words.nth(1)? == "WRITE";
        let pid = words.next()?.parse().ok();
        let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
        let first = words.next()?.parse().ok()?;
        let last = words.next()?.parse().unwrap_or(u64::MAX); // or EOF
        Some(FileLock { kind, is_exclusive, pid, first, last, inode })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::{FileLock, LockKind};

    #[test]
    fn a_line_is_a_lock_unless_it_is_only_waited_for() {
        let lock = FileLock::parse("12: POSIX  ADVISORY  WRITE 4711 08:01:1234 120 128").unwrap();
        let FileLock { kind, is_exclusive, pid, first, last, inode } = lock;
        assert_eq!((kind, is_exclusive, pid), (LockKind::Posix, true, Some(4711)));
        assert_eq!((inode, first, last), (1234, 120, 128));

        let whole = FileLock::parse("3: FLOCK  ADVISORY  READ 7 00:2f:99 0 EOF").unwrap();
        assert_eq!(
            (whole.kind, whole.is_exclusive, whole.last),
            (LockKind::Flock, false, u64::MAX)
        );
        let nobodys = FileLock::parse("4: OFDLCK ADVISORY  WRITE -1 00:2f:99 0 EOF").unwrap();
        assert_eq!((nobodys.kind, nobodys.pid), (LockKind::Other, None));

        assert_eq!(FileLock::parse("3: -> FLOCK  ADVISORY  WRITE 8 00:2f:99 0 EOF"), None);
        assert_eq!(FileLock::parse("3: FLOCK  ADVISORY"), None);
        assert_eq!(FileLock::parse(""), None);
    }
}
