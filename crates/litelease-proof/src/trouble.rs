//! Trouble for real processes: a disk that is full, and system calls that fail or kill. Needs rights that not every
//! machine gives; whoever asks is told `None` then.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::eventually;

/// A small filesystem of its own, unmounted when dropped.
pub struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// One of this size, as `mount` understands it. None where nothing may be mounted.
    pub fn new(size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fills it to the last byte with a file, which can be removed.
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

/// System calls of a running process that go wrong until this is dropped.
pub struct Injected(Child);

impl Injected {
    /// Lets calls go wrong as strace says it: `fdatasync:error=EIO`. None where nobody may be traced.
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
        // Asked to end, it lets the process go first.
        crate::command::kill(self.0.id() as i32, libc::SIGTERM);
        let _ = self.0.wait();
    }
}

fn is_traced(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states =
        threads.map(|thread| fs::read_to_string(thread.path().join("status")).unwrap_or_default());
    states.all(|state| !state.contains("TracerPid:\t0\n"))
}
