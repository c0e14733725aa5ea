//! The command on a terminal: interactive children, Ctrl-C, Ctrl-Z, questions and colours.

use std::process::Command;
use std::time::Duration;

use litelease::BreakResult;
use litelease_proof::command::Desk;
use litelease_proof::rig::{LONG, acquired, eventually};
use litelease_proof::terminal::Terminal;

const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";
const CTRL_Z: &str = "\x1a";
const ESCAPE: char = '\x1b';

/// A shell with job control.
fn shell(desk: &Desk) -> Terminal {
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]).current_dir(desk.folder.path()).env("PS1", "> ");
    desk.environment(&mut bash);
    let terminal = Terminal::start(bash);
    terminal.shows("> ");
    terminal
}

#[test]
fn a_command_may_read_from_the_terminal() {
    let desk = Desk::new();
    let script = "echo ready; read line; echo \"got <$line>\"; exit 4";
    let mut terminal = Terminal::start(desk.command(&["run", "x", "--", "sh", "-c", script]));
    terminal.shows("ready");
    terminal.types("hello\n");
    terminal.shows("got <hello>");
    assert_eq!(terminal.ends().0.code(), Some(4));
}

#[test]
fn control_c_reaches_the_command() {
    let desk = Desk::new();
    let script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(desk.command(&["run", "x", "--", "sh", "-c", script]));
    terminal.shows("ready");
    terminal.types(CTRL_C);
    terminal.shows("caught");
    assert_eq!(terminal.ends().0.code(), Some(9));
    assert_eq!(desk.db().owner("x").unwrap(), None);
}

#[test]
fn control_c_ends_the_waiting_too() {
    let desk = Desk::new();
    acquired(desk.db().claim("x", "a", LONG));
    let mut terminal = shell(&desk);
    terminal.types("litelease run x -- echo never; echo rc=$?\n");
    eventually("it waits", || desk.folder.path().join("leases.sqlite3-wakeup").exists());
    terminal.types(CTRL_C);
    terminal.shows("rc=130");
    assert_eq!(desk.db().token("x").unwrap(), Some(1));
}

#[test]
fn a_shell_gets_the_terminal_back_and_control_z_and_fg_work() {
    let desk = Desk::new();
    let mut terminal = shell(&desk);
    terminal.types("litelease run --ttl 60s x -- cat\n");
    terminal.shows("cat\r\n");
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n");
    terminal.types(CTRL_Z);
    terminal.shows("Stopped");
    terminal.types("litelease who x\n");
    terminal.shows("the process is there");
    terminal.types("fg\n");
    terminal.shows("cat\r\n");
    terminal.types("two\n");
    terminal.shows("two\r\ntwo\r\n");
    terminal.types(CTRL_D);
    terminal.types("echo rc=$?\n");
    terminal.shows("rc=0");
    terminal.types("exit\n");
    assert!(terminal.ends().0.success());
}

#[test]
fn a_command_that_was_stopped_for_too_long_does_not_go_on() {
    let desk = Desk::new();
    let mut terminal = shell(&desk);
    terminal.types("litelease run --ttl 3s x -- cat\n");
    terminal.shows("cat\r\n");
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n");
    terminal.types(CTRL_Z);
    terminal.shows("Stopped");
    let claimed = desk.db().claim_wait("x", "b", LONG, Duration::from_secs(60)).unwrap();
    assert!(claimed.acquired().is_some());
    terminal.types("fg; echo rc=$?\n");
    terminal.shows("lost the lease on x");
    terminal.shows("rc=75");
    assert_eq!(desk.db().owner("x").unwrap().as_deref(), Some("b"));
}

#[test]
fn a_command_in_the_background_that_wants_the_terminal_stops_like_any_other() {
    let desk = Desk::new();
    let mut terminal = shell(&desk);
    terminal.types("litelease run --ttl 60s x -- cat &\n");
    eventually("a stopped job", || {
        terminal.types("\n"); // a shell tells at its next prompt
        std::thread::sleep(Duration::from_millis(100));
        terminal.is_showing("Stopped").then_some(())
    });
    terminal.types("echo mark$((1 + 1))\n");
    terminal.shows("mark2");
    terminal.types("fg\n");
    terminal.shows("cat\r\n");
    terminal.types("one\n");
    terminal.shows("one\r\none\r\n");
    terminal.types(CTRL_D);
    terminal.types("echo rc=$?\n");
    terminal.shows("rc=0");
}

#[test]
fn a_pipeline_keeps_the_terminal_to_itself() {
    let desk = Desk::new();
    let mut terminal = shell(&desk);
    // The second one reads the keyboard while the first is at work, which must not have taken it
    // away.
    let work = "echo > child; while [ ! -e go ]; do sleep 0.05; done; echo finished";
    let read = "while [ ! -e child ]; do sleep 0.05; done; read k </dev/tty; echo got $k; cat";
    terminal.types(&format!("litelease run x -- sh -c '{work}' | ({read})\n"));
    desk.read("child");
    terminal.types("key\n");
    terminal.shows("got key");
    std::fs::write(desk.folder.path().join("go"), "").unwrap();
    terminal.shows("finished");
}

#[test]
fn breaking_asks_first() {
    let desk = Desk::new();
    let db = desk.db();
    acquired(db.claim("x", "a", LONG));
    let mut terminal = Terminal::start(desk.command(&["break", "x"]));
    terminal.shows("End the lease of a on x (token 1) in ");
    terminal.shows("leases.sqlite3? [y/N]");
    terminal.types("\n");
    terminal.shows("nothing was done");
    assert_eq!(terminal.ends().0.code(), Some(1));
    assert_eq!(db.owner("x").unwrap().as_deref(), Some("a"));

    let mut terminal = Terminal::start(desk.command(&["break", "x"]));
    terminal.shows("[y/N]");
    terminal.types("y\n");
    terminal.shows("x: broken, token 1 of a is superseded");
    assert!(terminal.ends().0.success());
    assert_eq!(db.token("x").unwrap(), Some(2));
}

#[test]
fn whoever_waits_at_a_terminal_is_told_for_whom() {
    let desk = Desk::new();
    let mut holder = desk.start(&["--ttl", "60s", "x"], "echo $$ > child; exec sleep 1000");
    desk.pid("child");
    let held = format!("x is held by {} pid {} (token 1), for ", host(), holder.pid());
    for words in
        [&["run", "x", "--", "echo", "mine"][..], &["claim", "x", "-w", "5m"], &["wait", "x"]]
    {
        let terminal = Terminal::start(desk.command(words));
        terminal.shows("litelease: waiting: ");
        terminal.shows(&held);
        terminal.shows(" more unless renewed; it is litelease run --ttl 60s x -- sh -c ");
        assert!(!terminal.is_showing("waiting"), "once is enough: {words:?}");
    }
    // A new holder is named, too.
    let terminal = Terminal::start(desk.command(&["run", "x", "--", "echo", "mine"]));
    terminal.shows("(token 1)");
    let db = desk.db();
    let lease = db.inspect("x").unwrap().unwrap();
    let _ = db.transfer(&lease, "worker-b", LONG).unwrap();
    terminal.shows("waiting: x is held by worker-b (token 2), for ");
    let _ = db.break_lease("x").unwrap();
    terminal.shows("mine");
    assert!(terminal.ends().0.success());
    let _ = holder.child.kill();
}

#[test]
fn whoever_is_quiet_or_not_at_a_terminal_is_told_nothing_while_waiting() {
    let desk = Desk::new();
    acquired(desk.db().claim("x", "a", Duration::from_millis(1500)));
    let quiet = Terminal::start(desk.command(&["run", "-q", "x", "--", "true"]));
    let (status, screen) = quiet.ends();
    assert!(status.success() && screen.is_empty(), "{screen}");
    acquired(desk.db().claim("x", "a", Duration::from_millis(1500)));
    let (code, errors) = desk.start(&["x"], "true").end();
    assert_eq!((code, errors.as_str()), (0, ""));
}

#[test]
fn whoever_waits_at_a_terminal_for_a_writer_is_told_which() {
    let desk = Desk::new();
    let mut db = desk.db();
    let writing = db.transaction().unwrap();
    let terminal = Terminal::start(desk.command(&["run", "x", "--", "echo", "mine"]));
    terminal.shows(&format!("litelease: waiting: pid {} is writing ", std::process::id()));
    writing.rollback().unwrap();
    terminal.shows("mine");
    assert!(terminal.ends().0.success());
}

fn host() -> String {
    litelease::Identity::new(litelease_hold::HolderKind::Hold).host
}

#[test]
fn colours_are_for_terminals_and_for_those_who_want_them() {
    let desk = Desk::new();
    drop(desk.db());
    let doctor = || desk.command(&["doctor"]);
    let piped = doctor().output().unwrap();
    assert!(!String::from_utf8(piped.stdout).unwrap().contains(ESCAPE));
    let (_, screen) = Terminal::start(doctor()).ends();
    assert!(screen.contains(ESCAPE), "{screen:?}");
    let mut plain = doctor();
    plain.env("NO_COLOR", "1");
    let (_, screen) = Terminal::start(plain).ends();
    assert!(screen.contains("quick_check") && !screen.contains(ESCAPE), "{screen:?}");
}

#[test]
fn a_long_name_leaves_the_other_columns_in_sight_on_a_terminal_and_is_whole_elsewhere() {
    let desk = Desk::new();
    let (name, owner) = ("n".repeat(5_000), "o".repeat(5_000));
    acquired(desk.db().claim(&name, &owner, LONG));
    let (_, screen) = Terminal::start(desk.command(&["status"])).ends();
    let longest = screen.lines().map(|line| line.chars().count()).max();
    assert!(longest < Some(250) && screen.contains("nnn…") && screen.contains("ooo…"), "{screen}");
    for words in [&["status"][..], &["status", "--json"]] {
        let said = String::from_utf8(desk.run(words).stdout).unwrap();
        assert!(said.contains(&name) && said.contains(&owner), "{words:?}");
    }
}

#[test]
fn a_worker_at_a_terminal_tells_how_the_queue_stands_and_control_c_drains_it() {
    let desk = Desk::new();
    desk.db().queue("q").send("hello").unwrap();
    desk.db().queue("q").send_with("later", litelease::SendOptions::new().delay(LONG)).unwrap();
    let mut terminal = Terminal::start(desk.command(&["work", "q", "--", "cat"]));
    terminal.shows("hello");
    let line = terminal.shows("per second");
    assert!(line.contains("q: 0 visible, 1 delayed, 0 leased, 0 dead; 1 done"), "{line}");
    terminal.types(CTRL_C);
    let (status, rest) = terminal.ends();
    assert_eq!(status.code(), Some(0));
    assert!(rest.contains("q: 1 done, 0 given back, 0 buried, 0 lost"), "{rest}");
}

#[test]
fn control_z_stops_a_worker_with_its_command_and_fg_continues_both() {
    let desk = Desk::new();
    desk.db().queue("q").send("hello").unwrap();
    let mut terminal = shell(&desk);
    let script = "echo $$ > pid; echo ready; while [ ! -e go ]; do sleep 0.05; done; echo went on";
    terminal.types(&format!("litelease work q --once -- sh -c '{script}'; echo rc=$?\n"));
    let pid = desk.pid("pid");
    terminal.types(CTRL_Z);
    terminal.shows("Stopped");
    let state =
        || litelease_proof::command::stat(format!("/proc/{pid}")).map(|stat| stat[0].clone());
    eventually("the command is stopped, too", || state().as_deref() == Some("T"));
    terminal.types("fg\n");
    eventually("it goes on", || state().is_some_and(|state| state != "T"));
    std::fs::write(desk.folder.path().join("go"), "").unwrap();
    terminal.shows("went on");
    eventually("the acknowledgement", || desk.db().queue("q").items().unwrap().is_empty());
}

#[test]
fn top_shows_who_has_what_and_breaks_a_lease_after_a_question() {
    let desk = Desk::new();
    for (name, owner) in [("alpha", "worker-1"), ("beta", "worker-2")] {
        acquired(desk.db().claim(name, owner, LONG));
    }
    let mut terminal = Terminal::start(desk.command(&["top", "--every", "100ms"]));
    terminal.shows("Nothing is stuck");
    terminal.shows("worker-2");
    // The second one is chosen.
    terminal.types("j");
    terminal.types("b");
    terminal.shows("Break the lease on beta? 1 lease, token 1.");
    // Its holder changes while the operator thinks.
    assert!(matches!(desk.db().break_lease("beta").unwrap(), BreakResult::Broken { .. }));
    let newest = acquired(desk.db().claim("beta", "worker-3", LONG)).token;
    terminal.types("\r");
    terminal.shows("nothing was broken");
    assert_eq!(desk.db().owner("beta").unwrap().as_deref(), Some("worker-3"));
    terminal.shows("worker-3");
    terminal.types("b");
    terminal.shows(&format!("Break the lease on beta? 1 lease, token {newest}."));
    terminal.types("hangs");
    terminal.types("\r");
    terminal.shows(&format!("is broken; token {newest} is refused from now on"));
    assert_eq!(desk.db().owner("beta").unwrap(), None);
    terminal.types("k");
    terminal.types("b");
    terminal.shows("Break the lease on alpha?");
    terminal.types(&ESCAPE.to_string());
    terminal.shows("nothing was done");
    assert!(desk.db().owner("alpha").unwrap().is_some());
    terminal.types("q");
    let (status, shown) = terminal.ends();
    assert!(status.success());
    assert!(shown.trim_end().ends_with("\x1b[?1049l"), "the screen before is back");
}
