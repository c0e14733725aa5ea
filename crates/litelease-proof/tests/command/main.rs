//! The command `litelease`: its subcommands, terminals and failing outputs.

mod cli;
mod credential;
mod hold_command;
mod hosts;
mod output;
mod run;
mod terminal;
mod ticks;
mod work;
mod writers;
