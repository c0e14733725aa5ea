//! The model of limits and handoff: with all protections every promise holds, and without any one
//! of them one does not.

use litelease_proof::handoff_model::{PROTECTIONS, search};
use litelease_proof::rig::report;

#[test]
fn with_all_protections_limits_and_requests_keep_their_promises() {
    let found = search(None);
    report(&format!("handoff model: {} states, all of them right", found.states));
    assert_eq!(found.violation, None);
    assert!(found.is_all && found.is_eventful, "too little happens to mean anything");
    assert!(found.states > 10_000, "only {} states", found.states);
}

#[test]
fn without_any_one_of_them_a_promise_is_broken() {
    for protection in PROTECTIONS {
        let violation = search(Some(protection)).violation;
        let path = violation.unwrap_or_else(|| panic!("{protection:?} is not needed"));
        report(&format!("handoff model, without {protection:?}: {path}"));
    }
}
