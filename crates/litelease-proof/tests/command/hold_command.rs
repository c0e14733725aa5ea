//! `litelease hold`, a lease beside a program: granted, asked, requested, lost and released over
//! pipes, on a file, a server and engines; and the programs of the page about it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGINT, SIGKILL, SIGSTOP, SIGTERM};
use litelease_proof::command::{Desk, Run, ended, outcome, stays};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::{LONG, acquired, eventually, report};
use litelease_proof::server::Server;
use serde_json::Value;

/// A running `litelease hold`, with the pipes of the program that has started it.
struct Hold {
    run: Run,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

/// How long a line may take on a busy machine.
const SOON: Duration = Duration::from_secs(20);

impl Hold {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child: Child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Hold { run: Run { child }, input, lines }
    }

    fn on(desk: &Desk, words: &[&str]) -> Self {
        Hold::start(&mut desk.command(&[&["hold"], words].concat()))
    }

    /// Waits for the next line.
    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(SOON).unwrap()
    }

    /// Waits until the name is granted, and returns the token.
    #[track_caller]
    fn granted(&self) -> i64 {
        let line = self.line();
        line.strip_prefix("granted ").and_then(|token| token.parse().ok()).expect(&line)
    }

    fn write(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Writes a line, and returns the answer to it.
    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.write(line);
        self.line()
    }

    /// Returns how long the lease is trusted.
    #[track_caller]
    fn trusted_ms(&mut self) -> u64 {
        let line = self.ask("check");
        line.strip_prefix("trusted ").and_then(|time| time.parse().ok()).expect(&line)
    }

    fn close(&mut self) {
        self.input = None;
    }

    /// Waits for its end. Returns the exit code and the lines that were not read yet.
    #[track_caller]
    fn end(self) -> (i32, Vec<String>, String) {
        let (code, errors) = self.run.end();
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(SOON) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return (code, rest, errors),
                Err(error) => panic!("its output does not end: {error}"),
            }
        }
    }

    /// Expects that it ends with success and without another line.
    #[track_caller]
    fn ends_well(self) {
        assert_eq!(self.end(), (0, vec![], String::new()));
    }
}

#[test]
fn the_name_is_released_by_a_line_by_the_end_of_the_input_and_by_a_signal() {
    let desk = Desk::new();
    type End = fn(&mut Hold);
    let ends: [End; 4] = [
        |hold| hold.write("release"),
        Hold::close,
        |hold| hold.run.signal(SIGTERM),
        |hold| hold.run.signal(SIGINT),
    ];
    for (end, token) in ends.iter().zip(1..) {
        let mut hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
        assert_eq!(hold.granted(), token);
        let owner = desk.db().owner("x").unwrap().unwrap();
        assert!(owner.contains(&format!(" pid {} ", hold.run.pid())), "{owner}");
        end(&mut hold);
        hold.ends_well();
        assert_eq!(desk.db().owner("x").unwrap(), None);
    }
}

#[test]
fn a_held_name_is_renewed_without_any_work_of_the_program() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "1s"]);
    hold.granted();
    assert!(stays(Duration::from_millis(2500), || desk.db().owner("x").unwrap().is_some()));
    let trusted_ms = hold.trusted_ms();
    assert!((1..=900).contains(&trusted_ms), "{trusted_ms}");
    hold.close();
    hold.ends_well();
}

/// The program is killed with -9: nothing but the kernel closes its end of the pipe.
#[test]
fn a_program_that_is_killed_frees_the_name_long_before_the_ttl() {
    let desk = Desk::new();
    let mut shell = Command::new("bash");
    let script = "coproc HOLD { exec litelease hold --ttl 60s x; }; read -r line <&${HOLD[0]}; \
                  echo $line > granted; read -r line <&${HOLD[0]}";
    shell.args(["-c", script]).current_dir(desk.folder.path());
    desk.environment(&mut shell);
    let host = Run { child: shell.stdin(Stdio::null()).spawn().unwrap() };
    assert_eq!(desk.read("granted"), "granted 1");
    let mut next = Hold::on(&desk, &["x", "--ttl", "60s", "--wait", "1m"]);
    assert_eq!(next.lines.recv_timeout(Duration::from_millis(700)), Err(RecvTimeoutError::Timeout));
    host.signal(SIGKILL);
    assert_eq!(next.granted(), 2, "before {SOON:?} are over");
    next.close();
    next.ends_well();
}

/// The program goes on working for a moment: no successor may start before its time is over.
#[test]
fn a_hold_that_is_killed_itself_is_not_succeeded_while_its_program_works() {
    let desk = Desk::new();
    let hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
    hold.granted();
    hold.run.signal(SIGKILL);
    assert_eq!(hold.lines.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
    let (code, _, errors) = outcome(&desk.run(&["run", "-w", "2s", "x", "--", "true"]));
    assert_eq!(code, 1, "{errors}");
}

#[test]
fn a_broken_lease_is_reported_and_ends_the_hold() {
    let desk = Desk::new();
    let hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
    hold.granted();
    let begin = Instant::now();
    assert_eq!(outcome(&desk.run(&["break", "x", "--yes"])).0, 0);
    assert_eq!(hold.line(), "lost broken by an operator");
    let time = begin.elapsed();
    assert!(time < Duration::from_secs(10), "long before the next renewal: {time:?}");
    assert_eq!(hold.end(), (75, vec![], String::new()));
}

#[test]
fn a_busy_name_is_the_answer_no_with_the_message_of_run() {
    let desk = Desk::new();
    let _lease = acquired(desk.db().claim("x", "a", LONG));
    let without_time = |text: &str| text.split(", for ").next().unwrap().to_owned();
    let of_run = outcome(&desk.run(&["run", "-n", "x", "--", "true"])).2;
    for words in [&["x", "-n"][..], &["x", "--wait", "50ms"], &["x", "--wait", "1200ms"]] {
        let (code, lines, errors) = Hold::on(&desk, words).end();
        assert_eq!((code, lines), (1, vec![]), "{errors}");
        assert_eq!(without_time(&errors), without_time(&of_run));
    }
    assert_eq!(Hold::on(&desk, &["-q", "-n", "x"]).end(), (1, vec![], String::new()));
    let (code, _, errors) = Hold::on(&desk, &["--json", "-n", "x"]).end();
    let errors: Value = serde_json::from_str(&errors).unwrap();
    assert_eq!((code, &errors["busy"]["owner"]), (1, &"a".into()));
}

#[test]
fn waiting_that_is_ended_leaves_nothing_behind() {
    let desk = Desk::new();
    type End = fn(&mut Hold);
    let ends: [End; 3] =
        [Hold::close, |hold| hold.run.signal(SIGTERM), |hold| hold.write("release")];
    for end in ends {
        let lease = acquired(desk.db().claim("x", "a", LONG));
        let mut hold = Hold::on(&desk, &["-q", "x", "--ttl", "60s"]);
        assert_eq!(hold.ask("check"), "error the name is not granted yet");
        end(&mut hold);
        hold.ends_well();
        assert!(desk.db().release(&lease).is_ok());
        // Not even a grant that was under way.
        assert!(stays(Duration::from_millis(200), || desk.db().owner("x").unwrap().is_none()));
        assert_eq!(desk.db().token("x").unwrap(), Some(lease.token));
    }
}

/// A release that waits for a writer could be ended by SIGKILL only.
#[test]
fn a_later_signal_ends_a_release_that_a_writer_blocks() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "10m"]);
    let token = hold.granted();
    let mut writer = desk.db();
    let blocks = writer.transaction().unwrap();
    hold.run.signal(SIGTERM);
    let code = loop {
        thread::sleep(Duration::from_millis(100));
        if let Some(status) = hold.run.child.try_wait().unwrap() {
            break status.code();
        }
        hold.run.signal(SIGTERM);
    };
    assert_eq!(code, Some(128 + SIGTERM));
    drop(blocks);
    assert_eq!(desk.db().token("x").unwrap(), Some(token), "its lease ends by itself");
}

/// The name comes free and the program goes away at the same moment, many times and with every
/// delay between the two.
#[test]
fn a_grant_that_comes_when_the_program_goes_is_released() {
    let desk = Desk::new();
    for delay_ms in 0..25 {
        let lease = acquired(desk.db().claim("x", "a", LONG));
        let mut hold = Hold::on(&desk, &["-q", "x", "--ttl", "60s"]);
        assert_eq!(hold.ask("check"), "error the name is not granted yet");
        desk.db().release(&lease).unwrap();
        thread::sleep(Duration::from_millis(delay_ms));
        hold.close();
        let (code, lines, errors) = hold.end();
        assert!(code == 0 && lines.len() <= 1 && errors.is_empty(), "{lines:?} {errors}");
        assert_eq!(desk.db().owner("x").unwrap(), None, "after {delay_ms} ms: {lines:?}");
    }
}

#[test]
fn an_input_that_is_closed_from_the_start_holds_nothing_and_says_so() {
    let desk = Desk::new();
    let lease = acquired(desk.db().claim("x", "a", LONG));
    let (code, said, errors) = outcome(&desk.run(&["hold", "x"]));
    assert_eq!((code, said.as_str()), (0, ""));
    assert_eq!(errors, "litelease: standard input has ended: x is not held\n");
    desk.db().release(&lease).unwrap();
    assert_eq!(outcome(&desk.run(&["hold", "x"])).0, 0);
    assert_eq!(desk.db().owner("x").unwrap(), None);
}

#[test]
fn a_request_is_passed_on_and_the_program_can_hand_over() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
    hold.granted();
    assert_eq!(hold.ask("hand-over"), "error no successor has requested the name");
    let mut successor = desk.command(&["lease", "request", "x", "--within", "5m", "--wait", "1m"]);
    successor.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut successor = Run { child: successor.spawn().unwrap() };
    assert_eq!(hold.line(), "requested");
    let handed = hold.ask("hand-over");
    let token = handed.strip_prefix("handed-over ").expect(&handed).to_owned();
    hold.ends_well();
    let mut said = String::new();
    successor.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    // Accepted under a token of its own, or under the one that was handed over.
    assert!(said.trim().parse::<i64>().unwrap() >= token.parse().unwrap(), "{said} {token}");
    assert_eq!(successor.end().0, 0);
}

#[test]
fn an_unknown_line_gets_an_error_and_changes_nothing() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
    hold.granted();
    let long = "release ".repeat(10_000);
    // What was kept of this line was obeyed.
    let padded = format!("release{}is what I do not want", " ".repeat(1100));
    for line in ["", "renew", "Release", "release now", "\u{1b}[31m", &long, &padded] {
        let answer = hold.ask(line);
        assert!(answer.starts_with("error unknown line "), "{answer}");
        assert!(!answer.contains('\u{1b}'), "{answer}");
    }
    assert!(hold.trusted_ms() > 30_000);
    hold.close();
    hold.ends_well();
}

/// A program that died while it wrote a line has not asked for what the line begins with.
#[test]
fn the_beginning_of_a_line_is_no_line() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "60s"]);
    hold.granted();
    hold.input.as_mut().unwrap().write_all(b"check").unwrap();
    hold.close();
    hold.ends_well();
}

#[test]
fn a_program_that_makes_no_progress_loses_the_name_and_one_that_does_keeps_it() {
    let desk = Desk::new();
    let words = ["x", "--ttl", "2s", "--progress-within", "1s"];
    let stuck = Hold::on(&desk, &words);
    stuck.granted();
    assert_eq!(stuck.line(), "lost no progress was made within the time that it has");
    assert_eq!(stuck.end().0, 75);
    let mut hold = Hold::on(&desk, &words);
    hold.granted();
    for _ in 0..40 {
        assert_eq!(hold.ask("progress"), "ok");
        thread::sleep(Duration::from_millis(100));
    }
    hold.close();
    hold.ends_well();
}

#[test]
fn a_slot_has_limits_like_a_name() {
    let desk = Desk::new();
    let stuck = Hold::on(&desk, &["--slots", "1", "x", "--ttl", "2s", "--progress-within", "1s"]);
    let late = Hold::on(&desk, &["--slots", "1", "y", "--ttl", "2s", "--max-time", "3s"]);
    for (hold, lost) in [
        (stuck, "lost no progress was made within the time that it has"),
        (late, "lost the time that it may be held is up"),
    ] {
        assert!(hold.line().starts_with("granted "));
        assert_eq!(hold.line(), lost);
        assert_eq!(hold.end().0, 75);
    }
}

#[test]
fn with_json_each_line_is_an_object() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["--json", "x", "--ttl", "60s", "--value", "here:80"]);
    let object = |line: String| serde_json::from_str::<Value>(&line).unwrap();
    assert_eq!(hold.line(), r#"{"granted":{"name":"x","token":1}}"#);
    assert!(desk.db().value("x").unwrap().is_some());
    assert!(object(hold.ask("check"))["trusted_ms"].as_u64().unwrap() > 30_000);
    assert_eq!(hold.ask("progress"), r#"{"ok":"progress"}"#);
    assert!(object(hold.ask("what"))["error"].as_str().unwrap().contains("unknown line"));
    let _ = desk.db().request("x", "b", Duration::from_secs(60)).unwrap();
    let request = object(hold.line())["requested"].clone();
    assert_eq!((&request["name"], &request["requester"]), (&"x".into(), &"b".into()));
    let _ = desk.db().break_lease("x").unwrap();
    assert_eq!(hold.line(), r#"{"lost":{"name":"x","reason":"broken by an operator"}}"#);
    assert_eq!(hold.end().0, 75);
}

#[test]
fn slots_have_positions() {
    let desk = Desk::new();
    let words = ["--slots", "2", "few", "--ttl", "60s"];
    let (mut first, second) = (Hold::on(&desk, &words), Hold::on(&desk, &words));
    let position = |hold: &Hold| hold.line().rsplit_once(' ').unwrap().1.to_owned();
    let mut positions = [position(&first), position(&second)];
    positions.sort();
    assert_eq!(positions, ["0", "1"]);
    let (code, _, errors) = Hold::on(&desk, &[&words[..], &["-n"]].concat()).end();
    assert!(code == 1 && errors.contains("all 2 slots of few are taken"), "{errors}");
    first.close();
    first.ends_well();
    let third = Hold::on(&desk, &[&words[..], &["--json"]].concat());
    assert!(third.line().contains(r#""slot":"#));
    let (code, _, errors) = Hold::on(&desk, &[&words[..], &["--value", "v"]].concat()).end();
    assert_eq!(code, 64, "{errors}");
}

/// The program asks while the hold is stopped, so the question is there when the hold continues.
#[test]
fn a_hold_that_was_stopped_past_its_trust_is_lost_before_it_answers() {
    let desk = Desk::new();
    let mut hold = Hold::on(&desk, &["x", "--ttl", "500ms"]);
    hold.granted();
    hold.run.signal(SIGSTOP);
    hold.write("check");
    thread::sleep(Duration::from_millis(800));
    hold.write("check");
    hold.run.signal(SIGCONT);
    let lines = [hold.line()];
    // An answer from before the stop was true when it was given.
    let lost = if lines[0].starts_with("trusted ") { hold.line() } else { lines[0].clone() };
    assert!(lost.starts_with("lost "), "{lost}");
    let (code, rest, _) = hold.end();
    assert_eq!((code, rest), (75, vec![]));
}

#[test]
fn a_reader_that_goes_away_ends_the_hold() {
    let desk = Desk::new();
    let mut command = desk.command(&["hold", "x", "--ttl", "60s"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Run { child: command.spawn().unwrap() };
    eventually("the grant", || desk.db().owner("x").unwrap());
    let mut input = run.child.stdin.take().unwrap();
    drop(run.child.stdout.take());
    // Another test may be starting a process, which has our end of the pipe for a moment, so that
    // an answer is still written. The next one is not.
    eventually("the end of the hold", || {
        let _ = writeln!(input, "check");
        run.child.try_wait().unwrap()
    });
    let (code, errors) = run.end();
    assert!([74, 128 + libc::SIGPIPE].contains(&code), "{code} {errors}");
    assert_eq!(desk.db().owner("x").unwrap(), None);
}

#[test]
fn a_grant_that_cannot_be_printed_is_released() {
    let desk = Desk::new();
    let mut command = desk.command(&["hold", "x", "--ttl", "60s"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    command.stdin(Stdio::piped()).stdout(full).stderr(Stdio::piped());
    let (code, errors) = Run { child: command.spawn().unwrap() }.end();
    assert!(code == 74 && errors.contains("cannot write to standard output"), "{code} {errors}");
    assert_eq!(desk.db().owner("x").unwrap(), None);
}

/// It reads nothing and asks again and again: its closed pipe still ends the hold.
#[test]
fn a_program_that_reads_no_answers_cannot_keep_the_name() {
    let desk = Desk::new();
    let mut command = desk.command(&["hold", "x", "--ttl", "60s"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Run { child: command.spawn().unwrap() };
    eventually("the grant", || desk.db().owner("x").unwrap());
    let mut input = run.child.stdin.take().unwrap();
    // The pipe is full after some thousand answers.
    while input.write_all(&b"check\n".repeat(1000)).is_ok() {}
    assert_eq!(run.end().0, 74);
    assert_eq!(desk.db().owner("x").unwrap(), None);
}

/// Each works with a lock that no second process gets, as long as it has the name.
#[test]
fn two_holders_never_overlap() {
    let desk = Desk::new();
    let script = "for i in 1 2 3 4 5; do \
                    coproc HOLD { exec litelease hold --ttl 60s x; }; \
                    read -r line <&${HOLD[0]}; flock -n -E 99 lock sleep 0.05 || exit; \
                    eval \"exec ${HOLD[1]}>&-\"; wait $HOLD_PID || exit; \
                  done";
    let start = |_| {
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).current_dir(desk.folder.path()).stdin(Stdio::null());
        desk.environment(&mut shell);
        Run { child: shell.stderr(Stdio::piped()).spawn().unwrap() }
    };
    let all: Vec<Run> = (0..4).map(start).collect();
    for run in all {
        let (code, errors) = run.end();
        assert_eq!(code, 0, "{errors}");
    }
    assert_eq!(desk.db().token("x").unwrap(), Some(20));
}

/// Granted, checked, busy, waited for, lost and released, at a server or on an engine.
fn lives_elsewhere(command: &dyn Fn(&[&str]) -> Command) {
    let start = |words: &[&str]| {
        Hold::start(&mut command(&[&["hold", "x", "--ttl", "60s"], words].concat()))
    };
    let mut first = start(&[]);
    let token = first.granted();
    assert!((30_000..=54_000).contains(&first.trusted_ms()));
    assert_eq!(start(&["-n"]).end().0, 1);
    let mut waits = start(&["-q"]);
    assert_eq!(waits.ask("check"), "error the name is not granted yet");
    waits.close();
    waits.ends_well();
    let mut next = start(&[]);
    first.close();
    first.ends_well();
    assert!(next.granted() > token);
    // The name comes free and the waiter is told to end at the same moment.
    for delay_ms in [0, 1, 2, 5, 10, 20] {
        let mut waits = start(&["-q"]);
        assert_eq!(waits.ask("check"), "error the name is not granted yet");
        next.close();
        thread::sleep(Duration::from_millis(delay_ms));
        waits.run.signal(SIGTERM);
        assert_eq!(waits.end().0, 0);
        next.ends_well();
        next = start(&["-n"]);
        next.granted();
    }
    assert_eq!(outcome(&ended(&mut command(&["break", "x", "--yes"]))).0, 0);
    assert!(next.line().starts_with("lost "), "long before the next renewal");
    assert_eq!(next.end().0, 75);
    let last = start(&[]);
    last.granted();
    last.run.signal(SIGTERM);
    last.ends_well();
    assert_eq!(outcome(&ended(&mut command(&["run", "-n", "x", "--", "true"]))).0, 0);
}

#[test]
fn a_name_on_a_server_is_held_alike() {
    let desk = Desk::new();
    let server = Server::start(&desk.folder.path().join("served.sqlite3"), &[]);
    let key = desk.folder.path().join(format!("served.state/litelease/access/{}", server.address));
    lives_elsewhere(&|words| {
        let mut command = desk.command(words);
        command
            .env_remove("LITELEASE_DB")
            .env("LITELEASE_SERVER", format!("http://{}", server.address))
            .env("LITELEASE_ACCESS_FILE", &key);
        command
    });
}

#[test]
fn a_name_on_an_engine_is_held_alike() {
    let desk = Desk::new();
    let etcd = etcd::is_installed().then(Etcd::shared);
    let postgres = postgres::is_installed().then(Postgres::shared);
    let mut urls: Vec<String> = etcd.iter().map(|etcd| etcd.url("hold_command")).collect();
    urls.extend(postgres.iter().map(|server| server.url("hold_command")));
    if urls.is_empty() {
        report("SKIPPED: litelease hold on an engine, because none is installed");
    }
    for url in urls {
        lives_elsewhere(&|words| {
            let mut command = desk.command(words);
            command.env("LITELEASE_DB", &url);
            command
        });
    }
}
