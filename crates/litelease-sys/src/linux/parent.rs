//! Children that end with their parent, and orphans that are adopted.

use std::io;

/// Has the kernel kill this process when its parent dies. May be called between fork and exec.
pub fn die_with(parent: u32) -> io::Result<()> {
    // SAFETY: no pointers are involved.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        // It may have died before it was asked for.
        if libc::getppid() != parent as libc::pid_t {
            libc::_exit(128 + libc::SIGKILL);
        }
    }
    Ok(())
}

/// Makes orphans of this process's children its own children, so that it is notified of their end.
pub fn adopt_orphans() {
    // SAFETY: no pointers are involved. Where it is refused, orphans are init's, as ever.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    }
}
