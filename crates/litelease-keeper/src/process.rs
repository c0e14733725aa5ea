//! What the system reports about a process: whether it runs, since when, and in which scope.
//!
//! All of this is for Linux. On other systems there is no scope, so no owner text has one and no
//! process is found dead.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::identity::PidScope;

/// What the system reports about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is running: at least one of its threads has not ended.
    Alive,
    /// It has ended: there is no such process, or the number belongs to another one, or all
    /// threads have ended.
    Ended,
    /// Neither can be proved.
    Nothing,
}

/// Checks whether the process with this number that started at `start` is running.
pub(crate) fn look_at(pid: u32, start: u64) -> Seen {
    let Some(number) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return Seen::Nothing;
    };
    if is_nobody(number) {
        return Seen::Ended;
    }
    // Nothing can be read if it is hidden, belongs to another user, or has ended just now.
    match stat(pid) {
        Some((_, now)) if now != start => Seen::Ended,
        // The main thread has ended. Others may still run.
        Some(('Z' | 'X' | 'x', _)) => match has_other_threads(pid) {
            Some(true) => Seen::Alive,
            Some(false) => Seen::Ended,
            None => Seen::Nothing,
        },
        Some(_) => Seen::Alive,
        None => Seen::Nothing,
    }
}

/// Checks whether a process group is empty: not even a zombie is left in it.
pub(crate) fn is_group_gone(group: u32) -> bool {
    // For kill(), 0 and -1 mean other processes.
    libc::pid_t::try_from(group).is_ok_and(|group| group > 1 && is_nobody(-group))
}

/// Returns when a process started, in ticks since boot.
pub(crate) fn start_of(pid: u32) -> Option<u64> {
    Some(stat(pid)?.1)
}

/// Returns the scope of this process, if /proc provides it and shows the processes of that scope.
pub(crate) fn scope() -> Option<PidScope> {
    if !cfg!(target_os = "linux") || !is_own_proc() {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    // Of this thread, because the main thread may have ended.
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

/// Checks whether there is no such process, or no such group if the number is negative.
fn is_nobody(number: libc::pid_t) -> bool {
    // SAFETY: no pointers are involved, and signal 0 is not delivered.
    let asked = unsafe { libc::kill(number, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Returns the state of a process's main thread, and when it started: fields 3 and 22 of its
/// `stat`.
fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, which may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Checks whether a process has threads besides its main one. Returns `None` if the system cannot
/// say.
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
    fn numbers_that_mean_somebody_else_prove_nothing() {
        for pid in [0, u32::MAX, i32::MAX as u32 + 1] {
            assert_eq!(look_at(pid, 1), Seen::Nothing, "{pid}");
            assert!(!is_group_gone(pid), "{pid}");
        }
        assert!(!is_group_gone(1), "-1 would mean everybody");
    }
}
