//! `litelease generate man`: the manual page.

use clap_mangen::Man;

use crate::Common;
use crate::exit::{Result, code};
use crate::output::say_text;

/// Print the manual page, of litelease or of one of its commands
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease generate man run | man -l -")]
pub(crate) struct Args {
    /// The command, such as `run` or `queue send`
    command: Vec<String>,
}

pub(crate) fn execute(args: Args, _: &Common) -> Result<u8> {
    let mut line = crate::command_line();
    line.build();
    let page = args.command.iter().try_fold(line, |page, name| {
        page.find_subcommand(name).cloned().ok_or_else(|| {
            crate::exit::Failure::usage(format!("there is no command {name}: see litelease --help"))
        })
    })?;
    let mut text = Vec::new();
    let version = concat!("litelease ", env!("CARGO_PKG_VERSION"));
    Man::new(page).source(version).manual("Litelease").render(&mut text)?;
    say_text(&String::from_utf8_lossy(&text))?;
    Ok(code::OK)
}
