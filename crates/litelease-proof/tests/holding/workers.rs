//! Workers of queues: handlers on threads of their own, deliveries that are extended, items that
//! come back.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use litelease::{
    Error, HoldError, ItemState, Litelease, LiteleaseRef, Loss, StaleReason, WorkItem,
    WorkerOptions,
};
use litelease_proof::rig::{LONG, TestFolder, eventually, memory};

/// Short enough to outlast, long enough for a busy machine to extend in time.
const SHORT: Duration = Duration::from_secs(2);

/// A file with a queue of these items, and a table for effects.
fn place(items: &[&str]) -> (TestFolder, Litelease) {
    let place = TestFolder::new("WAL");
    let db = place.open(LONG);
    db.conn().execute_batch("CREATE TABLE effects (text)").unwrap();
    for item in items {
        db.queue("mail").send(item).unwrap();
    }
    (place, db)
}

fn until_empty() -> WorkerOptions {
    WorkerOptions::new(LONG).until_empty()
}

fn effects(db: &Litelease) -> i64 {
    db.conn().query_row("SELECT count(*) FROM effects", [], |row| row.get(0)).unwrap()
}

fn write_effect(item: &WorkItem<'_>) -> litelease::Result<()> {
    item.finish(|tx| {
        tx.conn().execute("INSERT INTO effects VALUES (?1)", [&item.body])?;
        Ok(())
    })
}

#[test]
fn four_handlers_work_at_the_same_time_and_each_item_once() {
    let (_place, db) = place(&["a", "b", "c", "d"]);
    let all_here = Barrier::new(4);
    let worker = db.queue("mail").worker(until_empty().handlers(4)).unwrap();
    let counts = worker.run(|item| {
        all_here.wait();
        write_effect(item)
    });
    assert_eq!(counts.unwrap().done, 4);
    assert_eq!(effects(&db), 4);
}

#[test]
fn a_handler_runs_with_its_delivery_committed_and_no_transaction_open() {
    let (_place, db) = place(&["a"]);
    let db = Mutex::new(db);
    let worker = db.lock().unwrap().queue("mail").worker(until_empty()).unwrap();
    worker
        .run(|item| {
            assert!(item.db().conn().is_autocommit());
            let other = db.lock().unwrap();
            assert_eq!(other.queue("mail").items().unwrap()[0].state, ItemState::Leased);
            other.conn().execute("INSERT INTO effects VALUES ('by another')", []).unwrap();
            Ok::<(), Error>(())
        })
        .unwrap();
    assert_eq!(db.lock().unwrap().queue("mail").items().unwrap(), []);
}

#[test]
fn a_delivery_is_extended_for_as_long_as_its_handler_works() {
    let (place, db) = place(&["a"]);
    let other = Mutex::new(place.open(LONG));
    let worker = db.queue("mail").worker(WorkerOptions::new(SHORT).until_empty()).unwrap();
    let counts = worker.run(|item| {
        let begin = Instant::now();
        while begin.elapsed() < SHORT + SHORT / 2 {
            assert!(other.lock().unwrap().queue("mail").receive(SHORT).unwrap().is_none());
            item.check().unwrap();
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(item.attempt, 1);
        write_effect(item)
    });
    assert_eq!((counts.unwrap().done, effects(&db)), (1, 1));
}

#[test]
fn after_an_error_or_a_panic_the_item_comes_back_with_a_note_and_dies_at_the_last_attempt() {
    let (_place, db) = place(&["a"]);
    db.queue("mail").set_max_attempts(3).unwrap();
    let (notes, failed) = (Mutex::new(Vec::new()), Mutex::new(Instant::now()));
    let moment = Duration::from_millis(40);
    for attempt in 1..=3 {
        let options = WorkerOptions::new(LONG).once().backoff(moment, 10 * moment);
        let worker = db.queue("mail").worker(options).unwrap();
        let counts = worker.run(|item| {
            assert_eq!(item.attempt, attempt);
            // Hidden for at least half of a delay that doubles.
            let least =
                if attempt == 1 { Duration::ZERO } else { moment / 2 * (attempt as u32 - 1) };
            let hidden = std::mem::replace(&mut *failed.lock().unwrap(), Instant::now()).elapsed();
            assert!(hidden >= least, "{hidden:?}");
            match attempt {
                2 => panic!("oh no"),
                _ => Err("ä".repeat(1_000)),
            }
        });
        assert_eq!(counts.unwrap().given_back, 1);
        let item = db.queue("mail").items().unwrap().remove(0);
        // Its delay may be over by now.
        notes.lock().unwrap().push((item.state == ItemState::Dead, item.note.unwrap()));
    }
    let notes = notes.into_inner().unwrap();
    assert_eq!(notes[0], (false, "ä".repeat(500)), "cut to what a note may have");
    assert_eq!(notes[1], (false, "the handler panicked: oh no".into()));
    assert!(notes[2].0, "dead");
}

#[test]
fn what_a_handler_decides_itself_is_not_decided_again() {
    let (_place, db) = place(&["ack", "bury", "give back"]);
    let worker = db.queue("mail").worker(until_empty()).unwrap();
    let counts = worker.run(|item| {
        match item.body.clone() {
            litelease::rusqlite::types::Value::Text(text) if text == "ack" => {
                assert!(item.ack()?.is_acknowledged());
            }
            litelease::rusqlite::types::Value::Text(text) if text == "bury" => {
                assert!(item.bury(Some("enough"))?);
            }
            _ => {
                let hour = Duration::from_secs(3600);
                assert!(item.give_back_with(litelease::GiveBackOptions::new().delay(hour))?);
            }
        }
        item.check().unwrap();
        Err::<(), Error>(Error::NotInTransaction)
    });
    let counts = counts.unwrap();
    assert_eq!((counts.done, counts.buried, counts.given_back, counts.lost), (1, 1, 1, 0));
    let left: Vec<_> = db.queue("mail").items().unwrap().into_iter().map(|i| i.state).collect();
    assert_eq!(left, [ItemState::Dead, ItemState::Delayed]);
}

#[test]
fn a_transaction_that_a_handler_leaves_open_is_rolled_back_and_the_item_comes_back() {
    let (_place, db) = place(&["a"]);
    let worker = db.queue("mail").worker(WorkerOptions::new(LONG).once()).unwrap();
    let counts = worker.run(|item| {
        item.db().conn().execute_batch("BEGIN IMMEDIATE; INSERT INTO effects VALUES ('half')")?;
        Ok::<(), litelease::rusqlite::Error>(())
    });
    assert_eq!((counts.unwrap().given_back, effects(&db)), (1, 0));
    let note = db.queue("mail").items().unwrap().remove(0).note;
    assert_eq!(note.as_deref(), Some("the handler left a transaction open"));
}

#[test]
fn a_drained_worker_ends_its_item_and_leaves_the_others() {
    for is_dropped in [false, true] {
        let (_place, db) = place(&["a", "b", "c"]);
        let (started, has_started) = mpsc::channel();
        let worker = db.queue("mail").worker(WorkerOptions::new(LONG)).unwrap();
        let running = worker.start(move |item: &WorkItem<'_>| {
            started.send(()).unwrap();
            // Long enough to be drained meanwhile.
            thread::sleep(Duration::from_secs(1));
            write_effect(item)
        });
        let running = running.unwrap();
        has_started.recv_timeout(LONG).unwrap();
        match is_dropped {
            true => drop(running),
            false => assert_eq!(running.drain().unwrap().done, 1),
        }
        assert_eq!(effects(&db), 1);
        assert_eq!(db.queue("mail").info().unwrap().unwrap().visible, 2);
    }
}

#[test]
fn an_idle_worker_is_woken_by_a_send_and_a_give_back_and_not_by_its_poll() {
    let (_place, mut db) = place(&[]);
    let (seen, sees) = mpsc::channel();
    let worker = db.queue("mail").worker(WorkerOptions::new(LONG)).unwrap();
    let running = worker.start(move |_: &WorkItem<'_>| {
        seen.send(Instant::now()).map_err(|error| error.to_string())
    });
    let _running = running.unwrap();
    // The first one makes sure that it listens.
    db.queue("mail").send("warm").unwrap();
    sees.recv_timeout(LONG).unwrap();
    // The poll of 500 ms would come 370 ms after each send. A busy machine may be late now and
    // then.
    eventually("it is woken", || {
        thread::sleep(Duration::from_millis(130));
        let tx = db.transaction().unwrap();
        tx.queue("mail").send("x").unwrap();
        tx.commit().unwrap();
        let sent = Instant::now();
        let took = sees.recv_timeout(LONG).unwrap().saturating_duration_since(sent);
        took < Duration::from_millis(200)
    });
}

#[test]
fn once_waits_for_one_item_and_until_empty_waits_for_none() {
    let (place, db) = place(&[]);
    let empty = db.queue("mail").worker(until_empty().once()).unwrap();
    assert_eq!(empty.run(|_| Ok::<(), String>(())).unwrap().done, 0);
    let once = db.queue("mail").worker(WorkerOptions::new(LONG).once().handlers(3)).unwrap();
    let running = once.start(|_: &WorkItem<'_>| Ok::<(), String>(())).unwrap();
    let other = place.open(LONG);
    for item in ["a", "b", "c"] {
        other.queue("mail").send(item).unwrap();
    }
    eventually("its end", || running.is_finished());
    assert_eq!(running.drain().unwrap().done, 1);
    assert_eq!(db.queue("mail").info().unwrap().unwrap().visible, 2);
}

#[test]
fn items_that_a_handler_sends_are_worked_on_before_the_worker_ends() {
    let (_place, db) = place(&["first"]);
    let left = AtomicUsize::new(4);
    let worker = db.queue("mail").worker(until_empty().handlers(3)).unwrap();
    let counts = worker.run(|item| {
        // Long enough for the other handlers to find the queue empty.
        thread::sleep(Duration::from_millis(50));
        if left.load(Ordering::SeqCst) > 0 {
            left.fetch_sub(1, Ordering::SeqCst);
            item.db().queue("mail").send("next")?;
        }
        write_effect(item)
    });
    assert_eq!((counts.unwrap().done, effects(&db)), (5, 5));
}

#[test]
fn a_handler_whose_item_is_taken_away_is_told_and_cannot_finish() {
    let (place, db) = place(&["a"]);
    let other = Mutex::new(place.open(LONG));
    let worker = db.queue("mail").worker(WorkerOptions::new(LONG).once()).unwrap();
    let told = Mutex::new(None);
    let counts = worker.run(|item| {
        other.lock().unwrap().queue("mail").delete().unwrap();
        *told.lock().unwrap() = item.lost().wait_timeout(LONG);
        assert!(item.is_lost());
        assert!(item.trusted_for().is_zero());
        let finished = write_effect(item);
        assert!(
            matches!(finished, Err(Error::StaleReceipt { reason: StaleReason::Gone })),
            "{finished:?}"
        );
        finished
    });
    assert_eq!((counts.unwrap().lost, effects(&db)), (1, 0));
    let told = told.into_inner().unwrap();
    assert_eq!(told, Some(Loss::Stale { reason: "gone".into() }));
}

#[test]
fn a_worker_waits_out_a_locked_file_and_does_not_end() {
    let (place, db) = place(&["a"]);
    let troubles = Arc::new(AtomicUsize::new(0));
    let counted = troubles.clone();
    let options = until_empty()
        .setup(|conn| conn.busy_timeout(Duration::from_millis(20)))
        .on_trouble(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
    let worker = db.queue("mail").worker(options).unwrap();
    let blocker = place.connect(LONG);
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let running = worker.start(write_effect).unwrap();
    eventually("trouble", || troubles.load(Ordering::SeqCst) >= 2);
    blocker.execute_batch("COMMIT").unwrap();
    eventually("its end", || running.is_finished());
    assert_eq!(running.drain().unwrap().done, 1);
}

#[test]
fn a_worker_ends_with_an_error_when_its_file_is_replaced() {
    let (place, db) = place(&[]);
    let worker = db.queue("mail").worker(WorkerOptions::new(LONG)).unwrap();
    let running = worker.start(write_effect).unwrap();
    std::fs::rename(&place.file, place.folder.path().join("elsewhere")).unwrap();
    eventually("its end", || running.is_finished());
    let ended = running.drain();
    assert!(matches!(ended, Err(HoldError::FileMoved(_))), "{ended:?}");
}

#[test]
fn options_that_make_no_sense_are_refused_before_anything_starts() {
    let (_place, mut db) = place(&[]);
    let year = Duration::from_secs(365 * 24 * 3600);
    let wrong = [
        WorkerOptions::new(LONG).handlers(0),
        WorkerOptions::new(LONG).handlers(1_001),
        WorkerOptions::new(Duration::ZERO),
        WorkerOptions::new(Duration::from_millis(100)),
        WorkerOptions::new(year + Duration::from_millis(1)),
        WorkerOptions::new(Duration::MAX),
        WorkerOptions::new(LONG).backoff(2 * LONG, LONG),
        WorkerOptions::new(LONG).backoff(LONG, Duration::MAX),
    ];
    for options in wrong {
        let refused = db.queue("mail").worker(options.clone());
        assert!(matches!(refused, Err(HoldError::InvalidWorker(_))), "{options:?}");
    }
    let refused = memory().queue("mail").worker(until_empty()).map(drop).unwrap_err();
    assert!(matches!(refused, HoldError::InMemory), "{refused}");
    let tx = db.transaction().unwrap();
    let refused = tx.queue("mail").worker(until_empty()).map(drop).unwrap_err();
    assert!(matches!(refused, HoldError::InTransaction), "{refused}");
    drop(tx);
    let through = LiteleaseRef::new(db.conn());
    assert!(through.queue("mail").worker(until_empty()).is_ok());
}
