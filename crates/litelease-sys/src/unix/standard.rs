//! Standard output and standard error, without the buffers of the standard library.

use std::fs::File;
use std::io::{Error, Result, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

/// Writes to standard output, in one piece and without a buffer: what could not be written now is
/// not written later, either.
pub fn write_to_stdout(bytes: &[u8]) -> Result<()> {
    write(libc::STDOUT_FILENO, bytes)
}

/// Writes to standard error, in one piece and without a buffer.
pub fn write_to_stderr(bytes: &[u8]) -> Result<()> {
    write(libc::STDERR_FILENO, bytes)
}

fn write(descriptor: i32, bytes: &[u8]) -> Result<()> {
    // SAFETY: standard output and error stay open as long as the process lives, and this value
    // never closes them.
    let mut stream = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    stream.write_all(bytes)
}

/// Checks whether standard output is open. The standard library puts /dev/null there before `main`
/// if it is not, so ask before that.
pub fn is_stdout_open() -> bool {
    // SAFETY: no pointers are involved; the call only asks.
    unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) != -1 }
}

/// Returns the error of writing to what is not open.
pub fn not_open() -> Error {
    Error::from_raw_os_error(libc::EBADF)
}
