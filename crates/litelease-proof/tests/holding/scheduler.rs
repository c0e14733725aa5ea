//! Schedulers on real files: several in one process, jobs that fail, panic, run too long, lose
//! their tick or find the file locked.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use litelease::{
    Cancel, Error, HoldError, JobOptions, JobTick, Litelease, Schedule, TickChange, TickState,
    now_ms,
};
use litelease_proof::rig::{eventually, memory};
use tempfile::TempDir;

const MS: fn(u64) -> Duration = Duration::from_millis;

fn every(ms: u64) -> Schedule {
    Schedule::every(MS(ms)).unwrap()
}

/// A schedule whose last tick is hours ago, and whose next one no test waits for.
fn yearly() -> Schedule {
    Schedule::cron("0 0 1 1 *").unwrap()
}

fn app() -> (TempDir, PathBuf, Litelease) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.sqlite3");
    let db = Litelease::open_own(&path).unwrap();
    db.conn().execute_batch("CREATE TABLE effects (tick INTEGER, token INTEGER)").unwrap();
    (folder, path, db)
}

fn write(tick: &JobTick<'_>) -> litelease::Result<()> {
    tick.finish(|tx| {
        let row = [tick.tick_ms(), tick.token()];
        tx.conn().execute("INSERT INTO effects VALUES (?1, ?2)", row)?;
        Ok(())
    })
}

fn effects(db: &Litelease) -> Vec<i64> {
    let mut statement = db.conn().prepare("SELECT tick FROM effects ORDER BY rowid").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

fn state(db: &Litelease, name: &str) -> Option<TickState> {
    db.newest_tick(name).unwrap().map(|info| info.tick.newest().state)
}

#[test]
fn every_tick_has_its_effect_once_and_in_order_among_all_schedulers() {
    let (_folder, path, db) = app();
    let start = || {
        let db = Litelease::open_own(&path).unwrap();
        db.scheduler()
            .add_with("rollup", every(20), JobOptions::new().each(), write)
            .start()
            .unwrap()
    };
    let first = [start(), start()];
    eventually("some were run", || effects(&db).len() > 5);
    let [one, other] = first;
    one.stop().unwrap();
    let third = start();
    let before = effects(&db).len();
    eventually("the others go on", || effects(&db).len() > before + 5);
    drop(other);
    third.stop().unwrap();
    let ticks = effects(&db);
    assert!(ticks.windows(2).all(|pair| pair[1] - pair[0] == 20), "{ticks:?}");
    thread::sleep(MS(50));
    assert_eq!(effects(&db), ticks, "a scheduler that was stopped begins nothing");
    assert_eq!(db.inspect("rollup").unwrap(), None);
}

#[test]
fn a_queue_gets_one_item_per_tick_in_the_commit_of_the_tick() {
    let (_folder, path, db) = app();
    let start = || {
        let db = Litelease::open_own(&path).unwrap();
        db.queue("mail").every("digest", every(20), "hello").start().unwrap()
    };
    let running = [start(), start(), start()];
    eventually("some were sent", || {
        db.queue("mail").info().unwrap().is_some_and(|it| it.visible > 5)
    });
    for scheduler in running {
        scheduler.stop().unwrap();
    }
    let sent = db.queue("mail").info().unwrap().unwrap().visible;
    assert_eq!(db.token("digest").unwrap(), Some(sent), "as many items as ticks");
}

#[test]
fn installing_a_schedule_runs_nothing_unless_it_is_asked_to() {
    let (_folder, path, db) = app();
    let run = |name: &str, options: JobOptions| {
        let db = Litelease::open_own(&path).unwrap();
        db.scheduler().add_with(name, yearly(), options, write).start().unwrap()
    };
    let plain = run("plain", JobOptions::new());
    eventually("it is installed", || state(&db, "plain") == Some(TickState::Skipped));
    let late = run("late", JobOptions::new().at_start().late(MS(1)));
    eventually("it is installed", || state(&db, "late") == Some(TickState::Skipped));
    assert!(effects(&db).is_empty());
    let at_start = run("at_start", JobOptions::new().at_start());
    eventually("it is run", || state(&db, "at_start") == Some(TickState::Done));
    assert_eq!(effects(&db).len(), 1);
    drop((plain, late, at_start));
}

/// Runs a job at its last past tick, and returns its state once that is final.
fn run_once<E: std::fmt::Display>(
    db: &Litelease,
    options: JobOptions,
    job: impl Fn(&JobTick<'_>) -> Result<(), E> + Send + Sync + 'static,
) -> TickState {
    let running = db.scheduler().add_with("job", yearly(), options.at_start(), job);
    let running = running.start().unwrap();
    eventually("it has ended", || state(db, "job").is_some_and(|it| it != TickState::Open));
    running.stop().unwrap();
    state(db, "job").unwrap()
}

#[test]
fn a_job_that_fails_or_panics_is_repeated_under_its_grant_and_then_its_tick_has_failed() {
    let (_folder, _path, db) = app();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = tokens.clone();
    let ended = run_once(&db, JobOptions::new().retries(1), move |tick| {
        let mut tokens = seen.lock().unwrap();
        tokens.push(tick.token());
        let first = tokens.len() == 1;
        drop(tokens);
        if first {
            std::panic::resume_unwind(Box::new("no disk"));
        }
        Err("still no disk")
    });
    assert_eq!(ended, TickState::Failed);
    assert_eq!(*tokens.lock().unwrap(), [1, 1]);
    // A tick that has failed is not run again, but by an operator.
    assert!(matches!(db.tick_again("job").unwrap(), TickChange::Changed(_)));
    let done = run_once(&db, JobOptions::new(), write);
    assert_eq!((done, effects(&db).len()), (TickState::Done, 1));
}

#[test]
fn a_transaction_that_a_job_leaves_open_is_rolled_back_and_an_error() {
    let (_folder, _path, db) = app();
    let ended = run_once(&db, JobOptions::new(), |tick| {
        tick.db().conn().execute_batch("BEGIN IMMEDIATE; INSERT INTO effects VALUES (1, 1)")
    });
    assert_eq!((ended, effects(&db)), (TickState::Failed, vec![]));
}

#[test]
fn a_job_that_has_finished_its_tick_has_not_failed_whatever_it_returns() {
    let (_folder, _path, db) = app();
    let ended = run_once(&db, JobOptions::new(), |tick| {
        write(tick).unwrap();
        assert!(tick.check().is_ok(), "what is finished is not lost");
        let again = write(tick).unwrap_err();
        assert!(matches!(again, Error::StaleTick { .. }), "no effect is repeated: {again}");
        Err("the mail was not sent")
    });
    assert_eq!((ended, effects(&db).len()), (TickState::Done, 1));
}

/// The job of the first scheduler is stuck; its lease ends, and another process runs the tick.
#[test]
fn a_stuck_job_loses_its_tick_after_the_longest_time_and_its_effect_is_refused() {
    let (_folder, path, db) = app();
    let (go_on, stuck) = channel::<()>();
    let (refused, was_refused) = channel();
    let stuck = Mutex::new(stuck);
    let limited = JobOptions::new().at_start().max_time(MS(300));
    let first = db.scheduler().add_with("job", yearly(), limited, move |tick| {
        if tick.tick_attempt() > 1 {
            return write(tick);
        }
        stuck.lock().unwrap().recv().unwrap();
        let lost = tick.check().is_err();
        let answer = write(tick);
        refused.send((lost, matches!(answer, Err(Error::StaleTick { .. })))).unwrap();
        answer
    });
    let first = first.start().unwrap();
    eventually("it is at work", || db.inspect("job").unwrap().is_some());
    let other = Litelease::open_own(&path).unwrap();
    let other =
        other.scheduler().add_with("job", yearly(), JobOptions::new(), write).start().unwrap();
    eventually("the other one runs it", || state(&db, "job") == Some(TickState::Done));
    go_on.send(()).unwrap();
    assert_eq!(was_refused.recv().unwrap(), (true, true));
    first.stop().unwrap();
    other.stop().unwrap();
    assert_eq!(effects(&db).len(), 1);
    assert_eq!(db.newest_tick("job").unwrap().unwrap().tick.attempt, 2);
}

/// A tick whose one attempt was used up by a process that died is passed by, also with `each`,
/// which came back to it again and again for a day.
#[test]
fn a_tick_that_has_had_its_attempts_does_not_stop_those_after_it() {
    let (_folder, _path, db) = app();
    let tick_ms = now_ms() / 20 * 20 - 200;
    db.install_schedule("job", tick_ms - 20, "20ms").unwrap();
    let once = litelease::TickRequest { tick_ms, attempts: 1 };
    assert!(matches!(
        db.claim_tick("job", "a process that dies", MS(50), once).unwrap(),
        litelease::ClaimTickResult::Acquired { .. }
    ));
    eventually("its lease is over", || db.inspect("job").unwrap().is_none());
    let running = db.scheduler().add_with("job", every(20), JobOptions::new().each(), write);
    let running = running.start().unwrap();
    eventually("those after it are run", || effects(&db).len() > 10);
    running.stop().unwrap();
    assert_eq!(effects(&db)[0], tick_ms + 20);
}

/// Stops a scheduler while its file is locked for longer than the ttl, at the end of its job.
#[test]
fn a_tick_is_finished_late_when_the_file_was_locked_beyond_the_ttl() {
    let (_folder, path, db) = app();
    let locker = Litelease::open_own(&path).unwrap();
    let (locked, is_locked): (Sender<()>, _) = channel();
    let is_locked = Mutex::new(is_locked);
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let options = JobOptions::new().at_start().ttl(MS(300));
    let running = db.scheduler().add_with("job", yearly(), options, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        is_locked.lock().unwrap().recv().unwrap();
        Ok::<(), String>(())
    });
    let running = running.start().unwrap();
    eventually("it is at work", || runs.load(Ordering::SeqCst) == 1);
    locker.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    locked.send(()).unwrap();
    let expired = || db.newest_tick("job").unwrap().unwrap().holder.is_none();
    eventually("its lease has run out", expired);
    locker.conn().execute_batch("COMMIT").unwrap();
    eventually("it is finished", || state(&db, "job") == Some(TickState::Done));
    running.stop().unwrap();
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn a_scheduler_that_cannot_work_says_why() {
    let failed = |scheduler: litelease::Scheduler| scheduler.start().map(drop).unwrap_err();
    let job = |_: &JobTick<'_>| Ok::<(), String>(());
    assert!(matches!(failed(memory().scheduler().add("x", yearly(), job)), HoldError::InMemory));
    let (_folder, path, mut db) = app();
    let options = JobOptions::new().ttl(MS(100));
    let short = failed(db.scheduler().add_with("x", yearly(), options, job));
    assert!(matches!(short, HoldError::TtlTooShort(_)));
    let none = failed(db.scheduler().add_with("x", yearly(), JobOptions::new().attempts(0), job));
    assert_eq!(none.kind(), "InvalidAttempts");
    let tx = db.transaction().unwrap();
    let scheduler = litelease::LiteleaseRef::new(tx.conn()).scheduler();
    assert!(matches!(failed(scheduler), HoldError::InTransaction));
    drop(tx);
    let wrong = HoldError::from(Schedule::cron("0 25 * * *").unwrap_err());
    assert_eq!(wrong.kind(), "InvalidSchedule");
    assert!(wrong.to_string().contains("is no cron line"));
    // The file is replaced: no other process sees what is granted in it.
    let running = db.scheduler().add("x", every(20), job).start().unwrap();
    eventually("it is at work", || state(&db, "x") == Some(TickState::Done));
    std::fs::rename(&path, path.with_extension("old")).unwrap();
    eventually("it ends", || running.is_finished());
    assert!(matches!(running.stop().unwrap_err(), HoldError::FileMoved(_)));
}

/// A clock that was set back would keep a job silent until the old time comes again.
#[test]
fn a_tick_ahead_of_the_clock_ends_a_scheduler_that_reports_to_none() {
    let (_folder, _path, db) = app();
    let future = now_ms() + 3_600_000;
    assert_eq!(db.at(future).tick("job", future).unwrap(), litelease::TickResult::First);
    let job = |_: &JobTick<'_>| Ok::<(), String>(());
    let running = db.scheduler().add("job", every(20), job).start().unwrap();
    eventually("it ends", || running.is_finished());
    assert_eq!(running.stop().unwrap_err().kind(), "TickAhead");
    let (report, reported) = channel();
    let cancel = Cancel::default();
    let told = db.scheduler().cancel(cancel.clone()).add("job", every(20), job);
    let told = told.on_trouble(move |error| report.send(error.kind()).unwrap()).start().unwrap();
    assert_eq!(reported.recv().unwrap(), "TickAhead");
    cancel.cancel();
    told.stop().unwrap();
}
