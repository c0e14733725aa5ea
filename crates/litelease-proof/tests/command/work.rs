//! `litelease work` and `litelease queue` with real processes: killed, stopped, drained, and with
//! nowhere to write.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use litelease::{ItemInfo, ItemState};
use litelease_proof::command::{Desk, Run, is_gone, is_running, outcome, stays};
use litelease_proof::rig::{LONG, eventually, report};
use serde_json::{Value, json};

/// Starts `litelease work` on the queue `q` with these options, and a shell script for each item.
fn work(desk: &Desk, options: &[&str], script: &str) -> Run {
    let words: Vec<&str> = [&["work", "q"], options, &["--", "sh", "-c", script]].concat();
    let mut command = desk.command(&words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { child: command.spawn().expect("it starts") }
}

/// A desk with these items in the queue `q`.
fn desk(items: &[&str]) -> Desk {
    let desk = Desk::new();
    for item in items {
        desk.db().queue("q").send(item).unwrap();
    }
    desk
}

fn items(desk: &Desk) -> Vec<ItemInfo> {
    desk.db().queue("q").items().unwrap()
}

fn state(desk: &Desk) -> Vec<ItemState> {
    items(desk).into_iter().map(|item| item.state).collect()
}

/// The JSON that a command answers with, and its exit code.
fn answer(desk: &Desk, words: &[&str]) -> (i32, Value) {
    let (code, said, errors) = outcome(&desk.run(&[&["--json", "queue"], words].concat()));
    let text = if said.is_empty() { errors } else { said };
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}")))
}

#[test]
fn a_killed_worker_takes_its_commands_along_and_its_item_comes_back() {
    let desk = desk(&["a"]);
    let run =
        work(&desk, &["--visibility", "3s"], "sleep 100 & echo $! > child; echo $$ > leader; wait");
    let (leader, child) = (desk.pid("leader"), desk.pid("child"));
    run.signal(SIGKILL);
    is_gone(leader);
    is_gone(child);
    assert_eq!(run.end().0, 128 + SIGKILL);
    let next = work(&desk, &["--once"], "echo $LITELEASE_ITEM_ATTEMPT > attempt");
    assert_eq!(desk.read("attempt"), "2");
    assert_eq!(next.end().0, 0);
    assert_eq!(items(&desk), []);
}

#[test]
fn sigterm_drains_and_a_second_one_ends_the_command_even_if_it_ignores_that() {
    let desk = desk(&["a", "b"]);
    let script = "echo > started; while [ ! -e go ]; do sleep 0.02; done; cat >> done";
    let run = work(&desk, &[], script);
    desk.read("started");
    run.signal(SIGTERM);
    assert!(
        stays(Duration::from_millis(200), || is_running(run.pid())),
        "it waits for the command"
    );
    fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end(), (0, String::new()));
    assert_eq!((desk.peek("done").as_str(), state(&desk)), ("a", vec![ItemState::Visible]));

    let stubborn = "trap '' TERM; echo $$ > stubborn; sleep 100 & wait; sleep 100";
    let run = work(&desk, &["--kill-grace", "200ms"], stubborn);
    let leader = desk.pid("stubborn");
    run.signal(SIGTERM);
    assert!(stays(Duration::from_millis(100), || is_running(leader)));
    let begin = Instant::now();
    // Two signals that come before the first is heard of are one.
    eventually("its end", || {
        run.signal(SIGTERM);
        stays(Duration::from_millis(100), || !is_running(run.pid()))
    });
    let (code, errors) = run.end();
    assert!(begin.elapsed() >= Duration::from_millis(200), "it has its grace");
    assert!(code == 0 && errors.contains("signal 9, given back"), "{code} {errors}");
    is_gone(leader);
    assert_eq!(state(&desk), [ItemState::Visible], "with no delay: the item is not to blame");
}

#[test]
fn a_worker_that_was_stopped_past_its_deadline_ends_its_command_and_acknowledges_nothing() {
    let desk = desk(&["a"]);
    let script = "echo $$ > leader$LITELEASE_ITEM_ATTEMPT; while [ ! -e go$LITELEASE_ITEM_ATTEMPT ]; do sleep 0.02; done";
    let options = ["--visibility", "3s", "--once"];
    let first = work(&desk, &options, script);
    let leader = desk.pid("leader1");
    first.signal(SIGSTOP);
    let second = work(&desk, &options, script);
    desk.pid("leader2");
    first.signal(SIGCONT);
    is_gone(leader);
    let (code, errors) = first.end();
    assert!(code == 75 && errors.contains("lost the item"), "{code} {errors}");
    assert_eq!(state(&desk), [ItemState::Leased], "it is the second worker's");
    fs::write(desk.folder.path().join("go2"), "").unwrap();
    assert_eq!(second.end().0, 0);
    assert_eq!(items(&desk), []);
}

#[test]
fn a_late_exit_code_0_of_a_command_that_outlived_its_delivery_is_refused() {
    // The command goes on while its worker is stopped, and has ended when that goes on.
    let desk = desk(&["a"]);
    let script = "echo > started; while [ ! -e go ]; do sleep 0.02; done; echo > ended";
    let first = work(&desk, &["--visibility", "3s", "--once"], script);
    desk.read("started");
    first.signal(SIGSTOP);
    fs::write(desk.folder.path().join("go"), "").unwrap();
    desk.read("ended");
    let db = desk.db();
    let item = eventually("the next delivery", || db.queue("q").receive(LONG).unwrap());
    first.signal(SIGCONT);
    assert_eq!(first.end().0, 75);
    assert!(item.ack().unwrap().is_acknowledged(), "nobody else did");
}

#[test]
fn a_command_has_ended_before_another_worker_can_get_its_item_and_its_exit_code_0_means_nothing() {
    // One ignores SIGTERM. The other one ends with 0, as many do in the middle of their work.
    let check = |trap: &str| {
        let desk = desk(&["a"]);
        let script = format!(
            "trap {trap} TERM; echo $$ > leader; while :; do date +%s%3N >> alive; sleep 0.02; done"
        );
        // Long enough that a busy machine ends it within the margin, which is a tenth.
        let run = work(&desk, &["--visibility", "6s", "--once"], &script);
        let leader = desk.pid("leader");
        // No delivery can be extended in a file that is locked.
        let db = desk.db();
        db.conn().execute_batch("BEGIN IMMEDIATE").unwrap();
        is_gone(leader);
        let deadline_ms = items_in(&db)[0].visible_at_ms.unwrap();
        let last_ms = desk.peek("alive").lines().filter_map(|line| line.parse().ok()).max();
        assert!(last_ms < Some(deadline_ms), "it worked when another worker could have the item");
        db.conn().execute_batch("ROLLBACK").unwrap();
        let (_, errors) = run.end();
        assert!(errors.contains("lost the item"), "{errors}");
        assert_eq!(items_in(&db).len(), 1, "{trap}");
    };
    std::thread::scope(|scope| {
        for trap in ["''", "'exit 0'"] {
            scope.spawn(move || check(trap));
        }
    });
}

fn items_in(db: &litelease::Litelease) -> Vec<ItemInfo> {
    db.queue("q").items().unwrap()
}

#[test]
fn four_jobs_run_at_the_same_time_and_leave_no_zombies() {
    let desk = desk(&["a", "b", "c", "d", "e"]);
    // Each of the first four waits for the others. Something outlives it, outside its group.
    let script =
        "setsid sleep 0.2 & echo >> here; while [ $(wc -l < here) -lt 4 ]; do sleep 0.02; done";
    let run = work(&desk, &["-j", "4"], script);
    eventually("an empty queue", || items(&desk).is_empty());
    let pid = run.pid().to_string();
    eventually("no zombies", || {
        let children = Command::new("ps").args(["--ppid", &pid, "-o", "stat="]).output().unwrap();
        // The sentinel stays.
        let children = String::from_utf8_lossy(&children.stdout).into_owned();
        !children.contains('Z') && children.lines().count() == 1
    });
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 0);
}

#[test]
fn an_item_is_acknowledged_when_everything_in_its_group_has_ended() {
    let desk = desk(&["a"]);
    let run = work(&desk, &["--once"], "(while [ ! -e go ]; do sleep 0.02; done) & echo > ended");
    desk.read("ended");
    assert!(stays(Duration::from_millis(200), || state(&desk) == [ItemState::Leased]));
    fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end().0, 0);
    assert_eq!(items(&desk), []);
}

#[test]
fn a_body_of_any_bytes_reaches_the_command_as_it_was_sent() {
    let desk = Desk::new();
    let all: Vec<u8> = (0..=255).collect();
    let long: Vec<u8> = all.iter().cycle().take(300_000).copied().collect();
    for (index, body) in [&b""[..], b"a\0b", b"text\n", &all, &long].into_iter().enumerate() {
        let file = desk.folder.path().join("body");
        fs::write(&file, body).unwrap();
        let sent = if index % 2 == 0 {
            desk.run(&["queue", "send", "q", "--file", "body"])
        } else {
            let input = fs::File::open(&file).unwrap();
            desk.command(&["queue", "send", "q"]).stdin(input).output().unwrap()
        };
        assert_eq!(outcome(&sent).0, 0, "{sent:?}");
        let received = desk.run(&["queue", "receive", "q", "--visibility", "200ms"]).stdout;
        let end = received.iter().position(|byte| *byte == b'\n').unwrap();
        assert!(&received[end + 1..] == body, "the body number {index}, received");
        assert_eq!(work(&desk, &["--once"], "cat > got").end().0, 0);
        assert!(
            fs::read(desk.folder.path().join("got")).unwrap() == body,
            "number {index}, worked on"
        );
    }
    // A command that does not read it is not waited for, even if another process keeps the pipe
    // open.
    fs::write(desk.folder.path().join("body"), &long).unwrap();
    desk.run(&["queue", "send", "q", "--file", "body"]);
    let run = work(&desk, &["--once"], "exec 3<&0; setsid sh -c 'sleep 30' <&3 & exit 0");
    let begin = Instant::now();
    assert_eq!(run.end().0, 0);
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // An argument need not be text, either.
    use std::os::unix::ffi::OsStrExt;
    let mut command = desk.command(&["queue", "send", "q"]);
    command.arg(std::ffi::OsStr::from_bytes(b"-\xff")).stdin(Stdio::null());
    assert_eq!(outcome(&command.output().unwrap()).0, 0);
    assert_eq!(answer(&desk, &["receive", "q"]).1["body_hex"], "2dff");
}

#[test]
fn exit_codes_acknowledge_bury_and_give_back_with_a_growing_delay() {
    let desk = desk(&["a"]);
    let once = ["--once", "--backoff", "100ms", "--bury-on", "65"];
    let (code, errors) = work(&desk, &once, "exit 3").end();
    assert_eq!(code, 3);
    assert!(errors.contains("attempt 1: exit code 3, given back"), "{errors}");
    assert_eq!(items(&desk)[0].note.as_deref(), Some("exit code 3"));
    assert_eq!(work(&desk, &once, "kill -9 $$").end().0, 137);
    assert_eq!(items(&desk)[0].note.as_deref(), Some("signal 9"));
    assert_eq!(work(&desk, &once, "exit 65").end().0, 65);
    assert_eq!(state(&desk), [ItemState::Dead]);
    assert_eq!(work(&desk, &["--once", "--drain"], "true").end().0, 1, "nothing is visible");
    assert_eq!(answer(&desk, &["redrive", "q"]), (0, json!({ "redriven": 1 })));
    let run = work(&desk, &["--drain"], "no-such-command; cat > seen");
    assert_eq!((run.end().0, desk.peek("seen").as_str()), (0, "a"));
    assert_eq!(items(&desk), []);
    desk.db().queue("q").send("b").unwrap();
    let (code, _, errors) = outcome(&desk.run(&["work", "q", "--", "no-such-command"]));
    assert!(code == 127 && errors.contains("cannot run no-such-command"), "{code} {errors}");
    assert_eq!(state(&desk), [ItemState::Visible], "given back at once");
}

#[test]
fn a_command_that_acknowledges_by_itself_is_done() {
    let desk = desk(&["a"]);
    let run = work(&desk, &["--once"], "litelease queue ack $LITELEASE_ITEM_RECEIPT; exit 0");
    assert_eq!(run.end().0, 0);
    assert_eq!(items(&desk), []);
}

#[test]
fn on_a_full_disk_nothing_is_half_sent_and_a_worker_goes_on_when_there_is_space_again() {
    let mut desk = Desk::new();
    let small = desk.folder.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
    let mounted = Command::new("mount").args(mount).arg(&small).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return report("SKIPPED: a full disk under litelease work (cannot mount a tmpfs)");
    }
    let _unmount = Unmount(&small);
    desk.file = small.join("leases.sqlite3");
    desk.db().queue("q").send("a").unwrap();
    let filler = small.join("filler");
    let script = "cat >> ../done; while [ ! -e ../go ]; do sleep 0.02; done";
    let mut run = work(&desk, &["--visibility", "30s"], &script.replace("../", ""));
    eventually("the first item", || desk.peek("done") == "a");
    let mut file = fs::File::create(&filler).unwrap();
    while file.write_all(&[7; 512]).is_ok() {}
    let long = "x".repeat(100_000);
    let (code, said, errors) = outcome(&desk.run(&["queue", "send", "q", &long]));
    assert!(code == 69 && said.is_empty() && errors.contains("full"), "{code} {said} {errors}");
    // It cannot acknowledge, and tries again.
    fs::write(desk.folder.path().join("go"), "").unwrap();
    assert!(stays(Duration::from_millis(500), || run.child.try_wait().unwrap().is_none()));
    drop(file);
    fs::remove_file(&filler).unwrap();
    eventually("the acknowledgement", || items(&desk).is_empty());
    run.signal(SIGTERM);
    assert_eq!(run.end().0, 0);
    assert_eq!(desk.peek("done"), "a", "once");
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn an_item_whose_receipt_cannot_be_printed_is_given_back() {
    let desk = desk(&["a"]);
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let mut receive = desk.command(&["queue", "receive", "q"]);
    let (code, _, errors) = outcome(&receive.stdout(full()).output().unwrap());
    assert!(code == 74 && errors.contains("item 1 was given back"), "{code} {errors}");
    assert_eq!(state(&desk), [ItemState::Visible]);
    let mut send = desk.command(&["queue", "send", "q", "b"]);
    let (code, _, errors) = outcome(&send.stdout(full()).output().unwrap());
    assert!(code == 74 && errors.contains("is in the queue all the same"), "{code} {errors}");
    assert_eq!(state(&desk).len(), 2);
    // A worker has nothing to say there, and its commands may.
    let mut closed = desk.command(&["work", "q", "--drain", "--", "cat"]);
    let (code, _, errors) = outcome(&closed.stdout(full()).stdin(Stdio::null()).output().unwrap());
    assert!(code == 0 && errors.contains("exit code 1, given back"), "{code} {errors}");
}

#[test]
fn the_verbs_of_a_queue_answer_in_json() {
    let desk = Desk::new();
    assert_eq!(answer(&desk, &["receive", "q"]), (1, Value::Null));
    assert_eq!(answer(&desk, &["list"]), (0, json!([])));
    assert_eq!(
        answer(&desk, &["send", "q", "hello", "--key", "k"]).1,
        json!({ "queue": "q", "id": 1 })
    );
    assert_eq!(answer(&desk, &["send", "q", "again", "--key", "k"]).1["id"], 1);
    assert_eq!(answer(&desk, &["list"]).1[0]["visible"], 1);
    let (_, item) = answer(&desk, &["receive", "q", "--visibility", "10m"]);
    assert_eq!(
        (&item["body"], &item["attempt"], &item["id"]),
        (&json!("hello"), &json!(1), &json!(1))
    );
    let receipt = item["receipt"].as_str().unwrap();
    let listed = answer(&desk, &["list", "q"]).1;
    assert_eq!((&listed[0]["state"], &listed[0]["key"]), (&json!("leased"), &json!("k")));
    assert!(!listed.to_string().contains(receipt), "a receipt is a secret");
    assert!(answer(&desk, &["extend", receipt, "--visibility", "1h"]).1["deadline_ms"].is_i64());
    assert_eq!(answer(&desk, &["cancel", "q", "--key", "k"]).0, 1, "a worker has it");
    assert_eq!(
        answer(&desk, &["give-back", receipt, "--note", "n"]).1,
        json!({ "given_back": true })
    );
    for verb in ["ack", "extend", "give-back", "bury"] {
        assert_eq!(
            answer(&desk, &[verb, receipt]),
            (1, json!({ "stale": "given back" })),
            "{verb}"
        );
    }
    let (_, item) = answer(&desk, &["receive", "q"]);
    let receipt = item["receipt"].as_str().unwrap();
    assert_eq!(answer(&desk, &["bury", receipt, "--note", "no"]).1, json!({ "buried": true }));
    let dead = answer(&desk, &["dead", "q"]).1;
    assert_eq!((&dead[0]["state"], &dead[0]["note"]), (&json!("dead"), &json!("no")));
    assert_eq!(answer(&desk, &["redrive", "q", "99"]).0, 1);
    assert_eq!(answer(&desk, &["redrive", "q", "1"]), (0, json!({ "redriven": 1 })));
    let (_, item) = answer(&desk, &["receive", "q"]);
    answer(&desk, &["bury", item["receipt"].as_str().unwrap()]);
    assert_eq!(outcome(&desk.run(&["queue", "discard", "q"])).0, 64, "there is no terminal");
    assert_eq!(answer(&desk, &["discard", "q", "--yes"]), (0, json!({ "discarded": 1 })));
    answer(&desk, &["send", "q", "b", "--delay", "1h"]);
    let id = answer(&desk, &["list", "q"]).1[0]["id"].to_string();
    assert_eq!(answer(&desk, &["cancel", "q", &id]), (0, json!({ "cancelled": true })));
    assert_eq!(answer(&desk, &["cancel", "q", &id]).0, 1);
    assert_eq!(answer(&desk, &["delete", "q", "--yes"]), (0, json!({ "deleted": "q" })));
    assert_eq!(answer(&desk, &["delete", "q", "--yes"]).0, 1);
}

#[test]
fn bad_input_is_told_and_stores_nothing() {
    let desk = desk(&[]);
    drop(desk.db());
    let key = "k".repeat(201);
    let cases: &[(&[&str], i32)] = &[
        (&["queue"], 64),
        (&["queue", "send", ""], 64),
        (&["queue", "send", "q", "x", "--key", ""], 69),
        (&["queue", "send", "q", "x", "--key", &key], 69),
        (&["queue", "send", "q", "x", "--delay", "-1s"], 64),
        (&["queue", "send", "q", "x", "--delay", "1e15d"], 64),
        (&["queue", "send", "q", "--file", "missing"], 64),
        (&["queue", "receive", "q", "--visibility", "0"], 64),
        (&["queue", "ack", "nonsense"], 1),
        (&["queue", "cancel", "q"], 64),
        (&["work"], 64),
        (&["work", "q"], 64),
        (&["work", "--", "true"], 64),
        (&["work", "q", "-j", "0", "--", "true"], 64),
        (&["work", "q", "-j", "1001", "--", "true"], 64),
        (&["work", "q", "--visibility", "100ms", "--", "true"], 64),
        (&["work", "q", "--visibility", "500d", "--", "true"], 64),
        (&["work", "q", "--visibility", "1s", "--kill-grace", "1s", "--", "true"], 64),
        (&["work", "q", "--bury-on", "256", "--", "true"], 64),
        (&["work", "q", "--backoff", "2h", "--", "true"], 64),
    ];
    for (words, expected) in cases {
        let (code, _, errors) = outcome(&desk.run(words));
        assert_eq!(code, *expected, "{words:?}: {errors}");
        assert!(!errors.contains("panicked"), "{words:?}: {errors}");
    }
    assert_eq!(items(&desk), []);
    for name in ["x'; DROP TABLE y; --", "👍", "a b\"c", "--drain"] {
        let sent = desk.run(&["queue", "send", "--", name, "body"]);
        assert_eq!(outcome(&sent).0, 0, "{name}: {sent:?}");
        assert_eq!(desk.db().queue(name).info().unwrap().unwrap().visible, 1, "{name}");
    }
}
