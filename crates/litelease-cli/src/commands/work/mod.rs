//! `litelease work`: a command for each item of a queue.

mod command;
mod progress_line;
mod session;

use std::time::Duration;

use litelease::HoldError;

use super::command_line::CommandLine;
use super::run::{check_grace, killer};
use crate::Common;
use crate::duration::{parse, parse_positive};
use crate::exit::Result;
use crate::output::printable;

/// Run a command for each item of a queue, at least once
///
/// Waits for items, and runs the command for each in a process group of its own, with the body on
/// its standard input. While the command runs, the delivery is extended. When the command and
/// everything it started in its group have ended, exit code 0 acknowledges the item. With any other
/// the item is given back: it is hidden for a while, twice as long after each further attempt, and
/// dead after the last one that its queue allows.
///
/// An item is delivered at least once: if litelease work is killed, or stopped for longer than the
/// visibility, another worker gets the item, although the command may have done its work. If the
/// delivery cannot be extended, the group is ended before another worker can get the item: SIGTERM,
/// and after the kill grace SIGKILL. If litelease work is killed, the group is killed, too. While
/// it is stopped it ends nothing; when it goes on, it ends the group, and the receipt is refused.
///
/// SIGTERM, SIGINT, SIGHUP and SIGQUIT drain: it receives nothing more, and ends when the commands
/// under way have ended. A second signal ends those, too, and gives their items back.
///
/// Sets LITELEASE_QUEUE, LITELEASE_ITEM_ID, LITELEASE_ITEM_ATTEMPT, LITELEASE_ITEM_TOKEN,
/// LITELEASE_ITEM_RECEIPT and LITELEASE_DB in the command's environment; on a server
/// LITELEASE_SERVER instead of LITELEASE_DB. In a file, a command that acknowledges the receipt
/// itself, in the transaction that writes its effect, has that effect once.
#[derive(clap::Args)]
#[command(override_usage = "litelease work [OPTIONS] <QUEUE> [--] <COMMAND>...")]
#[command(after_help = "Examples:
  litelease work mail -- sendmail -t
  litelease work -j 4 --bury-on 65 thumbnails -- make-thumbnail.sh
  litelease work --drain mail -- sendmail -t       until the queue is empty, for cron

Exit codes: 0 drained; with --once the command's own (128 + signal if a signal ended it), 1 if there was no item,
75 if the item was lost; 64 usage; 69 the file is broken or in the way, or the server is not there or refuses; 126 the
command cannot be run; 127 it was not found.")]
pub(crate) struct Args {
    /// The queue
    #[arg(value_parser = super::name)]
    queue: String,
    /// Run up to so many commands at once
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    jobs: usize,
    /// How long an item stays hidden if this process dies; extended three times in this time
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_positive)]
    visibility: Duration,
    /// End after one item, which it waits for
    #[arg(long)]
    once: bool,
    /// Do not wait for items: end when none is visible
    #[arg(long)]
    drain: bool,
    /// Bury the item if the command ends with this exit code; may be repeated
    #[arg(long, value_name = "CODE")]
    bury_on: Vec<u8>,
    /// How long an item is hidden after its first failure
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse)]
    backoff: Duration,
    /// The longest time for which an item is hidden after a failure
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse)]
    max_backoff: Duration,
    /// Time between SIGTERM and SIGKILL when the item is lost [default: 5s, at most a quarter of
    /// the visibility]
    #[arg(long, value_name = "TIME", value_parser = parse)]
    kill_grace: Option<Duration>,
    #[command(flatten)]
    command: CommandLine,
}

impl Args {
    fn kill_grace(&self) -> Duration {
        self.kill_grace.unwrap_or_else(|| killer::default_grace(self.visibility))
    }
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    // Found out before the file is made.
    if args.visibility <= Duration::from_millis(100) {
        let text = "the visibility is too short to be extended: give more than 100 ms";
        return Err(HoldError::InvalidWorker(text).into());
    }
    check_grace("visibility", args.visibility, args.kill_grace())?;
    args.command.check(&format!("work {}", printable(&args.queue)))?;
    session::run(args, common)
}
