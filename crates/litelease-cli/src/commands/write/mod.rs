//! `litelease write`: a command under the write lock of a database.

mod status;

use std::time::Duration;

use litelease::{LockError, Waiting, WriteLock};
use litelease_sys::children::replace_process;

use crate::commands::command_line::CommandLine;
use crate::duration::{parse, parse_positive};
use crate::exit::{Failure, Result, code};
use crate::{Common, database};

/// Run a command while no other single writer writes to a database
///
/// Takes the lock that `SingleWriter` uses, on a file next to the database, and becomes the
/// command. The lock is freed when the command and whatever it started have ended. If the database
/// is not in WAL mode, a line says so.
#[derive(clap::Args)]
#[command(override_usage = "litelease write --db <FILE> [OPTIONS] [--] <COMMAND>...
       litelease write --db <FILE> --status")]
#[command(mut_arg("command", |command| command.required(false).required_unless_present("status")))]
#[command(after_help = "Examples:
  litelease write --db data.db -- sqlite3 data.db < changes.sql
  litelease write --db data.db -w 30s -- python3 import.py
  litelease write --db data.db --status    who holds the lock; exit code 1: it is free

Exit codes: the command's own; -E if the lock is not to be had; 64 usage; 69 the lock file cannot be used; 126 the
command cannot be run; 127 it was not found.")]
pub(crate) struct Args {
    /// Wait at most this long
    #[arg(short, long, value_name = "TIME", value_parser = parse, default_value = "500ms")]
    wait: Duration,
    /// Do not queue: try again after this pause at first, and then after ever longer ones
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    poll: Option<Duration>,
    /// The longest pause of --poll
    #[arg(long, value_name = "TIME", value_parser = parse_positive, default_value = "50ms")]
    longest_pause: Duration,
    /// Exit code if another process has the lock
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = code::NO)]
    conflict_exit_code: u8,
    /// Print which process holds the lock, and run nothing
    #[arg(long, conflicts_with = "command")]
    status: bool,
    #[command(flatten)]
    command: CommandLine,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    if args.status {
        return status::show(&lock_of(common)?, common);
    }
    args.command.check("write")?;
    let lock = lock_of(common)?;
    let waiting = match args.poll {
        Some(first) => Waiting::Polled { first, longest: args.longest_pause.max(first) },
        None => Waiting::Fair,
    };
    let mut held = match lock.acquire(args.wait, waiting) {
        Err(error @ LockError::Timeout { .. }) => {
            if common.json || !common.quiet {
                let failure = Failure::new(args.conflict_exit_code, "Timeout", error);
                failure.because_of(status::holder(&lock)).print(common.json);
            }
            return Ok(args.conflict_exit_code);
        }
        held => held?,
    };
    if let Some(failure) = database::not_wal(common)? {
        failure.print(common.json);
    }
    held.share_with_children()?;
    // From here on this process is the command, and holds the lock until it ends.
    let error = replace_process(&mut args.command.command());
    Err(args.command.not_started(&error))
}

/// Returns the lock of the database. It must be named: the user's own file of leases is not for
/// bulk writes.
fn lock_of(common: &Common) -> Result<WriteLock> {
    if common.db.as_ref().is_none_or(|path| path.as_os_str().is_empty()) {
        return Err(Failure::usage("the database is missing: name it with --db FILE"));
    }
    Ok(WriteLock::of_database(&database::path(common)?)?)
}
