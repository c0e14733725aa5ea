//! The command on a server as on a file: the same answers, no overlap behind a network that fails,
//! and slots.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use libc::{SIGCONT, SIGKILL, SIGSTOP, SIGTERM};
use litelease_proof::command::{Desk, Run, alike, ended, kill, limits_end_commands, outcome};
use litelease_proof::rig::eventually;
use litelease_proof::server::{POOL, Server};

use super::client::{Fault, Proxy};

/// A desk and a server, whose file is not the desk's.
pub(super) struct Scene {
    pub(super) desk: Desk,
    pub(super) server: Server,
}

impl Scene {
    pub(super) fn new() -> Self {
        let desk = Desk::new();
        let server = Server::start(&desk.folder.path().join("served.sqlite3"), &[]);
        Scene { desk, server }
    }

    /// The command at an address: the server's, or that of a proxy.
    pub(super) fn command(&self, address: SocketAddr, words: &[&str]) -> Command {
        let mut command = self.desk.command(words);
        let key = format!("served.state/litelease/access/{}", self.server.address);
        command
            .env_remove("LITELEASE_DB")
            .env("LITELEASE_SERVER", format!("http://{address}"))
            .env("LITELEASE_ACCESS_FILE", self.desk.folder.path().join(key));
        command
    }

    pub(super) fn ask(&self, words: &[&str]) -> (i32, String, String) {
        outcome(&ended(&mut self.command(self.server.address, words)))
    }

    fn start(&self, address: SocketAddr, words: &[&str], script: &str) -> Run {
        let words: Vec<&str> = [&["run"], words, &["--", "sh", "-c", script]].concat();
        let mut command = self.command(address, &words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Run { child: command.spawn().unwrap() }
    }
}

#[test]
fn limits_of_a_slot_on_a_server_end_its_command() {
    let scene = Scene::new();
    let command = |words: &[&str]| scene.command(scene.server.address, words);
    limits_end_commands(&command, &["--slots", "1"]);
}

/// Works with a lock that no second process gets. Ends with 99 if another one has it.
const ALONE: &str = "exec flock -n -E 99 lock sleep 0.3";

/// Works with that lock until it is killed, whatever it is sent before.
const DEAF: &str =
    "trap '' TERM; exec flock -n -E 99 lock sh -c 'echo > began; while :; do sleep 0.05; done'";

#[test]
fn the_same_command_lines_say_the_same_on_a_file_and_on_a_server() {
    let scene = Scene::new();
    let file = Desk::new();
    let lines = [
        "who nightly",
        "status",
        "run nightly -- sh -c 'exit 7'",
        "wait nightly",
        "run nightly -- sh -c 'echo $LITELEASE_NAME $LITELEASE_TOKEN; litelease renew nightly'",
        "run nightly -- litelease run nightly -- true",
        "run nightly -- no-such-command",
        "run nightly -- litelease who nightly",
        "run --ttl 0 nightly -- true",
        "claim report --owner a --ttl 10m",
        "claim report --owner b",
        "claim report --owner b -q",
        "claim report --owner b --json",
        "claim report --owner b -w 50ms",
        "run -n report -- true",
        "run -q -w 50ms -E 42 report -- true",
        "who report",
        "who report --json",
        "who reporp",
        "status",
        "status report --json",
        "status nothing",
        "wait report -w 50ms",
        "wait report -w 50ms --json",
        "watch report --for 2s",
        "renew report --token 1 --ttl 20m",
        "renew report",
        "claim report > /dev/full",
        "lease transfer report --token 1 --to worker-b --ttl 10m",
        "renew report --token 1",
        "renew report --token 1 --json",
        "break report",
        "break report --yes",
        "break report --yes",
        "release report --token 1",
        "claim report --owner a --ttl 10m",
        "release report --token 4",
        "release report --token 4",
        "release report --token 4 --json",
        "claim high --owner a --above 40",
        "claim x --owner ''",
        "claim '' ",
        "run --slots 1 few -- sh -c 'echo $LITELEASE_NAME slot $LITELEASE_SLOT'",
        "run --slots 1 few -- litelease run -n --slots 1 few -- true",
        "run --slots 1 few -- sh -c 'exit 9'",
        "run --slots 0 few -- true",
        "run --slots 2 few -- litelease status",
        "run --slots 2 few -- sh -c 'litelease run --slots 1 other -- litelease status'",
        "run --slots 2 few -- litelease run busy -- litelease status",
        "run --slots 2 few -- litelease status few nothing",
        "run --slots 2 few -- litelease status --json",
        "run --slots 2 few -- litelease run --slots 2 few -- litelease status --slots few",
        "run --slots 2 few -- litelease status --slots few --json | sed 's/ boot .*\",\"pid/\",\"pid/'",
        "run --slots 2 few -- litelease run --slots 2 few -- litelease who few",
        "run --slots 2 few -- litelease who few --json | sed 's/ boot .*\",\"pid/\",\"pid/'",
        "run --slots 2 few -- litelease run -n --slots 1 few -- true",
        "who few",
        "break few --slot 0 --yes",
        "run --slots 2 few -- litelease break few --slot 1 --yes",
        "run --slots 2 few -- litelease break few --slot 0",
        "run --ttl 3s --slots 2 few -- sh -c 'litelease break few --slot 0 --yes; exec sleep 600' \
         2> /dev/null",
        "status --slots few",
        "status --slots few",
        "status --slots few --json",
        "run --value 10.0.0.7 leader -- litelease watch leader --for 2s",
        "run --progress-within 5m import -- litelease lease progress",
        "run --progress-within 5m import -- litelease lease progress import --json",
        "run --max-time 1h import -- true",
        "run --slots 2 --progress-within 5m few -- litelease lease progress",
        "run --slots 2 --max-time 1h few -- true",
        "run --slots 2 --value 1 few -- true",
        "claim short --ttl 150ms --owner z; sleep 0.3; litelease status --all short",
        "status --all",
    ];
    compare(&scene, &file, &lines);
}

#[test]
fn the_same_queue_command_lines_say_the_same_on_a_file_and_on_a_server() {
    let scene = Scene::new();
    let file = Desk::new();
    let lines = [
        "queue receive q",
        "queue receive q --json",
        "queue send q hello",
        "queue send q hello --json",
        "queue send q later --delay 1h --key k",
        "queue send q again --key k",
        "queue send q --file nothing-there",
        "queue send '' x",
        "queue list",
        "queue list q",
        "queue list nothing",
        "queue list q --json | sed 's/_ms\":-*[0-9]*/_ms\":N/g'",
        "queue ack nonsense",
        "queue ack 1-00000000-0000-4000-8000-000000000000",
        "queue receive q > d; sed 1d d",
        "queue receive q --json | sed 's/receipt[^,]*,//'",
        "queue extend $(head -1 d) --visibility 1m",
        "queue extend $(head -1 d) --json",
        "queue cancel q 1",
        "queue give-back $(head -1 d) --note 'not today'",
        "queue give-back $(head -1 d)",
        "queue ack $(head -1 d)",
        "queue ack $(head -1 d) --json",
        "queue extend $(head -1 d)",
        "queue receive q > d; litelease queue bury $(head -1 d) --note no",
        "queue bury $(head -1 d)",
        "queue dead q",
        "queue redrive q 99",
        "queue redrive q 1",
        "queue redrive q --json",
        "queue receive q > /dev/full",
        "queue receive q > d; litelease queue ack $(head -1 d)",
        "queue receive q > d; litelease queue list q",
        "queue ack $(head -1 d)",
        "queue discard q",
        "queue discard q --yes",
        "queue discard q 7 --yes",
        "queue cancel q --key k",
        "queue cancel q --key k",
        "queue send q 'for a worker'",
        "work q --once -- sh -c 'cat; echo; echo $LITELEASE_QUEUE $LITELEASE_ITEM_ATTEMPT'",
        "work q --once --drain -- true",
        "queue send q 'for a worker'; litelease work q --drain --backoff 0s -- sh -c \
         '[ $LITELEASE_ITEM_ATTEMPT = 3 ]'",
        "queue send q buried; litelease work q --once --bury-on 65 -- sh -c 'exit 65'",
        "queue send q x; litelease work q --once -- sh -c \
         'litelease queue ack $LITELEASE_ITEM_RECEIPT; exit 0'",
        "queue send q x; litelease work q --drain --json -- true",
        "queue send q x; litelease work q -- no-such-command",
        "work q --drain -- sh -c 'kill -9 $$'",
        "work q -j 0 -- true",
        "work q --visibility 50ms -- true",
        "work q --backoff 2h -- true",
        "queue delete q",
        "queue delete q --yes",
        "queue delete q --yes",
        "queue list",
    ];
    compare(&scene, &file, &lines);
}

/// Compares what command lines say on a file and on a server.
fn compare(scene: &Scene, file: &Desk, lines: &[&str]) {
    let url = format!("http://{}", scene.server.address);
    for line in lines {
        let said = |mut command: Command, place: &str| {
            command.args(["-c", &format!("litelease {line}")]);
            let (code, out, errors) = outcome(&ended(&mut command));
            (code, alike(&out, place), alike(&errors, place))
        };
        let shell = |scene: Option<&Scene>| {
            let mut command = Command::new("sh");
            match scene {
                None => {
                    file.environment(&mut command);
                    command.current_dir(file.folder.path());
                }
                Some(scene) => {
                    let template = scene.command(scene.server.address, &[]);
                    scene.desk.environment(&mut command);
                    command.current_dir(scene.desk.folder.path());
                    for (name, value) in template.get_envs() {
                        match value {
                            Some(value) => command.env(name, value),
                            None => command.env_remove(name),
                        };
                    }
                }
            }
            command
        };
        let on_file = said(shell(None), &file.file.display().to_string());
        let on_server = said(shell(Some(scene)), &url);
        assert_eq!(on_file, on_server, "litelease {line}");
    }
}

#[test]
fn a_secret_of_a_grant_is_kept_for_its_user_alone_and_may_be_carried_elsewhere() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    let (code, said, _) = scene.ask(&["claim", "x", "--owner", "a", "--ttl", "10m", "--json"]);
    assert_eq!(code, 0);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let secret = said["grant"].as_str().unwrap().to_owned();
    let folder = scene.desk.folder.path().join(".local/state/litelease/grants");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!((mode(&folder), files.len(), mode(&files[0])), (0o700, 1, 0o600));
    // Another machine, or another user: the secret is not known there.
    fs::remove_dir_all(&folder).unwrap();
    let (code, _, errors) = scene.ask(&["renew", "x", "--token", "1"]);
    assert!(code == 64 && errors.contains("LITELEASE_GRANT"), "{errors}");
    let mut release = scene.command(scene.server.address, &["release", "x"]);
    let released = outcome(&ended(release.env("LITELEASE_GRANT", &secret)));
    assert_eq!(released, (0, "x: released, token 1\n".into(), String::new()));
    assert!(!fs::read_to_string(&scene.server.log).unwrap().contains(&secret));
}

#[test]
fn a_file_or_a_server_and_a_flag_counts_more_than_a_variable() {
    let scene = Scene::new();
    let url = format!("http://{}", scene.server.address);
    let file = scene.desk.file.display().to_string();
    let both = outcome(&scene.desk.run(&["status", "--db", &file, "--server", &url]));
    assert!(both.0 == 64 && both.2.contains("both a file and a server"), "{both:?}");
    let here = scene.ask(&["status", "--db", &file]);
    assert_eq!(here, (0, format!("no name is leased in {file}\n"), String::new()));
    // The desk's own environment names the file, and the flag hides that.
    let mut there = scene.desk.command(&["status", "--server", &url]);
    let key = format!("served.state/litelease/access/{}", scene.server.address);
    there.env("LITELEASE_ACCESS_FILE", scene.desk.folder.path().join(key));
    assert_eq!(outcome(&ended(&mut there)).1, format!("no name is leased in {url}\n"));
    let mut unsure = scene.desk.command(&["status"]);
    let unsure = outcome(&ended(unsure.env("LITELEASE_SERVER", &url)));
    assert!(unsure.0 == 64, "{unsure:?}");
    for words in [&["purge", "--older-than", "1d"][..], &["doctor"]] {
        let (code, _, errors) = scene.ask(words);
        assert!(code == 64 && errors.contains("works on a file only"), "{words:?}: {errors}");
    }
    let no_key =
        outcome(&ended(scene.desk.command(&["who", "x", "--server", &url]).env_remove("X")));
    assert!(no_key.0 == 69 && no_key.2.contains("LITELEASE_ACCESS_FILE"), "{no_key:?}");
}

/// It was once reported that the server cannot be reached, with exit code 69.
#[test]
fn a_name_that_comes_free_just_as_the_wait_is_over_is_busy_or_granted() {
    let scene = Scene::new();
    let (code, _, errors) = scene.ask(&["claim", "x", "--owner", "a", "--ttl", "10m"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let proxy = Proxy::to(scene.server.address);
    proxy.plan(&[Fault::Free]);
    let (code, errors) = scene.start(proxy.address, &["-w", "50ms", "x"], "true").end();
    assert_eq!(code, 1, "{errors}");
    assert!(errors.contains("is held by a"), "{errors}");
}

#[test]
fn trust_counts_from_the_first_request_so_a_late_answer_makes_no_overlap() {
    let scene = Scene::new();
    let proxy = Proxy::to(scene.server.address);
    // The grant is answered late, and no renewal reaches the server: there is no answer to replay.
    proxy.plan(&[Fault::Delay(Duration::from_millis(750))]);
    proxy.usually(Fault::Replay);
    let options = ["--ttl", "3s", "--kill-grace", "1s", "x"];
    let first = scene.start(proxy.address, &options, DEAF);
    scene.desk.read("began");
    let second = scene.start(scene.server.address, &["--ttl", "30s", "x"], ALONE);
    assert_eq!(second.end().0, 0, "the first command was gone when the second began");
    let (code, errors) = first.end();
    assert!(code == 75 && errors.contains("lost the lease on x"), "{code}: {errors}");
}

#[test]
fn a_restart_costs_nothing_and_a_server_that_stands_still_ends_the_command_in_time() {
    let Scene { desk, server } = Scene::new();
    let (file, address) = (desk.folder.path().join("served.sqlite3"), server.address);
    let scene = Scene { desk, server };
    let run = scene.start(address, &["--ttl", "8s", "x"], "echo > began; sleep 4; exit 7");
    scene.desk.read("began");
    let Scene { desk, server } = scene;
    server.kill();
    thread::sleep(Duration::from_millis(300));
    let server = Server::at(&address.to_string(), &file, &[]);
    assert_eq!(run.end(), (7, String::new()), "the outage was shorter than the trust window");
    let scene = Scene { desk, server };
    fs::remove_file(scene.desk.folder.path().join("began")).unwrap();
    let stuck = scene.start(address, &["--ttl", "1s", "--kill-grace", "100ms", "x"], DEAF);
    scene.desk.read("began");
    let waits = scene.start(address, &["--ttl", "5s", "x"], ALONE);
    let pid = scene.server.pid() as i32;
    kill(pid, SIGSTOP);
    let (code, errors) = stuck.end();
    assert!(code == 75 && errors.contains("lost the lease on x"), "{code}: {errors}");
    kill(pid, SIGCONT);
    assert_eq!(waits.end().0, 0);
}

#[test]
fn commands_never_overlap_behind_a_network_that_fails() {
    let scene = Scene::new();
    let served = scene.desk.folder.path().join("served.sqlite3").display().to_string();
    let table = "CREATE TABLE marks (id INTEGER PRIMARY KEY, token INTEGER, lease_token INTEGER)";
    let made = Command::new("sqlite3").args([&served, table]).status().unwrap();
    assert!(made.success());
    // The lease table is made by the first claim.
    assert_eq!(scene.ask(&["run", "x", "--", "true"]).0, 0);
    let guarded =
        scene.desk.run(&["guard", "add", "--db", &served, "marks", "x", "--column", "lease_token"]);
    assert_eq!(outcome(&guarded).0, 0);
    let script = format!(
        "flock -n -E 99 lock sh -c \"sleep 0.1; sqlite3 -cmd '.timeout 2000' {served} \
         'INSERT INTO marks (token, lease_token) VALUES ($LITELEASE_TOKEN, $LITELEASE_TOKEN)'; sleep 0.1\""
    );
    let count = |query: &str| -> i64 {
        let words = ["-cmd", ".timeout 20000", &served, query];
        let told = Command::new("sqlite3").args(words).output().unwrap();
        String::from_utf8(told.stdout).unwrap().trim().parse().unwrap()
    };
    let marks = || count("SELECT count(*) FROM marks");
    let is_over = AtomicBool::new(false);
    let codes = thread::scope(|scope| {
        let client = |number: u64| {
            let proxy = Proxy::to(scene.server.address);
            let mut dice = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut codes = Vec::new();
            while !is_over.load(SeqCst) {
                dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let late = Duration::from_millis(dice >> 32 & 511);
                proxy.plan(match dice >> 60 {
                    0..3 => &[Fault::Lose],
                    3..6 => &[Fault::Cut, Fault::Replay],
                    6..9 => &[Fault::None, Fault::Replay, Fault::Lose],
                    _ => &[],
                });
                proxy.plan(&[Fault::Delay(late)]);
                let options = ["-w", "2s", "--ttl", "1s", "--kill-grace", "100ms", "x"];
                codes.push(scene.start(proxy.address, &options, &script).end());
            }
            codes
        };
        let clients: Vec<_> = (1..4).map(|number| scope.spawn(move || client(number))).collect();
        let pid = scene.server.pid() as i32;
        // Until something was marked, too: a busy machine may need more time than a ttl for that.
        for round in 0..25 {
            if round >= 2 && marks() > 0 {
                break;
            }
            thread::sleep(Duration::from_millis(1200));
            kill(pid, SIGSTOP);
            thread::sleep(Duration::from_millis(1100));
            kill(pid, SIGCONT);
        }
        is_over.store(true, SeqCst);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(codes.iter().all(|(code, _)| *code != 99), "two ran at once: {codes:?}");
    assert!(marks() > 0, "none was ever granted: {codes:?}");
    let disordered = "SELECT count(*) FROM marks a JOIN marks b ON b.id = a.id + 1 \
                      WHERE abs(b.token) < abs(a.token)";
    assert_eq!(count(disordered), 0, "marks out of order");
}

/// Takes the lock of its slot, and so fails with 99 if a slot is lent twice or is none of the two.
const IN_SLOT: &str =
    "[ $LITELEASE_SLOT -lt 2 ] || exit 99; exec flock -n -E 99 slot.$LITELEASE_SLOT sleep 0.2";

#[test]
fn never_more_than_the_slots_run_at_once_also_with_killed_runners() {
    let scene = Scene::new();
    for is_server in [false, true] {
        let begin = |words: &[&str]| match is_server {
            true => scene.start(scene.server.address, words, IN_SLOT),
            false => scene.desk.start(words, IN_SLOT),
        };
        let options = ["--slots", "2", "--ttl", "1500ms", "--kill-grace", "50ms", "few"];
        let codes: Vec<i32> = thread::scope(|scope| {
            let runners: Vec<_> = (0..4_u64)
                .map(|number| {
                    let begin = &begin;
                    scope.spawn(move || {
                        let mut codes = Vec::new();
                        for round in 0..3_u64 {
                            let run = begin(&options);
                            if (number + round) % 3 == 0 {
                                thread::sleep(Duration::from_millis(80 + 40 * number));
                                let signal = if round % 2 == 0 { SIGKILL } else { SIGTERM };
                                run.signal(signal);
                            }
                            codes.push(run.end().0);
                        }
                        codes
                    })
                })
                .collect();
            runners.into_iter().flat_map(|runner| runner.join().unwrap()).collect()
        });
        assert!(codes.iter().all(|code| *code != 99), "more than two: {codes:?}");
        assert!(codes.contains(&0), "{codes:?}");
    }
}

/// Slots could be listed and broken, and `watch` showed nothing of them.
#[test]
fn slots_are_watched_with_their_positions() {
    let scene = Scene::new();
    for is_server in [false, true] {
        let command = |words: &[&str]| match is_server {
            true => scene.command(scene.server.address, words),
            false => scene.desk.command(words),
        };
        let ask = |words: &[&str]| outcome(&ended(&mut command(words)));
        // A file that is not there yet is not watched.
        assert_eq!(ask(&["run", "--slots", "2", "other", "--", "true"]).0, 0);
        let name = format!("watched.{is_server}");
        let out = fs::File::create(scene.desk.folder.path().join(&name)).unwrap();
        let mut watch = command(&["watch", "few"]).stdout(out).spawn().unwrap();
        let shows = |line: &str| {
            let read = || scene.desk.peek(&name).lines().any(|shown| shown.starts_with(line));
            eventually(line, read);
        };
        let hold =
            || command(&["run", "--slots", "2", "few", "--", "sleep", "60"]).spawn().unwrap();
        let mut first = hold();
        shows("granted few slot 0 token ");
        let mut second = hold();
        shows("granted few slot 1 token ");
        kill(first.id() as i32, SIGTERM);
        first.wait().unwrap();
        shows("ended few slot 0 token ");
        assert_eq!(ask(&["break", "--yes", "few", "--slot", "1"]).0, 0);
        second.wait().unwrap();
        shows("ended few slot 1 token ");
        watch.kill().unwrap();
        watch.wait().unwrap();
        let shown = scene.desk.peek(&name);
        assert!(!shown.contains("other") && shown.lines().count() == 4, "{shown}");
    }
}

#[test]
fn the_doctor_names_slots_whose_holders_are_dead() {
    let desk = Desk::new();
    let run = desk.start(&["--slots", "1", "--ttl", "10m", "one"], "echo > began; exec sleep 60");
    desk.read("began");
    let (_, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(said.contains("1 held by name") && !said.contains("is gone"), "{said}");
    let (_, slots, _) = outcome(&desk.run(&["status", "--slots", "one", "--json"]));
    let group = slots.split(" group ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    run.signal(SIGKILL);
    let group: i32 = group.parse().unwrap();
    kill(-group, SIGKILL);
    run.end();
    eventually("the doctor reports it", || {
        let (_, said, _) = outcome(&desk.run(&["doctor"]));
        said.contains("one slot 0: ") && said.contains("is gone, the next run or hold takes it")
    });
}

#[test]
fn a_runner_that_is_told_to_end_returns_its_slot_at_once() {
    let scene = Scene::new();
    let begin = Instant::now();
    for is_server in [false, true] {
        let name = format!("began.{is_server}");
        let script = format!("echo > {name}; exec sleep 60");
        let options = ["--slots", "1", "--ttl", "10m", "one"];
        let run = match is_server {
            true => scene.start(scene.server.address, &options, &script),
            false => scene.desk.start(&options, &script),
        };
        scene.desk.read(&name);
        run.signal(SIGTERM);
        assert_eq!(run.end().0, 128 + SIGTERM);
        let next = ["run", "-n", "--slots", "1", "one", "--", "true"];
        let (code, _, errors) = match is_server {
            true => scene.ask(&next),
            false => outcome(&scene.desk.run(&next)),
        };
        assert_eq!((code, errors.as_str()), (0, ""), "its slot is free");
    }
    assert!(begin.elapsed() < Duration::from_secs(60), "nobody has waited for the ttl");
}

#[test]
fn borrow_takes_the_url_of_a_pool_from_a_file_or_a_variable_and_shows_it_to_nobody() {
    let scene = Scene::new();
    scene.server.client().register(1);
    let url = format!("http://{}/l/{POOL}", scene.server.address);
    fs::write(scene.desk.folder.path().join("pool.url"), format!("{url}\n")).unwrap();
    let begin = |words: &[&str]| {
        let mut command = scene.desk.command(words);
        command.env_remove("LITELEASE_DB");
        command
    };
    let script = "echo slot $LITELEASE_SLOT; tr '\\0' ' ' < /proc/$PPID/cmdline; \
                  litelease borrow -n --pool-file pool.url -- true; echo then $?";
    let mut outer = begin(&["borrow", "--", "sh", "-c", script]);
    let (code, said, errors) = outcome(&ended(outer.env("LITELEASE_POOL", &url)));
    assert_eq!(code, 0, "{errors}");
    assert!(said.starts_with("slot 0\n") && said.ends_with("then 1\n"), "{said}");
    assert!(!said.contains(POOL) && !errors.contains(POOL), "{said}{errors}");
    assert!(errors.contains("all slots of the pool are taken"), "{errors}");
    assert_eq!(scene.server.client().in_use(), 0, "it was returned");
    for (words, why) in [
        (&["borrow", &url, "--", "true"][..], "other users can see arguments"),
        (&["borrow", "--", "true"], "the pool is missing"),
        (&["borrow", "--pool-file", "nowhere", "--", "true"], "cannot read the URL"),
    ] {
        let (code, _, errors) = outcome(&ended(&mut begin(words)));
        assert!(code == 64 && errors.contains(why) && !errors.contains(POOL), "{errors}");
    }
    let mut wrong = begin(&["borrow", "--", "true"]);
    let wrong = outcome(&ended(wrong.env("LITELEASE_POOL", "http://127.0.0.1:1/secret-thing")));
    assert!(wrong.0 == 64 && !wrong.2.contains("secret-thing"), "{wrong:?}");
}

#[test]
fn a_named_pool_opens_to_a_key_that_may_claim_the_name_and_to_no_other() {
    let scene = Scene::new();
    let served = scene.desk.folder.path().join("served.sqlite3").display().to_string();
    let add = ["access", "add", "ci", "--db", &served, "--allow", "claim:few/*"];
    let key = outcome(&scene.desk.run(&add)).1;
    let body = |name: &str| serde_json::json!({ "name": name, "count": 1, "ttl": 30 });
    let mut client = scene.server.client().bearing(key.trim());
    let mut ask = |name: &str| client.ask("POST", "/v1/slot/borrow", &body(name), "").unwrap();
    assert_eq!(ask("few/a").status, 200);
    assert_eq!(ask("few/a").status, 409);
    let refused = ask("other");
    assert!(refused.status == 403 && refused.error().contains("claim"), "{refused:?}");
    let mut nobody = litelease_proof::server::Client::new(scene.server.address);
    let refused = nobody.ask("POST", "/v1/slot/borrow", &body("few/a"), "").unwrap();
    assert_eq!(refused.status, 401);
    // Its id is no UUID, so no client reaches it without a key.
    let beside = nobody.ask("GET", "/l/name:few/a", &serde_json::Value::Null, "").unwrap();
    assert!(matches!(beside.status, 400 | 404), "{beside:?}");
    eventually("a file sees the same pool", || {
        let words = ["run", "-n", "--db", &served, "--slots", "1", "few/a", "--", "true"];
        (outcome(&scene.desk.run(&words)).0 == 1).then_some(())
    });
}
