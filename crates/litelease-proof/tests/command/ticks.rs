//! `litelease run --once-per`, `every` and `ticks` with real processes, as the crontabs of several
//! machines start them.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use libc::{SIGKILL, SIGTERM};
use litelease::{NewestTick, TickState};
use litelease_proof::command::{Desk, Run, outcome};
use litelease_proof::rig::eventually;
use serde_json::Value;

use crate::run::faketime;

/// The tick that the tests run: far in the past, and none of a real schedule.
const TICK: &str = "2026-03-29T01:00";
const TICK_MS: i64 = 1_774_746_000_000;

fn newest(desk: &Desk, name: &str) -> NewestTick {
    desk.db().newest_tick(name).unwrap().unwrap().tick.newest()
}

fn is(state: TickState) -> NewestTick {
    NewestTick { tick_ms: TICK_MS, state }
}

/// Starts `litelease every` with these words, and a shell script for each tick.
fn every(desk: &Desk, words: &[&str], script: &str) -> Run {
    let words: Vec<&str> = [&["every"], words, &["--", "sh", "-c", script]].concat();
    let mut command = desk.command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { child: command.spawn().expect("it starts") }
}

/// The first process is done after 20 ms, and the second one comes half a second later.
#[test]
fn two_crontabs_run_a_short_job_once() {
    let desk = Desk::new();
    let words = ["run", "--once-per", "0 * * * *", "nightly", "--", "sh", "-c", "echo ran >> log"];
    for _machine in 0..3 {
        assert_eq!(outcome(&desk.run(&words)), (0, String::new(), String::new()));
    }
    assert_eq!(desk.read("log"), "ran");
    let taken = [&words[..1], &["-E", "7"], &words[1..]].concat();
    assert_eq!(outcome(&desk.run(&taken)), (7, String::new(), String::new()));
}

/// Cron starts each at its own three o'clock: 5 seconds early, 2 seconds early, and 3 seconds late.
#[test]
fn crontabs_on_machines_with_other_clocks_run_a_job_once() {
    let desk = Desk::new();
    let words = ["run", "--once-per", "0 3 * * *", "nightly", "--", "sh", "-c", "echo ran >> log"];
    let at = ["@2026-11-19 02:59:55.500", "@2026-11-19 03:00:03", "@2026-11-19 02:59:58"];
    let commands: Option<Vec<_>> = at.iter().map(|at| faketime(&desk, at, &words)).collect();
    let Some(commands) = commands else { return };
    let machines: Vec<_> = commands.into_iter().map(|mut it| it.spawn().unwrap()).collect();
    for mut machine in machines {
        assert_eq!(machine.wait().unwrap().code(), Some(0));
    }
    assert_eq!(desk.read("log"), "ran");
}

#[test]
fn a_second_machine_waits_while_the_first_is_at_work_and_takes_over_when_it_dies() {
    let desk = Desk::new();
    let words = ["--once-per", "0 0 1 1 *", "nightly"];
    let first = desk.start(&words, "echo $$ > first; sleep 100");
    desk.pid("first");
    let second = desk.start(&words, "echo second >> log");
    let busy = desk.run(&["run", "-n", "--once-per", "0 0 1 1 *", "nightly", "--", "false"]);
    assert_eq!(busy.status.code(), Some(0), "a tick under way is taken: {busy:?}");
    assert!(!desk.folder.path().join("log").exists());
    first.signal(SIGKILL);
    assert_eq!(second.end().0, 0);
    assert_eq!(desk.read("log"), "second");
    let info = desk.db().newest_tick("nightly").unwrap().unwrap();
    assert_eq!((info.tick.attempt, info.tick.newest().state), (2, TickState::Done));
}

#[test]
fn a_run_that_is_asked_to_end_leaves_its_tick_to_others_and_one_that_fails_does_not() {
    let desk = Desk::new();
    let run = desk.start(&["--tick", TICK, "x"], "echo $$ > pid; sleep 100");
    desk.pid("pid");
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 128 + SIGTERM);
    assert_eq!(newest(&desk, "x"), is(TickState::Open));
    let next = desk.start(&["--tick", TICK, "x"], "exit 3");
    assert_eq!(next.end().0, 3);
    assert_eq!(newest(&desk, "x"), is(TickState::Failed));
    let late = desk.start(&["--tick", TICK, "x"], "echo never >> log");
    assert_eq!(late.end().0, 0);
    assert!(!desk.folder.path().join("log").exists());
}

#[test]
fn a_run_at_most_once_is_not_begun_again_and_says_that_it_was_not_done() {
    let desk = Desk::new();
    let words = ["--tick", TICK, "--at-most-once", "pay"];
    let run = desk.start(&words, "echo $$ > pid; sleep 100");
    desk.pid("pid");
    run.signal(SIGKILL);
    run.end();
    let script = ["sh", "-c", "echo $$ > pid; sleep 100"];
    let again = [&["run", "-w", "40s"], &words[..], &["--"], &script].concat();
    let (code, said, errors) = outcome(&desk.run(&again));
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(errors.contains("is not done and has had its 1 attempts"), "{errors}");
}

#[test]
fn the_command_finds_its_tick_and_the_one_before() {
    let desk = Desk::new();
    let show = "echo $LITELEASE_TICK $LITELEASE_PREVIOUS_TICK";
    let run = |tick: &str, script: &str| {
        outcome(&desk.run(&["run", "--tick", tick, "x", "--", "sh", "-c", script])).1
    };
    assert_eq!(run("1774746000000", show), "2026-03-29T01:00:00Z\n");
    assert_eq!(run("2026-03-30", "exit 1"), "");
    let inner = format!("{show}; litelease run other -- sh -c 'echo [$LITELEASE_TICK]'");
    let said = run("2026-03-31T02:00:00+02:00", &inner);
    assert_eq!(said, "2026-03-31T00:00:00Z 2026-03-29T01:00:00Z\n[]\n");
}

#[test]
fn two_commands_under_one_name_are_told() {
    let desk = Desk::new();
    let run = |command: &str| {
        outcome(&desk.run(&["run", "--once-per", "1d", "x", "--", "echo", command]))
    };
    assert_eq!(run("a").1, "a\n");
    assert_eq!(run("a"), (0, String::new(), String::new()));
    let (code, said, errors) = run("b");
    assert_eq!((code, said.as_str()), (0, ""));
    assert!(errors.contains("is taken by another command under this name"), "{errors}");
}

#[test]
fn whether_it_ran_last_night_can_be_asked() {
    let desk = Desk::new();
    assert_eq!(desk.run(&["ticks", "nightly", "--late", "26h"]).status.code(), Some(1));
    let (tick, now) = ("--tick", "now");
    let run = |script| desk.run(&["run", tick, now, "nightly", "--", "sh", "-c", script]);
    assert_eq!(run("exit 4").status.code(), Some(4));
    assert_eq!(
        desk.run(&["ticks", "nightly", "--late", "26h"]).status.code(),
        Some(1),
        "it failed"
    );
    assert_eq!(run("exit 0").status.code(), Some(0));
    assert_eq!(desk.run(&["ticks", "nightly", "--late", "26h"]).status.code(), Some(0));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(desk.run(&["ticks", "--late", "10ms"]).status.code(), Some(1));
    let listed: Value = serde_json::from_str(&outcome(&desk.run(&["ticks", "--json"])).1).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&"nightly".into(), &"done".into()));
    assert_eq!(listed[0]["attempt"], 1);
    let table = outcome(&desk.run(&["ticks"])).1;
    assert!(
        table.contains("NAME") && table.contains("1 of 5") && table.contains("done"),
        "{table}"
    );
}

#[test]
fn operators_pause_repeat_and_forget() {
    let desk = Desk::new();
    let run = || desk.run(&["run", "--once-per", "1d", "x", "--", "echo", "ran"]);
    let said = |words: &[&str]| {
        let (code, said, errors) = outcome(&desk.run(&[&["ticks"], words].concat()));
        (code, said + &errors)
    };
    assert_eq!(outcome(&run()).1, "ran\n");
    assert_eq!(outcome(&run()).1, "");
    assert_eq!(said(&["again", "x"]).0, 0);
    assert_eq!(outcome(&run()).1, "ran\n");
    let (code, text) = said(&["skip", "x", "--until", "2999-01-01"]);
    assert_eq!((code, text.as_str()), (0, "x: skipped up to 2999-01-01T00:00:00Z\n"));
    assert_eq!(outcome(&run()).1, "");
    assert!(said(&[]).1.contains("skipped"));
    assert_eq!(said(&["skip", "--all"]).0, 0);
    let held = desk.start(&["--tick", "now", "x"], "echo $$ > pid; sleep 100");
    desk.pid("pid");
    assert!(said(&[]).1.contains("running"));
    for words in [&["again", "x"][..], &["forget", "x"], &["skip", "x"]] {
        let (code, text) = said(words);
        assert!(code == 1 && text.contains("x is held by"), "{words:?}: {text}");
    }
    assert_eq!(said(&["skip", "x", "--break"]).0, 0);
    assert_eq!(held.end().0, 75, "its lease is broken");
    assert_eq!(said(&["forget", "x"]).0, 0);
    assert_eq!(said(&["forget", "x"]), (1, "litelease: x has no tick\n".into()));
}

#[test]
fn what_makes_no_sense_is_refused_with_words_that_say_what_works() {
    let desk = Desk::new();
    for (words, text) in [
        (&["run", "--once-per", "0 25 * * *", "x", "--", "true"][..], "is no cron line"),
        (&["run", "--once-per", "0s", "x", "--", "true"], "more than zero"),
        (&["run", "--once-per", "1h", "--zone", "Middle/Earth", "x", "--", "true"], "time zone"),
        (&["run", "--attempts", "2", "x", "--", "true"], "add --once-per or --tick"),
        (&["run", "--tick", "yesterday", "x", "--", "true"], "a time is a date"),
        (&["run", "--tick", "now", "--slots", "2", "x", "--", "true"], "--slots does not work"),
        (&["run", "--tick", "2999-01-01", "x", "--", "true"], "a minute ahead of the clock"),
        (&["every", "1h", "x", "--db", "etcd://127.0.0.1:9/x", "--", "true"], "need the service"),
        (&["--db", "etcd://127.0.0.1:9/x", "ticks"], "need the service"),
        (&["ticks", "skip"], "required"),
        (&["every", "soon", "x", "--", "true"], "is no cron line"),
    ] {
        let (code, said, errors) = outcome(&desk.run(words));
        assert!(code == 64 || code == 69, "{words:?}: {code}");
        assert_eq!(said, "", "{words:?}");
        assert!(errors.contains(text), "{words:?}: {errors}");
    }
    let late = desk.run(&["run", "--tick", TICK, "--late", "1h", "x", "--", "echo", "never"]);
    let (code, said, errors) = outcome(&late);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(said.contains("is too late"), "{said}");
}

/// Two replicas with one schedule, of which each is ended and started again meanwhile.
#[test]
fn every_tick_is_run_once_among_all_that_have_the_schedule() {
    let desk = Desk::new();
    let script = "echo $LITELEASE_TICK >> log; sleep 0.1";
    let options = ["200ms", "--each", "--at-start", "rollup"];
    let replicas = [every(&desk, &options, script), every(&desk, &options, script)];
    let lines = || fs::read_to_string(desk.folder.path().join("log")).unwrap_or_default();
    eventually("some ticks were run", || lines().lines().count() >= 4);
    let [first, second] = replicas;
    let begin = Instant::now();
    first.signal(SIGTERM);
    assert_eq!(first.end().0, 128 + SIGTERM);
    assert!(begin.elapsed() < Duration::from_secs(20), "it drains, and does not go on");
    let before = lines().lines().count();
    eventually("the other one goes on", || lines().lines().count() >= before + 4);
    second.signal(SIGTERM);
    second.end();
    let lines = lines();
    let ticks: Vec<i64> = lines.lines().map(ms_of_day).collect();
    let steps: Vec<i64> = ticks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        steps.iter().all(|step| *step == 200),
        "in order, none twice and none left out: {lines}"
    );
}

/// Milliseconds of a day in a date of RFC 3339.
fn ms_of_day(text: &str) -> i64 {
    let time = text.split_once('T').unwrap().1.trim_end_matches('Z');
    let mut parts = time.split(':');
    let mut number = || parts.next().unwrap().parse::<f64>().unwrap();
    let seconds = number() * 3600.0 + number() * 60.0 + number();
    (seconds * 1000.0).round() as i64
}

#[test]
fn installing_a_schedule_runs_nothing() {
    let desk = Desk::new();
    let run = every(&desk, &["1d", "x"], "echo never >> log");
    let ticks = || desk.db().ticks().unwrap();
    eventually("it is installed", || desk.file.exists() && !ticks().is_empty());
    assert_eq!(ticks()[0].tick.newest().state, TickState::Skipped);
    // What an operator opens is run at once, within the time between two looks.
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 128 + SIGTERM);
    assert!(!desk.folder.path().join("log").exists());
    let _ = desk.db().tick_again("x").unwrap();
    let run = every(&desk, &["1d", "x"], "echo ran >> log");
    assert_eq!(desk.read("log"), "ran");
    eventually("it is done", || ticks()[0].tick.newest().state == TickState::Done);
    run.signal(SIGTERM);
    run.end();
}

#[test]
fn a_command_that_fails_is_repeated_under_its_grant() {
    let desk = Desk::new();
    let script = "echo $LITELEASE_TOKEN >> log; test $(wc -l < log) -gt 1 || exit 3";
    let run = desk.start(&["--retries", "2", "--tick", TICK, "x"], script);
    assert_eq!(run.end().0, 0);
    assert_eq!((desk.read("log").as_str(), newest(&desk, "x")), ("1\n1", is(TickState::Done)));
    let missing = desk.run(&["run", "--retries", "2", "y", "--", "/no/such/program"]);
    assert_eq!(missing.status.code(), Some(127), "what cannot be run is not repeated");
    let run = desk.start(&["--retries", "1", "--tick", "now", "z"], "exit 3");
    assert_eq!(run.end().0, 3);
    assert_eq!(newest(&desk, "z").state, TickState::Failed);
}

#[test]
fn a_command_that_is_asked_to_end_is_not_repeated_and_one_without_its_run_is_killed() {
    let desk = Desk::new();
    let words = ["--retries", "5", "--tick", TICK, "x"];
    let run = desk.start(&words, "trap 'exit 9' TERM; echo $$ > pid; while :; do sleep 0.1; done");
    desk.pid("pid");
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 9, "its own exit code");
    assert_eq!(newest(&desk, "x"), is(TickState::Open));
    let run = desk.start(&words, "echo $$ > second; sleep 100");
    let command = desk.pid("second");
    run.signal(SIGKILL);
    run.end();
    // SAFETY: no pointers are involved, and signal 0 only asks.
    eventually("it is killed, too", || unsafe { libc::kill(command, 0) } != 0);
}

/// No other process can be granted the tick while the file is locked, so the run waits.
#[test]
fn a_run_whose_file_is_locked_beyond_its_ttl_finishes_its_tick_late() {
    let desk = Desk::new();
    let script = "echo $$ > pid; until test -e go; do sleep 0.05; done";
    let run = desk.start(&["--ttl", "1s", "--kill-grace", "50ms", "--tick", TICK, "x"], script);
    desk.pid("pid");
    let db = desk.db();
    db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(desk.folder.path().join("go"), "").unwrap();
    let expired = || desk.db().newest_tick("x").unwrap().unwrap().holder.is_none();
    eventually("its lease has run out", expired);
    db.conn().execute_batch("COMMIT").unwrap();
    assert_eq!(run.end().0, 0);
    assert_eq!(newest(&desk, "x"), is(TickState::Done));
}

#[test]
fn a_tick_in_sql_and_one_of_a_command_are_the_same() {
    let desk = Desk::new();
    let sql = |call: &str| -> litelease::rusqlite::Result<Option<i64>> {
        let db = desk.db();
        litelease::functions::register(db.conn()).unwrap();
        db.conn().query_row(&format!("SELECT {call}"), [], |row| row.get(0))
    };
    let own = format!("litelease_tick('sql', {TICK_MS})");
    assert_eq!((sql(&own).unwrap(), sql(&own).unwrap()), (Some(1), Some(0)));
    let late = desk.start(&["--tick", TICK, "sql"], "echo never >> log");
    assert_eq!(late.end().0, 0);
    assert!(!desk.folder.path().join("log").exists());
    let run =
        desk.start(&["--tick", TICK, "x"], "echo $$ > pid; until test -e go; do sleep 0.05; done");
    desk.pid("pid");
    let claim = format!("litelease_claim_tick('x', 'sql', 30000, {TICK_MS})");
    assert_eq!(sql(&claim).unwrap(), None, "a command is at it");
    let held = sql(&format!("litelease_tick('x', {TICK_MS})")).unwrap_err();
    assert!(held.to_string().contains("a holder is at work"), "{held}");
    fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end().0, 0);
    assert_eq!(sql(&claim).unwrap(), Some(0), "the command has done it");
    // And the other way round: the command waits for a holder in SQL.
    let claim = "litelease_claim_tick('y', 'sql', 30000, 60000)";
    assert_eq!(sql(claim).unwrap(), Some(1));
    let waiting = desk.start(&["--tick", "60000", "y"], "echo never >> log");
    assert_eq!(sql("litelease_finish_tick('y', 1)").unwrap(), Some(1));
    assert_eq!(waiting.end().0, 0);
    assert!(!desk.folder.path().join("log").exists());
}
