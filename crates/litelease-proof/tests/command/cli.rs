//! The subcommands besides `run`, bad input, and every example of docs/cli.md and docs/queues.md.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use litelease::rusqlite::Connection;
use litelease::{Identity, Litelease, RenewResult};
use litelease_proof::command::{Desk, outcome};
use litelease_proof::rig::{LONG, acquired, eventually, litelease, report};
use serde_json::{Value, json};

/// The JSON that a command answers with.
fn json(desk: &Desk, words: &[&str]) -> (i32, Value) {
    let (code, said, errors) = outcome(&desk.run(&[&["--json"], words].concat()));
    let text = if said.is_empty() { errors } else { said };
    let value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"));
    (code, value)
}

#[test]
fn the_examples_of_the_manual_do_what_it_says() {
    assert!(run_examples("docs/cli.md") > 30);
}

#[test]
fn the_shell_worker_of_the_page_on_queues_does_what_it_says() {
    assert!(run_examples("docs/queues.md") > 4);
}

/// Runs the examples of a document in their order, and returns how many there are.
pub(crate) fn run_examples(document: &str) -> usize {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let manual = fs::read_to_string(manual).unwrap();
    let desk = Desk::new();
    let mut examples = 0;
    for block in manual.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next()) {
        for example in format!("\n{block}").split("\n$ ").skip(1) {
            let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
            // A command goes on in lines that begin like those that a shell asks for.
            let more = expected.lines().take_while(|line| line.starts_with("> ")).count();
            let typed = expected.lines().take(more).map(|line| &line[2..]);
            let line = [line].into_iter().chain(typed).collect::<Vec<_>>().join("\n");
            let expected = expected.lines().skip(more).collect::<Vec<_>>().join("\n");
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]).current_dir(desk.folder.path()).stdin(Stdio::null());
            desk.environment(&mut shell);
            shell.env_remove("LITELEASE_DB");
            let (code, said, errors) = outcome(&shell.output().unwrap());
            let end = if code == 0 { String::new() } else { format!("? {code}\n") };
            let found = format!("{said}{errors}{end}");
            assert!(matches(&expected, &found), "$ {line}\nexpected:\n{expected}\nfound:\n{found}");
            examples += 1;
        }
    }
    examples
}

/// Checks whether a text is as expected, where `[..]` stands for anything within a line. Blanks may
/// be more or fewer, because the widths of columns depend on what stands in them.
fn matches(expected: &str, found: &str) -> bool {
    let (expected, found): (Vec<_>, Vec<_>) = (expected.lines().collect(), found.lines().collect());
    expected.len() == found.len()
        && expected.iter().zip(found).all(|(pattern, line)| fits(pattern, line))
}

fn fits(pattern: &str, line: &str) -> bool {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, line) = (squeezed(pattern), squeezed(line));
    let Some((first, rest)) = pattern.split_once("[..]") else { return pattern == line };
    let (between, last) = rest.rsplit_once("[..]").unwrap_or(("", rest));
    // What stands at an end is compared there: a time before it may contain the same digits.
    let middle = line.strip_prefix(first.trim()).and_then(|line| line.strip_suffix(last.trim()));
    let mut parts = between.split("[..]").map(str::trim);
    middle.is_some_and(|middle| {
        parts.try_fold(middle, |left, part| left.split_once(part).map(|(_, left)| left)).is_some()
    })
}

#[test]
fn an_example_fits_whatever_number_stands_where_any_may() {
    for age in ["9 ms", "20 ms", "20 20", "2.0 s"] {
        let line = format!("mail   1        1        0       0     {age}    20");
        assert!(fits("mail  1  1  0  0  [..]  20", &line), "{line}");
    }
    assert!(fits("a [..] b [..]", "a 1 b"));
    assert!(fits("a [..] b [..] c", "a b 1 c"));
    for line in ["mail 1 1 0 0 9 ms 21", "mail 1 1 0 1 9 ms 20", "mail 1 1 0 0 20 more"] {
        assert!(!fits("mail 1 1 0 0 [..] 20", line), "{line}");
    }
    assert!(!fits("a [..] b [..] c", "a 1 c"));
}

#[test]
fn a_script_claims_renews_transfers_and_releases_exactly_its_grant() {
    let desk = Desk::new();
    let (code, lease) = json(&desk, &["claim", "x", "--ttl", "10m"]);
    assert_eq!((code, &lease["token"], &lease["state"]), (0, &1.into(), &"live".into()));
    assert_eq!(lease["pid"], std::process::id(), "the owner is who called");
    assert_eq!(lease["process"], "alive");
    let (code, busy) = json(&desk, &["claim", "x"]);
    assert_eq!((code, &busy["busy"]["token"]), (1, &1.into()));
    assert_eq!(json(&desk, &["renew", "x", "--token", "1"]).1["token"], 1);
    for stranger in [["renew", "x", "--token", "2"], ["release", "x", "--token", "0"]] {
        let (code, answer) = json(&desk, &stranger);
        assert_eq!(code, 1, "{answer}");
        assert_eq!(answer["current"]["token"], 1);
    }
    assert_eq!(json(&desk, &["lease", "transfer", "x", "--token", "1", "--to", "b"]).1["token"], 2);
    assert_eq!(json(&desk, &["release", "x", "--token", "1"]).0, 1, "superseded");
    assert_eq!(json(&desk, &["release", "x", "--token", "2"]).1["released"], "x");
    let (_, lease) = json(&desk, &["claim", "x", "--owner", "c", "--above", "40"]);
    assert_eq!((&lease["token"], &lease["owner"]), (&41.into(), &"c".into()));
}

#[test]
fn a_script_ensures_its_lease_as_often_as_it_likes() {
    let desk = Desk::new();
    let ensure =
        |owner, ttl| json(&desk, &["lease", "ensure", "x", "--owner", owner, "--ttl", ttl]);
    let (code, first) = ensure("a", "10s");
    assert_eq!((code, &first["token"], &first["owner"]), (0, &1.into(), &"a".into()));
    let (code, again) = ensure("a", "10m");
    assert_eq!((code, &again["token"]), (0, &1.into()));
    let until = |lease: &Value| lease["expires_at_ms"].as_i64().unwrap();
    assert!(until(&again) > until(&first), "prolonged");
    assert_eq!(until(&ensure("a", "1s").1), until(&again), "never shortened");
    let (code, busy) = ensure("b", "1s");
    assert_eq!((code, &busy["busy"]["token"]), (1, &1.into()));
    assert_eq!(json(&desk, &["release", "x", "--token", "1"]).0, 0);
    assert_eq!(ensure("b", "1s").1["token"], 2);
    // An owner text that is another one each time would make it a claim.
    assert_eq!(outcome(&desk.run(&["lease", "ensure", "x"])).0, 64);
    assert_eq!(outcome(&desk.run(&["lease", "ensure", "x", "--owner", ""])).0, 64);
}

#[test]
fn inside_run_the_grant_of_that_run_is_meant_and_never_a_strangers() {
    // Each name and each file counts from 1, so the token alone named strangers' grants, too.
    for verb in ["release", "renew --ttl 1s", "lease transfer --to me"] {
        let desk = Desk::new();
        let other = Litelease::open(desk.folder.path().join("other.db")).unwrap();
        other.bootstrap().unwrap();
        let strangers = [(desk.db(), "b"), (other, "a")];
        for (db, name) in &strangers {
            assert_eq!(acquired(db.claim(name, "stranger", LONG)).token, 1);
        }
        // A run that has lost its lease ends its command; this one goes on for its kill grace.
        let script = format!(
            "trap '' TERM; litelease {verb} b; echo code $?
             litelease {verb} --db other.db a; echo code $?
             litelease run c -- litelease {verb} a; echo code $?
             litelease {verb} a; echo code $?
             litelease lease transfer --to heir a; litelease {verb} a; echo code $?"
        );
        let (_, said, errors) = outcome(&desk.run(&["run", "a", "--", "sh", "-c", &script]));
        for (db, name) in &strangers {
            let current = db.inspect(name).unwrap().expect("the stranger has it");
            assert_eq!((current.owner.as_str(), current.token), ("stranger", 1), "{verb}");
            assert!(current.expires_at_ms > litelease::now_ms() + 2_000, "{verb}");
        }
        assert!(said.contains("a: rejected, held by another owner (stranger, token 1)"), "{said}");
        assert!(errors.contains("the token of b is missing: add --token"), "{errors}");
        assert!(errors.contains("the token of a is missing: add --token"), "{errors}");
        let codes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("code ")).collect();
        assert_eq!(codes, ["64", "1", "64", "0", "1"], "{verb}: {said} {errors}");
    }
}

#[test]
fn the_owner_text_of_a_run_is_no_owner_of_another_lease() {
    // A lease under a copied text was taken over as soon as the run that it names had ended.
    let desk = Desk::new();
    let script = "litelease claim b --owner \"$LITELEASE_OWNER\" --ttl 1h; echo code $?
                  token=$(litelease claim c --owner me --ttl 1h)
                  litelease lease transfer c --token $token --to \"$LITELEASE_OWNER\" --ttl 1h; echo code $?";
    let (code, said, errors) = outcome(&desk.run(&["run", "a", "--", "sh", "-c", script]));
    assert_eq!((code, said.as_str()), (0, "code 64\ncode 64\n"), "{errors}");
    assert_eq!(errors.matches("are made by hold and run; choose another").count(), 2, "{errors}");
    assert_eq!(
        outcome(&desk.run(&["run", "-n", "c", "--", "true"])).0,
        1,
        "the lease is still live"
    );
}

#[test]
fn a_dead_holder_is_seen_as_such() {
    let desk = Desk::new();
    // The shell that claims is gone when it is looked at.
    let mut shell = Command::new("sh");
    shell.args(["-c", "litelease claim x --ttl 10m; true"]);
    desk.environment(&mut shell);
    assert!(shell.output().unwrap().status.success());
    assert_eq!(json(&desk, &["who", "x"]).1["process"], "dead");
    assert!(outcome(&desk.run(&["who", "x"])).1.contains("the process is gone"));
    assert!(outcome(&desk.run(&["status"])).1.contains("dead"));
    let (code, said, _) = outcome(&desk.run(&["doctor"]));
    assert_eq!(code, 0);
    assert!(said.contains("is gone, free in") && said.contains("litelease break x"), "{said}");
    // A number that is used again belongs to another process.
    let db = desk.db();
    let owner = Identity::parse(&db.owner("x").unwrap().unwrap()).unwrap();
    let reused = Identity { pid: std::process::id(), start: Some(1), ..owner };
    acquired(db.claim("y", &reused.to_string(), LONG));
    assert_eq!(json(&desk, &["who", "y"]).1["process"], "dead");
    // A text that does not tell where its process can be found proves nothing.
    let elsewhere = Identity { start: None, holder: None, ..reused };
    acquired(db.claim("z", &elsewhere.to_string(), LONG));
    assert_eq!(json(&desk, &["who", "z"]).1["process"], "unknown");
    // `claim` names who has called it. That it is gone does not free the name.
    assert_eq!(outcome(&desk.run(&["claim", "x", "-w", "600ms"])).0, 1);
    assert_eq!(outcome(&desk.run(&["run", "-w", "600ms", "x", "--", "true"])).0, 1);
}

#[test]
fn waiting_ends_when_the_name_is_free_or_the_time_is_over() {
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("x", "a", LONG));
    assert_eq!(outcome(&desk.run(&["wait", "x", "-w", "50ms"])).0, 1);
    let mut waiter = desk.command(&["wait", "x"]).stdout(Stdio::null()).spawn().unwrap();
    eventually("it waits", || {
        desk.folder.path().join("leases.sqlite3-wakeup").exists().then_some(())
    });
    db.release(&lease).unwrap();
    assert!(eventually("its end", || waiter.try_wait().unwrap()).success());

    let waiter = desk.command(&["claim", "x", "-w", "60s"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(outcome(&waiter.wait_with_output().unwrap()).1, "2\n");
}

#[test]
fn every_change_of_hands_is_watched() {
    let desk = Desk::new();
    let db = desk.db();
    let out = fs::File::create(desk.folder.path().join("watched")).unwrap();
    let mut watch = desk.command(&["watch", "--json"]);
    let mut watch = watch.stdout(out).spawn().unwrap();
    let seen = |count: usize| {
        eventually(&format!("{count} events"), || {
            let text = desk.peek("watched");
            let lines: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            (lines.len() >= count).then_some(lines)
        })
    };
    let lease = acquired(db.claim("x", "a", LONG));
    seen(1);
    db.release(&lease).unwrap();
    seen(2);
    acquired(db.claim("x", "b", LONG));
    seen(3);
    let _ = db.break_lease("x").unwrap();
    seen(4);
    acquired(db.claim("x", "c", Duration::from_millis(600)));
    let events = seen(6);
    watch.kill().unwrap();
    watch.wait().unwrap();
    let told: Vec<String> = events
        .iter()
        .map(|event| format!("{} {}", event["event"].as_str().unwrap(), event["token"]))
        .collect();
    assert_eq!(
        told,
        ["granted 1", "released 1", "granted 2", "broken 3", "granted 4", "expired 4"]
    );
}

#[test]
fn a_reader_that_goes_away_ends_a_watch_quietly() {
    let desk = Desk::new();
    acquired(desk.db().claim("x", "a", LONG));
    acquired(desk.db().claim("y", "a", Duration::from_millis(300)));
    let mut shell = Command::new("sh");
    shell.args(["-c", "litelease watch | head -n 1"]);
    desk.environment(&mut shell);
    let (code, said, errors) = outcome(&shell.output().unwrap());
    assert_eq!((code, said.as_str(), errors.as_str()), (0, "granted x token 1 a\n", ""));
}

#[test]
fn bad_input_is_told_in_one_line_and_leaves_nothing_behind() {
    let cases: [(&[&str], i32); 22] = [
        (&[], 64),
        (&["walk"], 64),
        (&["run"], 64),
        (&["run", "x"], 64),
        (&["run", "x", "--"], 64),
        (&["run", "", "--", "true"], 64),
        (&["run", "--ttl", "0", "x", "--", "true"], 64),
        (&["run", "--ttl", "90ms", "--kill-grace", "1ms", "x", "--", "true"], 64),
        (&["run", "--ttl", "-3s", "x", "--", "true"], 64),
        (&["run", "--ttl", "10s", "--kill-grace", "5s", "x", "--", "true"], 64),
        (&["run", "-n", "-w", "3", "x", "--", "true"], 64),
        (&["run", "-E", "256", "x", "--", "true"], 64),
        (&["run", "--wat", "x", "--", "true"], 64),
        (&["claim", "x", "--owner", ""], 64),
        (&["claim", "x", "--ttl", "soon"], 64),
        (&["renew", "x"], 64),
        (&["watch", "x"], 69),
        (&["wait", "x"], 69),
        (&["wait", "x", "-w", "0s"], 69),
        (&["purge", "--older-than", "30d"], 69),
        (&["run", "--db", "no/such/folder/x.sqlite3", "x", "--", "true"], 69),
        (&["run", "--db", "", "x", "--", "true"], 64),
    ];
    for (words, expected) in cases {
        let desk = Desk::new();
        let (code, said, errors) = outcome(&desk.run(words));
        assert_eq!((code, said.as_str()), (expected, ""), "{words:?}: {errors}");
        assert!(
            errors.starts_with("litelease: ") && errors.lines().count() == 1,
            "{words:?}: {errors}"
        );
        let left: Vec<_> = fs::read_dir(desk.folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{words:?}: {left:?}");

        let (code, _, errors) = outcome(&desk.run(&[&["--json"], words].concat()));
        assert_eq!(code, expected);
        let error: Value = serde_json::from_str(&errors).unwrap();
        assert!(error["error"].is_string() && error["message"].is_string(), "{words:?}: {errors}");
    }
}

#[test]
fn on_a_fresh_host_nobody_has_anything_and_looking_makes_nothing() {
    let cases: [(&[&str], i32, Value); 3] = [
        (&["status"], 0, json!([])),
        (&["status", "x", "--all"], 0, json!([])),
        (&["who", "x"], 1, json!(null)),
    ];
    // No file, the user's own in a folder that is not there yet, and one that an administrator has
    // made for a group.
    for state in ["missing", "own", "empty"] {
        for (words, expected, value) in &cases {
            let desk = Desk::new();
            let own = desk.folder.path().join(".local/state/litelease/leases.sqlite3");
            let file = if state == "own" { &own } else { &desk.file };
            if state == "empty" {
                fs::write(&desk.file, "").unwrap();
            }
            let run = |flag: &[&str]| {
                let mut command = desk.command(&[flag, *words].concat());
                if state == "own" {
                    command.env_remove("LITELEASE_DB");
                }
                outcome(&command.output().unwrap())
            };
            let (code, said, errors) = run(&[]);
            assert_eq!((code, errors.as_str()), (*expected, ""), "{state}: {words:?}");
            let is_free = said.contains("nobody has") || said.contains("no name is leased");
            assert!(is_free && said.contains(file.to_str().unwrap()), "{state}: {words:?}: {said}");
            let (code, said, _) = run(&["--json"]);
            assert_eq!((code, serde_json::from_str(&said).ok()), (*expected, Some(value.clone())));
            let left = fs::read_dir(desk.folder.path()).unwrap().count();
            assert_eq!(
                left,
                usize::from(state == "empty"),
                "{state}: {words:?} has left something"
            );
            assert_eq!(fs::metadata(&desk.file).map_or(0, |file| file.len()), 0);
        }
    }
}

#[test]
fn a_wait_on_an_empty_file_is_over_at_once_and_on_a_missing_one_it_fails() {
    let desk = Desk::new();
    let (code, said, errors) = outcome(&desk.run(&["wait", "x"]));
    assert_eq!((code, said.as_str()), (69, ""));
    assert!(errors.contains("leases.sqlite3 does not exist"), "{errors}");
    fs::write(&desk.file, "").unwrap();
    let (code, said, errors) = outcome(&desk.run(&["wait", "x"]));
    assert_eq!((code, errors.as_str()), (0, ""));
    assert!(said.starts_with("x: nobody has it in "), "{said}");
}

#[test]
fn a_name_that_was_never_claimed_is_told_apart_from_one_like_it() {
    let desk = Desk::new();
    acquired(desk.db().claim("nightly", "a", LONG));
    let cases: [(&[&str], i32); 7] = [
        (&["who", "nigthly"], 1),
        (&["wait", "nigthly"], 0),
        (&["status", "nigthly"], 0),
        (&["break", "nigthly", "--yes"], 1),
        (&["renew", "nigthly", "--token", "1"], 1),
        (&["release", "nigthly", "--token", "1"], 1),
        (&["lease", "transfer", "nigthly", "--token", "1", "--to", "b"], 1),
    ];
    for (words, expected) in cases {
        let (code, said, _) = outcome(&desk.run(words));
        assert_eq!(code, expected, "{words:?}");
        assert!(said.ends_with("; did you mean nightly?\n"), "{words:?}: {said}");
        assert!(said.contains(desk.file.to_str().unwrap()), "{words:?}: {said}");
        let far: Vec<&str> = words.iter().map(|word| word.trim_start_matches("nigt")).collect();
        assert!(!outcome(&desk.run(&far)).1.contains("mean"), "{far:?}");
    }
    assert_eq!(json(&desk, &["release", "nigthly", "--token", "1"]).1["did_you_mean"], "nightly");
    // One that is known and free was meant.
    let free = acquired(desk.db().claim("nightlx", "a", LONG));
    desk.db().release(&free).unwrap();
    assert!(!outcome(&desk.run(&["who", "nightlx"])).1.contains("mean"));
}

#[test]
fn whoever_is_quiet_hears_answers_and_errors_only() {
    let desk = Desk::new();
    let quiet = |words: &[&str]| outcome(&desk.run(&[&["-q"], words].concat()));
    let (none, token) = (String::new, |token: i64| format!("{token}\n"));
    assert_eq!(quiet(&["status"]), (0, none(), none()));
    assert_eq!(quiet(&["claim", "x", "--owner", "a"]), (0, token(1), none()));
    assert_eq!(quiet(&["claim", "x"]), (1, none(), none()));
    assert_eq!(quiet(&["run", "-n", "x", "--", "true"]), (1, none(), none()));
    assert_eq!(quiet(&["wait", "x", "-w", "1ms"]), (1, none(), none()));
    assert_eq!(quiet(&["renew", "x", "--token", "1"]), (0, token(1), none()));
    assert_eq!(quiet(&["renew", "x", "--token", "2"]), (1, none(), none()));
    assert!(quiet(&["who", "x"]).1.contains("owner a"));
    assert!(quiet(&["status"]).1.contains("OWNER"));
    assert_eq!(quiet(&["release", "x", "--token", "1"]), (0, none(), none()));
    assert_eq!(quiet(&["who", "x"]), (1, none(), none()));
    assert_eq!(quiet(&["run", "x", "--", "echo", "hi"]), (0, "hi\n".into(), none()));
    assert!(quiet(&["claim", "x", "--json"]).1.contains("token"), "JSON was asked for");
    assert!(quiet(&["run", "x"]).2.contains("COMMAND"), "an error is told");
}

#[test]
fn a_busy_answer_in_json_tells_owner_process_token_and_expiry() {
    let desk = Desk::new();
    let db = desk.db();
    let run = desk.start(&["x"], "echo $$ > child; exec sleep 1000");
    desk.pid("child");
    let lease = db.inspect("x").unwrap().unwrap();
    for words in
        [&["claim", "x"][..], &["run", "-n", "x", "--", "true"], &["wait", "x", "-w", "1ms"]]
    {
        let (code, answer) = json(&desk, words);
        assert_eq!(code, 1, "{words:?}");
        let busy = &answer["busy"];
        assert_eq!(busy["owner"], json!(lease.owner), "{words:?}: {answer}");
        assert_eq!((&busy["token"], &busy["pid"]), (&json!(1), &json!(run.pid())), "{words:?}");
        let expiry = busy["expires_at_ms"].as_i64().unwrap();
        assert!(expiry >= lease.expires_at_ms, "{words:?}");
    }
    let file = desk.file.to_str().unwrap();
    let words = [
        "write",
        "--db",
        file,
        "--",
        "litelease",
        "--json",
        "write",
        "-w",
        "0",
        "--db",
        file,
        "--",
        "true",
    ];
    let (code, answer) = json(&desk, &words);
    assert!(code == 1 && answer["busy"]["holder"]["pid"].is_number(), "{answer}");
}

#[test]
fn a_write_polls_if_it_is_told_to_and_says_if_the_database_is_not_in_wal_mode() {
    let desk = Desk::new();
    let lock = desk.folder.path().join("leases.sqlite3.lock");
    let hold = ["write", "--", "sh", "-c", "echo > began; while ! [ -e go ]; do sleep 0.01; done"];
    let mut holder = desk.command(&hold).spawn().unwrap();
    desk.read("began");
    let poll = ["write", "--poll", "1ms", "--longest-pause", "2ms"];
    let impatient = [&poll[..], &["-w", "30ms", "--", "true"]].concat();
    let (code, _, errors) = outcome(&desk.run(&impatient));
    assert!(code == 1 && errors.contains("write lock timeout after 30ms"), "{errors}");
    let patient = [&poll[..], &["-w", "60s", "--", "echo", "written"]].concat();
    let waiter = desk.command(&patient).stdout(Stdio::piped()).spawn().unwrap();
    fs::write(desk.folder.path().join("go"), "").unwrap();
    assert_eq!(outcome(&waiter.wait_with_output().unwrap()).1, "written\n");
    assert!(holder.wait().unwrap().success() && lock.exists());
    assert!(!lock.with_extension("lock.queue").exists(), "nobody has queued");

    let write = ["write", "--", "echo", "written"];
    assert_eq!(
        outcome(&desk.run(&write)),
        (0, "written\n".into(), String::new()),
        "no database yet"
    );
    let plain = Connection::open(&desk.file).unwrap();
    plain.execute_batch("CREATE TABLE notes (text)").unwrap();
    let (code, said, errors) = outcome(&desk.run(&write));
    assert_eq!((code, said.as_str()), (0, "written\n"));
    assert!(
        errors.contains("is in journal mode DELETE") && errors.lines().count() == 1,
        "{errors}"
    );
    plain.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    assert_eq!(outcome(&desk.run(&write)), (0, "written\n".into(), String::new()));
}

#[test]
fn the_status_tells_user_command_and_since_when() {
    let desk = Desk::new();
    let run = desk.start(&["x"], "echo $$ > child; exec sleep 1000");
    desk.pid("child");
    let before = litelease::now_ms();
    let lease = desk.db().claim("y", "worker-b", LONG).unwrap().acquired().unwrap();
    let after = litelease::now_ms();
    assert!(matches!(desk.db().renew(&lease, LONG), Ok(RenewResult::Renewed(_))));
    let (_, all) = json(&desk, &["status"]);
    let (x, y) = (&all[0], &all[1]);
    let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    assert_eq!(x["user"], user.trim());
    assert_eq!((&x["command"][1], &x["command"][2]), (&json!("run"), &json!("x")));
    assert!(x["since_ms"].as_i64().unwrap() > 0);
    // An owner text that says nothing about it.
    assert!((before..=after).contains(&y["since_ms"].as_i64().unwrap()), "{y}");
    let (_, who_y, _) = outcome(&desk.run(&["who", "y"]));
    assert!(who_y.starts_with("y: token 1, owner worker-b, for ") && who_y.contains(" now; lasts"));
    assert_eq!((&y["user"], &y["command"]), (&Value::Null, &Value::Null), "nobody knows");
    let (_, table, _) = outcome(&desk.run(&["status"]));
    let of_y: Vec<&str> = table.lines().nth(2).unwrap().split_whitespace().collect();
    assert!(of_y[..3] == ["y", "worker-b", "1"] && of_y[3] != "-", "HELD: {table}");
    let line = table.lines().nth(1).unwrap();
    assert!(line.contains(user.trim()) && line.contains("litelease run x -- sh -c"), "{table}");
    let (_, who, _) = outcome(&desk.run(&["who", "x"]));
    assert!(who.contains("the process is there: litelease run x -- sh -c"), "{who}");
    // A process that has the number of the holder, but is another one, is not shown for it.
    let me = litelease::Identity::new(litelease_hold::HolderKind::Hold);
    let other = litelease::Identity { start: me.start.map(|start| start + 1), ..me };
    acquired(desk.db().claim("z", &other.to_string(), LONG));
    let (_, z) = json(&desk, &["who", "z"]);
    assert_eq!(
        (&z["process"], &z["command"], &z["user"]),
        (&json!("dead"), &Value::Null, &Value::Null)
    );
    drop(run);
}

/// As docs/cli.md has it: a folder and a file for a group, and users who share nothing else.
#[test]
fn users_of_one_group_share_a_file_that_was_made_for_them() {
    const GROUP: u32 = 60_000;
    let desk = Desk::new();
    let folder = desk.folder.path().join("shared");
    let file = folder.join("leases.sqlite3");
    let made = Command::new("install")
        .args(["-d", "-m", "2770", "-g", &GROUP.to_string()])
        .arg(&folder)
        .status()
        .is_ok_and(|status| status.success())
        && Command::new("install")
            .args(["-m", "660", "-g", &GROUP.to_string(), "/dev/null"])
            .arg(&file)
            .status()
            .is_ok_and(|status| status.success());
    fs::set_permissions(desk.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let user = |uid: u32, group: u32, words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}"));
        command.arg(format!("--groups={group}")).arg("--").arg(litelease()).args(words);
        desk.environment(&mut command);
        outcome(
            &command
                .env("LITELEASE_DB", &file)
                .current_dir("/")
                .stdin(Stdio::null())
                .output()
                .unwrap(),
        )
    };
    if !made || user(60_001, GROUP, &["--version"]).0 != 0 {
        return report("SKIPPED: users of one group on one file (cannot become other users)");
    }
    for round in 0..2 {
        for uid in [60_001, 60_002, 60_001] {
            let (code, _, errors) = user(uid, GROUP, &["run", "-n", "x", "--", "true"]);
            assert_eq!((code, errors.as_str()), (0, ""), "round {round}, user {uid}");
        }
    }
    let (code, token, errors) =
        user(60_001, GROUP, &["claim", "x", "--owner", "a", "--ttl", "10m"]);
    assert_eq!((code, token.as_str()), (0, "7\n"), "{errors}");
    assert_eq!(user(60_002, GROUP, &["run", "-n", "x", "--", "true"]).0, 1);
    assert!(user(60_002, GROUP, &["status"]).1.contains('7'));
    assert_eq!(user(60_002, GROUP, &["wait", "x", "-w", "1ms"]).0, 1);
    assert_eq!(user(60_002, GROUP, &["break", "x", "--yes"]).0, 0);
    assert_ne!(user(60_003, 60_003, &["who", "x"]).0, 0, "a stranger cannot even look");
}

#[test]
fn a_foreign_file_is_refused_by_name_and_left_as_it_was() {
    let desk = Desk::new();
    for content in [
        "not a database, and longer than a header is: so that SQLite looks at it".repeat(20),
        "x".into(),
    ] {
        fs::write(&desk.file, &content).unwrap();
        for words in [&["run", "x", "--", "true"][..], &["claim", "x"], &["status"], &["who", "x"]]
        {
            let (code, _, errors) = outcome(&desk.run(words));
            assert_eq!(code, 69, "{words:?}: {errors}");
            assert!(errors.contains("leases.sqlite3") && errors.lines().count() == 1, "{errors}");
        }
        assert_eq!(fs::read_to_string(&desk.file).unwrap(), content);
        let (code, said, _) = outcome(&desk.run(&["doctor"]));
        assert!(code == 1 && said.contains("wrong"), "{said}");
    }
    // A database whose lease table is not ours.
    fs::remove_file(&desk.file).unwrap();
    let theirs = litelease::rusqlite::Connection::open(&desk.file).unwrap();
    theirs
        .execute_batch("CREATE TABLE litelease_resources (name TEXT PRIMARY KEY, owner TEXT)")
        .unwrap();
    let (code, _, errors) = outcome(&desk.run(&["run", "x", "--", "true"]));
    assert_eq!(code, 69);
    assert!(errors.contains("litelease_resources is not as Litelease makes it"), "{errors}");
    assert!(errors.contains("leases.sqlite3"), "{errors}");
    // And one that has none.
    theirs.execute_batch("DROP TABLE litelease_resources; CREATE TABLE theirs (id)").unwrap();
    let (code, _, errors) = outcome(&desk.run(&["who", "x"]));
    assert_eq!(code, 69);
    assert!(errors.contains("leases.sqlite3: no lease table yet"), "{errors}");
}

#[test]
fn the_doctor_names_a_writer_that_stays_and_a_file_that_is_not_there() {
    let desk = Desk::new();
    let (code, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(code == 0 && said.contains("is not there yet"), "{said}");
    let mut db = desk.db();
    let _tx = db.transaction().unwrap();
    let (_, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(said.contains(&format!("pid {} is writing", std::process::id())), "{said}");
}

#[test]
fn the_doctor_names_dead_items_and_those_of_a_clock_that_went_back() {
    let desk = Desk::new();
    let db = desk.db();
    let queue = db.queue("mail");
    queue.send("x").unwrap();
    queue.receive(LONG).unwrap().unwrap().bury(None).unwrap();
    queue.at(litelease::now_ms() + 3_600_000).send("later").unwrap();
    let (code, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(code == 0 && said.contains("mail: 1 dead items"), "{said}");
    assert!(said.contains("mail: 1 items have a time in the future"), "{said}");
    db.conn().execute_batch("CREATE TABLE litelease_items (theirs)").unwrap();
    let (code, said, _) = outcome(&desk.run(&["doctor"]));
    assert!(code == 1 && said.contains("the table litelease_items is not"), "{said}");
}

#[test]
fn the_doctor_counts_what_is_left_of_ended_grants_and_names_damaged_and_foreign_side_tables() {
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("x", "a", LONG));
    let _ = db.attach(("x", lease.token), "here").unwrap();
    let _ = db.request("x", "b", LONG).unwrap();
    let said = |code: i32| {
        let (found, said, _) = outcome(&desk.run(&["doctor"]));
        assert_eq!(found, code, "{said}");
        said
    };
    assert!(said(0).contains("2, with 2 rows"));
    let _ = db.break_lease("x").unwrap();
    assert!(said(0).contains("2 of 2 rows are of grants that have ended: litelease purge"));
    db.purge(litelease::now_ms()).unwrap();
    assert!(!said(0).contains("ended"));
    acquired(db.claim("x", "a", LONG));
    let _ = db.request("x", "b", LONG).unwrap();
    db.conn().execute_batch("UPDATE litelease_requests SET until_ms = 'soon'").unwrap();
    assert!(said(1).contains("litelease_requests: 1 damaged rows: delete them"));
    db.conn().execute_batch("CREATE TABLE litelease_limits (theirs)").unwrap();
    assert!(said(1).contains("litelease_limits is not as litelease makes it"));
}

#[test]
fn shards_shows_who_has_what_who_asks_for_it_and_how_far_it_is() {
    let desk = Desk::new();
    let db = desk.db();
    let (code, _, errors) = outcome(&desk.run(&["status", "--shards", "orders"]));
    assert!(code == 64 && errors.contains("no such group"), "{errors}");
    assert_eq!(outcome(&desk.run(&["status", "--shards", "orders/shard/0"])).0, 64);
    for (member, owner) in [("a", "one"), ("b", "two")] {
        let name = format!("orders/member/{member}");
        let lease = acquired(db.claim(&name, owner, LONG));
        let _ = db.attach((&name, lease.token), 3).unwrap();
    }
    let lease = acquired(db.claim("orders/shard/1", "one", LONG));
    let _ = db.checkpoint(("orders/shard/1", lease.token), "page 17").unwrap();
    let _ = db.request("orders/shard/1", "two", LONG).unwrap();
    let (code, answer) = json(&desk, &["status", "--shards", "orders"]);
    assert_eq!((code, &answer["members"][0]["shards"]), (0, &json!(1)));
    assert_eq!(answer["members"][1]["id"], "b");
    let shard = &answer["shards"][1];
    assert_eq!((&shard["member"], &shard["token"]), (&json!("a"), &json!(lease.token)));
    assert_eq!(
        (&shard["request"]["member"], &shard["checkpoint"]),
        (&json!("b"), &json!("page 17"))
    );
    assert_eq!((&answer["shards"][2]["owner"], &answer["shards"][3]), (&Value::Null, &Value::Null));
    let (_, said, _) = outcome(&desk.run(&["status", "--shards", "orders"]));
    for word in ["MEMBER", "REQUESTED BY", "page 17", "free", "to drain"] {
        assert!(said.contains(word), "{said}");
    }
    for member in ["orders/member/a", "orders/member/b"] {
        let _ = db.break_lease(member).unwrap();
    }
    let (code, said, _) = outcome(&desk.run(&["status", "--shards", "orders"]));
    assert!(code == 1 && said.contains("no member is live"), "{said}");
}

#[test]
fn names_that_play_tricks_are_shown_harmlessly_and_found_again() {
    let desk = Desk::new();
    let db = desk.db();
    for name in ["a b", "-n", "\u{1b}[31mred\nline", "日本", "quote\"s'"] {
        acquired(db.claim(name, "a", LONG));
        let (code, said, errors) = outcome(&desk.run(&["who", "--", name]));
        assert_eq!((code, errors.as_str()), (0, ""), "{name:?}");
        assert!(said.lines().count() == 1 && !said.contains('\u{1b}'), "{said:?}");
        assert_eq!(json(&desk, &["status", "--", name]).0, 0);
    }
    assert_eq!(json(&desk, &["status"]).1.as_array().unwrap().len(), 5);
}

#[test]
fn help_completions_and_manual_pages_are_there_for_everything() {
    let desk = Desk::new();
    let (code, help, _) = outcome(&desk.run(&["--help"]));
    assert_eq!(code, 0);
    let commands: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.strip_prefix("  ")?.split(' ').next().filter(|word| !word.is_empty())
        })
        .collect();
    for expected in [
        "run", "status", "who", "wait", "watch", "claim", "renew", "release", "lease", "break",
        "purge", "guard", "generate",
    ] {
        assert!(commands.contains(&expected), "{expected} is missing in {commands:?}");
    }
    for command in commands.iter().filter(|command| **command != "help") {
        let (code, help, _) = outcome(&desk.run(&[command, "--help"]));
        assert!(code == 0 && help.contains("Usage:"), "{command}");
        let (code, page, _) = outcome(&desk.run(&["generate", "man", command]));
        assert!(code == 0 && page.contains(".SH SYNOPSIS"), "{command}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let (code, script, _) = outcome(&desk.run(&["generate", "completions", shell]));
        assert!(code == 0 && script.contains("transfer"), "{shell}");
    }
    assert!(outcome(&desk.run(&["--version"])).1.starts_with("litelease 0."));
    assert!(fs::read_dir(desk.folder.path()).unwrap().next().is_none(), "and made nothing");
}

#[test]
fn the_demo_tells_its_story() {
    let desk = Desk::new();
    let (code, story, errors) = outcome(&desk.run(&["demo"]));
    assert_eq!((code, errors.as_str()), (0, ""));
    for line in [
        "worker a  claim    acquired, token 1",
        "worker a  write    page 1 stored under token 1",
        "worker b  claim    busy: worker a has it under token 1",
        "worker b  claim    acquired, token 2",
        "worker b  write    page 2 stored under token 2",
        "worker a  write    refused: stale fencing token",
        "worker a  progress refused: token 1 is superseded by 2",
        "worker a  renew    rejected: token 1 is superseded by token 2 of worker b",
        "worker a  release  rejected: token 1 is superseded by token 2 of worker b",
        "worker b  write    page 3 stored under token 2",
        "worker b  progress stored",
        "worker b  renew    done, token 2",
    ] {
        assert!(story.contains(line), "{line:?} is missing in:\n{story}");
    }
}

#[test]
fn a_grace_beyond_all_time_is_a_usage_error() {
    let desk = Desk::new();
    let (code, _, error) = outcome(&desk.run(&["run", "--kill-grace", "1e19", "x", "--", "true"]));
    assert_eq!(code, 64, "{error}");
}

/// SQLite goes on with a file that was deleted, and a process that waits in it waits for ever.
#[test]
fn whoever_waits_in_a_file_that_was_replaced_is_told() {
    for command in ["wait", "watch"] {
        let desk = Desk::new();
        let db = desk.db();
        acquired(db.claim("x", "a", LONG));
        let mut waiting = desk.command(&[command, "x"]);
        let mut waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        match command {
            "wait" => {
                let wakeup = desk.folder.path().join("leases.sqlite3-wakeup");
                eventually("it waits", || wakeup.exists());
            }
            // It tells what is so, and then waits.
            _ => waiting.stdout.as_mut().unwrap().read_exact(&mut [0; 7]).unwrap(),
        }
        for end in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{end}", desk.file.display()));
        }
        acquired(desk.db().claim("x", "b", LONG));
        let output = waiting.wait_with_output().unwrap();
        let (code, _, error) = outcome(&output);
        assert_eq!(code, 69, "{command}: {error}");
        assert!(error.contains("moved, deleted or replaced"), "{command}: {error}");
    }
}
