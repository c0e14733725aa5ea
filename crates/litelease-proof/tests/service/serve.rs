//! `litelease serve` as a command: its flags and variables, how it refuses to start and how it
//! ends; and that what is in `packaging/` and the documents speaks of flags and variables that
//! there are.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use litelease_proof::command::{Desk, ended, kill, outcome};
use litelease_proof::rig::{eventually, report};
use litelease_proof::server::{Client, POOL};
use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Starts it at any free port, with more words and variables; answers its first line, too.
fn start(desk: &Desk, words: &[&str], variables: &[(&str, &str)]) -> (Child, String) {
    let mut command = desk.command(&["serve"]);
    command.args(words).env("LITELEASE_LISTEN", "127.0.0.1:0").envs(variables.iter().copied());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().to_owned())
}

fn client(line: &str) -> Client {
    let address = line.strip_prefix("listening at http://").unwrap_or_else(|| panic!("{line:?}"));
    Client::new(address.parse().unwrap())
}

#[test]
fn variables_are_heard_flags_come_first_and_a_signal_ends_it_well() {
    let desk = Desk::new();
    let variables = [
        ("LITELEASE_MAX_COUNT", "3"),
        ("LITELEASE_MAX_TTL", "2m"),
        ("LITELEASE_HOST", "one.example, two.example"),
    ];
    let (mut child, line) = start(&desk, &["--max-ttl", "90"], &variables);
    let mut client = client(&line);
    let refused = client.call("PUT", "", &json!({"count": 4}));
    assert_eq!(refused.error(), "count must be at most 3 (the server's --max-count)");
    client.register(3);
    let lent = client.call("POST", "/borrow", &json!({"ttl": 1e9})).json();
    assert_eq!(lent["expires_in"], json!(90), "the flag, in plain seconds");
    for (host, status) in [("one.example", 200), ("two.example", 200), ("three.example", 421)] {
        let host = format!("Host: {host}\r\n");
        assert_eq!(client.try_call("GET", "", &Value::Null, &host).unwrap().status, status);
    }
    kill(child.id() as i32, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(desk.file.exists(), "the file of $LITELEASE_DB");

    let (mut child, line) = start(&desk, &["--json"], &[]);
    let listening: Value = serde_json::from_str(&line).unwrap();
    assert!(listening["listening"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{line}");
    kill(child.id() as i32, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// How it refuses to start: the exit code, and what it says.
fn refusal(desk: &Desk, words: &[&str]) -> (i32, String) {
    let mut command = desk.command(&["serve"]);
    let (code, said, errors) = outcome(&ended(command.args(words)));
    assert_eq!(said, "", "it has not started");
    assert_eq!(errors.lines().count(), 1, "one line: {errors}");
    (code, errors)
}

#[test]
fn what_cannot_be_served_is_refused_with_the_way_out_and_left_as_it_was() {
    let desk = Desk::new();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(desk.folder.path().join(name), bytes).unwrap();
    };
    file("notes.txt", b"notes");
    file("long.txt", &b"my notes\n".repeat(500));
    file("mark.sqlite3.high-water", b"seven");
    let shop = desk.folder.path().join("shop.sqlite3");
    litelease::rusqlite::Connection::open(&shop)
        .unwrap()
        .execute_batch("CREATE TABLE orders (id)")
        .unwrap();
    let before = fs::read(&shop).unwrap();
    fs::create_dir(desk.folder.path().join("folder")).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "--listen=127.0.0.1:0";
    for (words, code, says) in [
        (
            &["--listen", &*taken][..],
            69,
            &[&*taken, "something else listens there", "--listen"][..],
        ),
        (&["--listen", "192.0.2.1:7070"], 69, &["192.0.2.1:7070", "no such address"]),
        (&["--listen", "7070"], 64, &["say ADDRESS:PORT"]),
        (&["--listen", "nowhere.invalid:7070"], 69, &["nowhere.invalid:7070"]),
        (
            &[free, "--db", "missing/x.sqlite3"],
            69,
            &["missing/x.sqlite3", "check that its folder exists"],
        ),
        (&[free, "--db", "folder"], 69, &["folder", "check that its folder exists"]),
        (&[free, "--db", ""], 64, &["a value is required for '--db"]),
        (&[free, "--db", "notes.txt"], 69, &["notes.txt is not a database", "--db"]),
        (&[free, "--db", "long.txt"], 69, &["long.txt", "not a database", "--db"]),
        (
            &[free, "--db", "shop.sqlite3"],
            69,
            &["shop.sqlite3 is in journal mode delete", "PRAGMA journal_mode = WAL"],
        ),
        (
            &[free, "--db", "mark.sqlite3"],
            69,
            &["mark.sqlite3.high-water", "not a high-water mark", "remove it"],
        ),
        (&["--max-count", "1000001"], 64, &["--max-count", "1000001"]),
        (&["--max-ttl", "0"], 64, &["--max-ttl", "more than zero"]),
        (&["--max-wait", "1e300"], 64, &["--max-wait"]),
        (&["--max-wait", "4000d"], 64, &["--max-wait", "ten years"]),
        (&["--max-connections", "0"], 64, &["--max-connections"]),
        (&["--max-patience", "soon"], 64, &["--max-patience", "a time is a number"]),
        (&["--log", "loud"], 64, &["--log", "off, error, warn, info or debug"]),
    ] {
        let (found, said) = refusal(&desk, words);
        assert_eq!(found, code, "{words:?}: {said}");
        assert!(says.iter().all(|part| said.contains(part)), "{words:?}: {said}");
    }
    assert_eq!(fs::read(&shop).unwrap(), before, "nothing is done to another program's file");
    assert_eq!(fs::read(desk.folder.path().join("notes.txt")).unwrap(), b"notes");
    let (code, said) = refusal(&desk, &["--json", free, "--db", "shop.sqlite3"]);
    let error: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &error["error"]), (69, &json!("NotWal")));
}

#[test]
fn a_port_that_needs_a_privilege_is_refused_with_the_way_out() {
    let desk = Desk::new();
    let line = "exec setpriv --reuid 65534 --clear-groups litelease serve --listen 127.0.0.1:81";
    let mut shell = Command::new("sh");
    desk.environment(&mut shell);
    let (_, _, said) = outcome(&ended(shell.args(["-c", line])));
    if !said.starts_with("litelease: cannot listen") {
        return report("SKIPPED: a privileged port, because nobody else can be become here");
    }
    assert!(said.contains("127.0.0.1:81") && said.contains("CAP_NET_BIND_SERVICE"), "{said}");
}

#[test]
fn a_second_start_at_a_taken_address_fences_nothing() {
    let desk = Desk::new();
    let (mut child, line) = start(&desk, &[], &[]);
    let mut client = client(&line);
    client.register(1);
    client.call("POST", "/borrow", &json!({"ttl": 600}));
    let address = line.strip_prefix("listening at http://").unwrap();
    assert_eq!(refusal(&desk, &["--listen", address, "--restore-fence"]).0, 69);
    assert_eq!(client.in_use(), 1, "the lease of {POOL} is as it was");
    kill(child.id() as i32, libc::SIGTERM);
    assert!(child.wait().unwrap().success());
}

/// The flags of `litelease serve`, and the variables.
fn known(desk: &Desk) -> (BTreeSet<String>, BTreeSet<String>) {
    let (_, help, _) = outcome(&desk.run(&["serve", "--help"]));
    let options = help.split("Options:").nth(1).unwrap().split("Examples:").next().unwrap();
    // How a client finds a server, and a command an engine, is no setting of the server.
    let of_clients = [
        "--server",
        "LITELEASE_SERVER",
        "LITELEASE_ACCESS_FILE",
        "LITELEASE_CA_FILE",
        "LITELEASE_PASSWORD_FILE",
    ];
    let of_servers = |start| {
        words(options, start).into_iter().filter(|word| !of_clients.contains(&&**word)).collect()
    };
    (of_servers("--"), of_servers("LITELEASE_"))
}

/// The words of a text that begin so.
fn words(text: &str, start: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let words = text
        .split(|letter| !is_part(letter))
        .filter(|word| word.starts_with(start) && word.len() > start.len() && !word.ends_with('_'));
    words.map(str::to_owned).collect()
}

#[test]
fn every_flag_has_its_variable_and_packages_and_documents_name_what_there_is() {
    let desk = Desk::new();
    let (flags, variables) = known(&desk);
    for flag in &flags {
        let variable = format!("LITELEASE_{}", flag[2..].replace('-', "_").to_uppercase());
        let has_none = ["--json", "--help", "--quiet", "--restore-fence"].contains(&&**flag);
        assert_eq!(variables.contains(&variable), !has_none, "{flag}");
    }
    assert!(flags.len() >= 13 && variables.len() == flags.len() - 4, "{flags:?} {variables:?}");

    let unit = fs::read_to_string(root().join("packaging/litelease.service")).unwrap();
    let container = fs::read_to_string(root().join("packaging/Containerfile")).unwrap();
    for (name, text) in [("the unit", &unit), ("the Containerfile", &container)] {
        let used = words(text, "LITELEASE_");
        assert!(used.contains("LITELEASE_DB") && used.contains("LITELEASE_LISTEN"), "{name}");
        assert!(used.is_subset(&variables), "{name}: {used:?}");
    }
    assert!(unit.contains("\nExecStart=/usr/local/bin/litelease serve\n"));
    assert!(unit.contains("\nRestartPreventExitStatus=64\n"), "bad usage is 64");
    assert!(container.ends_with("ENTRYPOINT [\"/litelease\", \"serve\"]\n"));
    assert!(container.contains("cargo build --locked --release -p litelease-cli "));
    for folder in container.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let from = folder.split(' ').next().unwrap();
        assert!(from.starts_with("--from") || root().join(from).exists(), "COPY {folder}");
    }
    let manual = fs::read_to_string(root().join("docs/http.md")).unwrap();
    let settings = manual.split("## Settings").nth(1).unwrap();
    for flag in flags.iter().filter(|flag| *flag != "--help") {
        assert!(words(settings, "--").contains(flag), "docs/http.md does not name {flag}");
    }
    assert!(words(settings, "--").iter().all(|word| flags.contains(word) || word == "--help"));
    for words in [&["generate", "man", "serve"][..], &["generate", "completions", "bash"]] {
        let (code, said, _) = outcome(&desk.run(words));
        assert!(code == 0 && said.replace('\\', "").contains("--max-patience"), "{words:?}");
    }
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["verify", "--man=no"]).arg(root().join("packaging/litelease.service"));
    let Ok(output) = analyze.output() else {
        return report("SKIPPED: the systemd unit, because systemd-analyze is missing");
    };
    let (_, _, said) = outcome(&output);
    // The program need not be installed here.
    let complaints: Vec<&str> = said
        .lines()
        .filter(|line| !line.contains("/usr/local/bin/litelease is not exec"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:?}");
}

/// Runs `serve` at any free port on a database by this name, and answers how it refuses.
fn second(desk: &Desk, name: &str) -> String {
    let (code, said) = refusal(desk, &["--listen=127.0.0.1:0", "--db", name]);
    assert_eq!(code, 69, "{said}");
    said
}

fn stop(mut child: Child) {
    kill(child.id() as i32, libc::SIGTERM);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_second_server_on_one_file_is_refused_and_told_who_has_it() {
    // Each of two servers knows who waits at itself only, and lets its own clients overtake those
    // of the other.
    let desk = Desk::new();
    let (mut child, line) = start(&desk, &[], &[]);
    let mut first = client(&line);
    first.register(1);
    first.call("POST", "/borrow", &json!({"ttl": 600}));
    let address = line.strip_prefix("listening at ").unwrap();
    let folder = desk.folder.path();
    std::os::unix::fs::symlink("leases.sqlite3", folder.join("link.sqlite3")).unwrap();
    fs::create_dir(folder.join("under")).unwrap();
    for name in ["leases.sqlite3", "link.sqlite3", "under/../leases.sqlite3", "file:leases.sqlite3"]
    {
        let said = second(&desk, name);
        let pid = format!("process {} since 2", child.id());
        assert!(said.contains(&pid) && said.contains(address), "{name}: {said}");
        assert!(said.contains("is served already") && said.contains("--db"), "{name}: {said}");
    }
    let words = ["--listen=127.0.0.1:0", "--restore-fence", "--json"];
    let (code, said) = refusal(&desk, &words);
    let error: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &error["error"]), (69, &json!("Served")));
    assert_eq!(first.in_use(), 1, "nothing was fenced");
    // SQLite keeps the log of each name apart, so this is refused with or without a server.
    fs::hard_link(&desk.file, folder.join("hard.sqlite3")).unwrap();
    assert!(second(&desk, "hard.sqlite3").contains("a hard link"));
    fs::remove_file(folder.join("hard.sqlite3")).unwrap();

    // The lock goes with the process, however that ends, and with nothing that it starts.
    let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
    let lock = descriptors.map(|entry| entry.unwrap().path()).find(|descriptor| {
        fs::read_link(descriptor).is_ok_and(|path| path.to_string_lossy().ends_with(".serve.lock"))
    });
    let info = lock.unwrap().display().to_string().replace("/fd/", "/fdinfo/");
    let info = fs::read_to_string(info).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    let flags = i32::from_str_radix(flags.trim(), 8).unwrap();
    assert_ne!(flags & libc::O_CLOEXEC, 0, "{info}");
    child.kill().unwrap();
    child.wait().unwrap();
    let (child, line) = start(&desk, &["--db", "link.sqlite3"], &[]);
    assert_eq!(client(&line).in_use(), 1);
    stop(child);
    stop(start(&desk, &[], &[]).0);
}

#[test]
fn a_server_whose_lock_file_is_deleted_keeps_others_away_nevertheless() {
    let desk = Desk::new();
    let (child, line) = start(&desk, &[], &[]);
    let lock = desk.folder.path().join("leases.sqlite3.serve.lock");
    client(&line).register(1);
    fs::remove_file(&lock).unwrap();
    // Locked first, and signed then.
    let is_signed = || fs::read(&lock).is_ok_and(|line| !line.is_empty());
    eventually("the lock file is back", || is_signed().then_some(()));
    let said = second(&desk, "leases.sqlite3");
    assert!(said.contains(&format!("process {}", child.id())), "{said}");
    stop(child);
}

#[test]
fn of_two_servers_that_the_deletion_of_a_lock_file_let_in_only_one_lends() {
    let desk = Desk::new();
    let (first, line) = start(&desk, &[], &[]);
    let mut old = client(&line);
    old.register(2);
    kill(first.id() as i32, libc::SIGSTOP);
    fs::remove_file(desk.folder.path().join("leases.sqlite3.serve.lock")).unwrap();
    let (child, line) = start(&desk, &[], &[]);
    kill(first.id() as i32, libc::SIGCONT);
    // It looks ten times a second.
    eventually("it notices", || {
        old.send("GET", "/readyz", "", "").unwrap();
        let ready = old.receive().unwrap();
        ready.status == 503 && ready.error() == "another server has the database"
    });
    assert_eq!(old.call("POST", "/borrow", &json!({"ttl": 600})).status, 502);
    assert_eq!(client(&line).call("POST", "/borrow", &json!({"ttl": 600})).status, 200);
    // When the new one ends, the old one is the only one again.
    stop(child);
    eventually("it lends again", || {
        (old.call("POST", "/borrow", &json!({"ttl": 600})).status == 200).then_some(())
    });
    assert_eq!(old.in_use(), 2);
    stop(first);
}
