//! `litelease generate completions`: for the shell's Tab key.

use crate::Common;
use crate::exit::{Result, code};
use crate::output::say_text;

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = "Example:
  litelease generate completions bash > ~/.local/share/bash-completion/completions/litelease")]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

pub(crate) fn execute(args: Args, _: &Common) -> Result<u8> {
    let mut command = crate::command_line();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "litelease", &mut script);
    say_text(&String::from_utf8_lossy(&script))?;
    Ok(code::OK)
}
