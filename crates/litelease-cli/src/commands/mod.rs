//! The subcommands: one file each, with its arguments and what it does.

mod access;
mod borrow;
mod break_lease;
mod claim;
mod command_line;
mod completions;
mod credential;
mod demo;
mod doctor;
mod ensure;
mod grant;
mod guard;
mod guards;
mod hold;
mod man;
mod move_file;
mod nesting;
mod progress;
mod purge;
mod queue;
mod release;
mod renew;
mod request;
mod restore_fence;
mod run;
mod serve;
mod shards;
mod status;
mod take_over;
mod transfer;
mod unguard;
mod wait;
mod watch;
mod who;
mod work;
mod write;
mod writer;

use std::io::{BufRead, IsTerminal};

use litelease::Identity;

use crate::Common;
use crate::exit::{Failure, Result, code};
use crate::output::complain;
use crate::stream::write_error;

/// Declares a subcommand per module, in the order of the help.
macro_rules! commands {
    ($($name:ident in $module:ident,)*) => {
        #[derive(clap::Subcommand)]
        pub(crate) enum Command {
            $($name($module::Args),)*
        }

        impl Command {
            /// Runs the subcommand, and returns the exit code.
            pub(crate) fn execute(self, common: &Common) -> Result<u8> {
                match self {
                    $(Command::$name(args) => $module::execute(args, common),)*
                }
            }
        }
    };
}

commands! {
    Run in run,
    Hold in hold,
    Borrow in borrow,
    Serve in serve,
    Access in access,
    Status in status,
    Who in who,
    Wait in wait,
    Watch in watch,
    Claim in claim,
    Ensure in ensure,
    Renew in renew,
    Release in release,
    Transfer in transfer,
    Progress in progress,
    Shards in shards,
    Request in request,
    TakeOver in take_over,
    Credential in credential,
    Break in break_lease,
    Purge in purge,
    Queue in queue,
    Work in work,
    Guard in guard,
    Unguard in unguard,
    Guards in guards,
    RestoreFence in restore_fence,
    Move in move_file,
    Write in write,
    Writer in writer,
    Doctor in doctor,
    Demo in demo,
    Completions in completions,
    Man in man,
}

/// Asks for confirmation at the terminal. Without a terminal, `--yes` is required.
fn is_sure(question: &str, what: &str) -> Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        let text = format!("there is no terminal to confirm this at: add --yes to {what}");
        return Err(Failure::usage(text));
    }
    write_error(&format!("{question} [y/N] "));
    let mut said = String::new();
    input.lock().read_line(&mut said)?;
    Ok(matches!(said.trim(), "y" | "Y" | "yes"))
}

/// Reports that the user answered no.
fn nothing_was_done() -> u8 {
    complain("litelease: nothing was done");
    code::NO
}

/// An owner on the command line. A text that `hold` or `run` made is refused: a lease under it
/// would be taken over when their process has ended.
fn owner(text: &str) -> std::result::Result<String, String> {
    match Identity::parse(text).is_some_and(|who| who.is_holder()) {
        true => Err("owner texts of this form are made by hold and run; choose another".into()),
        false => Ok(text.into()),
    }
}

/// An owner that must be named.
fn new_owner(text: &str) -> std::result::Result<String, String> {
    name(text).and_then(|text| owner(&text))
}

/// A name on the command line.
fn name(text: &str) -> std::result::Result<String, String> {
    match text {
        "" => Err("a name must not be empty".into()),
        name => Ok(name.into()),
    }
}
