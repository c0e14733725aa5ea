//! The history: what is recorded, in which commit, and that it stays bounded.

use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{
    BreakResult, Error, HistoryFilter, HistoryRow, Litelease, ReleaseResult, TickOutcome,
    TransferResult,
};
use litelease_proof::rig::{LONG, acquired, memory};

const TTL: Duration = Duration::from_millis(50);

fn kinds(db: &Litelease, name: &str) -> Vec<String> {
    let mut rows = rows_of(db, name);
    rows.reverse();
    rows.into_iter().map(|row| row.kind).collect()
}

fn rows_of(db: &Litelease, name: &str) -> Vec<HistoryRow> {
    db.history(HistoryFilter { name: Some(name), ..Default::default() }, 100).unwrap()
}

fn kept() -> Litelease {
    let db = memory();
    db.keep_history(100).unwrap();
    db
}

#[test]
fn every_end_of_a_grant_is_recorded_with_who_had_it_and_since_when() {
    let db = kept();
    let lease = acquired(db.at(100).claim("x", "a", TTL));
    let _ = db.at(120).renew(&lease, TTL).unwrap();
    let _ = db.at(160).renew(&lease, TTL).unwrap();
    let _ = db.at(170).release(&lease).unwrap();
    let lease = acquired(db.at(200).claim("x", "a", TTL));
    let TransferResult::Transferred(lease) = db.at(210).transfer(&lease, "b", TTL).unwrap() else {
        panic!("it is live")
    };
    assert!(matches!(db.at(220).break_lease("x").unwrap(), BreakResult::Broken { .. }));
    assert!(matches!(db.at(225).release(&lease).unwrap(), ReleaseResult::Rejected { .. }));
    acquired(db.at(230).claim("x", "c", TTL));
    acquired(db.at(300).claim("x", "d", TTL));
    let _ = db.at(310).take_over("x", "e", TTL).unwrap();
    let expected = [
        "granted",
        "renewed_late",
        "released",
        "granted",
        "transferred",
        "granted",
        "broken",
        "granted",
        "expired",
        "granted",
        "taken_over",
        "granted",
        "expired",
    ];
    assert_eq!(kinds(&db, "x"), expected);
    let rows = rows_of(&db, "x");
    let expired = rows.iter().find(|row| row.kind == "expired" && row.id > 0).unwrap();
    assert_eq!((expired.at_ms, expired.since_ms), (280, Some(230)), "when it ran out");
    assert_eq!(expired.owner.as_deref(), Some("c"));
}

#[test]
fn a_lease_that_ran_out_has_an_end_although_nobody_came_after_it() {
    let db = kept();
    acquired(db.at(100).claim("x", "a", TTL));
    let [end, granted] = &rows_of(&db, "x")[..] else { panic!("two rows") };
    assert_eq!(
        (end.id, end.kind.as_str(), end.at_ms, end.since_ms),
        (0, "expired", 150, Some(100))
    );
    assert_eq!(granted.kind, "granted");
    acquired(db.at(200).claim("x", "b", LONG * 1_000_000));
    assert_eq!(kinds(&db, "x"), ["granted", "expired", "granted"]);
}

#[test]
fn a_history_is_part_of_the_transaction_that_it_is_about() {
    let mut db = kept();
    let tx = db.transaction().unwrap();
    acquired(tx.claim("x", "a", LONG));
    tx.rollback().unwrap();
    assert!(rows_of(&db, "x").is_empty());
    let before = db.conn().last_insert_rowid();
    acquired(db.claim("x", "a", LONG));
    assert_eq!(db.conn().last_insert_rowid(), before);
    assert_eq!(db.conn().changes(), 1);
}

#[test]
fn a_history_keeps_so_many_rows_and_stops_when_told_to() {
    let db = memory();
    db.keep_history(10).unwrap();
    let cycle = || {
        let lease = acquired(db.claim("x", "a", LONG));
        let _ = db.release(&lease).unwrap();
    };
    (0..20).for_each(|_| cycle());
    assert_eq!(rows_of(&db, "x").len(), 10);
    assert_eq!(rows_of(&db, "x")[0].id, 40);
    db.keep_history(4).unwrap();
    assert_eq!(rows_of(&db, "x").len(), 4);
    db.keep_history(6).unwrap();
    (0..5).for_each(|_| cycle());
    assert_eq!(rows_of(&db, "x").len(), 6);
    db.keep_history(0).unwrap();
    cycle();
    assert_eq!((rows_of(&db, "x").len(), rows_of(&db, "x")[0].id), (6, 50));
    let leftover = "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'";
    let leftover: i64 = db.conn().query_row(leftover, [], |row| row.get(0)).unwrap();
    assert_eq!(leftover, 0);
}

#[test]
fn ticks_dead_items_and_operators_are_recorded() {
    let db = kept();
    let claimed = db.at(1000).claim_tick("nightly", "a", TTL, 960).unwrap();
    let litelease::ClaimTickResult::Acquired { lease, .. } = claimed else { panic!("it is free") };
    let _ = db.at(1010).finish_tick(&lease, TickOutcome::Failed).unwrap();
    let _ = db.at(1020).tick_again("nightly").unwrap();
    let _ = db.at(1030).skip_ticks("nightly", None, false).unwrap();
    let _ = db.at(1040).forget_tick("nightly").unwrap();
    let expected = [
        "granted",
        "tick_claimed",
        "released",
        "tick_failed",
        "tick_again",
        "tick_skipped",
        "tick_forgotten",
    ];
    assert_eq!(kinds(&db, "nightly"), expected);

    let queue = db.queue("mail");
    for body in ["one", "two", "three"] {
        queue.send(body).unwrap();
        queue.receive(LONG).unwrap().unwrap().bury(Some("too odd")).unwrap();
    }
    let actor =
        litelease::Actor { key: Some("on-call".into()), note: Some("typo".into()), result: None };
    assert!(db.acting(&actor, || queue.redrive_one(1)).unwrap());
    assert_eq!(db.acting(&actor, || queue.discard()).unwrap(), 2);
    let expected = ["item_died", "item_died", "item_died", "redriven", "discarded"];
    assert_eq!(kinds(&db, "mail"), expected);
    let [discarded, redriven, died, ..] = &rows_of(&db, "mail")[..] else { panic!("five rows") };
    assert_eq!(died.note.as_deref(), Some("too odd"));
    assert_eq!((redriven.number, redriven.result), (Some(1), Some(1)));
    assert_eq!((discarded.number, discarded.result), (None, Some(2)));
    let signed = (discarded.actor.as_deref(), discarded.note.as_deref());
    assert_eq!(signed, (Some("on-call"), Some("typo")));
}

#[test]
fn only_our_own_triggers_may_be_on_the_leases() {
    let db = kept();
    let sql: String = db
        .conn()
        .query_row(
            "SELECT sql FROM sqlite_schema WHERE name = 'litelease_history_ended'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    let other = Connection::open_in_memory().unwrap();
    let other = Litelease::from_connection(other);
    other.bootstrap().unwrap();
    other.keep_history(5).unwrap();
    let conn = other.conn();
    conn.execute_batch("DROP TRIGGER litelease_history_ended").unwrap();
    acquired(other.claim("x", "a", LONG));
    conn.execute_batch(&sql.replace("'released'", "'gone'")).unwrap();
    assert!(matches!(other.claim("x", "a", LONG), Err(Error::SchemaMismatch { .. })));
}
