//! Services of the process for a library that it has loaded: calls at a fork and at the end,
//! threads that take no signals, libraries that stay; and what it is called.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::thread::{self, JoinHandle};
use std::{mem, ptr};

/// Calls `before` in the thread that forks, just before it does; after that, `parent` and `child`
/// in the same thread of the two processes. A program that is started without a fork calls none.
///
/// Call it once per set: calls add up. If the system has no memory left, none is called.
pub fn at_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions live as long as the program.
    let _ = unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) };
}

/// Calls `work` when the process ends by `exit` or by returning from `main`.
pub fn at_exit(work: extern "C" fn()) {
    // SAFETY: the function lives as long as the program.
    let _ = unsafe { libc::atexit(work) };
}

/// The signals that a thread takes although it blocks all others: those that its own instructions
/// cause.
const OWN_SIGNALS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGABRT, libc::SIGTRAP];

/// Starts a thread that takes no signals. They belong to the program: a handler of its own would
/// run on our thread, and a `sigwait` would wait in vain.
pub fn spawn_without_signals(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    // SAFETY: the sets are written before they are read. A new thread inherits the set, so it is
    // in force from its first instruction on.
    unsafe {
        let (mut blocked, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut blocked);
        for signal in OWN_SIGNALS {
            libc::sigdelset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
        let started = thread::Builder::new().name(name.into()).spawn(body);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut());
        started
    }
}

/// Keeps the library that has this address loaded until the process ends: a thread of ours may be
/// in it at any time.
pub fn pin_library(address: usize) {
    // SAFETY: `dladdr` fills the structure or returns 0. The name that it returns is that of a
    // library that is loaded now. The handle is never closed.
    unsafe {
        let mut found: libc::Dl_info = mem::zeroed();
        if libc::dladdr(address as *const c_void, &raw mut found) != 0 && !found.dli_fname.is_null()
        {
            let name = CStr::from_ptr(found.dli_fname);
            let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
            // The main program is no library, and stays without this.
            libc::dlopen(name.as_ptr(), flags);
        }
    }
}

/// Returns a function that finds functions by name in a loaded library and in those that it uses,
/// or in the program itself if no path is given. `None` if the library is not loaded.
pub fn functions_of(library: Option<&CStr>) -> Option<impl Fn(&CStr) -> *const c_void> {
    let path = library.map_or(ptr::null(), CStr::as_ptr);
    // SAFETY: the path ends with a NUL. A library that is not loaded is not loaded now.
    let handle = unsafe { libc::dlopen(path, libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    // SAFETY: the handle is never closed, and the name ends with a NUL.
    let find = move |name: &CStr| unsafe { libc::dlsym(handle, name.as_ptr()).cast_const() };
    (!handle.is_null()).then_some(find)
}

/// Checks whether there is no such process, or no such group if the number is negative.
pub(crate) fn is_absent(number: libc::pid_t) -> bool {
    // SAFETY: no pointers are involved, and signal 0 is not delivered.
    let asked = unsafe { libc::kill(number, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Checks whether a process has ended. A number that no process can have counts as ended.
pub(crate) fn has_ended(pid: u32) -> bool {
    libc::pid_t::try_from(pid).map_or(true, is_absent)
}

/// Returns the number of the process that has started this one.
pub fn parent_id() -> u32 {
    std::os::unix::process::parent_id()
}

/// Returns the host name as one word.
pub fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is writable, and its last byte stays 0.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    let name = String::from_utf8_lossy(&name[..end]).replace(char::is_whitespace, "-");
    if name.is_empty() { "localhost".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_takes_no_signals_and_its_starter_keeps_its_own() {
        let is_blocked = |signal| {
            // SAFETY: the set is written before it is read.
            unsafe {
                let mut now: libc::sigset_t = mem::zeroed();
                libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut now);
                libc::sigismember(&raw const now, signal) == 1
            }
        };
        let (sender, blocked) = mpsc::channel();
        let body = move || {
            let _ = sender.send([libc::SIGTERM, libc::SIGINT, libc::SIGSEGV].map(is_blocked));
        };
        let thread = spawn_without_signals("quiet", body);
        assert_eq!(blocked.recv().ok(), Some([true, true, false]));
        assert!(thread.is_ok_and(|thread| thread.join().is_ok()));
        assert!(!is_blocked(libc::SIGTERM));
    }
}
