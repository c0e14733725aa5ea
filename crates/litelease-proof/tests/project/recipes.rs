//! The recipes in docs/recipes: their programs are the examples and print what the pages say, each
//! page answers the same questions, and the table of failures is true.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use litelease_proof::command::Desk;
use litelease_proof::rig::{PLANTED, report};

use crate::project::{read, root};

/// The pages and their programs. The page on credentials has tests of its own.
const RECIPES: [(&str, &str); 10] = [
    ("cache", "recipe_cache.rs"),
    ("delivery", "recipe_delivery.py"),
    ("fencing-token", "recipe_fencing_token.py"),
    ("handoff", "recipe_handoff.rs"),
    ("leader", "recipe_leader.rs"),
    ("lock", "recipe_lock.sh"),
    ("renewal", "recipe_renewal.sh"),
    ("reservation", "recipe_reservation.py"),
    ("session", "recipe_session.rs"),
    ("shard", "recipe_shard.rs"),
];

/// What each page answers before its program.
const QUESTIONS: [&str; 7] = [
    "What is leased, and what does it cover?",
    "What does its validity rest on?",
    "How long does it last, and what does a renewal prove?",
    "Which token fences it, and where is it checked?",
    "Gap or overlap on handoff?",
    "What refuses the stale owner?",
    "When not to use it?",
];

const TESTS: &str = "crates/litelease-proof/tests/recipes";

/// Returns the first block of this kind.
fn block(page: &str, kind: &str) -> String {
    let begin = format!("\n```{kind}\n");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("no block {kind}"));
    rest.split_once("\n```\n").unwrap().0.to_owned() + "\n"
}

#[test]
fn each_page_answers_the_questions_and_the_table_leads_to_it() {
    let table = read("docs/recipes/README.md");
    for recipe in RECIPES.map(|(recipe, _)| recipe).into_iter().chain(["credential"]) {
        let page = read(&format!("docs/recipes/{recipe}.md"));
        let (answers, _) = page.split_once("\n## A program ").unwrap();
        for question in QUESTIONS {
            assert!(answers.contains(&format!("\n| {question} | ")), "{recipe}: {question}");
        }
        assert!(table.contains(&format!("]({recipe}.md)")), "the table leads to {recipe}.md");
    }
}

#[test]
fn each_page_shows_its_example_as_it_is() {
    for (recipe, example) in RECIPES {
        let page = read(&format!("docs/recipes/{recipe}.md"));
        let kind = match example.split_once('.').unwrap().1 {
            "rs" => "rust",
            "py" => "python",
            other => other,
        };
        assert_eq!(block(&page, kind), read(&format!("examples/{example}")), "{recipe}.md");
        assert!(page.contains(&format!("(../../examples/{example})")), "{recipe}.md names it");
        assert!(page.lines().count() <= 90, "{recipe}.md is two screens at most");
    }
}

/// Returns the command that runs an example, or none if what it needs is missing.
fn command(example: &str) -> Option<Command> {
    let path = root().join("examples").join(example);
    let mut command = match example.split_once('.').unwrap() {
        (name, "rs") => {
            let built = Path::new(env!("CARGO_BIN_EXE_worker")).parent().unwrap();
            return Some(Command::new(built.join("examples").join(name)));
        }
        (_, "py") => {
            let python = root().join("target/python/system/bin/python");
            let probe = Command::new(&python).args(["-c", "import litelease"]).output();
            if !probe.is_ok_and(|output| output.status.success()) {
                return None;
            }
            Command::new(python)
        }
        _ => Command::new("sh"),
    };
    command.arg(path);
    Some(command)
}

#[test]
fn each_example_prints_what_its_page_says() {
    // With the others, so that it builds nothing that `cargo test` has not built.
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-q", "--locked", "-p", "litelease", "--examples"]).current_dir(root());
    assert!(cargo.args(PLANTED).status().unwrap().success());
    for (recipe, example) in RECIPES {
        let Some(mut command) = command(example) else {
            report(&format!("SKIPPED: examples/{example}: scripts/setup-python has not run"));
            continue;
        };
        let desk = Desk::new();
        desk.environment(&mut command);
        let output = command.current_dir(desk.folder.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{example}: {errors}");
        // Two threads may print in either order.
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let shown = block(&read(&format!("docs/recipes/{recipe}.md")), "text");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(sorted(&printed), sorted(&shown), "{example}: {errors}");
    }
}

/// A row of the table of failures, or a test: its file, its name, and how it ends.
type Failure = (String, String, String);

/// The tests of signature failures, as their files have them.
fn tests() -> Vec<Failure> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root().join(TESTS)).unwrap() {
        let path = entry.unwrap().path();
        let (text, file) = (fs::read_to_string(&path).unwrap(), path.file_stem().unwrap());
        for test in text.split("#[test]\n").skip(1) {
            let name = test.strip_prefix("fn ").and_then(|rest| rest.split_once('(')).unwrap().0;
            let end = test.split_once("both_halves(").and_then(|(_, rest)| rest.split_once(','));
            let end = end.unwrap_or_else(|| panic!("{name} must have two halves")).0;
            found.push((file.to_str().unwrap().into(), name.into(), end.trim().to_lowercase()));
        }
    }
    found.sort();
    found
}

#[test]
fn every_signature_failure_has_one_test_and_every_test_is_in_the_table() {
    let page = read("docs/recipes/README.md");
    let (_, table) = page.split_once("## The failures and their tests").unwrap();
    let mut rows: Vec<Failure> = Vec::new();
    let mut failures = BTreeSet::new();
    for line in table.lines().filter(|line| line.starts_with("| ") && line.contains("::")) {
        let [recipe, failure, test, end] =
            line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>()[..]
        else {
            panic!("{line}")
        };
        let (file, name) = test.trim_matches('`').split_once("::").unwrap();
        assert_eq!(file, recipe.replace(' ', "_"), "{line}");
        assert!(failures.insert(failure.to_owned()), "{failure} is there twice");
        rows.push((file.into(), name.into(), end.into()));
    }
    assert_eq!(failures.len(), 34);
    rows.sort();
    assert_eq!(rows, tests(), "left: docs/recipes/README.md, right: {TESTS}");
}
