//! Asking for a name inside a `litelease run` of that name: it would wait for itself.

use std::env;

use crate::exit::{Failure, Result};
use crate::output::printable;
use crate::target::Target;

/// The owner texts of all `litelease run` around a command, one per line, the innermost last.
pub(super) const OWNERS: &str = "LITELEASE_OWNERS";

/// Refuses to wait for a name that a `litelease run` around this process has. Owner texts are
/// unique to one grant of one name in one file, so nothing else needs to be compared; one that is
/// over is in no row.
pub(super) fn check(place: &Target, name: &str) -> Result<()> {
    let Some(outer) = outer() else { return Ok(()) };
    match place.inspect(name)? {
        Some(current) if outer.lines().any(|owner| owner == current.owner) => {
            let (name, token) = (printable(name), current.token);
            Err(Failure::usage(format!(
                "{name} is held by the litelease run around this command (token {token}): it would wait for \
                 itself; take another name, or run the command without litelease"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the owners to hand on to a command that runs under `owner`.
pub(super) fn with(owner: &str) -> String {
    outer().map_or_else(|| owner.to_owned(), |outer| format!("{outer}\n{owner}"))
}

fn outer() -> Option<String> {
    env::var(OWNERS).or_else(|_| env::var("LITELEASE_OWNER")).ok()
}
