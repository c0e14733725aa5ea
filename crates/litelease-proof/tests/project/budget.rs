//! The size of the project: each count has a limit, which a commit may lower.
//!
//! A commit may raise a limit if its message says what users got for it.

use std::collections::BTreeSet;

use crate::project::{read, tracked};

/// How far a count may fall below its limit before the limit must follow it, in percent.
const SLACK: usize = 2;

/// Names of types and functions that say too little and were replaced by the field's words. They
/// stay in the list, so that they cannot come back.
const RETIRED: [&str; 49] = [
    "Ask",
    "Asked",
    "Bell",
    "DEAF_POLL",
    "Door",
    "Ear",
    "Ears",
    "Examination",
    "ItemPlace",
    "Judged",
    "LAST_CALL",
    "LAST_WORDS",
    "LINGER",
    "Lent",
    "Linked",
    "Loan",
    "MARK",
    "Mark",
    "Meant",
    "Nothing",
    "Over",
    "Recall",
    "Riders",
    "Sighting",
    "Telling",
    "Timed",
    "Told",
    "Twin",
    "Why",
    "attempt",
    "counted",
    "done_or",
    "enter",
    "give_time",
    "heard",
    "here_ms",
    "insist",
    "is_deserted",
    "is_marked",
    "keep_the_promise",
    "lift",
    "look",
    "nap",
    "of",
    "ring",
    "take_mark",
    "tell",
    "teller",
    "told",
];

/// A count, its limit, and where to look when it has grown.
struct Row {
    what: &'static str,
    limit: usize,
    found: Vec<String>,
    count: usize,
}

impl Row {
    fn listed(what: &'static str, limit: usize, found: Vec<String>) -> Row {
        Row { what, limit, count: found.len(), found }
    }

    fn number(what: &'static str, limit: usize, count: usize) -> Row {
        Row { what, limit, count, found: Vec::new() }
    }

    fn verdict(&self) -> Option<String> {
        let Row { what, limit, count, found } = self;
        if count > limit {
            let found = found.join("\n  ");
            return Some(format!("{what}: {count}, the limit is {limit}\n  {found}"));
        }
        let lowest = limit - limit * SLACK / 100;
        (*count < lowest).then(|| format!("{what}: fell to {count}; lower its limit of {limit}"))
    }
}

#[test]
fn the_project_stays_within_its_budget() {
    let sources = shipped();
    let code: Vec<(String, Vec<String>)> =
        sources.iter().map(|path| (path.clone(), code_of(path))).collect();
    let pages = tracked("docs/*.md");
    let rows = [
        Row::listed("crates", 12, crates()),
        Row::number(
            "lines of shipped Rust",
            64_990,
            code.iter().map(|(_, lines)| lines.len()).sum(),
        ),
        Row::number("lines of the Python package", 6_310, python_lines()),
        Row::listed("functions over 60 lines", 4, code.iter().flat_map(long_functions).collect()),
        Row::listed("backend traits above the engines", 4, backend_traits(&code)),
        Row::listed("public names of litelease", 118, public_names()),
        Row::listed("items that documentation hides", 32, hidden_items(&sources)),
        Row::listed("top-level commands", 30, commands()),
        Row::listed(
            "comments that leave the actor open",
            2,
            lines_with(&tracked("*.rs"), |line| is_comment(line) && has_vague_word(line)),
        ),
        Row::listed("lines of docs/ that do", 29, lines_with(&pages, has_vague_word)),
        Row::listed("documentation without a verb", 0, lines_with(&sources, begins_vaguely)),
        Row::listed("definitions under retired names", 0, retired_names()),
    ];
    let over: Vec<String> = rows.iter().filter_map(Row::verdict).collect();
    assert!(over.is_empty(), "{}", over.join("\n"));
}

/// Returns the crates that are published.
fn crates() -> Vec<String> {
    let manifests = tracked("crates/*/Cargo.toml");
    manifests.into_iter().filter(|path| !path.contains("litelease-proof")).collect()
}

/// Returns the source files of the crates that are published, without files that are only tests.
fn shipped() -> Vec<String> {
    let mut files = tracked("crates/*/src/*.rs");
    files.retain(|path| !path.contains("litelease-proof"));
    let tests: BTreeSet<String> = files.iter().flat_map(|path| test_files(path)).collect();
    files.retain(|path| !tests.contains(path));
    files
}

/// Returns the files of modules that a file declares for tests alone.
fn test_files(path: &str) -> Vec<String> {
    let text = read(path);
    let lines: Vec<&str> = text.lines().collect();
    let folder = match path.rsplit_once('/') {
        Some((folder, "lib.rs" | "main.rs" | "mod.rs")) => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let modules = lines.windows(2).filter(|pair| pair[0].trim() == "#[cfg(test)]");
    let names = modules.filter_map(|pair| pair[1].trim().strip_prefix("mod ")?.strip_suffix(';'));
    names.map(|name| format!("{folder}/{name}.rs")).collect()
}

/// Returns the lines of a file that are neither blank nor comment, nor in a module of tests.
fn code_of(path: &str) -> Vec<String> {
    let text = read(path);
    let mut lines = text.lines();
    let mut code = Vec::new();
    while let Some(line) = lines.next() {
        if line.trim() == "#[cfg(test)]" {
            let item = lines.next().unwrap_or_default();
            if item.trim_end().ends_with('{') {
                let end = format!("{}}}", indent_of(item));
                lines.by_ref().find(|line| *line == end);
            }
            continue;
        }
        let trimmed = line.trim_start();
        if !trimmed.is_empty() && !trimmed.starts_with("//") {
            code.push(line.to_owned());
        }
    }
    code
}

fn indent_of(line: &str) -> &str {
    &line[..line.len() - line.trim_start().len()]
}

/// Returns the functions with more than 60 lines of code, by their indentation.
fn long_functions((path, code): &(String, Vec<String>)) -> Vec<String> {
    let mut long = Vec::new();
    for (at, line) in code.iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().take(6).collect();
        let Some(fn_at) = words.iter().position(|word| *word == "fn") else { continue };
        let modifiers = ["pub", "pub(crate)", "pub(super)", "async", "unsafe", "const", "extern"];
        if !words[..fn_at].iter().all(|word| modifiers.contains(word) || word.starts_with('"')) {
            continue;
        }
        // A declaration in a trait has no body.
        let begins = code[at..].iter().find(|line| line.ends_with(['{', ';', '}']));
        if begins.is_none_or(|line| !line.ends_with('{')) {
            continue;
        }
        let end = format!("{}}}", indent_of(line));
        let length = code[at..].iter().position(|line| *line == end).unwrap_or(0) + 1;
        if length > 60 {
            long.push(format!("{path}: {} ({length})", words[fn_at + 1]));
        }
    }
    long
}

/// Returns the traits by which a capability reaches a file, a server or an engine.
fn backend_traits(code: &[(String, Vec<String>)]) -> Vec<String> {
    let known = [
        "Deliveries",
        "Engine",
        "Looks",
        "Place",
        "Queues",
        "Rows",
        "Target",
        "Tenure",
        "Trust",
        "WorkItem",
        "Worker",
    ];
    let mut found = Vec::new();
    for (path, lines) in code {
        for line in lines {
            let name = line.split_once("trait ").map(|(_, rest)| rest);
            let name = name.and_then(|rest| rest.split(|c: char| !c.is_alphanumeric()).next());
            if let Some(name) = name.filter(|name| known.contains(name)) {
                found.push(format!("{path}: {name}"));
            }
        }
    }
    found
}

/// Returns what `litelease` exports, without what its documentation hides.
fn public_names() -> Vec<String> {
    let text = read("crates/litelease/src/lib.rs");
    let mut names = Vec::new();
    for (before, exported) in occurrences(&text, "\npub use ") {
        if before.ends_with("#[doc(hidden)]") {
            continue;
        }
        let (exported, _) = exported.split_once(';').unwrap();
        let listed = exported.split_once('{').map_or(exported, |(_, listed)| listed);
        let listed = listed.split([',', '}']).map(str::trim).filter(|name| !name.is_empty());
        let last = listed.map(|name| name.rsplit([' ', ':']).next().unwrap().to_owned());
        names.extend(last);
    }
    let defined = ["\npub mod ", "\npub fn ", "\npub struct ", "\npub enum ", "\npub const "];
    for keyword in defined {
        let visible = occurrences(&text, keyword)
            .filter(|(before, _)| !before.ends_with("#[doc(hidden)]"))
            .filter_map(|(_, rest)| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        names.extend(visible.map(str::to_owned));
    }
    names
}

/// Returns the text before and after each occurrence of a part.
fn occurrences<'t>(text: &'t str, part: &'t str) -> impl Iterator<Item = (&'t str, &'t str)> {
    text.match_indices(part).map(move |(at, _)| (&text[..at], &text[at + part.len()..]))
}

/// Returns where public items are hidden from the documentation.
fn hidden_items(sources: &[String]) -> Vec<String> {
    lines_with(sources, |line| line.contains("#[doc(hidden)]") || line.contains("#![doc(hidden)]"))
}

/// Returns the lines of files for which a test holds, each with its file and number.
fn lines_with(paths: &[String], holds: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in paths {
        for (at, line) in read(path).lines().enumerate().filter(|(_, line)| holds(line)) {
            found.push(format!("{path}:{}: {}", at + 1, line.trim()));
        }
    }
    found
}

fn commands() -> Vec<String> {
    let text = read("crates/litelease-cli/src/commands/mod.rs");
    let (_, table) = text.split_once("\ncommands! {\n").unwrap();
    let (table, _) = table.split_once("\n}").unwrap();
    table.lines().map(|line| line.trim().to_owned()).collect()
}

fn python_lines() -> usize {
    let files = tracked("python/src/litelease/*.py");
    files.iter().map(|path| read(path).lines().count()).sum()
}

/// Counts words that leave the actor open, in lines that are comments, and in pages.
fn has_vague_word(line: &str) -> bool {
    let vague = ["nobody", "somebody", "whoever", "anybody"];
    words_of(line).any(|word| vague.contains(&word.to_lowercase().as_str()))
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// Checks whether documentation begins with a word that is no verb.
fn begins_vaguely(line: &str) -> bool {
    let text = line.trim_start().strip_prefix("/// ").or(line.strip_prefix("//! "));
    let first = text.and_then(|text| text.split(' ').next());
    first.is_some_and(|word| ["Whether", "What", "Who", "Tells"].contains(&word))
}

/// Returns definitions under retired names, in tests and benchmarks, too.
fn retired_names() -> Vec<String> {
    let names = BTreeSet::from(RETIRED);
    let mut found = Vec::new();
    for path in tracked("*.rs") {
        for line in read(&path).lines().filter(|line| !is_comment(line)) {
            let words: Vec<&str> = words_of(line).filter(|word| !word.is_empty()).collect();
            let keywords = ["struct", "enum", "trait", "fn", "const", "static", "type"];
            for pair in words.windows(2) {
                if keywords.contains(&pair[0]) && names.contains(pair[1]) {
                    found.push(format!("{path}: {}", pair[1]));
                }
            }
        }
    }
    found
}
