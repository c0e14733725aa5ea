//! `litelease run` with real processes: ended, killed, stopped, robbed of its lease and of its
//! file.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM};
use litelease::Litelease;
use litelease::rusqlite::Connection;
use litelease_proof::command::{
    Desk, ended, is_gone, is_running, kill, limits_end_commands, outcome, stays,
};
use litelease_proof::rig::{LONG, acquired, eventually, litelease, now_ms, report};

/// Writes its number to `child` and works until it is ended.
const WORK: &str = "echo $$ > child; while :; do sleep 0.05; done";
/// The same, deaf to all that can be ignored.
const DEAF: &str = "trap '' TERM INT HUP QUIT; echo $$ > child; while :; do sleep 0.05; done";

/// Fails if the name can be claimed before its lease is over, by whichever clock.
fn holder(db: &Litelease) -> Option<String> {
    db.owner("x").unwrap()
}

#[test]
fn the_command_finds_its_lease_in_its_environment_and_its_exit_code_is_passed_on() {
    let desk = Desk::new();
    let script = "echo $LITELEASE_NAME $LITELEASE_TOKEN $LITELEASE_DB; echo $LITELEASE_OWNER; \
                  litelease who x >/dev/null || exit 99; exit 7";
    let output = desk.run(&["run", "x", "--", "sh", "-c", script]);
    let (code, said, errors) = outcome(&output);
    assert_eq!((code, errors.as_str()), (7, ""));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("x 1 {}", desk.file.display()));
    assert!(lines[1].contains(" pid "), "{said}");
    assert_eq!(holder(&desk.db()), None, "released");

    let killed = desk.run(&["run", "x", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(outcome(&killed).0, 128 + 9);
    for (command, code) in [("/nowhere/to/be/found", 127), ("/etc/passwd", 126), ("/", 126)] {
        let (found, _, errors) = outcome(&desk.run(&["run", "x", "--", command]));
        assert_eq!(found, code, "{command}");
        assert!(errors.contains(command) && errors.lines().count() == 1, "{errors}");
    }
    assert_eq!(holder(&desk.db()), None, "nothing is left behind");
    assert_eq!(desk.db().token("x").unwrap(), Some(5));
}

/// A connection that is never closed leaves its -wal, and every next start reads all of it.
#[test]
fn a_command_that_has_ended_leaves_no_log_of_sqlite() {
    let desk = Desk::new();
    assert_eq!(outcome(&desk.run(&["queue", "send", "q", "body"])).0, 0);
    let lines: [&[&str]; 6] = [
        &["run", "x", "--", "true"],
        &["run", "x", "--", "false"],
        &["run", "--slots", "2", "y", "--", "true"],
        &["run", "x", "--", "/nowhere/to/be/found"],
        &[
            "run",
            "--ttl",
            "2s",
            "--kill-grace",
            "10ms",
            "--max-time",
            "300ms",
            "x",
            "--",
            "sleep",
            "60",
        ],
        &["work", "--drain", "q", "--", "cat"],
    ];
    for words in lines {
        let (_, _, errors) = outcome(&desk.run(words));
        let mut left: Vec<_> = fs::read_dir(desk.folder.path()).unwrap().flatten().collect();
        left.retain(|file| {
            let name = file.file_name();
            name.to_str().is_some_and(|name| name.ends_with("-wal") || name.ends_with("-shm"))
        });
        assert!(left.is_empty(), "{words:?}: {left:?} {errors}");
    }
}

#[test]
fn a_command_that_makes_no_progress_is_ended_and_one_that_does_is_not() {
    let desk = Desk::new();
    let options = ["--ttl", "2s", "--kill-grace", "100ms", "--progress-within", "1s", "x"];
    let stuck = desk.start(&options, WORK);
    let (code, errors) = stuck.end();
    assert_eq!(code, 75);
    assert!(errors.contains("lost the lease on x: no progress was made"), "{errors}");
    // Longer than its time and one ttl.
    let works = "end=$(($(date +%s) + 4)); while [ $(date +%s) -lt $end ]; do \
                 litelease lease progress || exit 99; sleep 0.1; done";
    assert_eq!(desk.start(&options, works).end(), (0, String::new()));
}

#[test]
fn progress_outside_a_run_needs_to_be_told_of_what() {
    let desk = Desk::new();
    let (code, _, errors) = outcome(&desk.run(&["lease", "progress"]));
    assert_eq!(code, 64);
    assert!(errors.contains("the name is missing"), "{errors}");
    let lease = acquired(desk.db().claim("x", "a", LONG));
    let token = lease.token.to_string();
    let noted = outcome(&desk.run(&["lease", "progress", "x", "--token", &token]));
    assert_eq!(noted, (0, "x: progress is noted\n".into(), String::new()));
    let late = outcome(&desk.run(&["lease", "progress", "x", "--token", "7"]));
    assert_eq!(late, (1, "x: rejected, unknown token\n".into(), String::new()));
    let never = outcome(&desk.run(&["lease", "progress", "y", "--token", "7"]));
    assert!(never.0 == 1 && never.1.contains("never claimed"), "{never:?}");
}

#[test]
fn a_command_is_ended_when_its_time_is_up() {
    let desk = Desk::new();
    let start = Instant::now();
    let run = desk.start(&["--ttl", "3s", "--kill-grace", "100ms", "--max-time", "4s", "x"], WORK);
    let (code, errors) = run.end();
    assert_eq!(code, 75);
    assert!(errors.contains("lost the lease on x: the time that it may be held is up"), "{errors}");
    assert!(start.elapsed() >= Duration::from_secs(3), "renewed before: {:?}", start.elapsed());
    assert_eq!(holder(&desk.db()), None);
    let refused = outcome(&desk.run(&["run", "--max-time", "2s", "x", "--", "true"]));
    assert!(refused.0 == 64 && refused.2.contains("is too short"), "{refused:?}");
    // The time is less than a tenth of the ttl.
    let options = ["--ttl", "60s", "--kill-grace", "100ms", "--max-time", "5s", "x"];
    assert_eq!(desk.start(&options, "true").end(), (0, String::new()));
}

#[test]
fn limits_of_a_slot_end_its_command() {
    let desk = Desk::new();
    limits_end_commands(&|words| desk.command(words), &["--slots", "1"]);
    // The pipe through which progress was noted is gone, too.
    let left = fs::read_dir(desk.folder.path()).unwrap().flatten();
    let left: Vec<_> = left.map(|file| file.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.contains("progress")), "{left:?}");
}

/// Progress is noted for the run around the command, and for no other.
#[test]
fn progress_of_a_slot_is_noted_inside_its_run_only() {
    let desk = Desk::new();
    let words = ["run", "--slots", "1", "--progress-within", "1m", "x", "--", "sh", "-c"];
    let inside = |script: &str| outcome(&desk.run(&[&words[..], &[script]].concat()));
    assert_eq!(inside("litelease lease progress").1, "x: progress is noted\n");
    assert_eq!(inside("litelease lease progress x --token $LITELEASE_TOKEN").0, 0);
    assert_eq!(inside("echo > $LITELEASE_PROGRESS").0, 0);
    assert_eq!(inside("litelease lease progress y").0, 64);
    assert_eq!(inside("litelease run z -- sh -c 'test -z \"$LITELEASE_PROGRESS\"'").0, 0);
    let kept = inside("echo $LITELEASE_PROGRESS").1;
    let gone = outcome(&ended(
        desk.command(&["lease", "progress"])
            .env("LITELEASE_PROGRESS", kept.trim())
            .env("LITELEASE_NAME", "x")
            .env("LITELEASE_TOKEN", "1"),
    ));
    assert!(gone.0 == 69 && gone.2.contains("is gone"), "{gone:?}");
}

#[test]
fn a_request_is_told_to_a_run_and_ends_its_command_if_it_goes_on() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "4s", "--kill-grace", "100ms", "x"], WORK);
    desk.pid("child");
    let start = Instant::now();
    let asked = outcome(&desk.run(&["lease", "request", "x", "--within", "1s", "-q"]));
    assert_eq!(asked, (0, "2\n".into(), String::new()));
    assert!(start.elapsed() > Duration::from_secs(1), "nothing is cut");
    let (code, errors) = run.end();
    assert_eq!(code, 75);
    assert!(errors.contains("x is requested by"), "{errors}");
    assert!(errors.contains("lost the lease on x: it was requested"), "{errors}");
}

#[test]
fn an_operator_takes_over_and_the_old_command_is_ended() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "10s", "--kill-grace", "100ms", "x"], WORK);
    desk.pid("child");
    let (code, said, errors) =
        outcome(&desk.run(&["lease", "take-over", "x", "--owner", "ops", "--yes"]));
    assert_eq!((code, said.as_str()), (0, "2\n"));
    assert!(errors.contains("x was taken over from") && errors.contains("token 1"), "{errors}");
    let (code, errors) = run.end();
    assert_eq!(code, 75);
    assert!(errors.contains("superseded by token 2 of ops"), "{errors}");
    assert_eq!(holder(&desk.db()).as_deref(), Some("ops"));
}

#[test]
fn pipes_work() {
    let desk = Desk::new();
    let mut command = desk.command(&["run", "x", "--", "tr", "a-z", "A-Z"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through a pipe\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "THROUGH A PIPE\n");
}

#[test]
fn who_does_not_get_the_name_says_who_has_it() {
    let desk = Desk::new();
    let first = desk.start(&["x"], WORK);
    desk.pid("child");
    let busy = desk.run(&["run", "-n", "x", "--", "true"]);
    let (code, _, errors) = outcome(&busy);
    assert_eq!(code, 1);
    assert!(errors.contains("x is held by") && errors.contains("(token 1)"), "{errors}");
    assert!(errors.contains(&format!("pid {}", first.pid())), "{errors}");
    assert_eq!(outcome(&desk.run(&["run", "-w", "100ms", "-E", "42", "x", "--", "true"])).0, 42);

    // One that waits for ever gets it when the first is done.
    let second = desk.start(&["x"], "echo $LITELEASE_TOKEN > second");
    eventually("it waits", || {
        desk.folder.path().join("leases.sqlite3-wakeup").exists().then_some(())
    });
    first.signal(SIGTERM);
    assert_eq!(desk.read("second"), "2");
    assert_eq!(first.end().0, 128 + SIGTERM);
    assert_eq!(second.end().0, 0);
}

#[test]
fn signals_reach_the_whole_group_and_the_lease_is_released_when_the_work_has_ended() {
    for signal in [SIGTERM, SIGINT, SIGQUIT, SIGHUP] {
        let desk = Desk::new();
        // The command takes its time to end, and its own child gets the signal, too.
        let script = format!(
            "trap 'echo heard > child; sleep 0.4; litelease who x > who; exit 3' {signal}; \
             sh -c 'trap \"echo heard > grandchild; exit\" {signal}; echo > ready; while :; do sleep 0.05; done'; \
             sleep 60"
        );
        let run = desk.start(&["x"], &script);
        desk.read("ready");
        run.signal(signal);
        assert_eq!(run.end().0, 3, "signal {signal}");
        assert_eq!((desk.read("child"), desk.read("grandchild")), ("heard".into(), "heard".into()));
        assert!(desk.read("who").contains("token 1"), "held until the end");
        assert_eq!(holder(&desk.db()), None);
    }
}

#[test]
fn a_signal_while_waiting_ends_the_waiting() {
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("x", "a", LONG));
    let run = desk.start(&["x"], "echo > started");
    eventually("it waits", || {
        desk.folder.path().join("leases.sqlite3-wakeup").exists().then_some(())
    });
    run.signal(SIGINT);
    assert_eq!(run.end().0, 128 + SIGINT);
    db.release(&lease).unwrap();
    assert_eq!((db.token("x").unwrap(), desk.peek("started")), (Some(1), String::new()));
}

#[test]
fn the_lease_is_kept_while_something_of_the_group_is_still_at_work() {
    let desk = Desk::new();
    let run = desk.start(&["x"], "(sleep 1; litelease who x > late) & exit 5");
    assert!(desk.read("late").contains("token 1"), "{}", desk.peek("late"));
    assert_eq!(run.end().0, 5);
    assert_eq!(holder(&desk.db()), None);
}

#[test]
fn when_the_wrapper_is_killed_its_group_dies_and_only_what_left_the_group_lives_on() {
    let desk = Desk::new();
    let script = "sleep 1000 & echo $! > grandchild; setsid sh -c 'echo $$ > left; exec sleep 1000' & \
                  trap '' TERM HUP; echo $$ > child; while :; do sleep 0.05; done";
    let run = desk.start(&["--ttl", "60s", "x"], script);
    let pids = ["child", "grandchild", "left"].map(|name| desk.pid(name));
    run.signal(SIGKILL);
    assert_eq!(run.end().0, 128 + SIGKILL);
    is_gone(pids[0]);
    is_gone(pids[1]);
    assert!(is_running(pids[2]), "what left the group is beyond us; the fence is for that");
    kill(pids[2], SIGKILL);
    // It was not released; a waiter gets it because no process of the group is left.
    let db = desk.db();
    let expiry = db.at(0).inspect("x").unwrap().unwrap().expires_at_ms;
    let next = db.claim_wait("x", "b", LONG, Duration::from_secs(60)).unwrap();
    assert_eq!(next.acquired().map(|lease| lease.token), Some(2));
    assert!(now_ms() < expiry);
}

#[test]
fn a_stopped_wrapper_cannot_end_its_command_but_does_so_when_it_goes_on() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "3s", "x"], WORK);
    let child = desk.pid("child");
    run.signal(SIGSTOP);
    let db = desk.db();
    let claimed = db.claim_wait("x", "b", LONG, Duration::from_secs(60)).unwrap();
    let successor = claimed.acquired().unwrap();
    assert_eq!(successor.token, 2);
    assert!(is_running(child), "only a fence stops it now");
    run.signal(SIGCONT);
    let (code, errors) = run.end();
    assert_eq!(code, 75, "{errors}");
    is_gone(child);
    assert_eq!(db.inspect("x").unwrap(), Some(successor), "the successor is left alone");
}

#[test]
fn an_operators_break_ends_the_command_and_its_group_at_once_and_runs_the_hook() {
    let desk = Desk::new();
    let script =
        format!("sh -c \"echo \\$\\$ > grandchild; {}\" & {DEAF}", DEAF.replace("$$", "deaf"));
    let hook = "echo $LITELEASE_NAME $LITELEASE_TOKEN $LITELEASE_LOST > hook";
    let words = ["--ttl", "30s", "--kill-grace", "200ms", "--on-lost", hook, "x"];
    let run = desk.start(&words, &script);
    let grandchild = desk.pid("grandchild");
    eventually("the child", || desk.peek("child").ends_with('\n').then_some(()));
    let (code, said, _) = outcome(&desk.run(&["break", "x", "--yes"]));
    assert_eq!(code, 0);
    assert!(said.contains("token 1") && said.contains("superseded"), "{said}");
    let (code, errors) = run.end();
    assert_eq!(
        (code, errors.as_str()),
        (75, "litelease: lost the lease on x: broken by an operator\n")
    );
    assert_eq!(desk.read("hook"), "x 1 broken by an operator");
    is_gone(grandchild);
    assert_eq!(desk.db().token("x").unwrap(), Some(2));
}

/// No overlap is promised where renewals fail. What an operator breaks is free at once, as
/// docs/cli.md says.
#[test]
fn a_successor_may_start_while_what_was_broken_still_has_its_grace() {
    let desk = Desk::new();
    let words = ["--ttl", "10m", "--kill-grace", "30s", "--on-lost", "echo > lost", "x"];
    let run = desk.start(&words, DEAF);
    let child = desk.pid("child");
    assert_eq!(outcome(&desk.run(&["break", "x", "--yes"])).0, 0);
    let (code, said, errors) = outcome(&desk.run(&["run", "-n", "x", "--", "echo", "successor"]));
    assert_eq!((code, said.as_str(), errors.as_str()), (0, "successor\n", ""));
    assert!(is_running(child), "the grace is over already");
    // A command that ends before its run has heard of the loss ends as commands do.
    eventually("the run has heard of it", || (!desk.peek("lost").is_empty()).then_some(()));
    kill(child, SIGKILL);
    assert_eq!(run.end().0, 75);
}

/// Runs a command that reports that it is alive, spoils its renewals, and checks that it was dead
/// before another owner could have been granted the name.
fn ends_in_time(desk: &Desk, words: &[&str], spoil: impl FnOnce()) -> String {
    // Deaf, so that only SIGKILL ends it; each line is a time at which it still worked.
    let script =
        "trap '' TERM; echo $$ > child; while :; do date +%s%3N >> alive; sleep 0.02; done";
    let run = desk.start(words, script);
    desk.pid("child");
    spoil();
    let (code, errors) = run.end();
    assert_eq!(code, 75, "{errors}");
    errors
}

fn last_alive_ms(desk: &Desk) -> i64 {
    desk.peek("alive").lines().filter_map(|line| line.parse().ok()).max().unwrap()
}

#[test]
fn a_file_locked_for_longer_than_the_ttl_ends_the_command_before_the_lease_does() {
    let desk = Desk::new();
    let mut db = desk.db();
    let mut tx = None;
    // Long enough that a busy machine ends it within the margin, which is a tenth.
    let errors = ends_in_time(&desk, &["--ttl", "6s", "x"], || {
        tx = Some(db.transaction().unwrap());
    });
    let pid = std::process::id();
    assert!(errors.contains(&format!("blocked by a writer: pid {pid}")), "{errors}");
    let expiry = tx.unwrap().at(0).inspect("x").unwrap().unwrap().expires_at_ms;
    let last = last_alive_ms(&desk);
    assert!(last < expiry, "alive {} ms after its lease", last - expiry);
}

#[test]
fn somebody_who_does_not_read_what_it_says_does_not_keep_it_from_ending_the_command() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "30s", "--kill-grace", "200ms", "x"], DEAF);
    let child = desk.pid("child");
    // Its standard error is a pipe that is full, and stays so.
    let mut options = fs::OpenOptions::new();
    let pipe = options.write(true).custom_flags(libc::O_NONBLOCK);
    let mut pipe = pipe.open(format!("/proc/{}/fd/2", run.pid())).unwrap();
    while pipe.write(&[b'x'; 4096]).is_ok() {}
    while pipe.write(b"x").is_ok() {}
    let _ = desk.db().break_lease("x").unwrap();
    is_gone(child);
    drop(pipe); // the other end is read until nobody can write any more
    assert_eq!(run.end_reading().0, 75);
}

#[test]
fn a_file_that_is_deleted_or_replaced_ends_the_command() {
    for replace in [false, true] {
        let desk = Desk::new();
        drop(desk.db());
        let errors = ends_in_time(&desk, &["--ttl", "3s", "x"], || {
            for suffix in ["", "-wal", "-shm"] {
                let _ = fs::remove_file(format!("{}{suffix}", desk.file.display()));
            }
            if replace {
                acquired(desk.db().claim("x", "successor", LONG));
            }
        });
        assert!(errors.contains("moved, deleted or replaced"), "{errors}");
        if replace {
            assert_eq!(holder(&desk.db()).as_deref(), Some("successor"));
        }
    }
}

#[test]
fn a_full_disk_ends_the_command_in_time_and_is_forgotten_when_there_is_space_again() {
    let mut desk = Desk::new();
    let small = desk.folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=512k", "tmpfs"])
        .arg(&small)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return report("SKIPPED: a full disk under litelease run (cannot mount a tmpfs)");
    }
    let _unmount = Unmount(&small);
    desk.file = small.join("leases.sqlite3");
    drop(desk.db());
    let filler = small.join("filler");
    let errors = ends_in_time(&desk, &["--ttl", "3s", "x"], || {
        let mut file = fs::File::create(&filler).unwrap();
        while file.write_all(&[7; 512]).is_ok() {}
    });
    assert!(errors.contains("cannot renew"), "{errors}");
    fs::remove_file(&filler).unwrap();
    let output = desk.run(&["run", "x", "--", "true"]);
    assert_eq!(outcome(&output).0, 0, "{output:?}");
}

#[test]
fn running_out_of_file_descriptors_is_told_and_leaves_no_lease_behind() {
    let mut codes = Vec::new();
    for limit in 4..=24 {
        let desk = Desk::new();
        drop(desk.db());
        let mut shell = Command::new("sh");
        let line = format!("ulimit -n {limit}; exec litelease run x -- true");
        shell.args(["-c", &line]).stdin(Stdio::null());
        desk.environment(&mut shell);
        let (code, _, errors) = outcome(&shell.output().unwrap());
        // With very few, not even the program can be loaded: that is the shell's 127.
        assert!([0, 69, 126, 127].contains(&code), "{limit}: {code} {errors}");
        assert!(!errors.contains("panicked"), "{limit}: {errors}");
        assert_eq!(holder(&desk.db()), None, "{limit}: {errors}");
        codes.push(code);
    }
    assert!(codes.contains(&69) && codes.last() == Some(&0), "{codes:?}");
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_file_or_folder_that_may_not_be_written_is_named() {
    let desk = Desk::new();
    drop(desk.db());
    // Root may write everything, so this needs another user.
    let nobody = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(litelease())
            .args(words);
        desk.environment(&mut command);
        command.output()
    };
    let readable =
        |mode: &str| Command::new("chmod").arg("-R").arg(mode).arg(desk.folder.path()).status();
    readable("a+rX").unwrap();
    if !nobody(&["--version"]).is_ok_and(|output| output.status.success()) {
        return report("SKIPPED: a read-only file under litelease run (cannot become nobody)");
    }
    let (code, _, errors) = outcome(&nobody(&["run", "x", "--", "true"]).unwrap());
    assert_eq!(code, 69, "{errors}");
    assert!(errors.contains(desk.file.to_str().unwrap()) && errors.contains("--db"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert_eq!(desk.db().token("x").unwrap(), None);
}

/// A command under another clock.
pub(super) fn faketime(desk: &Desk, shift: &str, words: &[&str]) -> Option<Command> {
    let mut command = Command::new("faketime");
    command.args(["-f", shift]).arg(litelease()).args(words);
    desk.environment(&mut command);
    command.current_dir(desk.folder.path());
    // Only the wall clock is set.
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1");
    let is_there = Command::new("faketime").arg("--version").output().is_ok();
    if !is_there {
        report("SKIPPED: another clock under litelease run (faketime is missing)");
    }
    is_there.then_some(command)
}

#[test]
fn a_clock_that_is_a_day_ahead_takes_over_and_the_old_holder_is_told() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "5s", "x"], WORK);
    let child = desk.pid("child");
    let Some(mut ahead) = faketime(&desk, "+1d", &["claim", "x", "--owner", "b", "--ttl", "1h"])
    else {
        return;
    };
    let (code, token, errors) = outcome(&ahead.output().unwrap());
    assert_eq!((code, token.as_str()), (0, "2\n"), "tokens stay ordered: {errors}");
    let (code, errors) = run.end();
    assert_eq!(code, 75);
    assert!(errors.contains("superseded by token 2 of b"), "{errors}");
    is_gone(child);
}

#[test]
fn a_holder_whose_clock_is_an_hour_behind_is_succeeded_told_and_never_revived() {
    let desk = Desk::new();
    let Some(mut behind) =
        faketime(&desk, "-1h", &["run", "--ttl", "5s", "x", "--", "sh", "-c", WORK])
    else {
        return;
    };
    let mut child = behind.stderr(Stdio::piped()).spawn().unwrap();
    let work = desk.pid("child");
    // By the clock of everybody else, its lease was over before it began.
    let db = desk.db();
    let next = acquired(db.claim("x", "b", LONG));
    assert_eq!(next.token, 2);
    let status = eventually("its end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(75));
    is_gone(work);
    assert_eq!(db.inspect("x").unwrap(), Some(next));
}

#[test]
fn a_waiter_whose_clock_is_an_hour_behind_is_woken_by_a_release_all_the_same() {
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("x", "a", LONG));
    let Some(mut behind) = faketime(&desk, "-1h", &["run", "x", "--", "true"]) else { return };
    let mut child = behind.spawn().unwrap();
    eventually("it waits", || {
        desk.folder.path().join("leases.sqlite3-wakeup").exists().then_some(())
    });
    db.release(&lease).unwrap();
    assert!(eventually("its end", || child.try_wait().unwrap()).success());
}

#[test]
fn a_command_may_run_for_longer_than_its_ttl() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "4s", "x"], WORK);
    desk.pid("child");
    let db = desk.db();
    assert!(stays(Duration::from_secs(6), || holder(&db).is_some()), "it was free in between");
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 128 + SIGTERM);
}

#[test]
fn two_hundred_runs_at_once_are_all_served_and_never_two_at_a_time() {
    let desk = Desk::new();
    drop(desk.db());
    let begin = Instant::now();
    // mkdir fails if another command is inside.
    let script =
        "mkdir inside || echo overlap >> overlap; echo $LITELEASE_TOKEN >> tokens; rmdir inside";
    for _ in 0..5 {
        let runs: Vec<_> = (0..40).map(|_| desk.start(&["x"], script)).collect();
        for run in runs {
            let (code, errors) = run.end();
            assert_eq!((code, errors.as_str()), (0, ""));
        }
    }
    assert_eq!(desk.peek("overlap"), "");
    let tokens: Vec<i64> = desk.peek("tokens").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(tokens, (1..=200).collect::<Vec<i64>>());
    report(&format!("200 runs in {:?}", begin.elapsed()));
}

/// Cron starts everything at the same minute. SQLite lets one of them write at a time, and the
/// others have to wait for that, even those who do not wait for a name; in a file with a rollback
/// journal, for looking at it, too.
#[test]
fn a_hundred_jobs_that_start_at_once_under_different_names_all_run() {
    // A new file gets a write-ahead log, and is there in the second round.
    for (journal, rounds) in [("wal", 2), ("delete", 1)] {
        let desk = Desk::new();
        if journal == "delete" {
            Connection::open(&desk.file).unwrap().execute_batch("CREATE TABLE t (id)").unwrap();
        }
        for round in 1..=rounds {
            let names: Vec<String> = (0..100).map(|job| format!("job-{job}")).collect();
            let runs: Vec<_> = names.iter().map(|name| desk.start(&["-n", name], "true")).collect();
            for run in runs {
                let (code, errors) = run.end();
                assert_eq!((code, errors.as_str()), (0, ""), "journal: {journal}, round {round}");
            }
            let db = desk.db();
            for name in &names {
                assert_eq!((db.token(name).unwrap(), db.owner(name).unwrap()), (Some(round), None));
            }
        }
    }
}

/// A process of another program that is stopped in the middle of a commit, until it gets a signal
/// to go on.
struct StoppedWriter(std::process::Child);

impl StoppedWriter {
    fn new(desk: &Desk, begin: &str) -> Self {
        let mut sqlite = Command::new("sqlite3");
        let sqlite = sqlite.arg(&desk.file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sqlite = sqlite.spawn().expect("sqlite3 is there");
        let script = format!("{begin}; CREATE TABLE q (id);\n.print writing\n");
        sqlite.stdin.as_mut().unwrap().write_all(script.as_bytes()).unwrap();
        let mut said = [0; 8];
        std::io::Read::read_exact(sqlite.stdout.as_mut().unwrap(), &mut said).unwrap();
        kill(sqlite.id() as i32, SIGSTOP);
        StoppedWriter(sqlite)
    }

    fn go_on(mut self) {
        self.0.stdin.take().unwrap().write_all(b"COMMIT;\n").unwrap();
        kill(self.0.id() as i32, SIGCONT);
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn a_writer_that_is_stopped_is_waited_for_and_a_name_that_is_held_is_told_at_once() {
    std::thread::scope(|scope| {
        scope.spawn(|| behind_a_stopped_writer("wal", "BEGIN IMMEDIATE", 4));
        // With a rollback journal no process can even read while another one commits. It takes
        // longer than an attempt to open.
        scope.spawn(|| behind_a_stopped_writer("delete", "BEGIN EXCLUSIVE", 11));
    });
}

fn behind_a_stopped_writer(journal: &str, begin: &str, time: u64) {
    let desk = Desk::new();
    if journal == "delete" {
        Connection::open(&desk.file).unwrap().execute_batch("CREATE TABLE t (id)").unwrap();
    }
    acquired(desk.db().claim("held", "a", LONG));
    let writer = StoppedWriter::new(&desk, begin);
    let waits: [&[&str]; 3] = [&["-n", "x"], &["-w", "3s", "y"], &["z"]];
    let mut runs = waits.map(|words| desk.start(words, "echo $LITELEASE_NAME >> ran"));
    let mut claim =
        desk.command(&["claim", "c", "-w", "1s"]).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    if journal == "wal" {
        assert_eq!(outcome(&desk.run(&["run", "-n", "held", "--", "true"])).0, 1);
    }
    assert!(
        stays(Duration::from_secs(time), || {
            runs.iter_mut().all(|run| run.child.try_wait().unwrap().is_none())
                && claim.try_wait().unwrap().is_none()
        }),
        "{journal}: one of them has given up after {:?}",
        begin.elapsed()
    );
    assert_eq!(desk.peek("ran"), "");
    writer.go_on();
    for run in runs {
        assert_eq!(run.end(), (0, String::new()), "{journal}");
    }
    assert!(claim.wait().unwrap().success());
    assert_eq!(desk.peek("ran").lines().count(), 3);
}

#[test]
fn a_lease_is_released_behind_a_writer_that_takes_long() {
    let desk = Desk::new();
    drop(desk.db());
    let run = desk.start(
        &["--ttl", "60s", "x"],
        "echo > child; while [ ! -e go ]; do sleep 0.05; done; exit 3",
    );
    desk.read("child");
    let writer = StoppedWriter::new(&desk, "BEGIN IMMEDIATE");
    fs::write(desk.folder.path().join("go"), "").unwrap();
    std::thread::sleep(Duration::from_secs(7));
    writer.go_on();
    assert_eq!(run.end(), (3, String::new()));
    assert_eq!(holder(&desk.db()), None);
}

#[test]
fn a_name_inside_its_own_run_is_an_error_and_another_file_or_a_lease_that_is_over_is_not() {
    let desk = Desk::new();
    let nested = |script: &str| outcome(&desk.run(&["run", "x", "--", "sh", "-c", script]));
    let inner = [
        "litelease run x -- echo never",
        "litelease run -n x -- echo never",
        "litelease run --db ./leases.sqlite3 x -- echo never",
        "litelease run y -- litelease run x -- echo never",
        "litelease run y -- litelease run z -- litelease run y -- echo never",
        "litelease wait x",
        "litelease wait x -w 3s",
        "litelease claim x -w 3s",
        "litelease run y -- litelease claim x -w 3s",
    ];
    for line in inner {
        let (code, said, errors) = nested(line);
        assert_eq!((code, said.as_str()), (64, ""), "{line}: {errors}");
        assert!(errors.contains("it would wait for itself"), "{line}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{line}: {errors}");
    }
    for line in ["litelease run --db other.sqlite3 x -- echo fine", "litelease run y -- echo fine"]
    {
        assert_eq!(nested(line), (0, "fine\n".into(), String::new()), "{line}");
    }
    // What does not wait is answered.
    for line in ["litelease claim x", "litelease claim x -w 0", "litelease wait x -w 0"] {
        assert_eq!(nested(line).0, 1, "{line}");
    }
    // What left the group still has the environment when the lease is long over.
    let script = "setsid sh -c 'while litelease who x > who; do sleep 0.05; done; litelease run x -- echo fine > late' \
                  > /dev/null 2>&1 &";
    assert_eq!(nested(script).0, 0);
    assert_eq!(desk.read("late"), "fine");
}

#[test]
fn the_dashes_before_a_command_may_be_left_out() {
    let desk = Desk::new();
    let run = |words: &[&str]| outcome(&desk.run(&[&["run"], words].concat()));
    for words in [
        &["x", "echo", "-n", "--json", "-w"][..],
        &["-n", "x", "echo", "-n", "--json", "-w"],
        &["x", "-w", "3s", "echo", "-n", "--json", "-w"],
        &["x", "--", "echo", "-n", "--json", "-w"],
    ] {
        assert_eq!(run(words), (0, "--json -w".into(), String::new()), "{words:?}");
    }
    assert_eq!(run(&["x", "--", "printf", "%s,", "--", "a"]), (0, "--,a,".into(), String::new()));
    let cases: [(&[&str], &str); 5] = [
        (&["x", "git", "checkout", "--", "f"], "litelease run x -- git checkout -- f"),
        (&["--", "echo", "never"], "a name is missing before the --"),
        (&["--", "echo"], "litelease run NAME -- COMMAND"),
        (&["x"], "litelease run NAME -- COMMAND"),
        (&["x", "--wat", "echo"], "unexpected argument '--wat'"),
    ];
    for (words, text) in cases {
        let (code, said, errors) = run(words);
        assert_eq!((code, said.as_str()), (64, ""), "{words:?}");
        assert!(errors.contains(text), "{words:?}: {errors}");
    }
    let db = desk.file.to_str().unwrap();
    assert_eq!(outcome(&desk.run(&["write", "--db", db, "echo", "-n", "hi"])).1, "hi");
}

/// `nohup` asks for signals to be ignored, by us and by the command.
#[test]
fn a_signal_that_was_ignored_before_stays_ignored() {
    let desk = Desk::new();
    let script =
        "trap '' HUP; exec litelease run x -- sh -c 'kill -HUP $PPID; kill -HUP $$; echo alive'";
    let mut shell = Command::new("sh");
    desk.environment(shell.args(["-c", script]).current_dir(desk.folder.path()));
    let (code, out, _) = outcome(&shell.output().unwrap());
    assert_eq!((code, out.as_str()), (0, "alive\n"));
}

/// Some daemons ignore SIGCHLD, and so do their children: then the kernel reports to no process how
/// a child has ended.
#[test]
fn the_end_of_a_command_is_heard_of_although_sigchld_was_ignored() {
    let desk = Desk::new();
    let mut command = desk.command(&["run", "x", "--", "sh", "-c", "exit 3"]);
    // SAFETY: no pointers are involved, and it is allowed between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            Ok(())
        });
    }
    let mut run = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        match run.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if begin.elapsed() > Duration::from_secs(30) => {
                run.kill().unwrap();
                panic!("it still waits for a command that has ended");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status, Some(3));
    assert_eq!(holder(&desk.db()), None, "released");
}

/// A process that ends the group must know it before the command can start anything.
#[test]
fn a_wrapper_that_is_killed_in_its_first_moments_leaves_nobody_behind() {
    for round in 0..30 {
        let desk = Desk::new();
        // A time for which no other process sleeps.
        let time = format!("70.{}{round:03}", std::process::id());
        let run = desk.start(&["x"], &format!("sleep {time} & sleep {time}"));
        std::thread::sleep(Duration::from_millis(round));
        kill(run.pid(), SIGKILL);
        drop(run.end());
        eventually("nobody is left", || {
            let found =
                Command::new("pgrep").args(["-f", &format!("sleep {time}")]).output().unwrap();
            found.stdout.is_empty().then_some(())
        });
    }
}

#[test]
fn a_hook_that_takes_long_can_be_ended() {
    let desk = Desk::new();
    let run = desk.start(&["--ttl", "2s", "--on-lost", "exec sleep 60", "x"], "sleep 60");
    let db = desk.db();
    eventually("it is held", || holder(&db));
    let _ = db.break_lease("x").unwrap();
    let begin = Instant::now();
    eventually("the hook runs", || {
        let found =
            Command::new("pgrep").args(["-P", &run.pid().to_string(), "sleep"]).output().unwrap();
        (!found.stdout.is_empty()).then_some(())
    });
    std::thread::sleep(Duration::from_millis(1_500));
    run.signal(SIGTERM);
    let (code, _) = run.end();
    assert_eq!(code, 75);
    assert!(begin.elapsed() < Duration::from_secs(50), "it waited for the hook");
}
