//! Handles that are used in the wrong way do not compile: the files in `misuse/` name each error on
//! its line.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use litelease_proof::rig::PLANTED;
use serde_json::Value;

use crate::project::root;

/// The crate as it was built, to compile against.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "--locked", "-p", "litelease", "--message-format=json"]);
        let built = cargo.args(PLANTED).current_dir(root()).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let lines = String::from_utf8(built.stdout).unwrap();
        let mut messages = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let of_crate = |message: &Value| {
            message["target"]["name"] == "litelease" && message["target"]["kind"][0] == "lib"
        };
        let artifact = messages.find(of_crate).unwrap();
        let names = artifact["filenames"].as_array().unwrap().iter().filter_map(Value::as_str);
        names.filter(|name| name.ends_with(".rlib")).map(PathBuf::from).next().unwrap()
    })
}

/// Compiles a program against the crate. Gives the line and the code of each error.
fn errors(program: &str) -> BTreeSet<(usize, String)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("misuse.rs");
    std::fs::write(&file, program).unwrap();
    let library = library();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut rustc = Command::new(rustc);
    rustc.args(["--edition=2024", "--emit=metadata", "--error-format=json", "-Awarnings"]);
    rustc.arg("--extern").arg(format!("litelease={}", library.display()));
    // A build puts a library next to its dependencies, or links it one folder up.
    let place = library.parent().unwrap();
    for dependencies in [place.to_owned(), place.join("deps")] {
        rustc.arg("-L").arg(format!("dependency={}", dependencies.display()));
    }
    let output = rustc.arg("--out-dir").arg(folder.path()).arg(&file).output().unwrap();
    let messages = String::from_utf8(output.stderr).unwrap();
    let found: BTreeSet<(usize, String)> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["level"] == "error" && !message["spans"][0].is_null())
        .map(|message| {
            let spans = message["spans"].as_array().unwrap();
            let primary = spans.iter().find(|span| span["is_primary"] == true).unwrap();
            let line = primary["line_start"].as_u64().unwrap() as usize;
            (line, message["code"]["code"].as_str().unwrap_or("no code").to_owned())
        })
        .collect();
    assert_eq!(found.is_empty(), output.status.success(), "{messages}");
    found
}

#[track_caller]
fn check(program: &str) {
    let expected: BTreeSet<(usize, String)> = (1..)
        .zip(program.lines())
        .filter_map(|(number, line)| Some((number, line.split_once("//~ ")?.1.to_owned())))
        .collect();
    assert!(expected.len() > 5);
    assert_eq!(errors(program), expected);
    let rest: Vec<&str> = program.lines().filter(|line| !line.contains("//~ ")).collect();
    assert_eq!(errors(&rest.join("\n")), BTreeSet::new(), "without the lines that are wrong");
}

#[test]
fn a_handle_cannot_outlive_its_connection() {
    check(include_str!("../../misuse/lifetimes.rs"));
}

#[test]
fn a_handle_cannot_leave_the_thread_of_its_connection() {
    check(include_str!("../../misuse/threads.rs"));
}
