//! Writing to standard output and standard error: every failure is an answer, and none is a panic.

use std::borrow::Cow;
use std::io::Result;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use litelease_sys::standard::{is_stdout_open, not_open, write_to_stderr, write_to_stdout};

/// Writes all of `text` to standard output. Colours are left out unless a terminal shows them.
pub(crate) fn write_out(text: &str) -> Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(not_open());
    }
    let choice = AutoStream::choice(&std::io::stdout());
    write_to_stdout(&plain(choice, text))
}

/// Writes bytes to standard output as they are.
pub(crate) fn write_bytes(bytes: &[u8]) -> Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        return Err(not_open());
    }
    write_to_stdout(bytes)
}

/// Writes `text` to standard error. An error is ignored: there is no other place to report it.
pub(crate) fn write_error(text: &str) {
    let choice = AutoStream::choice(&std::io::stderr());
    let _ = write_to_stderr(&plain(choice, text));
}

/// Leaves out the colours if they are not wanted.
fn plain(choice: ColorChoice, text: &str) -> Cow<'_, [u8]> {
    match choice {
        ColorChoice::Never => Cow::Owned(strip_str(text).to_string().into_bytes()),
        _ => Cow::Borrowed(text.as_bytes()),
    }
}

/// This process was started without a standard output (`>&-`). The standard library puts /dev/null
/// there before `main`, so that writes to it would seem to succeed.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_closed() {
    WAS_CLOSED.store(!is_stdout_open(), Ordering::Relaxed);
}

/// Called by the loader, before the standard library sets itself up. It makes one system call and
/// stores one byte.
#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static AT_LOAD: extern "C" fn() = note_closed;
