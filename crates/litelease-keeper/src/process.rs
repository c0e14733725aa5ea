//! What the system tells about a process: whether it is there, since when, and whose numbers these are.
//!
//! All of it is Linux. Elsewhere there is no scope, so no owner text names one, and nobody is found dead.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::identity::PidScope;

/// What is seen of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It is there, and at least one thread of it has not ended.
    Alive,
    /// It has ended: there is no such process, or it is another one, or all of its threads have ended.
    Ended,
    /// Nothing that would prove either.
    Nothing,
}

/// Looks whether the process of this number that started at `start` is there.
pub(crate) fn look_at(pid: u32, start: u64) -> Seen {
    let Some(number) = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0) else {
        return Seen::Nothing;
    };
    if is_nobody(number) {
        return Seen::Ended;
    }
    // It may be hidden, or somebody else's, or have ended just now: then there is nothing to read.
    match stat(pid) {
        Some((_, now)) if now != start => Seen::Ended,
        // The main thread has ended. Others may be at work.
        Some(('Z' | 'X' | 'x', _)) => match has_other_threads(pid) {
            Some(true) => Seen::Alive,
            Some(false) => Seen::Ended,
            None => Seen::Nothing,
        },
        Some(_) => Seen::Alive,
        None => Seen::Nothing,
    }
}

/// Whether nobody is in a process group any more, not even somebody who has ended and was not waited for.
pub(crate) fn is_group_gone(group: u32) -> bool {
    // 0 and -1 would mean other processes.
    libc::pid_t::try_from(group).is_ok_and(|group| group > 1 && is_nobody(-group))
}

/// When a process started, in ticks since boot.
pub(crate) fn start_of(pid: u32) -> Option<u64> {
    Some(stat(pid)?.1)
}

/// Returns the scope of this process, if /proc tells and shows the processes of that scope.
pub(crate) fn scope() -> Option<PidScope> {
    if !cfg!(target_os = "linux") || !is_own_proc() {
        return None;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    // Of this thread: the main one may have ended.
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

/// Whether /proc has the numbers of this process's own namespace. One that was mounted outside of it shows other
/// processes under the same numbers, and this one with the numbers of all namespaces in between.
fn is_own_proc() -> bool {
    let Ok(status) = fs::read_to_string("/proc/thread-self/status") else { return false };
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// Whether the system says that there is no such process, or no such group if the number is negative.
fn is_nobody(number: libc::pid_t) -> bool {
    // SAFETY: no pointers are involved; signal 0 only asks.
    let asked = unsafe { libc::kill(number, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// The state of a process's main thread, and when it started: the 3rd and the 22nd field of its `stat`.
fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses, with anything in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// Whether a process has threads besides its main one, if the system tells.
fn has_other_threads(pid: u32) -> Option<bool> {
    let main = pid.to_string();
    let mut is_main_there = false;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        match thread.ok()?.file_name() == *main {
            true => is_main_there = true,
            false => return Some(true),
        }
    }
    // A list without it was made while everything was taken down.
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
