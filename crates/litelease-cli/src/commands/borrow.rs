//! `litelease borrow`: a command with a slot of a pool that is known by its URL.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use litelease_client::{Error, HoldOptions, Pool};

use super::command_line::CommandLine;
use super::run::session::{self, Task};
use super::run::{check_grace, killer};
use crate::Common;
use crate::duration::{parse, parse_positive};
use crate::exit::{Failure, Result, code};
use crate::target::{failure, lent};

/// Run a command with a slot of a pool on a server
///
/// Borrows a slot, runs the command as `litelease run` does, keeps the slot alive, and returns it
/// when the command has ended. The URL of the pool, http://HOST:PORT/l/UUID, is its secret: other
/// users see the arguments of a process, so the URL is taken from $LITELEASE_POOL or from a file.
///
/// Sets LITELEASE_SLOT and LITELEASE_TOKEN in the command's environment.
#[derive(clap::Args)]
#[command(override_usage = "litelease borrow [OPTIONS] [--] <COMMAND>...")]
#[command(after_help = "Examples:
  LITELEASE_POOL=$(cat pool.url) litelease borrow -- import.py
  litelease borrow --pool-file pool.url -n -- import.py    exit code 1: no slot is free")]
pub(crate) struct Args {
    /// A file with the URL of the pool [default: the URL is in $LITELEASE_POOL]
    #[arg(long, value_name = "FILE")]
    pool_file: Option<PathBuf>,
    /// Do not wait for a slot
    #[arg(short = 'n', long)]
    nonblock: bool,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse, conflicts_with = "nonblock")]
    wait: Option<Duration>,
    /// Exit code if no slot is free
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = code::NO)]
    conflict_exit_code: u8,
    /// How long the slot stays taken if this process dies; renewed three times in this time
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Time between SIGTERM and SIGKILL when the slot is lost [default: 5s, at most a quarter of
    /// the ttl]
    #[arg(long, value_name = "TIME", value_parser = parse)]
    kill_grace: Option<Duration>,
    /// A shell command to run when the slot is lost, with LITELEASE_LOST in its environment, too
    #[arg(long, value_name = "COMMAND")]
    on_lost: Option<String>,
    /// A note for operators: the borrower, and why
    #[arg(long, default_value = "litelease borrow")]
    note: String,
    #[command(flatten)]
    command: CommandLine,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    let grace = args.kill_grace.unwrap_or_else(|| killer::default_grace(args.ttl));
    check_grace("ttl", args.ttl, grace)?;
    args.command.check_no_url()?;
    if args.note.len() > 200 {
        return Err(Failure::usage("a note has at most 200 bytes"));
    }
    let pool = Pool::open(&url(&args)?).map_err(failure)?;
    let wait = if args.nonblock { Duration::ZERO } else { args.wait.unwrap_or(Duration::MAX) };
    let (options, note) = (HoldOptions::new(args.ttl).wait(wait), args.note);
    let task = Task {
        taken_exit_code: code::OK,
        name: "the pool".into(),
        conflict_exit_code: args.conflict_exit_code,
        grace,
        on_lost: args.on_lost,
        command: args.command,
        retries: 0,
        variables: Vec::new(),
        has_progress_pipe: false,
    };
    let take = move |_, cancel| match pool.hold(options.cancel(cancel), &note) {
        Ok(slot) => Ok(lent("", slot)),
        Err(Error::NoneFree) => {
            Err(Failure::new(code::NO, "Busy", "all slots of the pool are taken"))
        }
        Err(error) => Err(failure(error)),
    };
    session::run(task, common, Box::new(take))
}

/// Returns the URL of the pool. No error shows it.
fn url(args: &Args) -> Result<String> {
    if let Some(path) = &args.pool_file {
        return fs::read_to_string(path).map_err(|error| {
            Failure::usage(format!("cannot read the URL in {}: {error}", path.display()))
        });
    }
    env::var("LITELEASE_POOL").map_err(|_| {
        Failure::usage(
            "the pool is missing: put its URL into $LITELEASE_POOL, or name a file with it: --pool-file",
        )
    })
}
