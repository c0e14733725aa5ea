//! Wakes waiters in other processes: a futex word in a small file next to the database, on which
//! they sleep.
//!
//! The first waiter creates the file, and it stays. The word is read and written with file calls,
//! and mapped only for the kernel: if the file is truncated, reading the mapping would kill the
//! process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use crate::{Listener, SideFile, monotonic};

/// The length of the file: one word, and reserved bytes.
const LENGTH: usize = 64;

/// Wakes all waiters.
const ALL_WAITERS: u32 = i32::MAX as u32;

/// The wakeup of a database file, `…-wakeup`.
///
/// ```
/// # use std::time::Duration;
/// # use litelease_sys::Wakeup;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("app.sqlite3");
/// # std::fs::write(&file, "").unwrap();
/// assert!(Wakeup::find(&file).is_none(), "no process has ever waited");
/// let waiting = Wakeup::create(&file).unwrap();
/// let generation = waiting.generation();
/// Wakeup::find(&file).unwrap().notify();
/// waiting.wait(generation, Duration::from_secs(60)); // returns at once
/// assert_ne!(waiting.generation(), generation);
/// ```
#[derive(Debug)]
pub struct Wakeup {
    file: File,
    word: *mut u32,
}

// SAFETY: the pointer is never dereferenced; it only names the word to the kernel.
unsafe impl Send for Wakeup {}
// SAFETY: as above.
unsafe impl Sync for Wakeup {}

impl Wakeup {
    /// Opens the wakeup of a database file, and creates it if it is missing. Users that may write
    /// the database may notify its waiters.
    pub fn create(database: &Path) -> io::Result<Self> {
        let file = beside(database).open()?;
        if file.metadata()?.len() == 0 {
            file.set_len(LENGTH as u64)?;
        }
        Wakeup::on(file)
    }

    /// Opens the wakeup of a database file, if a process has ever waited there.
    pub fn find(database: &Path) -> Option<Self> {
        Wakeup::on(beside(database).open_existing().ok()??).ok()
    }

    /// Returns a number that changes with every notification.
    pub fn generation(&self) -> u32 {
        let mut word = [0; 4];
        // If the file cannot be read, waiters rely on the slow poll.
        let _ = self.file.read_exact_at(&mut word, 0);
        u32::from_ne_bytes(word)
    }

    /// Sleeps until the next notification, for at most `time`. Returns at once if there was one
    /// since `generation`.
    pub fn wait(&self, generation: u32, time: Duration) {
        let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `until` is a valid place to write to. The kernel measures the wait with this
        // clock.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut until) };
        let nanos = until.tv_nsec + i64::from(time.subsec_nanos());
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        until.tv_sec = until.tv_sec.saturating_add(seconds).saturating_add(nanos / 1_000_000_000);
        until.tv_nsec = nanos % 1_000_000_000;
        self.futex(libc::FUTEX_WAIT_BITSET, generation, &until);
    }

    /// Wakes all waiters of this file, in all processes.
    pub fn notify(&self) {
        // Any new number will do. Counting up would need two processes to agree.
        let now = monotonic().as_nanos();
        let new = (now as u32 ^ std::process::id().rotate_left(16)).to_ne_bytes();
        if self.file.write_all_at(&new, 0).is_ok() {
            self.futex(libc::FUTEX_WAKE, ALL_WAITERS, ptr::null());
        }
    }

    fn futex(&self, operation: i32, value: u32, until: *const libc::timespec) {
        // Processes that share a bit wake each other, which is harmless.
        let bits = 1u32 << (std::process::id() % 32);
        let unused = ptr::null::<u32>();
        // SAFETY: the word is mapped as long as this value lives; if the file has become too
        // short, the kernel returns an error. `until` is null or lives until the call returns. An
        // error (interrupted, already notified, timed out) means the same as a wake-up: the
        // caller reads the row again.
        unsafe { libc::syscall(libc::SYS_futex, self.word, operation, value, until, unused, bits) };
    }

    fn on(file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() != LENGTH as u64 {
            return Err(io::Error::other("another file has the name of the wakeup"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
        let word =
            unsafe { libc::mmap(ptr::null_mut(), LENGTH, access, libc::MAP_SHARED, descriptor, 0) };
        if word == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Wakeup { file, word: word.cast() })
    }
}

impl Listener for Wakeup {
    /// Wakes the waiters of this file in this process.
    fn nudge(&self) {
        self.futex(libc::FUTEX_WAKE_BITSET, ALL_WAITERS, ptr::null());
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and the address is not used any more.
        unsafe { libc::munmap(self.word.cast(), LENGTH) };
    }
}

fn beside(database: &Path) -> SideFile {
    SideFile::new(database, "-wakeup")
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::PathBuf;

    use super::*;

    fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap_or_else(|error| unreachable!("{error}"));
        let database = folder.path().join("x");
        std::fs::write(&database, "").unwrap_or_default();
        let path = folder.path().join("x-wakeup");
        (folder, database, path)
    }

    #[test]
    fn a_wakeup_that_is_truncated_under_its_waiters_does_no_harm() {
        let (_folder, database, path) = place();
        let wakeup = Wakeup::create(&database).ok();
        let cut = OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0));
        assert!(cut.is_ok());
        let Some(wakeup) = wakeup else { unreachable!("no wakeup") };
        wakeup.wait(wakeup.generation(), Duration::from_millis(1));
        wakeup.notify();
    }

    #[test]
    fn a_file_that_already_has_the_name_of_the_wakeup_is_left_alone() {
        let (_folder, database, path) = place();
        std::fs::write(&path, "a victim").unwrap_or_default();
        assert!(Wakeup::create(&database).is_err() && Wakeup::find(&database).is_none());
        assert_eq!(std::fs::read(&path).unwrap_or_default(), b"a victim");

        let (_folder, database, path) = place();
        let victim = database.with_extension("victim");
        std::fs::write(&victim, "").unwrap_or_default();
        assert!(std::os::unix::fs::symlink(&victim, &path).is_ok());
        assert!(Wakeup::create(&database).is_err());
        assert_eq!(std::fs::read(&victim).unwrap_or_default(), b"");
    }
}
