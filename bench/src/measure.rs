//! Counting what a workload does, as the difference of two loop lengths.

use std::path::Path;
use std::process::{Command, Output};

use crate::Result;

/// How many rounds the shorter and the longer loop have.
const ROUNDS: [u32; 2] = [100, 1_100];

/// Instructions in user space, per round.
pub(crate) fn instructions(workload: &str) -> Result<f64> {
    per_round(workload, |run, folder| {
        let mut tool = Command::new("valgrind");
        tool.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        let output = finish(tool.args(run).current_dir(folder))?;
        // "==12345== Collected : 1234567"
        number_after(&output, "Collected :")
    })
}

/// Calls of the system calls in `which` (all of them if it is empty), per round.
pub(crate) fn system_calls(workload: &str, which: &[&str]) -> Result<f64> {
    per_round(workload, |run, folder| {
        let mut tool = Command::new("strace");
        tool.args(["-f", "-c", "-U", "calls,name"]);
        let output = finish(tool.args(run).current_dir(folder))?;
        Ok(counts(&output)
            .filter(|(_, name)| which.is_empty() || which.contains(name))
            .map(|(calls, _)| calls)
            .sum())
    })
}

/// Whether the tools are there, and if not, what to do.
pub(crate) fn check_tools() -> Result<()> {
    for tool in ["valgrind", "strace"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(format!("{tool} is missing: install it with your package manager").into());
        }
    }
    Ok(())
}

fn per_round(workload: &str, count: impl Fn(&[String], &Path) -> Result<f64>) -> Result<f64> {
    let me = std::env::current_exe()?.display().to_string();
    let mut counts = [0.0; 2];
    for (count_of, rounds) in counts.iter_mut().zip(ROUNDS) {
        // A fresh file each time: the longer loop must not find what the shorter one left.
        let folder = tempfile::tempdir()?;
        let path = folder.path().display().to_string();
        let run = [me.clone(), "run".into(), workload.into(), rounds.to_string(), path];
        *count_of = count(&run, folder.path())?;
    }
    Ok((counts[1] - counts[0]) / f64::from(ROUNDS[1] - ROUNDS[0]))
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
