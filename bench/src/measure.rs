//! Counting what a workload does, as the difference of two loop lengths.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::thread;
use std::time::Duration;

use crate::Result;

/// How many rounds the shorter and the longer loop have.
const ROUNDS: [u32; 2] = [100, 1_100];

/// What has been counted in this run: the bare statement is compared with more than once.
#[derive(Default)]
pub(crate) struct Counts(RefCell<HashMap<String, f64>>);

impl Counts {
    /// Instructions in user space, per round.
    pub(crate) fn instructions(&self, workload: &str) -> Result<f64> {
        self.once(workload.to_owned(), || {
            per_round(workload, |run, folder| {
                let mut tool = Command::new("valgrind");
                tool.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
                let output = finish(tool.args(run).current_dir(folder))?;
                // "==12345== Collected : 1234567"
                number_after(&output, "Collected :")
            })
        })
    }

    /// Calls of the system calls in `which` (all of them if it is empty), per round.
    pub(crate) fn system_calls(&self, workload: &str, which: &[&str]) -> Result<f64> {
        self.once(format!("{workload} {which:?}"), || {
            per_round(workload, |run, folder| {
                let mut tool = Command::new("strace");
                tool.args(["-f", "-c", "-U", "calls,name"]);
                let output = finish(tool.args(run).current_dir(folder))?;
                Ok(counts(&output)
                    .filter(|(_, name)| which.is_empty() || which.contains(name))
                    .map(|(calls, _)| calls)
                    .sum())
            })
        })
    }

    fn once(&self, key: String, count: impl FnOnce() -> Result<f64>) -> Result<f64> {
        if let Some(known) = self.0.borrow().get(&key) {
            return Ok(*known);
        }
        let counted = count()?;
        self.0.borrow_mut().insert(key, counted);
        Ok(counted)
    }
}

/// Whether a tool is there, and if not, what to do.
pub(crate) fn need(tool: &str) -> Result<()> {
    match Command::new(tool).arg("--version").output() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("{tool} is missing: install it with your package manager").into()),
    }
}

/// The processor time that this thread has used.
pub(crate) fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is given a place to write to. It cannot fail with a clock that every Linux has.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// The processor time that all threads of a process have used which still run.
pub(crate) fn cpu_of(process: &Child) -> Result<Duration> {
    let mut nanos = 0;
    for task in fs::read_dir(format!("/proc/{}/task", process.id()))? {
        let stat = fs::read_to_string(task?.path().join("schedstat"))?;
        nanos += stat.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(Duration::from_nanos(nanos))
}

/// Lets this process and its children be ended by SIGQUIT. A shell without job control starts `make
/// bench &` with that signal ignored, servers that set no handler of their own inherit it, and
/// waiting for their end would last for ever.
pub(crate) fn heed_quit() {
    // SAFETY: no pointers are involved, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGQUIT, libc::SIG_DFL) };
}

/// Lets this process and its children open as many files as the system allows: each waiter is one.
pub(crate) fn open_many_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both are given a place of the right type. If they fail, the limit stays, and opening
    // a file tells.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// The two loops at once: counts do not mind company.
fn per_round(
    workload: &str,
    count: impl Fn(&[String], &Path) -> Result<f64> + Sync,
) -> Result<f64> {
    let me = std::env::current_exe()?.display().to_string();
    let count_of = |rounds: u32| {
        // A fresh file each time: the longer loop must not find what the shorter one left.
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().display().to_string();
        let run = [me.clone(), "run".into(), workload.into(), rounds.to_string(), path];
        count(&run, folder.path()).map_err(|error| error.to_string())
    };
    let [short, long] = thread::scope(|scope| {
        let loops = ROUNDS.map(|rounds| scope.spawn(move || count_of(rounds)));
        loops.map(|counted| counted.join().map_err(|_| "counting ended early".to_owned()).flatten())
    });
    Ok((long? - short?) / f64::from(ROUNDS[1] - ROUNDS[0]))
}

fn finish(command: &mut Command) -> Result<String> {
    let Output { status, stderr, .. } = command.output()?;
    let text = String::from_utf8_lossy(&stderr).into_owned();
    if status.success() { Ok(text) } else { Err(format!("{command:?} failed: {text}").into()) }
}

fn number_after(text: &str, mark: &str) -> Result<f64> {
    let rest = text.split_once(mark).ok_or_else(|| format!("no {mark:?} in {text:?}"))?.1;
    let word = rest.split_whitespace().next().unwrap_or_default();
    Ok(word.parse()?)
}

/// The lines "1234 fdatasync" of strace's summary.
fn counts(text: &str) -> impl Iterator<Item = (f64, &str)> {
    text.lines().filter_map(|line| {
        let (calls, name) = line.trim().split_once(char::is_whitespace)?;
        let name = name.trim();
        let calls = calls.parse().ok()?;
        (name != "total").then_some((calls, name))
    })
}
