//! Faults for real processes: full disks, and system calls that fail.
//!
//! They need rights that not every machine gives; the constructors return `None` without them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::eventually;

/// A small tmpfs, unmounted on drop.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// Mounts one of this size, in the form `mount` takes. `None` if mounting is not allowed.
    pub fn new(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk(folder))
    }

    /// Returns the folder it is mounted on.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it to the last byte, and returns the file that does so; removing it frees the space.
    pub fn fill(&self) -> PathBuf {
        let ballast = self.path().join("ballast");
        let mut file = fs::File::create(&ballast).expect("a file");
        while file.write_all(&[7; 512]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Makes system calls of a running process fail, until dropped.
pub struct Injected(Child);

impl Injected {
    /// Injects a fault as strace writes it: `fdatasync:error=EIO`. `None` if tracing is forbidden.
    pub fn into(pid: u32, calls: &str) -> Option<Self> {
        let names = calls.split(':').next().unwrap_or_default();
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-p", &pid.to_string()]);
        strace.args(["-e", &format!("trace={names}"), "-e", &format!("inject={calls}")]);
        let strace = strace.stderr(Stdio::null()).spawn().ok()?;
        let mut injected = Injected(strace);
        let is_there = eventually("strace has every thread, or none", || {
            if !matches!(injected.0.try_wait(), Ok(None)) {
                return Some(false);
            }
            is_traced(pid).then_some(true)
        });
        is_there.then_some(injected)
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        // On SIGTERM, strace detaches from the process before it ends.
        crate::command::kill(self.0.id() as i32, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Checks whether every thread of a process is traced.
fn is_traced(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states =
        threads.map(|thread| fs::read_to_string(thread.path().join("status")).unwrap_or_default());
    states.all(|state| !state.contains("TracerPid:\t0\n"))
}
