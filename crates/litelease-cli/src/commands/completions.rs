//! `litelease completions`: for the shell's Tab key.

use crate::Common;
use crate::exit::{Result, code};

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease completions bash > ~/.local/share/bash-completion/completions/litelease")]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(crate) fn execute(args: Args, _: &Common) -> Result<u8> {
    let mut command = crate::command_line();
    clap_complete::generate(args.shell, &mut command, "litelease", &mut std::io::stdout());
    Ok(code::OK)
}
