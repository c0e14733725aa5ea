//! File systems.

use std::ffi::CString;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns the kind of network filesystem that a file is on, if it is on one.
pub fn network_filesystem(path: &Path) -> Option<&'static str> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a valid value of it, and the call fills it in; the path ends with a NUL.
    let found = unsafe {
        let mut found: libc::statfs = mem::zeroed();
        (libc::statfs(path.as_ptr(), &raw mut found) == 0).then_some(found)
    }?;
    Some(match found.f_type as u64 & 0xffff_ffff {
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "SMB",
        0x0102_1997 => "9p",
        0x00c3_6400 => "Ceph",
        0x6573_5546 => "FUSE",
        _ => return None,
    })
}
