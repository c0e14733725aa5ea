//! How many holders an engine carries: docs/cluster.md shows what the simulation says.

use litelease_proof::scale::{BATCH, FLEETS, Fleet, Speed, THREE_MEMBERS, table};

#[test]
fn docs_cluster_shows_what_the_simulation_says() {
    let page = include_str!("../../../../docs/cluster.md");
    let table = table(THREE_MEMBERS);
    assert!(page.contains(&table), "put this into docs/cluster.md:\n{table}");
    let speed = format!("{} renewals a second", THREE_MEMBERS.alone);
    assert!(page.replace(',', "").contains(&speed), "docs/cluster.md must say: {speed}");
    let speed = format!("{} in transactions of {BATCH}", THREE_MEMBERS.in_batches);
    assert!(page.replace(',', "").contains(&speed), "docs/cluster.md must say: {speed}");
}

#[test]
fn an_engine_with_time_to_spare_loses_no_hold_and_one_without_does() {
    for fleet in FLEETS {
        let outcome = fleet.simulate(THREE_MEMBERS);
        assert_eq!(outcome.lost == 0, outcome.busy < 0.9, "{fleet:?}: {outcome:?}");
    }
    // An engine that takes ten requests a second carries a hundred holds that are renewed every ten
    // seconds, about.
    let slow = Speed { alone: 10.0, in_batches: 10.0 };
    for (holders, carries) in [(60, true), (500, false)] {
        let outcome = Fleet { holders, in_each: 1, engines: 1 }.simulate(slow);
        assert_eq!(outcome.lost == 0, carries, "{holders}: {outcome:?}");
    }
}
