//! The command `litelease`: its subcommands, terminals and failing outputs.

mod cli;
mod output;
mod run;
mod terminal;
mod work;
