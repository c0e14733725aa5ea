//! Folders for what is measured: in memory where there is room, and gone afterwards.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tempfile::TempDir;

use crate::Result;

/// A folder that also goes away when the run is interrupted: some files in it have a gigabyte.
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("litelease-bench-").tempdir_in(place(4 << 30))?;
        let path = folder.path().to_owned();
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        thread::spawn(move || {
            if signals.forever().next().is_some() {
                // What still runs may be making files in it.
                for _ in 0..20 {
                    let _ = std::fs::remove_dir_all(&path);
                    thread::sleep(Duration::from_millis(5));
                }
                eprintln!("\nlitelease-bench: interrupted");
                std::process::exit(130);
            }
        });
        Ok(Scratch(folder))
    }

    /// A fresh folder in it.
    pub(crate) fn folder(&self) -> Result<TempDir> {
        Ok(tempfile::tempdir_in(self.0.path())?)
    }
}

/// Where files are in memory if there is so much room, so that only the syncs of the slow disk take
/// time.
fn place(bytes: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    match free(memory) >= bytes {
        true => memory.to_owned(),
        false => std::env::temp_dir(),
    }
}

fn free(folder: &Path) -> u64 {
    let Ok(path) = CString::new(folder.as_os_str().as_encoded_bytes()) else { return 0 };
    // SAFETY: all zeroes is a value of this plain struct.
    let mut answer: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and there is room for the answer.
    match unsafe { libc::statvfs(path.as_ptr(), &raw mut answer) } {
        0 => answer.f_bavail.saturating_mul(answer.f_frsize),
        _ => 0,
    }
}
