//! The subcommands: one file each, with its arguments and what it does.

mod break_lease;
mod claim;
mod completions;
mod demo;
mod doctor;
mod grant;
mod man;
mod purge;
mod release;
mod renew;
mod run;
mod status;
mod transfer;
mod wait;
mod watch;
mod who;

use crate::Common;
use crate::exit::Result;

/// Declares a subcommand per module, in the order of the help.
macro_rules! commands {
    ($($name:ident in $module:ident,)*) => {
        #[derive(clap::Subcommand)]
        pub(crate) enum Command {
            $($name($module::Args),)*
        }

        impl Command {
            /// Does it, and answers the exit code.
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
    Status in status,
    Who in who,
    Wait in wait,
    Watch in watch,
    Claim in claim,
    Renew in renew,
    Release in release,
    Transfer in transfer,
    Break in break_lease,
    Purge in purge,
    Doctor in doctor,
    Demo in demo,
    Completions in completions,
    Man in man,
}

/// A name on the command line.
fn name(text: &str) -> std::result::Result<String, String> {
    match text {
        "" => Err("a name must not be empty".into()),
        name => Ok(name.into()),
    }
}
