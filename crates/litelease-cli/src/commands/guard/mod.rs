//! `litelease guard`: tables that refuse old owners.

mod add;
mod list;
mod remove;

subcommands! {
    /// Make tables refuse writes of old owners
    Add in add,
    Remove in remove,
    List in list,
}
