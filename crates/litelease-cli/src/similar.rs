//! "Did you mean": the known name that is closest to one that was never claimed.

use litelease::{Litelease, Reason};

use crate::output::printable;
use crate::target::Target;

/// Returns a similar name that was claimed, if `name` never was.
pub(crate) fn similar(db: &Litelease, name: &str) -> Option<String> {
    // A hint only: an error here comes up again in the verb itself.
    let known = db.list().ok()?;
    if known.iter().any(|listed| listed.name == name) {
        return None;
    }
    closest(name, known.into_iter().map(|listed| listed.name))
}

/// Returns a similar name of a place, if `name` is not known there.
pub(crate) fn similar_at(place: &Target, name: &str) -> Option<String> {
    let known = place.known();
    if known.iter().any(|other| other == name) { None } else { closest(name, known.into_iter()) }
}

/// Returns a similar name for a verb that was rejected because `name` never was claimed.
pub(crate) fn similar_if(db: &Litelease, name: &str, reason: &Reason) -> Option<String> {
    if matches!(reason, Reason::NeverClaimed) { similar(db, name) } else { None }
}

/// Returns the hint to add to an answer about a name.
pub(crate) fn hint(similar: Option<&String>) -> String {
    similar.map_or_else(String::new, |name| format!("; did you mean {}?", printable(name)))
}

/// Slips of the keyboard are few: one letter in four, one in a short name, and none where nothing
/// would be left.
fn closest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let most = match name.chars().count() {
        0..=2 => 0,
        length => (length / 4).max(1),
    };
    let near = known.filter_map(|other| {
        let slips = strsim::damerau_levenshtein(&name.to_lowercase(), &other.to_lowercase());
        (slips <= most).then_some((slips, other))
    });
    near.min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_looks_like_a_slip_is_suggested() {
        let found =
            |name: &str| closest(name, ["nightly", "night", "x"].map(String::from).into_iter());
        assert_eq!(found("nigthly").as_deref(), Some("nightly"));
        assert_eq!(found("Nightly").as_deref(), Some("nightly"));
        assert_eq!(found("nigh").as_deref(), Some("night"));
        assert_eq!(found("weekly"), None);
        assert_eq!(found("import"), None);
        assert_eq!(found("y"), None);
    }
}
