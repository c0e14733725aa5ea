//! `litelease credential`: its verbs and exit codes, and rotations that are killed.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use litelease_proof::command::{Desk, outcome};
use litelease_proof::rig::{LONG, acquired};
use serde_json::Value;

use crate::cli::run_examples;

/// Runs the command, and returns its exit code and what it prints.
fn run(desk: &Desk, words: &[&str]) -> (i32, String) {
    let (code, said, errors) = outcome(&desk.run(&[&["credential"], words].concat()));
    (code, (said + &errors).trim_end().to_owned())
}

fn json(desk: &Desk, words: &[&str]) -> (i32, Value) {
    let (code, text) = run(desk, &[words, &["--json"]].concat());
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}")))
}

#[test]
fn the_commands_of_the_page_on_credentials_do_what_it_says() {
    assert!(run_examples("docs/recipes/credential.md") > 4);
}

#[test]
fn a_script_issues_verifies_and_rotates() {
    let desk = Desk::new();
    let db = desk.db();
    let lease = acquired(db.claim("upload", "a", LONG));
    assert_eq!(run(&desk, &["issue", "upload", "--token", "1", "-a", "storage"]).0, 69, "no key");
    let (code, key) = json(&desk, &["rotate"]);
    assert_eq!((code, key["key"].as_str().unwrap().len()), (0, 43));
    let issue = |token: &str, ttl: &str| {
        json(&desk, &["issue", "upload", "--token", token, "-a", "storage", "--ttl", ttl])
    };
    let (code, issued) = issue("1", "1h");
    assert_eq!((code, &issued["key"]), (0, &key["key"]));
    let most_ms = litelease::now_ms() + 300_000;
    assert!(issued["expires_at_ms"].as_i64().unwrap() <= most_ms, "cut to five minutes");
    assert_eq!(run(&desk, &["keys", "--out", "jwks.json"]).0, 0);
    assert_eq!(json(&desk, &["issuer"]).1["issuer"], issued["issuer"]);
    let [issuer, credential] =
        ["issuer", "credential"].map(|name| issued[name].as_str().unwrap().to_owned());
    let verify = |more: &[&str]| {
        let words = ["verify", &credential, "--keys", "jwks.json", "--issuer", &issuer];
        json(&desk, &[&words, more].concat())
    };
    let (code, shown) = verify(&["-a", "storage"]);
    assert_eq!((code, &shown["name"], &shown["token"]), (0, &"upload".into(), &1.into()));
    let (code, refused) = verify(&["-a", "printing"]);
    assert_eq!((code, &refused["refused"]), (1, &"Audience".into()));

    // A gate that has seen the successor refuses what has not expired.
    let gate = ["-a", "storage", "--gate", "gate.sqlite3"];
    assert_eq!(verify(&gate).0, 0);
    db.release(&lease).unwrap();
    assert_eq!(issue("1", "1m").1["rejected"], "released");
    acquired(db.claim("upload", "b", LONG));
    assert_eq!(issue("1", "1m").0, 1);
    let next = issue("2", "1m").1["credential"].as_str().unwrap().to_owned();
    let words = ["verify", &next, "--keys", "jwks.json", "--issuer", &issuer];
    assert_eq!(run(&desk, &[&words[..], &gate].concat()).0, 0);
    let (code, refused) = verify(&gate);
    assert_eq!((code, &refused["refused"]), (1, &"Stale".into()));
    assert_eq!(verify(&["-a", "storage"]).0, 0, "without a gate it is valid until it expires");

    // The new key signs, and both are public.
    assert_eq!(run(&desk, &["rotate", "--max-ttl", "10s"]).0, 0);
    let (_, keys) = json(&desk, &["keys"]);
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2);
    let end_ms = issue("2", "1h").1["expires_at_ms"].as_i64().unwrap();
    assert!(end_ms <= litelease::now_ms() + 10_000);
    for (words, expected) in [
        (&["rotate", "--max-ttl", "1ms"][..], 64),
        (&["issue", "-a", "x"], 64),
        (&["issue", "upload", "--token", "2", "-a", ""], 64),
        (&["issue", "upload", "--token", "2", "-a", "x", "--ttl", "1ms"], 1),
        (&["issue", "uplaod", "--token", "2", "-a", "x"], 1),
        (&["verify", "x", "--keys", "jwks.json", "--issuer", "me", "-a", "x"], 64),
        (&["verify", "x", "--keys", "none.json", "--issuer", &issuer, "-a", "x"], 69),
    ] {
        let (code, text) = run(&desk, words);
        assert_eq!(code, expected, "{words:?}: {text}");
    }
}

#[test]
fn a_rotation_that_is_killed_leaves_keys_that_work() {
    let desk = Desk::new();
    assert_eq!(run(&desk, &["rotate"]).0, 0);
    for round in 0..20 {
        let mut command = desk.command(&["credential", "rotate"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Somewhere between its start and its end, which takes a few milliseconds.
        std::thread::sleep(Duration::from_micros(300 * round));
        let _ = child.kill();
        child.wait().unwrap();
        let (code, text) = run(&desk, &["keys"]);
        assert_eq!(code, 0, "{text}");
    }
    assert_eq!(run(&desk, &["rotate"]).0, 0);
    let folder = desk.folder.path().join(".local/state/litelease/credentials");
    assert!(!folder.join("new").exists());
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let is_key = entry.file_name().to_str().unwrap().starts_with("key-");
        use std::os::unix::fs::PermissionsExt;
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert!(!is_key || mode == 0o600, "{entry:?}: {mode:o}");
    }
}
