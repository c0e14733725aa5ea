//! The crate next to other SQLite crates: each project in `examples/integrations` resolves as it is
//! locked, and is what docs/rust-integrations.md shows. `make test-integrations` builds and runs
//! them, which takes two minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use litelease_proof::rig::report;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The folders of all projects.
fn projects() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("examples/integrations")).unwrap();
    let mut projects: Vec<PathBuf> = folders.map(|entry| entry.unwrap().path()).collect();
    projects.sort();
    assert!(projects.len() >= 7);
    projects
}

/// The versions of a package that a lock file names.
fn locked<'a>(lock: &'a str, package: &str) -> Vec<&'a str> {
    let name = format!("name = \"{package}\"\nversion = \"");
    lock.split(&name).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    output
}

#[test]
fn every_project_resolves_as_it_is_locked_with_one_sqlite() {
    let mut versions = vec![];
    for project in projects() {
        // If a crate of this workspace was added, `cargo fetch` in each project puts it into the
        // lock file.
        let mut cargo = Command::new(env!("CARGO"));
        run(cargo.args(["fetch", "-q", "--locked"]).current_dir(&project));
        let lock = read(project.join("Cargo.lock"));
        assert_eq!(locked(&lock, "libsqlite3-sys").len(), 1, "{}", project.display());
        versions.extend(locked(&lock, "rusqlite").iter().map(ToString::to_string));
    }
    // The oldest that is allowed is tried here, and the newest by all other tests.
    assert!(read("Cargo.toml").contains("rusqlite = { version = \">=0.37, <0.42\""));
    assert!(versions.iter().any(|version| version == "0.37.0"), "{versions:?}");
    let ours = read("Cargo.lock");
    assert!(locked(&ours, "rusqlite")[0].starts_with("0.41."));
}

#[test]
fn the_document_shows_the_projects_as_they_are() {
    let document = read("docs/rust-integrations.md");
    for project in projects() {
        let name = project.file_name().unwrap().to_str().unwrap();
        let program = read(project.join("main.rs"));
        let is_shown = document.contains(&format!("```rust\n{program}```\n"));
        assert!(is_shown || name == "oldest", "{name} is not shown as it is");
    }
}

#[test]
fn every_project_claims() {
    if std::env::var_os("LITELEASE_INTEGRATIONS").is_none() {
        return report("integrations: not built; `make test-integrations` does");
    }
    let target = root().join("target/integrations");
    for project in projects() {
        let start = Instant::now();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "--locked", "--target-dir"]).arg(&target);
        run(cargo.env("CARGO_PROFILE_DEV_DEBUG", "0").current_dir(&project));
        let manifest = read(project.join("Cargo.toml"));
        let name = manifest.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let answer = || {
            let program = target.join("debug").join(name);
            let Output { stdout, stderr, .. } =
                run(Command::new(program).current_dir(folder.path()));
            // A connection that cannot be closed makes some of them panic on a thread of their own.
            let errors = String::from_utf8(stderr).unwrap();
            assert_eq!(errors, "", "{name}");
            String::from_utf8(stdout).unwrap()
        };
        assert_eq!(answer(), "token Some(1)\n", "{name}");
        // What is held is released at the end; what is merely claimed is not.
        let second = if name == "with-tokio" { "token Some(2)\n" } else { "token None\n" };
        assert_eq!(answer(), second, "{name}");
        report(&format!("integrations: {name}, {:.0?}", start.elapsed()));
    }
}
