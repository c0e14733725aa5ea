//! The model: with all protections it is always in order, and without any one of them it is not.

use std::time::Duration;

use litelease_proof::model::{PROTECTIONS, search};
use litelease_proof::rig::report;

/// Enough for a holder, its successor, and what a power cut or a backup makes of them.
const GRANTS: usize = 3;

/// Nothing here takes so long.
const LIMIT: Duration = Duration::from_secs(600);

#[test]
fn with_all_protections_no_older_grant_writes_after_a_newer_one() {
    let found = search(None, GRANTS, LIMIT);
    report(&format!("model: {} states, all of them in order", found.states));
    assert_eq!(found.violation, None);
    assert!(found.is_all, "the search was cut short");
    assert!(found.is_eventful && found.states > 100_000, "too little happens to mean anything");
}

#[test]
fn without_any_one_of_them_one_does() {
    for protection in PROTECTIONS {
        let violation = search(Some(protection), GRANTS, LIMIT).violation;
        let path = violation.unwrap_or_else(|| panic!("{protection:?} is not needed"));
        report(&format!("model, without {protection:?}: {path}"));
    }
}
