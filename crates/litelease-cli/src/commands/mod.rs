//! The subcommands: one file each, with its arguments and its work.

/// Declares a subcommand per module, in the order of the help.
macro_rules! commands {
    ($($name:ident in $module:ident,)*) => {
        #[derive(clap::Subcommand)]
        pub(crate) enum Command {
            $($name($module::Args),)*
        }

        impl Command {
            /// Runs the subcommand, and returns the exit code.
            pub(crate) fn execute(self, common: &$crate::Common) -> $crate::exit::Result<u8> {
                match self {
                    $(Command::$name(args) => $module::execute(args, common),)*
                }
            }
        }
    };
}

/// Declares a subcommand that has subcommands of its own, one per module. The documentation is its
/// line in the help.
macro_rules! subcommands {
    ($(#[$help:meta])* $($name:ident in $module:ident,)*) => {
        $(#[$help])*
        #[derive(clap::Args)]
        pub(crate) struct Args {
            #[command(subcommand)]
            command: Command,
        }

        commands! { $($name in $module,)* }

        pub(crate) fn execute(args: Args, common: &$crate::Common) -> $crate::exit::Result<u8> {
            args.command.execute(common)
        }
    };
}

mod access;
mod borrow;
mod break_lease;
mod claim;
mod command_line;
mod credential;
mod demo;
mod doctor;
mod every;
mod generate;
mod grant;
mod guard;
mod history;
mod hold;
mod lease;
mod move_file;
mod nesting;
mod pools;
mod purge;
mod queue;
mod release;
mod renew;
mod restore_fence;
mod run;
mod serve;
mod status;
mod ticks;
mod top;
mod wait;
mod watch;
mod who;
mod work;
mod write;

use std::io::{BufRead, IsTerminal};

use litelease::Identity;

use crate::exit::{Failure, Result, code};
use crate::output::complain;
use crate::stream::write_error;

commands! {
    Run in run,
    Every in every,
    Hold in hold,
    Borrow in borrow,
    Serve in serve,
    Access in access,
    Top in top,
    Status in status,
    Ticks in ticks,
    History in history,
    Who in who,
    Wait in wait,
    Watch in watch,
    Pools in pools,
    Claim in claim,
    Renew in renew,
    Release in release,
    Lease in lease,
    Credential in credential,
    Break in break_lease,
    Purge in purge,
    Queue in queue,
    Work in work,
    Guard in guard,
    RestoreFence in restore_fence,
    Move in move_file,
    Write in write,
    Doctor in doctor,
    Demo in demo,
    Generate in generate,
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

/// Parses an owner. Refuses a text that `hold` or `run` made: a lease under it would be taken over
/// when their process has ended.
fn owner(text: &str) -> std::result::Result<String, String> {
    match Identity::parse(text).is_some_and(|who| who.is_holder()) {
        true => Err("owner texts of this form are made by hold and run; choose another".into()),
        false => Ok(text.into()),
    }
}

/// Parses an owner that must not be empty.
fn new_owner(text: &str) -> std::result::Result<String, String> {
    name(text).and_then(|text| owner(&text))
}

/// Parses a name.
fn name(text: &str) -> std::result::Result<String, String> {
    match text {
        "" => Err("a name must not be empty".into()),
        name => Ok(name.into()),
    }
}
