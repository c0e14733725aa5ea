//! The named pipe through which a command notes progress, where its hold keeps that limit itself.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use litelease_hold::unique;
use litelease_sys::{create_pipe, open_pipe};

/// The variable with the path of the pipe. Any byte that is written to it is progress.
pub(crate) const PROGRESS: &str = "LITELEASE_PROGRESS";

/// A pipe that only programs of this user can write to. It is removed when this is dropped.
pub(crate) struct ProgressPipe {
    pub(crate) path: PathBuf,
}

impl ProgressPipe {
    /// Makes the pipe, and calls `noted` on a thread for every write into it, until that returns
    /// false.
    pub(crate) fn listen(noted: impl Fn() -> bool + Send + 'static) -> io::Result<Self> {
        let path = env::temp_dir().join(format!("litelease-progress-{}", unique()));
        create_pipe(&path)?;
        let pipe = ProgressPipe { path };
        // Opened for both, so that it neither waits for a writer nor ends with one.
        let mut reader = OpenOptions::new().read(true).write(true).open(&pipe.path)?;
        let body = move || while reader.read(&mut [0; 64]).is_ok() && noted() {};
        thread::Builder::new().name("progress".into()).spawn(body)?;
        Ok(pipe)
    }
}

impl Drop for ProgressPipe {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Records progress. Fails if the run that made the pipe is gone.
pub(crate) fn note(path: &Path) -> io::Result<()> {
    match open_pipe(path)?.write(b"\n") {
        // It is full of notes that are not read yet.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        written => written.map(drop),
    }
}
