//! The command `litelease`: its subcommands, terminals and failing outputs.

mod cli;
mod credential;
mod output;
mod run;
mod terminal;
mod work;
