//! `litelease hold`: a lease beside a process, for a program in any language.

mod lines;
mod session;

use std::io::IsTerminal;
use std::time::Duration;

use litelease::{Cancel, HoldError};
use litelease_sys::children;

use super::nesting;
use crate::Common;
use crate::duration::{parse, parse_positive};
use crate::exit::Result;
use crate::output::{complain, printable};
use crate::target::{HoldRequest, Target};

/// Hold a lease beside a program in any language, until its pipe closes
///
/// Start it as a child process with pipes for its input and output. It prints `granted TOKEN` when
/// it has the name and renews the lease by itself. It releases the name when its standard input
/// closes, which also happens when your program dies, or at the line `release`, SIGTERM or SIGINT.
///
/// It prints `requested` when a successor asks for the name, and `lost REASON` when the lease is
/// lost: then stop the work. The end of its output without `lost` means that it no longer holds the
/// name either.
///
/// Lines that it understands once the name is granted:
///   release     release the name and exit
///   check       print `trusted MILLISECONDS`: the lease is safe for so long after you asked
///   progress    note progress, for --progress-within, and print `ok`
///   hand-over   give the lease to the owner that requests it, print `handed-over TOKEN` and exit;
///               on a file only
///
/// With standard input closed or from /dev/null it ends at once and holds nothing.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "Examples:
  litelease hold nightly                 at a terminal: until Ctrl-D or Ctrl-C
  litelease hold -w 10s nightly          exit code 1: another owner still has it
  litelease hold --slots 3 importers     prints granted TOKEN POSITION
  litelease hold --json --server https://lease.example deploy

Programs for Node, Go, Ruby, Java, PHP and the shell: docs/holding-from-any-language.md

Exit codes: 0 released, or told to end while waiting; 1 another owner has the name; 64 usage;
69 the file or the server is broken or in the way; 74 nothing reads its output; 75 the lease was lost.")]
pub(crate) struct Args {
    /// The name to hold
    #[arg(value_parser = super::name)]
    name: String,
    /// Do not wait for the name
    #[arg(short = 'n', long)]
    nonblock: bool,
    /// Wait at most this long [default: for ever]
    #[arg(short, long, value_name = "TIME", value_parser = parse, conflicts_with = "nonblock")]
    wait: Option<Duration>,
    /// How long the name stays taken after a crash of this machine; renewed three times in this
    /// time
    #[arg(long, default_value = "30s", value_parser = parse_positive)]
    ttl: Duration,
    /// Take one of so many slots under this name, instead of the name itself
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    #[arg(conflicts_with = "value")]
    slots: Option<u32>,
    /// A value for everybody to read while the lease is held, such as an address
    #[arg(long)]
    value: Option<String>,
    /// Renew the lease only while lines `progress` come within this time
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    progress_within: Option<Duration>,
    /// Hold the lease for this long at the most
    #[arg(long, value_name = "TIME", value_parser = parse_positive)]
    max_time: Option<Duration>,
}

pub(crate) fn execute(args: Args, common: &Common) -> Result<u8> {
    // Checked before the file is made.
    if args.ttl <= Duration::from_millis(100) {
        return Err(HoldError::TtlTooShort(args.ttl).into());
    }
    let Args { name, nonblock, wait, ttl, slots, value, progress_within, max_time } = args;
    let wait = if nonblock { Duration::ZERO } else { wait.unwrap_or(Duration::MAX) };
    // The work is done by the process that started this one. If only this one is killed, the name
    // must not go to a successor while that process may still work.
    let group = children::parents_group();
    let cancel = Cancel::default();
    let wanted = HoldRequest {
        tick: None,
        name,
        ttl,
        wait,
        group,
        value,
        progress_within,
        max_time,
        slots,
        cancel,
    };
    let place = Target::open(common)?;
    if wanted.slots.is_none() {
        nesting::check(&place, &wanted.name)?;
    }
    if std::io::stdin().is_terminal() && !common.quiet && !common.json {
        complain(&format!("litelease: Ctrl-D or Ctrl-C releases {}", printable(&wanted.name)));
    }
    session::run(wanted, common, move |wanted| place.hold(wanted))
}
