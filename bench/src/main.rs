//! What Litelease costs, next to the bare SQLite statement.
//!
//! `litelease-bench quick` prints a table of counts: instructions by callgrind and system calls by strace,
//! each as the difference of two loop lengths, so that starting up does not count and the machine's mood
//! does not either. `litelease-bench run WORKLOAD ROUNDS FOLDER` is what those tools run. `litelease-bench hold`
//! measures times: how soon waiters wake, what an idle one costs, what `litelease run` adds. `litelease-bench writers` lets
//! processes compete for one file, and `litelease-bench serve` compares the service with others; `litelease-bench drive`
//! is its clients alone, for a service under a profiler.

mod figure;
mod hold;
mod measure;
mod quick;
mod serve;
mod workload;
mod writers;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: litelease-bench quick
       litelease-bench hold
       litelease-bench writers [SECONDS]
       litelease-bench serve [SECONDS]
       litelease-bench drive ADDRESS SECONDS
       litelease-bench run WORKLOAD ROUNDS FOLDER";

/// Anything that can go wrong here ends the run with its message.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["quick"] => quick::run(),
        ["hold"] => hold::run(),
        ["worker", work, file] => hold::worker(work, Path::new(file)),
        ["writers"] => writers::run(8),
        ["writers", seconds] => seconds.parse().map_err(Into::into).and_then(writers::run),
        ["serve"] => serve::run(4),
        ["serve", seconds] => seconds.parse().map_err(Into::into).and_then(serve::run),
        ["drive", address, seconds] => serve::drive(address, seconds),
        ["front", redis] => serve::front(redis),
        ["write", method, seconds, file] => seconds
            .parse()
            .map_err(Into::into)
            .and_then(|seconds| writers::write(method, seconds, Path::new(file)))
            .map(|()| true),
        ["run", workload, rounds, folder] => run(workload, rounds, Path::new(folder)),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("litelease-bench: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(workload: &str, rounds: &str, folder: &Path) -> Result<bool> {
    workload::run(workload, rounds.parse()?, folder)?;
    Ok(true)
}
