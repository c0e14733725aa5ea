//! `litelease work` on a server, with real processes: killed, stopped, cut off, and without the
//! right to.

use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use libc::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use litelease::{ItemInfo, ItemState, Litelease};
use litelease_proof::command::{Run, ended, is_gone, is_running, kill, outcome, stays};
use litelease_proof::rig::eventually;
use litelease_proof::server::Server;

use super::client::{Fault, Proxy};
use super::place::Scene;

/// A scene with these items in the queue `q`.
fn scene(items: &[&str]) -> Scene {
    let scene = Scene::new();
    for item in items {
        assert_eq!(scene.ask(&["queue", "send", "q", item]).0, 0);
    }
    scene
}

/// Starts `litelease work` on the queue `q` with these options, and a shell script for each item.
fn work(scene: &Scene, address: SocketAddr, options: &[&str], script: &str) -> Run {
    let words: Vec<&str> = [&["work", "q"], options, &["--", "sh", "-c", script]].concat();
    let mut command = scene.command(address, &words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { child: command.spawn().expect("it starts") }
}

/// The items of the queue, as the served file has them.
fn items(scene: &Scene) -> Vec<ItemInfo> {
    let db = Litelease::open_own(scene.desk.folder.path().join("served.sqlite3")).unwrap();
    db.queue("q").items().unwrap()
}

fn state(scene: &Scene) -> Vec<ItemState> {
    items(scene).into_iter().map(|item| item.state).collect()
}

#[test]
fn a_killed_worker_takes_its_command_along_and_its_item_comes_back() {
    let scene = scene(&["a"]);
    let address = scene.server.address;
    let script = "sleep 100 & echo $! > child; echo $$ > leader; wait";
    let run = work(&scene, address, &["--visibility", "1s"], script);
    let (leader, child) = (scene.desk.pid("leader"), scene.desk.pid("child"));
    run.signal(SIGKILL);
    is_gone(leader);
    is_gone(child);
    assert_eq!(run.end().0, 128 + SIGKILL);
    let next = work(&scene, address, &["--once"], "echo $LITELEASE_ITEM_ATTEMPT > attempt");
    assert_eq!(scene.desk.read("attempt"), "2");
    assert_eq!(next.end().0, 0);
    assert_eq!(items(&scene), []);
}

#[test]
fn a_worker_that_was_stopped_past_its_deadline_ends_its_command_and_acknowledges_nothing() {
    let scene = scene(&["a"]);
    let address = scene.server.address;
    let script = "echo $$ > leader$LITELEASE_ITEM_ATTEMPT; \
                  while [ ! -e go$LITELEASE_ITEM_ATTEMPT ]; do sleep 0.02; done";
    let options = ["--visibility", "1s", "--once"];
    let first = work(&scene, address, &options, script);
    let leader = scene.desk.pid("leader1");
    first.signal(SIGSTOP);
    let second = work(&scene, address, &["--visibility", "30s", "--once"], script);
    scene.desk.pid("leader2");
    first.signal(SIGCONT);
    is_gone(leader);
    let (code, errors) = first.end();
    assert!(code == 75 && errors.contains("lost the item"), "{code} {errors}");
    assert_eq!(state(&scene), [ItemState::Leased], "it is the second worker's");
    fs::write(scene.desk.folder.path().join("go2"), "").unwrap();
    assert_eq!(second.end().0, 0);
    assert_eq!(items(&scene), []);
}

#[test]
fn a_late_exit_code_0_of_a_command_that_outlived_its_delivery_is_refused() {
    // The command goes on while its worker is stopped, and has ended when that goes on.
    let scene = scene(&["a"]);
    let options = ["--visibility", "1s", "--once"];
    let first =
        work(&scene, scene.server.address, &options, "echo > started; sleep 0.3; echo > ended");
    scene.desk.read("started");
    first.signal(SIGSTOP);
    scene.desk.read("ended");
    let receipt = eventually("the next delivery", || {
        let (code, said, _) = scene.ask(&["queue", "receive", "q"]);
        (code == 0).then(|| said.lines().next().unwrap_or_default().to_owned())
    });
    first.signal(SIGCONT);
    assert_eq!(first.end().0, 75);
    assert_eq!(scene.ask(&["queue", "ack", &receipt]).0, 0, "nobody else did");
}

#[test]
fn a_restart_costs_nothing_and_a_server_that_stands_still_ends_the_command_in_time() {
    let began = scene(&["a"]);
    let address = began.server.address;
    let script = "echo > began; while [ ! -e go ]; do sleep 0.02; done";
    let run = work(&began, address, &["--visibility", "6s", "--once"], script);
    began.desk.read("began");
    let Scene { desk, server } = began;
    server.kill();
    let file = desk.folder.path().join("served.sqlite3");
    let server = Server::at(&address.to_string(), &file, &[]);
    let scene = Scene { desk, server };
    fs::write(scene.desk.folder.path().join("go"), "").unwrap();
    assert_eq!(run.end().0, 0, "the outage was shorter than the trust window");
    assert_eq!(items(&scene), []);
    // A command that ignores SIGTERM is gone before the server can deliver its item to another
    // worker.
    assert_eq!(scene.ask(&["queue", "send", "q", "b"]).0, 0);
    let deaf = "trap '' TERM; echo $$ > leader; while :; do sleep 0.05; done";
    let run = work(&scene, address, &["--visibility", "2s", "--once"], deaf);
    let leader = scene.desk.pid("leader");
    let pid = scene.server.pid() as i32;
    kill(pid, SIGSTOP);
    is_gone(leader);
    let deadline_ms = items(&scene)[0].visible_at_ms.unwrap();
    assert!(litelease::now_ms() < deadline_ms, "nobody else could have it yet");
    kill(pid, SIGCONT);
    let (_, errors) = run.end();
    assert!(errors.contains("lost the item"), "{errors}");
    assert_eq!(items(&scene).len(), 1);
}

#[test]
fn an_answer_that_is_lost_is_asked_for_again_and_nothing_is_done_twice() {
    let scene = scene(&["a", "b"]);
    let proxy = Proxy::to(scene.server.address);
    // The first delivery and the first acknowledgement are done, and their answers are lost.
    proxy.plan(&[Fault::Lose, Fault::None, Fault::Lose]);
    let run = work(&scene, proxy.address, &["--drain"], "echo $LITELEASE_ITEM_ATTEMPT >> attempts");
    assert_eq!(run.end().0, 0);
    assert_eq!(scene.desk.peek("attempts"), "1\n1\n", "each was delivered once");
    assert_eq!(items(&scene), []);
}

#[test]
fn four_jobs_run_at_the_same_time_and_sigterm_drains() {
    let scene = scene(&["a", "b", "c", "d"]);
    // Each waits for the others.
    let script = "echo >> here; while [ $(wc -l < here) -lt 4 ]; do sleep 0.02; done";
    let run = work(&scene, scene.server.address, &["-j", "4"], script);
    eventually("an empty queue", || items(&scene).is_empty());
    run.signal(SIGTERM);
    assert_eq!(run.end(), (0, String::new()));
    // A second signal ends a command, and its item goes back at once.
    assert_eq!(scene.ask(&["queue", "send", "q", "e"]).0, 0);
    let script = "trap '' TERM; echo > deaf; while :; do sleep 0.05; done";
    let run = work(&scene, scene.server.address, &["--kill-grace", "200ms"], script);
    scene.desk.read("deaf");
    // Two signals that come before the first is heard of are one.
    eventually("its end", || {
        run.signal(SIGTERM);
        stays(Duration::from_millis(100), || !is_running(run.pid()))
    });
    let (code, errors) = run.end();
    assert!(code == 0 && errors.contains("signal 9, given back"), "{code} {errors}");
    assert_eq!(state(&scene), [ItemState::Visible], "with no delay: the item is not to blame");
}

#[test]
fn a_key_without_the_scope_is_told_which_one() {
    let scene = scene(&["a"]);
    let served = scene.desk.folder.path().join("served.sqlite3").display().to_string();
    let keyed = |name: &str, allow: &str, words: &[&str]| {
        let add = ["access", "add", name, "--db", &served, "--allow", allow];
        let (_, key, _) = outcome(&scene.desk.run(&add));
        let file = scene.desk.folder.path().join(format!("{name}.key"));
        fs::write(&file, key).unwrap();
        let mut command = scene.command(scene.server.address, words);
        let (code, _, errors) = outcome(&ended(command.env("LITELEASE_ACCESS_FILE", &file)));
        (code, errors)
    };
    for (name, allow, words, scope) in [
        ("a", "send:*", &["work", "q", "--", "true"][..], "receive"),
        ("b", "send:*", &["queue", "receive", "q"], "receive"),
        ("c", "send:*", &["queue", "ack", "1-00000000-0000-4000-8000-000000000000"], "receive"),
        ("d", "receive:*", &["queue", "send", "q", "x"], "send"),
        ("e", "receive:*", &["queue", "redrive", "q"], "operate"),
        ("f", "receive:*", &["queue", "cancel", "q", "1"], "operate"),
        ("g", "receive:*", &["queue", "delete", "q", "--yes"], "operate"),
        ("h", "operate:*", &["queue", "list"], "observe"),
        ("i", "operate:*", &["queue", "dead", "q"], "observe"),
    ] {
        let (code, errors) = keyed(name, allow, words);
        assert!(code == 69 && errors.contains(scope), "{words:?}: {code} {errors}");
    }
    assert_eq!(
        keyed("j", "receive:q", &["work", "q", "--drain", "--", "true"]),
        (0, String::new())
    );
    assert_eq!(items(&scene), []);
}
