//! Reads from /proc whether a process runs, since when, and in which scope.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, ptr};

use crate::unix::process::is_absent;
use crate::{Liveness, PidScope};

/// Checks whether the process with this number that started at `start` is running. It is dead if
/// there is no such process, if the number belongs to another one, or if all its threads have
/// ended.
pub fn liveness_of(pid: u32, start: u64) -> Liveness {
    let Some(number) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return Liveness::Unknown;
    };
    if is_absent(number) {
        return Liveness::Dead;
    }
    // Nothing can be read if it is hidden, belongs to another user, or has ended just now.
    match stat(pid) {
        Ok(stat) if stat.start != start => Liveness::Dead,
        Ok(stat) => stat.liveness(pid),
        Err(_) => Liveness::Unknown,
    }
}

/// A process group, as the processes of this pid namespace number it.
///
/// ```
/// # use litelease_sys::ProcessGroup;
/// # use std::os::unix::process::CommandExt;
/// let mut command = std::process::Command::new("sleep").arg("60").process_group(0).spawn()?;
/// let group = ProcessGroup::new(command.id());
/// assert!(!group.has_ended());
/// command.kill()?;
/// command.wait()?;
/// assert!(group.has_ended());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ProcessGroup {
    number: u32,
    /// A process of the group that ran at the last check; 0 if none is known. While it runs,
    /// reading one file of /proc is enough.
    running: AtomicU32,
}

impl ProcessGroup {
    /// Names a group by its number.
    pub fn new(number: u32) -> Self {
        ProcessGroup { number, running: AtomicU32::new(0) }
    }

    /// Checks whether all processes of the group have ended. Returns false if that cannot be
    /// proved.
    ///
    /// A zombie has ended. It stays in its group until its parent reaps it, and process 1 of most
    /// containers reaps nothing.
    pub fn has_ended(&self) -> bool {
        // For kill(), 0 and -1 mean other processes.
        let number = libc::pid_t::try_from(self.number).ok().filter(|number| *number > 1);
        let Some(number) = number else { return false };
        is_absent(-number) || (!self.is_known_to_run() && self.has_only_zombies())
    }

    fn is_known_to_run(&self) -> bool {
        let pid = self.running.load(Ordering::Relaxed);
        let is_running =
            |stat: Stat| stat.group == self.number && stat.liveness(pid) == Liveness::Alive;
        pid != 0 && stat(pid).is_ok_and(is_running)
    }

    /// Reads all processes, twice. A process that the first pass missed was started during the
    /// pass, under a number that the pass was already beyond: numbers had started again from below.
    /// The second pass sees it, or must be missed in the same way again.
    fn has_only_zombies(&self) -> bool {
        let nothing_runs = || match self.find_running() {
            Ok(Some(pid)) => {
                self.running.store(pid, Ordering::Relaxed);
                false
            }
            Ok(None) => true,
            Err(_) => false,
        };
        is_own_proc() && shows_all() && nothing_runs() && nothing_runs()
    }

    /// Returns a process of the group that has not ended, if one is found. Fails if a process
    /// cannot be read.
    fn find_running(&self) -> io::Result<Option<u32>> {
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            match stat(pid) {
                Ok(stat) if stat.group != self.number || stat.liveness(pid) == Liveness::Dead => {}
                Ok(_) => return Ok(Some(pid)),
                // It was reaped meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

/// The user and the command of a process.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// The name of its user, or the number of one that has no name here.
    pub user: String,
    /// Its program and arguments.
    pub command: Vec<String>,
}

impl ProcessInfo {
    /// Looks up the process that has this number now, if the system tells.
    pub fn find(pid: u32) -> Option<Self> {
        let folder = format!("/proc/{pid}");
        let user = user_name(fs::metadata(&folder).ok()?.uid());
        let line = fs::read(format!("{folder}/cmdline")).ok()?;
        let words = line.strip_suffix(&[0]).unwrap_or(&line).split(|byte| *byte == 0);
        let command = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        Some(ProcessInfo { user, command })
    }
}

/// Returns the name of a user, or the number if it has no name.
fn user_name(uid: u32) -> String {
    let mut buffer = vec![0; 16 * 1024];
    // SAFETY: all zeros is a valid value of it, and the call fills it in.
    let mut entry: libc::passwd = unsafe { mem::zeroed() };
    let mut found = ptr::null_mut();
    // SAFETY: the structures are ours, and the buffer is as long as is said.
    let status =
        unsafe { libc::getpwuid_r(uid, &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found) };
    if status != 0 || found.is_null() {
        return uid.to_string();
    }
    // SAFETY: the name lies in the buffer and ends with a NUL.
    unsafe { CStr::from_ptr(entry.pw_name) }.to_string_lossy().into_owned()
}

/// Returns when a process started, in ticks since boot.
pub fn start_of(pid: u32) -> Option<u64> {
    Some(stat(pid).ok()?.start)
}

/// Returns the scope of this process, if /proc provides it and shows the processes of that scope.
pub(crate) fn scope() -> Option<PidScope> {
    if !is_own_proc() {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    // Read for this thread, because the main thread may have ended.
    let namespace = |kind: &str| fs::metadata(format!("/proc/thread-self/ns/{kind}"));
    let time_namespace = match namespace("time") {
        Ok(found) => found.ino(),
        // Kernels before 5.6 have none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(_) => return None,
    };
    let is_word = !boot.is_empty() && !boot.contains(char::is_whitespace);
    let pid_namespace = namespace("pid").ok()?.ino();
    is_word.then_some(PidScope { boot, pid_namespace, time_namespace })
}

/// Checks whether /proc shows the pid namespace of this process. A /proc that was mounted outside
/// of it shows other processes under the same numbers, and lists this one with its numbers in all
/// namespaces in between.
fn is_own_proc() -> bool {
    let Ok(status) = fs::read_to_string("/proc/thread-self/status") else { return false };
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// Checks whether /proc shows the processes of all users: it is not mounted with `hidepid`.
fn shows_all() -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/thread-self/mountinfo") else { return false };
    // The fifth word is the mount point. Of several mounts there, the last one is visible.
    let last = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    last.is_some_and(|line| !line.contains("hidepid="))
}

/// A process as its `stat` in /proc describes it.
struct Stat {
    /// The state of its main thread: field 3.
    state: char,
    /// Its process group: field 5.
    group: u32,
    /// When it started, in ticks since boot: field 22.
    start: u64,
}

impl Stat {
    fn liveness(&self, pid: u32) -> Liveness {
        match self.state {
            // The main thread has ended. Others may still run.
            'Z' | 'X' | 'x' => match has_other_threads(pid) {
                Some(true) => Liveness::Alive,
                Some(false) => Liveness::Dead,
                None => Liveness::Unknown,
            },
            _ => Liveness::Alive,
        }
    }
}

fn stat(pid: u32) -> io::Result<Stat> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_stat(stat: &str) -> Option<Stat> {
    // The second field is the program's name in parentheses, which may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some(Stat { state, group, start: fields.nth(16)?.parse().ok()? })
}

/// Checks whether a process has threads besides its main one. Returns `None` if the system does not
/// show that.
fn has_other_threads(pid: u32) -> Option<bool> {
    let main = pid.to_string();
    let mut is_main_there = false;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        match thread.ok()?.file_name() == *main {
            true => is_main_there = true,
            false => return Some(true),
        }
    }
    // A list without the main thread was read while the process was being removed.
    is_main_there.then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_mean_other_processes_prove_nothing() {
        for pid in [0, u32::MAX, i32::MAX as u32 + 1] {
            assert_eq!(liveness_of(pid, 1), Liveness::Unknown, "{pid}");
            assert!(!ProcessGroup::new(pid).has_ended(), "{pid}");
        }
        assert!(!ProcessGroup::new(1).has_ended(), "-1 would mean all processes");
    }
}
