//! The command that `run`, `work` and `write` start, after a `--` or without one.

use std::ffi::OsString;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::process::Command;

use crate::exit::{Failure, Result, code};
use crate::output::printable;

/// A command and its arguments.
#[derive(clap::Args)]
pub(super) struct CommandLine {
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl CommandLine {
    /// Refuses a `--` that is not where the command begins: what comes before it may be a slip.
    /// `before` is what comes before the command.
    pub(super) fn check(&self, before: &str) -> Result<()> {
        match place_of_dashes(&std::env::args_os().collect::<Vec<_>>(), self.command.len()) {
            Dashes::Before | Dashes::Nowhere => Ok(()),
            Dashes::BeforeTheName => {
                let verb = before.split(' ').next().unwrap_or_default();
                Err(Failure::usage(format!(
                    "a name is missing before the --: litelease {verb} NAME -- COMMAND"
                )))
            }
            Dashes::Inside => {
                let words = self.command.iter().map(|word| printable(&word.to_string_lossy()));
                let words = words.collect::<Vec<_>>().join(" ");
                Err(Failure::usage(format!(
                    "the -- is not in front of the command: write litelease {before} -- {words}"
                )))
            }
        }
    }

    /// Refuses a URL in the place of the command: other users could see it.
    pub(super) fn check_no_url(&self) -> Result<()> {
        let first = self.command[0].to_string_lossy();
        match first.starts_with("http://") || first.starts_with("https://") {
            true => Err(Failure::usage(
                "the URL of a pool is a secret, and other users can see arguments: put it into \
                 $LITELEASE_POOL, or name a file with it: --pool-file",
            )),
            false => Ok(()),
        }
    }

    /// Returns the command and its arguments.
    pub(super) fn words(&self) -> &[OsString] {
        &self.command
    }

    /// Returns the command, ready to be started.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        command
    }

    /// Returns why the command could not be started.
    pub(super) fn not_started(&self, error: &Error) -> Failure {
        let code = match error.kind() {
            ErrorKind::NotFound => code::NOT_FOUND,
            _ => code::NOT_RUNNABLE,
        };
        let command = Path::new(&self.command[0]).display();
        Failure::new(code, "Command", format!("cannot run {command}: {error}"))
    }
}

/// Where the first `--` of a command line is.
#[derive(Debug, PartialEq, Eq)]
enum Dashes {
    Before,
    BeforeTheName,
    Inside,
    Nowhere,
}

/// Finds it among all words of the command line, the last `length` of which are the command.
fn place_of_dashes(words: &[OsString], length: usize) -> Dashes {
    let (before, command) = words.split_at(words.len().saturating_sub(length));
    match before {
        [.., last] if last == "--" => Dashes::Before,
        // What comes after a `--` is no option, so this was taken for the name.
        [.., last, _] if last == "--" => Dashes::BeforeTheName,
        _ if command.iter().any(|word| word == "--") => Dashes::Inside,
        _ => Dashes::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_begins_where_nobody_can_be_mistaken() {
        let cases = [
            ("run x -- a b", 2, Dashes::Before),
            ("run x -- a -- b", 3, Dashes::Before),
            ("run x a b", 2, Dashes::Nowhere),
            ("run -- x a", 1, Dashes::BeforeTheName),
            ("run x a -- b", 3, Dashes::Inside),
        ];
        for (line, length, place) in cases {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert_eq!(place_of_dashes(&words, length), place, "{line}");
        }
    }
}
