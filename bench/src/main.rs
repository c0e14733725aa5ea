//! What Litelease costs, next to the bare SQLite statement and to others.
//!
//! In falling order of trust: counts (instructions by callgrind and system calls by strace, each as
//! the difference of two loop lengths, so that starting up does not count and the machine's mood
//! does not either), times on a disk whose every sync takes a millisecond, and processor time as
//! ratios of rounds that take turns. The other commands are what these start.

mod counted;
mod document;
mod figure;
mod growth;
mod hold;
mod measure;
mod peers;
mod plot;
mod progress;
mod python;
mod queue;
mod quick;
mod results;
mod rows;
mod run;
mod scratch;
mod serve;
mod table;
mod workload;
mod writers;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str =
    "usage: litelease-bench all [save] [ROW...]     measure all rows, or some of them
       litelease-bench quick [save]            counts only, compared with bench/counts.json
       litelease-bench draw                    draw docs/performance anew";

/// Anything that can go wrong here ends the run with its message.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    measure::heed_quit();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["all", "save", rows @ ..] => run::run(rows, true),
        ["all", rows @ ..] => run::run(rows, false),
        ["quick"] => quick::run(false),
        ["quick", "save"] => quick::run(true),
        ["draw"] => document::redraw().map(|()| ExitCode::SUCCESS),
        words => work(words).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("litelease-bench: {error}");
        ExitCode::from(2)
    })
}

/// What the measurements start as processes of their own.
fn work(words: &[&str]) -> Result<()> {
    match words {
        ["run", workload, rounds, folder] => {
            workload::run(workload, rounds.parse()?, Path::new(folder))
        }
        ["wait", work, file] => hold::worker(work, Path::new(file)),
        ["drive", address, seconds] => serve::drive(address, seconds),
        ["drive", address, seconds, key_file] => {
            serve::named::drive_clients(address, seconds, Path::new(key_file))
        }
        ["hold", url] => serve::engines::held::hold(url),
        ["queue", method, target] => serve::queue::work(method, target),
        ["write", method, file] => writers::write(method, Path::new(file)),
        _ => Err(USAGE.into()),
    }
}
