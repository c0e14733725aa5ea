//! `litelease generate`: what shells and man(1) read.

mod completions;
mod man;

subcommands! {
    /// Print completions or manual pages
    Completions in completions,
    Man in man,
}
