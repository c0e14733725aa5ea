//! The command `litelease`: run a command under a lease, and see, wait for, break and check leases.
//!
//! One file per subcommand in `commands/`; each is its arguments and what it does. Exit codes are in `exit.rs`.

mod commands;
mod database;
mod duration;
mod exit;
mod output;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};

use crate::commands::Command;
use crate::exit::{Failure, code};

/// Run a command under a lease, and see, wait for, break and check leases in a SQLite file.
#[derive(Parser)]
#[command(name = "litelease", version, arg_required_else_help = false, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand understands.
#[derive(clap::Args, Clone)]
pub(crate) struct Common {
    /// The file with the leases [default: one of your own, see `litelease doctor`]
    #[arg(long, global = true, env = "LITELEASE_DB", value_name = "FILE", hide_env_values = true)]
    db: Option<PathBuf>,
    /// Answer as JSON, errors too
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  litelease run nightly -- backup.sh      run it, but only one at a time
  litelease run -n nightly -- backup.sh   or not at all, if it is already running
  litelease status                        who has what, for how long
  litelease demo                          why a token is better than a lock, in 20 seconds";

fn main() -> ExitCode {
    restore_sigpipe();
    let wants_json = std::env::args_os().any(|word| word == "--json");
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => return tell_usage(&error, wants_json),
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => return tell_usage(&error, wants_json),
    };
    match cli.command.execute(&cli.common) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            let failure = failure.naming_file(&cli.common);
            failure.tell(cli.common.json);
            ExitCode::from(failure.code)
        }
    }
}

/// The command line as clap sees it, for completions and manual pages.
pub(crate) fn command_line() -> clap::Command {
    Cli::command()
}

/// Help and version are answers; anything else is one line and the way out.
fn tell_usage(error: &clap::Error, wants_json: bool) -> ExitCode {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if is_answer {
        // Nobody is there to read it if this fails.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let failure = Failure::usage("a command is missing: see litelease --help");
        failure.tell(wants_json);
        return ExitCode::from(code::USAGE);
    }
    let text = error.render().to_string();
    let said: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let said = said.join(" ").trim_start_matches("error: ").trim_end_matches('.').to_owned();
    let subcommand = std::env::args()
        .nth(1)
        .filter(|word| command_line().get_subcommands().any(|command| command.get_name() == word));
    let help =
        subcommand.map_or("litelease --help".into(), |word| format!("litelease {word} --help"));
    Failure::usage(format!("{said}: see {help}")).tell(wants_json);
    ExitCode::from(code::USAGE)
}

/// Rust ignores SIGPIPE, and then a closed pipe would be an error to tell nobody about.
fn restore_sigpipe() {
    // SAFETY: no other thread runs yet, and the default action needs no function of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}
