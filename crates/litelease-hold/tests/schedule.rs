//! Schedules, compared with a count of every minute around every change of ten zones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::env;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use litelease_core::{Tick, TickState, installed};
use litelease_hold::schedule::{Due, Planning, Schedule, due};

const ZONES: [&str; 12] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "America/New_York",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Kolkata",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "Pacific/Apia",
];

const LINES: [&str; 14] = [
    "*/15 * * * *",
    "30 * * * *",
    "*/10 2 * * *",
    "0 */2 * * *",
    "30 1 * * *",
    "0 2 * * *",
    "30 2 * * *",
    "45 1 * * *",
    "15,45 0-3 * * *",
    "0 0 * * *",
    "1 0 * * *",
    "0 3 * * 0",
    "0 2 1 * 0",
    "59 23 31 12 *",
];

/// Years of changes: `LITELEASE_THOROUGH=1` has forty of them.
const YEARS: [&str; 2] = ["2009", "2031"];
const MORE_YEARS: [&str; 2] = ["1999", "2039"];

#[test]
fn every_change_of_a_zone_is_walked_as_a_count_of_its_minutes_finds_it() {
    let years = if env::var_os("LITELEASE_THOROUGH").is_some() { MORE_YEARS } else { YEARS };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/count_minutes.py");
    let mut python = Command::new("python3");
    python.arg(script).args(years).args(ZONES).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().expect("python3 runs");
    python.stdin.take().unwrap().write_all(LINES.join("\n").as_bytes()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let (mut windows, mut ticks) = (0, 0);
    for row in String::from_utf8(output.stdout).unwrap().lines() {
        let mut columns = row.split('|');
        let mut column = || columns.next().unwrap();
        let (zone, first, last, line) = (column(), column(), column(), column());
        let (first, last): (i64, i64) = (first.parse().unwrap(), last.parse().unwrap());
        let expected: Vec<i64> = columns.map(|minute| minute.parse().unwrap()).collect();
        let schedule = Schedule::cron(line).unwrap().in_zone(zone).unwrap();
        let place = format!("{line} {zone} from {first}");
        assert_eq!(forwards(&schedule, first, last), expected, "{place}");
        assert_eq!(backwards(&schedule, first, last), expected, "backwards: {place}");
        windows += 1;
        ticks += expected.len();
    }
    println!("{windows} windows, {ticks} ticks");
    assert!(windows > 4_000 && ticks > 30_000, "{windows} windows, {ticks} ticks");
}

fn forwards(schedule: &Schedule, first: i64, last: i64) -> Vec<i64> {
    let mut found = Vec::new();
    let mut at_ms = first * 60_000 - 1;
    while let Some(next) = schedule.next(at_ms).filter(|next| *next <= last * 60_000) {
        assert!(next > at_ms, "it does not move on");
        assert_eq!(schedule.previous(next), Some(next), "a tick is its own newest");
        found.push(next / 60_000);
        at_ms = next;
    }
    found
}

fn backwards(schedule: &Schedule, first: i64, last: i64) -> Vec<i64> {
    let mut found = Vec::new();
    let mut at_ms = last * 60_000;
    while let Some(previous) = schedule.previous(at_ms).filter(|tick| *tick >= first * 60_000) {
        found.push(previous / 60_000);
        at_ms = previous - 1;
    }
    found.reverse();
    found
}

fn hours(hours: i64) -> i64 {
    hours * 3_600_000
}

fn cron(line: &str) -> Schedule {
    Schedule::cron(line).unwrap()
}

#[test]
fn periods_are_multiples_since_the_epoch_and_days_begin_at_midnight_of_their_zone() {
    let every = |ms| Schedule::every(Duration::from_millis(ms)).unwrap();
    assert_eq!(every(20).previous(59), Some(40));
    assert_eq!(every(20).next(40), Some(60));
    assert_eq!(every(20).previous(-1), Some(-20));
    assert_eq!(every(86_400_000).previous(hours(30)), Some(hours(24)));
    let daily = every(86_400_000).in_zone("Europe/Berlin").unwrap();
    // The 29th of March 2026 has 23 hours.
    let midnight = 1_774_738_800_000;
    assert_eq!(daily.previous(midnight), Some(midnight));
    assert_eq!(daily.next(midnight), Some(midnight + hours(23)));
    assert_eq!(daily.next(midnight - 1), Some(midnight));
    let hourly = every(3_600_000).in_zone("Asia/Kolkata").unwrap();
    assert_eq!(hourly.next(0), Some(hours(1)), "only whole days begin at midnight");
    assert_eq!([daily.to_string(), every(90_000).to_string()], ["1d Europe/Berlin", "90s"]);
    for period in [Duration::ZERO, Duration::from_micros(1500), Duration::MAX] {
        assert!(Schedule::every(period).is_err(), "{period:?}");
    }
}

#[test]
fn lines_are_read_as_cron_reads_them() {
    let monday = 1_767_571_200_000; // the 5th of January 2026
    assert_eq!(cron("@daily").next(0), Some(hours(24)));
    assert_eq!(cron("@hourly").next(0), Some(hours(1)));
    assert_eq!(cron("@weekly").previous(monday), Some(monday - hours(24)));
    assert_eq!(cron("0 9 * jan MON-fri").next(monday), Some(monday + hours(9)));
    assert_eq!(cron("0 0 * * 7").previous(monday), cron("0 0 * * 0").previous(monday));
    // A day of the month or a day of the week, if neither is a star.
    assert_eq!(cron("0 0 6 * 1").next(monday), Some(monday + hours(24)));
    let leap_day = cron("0 0 29 2 *").next(monday).unwrap();
    assert_eq!(leap_day, 1_835_395_200_000, "the 29th of February 2028");
    assert_eq!(cron(" 0\t3  * * * ").to_string(), "0 3 * * *");
    for line in [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* * * * MONN",
        "@reboot",
        "@every 5m",
        "5-1 * * * *",
    ] {
        let error = Schedule::cron(line).unwrap_err().to_string();
        assert!(error.contains(&format!("{line:?}")), "{error}");
    }
    let never = Schedule::cron("0 0 30 2 *").unwrap_err();
    assert!(never.to_string().ends_with("there is no such day"), "{never}");
    let zone = cron("@daily").in_zone("Middle/Earth").unwrap_err();
    assert!(zone.to_string().contains("no time zone \"Middle/Earth\""), "{zone}");
}

#[test]
fn times_that_no_calendar_has_are_no_ticks() {
    for schedule in [cron("* * * * *"), cron("0 3 * * *").in_zone("Europe/Berlin").unwrap()] {
        for ms in [i64::MIN, i64::MAX] {
            assert_eq!((schedule.previous(ms), schedule.next(ms)), (None, None));
        }
    }
}

fn done(tick_ms: i64) -> Tick {
    Tick { state: TickState::Done, attempt: 1, ..installed(tick_ms, tick_ms) }
}

fn open(tick_ms: i64, attempt: i64) -> Tick {
    Tick { state: TickState::Open, attempt, ..installed(tick_ms, tick_ms) }
}

#[test]
fn several_missed_ticks_are_one_run_and_installing_runs_nothing() {
    let hourly = cron("0 * * * *");
    let plain = Planning::default();
    let now = hours(10) + 5;
    assert_eq!(due(None, &hourly, plain, now), Due::Install(hours(10)));
    let at_start = Planning { at_start: true, ..plain };
    assert_eq!(due(None, &hourly, at_start, now), Due::Now(hours(10)));
    let wait = Due::Wait(Some(hours(11)));
    assert_eq!(due(Some((done(hours(10)), true)), &hourly, plain, now), wait);
    assert_eq!(due(Some((done(hours(7)), true)), &hourly, plain, now), Due::Now(hours(10)));
    assert_eq!(due(Some((open(hours(7), 1), true)), &hourly, plain, now), Due::Now(hours(10)));
    // A holder may be gone, so the open one is claimed.
    assert_eq!(due(Some((open(hours(10), 1), true)), &hourly, plain, now), Due::Now(hours(10)));
    // A tick that no schedule has planned, such as the time of a skip, is due when it is opened.
    assert_eq!(
        due(Some((open(hours(10) + 2, 0), true)), &hourly, plain, now),
        Due::Now(hours(10) + 2)
    );
    let paused = Tick { skipped_ms: Some(hours(99)), ..done(hours(9)) };
    assert_eq!(due(Some((paused, true)), &hourly, plain, now), wait);
}

#[test]
fn a_late_tick_is_not_begun_unless_an_operator_has_opened_it() {
    let (daily, now) = (cron("0 3 * * *"), hours(27) + hours(2));
    let late = |late_ms| Planning { late_ms: Some(late_ms), ..Planning::default() };
    let wait = Due::Wait(Some(hours(51)));
    let stored = Some((done(hours(3)), true));
    assert_eq!(due(stored, &daily, late(hours(2)), now), Due::Now(hours(27)));
    assert_eq!(due(stored, &daily, late(hours(2) - 1), now), wait);
    assert_eq!(due(Some((open(hours(27), 1), true)), &daily, late(hours(1)), now), wait);
    assert_eq!(
        due(Some((open(hours(27), 0), true)), &daily, late(hours(1)), now),
        Due::Now(hours(27))
    );
    assert_eq!(due(None, &daily, late(hours(1)), now), Due::Install(hours(27)));
}

#[test]
fn each_tick_is_run_in_order_none_older_than_a_day_and_only_of_the_same_schedule() {
    let (hourly, each) = (cron("0 * * * *"), Planning { each: true, ..Planning::default() });
    let now = hours(100) + 5;
    let next = |tick, is_same| due(Some((tick, is_same)), &hourly, each, now);
    assert_eq!(next(done(hours(97)), true), Due::Now(hours(98)));
    assert_eq!(next(open(hours(97), 2), true), Due::Now(hours(97)), "the open one first");
    assert_eq!(next(done(hours(100)), true), Due::Wait(Some(hours(101))));
    assert_eq!(next(done(hours(10)), true), Due::Now(hours(77)), "within a day");
    assert_eq!(next(open(hours(10), 1), true), Due::Now(hours(77)));
    assert_eq!(next(done(hours(10)), false), Due::Now(hours(100)), "another schedule planned it");
    let brief = Planning { late_ms: Some(hours(2)), ..each };
    assert_eq!(due(Some((done(hours(10)), true)), &hourly, brief, now), Due::Now(hours(99)));
}
