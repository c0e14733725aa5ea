//! Writing to standard output and standard error: every failure is an answer, and none is a panic.

use std::fs::File;
use std::io::{Error, Result, Write};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};

/// Writes all of `text` to standard output. Colours are left out unless a terminal shows them.
pub(crate) fn write_out(text: &str) -> Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    let choice = AutoStream::choice(&std::io::stdout());
    write(libc::STDOUT_FILENO, choice, text)
}

/// Writes bytes to standard output as they are.
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: as in `write`.
    let mut stream = ManuallyDrop::new(unsafe { File::from_raw_fd(libc::STDOUT_FILENO) });
    stream.write_all(bytes)
}

/// Writes `text` to standard error. An error is ignored: there is no other place to report it.
pub(crate) fn write_error(text: &str) {
    let choice = AutoStream::choice(&std::io::stderr());
    let _ = write(libc::STDERR_FILENO, choice, text);
}

fn write(descriptor: i32, choice: ColorChoice, text: &str) -> Result<()> {
    // SAFETY: standard output and error stay open as long as the process lives, and this value
    // never closes them.
    let mut stream = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    // In one piece and without a buffer: what could not be written now is not written later,
    // either.
    match choice {
        ColorChoice::Never => stream.write_all(strip_str(text).to_string().as_bytes()),
        _ => stream.write_all(text.as_bytes()),
    }
}

/// This process was started without a standard output (`>&-`). The standard library puts /dev/null
/// there before `main`, so that writes to it would seem to succeed.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_closed() {
    // SAFETY: no pointers are involved; the call only asks.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Called by the loader, before the standard library sets itself up. It makes one system call and
/// stores one byte.
#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static AT_LOAD: extern "C" fn() = note_closed;
