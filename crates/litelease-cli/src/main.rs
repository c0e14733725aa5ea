//! The command `litelease`: run a command under a lease, and see, wait for, break and check leases.
//!
//! One file per subcommand in `commands/`; each is its arguments and what it does. Exit codes are
//! in `exit.rs`.

// They panic if the reader is gone; the functions of `output.rs` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod database;
mod duration;
mod engine_url;
mod exit;
mod output;
mod similar;
mod stream;
mod target;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::commands::Command;
use crate::exit::{Failure, code};
use crate::output::say_text;

/// Run a command under a lease, and see, wait for, break and check leases: in a SQLite file, on a
/// server, or on etcd or PostgreSQL.
#[derive(Parser)]
#[command(name = "litelease", version, arg_required_else_help = false, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// The options of every subcommand.
#[derive(clap::Args, Clone)]
pub(crate) struct Common {
    /// The file with the leases, or etcd://HOST:PORT or postgres://HOST/DATABASE for several
    /// machines [default: a file of your own, see `litelease doctor`]
    ///
    /// A password is read from the file $LITELEASE_PASSWORD_FILE, or stands in the URL in
    /// $LITELEASE_DB.
    #[arg(
        long,
        global = true,
        env = "LITELEASE_DB",
        value_name = "FILE|URL",
        hide_env_values = true
    )]
    db: Option<PathBuf>,
    /// True if `db` was given on the command line.
    #[arg(skip)]
    is_db_argument: bool,
    /// The URL of a server to use instead of a file: https://HOST or http://127.0.0.1:7070
    ///
    /// The access key is in the file $LITELEASE_ACCESS_FILE; on the machine of the server it is
    /// found by itself.
    #[arg(
        long,
        global = true,
        env = "LITELEASE_SERVER",
        value_name = "URL",
        hide_env_values = true
    )]
    server: Option<String>,
    /// Print answers and errors as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Print results and errors only: nothing while waiting, and nothing that the exit code says
    #[arg(short, long, global = true)]
    quiet: bool,
}

impl Common {
    /// Returns the URL of the server to use, if it is not a file.
    pub(crate) fn server(&self) -> exit::Result<Option<&str>> {
        match (&self.server, &self.db) {
            (Some(_), Some(_)) => Err(Failure::usage(
                "both a file and a server are given: use --db or --server, or one of $LITELEASE_DB and \
                 $LITELEASE_SERVER",
            )),
            (Some(url), None) if url.is_empty() => {
                Err(Failure::usage("--server (or $LITELEASE_SERVER) is empty: give it a URL"))
            }
            (server, _) => Ok(server.as_deref()),
        }
    }

    /// Lets a flag count more than a variable: `--db` hides `$LITELEASE_SERVER`, and `--server`
    /// hides `$LITELEASE_DB`.
    fn settle(&mut self, mut matches: &clap::ArgMatches) {
        while let Some((_, inner)) = matches.subcommand() {
            matches = inner;
        }
        let is_flag = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        self.is_db_argument = is_flag("db");
        match (is_flag("db"), is_flag("server")) {
            (true, false) => self.server = None,
            (false, true) => self.db = None,
            _ => {}
        }
    }
}

const EXAMPLES: &str = "Examples:
  litelease run nightly -- backup.sh      run it, but only one at a time
  litelease run -n nightly -- backup.sh   or not at all, if it is already running
  litelease run --slots 3 x -- job.sh     at most three at a time
  litelease status                        who has what, for how long
  litelease demo                          why a token is better than a lock, in 6 seconds";

fn main() -> ExitCode {
    // Words after a -- belong to the command that is run.
    let wants_json =
        std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return tell_usage(&error, wants_json),
    };
    let mut cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return tell_usage(&error, wants_json),
    };
    cli.common.settle(&matches);
    let done = cli.command.execute(&cli.common);
    litelease::close_keepers();
    match done {
        Ok(code) => ExitCode::from(code),
        Err(failure) => end(&failure.naming_file(&cli.common), cli.common.json),
    }
}

/// Reports a failure. If the reader of the pipe has left, ends quietly like other programs.
fn end(failure: &Failure, as_json: bool) -> ExitCode {
    if failure.is_broken_pipe() {
        litelease_sys::children::end_by_broken_pipe();
    }
    failure.print(as_json);
    ExitCode::from(failure.code)
}

/// Returns the command line as clap sees it, for completions and manual pages.
pub(crate) fn command_line() -> clap::Command {
    Cli::command()
}

/// Prints help and version as answers, and any other error in one line with a hint.
fn tell_usage(error: &clap::Error, wants_json: bool) -> ExitCode {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_answer {
        let told = say_text(&error.render().ansi().to_string());
        return told.map_or_else(|failure| end(&failure, wants_json), |()| ExitCode::SUCCESS);
    }
    let subcommand = subcommand();
    if let ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =
        error.kind()
    {
        Failure::usage(format!("a command is missing: see {subcommand} --help")).print(wants_json);
        return ExitCode::from(code::USAGE);
    }
    let text = error.render().to_string();
    let said: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let said = said.join(" ").trim_start_matches("error: ").trim_end_matches('.').to_owned();
    if error.kind() == ErrorKind::MissingRequiredArgument
        && let Some(word @ ("run" | "work" | "write" | "borrow")) =
            subcommand.strip_prefix("litelease ")
    {
        // What it is missing is best shown.
        let name = match word {
            "run" => " NAME",
            "work" => " QUEUE",
            "borrow" => "",
            _ => " --db FILE",
        };
        let text = format!("{said}: write litelease {word}{name} -- COMMAND");
        Failure::usage(text).print(wants_json);
        return ExitCode::from(code::USAGE);
    }
    Failure::usage(format!("{said}: see {subcommand} --help")).print(wants_json);
    ExitCode::from(code::USAGE)
}

/// Returns the command with its subcommands, as the user typed them: `litelease queue send`.
fn subcommand() -> String {
    let (mut command, mut typed) = (command_line(), String::from("litelease"));
    for word in std::env::args().skip(1).take_while(|word| word != "--") {
        if let Some(inner) = command.find_subcommand(&word) {
            (command, typed) = (inner.clone(), format!("{typed} {word}"));
        }
    }
    typed
}
