//! The command on real engines: it says what it says on a file, never overlaps, ends in time, and
//! shows no password.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use libc::{SIGCONT, SIGKILL, SIGSTOP};
use litelease_proof::command::{Desk, Run, alike, ended, is_gone, limits_end_commands, outcome};
use litelease_proof::etcd::{self, Etcd};
use litelease_proof::postgres::{self, Postgres};
use litelease_proof::rig::eventually;
use serde_json::json;

/// The engines that are installed, with URLs below a prefix or in a schema of their own.
struct Engines {
    urls: Vec<String>,
    _etcd: Option<Arc<Etcd>>,
    _postgres: Option<Arc<Postgres>>,
}

impl Engines {
    fn with(name: &str) -> Self {
        let etcd = etcd::is_installed().then(Etcd::shared);
        let postgres = postgres::is_installed().then(Postgres::shared);
        let mut urls: Vec<String> = etcd.iter().map(|etcd| etcd.url(name)).collect();
        urls.extend(postgres.iter().map(|server| server.url(name)));
        Engines { urls, _etcd: etcd, _postgres: postgres }
    }
}

/// Prepares the command on an engine.
fn command(desk: &Desk, url: &str, words: &[&str]) -> Command {
    let mut command = desk.command(words);
    command.env("LITELEASE_DB", url);
    command
}

fn ask(desk: &Desk, url: &str, words: &[&str]) -> (i32, String, String) {
    outcome(&ended(&mut command(desk, url, words)))
}

fn start(desk: &Desk, url: &str, words: &[&str], script: &str) -> Run {
    let words: Vec<&str> = [&["run"], words, &["--", "sh", "-c", script]].concat();
    spawn(&mut command(desk, url, &words))
}

fn spawn(command: &mut Command) -> Run {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Run { child: command.spawn().unwrap() }
}

/// The command lines of a day, in order.
const LINES: &[&str] = &[
    "who nightly",
    "status",
    "run nightly -- sh -c 'exit 7'",
    "wait nightly",
    "run nightly -- sh -c 'echo $LITELEASE_NAME $LITELEASE_TOKEN; litelease renew nightly'",
    "run nightly -- litelease run nightly -- true",
    "run nightly -- no-such-command",
    "run nightly -- litelease who nightly",
    "claim report --owner a --ttl 10m",
    "claim report --owner b",
    "claim report --owner b --json",
    "claim report --owner b -w 50ms",
    "run -q -w 50ms -E 42 report -- true",
    "who report --json",
    "who reporp",
    "status",
    "status --all",
    "wait report -w 50ms",
    "watch report --for 100ms",
    "renew report --token 1 --ttl 20m",
    "renew report",
    "claim report > /dev/full",
    "lease transfer report --token 1 --to worker-b --ttl 10m",
    "renew report --token 1",
    "break report",
    "break report --yes",
    "break report --yes",
    "release report --token 1 --json",
    "claim new > /dev/full",
    "claim report --owner a --ttl 10m",
    "release report --token 4",
    "release report --token 4",
    "claim high --owner a --above 40",
    "claim x --owner ''",
    "purge --older-than 1h",
    "run --value 10.0.0.7:4000 led -- litelease who led",
    "run --value 10.0.0.7:4000 led -- litelease watch led --for 100ms",
    "who led",
    "lease ensure kept --owner a --ttl 10m",
    "lease ensure kept --owner a --ttl 10m",
    "lease ensure kept --owner b",
    "lease progress kept --token 1",
    "lease progress kept --token 7",
    "lease request kept -w 50ms",
    "lease take-over kept --owner ops --yes",
    "lease take-over kept --owner ops",
    "lease take-over fresh --owner ops --yes --json",
    "restore-fence",
    "restore-fence --yes",
    "who high",
];

#[test]
fn the_same_command_lines_say_the_same_on_a_file_and_on_engines() {
    let engines = Engines::with("same");
    let on = |url: Option<&String>| -> Vec<(i32, String, String)> {
        let desk = Desk::new();
        let place = url.cloned().unwrap_or_else(|| desk.file.display().to_string());
        let lines = LINES.iter().map(|line| {
            let mut shell = Command::new("sh");
            desk.environment(&mut shell);
            shell.env("LITELEASE_DB", &place).current_dir(desk.folder.path());
            shell.args(["-c", &format!("litelease {line}")]);
            let (code, out, errors) = outcome(&ended(&mut shell));
            (code, alike(&out, &place), alike(&errors, &place))
        });
        lines.collect()
    };
    thread::scope(|scope| {
        let file = scope.spawn(|| on(None));
        let others: Vec<_> =
            engines.urls.iter().map(|url| (url, scope.spawn(move || on(Some(url))))).collect();
        let file = file.join().unwrap();
        for (url, said) in others {
            for ((line, here), there) in LINES.iter().zip(&file).zip(said.join().unwrap()) {
                assert_eq!(*here, there, "litelease {line} at {url}");
            }
        }
    });
}

/// A script goes on when a name is free. With the URL of another database it must not. etcd has no
/// tables that could be missing.
#[test]
fn a_wait_on_an_engine_without_tables_fails() {
    let engines = Engines::with("bare");
    let desk = Desk::new();
    for url in engines.urls.iter().filter(|url| url.starts_with("postgres://")) {
        let (code, said, errors) = ask(&desk, url, &["wait", "nightly"]);
        assert_eq!((code, said.as_str()), (69, ""), "{url}: {errors}");
    }
}

#[test]
fn what_works_on_a_file_only_says_so_and_names_the_flag() {
    let desk = Desk::new();
    for url in ["etcd://127.0.0.1:1/x", "postgres://nobody@127.0.0.1:1/x"] {
        for (line, named) in [
            ("write -- true", "--db"),
            ("write --status", "--db"),
            ("status --shards x", "--db"),
            ("move --to etcd://127.0.0.1:1", "--db"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let (code, _, errors) = ask(&desk, url, &words);
            assert_eq!(code, 64, "{line}: {errors}");
            assert!(errors.contains("works on a file only"), "{line}: {errors}");
            assert!(errors.contains(named), "{line}: {errors}");
        }
        for (line, what) in [
            ("queue send q x", "queues"),
            ("work q -- true", "queues"),
            ("run --slots 2 x -- true", "slots"),
        ] {
            let (code, _, errors) = ask(&desk, url, &line.split(' ').collect::<Vec<_>>());
            assert_eq!(code, 64, "{line}: {errors}");
            let engine = if url.starts_with("etcd") { "etcd" } else { "PostgreSQL" };
            let says = format!("{what} on {engine} need the service: litelease serve --db ");
            assert!(
                errors.contains(&says) && errors.contains(", then --server"),
                "{line}: {errors}"
            );
        }
    }
}

#[test]
fn limits_of_a_hold_on_an_engine_end_its_command() {
    let (engines, desk) = (Engines::with("limits"), Desk::new());
    for url in &engines.urls {
        limits_end_commands(&|words| command(&desk, url, words), &[]);
    }
}

#[test]
fn a_bad_url_is_a_usage_error_that_names_the_part_and_never_the_password() {
    let desk = Desk::new();
    for (url, named) in [
        ("etcd://", "host is missing"),
        ("etcd://u:geheim@", "host is missing"),
        ("redis://u:geheim@h", "redis:// is no engine"),
        ("etcd://u:geheim@h:x", "port of host 1"),
        ("etcd://h?speed=1", "no parameter \"speed\""),
        ("etcd://u:ge/geheim@h", "write / as %2F"),
        ("etcd://u@h", "LITELEASE_PASSWORD_FILE"),
        ("postgres://u:geheim@h/d?sslmode=maybe", "sslmode is one of"),
        ("postgres://h/d?password=geheim", "no parameter \"password\""),
        ("postgres:/u:geheim@h/d", "write :// after etcd or postgres"),
        ("postgres//u:geheim@h/d", "write :// after etcd or postgres"),
        ("PostgreSQL:u:geheim@h/d", "write :// after etcd or postgres"),
        ("etcds:u:geheim@h", "write :// after etcd or postgres"),
    ] {
        for words in [&["status"][..], &["run", "x", "--", "true"], &["doctor"], &["serve"]] {
            let (code, out, errors) = ask(&desk, url, words);
            let case = format!("{words:?} {url}: {code} {out} {errors}");
            assert!(code == 64 && errors.contains(named), "{case}");
            assert!(!case.replace(url, "").contains("geheim"), "{case}");
        }
    }
    for (url, named) in [
        ("etcds://h?ca=/none", "ca /none cannot be read"),
        ("postgres://h/d?sslrootcert=/none", "sslrootcert /none cannot be read"),
    ] {
        let (code, _, errors) = ask(&desk, url, &["status"]);
        assert!(code == 64 && errors.contains(named), "{url}: {code} {errors}");
    }
    // Every user can see a URL on the command line.
    let (code, _, errors) =
        outcome(&desk.run(&["status", "--json", "--db", "postgres://u:geheim@127.0.0.1:1/d"]));
    assert!(code == 64 && errors.contains("other users can see arguments"), "{errors}");
    assert!(!errors.contains("geheim"), "{errors}");
    // A name that no engine can store is not sent anywhere.
    let long = "x".repeat(1025);
    for (url, words, named) in [
        ("etcd://127.0.0.1:1", ["who", &long], "the name has 1025 bytes"),
        ("postgres://u@127.0.0.1:1/d", ["who", &long], "the name has 1025 bytes"),
    ] {
        let (code, _, errors) = ask(&desk, url, &words);
        assert!(code == 64 && errors.contains(named), "{url}: {errors}");
    }
}

/// What a newcomer gets wrong about a server that answers: the message says what to change, at
/// once.
#[test]
fn a_server_that_refuses_is_named_with_what_to_change() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    server.add_user("app", "geheim/1");
    let standby = server.standby();
    let (desk, at, port) = (Desk::new(), server.address(), server.port());
    server
        .sql("CREATE SCHEMA leases; GRANT USAGE ON SCHEMA leases TO app; CREATE TABLE t (id int)");
    let url = server.url("leases");
    assert_eq!(ask(&desk, &url, &["claim", "x", "--owner", "a"]).0, 0);
    server.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON leases.resources, leases.meta, leases.service, leases.beside TO app");
    let app = format!("postgres://app:geheim%2F1@{at}/postgres?schema=leases");
    for (url, line, code, named) in [
        (format!("postgres://app@{at}/postgres"), "status", 69, "asks for a password"),
        (
            format!("postgres://app:geheim2@{at}/postgres"),
            "status",
            69,
            "check the user and the password",
        ),
        (
            format!("postgres://nobody@{at}/postgres"),
            "status",
            69,
            "check the user, the password and sslmode",
        ),
        (
            format!("postgres://postgres@{at}/none"),
            "status",
            69,
            "database \"none\" does not exist",
        ),
        (
            format!("postgres://postgres@{at}/postgres?sslmode=require"),
            "status",
            69,
            "write ?sslmode=prefer",
        ),
        (
            format!("postgres://postgres@[::1]:{port}/postgres"),
            "status",
            69,
            &format!(": [::1]:{port}: "),
        ),
        (standby.url("leases"), "status", 69, "this is a standby, and takes no writes"),
        (url.clone(), "guard add \"a x", 69, "write the table as in SQL"),
        (url.clone(), "guard remove \"a", 69, "write the table as in SQL"),
        (url.clone(), "guard add none x", 69, "there is no such table"),
        (app.clone(), "claim y --owner a", 0, "1"),
        (app.clone(), "guard list", 69, "permission denied for view guards"),
        // It has all the rights that leases need.
        (app.clone(), "doctor", 0, "permission denied for view guards"),
        (app.replace("leases", "own"), "guard add t x", 69, "permission denied for table t"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let (ended, out, errors) = ask(&desk, &url, &words);
        let said = format!("{out}{errors}");
        assert!(ended == code && said.contains(named), "{line} at {url}: {ended} {said}");
        assert!(!said.contains("geheim"), "{said}");
    }
    server.sql("GRANT TRIGGER ON t TO app");
    let (_, _, errors) = ask(&desk, &app.replace("leases", "own"), &["guard", "add", "t", "x"]);
    assert!(errors.contains("must be owner of table t") && errors.contains("owns it"), "{errors}");
}

/// Returns all that others can see of a process: its arguments and its environment.
fn seen_of(pid: i32) -> String {
    let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    String::from_utf8_lossy(&[read("cmdline"), read("environ")].concat()).into_owned()
}

/// An etcd that asks for a password.
fn with_users() -> Etcd {
    let etcd = Etcd::start(1);
    for (path, body) in [
        ("auth/user/add", json!({ "name": "root", "password": "geheim/1" })),
        ("auth/role/add", json!({ "name": "root" })),
        ("auth/user/grant", json!({ "user": "root", "role": "root" })),
        ("auth/enable", json!({})),
    ] {
        eventually(path, || etcd.call(0, path, &body));
    }
    etcd
}

#[test]
fn a_command_under_run_finds_no_password_and_still_reaches_etcd_through_the_password_file() {
    if !etcd::is_installed() {
        return;
    }
    let etcd = with_users();
    let host = etcd.url("x").replace("etcd://", "");
    hands_on_no_password("etcd", "root", &host, (64, "LITELEASE_PASSWORD_FILE"));
}

#[test]
fn a_command_under_run_finds_no_password_and_still_reaches_postgres_through_the_password_file() {
    if !postgres::is_installed() {
        return;
    }
    let mut server = Postgres::start();
    server.add_user("app", "geheim/1");
    let host = format!("{}/postgres?schema=own", server.address());
    let missing = "asks for a password, and the URL has none";
    hands_on_no_password("postgres", "app", &host, (69, missing));
}

/// Runs a command with a password in the URL and one in a file, and looks at what the command can
/// see. Without the file, what it asks of the engine ends with `without`.
fn hands_on_no_password(scheme: &str, user: &str, host: &str, without: (i32, &str)) {
    let desk = Desk::new();
    let in_url = format!("{scheme}://{user}:geheim%2F1@{host}");
    let bare = format!("{scheme}://{user}@{host}");
    let file = desk.folder.path().join("password");
    fs::write(&file, "geheim/1\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let script = "echo $$ > pid; litelease renew x > renewed 2>&1; echo $? > code; \
                  while [ ! -e go ]; do sleep 0.02; done";
    for (url, is_in_file) in [(&in_url, false), (&bare, true)] {
        let words = ["run", "x", "--", "sh", "-c", script];
        let mut command = command(&desk, url, &words);
        if is_in_file {
            command.env("LITELEASE_PASSWORD_FILE", &file);
        }
        let run = spawn(&mut command);
        let child = seen_of(desk.pid("pid"));
        assert!(child.contains(&format!("LITELEASE_DB={bare}")), "{child}");
        assert!(!child.contains("geheim"), "{child}");
        let code = desk.read("code");
        let renewed = desk.peek("renewed");
        assert!(!renewed.contains("geheim"), "{renewed}");
        match is_in_file {
            true => assert_eq!((code.as_str(), renewed.as_str()), ("0", "2\n")),
            false => {
                assert!(code == without.0.to_string(), "{code}: {renewed}");
                assert!(renewed.contains(without.1), "{renewed}");
            }
        }
        fs::write(desk.folder.path().join("go"), "").unwrap();
        assert_eq!(run.end(), (0, String::new()));
        for name in ["pid", "code", "renewed", "go"] {
            fs::remove_file(desk.folder.path().join(name)).unwrap();
        }
    }
    for url in [&in_url, &format!("{scheme}://nobody:geheim2@{host}")] {
        let url = url.replace("geheim%2F1", "geheim2");
        for words in
            [&["status"][..], &["claim", "y", "--json"], &["run", "y", "--", "true"], &["doctor"]]
        {
            let (code, out, errors) = ask(&desk, &url, words);
            let said = format!("{out}{errors}");
            assert!(code == 69 || code == 1, "{words:?}: {code} {said}");
            assert!(said.contains("password") && !said.contains("geheim"), "{words:?}: {said}");
        }
    }
}

/// Works with a lock that no second process gets. Ends with 99 if another one has it.
const ALONE: &str = "exec flock -n -E 99 lock sleep 0.1";

#[test]
fn commands_of_several_workers_never_overlap_and_one_that_is_killed_is_succeeded() {
    let engines = Engines::with("alone");
    thread::scope(|scope| {
        for url in &engines.urls {
            scope.spawn(move || {
                let desk = Desk::new();
                let runs: Vec<Run> =
                    (0..4).map(|_| start(&desk, url, &["--ttl", "5s", "x"], ALONE)).collect();
                let ends: Vec<_> = runs.into_iter().map(Run::end).collect();
                assert!(ends.iter().all(|end| *end == (0, String::new())), "{url}: {ends:?}");
                // One that is killed takes its command with it, and the waiter gets the next token.
                let script = "echo $$ > job; exec sleep 60";
                let first = start(&desk, url, &["--ttl", "5s", "x"], script);
                let job = desk.pid("job");
                let next = start(&desk, url, &["x"], "echo $LITELEASE_TOKEN > next");
                first.signal(SIGKILL);
                assert_eq!(next.end().0, 0, "{url}");
                assert_eq!(desk.read("next"), "6", "{url}");
                is_gone(job);
            });
        }
    });
}

/// Works with that lock until it is killed, whatever it is sent before.
const DEAF: &str =
    "trap '' TERM; exec flock -n -E 99 lock sh -c 'echo > began; while :; do sleep 0.05; done'";

#[test]
fn a_command_is_ended_in_time_when_its_engine_is_gone_and_nobody_has_it_twice() {
    if !etcd::is_installed() {
        return;
    }
    let (desk, etcd) = (Desk::new(), Etcd::start(1));
    let url = etcd.url("gone");
    let stuck = start(&desk, &url, &["--ttl", "2s", "--kill-grace", "200ms", "x"], DEAF);
    desk.read("began");
    let waits = start(&desk, &url, &["--ttl", "5s", "x"], ALONE);
    etcd.signal(0, SIGSTOP);
    let (code, errors) = stuck.end();
    assert!(code == 75 && errors.contains("lost the lease on x"), "{code}: {errors}");
    etcd.signal(0, SIGCONT);
    assert_eq!(waits.end().0, 0, "it waits through an outage, and finds the lock free");
    // A command that begins while no member answers reports that.
    drop(etcd);
    let (code, _, errors) = ask(&desk, &url, &["run", "x", "--", "true"]);
    assert!(code == 69 && errors.contains("no answer in time"), "{code}: {errors}");
    assert!(errors.contains(&url), "{errors}");
}

#[test]
fn a_broken_lease_ends_its_command_at_once() {
    let engines = Engines::with("broken");
    for url in &engines.urls {
        let desk = Desk::new();
        let run = start(&desk, url, &["--ttl", "60s", "x"], "echo > began; exec sleep 60");
        desk.read("began");
        assert_eq!(ask(&desk, url, &["break", "x", "--yes"]).0, 0);
        let (code, errors) = run.end();
        assert!(code == 75 && errors.contains("lost the lease on x"), "{url} {code}: {errors}");
        assert_eq!(ask(&desk, url, &["who", "x"]).0, 1);
    }
}

#[test]
fn watch_shows_every_change_of_hands_on_an_engine() {
    let engines = Engines::with("watched");
    for url in &engines.urls {
        let desk = Desk::new();
        assert_eq!(ask(&desk, url, &["claim", "x", "--owner", "a", "--ttl", "10m"]).0, 0);
        let mut watch = command(&desk, url, &["watch", "--for", "60s"]);
        let file = fs::File::create(desk.folder.path().join("seen")).unwrap();
        let watch = Run { child: watch.stdout(file).spawn().unwrap() };
        let seen = |line: &str| eventually(line, || desk.peek("seen").contains(line));
        seen("granted x token 1 a\n");
        assert_eq!(ask(&desk, url, &["lease", "transfer", "x", "--token", "1", "--to", "b"]).0, 0);
        seen("granted x token 2 b\n");
        assert_eq!(ask(&desk, url, &["break", "x", "--yes"]).0, 0);
        seen("broken x token 3\n");
        assert_eq!(ask(&desk, url, &["claim", "y", "--owner", "c"]).0, 0);
        seen("granted y token 1 c\n");
        assert_eq!(ask(&desk, url, &["release", "y", "--token", "1"]).0, 0);
        seen("released y token 1\n");
        drop(watch);
    }
}

#[test]
fn the_doctor_tells_of_the_engine_and_what_to_change() {
    let engines = Engines::with("doctor");
    for url in &engines.urls {
        let desk = Desk::new();
        let (code, out, _) = ask(&desk, url, &["doctor"]);
        assert_eq!(code, 0, "{out}");
        assert!(out.contains(url.as_str()), "{out}");
        assert_eq!(ask(&desk, url, &["claim", "x", "--owner", "a"]).0, 0);
        let (code, out, _) = ask(&desk, url, &["doctor"]);
        let is_etcd = url.starts_with("etcd");
        let engine = if is_etcd { "etcd 3." } else { "PostgreSQL 1" };
        let advice =
            if is_etcd { "three survive the loss of one" } else { "no standby is synchronous" };
        for part in [engine, advice, "1 name, 1 of them live", "up to 1, "] {
            assert!(out.contains(part), "{part}: {out}");
        }
        assert_eq!(code, 0, "{out}");
        let (_, out, _) = ask(&desk, url, &["doctor", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(told["url"], url.as_str());
    }
    let desk = Desk::new();
    let (code, out, _) = ask(&desk, "etcd://127.0.0.1:1", &["doctor"]);
    assert!(code == 1 && out.contains("wrong"), "{code}: {out}");
}

/// What `make cluster-demo` shows, with a shorter ttl.
#[test]
fn the_demo_shows_a_takeover_and_leaves_nothing_behind() {
    if !etcd::is_installed() {
        return;
    }
    let desk = Desk::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/cluster-demo");
    let mut demo = Command::new(script);
    desk.environment(&mut demo);
    demo.env("LITELEASE", litelease_proof::rig::litelease()).env("TTL", "6s");
    demo.env("TMPDIR", desk.folder.path()).env_remove("LITELEASE_DB");
    let (code, out, errors) = outcome(&ended(&mut demo));
    assert_eq!(code, 0, "{out}{errors}");
    for line in ["has the job, under token 1", "still under token 1", "has the job, under token 2"]
    {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert_eq!(fs::read_dir(desk.folder.path()).unwrap().count(), 0, "{out}");
}
